"""`parallel_tempering`: draws of a posterior with several modes, and its evidence."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from arviz import dict_to_dataset
from numpy.typing import NDArray

from pymc_rmhmc.errors import ConfigurationError, shown
from pymc_rmhmc.evidence.evidence_models import with_bounded_angles
from pymc_rmhmc.evidence.methods.ensemble import NON_REVERSIBLE, SCHEMES
from pymc_rmhmc.evidence.methods.estimate import Budget, Progress
from pymc_rmhmc.evidence.methods.family import ReferenceFamily
from pymc_rmhmc.evidence.methods.ladder import check_ladder
from pymc_rmhmc.evidence.methods.tempering import Tempered, temper
from pymc_rmhmc.evidence.results import DrawReader, dims_of, displayed, in_a_line, posterior_tree
from pymc_rmhmc.evidence.tempering_models import TemperedModel, read_tempered_model
from pymc_rmhmc.model.structure import model_in_context
from pymc_rmhmc.option_numbers import count, one_of, real_number, switch
from pymc_rmhmc.steps.arguments import seeded
from pymc_rmhmc.usage import called_as

__all__ = ["parallel_tempering"]

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
    random_seed: Any = None,
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
    budget = Budget(math.inf, max_seconds)
    with displayed(progressbar) as say:
        progress = Progress(budget, lambda *said: say(in_a_line(*said)), read.constant)
        family = read.family(rng, progress)
        found = temper(
            family, draws=draws, tune=tune, rng=rng, budget=budget, progress=progress, temperatures=ladder,
            replicas=replicas, keep_all=keep == "all", scheme=swaps,
        )  # fmt: skip
        return _tree(model, read, family, found, rng, keep_all=keep == "all")


def _ladder(temperatures: Any) -> int | Array | None:
    """Check what was given, and return it as a number of temperatures or a ladder; None if it was left out."""
    if temperatures is None:
        return None
    if isinstance(temperatures, numbers.Integral) and not isinstance(temperatures, bool):
        return count("temperatures", temperatures, 10, least=2)
    try:
        return check_ladder(np.asarray(temperatures, float))
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(
            f"temperatures must be a number of temperatures or a sequence of them, got {shown(temperatures)}. Leave it "
            "out to have them chosen."
        ) from None


def _tree(
    model: pm.Model, read: TemperedModel, family: ReferenceFamily, found: Tempered, rng: np.random.Generator, *,
    keep_all: bool,
) -> xr.DataTree:  # fmt: skip
    """Assemble all groups."""
    reader = DrawReader(model, read.variables, None if read.complete is None else read.complete(rng))
    draws, replicas, _, size = found.states.shape
    cold = found.states[:, :, -1].swapaxes(0, 1).reshape(replicas * draws, size)
    values = family.values(found.reference, cold, rng).reshape(replicas, draws, -1)
    tree = posterior_tree(
        model, values, read.variables, reader=reader, statistics={"acceptance": found.acceptance[:, :, -1].T}
    )
    tree["tempering"] = xr.DataTree(_tempering(read, found, keep_all=keep_all))
    if keep_all:
        tree["tempered_posterior"] = xr.DataTree(_tempered_posterior(model, family, found, reader, rng))
    return tree


def _tempering(read: TemperedModel, found: Tempered, *, keep_all: bool) -> xr.Dataset:
    """Gather what is known of the ladder, and the evidence."""
    estimate = found.estimate.shifted(found.reference.log_constant + read.constant)
    held = estimate.diagnostics
    holds: dict[str, Any] = {name: ("temperature", np.asarray(held[name])) for name in BY_TEMPERATURE}
    holds["rejection"] = ("pair", held["rejection"])
    holds["round_trips"] = ("chain", held["round_trips"])
    holds |= {name: float(held[name]) for name in SINGLE}
    holds |= {"log_evidence": estimate.log_evidence, "standard_error": estimate.standard_error}
    if keep_all:
        holds["phi"] = (("chain", "draw", "temperature"), found.phi.swapaxes(0, 1))
    sizes = {"temperature": held["beta"].size, "pair": held["beta"].size - 1, "chain": len(held["round_trips"])}
    if keep_all:
        sizes["draw"] = len(found.phi)
    return xr.Dataset(holds, coords={name: np.arange(size) for name, size in sizes.items()})


def _tempered_posterior(
    model: pm.Model, family: ReferenceFamily, found: Tempered, reader: DrawReader, rng: np.random.Generator
) -> xr.Dataset:
    """Gather the draws of all temperatures."""
    draws, replicas, rungs, size = found.states.shape
    flat = found.states.swapaxes(0, 1).reshape(-1, size)
    held, _ = reader.read(family.values(found.reference, flat, rng))
    shaped = {name: each.reshape(replicas, draws, rungs, *each.shape[1:]) for name, each in held.items()}
    dims = dims_of(model, ((name, each.ndim - 3) for name, each in shaped.items()), ["temperature"])
    coords = {name: list(labels) for name, labels in model.coords.items() if labels is not None}
    used = {dim for each in dims.values() for dim in each}
    coords = {name: labels for name, labels in coords.items() if name in used} | {"temperature": list(range(rungs))}
    made: xr.Dataset = dict_to_dataset(shaped, coords=coords, dims=dims)
    return made
