"""The arithmetic of loaders: samples, batch, ranks and the steps of an epoch determine each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from paramedic.detect.series import LAST, Series, every, numbered
from paramedic.model import Event, Run
from paramedic.regex import regex

_STATED = (
    "samples", "device_batch", "whole_batch", "accumulated", "epoch_steps", "epoch_place", "total_steps", "epochs",
    "world", "throughput", "step_time",
)  # fmt: skip
_NEAR, _FEW, _ROUND = 0.1, 3, 50
_OF_SAMPLES = regex(r"\b(?:images?|imgs?|samples?|examples?|seqs?|sequences?)(?: ?/ ?s| per s)", re.I)
_SHARES = ("share", "range_start", "reads")
"""Where ranks say which part is theirs, the samples that they count may be those of their part."""
_MOST_ALONE = 8
"""Logs of one rank that go through as many steps: more of them say the same."""


@dataclass(frozen=True, slots=True)
class Loader:
    """What one log says of the data that its ranks go through; nought where it does not."""

    stated: Mapping[str, Sequence[Series]]
    world: float

    @property
    def samples(self) -> float:
        """Of the whole set. What several ranks say, each for itself, may be its own part."""
        return self._only("samples") if len(self.stated.get("samples", ())) == 1 else 0.0

    @property
    def batch(self) -> float:
        """Of one rank."""
        whole = self._only("whole_batch") / self.world if self.world else 0.0
        return self._only("device_batch") or whole

    @property
    def steps(self) -> float:
        """Of an epoch: as it is said, by those of all epochs, or as each place in it names them."""
        total, epochs = self._only("total_steps"), self._only("epochs")
        place = self._only("epoch_place") if self._counts_batches() else 0.0
        return self._only("epoch_steps") or place or (total / epochs if epochs else 0.0)

    def _counts_batches(self) -> bool:
        """Some programs give the place in an epoch in samples."""
        if self.samples:
            return self._only("epoch_place") < self.samples
        places = [step for one in self.stated.get("epoch_place", ()) for step, _ in numbered(one)]
        return self.batch > 1 and any(step % self.batch for step in places)

    @property
    def once(self) -> bool:
        """Each batch is a step, and no rank has a part of what another has the rest of."""
        return max(self._said("accumulated"), default=1.0) <= 1 and not any(
            one.split for series in self.stated.values() for one in series
        )

    @property
    def taken(self) -> float:
        """Samples of a step, by how many there are in a second and how long it takes."""
        rates, times = (
            [value for one in self.stated.get(name, ()) if one.rank is None for value in one.finite]
            for name in ("throughput", "step_time")
        )
        lines = self._lines("throughput")
        known = min(len(rates), len(times)) >= _FEW and all(_OF_SAMPLES.search(line.text) for line in lines)
        return median(rates) * median(times) if known else 0.0

    def shown(self, *names: str) -> list[Event]:
        return [event for name in names for event in self._lines(name)]

    def _lines(self, name: str) -> list[Event]:
        return self.stated[name][0].shown(LAST) if self.stated.get(name) else []

    def _said(self, name: str) -> set[float]:
        return {value for one in self.stated.get(name, ()) for value in one.said}

    def _only(self, name: str) -> float:
        """Where all lines agree: several numbers are several data sets, or stages."""
        said = self._said(name)
        return next(iter(said)) if len(said) == 1 else 0.0


def each_reads_all(run: Run) -> Iterator[tuple[list[Event], str]]:
    """Each of several ranks goes through all samples in an epoch."""
    logs = [] if every(run, *_SHARES) else _by_log(run)
    alone: dict[float, list[Loader]] = {}
    for one in logs:
        if one.world == 1 and one.once and len(same := alone.setdefault(one.steps, [])) < _MOST_ALONE:
            same.append(one)
    for one in logs:
        if one.world >= 2 and one.once and one.steps >= 2:
            yield from (*_by_batch(one), *_by_rate(one), *_beside_one_rank(one, alone.get(one.steps, ())))


def _by_batch(one: Loader) -> Iterator[tuple[list[Event], str]]:
    """Steps × a rank's batch are all samples already."""
    batch, steps, samples, world = one.batch, one.steps, one.samples, one.world
    if batch > 1 and abs(steps * batch - samples) < batch and batch * world < samples:
        shown = one.shown("samples", "device_batch", "epoch_steps", "world")
        yield shown, f"{steps:.0f} steps of {batch:.0f} samples are all {samples:.0f}, on each of {world:.0f} ranks"


def _by_rate(one: Loader) -> Iterator[tuple[list[Event], str]]:
    """Samples in a second × seconds of a step × steps are as many times all samples as there are ranks."""
    times = one.taken * one.steps / one.samples if one.steps < one.samples else 0.0
    if abs(times / one.world - 1) < _NEAR:
        shown = one.shown("samples", "throughput", "step_time", "world")
        yield (
            shown,
            f"by its rate an epoch takes {times:.1f} times all {one.samples:.0f} samples on {one.world:.0f} ranks",
        )


def _beside_one_rank(one: Loader, logs: Sequence[Loader]) -> Iterator[tuple[list[Event], str]]:
    """An epoch of the same set has as many steps as with one rank, and each step has as many times the samples."""
    for alone in logs:
        if not one.steps % _ROUND or (one.samples and alone.samples and one.samples != alone.samples):
            continue
        both = bool(one.batch and alone.batch)
        more = one.taken / alone.taken if alone.taken else 0.0
        if one.batch == alone.batch if both else abs(more / one.world - 1) < _NEAR:
            shown = [*one.shown("epoch_steps", "epoch_place", "world"), *alone.shown("epoch_steps", "epoch_place")]
            yield shown, f"an epoch has {one.steps:.0f} steps with one rank and as many with {one.world:.0f}"


def _by_log(run: Run) -> list[Loader]:
    """What each log says. How many ranks there are may stand in another one, where all agree."""
    found = {name: [one for one in every(run, name) if one.name == name] for name in _STATED}
    worlds = {value for one in found["world"] for value in one.said}
    logs = []
    by_source: dict[str, dict[str, list[Series]]] = {}
    for name in _STATED:
        for one in found[name]:
            by_source.setdefault(one.event.source, {stated: [] for stated in _STATED})[name].append(one)
    for own in by_source.values():
        world = {value for one in own["world"] for value in one.said} or worlds
        logs.append(Loader(own, max(world) if len(world) == 1 else 0.0))
    return logs
