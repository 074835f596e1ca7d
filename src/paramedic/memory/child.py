"""Runs in a process of its own, because the stand-in for CUDA must be loaded before torch. JSON in, JSON out."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from paramedic.errors import ParamedicError
from paramedic.memory import guard
from paramedic.memory.request import Request

LONGEST_REASON = 600


def main(answers: int) -> int:
    """A line on standard input is a task, a line on `answers` its result. The user's code sees neither."""
    with os.fdopen(os.dup(0), encoding="utf-8") as asked, os.fdopen(answers, "w", encoding="utf-8") as said:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        if not os.environ.get("PARAMEDIC_DEBUG"):
            os.dup2(nothing, 2)
        sys.stdin = os.fdopen(0, closefd=False)
        with contextlib.redirect_stdout(sys.stderr):  # whatever the user's code prints is no result
            for number, line in enumerate(asked):
                task = json.loads(line)
                if not number:
                    _start(task)
                said.write(json.dumps(_one(task)) + "\n")
                said.flush()
    return 0


def _limit(limits: dict[str, int]) -> None:
    import resource

    for name, value in limits.items():
        number = getattr(resource, name)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(number, (value, resource.getrlimit(number)[1]))


def _start(task: dict[str, Any]) -> None:
    _limit(task["limits"])
    if task["library"]:
        guard.load(Path(task["library"]))
    if not os.environ.get("PARAMEDIC_DEBUG"):
        logging.disable(logging.ERROR)  # torch logs each shape it cannot tell; those are handled
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ["CUDA_VISIBLE_DEVICES"] = "" if task["way"] != "card" else os.environ.get("CUDA_VISIBLE_DEVICES", "0")


def _one(task: dict[str, Any]) -> dict[str, Any]:
    start = time.monotonic()
    try:
        from paramedic.memory.ranks import traced

        result = traced(Request.from_dict(task["request"]), task["way"], task["capacities"])
    except ParamedicError as error:
        return {"error": str(error)}
    except MemoryError:
        return {"error": "tracing the step took more memory than this process may have"}
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the user's code may also exit, or raise what is no Exception
        if os.environ.get("PARAMEDIC_DEBUG"):
            traceback.print_exc()
        return {"error": _reason(error)}
    return result | {"seconds": round(time.monotonic() - start, 2)}


def _reason(error: BaseException) -> str:
    """The step failed: by what, and where in code that is not ours."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [
        frame for frame in frames if "/paramedic/memory/" not in frame.filename and "/torch/" not in frame.filename
    ]
    where = f" at {theirs[-1].filename}:{theirs[-1].lineno}" if theirs else ""
    text = " ".join(str(error).split())[:LONGEST_REASON]
    return f"the step fails{where}: {type(error).__name__}: {text}"


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
