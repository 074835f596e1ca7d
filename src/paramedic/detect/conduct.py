"""What the agents in the ranks saw the program do, read as values: a recording is a stranger's file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paramedic.detect import boxes
from paramedic.detect.match import on_events
from paramedic.detect.once import once
from paramedic.detect.recordings import WITHIN_A_MODEL
from paramedic.detect.watched import Seen, said_by, seen_ranks
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run

ENOUGH_STEPS = 3
_MOST_OF_IT = 0.9
_EVALUATIONS = 4
"""Agents keep no more of a loader."""
_OTHERS = ("horovod", "byteps", "mpi4py")
"""Ways to talk to each other that are not torch's."""
_ENGINES = ("deepspeed", "colossalai", "megatron.core")
_BETWEEN_STAGES = ("send", "recv", "isend", "irecv", "batch_isend_irecv")


@dataclass(frozen=True, slots=True)
class Look:
    """Parameters and gradients before a step, as digests; of each tensor a short one."""

    tensors: int
    shapes: int
    parameters: int | None
    gradients: int | None
    each_parameters: tuple[int, ...]
    each_gradients: tuple[int, ...]
    elements: int
    """That ask for gradients."""
    without_gradient: int


@dataclass(frozen=True, slots=True)
class Loader:
    place: str
    sampler: str
    shuffle: bool
    replicas: int | None
    rank: int | None
    epochs: tuple[int | None, ...]
    steps: tuple[int, ...]
    """That had been made when each epoch began."""
    prints: tuple[tuple[int, ...], ...]
    """Of the first batches of each epoch."""
    workers: int
    batch_size: int
    begun: int
    """How often it was gone through, or begun to be."""
    rows: tuple[int, ...]
    """Digests of the first rows of the first epoch."""
    passed: tuple[int, ...]
    """How many rows came in each epoch."""
    evaluations: tuple[Evaluation, ...]

    @property
    def only_evaluates(self) -> bool:
        return bool(self.evaluations) and len(self.evaluations) >= min(self.begun, _EVALUATIONS)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A pass through a loader without a backward pass."""

    step: int
    batches: int
    calls: int
    """Collectives from its begin to the next training step."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model inside DDP."""

    ranks: int
    forwards: int
    not_averaged: int
    without_gradients: int
    of_them_in_training: int
    steps_in_eval: int
    in_no_optimizer: int
    parameters: int
    dropout: int
    batch_norm: int


@dataclass(frozen=True, slots=True)
class Conduct:
    """Of one rank."""

    seen: Seen
    steps: int
    orders: Mapping[str, int]
    places: Mapping[str, str]
    calls: tuple[int, ...]
    """Collectives called from Python in each of the first steps."""
    looks: Mapping[tuple[int, int], Look]
    """By optimizer and step."""
    sharded: int
    """Parameters of which this rank holds a part."""
    rates: Mapping[int, tuple[float, ...]]
    """Learning rates of the first optimizer, since the step at which they came."""
    loaders: tuple[Loader, ...]
    fed: tuple[int, ...]
    models: tuple[Model, ...]
    factors: tuple[tuple[float, ...], ...]
    """By which the loss was multiplied last, of the first backward passes."""
    raw: Mapping[str, Any]

    @property
    def event(self) -> Event:
        return self.seen.event

    @property
    def training(self) -> tuple[Loader, ...]:
        """Loaders during whose epochs steps were made."""
        passed = (one for one in self.loaders if one.steps and max((*one.steps[1:], self.steps)) > one.steps[0])
        return tuple(one for one in passed if not one.only_evaluates)

    @property
    def first_batches(self) -> tuple[int, ...]:
        """What the model was given, or else what the loader gave."""
        return self.fed or next((loader.prints[0] for loader in self.training if loader.prints), ())

    def usual_order(self) -> str:
        """Of most steps, if of most."""
        if not self.orders:
            return ""
        order, count = max(self.orders.items(), key=lambda item: item[1])
        return order if 2 * count > sum(self.orders.values()) >= ENOUGH_STEPS else ""

    def place(self, letter: str) -> str:
        return self.places.get(letter, "")


@once
def conducts(run: Run) -> dict[int, Conduct]:
    """Of the ranks that trained; none where only one was seen."""
    found = {}
    for rank, seen in seen_ranks(run).items():
        said = said_by(seen.event)
        if isinstance(raw := said.get("conduct"), Mapping) and natural(said.get("steps")):
            found[rank] = _read(seen, natural(said.get("steps")), raw)
    return found if len(found) > 1 else {}


def _read(seen: Seen, steps: int, raw: Mapping[str, Any]) -> Conduct:
    optimizers = items(raw.get("optimizers"))
    first = optimizers[0] if optimizers else {}
    rates = [one for one in as_list(first.get("rates")) if isinstance(one, list) and len(one) == 2]
    return Conduct(
        seen=seen,
        steps=steps,
        orders={str(order): natural(count) for order, count in as_dict(raw.get("orders")).items()},
        places={str(letter): str(place) for letter, place in as_dict(raw.get("places")).items()},
        calls=numbers(raw.get("calls")),
        looks={
            (natural(one.get("optimizer")), natural(one.get("step"))): _look(one) for one in items(raw.get("replicas"))
        },
        sharded=natural(first.get("sharded")),
        rates={natural(step): floats(values) for step, values in rates},
        loaders=tuple(_loader(one, natural(raw.get("called"))) for one in items(raw.get("loaders"))),
        fed=numbers(raw.get("fed")),
        models=tuple(map(_model, items(raw.get("models")))),
        factors=tuple(floats(one) for one in as_list(raw.get("factors"))),
        raw=raw,
    )


def _look(one: Mapping[str, Any]) -> Look:
    return Look(
        natural(one.get("tensors")),
        natural(one.get("shapes")),
        _optional(one.get("parameters")),
        _optional(one.get("gradients")),
        numbers(one.get("each parameters")),
        numbers(one.get("each gradients")),
        natural(one.get("elements")),
        natural(one.get("without_gradient")),
    )


def _loader(one: Mapping[str, Any], called: int) -> Loader:
    evaluations = (_evaluation(row, called) for row in items(one.get("evaluations")))
    return Loader(
        place=str(one.get("place") or ""),
        sampler=str(one.get("sampler") or ""),
        shuffle=bool(one.get("shuffle")) or one.get("sampler") == "RandomSampler",
        replicas=_optional(one.get("replicas")),
        rank=_optional(one.get("rank")),
        epochs=tuple(map(_optional, as_list(one.get("epochs")))),
        steps=numbers(one.get("steps")),
        prints=tuple(numbers(epoch) for epoch in as_list(one.get("prints"))),
        workers=natural(one.get("workers")),
        batch_size=natural(one.get("batch_size")),
        begun=natural(one.get("begun")),
        rows=numbers(one.get("rows")),
        passed=numbers(one.get("passed")),
        evaluations=tuple(done for done in evaluations if done.batches),
    )


def _evaluation(row: Mapping[str, Any], called: int) -> Evaluation:
    """One after which nothing was trained lasts until the end: so do its collectives."""
    calls = natural(row.get("to", called)) - natural(row.get("from"))
    return Evaluation(natural(row.get("step")), natural(row.get("batches")), max(0, calls))


def _model(one: Mapping[str, Any]) -> Model:
    return Model(*(natural(one.get(name)) for name in Model.__slots__))


def world_size(ranks: Mapping[int, Conduct]) -> int:
    return max((natural(said_by(one.event).get("world_size")) for one in ranks.values()), default=0)


def have_met(seen: Iterable[Event]) -> bool:
    """Any of them has joined a process group of more than one, or might have met the others in another way."""
    said = [said_by(one) for one in seen]
    if all(map(is_alone, said)):
        return False
    return any(items(one.get("groups")) for one in said) or any(
        name in as_dict(one.get("versions")) for one in said for name in _OTHERS
    )


def is_alone(said: Mapping[str, Any]) -> bool:
    """The only one of its process group, though its launcher has started more."""
    return any(note.get("kind") == "alone" for note in items(said.get("notes")))


def by_engine(ranks: Mapping[int, Conduct]) -> bool:
    """An engine of its own keeps and clears gradients: torch's optimizers inside it do not show what is used."""
    return any(name in as_dict(said_by(one.event).get("versions")) for one in ranks.values() for name in _ENGINES)


def are_replicas(run: Run) -> bool:
    """Every rank holds the whole of the same model: DDP says so, or unlike batches meet like parameters."""
    ranks = conducts(run)
    if by_engine(ranks):
        return False
    world = world_size(ranks)
    if len(ranks) < 2 or any(one.sharded for one in ranks.values()) or _in_stages(run):
        return False
    if all(any(model.ranks == world for model in one.models) for one in ranks.values()):
        return True
    return _held_alike(ranks) and (fed_unlike(ranks) or all(_sends_its_model(one) for one in ranks.values()))


def _sends_its_model(one: Conduct) -> bool:
    """In every step by its own collectives, so that ranks may have it in common."""
    elements = max((look.elements for (optimizer, _), look in one.looks.items() if not optimizer), default=0)
    moved = numbers(one.raw.get("moved"))[:-1]
    return "r" in one.usual_order() or bool(elements and moved and min(moved) >= _MOST_OF_IT * elements)


def are_sharded(run: Run) -> bool:
    """FSDP over all ranks, and nothing else: what it does not shard is whole on every rank."""
    ranks = conducts(run)
    names = [str(group.get("desc")) for one in ranks.values() for group in items(said_by(one.event).get("groups"))]
    parts = any(name.removeprefix("mesh_") in WITHIN_A_MODEL for name in names)
    units = all(natural(one.raw.get("sharded_units")) and one.sharded for one in ranks.values())
    return len(ranks) > 1 and units and not parts and not _in_stages(run)


def _held_alike(ranks: Mapping[int, Conduct]) -> bool:
    """Tensors of the same shapes that are the same, or get the same gradients: parts of one model do neither."""
    first = [look for one in ranks.values() if (look := one.looks.get((0, 1)))]
    if len(first) < len(ranks) or len({look.shapes for look in first}) > 1:
        return False
    return len({look.parameters for look in first}) == 1 or len({look.gradients for look in first}) == 1


def fed_unlike(ranks: Mapping[int, Conduct]) -> bool:
    """As far as all were seen: one may be a batch ahead."""
    fed = [one.first_batches for one in ranks.values()]
    count = min(map(len, fed), default=0)
    return len({one[:count] for one in fed}) > 1


def _in_stages(run: Run) -> bool:
    """Ranks that hand activations to each other are stages of one model."""
    return any(call.op in _BETWEEN_STAGES for calls in boxes.calls_of(run).values() for call in calls)


def finding(
    rule: Rule,
    ranks: Mapping[int, Conduct],
    who: Sequence[int],
    fields: Mapping[str, str],
    shows: Callable[[Conduct], str] = lambda one: "",
) -> Finding:
    """With what those showed whom it names, or the first ranks where it is true of all."""
    at = f" ({fields['place']})" if fields.get("place") else ""
    chosen = [(rank, ranks[rank]) for rank in (who or sorted(ranks))[:3]]
    events = [
        replace(one.event, text=f"rank {rank}, {one.steps} steps: {text}") if (text := shows(one)) else one.event
        for rank, one in chosen
    ]
    return on_events(rule, events, who if len(who) < len(ranks) else (), {**fields, "at": at})


def items(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in as_list(value) if isinstance(one, Mapping)]


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def as_dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def natural(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def numbers(value: Any) -> tuple[int, ...]:
    return tuple(one for one in as_list(value) if isinstance(one, int))


def _optional(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def floats(value: Any) -> tuple[float, ...]:
    return tuple(float(x) for x in as_list(value) if isinstance(x, (int, float)) and not isinstance(x, bool))


def dealt_out(ranks: Mapping[int, Conduct]) -> bool:
    """Each rank's optimizer holds parameters of its own, as where optimizers are sharded by hand."""
    return len({tuple(sorted({look.shapes for look in one.looks.values()})) for one in ranks.values()}) > 1


def ran_out_of_data(ranks: Mapping[int, Conduct]) -> bool:
    """Some made fewer passes than others, as `Join` allows: the same number is then not the same step. Where all went
    forward as often, those that stepped less often chose to."""
    steps = [one.steps for one in ranks.values()]
    passes = {sum(model.forwards for model in one.models) for one in ranks.values()}
    wrapped = any(one.models for one in ranks.values())
    return bool(steps) and max(steps) - min(steps) > 1 and (len(passes) > 1 or not wrapped)
