"""What CUDA kernels allocate inside, which no shape of an argument or a result shows. Sizes in bytes.

From torch's sources (aten/src/ATen/native): cuda/Embedding.cu, cuda/EmbeddingBackwardKernel.cu, cuda/Blas.cpp,
transformers/cuda/flash_attn, transformers/cuda/attention_backward.cu, cudnn/MHA.cpp. Conv_v8.cpp's workspaces are the
choice of cuDNN's heuristics and only guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch

Inner = Callable[[Sequence[Any], Any], list[int]]

FEW_INDICES = 3072
"""Up to so many, the embedding's gradient is summed in one kernel without sorting."""

ROWS_A_THREAD = 10


def _up(size: int, to: int) -> int:
    return -(-size // to) * to


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def embedding_backward(args: Sequence[Any], out: Any) -> list[int]:
    grad, indices = args[0], args[1]
    padding = args[3] if len(args) > 3 else -1
    many = indices.numel()
    if many <= FEW_INDICES and padding < 0:
        return []
    row, segments = indices.element_size(), min(many, args[2])
    parts = many // ROWS_A_THREAD + segments
    # sorted and original positions, the sort's own space, tables of segments and parts, the sums of each part in fp32
    return [many * row] * 2 + [many * row * 2] + [many * row] * 3 + [parts * row, parts * grad.shape[-1] * 4]


def flash_backward(args: Sequence[Any], out: Any) -> list[int]:
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


def cudnn_backward(args: Sequence[Any], out: Any) -> list[int]:
    """cuDNN's workspace: as flash, one allocation."""
    query, key = args[1], args[2]
    batch, heads, rows, width = query.shape
    size = batch * heads * rows * (width + 1) * 4
    if key.shape[1] != heads:
        size += 2 * batch * key.shape[2] * heads * width * query.element_size()
    return [size]


def efficient_backward(args: Sequence[Any], out: Any) -> list[int]:
    query, value = args[1], args[3]
    batch, heads, rows, width = query.shape
    inner = [batch * heads * _up(rows, 32) * 4]
    if query.element_size() < 4:
        inner.append(batch * heads * _up(rows, 64) * _up(width, 32) * 4)
        if value.shape[-1] > 128:
            inner.append(batch * heads * value.shape[2] * (width + value.shape[-1]) * 4)
    return inner


def matrix_copies(args: Sequence[Any], out: Any) -> list[int]:
    """cuBLAS wants one of the last two dimensions dense; anything else is copied first."""
    return [_bytes(one) for one in args if isinstance(one, torch.Tensor) and one.dim() >= 2 and not _dense(one)]


def _dense(matrix: torch.Tensor) -> bool:
    rows, columns = matrix.shape[-2:]
    down, along = matrix.stride()[-2:]
    if rows <= 1 or columns <= 1:
        return True
    return (along == 1 and down >= columns) or (down == 1 and along >= rows)


def convolution(args: Sequence[Any], out: Any) -> list[int]:
    """Tensor-core kernels want channels last: what they read is turned in the workspace. Not for grouped ones."""
    tensors = [one for one in args[:3] if isinstance(one, torch.Tensor) and one.dim() == 4]
    grouped = args[-1] if isinstance(args[-1], int) else args[-2]
    if len(tensors) < 2 or grouped != 1 or all(t.is_contiguous(memory_format=torch.channels_last) for t in tensors):
        return []
    return [max(_bytes(one) + _bytes(other) for one, other in pairwise(tensors))]


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
    _ATEN.convolution_backward.default: convolution,
}
MATRIX_PRODUCTS = {_ATEN.mm.default, _ATEN.bmm.default, _ATEN.addmm.default, _ATEN.baddbmm.default}
