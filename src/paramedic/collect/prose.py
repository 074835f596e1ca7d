"""A text in plain words, such as an issue or a chat message, told from a log; and what it says of the job."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from paramedic.collect.drafts import MAX_TEXT
from paramedic.collect.guarded import shape
from paramedic.collect.logs import LogRead
from paramedic.model import Event, Fact, Run, Source
from paramedic.redact import clipped
from paramedic.regex import regex

_LOG_LINE = regex(
    r"^\s*(?:\[|[-=*]{12}|\d{4}-\d\d|\d\d:\d\d|[IWEF]\d{4}\b|\d{1,6}: |"
    r"(?:INFO|WARN|WARNING|ERROR|DEBUG|CRITICAL|FATAL)\b|File \"|Traceback|\+ |\$ |>>> |"
    r"[\w.]+(?:Error|Exception|Warning):)|\.(?:py|cc|cpp):\d|\S=\S.*\S=\S|"
    r"\d%\||\bINFO\b",
    re.I,
)
_FIGURES = regex(r"\b(?:step|iter|iteration|epoch|batch|loss|lr)\b\W{0,3}\d[\d.e/-]*\W{1,4}\w{1,20}\W{1,3}\d", re.I)
_FIGURE = regex(r"\b[a-z_]{1,20}\b(?: is)?\W{0,3}\d[\w.%/:-]*", re.I)
_SMALL_WORDS = """
i my me we our you it its is are was be been the a an this that these and or but so when while after before if then
on in at of to for with without from by as not no does do did can cannot could will would get gets got have has had
there how what why which please
"""
_SMALL = frozenset(_SMALL_WORDS.split())
_WORDS = regex(r"[a-z']+", re.I)
_NUMBERS = {"one": 1, "two": 2, "three": 3, "four": 4, "eight": 8, "sixteen": 16}
_N = rf"(\d{{1,6}}|{'|'.join(_NUMBERS)})"
_CARDS = r"(?:gpus?|cards?|ranks?|process(?:es)?|workers?|devices?|[avhb]\d{2,3}s?)"
_NODES = regex(rf"\b{_N}[ -](?:nodes?|machines?|hosts?|servers?)\b", re.I)
_EACH = regex(
    rf"\b{_N} ?{_CARDS} (?:each|per (?:node|machine|host|server))\b|"
    rf"\b(?:nodes?|machines?|hosts?|servers?) ?(?:x|×|with|of|\*) ?{_N} ?{_CARDS}",
    re.I,
)
_TOTAL = regex(rf"(?<!to )(?<!vs )(?<!-)\b{_N}[ -]?{_CARDS}\b", re.I)
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


def _repeats(lines: list[str]) -> bool:
    """Half of the lines, and three at least, differ only in their numbers from others: nobody types so."""
    shapes = Counter(shape(line) for line in lines)
    again = [count for count in shapes.values() if count > 1]
    return sum(again) >= max(3, len(lines) / 2)


def is_prose(text: str) -> bool:
    """Sentences, not lines that a program prints. One or two lines may be terse: somebody typed them."""
    lines = [line for line in text.split("\n") if line.strip()]
    words = _WORDS.findall(text)
    if len(words) < 2 or 8 * sum(is_printed(line[:500]) for line in lines) > len(lines):
        return False
    if _repeats(lines):
        return False
    if len(lines) <= 2:
        return 2 * sum(map(len, words)) > sum(len(line.replace(" ", "")) for line in lines)
    return small_words(words) >= 0.22 and len(words) >= 4 * len(lines)


def small_words(words: Sequence[str]) -> float:
    """Which share of them are those that only sentences have."""
    return sum(word.lower() in _SMALL for word in words) / max(len(words), 1)


def is_printed(line: str) -> bool:
    """By how it begins, or as names with figures: `epoch 2, loss 3`. Who says that it `hangs in epoch 2, node 3` says
    more beside the figures, and in a sentence."""
    if _LOG_LINE.search(line):
        return True
    if not _FIGURES.search(line):
        return False
    words = _WORDS.findall(_FIGURE.sub(" ", line))
    return len(words) < 3 or small_words(words) < 0.2


def as_described(log: LogRead, text: str, title: str = "", quoted: str = "", wish: bool = False) -> LogRead:
    """What was read from it, with the text itself; its last words are not a rank's last activity. An error that it
    quotes is that of the one rank which is said to fail. Many values of one kind are of a log that it quotes."""
    source = replace(log.source, kind="description")
    shown = clipped(text, MAX_TEXT)
    kept = [event for event in log.events if event.kind in ("line", "traceback", "exit") or _is_quoted(event, quoted)]
    said = replace(_said(source.id, shown), host=source.host, attempt=source.attempt)
    if title:  # it repeats what stands below it, and tells nothing of what was first
        kept = [replace(e, seq=e.seq + MAX_POST) if e.line and e.line <= _TITLE_LINES else e for e in kept]
        parts = {TITLE: clipped(title, MAX_TEXT), PASTED: clipped(quoted, MAX_TEXT)}
        said = replace(said, fields={**said.fields, **parts, **({WISH: True} if wish else {})})
    failing = said.fields.get(ACCUSED, ())
    if len(failing) == 1 and all(event.rank is None for event in kept):
        kept = [replace(event, rank=failing[0]) for event in kept]
    return replace(log, source=source, events=[said, *kept], facts=[*log.facts, *facts(shown, source.id)])


_TITLE_LINES, MAX_POST = 1, 1 << 16
TITLE, PASTED, WISH = "title", "pasted", "wish"
"""A post's, in the fields of its description."""
_VALUES = 4


def _is_quoted(event: Event, quoted: str) -> bool:
    if event.kind == "complaint":
        return event.text in quoted
    return event.kind == "metric" and len(str(event.fields.get("values", "")).split()) >= _VALUES


def _said(source: str, shown: str) -> Event:
    failing = failing_ranks(shown)
    return Event(source, 0, "description", shown, line=1, fields={ACCUSED: list(failing)} if failing else {})


ACCUSED = "accused"
"""The ranks that a description says to fail, in its fields."""
_MOST_ACCUSED = 64
_RANKS = r"(?<!lora )(?<!low-)\b(?:rank[ #:=]{0,2}\d{1,6}|ranks \d{1,6}(?:(?:,? and |, ?| ?& ?|-| to )\d{1,6}){0,15})\b"
_RANK = regex(_RANKS, re.I)
_RANGE = regex(r"(\d{1,6})(?:-| to )(\d{1,6})", re.I)
_IS = r"(?:is|are|was|were|gets?|got|been|goe?s?|went)"
_DOES = (
    rf"crash|die[sd]?\b|dying|fail|throw|raise|abort|segfault|oom|exit|disappear|vanish|takes|uses|gets|r[ua]ns? out|"
    rf"fell off|{_IS} (?:\w{{1,9}} )?(?:oom|(?:oom.)?killed|out of (?:\w{{1,6}} )?memory|dead|gone|broken|lost|slow)"
)
_FAILS = regex(
    rf"{_RANKS}(?:\W{{1,3}}|'s \w{{1,12}} | \([^)\n]{{1,40}}\) | (?:worker|process) )"
    rf"(?:(?!not |never |no )\w{{1,12}} )?(?:{_DOES})"
    rf"|\bonly (?:on |in )?{_RANKS}|\b(?:on|in) {_RANKS} (?:only|alone)\b",
    re.I,
)
_FAILS_THERE = regex(
    r"\b(?:oom\w{0,4}|out of (?:\w{1,6} )?memory|crash\w{0,3}|segfault\w{0,3}|fail\w{0,4}|errors?|die[sd]?|dying|"
    r"killed|abort\w{0,3}|nans?|exceptions?|faults?|asserts?|assertions?)\b"
    rf"(?: (?!not |never |wait|connect|sen[dt]|rec|barrier|broadcast)\w{{1,12}}){{0,3}} (?:on|in|at) {_RANKS}",
    re.I,
)


def failing_ranks(text: str) -> tuple[int, ...]:
    """Those that are said to fail; where others are named beside them, as who waits for whom, nobody is."""
    named = {frozenset(_numbered(found[0])) for found in _RANK.finditer(text)}
    accuses = _FAILS.search(text) or _FAILS_THERE.search(text)
    return tuple(sorted(named.pop())) if len(named) == 1 and accuses else ()


def _numbered(ranks: str) -> set[int]:
    """`ranks 3, 5 and 8-11`."""
    found = set(map(int, re.findall(r"\d{1,6}", ranks)))
    for low, high in _RANGE.findall(ranks):
        found.update(range(int(low), min(int(high), int(low) + _MOST_ACCUSED) + 1))
    return found


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
    return replace(run, sources=(*run.sources, source), events=(*run.events, _said(SAID, shown)))


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
