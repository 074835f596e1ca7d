"""Compilers and the CUDA toolkit, and locks that a killed build left behind. They matter when extensions are built."""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import subprocess
import time

from paramedic.node.rows import Rows, folder, text_of

_SECONDS = 0.5
_BUILDERS = ("ninja", "nvcc", "cicc", "cc1plus", "c++", "g++", "hipcc", "ptxas")
MOST_LOCKS = 20


def look(rows: Rows) -> None:
    _toolkit(rows)
    _compiler(rows)
    rows.add("tool ninja", bool(shutil.which("ninja")), "PATH")
    _locks(rows)


def _toolkit(rows: Rows) -> None:
    """The toolkit that torch's extension builder would take: CUDA_HOME, then nvcc on PATH, then /usr/local/cuda."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    nvcc = shutil.which("nvcc")
    if home:
        rows.add("cuda home", home, "CUDA_HOME")
        rows.add("cuda home exists", os.path.isdir(home), "CUDA_HOME")
        nvcc = os.path.join(home, "bin", "nvcc")
    elif not nvcc and os.path.isfile("/usr/local/cuda/bin/nvcc"):
        nvcc = "/usr/local/cuda/bin/nvcc"
    if not nvcc or not os.path.isfile(nvcc):
        return
    root = os.path.dirname(os.path.dirname(os.path.realpath(nvcc)))
    hit = None
    try:
        said = json.loads(text_of(os.path.join(root, "version.json")) or "{}")
        version = said.get("cuda_nvcc", said.get("cuda", {})).get("version")
    except (ValueError, AttributeError):
        version = None
    if not version:
        hit = re.search(r"release (\d+\.\d+)", _output([nvcc, "--version"]))
        version = hit.group(1) if hit else None
    rows.add("nvcc version", version, nvcc)


def _compiler(rows: Rows) -> None:
    name = os.environ.get("CXX") or "c++"
    path = shutil.which(name) or shutil.which("g++")
    if path:
        said = _output([path, "-dumpfullversion", "-dumpversion"]).strip()
        kind = "clang" if "clang" in os.path.basename(os.path.realpath(path)) else "gcc"
        if re.match(r"\d+(\.\d+)*$", said):
            rows.add(f"{kind} version", said, path)


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("utf-8", "replace")


def _locks(rows: Rows) -> None:
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or os.path.expanduser("~/.cache/torch_extensions")
    found = sorted(glob.glob(os.path.join(glob.escape(root), "*", "lock")))
    found += sorted(glob.glob(os.path.join(glob.escape(root), "*", "*", "lock")))
    for path in found[:MOST_LOCKS]:
        try:
            age = round(time.time() - os.stat(path).st_mtime)
        except OSError:
            continue
        rows.add(f"lock {path}", age, root)
    if found:
        rows.add("builds running", _builders(), "/proc")


def _builders() -> int:
    names = (text_of(f"/proc/{pid}/comm", 64).strip() for pid in folder("/proc") if pid.isdigit())
    return sum(name in _BUILDERS for name in names)
