"""Issues of a GitHub repository, by REST (no token needed) or GraphQL (fewer requests), oldest change first.

Since they come in the order of their last change, the newest change that was stored is where the next run goes on,
whether the last one ended or was cut off.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from paramedic.errors import ParamedicError
from paramedic.study.store import Position, Post, Store
from paramedic.study.web import Answer, Interrupted, Web

API = "https://api.github.com"
MAX_TEXT = 100_000
"""Characters of a post that are kept: a whole log, not a core dump."""
Progress = Callable[[int], None]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9._-]{1,100}")
_LINK = re.compile(r'<([^>]+)>;\s*rel="next"')
_ISSUE = re.compile(r"https://github\.com/([^/]+/[^/]+)/(?:issues|pull)/(\d+)")
_FRAMEWORKS = {
    "keras-team/keras": "keras",
    "microsoft/deepspeed": "deepspeed",
    "deepspeedai/deepspeed": "deepspeed",
    "nvidia/megatron-lm": "megatron",
    "hpcaitech/colossalai": "colossalai",
    "lightning-ai/pytorch-lightning": "lightning",
    "huggingface/accelerate": "accelerate",
}


@dataclass(frozen=True, slots=True)
class GitHub:
    web: Web
    api: str = API
    token: str = ""

    def headers(self) -> dict[str, str]:
        told = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
        return told | ({"Authorization": f"Bearer {self.token}"} if self.token else {})

    @property
    def graphql(self) -> str:
        return self.api.rstrip("/").removesuffix("/v3") + "/graphql"


def framework_of(repository: str) -> str:
    return _FRAMEWORKS.get(repository.lower(), repository.rsplit("/", 1)[-1].lower())


def source_of(repository: str) -> str:
    if not _NAME.fullmatch(repository):
        raise ParamedicError(f"{repository}: not a repository's name, OWNER/NAME")
    return f"github:{repository}"


# -- REST ----------------------------------------------------------------------------------------------------------


def by_rest(hub: GitHub, store: Store, repository: str, progress: Progress) -> int:
    """How many issues came. Each page is stored with the place to go on from."""
    source = source_of(repository)
    at, came = store.position(source), 0
    first = _listing(hub, repository, at.position)
    etag, url = "", first
    while url:
        asked = {"If-None-Match": at.etag} if url == first and at.etag else {}
        answer = hub.web.get(url, hub.headers() | asked)
        if answer.status == 304:
            return 0
        if answer.gone:
            raise ParamedicError(f"github:{repository}: there is no such repository, or it cannot be seen")
        etag = answer.headers.get("etag", "") if url == first else etag
        items = _expected(answer.json(), list, answer)
        came += _keep(store, repository, items, at)
        progress(came)
        url = _next(answer)
    at.etag = etag if _listing(hub, repository, at.position) == first else ""
    at.complete = True
    store.put_position(source, at)
    return came


def _listing(hub: GitHub, repository: str, since: str) -> str:
    asked = {"state": "all", "sort": "updated", "direction": "asc", "per_page": "100"}
    return f"{hub.api.rstrip('/')}/repos/{repository}/issues?{urlencode(asked | ({'since': since} if since else {}))}"


def _next(answer: Answer) -> str:
    found = _LINK.search(answer.headers.get("link", ""))
    return found[1] if found else ""


def _keep(store: Store, repository: str, items: list[Any], at: Position) -> int:
    """Pull requests come with the issues and are left out; what has no address or title is named as skipped."""
    source, posts = source_of(repository), []
    with store.together():
        for item in items:
            if not isinstance(item, Mapping) or not item.get("html_url") or not item.get("title"):
                store.skip(source, str(item)[:200], "no issue: it has no address or no title")
            elif "pull_request" not in item:
                posts.append(_post(item, repository))
        changed = [str(item["updated_at"]) for item in items if isinstance(item, Mapping) and item.get("updated_at")]
        store.put_posts(posts)
        at.position = max([at.position, *changed])
        at.etag, at.complete = "", False
        store.put_position(source, at)
    return len(posts)


def _post(item: Mapping[str, Any], repository: str) -> Post:
    tags = tuple(str(tag.get("name", "")) if isinstance(tag, Mapping) else str(tag) for tag in item.get("labels") or ())
    body = str(item.get("body") or "")
    duplicate = item.get("state_reason") == "duplicate" or any(tag.lower() == "duplicate" for tag in tags)
    return Post(
        id=str(item["html_url"]),
        origin=source_of(repository),
        framework=framework_of(repository),
        title=str(item["title"])[:1_000],
        body=body[:MAX_TEXT],
        tags=tags,
        state="duplicate" if duplicate else str(item.get("state") or "open").lower(),
        created=time_of(item.get("created_at")),
        resolved=time_of(item.get("closed_at")),
        updated=time_of(item.get("updated_at")),
        comments=_count(item.get("comments")),
        cut=len(body) > MAX_TEXT,
    )


def _count(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else 0


def time_of(value: Any) -> str | None:
    """ISO 8601 or seconds since 1970; without a zone, in UTC, as DuckDB keeps it."""
    try:
        if isinstance(value, int):
            return datetime.fromtimestamp(value, UTC).replace(tzinfo=None).isoformat()
        found = datetime.fromisoformat(str(value))
        return (found.astimezone(UTC) if found.tzinfo else found).replace(tzinfo=None).isoformat()
    except (ValueError, OverflowError, OSError):
        return None


def _expected(document: Any, kind: type[Any], answer: Answer) -> Any:
    if not isinstance(document, kind):
        raise Interrupted(f"{answer.url}: answered a {type(document).__name__}, not a {kind.__name__}")
    return document


def one_issue(hub: GitHub, link: str) -> Post | None:
    """None where it was deleted or cannot be seen."""
    found = _ISSUE.fullmatch(link.split("#", maxsplit=1)[0].rstrip("/"))
    if not found:
        raise ParamedicError(f"{link}: not the address of an issue")
    answer = hub.web.get(f"{hub.api.rstrip('/')}/repos/{found[1]}/issues/{found[2]}", hub.headers())
    if answer.gone:
        return None
    item = _expected(answer.json(), dict, answer)
    return _post({"title": link, **item, "html_url": link}, found[1])


def releases(hub: GitHub, repository: str) -> Iterator[tuple[str, str]]:
    url = f"{hub.api.rstrip('/')}/repos/{quote(repository)}/releases?per_page=100"
    while url:
        answer = hub.web.get(url, hub.headers())
        if answer.gone:
            return
        for item in _expected(answer.json(), list, answer):
            if isinstance(item, Mapping) and item.get("tag_name") and (at := time_of(item.get("published_at"))):
                yield str(item["tag_name"]), at
        url = _next(answer)


# -- GraphQL -------------------------------------------------------------------------------------------------------

_QUERY = """
query($owner: String!, $name: String!, $after: String, $since: DateTime) {
  rateLimit { remaining resetAt }
  repository(owner: $owner, name: $name) {
    issues(first: 100, after: $after, filterBy: {since: $since}, orderBy: {field: UPDATED_AT, direction: ASC}) {
      pageInfo { hasNextPage endCursor }
      nodes {
        url title body state stateReason createdAt closedAt updatedAt
        comments { totalCount } labels(first: 30) { nodes { name } }
      }
    }
  }
}
"""


def by_graphql(hub: GitHub, store: Store, repository: str, progress: Progress) -> int:
    if not hub.token:
        raise ParamedicError("GitHub's GraphQL answers only with a token: set GITHUB_TOKEN, or use --api rest")
    source = source_of(repository)
    at, came, cursor = store.position(source), 0, None
    owner, name = repository.split("/")
    since = at.position or None
    while True:
        variables = {"owner": owner, "name": name, "after": cursor, "since": since}
        page = _page(hub, {"query": _QUERY, "variables": variables}, repository)
        came += _keep(store, repository, [_as_rest(node) for node in page.get("nodes") or () if node], at)
        progress(came)
        info = page.get("pageInfo") or {}
        cursor = info.get("endCursor")
        if not info.get("hasNextPage") or not cursor:
            break
    at.complete = True
    store.put_position(source, at)
    return came


def _page(hub: GitHub, asked: dict[str, Any], repository: str) -> Mapping[str, Any]:
    for _ in range(3):
        answer = hub.web.post(hub.graphql, asked, hub.headers())
        document = _expected(answer.json(), dict, answer)
        errors = document.get("errors") or ()
        kinds = {str(error.get("type")) for error in errors if isinstance(error, Mapping)}
        if "RATE_LIMITED" in kinds:
            hub.web.wait(_until(answer, hub.web), hub.graphql)
            continue
        found = (document.get("data") or {}).get("repository")
        if found is None and ("NOT_FOUND" in kinds or not errors):
            raise ParamedicError(f"github:{repository}: there is no such repository, or it cannot be seen")
        if errors:
            said = "; ".join(str(error.get("message", error)) for error in errors if isinstance(error, Mapping))
            raise Interrupted(f"github:{repository}: GraphQL answered: {said[:300]}; what came so far is kept")
        issues: dict[str, Any] = _expected((found or {}).get("issues"), dict, answer)
        return issues
    raise Interrupted(f"github:{repository}: the rate limit did not end; what came so far is kept")


def _until(answer: Answer, web: Web) -> float:
    reset = answer.headers.get("x-ratelimit-reset", "")
    return max(float(reset) - web.clock(), 0) + 1 if reset.isdigit() else 60.0


def _as_rest(node: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "html_url": node.get("url"),
        "title": node.get("title"),
        "body": node.get("body"),
        "state": node.get("state"),
        "state_reason": str(node.get("stateReason") or "").lower(),
        "created_at": node.get("createdAt"),
        "closed_at": node.get("closedAt"),
        "updated_at": node.get("updatedAt"),
        "comments": (node.get("comments") or {}).get("totalCount", 0),
        "labels": (node.get("labels") or {}).get("nodes") or (),
    }
