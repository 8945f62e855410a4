"""The constants of a flat chart, fitted to draws and scores, and the chart read backwards: plain NumPy, for tuning.

What the graph of a model does with the constants stands in `pymc_rmhmc.model.general`. Of each charted variable it
tells where its values are, and where and how wide its prior is at a draw; and which values are angles.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.latent.charts.marginal import Shapes, fit_shapes

__all__ = [
    "NO_ANGLES", "Angles", "ElementwiseChart", "NoiseChart", "RootChart", "RowsChart", "RowsNoiseChart",
    "VariableChart", "charts_of",
]  # fmt: skip

type Array = NDArray[np.float64]

# Of rows with one factor: the share of the largest variance that is added to a covariance of draws.
RIDGE = 1e-6
# Draws for a control variate: fewer tell too little of their own noise.
FEWEST_DRAWS = 30
# An element beyond so many scales from its location is in the tails of its prior, whose pull there counts for this at
# least.
FAR_OUT, LEAST_PULL = 2.0, 1e-8
# Draws that a root's shape is fitted to, and by how much likelier these must be in it, in log density, than if they
# were normal, all together and each: a shape that is none makes steps less exact, and a slight one is not worth a map.
FEWEST_SHAPED, LEAST_GAIN, LEAST_GAIN_EACH = 40, 4.0, 0.05


class VariableChart(Protocol):
    """The chart of one variable's elements."""

    places: NDArray[np.int64]  # (m,): where the elements are among all values
    # `n_moments`, `n_constants`: how many numbers tell the prior's location and scale, and how many the chart has to be
    # given; `n_scores`: m, or 0 where scores say nothing of the chart.
    n_moments: int
    n_constants: int
    n_scores: int

    def fit(self, values: Array, scores: Array, own: Array, moments: Array) -> Array:
        """Fit the constants (n_constants,) to draws.

        `values`, `scores`, `own` (t, m): draws, the scores that the rest of the model gives at each, and those of the
          elements' own prior.
        `moments` (t, n_moments): the prior's location and scale at each.
        """

    def standardised(self, values: Array, moments: Array, constants: Array) -> Array:
        """Return z (t, m) of draws, given the moments (t, n_moments) at each."""


class ElementwiseChart:
    """Of elements that are independent given others, with w and b for each.

    `places` (m,) int: where they are among all values.
    """

    def __init__(self, places: NDArray[np.int64]) -> None:
        self.places = places
        self.n_scores = places.size
        self.n_moments = self.n_constants = 2 * places.size

    def fit(self, values: Array, scores: Array, own: Array, moments: Array) -> Array:
        """Fit the lines ``score = b - w x``, with w ≥ 0; none where there is no score.

        Least squares alone would lose w in what other variables add to the score. Under the posterior the mean of
        ``1 + (x - x̄)(score + own score)`` is 0, so that as much of it is taken as leaves the least noise. Where a
        prior pulls less than a normal one of its scale would, as heavy tails do far out, the line stands for as much
        more: w and b are divided by `_pull_of_prior`.
        """
        centred, around = values - values.mean(axis=0), scores - scores.mean(axis=0)
        square, product = np.einsum("ij,ij->j", centred, centred), np.einsum("ij,ij->j", centred, around)
        weight = np.divide(-product, square, out=np.zeros_like(square), where=square > 0.0)
        weight = np.maximum(0.0, _less_noisy(weight, square, centred, around, own - own.mean(axis=0)))
        pull = scores.mean(axis=0) + weight * values.mean(axis=0)
        none = (np.abs(scores).max(axis=0) == 0.0) | ~np.isfinite(weight) | ~np.isfinite(pull)
        weight[none], pull[none] = 0.0, 0.0
        share = _pull_of_prior(values, own, *np.split(moments, 2, axis=1))
        return np.concatenate([weight / share, pull / share])

    def standardised(self, values: Array, moments: Array, constants: Array) -> Array:
        """Return z of values."""
        location, scale = np.split(moments, 2, axis=1)
        return _standardised((values - location) / scale, location, scale, constants)


class NoiseChart(ElementwiseChart):
    """Of the noise r of effects ``μ + σr`` in non-centred form: the chart that the effects have."""

    def __init__(self, places: NDArray[np.int64]) -> None:
        super().__init__(places)
        self.n_moments = 4 * places.size

    def fit(self, values: Array, scores: Array, own: Array, moments: Array) -> Array:
        """See `VariableChart`; moments are those of the effects, and then the location and scale of the noise."""
        location, scale, origin, unit = np.split(moments, 4, axis=1)
        with np.errstate(all="ignore"):  # where a scale is 0 no line is told
            effects, share = location + scale * (values - origin) / unit, unit / scale
            return super().fit(effects, scores * share, own * share, np.hstack([location, scale]))

    def standardised(self, values: Array, moments: Array, constants: Array) -> Array:
        """Return z of values."""
        location, scale, origin, unit = np.split(moments, 4, axis=1)
        return _standardised((values - origin) / unit, location, scale, constants)


def _standardised(relative: Array, location: Array, scale: Array, constants: Array) -> Array:
    """Return z (t, m) of elements that are so many scales from their location."""
    weight, pull = np.split(constants, 2)
    root = np.sqrt(1.0 + weight * scale * scale)
    found: Array = relative * root - scale * (pull - weight * location) / root
    return found


class RootChart:
    """Of values that no other moves: maps that make their marginal distributions normal.

    `places` (m,) int: where they are among all values.
    `ratios` (r, 2) int: which of them move relative to the exponential of which.
    """

    n_moments = n_scores = 0

    def __init__(self, places: NDArray[np.int64], ratios: NDArray[np.int64]) -> None:
        self.places, self._ratios = places, ratios
        self.n_constants = 4 * places.size

    def fit(self, values: Array, scores: Array, own: Array, moments: Array) -> Array:
        """Fit the maps, where draws are enough to tell a shape from a normal; else a value has no shape."""
        found, relative = np.zeros((4, self.places.size)), self._relative(values)
        moved = np.isfinite(relative).all(axis=0) & (relative != relative[0]).any(axis=0)
        if len(values) >= FEWEST_SHAPED and moved.any():
            shapes = fit_shapes(relative[:, moved])
            constants = np.stack([shapes.location, np.log(shapes.spread), shapes.skewness, np.log(shapes.tail)])
            least = max(LEAST_GAIN, LEAST_GAIN_EACH * len(values))
            found[:, moved] = np.where(shapes.gain(relative[:, moved]) > least, constants, 0.0)
        return found.ravel()

    def standardised(self, values: Array, moments: Array, constants: Array) -> Array:
        """Return z of values."""
        location, log_spread, skewness, log_tail = constants.reshape(4, -1)
        return Shapes(location, np.exp(log_spread), skewness, np.exp(log_tail)).flattened(self._relative(values))

    def _relative(self, values: Array) -> Array:
        """Return values (t, m), of which some are relative to others."""
        found, (own, by) = values.copy(), self._ratios.T
        with np.errstate(all="ignore"):  # where a scale is 0
            found[:, own] /= np.exp(values[:, by])
        return found


class ReadChart(Protocol):
    """What a model tells of its chart; see `pymc_rmhmc.model.general.density.GeneralModel`."""

    charts: tuple[tuple[NDArray[np.int64], int, bool], ...]
    roots: NDArray[np.int64]
    ratios: NDArray[np.int64]


def charts_of(model: ReadChart) -> tuple[VariableChart, ...]:
    """Choose the chart of each variable that others move, and one for all that none moves, in the constants' order."""
    roots = (RootChart(model.roots, model.ratios),) if model.roots.size else ()
    return (*(_chart_of(*each) for each in model.charts), *roots)


def _chart_of(places: NDArray[np.int64], n_columns: int, is_noise: bool) -> VariableChart:
    """Choose the chart of one variable.

    `places` (m,) int: where its elements are among all values.
    `n_columns`: how many of them share a covariance; 1 if they are independent.
    `is_noise`: whether it is the noise of effects in non-centred form.
    """
    if n_columns == 1:
        return NoiseChart(places) if is_noise else ElementwiseChart(places)
    return RowsNoiseChart(places, n_columns) if is_noise else RowsChart(places, n_columns)


def _less_noisy(weight: Array, square: Array, centred: Array, scores: Array, own: Array) -> Array:
    """Return slopes (m,) by least squares with the control variate of `ElementwiseChart.fit`, all centred (t, m)."""
    if len(centred) < FEWEST_DRAWS:
        return weight
    variance = square / len(centred)
    # What each draw adds to the slope beyond its line, and to the control, times the variance.
    beyond, control = -centred * (scores + weight * centred), 1.0 + centred * (scores + own)
    level = control.mean(axis=0)
    around = control - level
    total = np.mean(around**2, axis=0)
    share = np.divide(-np.mean(beyond * around, axis=0), total, out=np.zeros_like(total), where=total > 0.0)
    found: Array = weight + np.clip(share, 0.0, 1.0) * level / np.where(variance > 0.0, variance, np.inf)
    return found


def _pull_of_prior(values: Array, own: Array, location: Array, scale: Array) -> Array:
    """Estimate how much of a normal prior's pull elements far out in the tails have (m,); 1 for all others.

    The share is the median over draws (t, m). That of a Student t with ν degrees of freedom, r scales out, is
    ``(ν + 1)/(ν + r²)``. Nearer the centre the pull of a skew family, whose mode is not its location, says nothing.
    """
    with np.errstate(all="ignore"):
        apart = (values - location) / scale
        share = np.clip(-own * scale / apart, LEAST_PULL, 1.0)
    share = np.median(np.where(np.isfinite(share), share, 1.0), axis=0)
    is_far = np.median(np.abs(np.nan_to_num(apart)), axis=0) > FAR_OUT
    found: Array = np.where(is_far, share, 1.0)
    return found


class RowsChart:
    """Of rows that are normal with one covariance: with a matrix W and a vector b for each row.

    `places` (r k,) int: where the elements are among all values, row by row.
    `n_columns`: K, of which the factor of the covariance is (k, k).
    """

    def __init__(self, places: NDArray[np.int64], n_columns: int) -> None:
        self.places, self._k = places, n_columns
        self._rows = places.size // n_columns
        self.n_scores = places.size
        self.n_moments = places.size + n_columns**2
        self.n_constants = places.size * (n_columns + 1)

    def fit(self, values: Array, scores: Array, own: Array, moments: Array) -> Array:
        """Fit the least-squares planes ``score = b - W x`` of each row, with W made symmetric and positive."""
        t = len(values)
        x, s = (array.reshape(t, self._rows, self._k) for array in (values, scores))
        mean, mean_score = x.mean(axis=0), s.mean(axis=0)
        centred, around = x - mean, s - mean_score
        square = np.einsum("tri,trj->rij", centred, centred)
        product = np.einsum("tri,trj->rij", centred, around)
        trace = np.trace(square, axis1=1, axis2=2)[:, None, None]
        weights = -np.linalg.solve(square + (RIDGE * trace + 1e-300) * np.eye(self._k), product)
        weights = _positive(0.5 * (weights + weights.transpose(0, 2, 1)))
        pulls = mean_score + np.einsum("rij,rj->ri", weights, mean)
        none = (np.abs(s).max(axis=(0, 2)) == 0.0) | ~np.isfinite(pulls).all(axis=1)
        weights[none], pulls[none] = 0.0, 0.0
        return np.concatenate([weights.ravel(), pulls.ravel()])

    def standardised(self, values: Array, moments: Array, constants: Array) -> Array:
        """Return z of values."""
        k, rows = self._k, self._rows
        weights = constants[: rows * k * k].reshape(rows, k, k)
        pulls = constants[rows * k * k :].reshape(rows, k)
        found = np.empty_like(values)
        for at, (x, moment) in enumerate(zip(values, moments, strict=True)):
            location, factor = moment[: rows * k].reshape(rows, k), moment[rows * k :].reshape(k, k)
            roots = np.linalg.cholesky(np.eye(k) + factor.T @ weights @ factor)
            relative = self._relative(x.reshape(rows, k), location, factor)
            rest = (pulls - np.einsum("rij,rj->ri", weights, location)) @ factor
            pulled = np.einsum("rji,rj->ri", roots, relative)
            found[at] = (pulled - np.linalg.solve(roots, rest[:, :, None])[:, :, 0]).ravel()
        return found

    def _relative(self, values: Array, location: Array, factor: Array) -> Array:
        """Return how many factors rows (r, k) are from their location."""
        found: Array = np.linalg.solve(factor, (values - location).T).T
        return found


class RowsNoiseChart(RowsChart):
    """Of the noise t of effects ``μ + Lt`` in non-centred form: the chart that the effects have."""

    def fit(self, values: Array, scores: Array, own: Array, moments: Array) -> Array:
        """See `VariableChart`."""
        k, rows, t = self._k, self._rows, len(values)
        location, factor = moments[:, : rows * k], moments[:, rows * k :].reshape(t, k, k)
        by_row = values.reshape(t, rows, k)
        effects = location + np.einsum("tij,trj->tri", factor, by_row).reshape(t, -1)
        pulls = np.linalg.solve(factor.transpose(0, 2, 1)[:, None], scores.reshape(t, rows, k, 1))
        return super().fit(effects, pulls.reshape(t, -1), own, moments)

    def _relative(self, values: Array, location: Array, factor: Array) -> Array:
        """Return the rows themselves."""
        return values


def _positive(matrices: Array) -> Array:
    """Return symmetric matrices (r, k, k) with their negative eigenvalues set to 0."""
    finite = np.where(np.isfinite(matrices), matrices, 0.0)
    values, vectors = np.linalg.eigh(finite)
    made: Array = (vectors * np.maximum(values, 0.0)[:, None, :]) @ vectors.transpose(0, 2, 1)
    return made


class Angles(NamedTuple):
    """Which of a model's values stand for points on a circle."""

    places: NDArray[np.int64]  # (k,): where they are among all values
    periods: Array  # (k,): the circumference of each circle: the density is the same at a value and a period further on

    @property
    def widest(self) -> Array:
        """The standard deviation (k,) of a uniform distribution on each circle: no scale is larger."""
        found: Array = self.periods / np.sqrt(12.0)
        return found

    def centre(self, values: Array) -> Array:
        """Return the circular means (k,) of values (t, d)."""
        turns = np.exp(2j * np.pi * values[:, self.places] / self.periods).mean(axis=0)
        found: Array = np.angle(turns) * self.periods / (2.0 * np.pi)
        return found

    def wrapped(self, values: Array, centre: Array) -> Array:
        """Return values (..., d) with each angle in the period around its centre (k,)."""
        found = values.copy()
        beyond = values[..., self.places] - centre
        # A value within the period stays as it is, to the last bit.
        found[..., self.places] -= self.periods * np.round(beyond / self.periods)
        return found

    def are_within(self, values: Array, centre: Array) -> bool:
        """Return whether all angles of one point (d,) lie in the period around their centres."""
        return bool((np.abs(values[self.places] - centre) <= 0.5 * self.periods).all())


NO_ANGLES = Angles(np.empty(0, np.int64), np.empty(0))
