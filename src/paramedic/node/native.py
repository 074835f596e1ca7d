"""torch's build, and the native libraries that it would really load: found as the linker finds them, then asked."""

from __future__ import annotations

import ctypes
import glob
import mmap
import os
import re
import sys

from paramedic.node.elf import Elf, NotElf
from paramedic.node.rows import Rows, text_of

_FIELDS = ("__version__", "cuda", "hip", "git_version", "debug")
_LIBRARIES = {"nccl": "libnccl.so.2", "cudnn": "libcudnn.so.*[0-9]", "cudart": "libcudart.so.*[0-9]"}
_ARCHITECTURES = re.compile(rb"(?:sm|compute)_\d{2,3}[a-f]?(?: (?:sm|compute)_\d{2,3}[a-f]?){1,30}")
_MOST = 64 << 20


def look(rows: Rows) -> None:
    folder = torch_folder()
    if folder is None:
        return
    _build(rows, folder)
    _copies(rows, folder)
    _loaded(rows, folder)


def torch_folder() -> str | None:
    for place in sys.path:
        if place and os.path.isfile(os.path.join(place, "torch", "version.py")):
            return os.path.realpath(os.path.join(place, "torch"))
    return None


def _build(rows: Rows, folder: str) -> None:
    source = os.path.join(folder, "version.py")
    text = text_of(source)
    for field in _FIELDS:
        hit = re.search(rf"^{field}\s*(?::[^=\n]*)?=\s*(.+)$", text, re.M)
        if hit:
            value = hit.group(1).strip().strip("'\"")
            rows.add(f"torch {field.strip('_').replace('git_version', 'git')}", value, source)
    library = os.path.join(folder, "lib", "libtorch_python.so")
    if rows.get("torch cuda") not in (None, "None") and os.path.isfile(library) and os.path.getsize(library) < _MOST:
        with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            listed = _ARCHITECTURES.search(data)
        if listed:
            rows.add("torch architectures", listed.group().decode().split(), library)


def _copies(rows: Rows, torch: str) -> None:
    """Every copy that a search path of this process could lead to."""
    for name, pattern in _LIBRARIES.items():
        found: dict[str, None] = {}
        for place in _search_folders(torch):
            for path in sorted(glob.glob(os.path.join(glob.escape(place), pattern))):
                found[os.path.realpath(path)] = None
        if found:
            rows.add(f"library {name}", list(found), "search paths")


def _search_folders(torch: str) -> list[str]:
    packages = os.path.dirname(torch)
    places = [one for one in os.environ.get("LD_LIBRARY_PATH", "").split(":") if one]
    places += [os.path.join(torch, "lib"), *glob.glob(os.path.join(glob.escape(packages), "nvidia", "*", "lib"))]
    places += [os.path.join(sys.prefix, "lib"), *glob.glob("/usr/local/cuda*/lib64"), *_system_folders()]
    return list(dict.fromkeys(os.path.realpath(place) for place in places if os.path.isdir(place)))


def _system_folders() -> list[str]:
    return [*glob.glob("/usr/lib/*-linux-gnu"), "/usr/lib64", "/usr/lib", "/usr/local/lib", "/lib64"]


def _loaded(rows: Rows, torch: str) -> None:
    """Which NCCL torch would get: LD_PRELOAD, its own RPATH, LD_LIBRARY_PATH, RUNPATH, then the system's."""
    library = os.path.join(torch, "lib", "libtorch_cuda.so")
    if not os.path.isfile(library):
        return
    try:
        elf = Elf(library)
    except NotElf as error:
        rows.skip("libtorch_cuda.so", str(error))
        return
    if "libnccl.so.2" not in elf.needed:
        rows.add("nccl linked", "into torch", library)
        return
    path, why = resolved("libnccl.so.2", elf)
    if path:
        rows.add("nccl path", path, why)
        rows.add("nccl loaded", _ask_nccl(path), path)


def resolved(name: str, elf: Elf) -> tuple[str | None, str]:
    origin = os.path.dirname(os.path.realpath(elf.path))
    for one in re.split(r"[ :]", os.environ.get("LD_PRELOAD", "")):
        if os.path.basename(one).startswith(name.split(".so", 1)[0] + ".so"):
            return one, "LD_PRELOAD"
    ways = [("RPATH", "" if elf.runpath else elf.rpath), ("LD_LIBRARY_PATH", os.environ.get("LD_LIBRARY_PATH", ""))]
    ways += [("RUNPATH", elf.runpath), ("system", ":".join(_system_folders()))]
    for why, places in ways:
        for place in places.split(":"):
            path = os.path.join(place.replace("${ORIGIN}", origin).replace("$ORIGIN", origin), name)
            if place and os.path.isfile(path):
                return os.path.realpath(path), why
    return None, ""


def _ask_nccl(path: str) -> str | None:
    """2.9 and later say 10000 × major + 100 × minor + patch; before it was 1000."""
    try:
        code = ctypes.c_int()
        if ctypes.CDLL(path).ncclGetVersion(ctypes.byref(code)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    number = code.value
    if number >= 10_000:
        return f"{number // 10_000}.{number % 10_000 // 100}.{number % 100}"
    return f"{number // 1000}.{number % 1000 // 100}.{number % 100}"
