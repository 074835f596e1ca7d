"""How a watched job is judged: by what its ranks do and against its own history. No process is started here."""

from __future__ import annotations

import io
import json
import os
import sys
import types
import weakref
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from paramedic.collect.watched import read_watched
from paramedic.detect.boxes import Call, elsewhere, unlike
from paramedic.detect.once import once
from paramedic.knowledge import Knowledge
from paramedic.model import Event, Finding, Run, Source, Symptom
from paramedic.pipeline import Options, diagnose
from paramedic.rank import box, hooks, sockets, start
from paramedic.rank.agent import Agent, Clock, Memory
from paramedic.watch import judge, live, outputs, pulse
from paramedic.watch.pulse import Pulse
from paramedic.watch.watcher import Standing, Watcher

HOST = "here"


def state(rank: int, ticks: int = 5, **more: Any) -> dict[str, Any]:
    return {
        "rank": rank,
        "world_size": 2,
        "ticks": ticks,
        "steps": 3,
        "beats": 1,
        "host": "elsewhere",
        "pid": 1,
        **more,
    }


def seen(rank: int, *looks: tuple[float, dict[str, Any]]) -> Pulse:
    one = Pulse(rank)
    for at, said in looks:
        pulse.look(one, said, HOST, now=at)
    return one


def standing(condition: Any, moved: float = 0.0, longest: float = 0.5, phase: str = "other", said: str = "") -> Pulse:
    about = {"longest_idle_s": longest, "steps": 9, "now": {"phase": phase, "said": said}}
    return Pulse(0, about, condition=condition, moved=moved)


# -- one rank ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "condition"),
    [
        (state(0, ticks=6, beats=9), "going"),
        (state(0, beats=9, now={"phase": "collective"}), "waiting"),
        (state(0, beats=9, now={"phase": "backward"}), "waiting"),
        (state(0, beats=9, now={"phase": "other"}), "idle"),
        (state(0, beats=9, connections=[{"sent": 1 << 20}]), "going"),
        (state(0), "frozen"),
        (state(0, beats=9, stage="ended"), "ended"),
        (state(0, beats=9, stage="failed"), "failed"),
    ],
)
def test_what_a_rank_does_is_told_from_its_signs_of_life(last: dict[str, Any], condition: str) -> None:
    assert seen(0, (0.0, state(0)), (6.0, last)).condition == condition


@pytest.mark.parametrize(
    ("stage", "got", "wanted", "condition"),
    [
        ("training", 4.8, 4.8, "frozen"),  # native code that holds the interpreter
        ("training", 0.0, 0.0, "frozen"),  # it sleeps, and holds it
        ("training", 0.4, 4.7, "busy"),  # the machine is too full for it to run
        ("starting", 4.7, 4.7, "busy"),  # imports torch
        ("starting", 0.0, 0.0, "frozen"),
    ],
)
def test_a_rank_that_cannot_beat_is_stuck_only_if_it_could_have_run(
    monkeypatch: pytest.MonkeyPatch, stage: str, got: float, wanted: float, condition: str
) -> None:
    looks = iter([pulse.Process("R", 0.0, 1.0, 1.0), pulse.Process("R", 0.0, 1.0 + got, 1.0 + wanted)])
    monkeypatch.setattr(pulse, "process", lambda pid: next(looks))
    said = state(0, host=HOST, pid=77, stage=stage)
    assert seen(0, (0.0, said), (4.8, said)).condition == condition


def test_a_process_that_is_gone_is_seen_to_be() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert (
        seen(0, (0.0, state(0, host=HOST, pid=child)), (3.0, state(0, beats=2, host=HOST, pid=child))).condition
        == "gone"
    )


def test_a_state_that_is_half_written_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks/rank-0.watch.json").write_text('{"rank": 0, "ste')
    (tmp_path / "ranks/rank-1.watch.json").write_text('{"rank": 1}')
    (tmp_path / "ranks/rank-2.watch.json").write_text("[]")
    assert list(pulse.read_states(str(tmp_path))) == [1]


# -- the job -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "quiet", "level"),
    [
        ([standing("waiting"), standing("idle")], 5.0, "look"),
        ([standing("waiting"), standing("idle")], 3.0, None),
        ([standing("waiting"), standing("stopped")], 5.0, "look"),
        ([standing("waiting"), standing("gone")], 5.0, "look"),
        ([standing("gone"), standing("gone")], 300.0, None),  # Ray clears up when its workers are gone
        ([standing("gone"), standing("ended")], 601.0, "overdue"),
        ([standing("waiting"), standing("busy")], 300.0, None),
        ([standing("waiting"), standing("busy")], 601.0, "overdue"),
        ([standing("idle"), standing("idle")], 100.0, None),
        ([standing("idle"), standing("idle")], 121.0, "overdue"),
        ([standing("idle"), standing("idle", longest=70.0)], 200.0, None),
        ([standing("waiting"), standing("going")], 100.0, None),
        ([standing("ended"), standing("ended")], 1000.0, None),
        ([standing("waiting"), standing("ended")], 5.0, "look"),
    ],
)
def test_patience_depends_on_what_the_ranks_do(ranks: list[Pulse], quiet: float, level: str | None) -> None:
    found = judge.suspicion(dict(enumerate(ranks)), 2, now=quiet, since=0.0)
    assert (found.level if found else None) == level


def test_ranks_that_never_came_are_waited_for_longer() -> None:
    ranks = {0: standing("waiting")}
    assert judge.suspicion(ranks, 2, now=150.0, since=0.0) is None
    late = judge.suspicion(ranks, 2, now=181.0, since=0.0)
    assert late is not None
    assert "1 never came" in late.why


def accusation(*ranks: int) -> Finding:
    symptom = Symptom("collective-hang", "communication")
    return Finding("COL041", symptom, "error", "rank", ranks, (), 0.9, "", ())


@pytest.mark.parametrize(
    ("culprit", "frames", "settled"),
    [
        (standing("idle"), ["/job/train.py:9 in report_progress"], True),
        (standing("idle"), ["/job/train.py:9 in evaluate"], False),
        (standing("idle"), ["/job/train.py:9 in save_checkpoint"], False),
        (standing("waiting"), ["/job/train.py:9 in save_checkpoint"], True),
        (standing("busy"), ["/job/train.py:9 in step"], False),
        (standing("idle", phase="data"), ["/job/train.py:9 in step"], True),
        (standing("idle", phase="data", said="first batch"), ["/job/train.py:9 in step"], False),
        (standing("idle", phase="checkpoint"), ["/job/train.py:9 in step"], False),
    ],
)
def test_who_only_takes_his_time_is_not_yet_accused(culprit: Pulse, frames: list[str], settled: bool) -> None:
    stack = Event("s", 1, "stack", "", rank=1, fields={"main": True, "frames": frames})
    pulses = {0: standing("waiting"), 1: culprit}
    assert judge.is_settled(accusation(1), Run("x", events=(stack,)), pulses) is settled


# -- the black box -------------------------------------------------------------------------------------------------


def called(*said: str, last_done: bool = False) -> list[Call]:
    """`group number op sizes peer line` each."""
    calls = []
    for place, one in enumerate(said):
        group, number, op, sizes, peer, line = one.split(" ")
        peer, sizes = peer.strip("-"), sizes.strip("-")
        calls.append(
            Call(group, int(number), op, sizes, "float32", peer, f"/j.py:{line}", place < len(said) - 1 or last_done)
        )
    return calls


def test_the_box_holds_the_last_calls_and_which_one_was_not_left(tmp_path: Path) -> None:
    path = str(tmp_path / "rank-3.box")
    ring = box.Box(path)
    for number in range(300):
        at = ring.begin(f"0\t{number}\tall_reduce\t4\tfloat32\t\t/job/train.py:{number}")
        if number < 299:
            ring.end(at)
    read = read_watched(Path(path).read_bytes(), Source("b", "box", rank=3))
    made = read.events[0].fields["made"].split("\n")
    assert len(made) == box.SLOTS
    assert made[-1] == "B\t0\t299\tall_reduce\t4\tfloat32\t\t/job/train.py:299"
    assert made[0].startswith("D\t0\t44\t")


def test_a_call_that_raised_has_not_returned(tmp_path: Path) -> None:
    path = str(tmp_path / "rank-3.box")
    ring = box.Box(path)
    ring.end(ring.begin("0\t1\tall_reduce\t4\tfloat32\t\t/job/train.py:9"), done=False)
    read = read_watched(Path(path).read_bytes(), Source("b", "box", rank=3))
    assert read.events[0].fields["made"].startswith("B\t0\t1\tall_reduce")


def test_of_one_call_with_unlike_contents_the_minority_is_named() -> None:
    usual = called("0 1 all_reduce 4 - 7", "0 2 all_reduce 4 - 7")
    odd = called("0 1 all_reduce 4 - 7", "0 2 all_reduce 8 - 7")
    found = unlike({0: usual, 1: odd, 2: usual})
    assert found is not None
    assert found.ranks == (1,)
    assert unlike({0: usual, 1: usual, 2: usual}) is None
    undecided = unlike({0: usual, 1: odd})
    assert undecided is not None
    assert undecided.ranks == ()


MISMATCH = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    "  what():  [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] op.preamble.length <= "
    "op.nbytes. 8 vs 4. Received data size doesn't match expected size.\n"
)


@pytest.mark.parametrize(
    ("sizes", "ranks", "said"),
    [
        ((10, 11, 12), [], "Rank 0 called all_reduce of 10 float32 at /job/train.py:50, while rank 1 called it with "
         "11 float32 and rank 2 called it with 12 float32."),
        ((10, 12, 10), [1], "Rank 1 called all_reduce of 12 float32 at /job/train.py:50, while the others called "
         "all_reduce of 10 float32 at /job/train.py:50."),
    ],
)  # fmt: skip
def test_an_abort_over_sizes_names_what_each_rank_has_noted(
    sizes: Sequence[int], ranks: list[int], said: str, tmp_path: Path
) -> None:
    """Whoever raised is as good a witness as who was aborted."""
    (tmp_path / "ranks").mkdir()
    (tmp_path / "console.log").write_text(MISMATCH)
    (tmp_path / "ranks/job.watch.json").write_text('{"paramedic_job": 1, "exit": 1, "suspected": null, "ranks": {}}')
    for rank, size in enumerate(sizes):
        ring = box.Box(str(tmp_path / f"ranks/rank-{rank}.box"))
        ring.end(ring.begin(f"0\t1\tall_reduce\t{size}\tfloat32\t\t/job/train.py:50"), done=False)
    verdict = diagnose([str(tmp_path)]).verdict
    assert verdict is not None
    assert (verdict.rule, list(verdict.ranks), verdict.summary) == ("COL052", ranks, said)
    assert verdict.fixes[0].title == "Give the tensor the same shape and type on every rank"


def test_between_two_the_one_whose_call_is_new_is_odd() -> None:
    """Stage 1 receives where it has always sent."""
    first = called("0 1 send 4 1 5", "0 2 recv 4 1 6", "0 3 send 4 1 5", "0 4 recv 4 1 6")
    second = called("0 1 recv 4 0 8", "0 2 send 4 0 9", "0 3 recv 4 0 8", "0 4 recv 4 0 8")
    found = elsewhere({0: first, 1: second}, {}, (), frozenset({0, 1}))
    assert found is not None
    assert found.ranks == (1,)


def test_who_uses_another_group_than_ever_before_is_odd_and_not_who_waits_for_him() -> None:
    groups: dict[str, frozenset[int]] = {"0": frozenset({0, 1, 2, 3}), "r": frozenset({2, 3}), "c": frozenset({1, 3})}
    before = ("q 1 all_reduce 4 - 5", "0 1 all_reduce 4 - 6")
    ahead = called(*before, "q 2 all_reduce 4 - 5", "0 2 all_reduce 4 - 6")
    row = ("r 1 all_reduce 4 - 5", "0 0 all_reduce 4 - 6", "r 2 all_reduce 4 - 5", "0 1 all_reduce 4 - 6")
    calls = {0: ahead, 1: ahead, 2: called(*row, "r 3 all_reduce 4 - 5"), 3: called(*row, "c 1 all_reduce 4 - 5")}
    found = elsewhere(calls, groups, (), frozenset(range(4)))
    assert found is not None
    assert found.ranks == (3,)


# -- in the rank ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "launcher"),
    [
        ("python -m torch.distributed.run train.py", True),
        ("python -X dev /x/bin/torchrun train.py", True),
        ("python -u train.py torchrun", False),
        ("python -c 'import torch'", False),
        ("/x/bin/accelerate launch train.py", False),
        ("python /x/bin/accelerate launch train.py", True),
        ("python", False),
    ],
)
def test_a_launcher_is_left_alone(command: str, launcher: bool) -> None:
    assert start._is_launcher(command.split(" ")) is launcher


def test_the_rank_comes_from_the_launchers_variables_but_not_from_sruns() -> None:
    assert start.of_environment({"RANK": "3", "WORLD_SIZE": "8"}) == (3, 8)
    assert start.of_environment({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}) == (1, 2)
    assert start.of_environment({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}) == (None, None)
    assert start.of_environment({"RANK": "x", "WORLD_SIZE": "8"}) == (None, None)


def test_a_hook_that_fails_is_switched_off_and_says_why(tmp_path: Path) -> None:
    agent = Agent(str(tmp_path))
    asked: list[int] = []

    def fails() -> None:
        asked.append(1)
        raise KeyError("no such thing")

    assert agent.guarded("loss", fails) is None
    assert agent.guarded("loss", fails) is None
    assert len(asked) == 1
    assert agent.off == {"loss": "KeyError: 'no such thing'"}


def test_an_exception_is_no_progress(tmp_path: Path) -> None:
    agent = Agent(str(tmp_path))
    agent.rank = 0
    torch = hooks._Torch(agent)

    def fails() -> None:
        raise RuntimeError("Timed out waiting 40000ms for recv operation to complete")

    torch.phase("backward", lambda: None)()
    assert agent.ticks == 2
    with pytest.raises(RuntimeError):
        torch.phase("backward", fails)()
    assert agent.ticks == 3  # that it went in
    assert agent.clock.now(0.0)["phase"] == "other"


def test_where_a_rank_stood_when_it_was_asked_is_not_written_over_by_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dumps = iter([b"as it stands", b"as it ends"])
    monkeypatch.setattr("paramedic.rank.agent.reports.flight_recorder", lambda: next(dumps))
    (tmp_path / "traces").mkdir()
    (tmp_path / "ask").write_text("1")
    agent = Agent(str(tmp_path))
    agent.rank = 0
    agent._answer()
    agent.write_last_trace()
    assert (tmp_path / "traces/rank_0").read_bytes() == b"as it stands"
    agent.tick()
    agent.write_last_trace()
    assert (tmp_path / "traces/rank_0").read_bytes() == b"as it ends"


def test_time_inside_a_phase_is_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("paramedic.rank.agent.time.monotonic", lambda: now[0])
    clock = Clock()
    clock.step()
    clock.enter("backward")
    now[0] = 1.0
    clock.enter("collective")
    now[0] = 3.0
    assert clock.now(now[0])["phase"] == "collective"
    clock.leave()
    clock.leave()
    now[0] = 4.0
    clock.step()
    (row,) = clock.times()
    assert row[0] == 4000
    assert dict(zip(("data", "backward", "collective", "optimizer", "checkpoint", "other"), row[1:], strict=True)) == {
        "data": 0, "backward": 1000, "collective": 2000, "optimizer": 0, "checkpoint": 0, "other": 1000,
    }  # fmt: skip


def test_what_a_process_computed_is_counted_from_its_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now, processor = [10.0], [3.0]
    monkeypatch.setattr("paramedic.rank.agent.time.monotonic", lambda: now[0])
    monkeypatch.setattr("paramedic.rank.agent.time.process_time", lambda: processor[0])
    clock = Clock()
    assert clock.worked() == {}
    for at, used in ((11.0, 4.0), (13.0, 4.5), (14.0, 5.25)):
        now[0], processor[0] = at, used
        clock.step()
    assert clock.worked() == {"total": 1250.0, "of": 3000.0, "steps": [500.0, 750.0]}


def test_memory_is_looked_at_in_equal_distances_however_long_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paramedic.rank.agent._own", lambda: 7)
    memory = Memory()
    for step in range(1, 1001):
        memory.step(step)
    steps = [step for step, *_ in memory.points]
    assert 24 <= len(steps) <= 48
    assert {later - step for step, later in pairwise(steps)} == {32}
    assert memory.points[0][1:] == [7, 0]


def test_a_module_is_looked_at_once_it_has_been_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "looked_at.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    agent = Agent(str(tmp_path))

    def patch(module: types.ModuleType) -> None:
        module.value = 2  # type: ignore[attr-defined]

    monkeypatch.setattr(sys, "meta_path", [hooks._Finder({"looked_at": patch}, agent.guarded), *sys.meta_path])
    import looked_at  # type: ignore[import-not-found]

    assert looked_at.value == 2
    assert looked_at.__spec__.origin == str(tmp_path / "looked_at.py")


def test_connections_are_read_from_the_kernel() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        other, _ = server.accept()
        with other:
            one.sendall(b"x" * 100_000)
            left = 100_000
            while left:
                left -= len(other.recv(left))
            port = one.getsockname()[1]
            found = [reading for reading in sockets.readings() if reading["port"] == port]
    assert found
    assert found[0]["sent"] >= 1 << 16


# -- what is written and shown -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"paramedic_watch": 1}',
        '{"paramedic_watch": 1, "rank": -1}',
        '{"rank": 1e999}',
        "[" * 9999,
    ],
)
def test_what_is_no_state_is_said_to_be_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "rank-0.watch.json").write_text(text)
    (tmp_path / "log.txt").write_text("step 1 loss 2\n")
    report = diagnose([str(tmp_path)], Options())
    assert report.verdict is None
    assert any("rank-0.watch.json" in skipped.what for skipped in report.skipped)


def test_a_secret_in_a_state_is_taken_out(tmp_path: Path, knowledge: Knowledge) -> None:
    secret = "hf_" + "a1B2c3D4" * 4
    said = {"paramedic_watch": 1, "rank": 0, "notes": [{"text": f"token={secret}"}], "now": {"said": secret}}
    found = read_watched(json.dumps(said).encode(), Source("s", "watch"))
    assert secret not in str([(event.text, event.fields) for event in found.events])


@pytest.mark.parametrize(
    ("printed", "rule", "said"),
    [
        (
            "[0] step 12 loss nan\n",
            "NUM005",
            "The job prints loss = nan (since step 6 or before, 0.7 at step 0): ",
        ),
        ("", "NUM020", "The loss has been nan since step 6 or before, 0.7 at step 0."),
    ],
)
def test_since_when_a_loss_is_no_number_is_said_as_it_was_seen(
    printed: str, rule: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "console.log").write_text(printed or "begins\n")
    for rank in (0, 1):
        seen = state(rank, paramedic_watch=1, values={"loss": [[0, 0.7], [6, "nan"], [12, "nan"]]})
        (tmp_path / f"ranks/rank-{rank}.watch.json").write_text(json.dumps(seen))
    verdict = diagnose([str(tmp_path)]).verdict
    assert verdict is not None
    assert verdict.rule == rule
    assert verdict.summary.startswith(said)


def watcher(tmp_path: Path, ranks: Sequence[Pulse]) -> Watcher:
    one = Watcher(str(tmp_path), ["x"], lambda folder, ended=False: pytest.fail("not asked"), view=live_none())
    one.pulses = dict(enumerate(ranks))
    return one


def stood(tmp_path: Path, ranks: Sequence[Pulse]) -> Watcher:
    """A job of which it was said that it hangs."""
    one = watcher(tmp_path, ranks)
    marks = dict.fromkeys(one.pulses, (1, 5, 3))
    waiting = {rank: {"condition": "waiting"} for rank in one.pulses}
    one._standing = Standing(judge.Suspicion("look", "nobody moves", 5.0, 0.1), marks, waiting)
    return one


@pytest.mark.parametrize(
    ("conditions", "marks", "goes_on"),
    [
        (["waiting", "waiting"], [(1, 5, 3), (1, 5, 3)], False),
        (["going", "going"], [(1, 5, 4), (1, 5, 3)], True),  # a step
        (["going", "going"], [(1, 9, 3), (1, 9, 3)], True),
        (["going", "going"], [(1, 6, 3), (1, 7, 3)], False),  # a barrier on the way out
        (["failed", "going"], [(1, 9, 3), (1, 9, 3)], False),
        (["gone", "gone"], [(1, 9, 3), (1, 9, 3)], False),
        (["starting", "starting"], [(2, 0, 0), (2, 0, 0)], True),  # torchrun's next attempt
    ],
)
def test_only_who_comes_further_makes_progress(
    conditions: list[Any], marks: list[tuple[int, int, int]], goes_on: bool, tmp_path: Path
) -> None:
    one = stood(tmp_path, [Pulse(rank, condition=condition) for rank, condition in enumerate(conditions)])
    assert one._goes_on(dict(enumerate(marks))) is goes_on


class live_none:
    def show(self, watcher: Watcher) -> None: ...
    def say(self, text: str) -> None: ...
    def print(self, text: str) -> None: ...


@pytest.mark.parametrize("count", [2, 20, 300])
def test_the_live_view_shows_every_rank_or_says_how_many_more(count: int, tmp_path: Path) -> None:
    ranks = [
        Pulse(number, state(number, world_size=count, now={"phase": "collective"}), condition="waiting")
        for number in range(count)
    ]
    out = Console(file=io.StringIO(), width=100, force_terminal=False)
    out.print(live.view(watcher(tmp_path, ranks), 100))
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert f"{count} of {count} ranks · step 3" in text
    assert ("44 more" in text) == (count == 300)


@pytest.mark.parametrize(
    ("condition", "still"), [("waiting", True), ("ended", False), ("failed", False), ("gone", False)]
)
def test_only_who_could_move_stands_still(condition: Any, still: bool, tmp_path: Path) -> None:
    one = Pulse(0, state(0, now={"phase": "collective"}), condition=condition, moved=1.0, looked=9.0)
    out = Console(file=io.StringIO(), width=100, force_terminal=False)
    out.print(live.view(watcher(tmp_path, [one]), 100))
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert ("still for 8 s" in text, "collective" in text) == (still, still)


def test_metrics_are_prometheus_text(tmp_path: Path) -> None:
    lines = list(outputs.metric_lines(watcher(tmp_path, [Pulse(0, state(0), condition="idle")])))
    assert 'paramedic_rank_condition{rank="0",condition="idle"} 1' in lines
    assert 'paramedic_rank_steps{rank="0"} 3' in lines


def test_what_fails_in_the_watcher_is_said_once_and_the_job_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PARAMEDIC_DEBUG")
    heard: list[str] = []
    one = watcher(tmp_path, [])
    monkeypatch.setattr(one.view, "say", heard.append)

    def fails() -> None:
        raise ValueError("of its own")

    for _ in range(3):
        one._guarded(fails)
    assert len(heard) == 1
    assert heard[0].startswith("watching failed: ValueError")


def test_what_is_asked_of_a_run_twice_is_worked_out_once_and_does_not_keep_it() -> None:
    asked: list[str] = []

    @once
    def size(run: Run) -> int:
        asked.append(run.id)
        return len(run.events)

    first, second = Run("a"), Run("b")
    assert (size(first), size(first), size(second), size(first)) == (0, 0, 0, 0)
    assert asked == ["a", "b", "a"]
    kept = weakref.ref(first)
    del first
    assert kept() is None
