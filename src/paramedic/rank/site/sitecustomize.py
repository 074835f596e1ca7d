"""Loaded by Python at its start because `paramedic run` put this folder first on PYTHONPATH. Chains to the
sitecustomize that would have been loaded without it, whose errors stay its own."""

from __future__ import annotations

import sys


def _theirs(here: str) -> None:
    """Runs the program's own sitecustomize, if there is one further down the path, under its own name."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if entry != here])
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop("sitecustomize", None)  # as Python leaves it
        raise


def _ours(here: str) -> None:
    import os
    from importlib.util import module_from_spec, spec_from_file_location

    folder = os.path.dirname(here)
    spec = spec_from_file_location(
        "paramedic_rank", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    if spec is None or spec.loader is None:
        return
    package = module_from_spec(spec)
    sys.modules["paramedic_rank"] = package
    spec.loader.exec_module(package)
    from paramedic_rank import start  # type: ignore[import-not-found]

    start.start()


def _main() -> None:
    import os

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry != here]
    try:
        _theirs(here)
    finally:
        if os.environ.get("PARAMEDIC_WATCH") or os.environ.get("PARAMEDIC_REPLAY"):
            try:
                _ours(here)
            except Exception as error:  # watching must never keep a program from starting
                sys.modules.pop("paramedic_rank", None)
                sys.stderr.write(f"paramedic: not watching this process: {type(error).__name__}: {error}\n")
                if os.environ.get("PARAMEDIC_REPLAY"):  # it would wait for its peers for ever
                    os._exit(70)


_main()
