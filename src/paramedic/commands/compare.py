"""say where two recordings of the same job part: the first difference, the rank, the module

A and B are what `paramedic record` or `paramedic replay -o` wrote. Every rank is followed through its batches, calls,
losses, gradients and states to its first difference; the rank that differed by its own doing is where it began, the
others got it from a collective. Two replays that were made with --ops also give the first operation and its module.

  paramedic compare rec-good rec-bad
  paramedic compare rec replayed

Exit codes: 0 no difference, 1 a difference, 2 wrong usage or input, 3 nothing to compare.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from paramedic.commands import flags
from paramedic.errors import ParamedicError

if TYPE_CHECKING:
    from paramedic.replay.reading import Recording


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="a recording, the one that is right")
    parser.add_argument("b", metavar="B", nargs="?", help="another recording of the same job, or a replay of it")
    group = parser.add_argument_group("output")
    group.add_argument("--format", choices=("text", "json"), default="text", help="how to print it (default: text)")
    group.add_argument("--output", metavar="FILE", help="write it there instead of to standard output")
    group.add_argument("--quiet", action="store_true", help="print nothing; the exit code is the answer")


def run(args: argparse.Namespace) -> int:
    from paramedic.replay import reading

    if args.b is None:
        raise ParamedicError(f"name two recordings; `paramedic diagnose {args.a}` compares the ranks of one")
    return told(args, reading.read(args.a), reading.read(args.b))


def told(args: argparse.Namespace, a: Recording, b: Recording) -> int:
    from paramedic.replay import document, text
    from paramedic.replay.compare import compare

    found = compare(a, b)
    if args.format == "json":
        page = json.dumps(document.compared(a, b, found), indent=1) + "\n"
    else:
        page = "".join(f"{line}\n" for line in text.compared(a, b, found))
    if args.output not in (None, "-"):
        flags.write_file(args.output, page)
    elif not args.quiet and sys.stdout is not None:
        sys.stdout.write(page)
    return 3 if not any(found.compared.values()) else int(bool(found.first))
