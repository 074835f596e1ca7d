"""The package's rules are read of TOML once, and then of the user's cache, unless that is damaged or not there."""

import tomllib
from pathlib import Path

import pytest

from paramedic.knowledge import _package_rules, kept


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARAMEDIC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "rules.json"


def _no_toml(_text: str) -> dict[str, object]:
    raise AssertionError("read of TOML once more")


def test_a_second_start_reads_no_toml_and_knows_the_same(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = {name: rule.causes for name, rule in _package_rules.__wrapped__().items()}
    assert cache.is_file()
    monkeypatch.setattr("paramedic.knowledge.kept.tomllib.loads", _no_toml)
    second = {name: rule.causes for name, rule in _package_rules.__wrapped__().items()}
    assert first == second
    assert len(second) > 1000


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff\xfe", b"0" * 64 + b"\n{}", b"null\nnull"])
def test_a_damaged_cache_is_read_past_and_mended(cache: Path, damage: bytes) -> None:
    store = kept.Kept()
    store.loads('id = "A"')
    store.keep()
    good = cache.read_bytes()
    cache.write_bytes(damage)
    again = kept.Kept()
    assert again.loads('id = "A"') == {"id": "A"}
    again.keep()
    assert cache.read_bytes() == good


def test_a_text_that_changed_is_read_anew(cache: Path) -> None:
    store = kept.Kept()
    store.loads('id = "A"')
    store.keep()
    assert kept.Kept().loads('id = "B"') == {"id": "B"}


def test_where_nothing_can_be_kept_it_is_read_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PARAMEDIC_CACHE", str(tmp_path / "file"))
    store = kept.Kept()
    assert store.loads('id = "A"') == tomllib.loads('id = "A"')
    store.keep()


def test_what_is_kept_does_not_grow_without_end(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_MOST", 3)
    for number in range(8):
        store = kept.Kept()
        store.loads(f"n = {number}")
        store.keep()
    assert len(kept._read(cache)) <= 3
