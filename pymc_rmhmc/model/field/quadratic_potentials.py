"""Potentials that are minus half a sum of squares as residuals of a field, and what a Flat prior leaves to nothing.

A Potential reads latent values through some last expressions e that are affine in them. It is

    L(e) = L(0) - ½ Σ w e²,  w >= 0,

if its derivative by each of them is -w e whatever all of them are. Then ``√w e`` are residuals, L(0) belongs to the
density of θ, and w = L'(0) - L'(1). So no pattern of a graph is matched: squares may be written in any way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.compile import Function
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable
from scipy import sparse
from scipy.sparse.linalg import splu

from pymc_rmhmc.interfaces.stated import FieldMaps
from pymc_rmhmc.model.field.residuals import Residuals
from pymc_rmhmc.model.graph.graphs import NO_DERIVATIVE, by_python, replaced

__all__ = ["direction_in_words", "open_direction", "residuals_of_squares"]

type Array = NDArray[np.float64]
type Values = Mapping[Variable, np.ndarray]

# How far the expressions are from 0 where derivatives are compared, and what rounding leaves of their difference.
APART, ROUNDING = (0.0, 0.5, 4.0), 1e-9
# Of rows of length one: what is added to their precision, how often a direction is divided by it, and how far the rows
# move at most in a direction that nothing holds.
RIDGE, N_TURNS, OPEN = 1e-12, 8, 1e-12


def residuals_of_squares(
    log_density: TensorVariable, ends: Mapping[TensorVariable, tuple[int, ...]], points: Sequence[Values]
) -> Residuals | str | None:
    """Return a log density as residuals; None if it is no sum of squares, and what is wrong if it grows with one.

    Parameters
    ----------
    log_density : TensorVariable
        A scalar.
    ends : dict of TensorVariable to tuple
        What it reads latent values through, and the shape of each.
    points : sequence of dict
        Values of all else, at which derivatives are compared.
    """
    symbols = {end: end.type() for end in ends}
    (density,) = replaced([log_density], symbols)
    try:
        slopes = pytensor.grad(density, list(symbols.values()), disconnected_inputs="ignore")
    except NO_DERIVATIVE:
        return None

    def at(value: float, expressions: Sequence[TensorVariable]) -> list[TensorVariable]:
        filled = {s: s.type.filter_variable(pt.full(ends[e], value).astype(s.dtype)) for e, s in symbols.items()}
        return replaced(expressions, filled)

    at_zero, at_one = at(0.0, slopes), at(1.0, slopes)
    weights = [a - b for a, b in zip(at_zero, at_one, strict=True)]
    read = set(ancestors([density, *weights]))
    given = [v for v in points[0] if v in read]
    function = by_python([*symbols.values(), *given], [*slopes, *weights])
    for point in points:
        found = _weights(function, list(ends.values()), [point[v] for v in given])
        if not found:
            return None
        if any((each < 0.0).any() for each in found):
            return "grows with its squares"
    made = [(pt.sqrt(w) * end).reshape((math.prod(ends[end]),)) for w, end in zip(weights, ends, strict=True)]
    return Residuals(pt.concatenate(made).astype("float64"), at(0.0, [density])[0].astype("float64"))


def _weights(function: Function, shapes: Sequence[tuple[int, ...]], given: Sequence[Array]) -> list[Array]:
    """Return what derivatives are multiples of; nothing where they are no such multiples."""
    rng, weights = np.random.default_rng(0), list[Array]()
    for apart in APART:
        e = [apart * rng.standard_normal(shape) for shape in shapes]
        with np.errstate(all="ignore"):
            found = [np.asarray(each) for each in function(*e, *given)]
        slopes, weights = found[: len(e)], found[len(e) :]
        for value, slope, weight in zip(e, slopes, weights, strict=True):
            size = ROUNDING * np.abs(weight) * (1.0 + np.abs(value))
            if not (np.isfinite(weight).all() and (np.abs(slope + weight * value) <= size).all()):
                return []
    return weights


def open_direction(maps: FieldMaps, numbers: Array) -> Array | None:
    """Return a direction (n,) of latent values that moves no residual, kernel or predictor; None if there is none."""
    n = maps.size
    given = [
        sparse.csr_array((each.entries(numbers), (each.row, each.column)), shape=(each.n_rows, n))
        for each in (maps.residuals, maps.predictors)
    ]
    of_kernels = sparse.eye_array(n, format="csr")[n - maps.n_dense :]
    rows = _of_length_one(sparse.vstack([*given, of_kernels], format="csr"))
    dense = _of_length_one(sparse.csr_array(maps.dense)).toarray()
    solve = splu((rows.T @ rows + RIDGE * sparse.eye_array(n)).tocsc()).solve
    by_dense = solve(dense.T)
    core = np.eye(len(dense)) + dense @ by_dense
    # A level and a slope are tried as they are: of a long series the solver cannot tell them from slow waves.
    direction, noise = np.linspace(1.0, 2.0, n), np.random.default_rng(0).standard_normal(n)
    for turn in range(N_TURNS):
        direction = direction / np.abs(direction).max()
        if max(np.abs(each @ direction).max(initial=0.0) for each in (rows, dense)) <= OPEN:
            return direction
        direction = solve(direction + (turn == 0) * noise)
        direction -= by_dense @ np.linalg.solve(core, dense @ direction)
    return None


def _of_length_one(rows: sparse.csr_array) -> sparse.csr_array:
    """Return rows divided by their lengths: what they do not see stays as it is."""
    length = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
    return sparse.csr_array(sparse.diags_array(1.0 / np.where(length > 0.0, length, 1.0)) @ rows)


def direction_in_words(direction: Array, parts: Mapping[str, slice]) -> str:
    """Name the values that a direction moves: the level of those that it moves alike."""
    said = []
    for name, part in parts.items():
        own = direction[part]
        moved = np.flatnonzero(np.abs(own) > 1e-6)
        if not moved.size:
            continue
        which = name if moved.size == own.size else f"{moved.size} of {own.size} values of {name}"
        alike = np.ptp(own[moved]) < 1e-6 and own.size > 1
        said.append(f"the level of {which}" if alike else which)
    return " and ".join(said)
