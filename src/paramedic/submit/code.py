"""A function travels as `module:name` with JSON arguments and a copy of its folder that is named by its content."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import inspect
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from paramedic.errors import ParamedicError

PACKAGES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""The folder in which `paramedic` is."""
_LEFT_OUT = frozenset(
    ["__pycache__", "node_modules", "venv", "env", "site-packages", "dist", "build", "wandb", "runs", "checkpoints"]
)
_SHIPPED = (".py", ".toml", ".json", ".yaml", ".yml", ".cfg", ".ini", ".txt", ".jinja", ".sh")
_MOST_FILES, _MOST_BYTES = 5_000, 64 << 20


def named(function: Callable[..., Any]) -> tuple[str, str]:
    """`module:name`, and the folder to which the module's name belongs."""
    name, module = function.__qualname__, function.__module__
    if "<" in name or "." in name:
        raise ParamedicError(f"{name}: only a function at the top of a module can be imported on another machine")
    file = inspect.getsourcefile(function)
    if file is None or not os.path.isfile(file):
        raise ParamedicError(f"{name}: its source is in no file: put it into a module")
    file = os.path.abspath(file)
    if module == "__main__":
        module = os.path.splitext(os.path.basename(file))[0]
        return f"{module}:{name}", os.path.dirname(file)
    folder = os.path.dirname(file)
    for _ in range(module.count(".") + (os.path.basename(file) == "__init__.py")):
        folder = os.path.dirname(folder)
    return f"{module}:{name}", folder


def defines(folder: str, function: str) -> bool:
    """Whether the module is there and has it at its top; nothing is run for that."""
    module, _, name = function.partition(":")
    base = os.path.join(folder, *module.split("."))
    for path in (f"{base}.py", os.path.join(base, "__init__.py")):
        with contextlib.suppress(OSError, SyntaxError, ValueError), open(path, "rb") as file:
            body = ast.parse(file.read()).body
            return any(isinstance(one, ast.FunctionDef) and one.name == name for one in body)
    return False


def json_arguments(arguments: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
    try:
        text = json.dumps([list(arguments), named], allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ParamedicError(f"the arguments are no JSON: {error}") from None
    return list(json.loads(text))


def ship(folder: str, root: str) -> str:
    """A copy of the folder's code below `root`, named by its content: the same code is kept once."""
    files = list(_files(folder))
    digest = hashlib.sha256()
    for path in files:
        with open(os.path.join(folder, path), "rb") as file:
            digest.update(path.encode("utf-8", "surrogateescape") + b"\0" + hashlib.sha256(file.read()).digest())
    target = os.path.join(root, "code", digest.hexdigest()[:24])
    if os.path.isdir(target):
        return target
    os.makedirs(os.path.dirname(target), exist_ok=True)
    part = tempfile.mkdtemp(prefix=".part-", dir=os.path.dirname(target))
    try:
        for path in files:
            os.makedirs(os.path.dirname(os.path.join(part, path)), exist_ok=True)
            shutil.copyfile(os.path.join(folder, path), os.path.join(part, path))
        os.chmod(part, 0o755)
        with contextlib.suppress(OSError):  # somebody else was quicker with the same content
            os.rename(part, target)
    except OSError as error:
        raise ParamedicError(f"{folder}: its code cannot be copied: {error.strerror or error}") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target


def _files(folder: str) -> Iterator[str]:
    count = size = 0
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT and not name.startswith("."))
        for name in sorted(names):
            path = os.path.join(place, name)
            if not name.endswith(_SHIPPED) or name.startswith(".") or not os.path.isfile(path):
                continue
            count, size = count + 1, size + os.path.getsize(path)
            if count > _MOST_FILES or size > _MOST_BYTES:
                raise ParamedicError(
                    f"{folder}: more than {_MOST_FILES} files or {_MOST_BYTES >> 20} MB of code: "
                    "put the function into a folder of its own"
                )
            yield os.path.relpath(path, folder)


def ours(module: str, *arguments: str) -> list[str]:
    """A command that runs one of our modules, wherever this package lies; the job's own PYTHONPATH is not touched."""
    start = f"import sys; sys.path.insert(0, sys.argv.pop(1)); from paramedic.submit.{module} import main"
    return [sys.executable, "-c", f"{start}; sys.exit(main(*sys.argv[1:]))", PACKAGES, *arguments]


def inside_job() -> bool:
    return "PARAMEDIC_JOB" in os.environ and "PARAMEDIC_LAUNCH" in os.environ
