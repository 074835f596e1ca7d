"""One DuckDB file: posts, the labels that people gave, what was predicted, and how far each source was read."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from paramedic.errors import ParamedicError
from paramedic.study.needed import needed

VERSION = 1
_TABLES = """
CREATE TABLE IF NOT EXISTS about (key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS files (
  name TEXT PRIMARY KEY, origin TEXT, sha256 TEXT, content BLOB, fetched TIMESTAMP);
CREATE TABLE IF NOT EXISTS posts (
  id TEXT PRIMARY KEY, origin TEXT, framework TEXT, title TEXT, body TEXT, tags TEXT[], state TEXT,
  created TIMESTAMP, resolved TIMESTAMP, updated TIMESTAMP, comments INTEGER, cut BOOLEAN);
CREATE TABLE IF NOT EXISTS progress (
  source TEXT PRIMARY KEY, position TEXT, etag TEXT, complete BOOLEAN, noted TIMESTAMP);
CREATE TABLE IF NOT EXISTS skipped (source TEXT, what TEXT, why TEXT, PRIMARY KEY (source, what));
CREATE TABLE IF NOT EXISTS releases (repository TEXT, tag TEXT, published TIMESTAMP, PRIMARY KEY (repository, tag));
CREATE TABLE IF NOT EXISTS labels (
  post TEXT, rater TEXT, symptom TEXT, cause TEXT, fix TEXT, distributed BOOLEAN,
  given TIMESTAMP DEFAULT (now()::TIMESTAMP), PRIMARY KEY (post, rater));
CREATE TABLE IF NOT EXISTS predictions (
  post TEXT PRIMARY KEY, symptom TEXT, stage TEXT, probability DOUBLE, evidence TEXT, cause TEXT,
  cause_probability DOUBLE, fix TEXT, fix_probability DOUBLE, distributed DOUBLE, others TEXT, model TEXT);
"""


@dataclass(frozen=True, slots=True)
class Post:
    id: str
    """Its address."""
    origin: str
    """`github:OWNER/NAME` or `stackoverflow`."""
    framework: str
    title: str
    body: str
    tags: tuple[str, ...] = ()
    state: str = "open"
    """open, closed, duplicate, or gone: it was labelled once and is not there any more."""
    created: str | None = None
    resolved: str | None = None
    updated: str | None = None
    comments: int = 0
    cut: bool = False
    """The body was longer than is kept."""


@dataclass(frozen=True, slots=True)
class Given:
    """What a rater said of a post. No symptom: nothing failed, or nothing that the taxonomy names."""

    post: str
    rater: str
    symptom: str
    cause: str = ""
    fix: str = ""
    distributed: bool | None = None


@dataclass(frozen=True, slots=True)
class Predicted:
    post: str
    symptom: str
    stage: str
    probability: float
    evidence: str
    """`log` where a signature recognised a line, else `words`."""
    cause: str = ""
    cause_probability: float = 0.0
    fix: str = ""
    fix_probability: float = 0.0
    distributed: float = 0.0
    others: str = ""
    """The next likely symptoms, as JSON."""
    model: str = ""


@dataclass(slots=True)
class Position:
    position: str = ""
    etag: str = ""
    complete: bool = False


@dataclass(slots=True)
class Store:
    path: Path
    _db: Any = field(repr=False)

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self._db.execute(sql, list(values)).fetchall()
        return rows

    @contextmanager
    def together(self) -> Iterator[None]:
        """All of it or, when the process is stopped, nothing."""
        self._db.execute("BEGIN")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def put_posts(self, posts: Sequence[Post]) -> None:
        """A post that is there already is replaced, and has to be classified anew: its newest text counts."""
        self._put("posts", Post, {post.id: post for post in posts}.values())
        self.query("DELETE FROM predictions WHERE list_contains(?, post)", [post.id for post in posts])

    def put_predictions(self, found: Sequence[Predicted]) -> None:
        self._put("predictions", Predicted, found)

    def put_labels(self, given: Iterable[Given]) -> None:
        self._put("labels", Given, given)

    def put_file(self, name: str, origin: str, sha256: str, content: bytes) -> None:
        self.query("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?)", name, origin, sha256, content, now())

    def files(self) -> dict[str, bytes]:
        return {name: bytes(content) for name, content in self.query("SELECT name, content FROM files ORDER BY name")}

    def put_releases(self, repository: str, releases: Iterable[tuple[str, str]]) -> None:
        for tag, published in releases:
            self.query("INSERT OR REPLACE INTO releases VALUES (?, ?, ?)", repository, tag, published)

    def skip(self, source: str, what: str, why: str) -> None:
        self.query("INSERT OR REPLACE INTO skipped VALUES (?, ?, ?)", source, what, why)

    def position(self, source: str) -> Position:
        rows = self.query("SELECT position, etag, complete FROM progress WHERE source = ?", source)
        return Position(*rows[0]) if rows else Position()

    def put_position(self, source: str, at: Position) -> None:
        values = (source, at.position, at.etag, at.complete, now())
        self.query("INSERT OR REPLACE INTO progress VALUES (?, ?, ?, ?, ?)", *values)

    def posts(self, size: int = 500, unlabelled: str = "") -> Iterator[list[Post]]:
        """In the order of their ids, so many at a time. `unlabelled`: only those this model has not seen."""
        columns = _listed(Post)
        left_out = "AND id NOT IN (SELECT post FROM predictions WHERE model = ?)" if unlabelled else ""
        sql = f"SELECT {columns} FROM posts WHERE id > ? AND state <> 'gone' {left_out} ORDER BY id LIMIT {size}"
        last = ""
        while rows := self.query(sql, last, *([unlabelled] if unlabelled else [])):
            yield [_post(row) for row in rows]
            last = rows[-1][0]

    def post(self, id: str) -> Post:
        rows = self.query(f"SELECT {_listed(Post)} FROM posts WHERE id = ?", id)
        if not rows:
            raise ParamedicError(f"{id}: no such post in {self.path}")
        return _post(rows[0])

    def labels(self, rater: str = "") -> list[Given]:
        sql = f"SELECT {_listed(Given)} FROM labels WHERE rater = ? OR ? = '' ORDER BY post, rater"
        return [Given(*row) for row in self.query(sql, rater, rater)]

    def labelled_texts(self) -> list[tuple[Post, str]]:
        """Posts with the symptom that all who labelled them agree on; none where they found no failure."""
        agreed = "SELECT post, min(symptom) AS said FROM labels GROUP BY post HAVING count(DISTINCT symptom) = 1"
        columns = ", ".join(f"o.{f.name}" for f in fields(Post))
        joined = f"posts o JOIN ({agreed}) l ON l.post = o.id WHERE o.state <> 'gone'"
        sql = f"SELECT {columns}, l.said FROM {joined} ORDER BY o.id"
        return [(_post(row[:-1]), row[-1]) for row in self.query(sql)]

    def predictions(self) -> list[Predicted]:
        return [Predicted(*row) for row in self.query(f"SELECT {_listed(Predicted)} FROM predictions ORDER BY post")]

    def about(self, key: str, value: str | None = None) -> str:
        """A note that is kept, such as which classifier scored best."""
        if value is not None:
            self.query("INSERT OR REPLACE INTO about VALUES (?, ?)", key, value)
        rows = self.query("SELECT value FROM about WHERE key = ?", key)
        return str(rows[0][0]) if rows else ""

    def fill(self, table: str, columns: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """A table for this connection alone."""
        self._db.execute(f"CREATE OR REPLACE TEMP TABLE {table} ({columns})")
        if rows:
            self._db.executemany(
                f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", [list(row) for row in rows]
            )

    def export(self, sql: str, file: Path) -> None:
        """As CSV or Parquet, by the file's name. `sql` is ours, never a user's."""
        how = "(FORMAT parquet)" if file.suffix == ".parquet" else "(HEADER, DELIMITER ',')"
        target = str(file).replace("'", "''")
        self._db.execute(f"COPY ({sql}) TO '{target}' {how}")

    def _put(self, table: str, kind: type[Any], rows: Iterable[Any]) -> None:
        """Through a file of JSON lines: row by row, DuckDB is a hundred times slower."""
        lines = [json.dumps(asdict(row), ensure_ascii=True) for row in rows]
        if not lines:
            return
        handle, name = tempfile.mkstemp(suffix=".jsonl", prefix="paramedic-")
        try:
            with os.fdopen(handle, "w", encoding="ascii") as file:
                file.write("\n".join(lines))
            columns = {f.name: _TYPES.get(f.name, _TYPES.get(str(f.type), "TEXT")) for f in fields(kind)}
            listed = ", ".join(columns)
            self._db.execute(
                f"INSERT OR REPLACE INTO {table} ({listed}) SELECT {listed} FROM read_json(?, "
                f"format = 'newline_delimited', columns = {columns!r}, maximum_object_size = {64 << 20})",
                [name],
            )
        finally:
            os.unlink(name)


_TYPES = {
    "tags": "TEXT[]", "created": "TIMESTAMP", "resolved": "TIMESTAMP", "updated": "TIMESTAMP",
    "int": "INTEGER", "bool": "BOOLEAN", "bool | None": "BOOLEAN", "float": "DOUBLE",
}  # fmt: skip


def _listed(kind: type[Any]) -> str:
    return ", ".join(f.name for f in fields(kind))


def _post(row: tuple[Any, ...]) -> Post:
    names = [f.name for f in fields(Post)]
    values = dict(zip(names, row, strict=True))
    for name in ("created", "resolved", "updated"):
        values[name] = values[name].isoformat() if values[name] else None
    return Post(**values | {"tags": tuple(values["tags"] or ())})


def now() -> str:
    return datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="seconds")


@contextmanager
def opened(path: Path, create: bool = False) -> Iterator[Store]:
    if not create and not path.exists():
        raise ParamedicError(f"{path}: no such file; `paramedic study fetch` makes it")
    duckdb = needed("duckdb")
    try:
        db = duckdb.connect(str(path), config={"autoinstall_known_extensions": "false", "memory_limit": "1GB"})
    except duckdb.Error as error:
        raise ParamedicError(f"{path}: {_first_line(error)}") from None
    try:
        db.execute("SET TimeZone = 'UTC'")
        db.execute(_TABLES)
        _check_version(db, path)
        yield Store(path, db)
    except duckdb.Error as error:
        raise ParamedicError(f"{path}: {_first_line(error)}") from None
    finally:
        db.close()


def _check_version(db: Any, path: Path) -> None:
    found = db.execute("SELECT value FROM about WHERE key = 'version'").fetchone()
    if found is None:
        db.execute("INSERT INTO about VALUES ('version', ?)", [str(VERSION)])
    elif found[0] != str(VERSION):
        raise ParamedicError(f"{path}: made by another version of Paramedic (format {found[0]}, here {VERSION})")


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]


def summary(store: Store) -> Mapping[str, int]:
    return {
        table: int(store.query(f"SELECT count(*) FROM {table}")[0][0])
        for table in ("posts", "labels", "predictions", "skipped", "files")
    }
