"""Run a case for real and judge whether it went as labelled."""

from __future__ import annotations

import gzip
import io
import json
import re
import shlex
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from paramedic import rank
from paramedic.errors import ParamedicError
from paramedic.rank.box import MAGIC as BOX_MAGIC
from paramedic.rank.box import SIZE as BOX_SIZE
from paramedic.ward import environments
from paramedic.ward.case import PROGRAMS, Case, Expect, Launch
from paramedic.ward.launchers import WITHOUT_LAUNCHER, command, layouts
from paramedic.ward.place import Place, cgroup_root, free_port, isolated, listener

LARGEST_FILE = 4 << 20
_WATCHED = "watched"
_OWN_WORDS = b"paramedic: "
"""What the watcher says of the job while it watches is no part of the job's log."""
RANK = Path(rank.__file__).parent
_START = """import sys
from paramedic.commands import main
from paramedic.watch import watcher
watcher.AGENT = sys.argv.pop(1)
sys.exit(main(sys.argv[1:]))"""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way of running a case: who labels the output, and how many ranks."""

    layout: str
    ranks: int
    watched: bool = False
    """Under `paramedic run`, which leaves what it saw beside the job's own output."""

    @property
    def name(self) -> str:
        return f"{self.layout}-{self.ranks}" + ("-watched" if self.watched else "")


@dataclass(frozen=True, slots=True)
class Outcome:
    case: Case
    variant: Variant
    fixed: bool
    problems: tuple[str, ...]
    """Why it did not go as labelled; none: it did."""
    code: int | None
    seconds: float
    command: str
    versions: dict[str, str]

    @property
    def ok(self) -> bool:
        return not self.problems


def canonical(case: Case, fixed: bool = False) -> Variant:
    launch = case.job(fixed)
    return Variant(layouts(launch.launcher)[0], launch.ranks)


def variants(case: Case) -> list[Variant]:
    """Every way to record it: each layout at its own size, other sizes in the canonical layout.

    A launcher's own options may be what is wrong, so that only its own layouts show it.
    """
    first, launch = canonical(case), case.job(fixed=False)
    offered = [x for x in layouts(launch.launcher) if x not in WITHOUT_LAUNCHER or not launch.options]
    chosen = offered if case.variants.layouts is None else [x for x in offered if x in case.variants.layouts]
    return [
        *dict.fromkeys([first, *(Variant(layout, first.ranks) for layout in chosen)]),
        *(Variant(first.layout, ranks) for ranks in case.variants.ranks),
    ]


def lacking(case: Case) -> str:
    """What this machine lacks for the case; empty when it can run."""
    if case.launch is None:
        return "synthetic: its documented form is kept, nothing is run"
    for need in case.needs:
        if need not in NEEDS or not NEEDS[need]():
            return f"needs {need}"
    surroundings = case.launch.disk or case.launch.shm or case.launch.memory
    if surroundings and not isolated():
        return "needs root on Linux, for namespaces"
    if case.launch.memory and cgroup_root() is None:
        return "needs a memory cgroup that can be written"
    return ""


def _has(program: str) -> bool:
    return shutil.which(program) is not None


NEEDS: dict[str, Callable[[], bool]] = {
    "root": isolated,
    "netns": lambda: isolated() and _has("ip"),
    "firewall": lambda: isolated() and _has("iptables"),
    "cgroup": lambda: isolated() and cgroup_root() is not None,
    "gpu": lambda: _has("nvidia-smi"),
    "slurm": lambda: _has("slurmctld"),
    "mpi": lambda: _has("mpirun"),
    "compiler": lambda: _has("g++") or _has("c++"),
}


def run(case: Case, variant: Variant, fixed: bool, venv: Path, kept: Path) -> Outcome:
    """Run it once; what it printed ends up under `kept`, as a user would find it."""
    launch = replace(case.job(fixed), ranks=variant.ranks)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="paramedic-ward-", ignore_cleanup_errors=True) as folder:
        place = Place(Path(folder), venv, launch.shm, launch.disk)
        furnish(case, launch, place.train)
        port = free_port()
        for first in launch.before:
            log = Path(folder) / "before.log"
            if place.run(shlex.split(first.replace("{port}", str(port))), launch.env, log, launch.limit):
                raise ParamedicError(f"{case.id}: {first!r} failed: {log.read_text(errors='replace')[-500:]}")
        words = command(launch, variant.layout, port, place)
        started = _watching(words, place) if variant.watched else words
        kept.mkdir(parents=True, exist_ok=True)
        console = kept / "console.log"
        with listener(port, launch.hold_port):
            env = {key: value.replace("{port}", str(port)) for key, value in launch.env.items()}
            code = place.run(started, env, console, launch.limit, launch.memory)
        _keep(place.train / "logs", kept)
        if variant.watched:
            pack_watched(place.train / _WATCHED, kept / "watched.tar.gz")
            lines = console.read_bytes().splitlines(keepends=True)
            console.write_bytes(b"".join(line for line in lines if not line.startswith(_OWN_WORDS)))
        if not console.stat().st_size and any(file != console for file in kept.iterdir()):
            console.unlink()
        result = _result(place.train / "result.json")
    expect = case.cured_expect if fixed else case.expect
    shown = shlex.join([*(f"{key}={value}" for key, value in launch.env.items()), *words])
    return Outcome(
        case, variant, fixed, tuple(judge(expect, code, said(kept), result, launch.limit)), code,
        time.monotonic() - began, shown.replace(str(place.bin) + "/", ""),
        environments.named_versions(launch.environment, venv),
    )  # fmt: skip


def _watching(words: list[str], place: Place) -> list[str]:
    """The same command as `paramedic run` starts it: by our own Python, as the job's environment does not have us, with
    agents from a folder inside, so that no traceback names a place of this machine."""
    shutil.copytree(RANK, place.root / "bin/agents/paramedic/rank", ignore=shutil.ignore_patterns("__pycache__"))
    agents = place.scripts / "agents/paramedic/rank/site"
    run = ["run", "--quiet", "--no-live", "--dir", _WATCHED, "--", *words]
    return [sys.executable, "-c", _START, str(agents), *run]


def pack_watched(folder: Path, target: Path) -> None:
    """What the watcher saw, not what it said of it, in one archive that is the same for the same files."""
    with (
        open(target, "wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for seen in sorted(path for path in folder.glob("*/**/*") if path.is_file() and not path.is_symlink()):
            data = _without_room(seen)
            entry = tarfile.TarInfo(str(seen.relative_to(folder)))
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def _without_room(file: Path) -> bytes:
    """A black box reserves the room that it may need."""
    data = file.read_bytes()
    if file.suffix != ".box" or not data.startswith(BOX_MAGIC):
        return data
    slots = data[len(BOX_MAGIC) :]
    rows = [slots[at : at + BOX_SIZE].rstrip(b"\0") for at in range(0, len(slots), BOX_SIZE)]
    return BOX_MAGIC + b"\n".join(row for row in rows if row)


def said(folder: Path) -> str:
    """All that a job printed, file after file."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".gz")
    return "\n".join(file.read_text("utf-8", "replace") for file in files)


def furnish(case: Case, launch: Launch, folder: Path) -> None:
    """Copy program and files into the job's folder, and apply the cure's edits to the copies."""
    target = "launch.sh" if launch.launcher == "script" else "train.py"
    for name, as_name in [(launch.program, target), *((name, name) for name in launch.files)]:
        source = next((f for f in (case.folder / name, PROGRAMS / name) if f.is_file()), None)
        if source is None:
            raise ParamedicError(f"{case.id}: neither the case nor ward/programs has a file {name}")
        (folder / as_name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, folder / as_name)
    for edit in launch.edits:
        file = folder / edit.file
        text = file.read_text("utf-8") if file.is_file() else ""
        if text.count(edit.old) != 1:
            raise ParamedicError(
                f"{case.id}: the cure edits {edit.old!r} in {edit.file}, which is there {text.count(edit.old)} times"
            )
        file.write_text(text.replace(edit.old, edit.new), "utf-8")


def _keep(logs: Path, kept: Path) -> None:
    for file in sorted(logs.rglob("*")):
        if file.is_file() and not file.is_symlink() and 0 < file.stat().st_size <= LARGEST_FILE:
            target = kept / file.relative_to(logs)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)


def _result(file: Path) -> dict[str, object]:
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def judge(expect: Expect, code: int | None, text: str, result: dict[str, object], limit: float) -> list[str]:
    problems = []
    ended = "hang" if code is None else "success" if code == 0 else "failure"
    if ended != expect.exit:
        how = f"ran into the limit of {limit:g} s" if code is None else f"ended with code {code}"
        problems.append(f"expected {expect.exit}, but it {how}")
    problems += [f"did not say {words!r}" for words in expect.says if not re.search(words, text, re.MULTILINE)]
    for name, bound in expect.measures.items():
        if name not in result:
            problems.append(f"result.json has no {name}")
        elif not bound.kept_by(result[name]):
            problems.append(f"{name} is {result[name]}, expected {bound}")
    return problems
