"""Stack Overflow: questions by tag from the Stack Exchange API, or all of them from the data dump's Posts.xml."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlencode
from xml.parsers import expat

from paramedic.collect.streams import BROKEN, reason, unpacker
from paramedic.errors import ParamedicError
from paramedic.study.github import MAX_TEXT, Progress, time_of
from paramedic.study.store import Position, Post, Store
from paramedic.study.web import Answer, Interrupted, Web

API = "https://api.stackexchange.com/2.3"
_ADDRESS = "https://stackoverflow.com/questions/{}"
_QUESTION = re.compile(r"https://stackoverflow\.com/(?:questions|q)/(\d+)")
_PAGES = 25
"""Further pages of one query need a signed-in user; so the query is moved on by time instead."""
_FRAMEWORKS = ("horovod", "deepspeed", "megatron", "pytorch-lightning", "pytorch", "keras", "tensorflow")
_TAGS = frozenset({"tensorflow", "pytorch", "keras"})
_WORDS = re.compile(
    r"\b(?:distributed?|parallel(?:ed|ism)?|multi-(?:server|gpus?|machine)|multi_gpu|data-?parallel|model-parallel|"
    r"workers|multiple (?:gpus?|machines?|servers?))\b",
    re.I,
)
_BATCH = 1_000


@dataclass(frozen=True, slots=True)
class StackExchange:
    web: Web
    api: str = API
    key: str = ""

    def ask(self, path: str, asked: Mapping[str, str]) -> Mapping[str, Any]:
        query = urlencode({"site": "stackoverflow", **asked} | ({"key": self.key} if self.key else {}))
        answer = self.web.get(f"{self.api.rstrip('/')}/{path}?{query}")
        document = _checked(answer)
        if wait := document.get("backoff"):
            self.web.say(f"Stack Exchange asks for {wait} s of rest")
            self.web.sleep(float(wait))
        if document.get("quota_remaining") == 0 and document.get("has_more"):
            raise Interrupted(
                "Stack Exchange: today's quota is used up; what came so far is kept: run it again tomorrow"
            )
        return document


def _checked(answer: Answer) -> Mapping[str, Any]:
    document = answer.json()
    if not isinstance(document, Mapping):
        raise Interrupted(f"Stack Exchange answered a {type(document).__name__}, not an object")
    if "error_id" in document:
        said = f"{document.get('error_name')}: {document.get('error_message')}"
        raise Interrupted(f"Stack Exchange answered {said[:300]}; what came so far is kept")
    return document


# -- the API -------------------------------------------------------------------------------------------------------


def by_tag(exchange: StackExchange, store: Store, tag: str, progress: Progress) -> int:
    """Oldest activity first; the newest that was stored is where the next run goes on."""
    source = f"stackoverflow:{tag}"
    at, came, page = store.position(source), 0, 1
    begin = at.position
    while True:
        asked = {"tagged": tag, "sort": "activity", "order": "asc", "filter": "withbody", "pagesize": "100"}
        document = exchange.ask("questions", asked | {"page": str(page)} | ({"min": begin} if begin else {}))
        items = [item for item in document.get("items") or () if isinstance(item, Mapping) and item.get("question_id")]
        answered = _answered(exchange, items)
        with store.together():
            store.put_posts([_question(item, answered) for item in items])
            at.position = str(max([int(at.position or 0), *(int(item.get("last_activity_date", 0)) for item in items)]))
            store.put_position(source, at)
        came += len(items)
        progress(came)
        if not document.get("has_more") or not items:
            break
        page += 1
        if page > _PAGES:
            if at.position == begin:
                raise Interrupted(f"{source}: more than {_PAGES * 100} questions changed in one second")
            page, begin = 1, at.position
    at.complete = True
    store.put_position(source, at)
    return came


def _answered(exchange: StackExchange, items: Iterable[Mapping[str, Any]]) -> dict[int, int]:
    """When each accepted answer was written: a question counts as resolved from then on."""
    ids = [str(item["accepted_answer_id"]) for item in items if item.get("accepted_answer_id")]
    if not ids:
        return {}
    found = exchange.ask(f"answers/{';'.join(ids)}", {"pagesize": "100"}).get("items") or ()
    return {int(item["answer_id"]): int(item["creation_date"]) for item in found if isinstance(item, Mapping)}


def _question(item: Mapping[str, Any], answered: Mapping[int, int]) -> Post:
    tags = tuple(map(str, item.get("tags") or ()))
    body = str(item.get("body") or "")
    return Post(
        id=_ADDRESS.format(int(item["question_id"])),
        origin="stackoverflow",
        framework=framework_of(tags),
        title=html.unescape(str(item.get("title") or ""))[:1_000],
        body=body[:MAX_TEXT],
        tags=tags,
        state="duplicate" if str(item.get("closed_reason", "")).lower() == "duplicate" else _state(item),
        created=time_of(item.get("creation_date")),
        resolved=time_of(answered.get(int(item.get("accepted_answer_id") or 0))),
        updated=time_of(item.get("last_activity_date")),
        comments=int(item.get("answer_count") or 0),
        cut=len(body) > MAX_TEXT,
    )


def _state(item: Mapping[str, Any]) -> str:
    return "closed" if item.get("accepted_answer_id") else "open"


def framework_of(tags: Iterable[str]) -> str:
    found = {tag.lower() for tag in tags}
    return next((name for name in _FRAMEWORKS if any(tag.startswith(name) for tag in found)), "other")


def some_questions(exchange: StackExchange, links: list[str]) -> dict[str, Post]:
    """By address; at most 100. Deleted questions are simply not in the answer."""
    ids = {found[1]: link for link in links if (found := _QUESTION.match(link))}
    if not ids:
        return {}
    document = exchange.ask(f"questions/{';'.join(ids)}", {"filter": "withbody", "pagesize": "100"})
    items = [item for item in document.get("items") or () if isinstance(item, Mapping)]
    answered = _answered(exchange, items)
    posts = [_question(item, answered) for item in items]
    return {ids[post.id.rsplit("/", 1)[-1]]: post for post in posts if post.id.rsplit("/", 1)[-1] in ids}


# -- the data dump -------------------------------------------------------------------------------------------------


def from_dump(store: Store, path: Path, progress: Progress) -> int:
    """Questions about distributed training, chosen as study 1 did: by tags, and by words of the title."""
    source = f"dump:{path.name}:{path.stat().st_size}"
    at, came = store.position(source), 0
    done = int(at.position or 0)
    batch: list[Post] = []

    def keep(last: int) -> None:
        nonlocal came
        with store.together():
            store.put_posts(batch)
            store.put_position(source, Position(str(last)))
        came += len(batch)
        batch.clear()
        progress(came)

    last = done
    try:
        for row in _rows(path):
            number = int(row["Id"]) if row.get("Id", "").isdigit() else 0
            if number > done and row.get("PostTypeId") == "1" and _about_training(row):
                batch.append(_dumped(row, number))
            last = max(last, number)
            if len(batch) >= _BATCH:
                keep(last)
    finally:
        keep(last)
    store.put_position(source, Position(str(last), "", True))
    return came


def _about_training(row: Mapping[str, str]) -> bool:
    tags = _tags(row)
    return "horovod" in tags or (bool(_TAGS & set(tags)) and bool(_WORDS.search(row.get("Title", ""))))


def _tags(row: Mapping[str, str]) -> list[str]:
    """`<a><b>` in older dumps, `|a|b|` in newer ones."""
    return [tag for tag in re.split(r"[<>|]+", row.get("Tags", "")) if tag]


def _dumped(row: Mapping[str, str], number: int) -> Post:
    tags, body = _tags(row), row.get("Body", "")
    return Post(
        id=_ADDRESS.format(number),
        origin="stackoverflow",
        framework=framework_of(tags),
        title=row.get("Title", "")[:1_000],
        body=body[:MAX_TEXT],
        tags=tuple(tags),
        state="closed" if row.get("AcceptedAnswerId") else "open",
        created=time_of(row.get("CreationDate")),
        updated=time_of(row.get("LastActivityDate")),
        comments=int(row["AnswerCount"]) if row.get("AnswerCount", "").isdigit() else 0,
        cut=len(body) > MAX_TEXT,
    )


def _rows(path: Path) -> Iterator[dict[str, str]]:
    """The dump's `row` elements, in a stream: it has a hundred gigabytes. No document type, hence no entities."""
    found: list[dict[str, str]] = []
    parser = expat.ParserCreate()

    def start(name: str, attributes: dict[str, str]) -> None:
        if name == "row":
            found.append(attributes)

    def refuse(*_: object) -> None:
        raise ParamedicError(f"{path}: has a document type; the Stack Exchange dump has none")

    parser.StartElementHandler = start
    parser.StartDoctypeDeclHandler = refuse
    try:
        with path.open("rb") as file, closing(_stream(file, path)) as stream:
            while block := stream.read1(1 << 20):
                parser.Parse(block)
                yield from found
                found.clear()
        parser.Parse(b"", True)
    except expat.ExpatError as error:
        yield from found
        raise ParamedicError(f"{path}: not whole, or no XML: {error}; the rows before that are kept") from None
    except BROKEN as error:
        yield from found
        raise ParamedicError(f"{path}: {reason(error)}; the rows before that are kept") from None


def _stream(file: BinaryIO, path: Path) -> Any:
    head = file.read(512)
    file.seek(0)
    if head.startswith(b"7z\xbc\xaf\x27\x1c"):
        raise ParamedicError(f"{path}: unpack it first: 7z x {path.name}")
    unpack = unpacker(head)
    return unpack(file) if unpack else file
