"""A rule is one Markdown file: TOML front matter between `+++` lines, four fixed headings, and its own test cases."""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module, resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, overload

from paramedic.errors import ParamedicError
from paramedic.knowledge.kept import Kept
from paramedic.knowledge.schema import problems
from paramedic.knowledge.taxonomy import Taxonomy
from paramedic.model import Consequence, Fix, Severity, Symptom
from paramedic.regex import regex

OF_CONDUCT = frozenset({"replicas", "orders", "learning", "feeding", "restoring", "waste", "parts"})
"""Rooms of detectors over what a watched program did."""
BEFORE = frozenset(
    (
        "configs",
        "deepspeed",
        "trainers",
        "megatron",
        "launchers",
        "slurm",
        "kubernetes",
        "variables",
        "jobsize",
        "footprint",
        "code",
        "code_data",
        "code_gradients",
        "code_replicas",
        "code_sharding",
        "code_evaluation",
        "code_memory",
        "code_speed",
        "code_upkeep",
        "code_averages",
        "code_parts",
        "code_checkpoints",
        "code_copies",
        "code_frameworks",
        "code_shares",
        "code_accelerate",
        "code_lightning",
        "code_deepspeed",
        "code_ray",
        "code_colossalai",
        "code_megatron",
        "code_horovod",
        "code_tensorflow",
        "code_scores",
    )
)
"""Rooms of `detect` that judge what a project would start with."""
HEADINGS = ("What it means", "Confirm", "Fix", "Not this")
_MAX_FILE = 1 << 20
_MANY = 16  # a repetition that can go on longer than this counts as one without end
_FENCE = regex(r"^```(log|folder|facts|config|code) (fires|silent|bad|good|fixed)([^\n]*)\n(.*?)^```$", re.M | re.S)
_WORDS = {
    "env": ("name", "value"),
    "config": ("file", "key", "value"),
    "launch": ("argument",),
    "package": ("requirement",),
    "command": ("run",),
    "code": ("hint",),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A fenced block of a rule file that is its own test: ```` ```log fires rank=2 ````."""

    kind: str
    expect: str
    options: Mapping[str, str]
    text: str


@dataclass(frozen=True, slots=True)
class Condition:
    """What must hold of one setting. All conditions of a rule hold together, or it does not fire."""

    key: str
    equals: tuple[Any, ...] = ()
    differs: tuple[Any, ...] = ()
    present: bool | None = None
    like: str = ""
    above: float | None = None
    below: float | None = None


@dataclass(frozen=True)
class Rule:
    id: str
    name: str
    title: str
    summary: str
    status: str
    severity: Severity
    symptom: Symptom
    causes: Mapping[str, float]
    systems: tuple[str, ...]
    keywords: tuple[str, ...]
    match: tuple[str, ...]
    stack: str
    unless: tuple[str, ...]
    excused_by: tuple[str, ...]
    """Rules over the program: where one of them finds it, what was seen is meant, and no error."""
    sure_with: tuple[str, ...]
    """Rules over the program: where one of them finds it, too, what was seen is an error."""
    lasting: bool
    """Said in passing, and never made up for: that training goes on afterwards does not mean that it was handled."""
    setup_only: bool
    config: tuple[str, ...]
    """Kinds of configuration that `when` speaks of."""
    when: tuple[Condition, ...]
    detector: str
    consequence: Consequence
    blames_reporter: bool
    """Whether the rank that prints it is the one that failed; a timeout's reporter is a victim."""
    confidence: float
    fixes: Sequence[Fix]
    references: tuple[str, ...]
    aliases: tuple[str, ...]
    body: str
    path: str

    @property
    def before(self) -> bool:
        """Judged by `check`, before anything is started; all others speak of what happened."""
        return bool(self.when) or self.detector.partition(".")[0] in BEFORE

    @property
    def of_conduct(self) -> bool:
        """Judges what agents saw a program do, which shows its cause itself."""
        return self.detector.partition(".")[0] in OF_CONDUCT

    @cached_property
    def patterns(self) -> tuple[re.Pattern[str], ...]:
        return tuple(re.compile(p, re.M) for p in self.match)

    @cached_property
    def stack_pattern(self) -> re.Pattern[str] | None:
        return re.compile(self.stack, re.M) if self.stack else None

    @cached_property
    def unless_patterns(self) -> tuple[re.Pattern[str], ...]:
        return tuple(re.compile(p, re.M) for p in self.unless)

    def cases(self) -> Iterator[Case]:
        for kind, expect, options, text in _FENCE.findall(self.body):
            yield Case(kind, expect, dict(word.split("=", 1) for word in options.split()), text)

    def section(self, heading: str) -> str:
        found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", self.body, re.M | re.S)
        return _FENCE.sub("", found.group(1)).strip() if found else ""


def load_rules(folder: Traversable, taxonomy: Taxonomy, checked: bool = True) -> Iterator[Rule]:
    """Not `checked` are the package's own rules: a test has done that, and every start would wait for it."""
    kept = None if checked else Kept()
    for file in sorted(folder.iterdir(), key=lambda f: f.name):
        if file.name.endswith(".md") and file.name != "README.md":
            try:
                text = _text(file)
            except (OSError, UnicodeDecodeError) as error:
                raise ParamedicError(f"rule {file.name}: cannot be read: {error}") from None
            yield parse_rule(text, file.name, taxonomy, kept)
    if kept is not None:
        kept.keep()


def _text(file: Traversable) -> str:
    if isinstance(file, Path) and not stat.S_ISREG(os.stat(file).st_mode):
        raise ParamedicError(f"rule {file.name}: is no file")
    with file.open("rb") as raw:
        data = raw.read(_MAX_FILE + 1)
    if len(data) > _MAX_FILE:
        raise ParamedicError(f"rule {file.name}: larger than {_MAX_FILE >> 20} MB")
    return data.decode("utf-8").replace("\r\n", "\n")


def parse_rule(text: str, path: str, taxonomy: Taxonomy, kept: Kept | None = None) -> Rule:
    """Raises ParamedicError with the file and every problem found. What is `kept` was checked."""
    parts = text.split("+++\n", 2)
    if len(parts) != 3 or parts[0].strip():
        raise ParamedicError(f"rule {path}: starts with TOML front matter between two `+++` lines, found none")
    head, _, fixes = parts[1].partition(_FIRST_FIX) if kept is not None else (parts[1], "", "")
    try:
        front = kept.loads(head) if kept is not None else tomllib.loads(head)
    except (ValueError, OverflowError, RecursionError) as error:
        raise ParamedicError(f"rule {path}: front matter is no TOML: {error}") from None
    body = parts[2]
    if kept is None:
        _check(front, body, path, taxonomy)
    return Rule(
        id=front["id"],
        name=front["name"],
        title=front["title"],
        summary=front.get("summary", front["title"]),
        status=front["status"],
        severity=front["severity"],
        symptom=taxonomy.symptom(front["symptom"]),
        causes=front["causes"],
        systems=tuple(front["systems"]),
        keywords=tuple(front.get("keywords", ())),
        match=tuple(front.get("match", ())),
        stack=front.get("stack", ""),
        unless=tuple(front.get("unless", ())),
        excused_by=tuple(front.get("excused_by", ())),
        sure_with=tuple(front.get("sure_with", ())),
        lasting=front.get("lasting", False),
        setup_only=front.get("setup_only", False),
        config=tuple(front.get("config", ())),
        when=tuple(_condition(c) for c in front.get("when", ())),
        detector=front.get("detector", ""),
        consequence=front.get("consequence", "never"),
        blames_reporter=front.get("blames_reporter", front.get("consequence", "never") == "never"),
        confidence=front.get("confidence", 0.9),
        fixes=Fixes(_FIRST_FIX + fixes) if fixes else tuple(map(_fix, front["fix"])),
        references=tuple(front["references"]),
        aliases=tuple(front.get("aliases", ())),
        body=body,
        path=path,
    )


def _check(front: Mapping[str, Any], body: str, path: str, taxonomy: Taxonomy) -> None:
    try:
        wrong = [*problems(front, _front_schema())] or [*_meaning(front, path, taxonomy)]
    except (ValueError, RecursionError) as error:  # a number of thousands of digits cannot even be shown
        raise ParamedicError(f"rule {path}: front matter cannot be checked: {error}") from None
    wrong += [f"heading '## {h}' is missing" for h in HEADINGS if not re.search(rf"^## {h}$", body, re.M)]
    if wrong:
        raise ParamedicError(f"rule {path}: " + "; ".join(wrong))


def _condition(data: Mapping[str, Any]) -> Condition:
    return Condition(
        data["key"],
        tuple(data.get("is", ())),
        tuple(data.get("is_not", ())),
        data.get("present"),
        data.get("like", ""),
        data.get("above"),
        data.get("below"),
    )


class Fixes(Sequence[Fix]):
    """Of one rule, read when they are asked for: most of what the rules say is advice, and few of them fire."""

    def __init__(self, text: str) -> None:
        self._text = text

    @cached_property
    def _all(self) -> tuple[Fix, ...]:
        return tuple(map(_fix, tomllib.loads(self._text)["fix"]))

    @overload
    def __getitem__(self, at: int) -> Fix: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Fix, ...]: ...
    def __getitem__(self, at: int | slice) -> Fix | tuple[Fix, ...]:
        return self._all[at]

    def __len__(self) -> int:
        return len(self._all)


_FIRST_FIX = "\n[[fix]]"
"""In the package's own rules nothing but fixes comes behind it."""


def _fix(data: Mapping[str, Any]) -> Fix:
    return Fix(
        data["pattern"],
        data["title"],
        data["safety"],
        data["action"],
        data.get("verify", ""),
        data.get("cause"),
        data.get("when", {}),
    )


def _meaning(front: Mapping[str, Any], path: str, taxonomy: Taxonomy) -> Iterator[str]:
    """What a schema cannot say."""
    if not path.startswith(f"{front['id']}-{front.get('name')}"):
        yield f"the file must be called {front['id']}-{front.get('name')}.md"
    symptom = taxonomy.symptoms.get(front.get("symptom", ""))
    if symptom is None:
        yield f"symptom {front.get('symptom')!r} is not of the taxonomy"
    room = str(front.get("detector", "")).partition(".")[0]
    own = room.startswith("code_") or room in OF_CONDUCT  # what a program has, or does, says its cause itself
    for cause in front.get("causes", ()):
        if own and cause in taxonomy.causes:
            continue
        if symptom and cause not in symptom.causes:
            yield f"cause {cause!r} is not among those of {symptom.id} in the taxonomy"
    for fix in front.get("fix", ()):
        action = fix.get("action", {})
        if fix.get("pattern") not in taxonomy.fix_patterns:
            yield f"fix pattern {fix.get('pattern')!r} is not of the taxonomy"
        if "cause" in fix and fix["cause"] not in front.get("causes", ()):
            yield f"fix for {fix['cause']!r}, which is not among the rule's causes"
        yield from (
            f"fix action of kind {action['kind']} needs {word!r}"
            for word in _WORDS.get(action.get("kind", ""), ())
            if word not in action
        )
    yield from _kind_of_rule(front)
    if all(fix.get("when") for fix in front.get("fix", ())):
        yield "needs a fix without `when`, for all other cases"
    said = [
        fix["when"][word]
        for fix in front.get("fix", ())
        for word in ("said", "unless", "job", "nowhere")
        if word in fix.get("when", {})
    ]
    for pattern in (*front.get("match", ()), *front.get("unless", ()), front.get("stack", ""), *_likes(front), *said):
        try:
            re.compile(pattern, re.M)
            if _backtracks(_PARSER.parse(pattern, re.M), False):
                yield (
                    f"pattern {pattern!r} repeats a repetition, which some lines make endless: "
                    "bound one of the two, as in {0,9}, or make the inner one possessive, as in a++"
                )
        except (re.error, ValueError, OverflowError, RecursionError) as error:
            yield f"pattern {pattern!r} does not compile: {error}"


def _kind_of_rule(front: Mapping[str, Any]) -> Iterator[str]:
    if sum(word in front for word in ("match", "when", "detector")) != 1:
        yield "needs one of match, when and detector"
    if "when" in front and "config" not in front:
        yield "needs config: the kinds of configuration that its conditions speak of"
    if "match" in front and "keywords" not in front:
        yield "needs keywords: literal text that every line it matches contains"


def _likes(front: Mapping[str, Any]) -> Iterator[str]:
    for condition in front.get("when", ()):
        yield condition.get("like", "")


_PARSER: Any = import_module("re._parser")
_COMPILER: Any = import_module("re._compiler")


def _backtracks(tree: Any, repeated: bool) -> bool:
    """Whether a repetition of no fixed length stands in another one: (a+)+ tries every way to cut a line in parts."""
    for op, argument in tree:
        inside, name = repeated, str(op)
        if name in ("MAX_REPEAT", "MIN_REPEAT"):
            least, most, body = argument
            many = int(most) >= _MANY
            if repeated and many and least != most:
                return True
            inside = repeated or (many and not _delimited(body))
        elif name in ("ATOMIC_GROUP", "POSSESSIVE_REPEAT", "ASSERT", "ASSERT_NOT"):
            inside = False
        if any(_backtracks(part, inside) for part in _parts(argument)):
            return True
    return False


def _delimited(body: Any) -> bool:
    """(?:,[0-9]+)* is harmless: the comma says where each part begins, and the one repetition in it has no comma."""
    marks = [argument for op, argument in body if str(op) == "LITERAL" and not chr(argument).isalnum()]
    repeats = [arg for op, arg in body if str(op) in ("MAX_REPEAT", "MIN_REPEAT") and int(arg[1]) >= _MANY]
    simple = all(str(op) in ("LITERAL", "IN", "MAX_REPEAT", "MIN_REPEAT") for op, _ in body)
    return simple and len(repeats) == 1 and any(not _can_have(repeats[0][2], mark) for mark in marks)


def _can_have(body: Any, character: int) -> bool:
    """Anything but one set of characters is taken to be able to."""
    if len(body) != 1 or str(body[0][0]) not in ("LITERAL", "IN"):
        return True
    found: object = _COMPILER.compile(body).match(chr(character))
    return found is not None


def _parts(argument: Any) -> Iterator[Any]:
    if isinstance(argument, _PARSER.SubPattern):
        yield argument
    elif isinstance(argument, list | tuple):
        for item in argument:
            yield from _parts(item)


@cache
def _front_schema() -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(resources.files(__package__).joinpath("rule.schema.json").read_text("utf-8"))
    return schema
