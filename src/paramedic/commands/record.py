"""run a job as ever, and keep what each rank sent, got and computed, so that a step can be run again alone

Nothing in the program has to be changed. Of each rank, DIR/recording holds a log of its collectives with fingerprints
of what went in and came out, the payloads and random states of the last steps, and its state before them; it is
readable after a kill at any moment. `paramedic replay` runs a rank of it again, `paramedic compare` holds two against
each other, `paramedic diagnose DIR` reads it with everything that watching gives.

  paramedic record -o rec -- torchrun --nproc-per-node 8 train.py
  paramedic record --payload always -o rec -- torchrun --nproc-per-node 4 train.py     (replays from the very start)
  paramedic record --payload hash -o rec -- torchrun …                                 (to compare only)

Exit codes: the command's; 126 and 127 when it cannot be started.
"""

from __future__ import annotations

import argparse

from paramedic.commands import run as watched


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--dir", metavar="DIR", help="where it goes (default: paramedic-run-<time> here)")
    watched.add_record_flags(parser.add_argument_group("recording"))
    watched.add_watch_flags(parser)
    parser.set_defaults(record=True)


def run(args: argparse.Namespace) -> int:
    return watched.run(args)
