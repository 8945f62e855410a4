"""A chart's constants and moments, which are kept variable by variable, as vectors over all charted elements.

The constants of roots, which no other variable moves, come last.
"""

from __future__ import annotations

import numpy as np

from pymc_rmhmc.model.general.roots import N_SHAPE

__all__ = ["constants", "scored", "unshaped", "weights_and_pulls"]


def _sizes(general) -> list[int]:
    return [places.size for places, *_ in general.charts]


def _by_variable(general, vector) -> tuple[np.ndarray, np.ndarray]:
    """Two vectors (m,) of one (2 m,) that holds both halves of a variable together."""
    parts = np.split(vector, np.cumsum([2 * size for size in _sizes(general)])[:-1])
    first, second = zip(*(np.split(part, 2) for part in parts), strict=True)
    return np.concatenate(first), np.concatenate(second)


def scored(general, x) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Score, location and scale (m,) of every charted element."""
    score, moments, _ = general.scores(np.ascontiguousarray(x))
    return score, *_by_variable(general, moments)


def weights_and_pulls(general, chart) -> tuple[np.ndarray, np.ndarray]:
    """W and b (m,)."""
    return _by_variable(general, chart[: chart.size - N_SHAPE * general.roots.size])


def unshaped(general) -> np.ndarray:
    """The constants of roots that stay as they are."""
    return np.zeros(N_SHAPE * general.roots.size)


def constants(general, weights, pulls) -> np.ndarray:
    """The chart with these, where roots stay as they are."""
    ends = np.cumsum(_sizes(general))[:-1]
    pairs = zip(np.split(weights, ends), np.split(pulls, ends), strict=True)
    return np.concatenate([*(part for pair in pairs for part in pair), unshaped(general)])
