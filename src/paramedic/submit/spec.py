"""What was asked for (Spec), what one attempt is (Plan), and how its ranks are started: values and pure functions."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from paramedic.errors import ParamedicError

ENGINES = ("local", "ray", "slurm", "kubernetes")
MARK = "PARAMEDIC_ATTEMPT"
"""Every process of an attempt has it in its environment, as JOB/NUMBER: so it is found again, whoever its parent is."""
WATCH, LOGS, ENGINE = "watch", "logs", "engine"
"""The folders of an attempt: what the watcher left, what the ranks printed, what the engine says."""
_LAUNCHERS = ("torchrun", "deepspeed", "accelerate", "srun", "mpirun", "mpiexec", "colossalai", "horovodrun")
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_PLACE = re.compile(r"\{([a-z_][a-z0-9_]*)\}")
_MOST_RANKS = 1 << 17


@dataclass(frozen=True, slots=True)
class Tunable:
    """A number that may be changed between attempts without changing what is computed."""

    value: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Spec:
    name: str
    engine: str
    python: str
    workdir: str
    command: tuple[str, ...] = ()
    function: str = ""
    """`module:name`; it is called with `arguments`."""
    arguments: Any = None
    code: str = ""
    """The content-hashed copy of the program's folder, where it is shipped."""
    nodes: int = 1
    ranks_per_node: int = 1
    gpus_per_rank: int = 0
    cpus_per_rank: int = 1
    checkpoint: str = ""
    tunable: Mapping[str, Tunable] = field(default_factory=dict)
    step: str = ""
    """The step as `paramedic memory estimate` takes it; {micro_batch} stands for the tunable."""
    retry: Mapping[str, int | str] = field(default_factory=dict)
    most_attempts: int = 10
    environment: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    """The engine's own: a partition, a namespace, an address."""
    time_limit_s: int = 0
    force: bool = False

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def devices(self) -> int:
        """What an hour costs: GPUs, or ranks where there are none."""
        return self.world_size * max(self.gpus_per_rank, 1)

    @property
    def what(self) -> str:
        return self.function or " ".join(self.command)

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Spec:
        values = json.loads(text)
        tunable = {name: Tunable(**one) for name, one in values.pop("tunable").items()}
        return cls(**{**values, "command": tuple(values["command"]), "tunable": tunable})


@dataclass(frozen=True, slots=True)
class Plan:
    """One attempt of a job."""

    job: str
    number: int
    spec: Spec
    folder: str
    tunables: Mapping[str, int] = field(default_factory=dict)
    resume: str = ""
    exclude: tuple[str, ...] = ()

    @property
    def mark(self) -> str:
        return f"{self.job}/{self.number}"

    @property
    def engine_name(self) -> str:
        """What the engine calls it: the same after a crash of ours, so that it is found again."""
        return f"{self.job}-{self.number}"


def checked(spec: Spec) -> Spec:
    """Refuses what cannot be meant."""
    if spec.engine not in ENGINES:
        raise ParamedicError(f"--engine {spec.engine}: not one of {', '.join(ENGINES)}")
    if not _NAME.fullmatch(spec.name) or len(spec.name) > 40:
        raise ParamedicError(f"--name {spec.name}: small letters, digits and single hyphens, at most 40 of them")
    for what, number in (
        ("nodes", spec.nodes),
        ("ranks of a node", spec.ranks_per_node),
        ("attempts", spec.most_attempts),
    ):
        if number < 1:
            raise ParamedicError(f"{number} {what}: at least one is needed")
    if spec.gpus_per_rank < 0 or spec.time_limit_s < 0 or spec.cpus_per_rank < 1:
        raise ParamedicError("GPUs and seconds are not negative, and a rank needs a processor")
    if spec.world_size > _MOST_RANKS:
        raise ParamedicError(f"{spec.world_size} ranks: more than any cluster has")
    if spec.engine == "local" and spec.nodes > 1:
        raise ParamedicError("--engine local is this machine alone: --nodes 1, or another engine")
    if not spec.function:
        _check_command(spec)
    _check_step(spec)
    return spec


def _check_command(spec: Spec) -> None:
    if not spec.command:
        raise ParamedicError("name the program after --: paramedic submit --ranks 8 -- python train.py")
    program = os.path.basename(spec.command[0])
    if program in _LAUNCHERS:
        raise ParamedicError(
            f"{program}: submit starts the ranks itself; name the program: submit --ranks 8 -- python train.py"
        )
    for word in spec.command:
        _check_places(word, "the command", {*spec.tunable, "resume"})


def _check_step(spec: Spec) -> None:
    try:
        words = shlex.split(spec.step)
    except ValueError as error:
        raise ParamedicError(f"--step {spec.step}: {error}") from None
    for word in words:
        _check_places(word, "--step", {*spec.tunable})


def _check_places(text: str, where: str, known: set[str]) -> None:
    for name in _PLACE.findall(text):
        if name not in known:
            raise ParamedicError(f"{{{name}}} in {where}: no --tunable has this name")


def names_python(command: Sequence[str]) -> bool:
    return bool(command) and os.path.basename(command[0]).startswith("python")


def filled(text: str, values: Mapping[str, object]) -> str:
    """`{micro_batch}` is its value in this attempt."""
    return _PLACE.sub(lambda hit: str(values[hit[1]]), text)


def parse_tunable(text: str) -> tuple[str, Tunable]:
    """`micro_batch=8:1:64`: its value, and how far it may be changed."""
    found = re.fullmatch(r"([a-z_][a-z0-9_]*)=([0-9]{1,9}):([0-9]{1,9}):([0-9]{1,9})", text)
    if not found:
        raise ParamedicError(f"--tunable {text}: is written like micro_batch=8:1:64 (value, lowest, highest)")
    return found[1], tunable(found[1], int(found[2]), (int(found[3]), int(found[4])))


def tunable(name: str, value: Any, bounds: Any) -> Tunable:
    try:
        low, high = bounds
    except (TypeError, ValueError):
        raise ParamedicError(f"tunable {name}: needs its lowest and highest value, not {bounds!r}") from None
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in (value, low, high)):
        raise ParamedicError(f"tunable {name}: whole numbers only")
    if not 1 <= low <= value <= high:
        raise ParamedicError(f"tunable {name}: {value} is not between {low} and {high}")
    return Tunable(value, low, high)


def rank_environment(plan: Plan) -> dict[str, str]:
    """What the ranks find in their environment."""
    spec = plan.spec
    found = {
        **spec.environment,
        MARK: plan.mark,
        "PARAMEDIC_JOB": plan.job,
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[rank${rank}]: ",
    }
    if spec.checkpoint:
        found["PARAMEDIC_CHECKPOINT"] = spec.checkpoint
    if plan.resume:
        found["PARAMEDIC_RESUME"] = plan.resume
    return found


def program(plan: Plan) -> list[str]:
    """What torchrun starts on each rank, after its own options."""
    spec = plan.spec
    if spec.function:
        return ["-m", "paramedic.submit.call"]
    values = {name: str(value) for name, value in plan.tunables.items()} | {"resume": plan.resume}
    words = [
        filled(word, values)
        for word in spec.command
        if plan.resume or "{resume}" not in word  # `--resume={resume}` is left out where there is nothing to resume
    ]
    if names_python(words):
        return words[1:]
    return ["--no-python", *words]


def call(plan: Plan) -> dict[str, Any] | None:
    """The function and its arguments, with the tunables as they are in this attempt."""
    spec = plan.spec
    if not spec.function:
        return None
    arguments, named = spec.arguments
    if plan.tunables and arguments and isinstance(arguments[0], dict):
        arguments = [{**arguments[0], **plan.tunables}, *arguments[1:]]
    elif plan.tunables:
        named = {**named, **plan.tunables}
    return {"function": spec.function, "arguments": arguments, "named": named}


def launch(plan: Plan) -> dict[str, Any]:
    """All that a node needs to know to start its ranks; written as launch.json."""
    spec = plan.spec
    return {
        "job": plan.job,
        "number": plan.number,
        "nodes": spec.nodes,
        "ranks_per_node": spec.ranks_per_node,
        "python": spec.python,
        "program": program(plan),
        "call": call(plan),
        "workdir": spec.code or spec.workdir,
        "environment": rank_environment(plan),
    }
