"""Lines that show training going on. Bars are told apart: a dying process draws its last one, too."""

from __future__ import annotations

import re
from collections.abc import Iterable

from paramedic.collect.guarded import Guarded, Words
from paramedic.regex import regex

_BUILD = (
    r" (?-i:RUN|FROM|COPY|ADD|WORKDIR|Building \w{1,8} object|Linking|Re-running)\b"
    r"| (?:s?ccache )?(?:\S{0,200}[/-])?(?:nvcc|hipcc|cmake|[cg]\+\+|g?cc|clang(?:\+\+)?)(?:-\d{1,2})? "
)
"""Behind `[2/9]`: a step of docker's, or of a compiler's as ninja counts them, and none of training."""
_SET = "".join(f"(?<!{word}_)" for word in ("accumulation", "eval", "logging", "max", "num", "save", "total", "warmup"))
"""`max_steps=100` is a setting, `global_step=100` a step."""
_STEPS = (
    Guarded(
        ("step", "iter", "epoch", "batch"),
        regex(
            rf"(?<![^\W_])(?<!--){_SET}(?:step|iter|iteration|epoch|batch)(?:s|_(?:num|number|idx|index|id))?\b"
            r"[^\w\n]{0,12}\d",
            re.I,
        ),
    ),
    Guarded(
        ("loss", "nll", "ppl", "ce="),
        regex(r"(?<![^\W_])(?:loss|nll|ppl|ce(?==))\b[^\w\n]{0,6}(?:-?\d|nan\b|inf\b)", re.I),
    ),
    Guarded(
        ("/",),
        regex(
            r"(?:^|[\])>] |\d\d:\d\d )\d{1,9}/\d{2,9}[ ,:|]{1,3}[a-z_]\w{0,30}[ =:]{1,3}-?\d{1,9}\.\d"
            rf"|(?<!\d\] )\[ {{0,6}}\d+/\d+\](?!{_BUILD})"  # not the number that torch's compiler gives to a frame
            r"|\b(?:images?|imgs?|samples?|seqs?|sequences|tok(?:en)?s?|frames|examples|sents?|words)/s(?:ec)?\b[^\w\n]{0,6}\d"
            r"|\d ?(?:images?|imgs?|samples?|seqs?|sequences|tok(?:en)?s?|frames|examples)/s(?:ec)?\b",
            re.I,
        ),
    ),
)
_EVALUATES = Guarded(
    ("eval", "infer", "predict", "test"),
    regex(
        r"(?:\b|_)(?:eval(?:uat\w{1,5})?|infer(?:ence|ring)?|predict(?:ing|ions?)?|test(?:ing|_\w{1,20})?)(?:\b|_)",
        re.I,
    ),
)
_TRAINED = (
    r"^(?!.{0,200}(?:epoch|阶段|步骤|轮|第 ?\d|等待|是否|如果|warm|stage))[^\u4e00-\u9fff]{0,80}"
    r"(?:全部|整个|所有|模型)?训练(?:已经?)?(?:全部)?(?:结束|完成|完毕)(?![前后时度率条原])"
)
"""That training is over, in Chinese, and not that of a round or a stage of it."""
_FINISHED = Guarded(
    ("finished", "complete", "training ", "stopped", "succe", "训练"),
    regex(
        r"\b(?:finished|completed(?! (?:\w+ ){1,2}(?:are|is|will|were)\b)|training (?:is )?(?:complete|done))\b"
        r"(?!:| writing Flight Recorder| tearing down)"
        r"|^`Trainer\.fit` stopped: \S{1,60} reached"
        rf"|\bis a success\b|\b(?:job|task(?: \d{{1,6}})?) succeeded\b|{_TRAINED}"
        r'|"key": "(?:run_stop|status)".{0,300}"(?:status|value)": "success"',  # MLPerf
        re.I,
    ),
)
_WARNS = regex(r"\[?[WE]\d{3,4} \d\d:")
"""A warning or error of torch's own, as `[W402 09:33:12.211457341 ProcessGroupNCCL.cpp:1250]`."""
_ENDED = Guarded(
    ("training ", "train_runtime", "stopped", "completed ", "reached", "succe", "训练"),
    regex(
        r"\btraining (?:is |has |was )?(?:completed?|done|finished)\b(?! (?:epoch|step|iter))|'train_runtime': \d"
        r"|^`Trainer\.fit` stopped: \S{1,60} reached|\bjob completed successfully\b"
        r"|\bmax_(?:steps|epochs|iters)(?:[= ]\d{1,12})? reached\b|\bworker group SUCCEEDED\b|\bis a success\b"
        r"|\b(?:job|task(?: \d{1,6})?) succeeded\b|\bCOMPLETED {1,9}0:0\b"
        r'|"key": "(?:run_stop|status)".{0,300}"(?:status|value)": "success"'  # MLPerf
        rf"|\bsuccess count == \d{{1,6}} -> stop running\b|{_TRAINED}",  # Horovod's elastic driver
        re.I,
    ),
)
_TESTED = regex(
    r"^=+ (?!.{0,200}\b\d+ (?:failed|errors?)\b).{0,200}?\b\d+ passed\b.{0,200} in \d|^OK \([a-z ]{4,20}=\d"
)
"""pytest's and unittest's last line, when nothing failed but what was to."""
_EXIT_ZERO = r"\b(?:exit(?:ed)?(?: with)?(?: code| status)?|rc|return code)[ :=]{1,3}0(?::0)?\s*$|\bclean exit$"
_LEFT_WELL = regex(_EXIT_ZERO, re.I)
_CLOSING = regex(rf"(?:^|[;:,.\]] )(?:all )?(?:done|ok)(?:[.! ]|$)|\bdone \d+/\d|{_EXIT_ZERO}", re.I)
_PAIR = regex(r"[A-Za-z_][\w/@.-]{0,60}(?P<sign>[=:] {0,2}| {1,3})(?:[-+]?\d[\w.%/+-]{0,30}|nan\b|inf\b)")
_FEW, _MANY = 3, 6
_NOT = Guarded(
    (
        "error", "fail", "exception", "abort", "killed", "traceback", "time", "fatal", "%|", "it [", "wandb:",
        "exit code", "namespace(",
    ),
    regex(
        r"error|fail|exception|abort|killed|traceback|timed? ?out|fatal|\d%\||\dit \[\d|\bwandb:|exit code (?!0\b)"
        r"|\bnamespace\(",  # the arguments of a program, printed
        re.I,
    ),
)  # fmt: skip
_COMPLAINT = Guarded(
    (
        "error", "fatal", "fail", "cannot", "can't", "could not", "unable", "refused", "denied", "invalid", "no such",
        "time", "not found", "not available", "not enough", "abort", "killed", "cancel", "rejected", "exceed",
        "insufficient", "evicted", "preempted", "unreachable", "mismatch",
    ),
    regex(
        r"\b(?:error|fatal|failed|failure|cannot|can't|could not|unable|refused|denied|invalid|no such|timed? ?out"
        r"|timeout|not (?:found|available|enough)|abort(?:ed|ing)?|killed|cancel+ed|rejected|exceeds?|insufficient"
        r"|evicted|preempted|unreachable|mismatch)\b",
        re.I,
    ),
)  # fmt: skip
_MILD = regex(
    r"\b(?:warn(?:ing)?|[A-Z]\w{1,40}Warning|info|debug|deprecat\w*|note|notice|retry(?:ing)?|falling back)\b"
    r"|^[WI]\d{4} |cuInit|Unable to register cu|computation_placer",  # TensorFlow on a machine without a GPU
    re.I,
)
_EXCEPTION = regex(
    r"^(?:[a-z_][\w.]{0,200}\.)?[A-Z]\w{0,100}(?:Error|Exception)(?:\([\w., ]{1,100}\))?: \S|^Exception: \S"
)

_WORDS = Words((*_COMPLAINT.words, "exception"))
_SETTING = regex(
    r"[^\w\n]{0,40}(?:steps|iters|iterations|epochs|batches)\b['\"]?[ \t]{0,9}[:=][ \t]{0,9}(?P<count>\d{1,9}),?\s*$",
    re.I,
)
"""How many there are, or how many there were so far: who counts says it again, with another number."""
_BAR = regex(r"^.{0,200}\d%\|.{0,200}\| {0,9}\d{1,12}/\d{1,12} \[\d")


def bar(text: str) -> str:
    """What a tqdm bar counts and how far it is: the same text when it is merely drawn again."""
    found = _BAR.match(text) if "%|" in text else None
    return found.group() if found else ""


def complains(text: str) -> bool:
    """A line that speaks of something that did not work, and not as a mere warning."""
    if not _WORDS.present(text.casefold()):
        return False
    if _EXCEPTION.match(text):
        return True
    if _COMPLAINT.search(text) is None or _MILD.search(text[:200]) is not None:
        return False
    return _COMPLAINT.search(_without_numbers(text)) is not None


def steps(text: str) -> bool:
    """Training itself, and not that something has finished."""
    return any(kind.search(text) is not None for kind in _STEPS)


def only_settings(texts: Iterable[str]) -> bool:
    """However many print them: they stay as they are."""
    found = [_SETTING.match(text) for text in texts]
    return None not in found and len({one["count"] for one in found if one}) == 1


def shows_progress(text: str) -> bool:
    going = steps(text) or finished(text)
    return (going and (_NOT.search(text) is None or _NOT.search(_without_numbers(text)) is None)) or tested(text)


def ended(text: str) -> bool:
    """Not an epoch or a step, but all of it is done."""
    return (_ENDED.search(text) is not None and _NOT.search(text) is None) or tested(text)


def tested(text: str) -> bool:
    """Tests were run here, and passed: whatever failed in them was to fail."""
    return text.startswith(("=", "OK (")) and _TESTED.search(text[:1_000]) is not None


def evaluates(text: str) -> bool:
    """Not training, but what follows it: a script goes on to that even where its training has failed."""
    return _EVALUATES.search(text) is not None


def finished(text: str) -> bool:
    return _FINISHED.search(text) is not None and not warns(text)


def warns(text: str) -> bool:
    """torch itself warns, and no program tells how far it is."""
    return _WARNS.match(text) is not None


def closing(text: str) -> bool:
    """A word with which programs, and scripts around them, take their leave."""
    return _CLOSING.search(text[:400]) is not None


def left_well(text: str) -> bool:
    """It says so itself."""
    return _LEFT_WELL.search(text[:400]) is not None


def _without_numbers(text: str) -> str:
    """A line of figures without their names: `timeout=0.1 aborted 2` complains of nothing."""
    head = text[:2_000]
    pairs = list(_PAIR.finditer(head))
    signed = sum(not pair["sign"].isspace() for pair in pairs)
    return _PAIR.sub("", head) + text[2_000:] if signed >= _FEW or len(pairs) >= _MANY else text


_NO_MORE = Guarded(
    ("end of", "no more", "exhausted", "ran out", "depleted", "drained", "out of"),
    regex(
        r"\bend of (?:the |my |its )?(?:data ?)?(?:loader|set|iterator|shards?|stream|split)\b"
        r"|\bno more (?:batches|data|samples|shards)\b"
        r"|\b(?:loader|iterator|sampler|shards?|stream|dataset)\b[^\n]{0,40}\b(?:exhausted|ran out|depleted|drained)\b"
        r"|\b(?:out of|exhausted) (?:(?:the|all|its) )?(?:data|batches|samples|shards)\b",
        re.I,
    ),
)


def out_of_data(text: str) -> bool:
    """A program says that its loader has come to its end."""
    return _NO_MORE.search(text) is not None
