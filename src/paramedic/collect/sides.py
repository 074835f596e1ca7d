"""What a run was made of: versions, configuration, arguments, environment, launch command, code, pace and warnings.

`paramedic diff` compares two of these. Everything is read as text and parsed by hand: nothing of it is executed, every
size is bounded, and secrets are taken out before a value is kept.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from paramedic.collect.archives import is_log
from paramedic.collect.dumps import leaves
from paramedic.collect.formats import docker
from paramedic.collect.formats import launch as job_scripts
from paramedic.collect.formats.toml import refuse_deep_keys
from paramedic.collect.inputs import open_inputs
from paramedic.collect.launched import environment, launch
from paramedic.collect.logged import read_text, warning
from paramedic.collect.packages import modules, requirement
from paramedic.collect.settings import Code, Settings
from paramedic.model import Run, Skipped
from paramedic.redact import redact

MOST_FILE = 1 << 20
"""Of a configuration or a program; of a log its beginning and its end are read."""
MOST_LOG = 2 << 20
MOST_LOGS = 16 << 20
_TAIL = 1 << 20
_CHUNK = 4 << 20
_CONFIGS = (".json", ".yaml", ".yml", ".toml")
_CODE = (".py", ".sh", ".sbatch", ".slurm")
_IMAGE_FILE = re.compile(r"(?i)^(?:docker|container)file\b")
_NOT_CONFIGS = re.compile(r"^(?:error|tokenizer|vocab|trainer_state|run)\b.*\.json$|\.index\.json$|^merges", re.I)


def is_wanted(name: str) -> bool:
    """Logs, and beside them what a run is configured by and consists of."""
    suffix = PurePosixPath(name).suffix.lower()
    known = suffix in (*_CONFIGS, *_CODE) and not name.startswith(".") and not _NOT_CONFIGS.match(name)
    return is_log(name) or known or _IMAGE_FILE.match(name) is not None


def read_settings(path: str) -> Settings:
    """From a file, a folder, a glob or an archive. Names of files are those inside it, without what was named."""
    found = Settings()
    budget = MOST_LOGS
    root = path.rstrip("/") + "/"
    for item in open_inputs([path], found.skipped, is_wanted):
        inside = item.name.split("!/", 1)[-1]
        name = inside.removeprefix(root) if inside.startswith(root) else inside
        base = name.rsplit("/", 1)[-1]
        suffix = PurePosixPath(base).suffix.lower()
        if _IMAGE_FILE.match(base):
            _read_image_file(found, base, item.name, _text(item.stream, MOST_FILE))
        elif suffix in _CODE:
            _read_code(found, name, item.name, _text(item.stream, MOST_FILE))
        elif suffix in _CONFIGS:
            if not _NOT_CONFIGS.match(base):
                _read_config(found, name, item.name, _text(item.stream, MOST_FILE))
        else:
            most = max(min(MOST_LOG, budget // 4), _CHUNK // 64)
            text = _head_and_tail(item.stream, most)
            budget -= len(text)
            read_text(found, item.name, text)
    return found


def of_run(run: Run) -> Settings:
    """A recorded Run has no files any more: its facts, and the warnings among its events."""
    found = Settings()
    for fact in run.facts:
        kind, _, key = fact.name.partition(" ")
        if kind in ("version", "config", "argument", "environment") and key:
            found.add(kind, key, fact.value, fact.source, fact.line)
    for event in run.events:
        if event.kind == "line":
            warning(found, event.text.split("\n")[0], event.source, event.line or 0)
    return found


def _text(stream: BinaryIO, most: int) -> str:
    data = stream.read(most + 1)
    return "" if len(data) > most or b"\0" in data[:4096] else data.decode("utf-8-sig", "replace")


def _head_and_tail(stream: BinaryIO, most: int) -> str:
    head, tail = stream.read(most), b""
    if b"\0" in head[:4096]:
        return ""
    while chunk := stream.read(_CHUNK):
        tail = (tail + chunk)[-min(_TAIL, most) :]
    return (head + b"\n" + tail if tail else head).decode("utf-8", "replace")


def _read_code(found: Settings, name: str, source: str, text: str) -> None:
    if not text:
        return
    found.code[name] = Code(redact(text), source)
    if not name.endswith(".py"):
        for number, line in enumerate(text.replace("\\\n", " ").split("\n"), 1):
            environment(found, line.strip(), source, number, "script")
            launch(found, line.strip(), source, number)
            modules(found, line, source, number)
        for entry in job_scripts.batch(text):
            if entry.value is not None:
                key = f"--{entry.key.replace('_', '-')}"
                found.add(
                    "launch", key, "given" if entry.value is True else entry.value, source, entry.line, part="batch"
                )


def _read_image_file(found: Settings, name: str, source: str, text: str) -> None:
    """What an image is made from, and what is put into it."""
    for entry in docker.section(text).entries:
        word, value = re.split(r"[.\[]", entry.key, maxsplit=1)[0], str(entry.value)
        if word == "from":
            made = next((part for part in value.split() if not part.startswith("--")), "")
            found.add("config", f"{name}: FROM image", made, source, entry.line)
        elif entry.key.startswith("env."):
            found.add("environment", entry.key.removeprefix("env."), value, source, entry.line, part="image")
        elif word == "run" and "install " in value:
            for part in value.split():
                requirement(found, part.strip("'\""), source, entry.line or 0)


def _read_config(found: Settings, name: str, source: str, text: str) -> None:
    parse = json.loads if name.endswith(".json") else _toml if name.endswith(".toml") else _yaml
    try:
        value = parse(text)
    except (ValueError, RecursionError, OverflowError) as error:
        if text:
            found.skipped.append(Skipped(source, f"cannot be parsed: {' '.join(str(error).split())[:120]}"))
        return
    if name.rsplit("/", 1)[-1].startswith(("environment.", "conda")) and isinstance(value, dict):
        for line in _strings(value.get("dependencies")):
            requirement(found, line, source, 0)
        return
    for key, leaf in leaves(value):
        found.add("config", f"{name.rsplit('/', 1)[-1]}: {key}", leaf, source)


def _toml(text: str) -> Any:
    refuse_deep_keys(text)
    return tomllib.loads(text)


def _yaml(text: str) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    if len(re.findall(r"(?:^|[\s\[,:-])[&*]\w", text)) > 50:  # anchors that multiply
        raise ValueError("too many anchors")
    try:
        return YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        raise ValueError(str(error)) from None
    except (TypeError, AttributeError, KeyError, IndexError, AssertionError) as error:
        raise ValueError(f"no YAML: {error}") from None


def _strings(value: object, depth: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        yield value[:200]
    elif isinstance(value, list | dict) and depth < 4:
        for item in value if isinstance(value, list) else value.values():
            yield from _strings(item, depth + 1)
