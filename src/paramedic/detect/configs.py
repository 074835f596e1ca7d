"""Any configuration file; files of hosts, TF_CONFIG, requirements, Docker."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from paramedic.detect.setup import Hit, Part, Setup
from paramedic.model import Fact

# -- any file -------------------------------------------------------------------------------------------------------


def broken(setup: Setup) -> Iterator[Hit]:
    for event in setup.events("broken"):
        yield Hit((event,), {"why": event.text, "line": event.line})


def duplicate_key(setup: Setup) -> Iterator[Hit]:
    """DeepSpeed refuses a key given twice; other readers take the last one silently."""
    kinds = {source.id: source.kind for source in setup.run.sources}
    for event in setup.events("duplicate"):
        severity = None if kinds.get(event.source) == "deepspeed" else "warning"
        yield Hit((event,), {"key": event.text, "line": event.line}, severity)  # type: ignore[arg-type]


def loose_json(setup: Setup) -> Iterator[Hit]:
    for event in setup.events("loose"):
        yield Hit((event,), {"what": event.text, "line": event.line})


def allowed_without_reason(setup: Setup) -> Iterator[Hit]:
    for event in setup.events("allowed"):
        if not event.fields["reason"]:
            yield Hit((event,), {"rules": ", ".join(event.fields["rules"])})


# -- files of hosts, TF_CONFIG, requirements, Docker ----------------------------------------------------------------


def hostfile_twice(setup: Setup) -> Iterator[Hit]:
    for _, facts in _hosts(setup):
        seen: set[str] = set()
        for fact in facts:
            host = fact.name.split(" ", 3)[3]
            if host in seen:
                yield Hit((fact,), {"host": host})
            seen.add(host)


def hostfile_line(setup: Setup) -> Iterator[Hit]:
    for _, facts in _hosts(setup):
        for fact in facts:
            if fact.value is None:
                yield Hit((fact,), {"host": fact.name.split(" ", 3)[3]})


def _hosts(setup: Setup) -> Iterable[tuple[str, list[Fact]]]:
    found: dict[str, list[Fact]] = {}
    for fact in setup.run.facts:
        if fact.name.startswith("config hostfile "):
            found.setdefault(fact.source, []).append(fact)
    return found.items()


def tf_config(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("tf-config"):
        kind, index = part.get("task.type"), part.get("task.index")
        if part.has(""):
            yield Hit(part.quoted(""), {"why": "it is no JSON"})
        elif isinstance(kind, str) and not part.has(f"cluster.{kind}") and kind not in ("evaluator", "chief", "master"):
            yield Hit(part.quoted("task.type"), {"why": f"the cluster has no {kind}"})
        elif (
            isinstance(index, int)
            and isinstance(members := part.get(f"cluster.{kind}"), list)
            and index >= len(members)
        ):
            yield Hit(
                part.quoted("task.index"),
                {"why": f"there are only {len(members)} of {kind}, the last one is {len(members) - 1}"},
            )


_PAIRS = {f"2.{minor}": f"0.{minor + 15}" for minor in range(16)}


def requirement_pair(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("requirements"):
        pins = {name: _pin(part.get(name)) for name in ("torch", "torchvision", "torchaudio")}
        torch = pins["torch"]
        if torch is None:
            continue
        minor = ".".join(torch.split(".")[:2])
        wanted = {"torchvision": _PAIRS.get(minor), "torchaudio": minor}
        for name, right in wanted.items():
            pin = pins[name]
            if (
                pin
                and right
                and minor in _PAIRS
                and ".".join(pin.split(".")[:2]) != right
                and minor not in ("2.14", "2.15")
            ):
                if name == "torchaudio" and int(minor.split(".")[1]) > 9:
                    continue  # released apart from torch since then
                yield Hit(part.quoted(name, "torch"), {"name": name, "pin": pin, "torch": torch, "right": right})


def _pin(value: object) -> str | None:
    found = re.match(r"==\s*(\d[\w.]*)", value) if isinstance(value, str) else None
    return found[1] if found else None


def requirement_twice(setup: Setup) -> Iterator[Hit]:
    seen: dict[tuple[str, str], Fact] = {}
    for fact in setup.run.facts:
        if not fact.name.startswith("config requirements ") or fact.name.split(" ", 3)[3].startswith("-"):
            continue
        key = (fact.source, fact.name)
        before = seen.get(key)
        if before is not None and _pin(before.value) and _pin(fact.value) and _pin(before.value) != _pin(fact.value):
            yield Hit((fact, before), {"name": fact.name.split(" ", 3)[3], "one": before.value, "other": fact.value})
        seen[key] = fact


_COMMAND = re.compile(r"[^&;|]++[&;|]?")
_PIP = re.compile(r"pip3?\b")
_INSTALL = re.compile(r"\binstall\b")
_COMPILED = re.compile(r"[ \t](flash[-_]attn|apex|transformer[-_]engine|horovod)\b")
_TORCH = re.compile(r"[ \t][\"']?(torch)(?:[=<>~!\"' \t]|$)")


def docker_installs(setup: Setup, wanted: re.Pattern[str]) -> Iterator[tuple[Part, Fact, str]]:
    for part in setup.of("dockerfile"):
        for key, fact in part.facts.items():
            if key.startswith("run[") and isinstance(fact.value, str) and (name := pip_installs(fact.value, wanted)):
                yield part, fact, name


def pip_installs(commands: str, wanted: re.Pattern[str]) -> str:
    """The last that the first such `pip install` names. Word after word: one pattern with gaps takes cubic time."""
    for command in _COMMAND.finditer(commands):
        pip = _PIP.search(command[0])
        install = _INSTALL.search(command[0], pip.end()) if pip else None
        names = [found[1] for found in wanted.finditer(command[0], install.end())] if install else []
        if names:
            return str(names[-1])
    return ""


def docker_without_compiler(setup: Setup) -> Iterator[Hit]:
    for part, fact, name in docker_installs(setup, _COMPILED):
        image = _last_image(part)
        if image is not None and re.search(r"nvidia/cuda:\S*-(?:runtime|base)\b", str(image.value)):
            yield Hit((fact, image), {"name": name, "image": image.value})


def docker_replaces_torch(setup: Setup) -> Iterator[Hit]:
    for part, fact, _ in docker_installs(setup, _TORCH):
        image = _last_image(part)
        if image is not None and "nvcr.io/nvidia/pytorch" in str(image.value):
            yield Hit((fact, image), {"image": image.value})


def _last_image(part: Part) -> Fact | None:
    images = [fact for key, fact in part.facts.items() if key.startswith("from[")]
    return images[-1] if images else None
