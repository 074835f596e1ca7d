"""Links, addresses and routes of this network namespace, from the kernel itself: no `ip` command is needed."""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterator
from typing import Any

_GETLINK, _GETADDR, _GETROUTE, _GETNEIGH = 18, 22, 26, 30
_DUMP_REQUEST = 0x301
_DONE, _ERROR = 3, 2
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_MAX_ROUTES = 2_000
_FAMILIES = {socket.AF_INET: 4, socket.AF_INET6: 6}
_SCOPES = {0: "global", 200: "site", 253: "link", 254: "host"}
_UP, _LOOPBACK, _RUNNING = 0x1, 0x8, 0x40
_UNICAST, _MAIN = 1, 254
_ANSWERED, _SILENT = 0x02 | 0x04 | 0x08 | 0x10, 0x01 | 0x20

Attributes = dict[int, bytes]


def links() -> Iterator[tuple[int, dict[str, Any]]]:
    """(index, name, MTU, flags and kind: `veth`, `bridge`, or empty for what the hardware gives)."""
    for body in _dump(_GETLINK, struct.pack("=BxHiII", 0, 0, 0, 0, 0)):
        _, _, index, flags, _ = struct.unpack_from("=BxHiII", body)
        found = _attributes(body[16:])
        inner = _attributes(found.get(18, b""))
        yield (
            index,
            {
                "name": _text(found.get(3, b"")),
                "mtu": struct.unpack("=I", found[4])[0] if 4 in found else 0,
                "up": bool(flags & _UP) and bool(flags & (_RUNNING | _LOOPBACK)),
                "loopback": bool(flags & _LOOPBACK),
                "kind": _text(inner.get(1, b"")),
                "qdisc": _text(found.get(6, b"")),
                "mac": found.get(1, b"")[:6].hex(":"),
            },
        )


def addresses() -> Iterator[tuple[int, dict[str, Any]]]:
    for body in _dump(_GETADDR, struct.pack("=BBBBI", 0, 0, 0, 0, 0)):
        family, prefix, flags, scope, index = struct.unpack_from("=BBBBI", body)
        found = _attributes(body[8:])
        raw = found.get(2) or found.get(1)
        if family in _FAMILIES and raw:
            usable = not flags & 0x48  # neither tentative nor a duplicate that somebody else has, too
            yield index, {
                "address": str(ipaddress.ip_address(raw)), "prefix": prefix,
                "scope": _SCOPES.get(scope, str(scope)) if usable else "tentative",
            }  # fmt: skip


def routes(names: dict[int, str]) -> Iterator[dict[str, Any]]:
    """Unicast routes of the main table."""
    count = 0
    for body in _dump(_GETROUTE, struct.pack("=BBBBBBBBI", 0, 0, 0, 0, 0, 0, 0, 0, 0)):
        family, length, _, _, table, _, _, kind, _ = struct.unpack_from("=BBBBBBBBI", body)
        found = _attributes(body[12:])
        if family not in _FAMILIES or kind != _UNICAST or table != _MAIN or count >= _MAX_ROUTES:
            continue
        count += 1
        zero = bytes(4 if family == socket.AF_INET else 16)
        made: dict[str, Any] = {"to": f"{ipaddress.ip_address(found.get(1, zero))}/{length}"}
        if 5 in found:
            made["gateway"] = str(ipaddress.ip_address(found[5]))
        if 4 in found:
            made["device"] = names.get(struct.unpack("=I", found[4])[0], "?")
        if 7 in found:
            made["source"] = str(ipaddress.ip_address(found[7]))
        yield made


def neighbours() -> dict[str, bool]:
    """Addresses on this node's own networks that were looked for: whether somebody there answers to them."""
    found: dict[str, bool] = {}
    for body in _dump(_GETNEIGH, struct.pack("=BxHiHBB", 0, 0, 0, 0, 0, 0)):
        family, _, _, state, _, _ = struct.unpack_from("=BxHiHBB", body)
        raw = _attributes(body[12:]).get(1)
        if family in _FAMILIES and raw and state & (_ANSWERED | _SILENT):
            found[str(ipaddress.ip_address(raw))] = bool(state & _ANSWERED)
    return found


def _dump(kind: int, request: bytes) -> Iterator[bytes]:
    """The messages' bodies. Raises OSError where the kernel gives none."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.settimeout(2.0)
        kernel.sendall(_HEADER.pack(_HEADER.size + len(request), kind, _DUMP_REQUEST, 1, 0) + request)
        while True:
            data = kernel.recv(1 << 18)
            while len(data) >= _HEADER.size:
                length, answer, *_ = _HEADER.unpack_from(data)
                if answer in (_DONE, _ERROR) or length < _HEADER.size:
                    return
                yield data[_HEADER.size : length]
                data = data[(length + 3) & ~3 :]


def _attributes(data: bytes) -> Attributes:
    found: Attributes = {}
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        if length < _ATTRIBUTE.size:
            break
        found[kind & 0x3FFF] = data[_ATTRIBUTE.size : length]
        data = data[(length + 3) & ~3 :]
    return found


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")
