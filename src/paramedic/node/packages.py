"""Installed Python packages by their metadata files: version, requirements, where they really come from, copies."""

from __future__ import annotations

import json
import os
import platform
import re
import site
import sys
import sysconfig

from paramedic.node.rows import Rows, folder, text_of

MOST = 3000
_NAME = re.compile(r"[-_.]+")
_LEFTOVER = re.compile(r"^~[\w.-]+$")
_SHADOWS = ("torch", "numpy", "deepspeed", "accelerate", "transformers", "datasets", "lightning", "ray", "triton",
            "tokenizers", "horovod", "colossalai", "megatron")  # fmt: skip


def normal(name: str) -> str:
    return _NAME.sub("-", name).lower()


def look(rows: Rows) -> None:
    rows.add("python version", platform.python_version(), sys.executable)
    rows.add("python executable", sys.executable, "sys")
    rows.add("python markers", _markers(), "sys")
    rows.add("python virtual", sys.prefix != sys.base_prefix or "conda-meta" in folder(sys.prefix), "sys")
    copies: dict[str, list[tuple[str, str]]] = {}
    for place in _places():
        for entry in folder(place):
            if entry.endswith((".dist-info", ".egg-info")) and len(copies) < MOST:
                _distribution(rows, place, entry, copies)
            elif _LEFTOVER.match(entry):
                rows.add(f"leftover {entry}", os.path.join(place, entry), place)
    for name, found in copies.items():
        if len({version for version, _ in found}) > 1:
            rows.add(f"copies {name}", [f"{version} in {place}" for version, place in found], found[0][1])
    _shadows(rows)


def _places() -> list[str]:
    """Folders of the import path, in order, each once."""
    real = [os.path.realpath(path) for path in sys.path if path and os.path.isdir(path)]
    return list(dict.fromkeys(real))


def _distribution(rows: Rows, place: str, entry: str, copies: dict[str, list[tuple[str, str]]]) -> None:
    path = os.path.join(place, entry)
    is_file = os.path.isfile(path)
    source = path if is_file else os.path.join(path, "METADATA" if entry.endswith(".dist-info") else "PKG-INFO")
    head = _headers(text_of(source, 1 << 18))
    if not head.get("Name"):
        if entry.endswith(".dist-info"):
            rows.add(f"leftover {entry}", path, place)
        return
    name, version = normal(head["Name"][0]), (head.get("Version") or ["?"])[0]
    known = copies.setdefault(name, [])
    known.append((version, place))
    if len(known) > 1:
        return  # the first on the path is the one that is imported
    rows.add(f"package {name}", version, source)
    required = [one for one in head.get("Requires-Dist", []) if "extra ==" not in one.replace("'", '"')]
    if required:
        rows.add(f"requires {name}", required, source)
    if head.get("Requires-Python"):
        rows.add(f"requires-python {name}", head["Requires-Python"][0], source)
    origin = _origin(place, "" if is_file else path)
    if origin:
        rows.add(f"origin {name}", origin, source)


def _headers(text: str) -> dict[str, list[str]]:
    head: dict[str, list[str]] = {}
    for line in text.split("\n"):
        if line in ("", "\r"):
            break  # a folded header may hold lines of blanks
        key, colon, value = line.partition(":")
        if colon and not line[0].isspace():
            head.setdefault(key, []).append(value.strip())
    return head


def _origin(place: str, path: str) -> str:
    """Empty where it is the usual: installed into this Python's own folder from an index."""
    direct = text_of(os.path.join(path, "direct_url.json")) if path else ""
    if direct:
        try:
            said = json.loads(direct)
            url = str(said.get("url", "?")).split("?")[0][:300]
            return f"editable {url}" if (said.get("dir_info") or {}).get("editable") else f"url {url}"
        except (ValueError, AttributeError):
            return ""
    own = {os.path.realpath(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")}
    if place in own:
        return ""
    if site.ENABLE_USER_SITE and place == os.path.realpath(site.getusersitepackages()):
        return f"user site {place}"
    listed = [os.path.realpath(one) for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    return f"PYTHONPATH {place}" if place in listed else f"other {place}"


def _shadows(rows: Rows) -> None:
    """What `import torch` really finds, where that is not a package's folder of the same name."""
    for place in _places():
        for name in _SHADOWS:
            if os.path.isfile(os.path.join(place, name + ".py")) and not os.path.isdir(os.path.join(place, name)):
                rows.add(f"shadow {name}", os.path.join(place, name + ".py"), place)


def _markers() -> dict[str, str]:
    return {
        "implementation_name": sys.implementation.name,
        "implementation_version": platform.python_version(),
        "os_name": os.name,
        "platform_machine": platform.machine(),
        "platform_python_implementation": platform.python_implementation(),
        "platform_release": "",
        "platform_system": platform.system(),
        "platform_version": "",
        "python_full_version": platform.python_version(),
        "python_version": ".".join(platform.python_version_tuple()[:2]),
        "sys_platform": sys.platform,
    }
