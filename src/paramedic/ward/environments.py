"""The virtual environments of the cases: one requirements file each, built on first use, kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from paramedic.errors import ParamedicError

FOLDER = Path(__file__).parent / "environments"
_READY = "ready"


def names() -> list[str]:
    return sorted(file.stem for file in FOLDER.glob("*.txt"))


def find(name: str) -> Path | None:
    """The environment's folder, if it is there; this process's own serves when it has all that is asked for."""
    if _served_by_this_process(name):
        return Path(sys.prefix)
    folder = _folder(name)
    return folder if (folder / _READY).exists() else None


def build(name: str, say: Callable[[str], None] = lambda text: None) -> Path:
    """Find it, or make it: a pinned torch first, so that nothing else brings in another one."""
    if found := find(name):
        return found
    folder, file = _folder(name), FOLDER / f"{name}.txt"
    say(f"building the environment {name} in {folder}: {', '.join(map(str, _requirements(name)))}")
    for other in folder.parent.glob(f"{name}-{'[0-9a-f]' * 8}"):  # of an older requirements file, or half built
        shutil.rmtree(other)
    venv.create(folder, with_pip=True)
    first = [str(wanted) for wanted in _requirements(name) if wanted.name == "torch"]
    (folder / "held.txt").write_text("\n".join(first))  # a constraint has no extras, so it is not the whole file
    for wanted in ([first] if first else []) + [["--requirement", str(file)]]:
        held = ["--constraint", str(folder / "held.txt")] if first else []
        command = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run(
            [*command, *held, *wanted], capture_output=True, text=True, check=False, env=_environment()
        )
        if done.returncode:
            raise ParamedicError(f"the environment {name} could not be built: {_last_line(done.stderr)}")
    (folder / _READY).touch()
    return folder


def _environment() -> dict[str, str]:
    """DeepSpeed compiles its operators on first use, as most people have it."""
    return os.environ | {"DS_BUILD_OPS": "0"}


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "pip said nothing")


def _folder(name: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256((FOLDER / f"{name}.txt").read_bytes()).hexdigest()[:8]
    return cache / "paramedic/ward" / f"{name}-{digest}"


def _requirements(name: str) -> list[Requirement]:
    lines = (FOLDER / f"{name}.txt").read_text("utf-8").splitlines()
    return [Requirement(line) for line in lines if line.strip() and not line.startswith(("#", "-"))]


def _served_by_this_process(name: str) -> bool:
    for wanted in _requirements(name):
        try:
            if not wanted.specifier.contains(metadata.version(wanted.name), prereleases=True):
                return False
        except metadata.PackageNotFoundError:
            return False
    return sys.prefix != sys.base_prefix


def named_versions(name: str, folder: Path) -> dict[str, str]:
    """The packages that the requirements file names, as they are in the environment, and Python."""
    site = [str(path) for path in folder.glob("lib/python*/site-packages")]
    found = {_plain(d.metadata["Name"]): d.version for d in metadata.distributions(path=site) if d.metadata["Name"]}
    wanted = {w.name: found[_plain(w.name)] for w in _requirements(name) if _plain(w.name) in found}
    python = next((Path(path).parent.name for path in site), "python")
    return wanted | {"python": python.removeprefix("python")}


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


if __name__ == "__main__":
    print(build(sys.argv[1], lambda text: print(text, file=sys.stderr)))  # noqa: T201
