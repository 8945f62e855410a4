"""Kicks in single precision: when they are taken, and that two vectors are solved for at once."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_rmhmc.dynamics.hamiltonian import SiteHamiltonian, SpannedHamiltonian
from pymc_rmhmc.latent import target as rounded_module
from pymc_rmhmc.latent.charts import GaussianSites, SiteChart
from pymc_rmhmc.latent.charts.site import FactorizedPrior
from pymc_rmhmc.latent.target import LatentDensity, LatentTarget, rounded
from pymc_rmhmc.metrics import FlatMetric
from tests.unit.toys import PRIORS, Logit, ToyComponent, ToyPrior, kernel

N = 40


@pytest.fixture(autouse=True)
def large_at_once(monkeypatch):
    monkeypatch.setattr(rounded_module, "LARGE", 30)


def target_of(covariance: np.ndarray, precision: float | None = 0.25) -> LatentTarget:
    n = len(covariance)
    prior = FactorizedPrior(ToyPrior((ToyComponent(covariance=covariance),), np.zeros(n)))
    sites = None if precision is None else GaussianSites(np.zeros(n), np.full(n, precision))
    chart = SiteChart(prior, sites, lasting=True)
    return LatentTarget(chart, Logit(np.resize([1.0, -1.0], n)))


def test_large_processes_have_rounded_kicks_and_keep_one_matrix():
    target = target_of(kernel(N))
    flow = FlatMetric().bind(LatentDensity(target)).hamiltonian()
    assert isinstance(flow, SiteHamiltonian)
    assert target.chart.predictor._gram is None  # what was rounded is let go of
    z = np.random.default_rng(0).standard_normal(N)
    point, exact = flow.state(z).point, target.at_sites(target.apply(z))
    assert (point.log_density, point.log_likelihood) == (exact.log_density, exact.log_likelihood)
    np.testing.assert_allclose(point.force, exact.force[N:], rtol=1e-5, atol=1e-6)
    assert (point.force != exact.force[N:]).any()


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_whether_they_are_taken_does_not_depend_on_units(scale):
    """Latent values in other units have other precisions; what rounding costs is the same."""
    assert rounded(target_of(scale**2 * kernel(N), 0.25 / scale**2)) is not None
    assert rounded(target_of(scale**2 * kernel(N, jitter=1e-13), 0.25 / scale**2)) is None


def test_rounding_that_would_be_felt_is_not_taken():
    """Next to no jitter: what is rounded is larger than the smallest eigenvalues."""
    flow = FlatMetric().bind(LatentDensity(target_of(kernel(N, jitter=1e-13)))).hamiltonian()
    assert isinstance(flow, SpannedHamiltonian)


def test_values_beyond_single_precision_are_not_rounded():
    with np.errstate(over="ignore", invalid="ignore"):
        assert rounded(target_of(1e80 * kernel(N, jitter=1e-2), 1e-80)) is None


@pytest.mark.parametrize("case", ["small", "no triangle", "no sites"])
def test_others_keep_double_precision(case, monkeypatch):
    target = target_of(kernel(N), None if case == "no sites" else 0.25)
    if case == "small":
        monkeypatch.setattr(rounded_module, "LARGE", N + 1)
    if case == "no triangle":
        sites = GaussianSites(np.zeros(N), np.ones(N))
        target = LatentTarget(SiteChart(FactorizedPrior(PRIORS["additive"](N)), sites, lasting=True), Logit(np.ones(N)))
    assert rounded(target) is None
    assert isinstance(FlatMetric().bind(LatentDensity(target)).hamiltonian(), SpannedHamiltonian)


@pytest.mark.parametrize("n", [31, 32, 40, 45, 135])
def test_two_vectors_are_solved_for_at_once(n):
    target, rng = target_of(kernel(n, jitter=1e-2)), np.random.default_rng(n)
    density = rounded(target)
    z, p = rng.standard_normal((2, n))
    a, b = density.apply(z), density.apply(p)
    kept = a.copy(), b.copy()
    solved = density.solve_pair(a, b)
    np.testing.assert_allclose(solved, (z, p), rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal((a, b), kept)
