"""Which attention kernel the card would run. The rules are those of transformers/cuda/sdp_utils.cpp in torch 2.11 to 2.13."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812

from paramedic.memory.cards import Card

Kernel = Literal["cudnn", "flash", "efficient", "math"]
_HALF = (torch.float16, torch.bfloat16)
_original = F.scaled_dot_product_attention


def choose(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None,
    dropout: float, causal: bool, card: Card, forced: str | None = None,
) -> Kernel:  # fmt: skip
    if query.dim() != 4 or (mask is not None and mask.requires_grad and _grouped(query, key)):
        return "math"
    if forced == "flash" and _flash(query, key, value, None, causal, card, dropout):
        return "flash"
    if card.prefers_cudnn_attention and _cudnn(query, key, value, dropout, card):
        return "cudnn"
    if _flash(query, key, value, mask, causal, card, dropout):
        return "flash"
    if _efficient(query, key, value, card):
        return "efficient"
    return "math"


def _grouped(query: torch.Tensor, key: torch.Tensor) -> bool:
    return query.shape[1] != key.shape[1]


def _low_precision(query: torch.Tensor, card: Card) -> bool:
    return query.dtype in _HALF if card.capability >= (8, 0) else query.dtype == torch.float16


def _cudnn(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: float, card: Card) -> bool:
    widths = query.shape[-1], value.shape[-1]
    most = 192 if widths == (192, 128) else 128
    return (
        _low_precision(query, card)
        and dropout * 16 == math.floor(dropout * 16)
        and max(widths) <= most
        and all(width % 8 == 0 for width in widths)
        and key.shape[2] != 1
        and not (dropout and query.shape[2] == 1)
        and all(one.stride(-1) == 1 for one in (query, key, value))
    )


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None,
    causal: bool, card: Card, dropout: float,
) -> bool:  # fmt: skip
    width = query.shape[-1]
    if card.capability < (8, 0) or mask is not None or not _low_precision(query, card):
        return False
    if not (width == key.shape[-1] == value.shape[-1] and width <= 256):
        return False
    if card.capability[0] == 12 or (8, 6) <= card.capability <= (8, 9):
        wide = width > 192 and (dropout > 0 or width <= 224)
        if wide and query.requires_grad:
            return False
    return not (causal and query.shape[2] != key.shape[2])


def _efficient(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, card: Card) -> bool:
    """No grouped heads: fp32 models with them fall back to plain mathematics, which keeps whole score matrices."""
    half = query.dtype in _HALF
    if query.dtype not in (torch.float32, *_HALF) or (query.dtype == torch.bfloat16 and card.capability < (8, 0)):
        return False
    alignment = (8 if half else 4) if card.capability >= (8, 0) else (8 if half and card.capability >= (7, 0) else 1)
    widths = query.shape[-1], value.shape[-1]
    if query.shape[-1] != key.shape[-1] or any(width % alignment for width in widths) or _grouped(query, key):
        return False
    return all(one.stride(-1) == 1 for one in (query, key, value))


def install(card: Card, device: str, forced: str | None = None) -> None:
    """Every caller of `F.scaled_dot_product_attention` gets the card's kernel."""

    def attention(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        if query.device.type != device or not _ours(query):
            return _original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        query, key, value, attn_mask = _autocast(device, query, key, value, attn_mask)
        kernel = choose(query, key, value, attn_mask, dropout_p, is_causal, card, forced)
        if kernel == "math":
            return torch.ops.aten._scaled_dot_product_attention_math(
                query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
            )[0]
        if attn_mask is not None and forced == "flash" and kernel == "flash":
            attn_mask = None
        return _run(kernel, query, key, value, attn_mask, dropout_p, is_causal, scale)

    F.scaled_dot_product_attention = attention


def _ours(query: torch.Tensor) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.distributed.tensor import DTensor

    return isinstance(query, FakeTensor | DTensor) or isinstance(query.data, FakeTensor)


def _autocast(device: str, *tensors: torch.Tensor | None) -> list[Any]:
    """Autocast lists this function among those that run in low precision."""
    if not torch.is_autocast_enabled(device):
        return list(tensors)
    to = torch.get_autocast_dtype(device)
    return [t.to(to) if t is not None and t.is_floating_point() and t.dtype != torch.float64 else t for t in tensors]


def _run(
    kernel: Kernel, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None,
    dropout: float, causal: bool, scale: float | None,
) -> torch.Tensor:  # fmt: skip
    aten = torch.ops.aten
    if mask is not None:
        mask = _bias(mask, query, key)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if kernel == "flash":
        width = query.shape[-1]
        query, key, value = (_padded(one, 8) for one in (query, key, value))
        out = aten._scaled_dot_product_flash_attention(query, key, value, dropout, causal, False, scale=scale)[0]
        return out[..., :width] if out.shape[-1] != width else out
    with_sums = query.requires_grad or key.requires_grad or value.requires_grad
    if kernel == "cudnn":
        return aten._scaled_dot_product_cudnn_attention(
            query, key, value, mask, with_sums, dropout, causal, False, scale=scale
        )[0]
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, with_sums, dropout, causal, scale=scale
    )[0]


def _padded(tensor: torch.Tensor, to: int) -> torch.Tensor:
    short = -tensor.shape[-1] % to
    return F.pad(tensor, (0, short)) if short else tensor


def _bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """A boolean mask becomes numbers; its rows are padded to 16 when they are not aligned; then it is expanded."""
    if mask.dtype == torch.bool:
        mask = torch.where(mask, 0.0, torch.scalar_tensor(-math.inf, dtype=query.dtype, device=query.device))
    short = -mask.shape[-1] % 16
    if short:
        mask = F.pad(mask, (0, short))[..., : mask.shape[-1]]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
