"""`--via 'srun -N4'`: the user's own command starts us on each node. Nothing goes through a shell."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from paramedic.errors import ParamedicError
from paramedic.model import Skipped


@dataclass(frozen=True, slots=True)
class Ended:
    output: str
    skipped: list[Skipped]


def on_nodes(via: str, arguments: Sequence[str], seconds: float, keep_output: bool = False) -> Ended:
    """What was printed is kept, or goes to standard error, as does all that the starter itself says."""
    try:
        words = shlex.split(via)
    except ValueError as error:
        raise ParamedicError(f"--via {via}: {error}") from None
    command = [*words, sys.executable, "-m", "paramedic", *arguments]
    try:
        done = subprocess.run(
            command,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if keep_output else sys.stderr,
            check=False,
        )
    except FileNotFoundError:
        raise ParamedicError(f"--via: {words[0] if words else '?'}: no such command") from None
    except PermissionError:
        raise ParamedicError(f"--via: {words[0]}: may not be started") from None
    except subprocess.TimeoutExpired as late:
        text = (late.stdout or b"").decode("utf-8", "replace")
        return Ended(text, [Skipped("--via", f"did not end in {seconds:.0f} s; what came by then was used")])
    text = (done.stdout or b"").decode("utf-8", "replace")
    return Ended(text, [Skipped("--via", f"ended with exit code {done.returncode}")] if done.returncode else [])
