"""Inputs that an attacker made: small, and yet slow, large in memory, or fatal to one detector."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paramedic import detect, differences, first, pipeline, run_folder, survived
from paramedic.collect import archives, beside, code, flight, posts, project, quantities, settings, sides
from paramedic.collect.archives import Chosen
from paramedic.collect.formats import MOST_ENTRIES, Broken, docker, plain, toml
from paramedic.commands import main
from paramedic.detect import (
    calls,
    configs,
    loaders,
    numbering,
    numerics,
    pace,
    recovery,
    sentinels,
    sequels,
    series,
    where,
)
from paramedic.detect.answers import answer
from paramedic.detect.flow import flows
from paramedic.detect.match import on_event
from paramedic.detect.program import Program, _trains
from paramedic.detect.setup import Part
from paramedic.detect.stated import stated
from paramedic.detect.values import MOST_PARTS, Names, Value
from paramedic.knowledge import Knowledge, Rule
from paramedic.model import Event, Evidence, Fact, Finding, Run, Source
from paramedic.pipeline import Options, examine, read
from paramedic.prefilter import Prefilter

OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


# -- patterns ------------------------------------------------------------------------------------------------------

LONG = 400_000
"""What takes the square of it takes an hour."""


@pytest.mark.parametrize(
    "work",
    [
        "from paramedic.detect import configs; configs.pip_installs('pip install ' * 30_000, configs._COMPILED)",
        "from paramedic.detect import configs; configs.pip_installs('pip install ' * 30_000, configs._TORCH)",
        "from paramedic.detect import code_averages; code_averages._SHRINKS.search('h' * LONG)",
        "from paramedic.collect import code; code._RANK.search('_' * LONG)",
        "from paramedic.collect import beside; list(beside._modules('from ' + '.' * LONG))",
        "from paramedic.collect import beside; list(beside._modules('from' + ' ' * LONG))",
        "from paramedic.collect.formats import docker; docker.section('ENV ' + 'a' * LONG)",
        "from paramedic.collect.formats import docker; docker.section('ENV ' + 'a1' * LONG)",
        "from paramedic.collect.formats import plain; plain.requirements('a' + ' ' * LONG + 'b')",
        "from paramedic.collect.formats import toml; toml.parse('a = \"\"\"\\n[' + ' ' * LONG + 'x\\n\"\"\"')",
        "from paramedic.collect.formats import toml; toml.parse('a = \"\"\"\\nb = 1' + ' ' * LONG + 'x\\n\"\"\"')",
        'from paramedic.collect.formats import toml; toml.refuse_deep_keys(\'"""\' + \'\\\\"""\' * LONG)',
    ],
)
def test_a_pattern_takes_time_in_proportion_to_its_text(work: str) -> None:
    code = f"LONG = {LONG}; {work}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, capture_output=True)


@pytest.mark.parametrize(
    ("commands", "name"),
    [
        ("pip install apex flash-attn", "flash-attn"),
        ("apt-get update && pip3 install -U horovod==0.28", "horovod"),
        ("pip download x; install apex", ""),
        ("pip install torch; pip install apex", "apex"),
        ("pip install x & apex", ""),
    ],
)
def test_what_a_docker_image_installs(commands: str, name: str) -> None:
    assert configs.pip_installs(commands, configs._COMPILED) == name


def test_torch_is_replaced_by_its_own_name_alone() -> None:
    said = ("pip install torch", "pip install 'torch>=2'", "pip install torchvision", "pip uninstall x | torch")
    assert [bool(configs.pip_installs(one, configs._TORCH)) for one in said] == [True, True, False, False]


def test_a_hash_is_found_first_and_its_name_before_it() -> None:
    _, (_, _, _, named) = re._parser.parse(quantities._HASH.pattern)[0]  # type: ignore[attr-defined]
    assert "REPEAT" not in str(named[0][0])  # or it would be tried at every place
    (found,) = quantities.hashes_in("rank 3: model weights_hash: 0xab12cd34")
    assert found[0] == "state model weights hash"
    (found,) = quantities.hashes_in(f"{'very ' * 20}tokenizer md5=ab12cd34ef")
    assert found[0] == "hash " + " ".join(("very " * 20 + "tokenizer ")[-40:].split()) + " md5"


def test_variables_of_an_image_stand_where_they_did() -> None:
    entries = {entry.key: entry for entry in docker.section("FROM x\nENV A_1=2 1B='x y'\n").entries}
    assert (entries["env.A_1"].value, entries["env.B"].value) == ("2", "x y")
    assert entries["env.A_1"].whole == (11, 16)


def test_a_requirement_ends_before_the_blanks_behind_it() -> None:
    (entry,) = plain.requirements("  torch == 2.1 \t\r\n# no\n").entries
    assert (entry.key, entry.value, entry.whole) == ("torch", "== 2.1", (2, 14))


# -- programs ------------------------------------------------------------------------------------------------------


def names_after(text: str) -> dict[str, Value]:
    """What is known of its names at the end of a program."""
    event = Event("train.py", 0, "program", "", None, fields={"text": f"{text}\nloss.backward()\n"})
    (flow,) = flows(Program([event]))
    return flow.globals["train.py"]


def parts(value: Value) -> int:
    return 1 + sum(map(parts, value.items or ()))


DOUBLED = "import torch.distributed as dist\nx = y = [0]\ndef f(*a):\n    return a\n"


@pytest.mark.parametrize(
    "line",
    ["x = x + x", "x = (x, x)", "x = [*x, *x]", "x = f(*x, *x)", "x = x, x; y = y, y", "x = {'a': x, 'b': x}, x"],
)
def test_a_value_that_doubles_is_soon_unknown(line: str) -> None:
    chosen = "\nif dist.get_rank() == 0:\n    z = x\nelse:\n    z = y\n"
    names = names_after(DOUBLED + f"{line}\n" * 60 + chosen)
    assert all(parts(value) <= MOST_PARTS for value in names.values())
    assert "rank" in names["z"].tags


def test_few_items_are_known_where_branches_meet() -> None:
    names = names_after(DOUBLED + "if dist.get_rank():\n    x = 1, 2\nelse:\n    x = 1, 3\n")
    assert parts(names["x"]) == 3


def test_a_list_that_holds_itself_is_followed() -> None:
    names = names_after(DOUBLED + "x, y = [1], [2]\nx.append(y)\ny.append(x)\nif dist.get_rank():\n    x = y\n")
    assert "rank" in names["x"].tags


@pytest.mark.parametrize("line", ["x = x * x", "x = x + x; x = x * x", "x = (x * x - 1) ** 2", "x *= x"])
def test_a_number_that_is_squared_is_soon_unknown(line: str) -> None:
    names = names_after("x = 3\ny = x * 2 ** 40 - 1\n" + f"{line}\n" * 60)
    assert names["x"].number() is None
    assert names["y"].number() == 3 * 2**40 - 1


def test_a_program_with_an_endless_number_is_checked(tmp_path: Path) -> None:
    endless = "0x" + "f" * 5000
    text = f"""import torch
import torch.distributed as dist
if dist.get_rank() == {endless}:
    dist.barrier()
torch.utils.data.DataLoader(d, batch_size={endless} * 2, num_workers={"*".join(["63"] * 90)})
if dist.get_rank() == 0:
    dist.barrier()
loss.backward()
"""
    (tmp_path / "train.py").write_text(text)
    report = pipeline.check(project.read_project(str(tmp_path)))
    assert not report.skipped
    assert {event.line for found in report.findings for event in [found.evidence[0].event]} >= {7}


PASSWORD = "hunter2SuperSecret9"
TOKEN = "ghp_" + "a1B2" * 9
WITH_SECRETS = f"""import os
import torch
import torch.distributed as dist
from transformers import TrainingArguments
os.environ["MASTER_ADDR"] = "tcp://u:{PASSWORD}@h"
os.environ["DB_PASSWORD"] = "{PASSWORD}"
dist.init_process_group("nccl", init_method="tcp://u:{PASSWORD}@h:1/?token={TOKEN}", password="{PASSWORD}")
args = TrainingArguments(fp16=True, bf16=True, hub_token="{TOKEN}", output_dir="s3://k:{PASSWORD}@b", x_{TOKEN}=1)
cfg = {{"zero_optimization": {{"stage": "{TOKEN}"}}, "unknown_{TOKEN}": 1, "train_micro_batch_size_per_gpu": 1}}
rank = int(f("https://u:{PASSWORD}@h"))
for x in f("https://u:{PASSWORD}@h"):
    with open("https://u:{PASSWORD}@h"):
        if dist.get_rank() == 0 and "https://u:{PASSWORD}@h":
            dist.all_reduce("{"x" * 180} {TOKEN}", {TOKEN})
torch.save(m.state_dict(), "https://u:{PASSWORD}@h/x.pt")
m.to(["{"x" * 580} {TOKEN}", {"1, " * 300}])
loss.backward()
"""


def test_a_program_gives_away_no_secret(tmp_path: Path) -> None:
    path = tmp_path / f"train token={TOKEN}.py"
    path.write_text(WITH_SECRETS)
    (tmp_path / f"x_{TOKEN}.bin.py").write_bytes(b"\xff torch")
    plain = json.dumps(WITH_SECRETS)
    assert PASSWORD in plain and TOKEN in plain
    runs = [project.read_project(str(tmp_path)), beside.read_beside([str(path)], ["torchrun", str(path), TOKEN])]
    for run in runs:
        assert run is not None
        said = repr(run)
        assert "init_process_group" in said
        assert PASSWORD not in said
        assert "ghp_" not in said
        assert "CFG170" in {one.rule for one in pipeline.check(run).findings}


def test_files_whose_names_look_the_same_without_secrets_are_told_apart(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"train token=ghp_{number:036d}.py").write_text("import torch\nloss.backward()\n")
    names = [source.id for source in project.read_project(str(tmp_path)).sources]
    assert len(set(names)) == 3 and not any("ghp_" in name for name in names)


# -- how often programs and logs are gone through ------------------------------------------------------------------


class Looked(Names):
    looks = 0

    def __iter__(self) -> Iterator[str]:
        Looked.looks += 1
        return super().__iter__()

    def items(self) -> Any:
        Looked.looks += 1
        return super().items()

    def copy(self) -> Any:
        Looked.looks += 1
        return super().copy()


def test_of_all_names_those_that_a_branch_changes_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paramedic.detect.flow.Names", Looked)
    monkeypatch.setattr(Looked, "looks", 0)
    names = names_after("a = b = c = 1\n" + "if c:\n    a = [b for b in x]\nelse:\n    b = 2\n" * 50)
    assert Looked.looks == 0
    assert not names["a"].known and not names["b"].known and names["c"].const == 1


BRANCHES = """
import torch.distributed as dist
rank = dist.get_rank()
a, b, c, d, e = 1, 2, 3, 4, 5
if rank == 0:
    a = 7
    if rank == 1:
        b = 8
        f = 1
    elif c:
        b = 9
    else:
        e = 5
else:
    d = 6
    import torch.e as e
if rank:
    c = 9
    exit()
g = [b for b in (a, rank)]
"""


def test_what_branches_leave_behind() -> None:
    names = names_after(BRANCHES)
    by_rank = {name for name in "abcdefg" if name in names and "rank" in names[name].tags}
    assert by_rank == {"a", "b", "d", "e", "g"}
    assert names["c"].const == 3 and names["f"].const == 1


@pytest.mark.parametrize(
    ("text", "hands_over"),
    [
        ("from transformers import Trainer\nTrainer(m).train()", True),
        ("import trl\n\nclass A(trl.SFTTrainer): pass", True),
        ("Trainer()\nimport transformers", False),
        ("import mytrl\nTrainer()", False),
        ("Trainer\n" + "trl " * LONG, False),
    ],
    ids=str,
)
def test_a_program_whose_loop_is_in_a_library(text: str, hands_over: bool) -> None:
    assert _trains(text) is hands_over


def series_asked_for(monkeypatch: pytest.MonkeyPatch, room: Any) -> list[tuple[str, ...]]:
    asked: list[tuple[str, ...]] = []

    def noted(known: Any) -> Any:
        return lambda run, *names: asked.append(names) or known(run, *names)  # type: ignore[func-returns-value]

    for name in ("every", "of_all_attempts"):
        if hasattr(room, name):
            monkeypatch.setattr(room, name, noted(getattr(room, name)))
    return asked


def many_logs(folder: Path, count: int, head: str) -> Run:
    for number in range(count):
        at = f"2025-01-01 {number:02d}:00"
        steps = "".join(f"{at}:{step:02d} INFO step {step} loss {3 - step / 9:.3f}\n" for step in range(1, 14))
        (folder / f"run{number}x.log").write_text((head if number % 2 else "") + steps)
    return read([str(folder)], Prefilter(["restart_count", "Resuming"]))


def test_numbers_are_not_asked_for_again_for_each_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knowledge: Knowledge
) -> None:
    restarted = "INFO restart_count: 1\nINFO restart_count: 2\n"
    run = many_logs(tmp_path, 20, f"{restarted}INFO Resuming from checkpoint ckpt/step_100.pt at step 100\n")
    asked = series_asked_for(monkeypatch, recovery)
    list(recovery.begins_anew(run, rule_of(knowledge, "recovery.begins_anew"), ()))
    assert len(asked) <= 8
    asked = series_asked_for(monkeypatch, sequels)
    assert list(sequels.begun_at_nought(run))
    assert len(asked) <= 8
    monkeypatch.setattr(sequels, "_MOST_LOGS", 3)
    assert not list(sequels.begun_at_nought(run))


def test_of_logs_of_one_rank_few_are_compared() -> None:
    def stated(source: str, world: int) -> Iterator[Event]:
        for name, value in (("world", world), ("epoch_steps", 127), ("device_batch", 8)):
            fields = {"name": name, "values": str(value), "steps": "", "shown": f"1\t{name} {value}"}
            yield Event(source, 1, "metric", f"{name} {value}", 1, fields=fields)

    logs = [(f"{number}.log", 1 + number % 2) for number in range(100)]
    run = Run("x", events=tuple(event for log in logs for event in stated(*log)))
    assert len(list(loaders.each_reads_all(run))) == 50 * loaders._MOST_ALONE


def test_of_too_many_remarks_the_rest_allows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "_MOST_ALLOWED", 3)
    found = project.Read()
    project.read_text("train.py", "import torch\nx.to(1)\n" + "# paramedic: allow AB123: so\n" * 9, found)
    assert sum(event.kind == "allowed" for event in found.events) == 3
    assert "3 remarks" in found.skipped[0].why


# -- how much of a program -----------------------------------------------------------------------------------------


def test_an_expression_is_not_written_anew_for_each_call_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    known = ast.unparse

    def seen(node: ast.AST) -> str:
        written.append(sum(1 for _ in ast.walk(node)))
        return known(node)

    monkeypatch.setattr("paramedic.collect.code.ast.unparse", seen)
    read = code.read("train.py", "import torch\nx = " + "to(" * 60 + "[" + "0, " * 5_000 + "]" + ")" * 60 + "\n")
    assert sum(event.kind == "call" for event in read.events) == 60
    assert max(written, default=0) < code._MOST_WRITTEN
    assert read.events[59].fields["arguments"][0].startswith("=[0, 0,")


def test_of_a_long_attribute_the_name_is_known() -> None:
    text = "import torch\nif f(" + "0, " * 400 + "0).local_rank == 0:\n    torch.save(m, 'x')\n"
    assert code.read("train.py", text).events[0].fields["guards"] == ["first"]


def test_of_too_many_calls_the_rest_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "_MOST_EVENTS", 5)
    (tmp_path / "train.py").write_text("import torch\n" + "to();" * 90 + "to(to(to()))\n")
    run = project.read_project(str(tmp_path))
    assert sum(event.kind == "call" for event in run.events) == 5
    assert [left.why for left in run.skipped] == ["has more than 5 calls: the rest was not looked at"]


def test_a_program_of_a_megabyte_is_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "parsed", lambda *about, **more: pytest.fail("was parsed"))
    (tmp_path / "train.py").write_text("import torch\nx.to(" + "0," * 300_000 + ")\n")
    (left,) = project.read_project(str(tmp_path)).skipped
    assert "400,000 characters" in left.why


def test_a_line_is_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def wide(line: str) -> tuple[list[int], list[int]]:
        looked.append(line)
        return known(line)

    known = code._wide
    monkeypatch.setattr(code, "_wide", wide)
    settings = ", ".join(f"a{number}=1" for number in range(500))
    read = code.read("train.py", f"import torch\nTrainingArguments(é=1, {settings})\n")
    assert len(read.sections[0].entries) == 502
    assert len(looked) == len(set(looked)) == 1


@pytest.mark.parametrize("front", ["", "é = 1; ", "'\U0001f691é' + ", "x = '\u202e', "])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_settings_stand_where_they_do(front: str, end: str) -> None:
    text = end.join(["import torch", f"{front}TrainingArguments(a='é\u4e2d', b=12,", " c=3)", ""])
    (section,) = code.read("train.py", text).sections
    assert [text[entry.start : entry.end] for entry in section.entries[1:]] == ["'é\u4e2d'", "12", "3"]


def test_denials_of_a_condition_are_gone_through_once() -> None:
    text = "import torch\nif " + "not " * 90 + "x:\n    torch.save(m, 'x')\n"
    assert code.read("train.py", text).events[0].fields["guards"] == []


def test_remarks_are_counted_in_one_pass() -> None:
    text = "import torch\n\nx.to(1)  # paramedic: allow AB123 why\n" + "# paramedic: allow AB123, CD456: so\n" * 3
    found = project.Read()
    project.read_text("train.py", text, found)
    allowed = [event for event in found.events if event.kind == "allowed"]
    assert [event.line for event in allowed] == [3, 4, 5, 6]
    assert [event.fields["lines"] for event in allowed] == [[3], [4, 5], [5, 6], [6, 7]]


# -- sizes ---------------------------------------------------------------------------------------------------------


def test_a_name_that_no_file_can_have_is_not_matched_against_anything() -> None:
    skipped: list[Any] = []
    chosen = Chosen("a.tar", skipped, wanted=lambda name: pytest.fail("was asked about it"))
    assert not chosen.wants("logs/" + "x" * 256)
    chosen.done()
    assert skipped[0].why == "not logs by their names: 1 × longer than 255 characters"
    assert archives.is_log("x" * 255)


def test_more_settings_than_anybody_writes_are_refused() -> None:
    with pytest.raises(Broken, match="settings"):
        docker.section("ENV " + "A=1 " * MOST_ENTRIES)
    with pytest.raises(Broken, match="settings"):
        plain.requirements("a\n" * (MOST_ENTRIES + 1))
    with pytest.raises(Broken, match="settings"):
        plain.hosts("a slots=1\n" * (MOST_ENTRIES + 1))


@pytest.mark.parametrize(
    "line", ["a" + ".a" * 65 + " = 1", "[a" + " . 'b'" * 65 + "]", "x = {a" + '."a.b"' * 65 + " = 1}"]
)
def test_a_key_of_many_parts_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.setattr(tomllib, "loads", lambda text: pytest.fail("was parsed"))
    text = f"[training]\nb = '''\n'''\n{line}\n"
    with pytest.raises(Broken, match="nested deeper") as refused:
        toml.parse(text)
    assert refused.value.line == 4
    with pytest.raises(ValueError, match="nested deeper"):
        sides._toml(text)


def test_many_dots_that_are_no_key_are_read() -> None:
    dots = "." * 100
    numbers = ", ".join(["0.5"] * 100)
    text = f'a = [{numbers}]\nb = "{dots} # \\" {dots}" # {dots}\nc = """\n{dots}\n"""\n[d.e]\nf = \'{dots}\'\n'
    entries = {entry.key: entry for entry in toml.parse(text).entries}
    assert entries["d.e.f"].value == dots
    assert text[entries["d.e.f"].start : entries["d.e.f"].end] == f"'{dots}'"


def test_tables_and_values_keep_their_places() -> None:
    text = "[ a . b ] # why\nc = 1.5  # said\n  [[ d ]]\ne = yes it is \n".replace("yes it is", "2020-01-01 00:00:00")
    places = {entry.key: (entry.line, text[entry.start : entry.end]) for entry in toml.parse(text).entries}
    assert places["a.b.c"] == (2, "1.5")
    assert places["d[0].e"] == (4, "2020-01-01 00:00:00")
    assert places["a.b"][0] == 1


def test_of_too_many_process_groups_the_rest_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight, "_MOST_GROUPS", 3)
    about = {str(number): {"name": str(number), "desc": "x", "ranks": "[0, 1]"} for number in range(5)}
    (tmp_path / "nccl_trace_rank_0.json").write_text(json.dumps({"rank": 0, "pg_config": about, "entries": []}))
    run = read([str(tmp_path)], Prefilter(["x"]))
    assert sum(event.kind == "trace" for event in run.events) == 3
    assert any("more than 3 process groups" in left.why for left in run.skipped)


def test_recorded_groups_are_worked_out_once() -> None:
    run = Run("x", events=(Event("a", 1, "trace", "", rank=0, fields={"group": "0", "members": "0-1"}),))
    assert calls.groups(run) is calls.groups(run)


# -- how often -----------------------------------------------------------------------------------------------------


class Counted(dict[str, Fact]):
    looks = 0

    def __iter__(self) -> Iterator[str]:
        self.looks += 1
        return super().__iter__()

    def items(self) -> Any:
        self.looks += 1
        return super().items()


def test_the_settings_of_a_section_are_gone_through_once() -> None:
    names = ("b.y", "a", "a.z", "a.b.c", "a/x", "a-x", "ab.c", "a.", "b.x")
    facts = Counted({name: Fact(name, number, "x") for number, name in enumerate(names)})
    part = Part("x", "kubernetes", 0, facts)
    assert [*part.below("a").items()] == [("z", facts["a.z"]), ("b.c", facts["a.b.c"]), ("", facts["a."])]
    assert [*part.below("b")] == ["y", "x"]
    assert facts.looks == 1


def test_when_enough_is_known_nothing_more_is_looked_through_for_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "MOST_FACTS", 1)
    found = settings.Settings()
    found.add("config", "a", 1, "x")
    asked: list[str] = []

    def seen(text: str) -> str:
        asked.append(text)
        return text

    monkeypatch.setattr(settings, "redact", seen)
    found.add("config", "b", 1, "x")
    assert not asked
    found.add("config", "a", 2, "x")
    assert found.stated["config", "a"].values == ("1", "2")


def finding(rule: str = "MEM001", confidence: float = 0.9, text: str = "x") -> Finding:
    evidence = (Evidence(Event("a.log", 1, "line", text, 1)),)
    symptom: Any = "device-out-of-memory"
    return Finding(rule, symptom, "error", "job", (), (), confidence, "x", evidence)


def test_a_key_that_no_message_names_needs_no_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    change = differences.Change("argument", "train_batch_size", "1", "2")
    assert differences._named(change, "bad train_batch_size: 3")[0]
    assert not differences._named(change, "bad train_batch_size_x: 3")[0]
    monkeypatch.setattr("paramedic.differences.re.search", lambda *asked: pytest.fail("was searched"))
    assert not differences._named(change, "something else")[0]


def test_findings_are_not_compared_with_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    all_of_them = [finding(str(number)) for number in range(9)] + [finding("9", 0.1)]
    monkeypatch.setattr(Finding, "__eq__", lambda one, other: pytest.fail("was compared"))
    assert len(first._telling(all_of_them)) == 9


def test_the_logs_of_ranks_are_listed_once() -> None:
    progress = Event("a.log", 1, "progress", "x", 1, fields={"at": [1]})
    elsewhere = survived._Elsewhere(Run("x", (Source("b.log", "log", 1),), (progress,)))
    assert elsewhere.theirs == {"a.log", "b.log"}


def test_series_are_looked_for_among_those_of_the_same_word(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("loss", "memory host", "loss aux", "lossy", "memory")
    events = [Event("a", n, "metric", "", n + 1, 0, fields={"name": name}) for n, name in enumerate(names)]
    run = Run("x", events=tuple(events))
    asked: list[str] = []
    known = series._is

    def seen(name: str, wanted: Sequence[str]) -> bool:
        asked.append(name)
        return known(name, wanted)

    monkeypatch.setattr(series, "_is", seen)
    assert [one.name for one in series.every(run, "memory host", "loss", "loss aux")] == [
        "loss",
        "memory host",
        "loss aux",
    ]
    assert "lossy" not in asked
    asked.clear()
    assert not series.every(run, "lr")
    assert not asked


# -- recordings of strangers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1" + "0" * 4000, None),
        ("-" + "9" * 25, None),
        ("1e400", None),
        ("1e-320", None),
        ("NaN", None),
        ("-Infinity", None),
        ("18446744073709551615", 18446744073709551615),
        ("0.0e000", 0.0),
        ("1e38", 1e38),
        ('"NaN"', "NaN"),
    ],
)
def test_numbers_of_a_recorded_text_can_be_counted_with(text: str, value: object) -> None:
    assert stated(f'{{"a": [{text}, 1]}}') == {"a": [value, 1]}


@pytest.mark.parametrize(
    "fields",
    [{"x": 10**400}, {"x": -(10**19)}, {"x": float("inf")}, {"x": float("nan")}, {"again": "x"}, {"again": -1}],
)
def test_an_event_with_such_a_number_is_damaged(tmp_path: Path, fields: dict[str, Any]) -> None:
    good = Event("a", 1, "last", "x", 1, 0, fields={"again": 3, "x": 1 << 62, "y": True})
    run_folder.write(Run("x", events=(good, replace(good, fields=fields), good)), tmp_path / "run")
    again = run_folder.read(str(tmp_path / "run"))
    assert again.events == (good, good)
    assert "1 damaged lines" in again.skipped[0].why


def test_a_fact_without_end_is_damaged(tmp_path: Path) -> None:
    facts = (Fact("a", float("inf"), "x"), Fact("b", 1.5, "x"), Fact("c", 10**30, "x"), Fact("d", "y", "x"))
    run_folder.write(Run("x", facts=facts), tmp_path / "run")
    assert [fact.name for fact in run_folder.read(str(tmp_path / "run")).facts] == ["b", "d"]


def watched(said: Sequence[Any]) -> Run:
    events = [Event(f"{n}", n, "watch", "x", 1, n, fields={"said": json.dumps(one)}) for n, one in enumerate(said)]
    return Run("x", events=tuple(events))


def test_a_slow_rank_whose_agent_knows_fewer_parts_is_slow(knowledge: Knowledge) -> None:
    quick = {"parts": ["other", "collective"], "times_ms": [[100, 10, 90]] * 60}
    run = watched([{"parts": ["other"], "times_ms": [[100, 90]] * 60}, quick, quick, quick])
    (one,) = pace.slow_rank(run, rule_of(knowledge, "pace.slow_rank"), ())
    assert one.ranks == (0,)


def test_steps_without_any_time_are_no_share_of_it(knowledge: Knowledge) -> None:
    nothing = {"parts": ["data"], "times_ms": [[0, 50]] * 60}
    run = watched([nothing, nothing])
    assert not [*pace._mostly(run, rule_of(knowledge, "pace.slow_rank"), (), "data", 0.5, everybody=True)]


def rule_of(knowledge: Knowledge, detector: str) -> Rule:
    return next(rule for rule in knowledge.rules.values() if rule.detector == detector)


def test_steps_that_come_again_are_no_growth() -> None:
    rows = [[20, 100], [10, 100], [20, 200], [15, 1], [50, 300]]
    assert sentinels._rising(rows) == [[20, 100], [50, 300]]
    assert sentinels._growth([[20, 100], [10, 150], [20, 200], [60, 400]], 1) is None


def test_numbers_beyond_all_bounds_break_no_watched_rank(knowledge: Knowledge, prefilter: Prefilter) -> None:
    job = Event("w", 9, "watch", "x", 1, None, fields={"said": json.dumps({"ranks": {"0": {"still_s": 10**400}}})})
    rates = {"steps": 9, "conduct": {"optimizers": [{"rates": [[1, [10**400]]]}]}}
    run = watched([rates, rates])
    examine(replace(run, events=(*run.events, job)), knowledge, prefilter, Options())


# -- one detector that breaks --------------------------------------------------------------------------------------


def broken(*about: Any) -> Iterator[Finding]:
    raise KeyError("secret of the log")


def test_a_finding_without_evidence_is_none(knowledge: Knowledge) -> None:
    rule = knowledge.rules["MEM001"]
    whole = finding()
    assert answer(rule, None, lambda: [replace(whole, evidence=()), whole]) == [whole]


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(detect.EVENT_DETECTORS, next(iter(detect.EVENT_DETECTORS)), broken)
    for name in ("pace.slow_rank", "hang.rank_missing"):
        monkeypatch.setitem(detect.RUN_DETECTORS, name, broken)
    (tmp_path / "job.log").write_text(OUT_OF_MEMORY)
    return str(tmp_path / "job.log")


def test_a_detector_that_breaks_is_said_and_the_others_are_asked(
    failing: str, knowledge: Knowledge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PARAMEDIC_DEBUG")
    report = pipeline.diagnose([failing])
    assert report.verdict is not None
    assert report.verdict.symptom == "device-out-of-memory"
    (said,) = [left for left in report.skipped if "internal error" in left.why]
    assert said.what.startswith("rules ")
    assert rule_of(knowledge, "pace.slow_rank").id in said.what
    assert "KeyError at" in said.why
    assert "secret" not in said.why


def test_who_looks_for_faults_sees_it_break(failing: str) -> None:
    with pytest.raises(KeyError):
        pipeline.diagnose([failing])


def test_a_check_that_breaks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from paramedic.collect.project import read_project
    from paramedic.detect.checks import CHECKS

    name = next(iter(CHECKS))
    monkeypatch.setitem(CHECKS, name, broken)
    (tmp_path / "requirements.txt").write_text("torch==2.1\ntorch==2.2\n")
    run = read_project(str(tmp_path))
    with pytest.raises(KeyError):
        pipeline.check(run)
    monkeypatch.delenv("PARAMEDIC_DEBUG")
    report = pipeline.check(run)
    assert any("internal error: KeyError" in left.why for left in report.skipped)
    assert report.findings


def test_the_fuzz_campaign_sees_a_detector_break(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))
    import fuzz

    monkeypatch.delenv("PARAMEDIC_DEBUG")
    monkeypatch.setattr(fuzz, "_recorded", lambda logs, matcher: ())
    tools = fuzz.Tools.load()
    with pytest.raises(KeyError):
        tools.diagnose(failing)


def test_an_error_does_not_quote_thousands_of_digits(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["submit", "--ranks", "9" * 5_000, "train.py"])
    assert len(capsys.readouterr().err) < 600


@pytest.mark.parametrize("name", ["node", "device", "bridge", "gpu"])
def test_places_of_thousands_of_digits_are_nobodys(name: str) -> None:
    run = Run("x", facts=(Fact(name, f"n1 {'9' * 5000} 4", "a.log", 1, 0), Fact(name, "n2 1 4", "a.log", 2, 1)))
    known = where.places(run)
    assert all(max(ranks) < 8 for ranks in known.ranks_on.values() if ranks)
    assert [host for host, *_ in numbering.placed(run, name)] == ["n2"]


def test_a_job_of_nobody_is_compared_with_another_all_the_same(tmp_path: Path) -> None:
    for name, rate in (("a.log", 1000), ("b.log", 100)):
        lines = "".join(f"step {n} loss 2.{n} throughput {rate} samples/s\n" for n in range(20))
        (tmp_path / name).write_text(f"world_size: 0\n{lines}")
    assert pipeline.diagnose([str(tmp_path)]).skipped == ()


def test_a_node_below_the_first_worker_is_no_rank(tmp_path: Path) -> None:
    assigned = "assign rank={} to node role=worker, ip={}, port=4000\n"
    (tmp_path / "job.log").write_text(
        assigned.format(9, "10.0.0.21") + assigned.format(0, "172.17.0.1") + "W[9] is connected to others\n"
    )
    report = pipeline.diagnose([str(tmp_path)])
    assert [finding.ranks for finding in report.findings if finding.rule == "NET700"] == [()]


@pytest.mark.parametrize("line", [" " + "\t" * LONG, "  - " + " " * LONG + "x"])
def test_blanks_in_a_posts_lines_cost_no_time(line: str) -> None:
    """The time limit of tests would be over before a cube of their number."""
    told = "It hangs at the first step on all of my four GPUs."
    post = posts.post_in(f"DDP training hangs\n### Describe the bug\n{told}\n{line}\n")
    assert post is not None and told in post.said


def test_a_finding_without_evidence_has_no_learning_rate(knowledge: Knowledge) -> None:
    rule = rule_of(knowledge, "numerics.ended_non_finite")
    one = replace(on_event(rule, Event("job.log", 1, "line", "loss nan"), {}), evidence=())
    assert "lr" not in numerics.with_rate(Run("r"), one).fields
