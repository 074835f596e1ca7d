"""Quantities by one name and in one unit, whatever a framework calls them and prints them in."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from paramedic.regex import regex

_CUT = regex(r"[|,;{}\[\]\t]| - ")
_SLASH = regex(r"/(?!s(?:ec(?:ond)?)?\b)")
_PER = regex(r"/(?=(?:it|iter|iteration|step|batch|epoch|update|rank|gpu)\b)")
_NOT_WORD = regex(r"[^a-z/%+ ]+")
_UNIT_IN_NAME = regex(
    r"\((ms|s|sec|seconds|[kmgt]i?b|bytes)\)\W{0,3}$|[_. ](ms|us|ns|secs?|seconds|[mg]i?b)['\"]?\W{0,3}$"
    r"|_(s)['\"]?\W{0,3}$| in (ms|s|seconds)['\"]?\W{0,3}$",
    re.I,
)
_PER_MICROBATCH = regex(r"[_ ]per[_ -]?(?:micro(?:[_ -]?(?:batch|step))?|mb)(?=['\"]?\W{0,3}$)", re.I)
"""Behind the unit in a name, as in `fwd_ms_per_micro`."""
BYTES = {"bytes": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}
BYTES |= {"m": float(1 << 20), "g": float(1 << 30)}
BYTES |= {"kib": float(1 << 10), "mib": float(1 << 20), "gib": float(1 << 30), "tib": float(1 << 40)}
_SECONDS = {"s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}
_SECONDS |= {"millisecond": 1e-3, "milliseconds": 1e-3, "ns": 1e-9}
_NOUNS = ("words", "tokens", "documents", "sequences")
_TIME_OF = regex(r"t (forward|backward|fwd|bwd|compute|sync|wait|data|comm)")
_QUALIFIED = regex(
    r"(.{0,40}\b(?:loss|acc|accuracy|grad norm|ppl)) (local|own|global|mean|avg|averaged?|reduced|synced|overall"
    r"|(?:(?:of|over|across) )?all ranks|ema|averaged model|swa)"
)
_LABEL = regex(r"(?:^| )(step|iteration|iter|it|updates?|epoch|batch|tick|round)$")
_AT = regex(r" (?:at|in|of|after|for)$")
_IN_SHORT = ("e s", "ep s", "epoch s")
"""As in `e1 s 400`."""
_NOT_LABEL = regex(
    r"\b(?:total|max(?:imum)?|warm ?up|number of|per|save|eval\w*|log|logging|every|accum\w*|decay|optimi[sz]ation|left"
    r"|remaining|micro|(?:global|host|device|local)(?= batch)|mini|size)\b"
)
_A_LOSS = (
    r"(?:loss(?: step| epoch| value| function)?|xent|nll|r?mse|mae|bce|ce|huber|elbo|objective|cross entropy"
    r"|log ?loss|ctc|mlm)"
)
_LOSS = regex(rf"(?:^| ){_A_LOSS}$")
_EVALUATED = regex(rf"\b(?:eval|evaluation|val|valid|validation|test|held ?out|dev) {_A_LOSS}$")
_OTHER_LOSS = regex(r"\b(?:aux|auxiliary|z|kl|router|balancing|policy|value|critic|actor|lowest|scaled) loss\b")
_GRADIENT = regex(r"(?:^| )(?:grad(?:ient)?s? (?:total |global |l )?norm|gnorm)$|^g$")
_OWN = regex(
    r"\b(?:own|local|shard|sharded|data|batch|input|file|sample|raw|unreduced|grad|gradients?|partial|latency|time"
    r"|memory"
    r"|updates?|delta|size|decay|running|bn|batch ?norm|buffers?)\b"
)
"""A rank's own; and buffers, which each rank has changed once more since they were last made equal."""
_STATE = regex(
    r"\b((?:param(?:eter)?s?|weights?|model|embeddings?|replica|state|theta|bias|kernel)(?: [a-z]+)? "
    r"(?:norm|sum|checksum|hash|digest|fingerprint|signature|mean|crc|l)|"
    r"(?:norm|sum|checksum|hash|digest|fingerprint|mean) of (?:[a-z]+ ){0,4}"
    r"(?:param(?:eter)?s?|weights?|model|norms?|matrix|embeddings?|layers?|replica)|(?:^| )(?:w|p|wt|theta) ?norm|"
    r"^(?:w|theta)|"
    r"^(?:checksum|fingerprint))(?: to| is)?$"
)
_HASH = regex(
    r"(?P<kind>checksum|hash|md5|sha1|sha256|crc32|crc|digest|fingerprint|signature|xor)\W{1,4}(?:0x)?"
    r"(?P<value>(?=[0-9]{0,63}[a-f])[0-9a-f]{6,64})\b",
    re.I,
)
_BARE_HASH = regex(
    r"\b(?P<kind>param(?:eter)?s?|weights?|model|opt(?:im(?:izer)?)?)[ :=]{1,3}"
    r"(?P<value>(?=[0-9]{1,63}[a-f]|[a-f]{1,63}[0-9])[0-9a-f]{8,64})(?=[\s,;|)\]]|$)"
)
"""Without a word that says so: nothing else is written in such digits behind these."""
_OF_HASH = regex(r"[a-z_ ]{0,40}+\Z", re.I)
_MEMORY = regex(
    r"(?:^| )((?:(?:max|peak|gpu|cuda|host|cpu|device|allocated|reserved|resident|used|current) ){0,3}"
    r"(?:(?:mem(?:ory)?|vram|ram|cpumem|gpumem|hostmem|nvidia smi)"
    r"(?: (?:allocated|reserved|used|usage|in use|consumption))?|(?:max|vm)?rss(?: (?:sum|total|all))?|uss"
    r"|resident(?: set(?: size)?)?|footprint"
    r"|allocated|alloc|memallocated)|cuda gb allocated)(?: is)?$|^(ma|ca)$"
)
_OPTIMIZER = regex(r"(?:^| )(?:optimi[sz]er|optim|adamw?|momentum)(?: (?:states?|memory|mem|size|holds|keeps))?$")
_PILED = regex(
    r"(?:^| )((?:open |live |python |running )?(?:threads|fds|file descriptors|descriptors|open files|handles"
    r"|process groups|pg|groups|tensors(?: alive)?|objects|hooks|sockets|connections|child processes|children"
    r"|shm segments|graph nodes))$"
)
_FREE = regex(r"(?:^| )(?:gb free|(?:gpu |cuda |device |host )?(?:free mem(?:ory)?|mem(?:ory)? free))$")
_NOT_USED = regex(r"\b(?:free|total|available|limit|shared|saved|estimated|required)\b")
_WAITING = regex(
    r"(?:^| )(?:all ?reduce|all ?gather|all ?to ?all|a a|reduce scatter"
    r"|sync\w*|wait\w*|comm\w*|barrier|collectives?|idle|blocked|exposed)"
    r"(?: time| for(?: \w{1,12})?| (?:recv|send|p2p))?(?: took)?$"
)
_READING = regex(
    r"(?:^| )(?:data|input|loader|reader cost|sampl\w{0,4}\+ ?data copy|data ?load\w*|batch load\w*|load\w* batch"
    r"|fetch\w*|batch generator|data iter\w*|next batch)"
    r"(?: wait\w*)?(?: time)?(?: took)?$"
    r"|(?:^| )wait\w* (?:(?:for|on) )?(?:the )?(?:data\w*|input|loader|batch)(?: took)?$"
)
_COMPUTING = regex(
    r"(?:^| )((?:forward|fwd)(?: ?\+ ?| and | |)(?:backward|bwd)|(?:forward|backward) compute|bwd inner|forward"
    r"|backward|fwd|bwd"
    r"|comput\w+|busy|own work|working|(?:experts? )?mlp|experts?|attention|attn)"
    r"(?: microstep)?(?: times?| pass)?(?: took)?$"
)
_ALL_REDUCING = regex(r"(?:^| )(?:bwd )?all ?reduce microstep$")
_OPTIMIZING = regex(r"(?:^| )(?:(?:optimi[sz]er|optim|opt)(?: (?:step|update))?|step microstep)(?: time)?(?: took)?$")
_SAVING = regex(
    r"(?:^| )(?:checkpoint(?:ing)?|ckpt|sav(?:e|ing))(?: (?:save|saving|write|checkpoint|ckpt))?(?: time)?(?: took)?$"
)
_STEPPING = regex(
    r"(?:^| )(?:step|iter|iteration|update|batch)(?: time| timing| took| cost)?$|^(?:time|dt|took|elapsed)$"
    r"|time per iteration$"
)
_PARTS = (
    (_READING, "data_time"),
    (_WAITING, "wait_time"),
    (_ALL_REDUCING, "wait_time"),
    (_OPTIMIZING, "optimizer_time"),
    (_SAVING, "checkpoint_time"),
)
_THROUGHPUT = regex(
    r"(?:^| )(?:tps|throughput|(?:samples?|tokens?|tok|steps?|images?|imgs?|it|seqs?|sequences)"
    r"(?: per sec(?:ond)?|/s(?:ec(?:ond)?)?))$"
)
_EXPECTED = regex(r"\b(?:expected|baseline|target|reference)\b")
_WORK = regex(r"(?:^| )(words|tokens|documents|sequence length|seq len)(?: in| received| routed)?$")
_CUMULATIVE = regex(r"\b(?:consumed|total|global|seen|processed|so far)\b")
_SCORE = regex(
    r"(?:^| )(accuracy|acc|top|perplexity|ppl|bleu|auc|roc auc|auroc|recall|f|precision|map|iou|miou|dice|r@)$"
)
_SCALE = regex(r"(?:^| )(?:(?:loss|grad|gradient) )?scale(?:r)?(?: to| is)?$|^reducing to$")
_ATTEMPTED = regex(r"^attempted\b|\battempted loss scale\b")
_SKIPPED_NOW = regex(r"(?:^| )skipped iterations$")  # since the last such line
_SKIPPED = regex(r"(?:^| )skipped(?: steps)?$")
_BATCH_SUM = regex(r"(?:^| )(?:batch|inputs?|data|x)(?: [a-z]+)? (?:checksum|hash|sum|mean|digest|crc)$")
_SAMPLES = regex(
    r"(?:^| )(?:train(?:ing)? )?(?:samples|examples)$|(?:^| )(?:train(?:ing)? )?(?:dataset|data set) (?:size|len\w*)$"
)
_NOT_ALL_SAMPLES = regex(r"\b(?:per|eval\w*|val\w*|test|consumed|seen|predict\w*|local|this|own|shard|on)\b")
_DEVICE_BATCH = regex(
    r"(?:^| )(?:batch(?: size)?|bs|bsz) (?:per|on each) (?:device|gpu|rank|process|replica|worker|card)$"
    r"|(?:^| )(?:per (?:device|gpu|rank|process)|local)(?: train)? (?:batch(?: size)?|bs)$|(?:^| )samples per gpu$"
)
_WHOLE_BATCH = regex(r"(?:^| )(?:total|global|effective)(?: train)? batch(?: size)?$|^distributed accumulation$")
_CONSUMED = regex(
    r"(?:^| )(?:consumed|seen|processed) (?:train )?(?:samples|sequences|examples)$"
    r"|(?:^| )(?:samples|sequences|examples) (?:seen|consumed)$"
)
_TOKENS_SEEN = regex(
    r"(?:^| )(?:consumed|seen|processed) (?:train )?tokens$|(?:^| )tokens (?:seen|consumed|processed|so far)$"
)
_ACCUMULATED = regex(r"(?:^| )grad(?:ient)? accumulation(?: steps)?$")
_EPOCH_STEPS = regex(
    r"(?:^| )(?:steps|batches|iterations|iters) (?:per|in each|an) epoch$|(?:^| )len train ?(?:data)? ?loader$"
)
_EPOCHS = regex(r"(?:^| )(?:num(?:ber of)?|total|max) epochs$")
_TOTAL_STEPS = regex(
    r"(?:^| )(?:total|max|num(?:ber of)?)(?: (?:optimi[sz]ation|train(?:ing)?|update|optimizer|gradient)){0,2} "
    r"(?:steps|updates|iterations)$"
)
_RATE = regex(r"(?:^| )(?:lrs?|learning rates?)(?: to| is)?$")


class Value(NamedTuple):
    name: str
    value: float | None
    """None for what is no finite number."""
    unit: str = ""


def value_of(what: str, number: float | None, unit: str) -> Value:
    if what == "free_memory" and not unit:
        unit = "gb"
    if unit == "s/it":
        return Value(what, number, unit)
    if what.startswith("memory ") and not unit:  # bare numbers are megabytes in some logs and bytes in others
        few = number is not None and number < 200 and not number.is_integer()
        unit = "bytes" if (number or 0) >= 1e7 else "gib" if few else "mib"
    if not unit:
        return Value(what, number)
    return Value(what, number if number is None else number * factor_of(unit), _base(unit))


def parsed(text: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def factor_of(unit: str) -> float:
    return BYTES.get(unit) or _SECONDS.get(unit.split("/", 1)[0]) or 1.0


def _base(unit: str) -> str:
    if unit in BYTES:
        return "bytes"
    if unit.split("/", 1)[0] in _SECONDS:
        return "s"
    return unit


@lru_cache(maxsize=8192)
def words_before(before: str, unit: str) -> tuple[str, str]:
    """The words right before a number, and its unit, which may stand in their brackets: `mem (GB): 12`."""
    before = _PER_MICROBATCH.sub("", before) if "per" in before else before
    bracketed = _UNIT_IN_NAME.search(before)
    if bracketed is not None and not before[: bracketed.start()].lower().endswith("per"):
        before, unit = before[: bracketed.start()], unit or next(filter(None, bracketed.groups())).lower()
    parts = [part for part in _CUT.split(before.rstrip(" :=|'\"([")) if part.strip()]
    words = (parts[-1] if parts else "").lower().replace("_", " ").replace("-", " ")
    words = " ".join(_NOT_WORD.sub(" ", _SLASH.sub(" ", _PER.sub(" per ", words))).split())
    if (found := _TIME_OF.fullmatch(words)) is not None:
        return f"{found[1]} time", unit
    return (f"{found[2]} {found[1]}" if (found := _QUALIFIED.fullmatch(words)) else words), unit


@lru_cache(maxsize=8192)
def quantity_of(words: str, unit: str) -> str:
    """The one name under which a quantity is known; empty if it is none of ours."""
    if unit in BYTES:
        return _memory(words)
    if unit.split("/", 1)[0] in _SECONDS:
        return time_of(words, unit.partition("/")[2])
    if unit in _NOUNS:
        return "" if _CUMULATIVE.search(words) else f"work {unit}"
    if "/" in unit or " per " in unit or _THROUGHPUT.search(words):
        return "expected_throughput" if _EXPECTED.search(words) else "throughput"
    if unit == "%":
        return _quantity(words) if _SCORE.search(words) else ""
    return "" if unit else _label(words) or _used_memory(words) or _quantity(words)


def _memory(words: str) -> str:
    if _OPTIMIZER.search(words):
        return "optimizer_bytes"
    return _used_memory(words)


def _used_memory(words: str) -> str:
    if _FREE.search(words):
        return "free_memory"
    found = None if _NOT_USED.search(words) else _MEMORY.search(words)
    return f"memory {found[1] or found[2]}" if found else ""


def _label(words: str) -> str:
    if words in _IN_SHORT:
        return "label step"
    of_loss = "loss" in words and " at " not in words
    found = None if of_loss or _NOT_LABEL.search(words) else _LABEL.search(words)
    if found is None:
        return ""
    return f"label {found[1]}" if found[1] in ("epoch", "batch") else "label step"


def before_label(words: str) -> str:
    """What is told of a step, where its name stands before: `param checksum` of `param checksum at step`."""
    return _AT.sub("", _LABEL.sub("", words))


def time_of(words: str, per: str) -> str:
    if per:
        return "" if per == "epoch" else "step_time"
    for pattern, name in _PARTS:
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
    (_GRADIENT, "grad_norm", None),
    (_STATE, "state {}", _OWN),
    (_WORK, "work {}", _CUMULATIVE),
    (_SCORE, "score {}", None),
    (_PILED, "piled {}", None),
    (_RATE, "lr", None),
    (_SCALE, "loss_scale", _ATTEMPTED),
    (_SKIPPED_NOW, "skipped_now", None),
    (_SKIPPED, "skipped", None),
    (_BATCH_SUM, "batch_sum", None),
    (_DEVICE_BATCH, "device_batch", None),
    (_WHOLE_BATCH, "whole_batch", None),
    (_ACCUMULATED, "accumulated", None),
    (_EPOCH_STEPS, "epoch_steps", None),
    (_EPOCHS, "epochs", None),
    (_TOTAL_STEPS, "total_steps", None),
    (_CONSUMED, "consumed", None),
    (_TOKENS_SEEN, "tokens_seen", None),
    (_SAMPLES, "samples", _NOT_ALL_SAMPLES),
)
"""The words right before a number, the quantity's name, and the words that make it another one."""
_KIND_OF_HASH = regex(r"\b(?:md5|sha1|sha256|crc32|crc)$")


def hashes_in(text: str) -> Iterator[tuple[str, float]]:
    """The words before it are looked for where a hash stands, and not at every place of a line."""
    end = 0
    for found in _HASH.finditer(text):
        before = _OF_HASH.search(text[max(end, found.start() - 40) : found.start()])
        end = found.end()
        words = " ".join(f"{before[0] if before else ''}{found['kind']}".lower().replace("_", " ").split())
        if _BATCH_SUM.search(_KIND_OF_HASH.sub("hash", words)):
            yield "batch_sum", float(int(found["value"][:12], 16))
        elif (state := _STATE.search(_KIND_OF_HASH.sub("hash", words))) and not _OWN.search(words):
            yield f"state {state[1]}", float(int(found["value"][:12], 16))
        elif words.strip():
            yield f"hash {words.strip()}", float(int(found["value"][:12], 16))


def bare_hashes_in(text: str) -> Iterator[tuple[str, float]]:
    """`params cfcd208495d5 opt de66f829`, as programs print what their replicas hold."""
    for found in _BARE_HASH.finditer(text):
        yield f"hash {found['kind']}", float(int(found["value"][:12], 16))
