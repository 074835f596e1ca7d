"""Everything a node can say about itself, as rows of name, value and where it was read."""

from __future__ import annotations

import json
import os
import socket
import sys
import time

from paramedic.node import extensions, gpus, links, machine, native, packages, toolchain, variables
from paramedic.node.rows import Rows

PARTS = (
    ("python packages", packages.look),
    ("native libraries", native.look),
    ("compiled extensions", extensions.look),
    ("compilers", toolchain.look),
    ("machine", machine.look),
    ("GPUs", gpus.look),
    ("links", links.look),
    ("environment variables", variables.look),
)


def look(deep: bool = False) -> Rows:
    """`deep` adds the self-test, which imports torch and takes seconds."""
    rows = Rows()
    start = time.perf_counter()
    rows.add("host name", socket.gethostname(), "uname")
    rows.add("host time", time.time(), "clock")
    for name, part in PARTS:
        try:
            part(rows)
        except Exception as error:  # one thing that cannot be seen must not hide all others
            rows.skip(name, f"{type(error).__name__}: {error}")
    rows.add("probe seconds", round(time.perf_counter() - start, 3), "clock")
    if deep:
        from paramedic.node import selftest

        selftest.look(rows)
    return rows


def main() -> None:
    """One JSON document on standard output, whatever libraries print there meanwhile."""
    answer = os.dup(1)
    os.dup2(2, 1)
    rows = look("deep" in sys.argv[2:])
    with os.fdopen(answer, "w", encoding="utf-8", errors="backslashreplace") as out:
        json.dump({"paramedic_probe": 1, "facts": rows.facts, "skipped": rows.skipped}, out, default=str)


def from_outside() -> None:
    """`python -c … FOLDER`: FOLDER, which holds our package, is not the user's and leaves the path at once."""
    import paramedic.node.selftest  # noqa: F401

    sys.path[:] = [path for path in sys.path if path not in ("", sys.argv[1])]
    main()
