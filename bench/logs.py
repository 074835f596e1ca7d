"""Synthetic rank logs for benchmarks: ordinary training lines, and a given share of lines that some rule looks for."""

from __future__ import annotations

import random
from pathlib import Path

from paramedic.knowledge import load


def keywords() -> list[str]:
    return sorted({keyword for rule in load().rules.values() for keyword in rule.keywords})


def write_logs(folder: Path, files: int, total_bytes: int, hit_share: float = 0.02, seed: int = 1) -> None:
    """Every file differs; the hits are spread evenly and name literals of all rules."""
    rng = random.Random(seed)
    literals = keywords()
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(files):
        lines = []
        for step in range(40_000):
            if rng.random() < hit_share:
                lines.append(
                    f"2026-11-15 02:06:22,{step % 1000:03d} WARNING worker {rank}: {rng.choice(literals)} at {step}"
                )
            else:
                lines.append(
                    f"2026-11-15 02:06:22,{step % 1000:03d} INFO train: rank {rank} step {step} loss {rng.random():.4f} "
                    f"grad_norm {rng.random():.3f} lr 3.0e-04 tokens/s {rng.randint(1000, 9999)}"
                )
        chunk = ("\n".join(lines) + "\n").encode()
        with open(folder / f"rank_{rank}.log", "wb") as file:
            left = total_bytes // files
            while left > 0:
                file.write(chunk[:left] if left < len(chunk) else chunk)
                left -= len(chunk)
