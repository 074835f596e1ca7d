"""The active tests: each node listens on a few ports and dials the others. Every step has a limit of about a second.

A connection begins with a proof of the session on both sides; whoever has none is dropped. Nothing else is accepted,
and nothing that is received is kept or run.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from paramedic.collect import netlink

CONNECT_SECONDS = 1.2
STALL_SECONDS = 0.9
BULK_SECONDS = 2.4
"""All transfers of one node together; what comes later is not measured."""
_AGAIN = (0.0, 0.3, 0.6)
"""A lost first packet would be sent again after a second: rather try anew."""
_PROOF_SECONDS = 5.0
"""Of a process on a busy host, once its kernel has taken the connection."""
_CHUNK = 64 << 10
_BULK = 4 << 20
_SHARE_SECONDS = 0.25
_WINDOW = 4
_BUFFER = 256 << 10
_SIZES = (1360, 1240, 960)
"""Segment sizes to try when full ones do not arrive."""
_HELLO = b"PMNT1"
_RESENT_AT, _ARRIVED_AT, _SENT_AT = 100, 120, 136
_FULL = 1_000
"""Bytes: the proofs together are smaller, a full-sized packet is larger."""


@dataclass
class Listener:
    """The listening side of a node."""

    name: str
    session: bytes
    strangers: int = 0
    ports: list[int] = field(default_factory=list)
    master: bool = False
    _servers: list[socket.socket] = field(default_factory=list)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def open(self, wanted: Sequence[int], master: int | None) -> None:
        """Chosen by the kernel where a wanted one is taken; the master's port only as itself."""
        for port in (*wanted, 0):
            if (server := _bound(port) or _bound(0)) is not None:
                self._servers.append(server)
                self.ports.append(server.getsockname()[1])
        if master and (server := _bound(master)) is not None:
            self._servers.append(server)
            self.master = True

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._accept(server)) for server in self._servers]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for server in self._servers:
            server.close()

    async def _accept(self, server: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        serving: set[asyncio.Task[None]] = set()
        while True:
            peer, _ = await loop.sock_accept(server)
            peer.setblocking(False)
            if len(serving) > 1_024:
                peer.close()
                continue
            task = asyncio.create_task(self._serve(peer))
            serving.add(task)
            task.add_done_callback(serving.discard)

    async def _serve(self, peer: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        nonce = secrets.token_bytes(16)
        try:
            async with asyncio.timeout(_PROOF_SECONDS):
                await loop.sock_sendall(peer, _HELLO + nonce)
                proof = await _exactly(peer, 32)
                if not hmac.compare_digest(proof, _proof(self.session, b"dial", nonce)):
                    raise ValueError("no proof")
                name = self.name.encode()[:200]
                await loop.sock_sendall(peer, _proof(self.session, b"hear", nonce + name) + bytes([len(name)]) + name)
        except (OSError, ValueError, EOFError, TimeoutError) as error:
            self.strangers += isinstance(error, ValueError | TimeoutError)
            peer.close()
            return
        with suppress(OSError, EOFError, TimeoutError):
            async with asyncio.timeout(STALL_SECONDS + BULK_SECONDS):
                while (await _exactly(peer, 1)) == b"B":
                    await loop.sock_sendall(peer, struct.pack("!Qd", *await _received(peer)))
        peer.close()


async def _received(peer: socket.socket) -> tuple[int, float]:
    """(bytes, the best rate in bits a second over a few chunks: what the path gives when nobody is held up)."""
    times, count = [time.perf_counter()], 0
    while (await _exactly(peer, 1)) == b"C":
        await _exactly(peer, _CHUNK)
        count += _CHUNK
        times.append(time.perf_counter())
    window = min(_WINDOW, len(times) - 1)
    spans = [times[i + window] - times[i] for i in range(len(times) - window)] if window else []
    return count, window * _CHUNK * 8 / max(min(spans), 1e-6) if spans else 0.0


def _bound(port: int) -> socket.socket | None:
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        with suppress(OSError):
            dual = family == socket.AF_INET6
            server = socket.create_server((address, port), family=family, backlog=512, dualstack_ipv6=dual)
            server.setblocking(False)
            return server
    return None


# -- dialling ------------------------------------------------------------------------------------------------------


async def dial_all(name: str, session: bytes, targets: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Connects to all at once, then sends to one after the other. `targets`: to, address, port, role, bulk."""
    gate = asyncio.Semaphore(256)
    dialled = await asyncio.gather(*(_dial(name, session, target, gate) for target in targets))
    there = netlink.neighbours()
    results = []
    end = time.monotonic() + BULK_SECONDS
    for target, (result, peer) in zip(targets, dialled, strict=True):
        made = {key: target[key] for key in ("to", "interface", "address", "port", "role", "chosen")}
        made |= {"from": name, "result": _told_apart(result, there.get(target["address"]))}
        if peer is not None:
            if target.get("bulk") and time.monotonic() < end:
                made |= await _bulk(peer, session, target)
            peer.close()
        results.append(made)
    return results


def _told_apart(result: str, answers: bool | None) -> str:
    """No answer to a connection from a host that does answer on its network: something filters."""
    if result != "timeout" or answers is None:
        return result
    return "filtered" if answers else "unreachable"


async def _dial(
    name: str, session: bytes, target: dict[str, Any], gate: asyncio.Semaphore
) -> tuple[str, socket.socket | None]:
    async with gate:
        return await _attempts(session, target)


async def _attempts(session: bytes, target: dict[str, Any], segment: int = 0) -> tuple[str, socket.socket | None]:
    """The first of several that is answered; else what the last one met."""
    tasks = [asyncio.create_task(_attempt(session, target, delay, segment)) for delay in _AGAIN]
    result, peer = "timeout", None
    for next_one in asyncio.as_completed(tasks):
        said, connected = await next_one
        if connected is not None and peer is None:
            result, peer = said, connected
            break
        result = said if said != "timeout" else result
        if said in ("refused", "unreachable", "other-host", "silent"):
            break
    for task in tasks:
        task.cancel()
    for late in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(late, tuple) and late[1] is not None and late[1] is not peer:
            late[1].close()
    return result, peer


async def _attempt(
    session: bytes, target: dict[str, Any], delay: float, segment: int
) -> tuple[str, socket.socket | None]:
    await asyncio.sleep(delay)
    peer = socket.socket(socket.AF_INET6 if ":" in target["address"] else socket.AF_INET, socket.SOCK_STREAM)
    peer.setblocking(False)
    result = "silent"
    try:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        if segment:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, segment)
        result = await _connected(peer, (target["address"], target["port"]), CONNECT_SECONDS - delay)
        if result == "ok":
            result = "silent"
            async with asyncio.timeout(_PROOF_SECONDS):
                result = "ok" if await _proven(peer, session) == target["to"] else "other-host"
    except (OSError, EOFError, TimeoutError):
        pass
    except ValueError:
        result = "other-host"
    except asyncio.CancelledError:
        peer.close()
        raise
    if result == "ok":
        return result, peer
    peer.close()
    return result, None


async def _connected(peer: socket.socket, address: tuple[str, int], seconds: float) -> str:
    """The kernel answers for a listener, however busy its host is; on a busy host only we may be late to notice."""
    try:
        async with asyncio.timeout(seconds):
            await asyncio.get_running_loop().sock_connect(peer, address)
    except TimeoutError:
        with suppress(OSError):
            peer.getpeername()
            return "ok"
        return "timeout"
    except (ConnectionRefusedError, ConnectionResetError):
        return "refused"
    except OSError:
        return "unreachable"
    return "ok"


async def _proven(peer: socket.socket, session: bytes) -> str:
    """The other node's name, once both sides have shown that they belong to this session."""
    loop = asyncio.get_running_loop()
    hello = await _exactly(peer, len(_HELLO) + 16)
    if not hello.startswith(_HELLO):
        raise ValueError("somebody else listens there")
    nonce = hello[len(_HELLO) :]
    await loop.sock_sendall(peer, _proof(session, b"dial", nonce))
    proof = await _exactly(peer, 33)
    name = await _exactly(peer, proof[32])
    if not hmac.compare_digest(proof[:32], _proof(session, b"hear", nonce + name)):
        raise ValueError("another session listens there")
    return name.decode("utf-8", "replace")


async def _bulk(peer: socket.socket, session: bytes, target: dict[str, Any]) -> dict[str, Any]:
    """Full-sized packets to the other node: the rate and what had to be sent again, or that they do not arrive."""
    try:
        async with asyncio.timeout(STALL_SECONDS + _SHARE_SECONDS):
            count, rate = await _sent(peer)
    except (TimeoutError, OSError, EOFError):
        resent, _, arrived = _tcp_info(peer)
        if not resent or arrived >= _FULL:
            return {}  # held up, but not by the path: its kernel has taken full-sized packets
        return {"stalled": "out", "fits": await _fitting(session, target)}
    resent, segments, _ = _tcp_info(peer)
    return {"mbps": round(rate / 1e6, 1), "bytes": count, "retransmitted": resent, "segments": segments}


async def _sent(peer: socket.socket, most: int = _BULK) -> tuple[int, float]:
    loop = asyncio.get_running_loop()
    end, chunk = time.monotonic() + _SHARE_SECONDS, b"C" + bytes(_CHUNK)
    await loop.sock_sendall(peer, b"B")
    for _ in range(most // _CHUNK):
        await loop.sock_sendall(peer, chunk)
        if time.monotonic() > end:
            break
    await loop.sock_sendall(peer, b"E")
    count, rate = struct.unpack("!Qd", await _exactly(peer, 16))
    return count, rate


async def _fitting(session: bytes, target: dict[str, Any]) -> int:
    """The MTU with whose segments the same transfer passes; 0 where none does."""
    head = 60 if ":" in target["address"] else 40
    for segment in _SIZES:
        _, peer = await _attempts(session, target, segment)
        if peer is None:
            return 0
        try:
            async with asyncio.timeout(STALL_SECONDS / 2):
                await _sent(peer, _CHUNK)
            return segment + head
        except (TimeoutError, OSError, EOFError):
            continue
        finally:
            peer.close()
    return 0


def _tcp_info(peer: socket.socket) -> tuple[int, int, int]:
    """(segments sent again, segments sent, bytes that the other kernel has acknowledged)."""
    try:
        info = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        (resent,), (sent,) = struct.unpack_from("=I", info, _RESENT_AT), struct.unpack_from("=I", info, _SENT_AT)
        return resent, sent, struct.unpack_from("=Q", info, _ARRIVED_AT)[0]
    except (OSError, struct.error):
        return 0, 0, 0


async def _exactly(peer: socket.socket, size: int) -> bytes:
    loop, parts = asyncio.get_running_loop(), []
    while size:
        part = await loop.sock_recv(peer, min(size, 1 << 18))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _proof(session: bytes, side: bytes, data: bytes) -> bytes:
    return hmac.digest(session, side + data, "sha256")
