"""Shell scripts → commands with the place of every word. Nothing is run: a variable is known where the script itself
gives it a plain value outside of any branch or loop; everything else is an unknown word."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

MOST_WORDS = 50_000
_DEEPEST = 16
_PIECE = re.compile(
    r"(?P<space>(?:[ \t\r]|\\\r?\n)+)|(?P<end>\n|;;?|&&|\|\|?|&(?![>\d])|[()])|(?P<single>'[^']*')"
    r"|(?P<heredoc><<-?[ \t]*(?P<quote>[\"']?)(?P<word>\w+)(?P=quote))|(?P<redirect>&?>{1,2}&?|<)"
    r"|(?P<escape>\\.)|(?P<variable>\$(?:\w+|[@*#?!$-])|\$\{[^{}\n]*\})|(?P<computed>\$\(|`)|(?P<double>\")"
    r"|(?P<plain>[^\s\\'\"$`;&|()<>]+)|(?P<other>.)",
    re.S,
)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_OPENS = frozenset(("if", "for", "while", "until", "case", "select", "function"))
_CLOSES = frozenset(("fi", "done", "esac"))
_LEADS = frozenset(("then", "do", "else", "elif", "!", "time", "{", "exec", "nohup", "eval", "sudo", "command"))


@dataclass(frozen=True, slots=True)
class Word:
    """`text` is None where the script alone does not say it."""

    text: str | None
    start: int
    end: int
    lead: str = ""
    """What is known of its beginning."""


@dataclass(slots=True)
class Command:
    words: list[Word] = field(default_factory=list)
    given: list[tuple[str, Word]] = field(default_factory=list)
    """Variables set for this command, or by it (`export`, `env`)."""
    exports: bool = False
    outer: str = ""
    """Of a command within `srun … bash -c "…"`: what starts it."""
    deferred: bool = False
    """In single quotes: another shell fills its variables in, later and elsewhere."""


@dataclass(slots=True)
class _Variable:
    text: str | None
    words: list[Word]


def parse(text: str) -> list[Command]:
    return list(_Reader(text).commands(0, len(text), 0))


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.known: dict[str, _Variable] = {}
        self.left = MOST_WORDS
        self.branch = 0

    def commands(self, at: int, end: int, depth: int) -> Iterator[Command]:
        command, heredocs = Command(), list[str]()
        while at < end and self.left > 0:
            found = _PIECE.match(self.text, at, end)
            if found is None:
                break
            kind = found.lastgroup if found.lastgroup != "word" else "heredoc"
            if kind == "space":
                at = found.end()
            elif kind == "end":
                yield from self._finished(command, depth)
                command = Command()
                at = found.end()
                if found[0] == "\n" and heredocs:
                    at = self._after_heredocs(at, end, heredocs)
                self.branch += {"(": 1, ")": -1}.get(found[0], 0)
                self.branch = max(self.branch, 0)
            elif kind == "heredoc":
                heredocs.append(found["word"])
                at = found.end()
            elif kind == "redirect":
                at = self._word(_after_space(self.text, found.end()), end)[1]
            elif self.text[at] == "#":
                newline = self.text.find("\n", at, end)
                at = end if newline < 0 else newline
            else:
                at = self._add(command, at, end)
        yield from self._finished(command, depth)

    def _after_heredocs(self, at: int, end: int, words: list[str]) -> int:
        for word in words:
            found = re.compile(rf"^[ \t]*{word}[ \t]*\r?$", re.M).search(self.text, at, end)
            if found is None:
                break
            at = min(found.end() + 1, end)
        words.clear()
        return at

    def _add(self, command: Command, at: int, end: int) -> int:
        assigned = _ASSIGNMENT.match(self.text, at, end)
        if assigned and (not command.words or command.exports):
            return self._assign(command, assigned, end)
        words, after = self._words(at, end)
        self.left -= max(len(words), 1)
        if not command.words and len(words) == 1 and words[0].text in _LEADS | _OPENS | _CLOSES | {"}"}:
            self._keyword(str(words[0].text))
            return after
        if not command.words and len(words) == 1 and words[0].text in ("export", "declare", "typeset", "env", "setenv"):
            command.exports = True
            return after
        command.words += words
        return after

    def _keyword(self, word: str) -> None:
        self.branch += (word in _OPENS or word == "{") - (word in _CLOSES or word == "}")
        self.branch = max(self.branch, 0)

    def _assign(self, command: Command, assigned: re.Match[str], end: int) -> int:
        name, start = assigned[1], assigned.end()
        if self.text[start : start + 1] == "(":
            words, after = self._array(start + 1, end)
            variable = _Variable(None, words)
        else:
            word, after = self._word(start, end)
            inner = self._inner(word, start)
            variable = _Variable(word.text, inner)
            command.given.append((name, word))
        before = self.known.get(name)
        if assigned[2] and before:
            joined = None if before.text is None or variable.text is None else before.text + variable.text
            variable = _Variable(joined, [*before.words, *variable.words][:MOST_WORDS])
        if self.branch and (before is None or before.text != variable.text):
            variable = _Variable(None, [Word(None, start, after)])
        self.known[name] = variable
        return after

    def _inner(self, word: Word, start: int) -> list[Word]:
        """The words within a quoted text, each in its own place."""
        opening = self.text[start : start + 1]
        if opening in "'\"" and opening and word.end - word.start >= 2:
            return self._list(word.start + 1, word.end - 1)
        return [word] if word.text != "" else []

    def _list(self, at: int, end: int) -> list[Word]:
        found: list[Word] = []
        while at < end and self.left > 0:
            piece = _PIECE.match(self.text, at, end)
            if piece is None:
                break
            if piece.lastgroup in ("space", "end"):
                at = piece.end()
                continue
            words, at = self._words(at, end)
            found += words
            self.left -= 1
        return found

    def _array(self, at: int, end: int) -> tuple[list[Word], int]:
        found: list[Word] = []
        while at < end and self.left > 0:
            piece = _PIECE.match(self.text, at, end)
            if piece is None or piece[0] == ")":
                return found, at + 1
            if piece.lastgroup in ("space", "end"):
                at = piece.end()
            elif piece[0].startswith("#"):
                newline = self.text.find("\n", at, end)
                at = end if newline < 0 else newline
            else:
                words, at = self._words(at, end)
                found += words
                self.left -= 1
        return found, at

    def _words(self, at: int, end: int) -> tuple[list[Word], int]:
        """One word of the text, which may stand for several: `$ARGS`, `"${ARGS[@]}"`."""
        quoted = self.text[at : at + 1] == '"'
        found = _PIECE.match(self.text, at + quoted, end)
        if found is not None and found.lastgroup == "variable":
            after = found.end() + quoted
            whole = not quoted or self.text[found.end() : after] == '"'
            name = re.fullmatch(r"\$\{?(\w+)(\[[@*]\])?\}?", found[0])
            if whole and name and self._ends(after, end) and (not quoted or name[2]):
                known = self.known.get(name[1])
                if known is not None:
                    return list(known.words), after
                return [Word(None, at, after)], after
        word, after = self._word(at, end)
        return [word], after

    def _ends(self, at: int, end: int) -> bool:
        following = _PIECE.match(self.text, at, end)
        return following is None or following.lastgroup in ("space", "end", "redirect")

    def _word(self, at: int, end: int) -> tuple[Word, int]:
        start, parts = at, list[str | None]()
        while at < end:
            found = _PIECE.match(self.text, at, end)
            if found is None or found.lastgroup in ("space", "end", "redirect") or found["heredoc"]:
                break
            part, at = self._part(found, end)
            parts.append(part)
        if at == start:
            at = min(at + 1, end)
        lead = "".join(part or "" for part in parts[: parts.index(None) if None in parts else len(parts)])
        return Word(None if None in parts else lead, start, at, lead), at

    def _part(self, found: re.Match[str], end: int) -> tuple[str | None, int]:
        match found.lastgroup:
            case "single":
                return found[0][1:-1], found.end()
            case "escape":
                return found[0][1:], found.end()
            case "variable":
                return self._value(found[0]), found.end()
            case "computed":
                return None, self._computed(found, end)
            case "double":
                return self._double(found.end(), end)
            case _:
                return found[0], found.end()

    def _value(self, variable: str) -> str | None:
        name = re.fullmatch(r"\$\{?(\w+)\}?", variable)
        known = self.known.get(name[1]) if name else None
        return known.text if known else None

    def _computed(self, found: re.Match[str], end: int) -> int:
        if found[0] == "`":
            closing = self.text.find("`", found.end(), end)
            return end if closing < 0 else closing + 1
        depth, at = 1, found.end()
        while at < end and depth:
            depth += {"(": 1, ")": -1}.get(self.text[at], 0)
            at += 1
        return at

    def _double(self, at: int, end: int) -> tuple[str | None, int]:
        parts: list[str | None] = []
        while at < end and self.text[at] != '"':
            character = self.text[at]
            if character == "\\" and at + 1 < end:
                parts.append("" if self.text[at + 1] == "\n" else self.text[at + 1])
                at += 2
            elif character in "$`":
                found = _PIECE.match(self.text, at, end)
                if found is None or found.lastgroup not in ("variable", "computed"):
                    parts.append(character)
                    at += 1
                else:
                    part, at = self._part(found, end)
                    parts.append(part)
            else:
                parts.append(character)
                at += 1
        text = None if None in parts else "".join(part for part in parts if part is not None)
        return text, min(at + 1, end)

    def _finished(self, command: Command, depth: int) -> Iterator[Command]:
        if command.words or command.given:
            yield command
        inner = _inner_script(command.words)
        if inner is not None and depth < _DEEPEST:
            branch = self.branch
            quote = self.text[inner[0] - 1]
            for one in self.commands(inner[0], inner[1], depth + 1):
                one.outer = one.outer or (command.words[0].text or "").rsplit("/", 1)[-1]
                one.deferred = one.deferred or quote == "'"
                yield one
            self.branch = branch


def _inner_script(words: Sequence[Word]) -> tuple[int, int] | None:
    """Of `bash -c "…"`: the quoted text."""
    for first, option, script in zip(words, words[1:], words[2:], strict=False):
        if first.text and first.text.rsplit("/", 1)[-1] in ("bash", "sh") and option.text in ("-c", "-lc", "-xc"):
            return (script.start + 1, script.end - 1) if script.end - script.start > 2 else None
    return None


def _after_space(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\t"):
        at += 1
    return at
