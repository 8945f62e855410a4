"""The flat chart of any model: each variable relative to the location and scale that other variables give it.

For a free variable ``x ~ D(μ, σ)``, μ and σ functions of other variables, and constants w ≥ 0 and b an element,

    r = σ(b - wμ)/(1 + wσ²) + z/√(1 + wσ²),    x = μ + σr,    log |∂x/∂z| = log σ - ½ log(1 + wσ²).

This is ``x = (μ + σ²b)/(1 + wσ²) + σz/√(1 + wσ²)``, with nothing that overflows where σ is small. At ``w = b = 0`` it
is the non-centred form, at a large w the centred one. With w and b the line that the score of everything but x's own
prior follows, z has location 0 and scale 1 wherever the parents are. Values are placed parents first. Where a model is
written in non-centred form, its free variable is r, and moves in the same chart.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.tensor.linalg.decomposition.cholesky import cholesky
from pytensor.tensor.random.basic import MvNormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import ConfigurationError
from pymc_rmhmc.model.forms.priors import root_of
from pymc_rmhmc.model.general.families import Family, family_of
from pymc_rmhmc.model.general.noncentred import NonCentredReader
from pymc_rmhmc.model.graph.graphs import is_standard_normal, reaches_by_value, replaced
from pymc_rmhmc.model.hyperparameters import joined, taken

__all__ = [
    "MOST_COLUMNS", "Charted", "ChartedNoise", "ChartedRows", "ChartedRowsNoise", "ChartedVariable", "Placement",
    "charted_variables", "place",
]  # fmt: skip

type Symbol = TensorVariable
type Charted = ChartedVariable | ChartedRows

# Columns of an MvNormal whose products are written out.
MOST_COLUMNS = 5


class Placed(NamedTuple):
    """One charted variable as a function of the chart's coordinates."""

    value: Symbol  # the value variable's expression
    # The log density of its own prior with the Jacobian ``log σ``, where the family is exactly one of location and
    # scale; a scalar.
    own: Symbol | None
    scales: Symbol  # ``Σ log σ`` if that is in `own`, else 0
    log_jacobian: Symbol  # what else of ``Σ log |∂x/∂z|`` is to be added


@dataclass(frozen=True, eq=False)
class _Charted:
    """A free variable whose location or scale other free variables move."""

    # `variable`, `value`: the random variable and its value variable.
    variable: Symbol
    value: Symbol
    parameters: tuple[Symbol, ...]  # what moves it, as graphs of value variables
    parents: tuple[str, ...]  # the names of the variables that these depend on
    shape: tuple[int, ...]  # of the value

    is_noise = False

    def by_rows[Values: (Symbol, NDArray[Any])](self, values: Values) -> Values:
        """Return values of the variable's shape in the order in which the chart takes them, or put them back."""
        return values


@dataclass(frozen=True, eq=False)
class ChartedVariable(_Charted):
    """A variable that is placed element by element; its parameters are those of its distribution."""

    family: Family

    n_columns = 1

    @property
    def n_constants(self) -> int:
        """Of the chart: w and b for each element."""
        return 2 * math.prod(self.shape)

    def moments(self, parameters: Sequence[Symbol]) -> tuple[Symbol, Symbol]:
        """Return location and scale for parameters, each of the value's shape; raise if the family gives none."""
        location, scale = self.family.moments_at(parameters, str(self.variable.name))
        return self._broadcast(location, "location"), self._broadcast(scale, "scale")

    def place(self, z: Symbol, constants: Symbol, parameters: Sequence[Symbol]) -> Placed:
        """Place the variable at z; the constants (n_constants,) are w and then b."""
        location, scale = self.moments(parameters)
        relative, shrunk = self._relative(z, constants, location, scale)
        scales = pt.log(scale).sum()
        if self.family.standard is None:
            return Placed(location + scale * relative, None, pt.zeros(()), scales - shrunk)
        standard = pm.logp(self.family.standard(*parameters), relative)
        # As PyMC has it, a scale that is not positive is a log density of -inf.
        own = pt.switch(scale > 0.0, standard, -np.inf).sum()
        return Placed(location + scale * relative, own, scales, -shrunk)

    def _relative(self, z: Symbol, constants: Symbol, location: Symbol, scale: Symbol) -> tuple[Symbol, Symbol]:
        """Return r at z, and ``½ Σ log(1 + wσ²)``."""
        half = math.prod(self.shape)
        weight, pull = (taken(constants, slice(at, at + half), self.shape) for at in (0, half))
        spread = 1.0 + weight * scale * scale
        relative = scale * (pull - weight * location) / spread + z / pt.sqrt(spread)
        return relative, 0.5 * pt.log(spread).sum()

    @property
    def effect_scale(self) -> Symbol:
        """The scale at the values, as the model has it: a number, or one of each."""
        return pt.as_tensor_variable(self.family.moments_at(self.parameters, str(self.variable.name))[1])

    def moment_vector(self) -> Symbol:
        """Return location and scale at the values, one after the other."""
        return joined(self.moments(self.parameters))

    def _broadcast(self, found: Symbol, what: str) -> Symbol:
        """Give one of the moments the value's shape."""
        symbol = pt.as_tensor_variable(found).astype("float64")
        pairs = zip(reversed(symbol.type.shape), reversed(self.shape), strict=False)
        if symbol.ndim > len(self.shape) or any(have not in (None, 1, want) for have, want in pairs):
            raise ConfigurationError(
                f"{self.variable.name}: the {what} that is registered for {self.family.name} has the shape "
                f"{symbol.type.shape}, and the variable has {self.shape}. Mend the function in register_family."
            )
        return symbol if symbol.type.shape == self.shape else pt.broadcast_to(symbol, self.shape)


@dataclass(frozen=True, eq=False)
class ChartedNoise(ChartedVariable):
    """Noise of a family of location and scale that the model reads as ``μ + σ·noise``: r of the chart of these effects.

    Its parameters are μ and σ, and those of the noise's own distribution.
    """

    is_noise = True

    @property
    def effect_scale(self) -> Symbol:
        """The scale by which the model reads the noise."""
        return self.parameters[1]

    def _all_moments(self, parameters: Sequence[Symbol]) -> tuple[Symbol, Symbol, Symbol, Symbol]:
        """Return location and scale of the effects, and those of the noise."""
        origin, unit = self.moments(parameters[2:])
        location, scale = (self._broadcast(each, "effect") for each in parameters[:2])
        return location + scale * origin, scale * unit, origin, unit

    def place(self, z: Symbol, constants: Symbol, parameters: Sequence[Symbol]) -> Placed:
        """Place the variable at z; the constants (n_constants,) are w and then b."""
        location, scale, origin, unit = self._all_moments(parameters)
        relative, shrunk = self._relative(z, constants, location, scale)
        assert self.family.standard is not None
        own = pm.logp(self.family.standard(*parameters[2:]), relative).sum()
        return Placed(origin + unit * relative, own, pt.log(unit).sum(), -shrunk)

    def moment_vector(self) -> Symbol:
        """Return all four moments at the values, one after the other."""
        return joined(self._all_moments(self.parameters))


@dataclass(frozen=True, eq=False)
class ChartedRows(_Charted):
    """An MvNormal of few columns whose rows have one covariance: its Cholesky factor L stands for the scale.

    With constants W (k, k) and b (k,) for each row, ``B = I + LᵀWL = R Rᵀ`` and ``t = B⁻¹Lᵀ(b - Wμ) + R⁻ᵀz``, it is
    ``x = μ + L t`` with ``log |∂x/∂z| = Σ log Lᵢᵢ - Σ log Rᵢᵢ`` for each row. All products are written out, element by
    element over the rows. The parameters are the mean, and the covariance's factor.
    """

    @property
    def n_columns(self) -> int:
        """K."""
        return self.shape[-1]

    @property
    def n_constants(self) -> int:
        """Of the chart: W and b for each row."""
        return math.prod(self.shape) * (self.n_columns + 1)

    @property
    def _rows_shape(self) -> tuple[int, ...]:
        return self.shape

    def place(self, z: Symbol, constants: Symbol, parameters: Sequence[Symbol]) -> Placed:
        """Place the variable at z; the constants (n_constants,) are all W and then all b."""
        k, rows = self.n_columns, math.prod(self.shape) // self.n_columns
        mean, lower = self._moments(parameters)
        relative, half = self._relative(z.reshape((rows, k)), constants, mean, lower)
        moved = [mean[:, i] + _sum(lower[i][m] * relative[m] for m in range(i + 1)) for i in range(k)]
        positive = pt.all(pt.stack([lower[i][i] > 0.0 for i in range(k)]))
        own = pt.switch(positive, _log_standard_normal(relative), -np.inf)
        scales = rows * _sum(pt.log(lower[i][i]) for i in range(k))
        return Placed(pt.stack(moved, axis=-1).reshape(self.shape), own, scales, -half)

    def _moments(self, parameters: Sequence[Symbol]) -> tuple[Symbol, list[list[Symbol]]]:
        """Return the mean (rows, k), and the elements of the factor's lower triangle."""
        k, rows = self.n_columns, math.prod(self.shape) // self.n_columns
        mean, factor = pt.broadcast_to(parameters[0], self._rows_shape).reshape((rows, k)), parameters[1]
        return mean, [[factor[i, j] for j in range(i + 1)] for i in range(k)]

    def _relative(
        self, noise: Symbol, constants: Symbol, mean: Symbol, lower: list[list[Symbol]]
    ) -> tuple[list[Symbol], Symbol]:
        """Return t (rows,) column by column, and the sum of ``log Rᵢᵢ``."""
        k, size = self.n_columns, math.prod(self.shape)
        rows = size // k
        weights = constants[: size * k].reshape((rows, k, k))
        pulls = constants[size * k : size * (k + 1)].reshape((rows, k))
        weighted = [[_sum(weights[:, i, m] * lower[m][j] for m in range(j, k)) for j in range(k)] for i in range(k)]
        inner = [
            [float(i == j) + _sum(lower[m][i] * weighted[m][j] for m in range(i, k)) for j in range(k)]
            for i in range(k)
        ]
        root = _unrolled_cholesky(inner)
        held = [pulls[:, i] - _sum(weights[:, i, m] * mean[:, m] for m in range(k)) for i in range(k)]
        right = [_sum(lower[m][i] * held[m] for m in range(i, k)) for i in range(k)]
        forward = _solved_forward(root, right)
        relative = _solved_backward(root, [a + noise[:, i] for i, a in enumerate(forward)])
        return relative, _sum(pt.log(root[i][i]) for i in range(k)).sum()

    def moment_vector(self) -> Symbol:
        """Return the mean and the factor at the values, one after the other."""
        mean, factor = self.parameters
        return pt.concatenate([pt.broadcast_to(mean, self._rows_shape).ravel(), factor.ravel()])


@dataclass(frozen=True, eq=False)
class ChartedRowsNoise(ChartedRows):
    """Standard Normals of which the model reads ``μ + L·noise`` for each row: t of the chart of these effects.

    The rows of the effects may be columns of the noise.
    """

    by_columns: bool = False

    is_noise = True

    @property
    def n_columns(self) -> int:
        """K."""
        return self.shape[0] if self.by_columns else self.shape[-1]

    @property
    def _rows_shape(self) -> tuple[int, ...]:
        """Of the noise, row by row."""
        return self.shape[::-1] if self.by_columns else self.shape

    def place(self, z: Symbol, constants: Symbol, parameters: Sequence[Symbol]) -> Placed:
        """Place the variable at z; the constants (n_constants,) are all W and then all b."""
        mean, lower = self._moments(parameters)
        relative, half = self._relative(self.by_rows(z), constants, mean, lower)
        value = self.by_rows(pt.stack(relative, axis=-1))
        return Placed(value, _log_standard_normal(relative), pt.zeros(()), -half)

    def by_rows[Values: (Symbol, NDArray[Any])](self, values: Values) -> Values:
        """Put values of the variable's shape row by row, or put them back."""
        return values.T if self.by_columns else values


def _log_standard_normal(columns: Sequence[Symbol]) -> Symbol:
    """Return the summed log density of standard Normals, given column by column."""
    return (-0.5 * _sum(t**2 for t in columns) - 0.5 * len(columns) * math.log(2.0 * math.pi)).sum()


def _sum(terms: Iterable[Symbol]) -> Symbol:
    """Sum at least one term."""
    return functools.reduce(operator.add, terms)


def _unrolled_cholesky(matrix: list[list[Symbol]]) -> list[list[Symbol]]:
    """Return the lower Cholesky factor of a small matrix whose elements are vectors over rows."""
    root: list[list[Symbol]] = []
    for i, row in enumerate(matrix):
        root.append([])
        for j in range(i + 1):
            rest = row[j] - _sum(root[i][m] * root[j][m] for m in range(j)) if j else row[j]
            root[i].append(pt.sqrt(rest) if i == j else rest / root[j][j])
    return root


def _solved_forward(root: list[list[Symbol]], right: list[Symbol]) -> list[Symbol]:
    """Return ``R⁻¹ right``."""
    found: list[Symbol] = []
    for i, value in enumerate(right):
        rest = value - _sum(root[i][m] * found[m] for m in range(i)) if i else value
        found.append(rest / root[i][i])
    return found


def _solved_backward(root: list[list[Symbol]], right: list[Symbol]) -> list[Symbol]:
    """Return ``R⁻ᵀ right``."""
    k = len(right)
    found: dict[int, Symbol] = {}
    for i in reversed(range(k)):
        rest = right[i] - _sum(root[m][i] * found[m] for m in range(i + 1, k)) if i + 1 < k else right[i]
        found[i] = rest / root[i][i]
    return [found[i] for i in range(k)]


def charted_variables(
    model: pm.Model, variables: Sequence[TensorVariable], shapes: Mapping[TensorVariable, tuple[int, ...]]
) -> list[Charted]:
    """Find the sampled variables that a chart moves relative to others, parents before children."""
    found: list[Charted] = []
    for variable in variables:
        made = _charted(model, variable, variables, shapes[variable])
        if made is not None:
            found.append(made)
    return _parents_first([*found, *_charted_noise(model, variables, shapes, found)])


def _charted(
    model: pm.Model, variable: TensorVariable, variables: Sequence[TensorVariable], shape: tuple[int, ...]
) -> Charted | None:
    """Chart one variable, if others move it and its distribution is one of those that are placed."""
    family = family_of(model, variable)
    rows = _rows(variable, shape) if model.rvs_to_transforms[variable] is None else None
    parameters = rows if family is None else variable.owner.op.dist_params(variable.owner)
    if parameters is None or 0 in shape:
        return None
    parents = _movers(model, variable, variables, parameters)
    if not parents:
        return None
    valued, value = tuple(model.replace_rvs_by_values(list(parameters))), model.rvs_to_values[variable]
    if family is None:
        return ChartedRows(variable, value, valued, parents, shape)
    return ChartedVariable(variable, value, valued, parents, shape, family)


def _movers(
    model: pm.Model, variable: TensorVariable, variables: Sequence[TensorVariable], parameters: Iterable[Symbol]
) -> tuple[str, ...]:
    """Return the names of the other variables that move some expressions."""
    return tuple(
        str(other.name).removesuffix("_rotated_") for other in variables
        if other is not variable and any(reaches_by_value(p, [other], {}, model.basic_RVs) for p in parameters)
    )  # fmt: skip


def _charted_noise(
    model: pm.Model, variables: Sequence[TensorVariable], shapes: Mapping[TensorVariable, tuple[int, ...]],
    charted: Sequence[Charted],
) -> list[Charted]:  # fmt: skip
    """Chart noise of effects in their non-centred form, unless it moves the variables that move these effects."""
    known, found = {each.variable for each in charted}, list[Charted]()
    above = {str(each.variable.name): set(each.parents) for each in charted}
    reader = NonCentredReader(model, variables)
    for variable in variables:
        made = None if variable in known else _noise(model, variable, variables, shapes[variable], reader)
        if made is None or any(str(variable.name) in _all_above(parent, above) for parent in made.parents):
            continue
        above[str(variable.name)] = set(made.parents)
        found.append(made)
    return found


def _all_above(name: str, above: Mapping[str, set[str]]) -> set[str]:
    """Return the names of a variable and of all that moves it, however far up."""
    found, waiting = set[str](), [name]
    while waiting:
        at = waiting.pop()
        if at not in found:
            found.add(at)
            waiting += above.get(at, ())
    return found


def _noise(
    model: pm.Model, variable: TensorVariable, variables: Sequence[TensorVariable], shape: tuple[int, ...],
    reader: NonCentredReader,
) -> Charted | None:  # fmt: skip
    """Chart one variable as noise, if nothing moves it and the model reads effects in its place."""
    family = family_of(model, variable)
    if family is None or family.standard is None or math.prod(shape) < 2 or model.rvs_to_transforms[variable]:
        return None
    effects = reader.effects(variable, shape)
    if effects is None:
        return None
    read = (effects.location, effects.scale)
    parents, value = _movers(model, variable, variables, read), model.rvs_to_values[variable]
    if not effects.are_rows:
        own = variable.owner.op.dist_params(variable.owner)
        valued = tuple(model.replace_rvs_by_values([*read, *own]))
        return ChartedNoise(variable, value, valued, parents, shape, family)
    n_columns = shape[0] if effects.by_columns else shape[1]
    if not 1 < n_columns <= MOST_COLUMNS or family.name != "Normal" or not is_standard_normal(model, variable):
        return None
    valued = tuple(model.replace_rvs_by_values(list(read)))
    return ChartedRowsNoise(variable, value, valued, parents, shape, effects.by_columns)


def _rows(variable: TensorVariable, shape: tuple[int, ...]) -> tuple[Symbol, Symbol] | None:
    """Return mean and factor of an MvNormal of few columns; None for anything else."""
    op = variable.owner.op
    if not isinstance(op, MvNormalRV) or not 1 < shape[-1] <= MOST_COLUMNS:
        return None
    mean, covariance = op.dist_params(variable.owner)
    matrix, root = root_of(covariance)
    if matrix.ndim != 2 or root == "precision":
        return None
    return mean, matrix if root == "cholesky" else cholesky(matrix, on_error="nan")


def _parents_first(charted: Sequence[Charted]) -> list[Charted]:
    """Order variables so that everything that moves a variable comes before it."""
    waiting, ordered = list(charted), []
    while waiting:
        names = {str(each.variable.name) for each in waiting}
        ready = [each for each in waiting if not names & set(each.parents)]
        assert ready, "a model's graph has no cycles"
        ordered += ready
        waiting = [each for each in waiting if each not in ready]
    return ordered


class Placement(NamedTuple):
    """All variables as functions of the chart's coordinates, and the sums of `Placed`.

    `values` has the expressions by value variables, and `own` the log densities by random variables.
    """

    values: dict[Symbol, Symbol]
    own: dict[Symbol, Symbol]
    scales: Symbol
    log_jacobian: Symbol


def place(charted: Sequence[Charted], coordinates: dict[Symbol, Symbol], constants: Symbol) -> Placement:
    """Place charted variables, parents first, given coordinates and the constants of all their charts in one vector.

    The coordinates are z by value variables, each of the value's shape, and the values of all other variables.
    """
    values, own = dict(coordinates), {}
    scales, jacobian, start = pt.zeros(()), pt.zeros(()), 0
    for each in charted:
        parameters = replaced(each.parameters, values)
        placed = each.place(coordinates[each.value], constants[start : start + each.n_constants], parameters)
        start += each.n_constants
        values[each.value] = placed.value
        if placed.own is not None:
            own[each.variable] = placed.own
        scales, jacobian = scales + placed.scales, jacobian + placed.log_jacobian
    return Placement(values, own, scales, jacobian)
