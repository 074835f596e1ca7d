"""GPUs: how much memory each has, which kernels it chooses, and what lies outside torch's allocator on it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from paramedic.errors import ParamedicError

MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class Range:
    """What is known of a size: surely at least, most likely, hardly more; and from where it is known."""

    low: int
    mid: int
    high: int
    source: str


@dataclass(frozen=True, slots=True)
class Card:
    name: str
    memory: int
    """What `torch.cuda.get_device_properties().total_memory` says: less than the label."""
    capability: tuple[int, int]
    processors: int
    tflops: float
    """Dense bf16, by the vendor's sheet; only ratios are used."""
    bandwidth: float
    """Bytes a second between cards of one node, in one direction."""

    @property
    def cublas_workspace(self) -> int:
        """Bytes of one cuBLAS handle's workspace, which torch takes from its allocator (CublasHandlePool.cpp)."""
        return 32 * MIB if self.capability == (9, 0) else 4096 * 1024 * 2 + 16 * 1024 * 8

    @property
    def prefers_cudnn_attention(self) -> bool:
        """Hopper and data-centre Blackwell with cuDNN above 9.15 (sdp_utils.cpp, check_prefer_cudnn_attention)."""
        return self.capability[0] in (9, 10)

    @property
    def context(self) -> Range:
        """The CUDA context with the kernels that a training step loads; nothing in torch counts it."""
        if self.capability >= (9, 0):
            source = "CUDA context: 742 to 762 MiB in all steps measured on an H200 (driver 580, torch 2.11, CUDA 13)"
            return Range(600 * MIB, 758 * MIB, 1000 * MIB, source)
        return Range(280 * MIB, 450 * MIB, 900 * MIB, "CUDA context: general experience, not measured here")


CARDS = {
    card.name: card
    for card in (
        Card("b200", 191_503 * MIB, (10, 0), 148, 2250, 900e9),
        Card("h200", 143_156 * MIB, (9, 0), 132, 989, 450e9),
        Card("h100", 81_090 * MIB, (9, 0), 132, 989, 450e9),
        Card("h100-pcie", 81_004 * MIB, (9, 0), 114, 756, 64e9),
        Card("gh200", 97_280 * MIB, (9, 0), 132, 989, 450e9),
        Card("a100-80", 81_155 * MIB, (8, 0), 108, 312, 300e9),
        Card("a100-40", 40_442 * MIB, (8, 0), 108, 312, 300e9),
        Card("a40", 45_482 * MIB, (8, 6), 84, 150, 32e9),
        Card("a10", 22_723 * MIB, (8, 6), 72, 125, 32e9),
        Card("l40s", 45_457 * MIB, (8, 9), 142, 362, 32e9),
        Card("l4", 22_574 * MIB, (8, 9), 58, 121, 32e9),
        Card("rtx6000-ada", 48_518 * MIB, (8, 9), 142, 364, 32e9),
        Card("4090", 24_126 * MIB, (8, 9), 128, 165, 32e9),
        Card("5090", 32_118 * MIB, (12, 0), 170, 210, 64e9),
        Card("3090", 24_118 * MIB, (8, 6), 82, 71, 32e9),
        Card("v100-32", 32_494 * MIB, (7, 0), 80, 125, 150e9),
        Card("v100-16", 16_151 * MIB, (7, 0), 80, 125, 150e9),
        Card("t4", 15_095 * MIB, (7, 5), 40, 65, 16e9),
    )
}


def card_of(name: str, memory: str | None = None) -> Card:
    card = CARDS.get(name.lower())
    if card is None:
        raise ParamedicError(f"--gpu {name}: not known; known are {', '.join(CARDS)}; --gpu-memory sets another size")
    return card if memory is None else replace(card, memory=size_of(memory, "--gpu-memory"))


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def size_of(text: str, flag: str) -> int:
    """`40GiB`, `24 GB`, `8589934592`."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]i?)?b?\s*", text, re.I | re.A)
    unit = (found[2] or "").lower() if found else ""
    if not found or unit not in _UNITS or not 0 < float(found[1]) * _UNITS[unit] < 1 << 50:
        raise ParamedicError(f"{flag} {text}: not a size; say it like 40GiB or 24GB")
    return int(float(found[1]) * _UNITS[unit])
