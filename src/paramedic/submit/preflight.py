"""What can be known before a job is started: a plain list of functions that take the plan. What fails for certain is
not started, unless it is forced."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator

from paramedic.errors import ParamedicError
from paramedic.submit import code, engines, fits
from paramedic.submit.engines import Concern
from paramedic.submit.policy import less_memory
from paramedic.submit.spec import Plan, Spec, names_python

_ENOUGH = 64 << 20
_READ = (".py", ".json", ".yaml", ".yml", ".toml")
_ASK = "import importlib.metadata as m, sys; print(sys.version_info[:2], m.version('torch'))"


def concerns(plan: Plan) -> list[Concern]:
    return [one for check in CHECKS for one in check(plan)]


def _engine(plan: Plan) -> list[Concern]:
    return engines.get(plan.spec.engine).check(plan)


def _program(plan: Plan) -> Iterator[Concern]:
    spec = plan.spec
    place = spec.code or spec.workdir
    if spec.function:
        if not code.defines(place, spec.function):
            yield Concern(True, f"{spec.function}: cannot be imported from {place}")
        return
    script = next((word for word in spec.command[1:] if word.endswith(".py")), "")
    if script and spec.engine != "kubernetes" and not os.path.isfile(os.path.join(place, script)):
        yield Concern(True, f"{script}: no such file in {place}")


def _versions(plan: Plan) -> Iterator[Concern]:
    """The program's own Python, and that it has torch; nothing heavy is imported for that."""
    spec = plan.spec
    if spec.engine == "kubernetes":  # the image's
        return
    if not shutil.which(spec.python):
        yield Concern(True, f"{spec.python}: no such Python")
        return
    try:
        done = subprocess.run([spec.python, "-c", _ASK], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Concern(False, f"{spec.python}: cannot be asked for its packages: {error}")
        return
    if done.returncode:
        yield Concern(True, f"{spec.python}: has no torch, which starts the ranks")


def _disk(plan: Plan) -> Iterator[Concern]:
    for what in (plan.folder, plan.spec.checkpoint):
        place = _existing(what) if what else ""
        if not place:
            continue
        if not os.access(place, os.W_OK):
            yield Concern(True, f"{what}: cannot be written to")
        elif (free := shutil.disk_usage(place).free) < _ENOUGH:
            yield Concern(True, f"{what}: only {free >> 20} MB are free")


def _existing(path: str) -> str:
    while not os.path.exists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def _tunables(plan: Plan) -> Iterator[Concern]:
    if "replan" in plan.spec.retry.values() and less_memory(plan.tunables, plan.spec.tunable) is None:
        yield Concern(False, "`replan` is asked for, but micro_batch and accumulation leave no room for it")


def _memory(plan: Plan) -> Iterator[Concern]:
    if plan.spec.step:
        answer = fits.asked(plan.spec, plan.tunables)
        if answer.fits in ("no", "tight"):
            verb = "does not fit" if answer.fits == "no" else "fits only just"
            yield Concern(answer.fits == "no", f"memory: the step {verb}: {answer.text}")
        elif not answer.fits:
            yield Concern(False, f"memory: the step could not be estimated: {answer.text}")


def _as_before_a_launch(plan: Plan) -> Iterator[Concern]:
    """What `paramedic check` says of the files that the job names, and of this machine where the ranks will run on it.
    An error in the job's own files is certain; one of the environment may concern what this job does not use."""
    from paramedic.collect.probe import seen
    from paramedic.collect.project import joined, read_command, read_project
    from paramedic.model import Run
    from paramedic.pipeline import check

    launch = _as_torchrun(plan.spec)
    parts = [read_project(path) for path in _named_files(plan.spec)]
    parts.append(read_command(launch))
    if plan.spec.engine == "local":
        with contextlib.suppress(ParamedicError):  # a Python that cannot be asked is another check's concern
            parts.append(Run("this machine", facts=seen(plan.spec.python, command=launch).facts))
    for one in check(joined(parts)).findings:
        if one.severity != "info":
            where = one.evidence[0].event if one.evidence else None
            place = f"{os.path.basename(where.source)}:{where.line} " if where and where.line and not where.host else ""
            yield Concern(one.severity == "error" and not one.hosts, f"{place}{one.rule}: {one.summary}")


def _as_torchrun(spec: Spec) -> list[str]:
    """The command that a user would have typed: it is read, not started."""
    program = spec.command[1:] if names_python(spec.command) else spec.command
    return ["torchrun", f"--nnodes={spec.nodes}", f"--nproc-per-node={spec.ranks_per_node}", *program]


def _named_files(spec: Spec) -> Iterator[str]:
    """The program, and configurations among its arguments."""
    place = spec.code or spec.workdir
    words = [f"{spec.function.partition(':')[0].replace('.', os.sep)}.py"] if spec.function else spec.command
    for name in dict.fromkeys(part for word in words for part in (word, word.partition("=")[2])):
        if name.endswith(_READ) and os.path.isfile(path := os.path.join(place, name)):
            yield path


CHECKS: list[Callable[[Plan], list[Concern] | Iterator[Concern]]] = [
    _engine, _program, _versions, _disk, _tunables, _as_before_a_launch, _memory,
]  # fmt: skip
