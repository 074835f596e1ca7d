"""Makes a torch that was built without CUDA accept tensors on `cuda` that have no data. Standard library only.

A small C++ file is compiled against torch's own headers at first use and kept in the user's cache. It has to be loaded
before torch is imported, so everything here finds torch without importing it.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

from paramedic.errors import ParamedicError

Way = Literal["guard", "card", "coarse"]
"""`guard`: CUDA through our stand-in; `card`: a CUDA torch with a GPU; `coarse`: on cpu, with CUDA's choices."""
_COMPILE_SECONDS = 180


@dataclass(frozen=True, slots=True)
class Torch:
    folder: Path
    version: str

    @property
    def has_cuda(self) -> bool:
        return any((self.folder / "lib").glob("libtorch_cuda*"))


def find_torch() -> Torch:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise ParamedicError("memory: needs torch (the CPU build will do): pip install 'paramedic[memory]'")
    return Torch(Path(spec.origin).parent, importlib.metadata.version("torch"))


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base, "paramedic")


def prepare(say: Callable[[str], None]) -> tuple[Path | None, str]:
    """The compiled guard, made now if need be; or None and why the estimate will be coarser."""
    torch = find_torch()
    if torch.has_cuda:
        return None, ""
    if platform.system() != "Linux":
        return None, f"the CUDA stand-in is built on Linux only, not on {platform.system()}"
    target = cache_folder() / _name(torch)
    if target.exists():
        return target, ""
    compiler = shutil.which(os.environ.get("CXX", "")) or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        return None, "no C++ compiler was found (g++ makes the estimate exact)"
    say(f"paramedic: compiles a stand-in for CUDA, once for torch {torch.version} (about 5 s), into {target.parent}")
    return _compile(compiler, torch, target)


def _source() -> bytes:
    return resources.files(__package__).joinpath("guard.cpp").read_bytes()


def _name(torch: Torch) -> str:
    of = hashlib.sha256(_source() + str(torch.folder).encode()).hexdigest()[:12]
    return f"cuda-stand-in-{torch.version}-{platform.machine()}-{of}.so"


def _compile(compiler: str, torch: Torch, target: Path) -> tuple[Path | None, str]:
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=target.parent) as place:
            source, made = Path(place, "guard.cpp"), Path(place, "guard.so")
            source.write_bytes(_source())
            command = [compiler, "-std=c++20", "-O1", "-shared", "-fPIC", f"-I{torch.folder / 'include'}", str(source)]
            command += [f"-L{torch.folder / 'lib'}", "-lc10", "-ltorch_cpu", "-o", str(made)]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, stdin=subprocess.DEVNULL, check=False
            )
            if done.returncode:
                wrong = next((line for line in done.stderr.splitlines() if "error" in line), "no reason given")
                return None, f"the CUDA stand-in did not compile: {wrong[:200]}"
            os.replace(made, target)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"the CUDA stand-in could not be compiled: {error}"
    return target, ""


def load(library: Path) -> None:
    """Before `import torch`, or torch has already looked for CUDA and found none."""
    folder = find_torch().folder / "lib"
    for name in ("libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
