"""The verbs. One file each; a verb's help is its file's docstring. This is the only place that prints or exits."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn, Protocol, cast

from paramedic import __version__
from paramedic.errors import ParamedicError

VERBS = ("demo", "diagnose", "explain", "rules", "bundle", "completion")


class Verb(Protocol):
    __doc__: str | None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...
    def run(self, args: argparse.Namespace) -> int: ...


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    try:
        code = cast(Verb, import_module(f"{__package__}.{args.verb}")).run(args)
        sys.stdout.flush()
        return code
    except ParamedicError as error:
        print(f"paramedic: {_printable(str(error))}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, `head` for one, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="paramedic",
        description="Emergency care for distributed deep-learning training: which rank failed first, at which stage, "
        "with which symptom, from which cause, and what to change.",
        epilog="Exit codes: 0 nothing found, 1 findings, 2 wrong usage or input, 3 nothing could be examined.",
    )
    parser.add_argument("--version", action="version", version=f"paramedic {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=_Parser)
    for name in VERBS:
        verb = cast(Verb, import_module(f"{__package__}.{name}"))
        doc = (verb.__doc__ or "").strip()
        sub = verbs.add_parser(
            name,
            help=doc.split("\n")[0],
            description=doc,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        verb.add_arguments(sub)
    return parser


class _Parser(argparse.ArgumentParser):
    """argparse's own messages, in our voice and on one line."""

    def error(self, message: str) -> NoReturn:
        print(f"paramedic: {_printable(message)} (see `{self.prog} --help`)", file=sys.stderr)
        raise SystemExit(2)


def _printable(text: str) -> str:
    """An error may quote a file's name or content: nothing of it reaches the terminal raw."""
    from paramedic.report.escape import printable

    return printable(text)
