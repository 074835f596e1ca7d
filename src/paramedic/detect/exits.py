"""How ranks ended, as the launcher saw it: signals and exit codes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence

from paramedic.detect.match import on_event
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run

_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE}


def signal_of(exitcode: int) -> signal.Signals | None:
    """-9 and 137 both mean SIGKILL."""
    number = -exitcode if exitcode < 0 else exitcode - 128
    try:
        return signal.Signals(number) if exitcode < 0 or exitcode > 128 else None
    except ValueError:
        return None


def killed(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    return _ended(run, rule, lambda e: signal_of(e.fields["exitcode"]) == signal.SIGKILL)


def crashed(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """An abort is also how a process ends on purpose when it has said what is wrong, as torch's watchdog does."""
    spoken = {rank for one in found if one.severity == "error" for rank in one.ranks}

    def wanted(event: Event) -> bool:
        ending = signal_of(event.fields["exitcode"])
        return ending in _CRASHES and not (ending == signal.SIGABRT and event.rank in spoken)

    return _ended(run, rule, wanted)


def terminated(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    return _ended(run, rule, lambda e: signal_of(e.fields["exitcode"]) == signal.SIGTERM)


def wordless(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Ranks that left with an error code and said nothing that we know."""
    spoken = {rank for one in found for rank in one.ranks}
    spoken |= {e.rank for e in run.events if e.kind == "traceback" and e.rank is not None}
    return _ended(
        run,
        rule,
        lambda e: e.fields["exitcode"] > 0 and signal_of(e.fields["exitcode"]) is None and e.rank not in spoken,
    )


def _ended(run: Run, rule: Rule, wanted: Callable[[Event], bool]) -> Iterator[Finding]:
    for event in _exits(run):
        if wanted(event):
            ending = signal_of(event.fields["exitcode"])
            name = ending.name if ending else f"exit code {event.fields['exitcode']}"
            yield on_event(rule, event, {"ending": name, "pid": str(event.fields["pid"])})


def _exits(run: Run) -> list[Event]:
    """One event for each process: the table's row, or the agent's line where there is no row."""
    by_pid: dict[tuple[int, int], Event] = {}
    for event in run.events:
        if event.kind == "exit" and event.fields["exitcode"] != 0:
            key = (event.attempt, event.fields["pid"])
            if key not in by_pid or by_pid[key].rank is None:
                by_pid[key] = event
    return list(by_pid.values())
