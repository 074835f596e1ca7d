"""start a job, watch its ranks, and say what went wrong when it fails or hangs

The command is started as it is; nothing in the program has to be changed. Each rank writes its heartbeat, its step and
where it stands into DIR; output goes to the terminal as ever, and into DIR/console.log.

  paramedic run -- torchrun --nproc-per-node 8 train.py
  paramedic run --on-hang kill -- deepspeed train.py --deepspeed_config ds.json
  paramedic run --retry -- torchrun --nproc-per-node 8 train.py
  paramedic run --dir /shared/job-4711 -- srun -N4 torchrun … train.py
  paramedic run --listen :29400 --token-file t -- torchrun --node-rank 0 …        # and on the other nodes:
  paramedic run --gather node0:29400 --token-file t -- torchrun --node-rank 1 …

Exit codes: the command's; 124 when a hang was ended (--on-hang kill), 126 and 127 when the command cannot be started.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from paramedic.commands import flags
from paramedic.config import CHOICES, Config
from paramedic.errors import ParamedicError

if TYPE_CHECKING:
    from collections.abc import Callable

    from paramedic.model import Event, Fact, Run, Skipped, Source
    from paramedic.pipeline import Options
    from paramedic.report import ShownReport
    from paramedic.watch.watcher import View, Watcher


_SHARED = ("ranks", "stacks", "traces")
_MOST_ATTEMPTS = 10
_BY_THE_USER = (128 + signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGHUP, 126, 127)
"""What is ended on purpose, or cannot be started, is not tried again."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", metavar="DIR", help="where the recording goes (default: paramedic-run-<time> here)")
    parser.add_argument(
        "--record", action="store_true", help="also keep what ranks send and compute, for `paramedic replay`"
    )
    add_record_flags(parser.add_argument_group("with --record"))
    add_watch_flags(parser)


def add_record_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--payload",
        choices=("ring", "always", "hash"),
        default="ring",
        help="what collectives gave: of the last steps, of all, or fingerprints only (default: ring)",
    )
    group.add_argument("--last", metavar="K", type=int, default=8, help="steps that can be replayed (default: 8)")
    group.add_argument(
        "--max-disk", metavar="GB", type=float, default=32.0, help="of payloads, for each rank (default: 32)"
    )
    group.add_argument(
        "--redact-data", action="store_true", help="fingerprints instead of batches; replaying then needs the data"
    )


def add_watch_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "command", metavar="COMMAND", nargs=argparse.REMAINDER, help="the job's own launch command, after --"
    )
    group = parser.add_argument_group("watching")
    group.add_argument(
        "--on-hang",
        choices=("report", "kill"),
        default="report",
        help="only say it, or end the job, too (default: report)",
    )
    group.add_argument("--no-live", action="store_true", help="no live view, also on a terminal")
    group.add_argument("--metrics", metavar="FILE", help="keep a Prometheus text file there")
    group.add_argument("--webhook", metavar="URL", help="POST the verdict as JSON there")
    group.add_argument(
        "--retry",
        action="store_true",
        help="start it again where the diagnosed cause says that it helps, each attempt in a folder of its own in DIR",
    )
    nodes = parser.add_argument_group("several nodes")
    nodes.add_argument(
        "--join", action="store_true", help="DIR is shared with the node that was started without this flag and judges"
    )
    nodes.add_argument(
        "--listen", metavar="HOST:PORT", help="judge, and take here what nodes send that share no folder"
    )
    nodes.add_argument("--gather", metavar="HOST:PORT", help="send there what this node shows, and be judged there")
    nodes.add_argument("--token-file", metavar="FILE", help="a secret that sender and listener share")
    output = parser.add_argument_group("output")
    output.add_argument(
        "--format", choices=CHOICES["format"], help="how to write the report (default: as FILE is called)"
    )
    output.add_argument("--output", metavar="FILE", help="write the report there, too")
    output.add_argument("-q", "--quiet", action="store_true", help="do not print the verdict")
    output.add_argument("-v", "--verbose", action="store_true", help="all evidence, all findings, all skipped files")
    flags.add_rule_flags(parser)


def run(args: argparse.Namespace) -> int:
    from paramedic.watch import outputs

    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise ParamedicError("name the command to be started after --: paramedic run -- torchrun … train.py")
    config = flags.settings(args)
    if args.webhook:
        outputs.check_address(args.webhook)
    meeting = _meeting(args)
    diagnosis = _Diagnosis(flags.options(config), command)
    if args.retry:
        return _run_again(args, command, config, diagnosis)
    folder = _joined(args.dir) if args.join else _folder(args.dir)
    code, watcher = _run_once(args, command, config, diagnosis, folder, meeting=meeting)
    if watcher is None:
        _discard(os.path.join(folder, "ranks"), *([] if args.dir else [folder]))
    return code


def _run_again(args: argparse.Namespace, command: list[str], config: Config, diagnosis: _Diagnosis) -> int:
    """Decided as for submitted jobs: by the cause, and not when the same failure comes back."""
    from paramedic.submit.policy import Ended, Failure, Room, decide, failure_of, policy_of

    if args.join or args.listen or args.gather:
        raise ParamedicError(
            "--retry: for a command that starts all its ranks; see `paramedic submit` for several nodes"
        )
    root, failures = _folder(args.dir), list[Failure]()
    os.rmdir(os.path.join(root, "ranks"))
    while True:
        folder = _folder(os.path.join(root, f"attempt-{len(failures) + 1}"))
        os.environ["PARAMEDIC_TRY"] = str(len(failures) + 1)
        code, watcher = _run_once(args, command, config, diagnosis, folder)
        if watcher is None:
            _discard(os.path.join(folder, "ranks"), folder, *([] if args.dir else [root]))
        if code == 0 or watcher is None or code in _BY_THE_USER or watcher.verdict is None:
            return code
        failures.append(failure_of(watcher.verdict.verdict, Ended("run", "", code)))
        decision = decide(policy_of({}), failures, Room(_MOST_ATTEMPTS, {}, {}))
        if not args.quiet:
            flags.say(f"paramedic: attempt {len(failures)}: {decision.action}: {decision.reason}")
        if decision.action == "stop":
            return code
        time.sleep(decision.wait)


def _run_once(
    args: argparse.Namespace,
    command: list[str],
    config: Config,
    diagnosis: _Diagnosis,
    folder: str,
    *,
    meeting: tuple[str, int, bytes] | None = None,
) -> tuple[int, Watcher | None]:
    from paramedic.watch import outputs
    from paramedic.watch.watcher import CannotStartError, Watcher

    live = (
        not args.no_live
        and sys.stderr is not None
        and sys.stderr.isatty()
        and sys.stdout is not None
        and sys.stdout.isatty()
    )
    view, close = _view(live, folder)

    def told(watcher: Watcher) -> None:
        _write(watcher, view, args, config.format)

    after = outputs.after(args.metrics, args.webhook)
    leads = not (args.join or args.gather)
    record = _wanted_recording(args)
    ended = _meet(meeting, leads, folder, view)
    watcher = Watcher(folder, command, diagnosis, view, args.on_hang, after, told, ended, leads, record=record)
    try:
        code = watcher.run(shown_by_us=live)
    except CannotStartError as error:
        flags.say(f"paramedic: {error}")
        return error.code, None
    finally:
        close()
    if args.record:
        if not args.join:
            _keep_run(watcher.folder, diagnosis)
        _say_recorded(watcher.folder, args.quiet)
    elif not args.quiet:
        flags.say(f"paramedic: recorded in {watcher.folder}; `paramedic diagnose {watcher.folder}` says it again")
    return code, watcher


def _meeting(args: argparse.Namespace) -> tuple[str, int, bytes] | None:
    """Where nodes meet that share no folder, and their secret."""
    from paramedic.collect import gather

    ways = [name for name in ("join", "listen", "gather") if getattr(args, name)]
    if len(ways) > 1:
        raise ParamedicError(f"--{ways[0]} and --{ways[1]}: choose one")
    if not (args.listen or args.gather):
        return None
    if not args.token_file:
        raise ParamedicError(f"--{ways[0]}: needs --token-file, a secret that both sides have")
    return *gather.address_of(args.listen or args.gather), gather.read_token(args.token_file)


def _meet(meeting: tuple[str, int, bytes] | None, leads: bool, folder: str, view: View) -> Callable[[], None]:
    """What is returned is to be called when the job has ended."""
    if meeting is None:
        return lambda: None
    from paramedic.watch.folder import Folder
    from paramedic.watch.mirror import Follower, Leader

    host, port, token = meeting
    if leads:
        leader = Leader(Folder(folder), token, view.say)
        leader.listen(host, port)
        return leader.close
    follower = Follower(Folder(folder), (host, port), token, view.say)
    follower.start()
    return follower.close


def _wanted_recording(args: argparse.Namespace) -> dict[str, object] | None:
    if not args.record:
        return None
    if not 1 <= args.last <= 100_000:
        raise ParamedicError(f"--last {args.last}: name a number of steps from 1 on")
    if not args.max_disk > 0:
        raise ParamedicError(f"--max-disk {args.max_disk}: name a number of gigabytes")
    limit = int(args.max_disk * 1e9)
    return {"payload": args.payload, "last": args.last, "limit": limit, "redact_data": args.redact_data}


def _keep_run(folder: str, diagnosis: _Diagnosis) -> None:
    """What was collected becomes the Run that the folder is, beside the payloads."""
    from contextlib import closing

    from paramedic.run_folder import RunWriter

    run = diagnosis.read(folder)
    with closing(RunWriter(Path(folder))) as writer:
        items: list[Source | Event | Fact | Skipped] = [*run.sources, *run.events, *run.facts, *run.skipped]
        for item in items:
            writer.append(item)
        writer.finish(run)


def _say_recorded(folder: str, quiet: bool) -> None:
    from paramedic.replay.reading import read, summary

    try:
        lines = summary(read(folder))
    except ParamedicError:
        lines = ["no rank has recorded anything: did the program call torch.distributed.init_process_group?"]
    for line in () if quiet else lines:
        flags.say(f"paramedic: {line}")


class _Diagnosis:
    """The pipeline, with the rules compiled once."""

    def __init__(self, options: Options, command: list[str]) -> None:
        from paramedic.knowledge import load
        from paramedic.pipeline import compile_prefilter

        self._options = options
        self._command = command
        self._knowledge = load(options.rules)
        self._prefilter = compile_prefilter(self._knowledge)

    def __call__(self, folder: str, ended: bool = False) -> ShownReport:
        """Of a job that has ended its program is asked, too: while it runs, what ranks show is all that counts."""
        from paramedic.collect.beside import read_beside
        from paramedic.pipeline import examine

        beside = read_beside([], self._command) if ended else None
        return examine(self.read(folder), self._knowledge, self._prefilter, self._options, beside)

    def read(self, folder: str) -> Run:
        from paramedic.pipeline import read

        return read([folder], self._prefilter)


def _folder(wanted: str | None) -> str:
    """A folder of its own: two jobs in one would be taken for one. Nodes that join may have come first."""
    folder = wanted or f"paramedic-run-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    try:
        os.makedirs(folder, exist_ok=True)
        os.makedirs(os.path.join(folder, "ranks"), exist_ok=True)
        others = [name for name in os.listdir(folder) if name not in _SHARED and not name.startswith("console-")]
        taken = others or os.path.exists(os.path.join(folder, "ranks", "job.watch.json"))
    except OSError as error:
        raise ParamedicError(f"{folder}: cannot be used: {error.strerror or error}") from None
    if taken:
        raise ParamedicError(f"{folder}: is not empty; each watched job needs a folder of its own (--dir)")
    return folder


def _discard(*folders: str) -> None:
    """Of a command that could not be started nothing is kept; what is not empty, or was named by the user, stays."""
    for folder in folders:
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def _joined(wanted: str | None) -> str:
    if wanted is None:
        raise ParamedicError("--join needs --dir: the folder that the nodes share")
    try:
        os.makedirs(os.path.join(wanted, "ranks"), exist_ok=True)
    except OSError as error:
        raise ParamedicError(f"{wanted}: cannot be used: {error.strerror or error}") from None
    return wanted


def _view(live: bool, folder: str) -> tuple[View, Callable[[], None]]:
    if live:
        from paramedic.watch.live import Live

        shown = Live(os.path.join(folder, "console.log"))
        return shown, shown.close
    return _Plain(), lambda: None


class _Plain:
    """Without a terminal: only what is worth a line."""

    def show(self, watcher: Watcher) -> None:
        return

    def say(self, text: str) -> None:
        from paramedic.report.escape import printable

        flags.say(f"paramedic: {printable(text)}")

    def print(self, text: str) -> None:
        if sys.stderr is not None:
            sys.stderr.write(text)
            sys.stderr.flush()


def _write(watcher: Watcher, view: View, args: argparse.Namespace, format: str) -> None:
    from paramedic.report import render

    report = watcher.verdict
    if report is None:
        return
    for name in ("json", "html", "text"):
        path = os.path.join(watcher.folder, f"report.{'txt' if name == 'text' else name}")
        try:
            flags.write_file(path, render(report, name, verbose=args.verbose))
        except (OSError, ParamedicError) as error:
            flags.say(f"paramedic: not written: {error}")
    if args.output:
        flags.write_file(args.output, render(report, format, verbose=args.verbose))
    ended_well = watcher.kind == "end"
    if not args.quiet and not (ended_well and report.verdict is None):
        brief = ended_well and not args.verbose
        view.print(render(report, "text", verbose=args.verbose, brief=brief))
