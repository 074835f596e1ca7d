"""Logs as clouds export them: each stream is read as if its host had written a file; what is torn is read as far as it goes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paramedic import diagnose
from paramedic.collect import exports

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
