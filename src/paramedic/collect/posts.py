"""What a post in a tracker or a forum says: its title, its writer's sentences, and apart from them what he quotes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html.parser import HTMLParser

from paramedic.collect.archives import Input
from paramedic.collect.prose import is_printed, is_prose, small_words
from paramedic.collect.streams import SafeStream
from paramedic.regex import regex

LONGEST = 32 << 10
"""Longer than any message that somebody types."""
_NAMES = (".txt", ".md", ".markdown", ".rst")
MOST = 60_000
"""Characters of a post that are read: a huge log is read at both ends."""
_COMMENT = regex(r"<!--.*?(?:-->|\Z)", re.S)
_FENCED = regex(r"^(```|~~~)[^\n]*\n(.*?)(?:^\1[^\n]*$|\Z)", re.M | re.S)
_INDENTED = regex(r"^(?: {4}|\t).*$", re.M)
_IS_HTML = regex(r"<(?:p|pre|code|div|br|ul|ol|h[1-6])\b[^>]*>", re.I)
_LINK = regex(r"!?\[([^\]\n]{0,300})\]\([^)\n]{0,2000}\)|https?://\S+")
_TEMPLATE = regex(
    r"^[ \t]*(?:[-*] \[[ xX]?\].*|#{1,6} .*|\*\*[^*\n，。]{1,60}\*\*:?[ \t]*|"
    r"\d+\. (?:did you|if your|are you|is this)\b.*|"
    r"\d+\. [\w /()]{2,40}version\b.*|please (?:describe|ask|fill|provide|read)\b.*|"
    r"\d+\. (?:framework|os|gcc|cmake|spark|ray)\b.*)$",
    re.I | re.M,
)
"""What a tracker's form asks: "is it about a hang?" is not a word of the writer's."""
_OF_A_MACHINE = """
os python pytorch torch cuda cudnn nccl mpi gcc driver gpus? nvidia horovod framework tensorflow transformers accelerate
deepspeed spark ray docker distributor platform bazel mobile
"""
_ENVIRONMENT = regex(
    rf"^\s*+(?:[-*+]|\d{{1,2}}\.)?+\s*+`?(?:{'|'.join(_OF_A_MACHINE.split())}|have i|exact command"
    r"|is \w{1,20} available|[\w /().-]{1,60}\bversions?\b)[\w /().,'`-]{0,90}[:=]",
    re.I,
)
"""Of a form's list of versions: whoever names a CUDA toolkit in it does not say that its build failed."""
_IMAGE = regex(r"<img\b[^>]{0,2000}(?:>|$)|</?[a-z]{1,10}\b[^>\n]{0,200}>", re.I)
_TAG = r"\[[^\]\d\n]{1,40}\]|【[^】\n]{1,40}】|(?:bug|issue|question|help|q|rfc)\s?[:：]"
_LABEL = regex(rf"^(?:[#\s]{{0,8}}(?:{_TAG})[:：]?\s{{0,3}}){{1,4}}", re.I)
_WISH = regex(
    r"^[#\s\[*【]{1,8}[^\w\n]{0,3}(?:feature(?: request)?|rfc|proposal|enhancement|doc(?:s|umentation)?)\b", re.I | re.M
)
_STOP = regex(r"(?<=[.?!。？！])\s{1,4}")
_HEADING = r"#{2,4} [^\w\n]{0,3}[A-Z][a-z]+(?: \w{1,20}){0,4}[?:]?[ \t]*$|\*\*[A-Z][^*\n]{1,60}\*\*:?[ \t]*$"
_HEADS = regex(rf"[ \t]*(?:{_HEADING})")
_FORM = regex(rf"^[ \t]*(?:[-*] \[[ xX]?\] |{_HEADING}|```)", re.M)
_LETTERS = regex(r"[^\W\d_]+")
_PROMPT = regex(r"(?:\([\w.-]{1,40}\) ?)?[\w.-]{1,40}@[\w.-]{1,80}[: ]")
_FIELD = regex(r"\w: ")
_MOST_OF_A_TITLE = 300
_CJK = regex(r"[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]")


@dataclass(frozen=True, slots=True)
class Post:
    """A text that somebody wrote, with what is pasted into it."""

    title: str
    said: str
    """His sentences below it."""
    quoted: str
    wish: bool = False
    """It asks for a feature or a page, by its own heading."""

    @property
    def words(self) -> str:
        return f"{self.title}\n{self.said}".strip()


def told_in(item: Input, ranked: bool) -> Post | None:
    """What somebody tells, if it is that: on standard input or in a file for texts, and short. Nothing is consumed."""
    raw = getattr(item.stream, "raw", None)
    if ranked or not (item.name == "-" or item.name.lower().endswith(_NAMES)) or not isinstance(raw, SafeStream):
        return None
    data = raw.peek(LONGEST + 1)
    if not 0 < len(data) <= LONGEST or b"\0" in data:
        return None
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    if (post := post_in(text)) is not None:
        return post
    spoken = _FENCED.sub("\n", text).strip()
    return Post("", spoken, "") if is_prose(spoken) else None


def post_in(text: str) -> Post | None:
    """None for what a program has printed: a post begins with words, and somebody speaks below them, or a form does."""
    title, rest = "", text
    while not title and rest.strip():
        first, _, rest = rest.lstrip().partition("\n")
        title = "" if _HEADS.fullmatch(first) else _LABEL.sub("", first.strip()).lstrip("#").strip()
    if not (_is_title(title) and (said := parts("", rest)).spoken + said.quoted):
        return None
    lines = [_IMAGE.sub(" ", line).strip() for line in said.spoken.split("\n") if not _ENVIRONMENT.match(line)]
    each = [one for line in lines for one in _STOP.split(line) if one.strip()]
    own = [one for one in each if not is_printed(one[:500])]
    whole = [line for line in lines if not is_printed(line[:500])]
    if not (_FORM.search(rest) or any(_is_sentence(one) for line in whole for one in _STOP.split(line))):
        return None
    pasted = [one for one in each if is_printed(one[:500])]
    return Post(title, "\n".join(own), "\n".join([*pasted, said.quoted]), _WISH.search(text) is not None)


def _is_title(line: str) -> bool:
    words = _LETTERS.findall(line)
    enough = len(words) >= 2 or bool(_CJK.search(line))
    command = line.startswith(("!", "$")) or _PROMPT.match(line) is not None or line.endswith((" {", ";"))
    printed = is_printed(line) or len(_FIELD.findall(line)) > 1
    return enough and len(line) <= _MOST_OF_A_TITLE and not (command or printed)


def _is_sentence(line: str) -> bool:
    """Nobody's progress, nor what a library warns of: somebody speaks of himself, or asks."""
    words = [word.lower() for word in _LETTERS.findall(line)]
    if len(_CJK.findall(line)) > 8:
        return True
    speaks = not _SPEAKS.isdisjoint(words) or line.rstrip().endswith("?")
    return speaks and len(words) >= 5 and small_words(words) >= 0.25


_SPEAKS = frozenset(["i", "my", "we", "our", "hi", "hello", "thanks", "thank", "anyone", "anybody", "im"])


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
