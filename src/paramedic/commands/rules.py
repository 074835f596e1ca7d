"""list every rule: what it recognises, and as what"""

from __future__ import annotations

import argparse
import json
import sys

from paramedic.commands import flags


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=("text", "json"), default="text")
    flags.add_rules_folder(parser)


def run(args: argparse.Namespace) -> int:
    from paramedic.knowledge import load

    rules = load(flags.options(flags.settings(args)).rules).rules.values()
    if args.format == "json":
        rows = [
            {"id": r.id, "name": r.name, "title": r.title, "severity": r.severity, "stage": r.symptom.stage,
             "symptom": r.symptom, "systems": r.systems, "status": r.status}
            for r in rules
        ]  # fmt: skip
        json.dump(rows, sys.stdout, indent=2, ensure_ascii=False)
        print()
        return 0
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("id", "symptom", "what it recognises"):
        table.add_column(column, no_wrap=column != "what it recognises")
    for rule in rules:
        table.add_row(rule.id, rule.symptom, Text(rule.title))
    console = Console()
    (console if console.is_terminal else Console(width=140)).print(table)
    return 0
