"""Python exceptions that no signature knows: their frames still say at which stage of training they happened."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from paramedic.detect.match import on_event, own_frame
from paramedic.knowledge import Rule, load_taxonomy
from paramedic.model import Event, Finding, Run

_PLACES = (
    (r"torch/utils/data/|/datasets/|tf/data|[Dd]ata[Ll]oader|__getitem__|collate", "data-pipeline-failure", 0.75),
    (
        r" in (?:\w*save\w*checkpoint\w*|save|_save|save_\w+)$|distributed/checkpoint/.*save",
        "checkpoint-save-failure",
        0.65,
    ),
    (r" in (?:\w*load\w*checkpoint\w*|load_state_dict|resume\w*)$", "checkpoint-resume-failure", 0.65),
    (r"from_pretrained", "model-weight-loading-failure", 0.65),
    (r" in init_process_group$|rendezvous|_create_tcp_store", "rendezvous-setup-failure", 0.7),
    (r"argparse\.py|pydantic|configuration_utils|hydra/|omegaconf/", "invalid-run-configuration", 0.65),
    (r"distributed/distributed_c10d\.py", "communication-runtime-error", 0.5),
)
_UNIMPLEMENTED = ("AttributeError", "NotImplementedError")
_LAUNCHER = ("ChildFailedError", "SignalException", "ProcessRaisedException", "ProcessExitedException")
_QUIET = ("KeyboardInterrupt", "SystemExit", "BdbQuit")


def unrecognised(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    known = {(e.event.source, e.event.seq) for one in found for e in one.evidence}
    symptoms = load_taxonomy()
    for event in run.events:
        if event.kind != "traceback" or (event.source, event.seq) in known or not event.fields.get("types"):
            continue
        name = event.fields["types"][-1].rsplit(".", 1)[-1]
        if name in _LAUNCHER or name in _QUIET:
            continue
        symptom, confidence = _symptom(event, name)
        where = own_frame(event)
        fields = {"exception": _last_exception(event)[:200], "where": where}
        one = on_event(rule, event, fields)
        yield replace(one, symptom=symptoms.symptom(symptom), confidence=confidence)


def _symptom(event: Event, name: str) -> tuple[str, float]:
    frames = "\n".join(event.fields.get("frames", ()))
    for pattern, symptom, confidence in _PLACES:
        if re.search(pattern, frames, re.M):
            return symptom, confidence
    if name in _UNIMPLEMENTED:
        return "unsupported-api-or-attribute", 0.6
    return "step-execution-error", 0.6


def _last_exception(event: Event) -> str:
    """The line that names the exception, not the last line of a long message."""
    name = event.fields["types"][-1]
    lines = event.text.split("\n")
    return next((line for line in reversed(lines) if line.startswith(name)), lines[-1])
