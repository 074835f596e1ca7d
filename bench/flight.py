"""How dear it is to read the flight recorders of a large job: CPU and memory, beside plain unpickling and torch's own tool.

python bench/flight.py [--ranks 512] [--entries 2000] [--rounds 5] [--torch-ranks 64] [--keep DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

_PLAIN = """
import pickle, sys
for name in sys.argv[1:]:
    with open(name, "rb") as file:
        pickle.load(file)
"""
_OURS = """
import sys
from paramedic.pipeline import diagnose
report = diagnose(sys.argv[1:])
verdict = report.verdict
print(verdict.rule if verdict else "none", verdict.ranks if verdict else ())
"""
_TP = 8


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="paramedic-bench-") as made:
        folder = Path(options.keep or made)
        folder.mkdir(parents=True, exist_ok=True)
        _make(folder, options.ranks, options.entries)
        files = sorted(map(str, folder.iterdir()))
        size = sum(os.path.getsize(name) for name in files)
        print(f"{len(files)} dumps of {options.entries} entries, {size >> 20} MiB")
        _measured([sys.executable, "-c", _OURS, files[0]])  # an installed package has its bytecode
        ratios = []
        for _ in range(options.rounds):
            plain = _measured([sys.executable, "-c", _PLAIN, *files])
            ours = _measured([sys.executable, "-c", _OURS, str(folder)])
            for name, one in (("plain pickle.load", plain), ("paramedic diagnose", ours)):
                print(
                    f"{name:20} CPU {one['cpu']:7.2f} s  peak {one['peak']:6.0f} MiB  exit {one['code']}  {one['said']}"
                )
            ratios.append(ours["cpu"] / plain["cpu"])
        print(f"ours / plain: {min(ratios):.2f} to {max(ratios):.2f}, median {median(ratios):.2f}")
    if options.torch_ranks:
        _beside_torch(options.torch_ranks, options.entries)


def _beside_torch(ranks: int, entries: int) -> None:
    """Its time grows faster than the number of ranks, so it gets a smaller job, and so do we."""
    with tempfile.TemporaryDirectory(prefix="paramedic-bench-") as made:
        _make(Path(made), ranks, entries)
        command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", made, "-p", "nccl_trace_rank_"]
        torch = _measured(command)
        idle = _measured([*command[:3], "--help"])
        ours = _measured([sys.executable, "-c", _OURS, made])
        print(
            f"{ranks} ranks: torchfrtrace CPU {torch['cpu']:.2f} s (of it {idle['cpu']:.2f} s start), peak {torch['peak']:.0f} MiB, exit {torch['code']}: {torch['said']}"
        )
        print(f"{ranks} ranks: ours         CPU {ours['cpu']:.2f} s, peak {ours['peak']:.0f} MiB: {ours['said']}")
        print(f"torchfrtrace / ours: {torch['cpu'] / ours['cpu']:.1f}")


def _measured(command: list[str]) -> dict[str, Any]:
    """CPU of the process and all its children, and the largest peak of one of them."""
    code = (
        "import json,resource,subprocess,sys;"
        "p=subprocess.run(sys.argv[1:],stdout=subprocess.PIPE,stderr=subprocess.STDOUT,text=True);"
        "u=resource.getrusage(resource.RUSAGE_CHILDREN);"
        "s=[l for l in p.stdout.split('\\n') if l.strip()];"
        "print(json.dumps(dict(cpu=u.ru_utime+u.ru_stime,peak=u.ru_maxrss/1024,code=p.returncode,said=(s or [''])[-1][:160])))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = os.path.join(tempfile.gettempdir(), "paramedic-bench-bytecode")
    command = [sys.executable, "-c", code, *command]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _make(folder: Path, ranks: int, entries: int) -> None:
    """Tensor groups of eight, data groups across them, the whole job; rank 5 never comes back from its own code."""
    stacks = _stacks()
    for rank in range(ranks):
        stuck = rank == 5
        with open(folder / f"nccl_trace_rank_{rank}", "wb") as file:
            pickle.dump(_dump(rank, ranks, entries, stacks, stuck), file, 2)


def _stacks() -> list[list[dict[str, Any]]]:
    rng = random.Random(7)
    base = "/opt/conda/lib/python3.11/site-packages/torch"
    inner = [{"name": f"call_{n}", "filename": f"{base}/part_{n}.py", "line": 10 * n} for n in range(60)]
    own = [{"name": f"step_{n}", "filename": f"/job/model_{n}.py", "line": 7 * n} for n in range(20)]
    return [[*inner[:2], *rng.sample(own, 4), *rng.sample(inner, 10), own[0]] for _ in range(24)]


def _dump(rank: int, ranks: int, entries: int, stacks: list[list[dict[str, Any]]], stuck: bool) -> dict[str, Any]:
    tensor, data = rank // _TP, rank % _TP
    groups = {
        "0": ("default_pg", list(range(ranks))),
        f"{1 + tensor}": ("mesh_tp", list(range(tensor * _TP, tensor * _TP + _TP))),
        f"{1 + ranks // _TP + data}": ("mesh_dp", list(range(data, ranks, _TP))),
    }
    names = list(groups)
    made: list[dict[str, Any]] = []
    seqs = dict.fromkeys(names, 0)
    for number in range(entries):
        kind = number % 24
        name = names[1] if kind < 18 else names[2] if kind < 23 else names[0]
        seqs[name] += 1
        made.append(_entry(number, name, groups[name][0], seqs[name], kind, stacks[kind]))
    late = entries - 9  # the last calls of everybody: of the others the last is queued or waits
    made = made[: late if stuck else late + 1]
    if rank // _TP == 5 // _TP and not stuck:
        made[-1] = {**made[-1], "state": "scheduled", "retired": False, "time_discovered_completed_ns": None}
    return {
        "version": "2.10",
        "pg_config": {name: {"name": name, "desc": desc, "ranks": str(some)} for name, (desc, some) in groups.items()},
        "comm_lib_version": "2.27.3",
        "pg_status": {},
        "entries": made,
    }


def _entry(number: int, name: str, desc: str, seq: int, kind: int, stack: list[dict[str, Any]]) -> dict[str, Any]:
    op = ("all_reduce", "broadcast", "all_reduce")[kind % 3]  # names that torch's own tool knows
    sizes = [[64 * (kind + 1), 4096]]
    at = 1_794_751_894_000_000_000 + number * 1_000_003
    return {
        "frames": list(stack), "record_id": number, "pg_id": int(name), "process_group": (name, desc),
        "thread_name": "pt_main_thread", "thread_id": str(139_000_000_000_000 + int(name)), "collective_seq_id": seq,
        "p2p_seq_id": 0, "op_id": number + 1, "profiling_name": f"nccl:{op}", "time_created_ns": at,
        "duration_ms": 0.25 * kind, "input_sizes": [list(one) for one in sizes], "input_dtypes": ["BFloat16"],
        "output_sizes": [list(one) for one in sizes], "output_dtypes": ["BFloat16"], "state": "completed",
        "time_discovered_started_ns": at + 1_000, "time_discovered_completed_ns": at + 9_000, "retired": True,
        "timeout_ms": 600_000, "is_p2p": False,
    }  # fmt: skip


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torch-ranks", type=int, default=64)
    parser.add_argument("--keep")
    return parser.parse_args()


if __name__ == "__main__":
    main()
