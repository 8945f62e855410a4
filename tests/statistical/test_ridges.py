"""Ridges that bend and grow thin: the chain reaches both ends, next to a grid."""

from __future__ import annotations

import arviz as az
import numpy as np
import pymc as pm
import pytest

from benchmarks.ridges import Emax, values
from pymc_rmhmc import RMHMC, summarize_failures

pytestmark = pytest.mark.slow


def test_a_dose_response_with_a_drift_is_as_wide_as_the_grid_says():
    problem = Emax(4.0)
    exact, means, widths, failures = problem.moments(), [], [], 0
    with problem.model():
        for seed in range(1, 4):
            idata = pm.sample(
                step=RMHMC(), draws=1500, tune=1000, chains=2, cores=1, random_seed=seed, progressbar=False,
                compute_convergence_checks=False,
            )  # fmt: skip
            failures += summarize_failures(idata).total
            for name, draws in values(idata).items():
                mean, sd = exact[name]
                # A width has the standard error of the mean of squares.
                squares = ((draws - mean) / sd) ** 2
                error = squares.std() / np.sqrt(float(az.ess(squares)))
                widths.append((squares.mean() - 1.0) / error)
                means.append((draws.mean() - mean) / (draws.std() / np.sqrt(float(az.ess(draws)))))
                assert float(az.ess(draws)) > 300.0
    # Of one seed both values say nearly the same: as many independent numbers as seeds.
    assert np.abs(means).max() < 4.0
    assert np.abs(np.mean(means)) < 3.0 / np.sqrt(3.0)
    assert np.abs(np.mean(widths)) < 3.0 / np.sqrt(3.0)
    assert failures <= 3
