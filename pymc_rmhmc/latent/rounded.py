"""A target whose kicks are rounded to single precision, which halves what a step at thousands of sites has to read."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.dynamics.hamiltonian import Advanced, Placed
from pymc_rmhmc.latent.target import LatentTarget, SiteTargetPoint
from pymc_rmhmc.linalg.cholesky import solve_lower, solve_pair_in_place
from pymc_rmhmc.linalg.products import LARGE, multiply_in_streams

__all__ = ["RoundedTarget", "rounded"]

type Array = NDArray[np.float64]
type Single = NDArray[np.float32]

# Of the energy that rounding may cost a kick of one unit of time, in squares: a trajectory's acceptance feels nothing.
MOST_ENERGY = 1e-4


class RoundedTarget:
    """A `LatentTarget` for `pymc_rmhmc.dynamics.hamiltonian.SiteHamiltonian`.

    Parameters
    ----------
    target : LatentTarget
        Of a chart with a triangular Φ.
    gram : (n, n) array in single precision
        S̃, for ``ΦΦᵀ``: of a Fortran-ordered one the upper triangle is read.
    """

    def __init__(self, target: LatentTarget, gram: Single) -> None:
        self._target, self._gram = target, gram

    def at_sites(self, displacement: Array) -> SiteTargetPoint:
        """Evaluate φ at ``Φ z`` (n,), and S̃ times its slope."""
        eta = self._target.chart.predictor.offset + displacement
        log_likelihood, value, slope = self._target.evaluate(eta)
        return SiteTargetPoint(eta, log_likelihood, value, multiply_in_streams(self._gram, slope))

    def apply(self, vector: Array) -> Array:
        """``Φ vector``, (n,)."""
        return self._target.apply(vector)

    def solve_pair(self, first: Array, second: Array) -> tuple[Array, Array]:
        """``Φ⁻¹`` of two vectors (n,), for which Φ is read once."""
        first, second = first.copy(), second.copy()
        solve_pair_in_place(self._target.chart.predictor.matrix, first, second)
        return first, second

    @property
    def advances(self) -> bool:
        """Whether `advance` can be asked for."""
        return self._target.advances

    def advance(self, origin: Placed, point: SiteTargetPoint, n_steps: int, step_size: float) -> Advanced:
        """The steps that were made of a trajectory, and where it is then."""
        return self._target.follow_spread((self._gram,), origin, point, n_steps, step_size)


def rounded(target: LatentTarget) -> RoundedTarget | None:
    """The target with rounded kicks; None where a step would gain nothing, or where rounding would be felt.

    A slope of a likelihood is of the size of the roots of its sites' precisions. What rounding changes of the momentum
    after a kick of such a slope, with signs at random, says what it costs: only a covariance whose smallest eigenvalues
    are next to nothing beside its largest feels it.
    """
    predictor, sites = target.chart.predictor, target.chart.sites
    if not predictor.triangular or predictor.n_sites < LARGE or sites is None:
        return None
    exact = predictor.gram
    gram = exact.astype(np.float32)
    signs = np.where(np.random.default_rng(0).random(predictor.n_sites) < 0.5, -1.0, 1.0)
    slope = signs * np.sqrt(np.abs(sites.precision))
    missed = solve_lower(predictor.matrix, multiply_in_streams(gram, slope) - multiply_in_streams(exact, slope))
    energy = float(missed @ missed)
    if not (math.isfinite(energy) and energy <= MOST_ENERGY):
        return None
    predictor.forget_gram()
    return RoundedTarget(target, gram)
