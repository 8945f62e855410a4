"""An amplitude that nothing bounds: classes that can be separated fit the better the larger it is.

What is known of it without sampling is the probability of the classes at an amplitude, that of an orthant.
"""

from __future__ import annotations

import arviz as az
import numpy as np
import pymc as pm
import pytest
from scipy import stats
from scipy.integrate import cumulative_trapezoid

from pymc_rmhmc import RMHMC
from pymc_rmhmc.kernels import turns
from pymc_rmhmc.kernels.trajectories import transition
from pymc_rmhmc.kernels.turns import LatentMove
from pymc_rmhmc.tuning import joint_adapter
from tests.statistical.joint_cases import matern_root
from tests.steps.conftest import draw

pytestmark = pytest.mark.slow

N, SCALE = 6, 5.0
X = np.linspace(0.0, 1.0, N)[:, None]
SEEN = (X[:, 0] > 0.5).astype(int)
ROOT = matern_root(X, 0.5)
SHARES = np.array([0.5, 0.25, 0.1, 0.05, 0.02])


def model() -> pm.Model:
    with pm.Model() as built:
        amplitude = pm.HalfCauchy("amplitude", SCALE)
        f = pm.MvNormal("f", np.zeros(N), chol=amplitude * ROOT)
        pm.Bernoulli("y", p=pm.math.invprobit(f), observed=SEEN)
    return built


def exceeded_with_the_probability_of(shares: np.ndarray) -> np.ndarray:
    """The amplitudes that are exceeded so often in the posterior."""
    logs, signs = np.linspace(-4.0, 14.0, 91), np.where(SEEN, 1.0, -1.0)
    signed = ROOT @ ROOT.T * np.outer(signs, signs)
    orthant = [
        stats.multivariate_normal.cdf(np.zeros(N), cov=np.eye(N) + np.exp(2.0 * log) * signed, rng=0) for log in logs
    ]
    density = np.array(orthant) * stats.halfcauchy.pdf(np.exp(logs), scale=SCALE) * np.exp(logs)
    cumulative = cumulative_trapezoid(density, logs, initial=0.0)
    return np.exp(np.interp(1.0 - shares, cumulative / cumulative[-1], logs))


def sampled() -> tuple[np.ndarray, float]:
    """Draws of the amplitude, and the share of draws that failed."""
    built = model()
    idata = draw(built, RMHMC(model=built), draws=4000, tune=600, chains=2)
    return idata.posterior["amplitude"].values, float((idata.sample_stats["failure"] != 0).mean())


def worst(drawn: np.ndarray) -> tuple[float, float]:
    """How far off the shares are in errors of their own, and the effective draws of the tail."""
    features = [np.asarray(drawn > level, dtype=float) for level in exceeded_with_the_probability_of(SHARES)]
    z = [(each.mean() - share) / float(az.mcse(each)) for each, share in zip(features, SHARES, strict=True)]
    return float(np.abs(z).max()), float(az.ess(drawn, method="tail", prob=0.9))


def test_the_tail_of_the_amplitude_is_that_of_orthant_probabilities():
    drawn, failed = sampled()
    z, effective = worst(drawn)
    assert z < 4.5
    assert effective > 400
    assert failed < 0.02


def test_it_is_not_with_sites_that_stand_still(monkeypatch):
    """So that the case above tests the trend: R-hat and the median say nothing of what is missing."""
    monkeypatch.setattr(joint_adapter, "follow_trend", lambda block, sites, *others: sites)
    z, effective = worst(sampled()[0])
    assert z > 4.5 or effective < 400


def test_steps_that_stay_as_long_at_a_large_amplitude_fail_there(monkeypatch):
    """But for second tries, which are no reason to make steps that fail."""
    monkeypatch.setattr(turns, "transition", lambda *given, **_: transition(*given))
    monkeypatch.setattr(LatentMove, "step_size_at", lambda self, state: self.step_size)
    assert sampled()[1] > 0.04
