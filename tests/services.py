"""A server on this machine that behaves like GitHub's REST and GraphQL and like Stack Exchange: pages, limits, faults."""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

PAGE = 3


class Services(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.issues: list[dict[str, Any]] = []
        self.questions: list[dict[str, Any]] = []
        self.releases: list[dict[str, Any]] = []
        self.archive = b""
        self.gone: set[int] = set()
        self.faults: list[str] = []
        """What goes wrong with the next requests, in this order."""
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.redirect_to = ""
        self.reset = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def paths(self) -> Counter[str]:
        return Counter(urlsplit(path).path for path, _ in self.asked)


@contextmanager
def running() -> Iterator[Services]:
    server = Services()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Services
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None: ...

    def do_GET(self) -> None:
        self.server.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        if self.server.faults and self._broken(self.server.faults.pop(0)):
            return
        parts = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        if parts.path.endswith("/zipball"):
            self._zipball()
        elif found := re.fullmatch(r"/repos/[^/]+/[^/]+/issues/(\d+)", parts.path):
            self._one(int(found[1]))
        elif parts.path.endswith("/issues"):
            self._issues(query)
        elif parts.path.endswith("/releases"):
            self._send(self.server.releases)
        elif parts.path.startswith("/packed"):
            self._bytes(200, self.server.archive, {"Content-Type": "application/zip", "ETag": '"packed-1"'})
        elif parts.path.startswith("/questions"):
            self._questions(parts.path, query)
        elif parts.path.startswith("/answers/"):
            ids = parts.path.rsplit("/", 1)[-1].split(";")
            self._send({"items": [{"answer_id": int(id), "creation_date": 1_600_086_400} for id in ids]})
        else:
            self._send({"message": "Not Found"}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        if self.server.faults and self._broken(self.server.faults.pop(0)):
            return
        asked = body["variables"]
        found = [one for one in self._sorted() if one["updated_at"] >= (asked["since"] or "")]
        start = int(asked["after"] or 0)
        nodes = [_node(one) for one in found[start : start + PAGE]]
        more = start + PAGE < len(found)
        page = {"pageInfo": {"hasNextPage": more, "endCursor": str(start + PAGE)}, "nodes": nodes}
        self._send({"data": {"repository": {"issues": page}}})

    # -- what goes wrong -----------------------------------------------------------------------------------------

    def _broken(self, fault: str) -> bool:
        if fault == "fine":
            return False
        if fault == "cut":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b'[{"html_url": "https')
            self.wfile.flush()
            self.close_connection = True
        elif fault == "limit":
            head = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(self.server.reset)}
            self._send({"message": "API rate limit exceeded"}, 403, head)
        elif fault == "secondary":
            self._send({"message": "You have exceeded a secondary rate limit"}, 403, {"Retry-After": "7"})
        elif fault == "graphql limit":
            head = {"X-RateLimit-Reset": str(self.server.reset)}
            self._send({"errors": [{"type": "RATE_LIMITED", "message": "API rate limit exceeded"}]}, 200, head)
        elif fault == "no json":
            self._bytes(200, b"<html>a proxy's log-in page</html>", {})
        else:
            self._send({"message": "said no"}, int(fault))
        return True

    # -- GitHub --------------------------------------------------------------------------------------------------

    def _sorted(self) -> list[dict[str, Any]]:
        return sorted(self.server.issues, key=lambda one: one["updated_at"])

    def _issues(self, query: dict[str, str]) -> None:
        found = [one for one in self._sorted() if one["updated_at"] >= query.get("since", "")]
        page = int(query.get("page", "1"))
        some = found[(page - 1) * PAGE : page * PAGE]
        etag = f'"{hash(json.dumps(some)) & 0xFFFF:x}"'
        if self.headers.get("If-None-Match") == etag:
            self._bytes(304, b"", {"ETag": etag})
            return
        head = {"ETag": etag}
        if page * PAGE < len(found):
            path = re.sub(r"&page=\d+", "", self.path)
            head["Link"] = f'<{self.server.url}{path}&page={page + 1}>; rel="next", <{self.server.url}/x>; rel="last"'
        self._send(some, 200, head)

    def _one(self, number: int) -> None:
        found = [one for one in self.server.issues if one["number"] == number]
        if number in self.server.gone or not found:
            self._send({"message": "This issue was deleted"}, 410 if number in self.server.gone else 404)
        else:
            self._send(found[0])

    def _zipball(self) -> None:
        if self.headers.get("If-None-Match") == '"packed-1"':
            self._bytes(304, b"", {})
        else:
            self._bytes(302, b"", {"Location": f"{self.server.redirect_to or self.server.url}/packed"})

    # -- Stack Exchange ------------------------------------------------------------------------------------------

    def _questions(self, path: str, query: dict[str, str]) -> None:
        if path != "/questions":
            ids = set(map(int, path.rsplit("/", 1)[-1].split(";")))
            self._send({"items": [one for one in self.server.questions if one["question_id"] in ids]}, zip=True)
            return
        found = sorted(self.server.questions, key=lambda one: one["last_activity_date"])
        found = [one for one in found if one["last_activity_date"] >= int(query.get("min", "0"))]
        page = int(query["page"])
        document = {
            "items": found[(page - 1) * PAGE : page * PAGE],
            "has_more": page * PAGE < len(found),
            "quota_remaining": 200,
        }
        self._send(document | ({"backoff": 2} if page == 1 else {}), zip=True)

    def _send(self, document: Any, status: int = 200, head: dict[str, str] | None = None, zip: bool = False) -> None:
        data = json.dumps(document).encode()
        extra = {"Content-Encoding": "gzip"} if zip else {}
        self._bytes(status, gzip.compress(data) if zip else data, (head or {}) | extra)

    def _bytes(self, status: int, data: bytes, head: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in head.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if status != 304:
            self.wfile.write(data)


def _node(one: dict[str, Any]) -> dict[str, Any]:
    return {
        "url": one["html_url"], "title": one["title"], "body": one["body"], "state": one["state"].upper(),
        "stateReason": (one.get("state_reason") or "").upper() or None, "createdAt": one["created_at"],
        "closedAt": one["closed_at"], "updatedAt": one["updated_at"], "comments": {"totalCount": one["comments"]},
        "labels": {"nodes": one["labels"]},
    }  # fmt: skip


def issue(number: int, title: str = "", body: str = "", **more: Any) -> dict[str, Any]:
    return {
        "html_url": f"https://github.com/some/tracker/issues/{number}",
        "number": number,
        "title": title or f"training hangs, number {number}",
        "body": body,
        "state": "closed",
        "labels": [{"name": "bug"}],
        "comments": 2,
        "created_at": f"2024-01-{number:02}T00:00:00Z",
        "closed_at": f"2024-02-{number:02}T00:00:00Z",
        "updated_at": f"2024-03-{number:02}T00:00:00Z",
    } | more


def question(number: int, **more: Any) -> dict[str, Any]:
    return {
        "question_id": number,
        "title": "NCCL &quot;unhandled system error&quot;",
        "body": "<p>It fails on <b>two</b> nodes</p><pre><code>RuntimeError: NCCL error</code></pre>",
        "tags": ["pytorch", "multi-gpu"],
        "creation_date": 1_600_000_000,
        "last_activity_date": 1_600_000_000 + number,
        "answer_count": 1,
    } | more
