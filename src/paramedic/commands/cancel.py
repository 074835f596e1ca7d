"""end submitted jobs, with everything that they started

paramedic cancel ID…
"""

from __future__ import annotations

import argparse

from paramedic.commands import flags


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", nargs="+", help="a job, or the beginning of its id")


def run(args: argparse.Namespace) -> int:
    from paramedic.submit.job import Job

    for job in [Job(id) for id in args.id]:
        flags.say(f"paramedic: {job.id}: {job.cancel()}")
    return 0
