"""The options of annealed importance sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.chains.reference import LatentReference, Reference
from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian
from pymc_rmhmc.errors import ConfigurationError
from pymc_rmhmc.evidence.methods.annealing import (
    EuclideanParticles,
    KernelParticles,
    Particles,
    adaptive_ladder,
    first_step,
    flat_particles,
    geometric_betas,
)
from pymc_rmhmc.evidence.methods.ensemble import check_ladder
from pymc_rmhmc.evidence.methods.estimate import FARTHER, FEWEST_DRAWS
from pymc_rmhmc.kernels.kernel import HMC
from pymc_rmhmc.kernels.single_moves import EllipticalSlice
from pymc_rmhmc.latent.target import LatentDensity, LatentTarget
from pymc_rmhmc.steps.options import Options, settle
from pymc_rmhmc.usage import called_as, one_of, real_number, switch, whole_number

__all__ = ["Annealing"]

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
