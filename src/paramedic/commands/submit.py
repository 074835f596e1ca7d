"""run a program on many ranks: here, on Ray, Slurm or Kubernetes; tried again where its cause says that it helps

The ranks are started by torchrun, watched, and diagnosed when they fail. Whether to try again is decided by the
diagnosed cause; an attempt goes on from the newest complete checkpoint (PARAMEDIC_RESUME, or {resume} in the command).
The job outlives this command: `paramedic jobs`, `logs` and `cancel` find it from any shell.

  paramedic submit --ranks 2 -- python train.py
  paramedic submit --engine slurm --nodes 4 --gpus 8 --option partition=train --checkpoint runs/x -- python train.py
  paramedic submit --ranks 2 --tunable micro_batch=16:1:64 --tunable accumulation=1:1:64 \\
      -- python train.py --batch {micro_batch} --accumulate {accumulation} --resume={resume}
  paramedic submit --engine kubernetes --nodes 2 --gpus 8 --option image=registry/train:1 --dry-run -- python train.py

Exit codes: 0 submitted; with --wait the program's own (1 where it has none, 130 when the job was cancelled).
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from typing import TYPE_CHECKING, Any

from paramedic.commands import flags
from paramedic.errors import ParamedicError

if TYPE_CHECKING:
    from paramedic.submit.job import Job
    from paramedic.submit.spec import Spec

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("command", metavar="COMMAND", nargs=argparse.REMAINDER, help="the program, after --")
    group = parser.add_argument_group("where")
    group.add_argument(
        "--engine", choices=("local", "ray", "slurm", "kubernetes"), default="local", help="(default: local)"
    )
    group.add_argument("--nodes", type=int, default=1, metavar="N", help="(default: 1)")
    size = group.add_mutually_exclusive_group()
    size.add_argument("--gpus", type=int, metavar="N", help="GPUs of each node, and a rank for each")
    size.add_argument("--ranks", type=int, metavar="N", help="ranks of each node, without GPUs (default: 1)")
    group.add_argument("--time-limit", metavar="TIME", help="of an attempt: 90s, 30m, 4h")
    group.add_argument(
        "--option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="for the engine: partition=…, image=…, address=…",
    )
    group.add_argument("--env", metavar="KEY=VALUE", action="append", default=[], help="for the ranks")
    group.add_argument("--ship", action="store_true", help="run on a copy of this folder's code, named by its content")
    again = parser.add_argument_group("trying again")
    again.add_argument(
        "--checkpoint", metavar="DIR", help="where the program saves; the newest complete one is resumed"
    )
    again.add_argument(
        "--tunable", metavar="NAME=VALUE:LOW:HIGH", action="append", default=[],
        help="a number that may be changed when memory does not suffice; {NAME} in the command",
    )  # fmt: skip
    again.add_argument(
        "--step", metavar="ARGUMENTS",
        help="as `memory estimate` takes them, with {NAME}: asked before the launch and when memory did not suffice",
    )  # fmt: skip
    again.add_argument(
        "--retry",
        metavar="CAUSE=N|replan|never",
        action="append",
        default=[],
        help="instead of the default for a cause",
    )
    again.add_argument("--most-attempts", type=int, default=10, metavar="N", help="(default: 10)")
    how = parser.add_argument_group("how")
    how.add_argument("--name", help="(default: the program's)")
    how.add_argument("--key", help="submitting twice with one key gives one job")
    how.add_argument("--force", action="store_true", help="also what will fail for certain")
    how.add_argument("--wait", action="store_true", help="show what the ranks print, until the job has ended")
    how.add_argument("--dry-run", action="store_true", help="show what the engine would be given, and start nothing")
    how.add_argument("--format", choices=("text", "json"), default="text")


def run(args: argparse.Namespace) -> int:
    from paramedic.submit import job as jobs

    spec = _spec(args)
    if args.dry_run:
        print(_rendered(spec))
        return 0
    job = jobs.start(spec, args.key)
    if args.format == "json" and not args.wait:
        import json

        print(json.dumps({"schema_version": 1, "id": job.id, "engine": spec.engine, "phase": job.standing.phase}))
    elif not args.wait:
        print(job.id)
    for event in job.events():
        for text in event.fields.get("concerns", ()):
            flags.say(f"paramedic: {text}")
    return _wait(job) if args.wait else 0


def _spec(args: argparse.Namespace) -> Spec:
    from paramedic.submit import code
    from paramedic.submit.job import plain_name, python_of
    from paramedic.submit.spec import Spec, checked, parse_tunable
    from paramedic.submit.store import default_root

    command = tuple(args.command[1:] if args.command[:1] == ["--"] else args.command)
    here = os.getcwd()
    program = next((word for word in command if word.endswith(".py")), command[0] if command else "")
    spec = checked(
        Spec(
            name=args.name or plain_name(os.path.splitext(os.path.basename(program))[0]),
            engine=args.engine,
            python=python_of(command),
            workdir=here,
            command=command,
            nodes=args.nodes,
            ranks_per_node=args.gpus if args.gpus is not None else args.ranks if args.ranks is not None else 1,
            gpus_per_rank=int(args.gpus is not None),
            checkpoint=os.path.abspath(args.checkpoint) if args.checkpoint else "",
            tunable=dict(parse_tunable(text) for text in args.tunable),
            step=args.step or "",
            retry={cause: _times(text) for cause, text in _pairs("retry", args.retry).items()},
            most_attempts=args.most_attempts,
            environment=_pairs("env", args.env),
            options=_pairs("option", args.option),
            time_limit_s=_seconds(args.time_limit),
            force=args.force,
        )
    )
    if args.ship and not args.dry_run:
        from dataclasses import replace

        return replace(spec, code=code.ship(here, default_root()))
    return spec


def _pairs(flag: str, given: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ParamedicError(f"--{flag} {text}: is written KEY=VALUE")
        found[name] = value
    return found


def _times(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else text


def _seconds(text: str | None) -> int:
    if text is None:
        return 0
    hit = re.fullmatch(r"([0-9]{1,7})([smhd])", text)
    if not hit or not int(hit[1]):
        raise ParamedicError(f"--time-limit {text}: is written like 90s, 30m or 4h")
    return int(hit[1]) * _UNITS[hit[2]]


def _rendered(spec: Spec) -> str:
    from paramedic.submit import engines
    from paramedic.submit.job import first_plan
    from paramedic.submit.store import default_root

    plan = first_plan(spec, f"{spec.name}-00000000", default_root())
    return shown(engines.get(spec.engine).render(plan))


def shown(rendered: Any) -> str:
    """A script as it is; manifests as YAML; a command as a line."""
    if isinstance(rendered, str):
        return rendered.rstrip("\n")
    if isinstance(rendered, list) and all(isinstance(word, str) for word in rendered):
        import shlex

        return shlex.join(rendered)
    from io import StringIO

    from ruamel.yaml import YAML

    page, yaml = StringIO(), YAML()
    yaml.default_flow_style = False
    yaml.width = 1 << 20  # a command stays one line: it is copied, and must not depend on how long a path is
    yaml.dump_all(rendered, page) if isinstance(rendered, list) else yaml.dump(rendered, page)
    return page.getvalue().rstrip("\n")


def _wait(job: Job) -> int:
    """Ctrl-C leaves the job running: it has its own controller."""
    from paramedic.report.escape import printable

    flags.say(f"paramedic: job {job.id}")
    try:
        for line in job.logs(follow=True):
            print(printable(line), flush=True)
    except KeyboardInterrupt:
        flags.say(f"paramedic: {job.id} goes on; `paramedic cancel {job.id}` ends it")
        return 130
    phase = job.wait()
    _told(job)
    if phase == "done":
        return 0
    return 130 if phase == "cancelled" else job.attempts[-1].code or 1


def _told(job: Job) -> None:
    from paramedic.report.escape import printable

    for one in job.attempts:
        if one.failure is not None:
            flags.say(f"paramedic: attempt {one.number}: {printable(one.cause)}: {one.action}: {printable(one.why)}")
    report = f"{job.folder()}/report.txt"
    if job.standing.phase == "failed" and os.path.isfile(report) and sys.stderr is not None:
        with open(report, encoding="utf-8", errors="replace") as file:
            flags.say(file.read())
