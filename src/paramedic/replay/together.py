"""All ranks of a recording again, as processes that really talk to each other."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence

from paramedic.errors import ParamedicError
from paramedic.replay.alone import AGENT, STDERR
from paramedic.replay.reading import Recording, read


def record_again(recording: Recording, command: Sequence[str], folder: str, quiet: bool) -> Recording:
    if os.path.exists(os.path.join(folder, "recording")):
        raise ParamedicError(f"{folder}: holds a recording already; name another folder")
    os.makedirs(folder, exist_ok=True)
    before = os.environ.get("PYTHONPATH")
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([AGENT, *([before] if before else [])]),
        "PARAMEDIC_WATCH": os.path.abspath(folder),
        "PARAMEDIC_RECORD": json.dumps({"payload": "ring", "last": 1}),
    }
    threads = recording.heads[recording.ranks[0]]["environment"].get("threads")
    if isinstance(threads, int):
        variables["OMP_NUM_THREADS"] = str(threads)
    out = subprocess.DEVNULL if quiet else STDERR
    try:
        code = subprocess.run(
            list(command), env=variables, stdout=out, stderr=subprocess.DEVNULL if quiet else None, check=False
        ).returncode
    except OSError as error:
        raise ParamedicError(f"{command[0]}: cannot be started: {error.strerror or error}") from None
    try:
        return read(folder)
    except ParamedicError:
        why = f"the command ended with exit code {code} and no rank recorded anything"
        raise ParamedicError(f"{command[0]}: {why}; --procs needs the launcher, too") from None
