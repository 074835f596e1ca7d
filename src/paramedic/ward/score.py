"""How good the diagnosis is: what it says of every recording against the truth, beside what people do without it."""

from __future__ import annotations

import shlex
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from paramedic.collect.beside import read_beside
from paramedic.knowledge import Knowledge, load
from paramedic.knowledge.priors import load_priors
from paramedic.knowledge.taxonomy import load_taxonomy
from paramedic.model import Run
from paramedic.pipeline import Options, compile_prefilter, examine, read
from paramedic.prefilter import Prefilter
from paramedic.ward.alter import ALTERATIONS, altered
from paramedic.ward.baselines import BASELINES, Answer
from paramedic.ward.case import Case
from paramedic.ward.corpus import Recording, recordings
from paramedic.ward.lab import furnish
from paramedic.ward.systems import RULES_OF, SYSTEMS

_LAUNCHERS = ("torchrun", "deepspeed", "accelerate", "colossalai", "mpirun", "horovodrun")
_ENDS = {"failure": "fails", "hang": "hangs", "success": "ends well, or goes on", "": "documented form"}
BINS = 10
NO_VERDICT = "no verdict"


@dataclass(frozen=True, slots=True)
class Scored:
    recording: Recording
    answer: Answer

    @property
    def abstained(self) -> bool:
        return self.answer.symptom is None

    @property
    def symptom(self) -> bool:
        truth = self.recording.truth
        return truth is not None and self.answer.symptom in (truth.symptom, *truth.also)

    @property
    def stage(self) -> bool:
        truth = self.recording.truth
        if truth is None or self.answer.symptom is None:
            return False
        return _stage(self.answer.symptom) in {_stage(symptom) for symptom in (truth.symptom, *truth.also)}

    def cause(self, among: int) -> bool:
        truth = self.recording.truth
        return truth is not None and truth.cause in (self.answer.causes or ())[:among]

    @property
    def fix(self) -> bool:
        return self.recording.truth is not None and self.answer.fix == self.recording.truth.fix

    @property
    def ranks(self) -> bool:
        truth = self.recording.truth
        return truth is not None and self.answer.ranks is not None and set(self.answer.ranks) == set(truth.ranks)

    @property
    def false_blame(self) -> bool:
        """A rank is named that did not fail first, or one where all failed alike."""
        truth = self.recording.truth
        return truth is not None and bool(set(self.answer.ranks or ()) - set(truth.ranks))


@dataclass(frozen=True, slots=True)
class Figures:
    """Counts over n recordings; what nobody speaks of is None."""

    n: int
    stage: int
    symptom: int
    cause_1: int | None
    cause_3: int | None
    fix: int | None
    ranks: int
    false_blame: int
    abstained: int


def figures(scored: Sequence[Scored]) -> Figures:
    speaks = any(one.answer.causes is not None for one in scored)
    return Figures(
        n=len(scored),
        stage=sum(one.stage for one in scored),
        symptom=sum(one.symptom for one in scored),
        cause_1=sum(one.cause(1) for one in scored) if speaks else None,
        cause_3=sum(one.cause(3) for one in scored) if speaks else None,
        fix=sum(one.fix for one in scored) if speaks else None,
        ranks=sum(one.ranks for one in scored),
        false_blame=sum(one.false_blame for one in scored),
        abstained=sum(one.abstained for one in scored),
    )


@dataclass(frozen=True, slots=True)
class Bin:
    low: float
    n: int
    said: float
    """The mean confidence in the bin."""
    right: float
    """The share whose symptom was right."""


@dataclass(frozen=True, slots=True)
class Score:
    split: str
    given: str
    """The job's log; or `program`: its program and command, too; or `watched`: also what `paramedic run` saw."""
    canonical: Figures
    every: Figures
    """All real recordings, every layout and size."""
    altered: dict[str, Figures]
    unaltered_partners: dict[str, Figures]
    """For each alteration, the same recordings before it."""
    baselines: dict[str, Figures]
    by_system: dict[str, Figures]
    by_stage: dict[str, Figures]
    by_end: dict[str, Figures]
    weighted: dict[str, float]
    """Shares, were each symptom as frequent as in study 1."""
    by_layout: dict[str, Figures]
    without_own_rules: dict[str, tuple[Figures, Figures]]
    """Leave one system out: with all rules, and without those that only it has."""
    confusion: dict[tuple[str, str], int]
    calibration: tuple[Bin, ...]
    ece: float | None
    false_alarms: tuple[int, int]
    """Verdicts on cured runs, and how many cured runs there are."""
    alarmed: tuple[str, ...]
    seconds: tuple[float, float]
    """Median and longest time of one diagnosis."""
    rows: tuple[Scored, ...]


def ours(recording: Recording, without: frozenset[str] = frozenset(), program: bool = False) -> Answer:
    """Our answer; `without` some rules, as if nobody had written them; with the job's program and command, or not."""
    knowledge, prefilter = _known(without)
    beside = _beside(recording) if program else None
    began = time.perf_counter()
    verdict = examine(read([str(recording.input)], prefilter), knowledge, prefilter, Options(), beside).verdict
    seconds = time.perf_counter() - began
    if verdict is None:
        return Answer(None, None, (), None, None, "", seconds)
    return Answer(
        str(verdict.symptom), verdict.ranks, tuple(cause.id for cause in verdict.causes),
        verdict.fixes[0].pattern if verdict.fixes else None, verdict.confidence, verdict.rule, seconds,
    )  # fmt: skip


def _beside(recording: Recording) -> Run | None:
    """What a user has beside the log: the job's files as they were, and the command; nothing of a synthetic case."""
    if recording.case.synthetic:
        return None
    with tempfile.TemporaryDirectory() as folder:
        furnish(recording.case, recording.case.job(fixed=recording.truth is None), Path(folder))
        return read_beside([folder], _command(str(recording.made["how"])), folder)


def _command(how: str) -> list[str]:
    """As somebody would type it: without `python` before a launcher that is a program itself."""
    words = shlex.split(how)
    at = next((number for number, word in enumerate(words) if "=" not in word), 0)
    if words[at : at + 1] == ["python"] and words[at + 1 : at + 2] and words[at + 1] in _LAUNCHERS:
        del words[at]
    return words


@cache
def _known(without: frozenset[str]) -> tuple[Knowledge, Prefilter]:
    knowledge = load()
    rules = {id: rule for id, rule in knowledge.rules.items() if id not in without}
    knowledge = replace(knowledge, rules=rules)
    return knowledge, compile_prefilter(knowledge)


Progress = Callable[[int, int], None]


def score(
    cases: list[Case], folder: Path, split: str, progress: Progress = lambda done, of: None, given: str = "log"
) -> Score:
    program, watched = given != "log", given == "watched"
    chosen = [case for case in cases if split == "all" or case.held_back == (split == "held-back")]
    found = recordings(chosen, folder, watched)
    failed = [recording for recording in found if recording.truth is not None]
    cured = [recording for recording in found if recording.truth is None]
    with tempfile.TemporaryDirectory() as scratch:
        made = [altered(recording, how, Path(scratch)) for how in ALTERATIONS for recording in failed if not watched]
        changed = [recording for recording in made if recording is not None]
        total = len(failed) + len(changed) + len(cured)
        done = 0

        def answered(recording: Recording) -> Scored:
            nonlocal done
            done += 1
            progress(done, total)
            return Scored(recording, ours(recording, program=program))

        real = [answered(recording) for recording in failed]
        harder = [answered(recording) for recording in changed]
        alarms = [answered(recording) for recording in cured]
    first = [one for one in real if one.recording.canonical]
    alterations = () if watched else ALTERATIONS
    return Score(
        split=split,
        given=given,
        canonical=figures(first),
        every=figures(real),
        altered={how: figures([one for one in harder if one.recording.altered == how]) for how in alterations},
        unaltered_partners={how: figures(_partners(real, harder, how)) for how in alterations},
        baselines={
            name: figures([Scored(one.recording, guess(one.recording)) for one in first])
            for name, guess in BASELINES.items()
        },
        by_system=_by(first, lambda one: one.recording.case.system, SYSTEMS),
        by_stage=_by(first, lambda one: one.recording.case.stage, load_taxonomy().stages),
        by_end=_by(first, lambda one: _end(one.recording.case), _ENDS.values()),
        weighted=_weighted(first),
        by_layout=_by(real, lambda one: str(one.recording.made.get("layout", "-")), None),
        without_own_rules=_left_out(first, program),
        confusion=dict(Counter((_true(one), one.answer.symptom or NO_VERDICT) for one in first)),
        calibration=calibration(real),
        ece=expected_calibration_error(real),
        false_alarms=(sum(not one.abstained for one in alarms), len(alarms)),
        alarmed=tuple(f"{one.recording.name}: {one.answer.rule}" for one in alarms if not one.abstained),
        seconds=_times([one.answer.seconds for one in real]),
        rows=tuple(real),
    )


def _times(seconds: list[float]) -> tuple[float, float]:
    return (statistics.median(seconds), max(seconds)) if seconds else (0.0, 0.0)


def _true(one: Scored) -> str:
    """The truth, or the other symptom that it allows and that was said."""
    assert one.recording.truth is not None
    return one.answer.symptom if one.symptom and one.answer.symptom else one.recording.truth.symptom


def _partners(real: list[Scored], harder: list[Scored], how: str) -> list[Scored]:
    wanted = {(one.recording.case.id, one.recording.variant) for one in harder if one.recording.altered == how}
    return [one for one in real if (one.recording.case.id, one.recording.variant) in wanted]


def _by(scored: list[Scored], key: Callable[[Scored], str], order: Iterable[str] | None) -> dict[str, Figures]:
    groups: dict[str, list[Scored]] = {}
    for one in scored:
        groups.setdefault(key(one), []).append(one)
    return {name: figures(groups[name]) for name in (order or sorted(groups)) if name in groups}


def _end(case: Case) -> str:
    return _ENDS["" if case.synthetic else case.expect.exit]


def _weighted(scored: list[Scored]) -> dict[str, float]:
    """Over the symptoms that both the study and these cases have."""
    faults = load_priors().faults
    groups = _by(scored, lambda one: str(one.recording.case.truth.symptom), faults)
    of = sum(faults[symptom] for symptom in groups)
    names = ("symptom", "cause_1", "cause_3", "ranks") if of else ()
    return {
        name: sum(faults[symptom] * (getattr(one, name) or 0) / one.n for symptom, one in groups.items()) / of
        for name in names
    }


def _left_out(scored: list[Scored], program: bool) -> dict[str, tuple[Figures, Figures]]:
    """How far the rules that others need too carry on a system that nobody wrote rules for."""
    results = {}
    rules = load().rules.values()
    for system in SYSTEMS:
        own = frozenset(r.id for r in rules if r.systems and set(r.systems) <= set(RULES_OF.get(system, ())))
        mine = [one for one in scored if one.recording.case.system == system]
        if mine and own:
            again = [Scored(one.recording, ours(one.recording, own, program)) for one in mine]
            results[system] = (figures(mine), figures(again))
    return results


def calibration(scored: Sequence[Scored]) -> tuple[Bin, ...]:
    bins: list[list[Scored]] = [[] for _ in range(BINS)]
    for one in scored:
        if one.answer.confidence is not None:
            bins[min(int(one.answer.confidence * BINS), BINS - 1)].append(one)
    return tuple(
        Bin(
            index / BINS,
            len(inside),
            statistics.fmean(one.answer.confidence or 0.0 for one in inside),
            statistics.fmean(one.symptom for one in inside),
        )
        for index, inside in enumerate(bins)
        if inside
    )


def expected_calibration_error(scored: Sequence[Scored]) -> float | None:
    """The mean gap between how sure a verdict was and how often such verdicts were right."""
    bins = calibration(scored)
    n = sum(one.n for one in bins)
    return sum(one.n * abs(one.said - one.right) for one in bins) / n if n else None


def _stage(symptom: str) -> str:
    return load_taxonomy().symptom(symptom).stage


def document(score: Score) -> dict[str, Any]:
    """The score as JSON."""
    return {
        "schema_version": 1,
        "split": score.split,
        "given": score.given,
        "canonical": asdict(score.canonical),
        "every": asdict(score.every),
        "altered": {
            how: {"before": asdict(score.unaltered_partners[how]), "after": asdict(done)}
            for how, done in score.altered.items()
        },
        "baselines": {name: asdict(done) for name, done in score.baselines.items()},
        "by_system": {name: asdict(done) for name, done in score.by_system.items()},
        "by_stage": {name: asdict(done) for name, done in score.by_stage.items()},
        "by_end": {name: asdict(done) for name, done in score.by_end.items()},
        "weighted": score.weighted,
        "by_layout": {name: asdict(done) for name, done in score.by_layout.items()},
        "without_own_rules": {
            name: {"with": asdict(before), "without": asdict(after)}
            for name, (before, after) in score.without_own_rules.items()
        },
        "confusion": [{"true": true, "said": said, "n": n} for (true, said), n in sorted(score.confusion.items())],
        "calibration": {"ece": score.ece, "bins": [asdict(one) for one in score.calibration]},
        "false_alarms": {"n": score.false_alarms[0], "of": score.false_alarms[1], "on": list(score.alarmed)},
        "seconds": {"median": score.seconds[0], "longest": score.seconds[1]},
        "recordings": [_row(one) for one in score.rows],
    }


def _row(one: Scored) -> dict[str, Any]:
    truth = one.recording.truth
    assert truth is not None
    said = one.answer
    return {
        "case": one.recording.case.id, "variant": one.recording.variant, "system": one.recording.case.system,
        "synthetic": one.recording.case.synthetic, "held_back": one.recording.case.held_back,
        "truth": {"symptom": truth.symptom, "also": list(truth.also), "cause": truth.cause, "ranks": list(truth.ranks),
                  "fix": truth.fix},
        "said": None if said.symptom is None else {
            "rule": said.rule, "symptom": said.symptom, "cause": (said.causes or (None,))[0],
            "ranks": list(said.ranks or ()), "fix": said.fix, "confidence": said.confidence,
        },
        "right": {"stage": one.stage, "symptom": one.symptom, "cause_1": one.cause(1), "cause_3": one.cause(3),
                  "fix": one.fix, "ranks": one.ranks, "false_blame": one.false_blame},
    }  # fmt: skip
