"""HTTP as public services want it: bounded, patient with rate limits, and never silent about what went wrong."""

from __future__ import annotations

import gzip
import http.client
import io
import json
import random
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paramedic import __version__
from paramedic.errors import ParamedicError
from paramedic.redact import redact

MAX_BODY = 128 << 20
_TRIES = 5
_BROKEN = (
    urllib.error.URLError,
    http.client.HTTPException,
    ConnectionError,
    TimeoutError,
    OSError,
    EOFError,
    zlib.error,
)
_AGAIN = frozenset({500, 502, 503, 504, 520, 522, 524})
_GONE = frozenset({404, 410, 451})


class Interrupted(ParamedicError):  # noqa: N818
    """What came so far is kept; the same command goes on from there."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str

    @property
    def gone(self) -> bool:
        return self.status in _GONE

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise Interrupted(f"{shown(self.url)}: answered something that is no JSON: {error}") from None


@dataclass(slots=True)
class Web:
    """`max_wait`: the longest wait for a rate limit, in seconds; beyond it the work stops where it can go on later."""

    max_wait: float = 900.0
    timeout: float = 60.0
    say: Callable[[str], None] = lambda text: None
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.time
    requests: int = field(default=0, init=False)

    def get(self, url: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self._ask(url, dict(headers or {}), None)

    def post(self, url: str, document: Any, headers: Mapping[str, str] | None = None) -> Answer:
        return self._ask(url, dict(headers or {}) | {"Content-Type": "application/json"}, json.dumps(document).encode())

    def _ask(self, url: str, headers: dict[str, str], data: bytes | None) -> Answer:
        """Good answers, 304 and "gone"; everything else is tried again or ends in one clear sentence."""
        last = ""
        for attempt in range(_TRIES):
            if attempt:
                self.sleep(min(2.0**attempt, 60.0) * (0.5 + random.random() / 2))
            try:
                answer = self._once(url, headers, data)
            except _BROKEN as error:
                last = _reason(error)
                self.say(f"{shown(url)}: {last}; trying again")
                continue
            if answer.status in (200, 304) or answer.gone:
                return answer
            if (wait := self._limit(answer)) is not None:
                self.wait(wait, url)
                last = "the rate limit did not end"
            elif answer.status in _AGAIN:
                last = f"answered {answer.status}"
            else:
                raise ParamedicError(f"{shown(url)}: answered {answer.status}: {_message(answer)}")
        raise Interrupted(f"{shown(url)}: {last} ({_TRIES} tries); what came so far is kept: run it again to go on")

    def _once(self, url: str, headers: dict[str, str], data: bytes | None) -> Answer:
        if not url.startswith(("https://", "http://")):
            raise ParamedicError(f"{shown(url)}: only http and https are fetched")
        told = {"User-Agent": f"paramedic/{__version__}", "Accept-Encoding": "gzip"} | headers
        request = urllib.request.Request(url, data, told)
        self.requests += 1
        opener = urllib.request.build_opener(_CarefulRedirects)
        try:
            with opener.open(request, timeout=self.timeout) as got:
                return Answer(got.status, _headers(got.headers), _body(got, url), got.geturl())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, _headers(error.headers), _body(error, url), url)

    def _limit(self, answer: Answer) -> float | None:
        """How long the service asks to wait, if that is what its answer means."""
        if answer.status not in (403, 429, 503):
            return None
        head = answer.headers
        if (after := head.get("retry-after", "")).strip().isdigit():
            return float(after)
        if head.get("x-ratelimit-remaining") == "0" and (reset := head.get("x-ratelimit-reset", "")).isdigit():
            return max(float(reset) - self.clock(), 0) + 1
        return 60.0 if answer.status == 429 or b"secondary rate limit" in answer.body.lower() else None

    def wait(self, seconds: float, url: str) -> None:
        if seconds > self.max_wait:
            raise Interrupted(
                f"{shown(url)}: the rate limit lasts another {seconds / 60:.0f} min; what came so far is kept: run it "
                f"again then, or name a token (GITHUB_TOKEN, STACKEXCHANGE_KEY) for a higher limit"
            )
        self.say(f"rate limit: waiting {seconds:.0f} s")
        self.sleep(seconds)


class _CarefulRedirects(urllib.request.HTTPRedirectHandler):
    """A token goes to the host it was meant for, and nowhere else."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:  # noqa: PLR0917
        if not newurl.startswith(("https://", "http://")) or (
            req.full_url.startswith("https://") and newurl.startswith("http://")
        ):
            raise urllib.error.URLError(f"redirected to {shown(newurl)}, which is not followed")
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None and urllib.parse.urlsplit(newurl).netloc != urllib.parse.urlsplit(req.full_url).netloc:
            new.remove_header("Authorization")
        return new


def _headers(found: Any) -> dict[str, str]:
    return {name.lower(): str(value) for name, value in (found.items() if found else ())}


def _body(got: Any, url: str) -> bytes:
    data = got.read(MAX_BODY + 1)
    told = got.headers.get("Content-Length") or ""
    if told.isdigit() and len(data) < min(int(told), MAX_BODY + 1):  # with a limit, `read` does not notice a cut
        raise http.client.IncompleteRead(data, int(told) - len(data))
    if (got.headers.get("Content-Encoding") or "").lower() == "gzip":
        data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(MAX_BODY + 1)
    if len(data) > MAX_BODY:
        raise ParamedicError(f"{shown(url)}: the answer is larger than {MAX_BODY >> 20} MB")
    return bytes(data)


def _reason(error: BaseException) -> str:
    inner = getattr(error, "reason", error)
    text = str(inner) or type(inner).__name__
    if isinstance(error, http.client.IncompleteRead):
        return "the connection was cut"
    return f"cannot be reached ({text}); offline, or a proxy is needed (https_proxy)?" if inner is not error else text


def _message(answer: Answer) -> str:
    try:
        found = json.loads(answer.body)
        text = found.get("message") or found.get("error_message") or ""
    except (ValueError, AttributeError, RecursionError):
        text = ""
    return str(text)[:300] or "no reason given"


def shown(url: str) -> str:
    """Without what may be secret."""
    parts = urllib.parse.urlsplit(url)
    query = [(k, "…" if k in ("key", "access_token", "token") else v) for k, v in urllib.parse.parse_qsl(parts.query)]
    host = parts.netloc.rsplit("@", 1)[-1]
    return redact(urllib.parse.urlunsplit((parts.scheme, host, parts.path, urllib.parse.urlencode(query), "")))
