"""explain any rule, symptom, cause, fix pattern or stage; a prefix or a word lists the rules that have it

paramedic explain COL001
paramedic explain collective-hang
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paramedic.commands import flags
from paramedic.errors import ParamedicError
from paramedic.fix import general

if TYPE_CHECKING:
    from paramedic.knowledge import Knowledge, Rule


_NICKNAMES = {"oom": "device-out-of-memory", "nan": "numerical-instability", "hang": "collective-hang"}
"""What people call a symptom: its own rules come first."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="a rule's id, name or alias, or any id of the taxonomy")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    flags.add_rules_folder(parser)
    flags.add_setting(parser)


def run(args: argparse.Namespace) -> int:
    from paramedic.knowledge import load, with_advisories

    config = flags.settings(args)
    knowledge = with_advisories(load(flags.options(config).rules))
    entry = describe(args.id, knowledge, config.setting)
    if args.format == "json":
        from paramedic.report.json import dumps

        print(dumps(entry))
    else:
        _print(entry)
    return 0


def describe(id: str, knowledge: Knowledge, setting: str) -> dict[str, Any]:
    """Everything known about one id; of a prefix (MEM) or any other word the rules that have it.

    Raises ParamedicError with the nearest ids when there is nothing.
    """
    taxonomy = knowledge.taxonomy
    for rule in knowledge.rules.values():
        if id.upper() == rule.id or id == rule.name or id in rule.aliases:
            return _rule(rule)
    if id in taxonomy.symptoms:
        return _symptom(id, knowledge, setting)
    if id in taxonomy.causes:
        cause = taxonomy.causes[id]
        return {
            "kind": "root cause",
            "id": id,
            "area": cause.area,
            "definition": cause.definition,
            "usual fixes": list(cause.fixes),
            "symptoms": [s for s, entry in taxonomy.symptoms.items() if id in entry.causes],
            "rules": [r.id for r in knowledge.rules.values() if id in r.causes],
        }
    if id in taxonomy.fix_patterns:
        return {
            "kind": "fix pattern",
            "id": id,
            "definition": taxonomy.fix_patterns[id].definition,
            "cures": [c for c, entry in taxonomy.causes.items() if id in entry.fixes],
            "counted for": {s: n[id] for s, n in knowledge.priors.fixes.items() if id in n},
        }
    if id in taxonomy.stages:
        return {
            "kind": "stage",
            "id": id,
            "definition": taxonomy.stages[id].definition,
            "symptoms": [s for s, entry in taxonomy.symptoms.items() if entry.id.stage == id],
        }
    if (listed := _rules_with(id, knowledge)) is not None:
        return listed
    known = [*knowledge.rules, *taxonomy.symptoms, *taxonomy.causes, *taxonomy.fix_patterns, *taxonomy.stages]
    near = difflib.get_close_matches(id, known, n=3) or difflib.get_close_matches(id.upper(), known, n=3)
    hint = f"; near it: {', '.join(near)}" if near else "; `paramedic rules` lists all rules"
    raise ParamedicError(f"{id}: no rule, symptom, cause, fix pattern or stage has this id{hint}")


def _rules_with(word: str, knowledge: Knowledge) -> dict[str, Any] | None:
    rules = knowledge.rules.values()
    if listed := {rule.id: rule.title for rule in rules if rule.id.rstrip("0123456789") == word.upper()}:
        return {"kind": "prefix", "id": word.upper(), "rules": listed}
    texts = {rule.id: "\n".join((rule.title, rule.name, *rule.keywords)).casefold() for rule in rules}
    sought = word.strip().casefold()
    meant = [rule for rule in rules if rule.symptom == _NICKNAMES.get(sought)]
    meant.sort(key=lambda rule: not rule.keywords)  # what logs say before what programs have
    if sought and (listed := {r.id: r.title for r in (*meant, *rules) if r in meant or sought in texts[r.id]}):
        return {"kind": "rules that speak of it", "id": word, "rules": listed}
    return None


def _rule(rule: Rule) -> dict[str, Any]:
    from paramedic.knowledge import advisories
    from paramedic.knowledge.rules import HEADINGS

    headings = advisories.HEADINGS if rule.detector == advisories.DETECTOR else HEADINGS
    return {
        "kind": "rule",
        "id": rule.id,
        "name": rule.name,
        "title": rule.title,
        "stage": rule.symptom.stage,
        "symptom": str(rule.symptom),
        "severity": rule.severity,
        "status": rule.status,
        "can be an echo of another failure": rule.consequence,
        "confidence": rule.confidence,
        "causes": dict(rule.causes),
        "systems": list(rule.systems),
        **{heading: rule.section(heading) for heading in headings},
        "fixes": [f"{general(fix.title)} [{fix.safety}]" for fix in rule.fixes],
        "references": list(rule.references),
        "file": rule.path,
    }


def _symptom(id: str, knowledge: Knowledge, setting: str) -> dict[str, Any]:
    entry = knowledge.taxonomy.symptoms[id]
    prior = knowledge.priors.causes[setting][id]
    counted = knowledge.priors.fixes.get(id, {})
    return {
        "kind": "symptom",
        "id": id,
        "stage": entry.id.stage,
        "definition": entry.definition,
        **({"boundary": entry.boundary} if entry.boundary else {}),
        "seen as": {kind: list(texts) for kind, texts in entry.signals.items()},
        f"causes (base rates, {setting}; judgement)": {cause: f"{share:.0%}" for cause, share in prior.items()},
        "fixes": list(entry.fixes),
        **({"fixes counted in study 1": dict(counted)} if counted else {}),
        "rules": [rule.id for rule in knowledge.rules.values() if rule.symptom == id],
    }


def _print(entry: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    from paramedic.report.escape import printable

    console = Console()
    console.print(Text(printable(f"{entry['id']}  ({entry['kind']})"), style="bold"))
    for key, value in entry.items():
        if key in ("id", "kind") or value in ("", [], {}):
            continue
        lines = _lines(value)
        if len(lines) == 1:
            console.print(Text.assemble((f"{key}: ", "bold"), printable(lines[0])))
            continue
        console.print(Text(f"{key}:", style="bold"))
        for line in lines:
            console.print(Padding(Text(printable(line)), (0, 0, 0, 2), expand=False))


def _lines(value: Any) -> list[str]:
    """A text is one paragraph a line, whatever its file's width; a list of single words is one line."""
    if isinstance(value, Mapping):
        return [f"{name}: {'; '.join(item) if isinstance(item, list) else item}" for name, item in value.items()]
    if isinstance(value, list):
        words = [str(item) for item in value]
        return words if any(" " in word or "/" in word for word in words) else [", ".join(words)]
    return [" ".join(part.split()) for part in str(value).split("\n\n")]
