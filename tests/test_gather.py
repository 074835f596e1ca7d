"""Files from many nodes into one folder: all arrive, strangers do not, and nothing leads out of the folder."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paramedic.collect import gather
from paramedic.collect.gather import Collector, Refused, address_of, read_token, safe_path, send
from paramedic.errors import ParamedicError

TOKEN = b"a secret of the cluster"
Listening = Callable[..., Collector]


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Listening]:
    """A collector at work; it ends when its nodes have sent, at the latest with the test."""
    threads: list[threading.Thread] = []

    def start(clients: int = 1, seconds: float = 30) -> Collector:
        collector = Collector(tmp_path / "all", TOKEN, clients)
        collector.folder.mkdir()
        server = collector.listen("127.0.0.1", 0)
        threads.append(threading.Thread(target=collector.serve, args=(server, seconds)))
        threads[-1].start()
        return collector

    yield start
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def node(tmp_path: Path, name: str, **files: bytes) -> Path:
    for file, content in files.items():
        path = tmp_path / name / file.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / name


def sent(collector: Collector, folder: Path, token: bytes = TOKEN) -> int:
    return send(folder, collector.address, token, folder.name, print)


def raw(collector: Collector, *frames: bytes) -> bytes:
    """A client that keeps to no rules but knows the token."""
    with socket.create_connection(collector.address, timeout=20) as peer:
        stream = peer.makefile("rwb")
        hello = stream.read(len(gather._HELLO) + 32)
        stream.write(gather.answer(TOKEN, hello[-32:]) + b"".join(frames))
        stream.flush()
        peer.shutdown(socket.SHUT_WR)
        return stream.read()


def frame(path: bytes, content: bytes, size: int | None = None) -> bytes:
    return struct.pack("!HQ", len(path), len(content) if size is None else size) + path + content


def test_all_files_of_all_nodes_arrive_whole(tmp_path: Path, listening: Listening) -> None:
    collector = listening(3)
    folders = [node(tmp_path, f"n{i}", x=bytes([i]) * 3_000_001, ranks__y=b"") for i in range(3)]
    senders = [threading.Thread(target=sent, args=(collector, folder)) for folder in folders]
    for one in senders:
        one.start()
    for one in senders:
        one.join()
    for i, folder in enumerate(folders):
        assert (collector.folder / folder.name / "x").read_bytes() == bytes([i]) * 3_000_001
        assert (collector.folder / folder.name / "ranks" / "y").read_bytes() == b""
    assert (collector.files, collector.skipped) == (6, [])


def test_who_does_not_know_the_token_is_refused(tmp_path: Path, listening: Listening) -> None:
    collector, folder = listening(1), node(tmp_path, "n", x=b"1")
    with pytest.raises(ParamedicError, match="is the token the same"):
        sent(collector, folder, b"not the secret")
    assert not list(collector.folder.iterdir())
    assert sent(collector, folder) == 1  # the place is not taken by the stranger
    assert "wrong token" in collector.skipped[0].why


@pytest.mark.parametrize(
    "name", ["../x", "/etc/x", "a/../../x", "a//b", "./a", "a\\b", "", "a/" * 9 + "b", "a\nb", "..", "a/."]
)
def test_a_path_that_leads_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(Refused):
        safe_path(name)


def test_plain_paths_are_taken() -> None:
    assert str(safe_path("node-1/ranks/rank-3.process.json")) == "node-1/ranks/rank-3.process.json"


@pytest.mark.parametrize(
    "frames",
    [
        [frame(b"../x", b"1")],
        [frame(b"x", b"", size=1 << 40)],
        [frame(b"p" * 401, b"1")],
        [frame(b"x", b"short", size=100)],
        [frame(b"\xff\xfe", b"1")],
        [frame(b"same", b"1"), frame(b"same", b"2")],
        [b"\0"],
        [],
    ],
    ids=["out", "huge", "long name", "cut off", "no text", "twice", "half a header", "nothing"],
)
def test_a_node_that_keeps_to_no_rules_harms_nobody(frames: list[bytes], tmp_path: Path, listening: Listening) -> None:
    collector = listening(1)
    assert raw(collector, *frames) == b""
    assert sent(collector, node(tmp_path, "good", x=b"1")) == 1
    assert not (tmp_path / "x").exists()
    assert len(collector.skipped) == 1
    assert (collector.folder / "good" / "x").read_bytes() == b"1"


def test_a_link_in_the_folder_is_not_followed_out(tmp_path: Path, listening: Listening) -> None:
    collector = listening(1)
    (tmp_path / "outside").mkdir()
    (collector.folder / "n").symlink_to(tmp_path / "outside")
    raw(collector, frame(b"n/x", b"1"))
    assert not (tmp_path / "outside" / "x").exists()
    assert sent(collector, node(tmp_path, "good", x=b"1")) == 1


def test_links_are_not_sent(tmp_path: Path, listening: Listening) -> None:
    collector, folder = listening(1), node(tmp_path, "n", x=b"1")
    (folder / "link").symlink_to("/etc/hostname")
    assert sent(collector, folder) == 1


def test_nodes_that_do_not_come_are_said(tmp_path: Path) -> None:
    collector = Collector(tmp_path, TOKEN, 2)
    collector.serve(collector.listen("127.0.0.1", 0), 0.1)
    assert [one.why for one in collector.skipped] == ["2 of 2 nodes did not send everything in 0 s"]


def test_nobody_listens(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
    with pytest.raises(ParamedicError, match="refused"):
        send(node(tmp_path, "n", x=b""), address, TOKEN, "n", print)


def test_somebody_else_listens(tmp_path: Path) -> None:
    def greet(server: socket.socket) -> None:
        peer, _ = server.accept()
        with peer:
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n" + b"x" * 200)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=greet, args=(server,))
        thread.start()
        with pytest.raises(ParamedicError, match="no paramedic listens"):
            send(node(tmp_path, "n", x=b""), server.getsockname(), TOKEN, "n", print)
        thread.join()


def test_addresses() -> None:
    assert address_of("head:4040") == ("head", 4040)
    assert address_of("[::1]:1") == ("::1", 1)
    assert address_of(":0") == ("", 0)
    for wrong in ("head", "head:", "head:x", "head:70000"):
        with pytest.raises(ParamedicError, match="HOST:PORT"):
            address_of(wrong)


def test_a_token_is_read_from_a_file_and_must_be_long(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("0123456789abcdef\n")
    assert read_token(str(tmp_path / "t")) == b"0123456789abcdef"
    (tmp_path / "t").write_text("short")
    with pytest.raises(ParamedicError, match="fewer than 16"):
        read_token(str(tmp_path / "t"))
    with pytest.raises(ParamedicError, match="cannot be read"):
        read_token(str(tmp_path / "none"))
