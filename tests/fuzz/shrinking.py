"""From a model that fails to its smallest form that still fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tests.fuzz.models import Constant, Penalty, Seen, Statement, Tree, pruned

__all__ = ["shrunk", "simpler"]

FEWEST = {"N": 2, "T": 3}


def simpler(tree: Tree) -> Iterator[Tree]:
    """Models one step simpler, the largest steps first."""
    statements = tree.statements
    for i, each in reversed(list(enumerate(statements))):
        if isinstance(each, Penalty) or (isinstance(each, Seen) and len(tree.seen) > 1):
            yield pruned(replace(tree, statements=statements[:i] + statements[i + 1 :]))
        elif not isinstance(each, (Constant, Seen)):
            yield _with(tree, i, Constant(each.name, each.instead))
    for i, each in enumerate(statements):
        for smaller in each.smaller():
            yield _with(tree, i, smaller)
    plain: dict[str, Any] = {"options": "", "shared": False, "dims": False, "standard": (), "refilled": True}
    yield from (replace(tree, **{key: value}) for key, value in plain.items())
    yield from _shorter(tree)


def _shorter(tree: Tree) -> Iterator[Tree]:
    """Models of smaller sizes."""
    for i, (name, n) in enumerate(tree.sizes):
        fewest = FEWEST.get(name, 1)
        for fewer in (max(fewest, n // 2), n - 1):
            if fewest <= fewer < n:
                yield replace(tree, sizes=(*tree.sizes[:i], (name, fewer), *tree.sizes[i + 1 :]))


def _with(tree: Tree, i: int, statement: Statement) -> Tree:
    return pruned(replace(tree, statements=(*tree.statements[:i], statement, *tree.statements[i + 1 :])))


def shrunk(tree: Tree, fails: Callable[[Tree], bool], most: int = 60) -> Tree:
    """The smallest model found with so many tries."""
    tries, held = 0, tree
    progress = True
    while progress and tries < most:
        progress = False
        for candidate in simpler(held):
            if tries >= most:
                break
            if candidate == held:
                continue
            tries += 1
            if fails(candidate):
                held, progress = candidate, True
                break
    return held
