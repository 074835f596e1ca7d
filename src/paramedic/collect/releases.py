"""Renews `knowledge/releases.json`: what the package index says of the projects that training stands on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from paramedic.collect import index

PROJECTS = (
    "accelerate", "bitsandbytes", "colossalai", "deepspeed", "flash-attn", "horovod", "lightning", "megatron-core",
    "nvidia-resiliency-ext", "peft", "pytorch-lightning", "ray", "torch", "torchaudio", "torchtitan", "torchvision",
    "transformer-engine", "transformers", "trl", "xformers",
)  # fmt: skip
MOST_RELEASES = 40
WITH_REQUIREMENTS = 12
_AT_ONCE = 6


def renewed(
    today: str, names: Iterable[str] = PROJECTS, say: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """The document, from the index that pip would ask. Raises ParamedicError where it cannot be reached at all."""
    names = sorted(names)
    index.checked(names[0])
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = dict(zip(names, pool.map(lambda name: _project(name, say), names), strict=True))
    return {"version": 1, "date": today, "source": index.address(), "projects": {k: v for k, v in found.items() if v}}


def _project(name: str, say: Callable[[str], None]) -> list[dict[str, Any]]:
    try:
        said = index.project(name)
    except index.Unreachable as error:
        say(f"{name}: {error}")
        return []
    final = sorted(filter(None, (_release(text, files) for text, files in said["releases"].items())), key=_version)
    kept = final[-MOST_RELEASES:]
    newest = str(said["info"].get("version"))
    for one in kept[-WITH_REQUIREMENTS:]:
        known = said["info"].get("requires_dist") if one["version"] == newest else None
        requires = known or index.requirements(said["releases"][one["version"]])
        if requires is not None:
            one["requires"] = sorted(text for text in requires if "extra ==" not in text)
    say(f"{name}: {len(kept)} releases")
    return kept


def _release(text: str, files: list[dict[str, Any]]) -> dict[str, Any] | None:
    try:
        version = Version(text)
    except InvalidVersion:
        return None
    if version.is_prerelease or not files:
        return None
    made: dict[str, Any] = {
        "version": text,
        "date": min(str(file.get("upload_time", ""))[:10] for file in files),
        "python": next((str(file["requires_python"]) for file in files if file.get("requires_python")), ""),
        "wheels": _wheels(files),
        "source": any(file.get("packagetype") == "sdist" for file in files),
    }
    return made | ({"yanked": _why_yanked(files)} if all(file.get("yanked") for file in files) else {})


def _why_yanked(files: list[dict[str, Any]]) -> str:
    return next((str(file["yanked_reason"])[:200] for file in files if file.get("yanked_reason")), "no reason given")


def _wheels(files: list[dict[str, Any]]) -> list[str]:
    """Tags of Linux wheels and of those that fit everywhere, each once: `cp311-cp311-manylinux_2_28_x86_64`."""
    tags: set[str] = set()
    for file in files:
        try:
            tags |= {str(tag) for tag in parse_wheel_filename(os.path.basename(str(file.get("filename", ""))))[3]}
        except (InvalidWheelFilename, InvalidVersion):
            continue
    return sorted(tag for tag in tags if tag.endswith("-any") or "linux" in tag)


def _version(one: dict[str, Any]) -> Version:
    return Version(one["version"])
