"""`parallel_tempering`: draws of a posterior with several modes, and its evidence."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import arviz as az
import numpy as np
import pymc as pm
import xarray as xr
from arviz import dict_to_dataset
from numpy.typing import NDArray
from pymc.backends.arviz import coords_and_dims_for_inferencedata, find_constants, find_observations
from pymc.util import get_default_varnames

from pymc_rmhmc.chains.conditional_density import Variables
from pymc_rmhmc.errors import ConfigurationError, shown
from pymc_rmhmc.evidence.evidence_models import check_continuous, omitted_constants, read_model, with_bounded_angles
from pymc_rmhmc.evidence.evidence_references import (
    Start,
    graph_density,
    latent_reference,
    start_in_graph,
    start_of_whole,
)
from pymc_rmhmc.evidence.methods.ensemble import NON_REVERSIBLE, SCHEMES, check_ladder
from pymc_rmhmc.evidence.methods.estimate import Progress, displayed
from pymc_rmhmc.evidence.methods.tempering import Tempered, Tempering
from pymc_rmhmc.model.predictions import Predictions, predicted_variables, without
from pymc_rmhmc.model.structure import model_in_context
from pymc_rmhmc.model.words.bad_inputs import InputChecks
from pymc_rmhmc.steps.options import seeded
from pymc_rmhmc.stopwatch import COMPILING
from pymc_rmhmc.usage import called_as, count, one_of, real_number, switch

__all__ = ["DrawReader", "TemperedModel", "parallel_tempering", "posterior_tree", "read_tempered_model"]

type Array = NDArray[np.float64]

KEEPS = ("posterior", "all")
TUNE = 1000
# Diagnostics by temperature, by pair of neighbours, by replica, and single numbers.
BY_TEMPERATURE = ("beta", "acceptance", "step_size", "local_barrier")
SINGLE = (
    "barrier", "trip_rate", "expected_trip_rate", "thermodynamic_integration", "thermodynamic_integration_error",
    "stepping_stones", "stepping_stones_error", "phi_rhat", "phi_ess", "n_steps",
)  # fmt: skip


@called_as("parallel_tempering(model, draws=1000, random_seed=1)")
def parallel_tempering(
    model: pm.Model | None = None,
    *,
    draws: int = 1000,
    tune: int | None = None,
    temperatures: int | Sequence[float] | None = None,
    replicas: int = 2,
    keep: str = "posterior",
    swaps: str = NON_REVERSIBLE,
    max_seconds: float | None = None,
    random_seed: int | np.random.Generator | None = None,
    progressbar: bool = True,
) -> xr.DataTree:
    """Sample a posterior with several modes by parallel tempering, and estimate its marginal likelihood.

    Parameters
    ----------
    model : pymc.Model, optional
        By default the model in context. All free variables must be continuous.
    draws : int
        Sweeps that count: so many draws per replica.
    tune : int, optional
        Sweeps of adaptation, 1000 by default. Everything is frozen after them.
    temperatures : int or sequence of float, optional
        How many inverse temperatures there are, or all of them, increasing from 0 (the reference) to 1 (the posterior).
        By default about ``2 Λ + 1`` are placed where neighbours reject as many swaps.
    replicas : int
        Independent ladders; each gives a chain.
    keep : str
        "posterior", or "all" for the draws of every temperature.
    swaps : str
        "nonreversible", even and odd pairs in turns, or "reversible", which is slower.
    max_seconds : float, optional
        Stop earlier where sampling takes longer.
    random_seed : int or numpy.random.Generator, optional
        For all random numbers.
    progressbar : bool
        Whether progress is shown.

    Returns
    -------
    xarray.DataTree
        Groups `posterior`, `sample_stats` (lp, acceptance), `observed_data`, and `tempering` with `log_evidence`,
        `standard_error`, `thermodynamic_integration` and `stepping_stones` with their errors, and of the ladder
        `beta`, `rejection`, `barrier` and `round_trips`. With ``keep="all"`` also `tempered_posterior`, with a dim
        `temperature`, and `phi` in `tempering`.

    Raises
    ------
    ConfigurationError
        If an argument cannot be used, or there is no model.
    UnsupportedModelError
        If a free variable is discrete.
    EvidenceError
        If draws cannot be trusted: no round trips, R-hat of the log density above 1.05, fewer than 100 effective draws,
        or too few trajectories accepted.

    Notes
    -----
    The densities are ``p(θ, y)^β q(θ)^(1-β)``, with q a normal reference: the prior's mean and variances, and after a
    round of adaptation the posterior's mean and covariance where that is much nearer to it. Latent Gaussian values
    under a log-concave likelihood begin at a normal approximation, given hyperparameters where these are sampled; under
    another likelihood they begin at their prior. Neighbours i and j swap with probability
    ``min(1, exp((β_j - β_i)(φ_i - φ_j)))``, ``φ = log p - log q``. The evidence comes from all draws by the multistate
    acceptance ratio, with a jackknife over blocks of sweeps; and beside it by thermodynamic integration,
    ``log Z = ∫₀¹ E_β[φ] dβ``, and by stepping stones, importance sampling from each temperature to the next.

    References
    ----------
    Syed, Bouchard-Côté, Deligiannidis and Doucet (2022), Non-reversible parallel tempering, JRSS B 84: the swaps of
    section 2, barrier and rate of round trips ``1/(2 + 2 Λ)`` of section 4, adaptation of section 5.
    Surjanovic, Syed, Bouchard-Côté and Campbell (2022), Parallel tempering with a variational reference.
    Shirts and Chodera (2008), Statistically optimal analysis of samples from multiple equilibrium states, eq. 11.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> from pymc_rmhmc import parallel_tempering
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x", 0, 3)
    ...     y = pm.Normal("y", pm.math.abs(x), 0.5, observed=[2.1, 1.7, 2.4])
    >>> idata = parallel_tempering(model, draws=500, tune=500, random_seed=1, progressbar=False)
    >>> idata.posterior.sizes["draw"]
    500
    >>> bool(abs(idata.posterior["x"].mean()) < 1.0)  # both modes
    True
    """
    model = with_bounded_angles(model_in_context(model, "parallel_tempering"))
    draws, replicas = count("draws", draws, 1000, least=4), count("replicas", replicas, 2)
    tune = TUNE if tune is None else count("tune", tune, TUNE)
    ladder = _ladder(temperatures)
    one_of("keep", keep, KEEPS, 'keep="posterior" is the default.')
    one_of("swaps", swaps, SCHEMES, 'swaps="nonreversible" is the default.')
    switch("progressbar", progressbar)
    max_seconds = None if max_seconds is None else real_number("max_seconds", max_seconds)
    rng = seeded(random_seed)
    read = read_tempered_model(model)
    with displayed(progressbar) as report:
        progress = Progress(math.inf, max_seconds, report)
        progress.move(read.constant)
        reference, refit = read.start(rng, progress)
        found = Tempering(reference, replicas, rng, refit=refit, temperatures=ladder, scheme=swaps).run(
            tune, draws, progress, keep_all=keep == "all"
        )
        return _tree(model, read, found, rng, keep_all=keep == "all")


def _ladder(temperatures: object) -> int | Array | None:
    """Check what was given, and return it as a number of temperatures or a ladder; None if it was left out."""
    if temperatures is None:
        return None
    if isinstance(temperatures, numbers.Integral) and not isinstance(temperatures, bool):
        return count("temperatures", temperatures, 10, least=2)
    try:
        found = np.asarray(temperatures, float)
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"temperatures must be a number of temperatures or a sequence of them, got {shown(temperatures)}. Leave it "
            "out to have them chosen."
        ) from None
    return check_ladder(found)


@dataclass(frozen=True)
class TemperedModel:
    """A model as tempering reads it."""

    # From random numbers to references, for which a chain may have to be tuned.
    start: Callable[[np.random.Generator, Progress | None], Start]
    variables: Variables  # what a vector of its values holds
    constant: float  # what the log evidence has beyond the reference's constant
    predictions: Predictions | None  # what the model predicts, if anything


def read_tempered_model(model: pm.Model) -> TemperedModel:
    """Read a model: one latent block with all else fixed, or a whole model; with errors as `RMHMC`."""
    predicted = predicted_variables(model)
    sampled = without(model, predicted)
    check_continuous(sampled)
    InputChecks(sampled).check(sampled.initial_point())
    predictions = Predictions(model, predicted) if predicted else None
    read = read_model(sampled)
    if read.chain is not None:
        return TemperedModel(lambda *given: start_of_whole(read, *given), read.variables, read.constant, predictions)
    held = {name for name, _ in read.parts[0].variables.slices}
    if len(read.parts) == 1 and all(str(value.name) in held for value in read.model.value_vars):
        (part,) = read.parts
        return TemperedModel(
            lambda *_: (latent_reference(part, "auto", "tempering")[0], None), part.variables, read.constant,
            predictions,
        )  # fmt: skip
    density = graph_density(sampled)  # several blocks
    constant = omitted_constants(sampled, [str(v.name) for v in sampled.free_RVs])
    return TemperedModel(
        lambda rng, _: start_in_graph(sampled, density, rng), density.variables, constant, predictions
    )


class DrawReader:
    """Reads what users see off value variables: free variables on their own scale, deterministics, and the log density.

    A vector of values holds `variables`, and predictions are drawn.
    """

    def __init__(
        self, model: pm.Model, variables: Variables, predictions: Predictions | None, rng: np.random.Generator
    ) -> None:
        self._variables, self._predictions, self._rng = variables, predictions, rng
        self._initial = model.initial_point()
        shown = get_default_varnames(model.unobserved_value_vars, include_transformed=False)
        self.names = tuple(str(variable.name) for variable in shown)
        with COMPILING.running():
            self._function = model.compile_fn([*shown, model.logp()], inputs=model.value_vars, on_unused_input="ignore")

    def read(self, values: Array) -> tuple[dict[str, np.ndarray], Array]:
        """Return variables by name, each (n, ...), and log densities (n,), of some values (n, k)."""
        rows = [self._row(each) for each in values]
        stacked = {name: np.array([row[i] for row in rows]) for i, name in enumerate(self.names)}
        return stacked, np.array([float(row[-1]) for row in rows])

    def _row(self, values: Array) -> Sequence[np.ndarray]:
        point = {name: np.array(value) for name, value in self._initial.items()}
        self._variables.write(values, point)
        if self._predictions is not None:
            point.update(self._predictions.draw(point, self._rng)[0])
        found: Sequence[np.ndarray] = self._function(point)
        return found


def _tree(
    model: pm.Model, read: TemperedModel, found: Tempered, rng: np.random.Generator, *, keep_all: bool
) -> xr.DataTree:
    """Assemble all groups."""
    reader = DrawReader(model, read.variables, read.predictions, rng)
    draws, replicas, _, size = found.states.shape
    cold = found.states[:, :, -1].swapaxes(0, 1).reshape(replicas * draws, size)
    values = found.reference.values(cold, rng).reshape(replicas, draws, -1)
    tree = posterior_tree(model, values, reader, {"acceptance": found.acceptance[:, :, -1].T})
    tree["tempering"] = xr.DataTree(_tempering(read, found, keep_all=keep_all))
    if keep_all:
        tree["tempered_posterior"] = xr.DataTree(_tempered_posterior(model, found, reader, rng))
    return tree


def posterior_tree(
    model: pm.Model, values: Array, reader: DrawReader, statistics: Mapping[str, Array]
) -> xr.DataTree:
    """Return draws (chains, draws, k) as a DataTree with posterior, sample_stats, observed_data and constant_data.

    The statistics (chains, draws, ...) go into sample_stats, next to `lp`.
    """
    chains, draws, size = values.shape
    read, log_density = reader.read(values.reshape(-1, size))
    groups = {
        "posterior": {name: held.reshape(chains, draws, *held.shape[1:]) for name, held in read.items()},
        "sample_stats": {"lp": log_density.reshape(chains, draws), **statistics},
        "observed_data": find_observations(model), "constant_data": find_constants(model),
    }  # fmt: skip
    coords, dims = coords_and_dims_for_inferencedata(model)
    found: xr.DataTree = az.from_dict({name: held for name, held in groups.items() if held}, coords=coords, dims=dims)
    return found


def _tempering(read: TemperedModel, found: Tempered, *, keep_all: bool) -> xr.Dataset:
    """Gather what is known of the ladder, and the evidence."""
    estimate = found.estimate.shifted(found.reference.log_constant + read.constant)
    held = {name: np.asarray(value) for name, value in estimate.diagnostics.items()}
    holds: dict[str, float | tuple[str | tuple[str, ...], Array]] = {
        **{name: ("temperature", held[name]) for name in BY_TEMPERATURE},
        "rejection": ("pair", held["rejection"]), "round_trips": ("chain", held["round_trips"]),
        **{name: float(held[name]) for name in SINGLE},
        "log_evidence": estimate.log_evidence, "standard_error": estimate.standard_error,
    }  # fmt: skip
    sizes = {"temperature": held["beta"].size, "pair": held["beta"].size - 1, "chain": len(held["round_trips"])}
    if keep_all:
        holds["phi"] = (("chain", "draw", "temperature"), found.phi.swapaxes(0, 1))
        sizes["draw"] = len(found.phi)
    return xr.Dataset(holds, coords={name: np.arange(size) for name, size in sizes.items()})


def _tempered_posterior(
    model: pm.Model, found: Tempered, reader: DrawReader, rng: np.random.Generator
) -> xr.Dataset:
    """Gather the draws of all temperatures."""
    draws, replicas, rungs, size = found.states.shape
    flat = found.states.swapaxes(0, 1).reshape(-1, size)
    held, _ = reader.read(found.reference.values(flat, rng))
    shaped = {name: each.reshape(replicas, draws, rungs, *each.shape[1:]) for name, each in held.items()}
    _, known = coords_and_dims_for_inferencedata(model)
    dims = {
        name: ["temperature", *known.get(name, [f"{name}_dim_{i}" for i in range(each.ndim - 3)])]
        for name, each in shaped.items()
    }
    used = {dim for each in dims.values() for dim in each}
    coords = {dim: list(labels) for dim, labels in model.coords.items() if labels is not None and dim in used}
    made: xr.Dataset = dict_to_dataset(shaped, coords=coords | {"temperature": list(range(rungs))}, dims=dims)
    return made
