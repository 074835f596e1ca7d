"""What one line says in numbers: at which step, and which quantities."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from paramedic.collect import comparisons
from paramedic.collect.guarded import Words, divides
from paramedic.collect.quantities import (
    Value,
    bare_hashes_in,
    before_label,
    factor_of,
    hashes_in,
    parsed,
    quantity_of,
    time_of,
    value_of,
    words_before,
)
from paramedic.collect.statements import WORDS, restored, statements
from paramedic.regex import regex

_MAX_NAME = 64
_NUMBER = regex(
    r"(?<![\w.#/@-])(?P<value>[-+]?(?:\d{1,3}(?:,\d{3}){1,4}|\d{1,45})(?:\.\d{0,20})?(?:e[-+]?\d{1,3})?"
    r"|[-+]?(?:nan|inf)\b(?:\.0\b)?)"
    r"(?:[ ]?(?=[%bdegikmnstuwµ])(?P<unit>%|(?:[kmgt]i?b|bytes)\b|[mg]\b|"
    r"(?:milliseconds?|seconds?|secs?|ms|us|µs|ns|s)\b(?:/(?:it|iter|iteration|step|batch|epoch|update)\b)?|"
    r"(?:samples?|tokens?|tok|images?|imgs?|examples?|seqs?|sequences|words|steps?|batches|iterations?|iters?|it)"
    r"(?:/| per )s(?:ec(?:ond)?)?\b(?![ :=]{1,3}\d)|"
    r"(?:words|tokens|documents|sequences)\b(?! per |/|[ :=]{1,3}\d)))?(?![A-Za-z0-9_]|\.\d|-\d\d-\d)",
    re.I,
)
_BAR = regex(r"(?:^|[\s|])(\d{1,9})/(\d{1,9}) (?:\[\d|- \d|[━=>.]{3})")
_EPOCH_BAR = regex(r"[^\n\w]{0,8}(?:train(?:ing)? )?epoch\W{0,3}\d{1,6}(?:/\d{1,6})?\W{0,3}(?=\s{0,4}\d{1,3}%)", re.I)
# mmengine, torchvision, timm and the examples of PyTorch: the place in an epoch stands in brackets
_PLACE = regex(
    r"\b(?:epoch|ep|train(?: epoch)?|training)(?:\(train\))?:?\s{0,4}\[?(?P<epoch>\d{1,7})(?:/\d{1,7}\])?\]?\s{1,4}?"
    r"\[\s{0,8}(?P<step>\d{1,9})\s?/\s?(?P<all>\d{1,9})"
    r"|\b(?:epoch|ep|train)(?:\(train\))?:?\s{0,4}\[(?P<epoch_>\d{1,7})\]\[\s{0,8}(?P<step_>\d{1,9})\s?/\s?(?P<all_>\d{1,9})"
    r"|\biter(?:\(train\))? {0,4}\[\s{0,8}(?P<iter>\d{1,9})/\d{1,9}\]"
    r"|^\W{0,3}\[\s{0,6}(?P<first>\d{1,9})/\d{1,9}\]\s"
    r"|^\[(?P<pair>\d{1,6}),\s{1,6}(?P<batch>\d{1,9})\] (?:train )?loss"
    r"|(?:^|\.py:\d{1,5}\] )\[(?P<writer>\d{1,9})\] [\w/]{1,60}=[-\d]",
    re.I,
)
_BARE_STEP = regex(r"\s{0,12}(\d{1,9})(?:/\d{1,9})?[\s|:,]{1,6}(?:train[ _])?(?:loss|lm loss|acc)\b", re.I)
_UNIT_OF_LINE = regex(r"\btimes? ?\((ms|s)\)(?: \||: ?\d)", re.I)
_OF_ALL_SAMPLES = regex(r" ?/ ?(\d{1,12})\b(?!\.|/\d)")  # no date
_OUT_OF = regex(r" ?/ ?\d{1,7}(?:\.\d{1,6})? ?([kmgt]i?b)\b", re.I)
_OF_EVALUATION = regex(r"[^\n\w]{0,8}(?:test|val|valid|validation|eval|evaluation|epoch\(val\))\b(?! loss)", re.I)
_EVALUATING = regex(r"^(?:val|valid|validation|test|eval|dev) (?:acc|accuracy|auc|auroc|recall|precision|f|top)$")
_EVALUATION = ("val", "test", "eval", "dev")
_LOCAL = regex(r"\b(?:own|local|shard|sharded|raw|unreduced|partial|per rank|this rank)\b")
_JOINT = regex(
    r"\b(?:global|(?:all )?reduced|overall|aggregated?|(?:across|over|of) (?:all )?ranks|all ranks|synced|gathered"
    r"|mean|avg"
    r"|averaged?)\b"
)
_OF_AVERAGE = regex(r"\b(?:ema|swa|polyak|averaged model|averaged weights|average model|shadow)\b")
_BY_DDP = regex(r"^avg (?:forward|backward) (?:compute|comm) time$")
_AVERAGED = regex(r"\b(?:mean|avg|average|median|usual)\b")
_NAMED_TIME = regex(r"(?:^| )(?:time|took)$")
_NO_DURATION = regex(r"\b(?:eta|wall|total|start|end|left|remaining|train|run|epoch|elapsed|stamp|last|max|min|date)\b")
_RESUMED = regex(r"\bresum(?:ed|ing)\b", re.I)
_GOING_ON = ("resum", "restor", "continu", "load")
_WENT_ON = regex(
    r"\bresum(?:e|ed|ing)\b|\brestor(?:ed|ing)\b|\bcontinu(?:ed|ing) (?:from|at)\b"
    r"|\bload(?:ed|ing) (?:checkpoint|state)\b"
)
_LOADED_AT = regex(r"\bload(?:ed|ing)(?: release| distributed)? checkpoint from \S{1,400}.{0,40}? at iteration \d")
"""As Megatron says it."""
_STAMP = regex(r"[\[(]?\d{4}[-/]\d\d[-/]\d\d[ T_]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?")
_HASHES = ("checksum", "hash", "sha", "crc", "digest", "fingerprint", "signature", "xor")

_HASHED = ("param", "weight", "model")
_WORDS = Words((*_HASHES, *_HASHED, *_GOING_ON, *WORDS, *comparisons.WORDS))


class Said(NamedTuple):
    """What one line says: at which step, and which values."""

    label: str
    values: tuple[Value, ...]
    others: tuple[Value, ...] = ()
    """Numbers of names that are none of ours: ranks may still be compared by them."""


def is_bar(text: str) -> bool:
    return _bar(text) is not None


def _bar(text: str) -> re.Match[str] | None:
    return _BAR.search(text) if divides(text) else None


@lru_cache(maxsize=2048)
def said_in(text: str) -> Said:
    """Of lines that many ranks print alike, once."""
    reading = _Reading(text)
    stamp = _STAMP.match(text)
    end = 0
    for found in _NUMBER.finditer(text, stamp.end() if stamp else 0):
        reading.number(found, text[max(end, found.start() - _MAX_NAME) : found.start()])
        end = found.end()
    return reading.said()


def said_of_rank(text: str) -> list[Value]:
    """What a list says of one rank. A time of any name is one of its work: no list is made of anything else."""
    said = said_in(text)
    before, _, value = text.rpartition(":")
    words, in_unit = words_before(before, "")
    known = [one for one in said.values if one.name not in _WORK_OF_ITS_OWN]
    if not known and (number := parsed(value)) is not None and factor_of(in_unit) < 1.0:
        return [Value(f"compute_time {words}", number * factor_of(in_unit), "s")]
    return [*said.values, *said.others]


_WORK_OF_ITS_OWN = ("optimizer_time", "checkpoint_time")
_MOST_OTHERS = 24
_OF_ITS_OWN = regex(
    r"\b(?:samples?|rows?|examples?|tokens?|docs?|documents?|batch(?:es)?|items?|images?|files?|shards?|keys?|size|len|length"
    r"|offset|start|end|first|last|seed|rank|local|device|gpu|cuda|port|pid|time|mem\w*|alloc\w*|peak|reserved|util\w*|temp"
    r"|power|clock|mhz|rx|tx|ms|sec\w*|wait\w*|stage|layers?|param\w*|experts?|idx|index|id|ids|loss|host|node|cores?|cpus?"
    r"|threads?|bytes|kimg|wall|eta|best|own|ips|wps|tps|tflops|mfu|hit|rss|workers?|lines?"
    r"|cpp|cc|cu|py|guid|seqnum)\b|^\w$"
)


@lru_cache(maxsize=8192)
def _of_its_own(words: str) -> bool:
    """What ranks have of their own, each as it comes."""
    return _OF_ITS_OWN.search(words) is not None


@lru_cache(maxsize=8192)
def _whose(words: str) -> str:
    """A rank's own, that of all together, or that of an average of the weights."""
    if _OF_AVERAGE.search(words):
        return "ema "
    return "own " if _LOCAL.search(words) else "joint " if _JOINT.search(words) else ""


def _measures_nothing(argument: bool, words: str, what: str, before: str) -> bool:
    """One of a program's arguments; or how many there are, as in `len metrics['acc']: 1800`."""
    counted = what.startswith("score ") and _COUNT.match(before) is not None
    return counted or (argument and _SETTING.search(words) is None)


_COUNT = regex(r"[\W_]{0,4}(?:len|num|number of|count of|size of)\b")
_SETTING = regex(r"\b(?:batch|bs|bsz|accumulation|epochs|steps|lr|learning rate|world size|nproc|nodes|gpus|rank)\b")
"""Of the arguments of a program, printed, these are of interest; the others measure nothing."""
_NUMBERED = regex(r"\w\d[\s(\[{]{1,4}$")
_SCALE = ("):", ")=")
_POWER = regex(r"1e[-+]?\d{1,2}|10{2,9}", re.I)
_EQUALS = regex(r"[\s:=\])>-]{1,8}")


class _Reading:
    """One line while its numbers are read, from left to right; of one quantity the first counts."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.low = text.lower()
        self.labels: dict[str, str] = {}
        self.values: dict[str, Value] = {}
        self.qualified: dict[str, Value] = {}
        self.loose: dict[str, tuple[float | None, str]] = {}
        self.numbers: list[comparisons.Said] = []
        self.others: dict[str, Value] = {}
        self.evaluating = False
        self.total = ""
        self.in_epoch = ""
        self.asked = ""
        """What a value behind the step is of: `param checksum at step 40: 1.25`."""
        unit = _UNIT_OF_LINE.search(text) if "time" in self.low else None
        self.unit = unit[1].lower() if unit else ""
        self.slashed = "/" in text
        self.arguments = "namespace(" in self.low
        if (bar := _bar(text)) is not None:
            self.labels["step"], self.total = bar[1], bar[2]
            self.in_epoch = bar[2] if _EPOCH_BAR.match(text) else ""
        if (bare := _BARE_STEP.match(text, 0, 240)) is not None:
            self.labels["step"] = bare[1]
        elif "[" in text and (place := _PLACE.search(text, 0, 240)) is not None:
            self.labels |= _placed(place)
            self.in_epoch = place["all"] or place["all_"] or ""

    def number(self, found: re.Match[str], before: str) -> None:
        words, unit = words_before(before, (found["unit"] or "").lower())
        if self.asked and not words and _EQUALS.fullmatch(before):
            words = self.asked
        self.asked = ""
        if not unit and self.slashed and (whole := _OUT_OF.match(self.text, found.end())) is not None:
            unit = whole[1].lower()
        what = quantity_of(words, unit)
        if self._is_unit(found, before, words) or _measures_nothing(self.arguments, words, what, before):
            return
        number = parsed(found["value"])
        self.numbers.append(comparisons.Said(words, number, unit, "." in found["value"] and not unit))
        self.evaluating = self.evaluating or (words.startswith(_EVALUATION) and _EVALUATING.search(words) is not None)
        if what == "step_time" and (number or 0.0) * factor_of(unit) > _A_YEAR:
            return  # a time of day
        what = "eval_loss" if what == "loss" and self.evaluating and "train" not in words else what
        if not what and not unit and ("." in found["value"] or _BY_DDP.search(words)):
            what, unit = self._time_without_unit(words, number)
        if what.startswith("label ") and _NUMBERED.search(before) is not None:
            return  # `checkpoint step_5200 (16 ranks)`
        if what.startswith("label "):
            self.asked = before_label(words)
            if what == "label epoch" or found["value"].replace(",", "").isdecimal():
                self.labels.setdefault(what[6:], found["value"].replace(",", ""))
        elif what == "bare time":
            self.loose.setdefault("took", (number, unit))
        elif what.startswith("score ") and (whole := _OF_ALL_SAMPLES.match(self.text, found.end())) is not None:
            self._right_of_all(what, number, float(whole[1]))
        elif what:
            self._keep(what, words, value_of(what, number, unit))
        elif words and not unit and len(self.others) < _MOST_OTHERS and not _of_its_own(words):
            self.others.setdefault(words, Value(f"said {words}", number))

    def _is_unit(self, found: re.Match[str], before: str, words: str) -> bool:
        """`lr(1e-3):0.0027`: the one in which the next number is told, of the same name."""
        scale = before.endswith("(") and self.text.startswith(_SCALE, found.end())
        if not (scale and _POWER.fullmatch(found["value"])):
            return False
        self.asked = words
        return True

    def _right_of_all(self, what: str, right: float | None, whole: float) -> None:
        """`Accuracy: 9210/10000`: a share, and more right answers than questions are a miscount."""
        if right is not None and whole > 0:
            self.values.setdefault(what, Value(what, right / whole))
            if right > whole:
                self.values.setdefault("counted", Value("counted", right / whole))

    def _time_without_unit(self, words: str, number: float | None) -> tuple[str, str]:
        """`forward_time=0.31`; a mere `time` or `data` counts only beside the other one."""
        if self.unit and words:
            return time_of(words, ""), self.unit
        if _BY_DDP.search(words) and (number or 0) >= _LONGEST:
            return time_of(words, ""), "ns"
        if words in ("time", "data"):
            self.loose.setdefault(words, (number, "s"))
        elif _NAMED_TIME.search(words) and not _NO_DURATION.search(words) and (number or 0) < _LONGEST:
            return time_of(words, ""), "s"
        return "", ""

    def _keep(self, what: str, words: str, value: Value) -> None:
        if self.total and (rate := _pace(value, self.total)) is not None:
            self.values.setdefault(rate.name, rate)
        if "_time" in what and _AVERAGED.search(words):
            self.values.setdefault(f"usual {what}", value._replace(name=f"usual {what}"))
        if (what in _OF_RANKS or what.startswith("score ")) and (whose := _whose(words)):
            self.qualified.setdefault(whose + what, value._replace(name=whose + what))
            return
        self.values.setdefault(what, value)

    def said(self) -> Said:
        labels, values = self.labels, self.values
        if "step" not in labels and "batch" in labels:
            labels["step"] = labels["batch"]
        self._settle_times()
        for name, value in self.qualified.items():
            plain = name.partition(" ")[2]
            if name != "own grad_norm" and not name.startswith("ema "):
                values.setdefault(plain, value._replace(name=plain))
            values[name] = value
        if "loss" in values and _OF_EVALUATION.match(self.text):
            values.setdefault("eval_loss", values.pop("loss")._replace(name="eval_loss"))
        elif "loss" in values and "eval_loss" in values:  # of an epoch, or measured anew, beside a validation's
            values["summary_loss"] = values.pop("loss")._replace(name="summary_loss")
        found = list(values.values())
        present = _WORDS.present(self.low)
        if not present.isdisjoint(_HASHES) or "md5" in self.low:
            found += [Value(*pair) for pair in hashes_in(self.text)]
        elif not present.isdisjoint(_HASHED):
            found += [Value(*pair) for pair in bare_hashes_in(self.text)]
        found += statements(self.text, self.low, present, bool(labels))
        found += comparisons.comparisons(self.text, present, self.numbers)
        label = " ".join(f"{kind} {labels[kind]}" for kind in ("epoch", "step") if kind in labels)
        loaded_at = "step" in labels and "load" in present and _LOADED_AT.search(self.low)
        if loaded_at or (label and "resum" in present and _RESUMED.search(self.text)):
            found = [Value(f"resumed_{one.name}", one.value, one.unit) for one in found if one.name in ("lr", "loss")]
            if "step" in labels:
                found.append(Value("resumed_step", parsed(labels["step"])))
        elif "step" not in labels and not present.isdisjoint(_GOING_ON) and _WENT_ON.search(self.low):
            found.append(Value("resumed", 1.0))
        elif "step" in labels and found:
            found.append(Value("step", parsed(labels["step"])))
        found += restored(self.text, present)
        if self.in_epoch and "loss" in values and not _OF_EVALUATION.match(self.text):
            found.append(Value("epoch_place", float(self.in_epoch)))
        return Said(label, tuple(found), tuple(self.others.values()))

    def _settle_times(self) -> None:
        loose, values = self.loose, self.values
        if "step_time" in values and "wait_time" not in values:
            factor = 1e-3 if _IN_MS.search(self.text) else 1.0
            for one in self.numbers:
                if one.exact and one.value and time_of(one.words, "") == "wait_time":
                    values["wait_time"] = Value("wait_time", one.value * factor, "s")
        if "data" in loose and ("time" in loose or "step_time" in values):
            values.setdefault("data_time", Value("data_time", loose["data"][0], "s"))
        if "time" in loose and "data_time" in values:
            values.setdefault("step_time", Value("step_time", loose["time"][0], "s"))
        if "took" in loose and "step" in self.labels and "step_time" not in values:
            number, unit = loose["took"]
            values["step_time"] = Value("step_time", (number or 0.0) * factor_of(unit), "s")
        parts = [one for one in self.numbers if one.exact and one.value is not None and _PART.fullmatch(one.words)]
        if len({one.words for one in parts}) >= _ALL_PARTS and any(_COMPUTING.search(one.words) for one in parts):
            for one in parts:
                name = time_of(one.words, "") or f"compute_time {one.words}"
                values.setdefault(name, Value(name, one.value, "s"))
                self.others.pop(one.words, None)


_PART = regex(
    r"data(?: load)?|load(?:er)?|h2d|fwd|forward|bwd|backward|(?:fwd|forward)[ +/]{1,3}(?:bwd|backward)|comp(?:ute)?"
    r"|sync|wait|comm|all ?reduce|opt(?:im(?:izer)?)?|optimizer step"
)
"""Where several of these stand in one line, each with a number, it tells what a step's time goes into."""
_COMPUTING = regex(r"fwd|forward|bwd|backward|comp")
_ALL_PARTS = 3
_LONGEST, _A_YEAR = 1e5, 3e7
_IN_MS = regex(r"\d ?ms\b|_ms\b|\(ms\)")
_OF_RANKS = ("loss", "eval_loss", "grad_norm")
"""Quantities that a rank may have of its own, and all of them together."""


def _placed(place: re.Match[str]) -> dict[str, str]:
    epoch = place["epoch"] or place["epoch_"] or place["pair"]
    step = place["step"] or place["step_"] or place["batch"] or place["iter"] or place["first"] or place["writer"]
    return {"step": step} | ({"epoch": epoch} if epoch else {})


def _pace(value: Value, total: str) -> Value | None:
    """A bar's `4.3it/s` or `1.2s/it`, as the time of a step. Bars of one length are of one loop."""
    if value.name == "throughput" and value.unit == "it/s" and value.value:
        return Value(f"step_time bar {total}", 1 / value.value, "s")
    if value.name == "step_time" and value.unit == "s/it":
        return Value(f"step_time bar {total}", value.value, "s")
    return None
