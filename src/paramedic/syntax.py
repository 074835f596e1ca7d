"""Programs as syntax trees: what `collect` has parsed, `detect` need not parse again."""

from __future__ import annotations

import ast
import warnings

from paramedic.regex import regex

_MOST = 1_000_000
"""Characters whose trees are kept: about a hundred bytes each."""
_ENDLESS = regex(r"(?<![\w.])(?:0[xXoObB][\w]{33}|[\d_]{40})")
MOST_BITS = 128
"""No whole number that a program trains by is larger; one of thousands of digits cannot even be printed, and squares
of squares have no end."""
_kept: dict[str, ast.Module] = {}
_room = [_MOST]


def parsed(text: str, keep: bool = False) -> ast.Module:
    """Raises what `ast.parse` does. The tree is shared: nobody changes it."""
    tree = _kept.get(text)
    if tree is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
        if _ENDLESS.search(text):
            _forget_endless(tree)
        if keep and len(text) <= _room[0]:
            _room[0] -= len(text)
            _kept[text] = tree
    return tree


def _forget_endless(tree: ast.Module) -> None:
    """In their place stands `...`: a value that is not known."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value.bit_length() > MOST_BITS:
            node.value = ...


def forget() -> None:
    """All of them."""
    _kept.clear()
    _room[0] = _MOST
