"""How nodes and the checker come together: in a shared folder, at one address, or not at all but through files."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paramedic.collect.gather import address_of, read_token
from paramedic.collect.netfile import MAX_NETWORK, read_network
from paramedic.errors import ParamedicError
from paramedic.model import Fact, Run, Skipped, Source
from paramedic.network.board import Folder, Meeting
from paramedic.network.session import Session

Say = Callable[[str], None]
Ways = Any
"""The command line's: nodes, via, dir, listen, token_file, wait."""


def recorded(paths: Sequence[str]) -> Run:
    """Facts out of files; nothing is dialled."""
    sources: list[Source] = []
    facts: dict[tuple[object, object], Fact] = {}
    skipped: list[Skipped] = []
    for path in paths:
        try:
            with open(path, "rb") as file:
                data = file.read(MAX_NETWORK)
        except OSError as error:
            raise ParamedicError(f"{path}: {error.strerror or error}") from None
        read = read_network(data, Source(path, "network"))
        if not read.facts:
            raise ParamedicError(f"{path}: {read.skipped[0].why if read.skipped else 'holds no facts'}")
        for number, fact in enumerate(read.facts):
            key = (fact.host, fact.name) if fact.name != "pair" else (path, number)
            if key in facts and facts[key].value != fact.value and fact.name == "hostname":
                raise ParamedicError(f"{path}: {fact.host} is in another file, too, with other facts; name one of them")
            facts[key] = fact
        hosts = sorted({fact.host for fact in read.facts if fact.host})
        sources += [Source(f"{path}", "network", host=host, lines=1) for host in hosts]
        skipped += read.skipped
    return Run("net", tuple(sources), (), tuple(facts.values()), tuple(skipped))


@contextmanager
def meeting(args: Ways, say: Say, verify: bool = False) -> Iterator[Session]:
    """Where the nodes come to; gone afterwards, with all that was started for it."""
    _checked(args)
    if args.listen:
        hall = Meeting(read_token(args.token_file))
        hall.listen(*address_of(args.listen))
        say(f"paramedic: waits for {args.nodes} nodes at {hall.address[0]}:{hall.address[1]}")
        try:
            session = Session(hall, args.nodes)
            yield session
            session.skipped += hall.skipped
        finally:
            hall.put("end", True)
            hall.close()
        return
    folder, started = _shared(Path(args.dir)), None
    try:
        started = _started(args, folder, verify, say)
        yield Session(Folder(folder, (folder / "token").read_bytes()), args.nodes)
    finally:
        _ended(started, folder)


def _checked(args: Ways) -> None:
    if not args.nodes or args.nodes < 1:
        raise ParamedicError("--nodes N: how many nodes take part")
    if bool(args.listen) == bool(args.dir):
        raise ParamedicError("nodes meet in --dir DIR (shared), or at --listen HOST:PORT: one of them")
    if args.listen and not args.token_file:
        raise ParamedicError("--listen: needs --token-file, a secret that all nodes have")
    if args.via and not args.dir:
        raise ParamedicError("--via: needs --dir DIR on a disk that all nodes share")


def _shared(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if any(folder.iterdir()):
        raise ParamedicError(f"{folder}: is not empty; what another check left must not be mixed in")
    new = folder / ".token"
    new.touch(0o600)
    new.write_text(secrets.token_hex(24))
    new.replace(folder / "token")
    return folder


def _started(args: Ways, folder: Path, verify: bool, say: Say) -> subprocess.Popen[bytes] | None:
    if not args.via:
        say(f"paramedic: waits for {args.nodes} nodes: paramedic net agent --dir {shlex.quote(str(folder))}")
        return None
    try:
        words = shlex.split(args.via)
    except ValueError as error:
        raise ParamedicError(f"--via {args.via}: {error}") from None
    agent = [sys.executable, "-m", "paramedic", "net", "agent"]
    command = [*words, *agent, "--dir", str(folder.resolve()), "--wait", str(args.wait)]
    command += ["--verify"] if verify else []
    launch = shlex.split(getattr(args, "launch", ""))
    command += ["--", *launch] if launch else []
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True)
    except OSError as error:
        raise ParamedicError(f"--via: {words[0] if words else '?'}: {error.strerror or error}") from None


def _ended(started: subprocess.Popen[bytes] | None, folder: Path) -> None:
    """Agents end by themselves; who does not is ended with the command that started it."""
    if started is not None:
        try:
            started.wait(5.0)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()
    for path in folder.iterdir():
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
