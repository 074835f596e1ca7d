"""DeepSpeed's ZeRO, put over the trace of a bare half-precision step: what its engine keeps, buffers and frees.

The buffers are those that DeepSpeed documents (zero/stage_1_and_2.py, zero/stage3.py) with default settings; what lives
how long was seen in the real engine, 0.19.8 on CPU (bench/memory/deepspeed_check.py). Elements, as it counts them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from paramedic.memory.allocator import FREED, Event
from paramedic.memory.events import Moment, Trace
from paramedic.memory.measure import owners_of
from paramedic.memory.request import Request

MOMENTS = {"adamw-8bit": 2, "sgd": 0, "sgd-momentum": 4, "adafactor": 0, "none": 0}
"""Bytes an element of the optimizer's own states; Adam's are two fp32 numbers."""


@dataclass(frozen=True, slots=True)
class Buffers:
    reduce_bucket: int = 500_000_000
    allgather_bucket: int = 500_000_000
    overlap: bool = True
    prefetch: int = 50_000_000
    max_live: int = 1_000_000_000


def over(trace: Trace, request: Request, sizes: list[int], buffers: Buffers = Buffers()) -> Trace:
    """The same step under the engine, for a model whose parameters have `sizes` elements."""
    engine = _Engine(request, sum(sizes), max(sizes), buffers)
    return _Rewriting(trace, engine).run()


def buffered(request: Request, parameters: int) -> dict[str, int]:
    """Bytes of the buffers that have a greatest size, by phase: they do not grow with the model for ever."""
    if not request.strategy.startswith("zero"):
        return {}
    engine = _Engine(request, parameters, 0, Buffers())
    always = engine.bucket if engine.stage == 3 else 0
    forward = always + engine.gathered()
    backward = forward + sum(size for _, _, size in engine.in_backward())
    return {"forward": forward, "backward": backward, "optimizer": always, "zero_grad": always, "end": always}


@dataclass(frozen=True, slots=True)
class _Engine:
    request: Request
    parameters: int
    largest: int
    buffers: Buffers

    @property
    def stage(self) -> int:
        return int(self.request.strategy[-1])

    @property
    def share(self) -> int:
        return -(-self.parameters // self.request.dp)

    @property
    def bucket(self) -> int:
        return 2 * min(max(self.buffers.reduce_bucket, self.largest), self.parameters)

    def kept(self) -> Iterator[tuple[str, str, int]]:
        """(kind, name, bytes) of what lives as long as the engine."""
        offload = self.request.offload
        if self.stage == 3 and offload != "parameters":
            yield "parameters", "partition of parameters", 2 * self.share
        if offload == "none":
            yield "optimizer", "fp32 partition", 4 * self.share
            moments = MOMENTS.get(self.request.optimizer, 8) * self.share
            if moments:
                yield "optimizer", "moments of the partition", moments
        if self.stage == 3:
            yield "communication", "reduce bucket", self.bucket
            if offload == "none":
                yield "gradients", "partition of gradients", 2 * self.share

    def in_backward(self) -> Iterator[tuple[str, str, int]]:
        """Stages 1 and 2 make their buckets for each backward pass, two when communication overlaps."""
        if self.stage < 3:
            for _ in range(2 if self.buffers.overlap else 1):
                yield "communication", "reduce bucket", self.bucket

    def gathered(self) -> int:
        """Stage 3: parameters stay whole until `stage3_max_live_parameters` are, and the next ones are under way."""
        if self.stage < 3:
            return 0
        return 2 * min(self.parameters, self.buffers.max_live + self.buffers.prefetch)

    def in_step(self) -> Iterator[tuple[str, str, int]]:
        """The partition's gradients in fp32, then the all-gather; the optimizer itself works in place."""
        if self.request.offload == "none":
            yield "temporaries", "fp32 gradients of the partition", 4 * self.share
        if self.stage < 3:
            yield "communication", "all-gather bucket", 2 * min(self.buffers.allgather_bucket, self.share)


class _Rewriting:
    def __init__(self, trace: Trace, engine: _Engine) -> None:
        self.trace, self.engine = trace, engine
        self.owners = owners_of(trace)
        self.events: list[Event] = []
        self.moments, self.kinds = list(trace.moments), dict(trace.kinds)
        self.serial = max((event[0] for event in trace.events), default=0)
        self.whole: list[Event] = []
        """Gathered parameters and buckets, until the backward pass ends."""
        self.shares: list[Event] = []
        """What this rank keeps of gradients, until its step."""
        self.due: int | None = None

    def run(self) -> Trace:
        phases: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for index, step, phase in self.trace.phases:
            phases[index].append((step, phase))
        steps: list[int] = []
        moved: list[tuple[int, int, str]] = []
        for index in range(len(self.trace.events) + 1):
            for step, phase in phases.get(index, ()):
                if phase == "forward" and len(steps) < step:
                    self._begin(first=not steps)
                    steps.append(len(self.events))
                begins = len(self.events)
                self._enter(step, phase)
                moved.append((len(self.events) if phase == "optimizer" else begins, step, phase))
                if phase == "optimizer":
                    self._step(step)
            if index < len(self.trace.events):
                self._copy(self.trace.events[index])
        return replace(
            self.trace,
            events=self.events,
            steps=[*steps, len(self.events)],
            phases=moved,
            moments=self.moments,
            kinds=self.kinds,
            lines={},
        )

    def _copy(self, event: Event) -> None:
        """Stage 3 has no whole parameters; from stage 2 on a gradient is gone as soon as it is in the bucket."""
        owner = self.owners.get(event[0])
        if owner == "parameters" and self.engine.stage == 3:
            return
        if event[1] == FREED and owner == "gradients":
            return
        if event[1] != FREED:
            self._collect()
        self.events.append(event)
        if owner == "gradients":
            self._arrived(event)

    def _arrived(self, event: Event) -> None:
        if self.engine.stage == 1:
            self.whole.append(event)
        else:
            self.due = event[0]
        if self.engine.stage == 2 and self.engine.request.offload == "none":
            self.shares.append(self._share(event[1]))

    def _share(self, size: int) -> Event:
        return self._block("gradients", "partition of gradients", -(-size // self.engine.request.dp), 0, "backward")

    def _collect(self) -> None:
        if self.due is not None:
            self.events.append((self.due, FREED, 0, 0))
            self.due = None

    def _begin(self, first: bool) -> None:
        if first:
            for kind, name, size in self.engine.kept():
                self._block(kind, name, size, 0, "build")

    def _enter(self, step: int, phase: str) -> None:
        size = self.engine.gathered()
        if phase == "forward" and size:
            self.whole.append(self._block("communication", "gathered parameters", size, step, phase))
        if phase == "backward":
            self.whole += [self._block(*one, step, phase) for one in self.engine.in_backward()]
        if phase == "optimizer":
            self._collect()
            if self.engine.stage == 1 and self.engine.request.offload == "none":
                self.shares.append(self._share(2 * self.engine.parameters))
            self._free(self.whole)

    def _free(self, blocks: list[Event]) -> None:
        self.events += [(key, FREED, 0, 0) for key, *_ in blocks]
        blocks.clear()

    def _step(self, step: int) -> None:
        for kind, name, size in self.engine.in_step():
            self._free([self._block(kind, name, size, step, "optimizer")])
        self._free(self.shares)

    def _block(self, kind: str, name: str, size: int, step: int, phase: str) -> Event:
        self.serial += 1
        self.moments.append(Moment(step, phase, "", name))
        self.kinds[self.serial] = kind
        event = (self.serial, size, 0, len(self.moments) - 1)
        self.events.append(event)
        return event
