"""Other points than the model's initial one, at which what is read off values has to hold as well."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

__all__ = ["points_elsewhere"]

type Point = dict[str, np.ndarray]

# How far values are moved, up and down, in unconstrained units.
SIZES = (1.0, 5.0)


def points_elsewhere(point: Point, names: Sequence[str]) -> Iterator[Point]:
    """Copies of a point with some of its floating values moved, all up or all down; none where nothing moves."""
    moving = [name for name in names if np.asarray(point[name]).dtype.kind == "f"]
    if not moving:
        return
    for size, sign in itertools.product(SIZES, (1.0, -1.0)):
        rng, moved = np.random.default_rng(0), dict(point)
        for name in moving:
            value = np.asarray(point[name])
            moved[name] = value + sign * size * rng.uniform(0.5, 1.5, value.shape)
        yield moved
