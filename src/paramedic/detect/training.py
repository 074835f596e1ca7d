"""Whether it learns: loss, score and learning rate over the steps."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, permutations
from statistics import median

from paramedic.detect.match import on_events
from paramedic.detect.numerics import with_rate
from paramedic.detect.series import (
    FIRST,
    LARGEST,
    LAST,
    Series,
    common_steps,
    every,
    kendall,
    names,
    numbered,
    parts,
    precise,
)
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run
from paramedic.regex import regex

_BLOWN_UP, _RISEN, _LEAST = 10.0, 3.0, 0.01
"""Times the very first value, or times the largest of the first ones; below the least a loss is as good as none."""
_STAYS, _STILL, _WILD = 0.1, 0.5, 30.0
_POINTS = 8
_EPOCHS = 6
_FLAT_POINTS = 40
_FLAT = 0.005
_LEARNED = 0.9


LOSSES = ("loss", "summary_loss")
_HALF, _CURVE = 3, 5
"""The fewest points that show a level, and a curve."""


def blow_up(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A loss that rose to many times its first value, and neither came back nor is on its way back."""
    if any(one.symptom == "checkpoint-resume-failure" for one in found):
        return
    losses = [one.since_start for one in every(run, *LOSSES)]
    blown = [one for one in losses if _blows_up(one.finite)]
    if blown and 2 * len(blown) >= len([one for one in losses if len(one.finite) >= _POINTS]):
        first, last = blown[0].finite[0], parts(blown[0].finite, 4)[-1]
        events = [event for one in blown[:2] for event in one.shown(FIRST, LARGEST, LAST)]
        yield with_rate(run, on_events(rule, events, (), {"first": f"{first:.4g}", "last": f"{last:.4g}"}))


def _blows_up(values: Sequence[float]) -> bool:
    if len(values) < _POINTS or min(values) < 0:
        return False
    end = parts(values, 4)[-1]
    early = max(values[: max(3, len(values) // 10)])
    risen = end >= _BLOWN_UP * max(values[0], _LEAST) or end >= _RISEN * max(early, _LEAST)
    third, last = parts(values, 4)[2:]
    back = kendall(values[len(values) // 2 :]) < -0.5 and last < _STILL * third
    wild = sum(value >= _WILD * max(values[0], 0.1) for value in values) >= 3
    stays = risen and (wild or end >= _STAYS * max(values))
    return not back and (stays or (wild and end >= _STILL * values[0]))


def never_changes(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A score that is the same to the last digit after every epoch, the first one included; of NaN it always is."""
    if any(one.symptom == "numerical-instability" for one in found):
        return
    for one in every(run, "score accuracy", "score acc", "eval_loss"):
        values = one.finite
        stands = len(values) >= _EPOCHS and len(set(values)) == 1 and values[0] > 0 and _unlearned(one, values[0])
        if stands and not _carried(run, one) and not _shown_again(run, one):
            fields = {"value": f"{values[0]:g}", "epochs": str(len(values))}
            yield with_rate(run, on_events(rule, one.shown(FIRST, LAST), (), fields))
            return


def never_moves(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """What a model is judged by is the same to the last digit each time, while training learns and others move.

    A share of few samples may well be the same a few times."""
    moving = [one for one in every(run, "score", "said", "loss", "eval_loss") if len(set(one.said)) >= _CURVE]
    for one in every(run, "ema score", "score", "said", "eval_loss"):
        values = one.said
        judged = one.name.startswith(("ema", "score", "eval")) or (
            _JUDGED.search(one.name) and not _COUNTS.search(one.name)
        )
        nothing = len(values) >= 4 * _CURVE and not any(values) and _PENALTY.search(one.name)
        digits = 4 if one.name.startswith("ema") or "ema" in one.name.split() or len(values) >= 2 * _CURVE else 6
        stands = judged and len(values) >= _CURVE and len(set(values)) == 1 and precise(values[0], digits)
        if (stands and values[0] > 0) or nothing:
            others = [other for other in moving if other.event.source == one.event.source]
            if nothing:  # a policy that gets no gradient at all stays what it was
                others = [other for other in others if other.name in LOSSES]
            if others and values[0] not in (1.0, 100.0):
                what = one.name.removeprefix("said ").removeprefix("score ")
                fields = {"what": what, "value": f"{values[0]:g}", "times": str(len(values))}
                yield on_events(rule, [*one.shown(FIRST, LAST), *others[0].shown(LAST)], (), fields)
                return


_PENALTY = regex(r"\bkl\b")
"""How far a policy has moved from its reference: nothing, step after step, only if both are one."""
_COUNTS = regex(
    r"\b(?:n?(?:sentences|tokens|samples|words|examples|batches|items|images|frames|steps|epochs)"
    r"|wpb|bsz|bs|size|num|count|total|length|len|decay|momentum|lr|every|interval|freq|seed|weight|scale"
    r"|(?:learning|sampl\w{1,3}|frame|decay|drop(?:out)?) rate)\b"
)
"""How many there were, or a setting: it may well be the same each time."""
_JUDGED = regex(r"\b(?:ema|val|valid|validation|eval|test|dev|reward|score)\b")


_OFTEN = 4


def _carried(run: Run, one: Series) -> bool:
    """The last evaluation's, said again with every training step."""
    beside = [other for other in every(run, *LOSSES) if other.event.source == one.event.source]
    return all("step" in step for step in one.steps) and any(
        set(one.steps) <= set(other.steps) and _OFTEN * one.count >= other.count for other in beside
    )


def _shown_again(run: Run, one: Series) -> bool:
    """Each loss beside it stands, too: a bar is drawn anew with what was known before, and nothing was measured."""
    beside = [other for other in every(run, *LOSSES) if other.event.source == one.event.source]
    same = [other.finite for other in beside if set(other.steps) & set(one.steps)]
    return any(len(values) >= _EPOCHS for values in same) and all(len(set(values)) == 1 for values in same)


def _unlearned(one: Series, value: float) -> bool:
    """An accuracy near 1, or a loss near 0, may well stay."""
    return value < _LEARNED if one.name.startswith("score") else value > 1 - _LEARNED


def flat(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A loss without trend or gain: only a hint, unless the score is that of guessing or the learning rate is zero."""
    for one in every(run, *LOSSES):
        values = one.finite
        if len(values) < _FEW_POINTS or min(values) <= 1e-2:
            continue
        why = [*_by_guessing(run, one, values), *_without_rate(run, one, values)]
        if why:
            yield replace(with_rate(run, on_events(rule, why, ())), severity="error", confidence=_SURE)
            return
        first, _, last = parts(values, 3)
        if len(values) >= _FLAT_POINTS and last >= (1 - _FLAT) * first and abs(kendall(values)) < 0.1:
            yield replace(with_rate(run, on_events(rule, one.shown(FIRST, LAST), ())), severity="warning")
            return


_FEW_POINTS, _SURE = 24, 0.7
_NEAR, _GUESS, _UNSURE, _GAIN, _ABSURD = 1.5, 0.55, 0.6, 0.93, 100.0
ZERO_RATE = regex(
    r"(?:\blrs?|learning[_ ]rates?)['\"]?[ :=\[]{1,5}['\"]?0(?:(?:\.0)?(?![\d.e])|(?:\.0{1,12})?e[-+]?\d)", re.I
)


def _by_guessing(run: Run, one: Series, values: Sequence[float]) -> Iterator[Event]:
    """Who guesses between n classes has the loss ln n and is right once in n times: one follows from the other."""
    first, _, last = parts(values, 3)
    loss = median(values[len(values) // 3 :])
    if loss < _UNSURE or last < _GAIN * first or _warms_up(run):
        return
    for score in every(run, "score accuracy", "score acc"):
        rights = score.finite[len(score.finite) // 3 :]
        if score.event.source != one.event.source or len(rights) < _HALF or kendall(rights) >= 0.35:
            continue
        right = median(rights) / (100 if max(score.finite) > 1 else 1)
        if 0 < right <= _GUESS and loss < _ABSURD and 0.3 <= right * math.exp(loss) <= _NEAR:
            yield from (*one.shown(FIRST, LAST), *score.shown(LAST))
            return


def _warms_up(run: Run) -> bool:
    """The learning rate is still on its way up at the end."""
    rates = [one.finite for one in every(run, "lr")]
    return any(len(values) >= _POINTS and values[-1] == max(values) and kendall(values) > 0.5 for values in rates)


def _without_rate(run: Run, one: Series, values: Sequence[float]) -> Iterator[Event]:
    """The learning rate is zero from the first to the last line, and not merely rounded to it."""
    first, _, last = parts(values, 3)
    for rate in every(run, "lr"):
        zero = len(rate.finite) >= _POINTS and not any(rate.finite)
        if (
            zero
            and last >= (1 - _FLAT * 4) * first
            and all(ZERO_RATE.search(line.text) for line in rate.shown(FIRST, LAST))
        ):
            yield from rate.shown(FIRST, LAST)
            return


def no_gain(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """After several passes over all data the loss is what it was after the first one, no score has risen, and no loss
    of whole epochs has fallen."""
    if any(one.symptom == "numerical-instability" for one in found) or _warms_up(run):
        return
    if any(_sinks(one.finite) for one in every(run, "summary_loss", "eval_loss")):
        return
    losses = every(run, *LOSSES)
    rising = _with_rising_scores(run, losses)
    for one in losses:
        epochs = [] if one.event.source in rising else _by_epoch(one)
        if len(epochs) < _PASSES or not (epochs[0] > _LEAST) or any(_PLAYS.search(e.text) for e in one.shown(LAST)):
            continue
        if _stays(epochs):
            fields = {"first": f"{epochs[0]:.4g}", "last": f"{epochs[-1]:.4g}", "after": f"{len(epochs)} epochs"}
            yield with_rate(run, on_events(rule, one.shown(FIRST, LAST), (), fields))
            return
    for one in every(run, "loss"):
        values = [] if one.event.source in rising else one.finite
        if len(values) >= _CURVE and min(values) > 10 * _LEAST and _stays(values) and _schedule_done(run, one):
            fields = {"first": f"{values[0]:.4g}", "last": f"{values[-1]:.4g}", "after": "the whole schedule"}
            yield with_rate(run, on_events(rule, one.shown(FIRST, LAST), (), fields))
            return


def _stays(values: Sequence[float]) -> bool:
    """Nothing gained since the first value, and no trend downwards."""
    return min(values[1:]) > (1 - _GAINED) * values[0] and kendall(values) > -_FALLS and max(values) < 2 * values[0]


def _sinks(values: Sequence[float]) -> bool:
    return len(values) >= _PASSES and values[-1] < (1 - _GAINED) * values[0] and kendall(values) < -_FALLS


def _schedule_done(run: Run, losses: Series) -> bool:
    """The learning rate was high enough to move anything, over enough steps, and has come down again."""
    for one in every(run, "lr"):
        points = numbered(one)
        if one.rank == losses.rank and len(points) >= _CURVE and points[-1][0] - points[0][0] >= _STEPS:
            rates = [rate for _, rate in points]
            if max(rates) >= _MOVES and rates[-1] < 0.5 * max(rates):
                return True
    return False


_STEPS, _MOVES = 40, 1e-3


_PASSES, _GAINED, _FALLS = 3, 0.015, 0.4
_DIGITS = 10
_FEW = 4
_PLAYS = regex(r"\b(?:d|g|gen\w*|disc\w*|critic|actor|policy|adv\w*|reward|kl)[ _]?loss|\bgan\b", re.I)
"""Players that learn against each other, and policies, have losses that need not fall."""


def _by_epoch(one: Series) -> list[float]:
    """The median of each epoch from the first one on; few values of an epoch are too few when there are few epochs."""
    of: dict[int, list[float]] = {}
    for step, value in zip(one.steps, one.values, strict=True):
        words = step.split()
        if (
            value is not None
            and len(words) >= 2
            and words[0] == "epoch"
            and words[1].isdecimal()
            and len(words[1]) < _DIGITS
        ):
            of.setdefault(int(words[1]), []).append(value)
    if not of or min(of) > 1 or (len(of) <= _PASSES and min(map(len, of.values())) < _PASSES):
        return []
    seen = sorted(of)
    if any(2 * (then - now) > seen[-1] - seen[0] for now, then in pairwise(seen) if then - now > _FEW):
        return []  # of a long log so much was not read that what is behind it may be another run
    return [median(of[epoch]) for epoch in seen]


def _with_rising_scores(run: Run, losses: Sequence[Series]) -> set[str]:
    """Logs of these losses whose scores rise: by their own, where several runs lie side by side and each prints some;
    else by anybody's."""
    by_log: dict[str, bool] = {}
    for one in every(run, "score"):
        values = one.finite
        if len(values) >= _PASSES:
            rises = values[0] >= 0 and max(values[1:]) > 1.15 * values[0] and kendall(values) > 0.2
            by_log[one.event.source] = by_log.get(one.event.source, False) or rises
    apart = {one.event.source for one in losses if one.rank is None} & by_log.keys()
    anybody = any(by_log.values())
    return {log for log in {one.event.source for one in losses} if (by_log[log] if log in apart else anybody)}


def lost_again(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """What was learned is lost: the loss had fallen and is back where it began, or the score fell to a fraction."""
    if any(one.symptom in ("numerical-instability", "checkpoint-resume-failure") for one in found):
        return
    for one in (series.since_start for series in every(run, *LOSSES)):
        values = one.finite
        if len(values) < _POINTS or min(values) <= 0 or any(_PLAYS.search(e.text) for e in one.shown(LAST)):
            continue
        begun, *_, end = quarters = parts(values, 4)
        best, start = min(quarters), max(values[0], begun)
        stays = min(values[-max(_HALF, len(values) // 6) :]) > 1.5 * best  # and is not thrown up for a moment
        if stays and best < _WELL * start and end > _BACK * best and end > 0.8 * start and end > 10 * _LEAST:
            events = one.shown(FIRST, LARGEST, LAST)
            what = f"the loss had fallen from {start:.4g} to {best:.4g} and is {end:.4g} at the end"
            yield with_rate(run, on_events(rule, events, (), {"what": what}))
            return
    for one in every(run, "score accuracy", "score acc"):
        values = one.finite
        best = max(values, default=0.0)
        after = values[values.index(best) + 1 :] if values else []
        if len(after) >= 2 and best / (100 if best > 1 else 1) > 2 * _LOWEST and max(after) < _FRACTION * best:
            what = f"the score was {best:.4g} and has not come above {max(after):.4g} since"
            yield with_rate(run, on_events(rule, one.shown(LARGEST, LAST), (), {"what": what}))
            return


_WELL, _BACK, _FRACTION, _LOWEST = 0.75, 2.0, 0.5, 0.15


def guesses(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The loss falls as it should, and whoever ranks the samples by the model's output could as well throw a coin."""
    learned = [one for one in every(run, *LOSSES) if learns(one.finite)]
    for one in every(run, "score auc", "score auroc", "score roc auc"):
        if learned and len(one.finite) >= _HALF and all(abs(value - 0.5) < _COIN for value in one.finite):
            yield on_events(
                rule, [*one.shown(FIRST, LAST), *learned[0].shown(LAST)], (), {"score": f"{one.finite[-1]:.3g}"}
            )
            return


_COIN, _HALVED = 0.03, 0.6


def learns(values: Sequence[float]) -> bool:
    return len(values) >= _HALF and min(values) >= 0 and parts(values, _HALF)[-1] < _HALVED * values[0]


def average_behind(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The averaged weights score far below those that they are the average of, and do not come nearer."""
    for one in every(run, "ema score accuracy", "ema score acc"):
        end = one.said[-1] if one.said else 1.0
        if end > _BEHIND or max(one.said) > 1:
            continue
        low = [s for s in every(run, *LOSSES) if s.said and median(s.said[-3:]) < _LEARNED_WELL and learns(s.said)]
        good = [
            s
            for s in every(run, "score accuracy", "score acc")
            if s.said and s.said[-1] > 2 * _GUESS_AT and s.said[-1] <= 1
        ]
        behind = [s for s in good if s.said[-1] * _FRACTION > end]
        if (low or behind) and (len(one.said) == 1 or kendall(one.said) <= 0):
            shown = [*one.shown(LAST), *(behind or low)[0].shown(LAST)]
            yield on_events(rule, shown, (), {"score": f"{end:.3g}"})
            return


_BEHIND, _LEARNED_WELL, _GUESS_AT = 0.6, 0.1, 0.35


def average_begun_anew(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Right after a resume the averaged weights score far below the others: their history was not restored."""
    if not every(run, "resumed_step"):
        return
    for one in every(run, "ema score accuracy", "ema score acc"):
        for other in every(run, one.name.removeprefix("ema ")):
            pairs = [values for _, values in common_steps([one, other])]
            if len(pairs) < 2 or pairs[0][0] > _BEHIND * pairs[0][1] or kendall([pair[0] for pair in pairs]) <= 0.5:
                continue
            fields = {"score": f"{pairs[0][0]:.3g}", "other": f"{pairs[0][1]:.3g}"}
            yield on_events(rule, one.shown(FIRST, LAST), (), fields)
            return


_LARGER, _SAME_RATE, _BATCHES = 4.0, 0.01, 16
_WORSE, _LOWER = 1.5, 0.85
_OF_SGD = 5e-3
"""Rates of Adam and its kin are below."""


def behind_smaller_batch(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Of two logs, the one with a batch many times larger and the same learning rate is far behind after as many
    epochs, and does not come nearer."""
    batches = {one.said[-1]: one for one in every(run, "whole_batch") if one.said and one.said[-1] > 0}
    for small, large in permutations(list(batches.values())[:_BATCHES], 2):
        times = large.said[-1] / small.said[-1]
        rates = [_highest_rate(run, one.event.source) for one in (small, large)]
        if times < _LARGER or not rates[0] or abs(rates[1] / rates[0] - 1) > _SAME_RATE:
            continue
        behind = _behind(run, small.event.source, large.event.source)
        if behind:
            events = [*large.shown(LAST), *(event for one in behind for event in one.shown(LAST)), *small.shown(LAST)]
            fields = {"times": f"{times:.4g}", "batch": f"{large.said[-1]:.0f}", "rate": f"{rates[0]:.3g}"}
            fields["scaled"] = f"{rates[0] * (times if rates[0] >= _OF_SGD else math.sqrt(times)):.3g}"
            yield on_events(rule, events, (), fields)
            return


def _highest_rate(run: Run, source: str) -> float:
    return max((rate for one in every(run, "lr") if one.event.source == source for rate in one.said), default=0.0)


def _behind(run: Run, small: str, large: str) -> list[Series]:
    """What shows it, of both: the loss of evaluations is much larger in all of the last epochs, or the score lower."""
    judged = every(run, "eval_loss", *_SCORES)
    for name in names(judged):
        pair = [next((s for s in judged if (s.name, s.event.source) == (name, of)), None) for of in (small, large)]
        both = [one for one in pair if one is not None]
        common = [values for step, values in common_steps(both) if not step.startswith("#")] if len(both) > 1 else []
        last = common[-_HALF:]
        worse = all(b > _WORSE * a > 0 if name == "eval_loss" else 0 < b < _LOWER * a for a, b in last)
        if len(last) == _HALF and worse:
            return both
    return []


_SCORES = ("score acc", "score accuracy", "score top", "score auc", "score map", "score iou")
