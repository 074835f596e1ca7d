"""Asking an engine's own commands: no shell, with a limit, and one clear line when they are not there."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from paramedic.errors import ParamedicError

_SECONDS = 60.0


def ask(command: Sequence[str], what: str, given: str | None = None, may_fail: bool = False) -> str:
    if not shutil.which(command[0]):
        raise ParamedicError(f"{command[0]}: not found here: {what}")
    try:
        done = subprocess.run(
            list(command), input=given, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise ParamedicError(f"{command[0]}: no answer within {_SECONDS:.0f} s") from None
    except OSError as error:
        raise ParamedicError(f"{command[0]}: cannot be started: {error.strerror or error}") from None
    if done.returncode and not may_fail:
        said = " ".join((done.stderr or done.stdout).split())[:300]
        raise ParamedicError(f"{command[0]}: {said or f'exit code {done.returncode}'}")
    return done.stdout
