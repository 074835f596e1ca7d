"""say what a job that hangs now is waiting for, though nobody watched it

Finds the rank processes on this node, takes their stacks twice (py-spy, of the extra `attach`), their states, the dumps
and logs that they wrote, puts all into a folder and gives the verdict. `paramedic diagnose DIR` gives the same later.
The job is only looked at; py-spy pauses each process for a moment, unless --nonblocking.

  paramedic attach
  paramedic attach --pid 4711
  paramedic attach --via 'srun --jobid 99 --overlap -N4 --ntasks-per-node=1' --dir /shared/hang
  paramedic attach --listen 0.0.0.0:4040 --nodes 4 --token-file t      and on each node:
  paramedic attach --gather head:4040 --token-file t
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from paramedic.commands import flags
from paramedic.commands.via import on_nodes
from paramedic.config import Config
from paramedic.errors import ParamedicError
from paramedic.model import Skipped

_VIA_SECONDS = 300


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", nargs="*", help="logs and dumps to read with it")
    parser.add_argument(
        "--pid", metavar="N", type=int, nargs="+", action="extend", default=[],
        help="any process of the job: a rank, a worker, the launcher (default: your only job here)",
    )  # fmt: skip
    parser.add_argument("--dir", metavar="DIR", help="where to put it (default: paramedic-attach-HOST-TIME)")
    parser.add_argument(
        "--nonblocking",
        action="store_true",
        help="do not pause processes to read their stacks, which may then be wrong",
    )
    nodes = parser.add_argument_group("several nodes")
    nodes.add_argument("--via", metavar="COMMAND", help="start it on each node with this; --dir is on a shared disk")
    nodes.add_argument("--collect", action="store_true", help="only collect, into DIR/HOST; no verdict")
    nodes.add_argument("--listen", metavar="HOST:PORT", help="take what nodes send here")
    nodes.add_argument("--nodes", metavar="N", type=int, help="how many nodes will send")
    nodes.add_argument("--wait", metavar="SECONDS", type=float, default=120.0, help="for the nodes (default: 120)")
    nodes.add_argument("--gather", metavar="HOST:PORT", help="send what this node shows there; no verdict here")
    nodes.add_argument("--token-file", metavar="FILE", help="a secret that sender and listener share")
    flags.add_report_flags(parser)


def run(args: argparse.Namespace) -> int:
    _check(args)
    config = flags.settings(args)
    if args.gather:
        return _gather(args)
    folder = _folder(args.dir or f"paramedic-attach-{socket.gethostname()}-{time.strftime('%Y%m%d-%H%M%S')}", args)
    if args.listen:
        skipped = _listen(args, folder)
    elif args.via:
        skipped = _via(args, folder)
    else:
        skipped = _take(args, folder)
    if args.collect:
        return 0
    return _verdict(args, config, folder, skipped)


def _verdict(args: argparse.Namespace, config: Config, folder: Path, skipped: Sequence[Skipped]) -> int:
    from paramedic.pipeline import diagnose

    with flags.progress_bar() as progress:
        report = diagnose([str(folder), *args.path], flags.options(config), progress)
    flags.write_report(replace(report, skipped=(*report.skipped, *skipped)), args, config)
    if not args.quiet:
        flags.say(f"paramedic: all that was seen is in {folder}")
    return flags.exit_code(report, config.fail_on)


def _check(args: argparse.Namespace) -> None:
    ways = [name for name in ("via", "listen", "gather") if getattr(args, name)]
    if len(ways) > 1:
        raise ParamedicError(f"--{ways[0]} and --{ways[1]}: choose one")
    if (args.listen or args.gather) and not args.token_file:
        raise ParamedicError(f"--{ways[0]}: needs --token-file, a secret that both sides have")
    if args.listen and (args.nodes is None or args.nodes < 1):
        raise ParamedicError("--listen: needs --nodes N, how many nodes will send")
    if args.pid and (args.via or args.listen):
        raise ParamedicError(f"--{ways[0]}: takes no --pid, for processes of other nodes have other numbers")
    if args.via and not args.dir:
        raise ParamedicError("--via: needs --dir DIR on a disk that all nodes share")
    if not sys.platform.startswith("linux"):
        raise ParamedicError("attach reads /proc: it works on Linux")


def _folder(name: str, args: argparse.Namespace) -> Path:
    folder = Path(name, socket.gethostname()) if args.collect else Path(name)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if any(folder.iterdir()):
        raise ParamedicError(f"{folder}: is not empty; what was seen at another time must not be mixed in")
    return folder


def _take(args: argparse.Namespace, folder: Path) -> list[Skipped]:
    from paramedic.watch.attach import Spy, chosen, take
    from paramedic.watch.process import processes

    try:
        ranks = chosen(args.pid, processes(), os.getuid())
    except ParamedicError:
        folder.rmdir()
        raise
    spy = Spy.here()
    if not args.quiet:
        how = (
            "without py-spy" if spy is None else "without a pause" if args.nonblocking else "with a short pause of each"
        )
        flags.say(f"paramedic: looks at {len(ranks)} rank{'s' if len(ranks) > 1 else ''} twice, {how}")
    return take(ranks, folder, spy, args.nonblocking)


def _gather(args: argparse.Namespace) -> int:
    from paramedic.collect import gather

    token, address = gather.read_token(args.token_file), gather.address_of(args.gather)
    with tempfile.TemporaryDirectory(prefix="paramedic-") as place:
        folder = Path(place, "seen")
        folder.mkdir()
        _take(args, folder)
        sent = gather.send(folder, address, token, socket.gethostname(), flags.say)
    flags.say(f"paramedic: sent {sent} files to {args.gather}")
    return 0


def _listen(args: argparse.Namespace, folder: Path) -> list[Skipped]:
    from paramedic.collect.gather import Collector, address_of, read_token

    collector = Collector(folder, read_token(args.token_file), args.nodes)
    server = collector.listen(*address_of(args.listen))
    flags.say(f"paramedic: waits for {args.nodes} nodes at {collector.address[0]}:{collector.address[1]}")
    collector.serve(server, args.wait)
    return collector.skipped


def _via(args: argparse.Namespace, folder: Path) -> list[Skipped]:
    arguments = ["attach", "--collect", "--dir", str(folder.resolve())]
    skipped = on_nodes(args.via, arguments + (["--nonblocking"] if args.nonblocking else []), _VIA_SECONDS).skipped
    if not any(folder.iterdir()) and not any("did not end" in one.why for one in skipped):
        raise ParamedicError(
            f"{folder}: the nodes wrote nothing; is it on a disk that all share? (else --listen, --gather)"
        )
    return skipped
