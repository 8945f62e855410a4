"""Draws for estimates of the evidence: of a whole model's posterior, a chain's own or a user's, and of its prior."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import NDArray
from pymc.pytensorf import extract_obs_data
from pytensor.graph.basic import Variable
from pytensor.tensor import TensorVariable
from scipy.special import logsumexp

from pymc_rmhmc.chains.chain import AnyChain
from pymc_rmhmc.chains.conditional_density import Position, Variables
from pymc_rmhmc.chains.reference import Reference, ResidualReference
from pymc_rmhmc.diagnostics.result_statistics import posterior_of
from pymc_rmhmc.errors import DataError, EvidenceError, listed
from pymc_rmhmc.evidence.evidence_models import EvidenceModel, Point
from pymc_rmhmc.model.graph.graphs import as_value

__all__ = [
    "ChainDraws", "GivenDraws", "fitted_chain", "prior_draws", "prior_moments", "tuned_chain", "values_of_chain",
    "values_of_draws", "values_of_prior",
]  # fmt: skip

type Array = NDArray[np.float64]

# Chains that start at independent places, and draws that each makes before they count, and at first.
CHAINS, SETTLING, FIRST = 4, 50, 250
# Draws of the approximation among which those places are chosen.
TRIED = 256
# Draws of a prior that tell how heavy its tails are, and of a chain that tell centre and scales.
OF_PRIOR, OF_CHAIN = 2000, 400
# A user's draws, at least.
FEWEST = 100
# Draws of a prior by default.
PRIOR_DRAWS = 400
# The outermost hundredths are left out of moments: a prior such as Cauchy has none.
TRIMMED = 0.01
# Scales are kept within these.
NARROWEST, WIDEST = 1e-3, 1e3


def tuned_chain(read: EvidenceModel, rng: np.random.Generator) -> AnyChain:
    """Return a whole model's chain after its tuning."""
    chain, point = read.whole_chain, _copied(read.point)
    chain.setup(read.n_tune)
    with np.errstate(all="ignore"):
        for tuning in [True] * read.n_tune + [False]:  # the first draw after tuning judges it
            chain.draw(point, rng, tuning=tuning)
            chain.write(point)
    return chain


def fitted_chain(read: EvidenceModel, draws: Array, rng: np.random.Generator) -> AnyChain:
    """Return a whole model's chain whose chart is fitted to given draws (t, k) of its values."""
    chain, point = read.whole_chain, _copied(read.point)
    with np.errstate(all="ignore"):
        chain.learn_from(draws, point, rng)
    return chain


def _copied(point: Point) -> Point:
    return {name: np.array(value, order="C") for name, value in point.items()}


def values_of_prior(read: EvidenceModel, rng: np.random.Generator) -> Array:
    """Return draws (n, k) of a whole model's values from their prior; none if it has no draws."""
    by_value = {str(read.model.rvs_to_values[v].name): v for v in read.model.free_RVs}
    names = dict.fromkeys(name for name, _ in read.variables.slices)
    return prior_draws(read.sampled, [by_value[name] for name in names], rng, OF_PRIOR)


def values_of_chain(chain: AnyChain, read: EvidenceModel, rng: np.random.Generator) -> Array:
    """Return the next draws (n, k) of a tuned chain."""
    point = _copied(read.point)
    chain.write(point)
    return _drawn(chain, point, rng, OF_CHAIN, lambda: np.array(chain.values))


def _drawn(
    chain: AnyChain, point: Point, rng: np.random.Generator, count: int, look: Callable[[], Array | float]
) -> Array:
    """Return what a look at a tuned chain tells after each of its next draws."""
    found = []
    with np.errstate(all="ignore"):
        for _ in range(count):
            chain.draw(point, rng, tuning=False)
            chain.write(point)
            found.append(look())
    return np.array(found)


class GivenDraws:
    """A user's draws (chains, draws, k), with a reference fitted to others; there are no more. See `PosteriorDraws`.

    What of a reference's coordinates the values leave open is drawn.
    """

    def __init__(self, reference: Reference, values: Array, rng: np.random.Generator) -> None:
        self.residuals = np.array([reference.residuals(chain, rng) for chain in values])
        if not np.isfinite(self.residuals).all():
            raise EvidenceError(
                f"At {int((~np.isfinite(self.residuals)).sum())} of the {self.residuals.size} draws the model's log "
                "density is not finite, or a covariance has no factor. They may be draws of another model, or of other "
                "data; of this model, add jitter to its covariances."
            )

    def extend(self, share: float) -> bool:
        """See `PosteriorDraws`."""
        return False


class ChainDraws:
    """Draws of a tuned chain, from several starting points in turn. See `PosteriorDraws`."""

    def __init__(self, chain: AnyChain, read: EvidenceModel, rng: np.random.Generator) -> None:
        self._chain, self._rng, self._point = chain, rng, _copied(read.point)
        reference = chain.reference()
        self._log_constant = reference.log_constant
        self._places: list[tuple[Array, Position | None]] = self._starts(reference)
        self._run(SETTLING)
        self.residuals = self._run(FIRST)

    def extend(self, share: float) -> bool:
        """See `PosteriorDraws`."""
        more = self._run(math.ceil(share * self.residuals.shape[1]))
        self.residuals = np.concatenate((self.residuals, more), axis=1)
        return True

    def _starts(self, reference: ResidualReference) -> list[tuple[Array, Position | None]]:
        """Return where the chain is, and draws of the approximation by their weights."""
        walkers = reference.walkers(TRIED, self._rng)
        found: list[tuple[Array, Position | None]] = [(np.array(self._chain.values), self._chain.state.position)]
        if not np.isfinite(walkers.phi).any():
            return found
        weights = np.exp(walkers.phi - logsumexp(walkers.phi))
        chosen = self._rng.choice(TRIED, CHAINS - 1, p=weights / weights.sum())
        walkers.place(walkers.states[chosen])
        return [*found, *((values, None) for values in reference.values(walkers.states, self._rng))]

    def _run(self, count: int) -> Array:
        """Return φ (chains, count) at the next draws."""
        chain, point = self._chain, self._point
        weights = np.empty((len(self._places), count))
        for j, (values, coordinates) in enumerate(self._places):
            chain.values, chain.state.position = values, coordinates
            chain.state.values = values if coordinates is not None else None
            chain.write(point)
            weights[j] = _drawn(chain, point, self._rng, count, lambda: chain.log_weight)
            self._places[j] = np.array(chain.values), chain.state.position
        return weights - self._log_constant


def values_of_draws(model: pm.Model, idata: xr.DataTree, variables: Variables) -> Array:
    """Return the values (chains, draws, k) of some value variables at every draw of a result of this model and data."""
    posterior = posterior_of("draws", idata)
    free = model.free_RVs
    missing = [str(v.name) for v in free if v.name not in posterior]
    if missing:
        raise DataError(
            f"draws: the posterior has no {listed(missing)}, which the model has: it is of another model, or was "
            "sampled with var_names. Sample this model, with all of its variables."
        )
    _check_data(model, idata)
    arrays = [_in_order(model, str(v.name), posterior[str(v.name)]) for v in free]
    point = model.initial_point()
    n_chains, n_draws = arrays[0].shape[:2]
    if n_chains * n_draws < FEWEST:
        raise DataError(f"draws: there are {n_chains * n_draws} draws, and at least {FEWEST} are needed.")
    transform = _to_unconstrained(model)
    found = []
    for at in np.ndindex(n_chains, n_draws):
        given = [_shaped(v, a[at]) for v, a in zip(free, arrays, strict=True)]
        found.append(variables.read(dict(zip(point, transform(*given), strict=True))))
    made = np.array(found).reshape(n_chains, n_draws, -1)
    if not np.isfinite(made).all():
        raise DataError(
            "draws: some values are outside the support of their prior in this model, or not finite. They are draws "
            "of another model."
        )
    return made


def _shaped(variable: TensorVariable, value: Array) -> Array:
    if value.ndim != variable.ndim:
        raise DataError(
            f"draws: {variable.name} has the shape {value.shape}, and in the model {variable.ndim} dimensions. Sample "
            "this model."
        )
    return value.astype(variable.dtype)


def _to_unconstrained(model: pm.Model) -> Callable[..., list[np.ndarray]]:
    """Compile a function from the free variables to their values, in the order of the model's initial point."""
    held = {str(model.rvs_to_values[v].name): v for v in model.free_RVs}
    outputs = [as_value(model, held[name], held[name]) for name in model.initial_point()]
    function: Callable[..., list[np.ndarray]] = pm.pytensorf.compile(model.free_RVs, outputs, on_unused_input="ignore")
    return function


def _in_order(model: pm.Model, name: str, held: xr.DataArray) -> Array:
    """Return a variable's draws (chain, draw, ...), with labels in the model's order."""
    labels = {dim: list(model.coords[dim]) for dim in model.named_vars_to_dims.get(name, ()) if model.coords.get(dim)}
    for dim, wanted in labels.items():
        if dim not in held.coords or list(held.coords[dim].values) == wanted:
            continue
        if set(held.coords[dim].values) != set(wanted):
            raise DataError(
                f"draws: {name} has other labels along {dim} than in the model: they are draws of another model, or of "
                "other data. Sample this model."
            )
        held = held.sel({dim: wanted})
    return np.asarray(held.transpose("chain", "draw", ...).values)


def _check_data(model: pm.Model, idata: xr.DataTree) -> None:
    """Raise where the data of the draws are others than the model's."""
    groups = getattr(idata, "children", {})
    observed = {str(v.name): model.rvs_to_values[v] for v in model.observed_RVs}
    shared = {str(v.name): v for v in model.data_vars}
    for group, values in (("observed_data", observed), ("constant_data", shared)):
        held = idata[group].dataset if group in groups else {}
        for name, value in values.items():
            own = _numbers(value) if name in held else None
            if own is None:
                continue
            theirs = np.asarray(held[name].values)
            if own.shape != theirs.shape or not np.array_equal(own, theirs, equal_nan=own.dtype.kind == "f"):
                raise DataError(
                    f"draws: they were made with other data of {name} than the model has now. Sample the model again."
                )


def _numbers(value: Variable) -> Array | None:
    """Return the data that a variable holds; None where they are not at hand, as when values are partly missing."""
    try:
        return np.asarray(extract_obs_data(value))
    except TypeError:
        return None


def prior_draws(
    model: pm.Model, variables: Iterable[TensorVariable], rng: np.random.Generator, count: int = PRIOR_DRAWS
) -> Array:
    """Draw variables (n, k) from their priors, on the scale of value variables; none if a prior has no draws."""
    drawn = [as_value(model, variable, variable) for variable in variables]
    try:
        found = pm.draw(drawn, count, random_seed=int(rng.integers(2**31)))
    except (NotImplementedError, ValueError, TypeError):  # Flat, and DensityDist without random=
        return np.empty((0, 0))
    parts = [np.empty((count, 0)), *(np.reshape(each, (count, -1)) for each in found)]
    rows = np.concatenate(parts, axis=1).astype(np.float64)
    finite: Array = rows[np.isfinite(rows).all(axis=1)]
    return finite if len(finite) > math.ceil(0.5 * count) else np.empty((0, 0))


def prior_moments(drawn: Array) -> tuple[Array, Array]:
    """Return means and standard deviations (d,) of some draws (n, d), without their extremes."""
    low, high = np.quantile(drawn, [TRIMMED, 1.0 - TRIMMED], axis=0)
    kept = np.clip(drawn, low, high)
    return kept.mean(axis=0), np.clip(kept.std(axis=0), NARROWEST, WIDEST)
