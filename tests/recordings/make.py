"""Make the recordings: run train.py with each planted fault and keep what the software printed.

    python tests/recordings/make.py [--python VENV/bin/python] [CASE ...]

Nothing is edited afterwards. So that the output names no place of the machine it was made on, every run
takes place in its own mount and UTS namespace, in which the program lies at /srv/train, the virtual
environment at /opt/venv, and the host is called node-01. That needs Linux, unshare(1) and root.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from place import KILL_WAIT_S, PYTHON, TORCHRUN, Place, free_port, labelled, to_file

HERE = Path(__file__).resolve().parent
UNALTERED = "No text was altered: the run took place in a namespace that has these paths and this host name."


@dataclass(frozen=True)
class Case:
    symptom: str
    cause: str
    ranks: list[int]
    fix: str
    args: str = ""
    fault: str = ""
    """The fault to plant, by default that of the case's name; none: the surroundings are at fault."""
    layouts: tuple[str, ...] = ("merged", "log-dir")
    also: list[str] = field(default_factory=list)
    """Other symptoms that the record alone does not exclude."""
    env: dict[str, str] = field(default_factory=dict)
    launch: str = ""
    """Further torchrun options; {port} is a free port."""
    first: str = ""
    """A command run before, its output not kept."""
    checkpoint_disk: str = ""
    hold_port: bool = False
    tasks: int = 4
    """How many plain processes are started in the srun-l layout (the world size stays 4)."""
    ranks_in: dict[str, list[int]] = field(default_factory=dict)
    note: str = ""


TUNING = "distributed-feature-api-and-communication-tuning"
CODE = "code-model-and-data-correction"
LAUNCH = "environment-and-launch-configuration"
RESOURCES = "resource-and-memory-tuning"
VERSIONS = "version-and-dependency-management"
REPAIR = "infrastructure-repair-and-recovery"

CASES: dict[str, Case] = {
    "loader-bad-sample": Case(
        "data-pipeline-failure",
        "data-or-input-defect",
        [2],
        CODE,
        args="--workers 1",
        layouts=("merged", "log-dir", "srun-l"),
        note="A cell of row 37 of rank 2's shard is not a number; it is parsed in a DataLoader worker.",
    ),
    "short-last-batch": Case(
        "tensor-shape-or-dtype-mismatch",
        "data-or-input-defect",
        [1],
        CODE,
        layouts=("merged", "log-dir", "srun-l", "tee"),
        note="Rank 1's shard is five rows short, so its last batch does not fit the fixed weights.",
    ),
    "rank-killed": Case(
        "worker-or-node-loss",
        "preemption-or-scheduler-action",
        [2],
        REPAIR,
        layouts=("merged", "log-dir", "tee", "srun-l"),
        also=["host-out-of-memory"],
        note="Rank 2 receives SIGKILL at step 11. Nothing in the record tells who sent it.",
    ),
    "segfault": Case(
        "native-crash",
        "framework-implementation-defect",
        [3],
        CODE,
        layouts=("merged", "log-dir"),
        note="Rank 3 writes through a null pointer by ctypes.",
    ),
    "segfault-faulthandler": Case(
        "native-crash",
        "framework-implementation-defect",
        [3],
        CODE,
        fault="segfault",
        env={"PYTHONFAULTHANDLER": "1"},
        layouts=("log-dir", "srun-l"),
        note="As segfault, with PYTHONFAULTHANDLER=1.",
    ),
    "missing-collective": Case(
        "collective-hang",
        "collective-order-divergence",
        [3],
        TUNING,
        layouts=("merged", "log-dir", "tee", "srun-l"),
        note="Rank 3 skips an all_reduce that the others wait in, and is busy for longer than the timeout.",
    ),
    "uneven-steps": Case(
        "collective-hang",
        "uneven-work-across-ranks",
        [1],
        TUNING,
        args="--one-epoch",
        also=["collective-desync"],
        note="Rank 1 has two batches, the others twenty; it goes on to the final barrier.",
    ),
    "size-mismatch-abort": Case(
        "collective-desync",
        "uneven-work-across-ranks",
        [1],
        TUNING,
        note="Rank 1 reduces 96 numbers, the others 64; the record does not name the odd rank.",
    ),
    "detail-mismatch": Case(
        "collective-desync",
        "collective-order-divergence",
        [2],
        TUNING,
        args="--no-ddp",
        env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
        note="Rank 2 calls broadcast where the others call all_reduce.",
    ),
    "detail-shape": Case(
        "collective-desync",
        "uneven-work-across-ranks",
        [3],
        TUNING,
        args="--no-ddp",
        env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
        layouts=("merged", "tee"),
        note="Rank 3 reduces 6 numbers, the others 8.",
    ),
    "detail-ddp-crash": Case(
        "native-crash",
        "framework-implementation-defect",
        [],
        VERSIONS,
        fault="none",
        env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "PYTHONFAULTHANDLER": "1"},
        note="Not planted: torch 2.13.0 itself crashes when DDP is built on gloo under "
        "TORCH_DISTRIBUTED_DEBUG=DETAIL.",
    ),
    "monitored-barrier": Case(
        "collective-hang",
        "uneven-work-across-ranks",
        [2],
        TUNING,
        note="Rank 2 evaluates for longer than the barrier's timeout.",
    ),
    "resume-mismatch": Case(
        "checkpoint-resume-failure",
        "checkpoint-layout-mismatch",
        [],
        CODE,
        fault="none",
        args="--hidden 64 --resume checkpoints/step-10.pt",
        first="torchrun --standalone --nproc-per-node 4 train.py --steps 10 --save-every 10",
        note="The checkpoint was written by the same program with hidden width 32.",
    ),
    "pretrained-mismatch": Case(
        "model-weight-loading-failure",
        "checkpoint-layout-mismatch",
        [],
        CODE,
        first='python -c "import torch; m = torch.nn.Sequential(torch.nn.Linear(16, 32), '
        "torch.nn.Linear(32, 4)); torch.save(m.state_dict(), 'pretrained.pt')\"",
        note="The weights come from another model with other parameter names.",
    ),
    "import-missing": Case(
        "import-or-missing-symbol",
        "missing-or-misresolved-dependency",
        [],
        VERSIONS,
        layouts=("merged", "log-dir", "srun-l"),
        note="sentencepiece is not installed.",
    ),
    "batch-arithmetic": Case(
        "invalid-run-configuration",
        "parallel-strategy-misconfiguration",
        [],
        LAUNCH,
        note="The program's own validator refuses a global batch of 30 on 4 ranks.",
    ),
    "missing-api": Case(
        "unsupported-api-or-attribute",
        "framework-version-incompatibility",
        [],
        VERSIONS,
        note="The called function does not exist in torch.distributed.",
    ),
    "disk-full": Case(
        "checkpoint-save-failure",
        "host-resource-exhaustion",
        [0],
        RESOURCES,
        fault="none",
        args="--hidden 512 --save-every 12",
        checkpoint_disk="256k",
        note="The checkpoint folder is a tmpfs of 256 KiB, the checkpoint larger.",
    ),
    "no-permission": Case(
        "path-or-permission-error",
        "cross-node-environment-skew",
        [3],
        LAUNCH,
        layouts=("merged", "log-dir", "srun-l"),
        note="Rank 3 runs under another user id, which may not write to the output folder.",
    ),
    "host-memory": Case(
        "host-out-of-memory",
        "host-resource-exhaustion",
        [1],
        RESOURCES,
        note="Rank 1 asks for more memory than its RLIMIT_AS.",
    ),
    "port-in-use": Case(
        "rendezvous-setup-failure",
        "rendezvous-endpoint-conflict",
        [],
        LAUNCH,
        layouts=("merged", "srun-l"),
        fault="none",
        hold_port=True,
        launch="--master-port {port}",
        ranks_in={"srun-l": [0]},
        note="Another process listens on the port. Under torchrun the launcher itself binds it, so no rank "
        "ever starts; without torchrun rank 0 binds it.",
    ),
    "rendezvous-timeout": Case(
        "rendezvous-setup-hang",
        "launcher-or-rank-misconfiguration",
        [],
        LAUNCH,
        layouts=("merged", "srun-l"),
        fault="none",
        launch="--nnodes 2 --rdzv-backend c10d --rdzv-endpoint localhost:{port} --rdzv-conf join_timeout=8",
        tasks=3,
        note="merged: --nnodes 2, but only one node started. srun-l: world size 4, but only ranks 0 to 2 "
        "started.",
    ),
    "nan-loss": Case(
        "numerical-instability",
        "precision-or-numerics-misconfiguration",
        [1],
        CODE,
        args="--anomaly",
        note="A logarithm of zero in rank 1's loss; autograd's anomaly detection raises.",
    ),
    "nan-check": Case(
        "numerical-instability",
        "data-or-input-defect",
        [2],
        CODE,
        args="--check-loss --plain",
        layouts=("merged", "tee"),
        note="Rank 2 divides a batch by zero; the program's own check raises.",
    ),
    "unused-parameter": Case(
        "step-execution-error",
        "model-construction-error",
        [],
        TUNING,
        note="A layer takes no part in the loss.",
    ),
    "graceful-late": Case(
        "tensor-shape-or-dtype-mismatch",
        "data-or-input-defect",
        [2],
        CODE,
        args="--log-errors --timeout 3",
        layouts=("merged", "log-dir", "tee", "srun-l"),
        note="Rank 2 fails first and logs it, then flushes its buffer for longer than the timeout of its "
        "peers, which therefore exit first; torchrun ends it with SIGTERM.",
    ),
    "graceful-late-record": Case(
        "tensor-shape-or-dtype-mismatch",
        "data-or-input-defect",
        [3],
        CODE,
        args="--timeout 3",
        env={"TRAIN_RECORD": "1"},
        note="Rank 3 fails first, but is flushing while its peers die; its traceback and its error.json, "
        "stamped later than theirs, are written after torchrun's SIGTERM, which it handles.",
    ),
    "graceful-late-sigterm": Case(
        "data-pipeline-failure",
        "data-or-input-defect",
        [1],
        CODE,
        args="--timeout 3",
        also=["step-execution-error"],
        note="Rank 1 fails first, but its traceback is the last to be printed: it finishes flushing although "
        "torchrun has sent SIGTERM.",
    ),
}


def blamed(console: str) -> int | None:
    """The rank in torchrun's table of the first observed failure."""
    found = re.search(r"Root Cause \(first observed failure\):.*?rank\s+: (\d+)", console, re.DOTALL)
    return int(found[1]) if found else None


def toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value) if not isinstance(value, list) else "[" + ", ".join(toml(v) for v in value) + "]"


def write_case(target: Path, case: Case, layout: str, how: str, versions: str) -> None:
    note = case.note
    if layout == "srun-l":
        note += " The labels were added by the maker, not by srun; after the first bad exit the maker waited "
        note += f"{KILL_WAIT_S:g} s and sent SIGTERM to the others, as srun --kill-on-bad-exit does."
    truth: dict[str, object] = {
        "symptom": case.symptom,
        "cause": case.cause,
        "ranks": case.ranks_in.get(layout, case.ranks),
        "fix": case.fix,
    }
    if case.also:
        truth["also"] = case.also
    guess = blamed((target / "input/console.log").read_text(errors="replace"))
    if guess is not None:
        truth["torchrun_blamed"] = guess
    made = {
        "how": how,
        "versions": versions,
        "layout": layout,
        "date": date.today().isoformat(),
        "synthetic": False,
        "note": f"{note} {UNALTERED}",
    }
    lines = []
    for title, table in (("truth", truth), ("made", made)):
        lines += [f"[{title}]", *(f"{k} = {toml(v)}" for k, v in table.items()), ""]
    (target / "case.toml").write_text("\n".join(lines).rstrip("\n") + "\n")


def make(name: str, case: Case, layout: str, venv: Path, versions: str) -> None:
    target = HERE / name / layout
    shutil.rmtree(target, ignore_errors=True)
    (target / "input").mkdir(parents=True)
    fault = case.fault or name
    program = ["train.py", *([] if fault == "none" else ["--fault", fault]), *shlex.split(case.args)]
    port = free_port()
    with tempfile.TemporaryDirectory() as folder, socket.socket() as holder:
        place = Place(Path(folder), HERE / "train.py", venv, case.checkpoint_disk)
        if case.hold_port:
            holder.bind(("0.0.0.0", port))
            holder.listen()
        if case.first:
            tool, *rest = shlex.split(case.first)
            to_file(
                place, [*(TORCHRUN if tool == "torchrun" else [PYTHON]), *rest], {}, Path(folder) / "first"
            )
        console = target / "input/console.log"
        shown = "".join(f"{k}={v} " for k, v in case.env.items())
        if layout == "srun-l":
            env = case.env | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            labelled(place, [PYTHON, *program], env, case.tasks, 4, console)
            how = f"{shown}RANK=0..{case.tasks - 1} WORLD_SIZE=4 MASTER_PORT={port} "
            how += shlex.join(["python", *program])
        else:
            options = ["--nproc-per-node", "4"]
            launch = case.launch or ("--standalone" if layout == "log-dir" else "--master-port {port}")
            options += shlex.split(launch.format(port=port))
            options += {"log-dir": ["--log-dir", "logs", "--redirects", "3"], "tee": ["--tee", "3"]}.get(
                layout, []
            )
            to_file(place, [*TORCHRUN, *options, *program], case.env, console)
            how = shown + shlex.join(["torchrun", *options, *program])
        if layout == "log-dir":
            shutil.copytree(Path(folder) / "train/logs", target / "input", dirs_exist_ok=True)
    if case.first:
        how = f"{case.first} && {how}"
    write_case(target, case, layout, how, versions)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of: {' '.join(CASES)}")
    parser.add_argument("--layout", help="only this layout")
    parser.add_argument(
        "--python", default=sys.executable, help="the python of a virtual environment with torch"
    )
    options = parser.parse_args()
    probe = "import platform, torch; print(f'torch {torch.__version__}, python {platform.python_version()}')"
    versions = subprocess.check_output([options.python, "-c", probe], text=True).strip()
    venv = Path(options.python).absolute().parent.parent
    for name in options.cases or CASES:
        for layout in CASES[name].layouts:
            if options.layout in (None, layout):
                began = time.monotonic()
                make(name, CASES[name], layout, venv, versions)
                print(f"{name}/{layout} {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
