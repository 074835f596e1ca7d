"""What `net agent` does on a node: probe, listen, dial, report, end. It runs no orders, and leaves nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from paramedic.collect.netfile import document
from paramedic.collect.network import facts
from paramedic.model import Fact
from paramedic.network.board import Board
from paramedic.network.pairs import Listener, dial_all

MAX_TARGETS = 4_096
_KEYS = {"to": str, "interface": str, "address": str, "port": int, "role": str, "chosen": bool, "bulk": bool}
Say = Callable[[str], None]


def take_part(  # noqa: PLR0917
    board: Board,
    host: str,
    command: Sequence[str],
    seconds: float,
    say: Say,
    verify: Callable[[Any], Any] | None = None,
) -> None:
    """Until the tests are over, at most `seconds` for each wait. `verify` starts a rank where that was allowed."""
    name = board.join(host)
    own = facts(command=command, host=name)
    own.append(Fact("started", round(time.time(), 3), "net probe", host=name))
    board.put(f"facts/{name}", document(own))
    plan = board.wait("plan", seconds)
    if not isinstance(plan, dict):
        say("nobody told this node what to test in time")
        return
    if isinstance(plan.get("session"), str):
        asyncio.run(_tested(board, name, plan, seconds))
    if verify is not None and isinstance(plan.get("verify"), dict):
        board.put(f"verify/{name}", verify(plan["verify"].get(name)))


async def _tested(board: Board, name: str, plan: dict[str, Any], seconds: float) -> None:
    session = bytes.fromhex(plan["session"])
    wanted = plan.get("ports", {}).get(name, {})
    listener = Listener(name, session)
    listener.open([port for port in wanted.get("data", ()) if type(port) is int][:8], _port(wanted.get("master")))
    listener.start()
    try:
        board.put(f"listening/{name}", {"data": listener.ports, "master": listener.master})
        go = await asyncio.to_thread(board.wait, "go", seconds)
        targets = _checked(go.get("dial", {}).get(name) if isinstance(go, dict) else None)
        results = await dial_all(name, session, targets)
        board.put(f"result/{name}", {"pairs": results, "strangers": listener.strangers})
        await asyncio.to_thread(board.wait, "end", seconds)
    finally:
        await listener.close()


def _port(value: Any) -> int | None:
    return value if type(value) is int and 0 < value < 1 << 16 else None


def _checked(targets: Any) -> list[dict[str, Any]]:
    """Only what has the right form, and not without end."""
    found = targets if isinstance(targets, list) else []
    return [
        one for one in found[:MAX_TARGETS]
        if isinstance(one, dict) and all(type(one.get(key)) is kind for key, kind in _KEYS.items())
    ]  # fmt: skip
