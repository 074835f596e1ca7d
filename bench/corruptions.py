"""Who is named when one rank of a recorded job is corrupted? Sixty runs, one corruption each, at a random rank and step.

    python bench/corruptions.py                    the table in docs/replay.md
    python bench/corruptions.py --runs 12          fewer, for a look
    python bench/corruptions.py --output runs.jsonl    keeps every run, and goes on where it was ended

Each run is held against a clean one (`paramedic compare A B`), and is judged alone: by `diagnose`, by holding its ranks
against each other (`paramedic compare A`), and by replaying every rank of it. Corruptions of the machine (flipped bits, …) do not come back in the replay; those of the program (a seed,
a repeated batch) do. Ranks are forked from one process that has imported torch, which saves most of the time; what
they run, record and replay is what `paramedic record` and `paramedic replay` run.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import random
import shutil
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "tests" / "recorded" / "train.py"
MACHINE = ("gradient", "weight", "dropped", "stale", "swapped", "nan")
OF_PROGRAM = ("seed", "repeated")
WORLD, STEPS = 4, 6
FULL = 60


@dataclass(frozen=True, slots=True)
class Trial:
    kind: str
    way: str
    rank: int
    step: int
    bit: int

    @property
    def fault(self) -> str:
        return f"{self.kind}:{self.rank}:{self.step}:{self.bit}"


@dataclass(frozen=True, slots=True)
class Outcome:
    trial: Trial
    reached: bool
    """Whether any rank handed on or got anything else than in the clean run."""
    compared: tuple[int, ...]
    diagnosed: tuple[int, ...]
    rules: tuple[str, ...]
    replayed: tuple[int, ...]
    parted: tuple[int, ...] | None = None
    """Whom `compare` names from the ranks of this one recording; None in results from before it could."""


def trials(count: int, seed: int) -> list[Trial]:
    """Half of them flipped bits; of a full round, the positions that chance left out come on top."""
    chance = random.Random(seed)
    bits = iter(chance.sample(range(32), 32) * 4)
    kinds = ["gradient", "weight"] * (count // 4) + [*MACHINE[2:], *OF_PROGRAM] * count
    chosen = [*kinds[: count // 2], *kinds[2 * (count // 4) :][: count - count // 2]]
    chance.shuffle(chosen)
    found = [_trial(chance, number, kind, next(bits)) for number, kind in enumerate(chosen)]
    flipped = {one.bit for one in found if one.kind in MACHINE[:2]}
    left = [bit for bit in range(32) if bit not in flipped] if count >= FULL else []
    return found + [_trial(chance, number, MACHINE[number % 2], bit) for number, bit in enumerate(left)]


def _trial(chance: random.Random, number: int, kind: str, bit: int) -> Trial:
    return Trial(kind, ("ddp", "fsdp2")[number % 2], chance.randrange(WORLD), chance.randrange(1, STEPS - 1), bit)


# -- forked ranks --------------------------------------------------------------------------------------------------


def forked(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        if not os.environ.get("BENCH_DEBUG"):
            os.dup2(quiet, 2)
        work()
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def rank_variables(rank: int, way: str, fault: str, port: int) -> None:
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
        KIND=way, STEPS=str(STEPS), FAULT=fault,
    )  # fmt: skip


def program() -> Any:
    spec = importlib.util.spec_from_file_location("recorded_train", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def record(folder: Path, way: str, fault: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def rank(number: int) -> None:
        from paramedic_rank import start  # type: ignore[import-not-found]

        rank_variables(number, way, fault, port)
        recorder = start.recorder
        recorder.folder, recorder.is_on = str(folder), True
        program().main()
        recorder.ended("exit")

    pids = [forked(lambda number=number: rank(number)) for number in range(WORLD)]  # type: ignore[misc]
    codes = [os.waitpid(pid, 0)[1] for pid in pids]
    if any(codes):
        raise SystemExit(f"a rank failed while recording {way} {fault}: {codes}; BENCH_DEBUG=1 shows why")


def diverging(folder: Path, way: str, fault: str) -> tuple[int, ...]:
    """Ranks whose replay does not do what was recorded."""
    found = []
    for number in range(WORLD):
        result = folder / f"result-{number}.json"

        def rank(number: int = number, result: Path = result) -> None:
            from paramedic_rank.player import Player  # type: ignore[import-not-found]

            rank_variables(number, way, fault, 1)
            place = str(folder / "recording" / f"rank-{number:05d}")
            player = Player({"folder": place, "rank": number, "result": str(result), "start": 0, "mode": "strict"})
            for name, patch in player.patches().items():
                if name in sys.modules:
                    patch(sys.modules[name])
            c10d, dist = sys.modules["torch.distributed.distributed_c10d"], sys.modules["torch.distributed"]
            dist.init_process_group = c10d.init_process_group  # type: ignore[attr-defined]
            program().main()
            player.ended()

        os.waitpid(forked(rank), 0)
        said = json.loads(result.read_text()) if result.exists() else {"status": "strange", "differences": []}
        if said["status"] == "strange":
            raise SystemExit(f"rank {number} of {way} {fault} was not replayed: {said}; BENCH_DEBUG=1 shows why")
        if said["differences"]:
            found.append(number)
    return tuple(found)


# -- judging -------------------------------------------------------------------------------------------------------


class Judge:
    def __init__(self) -> None:
        from paramedic.knowledge import load
        from paramedic.pipeline import compile_prefilter

        self.knowledge = load(())
        self.prefilter = compile_prefilter(self.knowledge)

    def diagnosed(self, folder: Path) -> tuple[tuple[int, ...], tuple[str, ...]]:
        from paramedic.pipeline import Options, examine, read

        report = examine(read([str(folder / "recording")], self.prefilter), self.knowledge, self.prefilter, Options())
        ranks = {rank for one in report.findings for rank in one.ranks}
        return tuple(sorted(ranks)), tuple(sorted({one.rule for one in report.findings}))


def reached(clean: Any, faulty: Any) -> bool:
    """By the clean run: whether any call of any rank had another input or output."""
    for rank in clean.ranks:
        calls = [
            {(c["g"], c["q"]): (c.get("h"), c.get("done", {}).get("h")) for one in score.calls.values() for c in one}
            for score in (clean.scores[rank], faulty.scores[rank])
        ]
        if calls[0] != calls[1]:
            return True
    return False


def one(trial: Trial, place: Path, judge: Judge) -> Outcome:
    from paramedic.replay.compare import compare
    from paramedic.replay.reading import read
    from paramedic.replay.replicas import agreement

    clean, folder = place / f"clean-{trial.way}", place / "faulty"
    if not clean.exists():
        record(clean, trial.way, "")
    record(folder, trial.way, trial.fault)
    a, b = read(str(clean)), read(str(folder))
    found = compare(a, b)
    ranks, rules = judge.diagnosed(folder)
    first = agreement(b).first
    again = diverging(folder, trial.way, "" if trial.kind in MACHINE else trial.fault)
    return Outcome(trial, reached(a, b), found.origins, ranks, rules, again, first.odd if first else ())


def table(outcomes: list[Outcome]) -> str:
    lines = [
        "| corruption | runs | changed nothing | reached a collective | right rank, with a clean run | right rank alone: `diagnose` | alone: its ranks compared | alone: replay | somebody else named |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for kind in (*MACHINE, *OF_PROGRAM, "all"):
        mine = [one for one in outcomes if kind in ("all", one.trial.kind)]
        if not mine:
            continue
        count: Counter[str] = Counter()
        for one in mine:
            right = (one.trial.rank,)
            count["nothing"] += not one.compared
            count["reached"] += one.reached
            count["compared"] += one.compared == right
            count["of reached"] += one.reached and one.compared == right
            count["diagnosed"] += one.diagnosed == right
            count["parted"] += one.parted == right
            count["looked"] += one.parted is not None
            count["replayed"] += one.replayed == right
            named = (one.compared, one.diagnosed, one.parted or (), one.replayed)
            count["wrong"] += any(ranks not in ((), right) for ranks in named)
        lines.append(
            f"| {kind} | {len(mine)} | {count['nothing']} | {count['reached']} | {count['compared']} "
            f"({count['of reached']} of {count['reached']} that reached) | {count['diagnosed']} | {count['parted']} of {count['looked']} | {count['replayed']} | {count['wrong']} |"
        )
    return "\n".join(lines)


def known(file: Path | None) -> list[Outcome]:
    if file is None or not file.exists():
        return []
    found = []
    for line in file.read_text().splitlines():
        said = json.loads(line)
        ranks = {name: tuple(value) for name, value in said.items() if isinstance(value, list)}
        found.append(Outcome(**said | ranks | {"trial": Trial(**said["trial"])}))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=FULL)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="every run as a line of JSON; what is in it is not run again")
    args = parser.parse_args()
    if "paramedic_rank" not in sys.modules:
        _with_hooks()
    import torch
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.distributed.tensor.parallel
    import torch.testing._internal.distributed.fake_pg
    import torch.utils.data

    torch.set_num_threads(1)
    sys.path.insert(0, str(ROOT / "src"))
    outcomes, judge, start = known(args.output), Judge(), time.monotonic()
    done = {outcome.trial for outcome in outcomes}
    with tempfile.TemporaryDirectory(prefix="paramedic-") as place:
        for number, trial in enumerate(trials(args.runs, args.seed), 1):
            if trial in done:
                continue
            outcome = one(trial, Path(place), judge)
            outcomes.append(outcome)
            text = f"{trial.way} {trial.fault}: reached {outcome.reached}, with a clean run {outcome.compared}, "
            text += (
                f"diagnosed {outcome.diagnosed} {outcome.rules}, parted {outcome.parted}, replayed {outcome.replayed}"
            )
            print(f"{number:3} {time.monotonic() - start:5.0f} s  {text}", file=sys.stderr, flush=True)
            if args.output:
                with args.output.open("a") as file:
                    file.write(json.dumps(asdict(outcome)) + "\n")
    print(table(outcomes))


def _with_hooks() -> None:
    """Once more, as `paramedic record` starts a rank."""
    site = ROOT / "src" / "paramedic" / "rank" / "site"
    with contextlib.suppress(KeyError):
        del os.environ["PARAMEDIC_RANK_PID"]
    os.environ.update(
        PYTHONPATH=os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]), OMP_NUM_THREADS="1",
        PARAMEDIC_WATCH=tempfile.gettempdir(), PARAMEDIC_RECORD=json.dumps({"payload": "always"}),
    )  # fmt: skip
    os.execv(sys.executable, [sys.executable, *sys.argv])


if __name__ == "__main__":
    main()
