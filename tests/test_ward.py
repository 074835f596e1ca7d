"""The ward: cases are sound, jobs are judged by what they really did, and the score counts as it says."""

from __future__ import annotations

import json
import random
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from paramedic.commands import main
from paramedic.errors import ParamedicError
from paramedic.knowledge.taxonomy import load_taxonomy
from paramedic.ward import alter, environments, held_back, lab, place
from paramedic.ward.baselines import Answer, exit_code, first_traceback, plain_grep, torchrun
from paramedic.ward.case import CASES, PROGRAMS, Case, Expect, Truth, load, load_all
from paramedic.ward.corpus import CORPUS, Recording, recordings
from paramedic.ward.matrix import markdown, reasons
from paramedic.ward.measures import Bound
from paramedic.ward.score import Scored, expected_calibration_error, figures
from paramedic.ward.systems import SYSTEMS

ALL = load_all()
BY_ID = {case.id: case for case in ALL}
RUNNABLE = [case for case in ALL if case.launch]


# -- the cases -----------------------------------------------------------------------------------------------------


def test_every_symptom_and_every_cause_has_a_case() -> None:
    taxonomy = load_taxonomy()
    assert {case.truth.symptom for case in ALL} == set(taxonomy.symptoms)
    assert {case.truth.cause for case in ALL} == set(taxonomy.causes)
    assert {case.system for case in ALL} == set(SYSTEMS)
    assert len(RUNNABLE) >= 80


@pytest.mark.parametrize("case", RUNNABLE, ids=lambda case: case.id)
def test_a_case_has_its_files_and_its_cure_fits_them(case: Case) -> None:
    """What a run would refuse, without running it."""
    for launch in (case.launch, case.cured):
        assert launch is not None
        assert launch.environment in environments.names()
        texts = {}
        for name in (launch.program, *launch.files):
            file = next(f for f in (case.folder / name, PROGRAMS / name) if f.is_file())
            texts[name] = file.read_text("utf-8", "replace")
        copied = "launch.sh" if launch.launcher == "script" else "train.py"
        texts[copied] = texts[launch.program]
        for edit in launch.edits:
            assert texts[edit.file].count(edit.old) == 1, edit.old
            texts[edit.file] = texts[edit.file].replace(edit.old, edit.new)
    for words in (*case.expect.says, *case.cured_expect.says):
        re.compile(words)
    assert set(case.needs) <= set(lab.NEEDS)
    assert case.cured != case.launch, "the cure changes nothing"


@pytest.mark.parametrize("case", RUNNABLE, ids=lambda case: case.id)
def test_a_failure_is_proven_by_words_or_a_measure_and_a_silent_one_by_a_measure(case: Case) -> None:
    assert case.expect.says or case.expect.measures or case.expect.exit == "hang"
    if case.expect.exit == "success":
        assert case.expect.measures
        after = case.cured_expect.measures
        changed = [name for name, bound in case.expect.measures.items() if after.get(name, bound) != bound]
        assert changed, "the cure must change what is measured"


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.id)
def test_the_ranks_that_fail_first_exist(case: Case) -> None:
    assert all(0 <= rank < case.ranks for rank in case.truth.ranks)
    assert len(set(case.truth.ranks)) == len(case.truth.ranks)


def test_programs_do_not_give_the_answer_away() -> None:
    for file in [*CASES.glob("*/*.py"), *PROGRAMS.glob("*.py")]:
        text = file.read_text("utf-8")
        assert not re.search(r"def \w*(?:inject|fault|bug)\w*\(", text), file


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("titel = 'x'", "unknown key 'titel'"),
        ("title = 'x'\nsystem = 'torch'", "no table [truth]"),
        ("not toml", "case.toml"),
        ("title = 'x'\n[truth]\nsymptom = 'collective-hangs'", "'collective-hangs' is none of"),
        ("title = 3", "no table [truth]"),
    ],
)
def test_a_bad_case_is_refused_with_its_file_and_the_reason(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "case.toml").write_text(text)
    with pytest.raises(ParamedicError, match=re.escape(why)) as caught:
        load(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_the_split_is_a_fair_quarter_and_what_was_in_sight_is_never_held_back() -> None:
    held = [case for case in ALL if case.held_back]
    assert 0.1 < len(held) / len(ALL) < 0.35
    assert not BY_ID["rank-killed"].held_back


def test_the_matrix_has_a_number_or_a_reason_in_every_cell() -> None:
    table = markdown(ALL)
    rows = [line for line in table.splitlines() if line.startswith("| ") and "symptom" not in line]
    assert len(rows) == len(load_taxonomy().symptoms)
    known = set(reasons().words)
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")[1:]]
        assert len(cells) == len(SYSTEMS)
        assert all(cell.startswith("**") or cell in known for cell in cells), row


# -- running -------------------------------------------------------------------------------------------------------

SMOKE = ["ddp-sampler-forgotten"]
"""A silent error, in seconds."""
MORE = [
    pytest.param(id, marks=pytest.mark.slow, id=id) for id in ("rank-killed", "disk-full", "nan-check", "port-in-use")
]
"""A lost rank, a full disk, a crash, and a failed rendezvous."""


def _last_words(folder: Path) -> str:
    """What the job wrote at its end, for whoever reads why a test failed."""
    return "\n".join(
        f"{file.name}: {file.read_text(errors='replace')[-12000:]}" for file in sorted(folder.glob("*.log"))
    )


@pytest.mark.parametrize(
    "fixed", [pytest.param(False, id="fails"), pytest.param(True, marks=pytest.mark.slow, id="cured")]
)
@pytest.mark.parametrize("id", [*SMOKE, *MORE])
def test_a_case_fails_as_labelled_and_succeeds_with_its_cure(id: str, fixed: bool, tmp_path: Path) -> None:
    case = BY_ID[id]
    if why := lab.lacking(case):
        pytest.skip(why)
    folder = tmp_path / "input"
    outcome = lab.run(case, lab.canonical(case, fixed), fixed, environments.build("torch"), folder)
    if outcome.problems and _AT_EXIT in _last_words(folder):
        folder = tmp_path / "again"
        outcome = lab.run(case, lab.canonical(case, fixed), fixed, environments.build("torch"), folder)
    assert outcome.problems == (), _last_words(folder)


_AT_EXIT = "terminate called without an active exception"
"""A thread of torch's that still runs when the interpreter ends: of some hundred jobs on a busy machine it aborts one."""


def test_a_job_runs_in_a_plain_folder_where_namespaces_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.isolated.cache_clear()
    monkeypatch.setattr(place, "isolated", lambda: False)
    monkeypatch.setattr(lab, "isolated", lambda: False)
    case = BY_ID["import-missing"]
    outcome = lab.run(case, lab.Variant("per-rank", 2), False, environments.build("torch"), tmp_path / "input")
    assert outcome.problems == (), _last_words(tmp_path / "input")
    assert sorted(file.name for file in (tmp_path / "input").iterdir())[-2:] == ["rank-0.log", "rank-1.log"]
    assert lab.lacking(BY_ID["disk-full"]) == "needs root on Linux, for namespaces"


@pytest.mark.slow
@pytest.mark.parametrize("fixed", [False, True], ids=["fails", "cured"])
@pytest.mark.parametrize("name", [name for name in environments.names() if name not in ("torch", "gpu", "submit")])
def test_one_case_of_every_framework_fails_and_is_cured(name: str, fixed: bool, tmp_path: Path) -> None:
    case = next(c for c in RUNNABLE if c.launch and c.launch.environment == name and not lab.lacking(c))
    outcome = lab.run(case, lab.canonical(case, fixed), fixed, environments.build(name), tmp_path / "input")
    assert outcome.problems == (), _last_words(tmp_path / "input")


@pytest.mark.parametrize(
    ("expect", "code", "text", "result", "problem"),
    [
        (Expect("failure"), 0, "", {}, "expected failure, but it ended with code 0"),
        (Expect("failure"), None, "", {}, "expected failure, but it ran into the limit of 9 s"),
        (Expect("hang"), 1, "", {}, "expected hang, but it ended with code 1"),
        (Expect("success"), 0, "", {}, None),
        (Expect("failure", ("a.c",)), 1, "abd", {}, "did not say 'a.c'"),
        (Expect("failure", ("^b$",)), 1, "a\nb\nc", {}, None),
        (Expect("success", (), {"x": Bound(">", 1)}), 0, "", {"x": 0.5}, "x is 0.5, expected > 1"),
        (Expect("success", (), {"x": Bound(">", 1)}), 0, "", {}, "result.json has no x"),
        (Expect("success", (), {"x": Bound(">", 1)}), 0, "", {"x": "2"}, "x is 2, expected > 1"),
        (Expect("success", (), {"x": Bound("<=", 1)}), 0, "", {"x": 1}, None),
    ],
)
def test_a_job_is_judged_by_its_end_its_words_and_its_numbers(
    expect: Expect, code: int | None, text: str, result: dict[str, object], problem: str | None
) -> None:
    assert lab.judge(expect, code, text, result, 9) == ([problem] if problem else [])


@pytest.mark.parametrize("text", ["", "1", "> x", "!= 1", "> 1 and < 2", "__import__('os')"])
def test_a_measure_is_a_comparison_and_nothing_else(text: str) -> None:
    with pytest.raises(ParamedicError, match="is no bound"):
        Bound.parse(text)


def test_an_environment_that_cannot_be_built_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd.txt").write_text("no-such-package-at-all==1.0\n")
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.setenv(name, "1" if name == "PIP_NO_INDEX" else str(tmp_path))
    with pytest.raises(ParamedicError, match=r"environment odd could not be built: .*no-such-package-at-all"):
        environments.build("odd")
    assert environments.find("odd") is None


def test_this_process_serves_where_it_has_what_is_asked_for() -> None:
    assert environments.find("torch") == Path(sys.prefix)


# -- recordings and what is made of them ---------------------------------------------------------------------------


def test_every_recording_says_how_it_was_made() -> None:
    found = recordings(ALL)
    assert len(found) >= 120
    for recording in found:
        assert any(recording.input.iterdir()), recording.name
        assert {"how", "versions", "layout", "synthetic"} <= set(recording.made), recording.name
        if recording.truth:
            assert recording.truth.symptom == recording.case.truth.symptom


def test_every_case_that_a_cpu_can_run_has_a_failed_and_a_cured_recording() -> None:
    found = recordings(ALL)
    failed = {one.case.id for one in found if one.truth and one.canonical}
    cured = {one.case.id for one in found if not one.truth}
    assert {case.id for case in ALL} == failed
    assert {case.id for case in RUNNABLE} == cured


NEUTRAL = rb"/srv/train/|/srv/bin/|/opt/venv/|/usr/lib/|/tmp/__autograph|/root/\.pyenv/|/root/\.cache/paramedic/ward/"
"""Where a job sees itself, its environment and Python."""


def test_no_recording_names_the_machine_it_was_made_on() -> None:
    here = re.compile(rb"paramedic-ward-|" + re.escape(str(CORPUS.parent).encode() + b"/"))
    elsewhere = re.compile(rb'File "(?=/)(?!' + NEUTRAL + rb")")
    for file in CORPUS.glob("*/*/input/**/*"):
        if file.is_file():
            text = file.read_bytes()
            assert not here.search(text) and not elsewhere.search(text), file


def made(tmp_path: Path, files: dict[str, str], ranks: tuple[int, ...] = (2,), id: str = "rank-killed") -> Recording:
    for name, text in files.items():
        file = tmp_path / "made" / "input" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    case = replace(BY_ID[id], truth=replace(BY_ID[id].truth, ranks=ranks))
    return Recording(case, "made", tmp_path / "made", case.truth, {"ranks": 4, "layout": "tee"})


CONSOLE = "\n".join(
    f"[default{rank}]:2026-11-15 01:02:0{step} rank {rank} step {step}" for step in range(5) for rank in range(4)
)


@pytest.mark.parametrize("how", sorted(alter.ALTERATIONS))
def test_an_alteration_keeps_every_rank_s_own_order(tmp_path: Path, how: str) -> None:
    harder = alter.altered(made(tmp_path, {"console.log": CONSOLE}), how, tmp_path / "out")
    assert harder is not None and harder.altered == how
    text = (harder.input / "console.log").read_text()
    assert text != CONSOLE
    for rank in range(4):
        assert re.findall(rf"rank {rank} step (\d)", text) == list("01234")


def test_a_late_flush_brings_the_culprit_last_and_clocks_shift_the_upper_half(tmp_path: Path) -> None:
    recording = made(tmp_path, {"console.log": CONSOLE})
    late = alter.late_flush({"c": CONSOLE.split("\n")}, recording, random.Random(0))["c"]
    assert all("[default2]" in line for line in late[-5:])
    skewed = alter.skewed_clocks({"c": CONSOLE.split("\n")}, recording, random.Random(0))["c"]
    moved = {line[:10] for line, old in zip(skewed, CONSOLE.split("\n"), strict=True) if line != old}
    assert moved == {"[default2]", "[default3]"}


def test_an_alteration_that_changes_nothing_makes_no_recording(tmp_path: Path) -> None:
    assert alter.altered(made(tmp_path, {"console.log": "no labels\n"}), "shuffled", tmp_path / "out") is None


def test_alterations_are_the_same_every_time(tmp_path: Path) -> None:
    recording = made(tmp_path, {"console.log": CONSOLE})
    texts = []
    for n in range(2):
        harder = alter.altered(recording, "shuffled", tmp_path / str(n))
        assert harder is not None
        texts.append((harder.input / "console.log").read_text())
    assert texts[0] == texts[1]


# -- the score -----------------------------------------------------------------------------------------------------

TABLE = """[rank1]: Traceback (most recent call last):
[rank1]:   File "x.py", line 1, in f
[rank1]: RuntimeError: Connection closed by peer
[rank2]: Traceback (most recent call last):
[rank2]: ValueError: bad shape
train.py FAILED
Failures:
[1]:
  rank      : 3 (local_rank: 3)
  exitcode  : -15 (pid: 4)
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 2)
  traceback : To enable traceback see: https://x
============================================================
"""


def test_the_baselines_look_where_people_look(tmp_path: Path) -> None:
    recording = made(tmp_path, {"console.log": TABLE})
    assert first_traceback(recording).ranks == (1,)
    assert first_traceback(recording).symptom == "communication-runtime-error"
    assert plain_grep(recording).ranks == (1,)
    assert exit_code(recording) == torchrun(recording)
    assert torchrun(recording).ranks == (1,)
    assert torchrun(recording).symptom == "step-execution-error"


def test_a_baseline_says_nothing_about_a_quiet_log(tmp_path: Path) -> None:
    recording = made(tmp_path, {"console.log": "step 1\nstep 2\n"})
    for baseline in (plain_grep, exit_code, first_traceback, torchrun):
        assert baseline(recording).symptom is None


def scored(tmp_path: Path, answer: Answer, ranks: tuple[int, ...] = (2,)) -> Scored:
    return Scored(made(tmp_path, {"console.log": "x"}, ranks), answer)


def test_figures_count_what_was_right_blamed_and_left_open(tmp_path: Path) -> None:
    truth: Truth = BY_ID["rank-killed"].truth
    right = Answer(truth.symptom, (2,), (truth.cause,), truth.fix, 0.9)
    also = Answer(truth.also[0], (2, 3), ("x", "y", truth.cause), "other", 0.5)
    wrong = Answer("numerical-instability", (), ("x",), "other", 0.7)
    silent = Answer(None, None, ())
    counted = figures([scored(tmp_path, answer) for answer in (right, also, wrong, silent)])
    assert (counted.n, counted.symptom, counted.stage) == (4, 2, 2)
    assert (counted.cause_1, counted.cause_3, counted.fix) == (1, 2, 1)
    assert (counted.ranks, counted.false_blame, counted.abstained) == (1, 1, 1)


def test_naming_one_rank_where_all_failed_alike_is_false_blame(tmp_path: Path) -> None:
    assert scored(tmp_path, Answer("native-crash", (1,), ()), ranks=()).false_blame
    assert not scored(tmp_path, Answer("native-crash", (), ()), ranks=()).false_blame


def test_calibration_error_is_the_mean_gap_between_sure_and_right(tmp_path: Path) -> None:
    truth = BY_ID["rank-killed"].truth
    sure = [scored(tmp_path, Answer(truth.symptom, (), (), None, 0.95)) for _ in range(3)]
    over = [scored(tmp_path, Answer("native-crash", (), (), None, 0.95))]
    unsure = [scored(tmp_path, Answer(truth.symptom, (), (), None, 0.35))]
    assert expected_calibration_error([*sure, *over, *unsure]) == pytest.approx((4 * 0.20 + 1 * 0.65) / 5)
    assert expected_calibration_error([scored(tmp_path, Answer(None))]) is None


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A corpus of three cases, a cured run among them."""
    import shutil

    for id in ("rank-killed", "nan-check"):
        shutil.copytree(CORPUS / id, tmp_path / "corpus" / id)
    return tmp_path / "corpus"


def test_scoring_prints_percentages_beside_the_baselines(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ward", "score", "--corpus", str(small)]) == 0
    out = capsys.readouterr().out
    for words in ("paramedic", "plain grep", "exit code only", "first traceback only", "torchrun's root cause"):
        assert words in out
    assert "calibration: expected error" in out and "false alarms: 0 of" in out
    assert not (small / held_back.LOG).exists(), "development cases need no log"


def test_the_score_is_a_document_and_a_page_without_script_or_network(small: Path, tmp_path: Path) -> None:
    assert main(["ward", "score", "--corpus", str(small), "--output", str(tmp_path / "s.json")]) == 0
    document = json.loads((tmp_path / "s.json").read_text())
    assert document["schema_version"] == 1
    assert document["canonical"]["n"] == 2
    assert {row["case"] for row in document["recordings"]} == {"rank-killed", "nan-check"}
    assert main(["ward", "score", "--corpus", str(small), "--output", str(tmp_path / "s.html")]) == 0
    page = (tmp_path / "s.html").read_text()
    assert "<script" not in page and "http" not in page.replace("http-equiv", "")
    assert "reliability diagram" in page and 'class="matrix"' in page


def test_a_look_at_held_back_cases_is_logged_and_the_next_one_is_marked_seen(small: Path, tmp_path: Path) -> None:
    for n in range(2):
        assert (
            main(["ward", "score", "--corpus", str(small), "--split", "all", "--output", str(tmp_path / "s.json")]) == 0
        )
        look = json.loads((tmp_path / "s.json").read_text())["held_back_scoring"]
        assert look["seen"] == (["nan-check", "rank-killed"] if n else [])
    assert len(held_back.entries(small)) == 2


# -- the command ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["run"], "name cases, or say --all"),
        (["run", "rank-kiled"], "rank-kiled: no such case; did you mean rank-killed"),
        (["run", "--all", "rank-killed"], "name cases, or say --all"),
        (["run", "--all", "--shard", "3/2"], "--shard 3/2: not of the form I/N"),
        (["run", "--all", "--jobs", "0"], "0 is not a number from 1"),
        (["list", "--cases", "/nowhere"], "/nowhere: holds no case"),
        (["score", "--corpus", "/nowhere"], "/nowhere: no such folder"),
        (["score", "--format", "html"], "--format html needs --output FILE"),
    ],
)
def test_wrong_use_is_one_clear_line(words: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["ward", *words])
    except SystemExit as stop:
        code = int(str(stop.code))
    captured = capsys.readouterr()
    assert code == 2 and why in captured.err and not captured.out


def test_the_list_tells_what_can_run_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ward", "list"]) == 0
    captured = capsys.readouterr()
    assert "rank-killed" in captured.out and f"{len(ALL)} cases" in captured.err
    assert main(["ward", "list", "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [entry["id"] for entry in listed] == [case.id for case in ALL]


def test_a_case_that_cannot_run_here_is_left_out_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    synthetic = next(case.id for case in ALL if case.synthetic)
    assert main(["ward", "run", synthetic]) == 3
    assert f"{synthetic} is left out: synthetic" in capsys.readouterr().err


def test_a_run_compares_the_diagnosis_with_the_truth_and_keeps_the_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ward", "run", "import-missing", "--format", "json", "--output", str(tmp_path)]) == 0
    document = json.loads(capsys.readouterr().out)
    (row,) = document["cases"]
    assert row["ok"] and row["diagnosis"]["verdict"]["symptom"] == "import-or-missing-symbol"
    (recording,) = recordings([BY_ID["import-missing"]], tmp_path)
    assert recording.canonical and "ModuleNotFoundError" in lab.said(recording.input)
