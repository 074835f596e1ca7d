"""Inside a rank: calls the submitted function. Only the standard library: it shares the process with the training."""

from __future__ import annotations

import importlib
import json
import os
import sys


def main() -> None:
    with open(os.environ["PARAMEDIC_LAUNCH"], encoding="utf-8") as file:
        said = json.load(file)["call"]
    sys.path.insert(0, os.getcwd())
    module, _, name = said["function"].partition(":")
    found = getattr(importlib.import_module(module), name)
    function = getattr(found, "__wrapped__", found)
    result = function(*said["arguments"], **said["named"])
    if int(os.environ.get("RANK") or 0) == 0:
        _keep(result)


def _keep(result: object) -> None:
    """A result that is no JSON does not spoil a training that went well."""
    try:
        text = json.dumps({"result": result})
    except (TypeError, ValueError) as error:
        text = json.dumps({"result": None, "why": f"the function's result is no JSON: {error}"})
    path = os.environ["PARAMEDIC_RESULT"]
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.part", path)


if __name__ == "__main__":
    main()
