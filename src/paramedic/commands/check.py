"""find what will fail before it is started: configurations, code, launch command

Reads the project folder and what follows `--`; starts and imports nothing of it. Findings have a file and a line;
`paramedic fix` shows and applies the safe changes.

  paramedic check
  paramedic check train/ -- torchrun --nproc-per-node 8 train.py --deepspeed ds.json
  paramedic check --write-baseline known.json && paramedic check --baseline known.json
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from paramedic.commands import flags

if TYPE_CHECKING:
    from paramedic.collect import Progress
    from paramedic.config import Config
    from paramedic.model import Report, Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "dir", metavar="DIR", nargs="?", default=".", help="project folder, or one file (default: here)"
    )
    parser.add_argument(
        "command", metavar="COMMAND", nargs="*", help="after --: the launch command, read, never started"
    )
    parser.add_argument("--baseline", metavar="FILE", help="findings known from there are set aside")
    parser.add_argument("--write-baseline", metavar="FILE", help="write the findings of today there, and exit with 0")
    flags.add_report_flags(parser)


def run(args: argparse.Namespace) -> int:
    from paramedic import pipeline
    from paramedic.collect.project import joined

    config = flags.settings(args)
    options = replace(flags.options(config), baseline=Path(args.baseline) if args.baseline else None)
    folder, command = _split(args)
    with flags.progress_bar() as progress:
        report = pipeline.check(joined(parts(folder, command, progress)), options)
    if args.write_baseline:
        return _write_baseline(args.write_baseline, report)
    _write(report, args, config)
    return flags.exit_code(report, config.fail_on)


def parts(folder: str, command: list[str], progress: Progress | None) -> list[Run]:
    """What is examined; each part is a Run of its own."""
    from paramedic.collect.project import read_command, read_project

    found = [read_project(folder, progress)]  # configurations and code
    if command:
        found.append(read_command(command))
    return found


def _split(args: argparse.Namespace) -> tuple[str, list[str]]:
    """`check -- torchrun …` names no folder: what stands there is the command's first word."""
    import os

    if args.command and not os.path.exists(args.dir):
        return ".", [args.dir, *args.command]
    return args.dir, list(args.command)


def _write(report: Report, args: argparse.Namespace, config: Config) -> None:
    if config.format == "text" and args.output in (None, "-"):
        if not args.quiet:
            from paramedic.report.listing import render

            render(report, flags.console(), args.verbose)
        return
    flags.write_report(report, args, config)


def _write_baseline(path: str, report: Report) -> int:
    from paramedic.allowed import write
    from paramedic.report.words import count

    flags.write_file(path, write(Path(path), report.findings))
    flags.say(f"paramedic: wrote {path}: {count(len(report.findings), 'finding')} known from now on")
    return 0
