"""The command line for a case in a layout: who starts the ranks, and where what they print ends up."""

from __future__ import annotations

import shutil
from pathlib import Path

from paramedic.ward.case import Launch
from paramedic.ward.place import Place

LAYOUTS = {
    "torchrun": ("merged", "log-dir", "tee", "srun-l", "per-rank", "mpirun"),
    "plain": ("per-rank", "srun-l", "mpirun"),
    "mpirun": ("mpirun",),
}
"""What a launcher's job can be recorded as; the first is the canonical one."""
WITHOUT_LAUNCHER = ("srun-l", "per-rank", "mpirun")
"""Layouts in which no launcher of a framework takes part."""
STARTER = Path(__file__).parent / "starter.py"


def layouts(launcher: str) -> tuple[str, ...]:
    found = LAYOUTS.get(launcher, ("merged",))
    return found if shutil.which("mpirun") else tuple(layout for layout in found if layout != "mpirun")


def command(launch: Launch, layout: str, port: int, place: Place) -> list[str]:  # noqa: PLR0911 - one for each launcher
    """The words of the command; paths as the job sees them."""
    python = str(place.bin / "python")
    options = [option.replace("{port}", str(port)) for option in launch.options]
    program = ["train.py", *(argument.replace("{port}", str(port)) for argument in launch.args)]
    n = str(launch.ranks)
    if layout in ("srun-l", "per-rank"):
        shutil.copy(STARTER, place.root / "train/.starter.py")
        return [python, ".starter.py", layout, str(port), n, python, *program]
    match layout if layout == "mpirun" else launch.launcher:
        case "torchrun":
            where = {"log-dir": ["--log-dir", "logs", "--redirects", "3"], "tee": ["--tee", "3"]}.get(layout, [])
            own = _unless(options, ("nproc",), "--nproc-per-node", n)
            own += _unless(options, ("rdzv", "port", "--standalone"), "--master-port", str(port))
            return [python, str(place.bin / "torchrun"), *own, *where, *options, *program]
        case "mpirun":
            share = "RANK=$OMPI_COMM_WORLD_RANK LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK "
            share += 'WORLD_SIZE=$OMPI_COMM_WORLD_SIZE exec "$@"'
            mpi = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--tag-output", "-n", n, *options]
            address = ["-x", "MASTER_ADDR=127.0.0.1", "-x", f"MASTER_PORT={port}"]
            return [*mpi, *address, "bash", "-c", share, "rank", python, *program]
        case "deepspeed":
            own = _unless(options, ("master_port",), "--master_port", str(port))
            return [python, str(place.bin / "deepspeed"), *options, *own, *program]
        case "accelerate":
            own = _unless(options, ("num_processes", "config_file"), "--num_processes", n)
            own += _unless(options, ("main_process_port",), "--main_process_port", str(port))
            return [python, "-m", "accelerate.commands.launch", "--cpu", *own, *options, *program]
        case "colossalai":
            own = _unless(options, ("nproc",), "--nproc_per_node", n)
            own += _unless(options, ("master_port",), "--master_port", str(port))
            return [python, str(place.bin / "colossalai"), "run", *own, *options, *program]
        case "script":
            return ["bash", "launch.sh", *program[1:]]
        case _:
            return [python, *options, *program]


def _unless(options: list[str], said: tuple[str, ...], flag: str, value: str) -> list[str]:
    """The flag, where none of the case's own options says the same."""
    return [] if any(word in option for word in said for option in options) else [flag, value]
