"""READ THIS FIRST. The whole product is five calls in order: collect → detect → explain → fix → report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from paramedic import fix, run_folder
from paramedic.collect.beside import RAN, is_program, read_beside, with_plan
from paramedic.collect.prose import apart, with_words
from paramedic.detect import SAID_OF_EACH_NODE, detect, detect_facts, detect_in_nodes
from paramedic.detect.answers import Failed
from paramedic.detect.match import Signatures
from paramedic.errors import ParamedicError
from paramedic.explain import explain, foresee
from paramedic.garbage import no_collections
from paramedic.knowledge import Knowledge, load, with_advisories
from paramedic.knowledge.advisories import load_advisories
from paramedic.knowledge.priors import Setting
from paramedic.model import Finding, Run, Suppressed
from paramedic.prefilter import Prefilter
from paramedic.report import ShownReport

if TYPE_CHECKING:
    from paramedic.collect.files import Heard, Progress


@dataclass(frozen=True, slots=True)
class Options:
    rules: tuple[Path, ...] = ()
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    setting: Setting = "lab"
    allow: tuple[str, ...] = ()
    baseline: Path | None = None


def diagnose(
    paths: Sequence[str],
    options: Options = Options(),
    progress: Progress | None = None,
    command: Sequence[str] = (),
    saw: str = "",
) -> ShownReport:
    """Any mix of logs, folders, archives, recorded Runs and standard input → the verdict.

    Programs and configurations among them, and the command that started the job, are read as further witnesses; what
    the user `saw`, in his own words, is what he wants explained, and without any of them all that is known.
    """
    knowledge = load(options.rules)
    prefilter = compile_prefilter(knowledge)
    logs = [path for path in paths if not is_program(path)]
    if paths and not logs:
        raise ParamedicError(f"{paths[0]}: a program: name the job's logs, too, or let `paramedic check` look at it")
    signatures = Signatures(knowledge, prefilter)
    run = with_words(read(logs, prefilter, progress, signatures.hear), saw) if logs else read_words(saw, prefilter)
    with no_collections():  # the Run and what is found in it stay until the answer is there
        return examine(run, knowledge, prefilter, options, read_beside(paths, command), signatures=signatures)


def compile_prefilter(knowledge: Knowledge) -> Prefilter:
    """All literals that anybody looks for, in one matcher."""
    from paramedic.collect.logs import LITERALS  # only here: `check` reads no logs

    return Prefilter([*LITERALS, *(keyword for rule in knowledge.rules.values() for keyword in rule.keywords)])


def read(
    paths: Sequence[str], prefilter: Prefilter, progress: Progress | None = None, heard: Heard | None = None
) -> Run:
    """A recorded Run is taken as it is; everything else is collected into one."""
    from paramedic.collect.files import collect

    recorded = [path for path in paths if run_folder.is_run(path)]
    if recorded and len(paths) > 1:
        raise ParamedicError(f"{recorded[0]}: a recorded Run is diagnosed by itself; name it alone")
    return run_folder.read(recorded[0]) if recorded else collect(paths, prefilter, progress, heard)


def read_words(text: str, prefilter: Prefilter) -> Run:
    """What somebody says, and nothing else."""
    from paramedic.collect.files import collect_words

    return collect_words(text, prefilter)


def examine(
    run: Run,
    knowledge: Knowledge,
    prefilter: Prefilter,
    options: Options,
    beside: Run | None = None,
    *,
    signatures: Signatures | None = None,
) -> ShownReport:
    if beside is not None:
        run = with_plan(run, beside)
    asked = run
    run, told = apart(run)
    failed = Failed()
    found = detect(run, knowledge, prefilter, failed, signatures)
    kept, left_out = _chosen(found, knowledge, options)
    foreseen, aside = _foreseen(run, beside, knowledge, options, failed)
    report = explain(run, kept, knowledge, options.setting, foreseen, told=told)
    report = fix.propose(report, knowledge, beside)
    if told:
        report = replace(report, run=replace(run, sources=asked.sources))
    if beside is not None:
        seen = replace(report.run, sources=(*asked.sources, *beside.sources), skipped=(*run.skipped, *beside.skipped))
        report = replace(report, run=seen, skipped=seen.skipped)
    report = replace(report, skipped=(*report.skipped, *failed.skipped()))
    return ShownReport.of(replace(report, suppressed=(*report.suppressed, *left_out, *aside)))


def _foreseen(
    run: Run, beside: Run | None, knowledge: Knowledge, options: Options, failed: Failed
) -> tuple[list[Finding], Sequence[Suppressed]]:
    """What `check` would have said of the programs that ran and of the settings beside them, unless the job itself was
    seen to do otherwise."""
    if beside is None or not beside.sources:
        return [], ()
    from paramedic import allowed, refuted
    from paramedic.detect.checks import CHECKS  # only here: most diagnoses need not wait for them
    from paramedic.detect.setup import examine as examine_setup

    ran = {fact.source for fact in beside.facts if fact.name == RAN}
    programs = {source.id for source in beside.sources if source.kind == "code"} - ran
    all_found = examine_setup(beside, knowledge, CHECKS, failed)
    found = [one for one in all_found if one.evidence[0].event.source not in programs]
    kept, left_out = _chosen(found, knowledge, options)
    kept, aside = allowed.set_aside(kept, beside, options.allow, options.baseline)
    kept, otherwise = refuted.set_aside(kept, run)
    return kept, (*left_out, *aside, *otherwise)


def check(run: Run, options: Options = Options()) -> ShownReport:
    """Before a launch: what a project's files and a node's facts say. Nothing has failed, so there is no verdict."""
    from paramedic.detect.checks import CHECKS  # only here: a diagnosis should not wait for them
    from paramedic.detect.setup import examine as examine_setup

    knowledge, failed = with_advisories(load(options.rules)), Failed()
    found = [
        *examine_setup(run, knowledge, CHECKS, failed),
        *detect_facts(run, knowledge, load_advisories(), failed),
        *detect_in_nodes(run, knowledge, SAID_OF_EACH_NODE, failed),
    ]
    return _foretold(run, found, knowledge, options, failed)


def foretell(run: Run, knowledge: Knowledge, options: Options) -> ShownReport:
    """The same over the network of all nodes."""
    failed = Failed()
    return _foretold(run, detect_in_nodes(run, knowledge, failed=failed), knowledge, options, failed)


def _foretold(
    run: Run, found: Iterable[Finding], knowledge: Knowledge, options: Options, failed: Failed
) -> ShownReport:
    from paramedic import allowed

    kept, left_out = _chosen(found, knowledge, options)
    kept, aside = allowed.set_aside(kept, run, options.allow, options.baseline)
    report = fix.propose(foresee(run, kept, knowledge, options.setting), knowledge)
    report = replace(report, skipped=(*report.skipped, *failed.skipped()))
    return ShownReport.of(replace(report, suppressed=(*report.suppressed, *left_out, *aside)))


def _chosen(found: Iterable[Finding], knowledge: Knowledge, options: Options) -> tuple[list[Finding], list[Suppressed]]:
    """`--select` and `--ignore` take rule ids, their prefixes (MEM), and symptoms."""
    for name in (*options.select, *options.ignore):
        if not any(_named(name, rule.id, rule.symptom) for rule in knowledge.rules.values()):
            raise ParamedicError(f"{name}: no rule or symptom has this name; see `paramedic rules`")
    kept: list[Finding] = []
    left_out: list[Suppressed] = []
    for one in found:
        if any(_named(name, one.rule, one.symptom) for name in options.ignore):
            left_out.append(Suppressed(one.rule, "ignored by --ignore", one.ranks))
        elif options.select and not any(_named(name, one.rule, one.symptom) for name in options.select):
            left_out.append(Suppressed(one.rule, "not selected by --select", one.ranks))
        else:
            kept.append(one)
    return kept, left_out


def _named(name: str, rule: str, symptom: str) -> bool:
    return name in (rule, symptom) or rule.rstrip("0123456789") == name
