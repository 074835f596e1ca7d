"""What a run's texts tell of what it was made of: logs, listings of packages and of variables."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from paramedic.collect.dumps import Block, dotted, dumped, listed, yaml_dumps
from paramedic.collect.launched import environment, launch, nodes, revision
from paramedic.collect.layouts import Prefixes, plain
from paramedic.collect.pace import Pace
from paramedic.collect.packages import CONDA_LIST, REQUIREMENT, requirement, versions
from paramedic.collect.settings import Settings
from paramedic.redact import redact

_NETWORK = re.compile(r"NCCL INFO (Using network \w{1,40})")
_LEAD = re.compile(
    r"^(?:\[?\d{4}-\d\d-\d\d[ T][\d:,.]{5,15}(?:Z|[+-]\d\d:?\d\d)?\]?[ ,]*)?"
    r"(?:\[?(?:INFO|DEBUG|WARNING|WARN|ERROR)\]?[ :]+)?"
    r"(?:\[[\w./-]{1,80}:\d{1,6}(?::\w{1,60})?\] ?)?(?:[\w.]{1,40}: )?(?:\[?rank[ _]?\d{1,6}\]?:? )?"
)
_NCCL_HOST = re.compile(r"^([\w.-]{1,64}):\d{1,8}:\d{1,8} \[\d{1,3}\] NCCL ")
_WORLD = re.compile(r"(?i)\b(?:rank|process|worker) \d{1,7}(?: of |/)([1-9]\d{0,6})\b(?![.%])")
_IS_WARNING = re.compile(
    r"\b\w{0,30}[Ww]arning\b|\bWARN(?:ING)?\b|^W\d{4} |\[W\d{3}|\bdeprecated\b|[Ff]all(?:ing|s|en)? ?back"
)
_NUMBER = re.compile(r"(?<![A-Za-z])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
_MASKS = (
    (re.compile(r"0x[0-9a-f]{4,}|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.I), "<id>"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?\b"), "<address>"),
    (re.compile(r"(?<![\w<])(?:~|\.{0,2})/[\w.+@-][\w./+@=-]{2,200}"), "<path>"),
    (re.compile(r"\d+(?:\.\d+)*"), "<n>"),
)


def template(text: str) -> str:
    """The message with what differs from run to run masked: numbers, addresses, ids, paths."""
    text = " ".join(text[:600].split())
    for pattern, mask in _MASKS:
        text = pattern.sub(mask, text)
    return text


def read_text(found: Settings, source: str, text: str) -> None:
    lines = text.split("\n")
    if _listing(lines, REQUIREMENT) or _listing(lines, CONDA_LIST):
        for number, line in enumerate(lines, 1):
            requirement(found, line, source, number)
        return
    if _listing(lines, re.compile(r"^(?:export |declare -x )?[A-Za-z_]\w*=")):
        for number, line in enumerate(lines, 1):
            environment(found, line.removeprefix("declare -x "), source, number, "listing")
            nodes(found, line, source, number)
        return
    _read_log(found, source, lines)


def _listing(lines: Sequence[str], pattern: re.Pattern[str]) -> bool:
    said = [line for line in lines[:2_000] if line.strip() and not line.startswith("#")]
    return len(said) >= 2 and sum(pattern.match(line[:300]) is not None for line in said) >= 0.8 * len(said)


_READERS: tuple[Callable[[Settings, str, str, int], bool], ...] = (
    revision, environment, launch, dotted, dumped, listed, versions,
)  # fmt: skip


def _read_log(found: Settings, source: str, lines: list[str]) -> None:
    prefixes = Prefixes.of(lines[:400])
    pace, training = Pace(), False
    stated: dict[str, list[tuple[str, ...]]] = {}
    shown: dict[str, tuple[str, int]] = {}
    block: Block | None = None
    as_yaml = yaml_dumps(lines)
    for number, raw in enumerate(lines, 1):
        if number in as_yaml:
            found.add("argument", *as_yaml[number], source, number, part="yaml")
            continue
        line = prefixes.peel(plain(raw[:4_000]).rstrip("\r").rsplit("\r", 1)[-1]).text
        text = _LEAD.sub("", line, count=1)
        if block is not None:
            block = block.feed(found, text, source)
            continue
        if pace.see(line):
            training = True
            continue
        if host := _NCCL_HOST.match(line):
            found.add("hosts", "hosts", host[1], source, number)
            if network := _NETWORK.search(line):
                found.add("statement", "network", network[1], source, number)
        nodes(found, line, source, number)
        if size := _WORLD.search(line[:500]):
            found.add("world size", "world size", size[1], source, number)
        if warning(found, line, source, number):
            continue
        for reader in _READERS:
            if reader(found, text, source, number):
                break
        else:
            block = Block.opened_by(text, number)
            if block is None and not training and len(stated) < 2_000:
                _statement(stated, shown, text, number)
    _say_statements(found, source, stated, shown)
    _say_pace(found, source, pace)


def warning(found: Settings, line: str, source: str, number: int) -> bool:
    if not _IS_WARNING.search(line[:600]):
        return False
    said = re.sub(
        r"^(?:W\d{4} \S+ \d+|\[W\d+[^\]]*\]|\S+\.py:\d+:)\s*(?:\S+\.(?:py|cc|cpp):\d+\]\s*)?", "", _LEAD.sub("", line)
    )
    if len(said) > 12:
        said = redact(said)
        found.add("warning", template(said), said, source, number)
    return True


def _statement(stated: dict[str, list[tuple[str, ...]]], shown: dict[str, tuple[str, int]], text: str, at: int) -> None:
    """A line of words with a few numbers, before the first step: `global batch 64, 32 steps an epoch`."""
    numbers = tuple(_NUMBER.findall(text[:300]))
    if 1 <= len(numbers) <= 4 and len(text) <= 200 and len(re.findall(r"[A-Za-z]{3,}", text)) >= 2:
        text = redact(text)  # before its numbers are masked: what is left of a secret then is one still
        key = template(text)
        stated.setdefault(key, []).append(numbers)
        shown.setdefault(key, (text, at))


def _say_statements(found: Settings, source: str, stated: dict[str, list[tuple[str, ...]]], shown: Any) -> None:
    """Only what every rank said alike: what differs between ranks differs between runs, too."""
    for key, numbers in stated.items():
        if len(set(numbers)) == 1 and "<address>" not in key and "<id>" not in key and "pid" not in key:
            text, line = shown[key]
            found.add("statement", key, text, source, line)


def _say_pace(found: Settings, source: str, pace: Pace) -> None:
    if pace.last >= 0:
        found.add("pace", "last step", pace.last, source)
    if pace.loss:
        found.add("pace", "last loss", pace.loss, source)
    if (seconds := pace.seconds()) is not None and math.isfinite(seconds):
        found.add("pace", "seconds a step", f"{seconds:.4g}", source)
    if len(pace.rates) >= 3 and (rate := statistics.median(pace.rates)) > 0:
        found.add("pace", "done a second", f"{rate:.6g}", source)
    if pace.memory:
        found.add("pace", "memory in GB", f"{pace.memory:.4g}", source)
