"""say which rank failed first, with which symptom and cause, and what to change

Reads any mix of log files, folders, globs, archives (.tar, .zip, .gz, .zst …), recorded Runs and standard input (-).
Ctrl-C ends the reading of standard input; what was read by then is diagnosed.

  paramedic diagnose logs/
  paramedic diagnose slurm-4711.out rank*.err
  torchrun … train.py 2>&1 | paramedic diagnose -
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from paramedic.commands import flags


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", nargs="+", help="file, folder, glob or archive; - is standard input")
    flags.add_report_flags(parser)


def run(args: argparse.Namespace) -> int:
    from paramedic.pipeline import diagnose

    config = flags.settings(args)
    with flags.interruptible(args.path) as skipped, flags.progress_bar() as progress:
        report = diagnose(args.path, flags.options(config), progress)
    report = replace(report, skipped=(*report.skipped, *skipped))
    flags.write_report(report, args, config)
    return flags.exit_code(report, config.fail_on)
