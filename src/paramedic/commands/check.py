"""look before the launch: versions, environment, node health and checkpoint, and what to change

Nothing is started but our own probe, which takes less than a second a node; what follows -- is read, never run.

  paramedic check
  paramedic check --via 'srun -N4 --ntasks-per-node=1'
  paramedic check --checkpoint ckpt/step-1000 -- torchrun --nproc-per-node 8 train.py
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from paramedic.commands import flags
from paramedic.commands.via import on_nodes
from paramedic.errors import ParamedicError
from paramedic.model import Fact, Finding, Report, Run, Skipped, Source

if TYPE_CHECKING:
    from paramedic.collect.probe import Seen

_VIA_SECONDS = 240.0


@dataclass(slots=True)
class Part:
    """What one part of the check has seen."""

    sources: list[Source] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    found: list[Finding] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("command", metavar="COMMAND", nargs="*", help="after --: the launch command, to be read")
    parser.add_argument("--checkpoint", metavar="DIR", help="the checkpoint that the job will resume from")
    parser.add_argument("--deep", action="store_true", help="also what takes longer: hashes, a short self-test of GPUs")
    parser.add_argument("--python", metavar="FILE", help="the Python that will train (default: this one)")
    parser.add_argument(
        "--refresh-facts", action="store_true", help="ask the package index for releases, and keep the answer"
    )
    nodes = parser.add_argument_group("several nodes")
    nodes.add_argument("--via", metavar="COMMAND", help="start the probe on each node with this, as 'srun -N4'")
    nodes.add_argument("--probe-only", action="store_true", help=argparse.SUPPRESS)
    flags.add_report_flags(parser)


def run(args: argparse.Namespace) -> int:
    if args.probe_only:
        return _answer(args)
    config = flags.settings(args)
    if args.refresh_facts:
        _refresh()
    parts = [part(args) for part in PARTS]
    seen = Run(
        "check",
        tuple(source for part in parts for source in part.sources),
        facts=tuple(fact for part in parts for fact in part.facts),
        skipped=tuple(one for part in parts for one in part.skipped),
    )
    from paramedic.pipeline import check

    report: Report = check(seen, flags.options(config), [one for part in parts for one in part.found])
    report = _repaired(report, args)
    flags.write_report(report, args, config)
    return flags.exit_code(report, config.fail_on)


def _answer(args: argparse.Namespace) -> int:
    """On a node: what it sees, as lines for whoever asked."""
    from paramedic.collect.gather import as_lines
    from paramedic.collect.probe import answer

    for line in as_lines(answer(args.python, args.deep)):
        print(line, flush=True)
    return 0


def _environment(args: argparse.Namespace) -> Part:
    """This node, or those that --via reaches."""
    from paramedic.collect.probe import parsed, seen

    if not args.via:
        return _part([seen(args.python, args.deep)])
    from paramedic.collect.gather import from_lines

    start = time.time()
    arguments = ["check", "--probe-only", *(["--python", args.python] if args.python else [])]
    arguments += ["--deep"] if args.deep else []
    ended = on_nodes(args.via, arguments, _VIA_SECONDS, keep_output=True)
    answers, broken = from_lines(ended.output.split("\n"))
    if not answers:
        raise ParamedicError(f"--via {args.via}: no node answered; is paramedic installed at {sys.executable} there?")
    nodes = [parsed(answer, "--via") for answer in answers]
    part = _part(nodes)
    for node in nodes:
        part.facts += [
            Fact("asked from", start, "clock", host=node.host),
            Fact("asked until", time.time(), "clock", host=node.host),
        ]
    part.skipped += ended.skipped
    if broken:
        part.skipped.append(Skipped("--via", f"{broken} answers came only in part"))
    return part


def _part(nodes: Sequence[Seen]) -> Part:
    made = Part()
    for node in nodes:
        made.sources.append(Source(f"node {node.host}", "probe", host=node.host))
        made.facts += node.facts
        made.skipped += node.skipped
    return made


def _checkpoint(args: argparse.Namespace) -> Part:
    if not args.checkpoint:
        return Part()
    from paramedic.collect.checkpoints import look_into

    with flags.progress_bar() as progress:
        look = look_into(args.checkpoint, args.deep, progress)
    size = sum(look.files.values())
    return Part([Source(args.checkpoint, "checkpoint", bytes=size)], look.facts, look.skipped)


def _launch(args: argparse.Namespace) -> Part:
    from paramedic.collect.launch import wanted

    return Part(facts=wanted(args.command))


def _repaired(report: Report, args: argparse.Namespace) -> Report:
    """With the smallest change that ends all conflicts of versions, where pip's resolver has accepted one."""
    from paramedic import repair
    from paramedic.collect.index import reachable
    from paramedic.detect.nodes import nodes
    from paramedic.knowledge.advisories import load_advisories

    there = nodes(report.run)
    if len(there) != 1 or args.via:
        return report
    found = repair.conflicts(there[0], load_advisories())
    if not found or not {one.rule for one in found} & {one.rule for one in report.findings}:
        return report
    if not reachable():
        why = "the package index cannot be reached, so no change of versions could be proven"
        return replace(report, skipped=(*report.skipped, Skipped("smallest change", why)))
    if not args.quiet:
        flags.say("paramedic: asks pip's resolver for the smallest change (dry run)")
    made = repair.smallest(there[0], found)
    if not made.changes:
        why = f"none of {len(made.refused)} changes was accepted by pip's resolver: {'; '.join(made.refused[:2])}"
        return replace(report, skipped=(*report.skipped, Skipped("smallest change", why[:500])))
    fix, rules = repair.as_fix(made), {one.rule for one in found}
    findings = [replace(one, fixes=(fix, *one.fixes)) if one.rule in rules else one for one in report.findings]
    return replace(report, findings=tuple(findings))


PARTS: tuple[Callable[[argparse.Namespace], Part], ...] = (_environment, _checkpoint, _launch)
"""In this order. Addresses, routes and ports of the nodes will be one more part."""


def _refresh() -> None:
    import json

    from paramedic.collect.releases import renewed
    from paramedic.knowledge.facts import renewed_file

    said = renewed(datetime.now(UTC).date().isoformat(), say=lambda text: flags.say(f"paramedic: {text}"))
    path = renewed_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    flags.write_file(str(path), json.dumps(said))
    flags.say(f"paramedic: facts of {said['date']} about {len(said['projects'])} projects are in {path}")
