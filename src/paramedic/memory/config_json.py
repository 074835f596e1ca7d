"""A model's config.json as it lies on disk. No torch here, so that a wrong file is refused at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from paramedic.errors import ParamedicError

LARGEST_CONFIG = 4 << 20
MOST_LAYERS = 10_000


def read_config(path: str) -> dict[str, Any]:
    file = Path(path, "config.json") if Path(path).is_dir() else Path(path)
    try:
        with file.open("rb") as stream:
            data = stream.read(LARGEST_CONFIG + 1)
    except OSError as error:
        raise ParamedicError(f"--model {path}: {error.strerror or error}") from None
    if len(data) > LARGEST_CONFIG:
        raise ParamedicError(f"--model {path}: larger than {LARGEST_CONFIG >> 20} MiB; is it a config.json?")
    try:
        config = json.loads(data)
    except (ValueError, RecursionError):
        raise ParamedicError(f"--model {path}: not JSON; give the config.json of a Hugging Face model") from None
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ParamedicError(f'--model {path}: no "model_type"; give the config.json of a Hugging Face model')
    for name, value in config.items():
        if "layer" in name and isinstance(value, int) and value > MOST_LAYERS:
            raise ParamedicError(f"--model {path}: {name} is {value:,}; more than {MOST_LAYERS:,} are no model's")
    return config
