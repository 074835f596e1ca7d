"""say where two recordings part, where ranks of one part, or whether a checkpoint holds what ranks had

A and B are what `paramedic record` or `paramedic replay -o` wrote. Every rank is followed through its batches, calls,
losses, gradients and states to its first difference; the rank that differed by its own doing is where it began, the
others got it from a collective. Two replays that were made with --ops also give the first operation and its module.

Without B, the ranks of A are held against each other: what collectives give all of them, and what replicas must have
alike. Where B is a checkpoint (a folder of torch.distributed.checkpoint, safetensors, a file of torch.save), every
tensor of each rank is looked up in it.

  paramedic compare rec-good rec-bad
  paramedic compare rec replayed
  paramedic compare rec                     (rank against rank)
  paramedic compare rec checkpoints/step-30

Exit codes: 0 no difference, 1 a difference, 2 wrong usage or input, 3 nothing to compare.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from paramedic.commands import flags

if TYPE_CHECKING:
    from paramedic.replay.reading import Recording


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="a recording, the one that is right")
    parser.add_argument("b", metavar="B", nargs="?", help="another recording of the job, a replay, or a checkpoint")
    group = parser.add_argument_group("output")
    group.add_argument("--format", choices=("text", "json"), default="text", help="how to print it (default: text)")
    group.add_argument("--output", metavar="FILE", help="write it there instead of to standard output")
    group.add_argument("-q", "--quiet", action="store_true", help="print nothing; the exit code is the answer")


def run(args: argparse.Namespace) -> int:
    from paramedic.replay import reading

    a = reading.read(args.a)
    if args.b is None:
        return _ranks(args, a)
    if os.path.exists(args.b) and not reading.is_recording(args.b):
        return _checkpoint(args, a)
    return told(args, a, reading.read(args.b))


def told(args: argparse.Namespace, a: Recording, b: Recording) -> int:
    from paramedic.replay import document, text
    from paramedic.replay.compare import compare

    found = compare(a, b)
    _write(args, lambda: document.compared(a, b, found), lambda: text.compared(a, b, found))
    return 3 if not any(found.compared.values()) else int(bool(found.first))


def _ranks(args: argparse.Namespace, recording: Recording) -> int:
    from paramedic.replay import document, text
    from paramedic.replay.replicas import agreement

    found = agreement(recording)
    _write(args, lambda: document.agreed(recording, found), lambda: text.agreed(recording, found))
    return 3 if not found.compared else int(found.first is not None)


def _checkpoint(args: argparse.Namespace, recording: Recording) -> int:
    from paramedic.replay import checkpoint, document, text
    from paramedic.replay.reproduces import reproduces

    found = reproduces(recording, checkpoint.read(args.b))
    _write(
        args,
        lambda: document.reproduced(recording, args.b, found),
        lambda: text.reproduced(recording, args.b, found),
    )
    return 3 if found.step is None else int(not found.is_whole)


def _write(
    args: argparse.Namespace, document: Callable[[], dict[str, Any]], lines: Callable[[], Iterable[str]]
) -> None:
    if args.format == "json":
        page = json.dumps(document(), indent=1) + "\n"
    else:
        page = "".join(f"{line}\n" for line in lines())
    if args.output not in (None, "-"):
        flags.write_file(args.output, page)
    elif not args.quiet and sys.stdout is not None:
        sys.stdout.write(page)
