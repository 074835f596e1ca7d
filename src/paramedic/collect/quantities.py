"""What one line says in numbers: at which step, and which quantities, by one name whatever a framework calls them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

_MAX_NAME = 64
_NUMBER = re.compile(
    r"(?<![\w.#/-])(?P<value>[-+]?(?:\d{1,3}(?:,\d{3}){1,4}|\d{1,18})(?:\.\d{0,17})?(?:e[-+]?\d{1,3})?|[-+]?(?:nan|inf)\b)"
    r"(?:[ ]?(?P<unit>%|(?:[kmgt]i?b|bytes)\b|[mg]\b|"
    r"(?:milliseconds?|seconds?|secs?|ms|us|µs|s)\b(?:/(?:it|iter|iteration|step|batch|epoch|update)\b)?|"
    r"(?:samples?|tokens?|tok|images?|imgs?|examples?|seqs?|sequences|words|steps?|batches|iterations?|iters?|it)"
    r"(?:/| per )s(?:ec(?:ond)?)?\b(?![ :=]{1,3}\d)|"
    r"(?:words|tokens|documents|sequences)\b(?! per |/|[ :=]{1,3}\d)))?(?![A-Za-z0-9_]|\.\d)",
    re.I,
)
_BAR = re.compile(r"(?:^|[\s|])(\d{1,9})/(\d{1,9}) (?:\[\d|- \d|[━=>.]{3})")
_CUT = re.compile(r"[|,;{}\[\]]| - ")
_NOT_WORD = re.compile(r"[^a-z/%+ ]+")
_UNIT_IN_NAME = re.compile(r"\((ms|s|sec|seconds|[kmgt]i?b|bytes)\)\W{0,3}$", re.I)

_BYTES = {"bytes": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}
_BYTES |= {"m": float(1 << 20), "g": float(1 << 30)}
_BYTES |= {"kib": float(1 << 10), "mib": float(1 << 20), "gib": float(1 << 30), "tib": float(1 << 40)}
_SECONDS = {"s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}
_SECONDS |= {"millisecond": 1e-3, "milliseconds": 1e-3}
_NOUNS = ("words", "tokens", "documents", "sequences")

_LABEL = re.compile(r"(?:^| )(step|iteration|iter|update|epoch)$")
_LOSS = re.compile(r"(?:^| )loss(?: step| epoch| value)?$")
_EVALUATED = re.compile(r"\b(?:eval|evaluation|val|valid|validation|test|held ?out|dev) loss(?: step| epoch| value)?$")
_OTHER_LOSS = re.compile(r"\b(?:aux|auxiliary|z|kl|router|balancing|policy|value|critic|actor|lowest|scaled) loss\b")
_GRADIENT = re.compile(r"(?:^| )(?:grad(?:ient)?s? (?:total |global |l )?norm|gnorm)$")
_PART_OF_GRADIENT = re.compile(r"\b(?:own|local|shard|sharded|raw|unreduced|partial)\b")
_OWN = re.compile(r"\b(?:own|local|shard|sharded|data|batch|input|file|sample|raw|unreduced|grad|gradients?|partial)\b")
_STATE = re.compile(
    r"\b((?:param(?:eter)?s?|weights?|model|buffers?|embeddings?|replica|state)(?: [a-z]+)? "
    r"(?:norm|sum|checksum|hash|digest|fingerprint|mean)|"
    r"(?:norm|sum|checksum|hash|digest|fingerprint|mean) of (?:[a-z]+ ){0,2}"
    r"(?:param(?:eter)?s?|weights?|model|norms?|matrix|embeddings?|buffers?|layers?|replica)|"
    r"^(?:checksum|fingerprint))(?: to| is)?$"
)
_HASH = re.compile(
    r"(?P<name>[a-z_ ]{0,40}(?:checksum|hash|md5|sha1|sha256|digest|fingerprint))\W{1,4}(?:0x)?"
    r"(?P<value>(?=[0-9]{0,63}[a-f])[0-9a-f]{6,64})\b",
    re.I,
)
_MEMORY = re.compile(
    r"(?:^| )((?:(?:max|peak|gpu|cuda|host|cpu|device|allocated|reserved|resident|used|current) ){0,3}"
    r"(?:mem(?:ory)?(?: (?:allocated|reserved|used|usage|in use))?|rss|uss|resident(?: set(?: size)?)?|vram|footprint"
    r"|allocated|alloc))(?: is)?$"
)
_NOT_USED = re.compile(r"\b(?:free|total|available|limit|shared|saved|estimated|required)\b")
_WAITING = re.compile(
    r"(?:^| )(?:all ?reduce|all ?gather|reduce scatter|sync\w*|wait\w*|comm\w*|barrier|collectives?|idle|blocked)"
    r"(?: time| for)?$"
)
_READING = re.compile(r"(?:^| )(?:data|input|loader|data ?load\w*|batch load\w*|fetch\w*|batch generator)(?: time)?$")
_COMPUTING = re.compile(r"(?:^| )(forward|backward|fwd|bwd|comput\w+|busy|own work|working)(?: time| pass)?(?: took)?$")
_STEPPING = re.compile(
    r"(?:^| )(?:step|iter|iteration|update|batch)(?: time| took)?$|^(?:time|dt|took|elapsed)$|time per iteration$"
)
_THROUGHPUT = re.compile(
    r"(?:^| )(?:tps|throughput|(?:samples?|tokens?|tok|steps?|images?|it|seqs?|sequences)"
    r"(?: per sec(?:ond)?|/s(?:ec(?:ond)?)?))$"
)
_EXPECTED = re.compile(r"\b(?:expected|baseline|target|reference)\b")
_WORK = re.compile(r"(?:^| )(words|tokens|documents|sequence length|seq len)$")
_CUMULATIVE = re.compile(r"\b(?:consumed|total|global|seen|processed|so far)\b")
_SCORE = re.compile(r"(?:^| )(accuracy|acc|top|perplexity|ppl|bleu)$")
_SCALE = re.compile(r"(?:^| )(?:(?:loss|grad|gradient) )?scale(?:r)?(?: to| is)?$")
_SKIPPED = re.compile(r"(?:^| )skipped(?: iterations| steps)?$")
_RATE = re.compile(r"(?:^| )(?:lr|learning rate)(?: to| is)?$")

_STATED = re.compile(
    r"\b(?:(?:rank|process|worker|proc|task|member)\W{0,3}(?P<index>\d{1,6}) ?(?:of|/) ?(?P<size>\d{1,6})"
    r"|(?:dist_)?world[_ ]?size['\"]?\W{1,4}(?P<world>\d{1,6})"
    r"|(?P<replicas>\d{1,6}) replicas in sync|num processes: (?P<processes>\d{1,6}))\b",
    re.I,
)
_SLASHED = re.compile(r"\d ?/ ?\d")
_PLANNED = re.compile(
    r"\b(?:plan|planned|expected|expecting|requested|intended|asked for|wanted)\b[^\n.]{0,40}?"
    r"(?:\b(?:ranks|processes|workers|gpus|devices|world[_ ]?size|replicas)['\"]?[ :=]{1,3}(?P<after>\d{1,6})\b"
    r"|\b(?P<before>\d{1,6}) (?:ranks|processes|workers|gpus|devices|replicas)\b)",
    re.I,
)
_DIFFERENCE = re.compile(
    r"\b(?:param\w*|weights?|replicas?|models?|buffers?)\b[^\n]{0,60}?\b(?:difference|diff|spread|deviation|drift)\b"
    r"(?: (?:to|from|of|between|across|over|with|among)(?: all)? (?:rank \d{1,6}|ranks|replicas|processes|workers))"
    r"\W{1,4}(?:is )?(\d{1,9}(?:\.\d{1,17})?(?:e[-+]?\d{1,3})?)\b",
    re.I,
)
_COUNTED = re.compile(
    r"\b(?:(\d{1,12}) predictions\b[^\n\d]{1,24}?(\d{1,12}) (?:samples|examples|rows|images|items)"
    r"|(?:evaluated|gathered|scored) (\d{1,12})(?: [a-z]{1,16})?(?: ?/ ?| of (?:only )?| out of | instead of )"
    r"(\d{1,12}))\b",
    re.I,
)
_HELD = re.compile(
    r"\b(\d{1,15}(?:\.\d{1,6})?)(?: ?(?:[kmgt]i?b|bytes|elements))? of (\d{1,15}(?:\.\d{1,6})?) ?"
    r"(?:(?:[kmgt]i?b|bytes|elements)(?: of)? )?(?:the )?(?:param|weight|optimi[sz]er|state|gradient)",
    re.I,
)
_PART = re.compile(r"\b(?P<size>\d{1,9}(?:\.\d{1,6})?) ?(?P<unit>[kmgt]i?b|bytes) of (?P<what>param|weight)", re.I)
_OF_ALL = re.compile(r"\b(?:model|total|full|whole|unsharded)\b", re.I)
_OF_ONE = re.compile(r"\b(?:rank|holds|keeps|local|shard|per)\b", re.I)
_THROTTLED = re.compile(
    r"\b(?:quota|throttl\w{1,6})\b[^\n\d]{0,40}?(\d{1,12}) (?:of|out of|/) (\d{1,12})\b"
    r"|\bnr_periods\W{1,4}(?P<periods>\d{1,12})\W{1,4}nr_throttled\W{1,4}(?P<held>\d{1,12})\b",  # cpu.stat of cgroups
    re.I,
)
_RESUMED = re.compile(r"\bresum(?:ed|ing)\b", re.I)
_STAMP = re.compile(r"[\[(]?\d{4}[-/]\d\d[-/]\d\d[ T_]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?")
_HASHES = ("checksum", "hash", "md5", "sha", "digest", "fingerprint")
_PLANS = ("plan", "expect", "request", "intended", "wanted", "asked")


class Value(NamedTuple):
    name: str
    value: float | None
    """None for what is no finite number."""
    unit: str = ""


class Said(NamedTuple):
    """What one line says: at which step, and which values."""

    label: str
    values: list[Value]


def said_in(text: str) -> Said:
    labels: dict[str, str] = {}
    values: list[Value] = []
    end, bare = 0, ""
    low = text.lower()
    if "/" in text and (bar := _BAR.search(text)) is not None:
        labels["step"] = bar[1]
    stamp = _STAMP.match(text)
    for found in _NUMBER.finditer(text, stamp.end() if stamp else 0):
        before, end = text[max(end, found.start() - _MAX_NAME) : found.start()], found.end()
        unit = (found["unit"] or "").lower()
        words, unit = _words(before, unit)
        what = _what(words, unit)
        number = _number(found["value"])
        if what.startswith("label "):
            if what == "label epoch" or found["value"].isdecimal():
                labels.setdefault(what[6:], found["value"])
        elif what == "bare time":
            bare = bare or found["value"] + " " + unit
        elif what:
            values.append(_value(what, number, unit))
    if bare and "step" in labels and not any(one.name == "step_time" for one in values):
        duration, unit = bare.split(" ", 1)
        values.append(Value("step_time", (_number(duration) or 0.0) * _factor(unit), "s"))
    if any(word in low for word in _HASHES):
        values += [Value(*pair) for pair in _hashes(text)]
    values += _statements(text, low)
    label = " ".join(f"{kind} {labels[kind]}" for kind in ("epoch", "step") if kind in labels)
    if label and "resum" in low and _RESUMED.search(text):
        values = [Value(f"resumed_{one.name}", one.value, one.unit) for one in values if one.name == "lr"]
        if "step" in labels:
            values.append(Value("resumed_step", _number(labels["step"])))
    elif "step" in labels and values:
        values.append(Value("step", _number(labels["step"])))
    return Said(label, values)


def _value(what: str, number: float | None, unit: str) -> Value:
    if what.startswith("memory ") and not unit:  # bare numbers are megabytes in some logs and bytes in others
        unit = "bytes" if (number or 0) >= 1e7 else "mib"
    return Value(what, number if number is None else number * _factor(unit), _base(unit))


def _number(text: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _factor(unit: str) -> float:
    return _BYTES.get(unit) or _SECONDS.get(unit.split("/", 1)[0]) or 1.0


def _base(unit: str) -> str:
    if unit in _BYTES:
        return "bytes"
    if unit.split("/", 1)[0] in _SECONDS:
        return "s"
    return unit


@lru_cache(maxsize=8192)
def _words(before: str, unit: str) -> tuple[str, str]:
    """The words right before a number, and its unit, which may stand in their brackets: `mem (GB): 12`."""
    bracketed = _UNIT_IN_NAME.search(before)
    if bracketed is not None:
        before, unit = before[: bracketed.start()], unit or bracketed[1].lower()
    parts = [part for part in _CUT.split(before.rstrip(" :=|'\"([")) if part.strip()]
    words = (parts[-1] if parts else "").lower().replace("_", " ").replace("-", " ")
    return " ".join(_NOT_WORD.sub(" ", words).split()), unit


@lru_cache(maxsize=8192)
def _what(words: str, unit: str) -> str:
    """The one name under which a quantity is known; empty if it is none of ours."""
    if unit in _BYTES:
        return _memory(words)
    if unit.split("/", 1)[0] in _SECONDS:
        return _time(words, unit.partition("/")[2])
    if unit in _NOUNS:
        return "" if _CUMULATIVE.search(words) else f"work {unit}"
    if "/" in unit or " per " in unit or _THROUGHPUT.search(words):
        return "expected_throughput" if _EXPECTED.search(words) else "throughput"
    return "" if unit else _label(words) or _memory(words) or _quantity(words)


def _memory(words: str) -> str:
    found = None if _NOT_USED.search(words) else _MEMORY.search(words)
    return f"memory {found[1]}" if found else ""


def _label(words: str) -> str:
    found = None if "loss" in words else _LABEL.search(words)
    if found is None:
        return ""
    return "label epoch" if found[1] == "epoch" else "label step"


def _time(words: str, per: str) -> str:
    if per:
        return "" if per == "epoch" else "step_time"
    for pattern, name in ((_WAITING, "wait_time"), (_READING, "data_time")):
        if pattern.search(words):
            return name
    if (found := _COMPUTING.search(words)) is not None:
        return f"compute_time {found[1]}"
    if _STEPPING.search(words):
        return "step_time"
    return "" if words else "bare time"


def _quantity(words: str) -> str:
    for pattern, name, unless in _NAMED:
        if (found := pattern.search(words)) is not None and not (unless and unless.search(words)):
            return name.format(*found.groups())
    return ""


_NAMED: tuple[tuple[re.Pattern[str], str, re.Pattern[str] | None], ...] = (
    (_EVALUATED, "eval_loss", None),
    (_LOSS, "loss", _OTHER_LOSS),
    (_GRADIENT, "grad_norm", _PART_OF_GRADIENT),
    (_STATE, "state {}", _OWN),
    (_WORK, "work {}", _CUMULATIVE),
    (_SCORE, "score {}", None),
    (_RATE, "lr", None),
    (_SCALE, "loss_scale", None),
    (_SKIPPED, "skipped", None),
)
"""The words right before a number, the quantity's name, and the words that make it another one."""


def _hashes(text: str) -> Iterator[tuple[str, float]]:
    for found in _HASH.finditer(text):
        words = " ".join(found["name"].lower().replace("_", " ").split())
        if (state := _STATE.search(words.replace("md5", "hash").replace("sha256", "hash"))) and not _OWN.search(words):
            yield f"state {state[1]}", float(int(found["value"][:12], 16))


def _statements(text: str, low: str) -> list[Value]:
    """What a line says in words about the job itself, as numbers."""
    values = []
    of = " of " in low
    stated = of or "world" in low or "replicas" in low or "num proc" in low or _SLASHED.search(low)
    if stated and (found := _STATED.search(text)):
        size = next(found[name] for name in ("size", "world", "replicas", "processes") if found[name])
        values.append(Value("world", float(size)))
    if any(word in low for word in _PLANS) and (found := _PLANNED.search(text)):
        values.append(Value("planned", float(found["after"] or found["before"])))
    if any(word in low for word in ("diff", "spread", "deviat", "drift")) and (found := _DIFFERENCE.search(text)):
        values.append(Value("apart", float(found[1])))
    if ("predictions" in low or "evaluated" in low or "gathered" in low) and (found := _COUNTED.search(text)):
        values += _ratio("counted", found[1] or found[3], found[2] or found[4])
    if ("throttl" in low or "quota" in low) and (found := _THROTTLED.search(text)):
        values += _ratio("throttled", found[1] or found["held"], found[2] or found["periods"])
    if of and ("param" in low or "weight" in low or "optimi" in low):
        values += _held(text)
    return values


def _ratio(name: str, part: str, whole: str) -> list[Value]:
    return [Value(name, float(part) / float(whole))] if float(whole) else []


def _held(text: str) -> list[Value]:
    if (found := _HELD.search(text)) is not None:
        return _ratio("held", found[1], found[2])
    if (found := _PART.search(text)) is None:
        return []
    size = float(found["size"]) * _BYTES[found["unit"].lower()]
    whose = text[max(found.start() - 40, 0) : found.start()]
    if _OF_ONE.search(whose):
        return [Value("held_bytes", size, "bytes")]
    return [Value("model_bytes", size, "bytes")] if _OF_ALL.search(whose) else []
