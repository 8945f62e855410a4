"""`log_evidence`: the probability of the data under a model."""

from __future__ import annotations

import math
import time

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import NDArray

from pymc_rmhmc.errors import ConfigurationError
from pymc_rmhmc.evidence.evidence_draws import values_of_draws
from pymc_rmhmc.evidence.evidence_methods import REPETITIONS, Annealing, Estimates, Settings, estimates_of, repeated
from pymc_rmhmc.evidence.evidence_models import check_proper, convention_in_words, no_effect, read_model
from pymc_rmhmc.evidence.methods.estimate import displayed
from pymc_rmhmc.gathering import ExecutorOrFactory
from pymc_rmhmc.latent.charts.site import GaussianSites
from pymc_rmhmc.model.structure import model_in_context
from pymc_rmhmc.steps.options import seeded
from pymc_rmhmc.steps.process_settings import ProcessSettings
from pymc_rmhmc.usage import called_as, one_of, real_number, switch, whole_number

__all__ = ["log_evidence"]

type Array = NDArray[np.float64]
# A number, or a dimension and values along it.
type Held = float | tuple[str, Array | list[str]]

# Of diagnostics that are not by rung.
DIMENSIONS = {
    "rejection": "pair", "round_trips": "replica", "repetition_estimate": "repetition",
    "repetition_error": "repetition",
}  # fmt: skip
# Options without effect on a method, and why.
OF_APPROXIMATIONS = {
    "sites": "which has sites of its own", "executor": "which has no error that repetitions would make smaller",
    "replicates": "which moves no states", "max_seconds": "which cannot end before it is done",
}  # fmt: skip
USELESS = {
    "laplace": OF_APPROXIMATIONS, "ep": OF_APPROXIMATIONS,
    "tempering": {
        "draws": "which finds the modes by itself", "replicates": "which moves two states for each temperature",
    },
}  # fmt: skip
METHODS = ("auto", "laplace", "ep", "bridge", "annealing", "tempering")
REPLICATES, MOST_SECONDS = 64, 300.0
SITES = ("auto", "laplace", "ep", "prior")


@called_as('log_evidence(model), or log_evidence(model, method="bridge")')
def log_evidence(
    model: pm.Model | None = None,
    *,
    method: str | Annealing = "auto",
    draws: xr.DataTree | None = None,
    sites: str | GaussianSites = "auto",
    target_error: float = 0.05,
    max_seconds: float | None = MOST_SECONDS,
    replicates: int = REPLICATES,
    executor: ExecutorOrFactory | None = None,
    random_seed: int | np.random.Generator | None = None,
    progressbar: bool = True,
) -> xr.Dataset:
    """Estimate the evidence log p(y) of a model: the logarithm of the integral of prior times likelihood.

    Parameters
    ----------
    model : pymc.Model, optional
        The model; by default the one in context.
    method : {"auto", "laplace", "ep", "bridge", "annealing", "tempering"} or Annealing, default "auto"
        "auto" takes a normal approximation of latent Gaussian values, by EP where the likelihood is log-concave and
        by Laplace elsewhere; importance sampling from it where the weights can be trusted, and otherwise a bridge of
        densities from it to the posterior. With hyperparameters or without latent Gaussian values it tunes a chain of
        `RMHMC`, and bridges from the chain's normal approximation to its draws. "laplace" and "ep" are approximations
        without an error; "laplace" of a model with hyperparameters is in the coordinates of a tuned chain.
        "annealing" is annealed importance sampling, see `Annealing`. "tempering" is parallel tempering, for
        posteriors with several modes.
    draws : DataTree, optional
        Draws of the posterior by any sampler, as `pm.sample` returns them. With hyperparameters one half of each chain
        is used to fit the approximation, and the other for the bridge; otherwise all are for the bridge.
    sites : {"auto", "laplace", "ep", "prior"} or GaussianSites, default "auto"
        The normal approximation of latent Gaussian values where nothing else is sampled; "prior" begins at the prior.
    target_error : float, default 0.05
        The standard error of log p(y) that is small enough; approximations have none.
    max_seconds : float or None, default 300
        After so long no more is drawn, whatever the error; ``target_reached`` says whether it is small enough. None
        for no limit.
    replicates : int, default 64
        States that move at once. Tempering has two at each temperature instead.
    executor : concurrent.futures.Executor or callable, optional
        Where four independent repetitions run, of which the mean is taken; or a function that makes one, see
        `sample_chains`. By default all runs once, in this process.
    random_seed : int or numpy.random.Generator, optional
        For the same result again.
    progressbar : bool, default True
        Whether to show the estimate as it grows.

    Returns
    -------
    xarray.Dataset
        ``log_evidence`` and ``standard_error``; diagnostics: of importance weights the Pareto shape ``pareto_k`` and
        ``weight_ess`` of ``n_states`` draws; by rung ``beta``, ``acceptance``, and ``phi_rhat``, ``phi_ess`` and
        ``phi_sd`` of the log density's distance φ from the approximation; of annealing ``lower_bound`` and
        ``upper_bound``; under an executor each ``repetition_estimate`` and ``repetition_error``; approximations that
        were found on the way, ``laplace``, ``ep`` and ``ep_second_order``; and the estimates on the way, ``estimate``
        and ``error`` by ``seconds``. The attribute ``convention`` says which constants are in it.

    Raises
    ------
    EvidenceError
        The evidence does not exist, as with a flat prior; or no estimate can be trusted: too few trajectories are
        accepted, or chains disagree.
    UnsupportedModelError
        A variable is discrete, or the model has no gradient.
    ApproximationError
        EP was asked for, and does not converge.
    ConfigurationError, DataError
        An option is out of range or has no effect; draws are of another model or of other data.

    References
    ----------
    Meng and Wong (1996), Simulating ratios of normalizing constants via a simple identity, for the bridge.
    Shirts and Chodera (2008), eq. 11, for several densities.
    Neal (2001) for annealing; Syed et al. (2022) for tempering.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> from pymc_rmhmc import log_evidence
    >>> x = np.linspace(0, 1, 20)[:, None]
    >>> with pm.Model() as model:
    ...     gp = pm.gp.Latent(cov_func=4.0 * pm.gp.cov.Matern32(1, ls=0.3))
    ...     f = gp.prior("f", X=x)
    ...     y = pm.Poisson("y", mu=pm.math.exp(f), observed=np.arange(20) // 4)
    >>> found = log_evidence(model, random_seed=1, progressbar=False)
    >>> round(float(found.log_evidence), 1)
    -38.2
    """
    settings = _checked(method, sites, target_error, max_seconds, replicates)
    _check_use(settings, draws, executor)
    switch("progressbar", progressbar)
    model = model_in_context(model, "log_evidence")
    check_proper(model)
    read = read_model(model)
    values = None if draws is None else values_of_draws(read.sampled, draws, read.variables)
    rng = seeded(random_seed)
    process, began = ProcessSettings(1), time.perf_counter()
    process.hold()
    try:
        with displayed(progressbar) as report, np.errstate(all="ignore"):
            if executor is None:
                found = estimates_of(read, settings, values, rng, report)
            else:
                seeds = [int(seed) for seed in rng.integers(2**63, size=REPETITIONS)]
                found = repeated(model, settings, seeds, executor, report)
    finally:
        process.release()
    attributes = {
        "convention": convention_in_words(model), "method": ", ".join(dict.fromkeys(how for _, how, _ in found)),
        "seconds": time.perf_counter() - began, "target_error": settings.target_error,
        "target_reached": int(_error_of(found) <= settings.target_error), "replicates": settings.replicates,
        "sites": settings.sites if isinstance(settings.sites, str) else "given",
    }  # fmt: skip
    return _dataset(found).assign_attrs(attributes)


def _checked(
    method: str | Annealing, sites: str | GaussianSites, target_error: float, max_seconds: float | None, replicates: int
) -> Settings:
    """Return the options, or raise the error for one of them."""
    if not isinstance(method, Annealing):
        one_of("method", method, METHODS, 'Or give Annealing(...) with its options. The default is method="auto".')
    if not isinstance(sites, GaussianSites):
        one_of("sites", sites, SITES, 'Or give GaussianSites. The default is sites="auto".')
    if max_seconds is not None:
        max_seconds = real_number("max_seconds", max_seconds)
    return Settings(
        method, sites, real_number("target_error", target_error), max_seconds, whole_number("replicates", replicates)
    )


def _check_use(settings: Settings, draws: object, executor: object) -> None:
    """Raise where an option would have no effect."""
    if draws is not None and executor is not None:
        raise ConfigurationError(
            "draws= and executor= together have no use: every repetition would have the same draws. Leave one out."
        )
    name, sites = settings.name, settings.sites
    given = {
        "draws": draws is not None, "executor": executor is not None,
        "sites": not (isinstance(sites, str) and sites in {"auto", name}),
        "replicates": settings.replicates != REPLICATES,
        "max_seconds": settings.max_seconds not in {None, MOST_SECONDS},
    }  # fmt: skip
    for option, reason in USELESS.get(name, {}).items():
        if given[option]:
            raise no_effect(option, name, reason)


def _error_of(found: Estimates) -> float:
    return math.sqrt(sum(estimate.standard_error**2 for *_, estimate in found))


def _dataset(found: Estimates) -> xr.Dataset:
    """Gather everything about the estimates: of several blocks the sums, and the rungs one block after another."""
    total = sum(estimate.log_evidence for *_, estimate in found)
    data: dict[str, Held] = {"log_evidence": total, "standard_error": _error_of(found)}
    arrays: dict[str, list[float | Array]] = {}
    blocks: list[str] = []
    for name, _, estimate in found:
        rungs = {k: v for k, v in estimate.diagnostics.items() if np.ndim(v) == 1}
        for key, value in rungs.items():
            arrays.setdefault(key, []).append(value)
        blocks += [name] * np.size(rungs.get("beta", []))
        for key, value in estimate.diagnostics.items():
            if np.ndim(value) == 0:
                data[key if len(found) == 1 else f"{key} of {name}"] = float(value)
    for key, values in arrays.items():
        data[key] = (DIMENSIONS.get(key, "rung"), np.concatenate(values))
    coords: dict[str, Held] = {"block": ("rung", blocks)} if len(found) > 1 and blocks else {}
    if len(found) == 1 and found[0][2].history:
        history = np.array(found[0][2].history)
        data |= {"estimate": ("update", history[:, 1]), "error": ("update", history[:, 2])}
        coords["seconds"] = ("update", history[:, 0])
    return xr.Dataset(data, coords)
