"""The one node probe: starts `paramedic.node` in the Python that will train, adds what the kernel says of the network,
and takes the answer as Facts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paramedic.errors import ParamedicError
from paramedic.model import Fact, Skipped
from paramedic.redact import redact

_SECONDS = 20
_DEEP_SECONDS = 180
_MOST = 32 << 20
_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from paramedic.node.look import from_outside; from_outside()"


@dataclass(frozen=True, slots=True)
class Seen:
    """What one node said of itself."""

    host: str
    facts: tuple[Fact, ...]
    skipped: tuple[Skipped, ...] = ()


def probe(python: str | None = None) -> list[Fact]:
    return list(seen(python).facts)


def seen(python: str | None = None, deep: bool = False, command: Sequence[str] = ()) -> Seen:
    return parsed(answer(python, deep, command), python or sys.executable)


def answer(python: str | None = None, deep: bool = False, command: Sequence[str] = ()) -> str:
    """The probe's JSON. The launch command is only read: it names the master, whose address is looked up."""
    from paramedic.collect.netfile import document
    from paramedic.collect.network import facts

    text = _asked(python, deep)
    if not sys.platform.startswith("linux"):
        return text
    try:
        return json.dumps(json.loads(text) | {"network": document(facts(command=command))})
    except (ValueError, TypeError, RecursionError):
        return text  # whoever parses it says what is wrong


def _asked(python: str | None, deep: bool) -> str:
    """It starts in `/`, so that no file of the current folder can stand in for a module."""
    package = str(Path(__file__).resolve().parents[2])
    starter = os.path.abspath(python) if python and os.sep in python else python or sys.executable
    try:
        done = subprocess.run(
            [starter, "-c", _BOOT, package, *(["deep"] if deep else [])],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_DEEP_SECONDS if deep else _SECONDS,
            check=False,
            cwd="/",
        )
    except OSError as error:
        raise ParamedicError(f"{python}: cannot be started: {error.strerror or error}") from None
    except subprocess.TimeoutExpired:
        raise ParamedicError(f"{python or sys.executable}: the probe did not end in time") from None
    if done.returncode:
        last = done.stderr.decode("utf-8", "replace").strip().split("\n")[-1]
        raise ParamedicError(f"{python or sys.executable}: the probe failed: {last[:300]}")
    return done.stdout[:_MOST].decode("utf-8", "replace")


def parsed(text: str, source: str) -> Seen:
    """An answer, perhaps of another node: nothing in it is trusted."""
    try:
        said = json.loads(text)
        if said["paramedic_probe"] != 1:
            raise ValueError("another version")
        rows = [(str(name), value, str(where)) for name, value, where in said["facts"]]
        skipped = tuple(Skipped(redact(str(what)), redact(str(why))) for what, why in said["skipped"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ParamedicError(f"{source}: is no answer of the probe: {error}") from None
    host = next((str(value) for name, value, _ in rows if name == "host name"), "?")
    own = [Fact(redact(name), _clean(value), where, host=host) for name, value, where in rows]
    return Seen(host, (*own, *_network(said, host)), skipped)


def _network(said: Mapping[str, Any], host: str) -> Iterator[Fact]:
    """A node speaks of itself alone."""
    if "network" in said:
        from paramedic.collect.netfile import checked

        found, _ = checked(said["network"], "net probe")
        yield from (fact for fact in found if fact.host == host)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, Mapping):
        return {redact(str(key)): _clean(item) for key, item in value.items()}
    return value
