"""How people put it, for each symptom, and the taxonomy's own words: from them it is learnt what a text sounds like."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import resources

from paramedic.knowledge.taxonomy import load_taxonomy

NONE = "none"
"""What is said where nothing has failed."""


@cache
def descriptions() -> dict[str, dict[str, str]]:
    """For each symptom what is said, and what to ask for so that the next diagnosis has more than words."""
    return tomllib.loads(resources.files("paramedic.knowledge").joinpath("descriptions.toml").read_text("utf-8"))


def of_people() -> Iterator[tuple[str, str]]:
    """(symptom or `none`, what somebody says)."""
    for symptom, entry in descriptions().items():
        for line in entry["said"].strip().split("\n"):
            yield symptom, line


def of_taxonomy() -> Iterator[tuple[str, str]]:
    for id, entry in load_taxonomy().symptoms.items():
        signals = [text for text in entry.signals.get("log", ()) if text != "none"]
        for text in (id.replace("-", " "), entry.definition, entry.boundary, *signals):
            yield str(id), text


def fingerprint() -> str:
    """Of all that is learnt from: what was made of it says by this whether it still is what it was made of."""
    said = "\n".join(f"{symptom}|{text}" for symptom, text in (*of_people(), *of_taxonomy()))
    return hashlib.sha256(said.encode()).hexdigest()
