"""Which source is meant, and what came of it. Everything lands in one DuckDB file, and can go on later."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from paramedic.errors import ParamedicError
from paramedic.knowledge.taxonomy import load_taxonomy
from paramedic.study import github, stackexchange
from paramedic.study.crosswalk import patterns_of, symptom_of
from paramedic.study.github import MAX_TEXT, GitHub, framework_of, time_of
from paramedic.study.labels import REPOSITORY, Study1, from_files, label_files, unpacked, wanted
from paramedic.study.stackexchange import StackExchange
from paramedic.study.store import Given, Position, Post, Store

STUDY1 = "study1"
RATER = "study 1"
"""Whose labels those of the replication package are."""
_LINES = 500
MAX_COUNT = (1 << 31) - 1
Progress = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class Services:
    hub: GitHub
    exchange: StackExchange
    graphql: bool = False


@dataclass(frozen=True, slots=True)
class Fetched:
    source: str
    came: int
    what: str = "posts"
    gone: int = 0


def fetch(store: Store, source: str, services: Services, progress: Progress) -> Fetched:
    """One source. `Interrupted` says that the rest can be had later."""

    def told(came: int) -> None:
        progress(source, came)

    kind, _, name = source.partition(":")
    if kind == "github" and name:
        get = github.by_graphql if services.graphql else github.by_rest
        came = get(services.hub, store, name, told)
        store.put_releases(name, github.releases(services.hub, name))
        return Fetched(source, came)
    if kind == "stackoverflow" and name:
        return Fetched(source, stackexchange.by_tag(services.exchange, store, name, told))
    if source == STUDY1:
        return _package(store, services.hub)
    if source == "linked":
        return _linked(store, services, told)
    if source == "sample":
        return Fetched(source, _lines(store, _sample().splitlines(), "sample"))
    return _file(store, Path(source), told)


def _file(store: Store, path: Path, told: Callable[[int], None]) -> Fetched:
    if not path.exists():
        raise ParamedicError(
            f"{path}: no such file, nor a source: study1, linked, sample, github:OWNER/NAME, stackoverflow:TAG"
        )
    if ".xml" in path.suffixes:
        return Fetched(str(path), stackexchange.from_dump(store, path, told))
    if path.suffix == ".jsonl":
        return Fetched(str(path), _lines(store, _read_lines(path), str(path)))
    return _keep(store, dict(label_files(path)), str(path))


# -- study 1 -------------------------------------------------------------------------------------------------------


def _package(store: Store, hub: GitHub) -> Fetched:
    """The repository's archive, as GitHub packs it; only the workbooks are kept."""
    at = store.position(STUDY1)
    answer = hub.web.get(
        f"{hub.api.rstrip('/')}/repos/{REPOSITORY}/zipball",
        hub.headers() | ({"If-None-Match": at.etag} if at.etag else {}),
    )
    if answer.status == 304:
        return Fetched(STUDY1, 0, "files: unchanged")
    if answer.gone:
        raise ParamedicError(f"github:{REPOSITORY}: the replication package is not there any more")
    found = _keep(store, dict(unpacked(answer.body, answer.url)), f"github:{REPOSITORY}")
    store.put_position(STUDY1, Position("", answer.headers.get("etag", ""), True))
    return Fetched(STUDY1, found.came, found.what)


def _keep(store: Store, files: Mapping[str, bytes], where: str) -> Fetched:
    """Only what can be read is kept: a changed layout must not replace labels that were good."""
    study = from_files(files, where)
    with store.together():
        for name, data in files.items():
            store.put_file(name.rsplit("/", 1)[-1], where, hashlib.sha256(data).hexdigest(), data)
        store.put_labels(_given(study))
    return Fetched(where, len(files), f"files: {len(study.faults)} faults, {len(study.questions)} how-to questions")


def stored_study(store: Store) -> Study1 | None:
    files = store.files()
    return from_files(files, str(store.path)) if any(map(wanted, files)) else None


def _given(study: Study1) -> Iterator[Given]:
    """A post with several faults is labelled with its first; a how-to question has no symptom."""
    seen: set[str] = set()
    for fault in study.faults:
        if fault.link not in seen:
            seen.add(fault.link)
            fix = next(iter(sorted(patterns_of(fault))), "")
            yield Given(fault.link, RATER, symptom_of(fault), "", fix, fault.distributed)
    for question in study.questions:
        if question.link and question.link not in seen:
            seen.add(question.link)
            yield Given(question.link, RATER, "")


def _linked(store: Store, services: Services, told: Callable[[int], None]) -> Fetched:
    """The text behind every label of study 1: it was never published, and is fetched from where it was written."""
    sql = "SELECT post FROM labels WHERE rater = ? AND post NOT IN (SELECT id FROM posts) ORDER BY post"
    links = [row[0] for row in store.query(sql, RATER)]
    if not links and not store.labels(RATER):
        raise ParamedicError("linked: there are no labels yet; fetch study1 first")
    came = gone = 0
    for link in [link for link in links if link.startswith("https://github.com/")]:
        post = github.one_issue(services.hub, link)
        _store_linked(store, {link: post} if post else {}, [link])
        came, gone = came + (post is not None), gone + (post is None)
        told(came)
    asked = [link for link in links if link.startswith("https://stackoverflow.com/")]
    for start in range(0, len(asked), 100):
        some = asked[start : start + 100]
        found = stackexchange.some_questions(services.exchange, some)
        _store_linked(store, found, some)
        came, gone = came + len(found), gone + len(some) - len(found)
        told(came)
    return Fetched("linked", came, "posts", gone)


def _store_linked(store: Store, found: Mapping[str, Post], asked: list[str]) -> None:
    """A post that is gone is kept as such: it is not asked for again, and is said in the report."""
    lost = [Post(link, "", "", "", "", state="gone") for link in asked if link not in found]
    with store.together():
        store.put_posts([*(replace(post, id=link) for link, post in found.items()), *lost])
        for post in lost:
            store.skip("linked", post.id, "deleted, or it cannot be seen")


# -- posts as JSON lines -------------------------------------------------------------------------------------------


def _sample() -> str:
    return resources.files(__package__).joinpath("sample.jsonl").read_text("utf-8")


def _read_lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from file
    except OSError as error:
        raise ParamedicError(f"{path}: {error.strerror or error}") from None


def _lines(store: Store, lines: Any, where: str) -> int:
    """One post a line: id and title, and what else there is. A label may stand in it: symptom, fix, cause, rater."""
    came, batch = 0, []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            batch.append(_parsed(json.loads(line)))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            store.skip(where, f"line {number}", f"no post: {type(error).__name__}: {error}"[:200])
        if len(batch) >= _LINES:
            came += _put(store, batch)
    came += _put(store, batch)
    if not came:
        raise ParamedicError(f"{where}: holds no post; one JSON object a line with id, title, body")
    return came


def _put(store: Store, batch: list[tuple[Post, Given | None]]) -> int:
    with store.together():
        store.put_posts([post for post, _ in batch])
        store.put_labels(given for _, given in batch if given)
    came = len(batch)
    batch.clear()
    return came


def _parsed(item: Mapping[str, Any]) -> tuple[Post, Given | None]:
    known = {f.name for f in fields(Post)}
    body = str(item.get("body") or "")
    origin = str(item.get("origin") or "file")
    values = {name: item[name] for name in known & set(item)} | {
        "id": str(item["id"]),
        "origin": origin,
        "framework": str(item.get("framework") or _framework(origin)),
        "title": str(item["title"])[:1_000],
        "body": body[:MAX_TEXT],
        "tags": tuple(map(str, item.get("tags") or ())),
        "state": str(item.get("state") or "open"),
        "comments": min(max(int(item.get("comments") or 0), 0), MAX_COUNT),
        "cut": len(body) > MAX_TEXT,
    }
    for name in ("created", "resolved", "updated"):
        values[name] = time_of(item[name]) if item.get(name) else None
    post = Post(**values)
    if "symptom" not in item:
        return post, None
    return post, _label(post.id, item)


def _label(id: str, item: Mapping[str, Any]) -> Given:
    taxonomy, distributed = load_taxonomy(), item.get("distributed")
    said = {what: str(item.get(what) or "") for what in ("symptom", "cause", "fix")}
    known = {"symptom": taxonomy.symptoms, "cause": taxonomy.causes, "fix": taxonomy.fix_patterns}
    for what, value in said.items():
        if value and value not in known[what]:
            raise ValueError(f"{value} is no {what} of the taxonomy")
    return Given(
        id, str(item.get("rater") or "file"), **said, distributed=None if distributed is None else bool(distributed)
    )


def _framework(origin: str) -> str:
    return framework_of(origin.removeprefix("github:")) if origin.startswith("github:") else "other"
