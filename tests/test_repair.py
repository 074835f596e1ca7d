"""The smallest change of versions: the search by itself, and real conflicts in fresh environments (slow)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import canonicalize_name

from paramedic import repair
from paramedic.collect.resolver import Answer, _complaint
from paramedic.commands import main
from paramedic.detect.nodes import Node
from paramedic.knowledge.advisories import load_advisories
from paramedic.model import Fact


def node(**facts: Any) -> Node:
    rows = {name.replace("__", " ").replace("_", "-"): value for name, value in facts.items()}
    return Node("a", {name: Fact(name, value, "case", host="a") for name, value in rows.items()})


def asked(log: list[tuple[list[str], list[str]]], accept: dict[str, dict[str, str]]) -> repair.Ask:
    def ask(wanted: Sequence[str], pins: Iterable[str]) -> Answer:
        log.append((list(wanted), list(pins)))
        return next((Answer(install) for word, install in accept.items() if word in wanted), Answer({}, "no"))

    return ask


TOKENIZERS = node(
    package__transformers="4.36.2", requires__transformers=["tokenizers<0.19,>=0.14"], package__tokenizers="0.22.1",
    package__numpy="2.1.0",
)  # fmt: skip


def test_the_leaf_is_changed_before_the_framework_and_everything_else_is_pinned() -> None:
    log: list[tuple[list[str], list[str]]] = []
    found = repair.conflicts(TOKENIZERS, ())
    made = repair.smallest(TOKENIZERS, found, asked(log, {"tokenizers<0.19,>=0.14": {"tokenizers": "0.18.0"}}))
    assert dict(made.changes) == {"tokenizers": ("0.22.1", "0.18.0")}
    wanted, pins = log[0]
    assert wanted == ["tokenizers<0.19,>=0.14", "transformers==4.36.2"]  # who depends on it stays satisfied
    assert "numpy==2.1.0" in pins
    assert not any(pin.startswith("tokenizers") for pin in pins)


def test_where_the_leaf_cannot_change_the_framework_does_and_it_is_said_why() -> None:
    found = repair.conflicts(TOKENIZERS, ())
    made = repair.smallest(TOKENIZERS, found, asked([], {"transformers!=4.36.2": {"transformers": "4.57.1"}}))
    assert repair.pins(made) == ["transformers==4.57.1"]
    assert "Tried before: tokenizers<0.19,>=0.14: no" in repair.explained(made)
    fix = repair.as_fix(made)
    assert fix.action["run"] == "python -m pip install transformers==4.57.1"
    assert fix.action["lines"]["dockerfile"] == [f"RUN {fix.action['run']}"]
    assert fix.action["lines"]["conda"] == ["- pip:", "  - transformers==4.57.1"]


def test_what_a_package_lacks_is_not_installed_where_the_package_itself_has_to_change() -> None:
    here = node(
        package__transformers="4.50.3", requires__transformers=["huggingface-hub<1.0,>=0.26"],
        package__huggingface_hub="1.0.1", requires__huggingface_hub=["httpx", "typer"],
    )  # fmt: skip
    log: list[tuple[list[str], list[str]]] = []
    repair.smallest(
        here, repair.conflicts(here, ()), asked(log, {"huggingface-hub<1.0,>=0.26": {"huggingface-hub": "0.36.0"}})
    )
    assert [word for word in log[0][0] if word.startswith(("httpx", "typer"))] == []


def test_a_known_bug_is_a_conflict_like_any_other() -> None:
    here = node(package__deepspeed="0.14.0", package__torch="2.13.0")
    (one,) = repair.conflicts(here, load_advisories())
    assert [str(way) for way in one.ways] == ["deepspeed>=0.14.1", "torch<2.4"]
    ways = sorted(((way,) for way in one.ways), key=repair.cost)
    assert str(ways[0][0]) == "deepspeed>=0.14.1"  # native packages stay


def test_nothing_is_proposed_that_the_resolver_refuses() -> None:
    made = repair.smallest(TOKENIZERS, repair.conflicts(TOKENIZERS, ()), asked([], {}))
    assert made.changes == {}
    assert len(made.refused) == 2


def test_the_complaint_is_pips_own_without_its_advice() -> None:
    text = "ERROR: Cannot install a and b\nThe conflict is caused by:\n    a depends on b<1\nTo fix this you could try to:\n1. loosen\n"
    assert _complaint(text) == "ERROR: Cannot install a and b The conflict is caused by: a depends on b<1"


# -- for real ------------------------------------------------------------------------------------------------------

CONFLICTS = {
    # name: (installed first, then forced over it without its dependencies, what does not import)
    "tokenizers": (["transformers==4.36.2", "numpy<2"], ["tokenizers==0.22.1"], "transformers"),
    "hub": (["transformers==4.50.3"], ["huggingface-hub==1.0.1"], "transformers"),
    "pyarrow": (["datasets==2.14.5", "pyarrow==20.0.0", "numpy<2", "pandas<2.3"], ["pyarrow==21.0.0"], "datasets"),
    "protobuf": (["tensorboard==2.10.1", "setuptools<80"], ["protobuf==5.29.3"], "tensorboard.compat.proto.event_pb2"),
    "llvmlite": (["numba==0.59.1", "numpy<1.27"], ["llvmlite==0.41.1"], "numba"),
    "scipy": (["scipy==1.11.4", "numpy<1.27"], ["numpy==2.1.3"], "scipy.stats"),
    "pydantic": (["pydantic==2.12.0"], ["pydantic-core==2.33.2"], "pydantic.main"),
    "setuptools": (
        ["torch==2.13.0", "pytorch-lightning==2.3.3", "setuptools<81"],
        ["setuptools==82.0.0"],
        "pytorch_lightning",
    ),
}


PAGE = Path(__file__).parents[1] / "docs/check-node.md"


def pip(python: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pip", "--python", str(python), *arguments, "--disable-pip-version-check"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def imports(python: Path, module: str) -> bool:
    return subprocess.run([python, "-c", f"import {module}"], check=False, capture_output=True).returncode == 0


def installed(python: Path) -> dict[str, str]:
    listed = json.loads(pip(python, "list", "--format", "json"))
    return {canonicalize_name(one["name"]): one["version"] for one in listed}


def upgraded(python: Path, names: Iterable[str], folder: Path) -> list[str]:
    """What `pip install -U` of everything would change or add. torch is held: it would bring gigabytes of CUDA."""
    report, held = folder / "report.json", folder / "held.txt"
    held.write_text("torch==2.13.0\n", "utf-8")
    words = ("--dry-run", "--upgrade", "--only-binary", ":all:", "--report", str(report), "--constraint", str(held))
    pip(python, "install", "--quiet", *words, *names)
    return [one["metadata"]["name"] for one in json.loads(report.read_text("utf-8"))["install"]]


def noted(row: str) -> None:
    """UPDATE_DOCS=1 puts it into the page in place of the row that begins alike."""
    text, start = PAGE.read_text("utf-8"), row.partition(" | ")[0]
    lines = text.split("\n")
    at = [number for number, line in enumerate(lines) if line.startswith(f"{start} |")]
    lines[at[0] : at[0] + 1] = [row]
    PAGE.write_text("\n".join(lines), "utf-8")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CONFLICTS)
def test_a_real_conflict_is_resolved_by_what_check_prints(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, forced, module = CONFLICTS[name]
    venv.create(tmp_path / "v", with_pip=False, symlinks=True)
    python = tmp_path / "v" / "bin" / "python"
    pip(python, "install", "--quiet", *first)
    assert imports(python, module)
    pip(python, "install", "--quiet", "--no-deps", *forced)
    assert not imports(python, module), "not broken before"
    main(["check", "--python", str(python), "--format", "json"])
    report = json.loads(capsys.readouterr().out)
    proposed = [fix["action"] for one in report["findings"] for fix in one["fixes"] if "lines" in fix["action"]]
    assert proposed, report["skipped"]
    before = installed(python)
    theirs = upgraded(python, before, tmp_path)
    pip(python, "install", "--quiet", *proposed[0]["lines"]["requirements"])
    assert imports(python, module), f"still broken after {proposed[0]['run']}"
    after = installed(python)
    ours = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    assert len(ours) <= len(theirs), (ours, theirs)
    if os.environ.get("UPDATE_DOCS"):
        changes = ", ".join(f"{name} {after.get(name, 'gone')}" for name in ours)
        cells = (
            forced[0].replace("==", " "),
            first_of(first),
            changes,
            str(len(ours)),
            str(len(theirs)),
            str(len(before)),
        )
        noted(f"| {' | '.join(cells)} |")


def first_of(packages: Sequence[str]) -> str:
    """The package that no longer imports."""
    return next(one for one in packages if not one.startswith("torch==")).replace("==", " ")
