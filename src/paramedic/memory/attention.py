"""Which attention kernel the card would run: the rules of torch 2.11 to 2.13 (transformers/cuda/sdp_utils.cpp)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812

from paramedic.memory.cards import Card

Kernel = Literal["cudnn", "flash", "efficient", "math"]
_HALF = (torch.float16, torch.bfloat16)
_original = F.scaled_dot_product_attention


@dataclass(slots=True)
class Call:
    """The arguments of one `scaled_dot_product_attention`: batch, heads, rows, width."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None = None
    dropout: float = 0.0
    causal: bool = False
    scale: float | None = None
    gqa: bool = False
    """The caller says that query heads share keys; otherwise unequal heads are spread out by plain mathematics."""

    @property
    def grouped(self) -> bool:
        return self.query.shape[1] != self.key.shape[1]

    @property
    def dense_rows(self) -> bool:
        """A bias that was permuted, as T5's is, counts, too."""
        return all(one.stride(-1) == 1 for one in (self.query, self.key, self.value, self.mask) if one is not None)

    def low_precision(self, card: Card) -> bool:
        return self.query.dtype in _HALF if card.capability >= (8, 0) else self.query.dtype == torch.float16


def choose(call: Call, card: Card, flash_asked: bool = False) -> Kernel:
    if call.query.dim() != 4 or (call.grouped and not call.gqa):
        return "math"
    if flash_asked and _flash(call, card, masked=False):
        return "flash"
    if card.prefers_cudnn_attention and _cudnn(call, card):
        return "cudnn"
    if _flash(call, card, call.mask is not None):
        return "flash"
    return "efficient" if _efficient(call, card) else "math"


def _cudnn(call: Call, card: Card) -> bool:
    widths = call.query.shape[-1], call.value.shape[-1]
    most = 192 if widths == (192, 128) else 128
    return (
        call.low_precision(card)
        and call.dropout * 16 == math.floor(call.dropout * 16)
        and max(widths) <= most
        and all(width % 8 == 0 for width in widths)
        and call.key.shape[2] != 1
        and not (call.dropout and call.query.shape[2] == 1)
        and not (call.mask is not None and call.mask.requires_grad)
        and call.dense_rows
    )


def _flash(call: Call, card: Card, masked: bool) -> bool:
    width = call.query.shape[-1]
    if card.capability < (8, 0) or masked or not call.low_precision(card):
        return False
    if not (width == call.key.shape[-1] == call.value.shape[-1] and width <= 256):
        return False
    if card.capability[0] == 12 or (8, 6) <= card.capability <= (8, 9):
        wide = width > 192 and (call.dropout > 0 or width <= 224)
        if wide and call.query.requires_grad:
            return False
    return not (call.causal and call.query.shape[2] != call.key.shape[2])


def _efficient(call: Call, card: Card) -> bool:
    """No grouped heads: fp32 models with them fall back to plain mathematics, which keeps whole score matrices."""
    dtype, half = call.query.dtype, call.query.dtype in _HALF
    if dtype not in (torch.float32, *_HALF) or (dtype == torch.bfloat16 and card.capability < (8, 0)):
        return False
    alignment = (8 if half else 4) if card.capability >= (8, 0) else (8 if half and card.capability >= (7, 0) else 1)
    widths = call.query.shape[-1], call.value.shape[-1]
    if call.query.shape[-1] != call.key.shape[-1] or any(width % alignment for width in widths):
        return False
    return not call.grouped and call.dense_rows


def install(card: Card, device: str, flash_asked: bool = False) -> None:
    """Every caller of `F.scaled_dot_product_attention` gets the card's kernel."""

    def attention(  # noqa: PLR0917
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        if query.device.type != device:
            return _original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        query, key, value, attn_mask = _autocast(device, query, key, value, attn_mask)
        call = Call(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        kernel = choose(call, card, flash_asked)
        if kernel == "math":
            plain = torch.ops.aten._scaled_dot_product_attention_math
            with torch.autocast(device, enabled=False):  # inside it has done its casts, and half precision is widened
                return _first(
                    plain(query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa)
                )
        return _run(kernel, call)

    F.scaled_dot_product_attention = attention


def _autocast(device: str, *tensors: torch.Tensor | None) -> list[Any]:
    """Autocast lists this function among those that run in low precision."""
    if not torch.is_autocast_enabled(device):
        return list(tensors)
    to = torch.get_autocast_dtype(device)
    return [t.to(to) if t is not None and t.is_floating_point() and t.dtype != torch.float64 else t for t in tensors]


def _run(kernel: Kernel, call: Call) -> torch.Tensor:
    aten: Any = torch.ops.aten
    query, key, value = call.query, call.key, call.value
    width = query.shape[-1]
    scale = 1 / math.sqrt(width) if call.scale is None else call.scale
    if kernel == "flash":
        query, key, value = (_padded(one, 8) for one in (query, key, value))
        out = aten._scaled_dot_product_flash_attention(query, key, value, call.dropout, call.causal, False, scale=scale)
        return _first(out)[..., :width] if query.shape[-1] != width else _first(out)
    mask = None if call.mask is None else _bias(call.mask, query, key)
    sums = query.requires_grad or key.requires_grad or value.requires_grad
    if kernel == "cudnn":
        cudnn = aten._scaled_dot_product_cudnn_attention
        return _first(cudnn(query, key, value, mask, sums, call.dropout, call.causal, False, scale=scale))
    efficient = aten._scaled_dot_product_efficient_attention
    return _first(efficient(query, key, value, mask, sums, call.dropout, call.causal, scale=scale))


def _first(out: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return out[0]


def _padded(tensor: torch.Tensor, to: int) -> torch.Tensor:
    short = -tensor.shape[-1] % to
    return F.pad(tensor, (0, short)) if short else tensor


def _bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """A boolean mask becomes numbers; its rows are padded to 8 when they are not aligned; then it is expanded."""
    if mask.dtype == torch.bool:
        mask = torch.where(mask, 0.0, torch.scalar_tensor(-math.inf, dtype=query.dtype, device=query.device))
    short = -mask.shape[-1] % 8
    if short:
        mask = F.pad(mask, (0, short))[..., : mask.shape[-1]]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
