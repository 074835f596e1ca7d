"""What CUDA kernels allocate inside, which no shape of an argument or a result shows. Sizes in bytes.

From torch's sources (aten/src/ATen/native): cuda/Embedding.cu, cuda/EmbeddingBackwardKernel.cu, cuda/Blas.cpp,
transformers/cuda/flash_attn, transformers/cuda/attention_backward.cu, cudnn/MHA.cpp. Which algorithm a convolution runs
with is the choice of cuDNN's heuristics; what its workspaces hold was read off an H200 by `bench/memory`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from paramedic.memory import reduction
from paramedic.memory.cards import MIB, Card

Inner = Callable[[Sequence[Any], Any, Card], list[int]]

FEW_INDICES = 3072
"""Up to so many, the embedding's gradient is summed in one kernel without sorting."""

ROWS_A_THREAD = 10


def _up(size: int, to: int) -> int:
    return -(-size // to) * to


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def embedding_backward(args: Sequence[Any], out: Any, card: Card) -> list[int]:
    grad, indices = args[0], args[1]
    padding = args[3] if len(args) > 3 else -1
    many = indices.numel()
    if many <= FEW_INDICES and padding < 0:
        return []
    row, segments = indices.element_size(), min(many, args[2])
    parts = many // ROWS_A_THREAD + segments
    # sorted and original positions, the sort's own space, tables of segments and parts, the sums of each part in fp32
    return [many * row] * 2 + [many * row * 2] + [many * row] * 3 + [parts * row, parts * grad.shape[-1] * 4]


def flash_backward(args: Sequence[Any], out: Any, card: Card) -> list[int]:
    """The fp32 sum for dq, the rows' sums; with grouped heads, dk and dv for every query head."""
    query, key = args[1], args[2]
    batch, heads, rows, width = query.shape
    inner = [
        batch * heads * _up(rows, 128) * 4,
        batch * heads * _up(rows, 128) * _up(width, 32 if width <= 128 else 64) * 4,
    ]
    if key.shape[1] != heads:
        inner += [batch * key.shape[2] * heads * width * query.element_size()] * 2
    return inner


def cudnn_backward(args: Sequence[Any], out: Any, card: Card) -> list[int]:
    """cuDNN's workspace: as flash, one allocation."""
    query, key = args[1], args[2]
    batch, heads, rows, width = query.shape
    size = batch * heads * rows * (width + 1) * 4 + 256
    if key.shape[1] != heads:
        size += 2 * batch * key.shape[2] * heads * width * query.element_size()
    return [size]


def efficient_backward(args: Sequence[Any], out: Any, card: Card) -> list[int]:
    query, value = args[1], args[3]
    batch, heads, rows, width = query.shape
    inner = [batch * heads * _up(rows, 32) * 4]
    if query.element_size() < 4:
        inner.append(batch * heads * _up(rows, 64) * _up(width, 64) * 4)
        if value.shape[-1] > 128:
            inner.append(batch * heads * value.shape[2] * (width + value.shape[-1]) * 4)
    return inner


def matrix_copies(args: Sequence[Any], out: Any, card: Card) -> list[int]:
    """cuBLAS wants one of the last two dimensions dense; anything else is copied first."""
    return [_bytes(one) for one in args if isinstance(one, torch.Tensor) and one.dim() >= 2 and not _dense(one)]


def _dense(matrix: torch.Tensor) -> bool:
    rows, columns = matrix.shape[-2:]
    down, along = matrix.stride()[-2:]
    if rows <= 1 or columns <= 1:
        return True
    return (along == 1 and down >= columns) or (down == 1 and along >= rows)


def convolution(args: Sequence[Any], out: Any, card: Card) -> list[int]:
    source, weight = args[0], args[1]
    return _turned(source, out, weight) if _turns(source, out, weight, args[8]) else []


def convolution_backward(args: Sequence[Any], out: Any, card: Card) -> list[int]:
    """Towards the input as forward; towards the weights the work is split, each part with fp32 weights of its own."""
    grad, source, weight = args[:3]
    if grad.dim() != 4:
        return []
    found: list[int] = []
    if args[10][0] and _turns(source, grad, weight, args[9]):
        found += _turned(source, grad, weight)
    if not args[10][1]:
        return found
    whole = weight.numel() // weight.shape[1] * _up(weight.shape[1], 16 // grad.element_size()) * 4
    if args[9] != 1:  # in fp32 torch has kernels of its own
        return [*found, 8 * source.shape[0] * weight.numel() * 4] if grad.element_size() < 4 else found
    shares, dense = (128, 8) if grad.element_size() < 4 else (32, 2)
    if _plain(source, grad, weight) and grad.shape[-2] * grad.shape[-1] % dense == 0:
        return [*found, min(shares * whole, 64 * MIB)]
    return [*found, sum(_turned(source, grad, weight)) + min(13 * whole, max(3 * whole, 7 * MIB))]


def _turns(source: torch.Tensor, result: torch.Tensor, weight: torch.Tensor, groups: int) -> bool:
    """Tensor-core kernels want channels last: all is turned in the workspace. A product of matrices does without."""
    if groups != 1 or source.dim() != 4 or (_channels_last(source) and _channels_last(weight)):
        return False
    return not _plain(source, result, weight) or result.shape[-2] * result.shape[-1] % 2 == 1


def _plain(source: torch.Tensor, result: torch.Tensor, weight: torch.Tensor) -> bool:
    """One by one without a stride: a product of matrices."""
    return weight.shape[-2:] == (1, 1) and source.shape[-2:] == result.shape[-2:]


def _channels_last(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last) and not (
        tensor.shape[-2:] == (1, 1) and tensor.is_contiguous()
    )


def _turned(source: torch.Tensor, result: torch.Tensor, weight: torch.Tensor) -> list[int]:
    """Input, output and, beyond one by one, weights; channels are filled up to what a load takes."""
    to = 16 // source.element_size()
    channels = [_bytes(one) // one.shape[1] * _up(one.shape[1], to) for one in (source, result)]
    filled = _bytes(weight) // weight.shape[1] * _up(weight.shape[1], to) if weight.shape[-2:] != (1, 1) else 0
    return [sum(channels) + filled]


def reduced(args: Sequence[Any], out: Any, card: Card) -> list[int]:
    tensor = args[0]
    dims = next((one for one in args[1:3] if isinstance(one, list | tuple)), [])
    if tensor.device.type == "cpu" or not tensor.is_contiguous() or not tensor.is_floating_point():
        return []
    return reduction.sizes(tensor.shape, dims, max(tensor.element_size(), 4), card.processors)


_ATEN = torch.ops.aten
INNER: dict[Any, Inner] = {
    _ATEN.embedding_dense_backward.default: embedding_backward,
    _ATEN._scaled_dot_product_flash_attention_backward.default: flash_backward,
    _ATEN._scaled_dot_product_cudnn_attention_backward.default: cudnn_backward,
    _ATEN._scaled_dot_product_efficient_attention_backward.default: efficient_backward,
    _ATEN.mm.default: matrix_copies,
    _ATEN.bmm.default: matrix_copies,
    _ATEN.addmm.default: matrix_copies,
    _ATEN.baddbmm.default: matrix_copies,
    _ATEN.convolution.default: convolution,
    _ATEN.convolution_backward.default: convolution_backward,
    _ATEN.sum.dim_IntList: reduced,
    _ATEN.mean.dim: reduced,
    _ATEN.sum.default: reduced,
    _ATEN.linalg_vector_norm.default: reduced,
}
MATRIX_PRODUCTS = {_ATEN.mm.default, _ATEN.bmm.default, _ATEN.addmm.default, _ATEN.baddbmm.default}
CONVOLUTIONS = {_ATEN.convolution.default, _ATEN.convolution_backward.default}
"""Where memory is short, cuDNN falls back to an algorithm that needs less."""
