"""Patterns are compiled when they are first used, so a broken one would otherwise be found by a user."""

import gc
import pkgutil
import re
import warnings
from importlib import import_module

import pytest

import paramedic
from paramedic.regex import Later, regex


def test_it_finds_what_a_compiled_pattern_finds() -> None:
    late, plain = regex(r"rank (?P<rank>\d+)", re.I), re.compile(r"rank (?P<rank>\d+)", re.I)
    assert [m["rank"] for m in late.finditer("Rank 3, rank 12")] == [
        m["rank"] for m in plain.finditer("Rank 3, rank 12")
    ]
    assert late.search("none") is None
    assert late.sub("r", "rank 3") == "r"
    assert (late.pattern, late.flags, late.groups, late.groupindex) == (
        plain.pattern,
        plain.flags,
        plain.groups,
        plain.groupindex,
    )
    assert regex(rb"a+").fullmatch(b"aaa") is not None


def test_it_is_compiled_once_and_not_before() -> None:
    late = regex("(")
    with pytest.raises(re.error):
        late.search("x")
    good = regex("a")
    assert good.search is good.search


def test_every_pattern_compiles() -> None:
    warnings.simplefilter("ignore")  # torch, of its own names: it may be there already
    for name in ("collect", "detect", "knowledge"):
        for module in pkgutil.walk_packages(import_module(f"paramedic.{name}").__path__, f"paramedic.{name}."):
            import_module(module.name)
    for module in pkgutil.iter_modules(paramedic.__path__):
        if module.name not in {"pytest_plugin", "__main__"}:
            import_module(f"paramedic.{module.name}")
    late = [one for one in gc.get_objects() if isinstance(one, Later) and one.pattern != "("]
    assert len(late) > 800
    for one in late:
        assert one.flags >= 0, one
