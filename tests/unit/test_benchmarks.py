"""The benchmark's two models are one posterior, and its problems are what they say."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

from benchmarks.joint_problems import cox as free_cox
from benchmarks.joint_problems import regression
from benchmarks.measures import largest_rhat, smallest_ess
from benchmarks.problems import cox, logit, probit, usps

SMALL = {"logit": lambda: logit(12), "probit": lambda: probit(12), "cox": lambda: cox(4), "usps": lambda: usps(12)}


@pytest.mark.parametrize("name", SMALL)
def test_centred_and_whitened_are_one_posterior(name):
    problem = SMALL[name]()
    centred, whitened = problem.centred().compile_logp(), problem.whitened().compile_logp()
    factor = np.linalg.cholesky(problem.covariance)
    rng, gaps = np.random.default_rng(0), []
    for _ in range(4):
        # Small latents: PyMC's own probit density is -inf a few units further out.
        v = 0.02 * rng.standard_normal(problem.n)
        f = problem.mean + factor @ v
        log_jacobian_free = centred({"f": f}) - whitened({"v": v})
        gaps.append(float(log_jacobian_free))
    np.testing.assert_allclose(gaps, gaps[0], atol=1e-5)


@pytest.mark.parametrize(
    "problem",
    [*(regression(name, 12) for name in ("logit", "poisson", "negative binomial", "student t")), free_cox(4)],
    ids=lambda problem: problem.name,
)
def test_joint_problems_are_one_posterior_in_both_forms(problem):
    centred, whitened = problem.centred(), problem.whitened()
    rng, gaps = np.random.default_rng(0), []
    matrix = centred.replace_rvs_by_values([centred["f"].owner.inputs[-1]])[0]
    covariance_of = centred.compile_fn(matrix, inputs=centred.value_vars, point_fn=False, on_unused_input="ignore")
    for _ in range(4):
        point = {k: v + 0.3 * rng.standard_normal(np.shape(v)) for k, v in centred.initial_point().items()}
        factor = np.linalg.cholesky(covariance_of(*(point[v.name] for v in centred.value_vars)))
        rotated = {"f_rotated_": 0.5 * rng.standard_normal(factor.shape[0])}
        mean = float(point.get("mean", 0.0))
        theta = {name: value for name, value in point.items() if name != "f"}
        ours = centred.compile_logp()(theta | {"f": mean + factor @ rotated["f_rotated_"]})
        gaps.append(ours + np.log(factor.diagonal()).sum() - whitened.compile_logp()(theta | rotated))
    np.testing.assert_allclose(gaps, 0.0, atol=1e-4)
    assert set(problem.parameters) <= set(centred.named_vars)


def test_the_problems_are_seeded_and_have_their_sizes():
    for make in (logit, probit):
        np.testing.assert_array_equal(make(20).y, make(20).y)
        assert make(20).n == 20
    assert cox(5).n == 25
    digits = usps()
    assert digits.n == 767
    assert 1e10 < np.linalg.cond(digits.covariance) < 1e11
    # Neighbouring cells of the slides' field: exp(-33/32).
    field = cox(32).covariance
    assert field[0, 1] / field[0, 0] == pytest.approx(np.exp(-33.0 / 32.0))


def test_the_measures():
    rng = np.random.default_rng(0)
    draws = rng.standard_normal((2, 500, 3))
    assert 500 < smallest_ess(draws) < 1500
    assert largest_rhat(draws) < 1.02
    assert largest_rhat(draws + np.array([0.0, 3.0])[:, None, None]) > 1.5


def test_usps_known_values():
    """Laplace's log evidence of the digits, -111.001 (Rasmussen and Williams' approximation)."""
    from pymc_rmhmc.approximation import find_mode, laplace_sites
    from pymc_rmhmc.geometry.charts import SiteChart
    from pymc_rmhmc.geometry.prior import FactorizedPrior
    from pymc_rmhmc.model import compile_model, read_structure

    problem = usps()
    with pm.Model() as model:
        f = pm.MvNormal("f", np.zeros(problem.n), cov=problem.covariance)
        problem.observe(f)
    block = compile_model(read_structure(model)).blocks[0]
    point = model.initial_point()
    prior, likelihood = FactorizedPrior(block.prior(point)), block.likelihood(point)
    mode = find_mode(prior.predictor, likelihood, "hessian")
    assert mode.converged
    sites = laplace_sites(mode)
    gap = likelihood.log_density(mode.eta) - sites.log_density(mode.eta)
    assert SiteChart(prior, sites).log_evidence + gap == pytest.approx(-111.001, abs=2e-3)
