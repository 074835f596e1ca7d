"""test, explain and plan the communication configuration before the job starts

`probe` prints what this node shows, `check` finds what would go wrong over all nodes and lets them dial each other,
`plan` chooses interfaces, master and port, `verify` starts a real group with the plan. On other nodes `agent` takes
part; start it with whatever you have (srun, mpirun, kubectl exec, pdsh). It takes no orders but to dial, and ends by
itself.

  paramedic net check --via 'srun -N4 --ntasks-per-node=1' --nodes 4 --dir /shared/net
  paramedic net check --listen 0.0.0.0:4040 --nodes 4 --token-file t      and on each node:
  paramedic net agent --gather head:4040 --token-file t
  paramedic net plan job.net.json --format torchrun
"""

from __future__ import annotations

import argparse
import io
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paramedic.commands import flags
from paramedic.errors import ParamedicError

if TYPE_CHECKING:
    from paramedic.knowledge import Knowledge
    from paramedic.model import Run
    from paramedic.network.outputs import Job
    from paramedic.network.plan import Conflict, Plan
    from paramedic.network.session import Session
    from paramedic.report import ShownReport

_MIN_SECONDS = 1.0
PLAN_FORMATS = ("text", "json", "env", "torchrun", "srun", "mpirun", "hostfile", "accelerate", "kubernetes")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=type(parser))
    probe = actions.add_parser("probe", help="this node's network facts as JSON; under a second, nothing is sent")
    probe.add_argument("--resolve", metavar="HOST,…", default="", help="names to resolve, too")
    probe.add_argument("--output", metavar="FILE", help="write them there (FILE.net.json)")
    _add_command(probe)

    check = actions.add_parser(
        "check", help="what would go wrong, over all nodes: facts first, then every node dials the others"
    )
    check.add_argument("--no-test", action="store_true", help="facts only; no node dials another")
    check.add_argument("--record", metavar="FILE", help="keep facts and tests there (FILE.net.json)")
    flags.add_report_flags(check)

    plan = actions.add_parser(
        "plan", help="interfaces, master, port and family that fit all facts; or why there are none"
    )
    plan.add_argument(
        "--pin", metavar="NAME=VALUE[@HOST]", action="append", default=[],
        help="what must stay: master, port, family, GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME; may be repeated",
    )  # fmt: skip
    plan.add_argument("--nproc-per-node", metavar="N", type=int, default=1, help="ranks on each host (default: 1)")
    plan.add_argument(
        "--script", metavar="FILE", default="train.py", help="named in launch commands (default: train.py)"
    )
    plan.add_argument("--format", choices=PLAN_FORMATS, default="text", help="what to print (default: text)")
    plan.add_argument("--output", metavar="FILE", help="write it there instead")

    verify = actions.add_parser(
        "verify", help="start a real gloo group (NCCL where there are GPUs) on the nodes with the plan"
    )
    verify.add_argument("--plan", metavar="FILE", help="as `net plan --format json` wrote it (default: plan now)")
    verify.add_argument(
        "--seconds", metavar="S", type=float, default=60.0, help="then every rank is killed (default: 60)"
    )
    verify.add_argument("--format", choices=("text", "json"), default="text")

    for action in (check, plan, verify):
        _add_meeting(action, paths=action is not verify)
    check.add_argument(
        "--launch", metavar="COMMAND", default="", help="with --via: your launch command; it is read, not started"
    )

    agent = actions.add_parser("agent", help="take part on this node")
    agent.add_argument("--gather", metavar="HOST:PORT", help="where the checker listens")
    agent.add_argument("--dir", metavar="DIR", help="or the shared folder that it named")
    agent.add_argument("--token-file", metavar="FILE", help="the secret that both have (with --gather)")
    agent.add_argument("--name", metavar="NAME", help="of this node (default: its host name)")
    agent.add_argument(
        "--wait", metavar="SECONDS", type=float, default=60.0, help="at most, for each step (default: 60)"
    )
    agent.add_argument("--verify", action="store_true", help="may start a rank of Paramedic's own test group")
    _add_command(agent)


def _add_command(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "command",
        metavar="COMMAND",
        nargs="*",
        default=[],
        help="after --: your launch command; it is read, not started",
    )


def _add_meeting(parser: argparse.ArgumentParser, paths: bool) -> None:
    if paths:
        parser.add_argument(
            "path", metavar="PATH", nargs="*", help="files of `net probe` or `net check --record` instead"
        )
    nodes = parser.add_argument_group("nodes")
    nodes.add_argument("--nodes", metavar="N", type=int, help="how many take part")
    nodes.add_argument("--via", metavar="COMMAND", help="start the agents with this; needs --dir on a shared disk")
    nodes.add_argument("--dir", metavar="DIR", help="an empty or new folder that all nodes share")
    nodes.add_argument("--listen", metavar="HOST:PORT", help="or meet at this address")
    nodes.add_argument("--token-file", metavar="FILE", help="a secret that all have (with --listen)")
    nodes.add_argument(
        "--wait", metavar="SECONDS", type=float, default=60.0, help="for the nodes to come (default: 60)"
    )


def run(args: argparse.Namespace) -> int:
    if not sys.platform.startswith("linux"):
        raise ParamedicError("net reads /proc and talks to the kernel: it works on Linux")
    actions: dict[str, Callable[[argparse.Namespace], int]] = {
        "probe": _probe, "check": _check, "plan": _plan, "verify": _verify, "agent": _agent,
    }  # fmt: skip
    return actions[args.action](args)


# -- probe and agent -----------------------------------------------------------------------------------------------


def _probe(args: argparse.Namespace) -> int:
    from paramedic.collect.netfile import document
    from paramedic.collect.network import facts

    names = [name.strip() for name in args.resolve.split(",") if name.strip()]
    _write(args.output, _json(document(facts(names, command=args.command))))
    return 0


def _agent(args: argparse.Namespace) -> int:
    from paramedic.network.agent import take_part
    from paramedic.network.board import Board, Folder, Remote, token_of

    if bool(args.gather) == bool(args.dir):
        raise ParamedicError("net agent: needs --gather HOST:PORT or --dir DIR, one of them")
    if args.wait < _MIN_SECONDS or args.wait > 3600:
        raise ParamedicError("--wait: from 1 to 3600 seconds")
    verify: Callable[[Any], Any] | None = None
    if args.verify:
        from paramedic.network.rank import start_rank

        verify = start_rank
    with ExitStack() as stack:
        board: Board
        if args.dir:
            board = Folder(Path(args.dir), token_of(Path(args.dir), args.wait))
        else:
            from paramedic.collect.gather import address_of, read_token

            if not args.token_file:
                raise ParamedicError("--gather: needs --token-file, a secret that both sides have")
            board = Remote.at(address_of(args.gather), read_token(args.token_file), args.wait)
            stack.callback(board.close)
        take_part(board, args.name or socket.gethostname(), args.command, args.wait, flags.say, verify)
    return 0


# -- check ---------------------------------------------------------------------------------------------------------


class _Loading:
    """Rules are read while the nodes come."""

    def __init__(self, folders: tuple[Path, ...]) -> None:
        self._found: list[Knowledge | Exception] = []
        self._thread = threading.Thread(target=self._load, args=(folders,), daemon=True)
        self._thread.start()

    def _load(self, folders: tuple[Path, ...]) -> None:
        from paramedic.knowledge import load

        try:
            self._found.append(load(folders))
        except Exception as error:
            self._found.append(error)

    def result(self) -> Knowledge:
        self._thread.join()
        found = self._found[0]
        if isinstance(found, Exception):
            raise found
        return found


def _check(args: argparse.Namespace) -> int:
    from paramedic.network.meeting import recorded

    config = flags.settings(args)
    options = flags.options(config)
    rules = _Loading(options.rules)
    run = recorded(args.path) if args.path else _tested(args, lambda run: _say_at_once(run, rules, options, args))
    from paramedic.pipeline import foretell

    report = foretell(run, rules.result(), options)
    if args.record:
        from paramedic.collect.netfile import document

        flags.write_file(args.record, _json(document(run.facts)))
    _show(report, run, args, config)
    return flags.exit_code(report, config.fail_on)


def _tested(args: argparse.Namespace, at_once: Callable[[Run], None]) -> Run:
    from paramedic.network.meeting import meeting

    with meeting(args, flags.say) as session:
        session.gather(args.wait)
        if args.no_test:
            session.hall.put("plan", {})
        else:
            at_once(session.run())
            if sys.stderr is not None and sys.stderr.isatty() and not args.quiet:
                flags.say(f"paramedic: {len(session.named)} nodes came; now they dial each other")
            session.test()
    return session.run()


def _say_at_once(run: Run, rules: _Loading, options: Any, args: argparse.Namespace) -> None:
    """What facts alone show need not wait for the tests. The agents prepare meanwhile."""
    from paramedic.pipeline import foretell
    from paramedic.report.escape import one_line

    if not args.quiet:
        for one in foretell(run, rules.result(), options).findings:
            if one.severity == "error":
                flags.say(f"paramedic: {one_line(one.rule)}: {one_line(one.summary)}")


def _show(report: ShownReport, run: Run, args: argparse.Namespace, config: Any) -> None:
    from paramedic.report.reach import matrix, page, terminal

    shown = matrix(run.facts, report.findings)
    if config.format == "html":
        if not args.output:
            raise ParamedicError("--format html needs --output FILE")
        flags.write_file(args.output, page(report, shown))
        flags.say(f"paramedic: wrote {args.output}")
    elif config.format != "text" or args.quiet:
        flags.write_report(report, args, config)
    else:
        from paramedic.report.text import foretold

        kept = io.StringIO() if args.output else None
        console = flags.console(kept)
        console.print(terminal(shown, console.encoding), soft_wrap=True)
        foretold(report, console, args.verbose)
        if kept:
            _write(args.output, kept.getvalue())


def _write(output: str | None, text: str) -> None:
    if output:
        flags.write_file(output, text)
        flags.say(f"paramedic: wrote {output}")
    else:
        sys.stdout.write(text)


def _json(value: Any) -> str:
    from paramedic.report.json import dumps

    return dumps(value) + "\n"


# -- plan and verify -----------------------------------------------------------------------------------------------


def _plan(args: argparse.Namespace) -> int:
    if args.nproc_per_node < 1:
        raise ParamedicError("--nproc-per-node: from 1")
    from paramedic.network.meeting import recorded

    run = recorded(args.path) if args.path else _probed(args)
    found, job = _planned(run, args.pin, args.nproc_per_node, args.script)
    from paramedic.network import outputs
    from paramedic.network.plan import Conflict

    if isinstance(found, Conflict):
        _write(args.output, _json(_conflict(found)) if args.format == "json" else _conflict_text(found))
        return 1
    if args.format == "json":
        text = _json(outputs.document(found, job))
    elif args.format == "text":
        text = _plan_text(found, job)
    else:
        text = outputs.FORMATS[args.format](found, job)
    _write(args.output, text)
    return 0


def _probed(args: argparse.Namespace) -> Run:
    from paramedic.network.meeting import meeting

    with meeting(args, flags.say) as session:
        session.gather(args.wait)
        session.test()
    return session.run()


def _planned(run: Run, pins: list[str], nproc: int = 1, script: str = "train.py") -> tuple[Plan | Conflict, Job]:
    from paramedic.detect.topology import nodes
    from paramedic.network.outputs import Job
    from paramedic.network.plan import plan
    from paramedic.network.world import world

    return plan(world(run, pins)), Job(nproc, script, nodes(run))


def _conflict(found: Conflict) -> dict[str, Any]:
    return {
        "paramedic_plan": 1, "possible": False, "conflict": [one.text for one in found.facts],
        "cure": [one.cure or one.text for one in found.cure],
    }  # fmt: skip


def _conflict_text(found: Conflict) -> str:
    from paramedic.report.escape import one_line

    lines = ["No configuration fits these facts; together they leave none, and none of them is to spare:"]
    lines += [f"  - {one_line(one.text)}" for one in found.facts]
    lines += [
        "The smallest change that would cure it:",
        *(f"  - {one_line(one.cure or one.text)}" for one in found.cure),
    ]
    return "\n".join([*lines, _RELATIVE, ""])


_RELATIVE = "This holds for the facts as they were probed; probe again after a change."


def _plan_text(plan: Plan, job: Job) -> str:
    from paramedic.network.outputs import environment, slowest
    from paramedic.report.escape import one_line

    slow = slowest(plan)
    speed = f", {slow.speed / 1000:g} Gb/s at the slowest" if slow.speed else ""
    lines = [f"Master: {one_line(plan.master)} at {plan.address} port {plan.port}{speed}", ""]
    for plane, chosen in plan.endpoints.items():
        lines += [
            f"  {plane:<5} {one_line(host):<20} {chosen[host].interface:<12} {chosen[host].address}"
            for host in plan.order
        ]
    lines += ["", environment(plan, job).rstrip("\n"), "", _RELATIVE]
    return "\n".join(lines) + "\n"


def _verify(args: argparse.Namespace) -> int:
    if not 5 <= args.seconds <= 600:
        raise ParamedicError("--seconds: from 5 to 600")
    from paramedic.network.meeting import meeting

    given = _read_plan(args.plan) if args.plan else None
    with meeting(args, flags.say, verify=True) as session:
        session.gather(args.wait)
        document = given or _plan_now(session)
        said = session.verify(document, args.seconds)
    for left in session.skipped:
        flags.say(f"paramedic: {left.what}: {left.why}")
    failed = [host for host in document["order"] if not said.get(host, {}).get("ok")]
    if args.format == "json":
        sys.stdout.write(_json({"paramedic_verify": 1, "ok": not failed, "hosts": said}))
    else:
        sys.stdout.write(_verified_text(document, said))
    return int(bool(failed))


def _plan_now(session: Session) -> dict[str, Any]:
    from paramedic.network.outputs import document
    from paramedic.network.plan import Conflict

    found, job = _planned(session.run(), [])
    if isinstance(found, Conflict):
        session.hall.put("plan", {})
        raise ParamedicError("there is no plan to verify: " + "; ".join(one.text for one in found.facts))
    return document(found, job)


def _read_plan(path: str) -> dict[str, Any]:
    import json

    try:
        with open(path, encoding="utf-8") as file:
            said = json.loads(file.read(16 << 20))
    except OSError as error:
        raise ParamedicError(f"--plan {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise ParamedicError(f"--plan {path}: is no JSON") from None
    hosts = said.get("hosts") if isinstance(said, dict) and said.get("paramedic_plan") == 1 else None
    order = said.get("order") if isinstance(said, dict) else None
    right = (
        isinstance(hosts, dict)
        and isinstance(order, list)
        and order
        and all(isinstance(hosts.get(h), dict) and isinstance(hosts[h].get("env"), dict) for h in map(str, order))
    )
    if not right:
        raise ParamedicError(f"--plan {path}: is no plan as `net plan --format json` writes it")
    return dict(said)


def _verified_text(document: dict[str, Any], said: dict[str, Any]) -> str:
    from paramedic.report.escape import one_line

    lines = []
    for rank, host in enumerate(document["order"]):
        one = said.get(host, {})
        if one.get("ok"):
            rates = [rate for rate in one.get("pairs", {}).values() if isinstance(rate, int | float)]
            pace = f", to others {min(rates):,.0f} to {max(rates):,.0f} Mbit/s" if rates else ""
            what = (
                f"{one.get('backend')}: init {one.get('init_s')} s, all_reduce of 16 MiB {one.get('large_s')} s{pace}"
            )
        else:
            what = f"FAILED at {one.get('stage', 'start')}: {one.get('error', 'sent nothing in time')}"
        lines.append(one_line(f"rank {rank} {host}: {what}"))
    return "\n".join(lines) + "\n"
