"""Where hyperscan has no wheel, the standard library finds the same."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramedic import prefilter as module
from paramedic.prefilter import Prefilter

words = st.text(alphabet="abAB.*[é\n \\", min_size=1, max_size=5)


@pytest.mark.skipif(vars(module)["hyperscan"] is None, reason="hyperscan is not installed")
@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(words, min_size=1, max_size=8), st.text(alphabet="abAB.*[é\n \\", max_size=200))
def test_both_matchers_find_the_same(literals: list[str], text: str) -> None:
    index = {literal.encode(): number for number, literal in enumerate(sorted(set(literals)))}
    for once in (False, True):
        fast, slow = module._hyperscan(index, once), module._standard_library(index, once)
        assert sorted(fast(text.encode())) == slow(text.encode())


def test_real_literals_are_found_by_both_in_a_real_order(prefilter: Prefilter, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(prefilter.literals).encode() * 3
    monkeypatch.setattr(module, "hyperscan", None)
    slow = Prefilter(prefilter.literals)
    hits = prefilter.scan(text)
    assert sorted(hits) == slow.scan(text)
    assert [end for end, _ in hits] == sorted(end for end, _ in hits)
    assert slow.literals_in(text.decode()) == set(prefilter.literals)


@pytest.mark.parametrize("installed", [True, False])
def test_nothing_to_look_for_finds_nothing(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not installed:
        monkeypatch.setattr(module, "hyperscan", None)
    assert Prefilter([]).scan(b"abc") == []
    assert Prefilter(["", "b"]).scan(b"abc") == [(2, 0)]
    assert Prefilter(["b"]).literals_in("a\ud800b") == {"b"}


def test_threads_may_share_one() -> None:
    shared = Prefilter(["token", "key"])
    text = "x token key " * 20_000
    with ThreadPoolExecutor(4) as threads:
        assert all(found == {"token", "key"} for found in threads.map(shared.literals_in, [text] * 16))
