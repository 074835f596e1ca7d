"""A rater and a post: what to show, what an answer means. The terminal's and the browser's form both ask here."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from paramedic.collect.posts import parts
from paramedic.errors import ParamedicError
from paramedic.knowledge.taxonomy import load_taxonomy
from paramedic.knowledge.wordings import NONE
from paramedic.report.escape import crop, printable
from paramedic.study.active import most_informative
from paramedic.study.store import Given, Post, Predicted, Store

_SHOWN = 1_500
_AT_A_TIME = 10


@dataclass(frozen=True, slots=True)
class Question:
    post: Post
    proposed: tuple[str, ...]
    """The likeliest symptoms, in an order that gives nothing away: that of the taxonomy."""


class Session:
    """Proposes one post after the other, and keeps the answers."""

    def __init__(self, store: Store, rater: str, second: bool) -> None:
        self.store, self.rater, self.second = store, rater, second
        self.answered = 0
        self._passed: set[str] = set()
        self._ready: list[Question] = []

    def question(self) -> Question | None:
        if not self._ready:
            n = _AT_A_TIME + len(self._passed)
            found = most_informative(self.store, n, self.rater, self.second)
            self._ready = [question(post, one) for post, one in found if post.id not in self._passed]
        return self._ready[0] if self._ready else None

    def answer(self, symptom: str, fix: str = "", cause: str = "", distributed: bool | None = None) -> None:
        """An empty symptom: none of these."""
        taxonomy = load_taxonomy()
        known = {"symptom": taxonomy.symptoms, "fix pattern": taxonomy.fix_patterns, "cause": taxonomy.causes}
        for value, (what, among) in zip((symptom, fix, cause), known.items(), strict=True):
            if value and value not in among:
                raise ParamedicError(f"{value}: no such {what}")
        one = self._ready.pop(0)
        self.store.put_labels([Given(one.post.id, self.rater, symptom, cause, fix, distributed)])
        self._ready.clear()  # what is most informative has changed
        self.answered += 1

    def skip(self) -> None:
        self._passed.add(self._ready.pop(0).post.id)


def question(post: Post, one: Predicted) -> Question:
    likely = {one.symptom, *json.loads(one.others or "{}")} - {NONE}
    return Question(post, tuple(id for id in load_taxonomy().symptoms if id in likely))


def shown(post: Post) -> str:
    found = parts(post.title, post.body)
    return crop(printable(f"{found.spoken}\n{found.quoted}"), _SHOWN)


def in_terminal(session: Session, read: Callable[[str], str], say: Callable[[str], None]) -> None:
    """Numbers choose; a symptom's name does as well."""
    symptoms = load_taxonomy().symptoms
    while (asked := session.question()) is not None:
        say(_put_question(asked))
        said = read("symptom (number or name, n none of these, s skip, q quit): ").strip().lower()
        if said in ("q", "quit"):
            return
        if said in ("s", "skip"):
            session.skip()
            continue
        chosen = _chosen(said, asked)
        if chosen is None:
            say(f"{said}: neither a number above nor one of {', '.join(symptoms)}")
            continue
        fix = _fix(read("fix (number, or nothing if unknown): ").strip()) if chosen else ""
        session.answer(chosen, fix)


def _chosen(said: str, asked: Question) -> str | None:
    if said in ("n", NONE):
        return ""
    if said.isascii() and said.isdigit() and 1 <= int(said) <= len(asked.proposed):
        return asked.proposed[int(said) - 1]
    return said if said in load_taxonomy().symptoms else None


def _fix(said: str) -> str:
    patterns = list(load_taxonomy().fix_patterns)
    return patterns[int(said) - 1] if said.isascii() and said.isdigit() and 1 <= int(said) <= len(patterns) else ""


def _put_question(asked: Question) -> str:
    taxonomy = load_taxonomy()
    lines = ["", printable(asked.post.id), "-" * 80, shown(asked.post), "-" * 80]
    for number, id in enumerate(asked.proposed, 1):
        lines.append(f"  {number}  {id}: {crop(taxonomy.symptoms[id].definition, 110)}")
    lines.append("  fixes: " + ", ".join(f"{n} {id}" for n, id in enumerate(taxonomy.fix_patterns, 1)))
    return "\n".join(lines)
