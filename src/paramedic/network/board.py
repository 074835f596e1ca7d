"""Where nodes and the one who checks them meet: values under names, in a shared folder or at one TCP address.

Whoever takes part knows the token. It is never sent: each side proves it to the other, and every message carries a
keyed hash, so that nobody on the network can add, change or repeat one. Nothing is encrypted.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import secrets
import socket
import struct
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from paramedic.collect.gather import Refused, answer, exactly, read_token
from paramedic.errors import ParamedicError
from paramedic.model import Skipped

MAX_MESSAGE = 16 << 20
_HELLO = b"paramedic-net-1\n"
_NONCE = 32
_HEAD = struct.Struct("!I32s")
_HANDSHAKE_SECONDS = 3.0
_PAUSE = 0.02
_MAX_PEERS = 9_000
_HOST = re.compile(r"[\w.:-]{1,100}")
_OWN = ("facts", "listening", "result", "verify")
"""What a node may put, each below its own name."""


class Board(Protocol):
    def join(self, host: str) -> str:
        """The name under which this node is known: its own, or `node-1#2` where that is taken."""

    def put(self, name: str, value: Any) -> None: ...

    def wait(self, name: str, seconds: float) -> Any:
        """The value, or None when nobody put it in time."""


# -- a folder ------------------------------------------------------------------------------------------------------


def token_of(folder: Path, seconds: float) -> bytes:
    """The checker puts it there, readable by its own user alone."""
    file, end = folder / "token", time.monotonic() + seconds
    while not file.exists():
        if time.monotonic() > end:
            raise ParamedicError(
                f"{folder}: no token came in {seconds:.0f} s; is `paramedic net check --dir` running there?"
            )
        time.sleep(_PAUSE)
    about = file.stat()
    if about.st_mode & 0o077 or about.st_uid not in (0, os.getuid()):
        raise ParamedicError(f"{file}: others may read it, or it is somebody else's: nothing is taken from it")
    return read_token(str(file))


@dataclass
class Folder:
    """One file a value, written whole, with its keyed hash."""

    path: Path
    token: bytes

    def join(self, host: str) -> str:
        for number in range(1, 10_000):
            name = _safe(host) if number == 1 else f"{_safe(host)}#{number}"
            with suppress(FileExistsError):
                os.close(os.open(self.path / f"join-{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
                return name
        raise ParamedicError(f"{self.path}: too many nodes are called {host}")

    def put(self, name: str, value: Any) -> None:
        body = json.dumps(value).encode()
        new = self.path / f".{secrets.token_hex(8)}"
        new.write_bytes(_hash(self.token, name.encode(), body) + body)
        new.replace(self.path / _file(name))

    def wait(self, name: str, seconds: float) -> Any:
        end = time.monotonic() + seconds
        while True:
            found = self.look(name)
            if found is not None or time.monotonic() >= end:
                return found
            time.sleep(_PAUSE)

    def look(self, name: str) -> Any:
        """What is there now. Raises Refused for what somebody without the token wrote."""
        try:
            with open(self.path / _file(name), "rb") as file:
                data = file.read(MAX_MESSAGE + 33)
        except OSError:
            return None
        if len(data) > MAX_MESSAGE + 32 or not hmac.compare_digest(
            data[:32], _hash(self.token, name.encode(), data[32:])
        ):
            raise Refused(f"{name}: written without the token, or damaged")
        return _parsed(data[32:])

    def left(self) -> set[str]:
        return set()  # a folder does not tell

    def hosts(self) -> list[str]:
        return sorted(path.name.removeprefix("join-") for path in self.path.glob("join-*"))


def _safe(host: str) -> str:
    return host if _HOST.fullmatch(host) else "node"


def _file(name: str) -> str:
    return name.replace("/", "-") + ".json"


def _hash(token: bytes, *parts: bytes) -> bytes:
    return hmac.digest(token, b"\0".join((b"net", *parts)), "sha256")


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise Refused("a message that is no JSON") from None


# -- a TCP address -------------------------------------------------------------------------------------------------


@dataclass
class _Line:
    """One connection, both sides proven. Every message has a number, so none can be repeated."""

    stream: BinaryIO
    key: bytes
    us: bytes
    them: bytes
    sent: int = 0
    received: int = 0

    def say(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.stream.write(_HEAD.pack(len(body), _hash(self.key, self.us, str(self.sent).encode(), body)) + body)
        self.stream.flush()
        self.sent += 1

    def hear(self) -> Any:
        size, mac = _HEAD.unpack(exactly(self.stream, _HEAD.size))
        if size > MAX_MESSAGE:
            raise Refused("a message that is too large")
        body = exactly(self.stream, size)
        if not hmac.compare_digest(mac, _hash(self.key, self.them, str(self.received).encode(), body)):
            raise Refused("a message without the token")
        self.received += 1
        return _parsed(body)


def _as_server(stream: BinaryIO, token: bytes) -> _Line:
    nonce = secrets.token_bytes(_NONCE)
    stream.write(_HELLO + nonce)
    stream.flush()
    proof, theirs = exactly(stream, 32), exactly(stream, _NONCE)
    if not hmac.compare_digest(proof, answer(token, nonce + theirs, b"net-node")):
        raise Refused("wrong token")
    stream.write(answer(token, theirs + nonce, b"net-meeting"))
    stream.flush()
    return _Line(stream, answer(token, nonce + theirs, b"net-key"), b"meeting", b"node")


def _as_client(stream: BinaryIO, token: bytes) -> _Line:
    hello = exactly(stream, len(_HELLO) + _NONCE)
    nonce, own = hello[len(_HELLO) :], secrets.token_bytes(_NONCE)
    if not hello.startswith(_HELLO):
        raise Refused("no `paramedic net` listens there")
    stream.write(answer(token, nonce + own, b"net-node") + own)
    stream.flush()
    if not hmac.compare_digest(exactly(stream, 32), answer(token, own + nonce, b"net-meeting")):
        raise Refused("who listens there does not know the token")
    return _Line(stream, answer(token, nonce + own, b"net-key"), b"node", b"meeting")


@dataclass
class Remote:
    """A node's side of the meeting."""

    line: _Line
    peer: socket.socket

    @classmethod
    def at(cls, address: tuple[str, int], token: bytes, seconds: float) -> Remote:
        """Tries until there is somebody, for as long as it may."""
        where, end = f"{address[0]}:{address[1]}", time.monotonic() + seconds
        while True:
            try:
                peer = socket.create_connection(address, min(_HANDSHAKE_SECONDS, max(end - time.monotonic(), 0.1)))
                break
            except OSError as error:
                if time.monotonic() + 0.2 >= end:
                    raise ParamedicError(f"{where}: {error.strerror or error}") from None
                time.sleep(0.1)
        try:
            line = _as_client(cast(BinaryIO, peer.makefile("rwb")), token)
        except (EOFError, Refused, OSError) as error:
            peer.close()
            raise ParamedicError(f"{where}: refused: {error or 'is the token the same?'}") from None
        peer.settimeout(max(seconds, 60.0))
        return cls(line, peer)

    def close(self) -> None:
        with suppress(OSError):
            self.line.stream.close()
        self.peer.close()

    def join(self, host: str) -> str:
        return str(self._ask({"do": "join", "host": host}))

    def put(self, name: str, value: Any) -> None:
        self._ask({"do": "put", "name": name, "value": value})

    def wait(self, name: str, seconds: float) -> Any:
        return self._ask({"do": "wait", "name": name, "seconds": seconds})

    def _ask(self, question: dict[str, Any]) -> Any:
        try:
            self.line.say(question)
            return self.line.hear()
        except (OSError, EOFError, Refused) as error:
            raise ParamedicError(f"the meeting is over: {error}") from None


@dataclass
class Meeting:
    """The TCP address itself: takes nodes in, keeps what they put, hands out what they wait for."""

    token: bytes
    address: tuple[str, int] = ("", 0)
    skipped: list[Skipped] = field(default_factory=list)
    strangers: int = 0
    _values: dict[str, Any] = field(default_factory=dict)
    _hosts: list[str] = field(default_factory=list)
    _left: set[str] = field(default_factory=set)
    _lock: threading.Condition = field(default_factory=threading.Condition)
    _server: socket.socket | None = None

    def listen(self, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._server = socket.create_server((host, port), family=family, backlog=1024)
        except OSError as error:
            raise ParamedicError(f"{host}:{port}: cannot listen: {error.strerror or error}") from None
        self.address = self._server.getsockname()[:2]
        threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()

    def close(self) -> None:
        if self._server:
            self._server.close()

    def _accept(self, server: socket.socket) -> None:
        peers = 0
        while peers < _MAX_PEERS:
            try:
                peer, address = server.accept()
            except OSError:
                return
            peers += 1
            threading.Thread(target=self._take, args=(peer, str(address[0])), daemon=True).start()

    def _take(self, peer: socket.socket, where: str) -> None:
        """A scanner says nothing of use in three seconds, and is gone."""
        name = ""
        with closing(peer), suppress(OSError), peer.makefile("rwb") as both:
            peer.settimeout(_HANDSHAKE_SECONDS)
            try:
                line = _as_server(cast(BinaryIO, both), self.token)
                peer.settimeout(3600.0)
                while True:
                    question = line.hear()
                    name, said = self._answered(name, question)
                    line.say(said)
            except (OSError, EOFError, ValueError, Refused) as error:
                self._gone(name, where, error)

    def _gone(self, name: str, where: str, error: Exception) -> None:
        with self._lock:
            if name:
                self._left.add(name)
            else:
                self.strangers += 1
                if self.strangers <= 5:
                    self.skipped.append(Skipped(f"somebody at {where}", f"refused: {error or 'said nothing'}"))
            self._lock.notify_all()

    def _answered(self, name: str, question: Any) -> tuple[str, Any]:
        match question:
            case {"do": "join", "host": str(host)} if not name:
                name = self.join(host)
                return name, name
            case {"do": "put", "name": str(key), "value": value} if name and key in [f"{kind}/{name}" for kind in _OWN]:
                self.put(key, value)
                return name, True
            case {"do": "wait", "name": str(key), "seconds": int() | float() as seconds} if name:
                return name, self.wait(key, min(float(seconds), 600.0))
        raise Refused("a question that nobody of ours asks")

    def join(self, host: str) -> str:
        with self._lock:
            name, number = _safe(host), 1
            while name in self._hosts:
                number += 1
                name = f"{_safe(host)}#{number}"
            self._hosts.append(name)
            return name

    def put(self, name: str, value: Any) -> None:
        with self._lock:
            self._values[name] = value
            self._lock.notify_all()

    def wait(self, name: str, seconds: float) -> Any:
        node = name.partition("/")[2]
        with self._lock:
            self._lock.wait_for(lambda: name in self._values or node in self._left, seconds)
            return self._values.get(name)

    def hosts(self) -> list[str]:
        with self._lock:
            return sorted(self._hosts)

    def left(self) -> set[str]:
        """Who went away."""
        with self._lock:
            return set(self._left)
