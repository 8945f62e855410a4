"""Angles in the chart of a model's graph: right on the circle, with as many effective draws as half of the draws."""

from __future__ import annotations

import math

import arviz as az
import numpy as np
import pymc as pm
import pytest
from scipy import integrate, stats

from pymc_rmhmc import RMHMC, log_evidence

pytestmark = pytest.mark.slow

DRAWS, CHAINS = 1000, 4
TIMES = np.linspace(0.0, 10.0, 30)
WAVE = 0.6 * np.cos(TIMES - 3.0) + 1.5 * np.random.default_rng(0).standard_normal(TIMES.size)


def alone() -> pm.Model:
    with pm.Model() as model:
        pm.VonMises("a", 0.0, 2.0)
    return model


def of_a_wave() -> pm.Model:
    """The phase of a wave under noise, with a mean near the end of PyMC's range."""
    with pm.Model() as model:
        a = pm.VonMises("a", 0.0, 0.3)
        pm.Normal("y", 0.6 * pm.math.cos(TIMES - a), 1.5, observed=WAVE)
    return model


def of_directions() -> pm.Model:
    seen = stats.vonmises(3.0, loc=2.9).rvs(15, random_state=1)
    with pm.Model() as model:
        a, k = pm.VonMises("a", 0.0, 0.5), pm.HalfNormal("k", 5.0)
        pm.VonMises("y", a, k, observed=seen)
    return model


def of_groups() -> pm.Model:
    group = np.repeat(np.arange(12), 5)
    centres = stats.vonmises(4.0, loc=2.8).rvs(12, random_state=1)
    seen = np.angle(np.exp(1j * (centres[group] + stats.vonmises(2.0).rvs(60, random_state=2))))
    with pm.Model() as model:
        mu, k = pm.VonMises("mu", 0.0, 0.01), pm.Gamma("k", 2.0, 0.5)
        a = pm.VonMises("a", mu, pm.Gamma("spread", 2.0, 0.5), shape=12)
        pm.VonMises("y", a[group], k, observed=seen)
    return model


def phase_density(a: float) -> float:
    """The phase's unnormalised posterior density, times a constant."""
    fits = stats.norm(0.6 * np.cos(TIMES - a), 1.5).logpdf(WAVE).sum()
    return math.exp(stats.vonmises(0.3).logpdf(a) + fits + 50.0)


def effective(draws: np.ndarray) -> float:
    """Effective draws of the sine and cosine of an angle."""
    return min(float(az.ess(f(draws))) for f in (np.sin, np.cos))


@pytest.mark.parametrize("build", [alone, of_a_wave, of_directions, of_groups])
def test_an_angle_makes_effective_draws_and_no_message(build, caplog):
    with build() as model:
        found = pm.sample(
            DRAWS, tune=1000, chains=CHAINS, cores=1, step=RMHMC(), random_seed=1, progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip
    assert "independent ones" not in caplog.text
    for variable in model.free_RVs:
        if "circular" in str(model.rvs_to_values[variable].name):
            draws = found.posterior[variable.name].values.reshape(CHAINS, DRAWS, -1)
            assert min(effective(draws[..., j]) for j in range(draws.shape[2])) > 0.5 * CHAINS * DRAWS


@pytest.mark.parametrize("seed", [10, 11, 12])
@pytest.mark.parametrize(
    ("build", "density"), [(alone, stats.vonmises(2.0).pdf), (of_a_wave, phase_density)], ids=["alone", "wave"]
)
def test_the_distribution_is_that_on_the_circle(build, density, seed):
    with build():
        found = pm.sample(
            DRAWS, tune=1000, chains=CHAINS, cores=1, step=RMHMC(), random_seed=seed, progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip
    draws = found.posterior["a"].values
    whole, _ = integrate.quad(density, -math.pi, math.pi)
    for bound in (1.0, 2.0):
        inside, _ = integrate.quad(density, -bound, bound)
        beyond = np.abs(draws) > bound
        error = beyond.std() / math.sqrt(float(az.ess(beyond.astype(float))))
        assert abs(beyond.mean() - (1.0 - inside / whole)) < 4.0 * error


@pytest.mark.parametrize("method", ["bridge", "annealing", "tempering"])
def test_the_evidence_is_that_on_the_circle(method):
    exact = math.log(integrate.quad(phase_density, -math.pi, math.pi)[0]) - 50.0
    found = log_evidence(of_a_wave(), method=method, random_seed=3)
    assert abs(float(found.log_evidence) - exact) < 4.0 * float(found.standard_error)
    assert float(found.standard_error) < 0.1
