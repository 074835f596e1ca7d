"""Which file of a project is a configuration of what, and its settings as facts with their lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import PurePosixPath

from paramedic.collect.formats import Broken, Entry, Parsed, Section, docker, json, launch, plain, toml, variables, yaml
from paramedic.model import Event, Fact, Skipped
from paramedic.redact import redact

CONFIG = "config"
_HINTS = re.compile(
    r"zero_optimization|train_micro_batch_size_per_gpu|train_batch_size|compute_environment|distributed_type"
    r"|per_device_train_batch_size|num_attention_heads|apiVersion|^trainer:|cluster_name|^services:|\"cluster\""
    r"|\[parallelism\]|\[training\]",
    re.M,
)
_TEMPLATE = re.compile(r"\{\{|\{%|<%|\$\{\w+\}|(?<=[:\s,\[])[A-Z][A-Z0-9]+_[A-Z0-9_]+(?=\s*[,}\]])|(?<=:\s)@\w+@")
_SHELL = re.compile(r"#![^\n]{0,60}\b(?:ba|z|k)?sh\b")
_DOCKER = re.compile(r"(?:Docker|Container)file(?:\.[\w.-]+)?|.+\.[Dd]ockerfile")
_HOSTS = re.compile(r"(?i)(?:.*[_.-])?(?:host|machine)_?(?:file|s)(?:[_.-].*)?(?:\.txt)?")
_REQUIREMENTS = re.compile(r"(?i)(?:.*[_.-])?requirements(?:[_.-].*)?\.(?:txt|in)")
_EXPANDED = re.compile(r"\$\{?([A-Za-z_]\w*)")
_WHERE = {"zero_optimization", "train_micro_batch_size_per_gpu"}
_BESIDE = {"optimizer", "fp16", "bf16", "gradient_accumulation_steps", "scheduler", "zero_allow_untested_optimizer"}
_TRAINER = {"trainer.strategy", "trainer.devices", "trainer.max_epochs", "trainer.accelerator", "trainer.num_nodes"}

Problem = tuple[str, int, str]
"""(kind of Event, line, what is to be said of it)"""


def is_config(name: str, head: Callable[[], str]) -> bool:
    return _reader(name, head) is not None


def sections_of(name: str, text: str) -> tuple[list[Section], list[Problem]]:
    """Raises Broken where a file that is surely a configuration cannot be parsed."""
    reader = _reader(name, lambda: text[:80])
    if reader is None:
        return [], []
    return reader(name, text)


def facts_of(name: str, sections: list[Section]) -> Iterator[Fact]:
    for section in sections:
        for entry in section.entries:
            label = f"{CONFIG} {section.kind} {section.number} {redact(entry.key)}"
            yield Fact(label, _clean(entry), name, entry.line)


def _clean(entry: Entry) -> object:
    if isinstance(entry.value, str):
        front = f"{entry.name}="
        shown = redact(front + entry.value)
        return shown[len(front) :] if shown.startswith(front) else redact(entry.value)
    return entry.value


def events_of(name: str, problems: list[Problem]) -> Iterator[Event]:
    for number, (kind, line, text) in enumerate(problems):
        yield Event(name, number, kind, redact(text), line)


def skipped_or_broken(name: str, text: str, error: Broken) -> Skipped | Problem:
    """A template is meant not to parse before it is filled in."""
    if _TEMPLATE.search(text) or re.search(r"(?i)template|\.j2\b|\.tmpl\b", name):
        return Skipped(name, f"a template: line {error.line}, {error.why}")
    return ("broken", error.line, error.why)


_Reader = Callable[[str, str], tuple[list[Section], list[Problem]]]


def _reader(name: str, head: Callable[[], str]) -> _Reader | None:
    base = name.rsplit("/", 1)[-1]
    suffix = PurePosixPath(base).suffix.lower()
    if suffix in _BY_SUFFIX:
        return _BY_SUFFIX[suffix]
    if _DOCKER.fullmatch(base):
        return _docker
    if _REQUIREMENTS.fullmatch(base):
        return _requirements
    if suffix in ("", ".txt", ".hosts") and _HOSTS.fullmatch(base):
        return _hosts
    return _shell if suffix == "" and _SHELL.match(head()) else None


def _json(name: str, text: str) -> tuple[list[Section], list[Problem]]:
    if not _HINTS.search(text):
        return [], []
    parsed = json.parse(text)
    kind = _kind(parsed)
    if kind is None:
        return [], []
    problems: list[Problem] = [("duplicate", e.line, e.key) for e in parsed.duplicates]
    problems += [("loose", e.line, e.key) for e in parsed.loose[:1]]
    return [_section(kind, parsed)], problems


def _yaml(name: str, text: str) -> tuple[list[Section], list[Problem]]:
    if not _HINTS.search(text):
        return [], []
    found: list[Section] = []
    problems: list[Problem] = []
    for number, parsed in enumerate(yaml.parse(text)):
        kind = _kind(parsed)
        if kind is not None:
            found.append(replace(_section(kind, parsed), number=number))
            problems += [("duplicate", e.line, e.key) for e in parsed.duplicates]
    return found + variables.of_documents(found), problems


def _toml(name: str, text: str) -> tuple[list[Section], list[Problem]]:
    if not _HINTS.search(text):
        return [], []
    parsed = toml.parse(text)
    kind = "torchtitan" if "parallelism" in parsed.top and "training" in parsed.top else _kind(parsed)
    return ([] if kind is None else [_section(kind, parsed)]), []


def _shell(name: str, text: str) -> tuple[list[Section], list[Problem]]:
    found = [*launch.sections(text), *plain.installs(text)]
    return found, _used(found, text)


def _used(sections: list[Section], text: str) -> list[Problem]:
    """Variables that the file not only sets but also uses itself."""
    given = {
        entry.key: entry.line for section in sections if section.kind == "environment" for entry in section.entries
    }
    return [("used", given[name], name) for name in sorted(given.keys() & set(_EXPANDED.findall(text)))]


def _docker(name: str, text: str) -> tuple[list[Section], list[Problem]]:
    section = docker.section(text)
    given = tuple(replace(e, key=e.key[4:]) for e in section.entries if e.key.startswith("env."))
    found = [section, *([Section("environment", given)] if given else []), *plain.installs(text)]
    return found, _used(found, text)


def _hosts(name: str, text: str) -> tuple[list[Section], list[Problem]]:
    if not re.search(r"\bslots[ \t]*=", text):
        return [], []
    return [plain.hosts(text)], []


def _requirements(name: str, text: str) -> tuple[list[Section], list[Problem]]:
    return [plain.requirements(text)], []


_BY_SUFFIX: dict[str, _Reader] = {
    ".json": _json, ".jsonc": _json, ".hjson": _json, ".yaml": _yaml, ".yml": _yaml, ".toml": _toml, ".sh": _shell,
    ".bash": _shell, ".sbatch": _shell, ".slurm": _shell,
}  # fmt: skip


def _kind(parsed: Parsed) -> str | None:
    top = parsed.top
    if (top & _WHERE) or ("train_batch_size" in top and top & _BESIDE):
        return "deepspeed"
    if "distributed_type" in top or "compute_environment" in top:
        return "accelerate"
    if {"apiVersion", "kind"} <= top:
        return "kubernetes"
    if {"num_attention_heads", "num_hidden_layers"} <= top and top & {"model_type", "architectures"}:
        return "model"
    if "per_device_train_batch_size" in top:
        return "transformers"
    if {"cluster", "task"} <= top:
        return "tf-config"
    if "cluster_name" in top and top & {"provider", "available_node_types"}:
        return "ray"
    if "services" in top:
        return "compose"
    return "lightning" if any(entry.key in _TRAINER for entry in parsed.entries) else None


def _section(kind: str, parsed: Parsed) -> Section:
    entries = [_open(entry) if kind != "kubernetes" else entry for entry in parsed.entries]
    if kind == "lightning":
        entries = [replace(e, key=e.key.removeprefix("trainer.")) for e in entries if e.key.startswith("trainer.")]
    return Section(kind, tuple(entries))


def _open(entry: Entry) -> Entry:
    """`${model.heads}` is filled in by Hydra or OmegaConf: nobody knows it here."""
    unknown = isinstance(entry.value, str) and "${" in entry.value
    return replace(entry, value=None) if unknown else entry
