"""The one way from many nodes to one: files over TCP into a folder. Who sends must know the token.

The token itself is never sent: the collector asks with a random number and the sender answers with its keyed hash. What
is sent is not encrypted: it is for a cluster's own network. A folder that all nodes share needs none of this,
and an answer of some kilobytes comes as lines through the output of whatever started us there (srun, mpirun, pdsh).
"""

from __future__ import annotations

import base64
import hmac
import os
import re
import secrets
import socket
import struct
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from paramedic.errors import ParamedicError
from paramedic.model import Skipped

MAX_FILE = 256 << 20
MAX_ALL = 2 << 30
MAX_FILES = 100_000
MAX_PATH = 400
MIN_TOKEN = 16
_MAX_DEPTH = 8
_HELLO = b"paramedic-gather-1\n"
FRAME = struct.Struct("!HQ")
_NONCE = 32
_CHUNK = 1 << 20
SILENCE = 60.0  # seconds in which a peer must say something
_MAX_CLIENTS = 4_096


class Refused(Exception):  # noqa: N818
    """The peer is not who it should be, or does not keep to the rules."""


def read_token(path: str) -> bytes:
    """From a file, for a command line is seen by everybody on the node."""
    try:
        with open(path, "rb") as file:
            token = file.read(4096).strip()
    except OSError as error:
        raise ParamedicError(f"--token-file {path}: cannot be read: {error.strerror or error}") from None
    if len(token) < MIN_TOKEN:
        raise ParamedicError(
            f"--token-file {path}: holds {len(token)} characters, fewer than {MIN_TOKEN}; make one with"
            f" `head -c 24 /dev/urandom | base64 > {path}`"
        )
    return token


def address_of(text: str) -> tuple[str, int]:
    """`HOST:PORT`, also `[::1]:PORT` and `:PORT`."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or not 0 <= int(port) < 1 << 16:
        raise ParamedicError(f"{text}: is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def safe_path(name: str) -> PurePosixPath:
    """Raises Refused for what could lead out of the folder, or is no plain relative path."""
    path = PurePosixPath(name)
    odd = path.is_absolute() or not path.parts or len(path.parts) > _MAX_DEPTH or str(path) != name
    if odd or any(part in ("..", ".") or not part.isprintable() for part in path.parts) or "\\" in name:
        raise Refused(f"the path {name[:80]!r} is refused")
    return path


# -- the collector -------------------------------------------------------------------------------------------------


@dataclass
class Collector:
    """Takes files of `clients` nodes into `folder`. `address` is where it listens, once it does."""

    folder: Path
    token: bytes
    clients: int
    address: tuple[str, int] = ("", 0)
    skipped: list[Skipped] = field(default_factory=list)
    files: int = 0
    _bytes: int = 0
    _done: int = 0
    _lock: threading.Condition = field(default_factory=threading.Condition)

    def listen(self, host: str, port: int) -> socket.socket:
        server = listening(host, port)
        self.address = server.getsockname()[:2]
        return server

    def serve(self, server: socket.socket, seconds: float) -> None:
        """Until all have sent everything, or the time is over; who did not come is said in `skipped`."""
        end = time.monotonic() + seconds
        threads: list[threading.Thread] = []
        with closing(server):
            while (left := end - time.monotonic()) > 0 and not self._complete() and len(threads) < _MAX_CLIENTS:
                server.settimeout(min(left, 0.2))
                try:
                    peer, address = server.accept()
                except TimeoutError:
                    continue
                peer.settimeout(SILENCE)
                threads.append(threading.Thread(target=self._take, args=(peer, address[0]), daemon=True))
                threads[-1].start()
        for thread in threads:
            thread.join(max(end - time.monotonic(), 0.0))
        with self._lock:
            if self._done < self.clients:
                why = f"{self.clients - self._done} of {self.clients} nodes did not send everything in {seconds:.0f} s"
                self.skipped.append(Skipped("gather", why))

    def _complete(self) -> bool:
        with self._lock:
            return self._done >= self.clients

    def _take(self, peer: socket.socket, name: str) -> None:
        with closing(peer), peer.makefile("rwb") as both:
            stream = cast(BinaryIO, both)
            try:
                admit(stream, self.token)
                self._receive(stream)
                stream.write(b"\1")
                stream.flush()
            except (OSError, EOFError, ValueError, Refused) as error:
                with self._lock:
                    self.skipped.append(Skipped(f"node at {name}", f"refused or cut off: {error}"))
                return
        with self._lock:
            self._done += 1

    def _receive(self, stream: BinaryIO) -> None:
        while True:
            length, size = FRAME.unpack(exactly(stream, FRAME.size))
            if length == 0:
                return
            if length > MAX_PATH or size > MAX_FILE:
                raise Refused("a file or its name is too large")
            path = safe_path(exactly(stream, length).decode("utf-8"))
            with self._lock:
                self._bytes, self.files = self._bytes + size, self.files + 1
                if self._bytes > MAX_ALL or self.files > MAX_FILES:
                    raise Refused("all files together are too many or too large")
            self._write(path, stream, size)

    def _write(self, path: PurePosixPath, stream: BinaryIO, size: int) -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.parent.resolve().is_relative_to(self.folder.resolve()):
            raise Refused(f"the path {str(path)[:80]!r} leads out of the folder")
        with target.open("xb") as file:  # a second file of this name is somebody's mistake, or worse
            while size:
                piece = exactly(stream, min(size, _CHUNK))
                file.write(piece)
                size -= len(piece)


def listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise ParamedicError(f"{host}:{port}: cannot listen: {error.strerror or error}") from None


def admit(stream: BinaryIO, token: bytes) -> None:
    """Raises Refused for who does not know the token."""
    nonce = secrets.token_bytes(_NONCE)
    stream.write(_HELLO + nonce)
    stream.flush()
    if not hmac.compare_digest(exactly(stream, 32), answer(token, nonce)):
        raise Refused("wrong token")


def introduce(stream: BinaryIO, token: bytes) -> None:
    """The other side of `admit`."""
    hello = exactly(stream, len(_HELLO) + _NONCE)
    if not hello.startswith(_HELLO):
        raise Refused("no paramedic listens there")
    stream.write(answer(token, hello[len(_HELLO) :]))
    stream.flush()


def answer(token: bytes, nonce: bytes, purpose: bytes = b"gather") -> bytes:
    """What only somebody with the token can say to this nonce, for this purpose."""
    return hmac.digest(token, purpose + nonce, "sha256")


def exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError("cut off before its end")
    return data


# -- the sender ----------------------------------------------------------------------------------------------------


def send(folder: Path, to: tuple[str, int], token: bytes, under: str, say: Callable[[str], None]) -> int:
    """Sends all files below `folder`, named below `under`; how many, or ParamedicError."""
    host, port = to
    try:
        with closing(socket.create_connection(to, timeout=SILENCE)) as peer, peer.makefile("rwb") as both:
            stream = cast(BinaryIO, both)
            introduce(stream, token)
            count = len([file for file in _files(folder) if _send_file(stream, folder, file, under, say)])
            stream.write(FRAME.pack(0, 0))
            stream.flush()
            exactly(stream, 1)
            return count
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise ParamedicError(f"{host}:{port}: the collector refused what was sent; is the token the same?") from None
    except (OSError, Refused) as error:
        raise ParamedicError(f"{host}:{port}: {getattr(error, 'strerror', None) or error}") from None


def _files(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(root, name)
            if path.is_file() and not path.is_symlink():
                yield path


def _send_file(stream: BinaryIO, folder: Path, file: Path, under: str, say: Callable[[str], None]) -> bool:
    """Exactly as many bytes as announced: a log that grows meanwhile is cut there, one that shrinks ends it all."""
    name = (PurePosixPath(under) / file.relative_to(folder).as_posix()).as_posix().encode()
    size = file.stat().st_size
    if size > MAX_FILE or len(name) > MAX_PATH:
        say(f"{file}: too large to be sent")
        return False
    stream.write(FRAME.pack(len(name), size) + name)
    with file.open("rb") as content:
        left = size
        while left:
            stream.write(exactly(content, min(left, _CHUNK)))
            left = max(left - _CHUNK, 0)
    return True


# -- a short answer, in lines --------------------------------------------------------------------------------------

_PIECE = 3000  # with its head below PIPE_BUF, so that lines of several nodes never mix
MAX_ANSWER = 32 << 20
_LINE = re.compile(r"paramedic-answer ([0-9a-f]{16}) (\d{1,5})/(\d{1,5}) ([A-Za-z0-9+/=]+)\s*$")


def as_lines(answer: str) -> Iterator[str]:
    """Whatever stands before a line, as srun -l and pdsh put there, and in whatever order they come, does no harm."""
    text = base64.b64encode(zlib.compress(answer.encode("utf-8", "replace"))).decode("ascii")
    pieces = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
    name = secrets.token_hex(8)
    for number, piece in enumerate(pieces, 1):
        yield f"paramedic-answer {name} {number}/{len(pieces)} {piece}"


def from_lines(lines: Iterable[str]) -> tuple[list[str], int]:
    """The whole answers, and how many came only in part."""
    parts: dict[str, dict[int, str]] = defaultdict(dict)
    counts: dict[str, int] = {}
    for line in lines:
        if hit := _LINE.search(line):
            parts[hit[1]][int(hit[2])] = hit[4]
            counts[hit[1]] = int(hit[3])
    whole = [parts[name] for name, count in counts.items() if len(parts[name]) == count]
    answers = [text for pieces in whole if (text := _unpacked("".join(pieces[at] for at in sorted(pieces))))]
    return answers, len(counts) - len(answers)


def _unpacked(text: str) -> str:
    try:
        unpack = zlib.decompressobj()
        data = unpack.decompress(base64.b64decode(text, validate=True), MAX_ANSWER)
        return data.decode("utf-8", "replace") if unpack.eof else ""
    except (ValueError, zlib.error):
        return ""
