"""What is known about jobs: one SQLite file, to which events are appended; the state of a job is what its events say.

Several processes read and write it at a time. Whoever cannot write for a while waits; nothing is lost by it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from paramedic.errors import ParamedicError
from paramedic.submit.spec import Spec

PHASES = (
    "plan", "preflight", "queued", "rendezvous", "running", "diagnosing", "retrying", "done", "failed", "cancelled",
)  # fmt: skip
ENDED = ("done", "failed", "cancelled")
_NETWORKED = ("nfs", "lustre", "gpfs", "ceph", "fuse", "cifs", "smb", "beegfs", "9p", "afs")
_TABLES = """
CREATE TABLE IF NOT EXISTS jobs (
    id TEXT PRIMARY KEY, key TEXT UNIQUE, created REAL NOT NULL, spec TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL REFERENCES jobs(id), at REAL NOT NULL,
    attempt INTEGER NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL, fields TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS events_of_a_job ON events (job, seq);
"""


@dataclass(frozen=True, slots=True)
class JobEvent:
    """`kind` is phase, decision, attempt, end, checkpoint, concern, controller or cancel."""

    seq: int
    at: float
    attempt: int
    kind: str
    text: str
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    id: str
    key: str | None
    created: float
    spec: Spec


def default_root() -> str:
    """Where jobs live: shared by the nodes, for engines with several."""
    own = os.environ.get("PARAMEDIC_JOBS")
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.abspath(own or os.path.join(state, "paramedic"))


class Store:
    """`patience` is how long a writer waits for another one, in seconds."""

    def __init__(self, root: str | None = None, patience: float = 10.0) -> None:
        self.root = os.path.abspath(root or default_root())
        self.patience = patience
        self._path = os.path.join(self.root, "jobs.sqlite")
        try:
            os.makedirs(self.root, mode=0o700, exist_ok=True)
        except OSError as error:
            raise ParamedicError(f"{self.root}: cannot be used: {error.strerror or error}") from None
        with self._open() as connection:
            if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
                connection.executescript(_TABLES + "PRAGMA user_version = 1;")

    def folder(self, job: str) -> str:
        return os.path.join(self.root, "jobs", job)

    def attempt_folder(self, job: str, number: int) -> str:
        return os.path.join(self.folder(job), f"attempt-{number}")

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A connection of its own each time: nothing to inherit across forks, nothing held while nobody asks."""
        try:
            connection = sqlite3.connect(self._path, timeout=self.patience, isolation_level=None)
        except sqlite3.Error as error:
            raise ParamedicError(f"{self._path}: {error}") from None
        try:
            # Write-ahead logging needs memory that all who use the file share: not so between machines.
            mode = "TRUNCATE" if _is_networked(self.root) else "WAL"
            if connection.execute("PRAGMA journal_mode").fetchone()[0].upper() != mode:
                connection.execute(f"PRAGMA journal_mode = {mode}")
            connection.execute("PRAGMA synchronous = FULL")
            yield connection
        except sqlite3.Error as error:
            raise StoreError(f"{self._path}: {_words(error)}") from None
        finally:
            connection.close()

    def add(self, id: str, spec: Spec, key: str | None = None) -> Entry:
        """The same key gives the same job; what it was asked for must be the same, too."""
        with self._open() as connection:
            connection.execute("BEGIN IMMEDIATE")
            row = connection.execute("SELECT id, key, created, spec FROM jobs WHERE key = ?", (key,)).fetchone()
            if row is not None:
                connection.execute("ROLLBACK")
                found = _entry(row)
                if found.spec.to_json() != spec.to_json():
                    raise ParamedicError(f"--key {key}: job {found.id} has it, and was asked for something else")
                return found
            now = time.time()
            connection.execute("INSERT INTO jobs VALUES (?, ?, ?, ?)", (id, key, now, spec.to_json()))
            connection.execute(
                "INSERT INTO events (job, at, attempt, kind, text, fields) VALUES (?, ?, 0, 'phase', 'plan', '{}')",
                (id, now),
            )
            connection.execute("COMMIT")
        return Entry(id, key, now, spec)

    def entry(self, id: str) -> Entry:
        """By its id, or by the beginning of it."""
        with self._open() as connection:
            rows = connection.execute(
                "SELECT id, key, created, spec FROM jobs WHERE id = ?1 OR substr(id, 1, length(?1)) = ?1", (id,)
            ).fetchall()
        exact = [row for row in rows if row[0] == id]
        if len(exact or rows) != 1 or not id:
            why = f"{len(rows)} jobs begin so" if rows else "no such job (`paramedic jobs` lists them)"
            raise ParamedicError(f"{id}: {why}")
        return _entry((exact or rows)[0])

    def entries(self) -> list[Entry]:
        with self._open() as connection:
            rows = connection.execute("SELECT id, key, created, spec FROM jobs ORDER BY created, id").fetchall()
        return [_entry(row) for row in rows]

    def append(self, job: str, kind: str, text: str, attempt: int = 0, **fields: Any) -> None:
        with self._open() as connection:
            connection.execute(
                "INSERT INTO events (job, at, attempt, kind, text, fields) VALUES (?, ?, ?, ?, ?, ?)",
                (job, time.time(), attempt, kind, text, json.dumps(fields)),
            )

    def events(self, job: str, after: int = 0) -> list[JobEvent]:
        with self._open() as connection:
            rows = connection.execute(
                "SELECT seq, at, attempt, kind, text, fields FROM events WHERE job = ? AND seq > ? ORDER BY seq",
                (job, after),
            ).fetchall()
        return [JobEvent(seq, at, attempt, kind, text, json.loads(raw)) for seq, at, attempt, kind, text, raw in rows]


class StoreError(ParamedicError):
    """The store cannot be read or written just now: it is locked, or the disk is full."""


def phase_of(events: Sequence[JobEvent]) -> str:
    return next((event.text for event in reversed(events) if event.kind == "phase"), "plan")


def _entry(row: Sequence[Any]) -> Entry:
    return Entry(row[0], row[1], row[2], Spec.from_json(row[3]))


def _words(error: sqlite3.Error) -> str:
    text = str(error)
    return "another process keeps it locked" if "locked" in text or "busy" in text else text


def _is_networked(folder: str) -> bool:
    """By the file system that the folder is on."""
    best, kind = "", ""
    with contextlib.suppress(OSError), open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
        for line in file:
            parts = line.split()
            if len(parts) > 2 and len(parts[1]) >= len(best) and f"{folder}/".startswith(parts[1].rstrip("/") + "/"):
                best, kind = parts[1], parts[2]
    return kind.startswith(_NETWORKED)
