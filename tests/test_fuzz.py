"""Random text, random bytes and damaged real logs: whatever comes in, a report in all formats comes out."""

from __future__ import annotations

import io
import json
import random
import re
import unicodedata
from collections.abc import Callable
from importlib import resources
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
