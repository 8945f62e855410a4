"""The Fisher information of any model as a matrix in its value variables, read from its graph.

Each random variable adds ``Jᵀ F J``: F is the information of its family about parameters a, and ``J = ∂a/∂θ``. A free
variable x with a location ℓ has a density of ``x - ℓ``: x then counts as a parameter too, with ``∂(ℓ - x)/∂θ`` in J.
The block of x, the cross block and the block of the parents of ℓ come of the same term,

    x ~ N(μ, σ):    r = μ - x,    G += ∂rᵀ∂r/σ² + 2 (∂ log σ)ᵀ(∂ log σ).

Ordered parents first, J of these terms is triangular, with 1 on its diagonal: G is positive definite wherever every
free variable has such a term. A free variable of another family, which no other moves, adds the SoftAbs of the second
derivatives of its own log density, one for each value: ``λ coth(αλ)``, never less than 1/α.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.multivariate import ZeroSumNormalRV
from pymc.distributions.timeseries import AutoRegressiveRV, RandomWalkRV
from pytensor.gradient import pushforward
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace, vectorize_graph
from pytensor.graph.traversal import graph_inputs, toposort
from pytensor.tensor.linalg.decomposition.cholesky import cholesky
from pytensor.tensor.linalg.solvers.triangular import solve_triangular
from pytensor.tensor.math import Prod
from pytensor.tensor.random.basic import DirichletRV, MvNormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import ConfigurationError
from pymc_rmhmc.model.general.information_families import (
    INFORMATION,
    SCALES,
    Information,
    InformationRow,
    log_of,
    log_probabilities,
)
from pymc_rmhmc.model.general.information_of_zeros import extra_zeros_of, information_of_zeros
from pymc_rmhmc.model.graph.graphs import (
    NO_DERIVATIVE,
    PYTHON_MODE,
    inlined,
    is_of_dims,
    no_derivative_in_words,
    reaches,
    substitute,
)
from pymc_rmhmc.model.graph.source_code import distribution_of
from pymc_rmhmc.model.hyperparameters import Hyperparameters
from pymc_rmhmc.model.likelihoods.registry import read_likelihood

__all__ = ["SOFTABS_ALPHA", "InformationGraph", "fisher_information", "information_form"]

type Symbol = TensorVariable
type Places = NDArray[np.int64]
type Shape = tuple[Symbol | int, ...]

# Of the second derivatives of a prior that has no registered information: no less than 1/α is left of any, as of a
# prior with standard deviation √α = 10 on the scale of the value variable.
SOFTABS_ALPHA = 100.0
# Below this |αλ| the series 1 + (αλ)²/3 serves for αλ coth(αλ).
SMALL = 1e-3
# Priors without any curvature, with which a metric can be singular, and what to write instead.
FLAT = {"Flat": "pm.Normal('{}', 0, 10)", "HalfFlat": "pm.HalfNormal('{}', 10)"}
# Transforms that act on each value alone.
ELEMENTWISE = (
    "", "LogTransform", "LogOddsTransform", "Interval", "LogExpM1", "CircularTransform",
)  # fmt: skip
INSTEAD = 'Use RMHMC(metric="softabs"), which reads the log density alone, or RMHMC(metric="flat")'


@dataclass(frozen=True)
class InformationGraph:
    """G as graphs of θ."""

    matrix: Symbol  # (d, d), symmetric to the last digit
    # From a symbolic vector u (d,) to ``uᵀ G u``. It takes derivatives along u alone: of n observations in d values it
    # costs O(dn), where the matrix costs O(d²n).
    form: Callable[[Symbol], Symbol]


def fisher_information(model: pm.Model, packed: Hyperparameters) -> InformationGraph:
    """Return G (d, d), the information of the observed and of the free variables, as graphs of θ.

    The variables that θ packs are sampled, and the others count as known. G is positive definite wherever the model has
    a density.

    Raises a `ConfigurationError` if a random variable or a potential depends on θ in a way that is not registered, if
    PyTensor cannot differentiate it, or if a free variable has no curvature of its own.
    """
    reader = _Reader(model, packed)
    reader.read_all()
    return InformationGraph(reader.total(), reader.form)


def information_form(
    model: pm.Model, packed: Hyperparameters, process: TensorVariable, replaced: dict[Symbol, Symbol], *, metric: str
) -> tuple[Callable[[Symbol], Symbol], tuple[str, ...]]:
    """Return ``u -> uᵀ G u`` of all variables but a process, as graphs of the process's values and the others.

    And the names of the variables whose prior adds the SoftAbs of its curvature, which need not be positive. The own
    prior of the process is not counted. `replaced` maps the node at which the model reads the process, and the symbolic
    values of `packed` that take its place. It raises as `fisher_information` does.
    """
    reader = _Reader(model, packed, replaced=replaced, metric=metric, of_process=True)
    reader.read_all(apart=process)
    return reader.form, tuple(reader.softened)


@dataclass
class _Reader:
    """Collects the terms of G."""

    # `model`, `packed`: the model, and θ.
    model: pm.Model
    packed: Hyperparameters
    # List of (places, places, block): rows and columns of G, and what is added there.
    blocks: list[tuple[Places, Places, Symbol]] = field(default_factory=list)
    # Each the same number ``uᵀ block u``, of a vector u, of the blocks of a term.
    forms: list[Callable[[Symbol], Symbol]] = field(default_factory=list)
    softened: list[str] = field(default_factory=list)  # the variables whose own curvature is in SoftAbs form
    # Nodes of the model, and the symbols of values that stand for them.
    replaced: dict[Symbol, Symbol] = field(default_factory=dict)
    metric: str = "FisherMetric"  # what messages call the metric
    # Whether forms alone are asked for, no blocks, and the likelihoods' closed forms where no parameter moves.
    of_process: bool = False

    def __post_init__(self) -> None:
        # All is written in the value variables; θ takes their places at the end.
        self._values = list(self.packed.parts)
        self._name = ""

    # ------------------------------------------------------------------------------- what is read

    def read_all(self, apart: Symbol | None = None) -> None:
        """Add the terms of all variables but one."""
        for variable in filter(is_of_dims, self.model.basic_RVs):
            raise ConfigurationError(
                f"{variable.name} is a variable of pymc.dims, whose information {self.metric} does not read. "
                f"{INSTEAD}."
            )
        for potential in filter(self.depends, self.model.potentials):
            raise ConfigurationError(
                f'The potential "{potential.name}" is a log density whose expected information is not known, so '
                f"{self.metric} cannot count it. {INSTEAD}."
            )
        for variable in self.model.basic_RVs:
            if variable is apart:
                continue
            if variable in self.packed.variables:
                self.read_free(variable, self.packed.slices[self.packed.variables.index(variable)])
            elif any(self.depends(parameter) for parameter in variable.owner.inputs):
                self.read_known(variable)

    def depends(self, expression: Variable) -> bool:
        """Check whether an expression of random variables depends on sampled ones, through no other variable."""
        return reaches(expression, self.packed.variables, self.model.basic_RVs)

    def read_known(self, variable: Symbol) -> None:
        """Add the term of a variable that is observed, or moved by another step."""
        self._name = str(variable.name)
        self.read(variable, variable, _shape_of(self.model.rvs_to_values[variable]))

    def read_free(self, variable: Symbol, own: slice) -> None:
        """Add the term of a variable that is sampled, whose values are at `own` in θ."""
        self._name = str(variable.name)
        name, transform = distribution_of(variable), self.model.rvs_to_transforms[variable]
        if name in FLAT:
            raise ConfigurationError(
                f"{self._name} has a {name} prior, which has no curvature: the metric can be singular. Give it "
                f'a proper prior, such as {FLAT[name].format(self._name)}, or use RMHMC(metric="softabs").'
            )
        row, kind = INFORMATION.get(name), "" if transform is None else type(transform).__name__
        (value,) = self.valued([variable])
        if row is not None and row.location and SCALES[row.location] == kind:
            self._add_relative(self._information(row, variable), own, _shape_of(value))
        elif (row is not None and row.location not in ("", "interval")) or _structure_of(variable) is not None:
            self.read(variable, variable, _shape_of(value))
        elif any(self.depends(parameter) for parameter in variable.owner.inputs):
            raise self.unknown(name)
        else:
            self._add_own(variable, own, elementwise=variable.owner.op.ndim_supp == 0 and kind in ELEMENTWISE)

    def read(self, variable: Symbol, value: Symbol, shape: Shape) -> None:
        """Add the term of a distribution for a value of this shape, an expression of the model's random variables."""
        name, structure = distribution_of(variable), _structure_of(variable)
        row, zeros = INFORMATION.get(name), extra_zeros_of(variable)
        if structure is not None:
            structure(self, variable, value, shape)
        elif zeros is not None:
            self.add(information_of_zeros(zeros, *self.valued([zeros.weight, *zeros.parameters])), shape)
        elif row is None or row.location == "interval" or (self.of_process and self._has_known_parameters(variable)):
            self.add(self._of_likelihood(variable, name), shape)
        else:
            information = self._information(row, variable)
            if row.n_categories_axes:
                shape = (*shape, *_shape_of(information.parameters[0])[-row.n_categories_axes :])
            if row.location:
                (x,) = self.valued([_on_scale(value, row.location)])
                first, *rest = information.parameters
                information = Information([first - x, *rest], information.matrix)
            self.add(information, shape)

    def _information(self, row: InformationRow, variable: Symbol) -> Information:
        return row.at(*self.valued(variable.owner.op.dist_params(variable.owner)))

    def _has_known_parameters(self, variable: Symbol) -> bool:
        """Check whether a variable has a registered likelihood of which nothing is sampled but its predictor."""
        found = read_likelihood(variable)
        if found is None or "fisher" not in found[0].kinds:
            return False
        return not any(self.depends(parameter) for parameter in found[1].parameters.values())

    def _of_likelihood(self, variable: Symbol, name: str) -> Information:
        """Return F of a registered likelihood about its predictor alone; its other parameters must be known."""
        found = read_likelihood(variable)
        if found is None or "fisher" not in found[0].kinds:
            raise self.unknown(name)
        likelihood, reading = found
        if any(self.depends(parameter) for parameter in reading.parameters.values()):
            raise self.unknown(name, f" when {', '.join(reading.parameters)} is sampled too")
        predictor = reading.eta if reading.offset is None else reading.eta + reading.offset
        eta, *others = self.valued([predictor, *reading.parameters.values()])
        parameters = dict(zip(reading.parameters, others, strict=True))
        terms = likelihood.terms(eta, parameters, self.model.rvs_to_values[variable].astype("float64"))
        return Information([eta], [[terms.curvature["fisher"].weight]])

    def unknown(self, name: str, when: str = "") -> ConfigurationError:
        return ConfigurationError(
            f"{self._name}: the expected information of {name} is not registered{when}, so {self.metric} cannot count "
            f"this variable. {INSTEAD}."
        )

    def valued(self, expressions: Sequence[Symbol]) -> list[Symbol]:
        """Turn expressions of random variables into expressions of value variables, without compound operations."""
        tensors = substitute([pt.as_tensor_variable(each) for each in expressions], self.replaced, self.model)
        return _smooth(inlined([tensor.astype("float64") for tensor in tensors], ()))

    # ------------------------------------------------------------------------------- terms of G

    def add(self, information: Information, shape: Shape) -> None:
        """Add ``Jᵀ F J``, summed over the elements of an array."""
        self._add_blocks(information, shape)
        self.forms.append(lambda u: _form(information, [self.along(a, u) for a in information.parameters], shape))

    def _add_blocks(self, information: Information, shape: Shape) -> None:
        if self.of_process:
            return
        rows = [self.jacobian(a, shape) for a in information.parameters]
        for i, first in enumerate(rows):
            for j, second in enumerate(rows[: i + 1]):
                entry = information.matrix[i][j]
                if first is None or second is None or _is_zero(entry):
                    continue
                block = (first[1] * _ravelled(entry, shape)) @ second[1].T
                self.put(first[0], second[0], block, mirrored=i != j)

    def _add_relative(self, information: Information, own: slice, shape: Shape) -> None:
        """Add ``Jᵀ F J`` with ``ℓ - θ[own]`` as the first parameter: being 1 to 1 in θ, it needs no product."""
        self._add_blocks(information, shape)
        places = np.arange(own.start, own.stop)
        self.put(places, places, pt.diag(_ravelled(information.matrix[0][0], shape)))
        for parameter, entry in zip(information.parameters, information.matrix[0], strict=True):
            found = None if _is_zero(entry) else self.jacobian(parameter, shape)
            if found is not None:
                self.put(places, found[0], -(found[1] * _ravelled(entry, shape)).T, mirrored=True)

        def form(u: Symbol) -> Symbol:
            first, *rest = (self.along(a, u) for a in information.parameters)
            moved = u[own].reshape(shape)
            return _form(information, [-moved if first is None else first - moved, *rest], shape)

        self.forms.append(form)

    def _add_own(self, variable: Symbol, own: slice, *, elementwise: bool) -> None:
        """Add the SoftAbs of the second derivatives of a prior that nothing moves, one for each value."""
        value, which = self.model.rvs_to_values[variable], self.packed.variables.index(variable)
        try:
            (term,) = inlined(self.model.logp(vars=[variable], sum=False), ())
            # A density that is constant between its bounds does not read the value.
            slope = pt.grad(term.sum(), value, disconnected_inputs="ignore")
            second = pt.grad(slope.sum(), value, disconnected_inputs="ignore").ravel() if elementwise else None
        except NO_DERIVATIVE as error:
            raise self._no_derivative(error) from None
        if second is None:
            second = pt.diagonal(self._rows(slope.ravel(), [which]))
        places, curvature = np.arange(own.start, own.stop), _softabs(-second)
        self.put(places, places, pt.diag(curvature))
        self.softened.append(self._name)
        self.forms.append(lambda u: (curvature * u[own] ** 2).sum())

    def put(self, rows: Places, columns: Places, block: Symbol, *, mirrored: bool = False) -> None:
        self.blocks.append((rows, columns, block))
        if mirrored:
            self.blocks.append((columns, rows, block.T))

    def total(self) -> Symbol:
        """Return G, symmetric to the last digit."""
        found = pt.zeros((self.packed.size, self.packed.size))
        for rows, columns, block in self.blocks:
            found = pt.inc_subtensor(found[_at(rows, columns)], block)
        (placed,) = self.packed.place([found])
        return 0.5 * (placed + placed.T)

    def form(self, vector: Symbol) -> Symbol:
        """Return ``uᵀ G u``."""
        (placed,) = self.packed.place([pt.add(pt.zeros(()), *(form(vector) for form in self.forms))])
        return placed

    # ------------------------------------------------------------------------------- derivatives

    def jacobian(self, parameter: Symbol, shape: Shape) -> tuple[Places, Symbol] | None:
        """Return places and ``∂a/∂θ`` there, (places, elements), of a parameter a; None if it does not depend on θ."""
        found = self.derivative(parameter)
        if found is None:
            return None
        places, rows = found
        new_axes = range(1, 1 + len(shape) - parameter.ndim)
        whole = pt.broadcast_to(pt.expand_dims(rows, list(new_axes)), (places.size, *shape))
        return places, whole.reshape((places.size, -1))

    def derivative(self, parameter: Symbol) -> tuple[Places, Symbol] | None:
        """Return the same as `jacobian`, but in the parameter's shape with one more axis in front."""
        held = [i for i, value in enumerate(self._values) if reaches(parameter, [value])]
        if not held:
            return None
        places = np.concatenate([np.arange(self.packed.slices[i].start, self.packed.slices[i].stop) for i in held])
        return places, self._rows(parameter, held)

    def along(self, expression: Symbol, vector: Symbol) -> Symbol | None:
        """Return the derivative of an expression along a vector of θ's size, in its shape; None if θ is not in it."""
        held = [i for i, value in enumerate(self._values) if reaches(expression, [value])]
        if not held:
            return None
        slope, along = self._slope(expression, held)
        parts = [vector[self.packed.slices[i]].reshape(self.packed.shapes[i]) for i in held]
        (found,) = clone_replace([slope], dict(zip(along, parts, strict=True)))
        return found

    def _slope(self, expression: Symbol, held: Sequence[int]) -> tuple[Symbol, list[Symbol]]:
        """Return the derivative of an expression along directions of some value variables, and these directions."""
        values = [self._values[i] for i in held]
        along = [value.type() for value in values]
        try:
            return pushforward(expression, values, along, disconnected_outputs="ignore"), along
        except NO_DERIVATIVE as error:
            raise self._no_derivative(error) from None

    def _rows(self, expression: Symbol, held: Sequence[int]) -> Symbol:
        """Return the derivatives of an expression along each element of some value variables, on an axis in front."""
        shapes = [self.packed.shapes[i] for i in held]
        sizes = [math.prod(shape) for shape in shapes]
        slope, along = self._slope(expression, held)
        basis = np.split(np.eye(sum(sizes)), np.cumsum(sizes)[:-1], axis=1)
        many = [pt.constant(part.reshape((-1, *shape))) for part, shape in zip(basis, shapes, strict=True)]
        rows = _folded(vectorize_graph(slope, dict(zip(along, many, strict=True))))
        return rows if rows.ndim > expression.ndim else pt.zeros((sum(sizes), *_shape_of(expression)))

    def _no_derivative(self, error: Exception) -> ConfigurationError:
        why = no_derivative_in_words(f"what {self._name} depends on", error)
        return ConfigurationError(f"{why}. {self.metric} needs its derivative. Use RMHMC(metric=\"flat\").")


# --------------------------------------------------------------------------- distributions of vectors


def _mv_normal(reader: _Reader, variable: Symbol, value: Symbol, shape: Shape) -> None:
    """Add ``½ tr(C⁻¹∂ᵢC C⁻¹∂ⱼC) + ∂ᵢrᵀ C⁻¹ ∂ⱼr`` with ``r = μ - x``, by one factor of C."""
    mean, covariance = variable.owner.op.dist_params(variable.owner)
    residual, covariance = reader.valued([mean - value, covariance])
    size = covariance.shape[-1]
    inverse = solve_triangular(cholesky(covariance, on_error="nan"), pt.eye(size), lower=True, b_ndim=2)
    found, moved = reader.jacobian(residual, shape), reader.derivative(covariance)
    if found is not None:
        places, rows = found
        scaled = (inverse @ rows.T.reshape((*shape, places.size))).reshape((-1, places.size))
        reader.put(places, places, scaled.T @ scaled)
        reader.forms.append(lambda u: _squares(inverse @ _broadcast(reader.along(residual, u), shape)[..., None]))
    if moved is not None:
        places, slopes = moved
        scaled = (inverse @ slopes @ pt.swapaxes(inverse, -1, -2)).reshape((places.size, -1))
        n_vectors = pt.prod(pt.stack([*shape[:-1], 1])) / pt.prod(covariance.shape[:-2])
        reader.put(places, places, 0.5 * n_vectors * (scaled @ scaled.T))
        reader.forms.append(
            lambda u: 0.5 * n_vectors * _squares(inverse @ reader.along(covariance, u) @ pt.swapaxes(inverse, -1, -2))
        )


def _random_walk(reader: _Reader, variable: Symbol, value: Symbol, shape: Shape) -> None:
    """Add the terms of the first value, and of each step from one value to the next."""
    first, steps, *_ = variable.owner.op.dist_params(variable.owner)
    axis = variable.ndim - variable.owner.op.ndim_supp
    others = (*shape[:axis], *shape[axis + 1 :])
    walked = pt.moveaxis(value, axis, 0)  # as both distributions have it
    reader.read(first, walked[:1], (1, *others))
    reader.read(steps, walked[1:] - walked[:-1], (shape[axis] - 1, *others))


def _autoregression(reader: _Reader, variable: Symbol, value: Symbol, shape: Shape) -> None:
    """Add the terms of the first values, and of each value given those before it."""
    op = variable.owner.op
    rhos, sigma, first, *_ = op.dist_params(variable.owner)
    order, *others = op.ar_order, *shape[:-1]
    lags = [value[..., order - 1 - k : -1 - k] for k in range(order)]
    weights = [rhos[..., k, None] for k in range(order + op.constant_term)]
    mean = weights.pop(0) if op.constant_term else pt.zeros(())
    residual = value[..., order:] - pt.add(mean, *(w * lag for w, lag in zip(weights, lags, strict=True)))
    residual, sigma = reader.valued([residual, sigma[..., None]])
    matrix = [[1.0 / sigma**2, 0.0], [0.0, 2.0]]
    reader.add(Information([residual, log_of(sigma)], matrix), (*others, shape[-1] - order))
    reader.read(first, value[..., :order], (*others, order))


def _zero_sum_normal(reader: _Reader, variable: Symbol, value: Symbol, shape: Shape) -> None:
    """Add ``1/σ²`` for the values, and for log σ 2 per free value: ``(k - 1)/k`` of all in each axis of sums 0."""
    value, sigma = reader.valued([value, variable.owner.op.dist_params(variable.owner)[0]])
    share = pt.prod(pt.stack([1.0 - 1.0 / k for k in shape[len(shape) - variable.owner.op.ndim_supp :]]))
    reader.add(Information([value, log_of(sigma)], [[1.0 / sigma**2, 0.0], [0.0, 2.0 * share]]), shape)


def _dirichlet(reader: _Reader, variable: Symbol, value: Symbol, shape: Shape) -> None:
    """Add ``a₀²/(a₀ + 1) (diag m - mmᵀ)`` for log x, with ``m = a/a₀`` and ``a₀ = Σ a``, which nothing may move."""
    (a,) = variable.owner.op.dist_params(variable.owner)
    if reader.depends(a):
        raise reader.unknown("Dirichlet", " when its concentration is sampled too")
    value, a = reader.valued([value, a])
    total = a.sum(axis=-1, keepdims=True)
    log_x = log_probabilities(value)
    centred = log_x - (a / total * log_x).sum(axis=-1, keepdims=True)
    reader.add(Information([centred], [[total * a / (total + 1.0)]]), shape)


STRUCTURES: tuple[tuple[type, Callable[[_Reader, Symbol, Symbol, Shape], None]], ...] = (
    (MvNormalRV, _mv_normal), (RandomWalkRV, _random_walk), (AutoRegressiveRV, _autoregression),
    (ZeroSumNormalRV, _zero_sum_normal), (DirichletRV, _dirichlet),
)  # fmt: skip


def _structure_of(variable: Symbol) -> Callable[[_Reader, Symbol, Symbol, Shape], None] | None:
    """Return what adds the term of a vector's distribution; None if there is none."""
    return next((add for kind, add in STRUCTURES if isinstance(variable.owner.op, kind)), None)


# ------------------------------------------------------------------------------------------ small parts


def _smooth(expressions: Sequence[Symbol]) -> list[Symbol]:
    """Replace products over an axis so that they have second derivatives, where no factor is 0."""
    rewritten: dict[Variable, Variable] = {}
    for node in toposort(list(expressions)):
        inputs = [rewritten.get(i, i) for i in node.inputs]
        if isinstance(node.op, Prod) and not node.op.no_zeros_in_input:
            op = node.op
            product = Prod(axis=op.axis, dtype=op.dtype, acc_dtype=op.acc_dtype, no_zeros_in_input=True)
            rewritten[node.outputs[0]] = product(*inputs)
        elif any(new is not old for new, old in zip(inputs, node.inputs, strict=True)):
            outputs = node.clone_with_new_inputs(inputs, strict=False).outputs
            rewritten |= dict(zip(node.outputs, outputs, strict=True))
    return [rewritten.get(each, each) for each in expressions]


def _shape_of(value: Symbol) -> Shape:
    """Return the lengths of an array's axes; numbers where the graph has them."""
    return tuple(n if n is not None else value.shape[i] for i, n in enumerate(value.type.shape))


def _at(rows: Places, columns: Places) -> tuple[object, object]:
    """Return the indices of a block; slices where the places follow one another."""
    first, second = (_slice_of(places) for places in (rows, columns))
    if first is not None and second is not None:
        return first, second
    return rows[:, None], columns[None, :]


def _slice_of(places: Places) -> slice | None:
    is_run = places.size == 0 or places[-1] - places[0] + 1 == places.size
    return slice(int(places[0]), int(places[-1]) + 1) if is_run and places.size else None


def _is_zero(entry: Symbol | float) -> bool:
    return not isinstance(entry, Variable) and entry == 0.0


def _form(information: Information, slopes: Sequence[Symbol | None], shape: Shape) -> Symbol:
    """Return ``Σ aᵀ F a`` over the elements of an array, a being the slopes of a family's parameters."""
    total = pt.zeros(())
    for i, first in enumerate(slopes):
        for j, second in enumerate(slopes[: i + 1]):
            entry = information.matrix[i][j]
            if first is None or second is None or _is_zero(entry):
                continue
            summed = _broadcast(first * second * entry, shape).sum()
            total += summed if i == j else 2.0 * summed
    return total


def _squares(expression: Symbol) -> Symbol:
    """Sum the squares."""
    return (expression**2).sum()


def _broadcast(expression: Symbol, shape: Shape) -> Symbol:
    return pt.broadcast_to(expression, shape)


def _folded(expression: Symbol) -> Symbol:
    """Replace an expression of constants by its value: PyTensor would compute long ones at every call."""
    if not all(isinstance(each, Constant) for each in graph_inputs([expression])):
        return expression
    return pt.constant(pytensor.function([], expression, mode=PYTHON_MODE)())


def _ravelled(entry: Symbol | float, shape: Shape) -> Symbol:
    """Return an entry of F for every element, (elements,)."""
    return pt.broadcast_to(pt.as_tensor(entry, dtype="float64"), shape).ravel()


def _on_scale(value: Symbol, scale: str) -> Symbol:
    """Transform a value to the scale of its location."""
    if scale == "log":
        return pt.log(value)
    return pt.log(value) - pt.log1p(-value) if scale == "logit" else value


def _softabs(curvature: Symbol) -> Symbol:
    """Return ``λ coth(αλ)``: smooth, about ``|λ|``, and 1/α at 0."""
    scaled = SOFTABS_ALPHA * curvature
    is_small = pt.abs(scaled) < SMALL
    safe = pt.switch(is_small, 1.0, scaled)
    return pt.switch(is_small, 1.0 + scaled**2 / 3.0, safe / pt.tanh(safe)) / SOFTABS_ALPHA
