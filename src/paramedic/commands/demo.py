"""diagnose a bundled recording of a real failed 4-rank run; nothing to set up"""

from __future__ import annotations

import argparse
from contextlib import chdir
from importlib import resources
from pathlib import Path

from paramedic.commands import flags


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", metavar="FILE", default="paramedic-report.html", help="where the HTML report goes")


def run(args: argparse.Namespace) -> int:
    from paramedic.pipeline import diagnose
    from paramedic.report import render

    target = Path(args.output).absolute()
    with resources.as_file(resources.files("paramedic").joinpath("demo")) as folder, chdir(folder):
        report = diagnose(["."])
    flags.print_text(report)
    flags.write_file(str(target), render(report, "html"))
    flags.say(f"paramedic: wrote {args.output}")
    return 0
