"""Random text, random bytes and damaged real logs: whatever comes in, a report in all formats comes out."""

from __future__ import annotations

import io
import json
import os
import random
import re
import subprocess
import sys
import unicodedata
import zipfile
from collections.abc import Callable, Sequence
from importlib import resources
from itertools import pairwise
from pathlib import Path

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paramedic import run_folder
from paramedic.errors import ParamedicError
from paramedic.knowledge import load
from paramedic.pipeline import Options, compile_prefilter, examine, read
from paramedic.report import ShownReport, render

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "bench"))
import fuzz as campaign  # noqa: E402  # the harness of the long campaign
import mutate as inputs  # noqa: E402

SEEDS = [
    *sorted(path for path in (HERE.parent / "corpus").glob("*/*/input/**/*") if path.is_file() and path.stat().st_size),
    *sorted((HERE / "healthy" / "logs").glob("*")),
]
VALIDATOR = jsonschema.Draft202012Validator(
    json.loads(resources.files("paramedic.report").joinpath("report.schema.json").read_text("utf-8"))
)
ESCAPES = [b"\x1b[31m", b"\x1b]0;t\x07", b"\r", b"\x00", b"\x9b", b"<script>alert(1)</script>", b"::error::", b"\xe2\x80\xae", b"\xff",
           b"{rank}", b"%s", b"[/bold]", b"\x0b\x0c\x85", b"[rank7]: ", b"3: ", b"9" * 4400]  # fmt: skip
KNOWLEDGE = load()
PREFILTER = compile_prefilter(KNOWLEDGE)

ALLOWED = {"\n"} | {chr(code) for code in range(0x3001) if unicodedata.category(chr(code)) == "Zs"}

fuzz = settings(
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def diagnose(path: str | Path) -> ShownReport:
    """As `paramedic.pipeline.diagnose`, with the rules loaded once."""
    return examine(read([str(path)], PREFILTER), KNOWLEDGE, PREFILTER, Options())


def check(data: bytes, path: Path, format: str) -> None:
    path.write_bytes(data)
    try:
        report = diagnose(path)
    except ParamedicError:
        return
    check_report(report, format)


def check_report(report: ShownReport, format: str) -> None:
    VALIDATOR.validate(report.to_dict())
    shown = render(report, format, knowledge=KNOWLEDGE)
    shown.encode("utf-8")
    if format == "html":
        outside = re.sub(r"<script(?: [^>]*)?>.*?</script>", "", shown, flags=re.S)
        assert "<script" not in outside
        assert "alert(1)</script" not in shown
    else:
        assert not [character for character in shown if not (character.isprintable() or character in ALLOWED)]
    if format == "json":
        assert json.loads(shown) == report.to_dict()


formats = st.sampled_from(["text", "text", "json", "sarif", "github", "html"])
names = st.sampled_from(["job.log", "rank3.log", "error.json"])


# -- mutations -----------------------------------------------------------------------------------------------------


def delete_lines(data: bytes, choice: random.Random) -> bytes:
    return b"\n".join(line for line in data.split(b"\n") if choice.random() > 0.3)


def repeat_lines(data: bytes, choice: random.Random) -> bytes:
    return b"\n".join(line for line in data.split(b"\n") for _ in range(choice.choice((1, 1, 1, 2, 5))))


def shuffle_lines(data: bytes, choice: random.Random) -> bytes:
    lines = data.split(b"\n")
    choice.shuffle(lines)
    return b"\n".join(lines)


def flip_bytes(data: bytes, choice: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(min(len(changed), 1 + len(changed) // 200)):
        changed[choice.randrange(len(changed))] = choice.randrange(256)
    return bytes(changed)


def truncate(data: bytes, choice: random.Random) -> bytes:
    start = choice.randrange(len(data) // 2 + 1)
    return data[start : choice.randrange(start, len(data) + 1)]


def splice(data: bytes, choice: random.Random) -> bytes:
    other = choice.choice(SEEDS).read_bytes()
    return data[: choice.randrange(len(data) + 1)] + other[choice.randrange(len(other) + 1) :]


def interleave(data: bytes, choice: random.Random) -> bytes:
    both = [data.split(b"\n"), choice.choice(SEEDS).read_bytes().split(b"\n")]
    mixed = []
    while both[0] and both[1]:
        mixed.append(choice.choice(both).pop(0))
    return b"\n".join([*mixed, *both[0], *both[1]])


def insert_escapes(data: bytes, choice: random.Random) -> bytes:
    parts = re.split(rb"(\W)", data[:200_000])
    for _ in range(1 + len(parts) // 60):
        parts.insert(choice.randrange(len(parts)), choice.choice(ESCAPES))
    return b"".join(parts)


def enlarge_numbers(data: bytes, choice: random.Random) -> bytes:
    sizes = (b"0", b"-1", b"9" * 30, b"9" * 4400, b"\xd9\xa3", b"\xc2\xb2", b"1e999")
    return re.sub(rb"\d+", lambda found: choice.choice(sizes) if choice.random() < 0.03 else found.group(), data)


MUTATIONS = [
    delete_lines,
    repeat_lines,
    shuffle_lines,
    flip_bytes,
    truncate,
    splice,
    interleave,
    insert_escapes,
    enlarge_numbers,
]


@settings(fuzz, max_examples=220)
@given(
    st.sampled_from(SEEDS), st.lists(st.sampled_from(MUTATIONS), min_size=1, max_size=3), st.integers(0, 1 << 30), formats, names
)  # fmt: skip
def test_damaged_real_logs_are_survived(
    tmp_path: Path, seed: Path, mutations: list[Callable[..., bytes]], number: int, format: str, name: str
) -> None:
    data, choice = seed.read_bytes()[:60_000], random.Random(number)
    for mutate in mutations:
        data = mutate(data, choice)
    check(data, tmp_path / name, format)


# -- from nothing --------------------------------------------------------------------------------------------------

WORDS = [
    "[rank3]: ", "[default1]:", "12: ", "[1,3]<stderr>:", "Traceback (most recent call last):", '  File "a.py", line 3, in f',
    "  + Exception Group Traceback (most recent call last):", "  | ", "ValueError: x", "During handling of the above exception",
    "Failures:", "Root Cause (first observed failure):", "[0]:", "  rank      : 3 (local_rank: 3)", "  exitcode  : -9 (pid: 4711)",
    "=====", "failed (exitcode: -9) local_rank: 2 (pid: 4711)", "step 3 loss 0.5", "\n", "\n", "\n", "\r", "\r\n", "\x1b[31m", "\x00",
    "2026-11-15 02:25:07,733", "E603 17:48:01.005271823", "world_size: 16", "<script>alert(1)</script>", "{rank} {0} %s", " ", "²",
]  # fmt: skip


@settings(fuzz, max_examples=200)
@given(st.lists(st.sampled_from((*WORDS, *PREFILTER.literals)) | st.text(max_size=10), max_size=80), formats, names)
def test_words_of_every_format_in_any_order_are_survived(
    tmp_path: Path, words: list[str], format: str, name: str
) -> None:
    check("".join(words).encode("utf-8", "surrogatepass"), tmp_path / name, format)


@settings(fuzz, max_examples=100)
@given(st.binary(max_size=2000), formats, names)
def test_random_bytes_are_survived(tmp_path: Path, data: bytes, format: str, name: str) -> None:
    check(data, tmp_path / name, format)


@settings(fuzz, max_examples=40)
@given(st.text(max_size=500), formats)
def test_random_text_through_standard_input_is_survived(text: str, format: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode("utf-8", "surrogatepass"))))
        check_report(diagnose("-"), format)


@settings(fuzz, max_examples=60)
@given(st.sampled_from(SEEDS), st.lists(st.sampled_from(MUTATIONS), max_size=2), st.integers(0, 1 << 30))
def test_a_recording_of_a_damaged_log_gives_the_same_document(
    tmp_path: Path, seed: Path, mutations: list[Callable[..., bytes]], number: int
) -> None:
    data, choice = seed.read_bytes()[:40_000], random.Random(number)
    for mutate in mutations:
        data = mutate(data, choice)
    (tmp_path / "job.log").write_bytes(data)
    run = read([str(tmp_path / "job.log")], PREFILTER)
    run_folder.pack(run, tmp_path / "run.zst")
    again = run_folder.read(str(tmp_path / "run.zst"))
    assert again == run
    first, second = (examine(one, KNOWLEDGE, PREFILTER, Options()).to_dict() for one in (run, again))
    assert first == second


# -- a slice of the campaign ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tools() -> campaign.Tools:
    return campaign.Tools.load()


def test_a_slice_of_the_campaign_finds_nothing(tmp_path: Path, tools: campaign.Tools) -> None:
    """`python bench/fuzz.py` runs a million of these; processes and time limits are its own."""
    kinds = set()
    for number in range(1, 401):
        made = inputs.sample(number, tools.seeds)
        folder = tmp_path / str(number)
        campaign.lay_out(made.files, str(folder))
        campaign.examine_one(made, number, str(folder), tools)
        kinds.add(made.kind)
    assert kinds == {"log", "folder", "archive", "run", "error", "noise"}


def test_an_input_is_its_number(tools: campaign.Tools) -> None:
    for number in range(50):
        assert inputs.sample(number, tools.seeds) == inputs.sample(number, tools.seeds)


def test_the_campaign_counts_keeps_and_makes_small_what_goes_wrong(
    tmp_path: Path, tools: campaign.Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(made: inputs.Sample, number: int, folder: str, tools: campaign.Tools) -> None:
        if any(b"a" in data for data in made.files.values()):
            raise ZeroDivisionError

    monkeypatch.setattr(campaign, "examine_one", fails)
    total = campaign.campaign(1, 3, 1, 1, str(tmp_path), campaign.Limits(memory_mb=4_000), tools)
    assert total.inputs == 3
    assert sum(total.failures.values()) >= 1
    assert any(file.read_bytes() == b"a" for file in tmp_path.glob("*/*/files/**/*") if file.is_file())


# -- what the campaign has found -----------------------------------------------------------------------------------


def test_a_zip_member_without_a_name_is_survived(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "logs.zip", "w") as archive:
        archive.writestr(zipfile.ZipInfo("x"), "step 1 loss 2\n")
    packed = (tmp_path / "logs.zip").read_bytes()
    head, list_ = packed.index(b"PK\x03\x04"), packed.index(b"PK\x01\x02")
    for at, size in ((list_ + 28, list_ + 46), (head + 26, head + 30)):  # length of the name, the name
        packed = packed[:at] + b"\0\0" + packed[at + 2 : size] + packed[size + 1 :]
    end = packed.index(b"PK\x05\x06")
    list_ = packed.index(b"PK\x01\x02")
    packed = packed[: end + 12] + (end - list_).to_bytes(4, "little") + list_.to_bytes(4, "little") + packed[end + 20 :]
    (tmp_path / "logs.zip").write_bytes(packed)
    assert zipfile.ZipFile(tmp_path / "logs.zip").namelist() == [""]
    check(packed, tmp_path / "logs.zip", "json")


def test_no_rank_is_below_zero_where_files_of_two_jobs_lie_in_one_folder(tmp_path: Path) -> None:
    """The folder of rank 5 says that it is rank 0; then rank 1 next to it is not rank -4."""
    for local, text in (5, "[rank0]: step 1 loss 2\n"), (1, "ValueError: x\n"):
        (tmp_path / f"attempt_0/{local}").mkdir(parents=True)
        (tmp_path / f"attempt_0/{local}/stderr.log").write_text(text)
    run = read([str(tmp_path)], PREFILTER)
    assert {source.rank for source in run.sources} == {0, 1}


def test_the_same_log_gives_the_same_report_in_every_process(tmp_path: Path) -> None:
    """Rules that are equally sure of a line were once taken in the order of a set."""
    fires = [
        case.text.split("\n") for rule in KNOWLEDGE.rules.values() for case in rule.cases() if case.expect == "fires"
    ]
    (tmp_path / "job.log").write_text("\n".join(f"[rank0]: {' '.join(one + other)}" for one, other in pairwise(fires)))
    said = set()
    for hashed in "12":
        command = [sys.executable, "-m", "paramedic", "diagnose", str(tmp_path / "job.log"), "--format", "json"]
        done = subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": hashed}, capture_output=True, check=False)
        said.add(done.stdout)
    assert len(said) == 1


# -- several processes ---------------------------------------------------------------------------------------------


def test_processes_that_read_ahead_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from paramedic.collect import readers

    for number, seed in enumerate(SEEDS[::40][:12]):
        (tmp_path / f"rank{number}.log").write_bytes(seed.read_bytes() * 3)
    (tmp_path / "rank98.log").write_bytes(SEEDS[0].read_text(errors="replace").encode("utf-16") * 3)
    (tmp_path / "rank99.log").write_bytes(b"\0\1\2" * 40_000)
    alone = read([str(tmp_path)], PREFILTER)
    pools = []

    class Pool(readers._Pool):
        def __init__(self, paths: Sequence[str], count: int, read: readers.ReadFile) -> None:
            super().__init__(paths, count, read)
            pools.append(count)

    monkeypatch.setattr(readers, "_Pool", Pool)
    monkeypatch.setattr(readers, "_may_fork", lambda: True)
    monkeypatch.setattr(readers, "WORTH_IT", 1)
    monkeypatch.setattr(readers, "_SMALL", 1)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2})
    assert read([str(tmp_path)], PREFILTER) == alone
    assert pools == [3]


def test_a_reading_process_that_dies_is_replaced_by_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from paramedic.collect import readers

    for number in range(4):
        (tmp_path / f"rank{number}.log").write_bytes(SEEDS[number].read_bytes())
    alone = read([str(tmp_path)], PREFILTER)
    monkeypatch.setattr(readers, "_packed", lambda one: os._exit(9))
    monkeypatch.setattr(readers, "_may_fork", lambda: True)
    monkeypatch.setattr(readers, "WORTH_IT", 1)
    monkeypatch.setattr(readers, "_SMALL", 1)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    assert read([str(tmp_path)], PREFILTER) == alone
