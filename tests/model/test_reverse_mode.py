"""The joint chart's adjoints against PyTensor's reverse mode through the same formulas, written out plainly.

Differences say that a gradient is right to six digits; reverse mode says so to eight.
"""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from pymc_rmhmc.geometry.charts import GaussianSites, MarginalChart
from pymc_rmhmc.geometry.joint import JointTarget
from pymc_rmhmc.model.graphs import PYTHON_MODE
from tests.model.conftest import BINARY, COUNTS, N, X
from tests.model.joint_checks import joint_of

JITTER = 1e-3


def kernel(ls, eta):
    return (eta**2 * pm.gp.cov.Matern52(1, ls=ls))(X) + JITTER * pt.eye(N)


def counts(eta):
    return (COUNTS * eta - pt.exp(eta)).sum()


def classes(eta):
    return (BINARY * eta - pt.softplus(eta)).sum()


def build(likelihood, reparameterize: bool) -> pm.Model:
    with pm.Model() as model:
        ls, eta, level = pm.LogNormal("ls", -1.0, 0.5), pm.HalfNormal("eta", 1.0), pm.Normal("level")
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(level), cov_func=eta**2 * pm.gp.cov.Matern52(1, ls=ls))
        f = gp.prior("f", X, reparameterize=reparameterize, jitter=JITTER)
        if likelihood is counts:
            pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)
        else:
            pm.Bernoulli("y", logit_p=f, observed=BINARY)
    return model


def plain_density(likelihood, position, sites: GaussianSites):
    """The log density beyond a standard normal as the chart's formulas have it, but for a constant."""
    theta, first, second = position[:3], position[3 : 3 + N], position[3 + N :]
    ls, eta, level = pt.exp(theta[0]), pt.exp(theta[1]), theta[2]
    prior = -0.5 * ((theta[0] + 1.0) / 0.5) ** 2 - 0.5 * eta**2 + theta[1] - 0.5 * level**2
    b, w, root = sites.linear, sites.precision, np.sqrt(sites.precision)
    mean, covariance = level * pt.ones(N), kernel(ls, eta)
    h = pt.linalg.cholesky(covariance) @ first
    weighted = pt.eye(N) + root[:, None] * covariance * root

    def conditional(right):
        """``(I + W̄ K)⁻¹`` times a vector."""
        return root * pt.linalg.solve(weighted, right / root)

    predictor = mean + h + covariance @ conditional(b - w * (mean + h) + root * second)
    beyond = b - w * mean
    evidence = (
        (b * mean - 0.5 * w * mean**2).sum() + 0.5 * beyond @ (covariance @ conditional(beyond))
        - pt.log(pt.diag(pt.linalg.cholesky(weighted))).sum()
    )  # fmt: skip
    of_sites = (b * predictor - 0.5 * w * predictor**2).sum()
    return prior + 0.5 * (theta**2).sum() + likelihood(predictor) - of_sites + evidence


@pytest.mark.parametrize("likelihood", [counts, classes])
@pytest.mark.parametrize("reparameterize", [False, True], ids=["centred", "whitened"])
def test_the_joint_gradient_is_that_of_reverse_mode(likelihood, reparameterize):
    rng = np.random.default_rng(4)
    sites = GaussianSites(rng.standard_normal(N), rng.exponential(1.0, N))
    joint = joint_of(build(likelihood, reparameterize))
    joint.bind({})
    order = [joint.theta.names.index(name) for name in ("ls_log__", "eta_log__", "level")]
    target = JointTarget(joint, [sites], MarginalChart.linear(np.zeros(3), np.eye(3)))
    position = pt.dvector("position", shape=(3 + 2 * N,))
    density = plain_density(likelihood, position, sites)
    reverse = pytensor.function([position], [density, pytensor.grad(density, position)], mode=PYTHON_MODE)
    values = []
    for _ in range(4):
        at = rng.standard_normal(target.size)
        at[:3] = 0.5 * at[:3] - 0.5
        plainly = at.copy()
        plainly[:3] = at[order]
        total, exact = reverse(plainly)
        by_theta = np.empty(3)
        by_theta[order] = exact[:3]
        point = target.at(at)
        np.testing.assert_allclose(point.gradient, np.concatenate((by_theta, exact[3:])), rtol=1e-8, atol=1e-8)
        values.append(point.log_density - total)
    np.testing.assert_allclose(values, values[0], rtol=0.0, atol=1e-9)
