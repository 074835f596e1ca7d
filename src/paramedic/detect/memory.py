"""A CUDA out-of-memory message taken apart: too big, fragmented, shared with another process, or limited on purpose."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from paramedic.detect.match import on_event, on_events
from paramedic.detect.once import once
from paramedic.detect.series import every
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run
from paramedic.regex import regex

_UNITS = {
    "B": 1,
    "bytes": 1,
    "KiB": 1 << 10,
    "KB": 1 << 10,
    "MiB": 1 << 20,
    "MB": 1 << 20,
    "GiB": 1 << 30,
    "GB": 1 << 30,
}
_SIZE = r"(?<![\d.])(\d{1,12}(?:\.\d{1,9})?) ?(KiB|MiB|GiB|KB|MB|GB|bytes|B)\b"
_OOM = regex(
    r"(?:CUDA|HIP|XPU|NPU|MPS)\S{0,20}(?: backend)? out of memory|OutOfMemoryError|Out of memory error on [GX]PU \d"
)
_SPEAKS_OF_IT = ("out of memory", "OutOfMemory", "Out of memory error")
_RAISED = regex(
    r"(?:^|\n)(?:torch\.(?:cuda\.)?OutOfMemoryError|RuntimeError): (?:CUDA|HIP|XPU|NPU|MPS)(?: backend)? out of memory"
)
"""Said by the allocator itself, also where whoever passed it on has left the sizes out."""
_CLAUSES = {
    # Every clause is optional: wordings of torch 1.x to 2.15 differ in which ones they print, and Paddle has its own.
    "request": regex(rf"[Tt]ried to allocate {_SIZE}|Cannot allocate {_SIZE} memory on [GX]PU"),
    "total": regex(rf"total capac(?:i)?ty of {_SIZE}|{_SIZE} total capacity"),
    "free": regex(rf"of which {_SIZE} is free|{_SIZE} free[;.)]|available memory is only {_SIZE}"),
    "used": regex(rf"this process has {_SIZE} memory in use"),
    "allocated": regex(rf"{_SIZE} (?:is allocated by PyTorch|already allocated|memory has been allocated)"),
    "unused": regex(rf"{_SIZE} is reserved by PyTorch but unallocated"),
    "reserved": regex(rf"{_SIZE} reserved in total by PyTorch"),
    "allowed": regex(rf"{_SIZE} allowed;"),
}
_OTHERS = regex(rf"Process (?P<pid>\d{{1,10}}) has (?P<size>{_SIZE}) memory in use")
_A_SIZE = regex(_SIZE)
_HOME = regex(r"/(?:home|Users)/([\w.-]{1,64})/")
_MOST_NAMED = 3
_LIST_ALL = "nvidia-smi --query-compute-apps=pid,used_memory,name --format=csv"


_CONTEXT = 2 << 30
"""So much of a device may be taken by CUDA itself and by libraries with memory of their own."""


@dataclass(frozen=True, slots=True)
class DeviceOom:
    """Sizes in bytes; None where the message does not say."""

    request: int | None = None
    total: int | None = None
    free: int | None = None
    used: int | None = None
    allocated: int | None = None
    unused: int | None = None
    allowed: int | None = None
    others: int = 0

    @property
    def kind(self) -> str:
        if self.allowed is not None and (self.free or 0) > (self.request or 0):
            return "limited"
        if self.unused and self.request and self.unused >= max(self.request, (self.allocated or 0) // 10):
            return "fragmented"
        if self.total and self.others > 0.2 * self.total:
            return "shared"
        return "exhausted"


def parse(text: str) -> DeviceOom | None:
    if not any(word in text for word in _SPEAKS_OF_IT) or not _OOM.search(text):
        return None
    sizes = {name: size for name, pattern in _CLAUSES.items() if (size := _bytes(pattern.search(text))) is not None}
    reserved = sizes.pop("reserved", None)
    if reserved is not None and "allocated" in sizes:
        sizes.setdefault("unused", max(reserved - sizes["allocated"], 0))
    named = [size for _, size in others_named(text)]
    others = sum(named)
    total, own = sizes.get("total", 0), sizes.get("used", sizes.get("allocated", 0))
    among = len(named) > 1 and "used" not in sizes and "allocated" in sizes  # else it would say what itself has
    if among or others + own > total * 1.02:  # in a container a process does not know its own number
        others -= min((size for size in named if size >= own), default=others)
    if not others and "free" in sizes and (held := sizes.get("used", reserved)) is not None:
        others = max(total - sizes["free"] - held - _CONTEXT, 0)  # what is neither free nor held by this process
    return DeviceOom(**sizes, others=others) if sizes or _RAISED.search(text) else None


def others_named(text: str) -> list[tuple[str, int]]:
    """(pid, bytes) of the other processes that the message names."""
    found = _OTHERS.finditer(text[:8_000]) if "Process " in text else ()
    return [(one["pid"], _bytes(_A_SIZE.match(one["size"])) or 0) for one in found]


def _bytes(found: re.Match[str] | None) -> int | None:
    if found is None:
        return None
    number, unit = (part for part in found.groups() if part is not None)
    return int(float(number) * _UNITS[unit])


def exhausted(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """With the micro-batch that the log states, how to halve it, and what the allocator could join, for its fixes."""
    batch = _micro_batch(run)
    for event, oom in _said(run):
        if oom.kind == "exhausted":
            yield on_event(rule, event, _fields(oom) | _halved(event, batch) | _joinable(oom, event))


def fragmented(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    return _ooms(run, rule, "fragmented")


def limited(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    return _ooms(run, rule, "limited")


def shared(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Who holds the rest is named, as far as the message and nvidia-smi tell."""
    shares = [(event, oom) for event, oom in _said(run) if oom.kind == "shared"]
    for event, oom in shares:
        one = on_event(rule, event, {**_fields(oom), **_holders(run, event, oom)})
        if held_by_its_own(run, event):
            late = _before_it_failed(run, event, [other for other, _ in shares])
            consequence = "possible" if late else one.consequence
            yield replace(one, weights={**one.weights, **_ON_ONE_DEVICE}, consequence=consequence)
        elif _of_before(run, event) or all(_a_strangers(*one) for one in shares):
            yield replace(one, weights={**one.weights, **_LEFT_BEHIND})
        else:
            yield one


_LEFT_BEHIND = {"resource-leak-or-retained-reference": 20.0}
_ON_ONE_DEVICE = {"device-assignment-error": 20.0}


def held_by_its_own(run: Run, event: Event) -> bool:
    """Most of the processes that hold the memory are those that the launcher of this very attempt ended with it."""
    pids = {pid for pid, _ in others_named(event.text)}
    own = pids & _pids(run).get((event.source, event.attempt), set()) if pids else pids
    return 2 * len(own) > len(pids)


@once
def _pids(run: Run) -> dict[tuple[str, int], set[str]]:
    """Of each attempt in each log, as its launcher tells of their ends."""
    found: dict[tuple[str, int], set[str]] = defaultdict(set)
    for event in run.of_kind("exit"):
        found[event.source, event.attempt].add(str(event.fields.get("pid")))
    for event in run.saying("process ", "line"):
        found[event.source, event.attempt].update(one[1] or one[2] for one in _ENDED.finditer(event.text))
    return found


_ENDED = regex(r"\bSending process (\d{1,10}) closing signal\b|\bKilling subprocess (\d{1,10})\b")


def _before_it_failed(run: Run, event: Event, shares: Sequence[Event]) -> bool:
    """The launcher saw others fail who met the same full device, and ended this one for it."""
    failed = {e.rank for e in run.of_kind("exit") if e.attempt == event.attempt and e.fields.get("exitcode", 0) > 0} - {
        None
    }
    met = {other.rank for other in shares if other.attempt == event.attempt}
    return bool(failed & met) and event.rank is not None and event.rank not in failed


def _a_strangers(event: Event, oom: DeviceOom) -> bool:
    """One process holds most of a GPU that is not the first, where ranks meet that bind to none or to a wrong one."""
    gpu = _GPU.search(event.text)
    held = [size for _, size in others_named(event.text)]
    most = max(held, default=0)
    return gpu is not None and gpu[1] != "0" and len(held) <= _FEW and most > _MOST_OF * (oom.total or most)


_GPU, _MOST_OF = regex(r"\bGPU (\d{1,3}) has a total"), 0.5


def _of_before(run: Run, event: Event) -> bool:
    """The launcher of an attempt before has named the process that holds the memory: it was not ended with the rest."""
    pids = [pid for pid, _ in others_named(event.text)[:_MOST_NAMED]] if event.attempt else []
    ends = {str(e.fields.get("pid")) for e in run.of_kind("exit") if e.attempt < event.attempt} if pids else set()
    told = [e.text for e in run.saying("process ", "line") if e.attempt < event.attempt] if pids else []
    return any(pid in ends or any(f"process {pid} " in text for text in told) for pid in pids)


def _holders(run: Run, event: Event, oom: DeviceOom) -> dict[str, str]:
    """The processes by number and name, how to see whose they are, and those that are surely another user's."""
    named = _besides_itself(event, oom)
    if not named:
        return {"holders": "other processes", "look": _LIST_ALL, **_for_fixes(run, event, oom)}
    pids = [pid for pid, _ in named[:_MOST_NAMED]]
    shown = {str(one.fields.get("pid")): str(one.fields.get("name") or "") for one in run.of_kind("smi process")}
    told = ", ".join(f"{pid} ({name})" if (name := shown.get(pid)) else pid for pid in pids)
    theirs = [pid for pid in pids if of_another(shown.get(pid, ""), event)]
    more = _for_fixes(run, event, oom)
    if {*theirs} & {*more.get("kill", "").split()}:
        more = {"unnamed": "what"}
    return {
        "holders": f"process {told}" if len(named) == 1 else f"processes {told}",
        "look": f"ps -o pid,ppid,user,lstart,cmd -p {','.join(pids)}",
        **({"theirs": ", ".join(theirs)} if theirs else {}),
        **more,
    }


def _for_fixes(run: Run, event: Event, oom: DeviceOom) -> dict[str, str]:
    """The others' numbers; how many of them hold far less here than this process, as ranks do that have a GPU of their
    own besides; and, of several, the line that calls `torch.load`."""
    others = _besides_itself(event, oom)
    mine = held_by_its_own(run, event)
    unnamed = {} if mine else {"unnamed": "what"}
    if not others:
        return unnamed
    pids = [pid for pid, _ in others]
    few = not mine and len(others) <= _FEW
    fields = {"pids": ",".join(pids), "kill": " ".join(pids)} if few else unnamed
    if len(others) == 1:
        return fields
    held = oom.used or oom.allocated or 0
    if held > _FAR_MORE * max(size for _, size in others):
        fields["guests"] = str(len(others))
    calls = pairwise(map(str, event.fields.get("frames", ())))
    loaded = [caller.partition(" in ")[0] for caller, called in calls if _LOADS.search(called)]
    return {**fields, "loaded": loaded[0]} if loaded and "/site-packages/" not in loaded[0] else fields


def _besides_itself(event: Event, oom: DeviceOom) -> list[tuple[str, int]]:
    """In a container a process does not know its own number and names itself among the others."""
    named = others_named(event.text)
    too_many = sum(size for _, size in named) - oom.others
    own = next((one for one in named if one[1] == too_many), None)
    return [one for one in named if one is not own] if own is not None or too_many == 0 else []


_FEW, _FAR_MORE = 2, 1.5
"""More processes than that are hardly what a former run has left: they are the job's own."""
_LOADS = regex(r"/torch/serialization\.py:\d{1,5} in load$")


def of_another(process: str, event: Event) -> bool:
    """A program from the home folder of a user other than the one whose code failed."""
    home = _HOME.match(process)
    own = {found[1] for frame in event.fields.get("frames", ()) if (found := _HOME.match(str(frame))) is not None}
    return home is not None and bool(own) and home[1] not in own


_MADE = regex(
    r"Created (?:TensorFlow )?device \(?/job:\S{1,80}?device:GPU:\d{1,3} with (\d{1,7}) MB memory\)?"
    r".{0,160}?\bpci bus id: ([0-9a-fA-F:.]{7,20})"
)
_LITTLE = 0.5
_TAKEN_TWICE = {"device-assignment-error": 500.0}
"""It outweighs what the allocator's own message is mostly about."""


def each_on_all(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """TensorFlow takes each GPU that it sees. Where each process of a job with one process a GPU takes several, and
    there was little left of them for those that failed, they take them from each other."""
    failed = [one for one in found if one.symptom == rule.symptom and one.severity == "error"]
    if not failed or "horovod" not in run.frameworks:
        return
    taken: dict[int, dict[str, int]] = defaultdict(dict)
    said: dict[int, Event] = {}
    for event in run.saying(" with ", "line"):
        if event.rank is not None and "MB memory" in event.text and (made := _MADE.search(event.text)) is not None:
            taken[event.rank].setdefault(made[2], int(made[1]))
            said.setdefault(event.rank, event)
    several = {rank for rank, gpus in taken.items() if len(gpus) > 1}
    most = {bus: max(gpus.get(bus, 0) for gpus in taken.values()) for gpus in taken.values() for bus in gpus}
    ranks = {rank for one in failed for rank in one.ranks}
    little = all(size < _LITTLE * most[bus] for rank in ranks & several for bus, size in taken[rank].items())
    if len(several) < 2 or several != taken.keys() or not ranks or not ranks <= several or not little:
        return
    first = failed[0].evidence[0].event
    fields = {"count": str(len(several)), "gpus": str(len(most))}
    yield on_events(rule, [first, *(said[rank] for rank in sorted(several)[:3])], (), fields, _TAKEN_TWICE)


def _ooms(run: Run, rule: Rule, kind: str) -> Iterator[Finding]:
    return (on_event(rule, event, _fields(oom)) for event, oom in _said(run) if oom.kind == kind)


@once  # each of four rules asks
def _said(run: Run) -> list[tuple[Event, DeviceOom]]:
    speaking = run.saying_one_of(_SPEAKS_OF_IT, "line", "traceback")
    return [(event, oom) for event in speaking if (oom := parse(event.text)) is not None]


def _micro_batch(run: Run) -> int:
    """Of a device, where all who state one state the same; else nought."""
    stated = {value for one in every(run, "device_batch") for value in one.said}
    batch = stated.pop() if len(stated) == 1 else 0.0
    return int(batch) if batch >= 1 and batch.is_integer() else 0


_HALVES = (
    (
        regex(r"/nemo/"),
        "micro_batch_size={half}   # of the data module, or below model: in the YAML; global_batch_size stays",
    ),
    (
        regex(r"/megatron/(?:core|training)/"),
        "--micro-batch-size {half}   # --global-batch-size stays: the micro-batches become more by themselves",
    ),
    (
        regex(r"/transformers/trainer\w{0,20}\.py|/trl/trainer/"),
        "--per_device_train_batch_size {half} --gradient_accumulation_steps TWICE_AS_MANY",
    ),
    (
        regex(r"/(?:pytorch_lightning|lightning/pytorch)/"),
        "DataLoader(..., batch_size={half}); Trainer(..., accumulate_grad_batches=TWICE_AS_MANY)",
    ),
    (
        regex(r"/deepspeed/"),
        '"train_micro_batch_size_per_gpu": {half}, "gradient_accumulation_steps": TWICE_AS_MANY   # in ds_config.json',
    ),
    (regex(r"/torchtitan/"), "--training.local_batch_size {half}   # --training.global_batch_size stays"),
)
"""The micro-batch in the words of whose frames were seen."""
_RECOMPUTES = (
    (
        regex(r"/nemo/"),
        'recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1   # of the model',
    ),
    (
        regex(r"/megatron/(?:core|training)/"),
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
    ),
    (regex(r"/transformers/trainer\w{0,20}\.py|/trl/trainer/"), "--gradient_checkpointing True"),
    (regex(r"/torchtitan/"), "--activation_checkpoint.mode full"),
    (
        regex(r"/transformers/models/"),
        'model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})',
    ),
    (
        regex(""),
        "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)   # for each block of the model",
    ),
)
_RECOMPUTED = regex(
    r"/torch/utils/checkpoint\.py|/tensor_parallel/random\.py|\bin (?:custom_forward|checkpoint_handler|recompute)\b"
)


def _halved(event: Event, batch: int) -> dict[str, str]:
    """One sample cannot be halved. What is recomputed already, as the frames show, need not be advised."""
    frames = "\n".join(map(str, event.fields.get("frames", ())))
    again = next(words for seen, words in _RECOMPUTES if seen.search(frames))
    deeper = {} if _RECOMPUTED.search(frames) else {"recompute": again, "price": ""}
    if batch == 1:
        return {"recompute": again, "single": "1"} if deeper else {"shortest": "1"}
    own = "micro_batch //= 2; accumulation *= 2   # loss / accumulation before backward()"
    words = next((words for seen, words in _HALVES if seen.search(frames)), own)
    if not batch:
        return {**deeper, "halved": "", "smaller": words.replace("{half}", "HALF_OF_NOW")}
    half = str(batch // 2)
    return {**deeper, "halved": f", {batch} → {half},", "smaller": words.replace("{half}", half), "half": half}


def _joinable(oom: DeviceOom, event: Event) -> dict[str, str]:
    """What is free and what the allocator holds unused, if only together they are as much as was asked for; of torch
    before 2.1, which words it otherwise, it cannot join them."""
    if "reserved in total by PyTorch" in event.text:
        return {}
    free, unused, request = oom.free or 0, oom.unused or 0, oom.request or 0
    return {"joined": human(free + unused)} if free < request <= free + unused else {}


def _fields(oom: DeviceOom) -> dict[str, str]:
    names = ("request", "total", "free", "used", "allocated", "unused", "allowed")
    sizes = {name: getattr(oom, name) for name in names} | {"others": oom.others or None}
    return {name: human(size) for name, size in sizes.items() if size is not None}


def human(size: int) -> str:
    for unit, width in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= width:
            return f"{size / width:.2f} {unit}"
    return f"{size} B"
