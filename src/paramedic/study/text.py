"""What a post says: HTML and Markdown taken away, the writer's words apart from quoted code and logs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html.parser import HTMLParser

from paramedic.collect.prose import is_prose

MOST = 60_000
"""Characters of a post that are read: a huge log is read at both ends."""
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.S)
_FENCED = re.compile(r"^(```|~~~)[^\n]*\n(.*?)(?:^\1[^\n]*$|\Z)", re.M | re.S)
_INDENTED = re.compile(r"^(?: {4}|\t).*$", re.M)
_IS_HTML = re.compile(r"<(?:p|pre|code|div|br|ul|ol|h[1-6])\b[^>]*>", re.I)
_LINK = re.compile(r"!?\[([^\]\n]{0,300})\]\([^)\n]{0,2000}\)|https?://\S+")
_TEMPLATE = re.compile(
    r"^[ \t]*(?:[-*] \[[ xX]?\].*|#{1,6} .*|\*\*[^*\n]{1,60}\*\*:?[ \t]*|\d+\. (?:did you|if your|are you|is this)\b.*|"
    r"\d+\. [\w /()]{2,40}version\b.*|please (?:describe|ask|fill|provide|read)\b.*|"
    r"\d+\. (?:framework|os|gcc|cmake|spark|ray)\b.*)$",
    re.I | re.M,
)
"""What a tracker's form asks: "is it about a hang?" is not a word of the writer's."""


@dataclass(frozen=True, slots=True)
class Parts:
    spoken: str
    """Title and body without what is quoted."""
    quoted: str
    """Code and logs; title and body as well where they are no sentences: many paste a log as it is."""


def parts(title: str, body: str) -> Parts:
    body = _shortened(body.replace("\r\n", "\n").replace("\0", " "))
    spoken, quoted = _of_html(body) if _IS_HTML.search(body[:4_000]) else _of_markdown(body)
    spoken = _LINK.sub(lambda found: found[1] or " ", _TEMPLATE.sub("", spoken))
    pasted = [text for text in (title, spoken) if text.strip() and not is_prose(text)]
    return Parts(f"{title}\n{spoken}".strip(), "\n".join([*pasted, quoted]).strip())


def _shortened(text: str) -> str:
    return text if len(text) <= MOST else f"{text[: MOST // 2]}\n{text[-MOST // 2 :]}"


def _of_markdown(text: str) -> tuple[str, str]:
    text = _COMMENT.sub(" ", text)
    quoted = [found[2] for found in _FENCED.finditer(text)]
    text = _FENCED.sub("\n", text)
    quoted += [line[0].strip() for line in _INDENTED.finditer(text)]
    return _INDENTED.sub("", text), "\n".join(quoted)


def _of_html(text: str) -> tuple[str, str]:
    reader = _Reader()
    reader.feed(text)
    reader.close()
    return "".join(reader.spoken), "".join(reader.quoted)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.spoken: list[str] = []
        self.quoted: list[str] = []
        self._inside = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._inside += tag == "pre"
        if tag in ("p", "br", "li", "div", "pre"):
            self._here().append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag == "pre":
            self._here().append("\n")
            self._inside = max(self._inside - 1, 0)

    def handle_data(self, data: str) -> None:
        self._here().append(data)

    def _here(self) -> list[str]:
        return self.quoted if self._inside else self.spoken
