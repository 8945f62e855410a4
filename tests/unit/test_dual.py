"""The evidence of Gaussian sites under a dense covariance: exact to rounding, or refused where that is all there is."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest

from pymc_rmhmc.errors import Failure, PriorFailure
from pymc_rmhmc.latent.charts import GaussianSites
from pymc_rmhmc.latent.solvers.dual import factor_of_sites, gram_matrix, roots_of_sites, variances_of_sites, weigh
from tests.unit.placing import Placing, dense_block
from tests.unit.toys import kernel


def exact(covariance, mean, linear, precision) -> tuple[float, np.ndarray]:
    """Log evidence and centre with sixty digits."""
    with mp.workdps(60):
        n = len(mean)
        q, m, b = mp.matrix(covariance.tolist()), mp.matrix(mean.tolist()), mp.matrix(linear.tolist())
        w = mp.diag(precision.tolist())
        slope = b - w * m
        inner = mp.eye(n) + w * q
        centre = q * mp.lu_solve(inner, slope)
        evidence = (b.T * m)[0] - (m.T * w * m)[0] / 2 + (slope.T * centre)[0] / 2 - mp.log(mp.det(inner)) / 2
        return float(evidence), np.array([float(v) for v in m + centre])


@pytest.mark.parametrize("noise", [1e4, 1.0, 1e-2, 1e-4])
def test_the_evidence_is_exact_whatever_the_noise_is(noise):
    """Of data of 1e3 about a mean of 1e2: two sums of up to 1e17 cancel to some hundreds in the plain form."""
    n, rng = 12, np.random.default_rng(0)
    covariance = np.asfortranarray(1e6 * kernel(n, lengthscale=0.3, jitter=1e-4))
    mean = np.full(n, 100.0)
    y = mean + np.linalg.cholesky(covariance) @ rng.standard_normal(n) + noise * rng.standard_normal(n)
    precision = np.full(n, noise**-2)
    precision[3] = 0.0
    linear = precision * y
    has_factor, _, _, found, log_evidence = weigh(covariance, mean, linear, precision)
    expected, centre = exact(covariance, mean, linear, precision)
    assert has_factor
    # What a site has at its own mean is a constant, and as large as it is.
    assert log_evidence == pytest.approx(expected, abs=1e-6 + 1e-13 * float(linear @ y))
    np.testing.assert_allclose(found[2], centre, rtol=1e-9)


def autoregression(rho: float, n: int = 50) -> np.ndarray:
    """The covariance of one of first order that starts and moves with a standard deviation of 1."""
    factor = np.linalg.inv(np.eye(n) - rho * np.eye(n, k=-1))
    return np.asfortranarray(factor @ factor.T)


def made(rho: float) -> Placing:
    covariance = autoregression(rho)
    n = len(covariance)
    sites = GaussianSites(np.linspace(-3.0, 10.0, n), np.full(n, 4.0))
    return dense_block(np.zeros(n), covariance, sites)


@pytest.mark.parametrize("rho", [0.5, 1.0, 1.2])
def test_an_autoregression_that_grows_can_be_used(rho):
    covariance = autoregression(rho)
    conditional, n = made(rho), len(covariance)
    expected, _ = exact(covariance, np.zeros(n), np.linspace(-3.0, 10.0, n), np.full(n, 4.0))
    assert conditional.log_evidence == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("rho", [1.45, 2.0])
def test_one_that_explodes_is_refused(rho):
    """Variances are 1e15 times the innovations', and what is left of these in the factor is rounding."""
    with pytest.raises(PriorFailure) as caught:
        made(rho)
    assert caught.value.failure is Failure.NOT_POSITIVE_DEFINITE


def test_strong_sites_and_a_prior_of_high_condition_are_not():
    n = 60
    covariance = np.asfortranarray(1e4 * kernel(n, amplitude=1.0, jitter=1e-10))
    has_factor, *_ = weigh(covariance, np.zeros(n), 1e8 * np.linspace(0.0, 10.0, n), np.full(n, 1e8))
    assert has_factor


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_variances_are_exact_whatever_the_sites_say(scale):
    """Beside a site that says 1e14 times what the prior does, one that says next to nothing, and one that is silent."""
    n = 6
    covariance = np.asfortranarray(scale * kernel(n, lengthscale=0.3, jitter=1e-6))
    precision = np.array([1e14, 3.0, 0.0, 1e-9, 1e6, 0.9]) / scale
    roots = roots_of_sites(precision, covariance.diagonal())
    has_factor, inner = factor_of_sites(covariance, roots[0])
    assert has_factor
    with mp.workdps(60):
        whole = mp.matrix(covariance.tolist()) ** -1 + mp.diag(precision.tolist())
        inverse = np.array((whole**-1).tolist(), dtype=float)
    np.testing.assert_allclose(variances_of_sites(covariance, inner, roots), inverse.diagonal(), rtol=1e-9)
    size = np.sqrt(np.outer(inverse.diagonal(), inverse.diagonal()))
    found = gram_matrix(covariance, inner, roots)
    np.testing.assert_array_equal(found, found.T)
    np.testing.assert_allclose(found / size, inverse / size, atol=1e-8)
