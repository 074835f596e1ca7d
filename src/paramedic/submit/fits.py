"""Does the step fit the card? `paramedic memory estimate` is asked in a process of its own: torch stays out."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paramedic.submit.code import PACKAGES
from paramedic.submit.policy import Replan, less_memory
from paramedic.submit.spec import Spec, Tunable, filled

_SECONDS = 180
_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from paramedic.commands import main; sys.exit(main())"


@dataclass(frozen=True, slots=True)
class Answer:
    fits: str = ""
    """`yes`, `tight` or `no`; empty where it could not be estimated, and `text` says why."""
    text: str = ""


def asked(spec: Spec, values: Mapping[str, int]) -> Answer:
    words = [filled(word, values) for word in shlex.split(spec.step)]
    if "--world-size" not in words and "--dp" not in words:
        words += ["--world-size", str(spec.world_size)]
    command = [sys.executable, "-c", _BOOT, PACKAGES, "memory", "estimate", *words, "--format", "json"]
    try:
        done = subprocess.run(
            command, cwd=spec.workdir, capture_output=True, text=True, timeout=_SECONDS, check=False
        )  # fmt: skip
        if done.returncode not in (0, 1):
            return Answer(text=done.stderr.strip().split("\n")[-1][-300:])
        return _said(json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        return Answer(text=f"took longer than {_SECONDS} s")
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Answer(text=str(error)[:300])


def _said(document: Mapping[str, Any]) -> Answer:
    needs, has = document["device_total_bytes"]["mid"], document["gpu"]["memory_bytes"]
    return Answer(document["fits"], f"{needs / 2**30:.1f} GiB of {has / 2**30:.1f} GiB on {document['gpu']['name']}")


def smaller(spec: Spec) -> Replan:
    """Half the micro-batch, and half again while the estimate says that it does not fit."""

    def plan(values: Mapping[str, int], limits: Mapping[str, Tunable]) -> Mapping[str, int] | None:
        found = less_memory(values, limits)
        while found is not None and spec.step and asked(spec, found).fits == "no":
            found = less_memory(found, limits)
        return found

    return plan
