"""Compiled extensions of torch: whether this torch has the symbols and libraries that they were linked against."""

from __future__ import annotations

import glob
import os
import re
import sys

from paramedic.node.elf import Elf, NotElf
from paramedic.node.native import torch_folder
from paramedic.node.rows import Rows

_SYMBOL = re.compile(r"^_ZN?K?(?:3c10|2at|5torch)\d")
_PATTERNS = (
    "flash_attn_2_cuda*.so", "flash_attn_3/*.so", "torchvision/_C*.so", "torchaudio/lib/*.so", "torchaudio/lib/*/*.so",
    "xformers/_C*.so", "transformer_engine_torch*.so", "apex_C*.so", "amp_C*.so", "fused_layer_norm_cuda*.so",
    "bitsandbytes_torch*.so", "causal_conv1d_cuda*.so", "selective_scan_cuda*.so", "grouped_gemm_backend*.so",
    "deepspeed/ops/*/*.so", "colossalai/_C/*.so", "horovod/torch/mpi_lib*.so", "torch_scatter/*.so", "mmcv/_ext*.so",
    "deep_ep_cpp*.so", "deep_gemm_cpp*.so", "vllm/_C*.so", "sgl_kernel/*.so",
)  # fmt: skip
_LIBS = ("libc10.so", "libtorch_cpu.so", "libtorch.so", "libtorch_python.so", "libtorch_cuda.so", "libc10_cuda.so",
         "libtorch_cuda_linalg.so", "libtorch_hip.so", "libc10_hip.so", "libtorch_xpu.so", "libc10_xpu.so")  # fmt: skip
MOST = 60


def look(rows: Rows) -> None:
    torch = torch_folder()
    if torch is None:
        return
    packages, libraries = os.path.dirname(torch), None
    for path in _candidates(packages):
        try:
            extension = Elf(path)
        except NotElf:
            continue
        if not any(name in _LIBS for name in extension.needed):
            continue
        if libraries is None:
            libraries = _torch_libraries(torch)
        name = os.path.relpath(path, packages) if path.startswith(packages + os.sep) else path
        absent = [one for one in extension.needed if one in _LIBS and one not in libraries]
        unknown = _unknown(extension, libraries) if not absent else []
        rows.add(f"extension {name}", {"missing libraries": absent, "missing symbols": unknown[:3]}, path)


def _candidates(packages: str) -> list[str]:
    paths = [path for one in _PATTERNS for path in sorted(glob.glob(os.path.join(glob.escape(packages), one)))]
    built = os.environ.get("TORCH_EXTENSIONS_DIR") or os.path.expanduser("~/.cache/torch_extensions")
    tag = f"py{sys.version_info[0]}{sys.version_info[1]}_*"
    paths += sorted(glob.glob(os.path.join(glob.escape(built), tag, "*", "*.so")))
    return [os.path.realpath(path) for path in paths[:MOST]]


def _torch_libraries(torch: str) -> dict[str, Elf]:
    found = {}
    for name in _LIBS:
        try:
            found[name] = Elf(os.path.join(torch, "lib", name))
        except NotElf:
            continue
    return found


def _unknown(extension: Elf, libraries: dict[str, Elf]) -> list[str]:
    wanted = [name for name in extension.undefined() if _SYMBOL.match(name)]
    return [name for name in wanted if not any(library.defines(name) for library in libraries.values())]
