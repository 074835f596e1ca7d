"""The knowledge base is itself checked: vocabulary, base rates, and every rule with its own cases."""

from __future__ import annotations

import json
import os
import re
import signal
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from paramedic import rule_cases
from paramedic.detect import DETECTORS
from paramedic.detect.checks import CHECKS
from paramedic.errors import ParamedicError
from paramedic.knowledge import Rule, load, parse_rule
from paramedic.knowledge.clues import load_clues
from paramedic.knowledge.openings import never_tried
from paramedic.knowledge.rules import HEADINGS
from paramedic.knowledge.schema import problems
from paramedic.knowledge.taxonomy import load_taxonomy, parse_taxonomy
from paramedic.prefilter import Prefilter

KNOWLEDGE = load()
RULES = list(KNOWLEDGE.rules.values())
SCHEMA: dict[str, Any] = json.loads(resources.files("paramedic.knowledge").joinpath("rule.schema.json").read_text())
VALIDATOR = jsonschema.validators.validator_for(SCHEMA)(SCHEMA)
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda r: r.id)


def text_of(rule: Rule) -> str:
    return resources.files("paramedic.knowledge").joinpath("signatures", rule.path).read_text("utf-8")


def front_matter(rule: Rule) -> dict[str, Any]:
    return tomllib.loads(text_of(rule).split("+++\n", 2)[1])


@every_rule
def test_a_rule_of_the_package_passes_every_check(rule: Rule) -> None:
    """They are not checked when the package is used."""
    read = parse_rule(text_of(rule), rule.path, load_taxonomy())
    assert read.id == rule.id
    assert tuple(read.fixes) == tuple(rule.fixes)  # those of the package's own rules are read when they are asked for


# -- the vocabulary ------------------------------------------------------------------------------------------------


def test_the_vocabulary_is_closed() -> None:
    taxonomy = load_taxonomy()
    sizes = [len(x) for x in (taxonomy.stages, taxonomy.symptoms, taxonomy.causes, taxonomy.fix_patterns)]
    assert sizes == [6, 34, 28, 6]


def test_every_cause_and_fix_pattern_is_used_by_some_symptom() -> None:
    taxonomy = load_taxonomy()
    assert {c for s in taxonomy.symptoms.values() for c in s.causes} == set(taxonomy.causes)
    assert {f for s in taxonomy.symptoms.values() for f in s.fixes} == set(taxonomy.fix_patterns)


@pytest.mark.parametrize("broken", ["stage", "causes", "fixes"])
def test_a_taxonomy_that_names_something_unknown_is_refused(broken: str) -> None:
    data = tomllib.loads(resources.files("paramedic.knowledge").joinpath("taxonomy.toml").read_text("utf-8"))
    data["symptom"][3][broken] = "nowhere" if broken == "stage" else ["nowhere"]
    with pytest.raises(ParamedicError, match="nowhere"):
        parse_taxonomy(data)


# -- base rates ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["lab", "cluster"])
def test_base_rates_cover_every_symptom_and_sum_to_one(setting: str) -> None:
    for id, entry in load_taxonomy().symptoms.items():
        prior = KNOWLEDGE.priors.causes[setting][id]
        assert set(prior) == set(entry.causes)
        assert sum(prior.values()) == pytest.approx(1, abs=0.001)


def test_a_cluster_suspects_hardware_more_than_a_lab_does() -> None:
    for symptom in ("accelerator-fault", "worker-or-node-loss", "collective-hang"):
        lab, cluster = (KNOWLEDGE.priors.causes[s][symptom]["hardware-fault"] for s in ("lab", "cluster"))
        assert cluster > lab


def test_base_rates_name_their_source_and_its_hash() -> None:
    assert re.fullmatch(r"[0-9a-f]{64}", KNOWLEDGE.priors.source_sha256)
    assert "TOSEM23-DistributedTraining" in KNOWLEDGE.priors.source
    assert sum(KNOWLEDGE.priors.fixes["collective-hang"].values()) > 0


# -- rules ---------------------------------------------------------------------------------------------------------


def test_there_are_forty_first_class_signatures_over_the_whole_chain() -> None:
    stable = [rule for rule in RULES if rule.status == "stable"]
    assert len(stable) >= 40
    assert {rule.symptom.stage for rule in stable} == set(load_taxonomy().stages)


@every_rule
def test_front_matter_keeps_the_schema_by_both_validators(rule: Rule) -> None:
    front = front_matter(rule)
    VALIDATOR.validate(front)
    assert list(problems(front, SCHEMA)) == []


def test_the_schema_of_rules_is_itself_valid() -> None:
    VALIDATOR.check_schema(SCHEMA)


def test_our_validator_refuses_what_jsonschema_refuses() -> None:
    good = front_matter(RULES[0])
    changes: list[dict[str, Any]] = [
        {"id": "XYZ1"}, {"severity": "fatal"}, {"causes": {}}, {"causes": {"x": 2}}, {"confidence": 0}, {"confidence": True},
        {"systems": []}, {"systems": "pytorch"}, {"references": ["http://x"]}, {"colour": "red"}, {"title": "short"},
        {"fix": [{"pattern": "x"}]}, {"title": "x" * 200}, {"fix": [{**good["fix"][0], "action": {"kind": "pray"}}]},
    ]  # fmt: skip
    for change in changes:
        changed = good | change
        with pytest.raises(jsonschema.ValidationError):
            VALIDATOR.validate(changed)
        assert list(problems(changed, SCHEMA)), change
    without = {k: v for k, v in good.items() if k != "symptom"}
    assert list(problems(without, SCHEMA)) == ["symptom: missing"]


@every_rule
def test_a_rule_has_all_headings_and_both_kinds_of_case(rule: Rule) -> None:
    assert all(rule.section(heading) for heading in HEADINGS)
    kinds = {case.expect for case in rule.cases()}
    assert ({"bad", "good"} if rule.before else {"fires", "silent"}) <= kinds


@every_rule
def test_a_rule_fires_on_its_own_cases_and_stays_silent_on_the_others(rule: Rule, prefilter: Prefilter) -> None:
    assert list(rule_cases.failures([rule], KNOWLEDGE, prefilter)) == []


@every_rule
def test_a_rule_says_which_detector_or_which_text(rule: Rule) -> None:
    assert [bool(rule.match), bool(rule.detector), bool(rule.when)].count(True) == 1
    if rule.detector:
        assert rule.detector in (CHECKS if rule.before else DETECTORS)
    for keyword in rule.keywords:
        assert keyword.isprintable()


def test_every_detector_has_its_rule() -> None:
    assert {rule.detector for rule in RULES if rule.detector} == set(DETECTORS) | set(CHECKS)


class TooSlow(Exception):
    pass


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TooSlow

    previous = signal.signal(signal.SIGALRM, stop)  # the regex engine looks for signals while it backtracks
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def hostile_texts(rule: Rule) -> Iterator[str]:
    """Long repetitions of what the pattern itself looks for: where backtracking would explode."""
    for case in rule.cases():
        yield (case.text.replace("\n", " ")[:300] * 60)[:16_000]
    for piece in ("a", "0", " ", "[rank0]: ", "1,", "a.b", "/x", "'a' ", "(", "Error: "):
        for keyword in rule.keywords[:3]:
            yield keyword + piece * (16_000 // len(piece))
            yield piece * (8_000 // len(piece)) + keyword + piece * (8_000 // len(piece))


@every_rule
def test_no_pattern_backtracks_catastrophically(rule: Rule) -> None:
    with at_most(5):
        for text in hostile_texts(rule):
            for pattern in (*rule.patterns, *rule.unless_patterns, *filter(None, [rule.stack_pattern])):
                pattern.search(text)


def test_the_time_limit_catches_a_catastrophic_pattern() -> None:
    with pytest.raises(TooSlow), at_most(0.3):
        re.compile(r"(a+)+$").search("a" * 40 + "b")


# -- broken rule files ---------------------------------------------------------------------------------------------

GOOD = (
    resources.files("paramedic.knowledge").joinpath("signatures", "COL001-gloo-receive-timeout.md").read_text("utf-8")
)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("+++\n", "---\n", "front matter"),
        ('id = "COL001"', 'id = "COL001', "no TOML"),
        ('id = "COL001"', 'id = "COL002"', "must be called"),
        ('symptom = "collective-hang"', 'symptom = "sadness"', "not of the taxonomy"),
        ("network-fabric-fault = 0.1", "data-or-input-defect = 0.1", "not among those of collective-hang"),
        ("## Not this", "## Nothing", "heading '## Not this' is missing"),
        ("'Application timeout caused pair closure'", "'Application (timeout'", "does not compile"),
        ('keywords = ["Timed out waiting", "Application timeout caused pair closure"]', "", "needs keywords"),
        ('action = { kind = "code", hint =', 'action = { kind = "code", file =', "needs 'hint'"),
        ('pattern = "distributed-feature-api-and-communication-tuning"', 'pattern = "luck"', "'luck' is not of the taxonomy"),
        ("'Application timeout caused pair closure'", "'(a+)+b'", "repeats a repetition"),
        ("'Application timeout caused pair closure'", "'(?:a|b*)*c'", "repeats a repetition"),
        ("'Application timeout caused pair closure'", "'(?:(?:a{1,50}){1,50})c'", "repeats a repetition"),
        ("'Application timeout caused pair closure'", "'(?:,.+)*c'", "repeats a repetition"),
        ("'Application timeout caused pair closure'", "'(?:,[a-z]+[a-z]+)*;'", "repeats a repetition"),
        ("'Application timeout caused pair closure'", "'a{99999999999999999999}'", "does not compile"),
        ("'Application timeout caused pair closure'", f"'{'(' * 3000}{')' * 3000}'", "does not compile"),
        ('id = "COL001"', f"id = {'9' * 5000}", "no TOML"),
        ('id = "COL001"', f"id = {'[' * 5000}", "no TOML"),
        ("network-fabric-fault = 0.1", "network-fabric-fault = nan", "NaN is in no range"),
        ("network-fabric-fault = 0.1", f"network-fabric-fault = 0x{'f' * 5000}", "cannot be checked"),
        ('id = "COL001"', 'id = "COL001"\nstack = 3', "stack: expected string"),
        ('symptom = "collective-hang"', 'symptom = ["x"]', "symptom: expected string"),
    ],
)  # fmt: skip
def test_a_broken_rule_is_refused_with_its_file_and_its_problem(old: str, new: str, complaint: str) -> None:
    assert old in GOOD
    with pytest.raises(ParamedicError, match=r"COL001-gloo-receive-timeout\.md") as refused:
        parse_rule(GOOD.replace(old, new, 1), "COL001-gloo-receive-timeout.md", load_taxonomy())
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    "pattern", [r"\\d+(?:,\\d+)*", r"(?:a{1,3}\\.){3}", r"(?:ab)+ .*", r"(?>a+)+b", r"(?:a++b)*", "a{1,50} .{0,500}"]
)
def test_a_pattern_that_cannot_explode_is_taken(pattern: str) -> None:
    text = GOOD.replace("'Application timeout caused pair closure'", f"'{pattern}'".replace("\\\\", "\\"), 1)
    assert text != GOOD
    parse_rule(text, "COL001-gloo-receive-timeout.md", load_taxonomy())


@pytest.mark.parametrize(
    ("kind", "says"), [("pipe", "is no file"), ("folder", "is no file"), ("huge", "larger than 1 MB")]
)
def test_a_rule_is_a_file_of_a_sensible_size(tmp_path: Path, kind: str, says: str) -> None:
    file = tmp_path / "COL001-gloo-receive-timeout.md"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.write_text(GOOD + "x" * (1 << 20))
    with pytest.raises(ParamedicError, match=says), at_most(5):
        load([tmp_path])


def test_the_words_of_a_clue_stand_in_whatever_its_pattern_finds() -> None:
    """As far as rules' own cases and such messages go: a word too many would hide a cause."""
    said = list(dict.fromkeys(line for rule in RULES for case in rule.cases() for line in case.text.split("\n")))
    said += [
        "OSError: [Errno 30] x",
        "[ERRNO 24] x",
        "HTTP 503 Server Error",
        "Bad Gateway for url",
        "expected 3, got [0]",
    ]
    said += ["Size of tensor a (0) must match", "Stale lock of x", "Disk quota exceeded", "unexpected pos 12 vs 13"]
    folded = [(text, text.casefold()) for text in said]
    for clue in load_clues():
        for text, words in folded:
            if not any(word in words for word in clue.words):
                assert not clue.pattern.search(text), (clue.pattern.pattern, text)


@pytest.mark.parametrize(
    ("pattern", "keywords", "told"),
    [
        ("Connection (?:refused|reset) by peer", ["by peer"], []),
        ("Connection (?:refused|reset)", ["refused"], ["alternative 2 of 2 in Connection (?:refused|reset)"]),
        ("Connection (?:refused|reset)", ["Connection re"], []),
        (r"[Ee]rror: \S{1,60} trap (?P<what>invalid opcode)", ["SIGILL"], "all"),
        (r"[Ee]rror: \S{1,60} trap (?P<what>invalid opcode)", ["rror: "], []),
        (r"(?i)out of memory", ["Out Of"], []),
        (r"out of memory", ["Out Of"], "all"),
        (
            r"exit(?:ed)? with (?:code|status) \d+",
            ["status"],
            ["alternative 1 of 2 in exit(?:ed)? with (?:code|status) \\d+"],
        ),
        (r"(?:a{2,3}b)+c", ["aabaab"], []),
    ],
)
def test_a_pattern_that_no_keyword_can_be_in_is_told(pattern: str, keywords: list[str], told: object) -> None:
    assert list(never_tried([pattern], keywords)) == ([pattern] if told == "all" else told)
