"""Dumps of stacks between the lines of a log: a reader for each process that speaks in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paramedic.collect.blocks import Block, context
from paramedic.collect.decoding import decoded
from paramedic.collect.layouts import Peeled, Prefixes, Who, plain
from paramedic.collect.stacks import MAX_PROCESSES, StackReader, told


class Stacks:
    """Dumps are only looked at: whatever else their lines say is read as ever."""

    def __init__(self, prefixes: Prefixes) -> None:
        self.open: set[Who] = set()
        """Whose next line may belong to a dump."""
        self._readers: dict[Who, StackReader] = {}
        self._prefixes = prefixes

    def see(self, peeled: Peeled, line: int, block: Block, start: int) -> None:
        """A line, and where it begins in its block."""
        who = peeled.who
        if who not in self.open:
            if who not in self._readers and len(self._readers) >= MAX_PROCESSES:
                return
            self._readers.setdefault(who, StackReader())
            before, _ = context(block, start, start)
            if before and before[-1].startswith(b"Process "):  # py-spy's first line, in which nothing was found
                for ago, said in zip(range(len(before), 0, -1), before, strict=True):
                    if ago == 1 or said.startswith(b"["):
                        self._readers[who].feed(self._prefixes.peel(plain(decoded(said))).text, line - ago)
        reader = self._readers[who]
        reader.feed(peeled.text, line)
        (self.open.add if reader.open else self.open.discard)(who)

    def told(self, of_file: int | None) -> Iterator[tuple[Peeled, int, dict[str, Any]]]:
        """Who stands where, each with its line."""
        for (by, rank, stream), reader in self._readers.items():
            reader.close()
            of_one = rank is not None or (of_file is not None and not by)
            for named, line, text, fields in told(reader.processes, of_one):
                yield Peeled(rank, by, text, stream) if named is None else Peeled(named, "torch", text), line, fields
