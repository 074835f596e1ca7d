"""What may be changed, how much of an edit it is, why it helps and what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from paramedic.memory.request import Request

MOST_EDITS = 3


@dataclass(frozen=True)
class Edit:
    title: str
    why: str
    cost: str
    effort: int
    """1: a variable, an argument; 2: a line of code; 3: another launch; 4: another engine, the host; 5: numerics."""
    changes: dict[str, Any]
    group: str


@dataclass(frozen=True)
class Candidate:
    request: Request
    edits: tuple[Edit, ...]

    @property
    def effort(self) -> int:
        return sum(edit.effort for edit in self.edits)

    @property
    def title(self) -> str:
        return " ".join(edit.title for edit in self.edits) or "nothing changed"

    def and_also(self, edit: Edit) -> Candidate:
        return Candidate(replace(self.request, **edit.changes), (*self.edits, edit))


def edits(request: Request) -> Iterator[Edit]:
    """What may be changed of this request, whatever else is changed."""
    yield from _shared(request)
    if request.attention == "eager":
        yield Edit("--attention sdpa", "no score matrices are kept", "", 1, {"attention": "sdpa"}, "attention")
    if "expandable_segments" not in request.alloc_conf:
        conf = ",".join(part for part in (request.alloc_conf, "expandable_segments:True") if part)
        yield Edit(f"--alloc-conf {conf}", "less is lost between segments", "", 1, {"alloc_conf": conf}, "alloc")
    if request.optimizer in ("adamw", "adamw-foreach"):
        yield Edit(
            "--optimizer adamw-fused", "one kernel updates in place; the usual one copies a set of parameters", "",
            1, {"optimizer": "adamw-fused"}, "optimizer",
        )  # fmt: skip
    if request.strategy == "ddp" and not request.bucket_view:
        yield Edit(
            "--bucket-view", "gradients live in DDP's buckets, not beside them", "", 1, {"bucket_view": True}, "bucket"
        )
    if request.model and not request.checkpointing:
        yield Edit(
            "--activation-checkpointing", "a layer keeps its input only and is computed again in the backward pass",
            "one more forward pass", 2, {"checkpointing": True}, "ac",
        )  # fmt: skip
    if request.dtype == "fp32":
        yield Edit("--dtype bf16-autocast", "activations in half the bytes", "", 3, {"dtype": "bf16-autocast"}, "dtype")
    yield from _smaller_batches(request)
    if request.optimizer.startswith("adam") and request.optimizer != "adamw-8bit":
        yield Edit(
            "--optimizer adamw-8bit", "each of Adam's two moments in one byte",
            "other numerics: compare the loss; needs bitsandbytes", 5, {"optimizer": "adamw-8bit"}, "optimizer",
        )  # fmt: skip


def _smaller_batches(request: Request) -> Iterator[Edit]:
    """The same samples in more passes."""
    for times in (2, 4, 8, 16):
        if request.batch % times == 0 and request.pp == 1:
            parts = request.accumulation * times
            yield Edit(
                f"--batch {request.batch // times} --accumulation {parts}", "the same samples in more, smaller passes",
                "smaller kernels", 1 + times.bit_length() // 2,
                {"batch": request.batch // times, "accumulation": parts}, "batch",
            )  # fmt: skip


_SHARED = {
    "fsdp2": ("parameters, gradients and optimizer states are shared among {} ranks", "parameters are gathered twice"),
    "zero2": ("gradients and optimizer states are shared among {} ranks", ""),
    "zero3": ("parameters, gradients and optimizer states are shared among {} ranks", "parameters are gathered twice"),
}


def _shared(request: Request) -> Iterator[Edit]:
    if request.world_size < 2 or request.tp > 1 or request.pp > 1:
        return
    has = request.strategy
    for strategy, (why, cost) in _SHARED.items():
        further = strategy.startswith("zero") and has.startswith("zero") and strategy > has  # the same engine
        if not further and (has in ("fsdp2", strategy) or has.startswith("zero")):
            continue
        effort = 1 if further else 3 if strategy == "fsdp2" else 4
        changes = {"strategy": strategy}
        yield Edit(f"--strategy {strategy}", why.format(request.dp), cost, effort, changes, "strategy")


def _away(request: Request) -> Iterator[Edit]:
    """After a strategy that can: some keeps what is not used in the host's memory."""
    if request.offload != "none" or request.strategy not in ("fsdp2", "zero2", "zero3"):
        return
    what = "parameters" if request.strategy == "fsdp2" else "optimizer"
    kept = (
        "parameters, gradients and optimizer states" if what == "parameters" else "optimizer states and its gradients"
    )
    cost = "the step runs on the CPU, over PCIe"
    yield Edit(f"--offload {what}", f"{kept} live in the host's memory", cost, 4, {"offload": what}, "offload")


def free_edits(candidate: Candidate) -> Iterator[Edit]:
    """What costs no speed and no numerics: room for a setting that fits tightly."""
    groups = {edit.group for edit in candidate.edits}
    for edit in edits(candidate.request):
        free = edit.effort == 1 and edit.group in ("alloc", "optimizer") and edit.group not in groups
        if free and _sensible(candidate.and_also(edit).request, (edit,)):
            yield edit


def candidates(request: Request) -> list[Candidate]:
    """All sets of up to three edits that do not touch the same thing, the least effort first."""
    start = request
    if request.strategy == "none" and request.dp > 1:  # several cards and no word how: the plainest way
        start = replace(request, strategy="ddp")
    found = [Candidate(start, ())]
    possible = list(edits(start))
    for count in range(1, MOST_EDITS + 1):
        for chosen in combinations(possible, count):
            if len({edit.group for edit in chosen}) == count:
                changed = _changed(start, chosen)
                if _sensible(changed, chosen):
                    found.append(Candidate(changed, chosen))
    for one in list(found):
        if len(one.edits) < MOST_EDITS:
            for edit in _away(one.request):
                if not {"optimizer", "alloc"} & {other.group for other in one.edits}:  # there is nothing left to gain
                    found.append(one.and_also(edit))
    return sorted(found, key=lambda one: (one.effort, len(one.edits)))


def _changed(request: Request, chosen: tuple[Edit, ...]) -> Request:
    for edit in chosen:
        request = replace(request, **edit.changes)
    return request


def _sensible(request: Request, chosen: tuple[Edit, ...]) -> bool:
    """A bucket view is DDP's; DeepSpeed brings a fused Adam of its own, and its ZeRO is known in half precision."""
    groups = {edit.group for edit in chosen}
    if "bucket" in groups and request.strategy != "ddp":
        return False
    engine = request.strategy.startswith("zero")
    return not (engine and (request.dtype == "fp32" or (request.optimizer == "adamw-fused" and "optimizer" in groups)))
