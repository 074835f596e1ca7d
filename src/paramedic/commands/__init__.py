"""The verbs. One file each; a verb's help is its file's docstring. This is the only place that prints or exits."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import gc
import os
import shlex
import signal
import sys
import textwrap
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn, Protocol, cast

from paramedic import __version__
from paramedic.commands.flags import say
from paramedic.errors import ParamedicError

VERBS = (
    *("demo", "diagnose", "check", "run", "attach", "record", "replay", "compare", "diff", "fix", "explain", "rules"),
    *("net", "memory", "submit", "jobs", "logs", "cancel", "bundle", "ward", "study", "completion"),
)

_READ_A_COMMAND = ("check", "diagnose", "net", "replay")
"""Where an option may stand between their own words and `-- COMMAND`, which argparse does not allow."""


class Verb(Protocol):
    __doc__: str | None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...
    def run(self, args: argparse.Namespace) -> int: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 1 means findings: whatever else goes wrong must not look like it."""
    _never_fail_to_print()
    try:
        args = _parsed(sys.argv[1:] if argv is None else list(argv))
        code = cast(Verb, import_module(f"{__package__}.{args.verb}")).run(args)
        if sys.stdout is not None:
            sys.stdout.flush()
        if argv is None:
            gc.freeze()  # the process ends: nothing of it need be looked through once more
        return code
    except ParamedicError as error:
        return _fail(str(error))
    except BrokenPipeError:  # the reader, `head` for one, has seen enough
        _drop_output()
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except OSError as error:
        _drop_output()
        return _fail(f"{error.filename or 'output'}: {error.strerror or error}")
    except Exception as error:
        if os.environ.get("PARAMEDIC_DEBUG"):
            raise
        return _fail(
            f"internal error: {type(error).__name__}: {error}; PARAMEDIC_DEBUG=1 shows where: please report it"
        )


def _fail(why: str) -> int:
    say(f"paramedic: {' '.join(_printable(why).split())}")
    return 2


def _parsed(arguments: list[str]) -> argparse.Namespace:
    """argparse would list all verbs; a forgotten `diagnose` and a slip deserve better."""
    parser = build_parser()
    if not arguments:
        say(parser.format_help())
        raise SystemExit(2)
    first, rest = arguments[0], arguments[1:]
    if first in _READ_A_COMMAND and "--" in rest:
        at = arguments.index("--")
        args = _known(parser, arguments[:at])
        if "command" in args:  # of `net` not every action reads one
            args.command = arguments[at + 1 :]
            return args
    if first in VERBS or (first.startswith("-") and first != "-"):
        return _known(parser, arguments)
    meant: list[str] = []
    if first == "-" or os.path.lexists(first):
        meant = ["diagnose", first]
    elif near := difflib.get_close_matches(first.lower(), VERBS, n=1):
        meant = near
    shown = shlex.join(["paramedic", *meant, *rest[:3]]) + (" …" if len(rest) > 3 else "")
    hint = f"; did you mean: {shown}" if meant else f"; verbs: {', '.join(VERBS)}"
    raise ParamedicError(f"{first}: no such verb{hint} (see `paramedic --help`)")


def _known(parser: argparse.ArgumentParser, arguments: list[str]) -> argparse.Namespace:
    """argparse would name what it does not know and point to the help of all verbs."""
    args, unknown = parser.parse_known_args(arguments)
    if not unknown:
        return args
    chosen = _chosen(parser, args)
    slip = next((word.split("=")[0] for word in unknown if word.startswith("-")), "")
    near = difflib.get_close_matches(slip, chosen._option_string_actions, n=1) if slip else []
    if near:
        raise ParamedicError(f"{slip}: no such option; did you mean {near[0]}? (see `{chosen.prog} --help`)")
    raise ParamedicError(f"unrecognized arguments: {' '.join(unknown)} (see `{chosen.prog} --help`)")


def _chosen(parser: argparse.ArgumentParser, args: argparse.Namespace) -> argparse.ArgumentParser:
    """The parser of the verb, and of its action, that was named."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            named = action.choices.get(getattr(args, action.dest, None) or "")
            return parser if named is None else _chosen(named, args)
    return parser


def _never_fail_to_print() -> None:
    """A terminal that lacks a character gets its escape."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure:
            reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Python writes what is left when it exits, and would complain once more."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
            formatter_class=_Help,
        )
        verb.add_arguments(sub)
    return parser


class _Help(argparse.HelpFormatter):
    """Sentences are filled to the screen; examples stay as they are written."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = [
            part if part.startswith((" ", "paramedic ")) else textwrap.fill(" ".join(part.split()), width)
            for part in text.split("\n\n")
        ]
        return textwrap.indent("\n\n".join(parts), indent)


class _Parser(argparse.ArgumentParser):
    """argparse's own messages, in our voice and on one line."""

    def error(self, message: str) -> NoReturn:
        raise SystemExit(_fail(f"{message} (see `{self.prog} --help`)"))


def _printable(text: str) -> str:
    """An error may quote a file's name or content: nothing of it reaches the terminal raw."""
    from paramedic.report.escape import printable

    return printable(text)
