"""The whole pipeline on hostile input: one of four exit codes, a valid document, and never a traceback."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import random
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
import zstandard

from paramedic.commands import main
from paramedic.pipeline import diagnose
from paramedic.report import FORMATS, render

OOM = b"[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
TRACE = (
    b"""\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/srv/train.py", line 10, in <module>
[rank1]:     main()
"""
    + OOM
)
SCHEMA = json.loads(resources.files("paramedic.report").joinpath("report.schema.json").read_text("utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

Captured = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("rules_loaded_once")


def packed(members: dict[str, bytes], mode: str = "w") -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return raw.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return raw.getvalue()


NOISE = b"".join(b"%d\n" % (n * 7919 % 100_003) for n in range(20_000))

INPUTS: dict[str, tuple[bytes, int]] = {
    "a traceback": (TRACE, 1),
    "nothing": (b"", 3),
    "one newline": (b"\n", 0),
    "no newline at all": (b"x", 0),
    "carriage returns": (b"\r" * 5000 + TRACE, 1),
    "windows": (TRACE.replace(b"\n", b"\r\n"), 1),
    "colours": (b"\x1b[31m" + TRACE.replace(b"\n", b"\x1b[0m\n\x1b[31m"), 1),
    "invalid utf-8": (b"\x80\xc3\x28\xf5 " * 20 + b"\n" + TRACE, 1),
    "surrogates": (b"\xed\xa0\x80\xed\xbf\xbf\n" + TRACE, 1),
    "a few NULs": (TRACE + b"\x00\x00\n", 1),
    "utf-16": (b"\xff\xfe" + TRACE.decode().encode("utf-16-le"), 1),
    "binary": (bytes(range(256)) * 50, 3),
    "terminal escapes": (b"\x1b]0;evil\x07\x1b[2J\x1bP+q\x1b\\\x9b31m\n" * 100 + TRACE, 1),
    "bidirectional text": ("\u202egnp.exe\u2066\u200b\n".encode() + TRACE, 1),
    "html": (
        TRACE.replace(b"2.00", b"<script>alert(1)</script>") + b"<script>alert(1)</script> CUDA out of memory\n",
        1,
    ),
    "workflow commands": (TRACE.replace(b"2.00", b"%0A::error::x") + b"::set-output name=x::y CUDA out of memory\n", 1),
    "rich markup": (TRACE.replace(b"2.00", b"[bold red]x[/nothing][link=file:///etc/passwd]"), 1),
    "huge rank": (TRACE.replace(b"[rank1]", b"[rank999999]"), 1),
    "impossible rank": (TRACE.replace(b"[rank1]", b"[rank" + b"9" * 5000 + b"]"), 0),
    "huge numbers": (TRACE.replace(b"2.00", b"9" * 5000), 1),
    "a huge rank in a message": (
        TRACE.replace(b"CUDA", b"Rank " + b"9" * 5000 + b": found NaN in local grad norm CUDA"),
        1,
    ),
    "a huge accused rank": (
        TRACE.replace(b"CUDA", b"Ranks 1, " + b"9" * 5000 + b" failed to pass monitoredBarrier in 5 ms CUDA"),
        1,
    ),
    "headings only": (b"Traceback (most recent call last):\n" * 20_000, 0),
    "failures only": (b"Failures:\n" * 20_000, 0),
    "tables of nothing": (b"Root Cause (first observed failure):\n[0]:\n" * 10_000, 0),
    "one long line": (b"x" * (3 << 20) + b"\n" + TRACE, 1),
    "a long line of keywords": (OOM.replace(b"\n", b" ") * 20_000, 1),
    "many kept lines": (OOM * 20_000, 1),
    "a world of a million": (b"world_size: 999999\n" + TRACE, 1),
    "odd dates": (b"2026-99-99 99:99:99 E9999 99:99:99.9 " + TRACE, 1),
    "gzip": (gzip.compress(TRACE), 1),
    "bzip2": (bz2.compress(TRACE), 1),
    "xz": (lzma.compress(TRACE), 1),
    "zstd": (zstandard.ZstdCompressor().compress(TRACE), 1),
    "a truncated gzip": (gzip.compress(TRACE + NOISE)[:-5000], 1),
    "a truncated xz": (lzma.compress(TRACE + NOISE)[:-2000], 1),
    "a truncated zstd": (
        zstandard.ZstdCompressor(level=1).compress(TRACE + random.Random(1).randbytes(300_000).hex().encode())[:-500],
        1,
    ),
    "only the start of a gzip": (gzip.compress(TRACE)[:12], 3),
    "tar": (packed({"a.log": TRACE}), 1),
    "a truncated tar": (packed({"a.log": TRACE, "b.log": NOISE})[:-40_000], 1),
    "tar.gz": (packed({"a.log": TRACE}, "w:gz"), 1),
    "an empty tar": (packed({}), 3),
    "a tar of nothing readable": (packed({"../a.log": TRACE, "x.py": TRACE}), 3),
    "zip": (zipped({"a.log": TRACE}), 1),
    "a truncated zip": (zipped({"a.log": TRACE, "b.log": NOISE})[:-400], 1),
    "an empty zip": (zipped({}), 3),
    "a tar in a zip": (zipped({"a.tar": packed({"a.log": TRACE})}), 3),
    "the start of a zip": (b"PK\x03\x04", 3),
    "an xz head": (b"\xfd7zXZ\x00", 3),
}


@pytest.mark.parametrize(
    ("data", "code"),
    [pytest.param(*case, id=name) for name, case in INPUTS.items()],
)
@pytest.mark.parametrize("rank", ["job.log", "rank3.log"])
def test_hostile_input_gives_a_code_and_a_document(
    in_tmp: Path, data: bytes, code: int, rank: str, capsys: Captured
) -> None:
    (in_tmp / rank).write_bytes(data)
    assert main(["diagnose", rank, "--format", "json"]) == code
    page = capsys.readouterr()
    assert page.err == ""
    document = json.loads(page.out)
    VALIDATOR.validate(document)
    if code == 3:
        assert document["skipped"], "silence is never a pass"


@pytest.mark.parametrize(
    "name", ["terminal escapes", "html", "rich markup", "bidirectional text", "workflow commands", "surrogates"]
)
def test_hostile_text_is_escaped_in_every_format(in_tmp: Path, name: str) -> None:
    folder = in_tmp / "<script>\x1b[31m\u202e"
    folder.mkdir()
    (folder / "rank0.log").write_bytes(INPUTS[name][0])
    report = diagnose([str(folder)])
    for format in FORMATS:
        shown = render(report, format, verbose=True)
        assert "\x1b" not in shown
        assert "\u202e" not in shown
        assert all(character == "\n" or character.isprintable() for character in shown) or format == "html"
        shown.encode("utf-8")
    assert "<script>alert" not in render(report, "html")
    lines = render(report, "github").split("\n")
    assert not any(line.startswith(("::set-output", "::error::x")) for line in lines)


def test_a_folder_without_logs_says_what_it_passed_over(in_tmp: Path, capsys: Captured) -> None:
    (in_tmp / "train.py").write_text("x")
    assert main(["diagnose", "."]) == 3
    assert "holds programs, and no logs" in capsys.readouterr().out


def test_thousands_of_files_are_survived(in_tmp: Path, capsys: Captured) -> None:
    for rank in range(1500):
        (in_tmp / f"rank{rank}.log").write_bytes(TRACE.replace(b"[rank1]", b"[rank%d]" % rank) if rank % 3 else b"")
    assert main(["diagnose", ".", "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["run"]["world_size"] == 1500


def test_deeply_nested_json_is_survived(in_tmp: Path, capsys: Captured) -> None:
    place = in_tmp / "attempt_0" / "0"
    place.mkdir(parents=True)
    for name, text in (("error.json", "[" * 500_000), ("stderr.log", TRACE.decode())):
        (place / name).write_text(text)
    assert main(["diagnose", ".", "--format", "json"]) == 1
    assert "not an error file" in json.loads(capsys.readouterr().out)["skipped"][0]["why"]


def test_one_bad_file_does_not_hide_the_others(in_tmp: Path, capsys: Captured) -> None:
    for name, (data, _) in INPUTS.items():
        (in_tmp / f"{name}.log").write_bytes(data)
    os.mkfifo(in_tmp / "pipe")
    (in_tmp / "loop").symlink_to("loop")
    assert main(["diagnose", ".", "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    VALIDATOR.validate(document)
    assert document["run"]["sources"] > 30
    assert {"pipe", "loop", "binary.log", "nothing.log"} <= {s["what"] for s in document["skipped"]}


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to(path), lambda path: path.mkdir(0)])
def test_a_config_file_that_is_none_is_survived(in_tmp: Path, make: Callable[[Path], None], capsys: Captured) -> None:
    make(in_tmp / "paramedic.toml")
    (in_tmp / "a.log").write_bytes(TRACE)
    assert main(["diagnose", "a.log", "--quiet"]) == 1


@pytest.mark.parametrize("name", ["binary", "a truncated zstd", "surrogates", "headings only", "nothing"])
def test_a_real_process_shows_no_traceback(in_tmp: Path, name: str) -> None:
    data, code = INPUTS[name]
    for arguments, given in ((["-"], data), (["x.log"], b"")):
        (in_tmp / "x.log").write_bytes(data)
        done = subprocess.run([sys.executable, "-m", "paramedic", "diagnose", *arguments], input=given, capture_output=True, check=False)  # fmt: skip
        assert (done.returncode, done.stderr) == (code, b"")
        assert done.stdout


def test_no_line_of_the_report_is_a_command_to_a_build_server(in_tmp: Path, capsys: Captured) -> None:
    (in_tmp / "::error::owned.log").write_bytes(b"")
    (in_tmp / "a.log").write_text("CUDA out of memory\n")
    main(["diagnose", ".", "-v"])
    shown = capsys.readouterr().out
    assert "- ::error::owned.log: empty" in shown
    assert not any(line.strip().startswith("::") for line in shown.splitlines())
