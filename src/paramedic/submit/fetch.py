"""What an engine has about a job, whoever submitted it, as files that the pipeline reads."""

from __future__ import annotations

from importlib import import_module

from paramedic.errors import ParamedicError


def fetch(engine: str, id: str, folder: str) -> list[str]:
    """Into the folder; what lies elsewhere and can be read there is returned."""
    if not id or len(id) > 300:
        raise ParamedicError(f"{engine}:{id[:40]}: the name of a job is missing, or is none")
    return list(import_module(f"paramedic.submit.engines.{engine}").fetch(id, folder))
