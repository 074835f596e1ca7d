"""Settings that fit: the smallest change to what the user has first, then the fastest.

Every candidate is first judged by two traces of the model with few layers, which grow evenly; the best are then traced
whole. Speed is predicted from arithmetic and bytes moved, and only used to order candidates of equal effort.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

from paramedic import __version__
from paramedic.memory import outside
from paramedic.memory.cards import card_of
from paramedic.memory.configs import config_of
from paramedic.memory.estimate import SCHEMA_VERSION, Estimate, estimates
from paramedic.memory.process import Say
from paramedic.memory.request import Request, check
from paramedic.memory.show import size
from paramedic.memory.speed import samples_a_second

FEW = (2, 4)
MOST_EDITS = 3
AT_ONCE = 8
MOST_TRIED = 48
MARGIN = 1.03


@dataclass(frozen=True, slots=True)
class Edit:
    title: str
    why: str
    effort: int
    changes: dict[str, Any]
    group: str


@dataclass(frozen=True, slots=True)
class Candidate:
    request: Request
    edits: tuple[Edit, ...]

    @property
    def effort(self) -> int:
        return sum(edit.effort for edit in self.edits)


@dataclass
class Answer:
    candidate: Candidate
    estimate: Estimate
    speed: float


@dataclass
class Plan:
    asked: Request
    answers: list[Answer] = field(default_factory=list)
    tried: int = 0
    largest: str | None = None


def edits(request: Request) -> Iterator[Edit]:
    """What may be changed, and what it costs."""
    if request.attention == "eager":
        yield Edit("--attention sdpa", "no score matrices are kept", 1, {"attention": "sdpa"}, "attention")
    if request.optimizer in ("adamw", "adamw-foreach"):
        yield Edit(
            "--optimizer adamw-fused",
            "the step makes no copy of all parameters",
            1,
            {"optimizer": "adamw-fused"},
            "optimizer",
        )
    if "expandable_segments" not in request.alloc_conf:
        conf = ",".join(part for part in (request.alloc_conf, "expandable_segments:True") if part)
        yield Edit(f"--alloc-conf {conf}", "less is lost between segments", 1, {"alloc_conf": conf}, "alloc")
    if request.strategy == "ddp" and not request.bucket_view:
        yield Edit(
            "--bucket-view", "gradients live in DDP's buckets, not beside them", 1, {"bucket_view": True}, "bucket"
        )
    if request.model and not request.checkpointing:
        yield Edit(
            "--activation-checkpointing",
            "one more forward pass instead of kept activations",
            2,
            {"checkpointing": True},
            "ac",
        )
    if request.dtype == "fp32":
        yield Edit("--dtype bf16-autocast", "activations in half the bytes", 3, {"dtype": "bf16-autocast"}, "dtype")
    yield from _smaller_batches(request)
    yield from _shared(request)
    if request.optimizer.startswith("adam") and request.optimizer != "adamw-8bit":
        yield Edit(
            "--optimizer adamw-8bit",
            "moments in one byte each; needs bitsandbytes",
            5,
            {"optimizer": "adamw-8bit"},
            "optimizer",
        )


def _smaller_batches(request: Request) -> Iterator[Edit]:
    """The same samples in more passes."""
    for times in (2, 4, 8, 16):
        if request.batch % times == 0 and request.pp == 1:
            parts = request.accumulation * times
            yield Edit(
                f"--batch {request.batch // times} --accumulation {parts}", "the same samples in more, smaller passes",
                1 + times.bit_length() // 2, {"batch": request.batch // times, "accumulation": parts}, "batch",
            )  # fmt: skip


def _shared(request: Request) -> Iterator[Edit]:
    if request.world_size < 2 or request.tp > 1 or request.pp > 1:
        return
    reasons = {
        "fsdp2": "parameters, gradients and optimizer are shared among ranks",
        "zero2": "gradients and optimizer are shared among ranks",
        "zero3": "parameters, gradients and optimizer are shared among ranks (DeepSpeed)",
    }
    for strategy, why in reasons.items():
        if request.strategy in ("none", "ddp", "zero1", "zero2") and strategy != request.strategy:
            yield Edit(
                f"--strategy {strategy}", why, 3 if strategy == "fsdp2" else 4, {"strategy": strategy}, "strategy"
            )
    if request.strategy in ("fsdp2", "zero2", "zero3") and request.offload == "none":
        what = "optimizer" if request.strategy != "fsdp2" else "parameters"
        yield Edit(f"--offload {what}", "kept in the host's memory; slow", 4, {"offload": what}, "offload")


def candidates(request: Request) -> list[Candidate]:
    """All sets of up to three edits that do not touch the same thing, the least effort first, then the fastest."""
    start = request
    if request.strategy == "none" and request.dp > 1:  # several cards and no word how: the plainest way
        start = replace(request, strategy="ddp")
    possible = list(edits(start))
    found = [Candidate(start, ())]
    for count in range(1, MOST_EDITS + 1):
        for chosen in combinations(possible, count):
            if len({edit.group for edit in chosen}) < count:
                continue
            changed = start
            for edit in chosen:
                changed = replace(changed, **edit.changes)
            found.append(Candidate(changed, chosen))
    return sorted(found, key=lambda one: (one.effort, len(one.edits)))


def plan(request: Request, most: int, say: Say) -> Plan:
    found = Plan(request)
    card = card_of(request.gpu, request.gpu_memory)
    all_of_them = candidates(request)
    parameters = _parameters(all_of_them[0].request, say)
    possible = [one for one in all_of_them if least(one.request, parameters) <= card.memory]
    for group in _groups(possible):
        if found.tried >= MOST_TRIED or len(found.answers) >= most:
            break
        say(f"paramedic: tries {len(group)} settings of effort {group[0].effort} to {group[-1].effort}")
        likely = [one for one, need in zip(group, needs(group, say), strict=True) if need <= card.memory]
        found.tried += len(group)
        for candidate in likely:
            if len(found.answers) < most and not _covered(candidate, found):
                made = estimates([candidate.request], say)[0]
                if made.fits != "no":
                    speed = samples_a_second(candidate.request, parameters, card)
                    found.answers.append(Answer(candidate, made, speed))
    found.answers.sort(key=lambda one: (one.candidate.effort, -one.speed))
    return found


def _parameters(request: Request, say: Say) -> int:
    """Of the whole model, from two with few layers."""
    if request.entry:
        return int(estimates([request], say)[0].result["parameters"])
    few, more = estimates([replace(request, layers=count) for count in FEW], say)
    layers = few.result["layers"]
    small, large = int(few.result["parameters"]), int(more.result["parameters"])
    if not isinstance(layers, int) or large == small:
        return small
    return small + (large - small) * (layers - FEW[0]) // (FEW[1] - FEW[0])


def least(request: Request, parameters: int) -> int:
    """What parameters, gradients and optimizer alone take: no trace is needed where that is too much already."""
    engine = request.strategy.startswith("zero")
    weight = 2 if engine or request.dtype in ("bf16", "fp16") else 4
    adam = {"adamw-8bit": 2, "sgd": 0, "adafactor": 0, "none": 0, "sgd-momentum": weight}
    moments = adam.get(request.optimizer, 8 if engine else 2 * weight)
    kept = 0 if request.offload != "none" else moments + (4 if engine else 0)
    share = 1 / request.dp
    weights = share if request.strategy in ("zero3", "fsdp2") else 1.0
    if request.offload == "parameters":
        weights = 0.0
    sharing = share if engine or request.strategy == "fsdp2" else 1.0
    gradients = 0.0 if request.offload != "none" else sharing if request.strategy != "zero1" else 1.0
    each = weight * weights + weight * gradients + kept * sharing
    return int(parameters / (request.tp * request.pp) * each)


def _groups(found: Sequence[Candidate]) -> Iterator[Sequence[Candidate]]:
    for start in range(0, len(found), AT_ONCE):
        yield found[start : start + AT_ONCE]


def _covered(candidate: Candidate, found: Plan) -> bool:
    """A set of edits that contains an answer's only adds effort to it."""
    mine = {edit.title for edit in candidate.edits}
    return any({edit.title for edit in answer.candidate.edits} <= mine for answer in found.answers)


def needs(found: Sequence[Candidate], say: Say) -> list[int]:
    """Bytes on the device, grown from few layers where the model has layers to leave out."""
    requests = [one.request for one in found]
    if all(one.model for one in requests):
        few = estimates([replace(one, layers=FEW[0]) for one in requests], say)
        layers = few[0].result["layers"]
        if isinstance(layers, int) and layers > FEW[1]:
            more = estimates([replace(one, layers=FEW[1]) for one in requests], say)
            return [_grown(a, b, layers) for a, b in zip(few, more, strict=True)]
    return [one.total.mid for one in estimates(requests, say)]


def _grown(few: Estimate, more: Estimate, layers: int) -> int:
    """Each phase's peak grows evenly with layers; which of them is the highest may change."""
    share = (layers - FEW[0]) / (FEW[1] - FEW[0])
    small, large = few.result["phases"], more.result["phases"]
    peak = max(small[name] + (large[name] - small[name]) * share for name in large)
    return int(peak * MARGIN) + outside.total(more.terms).mid


def largest(request: Request, what: str, say: Say) -> Plan:
    """The largest batch or sequence that fits with everything else as it is."""
    check(request)
    card = card_of(request.gpu, request.gpu_memory)
    step = 1 if what == "batch" else 128
    start = getattr(request, what) or step

    def fits(count: int) -> bool:
        one = Candidate(_sized(request, what, count * step), ())
        return needs([one], say)[0] <= card.memory

    best = _search(max(start // step, 1), fits)
    while best > 0:
        asked = _sized(request, what, best * step)
        made = estimates([asked], say)[0]
        if made.fits != "no":
            speed = samples_a_second(asked, made.result["parameters"], card)
            return Plan(request, [Answer(Candidate(asked, ()), made, speed)], largest=what)
        best = best * 15 // 16 if best > 16 else best - 1
    return Plan(request, largest=what)


def _sized(request: Request, what: str, count: int) -> Request:
    return replace(request, batch=count) if what == "batch" else replace(request, seq=count)


def _search(start: int, fits: Any) -> int:
    low, high = 0, start
    while high < 1 << 16 and fits(high):
        low, high = high, high * 2
    while high - low > max(low // 32, 1):
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def document(found: Plan) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "paramedic", "version": __version__},
        "tried": found.tried,
        "answers": [
            {
                "flags": flags(answer.candidate.request),
                "edits": [{"change": edit.title, "why": edit.why} for edit in answer.candidate.edits],
                "effort": answer.candidate.effort,
                "predicted_samples_per_second": round(answer.speed, 2),
                "fits": answer.estimate.fits,
                "device_total_bytes": answer.estimate.total.mid,
                "peak_allocated_bytes": answer.estimate.allocated.mid,
                "config": config_of(answer.candidate.request),
            }
            for answer in found.answers
        ],
    }


def flags(request: Request) -> str:
    """The request as a command line would say it; what is default is left out."""
    plain = Request()
    words = []
    for name, value in request.to_dict().items():
        if value == getattr(plain, name) or name in ("layers",):
            continue
        flag = "--" + {"checkpointing": "activation-checkpointing"}.get(name, name).replace("_", "-")
        words.append(flag if value is True else f"{flag} {value}")
    return " ".join(words)


def text(found: Plan) -> str:
    if not found.answers:
        what = f"no {found.largest} fits" if found.largest else f"none of {found.tried} settings fits"
        return f"{what}: use more or larger cards, or a smaller model\n"
    if found.largest:
        answer = found.answers[0]
        value = getattr(answer.candidate.request, found.largest)
        return f"largest --{found.largest}: {value} ({size(answer.estimate.total.mid)} on the device)\n"
    return "\n".join(line for number, answer in enumerate(found.answers, 1) for line in _lines(number, answer)) + "\n"


def _lines(number: int, answer: Answer) -> Iterator[str]:
    changes = answer.candidate.edits
    yield f"{number}. {' '.join(edit.title for edit in changes) or 'as it is'}"
    for edit in changes:
        yield f"     {edit.title}: {edit.why}"
    verdict = "fits" if answer.estimate.fits == "yes" else "fits tightly"
    needs_now = f"{size(answer.estimate.total.mid)} of {size(answer.estimate.card.memory)}"
    yield f"     {verdict}: {needs_now}; about {answer.speed:.1f} samples a second"
    for line in config_of(answer.candidate.request):
        yield f"       {line}"
    yield ""
