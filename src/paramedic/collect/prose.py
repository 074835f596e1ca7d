"""A text in plain words, such as an issue or a chat message, told from a log; and what it says of the job."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from paramedic.collect.archives import Input
from paramedic.collect.guarded import shape
from paramedic.collect.logs import MAX_TEXT, LogRead
from paramedic.collect.streams import SafeStream
from paramedic.model import Event, Fact, Run, Source
from paramedic.redact import clipped

MOST = 32 << 10
"""Longer than any message that somebody types."""
_NAMES = (".txt", ".md", ".markdown", ".rst")
_FENCED = re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.M | re.S)
_LOG_LINE = re.compile(
    r"^\s*(?:\[|[-=*]{12}|\d{4}-\d\d|\d\d:\d\d|[IWEF]\d{4}\b|\d{1,6}: |"
    r"(?:INFO|WARN|WARNING|ERROR|DEBUG|CRITICAL|FATAL)\b|File \"|Traceback|\+ |\$ |>>> |"
    r"[\w.]+(?:Error|Exception|Warning):)|\.(?:py|cc|cpp):\d|\S=\S.*\S=\S|"
    r"\d%\||\bINFO\b",
    re.I,
)
_FIGURES = re.compile(
    r"\b(?:step|iter|iteration|epoch|batch|loss|lr)\b\W{0,3}\d[\d.e/-]*\W{1,4}\w{1,20}\W{1,3}\d", re.I
)
_FIGURE = re.compile(r"\b[a-z_]{1,20}\b(?: is)?\W{0,3}\d[\w.%/:-]*", re.I)
_SMALL_WORDS = """
i my me we our you it its is are was be been the a an this that these and or but so when while after before if then
on in at of to for with without from by as not no does do did can cannot could will would get gets got have has had
there how what why which please
"""
_SMALL = frozenset(_SMALL_WORDS.split())
_WORDS = re.compile(r"[a-z']+", re.I)
_NUMBERS = {"one": 1, "two": 2, "three": 3, "four": 4, "eight": 8, "sixteen": 16}
_N = rf"(\d{{1,6}}|{'|'.join(_NUMBERS)})"
_CARDS = r"(?:gpus?|cards?|ranks?|process(?:es)?|workers?|devices?|[avhb]\d{2,3}s?)"
_NODES = re.compile(rf"\b{_N}[ -](?:nodes?|machines?|hosts?|servers?)\b", re.I)
_EACH = re.compile(
    rf"\b{_N} ?{_CARDS} (?:each|per (?:node|machine|host|server))\b|"
    rf"\b(?:nodes?|machines?|hosts?|servers?) ?(?:x|×|with|of|\*) ?{_N} ?{_CARDS}",
    re.I,
)
_TOTAL = re.compile(rf"(?<!to )(?<!vs )(?<!-)\b{_N}[ -]?{_CARDS}\b", re.I)
_FRAMEWORKS = {
    "deepspeed": r"deep ?speed|\bzero[- ]?[123]\b|\bzero stage",
    "megatron": r"megatron",
    "colossalai": r"colossal",
    "horovod": r"horovod|\bhvd\b",
    "lightning": r"lightning",
    "accelerate": r"\baccelerate\b",
    "transformers": r"transformers|hugging ?face|\bhf\b",
    "ray": r"\bray\b",
    "tensorflow": r"tensorflow|\bkeras\b",
    "pytorch": r"torch|\bfsdp\b|\bddp\b",
    "nccl": r"\bnccl",
    "gloo": r"\bgloo\b",
}


def told_in(item: Input, ranked: bool) -> str:
    """The text, if it is one: on standard input or in a file for texts, short, in sentences. Nothing is consumed."""
    raw = getattr(item.stream, "raw", None)
    if ranked or not (item.name == "-" or item.name.lower().endswith(_NAMES)) or not isinstance(raw, SafeStream):
        return ""
    data = raw.peek(MOST + 1)
    if not 0 < len(data) <= MOST or b"\0" in data:
        return ""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    spoken = _FENCED.sub("\n", text)
    return spoken.strip() if is_prose(spoken) else ""


def _repeats(lines: list[str]) -> bool:
    """Half of the lines, and three at least, differ only in their numbers from others: nobody types so."""
    shapes = Counter(shape(line) for line in lines)
    again = [count for count in shapes.values() if count > 1]
    return sum(again) >= max(3, len(lines) / 2)


def is_prose(text: str) -> bool:
    """Sentences, not lines that a program prints. One or two lines may be terse: somebody typed them."""
    lines = [line for line in text.split("\n") if line.strip()]
    words = _WORDS.findall(text)
    if len(words) < 2 or 8 * sum(_is_printed(line[:500]) for line in lines) > len(lines):
        return False
    if _repeats(lines):
        return False
    if len(lines) <= 2:
        return 2 * sum(map(len, words)) > sum(len(line.replace(" ", "")) for line in lines)
    return sum(word.lower() in _SMALL for word in words) >= 0.22 * len(words) and len(words) >= 4 * len(lines)


def _is_printed(line: str) -> bool:
    """By how it begins, or as names with figures: `epoch 2, loss 3`. Who says that it `hangs in epoch 2, node 3` says
    more beside the figures, and in a sentence."""
    if _LOG_LINE.search(line):
        return True
    if not _FIGURES.search(line):
        return False
    words = _WORDS.findall(_FIGURE.sub(" ", line))
    return len(words) < 3 or sum(word.lower() in _SMALL for word in words) < 0.2 * len(words)


def as_described(log: LogRead, text: str) -> LogRead:
    """What was read from it, with the text itself; its last words are not a rank's last activity."""
    source = replace(log.source, kind="description")
    shown = clipped(text, MAX_TEXT)
    kept = [event for event in log.events if event.kind in ("line", "traceback", "exit")]
    event = Event(source.id, 0, "description", shown, line=1, host=source.host, attempt=source.attempt)
    return replace(log, source=source, events=[event, *kept], facts=[*log.facts, *facts(shown, source.id)])


def beside_logs(reads: Sequence[LogRead], named: frozenset[str]) -> Sequence[LogRead]:
    """Where there are logs, too, words tell what somebody wants explained, if he named them (`named`), and nothing of
    the job: what it ran on the logs know better. Notes that lie in a folder are no question."""
    if not any(read.source.kind != "description" and read.source.lines for read in reads):
        return reads
    return [_only_said(read, named) if read.source.kind == "description" else read for read in reads]


def _only_said(read: LogRead, named: frozenset[str]) -> LogRead:
    asked = read.source.id in named
    return replace(read, events=[e for e in read.events if asked or e.kind != "description"], facts=[])


SAID = "what you saw"
"""The name of the source that `--saw` is."""


def with_words(run: Run, text: str) -> Run:
    """The Run, and what somebody says of it."""
    if not (shown := clipped(text.strip(), MAX_TEXT)):
        return run
    source = Source(SAID, "description", lines=1 + shown.count("\n"), bytes=len(text.encode("utf-8", "replace")))
    said = Event(SAID, 0, "description", shown, line=1)
    return replace(run, sources=(*run.sources, source), events=(*run.events, said))


def apart(run: Run) -> tuple[Run, tuple[Event, ...]]:
    """Words beside logs are no witness among witnesses: the Run without them, and they."""
    told = run.of_kind("description")
    if not told or len(told) == len(run.sources):
        return run, ()
    sources = tuple(source for source in run.sources if source.id != SAID)
    events = tuple(event for event in run.events if event.kind != "description")
    return replace(run, sources=sources, events=events), tuple(told)


def facts(text: str, source: str) -> Iterator[Fact]:
    """Frameworks that are named, nodes, and the world size where it is plain."""
    for name, pattern in _FRAMEWORKS.items():
        if re.search(pattern, text, re.I):
            yield Fact("framework", name, source)
    nodes = _numbers(_NODES, text)
    if len(nodes) == 1:
        yield Fact("nodes", next(iter(nodes)), source)
    each = _numbers(_EACH, text)
    total = _numbers(_TOTAL, text)
    if len(nodes) == len(each) == 1:
        total = {nodes.pop() * each.pop()}
    elif nodes - {1}:
        return
    if len(total) == 1 and 1 < (size := total.pop()) <= 1_000_000:
        yield Fact("world_size", size, source)


def _numbers(pattern: re.Pattern[str], text: str) -> set[int]:
    found = (next(filter(None, match.groups())).lower() for match in pattern.finditer(text))
    return {_NUMBERS.get(number) or int(number) for number in found}
