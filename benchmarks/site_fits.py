"""What the sites of the flat metric should be fitted to: the choice of `SiteRegression`.

Three fits through the same seam, ``FlatMetric(site_fit=...)``: the sites of the start kept (Laplace's at fixed
hyperparameters, the variational ones with free ones), the regression of the likelihood's slope on η over the tuning
draws, and, at fixed hyperparameters, sites whose Gaussian has the means and variances of the draws, as expectation
propagation's would. Printed are the step that is accepted, and the smaller of bulk and tail ESS over all parameters, a
draw and a second (draws alone). Run with ``python -m benchmarks.site_fits``.
"""

from __future__ import annotations

import logging
import os
import sys
from functools import partial

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pymc as pm
from scipy.linalg import blas, cholesky

from benchmarks.joint_problems import JOINT_PROBLEMS
from benchmarks.measures import all_values, smallest_ess
from benchmarks.problems import PROBLEMS
from pymc_rmhmc import RMHMC, FlatMetric
from pymc_rmhmc.approximation import SiteFit, SiteRegression
from pymc_rmhmc.latent.charts import GaussianSites

SEEDS, DRAWS = 3, 1500
ROUNDS, DAMPING = 30, 0.5


class Kept(SiteFit):
    """The sites that a chain begins with."""

    def fit(self, held: GaussianSites) -> None:
        """Nothing new."""


class MomentMatching(SiteFit):
    """Sites for which prior times sites has the draws' means and variances, by EP's update of each in turn.

    The mean is matched by Stein's identity, as in the regression: what differs is the precision.
    """

    def __init__(self, n_sites: int, covariance: np.ndarray) -> None:
        super().__init__(n_sites)
        self._covariance = covariance

    def fit(self, held: GaussianSites) -> GaussianSites | None:
        """From the precisions held."""
        if self.count < SiteRegression.MIN_DRAWS:
            return None
        precision = held.precision.copy()
        for _ in range(ROUNDS):
            moved = 1.0 / self.variance - 1.0 / self._marginal_variance(precision)
            precision = np.maximum(precision + DAMPING * moved, 0.0)
        eta, slope = self.mean
        return GaussianSites(slope + precision * eta, precision)

    def _marginal_variance(self, precision: np.ndarray) -> np.ndarray:
        root = np.sqrt(precision)
        inner = cholesky(np.eye(root.size) + root[:, None] * self._covariance * root, lower=True)
        half = blas.dtrsm(1.0, inner, root[:, None] * self._covariance, lower=1)
        return self._covariance.diagonal() - (half**2).sum(axis=0)


def fits(problem) -> dict[str, object]:
    """By name what makes each."""
    found = {"start's": Kept, "regression": SiteRegression}
    if hasattr(problem, "covariance"):
        found["moments"] = partial(MomentMatching, covariance=problem.covariance)
    return found


def measured(problem, fit, seed: int) -> tuple[float, float, float]:
    """Step size, effective draws a draw and a second."""
    with problem.centred():
        step = RMHMC(metric=FlatMetric(site_fit=fit))
        idata = pm.sample(
            draws=DRAWS, chains=2, cores=1, step=step, progressbar=False, random_seed=seed,
            compute_convergence_checks=False,
        )  # fmt: skip
    ess = smallest_ess(all_values(idata, problem.parameters))
    seconds = float(idata.sample_stats["perf_counter_diff"].sum())
    return float(idata.sample_stats["step_size"].mean()), ess / (2 * DRAWS), ess / seconds


def main(names: list[str]) -> None:
    """Print one line for each problem and fit."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    print("| problem | sites | step | ESS/draw | ESS/s |\n| --- |" + " --- |" * 4)
    for name in names:
        problem = (PROBLEMS | JOINT_PROBLEMS)[name]()
        for kind, fit in fits(problem).items():
            runs = np.array([measured(problem, fit, seed) for seed in range(SEEDS)])
            step, by_draw, by_second = np.exp(np.log(runs).mean(axis=0))
            low, high = runs[:, 1].min(), runs[:, 1].max()
            print(
                f"| {name} | {kind} | {step:.2f} | {by_draw:.3f} ({low:.3f}-{high:.3f}) | {by_second:.0f} |", flush=True
            )


if __name__ == "__main__":
    main(sys.argv[1:] or ["logit", "probit", "usps", "cox", "logit ARD 100", "poisson ARD 100", "student t ARD 100"])
