"""Which fix to try first, with the values that the evidence gives filled in."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache, partial
from typing import Any

from paramedic.causes import subject
from paramedic.collect.identity import platforms_in
from paramedic.knowledge import Knowledge
from paramedic.knowledge.cures import load_cures
from paramedic.model import Event, Finding, Fix, Report, Run, is_own, last_exception
from paramedic.regex import regex

MOST = 3
"""Never a list of twenty."""
_LONGEST = 200
_HOLE = regex(r"(?<!\$)\{([a-z_]+)(?:\|([^{}\n]*))?\}")
_PARTS = regex(r"""(\bf(?P<quote>['"]).*?(?P=quote))|.+?(?=\bf['"]|$)""", re.M)
"""f-strings of Python, whose braces are no holes, and what stands between them."""
_PLAIN = regex(r"[\w./~][\w./~@:+,=-]*", re.A)
_PACKAGES = {
    "apex": "git+https://github.com/NVIDIA/apex",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "megatron": "megatron-core",
    "PIL": "Pillow",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "PyYAML",
}
"""Modules whose package has another name."""


@dataclass(frozen=True)
class Seen:
    """What a fix may be chosen by, beside the finding itself."""

    run: Run
    rules: frozenset[str] = frozenset()
    beside: Run | None = None

    @cached_property
    def on_one_host(self) -> bool:
        """Where that is sure: a launch of one node only."""
        told = "\n".join(text for text in self.lines if "torchrun" in text or "nproc" in text or "nnodes" in text)
        return bool(_ALONE.search(told)) and not _TOGETHER.search(told)

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """What was kept of the job's own words, and of what lies beside them."""
        said = self.run.of_kind("line", "complaint", "traceback", "setting")
        return tuple(event.text[:_AS_FAR] for event in (*said, *self._told))

    @cached_property
    def systems(self) -> frozenset[str]:
        told = Run("", events=tuple(self._told))
        return frozenset((*self.run.frameworks, *platforms_in(self.run), *platforms_in(told)))

    @cached_property
    def _told(self) -> Sequence[Event]:
        return self.beside.of_kind("told") if self.beside else ()


def propose(report: Report, knowledge: Knowledge, beside: Run | None = None) -> Report:
    """Gives every finding its rule's fixes, the most likely cause's first."""
    followed = (cascade.rules for cascade in report.cascades)
    seen = Seen(report.run, frozenset(finding.rule for finding in report.findings).union(*followed), beside)
    findings = tuple(replace(f, fixes=fixes_for(f, knowledge, seen)) for f in report.findings)
    if report.verdict is None:
        return replace(report, findings=findings)
    verdict, *others = findings
    nearest = tuple(_from_the_program(verdict, others))
    own = 1 if nearest and _says_why(verdict) else 0
    verdict = replace(verdict, fixes=(*verdict.fixes[:own], *nearest, *verdict.fixes[own:])[:MOST])
    return replace(report, findings=(verdict, *others), verdict=verdict)


def _from_the_program(verdict: Finding, others: Iterable[Finding]) -> Iterator[Fix]:
    """What was found in the program beside the log, where it leads to the very symptom: there is no nearer advice."""
    alike = _HANGS if verdict.symptom in _HANGS else {verdict.symptom}
    for one in others:
        events = [item.event for item in one.evidence]
        if one.symptom in alike and one.fixes and events and events[0].kind == "code":
            place = os.path.basename(events[0].source) + (f":{events[0].line}" if events[0].line else "")
            yield replace(one.fixes[0], title=f"{one.fixes[0].title} ({place})", cause=None)
            return


def _says_why(verdict: Finding) -> bool:
    """An exception tells what was wrong where it was raised, but not who kept the memory, or why ranks wait."""
    raised = bool(verdict.evidence) and verdict.evidence[0].event.kind == "traceback"
    return raised and verdict.symptom not in _HANGS and not verdict.symptom.endswith("out-of-memory")


_AS_FAR = 2_000
_HANGS = frozenset({"collective-hang", "collective-desync"})


def fixes_for(finding: Finding, knowledge: Knowledge, seen: Seen | None = None) -> tuple[Fix, ...]:
    """The rule's own, those first that something was seen to speak for; before the rest the cure of the most likely
    cause, where the rule knows none for it."""
    seen = seen or Seen(Run(""))
    likely = {cause.id: cause.probability for cause in finding.causes}
    top = max(likely.values(), default=0.0)
    told = _told(finding, seen)
    said = "\n".join(_quoted(finding))[:_SO_MUCH]
    fitting: list[Fix] = []
    known: list[Fix] = []
    for fix in knowledge.rules[finding.rule].fixes:
        captured = _fits(fix.when, finding.rule, said, seen)
        if captured is None or not _holes(fix.title) <= told.keys() | captured.keys():
            continue
        if not fix.when.keys().isdisjoint(_SPEAKS):
            known_here = told | captured
            fitting.append(_filled(fix, known_here | {"drain": _drained(known_here, seen)}))
        else:
            known.append(fix)
    fixes = sorted(known, key=lambda fix: -(likely.get(fix.cause, 0.0) if fix.cause else top))
    if finding.causes and not fitting and not any(fix.cause in (None, finding.causes[0].id) for fix in known):
        fixes.insert(0 if top >= _RATHER else len(fixes), load_cures()[finding.causes[0].id])
    chosen = (*fitting, *(_filled(fix, told) for fix in fixes))[:MOST]
    return tuple(map(_in_nemo, chosen)) if "nemo" in seen.systems else chosen


def _in_nemo(fix: Fix) -> Fix:
    """NeMo takes Megatron's options as settings of the same names."""
    options, _, comment = str(fix.action.get("argument", "")).partition("#")
    words = _OPTION.sub(lambda one: f"{one[1].replace('-', '_')}={one[2] or 'True'}", options)
    told = f"{words.rstrip()}{_OF_NEMO}{'; ' if comment else ''}{comment.strip()}"
    return fix if words == options else replace(fix, action={**fix.action, "argument": told})


_OPTION = regex(
    r"--((?:[a-z]+-)*(?:model-parallel-size|parallel-size|batch-size|layers|heads|groups|experts|recompute-[a-z-]+"
    r"|sequence-parallel|seq-length|vocab-size-divisible-by))(?:[ =]([A-Z0-9{][\w.{}|/-]*))?"
)
_OF_NEMO = "   # NeMo: below model: in the YAML, or in the recipe's model, strategy or data"


_RATHER = 0.5
"""How likely a cause must be for its general cure to come before what the rule says of its own."""
_SPEAKS = ("said", "job", "beside")
_SO_MUCH = 40_000


def _fits(when: Mapping[str, Any], rule: str, said: str, seen: Seen) -> dict[str, str] | None:
    """What it captured, if all of it was seen: `said` in the evidence, `job` in any line that was kept; and nothing
    that speaks against it."""
    if not when:
        return {}
    if not _is_open(when, rule, said, seen):
        return None
    captured: dict[str, str] = {}
    for word, texts in (("said", (said,)), ("job", seen.lines)):
        if word in when:
            found = next((hit for text in texts if (hit := _compiled(when[word]).search(text)) is not None), None)
            if found is None:
                return None
            captured |= {k: v[:_LONGEST] for k, v in found.groupdict().items() if v}
    return captured


def _is_open(when: Mapping[str, Any], rule: str, said: str, seen: Seen) -> bool:
    """`systems`: one of these, none of those behind a `!`. `beside`: one of these rules, or one with this prefix, also
    of what followed. `unless` is not in the evidence, `nowhere` not in any line either."""
    if not _runs_there(when.get("systems", ()), seen.systems):
        return False
    if "beside" in when and not any(one.startswith(tuple(when["beside"])) for one in seen.rules - {rule}):
        return False
    if "unless" in when and _compiled(when["unless"]).search(said):
        return False
    return "nowhere" not in when or not any(map(_compiled(when["nowhere"]).search, (said, *seen.lines)))


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """There are more of them than `re` keeps."""
    return re.compile(pattern, re.M)


def _runs_there(named: Sequence[str], systems: Set[str]) -> bool:
    barred = {name[1:] for name in named if name.startswith("!")}
    wanted = {name for name in named if not name.startswith("!")}
    return not barred & systems and (not wanted or bool(wanted & systems))


def _quoted(finding: Finding) -> Iterator[str]:
    """All that the evidence says, with its frames and neighbours."""
    yield finding.summary
    for one in finding.evidence:
        yield from one.before
        yield from (str(frame) for frame in one.event.fields.get("frames", ()))
        yield one.event.text
        yield from one.after


def _told(finding: Finding, seen: Seen) -> dict[str, str]:
    """What a rule captured; where it happened; and, for the cures that no rule has written, the quoted error with the
    frame of the user's own code."""
    fields = dict(finding.fields)
    if len(finding.hosts) == 1:
        fields.setdefault("host", finding.hosts[0])
    if finding.hosts:
        fields.setdefault("hosts", ",".join(finding.hosts[:_HOSTS]))
    if finding.ranks:
        fields.setdefault("rank", str(finding.ranks[0]))
        fields.setdefault("whose", subject(finding.ranks).lower())
    if len(finding.ranks) == 1:
        fields.setdefault("alone", str(finding.ranks[0]))
    quoted = next((e.event for e in finding.evidence if e.event.fields.get("types")), None)
    if quoted is not None:
        fields.setdefault("exception", last_exception(quoted)[:_LONGEST])
        own = [str(frame) for frame in quoted.fields.get("frames", ()) if is_own(str(frame))]
        fields |= {"where": fields.get("where", own[-1])} if own else {}
        advice = _ADVICE.search(last_exception(quoted))
        fields |= {"advice": advice[0].strip()[:_LONGEST]} if advice else {}
    if "module" in fields:
        module = fields["module"].split(".")[0]
        fields["package_of_the_module"] = _PACKAGES.get(module, module)
    if "path" in fields:
        fields.setdefault("folder", os.path.dirname(fields["path"]))
    return fields | {"drain": _drained(fields, seen)}


def _drained(fields: Mapping[str, str], seen: Seen) -> str:
    """How a node is left out, where the job runs: all ways where that is not known."""
    nodes = fields.get("hosts", fields.get("host", ""))
    names = nodes.split(",") if _PLAIN.fullmatch(nodes) else ["NODE"]
    names = [name for name in names if not any(name.startswith(f"{other}.") for other in names)]
    node = ",".join(names)
    slurm = f"scontrol update NodeName={node} State=DRAIN Reason=hardware\nsbatch --exclude={node} …"
    kubernetes = "\n".join(f"kubectl cordon {_node_of(name)}" for name in names)
    if "slurm" in seen.systems:
        return slurm
    if "kubernetes" in seen.systems:
        return kubernetes
    if seen.on_one_host:
        gpu = fields.get("local_rank", "")
        return _ON_THE_OTHERS.replace("THAT", gpu if gpu.isdigit() else "that one")
    own = next((command for name, command in _LAUNCH_WITHOUT.items() if name in seen.systems), "")
    if own:
        return own.replace("NODE", node)
    return f"# Slurm\n{slurm}\n# Kubernetes\n{kubernetes}\n# else: start again without {node} in the list of hosts"


def _node_of(name: str) -> str:
    """Hosts are called by their pods where nothing says on which node those ran."""
    if not _POD.search(name):
        return name
    return f"\"$(kubectl get pod {name} -o jsonpath='{{.spec.nodeName}}')\""


_POD = regex(
    r"(?:^|-)(?:worker|master|launcher|chief|ps|rank|replica|head|node|trainer)s?(?:-\d+)+$|-[a-z0-9]{5,10}-[a-z0-9]{5}$"
)
_ALONE = regex(r"--standalone\b|--nnodes[= ]1(?!\d|:)")
_TOGETHER = regex(r"--nnodes[= ](?:[2-9]|1[\d:])|--node[-_]rank[= ][1-9]")
_ON_THE_OTHERS = (
    "nvidia-smi -L   # the only host: go on with its other GPUs\n"
    "export CUDA_VISIBLE_DEVICES=0,1,…   # all but THAT; and one process less"
)
_HOSTS = 8
_LAUNCH_WITHOUT = {
    "horovodrun": "# start again without NODE in -H, the hostfile, or what --host-discovery-script prints",
    "mpi": "# start again without NODE in -H or the hostfile",
    "torchrun": (
        "# start again without NODE: one node less in --nnodes, or another in its place\n"
        "# there is no other: CUDA_VISIBLE_DEVICES with its other GPUs, and one process less"
    ),
    "deepspeed": "deepspeed --exclude=NODE …",
    "ray": "ray stop  # on NODE: Ray starts the workers elsewhere",
}
_ADVICE = regex(
    r"(?:(?<=[.;:!?] )|(?<=\n)|^)(?:Please(?! (?:check|look|see|refer|report|contact|ensure|make sure)\b)|Try|Consider"
    r"|Did you mean|You (?:can|should|may|need)(?![\w']|not\b)"
    r"|To (?:fix|resolve|avoid|solve|use|load|run|enable|disable)|Set|Use|Upgrade|Install|Pass)\b"
    r"[^\n]{8,400}?(?:[.?!](?=\s|$)|(?<!:)$)",
    re.M,
)
"""Where a message says itself what to do."""


def general(text: str) -> str:
    """Of no job: what may stand in a hole instead of its name."""
    return _HOLE.sub(lambda hole: hole[2] if hole[2] is not None else hole[0], text)


def _filled(fix: Fix, fields: Mapping[str, str]) -> Fix:
    """Plain replacement of `{name}` by the captured text: what comes from a log is never a template. What nobody has
    captured is left out with all that needs it, unless it says what may stand instead: `{host|NODE}`."""
    holes = {part for value in (*fix.action.values(), fix.title, fix.verify) for part in _holes(value)} - fields.keys()
    holes |= set(_acting(str(fix.action.get("run", "")), fields))

    def fill(value: Any, plain: bool = False) -> Any:
        if not isinstance(value, str) or "{" not in value:
            return value
        instead = partial(_instead, fields=fields, plain=plain)
        return _PARTS.sub(lambda part: part[0] if part[1] else _HOLE.sub(instead, part[0]), value)

    action = {key: fill(value, key != "hint") for key, value in _without(fix.action, holes).items()}
    if "edit" in action:
        action = _for_editing(fix.action, action, fields)
    verify = "" if _holes(fix.verify) & holes else fill(fix.verify, plain=True)
    return replace(fix, title=fill(fix.title), action=action, verify=verify, when={})


def _instead(hole: re.Match[str], fields: Mapping[str, str], plain: bool) -> str:
    """What is known; where a shell will read it, only what it reads as one word may take the place of a name."""
    text, name = fields.get(hole[1]), hole[2]
    if name is None:
        return hole[0] if text is None else text
    return text if text and (_PLAIN.fullmatch(text) or not plain) else name


def _holes(value: Any) -> Set[str]:
    """The names in braces that are to be filled: neither a shell's `${HOME}` nor those of Python's f-strings."""
    return _holes_in(value) if isinstance(value, str) and "{" in value else frozenset()


@lru_cache(16_384)
def _holes_in(text: str) -> frozenset[str]:
    parts = (part[0] for part in _PARTS.finditer(text) if not part[1])
    return frozenset(hole[1] for part in parts for hole in _HOLE.finditer(part) if hole[2] is None)


def _acting(run: str, fields: Mapping[str, str]) -> Iterator[str]:
    """What would do something of its own where the command is pasted: what a log says is words, never a command. Where
    a whole line is a hole, a detector has made that line."""
    for line in run.split("\n"):
        command = _COMMENT.split(line, maxsplit=1)[0]
        for name in _holes(line) if not _HOLE.fullmatch(line.strip()) else ():
            ends = _ACTS if name in _holes(command) else _ENDS
            if ends.search(fields.get(name, "")):
                yield name


_COMMENT = regex(r"(?:^|\s)#\s")
_ENDS = regex(r"[\r\n]")
_ACTS = regex(r"[;&|<>`$\"'\\\r\n]|^-")


def _without(action: Mapping[str, Any], holes: Set[str]) -> dict[str, Any]:
    """Half a command or half a setting is none; of a hint the lines stay that can be said."""
    if not any(_holes(value) & holes for value in action.values()):
        return dict(action)
    lines = [line for line in str(action.get("hint", "")).split("\n") if not _holes(line) & holes]
    kept = {"hint": "\n".join(lines)} if any(lines) else {}
    return {"kind": action["kind"], **kept}


def _for_editing(template: Mapping[str, Any], action: dict[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    """A number stays a number where the whole value is one field; the section says where in the file."""
    value = template.get("value")
    if isinstance(value, str) and re.fullmatch(r"\{\w+\}", value):
        with suppress(ValueError):
            action["value"] = json.loads(action["value"])
    action |= {name: int(fields[name]) for name in ("section", "line") if fields.get(name, "").isdigit()}
    return {"part": fields["part"], **action} if "part" in fields else action
