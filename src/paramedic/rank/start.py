"""Is this process a rank? Launchers, data-loader workers and compilers inherit our environment, too, and are left
alone."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from .agent import Agent

if TYPE_CHECKING:
    from .recorder import Recorder

FOLDER, RANK_PID = "PARAMEDIC_WATCH", "PARAMEDIC_RANK_PID"
RECORD, REPLAY = "PARAMEDIC_RECORD", "PARAMEDIC_REPLAY"
_SURE = (("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))
_LAUNCHERS = frozenset({
    "torchrun", "torch.distributed.run", "torch.distributed.launch", "deepspeed", "deepspeed.launcher.runner",
    "deepspeed.launcher.launch", "accelerate", "accelerate.commands.launch", "colossalai", "horovodrun", "mpirun",
    "paramedic", "ray",
})  # fmt: skip


agent: Agent | None = None


def start() -> None:
    """Watches a rank from its first line on; any other process only once it becomes one by `init_process_group`."""
    if os.environ.get(RANK_PID, "") not in ("", str(os.getpid())) or _is_launcher(_arguments()):
        return
    from . import hooks

    if os.environ.get(REPLAY):
        _replay(os.environ[REPLAY])
        return

    global agent  # noqa: PLW0603
    agent = Agent(os.environ[FOLDER])
    hooks.install(agent)
    os.register_at_fork(after_in_child=agent.forget)
    if os.environ.get(RECORD):
        _record(agent)
    rank, size = of_environment(os.environ)
    if rank is not None:
        os.environ[RANK_PID] = str(os.getpid())
        agent.begin(rank, size)


recorder: Recorder | None = None


def _record(watching: Agent) -> None:
    import atexit
    import json

    from . import hooks
    from .recorder import Recorder

    global recorder  # noqa: PLW0603
    one = recorder = Recorder(os.environ[FOLDER], json.loads(os.environ[RECORD]))
    hooks.look_at(one.program.patches(), watching.guarded)
    hooks.chain_excepthook(lambda kind, error, _: one.ended("exception", f"{kind.__name__}: {error}"))
    atexit.register(one.ended, "exit")
    os.register_at_fork(after_in_child=one.forget)


def _replay(settings: str) -> None:
    """Loaders' workers and other children of the program are not replayed."""
    import atexit
    import json

    from . import hooks
    from .player import Player

    os.environ[RANK_PID] = str(os.getpid())
    player = Player(json.loads(settings))
    hooks.look_at(player.patches(), lambda _, patch, module: patch(module))
    hooks.chain_excepthook(lambda _, error, __: player.ended(error))
    atexit.register(player.ended)
    os.register_at_fork(after_in_child=player.forget)


def of_environment(environ: os._Environ[str] | dict[str, str]) -> tuple[int | None, int | None]:
    """srun's variables are not taken: `srun torchrun` has them, too."""
    for rank, size in _SURE:
        if environ.get(rank, "").isdigit() and environ.get(size, "").isdigit():
            return int(environ[rank]), int(environ[size])
    return None, None


def _is_launcher(arguments: list[str]) -> bool:
    """`python -m torch.distributed.run …` or `/x/bin/torchrun …`: the first argument that is no flag says it."""
    rest = iter(arguments[1:])
    for argument in rest:
        if argument == "-m":
            return next(rest, "") in _LAUNCHERS
        if argument in ("-W", "-X"):
            next(rest, "")
        elif argument == "-c":
            return False
        elif not argument.startswith("-"):
            return os.path.basename(argument) in _LAUNCHERS
    return False


def _arguments() -> list[str]:
    given = getattr(sys, "orig_argv", None)
    if given is None:
        with open("/proc/self/cmdline", "rb") as file:
            given = file.read().decode("utf-8", "replace").split("\0")[:-1]
    return list(given)
