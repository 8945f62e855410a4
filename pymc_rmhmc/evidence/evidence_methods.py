"""From a model that has been read, and a method, to an estimate of its evidence."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from scipy import stats

from pymc_rmhmc.chains.reference import LatentReference, Reference, ResidualReference
from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian
from pymc_rmhmc.errors import ConfigurationError, EvidenceError
from pymc_rmhmc.evidence.evidence_draws import (
    ChainDraws,
    GivenDraws,
    fitted_chain,
    tuned_chain,
    values_of_chain,
    values_of_prior,
)
from pymc_rmhmc.evidence.evidence_models import EvidenceModel, LatentPart, no_effect, read_model
from pymc_rmhmc.evidence.evidence_references import (
    Start,
    latent_reference,
    positions_of,
    start_of_whole,
    whole_reference,
)
from pymc_rmhmc.evidence.methods.annealing import (
    EuclideanParticles,
    KernelParticles,
    Particles,
    adaptive_ladder,
    annealed_evidence,
    first_step,
    flat_particles,
    geometric_betas,
)
from pymc_rmhmc.evidence.methods.bridge import BRIDGE, HEAVY_BRIDGE, AdaptiveBridge, PosteriorDraws
from pymc_rmhmc.evidence.methods.ensemble import check_ladder
from pymc_rmhmc.evidence.methods.estimate import FARTHER, FEWEST_DRAWS, LARGEST_K, Estimate, Progress, Report
from pymc_rmhmc.evidence.methods.importance import (
    check_modes,
    importance_evidence,
    laplace_evidence,
    with_fitting_tails,
)
from pymc_rmhmc.evidence.methods.tempering import Tempering
from pymc_rmhmc.gathering import ExecutorOrFactory, check_executor, gather
from pymc_rmhmc.kernels.kernel import HMC
from pymc_rmhmc.kernels.single_moves import EllipticalSlice
from pymc_rmhmc.latent.charts import GaussianSites
from pymc_rmhmc.latent.target import LatentDensity, LatentTarget
from pymc_rmhmc.steps.executors import pack
from pymc_rmhmc.steps.options import Options, settle
from pymc_rmhmc.steps.process_settings import ProcessSettings
from pymc_rmhmc.usage import called_as, one_of, real_number, switch, whole_number

__all__ = ["REPETITIONS", "Annealing", "Estimates", "Settings", "estimates_of", "repeated"]

# ---------------------------------------------------- options of annealing

# The options of annealed importance sampling.

type Array = NDArray[np.float64]

LADDERS = ("adaptive", "geometric", "linear")
KERNELS = ("flat", "hessian", "fisher", "softabs_curvature", "elliptical_slice", "hmc")
DEFAULT_RUNGS, DEFAULT_STEP, DEFAULT_STEPS = 200, 0.1, 10


@called_as("Annealing(), or Annealing(n_rungs=200)")
@dataclass(frozen=True)
class Annealing:
    """Annealed importance sampling: ``log_evidence(model, method=Annealing(bounds=False))``.

    Parameters
    ----------
    ladder : {"adaptive", "geometric", "linear"} or array, default "adaptive"
        The inverse temperatures β from 0 to 1. An adaptive ladder is found by a run of its own and then frozen.
    n_rungs : int, optional
        How many β a geometric or linear ladder has after 0. The default is 200.
    kernel : {"flat", "hessian", "fisher", "softabs_curvature", "elliptical_slice", "hmc"}, default "flat"
        What moves states at each β. "flat" moves all at once, and is for any model; the others are for a latent
        Gaussian block. Three are position-dependent metrics, as in the paper; "hmc" has unit masses in f.
    step_size : float, optional
        For the kernels with a position-dependent metric and "hmc"; the default is 0.1.
    n_steps : int, optional
        Of a trajectory of these kernels; the default is 10.
    bounds : bool, default True
        Whether states are led back from the posterior as well. The mean logarithms of the weights on both ways are
        bounds of the log evidence, in expectation.

    Raises
    ------
    ConfigurationError
        If an option is unknown, out of range, or has no effect; or if a ladder does not increase from 0 to 1.

    References
    ----------
    Neal (2001), Annealed importance sampling.
    Paquet and Fraccaro (2016), section 5.

    Examples
    --------
    >>> from pymc_rmhmc import Annealing
    >>> Annealing(ladder="geometric", n_rungs=120, kernel="hessian").n_rungs
    120
    """

    ladder: str | Sequence[float] | Array = "adaptive"
    n_rungs: int | None = None
    kernel: str = "flat"
    step_size: float | None = None
    n_steps: int | None = None
    bounds: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.ladder, str):
            one_of("ladder", self.ladder, LADDERS, "Or give the values, such as ladder=[0, 0.1, 0.5, 1].")
        else:
            object.__setattr__(self, "ladder", check_ladder(self.ladder, "ladder"))
        one_of("kernel", self.kernel, KERNELS, 'Leave kernel out for "flat", the fastest.')
        switch("bounds", self.bounds)
        if self.n_rungs is not None:
            whole_number("n_rungs", self.n_rungs)
            if not isinstance(self.ladder, str) or self.ladder == "adaptive":
                raise ConfigurationError(
                    f"n_rungs={self.n_rungs} has no effect: the ladder is given or adapts. Leave n_rungs out, or give "
                    'ladder="geometric".'
                )
        for name, value, check in (("step_size", self.step_size, real_number), ("n_steps", self.n_steps, whole_number)):
            if value is None:
                continue
            check(name, value)
            if self.kernel in {"flat", "elliptical_slice"}:
                raise ConfigurationError(f'{name}={value} has no effect with kernel="{self.kernel}". Leave it out.')

    @property
    def remedy(self) -> str:
        """What to do where too little is accepted."""
        if self.kernel in {"flat", "elliptical_slice"}:
            return FARTHER
        return (
            f"Give shorter steps, such as Annealing(kernel={self.kernel!r}, "
            f"step_size={0.5 * (self.step_size or DEFAULT_STEP):g}), or leave kernel out."
        )

    def prepared(
        self, reference: Reference, replicates: int, rng: np.random.Generator
    ) -> tuple[Callable[[int], Particles], Array]:
        """Return what makes states, and the β from 0 to 1."""
        is_flat, betas = self.kernel == "flat", self._betas(reference, replicates, rng)
        if is_flat or betas is None:
            ladder = adaptive_ladder(reference, replicates, rng, betas)
            betas = ladder.betas
        if is_flat:
            return flat_particles(reference, ladder, rng), betas
        if not isinstance(reference, LatentReference):
            raise ConfigurationError(
                f'kernel="{self.kernel}" is for latent Gaussian values with everything else fixed. Leave kernel out.'
            )
        if self.kernel == "hmc":
            if not reference.chart.prior.predictor.triangular:
                raise ConfigurationError(
                    'kernel="hmc" moves latent values that a likelihood reads as they are, and here it reads a linear '
                    "predictor of them. Leave kernel out."
                )
            size, steps = self.step_size or DEFAULT_STEP, self.n_steps or DEFAULT_STEPS
            return lambda count: EuclideanParticles(reference, size, steps, count, rng), betas
        kernel_of = _slices if self.kernel == "elliptical_slice" else self._in_metric
        return lambda count: KernelParticles(reference, kernel_of, count, rng), betas

    def _betas(self, reference: Reference, replicates: int, rng: np.random.Generator) -> Array | None:
        """Return the β of a ladder that does not adapt; None of one that does."""
        if not isinstance(self.ladder, str):
            return np.asarray(self.ladder)
        if self.ladder == "adaptive":
            return None
        n_rungs, first = self.n_rungs or DEFAULT_RUNGS, first_step(reference, max(replicates, int(FEWEST_DRAWS)), rng)
        return geometric_betas(n_rungs, first) if self.ladder == "geometric" else np.linspace(0.0, 1.0, n_rungs + 1)

    def _in_metric(self, target: LatentTarget) -> HMC:
        """Return the paper's kernel: leapfrog steps of fixed number and size in a position-dependent metric."""
        size, n_steps = self.step_size or DEFAULT_STEP, self.n_steps or DEFAULT_STEPS
        plan = settle(Options(metric=self.kernel, step_size=size, n_steps=n_steps), auto_metric="flat")
        hamiltonian = plan.trajectory.hamiltonian(plan.metric.bind(LatentDensity(target)))
        return HMC(hamiltonian, plan.integrator, plan.trajectory, size)


def _slices(target: LatentTarget) -> HMC:
    """Return slices of an ellipse, in the chart of the Gaussian part at a β."""
    return HMC(GaussianHamiltonian(target), None, EllipticalSlice(), 1.0)


# Of each block, or of the whole model: its name, the method that was taken, and the estimate.
type Estimates = list[tuple[str, str, Estimate]]

# Sweeps of tempering, and those that adapt it; and its independent ladders.
TEMPERED, REPLICAS = 1000, 2
# Annealing from heavy tails: one state in some hundreds lies where the posterior has no density. With 1000 states, and
# one such state more in the error, the root mean square of z is .95 to 1.0; without it 1.1 for a t with 2 degrees.
FEWEST_HEAVY, UNSEEN_HEAVY = 1000.0, 1
# Draws of the prior from which other modes are searched.
SEARCHES = 8
# How many times as wide as the reference are places to search from, where the prior has no draws.
WIDTHS = 3.0, 100.0
# Given draws to which a reference is fitted.
MOST_FITTED = 1000
REPETITIONS, ATTEMPTS = 4, 3
# Repetitions that differ by more than their errors so rarely do so for a reason.
LEAST_PROBABLE = 1e-4


@dataclass(frozen=True)
class Settings:
    """What a user asked for; see `log_evidence`."""

    method: str | Annealing
    sites: str | GaussianSites
    target_error: float
    max_seconds: float | None
    replicates: int

    @property
    def name(self) -> str:
        """What the method is called."""
        return self.method if isinstance(self.method, str) else "annealing"

    def progress(self, report: Report | None) -> Progress:
        """Return the progress of an estimate that begins now."""
        return Progress(self.target_error, self.max_seconds, report)


def estimates_of(
    read: EvidenceModel, settings: Settings, draws: Array | None, rng: np.random.Generator, report: Report | None
) -> Estimates:
    """Return for each block, or the whole model, its name, the method that was taken, and the estimate."""
    if not read.parts:
        return [("", *_of_whole(read, settings, draws, rng, report))]
    found = []
    # The errors of independent blocks add up in squares, and their seconds as they are.
    n, limit = len(read.parts), settings.max_seconds
    each = replace(
        settings, target_error=settings.target_error / math.sqrt(n), max_seconds=None if limit is None else limit / n
    )
    for i, part in enumerate(read.parts):
        constant = read.constant if i == 0 else 0.0
        values = None if draws is None else draws[..., read.columns(part)]
        found.append((part.name, *_of_part(part, each, constant, values, rng, report)))
    return found


def _of_part(
    part: LatentPart, settings: Settings, constant: float, draws: Array | None, rng: np.random.Generator,
    report: Report | None,
) -> tuple[str, Estimate]:  # fmt: skip
    """Estimate a latent block's log evidence, with a constant that the model's log density has beyond the blocks."""
    method = settings.name
    if draws is not None and method not in {"auto", "bridge"}:
        raise no_effect("draws", method, f"which needs none for {part.name}")
    progress = settings.progress(report)
    reference, known = latent_reference(part, settings.sites, method)
    reference.log_constant += constant
    known = {name: value + constant for name, value in known.items()}
    if method in {"laplace", "ep"}:
        return method, Estimate(known[method], math.nan, {k: v for k, v in known.items() if k != method})
    if method == "tempering":
        return method, _tempered((reference, None), rng, progress).shifted(0.0, **known)
    progress.move(reference.log_constant)
    if "hessian" not in part.likelihood.kinds:
        check_modes(part.name, reference, _prior_places(part, reference, rng))
    if method == "annealing":
        return method, _annealed(reference, settings, rng, progress).shifted(reference.log_constant, **known)
    if method == "auto" and draws is None:
        progress.say("importance sampling")
        estimate = importance_evidence(reference, settings.replicates, rng, progress)
        if estimate.diagnostics["pareto_k"] < LARGEST_K:
            return "importance sampling", estimate.shifted(reference.log_constant, **known)
        progress.history.clear()
    source = None if draws is None else GivenDraws(reference, draws, rng)
    estimate = AdaptiveBridge(reference, settings.replicates, rng, source).run(progress)
    return "bridge", estimate.shifted(reference.log_constant, **known)


def _prior_places(part: LatentPart, reference: LatentReference, rng: np.random.Generator) -> list[Array]:
    """Return draws of a block's prior, in the reference's coordinates."""
    drawn = rng.standard_normal((SEARCHES, part.prior.n_latent))
    return [reference.chart.from_model(part.prior.root.to_model(each)) for each in drawn]


def _of_whole(
    read: EvidenceModel, settings: Settings, draws: Array | None, rng: np.random.Generator, report: Report | None
) -> tuple[str, Estimate]:
    """Estimate the evidence of a model with hyperparameters, or without latent blocks."""
    if settings.name == "ep":
        raise ConfigurationError(
            'method="ep" is for latent Gaussian values alone, and this model has other variables as well. Give '
            'method="bridge", or pymc_rmhmc.ep(model, point) for the evidence given the others.'
        )
    if not (isinstance(settings.sites, str) and settings.sites == "auto"):
        raise ConfigurationError(
            "sites= are of latent Gaussian values with everything else fixed; in this model they are fitted to draws "
            "of the posterior. Leave sites out."
        )
    progress = settings.progress(report)
    if settings.name == "tempering":
        return "tempering", _tempered(start_of_whole(read, rng, progress), rng, progress).shifted(read.constant)
    progress.say("tuning a chain")
    if draws is None:
        chain, fitted = tuned_chain(read, rng), None
    else:
        fitted, kept = halves(draws)
        fitted = fitted.reshape(-1, fitted.shape[-1])
        chain = fitted_chain(read, fitted, rng)
    if settings.name == "laplace":
        reference = chain.reference()
        return "laplace", laplace_evidence(reference).shifted(reference.log_constant + read.constant)
    progress.say("looking for heavy tails and other modes")
    prior = values_of_prior(read, rng)
    fitted = values_of_chain(chain, read, rng) if fitted is None else fitted[:: 1 + len(fitted) // MOST_FITTED]
    reference, is_heavy = whole_reference(chain, prior, fitted, rng)
    constant = reference.log_constant + read.constant
    progress.move(constant)
    check_modes(chain.density.name, reference, _places(reference, prior, rng))
    if settings.name == "annealing":
        tailed = reference if is_heavy else with_fitting_tails(reference, rng)
        # The tails have changed the constant by nothing.
        states = (FEWEST_HEAVY, UNSEEN_HEAVY) if is_heavy else (FEWEST_DRAWS, 0)
        return "annealing", _annealed(tailed, settings, rng, progress, *states).shifted(constant)
    progress.say("drawing from the posterior")
    source: PosteriorDraws | None = None
    if draws is not None:
        source = GivenDraws(reference, kept, rng)
    elif not is_heavy:
        source = ChainDraws(chain, read, rng)
    policy = HEAVY_BRIDGE if is_heavy else BRIDGE
    estimate = AdaptiveBridge(reference, settings.replicates, rng, source, policy).run(progress)
    return "bridge", estimate.shifted(constant)


def _places(reference: ResidualReference, prior: Array, rng: np.random.Generator) -> Array:
    """Return where to search other modes from: draws (n, k) of the prior, or ever wider ones if it has no draws."""
    found = positions_of(reference, prior[:SEARCHES], rng)
    if len(found):
        return found
    return np.geomspace(*WIDTHS, SEARCHES)[:, None] * rng.standard_normal((SEARCHES, reference.size))


def _tempered(start: Start, rng: np.random.Generator, progress: Progress) -> Estimate:
    reference, refit = start
    found = Tempering(reference, REPLICAS, rng, refit=refit).run(TEMPERED, TEMPERED, progress)
    return found.estimate.shifted(found.reference.log_constant)


def halves(draws: Array) -> tuple[Array, Array]:
    """Split every chain in two: the first half, to which charts are fitted, and the second, which the bridge uses.

    A bridge to the draws that its own end was fitted to would be wrong.
    """
    middle = draws.shape[1] // 2
    return draws[:, :middle], draws[:, middle:]


def _annealed(
    reference: Reference, settings: Settings, rng: np.random.Generator, progress: Progress,
    fewest: float = FEWEST_DRAWS, unseen: int = 0,
) -> Estimate:  # fmt: skip
    options = settings.method if isinstance(settings.method, Annealing) else Annealing()
    progress.say("finding a ladder")
    make, betas = options.prepared(reference, settings.replicates, rng)
    return annealed_evidence(
        make, betas, settings.replicates, rng, progress, bounds=options.bounds, remedy=options.remedy, fewest=fewest,
        unseen=unseen,
    )  # fmt: skip


def estimate_once(blob: bytes, seed: int) -> Estimates:
    """Estimate once in a worker, from the pickled model and settings."""
    model, settings, _ = pickle.loads(blob)  # noqa: S301 - what this very run has packed
    process = ProcessSettings(1)
    process.hold()
    try:
        with np.errstate(all="ignore"):
            return estimates_of(read_model(model), settings, None, np.random.default_rng(seed), None)
    finally:
        process.release()


def repeated(
    model: pm.Model, settings: Settings, seeds: Sequence[int], executor: ExecutorOrFactory, report: Report
) -> Estimates:
    """Estimate as many times as there are seeds, each with an error that the mean may have, and take the mean.

    There is an error if the repetitions differ by more than their errors.
    """
    pools = check_executor(executor)
    blob = pack(model, replace(settings, target_error=settings.target_error * math.sqrt(len(seeds))), {})
    finished: list[int] = []

    def on_finished(number: int, result: object) -> None:
        finished.append(number)
        report(math.nan, math.nan, f"{len(finished)} of {len(seeds)} repetitions")

    tasks = [(blob, seed) for seed in seeds]
    results = gather(pools, estimate_once, tasks, attempts=ATTEMPTS, noun="repetition", on_finished=on_finished)
    return [_merged(parts) for parts in zip(*results, strict=True)]


def _merged(parts: Sequence[tuple[str, str, Estimate]]) -> tuple[str, str, Estimate]:
    """Average repetitions; raise an error if they differ by more than their errors."""
    name, method, first = parts[0]
    values, errors = (np.array([getattr(e, n) for *_, e in parts]) for n in ("log_evidence", "standard_error"))
    distance = float((((values - values.mean()) / np.maximum(errors, 1e-12)) ** 2).sum())
    if stats.chi2(len(parts) - 1).sf(distance) < LEAST_PROBABLE:
        shown = ", ".join(f"{v:.2f} ± {e:.2f}" for v, e in zip(values, errors, strict=True))
        raise EvidenceError(
            f"Repetitions of the estimate differ by more than their errors: {shown}. The posterior may have several "
            'modes: give method="tempering", or draws= of a long run.'
        )
    diagnostics: dict[str, float | Array] = {
        key: float(np.mean([e.diagnostics[key] for *_, e in parts]))
        for key, value in first.diagnostics.items()
        if np.ndim(value) == 0 and all(key in e.diagnostics for *_, e in parts)
    }
    diagnostics |= {"repetition_estimate": values, "repetition_error": errors}
    return name, method, Estimate(float(values.mean()), float(np.sqrt((errors**2).sum())) / len(parts), diagnostics)
