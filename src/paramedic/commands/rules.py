"""list every rule: what it recognises, and as what

--check runs the cases in the rule files instead and prints one line for each that fails (exit code 1): those of the
--rules folders, or of all rules when there are none.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from paramedic.commands import flags

if TYPE_CHECKING:
    from paramedic.knowledge import Knowledge


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=("text", "json"), default="text")
    flags.add_rules_folder(parser)
    parser.add_argument("--check", action="store_true", help="run the rules' own test cases")
    parser.add_argument("--matrix", action="store_true", help="symptom × system as a Markdown table")


def run(args: argparse.Namespace) -> int:
    from paramedic.knowledge import load

    folders = flags.options(flags.settings(args)).rules
    knowledge = load(folders)
    if args.check:
        return _check(knowledge, folders, args.format)
    if args.matrix:
        from paramedic.knowledge.coverage import markdown

        sys.stdout.write(markdown(knowledge))
        return 0
    rules = knowledge.rules.values()
    if args.format == "json":
        rows = [
            {"id": r.id, "name": r.name, "title": r.title, "severity": r.severity, "stage": r.symptom.stage,
             "symptom": r.symptom, "systems": r.systems, "status": r.status}
            for r in rules
        ]  # fmt: skip
        from paramedic.report.json import dumps

        print(dumps(rows))
        return 0
    from rich.table import Table
    from rich.text import Text

    from paramedic.report.escape import one_line

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("id", "symptom", "what it recognises"):
        table.add_column(column, no_wrap=column != "what it recognises")
    for rule in rules:
        table.add_row(Text(one_line(rule.id)), Text(one_line(rule.symptom)), Text(one_line(rule.title)))
    flags.print_table(table, width=140)
    return 0


def _check(knowledge: Knowledge, folders: Sequence[Path], format: str) -> int:
    from paramedic.knowledge.rules import load_rules
    from paramedic.report.escape import one_line
    from paramedic.report.json import dumps
    from paramedic.report.words import count
    from paramedic.rule_cases import failures

    own = {rule.id for folder in folders for rule in load_rules(folder, knowledge.taxonomy)}
    rules = [rule for rule in knowledge.rules.values() if not folders or rule.id in own]
    failed = list(failures(rules, knowledge))
    if format == "json":
        print(dumps([asdict(failure) for failure in failed]))
    else:
        for failure in failed:
            where = f"{failure.file}: case {failure.case}" if failure.case else failure.file
            print(one_line(f"{where}: {failure.problem}"))
    flags.say(f"paramedic: checked the cases of {count(len(rules), 'rule')}: {len(failed) or 'none'} failed")
    return int(bool(failed))
