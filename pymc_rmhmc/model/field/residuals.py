"""Gaussian distributions as residuals: what of a value is N(0, I), and the log density where all of it is 0.

Each family is one function. Nothing else about it is asked: whether residuals are affine in a model's latent values,
and in which of them, is found by evaluating them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.continuous import FlatRV
from pymc.distributions.multivariate import CARRV, ICARRV, ZeroSumNormalRV
from pymc.distributions.timeseries import AutoRegressiveRV, EulerMaruyamaRV, RandomWalkRV
from pytensor.compile import Function
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors
from pytensor.sparse.type import SparseTensorType
from pytensor.tensor.random.basic import MvNormalRV, NormalRV
from pytensor.tensor.variable import TensorVariable
from scipy import linalg, sparse
from scipy.sparse.linalg import splu

from pymc_rmhmc.errors import ConfigurationError, shown
from pymc_rmhmc.interfaces.stated import FieldMaps
from pymc_rmhmc.model.forms.priors import root_of
from pymc_rmhmc.model.graph.graphs import NO_DERIVATIVE, by_python, core_op, replaced
from pymc_rmhmc.usage import called_as

__all__ = [
    "HALF_LOG_2PI", "MOST_EIGENVALUES", "Residuals", "direction_in_words", "has_residuals", "open_direction",
    "register_residuals", "residuals_of", "residuals_of_squares",
]  # fmt: skip

type Array = NDArray[np.float64]
type Parameters = Sequence[TensorVariable]

# Minus the log density of a standard normal at 0.
HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
# Of a map: the normaliser of a CAR takes all eigenvalues of its matrix, once.
MOST_EIGENVALUES = 5000


class Residuals(NamedTuple):
    """What of a value is standard normal."""

    values: TensorVariable  # the residuals, a vector
    # The log density where they are 0; None to take it from PyMC's density.
    log_normaliser: TensorVariable | None = None


class NoResiduals(Exception):  # noqa: N818 - it is caught: the variable is no part of a field
    """A distribution has no residuals in the form in which it is given."""


type Family = Callable[..., Residuals]

_FAMILIES: dict[type[Op], Family] = {}


def has_residuals(variable: TensorVariable) -> bool:
    """Return whether a random variable's distribution is Gaussian in a form that is read."""
    try:
        residuals_of(variable, variable.type())
    except NoResiduals:
        return False
    return True


def residuals_of(variable: TensorVariable, value: TensorVariable) -> Residuals:
    """Return the residuals of a random variable at a value.

    Raises a `NoResiduals` if its distribution has none.
    """
    op = core_op(variable)
    family = _FAMILIES.get(type(op))
    if family is None or not hasattr(variable.owner.op, "dist_params"):
        raise NoResiduals
    return family(op, value, *variable.owner.op.dist_params(variable.owner))


@called_as("register_residuals(pm.Normal, residuals)")
def register_residuals(distribution: type, function: Callable[..., TensorVariable]) -> None:
    """Let a Gaussian distribution of your own be part of a Gaussian field.

    Parameters
    ----------
    distribution : type
        A PyMC distribution, such as `pm.Normal`, or the class of its random variable's operation.
    function : callable
        ``function(value, *parameters)`` returns a vector of residuals: expressions of which the distribution's density
        is that of independent standard normals, times a function of the parameters. The parameters are those of PyMC's
        `dist_params`.

    Raises
    ------
    ConfigurationError
        If the first argument is no distribution, or the second no function.

    Examples
    --------
    A Normal, as it is known already. Of a `pm.CustomDist` give ``type(variable.owner.op)``:

    >>> import pymc as pm
    >>> from pymc_rmhmc import register_residuals
    >>> register_residuals(pm.Normal, lambda value, mu, sigma: ((value - mu) / sigma).ravel())
    """
    operation = getattr(distribution, "rv_type", None) or getattr(distribution, "rv_op", distribution)
    operation = operation if isinstance(operation, type) else type(operation)
    if not (isinstance(operation, type) and issubclass(operation, Op)):
        raise ConfigurationError(
            f"register_residuals needs a PyMC distribution such as pm.Normal, got {shown(distribution)}."
        )
    if not callable(function):
        raise ConfigurationError(
            "register_residuals needs a function of the value and the distribution's parameters, got "
            f"{shown(function)}."
        )
    _FAMILIES[operation] = lambda op, value, *parameters: Residuals(pt.flatten(function(value, *parameters)))


def _family(operation: type[Op]) -> Callable[[Family], Family]:
    """Register what is built in."""

    def note(function: Family) -> Family:
        _FAMILIES[operation] = function
        return function

    return note


def _normals(value: TensorVariable, mean: TensorVariable | float, deviation: TensorVariable) -> Residuals:
    """Return those of independent Normals."""
    # A deviation for each of several values may be one number for many of them.
    copies = value.size / deviation.size
    return Residuals(
        ((value - mean) / deviation).flatten(), -HALF_LOG_2PI * value.size - copies * pt.log(deviation).sum()
    )


@_family(NormalRV)
def _normal(op: Op, value: TensorVariable, mean: TensorVariable, deviation: TensorVariable) -> Residuals:
    return _normals(value, mean, deviation)


@_family(FlatRV)
def _flat(op: Op, value: TensorVariable) -> Residuals:
    # None: data and potentials hold it, or nothing does.
    return Residuals(value.flatten()[:0], pt.zeros(()))


@_family(ZeroSumNormalRV)
def _zero_sum(op: Op, value: TensorVariable, deviation: TensorVariable, shape: TensorVariable) -> Residuals:
    # The normaliser counts the free values, and comes from PyMC.
    return Residuals((value / deviation).flatten())


@_family(MvNormalRV)
def _correlated(op: Op, value: TensorVariable, mean: TensorVariable, covariance: TensorVariable) -> Residuals:
    while covariance.ndim > 2 and covariance.type.shape[0] == 1:
        covariance = covariance[0]
    if covariance.ndim > 2:
        raise NoResiduals
    matrix, root = root_of(covariance)
    if root == "precision":
        matrix, root = covariance, "covariance"
    lower = matrix if root == "cholesky" else pt.linalg.cholesky(matrix)
    rows = (value - mean).reshape((-1, covariance.shape[-1]))
    whitened = pt.linalg.solve_triangular(lower, rows.T, lower=True).T.flatten()
    log_determinant = rows.shape[0] * pt.log(pt.abs(pt.diagonal(lower))).sum()
    return Residuals(whitened, -HALF_LOG_2PI * value.size - log_determinant)


@_family(RandomWalkRV)
def _walk(op: Op, value: TensorVariable, start: TensorVariable, step: TensorVariable, *steps: object) -> Residuals:
    # Batches come first, then time, and then what a step of several dimensions has.
    along = pt.moveaxis(value, -getattr(op, "ndim_supp", 1), 0)
    return _joined([residuals_of(start, along[:1]), residuals_of(step, along[1:] - along[:-1])])


@_family(AutoRegressiveRV)
def _autoregression(
    op: AutoRegressiveRV, value: TensorVariable, rho: TensorVariable, deviation: TensorVariable, start: TensorVariable,
    *steps: object,
) -> Residuals:  # fmt: skip
    order, constant = op.ar_order, int(op.constant_term)
    expected = pt.zeros_like(value[..., order:]) + (rho[..., :1] if constant else 0.0)
    for lag in range(1, order + 1):
        expected += rho[..., lag - 1 + constant, None] * value[..., order - lag : value.shape[-1] - lag]
    first = residuals_of(start, value[..., :order])
    return _joined([first, _normals(value[..., order:], expected, deviation[..., None])])


@_family(EulerMaruyamaRV)
def _stochastic_equation(
    op: EulerMaruyamaRV, value: TensorVariable, start: TensorVariable, steps: TensorVariable,
    *parameters: TensorVariable,
) -> Residuals:  # fmt: skip
    earlier = value[..., :-1]
    drift, noise = op.sde_fn(earlier, *(each[..., None] for each in parameters))
    first = residuals_of(start, value[..., 0])
    return _joined([first, _normals(value[..., 1:], earlier + op.dt * drift, pt.sqrt(op.dt) * noise)])


@_family(ICARRV)
def _intrinsic_map(
    op: Op, value: TensorVariable, neighbours: TensorVariable, deviation: TensorVariable, of_mean: TensorVariable
) -> Residuals:
    matrix = _number(neighbours)
    first, second = np.nonzero(np.tril(matrix) == 1)
    edges = ((value[first] - value[second]) / deviation).flatten()
    n = len(matrix)
    total = (value.sum() / (of_mean * n)).reshape((1,))
    return Residuals(pt.concatenate([edges, total]), -HALF_LOG_2PI - pt.log(of_mean.squeeze() * n))


@_family(CARRV)
def _map(
    op: Op, value: TensorVariable, mean: TensorVariable, neighbours: TensorVariable, alpha: TensorVariable,
    tau: TensorVariable, *valid: object,
) -> Residuals:  # fmt: skip
    """Return edges and nodes: ``xᵀ(D - αW)x`` is ``Σ |α| w (x_i ∓ x_j)²`` over edges, and ``Σ (1 - |α|) d x²``."""
    weights = sparse.csr_array(_number(neighbours))
    first, second = sparse.tril(weights, -1).nonzero()
    weight, degree = np.asarray(weights[first, second]).ravel(), np.asarray(weights.sum(axis=0)).ravel()
    if (degree <= 0.0).any() or (weight < 0.0).any() or value.ndim != 1:
        raise NoResiduals
    tau, alpha, apart = tau.squeeze(), alpha.squeeze(), value - mean
    share = pt.abs(alpha)
    edges = pt.sqrt(tau * share) * np.sqrt(weight) * (apart[first] - pt.sign(alpha) * apart[second])
    nodes = pt.sqrt(tau * (1.0 - share)) * np.sqrt(degree) * apart
    eigenvalues = _eigenvalues(weights, degree)
    log_determinant = degree.size * pt.log(tau) + pt.log1p(-alpha * eigenvalues).sum()
    return Residuals(pt.concatenate([edges, nodes]), 0.5 * log_determinant)


def _eigenvalues(weights: sparse.csr_array, degree: Array) -> Array:
    """Return those of ``D^(-1/2) W D^(-1/2)``."""
    if degree.size > MOST_EIGENVALUES:
        raise NoResiduals
    root = sparse.diags_array(1.0 / np.sqrt(degree))
    return np.asarray(linalg.eigvalsh((root @ weights @ root).toarray()))


def _number(matrix: TensorVariable) -> Array:
    """Return a matrix that must be a constant."""
    if not isinstance(matrix, Constant):
        (found,) = by_python([], [matrix])()
    else:
        found = matrix.data
    found = found.toarray() if isinstance(matrix.type, SparseTensorType) or sparse.issparse(found) else found
    return np.asarray(found, float).reshape(np.shape(found)[-2:])


def _joined(parts: Sequence[Residuals]) -> Residuals:
    """Return several as one."""
    normalisers = [each.log_normaliser for each in parts if each.log_normaliser is not None]
    values = pt.concatenate([each.values for each in parts])
    return Residuals(values, sum(normalisers) if len(normalisers) == len(parts) else None)


# ---------------------------------------------------- Potentials

# Potentials that are minus half a sum of squares as residuals of a field, and what a Flat prior leaves to nothing.
#
# A Potential reads latent values through some last expressions e that are affine in them. It is
#
#     L(e) = L(0) - ½ Σ w e²,  w >= 0,
#
# if its derivative by each of them is -w e whatever all of them are. Then ``√w e`` are residuals, L(0) belongs to the
# density of θ, and w = L'(0) - L'(1). So no pattern of a graph is matched: squares may be written in any way.

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

    `log_density`: a scalar.
    `ends`: what it reads latent values through, and the shape of each.
    `points`: values of all else, at which derivatives are compared.
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
