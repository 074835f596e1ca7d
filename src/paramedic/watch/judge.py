"""Is the job stuck? Judged by what the ranks do and against the job's own history, not by a fixed number of seconds."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from paramedic.model import Event, Finding, Run
from paramedic.watch.pulse import STILL, Pulse

SOON = 4.0
"""Nothing moves, and no rank does anything that could make it move again: time to look at stacks and traces."""
LATER, MUCH_LATER = 120.0, 600.0
"""Somebody may only take his time (evaluation, saving, compiling); somebody computes, reads or writes all the while."""
_NEVER_CAME = 180.0
_MOST = 1800.0
FIRST_BATCH = "first batch"
_LONG = re.compile(r" in \w*(?:sav(?:e|ing)|checkpoint|eval|valid|infer|generat)\w*$", re.I)


@dataclass(frozen=True, slots=True)
class Suspicion:
    """`look`: ask the ranks where they stand. `overdue`: longer than this job has ever paused."""

    level: Literal["look", "overdue"]
    why: str
    quiet_s: float
    usual_s: float

    @property
    def told(self) -> dict[str, Any]:
        pauses = {"quiet_s": round(self.quiet_s, 1), "usual_s": round(self.usual_s, 1)}
        return {"kind": "hang", "level": self.level, "why": self.why, **pauses}


def suspicion(pulses: Mapping[int, Pulse], size: int | None, now: float, since: float) -> Suspicion | None:
    """`since` is when the job was started."""
    ranks = pulses.values()
    quiet = now - max((pulse.moved for pulse in ranks), default=since)
    conditions = {pulse.condition for pulse in ranks}
    if not ranks or quiet < STILL or conditions & {"going", "starting"} or conditions <= {"ended", "failed"}:
        return None
    usual = _longest_pause(ranks)
    missing = max((size or 0) - len(pulses), 0)
    nobody_left = conditions <= {"gone", "ended", "failed"}  # it is the launcher's turn: it clears up, or tries again
    patience = MUCH_LATER if _is_busy(ranks) or nobody_left else _NEVER_CAME if missing else LATER
    if quiet > min(max(patience, 3 * usual), _MOST):
        return Suspicion("overdue", _said(conditions, missing), quiet, usual)
    somebody_waits = conditions & {"waiting", "gone", "stopped", "frozen"}
    if quiet > SOON and somebody_waits and not nobody_left and not missing and not _is_busy(ranks):
        return Suspicion("look", _said(conditions, missing), quiet, usual)
    return None


def _is_busy(ranks: Collection[Pulse]) -> bool:
    return any(pulse.condition == "busy" for pulse in ranks)


def _longest_pause(ranks: Collection[Pulse]) -> float:
    """From which a rank of this job came back by itself."""
    return max((float(pulse.state.get("longest_idle_s") or 0) for pulse in ranks), default=0.0)


def _said(conditions: Collection[str], missing: int) -> str:
    absent = f"; {missing} never came" if missing else ""
    return f"no rank makes progress ({', '.join(sorted(conditions))}{absent})"


def is_settled(found: Finding, run: Run, pulses: Mapping[int, Pulse]) -> bool:
    """Waiting would not change it: nobody computes, and who is waited for does nothing that merely takes its time."""
    accused = [pulses[rank] for rank in found.ranks if rank in pulses]
    if any(one.condition == "busy" for one in accused) or (
        not found.ranks and any(p.condition == "idle" for p in pulses.values())
    ):
        return False
    if any(one.phase == "checkpoint" or (one.phase == "data" and one.said == FIRST_BATCH) for one in accused):
        return False
    stacks = [e for e in run.events if e.kind == "stack" and e.fields.get("main") and e.rank in found.ranks]
    if any(one.condition == "waiting" for one in accused):
        return True
    return not any(takes_its_time(stack) for stack in stacks)


def takes_its_time(stack: Event) -> bool:
    """Evaluation, saving and compiling."""
    frames = stack.fields.get("frames") or ()
    return stack.fields.get("waits") in ("checkpoint", "compile") or any(_LONG.search(str(frame)) for frame in frames)
