"""What Paramedic knows: the taxonomy, the rules and the base rates. All of it is readable data beside this file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path

from paramedic.errors import ParamedicError
from paramedic.knowledge.priors import Priors, load_priors
from paramedic.knowledge.rules import Case, Rule, load_rules, parse_rule
from paramedic.knowledge.taxonomy import Taxonomy, load_taxonomy

__all__ = ["Case", "Knowledge", "Priors", "Rule", "Taxonomy", "load", "load_taxonomy", "parse_rule", "with_advisories"]


@dataclass(frozen=True)
class Knowledge:
    taxonomy: Taxonomy
    rules: Mapping[str, Rule]
    priors: Priors

    @cached_property
    def by_detector(self) -> Mapping[str, Rule]:
        return {rule.detector: rule for rule in self.rules.values() if rule.detector}

    @cached_property
    def by_keyword(self) -> Mapping[str, Sequence[Rule]]:
        """Of those that look for a pattern."""
        found: dict[str, list[Rule]] = defaultdict(list)
        for rule in self.rules.values():
            for keyword in set(rule.keywords) if rule.match else ():
                found[keyword].append(rule)
        return dict(found)


def load(own_rules: Iterable[Path] = ()) -> Knowledge:
    """The package's knowledge plus a team's own rule folders. A rule with a known id replaces the package's."""
    taxonomy = load_taxonomy()
    rules = dict(_package_rules())
    for folder in own_rules:
        if not folder.is_dir():
            raise ParamedicError(f"--rules {folder}: no such folder")
        own: dict[str, Rule] = {}
        for rule in load_rules(folder, taxonomy):
            _add(rule, own)
        if not own:
            raise ParamedicError(f"--rules {folder}: holds no rule file (NAME.md with `+++` front matter)")
        rules |= own
    return Knowledge(taxonomy, dict(sorted(rules.items())), load_priors())


def with_advisories(knowledge: Knowledge) -> Knowledge:
    """Known bugs of releases as rules among the others. `diagnose`, which reads logs, has no use for them."""
    from paramedic.knowledge.advisories import load_advisories

    known = {one.rule.id: one.rule for one in load_advisories()}
    return Knowledge(knowledge.taxonomy, {**known, **knowledge.rules}, knowledge.priors)


@cache
def _package_rules() -> Mapping[str, Rule]:
    """Read once a process: a diagnosis and its report both ask for them."""
    rules: dict[str, Rule] = {}
    for rule in load_rules(resources.files(__package__).joinpath("signatures"), load_taxonomy(), checked=False):
        _add(rule, rules)
    return rules


def _add(rule: Rule, rules: dict[str, Rule]) -> None:
    if rule.id in rules:
        raise ParamedicError(f"rule id {rule.id} is used twice: {rules[rule.id].path} and {rule.path}")
    rules[rule.id] = rule
