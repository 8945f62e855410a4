"""A Gaussian vector and its hyperparameters as functions of both: a process with a dense covariance, or a series.

The vector is s, whatever the model's predictors read, however it is written. What is compiled is what its prior is made
of, as expressions of θ with two derivatives, and the rest of the log density with its information. Factors stay
outside, in closed form: see `process_density` and `series` in `pymc_rmhmc.metrics.processes`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.gradient import disconnected_grad, pushforward
from pytensor.graph.replace import clone_replace, vectorize_graph
from pytensor.tensor.variable import TensorVariable
from scipy.signal import lfilter

from pymc_rmhmc.errors import ConfigurationError, UnsupportedModelError, listed
from pymc_rmhmc.model.forms import FORMS, form_of
from pymc_rmhmc.model.forms.priors import GAUSSIAN_VECTORS, FirstOrder, LatentVariable, first_order
from pymc_rmhmc.model.general.density import PackedModel, gradient_of, twice
from pymc_rmhmc.model.general.information import information_form
from pymc_rmhmc.model.graph.graphs import NO_DERIVATIVE, inlined, no_derivative_in_words, reaches, substitute
from pymc_rmhmc.model.hyperparameters import GraphFunction, Hyperparameters
from pymc_rmhmc.model.observed.observation import Observation
from pymc_rmhmc.model.observed.unregistered_readers import log_density_at
from pymc_rmhmc.model.structure import LatentBlock

__all__ = ["LatentModel", "ProcessModel", "SeriesModel"]

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]
type Symbol = TensorVariable

# Of what a matrix without off-diagonal entries may differ from its diagonal by rounding.
MOST_ROUNDING = 1e-9
# How far from the start the information is looked at: what is 0 there may be so by chance.
LOOKED_AT = 0.3


class _ProcessValues(Hyperparameters):
    """The process's values s and θ as one vector; a whitened process has its s in the place of its own values."""

    def __init__(self, model: pm.Model, variables: Sequence[Symbol], point: Point, *, whitened: bool) -> None:
        super().__init__(model, variables, point)
        if whitened:
            own, *others = self.parts
            values = own.type("process")
            self.parts = {values: self.parts[own]} | {value: self.parts[value] for value in others}


class LatentModel(PackedModel, ABC):
    """A Gaussian vector of n values s and d hyperparameters θ, as functions of x = (s, θ) or of θ alone.

    The block is one vector and its observations. Shapes are taken at the point, and the information is looked at there.

    Raises a `ConfigurationError` if the information of a variable is not known, and an `UnsupportedModelError` if an
    observation reads several values of the process, or PyTensor has no derivative.

    Attributes
    ----------
    variables : Hyperparameters
        The model's own value variables as one vector, those of the process first.
    n_process, n_theta : int
        The numbers n and d.
    whitened : bool
        Whether the model's values are ``L⁻¹ s``, and not s itself.
    is_series : bool
        Whether the prior is that of a series.
    moving : (k,) int array
        The coordinates of θ that move the prior of s.
    pairs : (k (k + 1) / 2, 2) int array
        The pairs of `moving` along which second derivatives are taken.
    softened, shares, moves_mean : tuple of str
        The hyperparameters whose prior adds the SoftAbs of its curvature; about which the likelihood has information
        that it shares with s; and that move the mean of s.
    rest : GraphFunction
        ``x -> (log density without the prior of s, gradient (n + d,))``.
    information : GraphFunction
        ``x -> (w (n,), C (n, d), R (d, d))``: what the rest says of s, a diagonal, of s with θ and of θ.
    information_pull : GraphFunction
        ``(x, w̄, C̄, R̄) -> (n + d,)``.
    prior, prior_curvature : GraphFunction
        From θ to what the prior is made of and its derivatives by the moving coordinates; and to the second
        derivatives, one for each of the pairs.
    """

    is_series = False
    # What messages call what the prior is made of.
    _what: str

    def __init__(
        self, model: pm.Model, block: LatentBlock, hyperparameters: Sequence[Symbol], point: Point, metric: str
    ) -> None:
        (latent,) = block.latents
        variables = [latent.variable, *hyperparameters]
        super().__init__(model, variables, point)
        self._metric, self.whitened = metric, latent.form == "whitened"
        self.n_process = self.variables.slices[0].stop
        self.n_theta = self.variables.size - self.n_process
        theta = Hyperparameters(model, hyperparameters, point)
        values = _ProcessValues(model, variables, point, whitened=self.whitened)
        self._compile_prior(model, latent, theta)
        shape, source = block.latent_readers(model)[0].source_shape(point), latent.source
        replaced = {source: pt.specify_shape(next(iter(values.parts)).reshape(shape), source.type.shape)}
        self._compile_rest(model, block, values, replaced)
        form, self.softened = information_form(model, values, latent.variable, replaced, metric=metric)
        product = self._compile_information(model, values, form)
        self.functions = (self.rest, self.information, self.information_pull, self.prior, self.prior_curvature)
        self.bind(point)
        self._look(product, theta, point)

    @abstractmethod
    def _made_of(self, latent: LatentVariable) -> list[tuple[Symbol, tuple[int, ...]]]:
        """Return the expressions of which the prior of s is made, and the shape of each."""

    @abstractmethod
    def _mean(self, theta: Array) -> tuple[Array, Array]:
        """Return the mean of s (n,), and how the moving coordinates move it (k, n): all 0 for those that do not."""

    def _compile_prior(self, model: pm.Model, latent: LatentVariable, theta: Hyperparameters) -> None:
        """Compile what the prior is made of, with its derivatives."""
        symbol, made_of = theta.symbol, self._made_of(latent)
        expressions, shapes = [each for each, _ in made_of], [shape for _, shape in made_of]
        self.moving = np.flatnonzero(theta.read_by(expressions, model))
        first, second = np.triu_indices(self.moving.size)
        self.pairs = np.stack([first, second], axis=1)
        basis = np.eye(theta.size)[self.moving]
        along, across = pt.dvector("along", shape=(theta.size,)), pt.dvector("across", shape=(theta.size,))
        found, slopes, curvatures = inlined(theta.substitute(expressions, model), ()), [], []
        for expression, shape in zip(found, shapes, strict=True):
            slope = self._slope(expression, symbol, along)
            slopes.append(_each(slope, {along: basis}, (self.moving.size, *shape)))
            curvature = self._slope(slope, symbol, across)
            many = {along: basis[first], across: basis[second]}
            curvatures.append(_each(curvature, many, (first.size, *shape)))
        self.prior = GraphFunction(model, [symbol], [*found, *slopes])
        self.prior_curvature = GraphFunction(model, [symbol], curvatures)

    def _slope(self, expression: Symbol, symbol: Symbol, along: Symbol) -> Symbol:
        """Return the derivative of an expression along a direction."""
        try:
            found: Symbol = pushforward(expression, [symbol], [along], disconnected_outputs="ignore")
        except NO_DERIVATIVE as error:
            why = no_derivative_in_words(f"{self._what} by its hyperparameters", error)
            raise UnsupportedModelError(
                f"{why}. The {self._metric} metric needs its second derivatives. Write the operation with PyTensor's "
                'functions, or give RMHMC(metric="flat"), which needs the gradient alone.'
            ) from None
        return found

    def _compile_rest(
        self, model: pm.Model, block: LatentBlock, values: Hyperparameters, replaced: dict[Symbol, Symbol]
    ) -> None:
        """Compile the log density without the prior of s, and its gradient."""
        (latent,) = block.latents
        read = {o.variable for o in block.observations}
        others = [
            v for v in (*model.basic_RVs, *model.potentials) if v is not latent.variable and v not in read
        ]
        strange = [v for v in others if reaches(v, [latent.variable], model.basic_RVs)]
        if strange:
            raise UnsupportedModelError(
                f"{listed([str(v.name) for v in strange])} depends on {latent.name} and is no likelihood that RMHMC "
                f'reads, so the {self._metric} metric cannot count it. Use RMHMC(metric="softabs").'
            )
        total = pt.zeros(()) if not others else model.logp(vars=others, sum=True).astype("float64")
        along = total
        for observation in block.observations:
            density, changing = _log_density(model, observation, replaced)
            total, along = total + density, along + changing
        total, along = values.place([total, along])
        self.rest = GraphFunction(model, [values.symbol], [total, gradient_of(along, values.symbol)])

    def _compile_information(
        self, model: pm.Model, values: Hyperparameters, form: Callable[[Symbol], Symbol]
    ) -> GraphFunction:
        """Compile W, C and R: products of the rest's information with 1 in all of s, and with each coordinate of θ.

        Returns
        -------
        GraphFunction
            ``(x, u) -> (information times u,)``.
        """
        n, d, x = self.n_process, self.n_theta, values.symbol
        u = pt.dvector("u", shape=(n + d,))
        product = 0.5 * twice(form(u), u)
        basis = np.hstack([np.zeros((d, n)), np.eye(d)])
        ones = np.concatenate([np.ones(n), np.zeros(d)])
        (weight,) = clone_replace([product], {u: pt.constant(ones)})
        rows = _each(product, {u: basis}, (d, n + d))
        outputs = [weight[:n], rows[:, :n].T, rows[:, n:]]
        bars = [pt.dvector("weight_bar"), pt.dmatrix("cross_bar"), pt.dmatrix("theta_bar")]
        total = sum(((o * bar).sum() for o, bar in zip(outputs, bars, strict=True)), pt.zeros(()))
        self.information = GraphFunction(model, [x], outputs)
        self.information_pull = GraphFunction(model, [x, *bars], [twice(total, x)])
        return GraphFunction(model, [x, u], [product])

    def _look(self, product: GraphFunction, theta: Hyperparameters, point: Point) -> None:
        """Check that the information of s is a diagonal; find which of θ share in it, and which move the mean."""
        n, rng = self.n_process, np.random.default_rng(0)
        product.bind(point)
        mean, mean_slopes = self._mean(theta.pack(point))
        x = np.concatenate([mean + LOOKED_AT * rng.standard_normal(n), theta.pack(point)])
        weight, cross, _ = self.information(x)
        u = np.concatenate([rng.standard_normal(n), np.zeros(self.n_theta)])
        found = product(x, u)[0][:n]
        if np.abs(found - weight * u[:n]).max() > MOST_ROUNDING * np.abs(weight).max(initial=1.0):
            raise UnsupportedModelError(
                f"An observation reads several values of {self.names[0].removesuffix('_rotated_')}, so the "
                f"information of its likelihood is no diagonal. The {self._metric} metric needs one value per "
                'observation. Use RMHMC(metric="flat"), or FisherMetric(chart="graph").'
            )
        self.shares = _names(theta, np.flatnonzero(np.abs(cross).max(axis=0, initial=0.0)))
        self.moves_mean = _names(theta, self.moving[np.abs(mean_slopes).max(axis=1, initial=0.0) > 0.0])


def _names(theta: Hyperparameters, places: NDArray[np.int64]) -> tuple[str, ...]:
    """Return the names of the variables of some coordinates of θ."""
    held = zip(theta.variables, theta.slices, strict=True)
    return tuple(str(v.name) for v, part in held if any(part.start <= place < part.stop for place in places))


def _each(expression: Symbol, directions: dict[Symbol, Array], shape: tuple[int, ...]) -> Symbol:
    """Return a derivative along many directions at once, on an axis in front."""
    if shape[0] == 0:
        return pt.zeros(shape)
    found = vectorize_graph(expression, {symbol: pt.constant(rows) for symbol, rows in directions.items()})
    # What does not depend on the direction does not know of the rows.
    return pt.broadcast_to(found, shape)


def _log_density(
    model: pm.Model, observation: Observation, replaced: dict[Symbol, Symbol]
) -> tuple[Symbol, Symbol]:
    """Return an observation's log density, and what has its gradient: in closed form for a registered likelihood."""
    likelihood, reading = observation.likelihood, observation.reading
    if likelihood is None or reading is None:
        density = log_density_at(model, observation, replaced).sum().astype("float64")
        (density,) = substitute([density], {}, model)
        return density, density
    names = list(reading.parameters)
    predictor = reading.eta if reading.offset is None else reading.eta + reading.offset
    others = [pt.as_tensor_variable(reading.parameters[name]) for name in names]
    given = substitute([predictor, *others], replaced, model)
    predictor, *others = (each.astype("float64") for each in given)
    parameters = dict(zip(names, others, strict=True))
    y = pt.as_tensor_variable(observation.value).astype("float64")
    terms = likelihood.terms(disconnected_grad(predictor), parameters, y)
    total = terms.logp.sum()
    return total, total + (disconnected_grad(terms.gradient) * predictor).sum()


class ProcessModel(LatentModel):
    """One vector s ~ N(m(θ), K(θ)) with a dense covariance matrix; see `LatentModel`.

    `prior` is ``θ -> (m (n,), K (n, n), ∂m (k, n), ∂K (k, n, n))``.
    """

    _what = "the covariance"

    def _made_of(self, latent: LatentVariable) -> list[tuple[TensorVariable, tuple[int, ...]]]:
        """Return m and K, each with its shape."""
        n = self.n_process
        mean = pt.zeros(n) if latent.mean is None else latent.mean
        return [(pt.broadcast_to(mean, (n,)), (n,)), (FORMS[form_of(latent)].matrices(latent, (n,))[0], (n, n))]

    def _mean(self, theta: Array) -> tuple[Array, Array]:
        """See `LatentModel`."""
        mean, _, slopes, _ = self.prior(theta)
        return mean, slopes


class SeriesModel(LatentModel):
    """One series of the first order, ``xₜ = aₜ + ρ xₜ₋₁ + sₜ νₜ`` from ``x₀ = 0``; see `LatentModel`.

    `prior` is ``θ -> (a (n,), s (n,), ρ, ∂a (k, n), ∂s (k, n), ∂ρ (k,))``.

    Raises
    ------
    ConfigurationError
        Besides what `LatentModel` raises, if the series has no density at the point.
    """

    is_series = True
    _what = "the series"

    def __init__(
        self, model: pm.Model, block: LatentBlock, hyperparameters: Sequence[TensorVariable],
        point: Point, metric: str,
    ) -> None:  # fmt: skip
        super().__init__(model, block, hyperparameters, point, metric)
        _, deviation, rho, *_ = self.prior(np.ascontiguousarray(self.variables.pack(point)[self.n_process :]))
        bad = np.flatnonzero(~(np.isfinite(deviation) & (deviation > 0.0)))
        if bad.size:
            why = "Standard deviations must be positive."
            name = GAUSSIAN_VECTORS[type(block.latents[0].variable.owner.op)]
            if name == "autoregression" and abs(float(rho)) >= 1.0:
                why = (
                    "An autoregression that begins with its stationary distribution needs a coefficient between -1 and "
                    "1. Give the coefficient a prior or an initval= between them, or init_dist= another distribution."
                )
            raise ConfigurationError(
                f"{self.names[0]} has no density at the start values: the standard deviation of its value "
                f"{bad[0] + 1} is {deviation[bad[0]]:g}, and its coefficient is {float(rho):g}. {why}"
            )

    def _made_of(self, latent: LatentVariable) -> list[tuple[TensorVariable, tuple[int, ...]]]:
        """Return a, s and ρ, each with its shape."""
        found, n = first_order(latent.variable), self.n_process
        assert isinstance(found, FirstOrder)
        return [(found.level, (n,)), (found.deviation, (n,)), (found.rho, ())]

    def _mean(self, theta: Array) -> tuple[Array, Array]:
        """See `LatentModel`."""
        level, _, rho, level_slopes, _, rho_slopes = self.prior(theta)
        mean = lfilter([1.0], [1.0, -float(rho)], level)
        # The coefficient moves the mean too where that is 0 at the start values alone.
        reached = np.cumsum(np.abs(level) + np.abs(level_slopes).sum(axis=0))
        before = np.concatenate(([0.0], reached[:-1]))
        return mean, np.abs(level_slopes) + np.abs(rho_slopes)[:, None] * before
