"""Programs as syntax trees: what `collect` has parsed, `detect` need not parse again."""

from __future__ import annotations

import ast
import warnings

_MOST = 1_000_000
"""Characters whose trees are kept: about a hundred bytes each."""
_kept: dict[str, ast.Module] = {}
_room = [_MOST]


def parsed(text: str, keep: bool = False) -> ast.Module:
    """Raises what `ast.parse` does. The tree is shared: nobody changes it."""
    tree = _kept.get(text)
    if tree is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
        if keep and len(text) <= _room[0]:
            _room[0] -= len(text)
            _kept[text] = tree
    return tree


def forget() -> None:
    """All of them."""
    _kept.clear()
    _room[0] = _MOST
