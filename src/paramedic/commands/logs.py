"""what the ranks of a submitted job print

paramedic logs ID
paramedic logs ID --rank 3 --follow
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the job, or the beginning of its id")
    parser.add_argument("--rank", type=int, metavar="N", help="of this rank alone, as it printed it")
    parser.add_argument("--attempt", type=int, default=0, metavar="N", help="(default: the last one)")
    parser.add_argument("--follow", action="store_true", help="until the job has ended, also through further attempts")


def run(args: argparse.Namespace) -> int:
    from paramedic.report.escape import printable
    from paramedic.submit.job import Job

    for line in Job(args.id).logs(args.rank, args.follow, args.attempt):
        print(printable(line), flush=args.follow)
    return 0
