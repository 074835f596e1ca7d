"""say which rank failed first, with which symptom and cause, and what to change

Reads any mix of log files, folders, globs, archives (.tar, .zip, .gz, .zst …), recorded Runs and standard input (-).
Ctrl-C ends the reading of standard input; what was read by then is diagnosed. A job of an engine is named by its id,
whoever submitted it: its logs, accounting and events are fetched first.

The job's program, its configurations and, after --, the command that started it are witnesses, too: read, never run.
They tell the cause of a failure, and what goes wrong without a word in the log.

  paramedic diagnose logs/
  paramedic diagnose slurm-4711.out rank*.err
  torchrun … train.py 2>&1 | paramedic diagnose -
  paramedic diagnose slurm:4711
  paramedic diagnose ray:raysubmit_x7 k8s:NAMESPACE/NAME
  paramedic diagnose logs/ train.py -- torchrun --nproc-per-node 8 train.py

So is what you saw, in your own words: where nothing fails, it says which of all remarks to look at. Without any file it
is all there is.

  paramedic diagnose logs/ train.py --saw "eval accuracy is worse on 8 GPUs than on one"
  paramedic diagnose --saw "it hangs after the first epoch on two nodes"
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from paramedic.commands import flags
from paramedic.errors import ParamedicError

_ENGINES = {"slurm": "slurm", "ray": "ray", "k8s": "kubernetes"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path",
        metavar="PATH",
        nargs="*",
        default=[],
        help="file, folder, glob, archive, slurm:ID, ray:ID or k8s:NAME; - is stdin; needed unless --saw says it all",
    )
    parser.add_argument(
        "command",
        metavar="COMMAND",
        nargs="*",
        default=[],
        help="after --: the command that started the job, read, never started",
    )
    parser.add_argument(
        "--saw", metavar="TEXT", default="", help="what is wrong with the job as you see it, in your own words"
    )
    flags.add_report_flags(parser)


@contextmanager
def fetched(paths: list[str]) -> Iterator[list[str]]:
    """Jobs of engines as folders with what the engine has about them; everything else as it is."""
    with ExitStack() as stack:
        yield [read for path in paths for read in _fetched(path, stack)]


def _fetched(path: str, stack: ExitStack) -> list[str]:
    prefix, colon, id = path.partition(":")
    if not colon or prefix not in _ENGINES or os.path.lexists(path):
        return [path]
    from paramedic.submit.fetch import fetch

    folder = os.path.join(stack.enter_context(tempfile.TemporaryDirectory()), f"{prefix}-{id.replace('/', '-')}")
    os.mkdir(folder)
    return [folder, *fetch(_ENGINES[prefix], id, folder)]


def run(args: argparse.Namespace) -> int:
    from paramedic.pipeline import diagnose

    if not args.path and not args.saw.strip():
        raise ParamedicError("the following arguments are required: PATH (see `paramedic diagnose --help`)")
    config = flags.settings(args)
    with fetched(args.path) as paths, flags.interruptible(paths) as skipped, flags.progress_bar() as progress:
        report = diagnose(paths, flags.options(config), progress, args.command, args.saw)
        if report.verdict is not None and report.verdict.symptom == "device-out-of-memory":
            from paramedic.memory.advice import with_plan

            report = with_plan(report, paths)
    report = replace(report, skipped=(*report.skipped, *skipped))
    flags.write_report(report, args, config)
    return flags.exit_code(report, config.fail_on)
