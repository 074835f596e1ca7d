"""Logs as clouds export them: each stream is read as if its host had written a file; what is torn is read as far as it goes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paramedic import diagnose
from paramedic.collect import exports, notebooks

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB"
SAID = [
    ("algo-1", "Traceback (most recent call last):"),
    ("algo-2", "step 4 loss 2.1"),
    ("algo-1", '  File "train.py", line 3, in <module>'),
    ("algo-1", OOM),
]


def cloudwatch() -> list[dict[str, object]]:
    return [
        {"logStreamName": f"job/{host}-1740413121", "timestamp": 1740413411200 + n, "message": said, "eventId": str(n)}
        for n, (host, said) in enumerate(SAID)
    ]


def google() -> list[dict[str, object]]:
    return [
        {"insertId": str(n), "textPayload": said, "timestamp": "2025-02-24T16:10:11.2Z", "resource": {"labels": {"pod_name": host}}}
        for n, (host, said) in enumerate(SAID)
    ]  # fmt: skip


SHAPES = {
    "events.json": json.dumps({"events": cloudwatch()}, indent=4),
    "lines.json": "\n".join(json.dumps(one) for one in cloudwatch()),
    "cut-off.json": '{"events": [\n' + ",\n".join(json.dumps(one) for one in cloudwatch()) + ',\n{"logStreamName": "jo',
    "google.json": json.dumps(google()),
    "rows.tsv": "\n".join(f"{1740413411200 + n}\tjob/{host}-1740413121\t{said}" for n, (host, said) in enumerate(SAID)),
    "vertex.log": "\n".join(f"ERROR\t2025-02-24 16:10:11 +0000\t{host}\t{said}" for host, said in SAID),
    "insights.csv": "@timestamp,@message,@logStream\n"
    + "\n".join(f'2025-02-24 16:10:11.200,"{said.replace(chr(34), chr(34) * 2)}",job/{host}' for host, said in SAID),
}


@pytest.mark.parametrize("name", SHAPES)
def test_an_export_is_read_stream_by_stream(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(SHAPES[name], "utf-8")
    report = diagnose(tmp_path)
    assert report.verdict is not None and report.verdict.symptom == "device-out-of-memory"
    assert sorted(source.id.rsplit("/", 1)[-1] for source in report.run.sources) == ["algo-1", "algo-2"]


@pytest.mark.parametrize(
    "text",
    [
        '{"textPayload": 3, "insertId": []}',
        '[{"logStreamName": {"a": 1}, "message": ["x"]}, 7, null]',
        '{"events": {"ingestionTime": 1}}',
        '{"logStreamName": "a", "message": "x", "timestamp": 1e400}',
        "1740413411200\t\t",
        'timestamp,message\n"no end',
        '{"insertId": ' * 5_000,
    ],
)
def test_what_only_looks_like_an_export_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.json").write_text(text, "utf-8")
    (tmp_path / "odd.tsv").write_text(text, "utf-8")
    assert diagnose(tmp_path).verdict is None


@pytest.mark.parametrize("stream", ["../../etc/passwd", "a/../..", "\x1b[2Jx", "…", "", "x" * 5_000])
def test_a_streams_name_leads_nowhere(stream: str) -> None:
    found = exports.streams(json.dumps({"events": [{"logStreamName": stream, "message": "hello"}]}).encode())
    (name,) = found
    assert name and "/" not in name and ".." not in name and name.isprintable() and len(name) <= 200


@pytest.mark.parametrize("stream", ["a/x ghp_{}", "a/x_ghp_{}", "https://u:ghp_{}@h", "ghp_{}-1709640011"])
def test_a_streams_name_says_no_secret(stream: str) -> None:
    secret = "a1B2" * 9
    event = {"logStreamName": stream.format(secret), "timestamp": 1700000000000, "message": "x"}
    assert not any(secret in name for name in exports.streams(json.dumps([event]).encode()))


def test_configurations_and_metrics_are_no_exports() -> None:
    for text in ('{"zero_optimization": {"stage": 3}}', "step,loss\n1,2.0\n", '{"message": "hi"}', "1,2,3\n"):
        assert not exports.is_export(text.encode())


def entry(stream: str, text: str) -> dict[str, object]:
    return {"logStreamName": stream, "timestamp": 1700000000000, "message": text}


@pytest.mark.parametrize("text", ["a", "a\n", "\n", "a\r\nb", "a\rb\r", "\n\na\u2028b\n\n", "a\x85", ""])
def test_a_message_has_the_lines_that_python_sees(text: str) -> None:
    (said,) = exports.streams(json.dumps([entry("a", text)]).encode()).values()
    assert said.decode() == "".join(f"2023-11-14T22:13:20.000Z {line}\n" for line in text.splitlines())


def test_a_stamp_of_thousands_of_digits_costs_its_row_alone() -> None:
    good = "1700000000000\tjob/algo-1\t{}\n"
    found = exports.streams((good.format("a") + "1" * 5000 + "\tjob/algo-1\tx\n" + good.format("b")).encode())
    assert [line[-1:] for line in found["algo-1"].splitlines()] == [b"a", b"b"]


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("whole", [False, True])
def test_entries_are_read_one_at_a_time(monkeypatch: pytest.MonkeyPatch, indent: int | None, whole: bool) -> None:
    monkeypatch.setattr(exports, "_MOST_ENTRY", 400)
    events = [entry("a", f"{number} " + "x" * (number % 90)) for number in range(50)]
    document = {"events": events, "nextToken": "x"} if whole else events
    found = exports.streams(json.dumps(document, indent=indent).encode())
    assert len(found["a"].splitlines()) == 50


def test_what_follows_a_damaged_entry_is_read_line_by_line() -> None:
    lines = [json.dumps(entry("a", str(number))) for number in range(4)]
    text = "[" + ",\n".join([lines[0], lines[1], '{"logStreamName": 1e', lines[2], lines[3][:-9]])
    assert [line[-1:] for line in exports.streams(text.encode())["a"].splitlines()] == [b"0", b"1", b"2"]


def test_a_word_within_an_entry_is_no_list_of_entries() -> None:
    text = "\n".join(json.dumps({**entry("a", "x"), "jsonPayload": {"events": [1]}}) for _ in range(3))
    assert len(exports.streams(text.encode())["a"].splitlines()) == 3


def test_a_list_of_something_else_is_left_early() -> None:
    text = json.dumps([entry("a", "x")])[:-1] + ",[]" * 5_000 + "," + json.dumps(entry("a", "y")) + "]"
    assert len(exports.streams(text.encode())["a"].splitlines()) == 1


def test_of_too_many_streams_the_others_are_one_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "_MOST_STREAMS", 3)
    cut: list[str] = []
    found = exports.streams(json.dumps([entry(f"s{number % 9}", "x") for number in range(18)]).encode(), cut)
    assert [*found] == ["s0", "s1", "s2", "other streams"]
    assert len(found["other streams"].splitlines()) == 12
    assert cut == ["of this export 3 streams were read by themselves, the others as one log"]


def test_lines_do_not_become_many_times_what_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "_MOST_SAID", 10_000)
    cut: list[str] = []
    found = exports.streams(json.dumps([entry("a", "\n" * 5_000)]).encode(), cut)
    assert len(found["a"]) <= 10_000
    assert "only" in cut[0]


def test_what_is_left_out_of_an_export_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "_MOST_STREAMS", 2)
    (tmp_path / "events.json").write_text(json.dumps([entry(f"s{number}", "RuntimeError: x") for number in range(4)]))
    assert any("2 streams were read by themselves" in left.why for left in diagnose(tmp_path).skipped)


def test_a_notebook_of_countless_lists_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebooks, "_MOST_PARTS", 100)
    assert notebooks.outputs(b'{"cells": []}') == b""
    monkeypatch.setattr("json.loads", lambda data: pytest.fail("was parsed"))
    assert notebooks.outputs(b'{"cells": [' + b"[]," * 200 + b"0]}") is None


def test_vertexs_second_pool_counts_on_from_its_first(tmp_path: Path) -> None:
    lines = [f"INFO\t2025-02-24 16:10:0{n} +0000\tworkerpool{n > 0:d}-{max(n - 1, 0)}\tstep 1 loss 2" for n in range(3)]
    killed = "The replica workerpool1-1 ran out-of-memory and exited with a non-zero status of 137(SIGKILL)."
    (tmp_path / "stream.log").write_text(
        "\n".join([*lines, f"ERROR\t2025-02-24 16:20:00 +0000\tservice\t{killed}"]), "utf-8"
    )
    verdict = diagnose(tmp_path).verdict
    assert verdict is not None and (verdict.symptom, verdict.ranks) == ("host-out-of-memory", (2,))
