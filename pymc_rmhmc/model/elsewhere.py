"""Other points than the model's initial one, at which what is read off values has to hold as well."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

__all__ = ["NoValueThere", "evaluated_there", "points_elsewhere"]

# What operations raise when they cannot take a value: an index out of range, a failed check of PyMC or PyTensor, a
# matrix that has no factor or is not finite (LinAlgError is a ValueError), an integer that overflows.
REFUSALS = (IndexError, ValueError, AssertionError, ArithmeticError)

type Point = dict[str, np.ndarray]

# How far values are moved, up and down, in unconstrained units.
SIZES = (1.0, 5.0)


def points_elsewhere(point: Point, names: Sequence[str]) -> Iterator[Point]:
    """Yield copies of a point with some of its floating values moved, all up or all down; none if nothing moves."""
    moving = [name for name in names if np.asarray(point[name]).dtype.kind == "f"]
    if not moving:
        return
    for size, sign in itertools.product(SIZES, (1.0, -1.0)):
        rng, moved = np.random.default_rng(0), dict(point)
        for name in moving:
            value = np.asarray(point[name])
            moved[name] = value + sign * size * rng.uniform(0.5, 1.5, value.shape)
        yield moved


class NoValueThere(Exception):  # noqa: N818 - it is caught: it says nothing of other points
    """An expression has no value at a point that was made up."""


def evaluated_there[T](function: Callable[..., T], *arguments: object) -> T:
    """Return the value of a function at a point that was made up.

    Raises
    ------
    NoValueThere
        If an operation cannot take what it is given there. Any other error is one of the program, and comes through.
    """
    try:
        return function(*arguments)
    except REFUSALS as error:
        raise NoValueThere from error
