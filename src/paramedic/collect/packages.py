"""Versions of packages, as listings, programs and clusters' modules say them."""

from __future__ import annotations

import re

from paramedic.collect.settings import Settings

_MODULE = re.compile(r"^\s*(?:module|ml) (?:load |add |swap )?([\w./+ -]{3,400})$")
_DIGIT = re.compile(r"\d")
REQUIREMENT = re.compile(
    r"^\s*(?:\[(?:pip3?|conda)\] )?([A-Za-z][\w.-]{0,60})(?:\[[\w,-]{1,60}\])? ?"
    r"(===?|>=|<=|~=|!=|>|<) ?([\w.*+!-]{1,40})"
)
CONDA_LIST = re.compile(r"^([a-z_][\w.-]{1,60}) {2,}(\d[\w.+-]{0,30}) {2,}\S{1,60}(?: {2,}\S{1,40})?\s*$")
_COLLECT_ENV = re.compile(
    r"^(PyTorch version|CUDA used to build PyTorch|ROCM used to build PyTorch|OS|GCC version|Clang version|"
    r"CMake version|Libc version|Python version|Is CUDA available|CUDA runtime version|Nvidia driver version|"
    r"cuDNN version|Python platform|GPU \d{1,2}|Is XPU available|HIP runtime version): ?(.{0,200})$"
)
VERSION = re.compile(
    r"(?<![\w-])(torch|pytorch|deepspeed|transformers|accelerate|nccl|cuda|cudnn|tensorflow|keras|horovod|lightning|ray|numpy|"
    r"megatron-core|colossalai|flash[-_]attn|apex|triton|python|driver|transformer[-_]engine)"
    r"(?:[ _-]?version|\.__version__| info)?(?: ?[=:.]{1,40} ?| )v?(\d{1,4}\.\d{1,4}(?:\.\d{1,4})?[+.\w-]{0,24})",
    re.I,
)
_SAME = {"pytorch": "torch", "megatron_core": "megatron", "megatron-core": "megatron", "flash_attn": "flash-attn"}


def requirement(found: Settings, line: str, source: str, number: int) -> bool:
    said = REQUIREMENT.match(line)
    if said is not None:
        name, sign, version = said.groups()
        shown = version if sign.startswith("==") else f"{sign}{version}"
        found.add("version", _package(name), shown, source, number, part="packages")
        return True
    if (listed := CONDA_LIST.match(line)) is not None:
        found.add("version", _package(listed[1]), listed[2], source, number, part="packages")
        return True
    return False


def _package(name: str) -> str:
    name = name.lower().replace("_", "-")
    return _SAME.get(name, name)


def versions(found: Settings, text: str, source: str, number: int) -> bool:
    if (env := _COLLECT_ENV.match(text)) is not None:
        short = {"pytorch version": "torch", "nvidia driver version": "driver", "python version": "python"}
        key = short.get(env[1].lower(), env[1].lower())
        found.add("version", key, env[2] or "none", source, number, part="collect_env")
        return True
    if "==" in text and requirement(found, text, source, number):
        return True
    for name, version in VERSION.findall(text[:500]):
        found.add("version", _package(name), version.rstrip(".-"), source, number, part="log")
    return False


def modules(found: Settings, line: str, source: str, number: int) -> None:
    """`module load CUDA/12.1.1 gcc/12`, as clusters have it."""
    if (loads := _MODULE.match(line)) is not None:
        for word in loads[1].split()[:40]:
            name, slash, version = word.rpartition("/")
            if slash and _DIGIT.search(version):
                found.add("version", _package(name.rsplit("/", 1)[-1]), version, source, number, part="modules")
