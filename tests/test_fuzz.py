"""Random text, random bytes and damaged real logs: whatever comes in, a report in all formats comes out."""

from __future__ import annotations

import io
import json
import os
import random
import re
import subprocess
import sys
import tarfile
import time
import unicodedata
import zipfile
from collections.abc import Callable, Sequence
from importlib import resources
from itertools import pairwise
from pathlib import Path
from statistics import median

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paramedic import run_folder
from paramedic.collect.logs import MAX_EXITS
from paramedic.detect import stragglers
from paramedic.errors import ParamedicError
from paramedic.knowledge import load
from paramedic.model import Run
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
    assert kinds == {"log", "folder", "archive", "run", "error", "noise", "export", "post"}


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
    told = []
    total = campaign.campaign(
        1, 3, 1, 1, str(tmp_path), campaign.Limits(memory_mb=4_000), tools, lambda *so_far: told.append(so_far)
    )
    assert total.inputs == 3
    assert told == [(total, 4)]
    assert sum(total.failures.values()) >= 1
    assert any(file.read_bytes() == b"a" for file in tmp_path.glob("*/*/files/**/*") if file.is_file())


@pytest.mark.slow
def test_a_campaign_that_is_asked_to_end_leaves_its_summary(tmp_path: Path) -> None:
    command = [sys.executable, str(HERE.parent / "bench" / "fuzz.py"), "--jobs", "1", "--first", "7"]
    with subprocess.Popen(
        [*command, "--failures", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as run:
        summary = tmp_path / "summary.json"
        until = time.monotonic() + 120
        while not summary.exists() and time.monotonic() < until:
            time.sleep(0.2)
        run.terminate()
        shown = json.loads(run.communicate(timeout=60)[0])
    assert run.returncode in (0, 1)
    assert shown == json.loads(summary.read_text())
    assert shown["first"] == 7
    assert shown["next"] == 7 + shown["inputs"]


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


def recorded(run: Run, tmp_path: Path) -> Run:
    run_folder.pack(run, tmp_path / "run.zst")
    return run_folder.read(str(tmp_path / "run.zst"))


@pytest.mark.parametrize(
    "line",
    [
        "srun: error: node-02: task 1: Killed",
        "[launch.py:315:sigkill_handler] ['python', '-u', 'train.py', '--local_rank=1'] exits with return code = -9",
        "process rank 1 with PID 9999999999 on node a exited on signal 9",
    ],
)
def test_a_recording_keeps_how_a_process_ended_whose_number_nobody_has_said(tmp_path: Path, line: str) -> None:
    (tmp_path / "job.log").write_text(line + "\n")
    run = read([str(tmp_path / "job.log")], PREFILTER)
    assert [event.kind for event in run.events].count("exit") == 1
    assert recorded(run, tmp_path) == run


@pytest.mark.parametrize("size", [*range(355, 402), *range(3_950, 4_002)])
def test_a_secret_at_the_cut_is_recorded_as_it_was_read(tmp_path: Path, size: int) -> None:
    """What a cut leaves of a line may look like a secret, or be a part of the mark that stands for one."""
    for secret in ("Authorization: Bearer abcdefghijkl", "x" * 30 + "Aa1" * 40):
        text = "CUDA out of memory. " + "y " * ((size - 20 - len(secret) % 9) // 2) + secret
        (tmp_path / "job.log").write_text(f"{text} and more\nCUDA out of memory\n{text} and more\n")
        run = read([str(tmp_path / "job.log")], PREFILTER)
        assert recorded(run, tmp_path) == run


def test_a_traceback_of_very_many_exceptions_is_recorded_as_it_was_read(tmp_path: Path) -> None:
    chain = "\nDuring handling of the above exception, another exception occurred:\n\n"
    one = 'Traceback (most recent call last):\n  File "/a.py", line 3, in f\nKeyError: 1\n'
    (tmp_path / "job.log").write_text(chain.join([one] * 90))
    run = read([str(tmp_path / "job.log")], PREFILTER)
    assert recorded(run, tmp_path) == run


def test_a_rank_that_no_job_has_is_none(tmp_path: Path) -> None:
    lines = ["[default1]:[rank999999]: step 1 loss 2", "[default99999]:CUDA out of memory"]
    (tmp_path / "job.log").write_text("\n".join(lines))
    run = read([str(tmp_path / "job.log")], PREFILTER)
    assert recorded(run, tmp_path) == run


@pytest.mark.parametrize("line", [0, 1])
def test_a_strangers_line_number_keeps_to_the_schema(tmp_path: Path, line: int) -> None:
    (tmp_path / "job.log").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    run_folder.write(read([str(tmp_path / "job.log")], PREFILTER), tmp_path / "run")
    events = tmp_path / "run" / "events.jsonl"
    events.write_text(events.read_text().replace('"line":1,', f'"line":{line},'))
    check_report(diagnose(tmp_path / "run"), "json")


def packed(name: str, data: bytes, attributes: dict[str, str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo(name)
        info.size, info.pax_headers = len(data), attributes
        archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


SPARSE = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.name": "rank1.log",
          "GNU.sparse.size": str(1 << 60), "GNU.sparse.map": "0,190000"}  # fmt: skip


@pytest.mark.parametrize("name", ["rank1.log", "a.py"])
@pytest.mark.parametrize("attributes", [{"size": str(10**18)}, SPARSE])
def test_a_member_of_exabytes_in_an_archive_of_kilobytes_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, attributes: dict[str, str]
) -> None:
    monkeypatch.setattr("paramedic.collect.streams.FREE_UNPACKED", 4 << 20)
    check(packed(name, b"CUDA out of memory\n" * 10_000, attributes), tmp_path / "logs.tar", "json")


def test_lines_that_name_thousands_of_tasks_are_kept_in_bounds(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("srun: error: a: tasks 0-4095: Killed\n" * 100)
    run = read([str(tmp_path / "job.log")], PREFILTER)
    assert [event.kind for event in run.events].count("exit") == MAX_EXITS
    assert any("processes that ended" in left.why for left in run.skipped)


def test_a_million_ranks_are_not_gone_through_for_every_attempt(tmp_path: Path) -> None:
    lost = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, Timeout(ms)=600000)"
    said = "".join(f"Requeued SLURM job 1\n[rank{n % 7}]: {lost} ran for 600043 milliseconds\n" for n in range(400))
    (tmp_path / "job.log").write_text("world_size: 262144\n" + said)
    start = time.process_time()
    diagnose(tmp_path / "job.log")
    assert time.process_time() - start < 5


@given(st.lists(st.sampled_from([0.0, 1.0, 1.5, 2.0, 7.0]), min_size=2, max_size=9))
def test_the_median_of_all_others_is_the_median_of_all_others(values: list[float]) -> None:
    others = [median(value for n, value in enumerate(values) if n != mine) for mine in range(len(values))]
    assert stragglers._medians_of_others(values) == others


def test_the_steps_of_hundreds_of_ranks_are_compared_in_seconds(tmp_path: Path) -> None:
    for rank in range(300):
        said = (f"step {step} step time: {step % 3 + 1}.{rank % 10} s\n" for step in range(100))
        (tmp_path / f"rank{rank}.log").write_text("".join(said))
    run = read([str(tmp_path)], PREFILTER)
    start = time.process_time()
    examine(run, KNOWLEDGE, PREFILTER, Options())
    assert time.process_time() - start < 10


def test_many_kinds_of_files_that_are_no_logs_are_said_briefly(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "logs.zip", "w") as archive:
        for number in range(300):
            archive.writestr(f"{number}.tfevents.{number}", "x")
    run = read([str(tmp_path / "logs.zip")], PREFILTER)
    assert max(len(left.why) for left in run.skipped) < 1_000


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


def test_the_rank_that_a_program_states_comes_from_another_process_too() -> None:
    from paramedic.collect import readers
    from paramedic.collect.layouts import Place
    from paramedic.collect.logs import LogRead
    from paramedic.model import Source

    one = readers.Read(Place(), LogRead(Source("a.log", "log"), stated_rank=3))
    assert readers._unpacked(readers._packed(one)) == one


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
