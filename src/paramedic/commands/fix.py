"""show the changes that `check` proposes as a diff, apply the safe ones, take them back

Without --apply nothing is written. Comments, order and spaces of the files are kept, and every change is proved by
parsing the file again. After --apply the check runs again and says what is left.

  paramedic fix
  paramedic fix --apply
  paramedic fix --undo
  paramedic check --format json --output report.json; paramedic fix report.json --apply
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paramedic.commands import flags
from paramedic.errors import ParamedicError

if TYPE_CHECKING:
    from paramedic.patch import Changed, Refused, Wanted

_MOST_REPORT = 64 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        metavar="DIR|REPORT",
        nargs="?",
        default=".",
        help="project folder, or a JSON report of `check` made here",
    )
    parser.add_argument("--apply", action="store_true", help="write the changes that are safe")
    parser.add_argument("--unsafe", action="store_true", help="with those that change behaviour: review the diff first")
    parser.add_argument("--undo", action="store_true", help="take back what --apply wrote last, to the byte")
    flags.add_rule_flags(parser)


def run(args: argparse.Namespace) -> int:
    from paramedic import patch

    is_report = os.path.isfile(args.target) and args.target.endswith(".json") and _is_report(args.target)
    root = Path(".") if is_report else Path(args.target)
    if not is_report and os.path.isfile(args.target):
        root = Path(args.target).parent
    if not root.is_dir():
        raise ParamedicError(f"{args.target}: no such folder or report")
    if args.undo:
        for file in patch.undo(root):
            flags.say(f"paramedic: restored {file}")
        return 0
    proposed = list(_of_report(args.target) if is_report else _of_check(args))
    wanted = [one for safety, one in proposed if safety == "safe" or (safety == "unsafe" and args.unsafe)]
    changed, refused = patch.plan(root, _different(wanted))
    return _applied(root, changed, refused, args) if args.apply else _shown(changed, refused)


def _different(wanted: list[Wanted]) -> list[Wanted]:
    """Two rules may ask for the same change."""
    return list({(one.file, repr(sorted(one.action.items(), key=str))): one for one in wanted}.values())


def _shown(changed: list[Changed], refused: list[Refused]) -> int:
    from paramedic.patch import diff
    from paramedic.report.escape import printable
    from paramedic.report.words import count

    text = "".join(diff(changed))
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)  # `git apply` needs every tab as it is
    _say_refused(refused)
    changes = sum(len(one.rules) for one in changed)
    flags.say(
        f"paramedic: {count(changes, 'change')} in {count(len(changed), 'file')}; --apply writes them"
        if changed
        else "paramedic: nothing to change by itself"
    )
    return 0


def _applied(root: Path, changed: list[Changed], refused: list[Refused], args: argparse.Namespace) -> int:
    from paramedic.patch import apply
    from paramedic.report.words import count

    _say_refused(refused)
    if not changed:
        flags.say("paramedic: nothing to change by itself")
        return 0
    apply(root, changed)
    for one in changed:
        flags.say(f"paramedic: wrote {one.file} ({', '.join(dict.fromkeys(one.rules))})")
    left = {(rule, file) for rule, file in _found(str(root), args)}
    gone = [(rule, one.file) for one in changed for rule in one.rules if (rule, one.file) not in left]
    still = [(rule, one.file) for one in changed for rule in one.rules if (rule, one.file) in left]
    flags.say(f"paramedic: checked again: {count(len(gone), 'finding')} gone; `paramedic fix --undo` takes it back")
    for rule, file in dict.fromkeys(still):
        flags.say(f"paramedic: {rule} is still found in {file}")
    return int(bool(still))


def _say_refused(refused: list[Refused]) -> None:
    for one in refused:
        flags.say(f"paramedic: by hand: {one.wanted.file}: {one.wanted.rule}: {one.wanted.title} ({one.why})")


def _found(target: str, args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    from paramedic.collect.project import read_project
    from paramedic.pipeline import check

    report = check(read_project(target), flags.options(flags.settings(args)))
    for finding in report.findings:
        yield finding.rule, finding.evidence[0].event.source


def _of_check(args: argparse.Namespace) -> Iterator[tuple[str, Wanted]]:
    from paramedic.collect.project import read_project
    from paramedic.pipeline import check

    report = check(read_project(args.target), flags.options(flags.settings(args)))
    for finding in report.findings:
        for fix in finding.fixes[:1]:
            yield from _wanted(finding.rule, finding.evidence[0].event.source, fix.title, fix.safety, dict(fix.action))


def _wanted(rule: str, file: str, title: str, safety: str, action: dict[str, Any]) -> Iterator[tuple[str, Wanted]]:
    from paramedic.patch import Wanted

    if "edit" in action:
        yield safety, Wanted(rule, str(action.get("file") or file), action, title)


def _is_report(path: str) -> bool:
    return isinstance(_document(path), dict) and "findings" in _document(path)


def _document(path: str) -> Any:
    import json

    try:
        with open(path, "rb") as raw:
            return json.loads(raw.read(_MOST_REPORT).decode("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _of_report(path: str) -> Iterator[tuple[str, Wanted]]:
    try:
        for finding in _document(path)["findings"]:
            for fix in finding["fixes"][:1]:
                source = finding["evidence"][0]["source"]
                yield from _wanted(finding["rule"], source, fix["title"], fix["safety"], dict(fix["action"]))
    except (KeyError, TypeError, IndexError, ValueError, AttributeError):
        raise ParamedicError(f"{path}: is no report of `paramedic check --format json`") from None
