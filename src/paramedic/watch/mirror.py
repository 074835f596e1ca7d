"""A watched job whose nodes share no folder: each node watches into a folder of its own, and the files that changed go
to the node that judges, over TCP. What that node asks for, has decided and no longer wants comes back with each round.

Like all that watches, it is not in the way of the job: without a connection a node goes on alone and tries again.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

from paramedic.collect import gather
from paramedic.errors import ParamedicError
from paramedic.run_folder import whole
from paramedic.watch.folder import Folder

_NAME = re.compile(r"(?:(?:ranks|stacks|traces)/(?:rank|gpus)[-_][\w.-]{1,80}|console-[\w.-]{1,200}\.log)", re.ASCII)
_EVERY, _SELDOM, _AGAIN = 0.5, 4.0, 2.0
_NODES_A_SECOND = 128
"""From so many the leader can take a round; more nodes come less often."""
_LONGEST_REPLY = 1 << 20
_MAX_LOG = 32 << 20  # the end of a node's output; the whole of it stays there
_PATIENCE_AT_END = 5.0
_GONE = (1 << 64) - 1  # instead of a size: a rank that learns its true number renames its files
Address = tuple[str, int]


# -- the node that judges ------------------------------------------------------------------------------------------


@dataclass
class Leader:
    """Takes the other nodes' files into the job's folder."""

    files: Folder
    token: bytes
    say: Callable[[str], None]
    _server: socket.socket | None = None
    _here: set[str] = field(default_factory=set)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def listen(self, host: str, port: int) -> Address:
        self._server = gather.listening(host, port)
        threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()
        return cast(Address, self._server.getsockname()[:2])

    def close(self) -> None:
        """Once the job has ended here: the others end at about the same time, and what they saw last is wanted."""
        with self._changed:
            self._changed.wait_for(lambda: not self._here, _PATIENCE_AT_END)
        if self._server is not None:
            self._server.close()

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                peer, address = server.accept()
            except OSError:
                return
            peer.settimeout(gather.SILENCE)
            threading.Thread(target=self._take, args=(peer, f"{address[0]}:{address[1]}"), daemon=True).start()

    def _take(self, peer: socket.socket, name: str) -> None:
        with closing(peer), peer.makefile("rwb") as both:
            stream = cast(BinaryIO, both)
            try:
                gather.admit(stream, self.token)
                self._joined(name)
                self._follow(stream)
            except gather.Refused as error:
                self.say(f"{name}: refused: {error}")
            except (OSError, EOFError, ValueError, ParamedicError):
                pass  # it comes again, or its ranks are seen to have stopped
            finally:
                self._left(name)

    def _joined(self, name: str) -> None:
        with self._changed:
            self._here.add(name)

    def _left(self, name: str) -> None:
        with self._changed:
            self._here.discard(name)
            self._changed.notify_all()

    def _follow(self, stream: BinaryIO) -> None:
        """Rounds of files, each ended by an empty name, until the node says that it was the last."""
        sent: set[str] = set()
        while True:
            length, size = gather.FRAME.unpack(gather.exactly(stream, gather.FRAME.size))
            if length:
                sent.add(self._store(stream, length, size))
                continue
            gone = sorted(name for name in sent if not os.path.exists(os.path.join(self.files.path, name)))
            sent.difference_update(gone)
            every = min(max(_EVERY, len(self._here) / _NODES_A_SECOND), _SELDOM)
            reply = {"ask": self.files.asked(), "verdict": self.files.marked(), "gone": gone, "every": every}
            data = json.dumps(reply).encode()
            stream.write(gather.FRAME.pack(0, len(data)) + data)
            stream.flush()
            if size:
                return

    def _store(self, stream: BinaryIO, length: int, size: int) -> str:
        if length > gather.MAX_PATH or gather.MAX_FILE < size != _GONE:
            raise gather.Refused("a file or its name is too large")
        name = gather.exactly(stream, length).decode("utf-8", "replace")
        if not _NAME.fullmatch(name):
            raise gather.Refused(f"{name[:80]!r} is no file of a watched rank")
        path = os.path.join(self.files.path, name)
        if size == _GONE:
            with contextlib.suppress(OSError):
                os.unlink(path)
            return name
        data = gather.exactly(stream, size)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with contextlib.suppress(ParamedicError), whole(path) as file:
            file.write(data)
        return name


# -- the others ----------------------------------------------------------------------------------------------------


@dataclass
class Follower:
    """Sends what changes in this node's folder, and brings back what the leader asks."""

    files: Folder
    to: Address
    token: bytes
    say: Callable[[str], None]
    _sent: dict[str, tuple[int, int]] = field(default_factory=dict)
    _asked: int = 0
    _ending: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _told: bool = False

    def start(self) -> None:
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The job has ended: one last round with everything."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE_AT_END)

    def _work(self) -> None:
        while True:
            last = self._ending.is_set()
            try:
                peer = socket.create_connection(self.to, timeout=gather.SILENCE)
                with closing(peer), peer.makefile("rwb") as both:
                    stream = cast(BinaryIO, both)
                    gather.introduce(stream, self.token)
                    self._sent.clear()
                    self._rounds(stream)
                    return
            except (OSError, EOFError, ValueError, gather.Refused) as error:
                self._alone(error)
            if last:
                return
            self._ending.wait(_AGAIN)

    def _alone(self, error: Exception) -> None:
        if not self._told and not self._ending.is_set():
            self._told = True
            why = getattr(error, "strerror", None) or error
            self.say(f"{self.to[0]}:{self.to[1]}, where the job is judged: {why}; this node goes on and tries again")

    def _rounds(self, stream: BinaryIO) -> None:
        while True:
            last = self._ending.is_set()
            there = list(self._names())
            for name in self._changed(there, whole_too=last):
                self._send(stream, name)
            for name in set(self._sent).difference(there):
                del self._sent[name]
                stream.write(gather.FRAME.pack(len(name), _GONE) + name.encode())
            stream.write(gather.FRAME.pack(0, int(last)))
            stream.flush()
            reply = self._reply(stream)
            self._obey(reply)
            self._told = False
            if last:
                return
            every = reply.get("every")
            self._ending.wait(min(max(every, _EVERY), _SELDOM) if isinstance(every, float) else _EVERY)

    def _changed(self, names: Iterable[str], whole_too: bool) -> Iterator[str]:
        """A black box is written through memory, which no time of change tells, and output grows all the time: both
        go when they are asked for."""
        asked = self.files.asked()
        whole_too, self._asked = whole_too or asked > self._asked, asked
        for name in names:
            try:
                found = os.stat(os.path.join(self.files.path, name))
            except OSError:
                continue
            seldom = name.endswith((".box", ".log"))
            mark = (found.st_mtime_ns, found.st_size)
            if whole_too if seldom else mark != self._sent.get(name):
                self._sent[name] = mark
                yield name

    def _names(self) -> Iterator[str]:
        for folder in ("ranks", "stacks", "traces", ""):
            with contextlib.suppress(OSError):
                for file in sorted(os.listdir(os.path.join(self.files.path, folder))):
                    name = f"{folder}/{file}" if folder else file
                    if _NAME.fullmatch(name):
                        yield name

    def _send(self, stream: BinaryIO, name: str) -> None:
        try:
            with open(os.path.join(self.files.path, name), "rb") as file:
                if name.endswith(".log"):
                    file.seek(max(0, os.fstat(file.fileno()).st_size - _MAX_LOG))
                data = file.read(gather.MAX_FILE)
        except OSError:
            return
        stream.write(gather.FRAME.pack(len(name), len(data)) + name.encode() + data)

    def _reply(self, stream: BinaryIO) -> dict[str, Any]:
        _, size = gather.FRAME.unpack(gather.exactly(stream, gather.FRAME.size))
        if size > _LONGEST_REPLY:
            raise gather.Refused("the reply is too long")
        reply = json.loads(gather.exactly(stream, size))
        if not isinstance(reply, dict):
            raise gather.Refused("the reply is none")
        return reply

    def _obey(self, reply: dict[str, Any]) -> None:
        """What the ranks here see is the folder: it gets the same files as a shared one would have."""
        asked, verdict = reply.get("ask"), reply.get("verdict")
        if isinstance(asked, int) and asked > self.files.asked():
            self.files.ask(asked)
        if isinstance(verdict, str) and verdict and verdict != self.files.marked():
            self.files.mark(verdict)
        for name in reply.get("gone") or ():
            if isinstance(name, str) and _NAME.fullmatch(name) and not name.endswith(".signal.txt"):
                self._sent.pop(name, None)
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(self.files.path, name))
