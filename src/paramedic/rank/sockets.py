"""What the kernel knows about this process's TCP connections: round trip, retransmissions, how long data waited to be
sent."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections import deque

_TCP_INFO, _SIZE = 11, 232
_MOST = 256
_WINDOW_S, _WINDOWS = 4.0, 5
_HEAD = struct.Struct("<8B24I")
_TAIL = struct.Struct("<4Q")  # pacing_rate, max_pacing_rate, bytes_acked, bytes_received


class Connections:
    """What each connection has sent, and how long it took, in all and lately."""

    def __init__(self) -> None:
        self._before: deque[tuple[float, dict[tuple[int, int], dict[str, int]]]] = deque(maxlen=_WINDOWS)

    def read(self) -> list[dict[str, int]]:
        found = readings()
        now = time.monotonic()
        oldest = self._before[0][1] if self._before else {}
        if not self._before or now - self._before[-1][0] >= _WINDOW_S:
            self._before.append((now, {(one["port"], one["peer_port"]): one for one in found}))
        for one in found:
            earlier = oldest.get((one["port"], one["peer_port"]), {})
            for name in ("sent", "busy_us", "by_peer_us"):
                one["lately_" + name] = one[name] - earlier.get(name, 0)
        return found


def readings() -> list[dict[str, int]]:
    """Of established connections that have sent something worth measuring."""
    found = []
    for name in os.listdir("/proc/self/fd")[:1024]:
        reading = _of(int(name))
        if reading:
            found.append(reading)
            if len(found) == _MOST:
                break
    return found


def _of(descriptor: int) -> dict[str, int] | None:
    try:
        if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
            return None
        connection = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        return None
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _SIZE)
        peer = connection.getpeername()
        own = connection.getsockname()
    except OSError:
        return None
    finally:
        connection.close()
    return _parsed(info, own[1], peer[1]) if len(info) >= 192 else None


def _parsed(info: bytes, own: int, peer: int) -> dict[str, int] | None:
    head = _HEAD.unpack_from(info)
    sent, received = _TAIL.unpack_from(info, 104)[2:]
    if head[0] != 1 or sent + received < 1 << 16:
        return None
    busy, by_window, by_buffer = struct.unpack_from("<3Q", info, 168)
    return {
        "port": own,
        "peer_port": peer,
        "rtt_us": head[8 + 15],
        "retransmitted": head[8 + 23],
        "sent": sent,
        "received": received,
        "busy_us": busy,
        "by_peer_us": by_window,
        "by_buffer_us": by_buffer,
    }
