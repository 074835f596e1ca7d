"""Nodes of a watched job that share no folder."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, cast

import pytest

from paramedic.collect import gather
from paramedic.watch.folder import Folder
from paramedic.watch.mirror import Follower, Leader

TOKEN = b"a secret of all nodes"


class Nodes:
    """One that judges and one that is judged, each with a folder of its own."""

    def __init__(self, place: Path) -> None:
        self.here, self.there = place / "here", place / "there"
        for folder in (self.here, self.there):
            (folder / "ranks").mkdir(parents=True)
        self.said: list[str] = []
        self.leader = Leader(Folder(str(self.here)), TOKEN, self.said.append)
        self.address = self.leader.listen("127.0.0.1", 0)
        self.follower = self.following()

    def following(self, token: bytes = TOKEN) -> Follower:
        return Follower(Folder(str(self.there)), self.address, token, self.said.append)

    def start(self) -> None:
        self.follower.start()


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.01)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    yield made
    made.follower.close()
    made.leader.close()


def test_what_ranks_write_arrives_and_arrives_again_when_it_changes(nodes: Nodes) -> None:
    state = nodes.there / "ranks/rank-3.watch.json"
    state.write_text("first")
    nodes.start()
    copy = nodes.here / "ranks/rank-3.watch.json"
    until(lambda: copy.exists() and copy.read_text() == "first")
    state.write_text("the second")
    until(lambda: copy.read_text() == "the second")
    state.rename(nodes.there / "ranks/rank-7.watch.json")
    until(lambda: not copy.exists() and (nodes.here / "ranks/rank-7.watch.json").exists())


def test_black_boxes_and_output_come_when_they_are_asked_for_and_at_the_end(nodes: Nodes) -> None:
    box, log = nodes.there / "ranks/rank-3.box", nodes.there / "console-n2-77.log"
    box.write_text("box")
    log.write_text("output\n")
    (nodes.there / "ranks/rank-3.watch.json").write_text("{}")
    nodes.start()
    until((nodes.here / "ranks/rank-3.watch.json").exists)
    assert not (nodes.here / "ranks/rank-3.box").exists()
    nodes.leader.files.ask(1)
    until(lambda: (nodes.there / "ask").exists() and (nodes.there / "ask").read_text() == "1")
    until((nodes.here / "console-n2-77.log").exists)
    until((nodes.here / "ranks/rank-3.box").exists)
    log.write_text("output\nand the last words\n")
    nodes.follower.close()
    assert (nodes.here / "console-n2-77.log").read_text() == "output\nand the last words\n"


def test_what_the_leader_no_longer_wants_is_forgotten_everywhere(nodes: Nodes) -> None:
    (nodes.there / "stacks").mkdir()
    stack = nodes.there / "stacks/rank-3.txt"
    stack.write_text("where it stood")
    nodes.start()
    until((nodes.here / "stacks/rank-3.txt").exists)
    nodes.leader.files.forget()
    until(lambda: not stack.exists())
    assert not (nodes.here / "stacks/rank-3.txt").exists()


def test_a_verdict_reaches_all_nodes(nodes: Nodes) -> None:
    nodes.start()
    nodes.leader.files.mark("hang")
    until(lambda: nodes.follower.files.marked() == "hang")


def test_who_comes_before_the_leader_says_so_once_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paramedic.watch.mirror._AGAIN", 0.01)
    (tmp_path / "there/ranks").mkdir(parents=True)
    (tmp_path / "there/ranks/rank-1.watch.json").write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
    said: list[str] = []
    follower = Follower(Folder(str(tmp_path / "there")), address, TOKEN, said.append)
    follower.start()
    until(lambda: said)
    leader = Leader(Folder(str(tmp_path / "here")), TOKEN, said.append)
    leader.listen(*address)
    until((tmp_path / "here/ranks/rank-1.watch.json").exists)
    follower.close()
    leader.close()
    assert len(said) == 1
    assert "this node goes on and tries again" in said[0]


def test_who_does_not_know_the_token_leaves_nothing(nodes: Nodes) -> None:
    (nodes.there / "ranks/rank-3.watch.json").write_text("{}")
    nodes.follower = nodes.following(token=b"not the secret of them")
    nodes.start()
    until(lambda: any("wrong token" in text for text in nodes.said))
    assert list((nodes.here / "ranks").iterdir()) == []


@pytest.mark.parametrize(
    "name",
    [
        "ranks/job.watch.json",
        "ranks/rank-1/../../x",
        "../ranks/rank-1.box",
        "/tmp/rank-1.box",
        "report.html",
        "run.json",
    ],
)
def test_only_files_of_ranks_are_taken(name: str, nodes: Nodes) -> None:
    with closing(socket.create_connection(nodes.address, timeout=60)) as peer, peer.makefile("rwb") as both:
        stream = cast(BinaryIO, both)
        gather.introduce(stream, TOKEN)
        stream.write(gather.FRAME.pack(len(name), 1) + name.encode() + b"x")
        stream.flush()
        assert stream.read(1) == b""
    until(lambda: any("is no file of a watched rank" in text for text in nodes.said))
    assert [path for path in nodes.here.rglob("*") if path.is_file()] == []


def test_a_file_that_claims_to_be_huge_is_refused_before_it_is_read(nodes: Nodes) -> None:
    with closing(socket.create_connection(nodes.address, timeout=60)) as peer, peer.makefile("rwb") as both:
        stream = cast(BinaryIO, both)
        gather.introduce(stream, TOKEN)
        stream.write(gather.FRAME.pack(14, gather.MAX_FILE + 1))
        stream.flush()
        assert stream.read(1) == b""
    until(lambda: any("too large" in text for text in nodes.said))
