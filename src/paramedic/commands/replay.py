"""run a rank of a recording again: in one process, without its peers, bit for bit

The command after -- is the training program as one rank runs it (python train.py …), not its launcher. What the peers
sent comes from the recording; every input of a collective, batch, loss, gradient, parameter and random state is held
against what it was. Steps before the recorded ones are run among copies of the rank, then the recorded state is put in
place. Where a value stopped being finite, the module and the operation are named.

  paramedic replay rec --rank 2 -- python train.py
  paramedic replay rec --all --tolerant -- python train.py
  paramedic replay rec --rank 2 --pdb -- python train.py
  paramedic replay rec --procs -- torchrun --nproc-per-node 4 train.py

Exit codes: 0 the same, bit for bit; 1 a divergence; 2 wrong usage or input; 3 nothing could be replayed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paramedic.commands import flags
from paramedic.errors import ParamedicError

if TYPE_CHECKING:
    from paramedic.replay.alone import Outcome
    from paramedic.replay.reading import Recording


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recording", metavar="DIR", help="what `paramedic record` wrote")
    parser.add_argument("command", metavar="COMMAND", nargs="*", default=[], help="the training program, after --")
    group = parser.add_argument_group("what")
    group.add_argument(
        "--rank", metavar="R", type=int, help="this rank (default: the one that diagnosis suspects, or 0)"
    )
    group.add_argument("--all", action="store_true", help="every rank, one after the other")
    group.add_argument("--procs", action="store_true", help="all ranks at once, with their launcher, and compare")
    group.add_argument("--until", metavar="STEP", type=int, help="stop after this step")
    how = parser.add_argument_group("how")
    how.add_argument("--tolerant", action="store_true", help="go on after a difference and list them all")
    how.add_argument("--warm-up", metavar="N", type=int, help="run N steps only before jumping to the recorded ones")
    how.add_argument("--ops", action="store_true", help="a fingerprint of every operation, for `compare`; needs -o")
    how.add_argument("--pdb", action="store_true", help="stop in the debugger where it goes wrong")
    how.add_argument("--trust", action="store_true", help="also objects, which are pickles: the recording is your own")
    output = parser.add_argument_group("output")
    output.add_argument("-o", "--dir", metavar="DIR", help="keep a recording of the replay there")
    output.add_argument("--format", choices=("text", "json"), default="text", help="how to print it (default: text)")
    output.add_argument("--output", metavar="FILE", help="write it there instead of to standard output")
    output.add_argument("-q", "--quiet", action="store_true", help="without the program's own output and ours")


def run(args: argparse.Namespace) -> int:
    from paramedic.replay import reading

    _check(args)
    recording = reading.read(args.recording)
    if not args.command:
        import shlex

        raise ParamedicError(f"name the training program after --; it was recorded as: {shlex.join(recording.program)}")
    if args.procs:
        return _together(args, recording)
    outcomes = _alone(args, recording)
    _write(args, _json(recording, outcomes) if args.format == "json" else _text(recording, outcomes))
    if any(one.differences for one in outcomes):
        return 1
    if any(one.status in ("strange", "refused", "incomplete", "astray") for one in outcomes):
        return 3
    return int(not all(one.is_bitwise for one in outcomes))


def _check(args: argparse.Namespace) -> None:
    if sum((args.rank is not None, args.all, args.procs)) > 1:
        raise ParamedicError("--rank, --all and --procs: choose one")
    alone = [name for name in ("until", "tolerant", "warm_up", "ops", "pdb", "trust") if getattr(args, name)]
    if args.procs and alone:
        raise ParamedicError(
            f"--procs: the ranks run as ever; --{alone[0].replace('_', '-')} is for one that runs alone"
        )
    if args.ops and not args.dir:
        raise ParamedicError("--ops: needs -o DIR, where the fingerprints go")
    if args.pdb and args.all:
        raise ParamedicError("--pdb: needs --rank R")
    if args.until is not None and args.until < 1:
        raise ParamedicError(f"--until {args.until}: the first step is step 1")
    if args.warm_up is not None and args.warm_up < 1:
        raise ParamedicError("--warm-up: at least one step, in which DDP builds its buckets")


def _alone(args: argparse.Namespace, recording: Recording) -> list[Outcome]:
    from paramedic.replay.alone import Wish, replay
    from paramedic.replay.reading import suspected

    ranks = recording.ranks if args.all else [args.rank if args.rank is not None else suspected(recording)]
    wish = Wish(
        args.command, args.tolerant, args.until, args.warm_up, args.trust, args.pdb, args.ops, args.dir, args.quiet
    )
    outcomes = []
    for rank in ranks:
        if not args.quiet and sys.stderr is not None and sys.stderr.isatty():
            flags.say(f"paramedic: replays rank {rank}")
        outcomes.append(replay(recording, rank, wish))
    return outcomes


def _together(args: argparse.Namespace, recording: Recording) -> int:
    """The launcher starts the ranks anew, recorded; the two recordings are then compared."""
    import tempfile

    from paramedic.commands import compare
    from paramedic.replay.together import record_again

    with tempfile.TemporaryDirectory(prefix="paramedic-") as place:
        again = record_again(recording, args.command, args.dir or place, args.quiet)
        return compare.told(args, recording, again)


def _text(recording: Recording, outcomes: Sequence[Outcome]) -> str:
    from paramedic.replay.text import replayed

    return "".join(f"{line}\n" for line in replayed(recording, outcomes))


def _json(recording: Recording, outcomes: Sequence[Outcome]) -> str:
    from paramedic.replay.document import replayed

    return json.dumps(replayed(recording, outcomes), indent=1) + "\n"


def _write(args: argparse.Namespace, text: str) -> None:
    if args.output not in (None, "-"):
        flags.write_file(args.output, text)
    elif not args.quiet and sys.stdout is not None:
        sys.stdout.write(text)
