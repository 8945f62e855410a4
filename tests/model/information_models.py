"""Models of which the Fisher information is read, and its value at a point."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_rmhmc.model.general.information import fisher_information
from pymc_rmhmc.model.hyperparameters import GraphFunction, Hyperparameters

RNG = np.random.default_rng(11)
X = RNG.standard_normal((12, 3))
GROUP = np.arange(12) % 4


def information_of(model: pm.Model, theta, variables=None, point=None) -> np.ndarray:
    """G at θ, of all free variables by default."""
    return information_function(model, variables, point)(theta)


def information_function(model: pm.Model, variables=None, point=None) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function that gives G at θ."""
    variables = model.free_RVs if variables is None else variables
    point = model.initial_point() if point is None else point
    packed = Hyperparameters(model, variables, point)
    graph = fisher_information(model, packed).matrix
    function = GraphFunction(model, [packed.symbol], [graph])
    function.bind(point)
    return lambda theta: function(np.ascontiguousarray(theta, dtype=np.float64))[0]


def eight_schools() -> pm.Model:
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0.0, 5.0), pm.HalfCauchy("tau", 5.0)
        effect = pm.Normal("effect", mu, tau, shape=8)
        pm.Normal("y", effect, np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]), observed=np.arange(8.0))
    return model


def eight_schools_apart() -> pm.Model:
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0.0, 5.0), pm.HalfCauchy("tau", 5.0)
        effect = pm.Normal("effect", 0.0, 1.0, shape=8)
        pm.StudentT("y", nu=4.0, mu=mu + tau * effect, sigma=pm.HalfNormal("s", 10.0), observed=np.arange(8.0))
    return model


def counts() -> pm.Model:
    with pm.Model() as model:
        b, s = pm.Normal("b", 0.0, 1.0, shape=3), pm.Exponential("s", 2.0)
        a = pm.StudentT("a", nu=pm.Gamma("nu", 2.0, 0.5), mu=0.0, sigma=s, shape=4)
        alpha = pm.InverseGamma("alpha", 3.0, 2.0)
        pm.NegativeBinomial("y", mu=pt.exp(X @ b + a[GROUP]), alpha=alpha, observed=np.arange(12) % 5)
    return model


def proportions() -> pm.Model:
    with pm.Model() as model:
        centre, n = pm.Beta("centre", 2.0, 2.0), pm.LogNormal("n", 1.0, 0.5)
        p = pm.Beta("p", centre * n, (1.0 - centre) * n, shape=4)
        pm.Binomial("y", 9, p, observed=np.array([1, 4, 8, 9]))
    return model


def series() -> pm.Model:
    with pm.Model() as model:
        s = pm.HalfNormal("s", 1.0)
        level = pm.GaussianRandomWalk("level", 0.0, s, init_dist=pm.Normal.dist(0.0, 1.0), steps=5)
        season = pm.ZeroSumNormal("season", pm.HalfNormal("t", 1.0), shape=3)
        error = pm.AR("error", pm.Normal("rho", 0.0, 0.5), 0.4, init_dist=pm.Normal.dist(0.0, 1.0), steps=5)
        pm.Normal("y", level + season[np.arange(6) % 3] + error, pm.Uniform("u", 0.1, 2.0), observed=np.arange(6.0))
    return model


def correlated_effects() -> pm.Model:
    with pm.Model() as model:
        chol, *_ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0, shape=2))
        mu = pm.Normal("mu", 0.0, 1.0, shape=2)
        effect = pm.MvNormal("effect", mu, chol=chol, shape=(4, 2))
        pm.Normal("y", effect[GROUP, 0] + effect[GROUP, 1] * X[:, 0], 0.5, observed=X[:, 1])
    return model


def process() -> pm.Model:
    t = np.linspace(0.0, 2.0, 9)[:, None]
    with pm.Model() as model:
        length, noise = pm.InverseGamma("length", 3.0, 2.0), pm.HalfNormal("noise", 1.0)
        gp = pm.gp.Marginal(cov_func=pm.Weibull("scale", 2.0, 1.0) ** 2 * pm.gp.cov.Matern52(1, ls=length))
        gp.marginal_likelihood("y", t, np.sin(t[:, 0]), sigma=noise)
    return model


def basis() -> pm.Model:
    t = np.linspace(0.0, 2.0, 9)[:, None]
    with pm.Model() as model:
        cov = pm.HalfNormal("eta", 1.0) ** 2 * pm.gp.cov.ExpQuad(1, ls=pm.Gamma("length", 2.0, 2.0))
        f = pm.gp.HSGP(m=[5], c=1.5, cov_func=cov).prior("f", t)
        pm.Binomial("y", 4, pm.math.invprobit(f), observed=np.arange(9) % 5)
    return model


def choices() -> pm.Model:
    with pm.Model() as model:
        share = pm.Dirichlet("share", np.array([1.0, 2.0, 3.0]))
        pm.Multinomial("votes", 20, share, observed=np.array([3, 7, 10]))
        cuts = pm.Normal("cuts", 0.0, 2.0, shape=2, transform=pm.distributions.transforms.ordered,
                         initval=np.array([-1.0, 1.0]))  # fmt: skip
        angle = pm.VonMises("angle", 0.3, 2.0)
        pm.OrderedLogistic("y", eta=X @ pm.Laplace("b", 0.0, 1.0, shape=3) + angle, cutpoints=cuts,
                           compute_p=False, observed=GROUP % 3)  # fmt: skip
    return model


# Reading the first two takes PyTensor tens of seconds, the others seconds.
DEAR = ("correlated_effects", "choices", "counts", "proportions", "series")
MODELS: dict[str, Callable[[], pm.Model]] = {
    build.__name__: build
    for build in (
        eight_schools, eight_schools_apart, counts, proportions, series, correlated_effects, process, choices, basis,
    )
}  # fmt: skip
EACH = [pytest.param(name, marks=pytest.mark.slow if name in DEAR else ()) for name in MODELS]
