"""pip's resolver, asked by a dry run: nothing is installed, and nothing is built unless it has to be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packaging.utils import canonicalize_name

SECONDS = 90
SOURCE_ONLY = ("deepspeed", "colossalai", "flash-attn", "horovod", "apex")
"""They have no wheels: to know what they require, pip must run their build back end, as an installation would."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`install` is what would be put in, by name; `why` is the resolver's own complaint where it refuses."""

    install: dict[str, str]
    why: str = ""


def dry_run(python: str, wanted: Sequence[str], pins: Iterable[str]) -> Answer:
    """Whether `wanted` can be had in this Python with `pins` left as they are."""
    with tempfile.TemporaryDirectory(prefix="paramedic-") as folder:
        constraints, report = Path(folder, "constraints.txt"), Path(folder, "report.json")
        constraints.write_text("".join(f"{pin}\n" for pin in pins), "utf-8")
        binary = ["--only-binary", ":all:", *(word for name in SOURCE_ONLY for word in ("--no-binary", name))]
        arguments = [
            "install",
            "--dry-run",
            "--quiet",
            "--no-input",
            "--disable-pip-version-check",
            "--report",
            str(report),
        ]
        command = [*_pip(python), *arguments, *binary, "-c", str(constraints), *wanted]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=SECONDS,
                check=False,
                cwd=folder,
                env={**os.environ, "DS_BUILD_OPS": "0"},
            )
        except subprocess.TimeoutExpired:
            return Answer({}, f"pip did not answer in {SECONDS} s")
        except OSError as error:
            return Answer({}, f"pip cannot be started: {error.strerror or error}")
        if done.returncode:
            return Answer({}, _complaint(done.stderr.decode("utf-8", "replace")))
        return Answer(_installs(report))


@cache
def _pip(python: str) -> tuple[str, ...]:
    """The environment's own pip, else ours, told which Python to work for."""
    own = subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False)
    return (python, "-m", "pip") if own.returncode == 0 else (sys.executable, "-m", "pip", "--python", python)


def _installs(report: Path) -> dict[str, str]:
    try:
        said = json.loads(report.read_text("utf-8"))
        rows = [one["metadata"] for one in said["install"]]
        return {canonicalize_name(str(row["name"])): str(row["version"]) for row in rows}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _complaint(text: str) -> str:
    """What the resolver says of the conflict, without its advice."""
    lines = [
        line.strip() for line in text.split("\n") if line.strip() and not line.startswith(("WARNING", "DEPRECATION"))
    ]
    kept = [line for line in lines if not line.startswith(("To fix this", "1. ", "2. ", "ERROR: ResolutionImpossible"))]
    return " ".join(kept)[:600]
