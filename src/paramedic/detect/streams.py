"""Shards that a program reads through a command, `pipe:aws s3 cp s3://… -`: the command's words are about the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paramedic.detect.match import on_events
from paramedic.knowledge import Rule
from paramedic.model import Finding, Run
from paramedic.regex import regex

_PIPE_FAILED = regex(
    r"webdataset/\w{1,40}\.py:\d{1,6}: UserWarning: .{0,300}?\.(?:tar|tgz)\b.{0,300}?\bexit -?\d{1,3} \(\w{1,8}\)"
    r"|\b(?:download|cat) failed: (?:s3|gs|az)://\S{1,300}?\.(?:tar|tgz|parquet|jsonl|tfrecord)(?:\.\w{2,4})? to - "
)
"""webdataset's word for a command that failed while it read, and that of `aws s3 cp` about what it writes to a pipe."""
_COMMAND = regex(
    r"^(?:\[[^\]\n]{1,60}\]:? ?)?(?:fatal error: |An error occurred|download failed: |cat failed: ).{0,400}?"
    r"(?:\((?P<what>[\w.]{3,40})\) when calling the GetObject|"
    r"(?P<why>Read timeout|Connect timeout|Could not connect|Connection was closed)|"
    r"\bto - (?P<other>\S.{0,60}))"
)
_OFTEN = 3


def shards_not_read(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Commands that read shards fail again and again; a few that fail are passed over, and training goes on."""
    pipes = [event for event in run.saying(" failed: ", "line") if _PIPE_FAILED.search(event.text)]
    pipes += [event for event in run.saying("webdataset/", "line") if _PIPE_FAILED.search(event.text)]
    if len(pipes) < _OFTEN:
        return
    said = [*run.saying("when calling the GetObject", "line"), *run.saying(" failed: ", "line")]
    told = [(event, hit) for event in said if (hit := _COMMAND.search(event.text)) is not None]
    what = next((hit["what"] or hit["why"] or hit["other"] for _, hit in told), "the command ended with an error")
    for event in {event.seq: event for event in [*pipes, *(event for event, _ in told)]}.values():
        yield on_events(rule, [event], (), {"what": what, "count": str(len(pipes))})
