"""The metric of a series with its hyperparameters, inside pm.sample: what a user sees of it."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

from pymc_rmhmc import RMHMC, BlockMetric, ConfigurationError, UnsupportedModelError, WhitenedFisherMetric, describe
from tests.steps.conftest import draw

N = 30
RETURNS = np.random.default_rng(0).standard_normal(N)


def volatility(n: int = N, returns=None) -> pm.Model:
    """The stochastic volatility of Girolami and Calderhead."""
    with pm.Model() as model:
        beta, sigma = pm.HalfNormal("beta", 2.0), pm.HalfNormal("sigma", 0.5)
        phi = pm.Beta("phi", 20.0, 1.5)
        start = pm.Normal.dist(0.0, sigma / pm.math.sqrt(1.0 - phi**2), shape=1)
        x = pm.AR("x", phi[None], sigma=sigma, init_dist=start, steps=n - 1)
        pm.Normal("y", 0.0, beta * pm.math.exp(0.5 * x), observed=RETURNS if returns is None else returns)
    return model


def walk(shape=N, sigma=None) -> pm.Model:
    """A random walk with a drift."""
    with pm.Model() as model:
        drift = pm.Normal("drift")
        sigma = model.register_rv(pm.HalfNormal.dist() if sigma is None else sigma, "sigma")
        f = pm.GaussianRandomWalk("f", mu=drift, sigma=sigma, init_dist=pm.Normal.dist(), shape=shape)
        pm.Poisson("y", mu=pm.math.exp(f), observed=np.ones(shape, int))
    return model


def autoregression(rho, n: int = 6) -> pm.Model:
    """Of the order that the coefficients have; of order 1 it begins with its stationary distribution."""
    with pm.Model() as model:
        scale, rhos = pm.HalfNormal("scale"), list(rho())
        width = 1.0 if len(rhos) > 1 else scale / pm.math.sqrt(1.0 - rhos[0] ** 2)
        start = pm.Normal.dist(0.0, width, shape=len(rhos))
        x = pm.AR("x", rhos, sigma=scale, init_dist=start, steps=n - len(rhos))
        pm.Poisson("y", mu=pm.math.exp(x), observed=np.ones(n, int))
    return model


@pytest.mark.slow(by_python=True)
def test_a_series_and_its_hyperparameters_are_sampled_together():
    model = volatility()
    idata = draw(model, RMHMC(metric=BlockMetric(), model=model))
    assert {"x", "beta", "sigma", "phi"} <= set(idata.posterior)
    last = {name: float(idata.posterior[name].values[0, -1]) for name in ("beta", "sigma", "phi")}
    assert len(np.unique(idata.posterior["phi"])) > 15
    point = {
        "beta_log__": np.log(last["beta"]), "sigma_log__": np.log(last["sigma"]),
        "phi_logodds__": np.log(last["phi"] / (1.0 - last["phi"])), "x": idata.posterior["x"].values[0, -1],
    }  # fmt: skip
    assert idata.sample_stats["lp"].values[0, -1] == pytest.approx(model.compile_logp()(point), abs=1e-5)


def test_describe_says_that_the_precision_has_three_bands_and_what_the_blocks_drop():
    said = described(volatility())
    assert "The precision of x has three bands: a step takes time in proportion to its length." in said
    assert "The blocks drop the information that x shares with beta through the likelihood." in said
    assert "information that f shares with drift through the mean" in described(walk())


@pytest.mark.slow
def test_a_coefficient_moves_a_mean_that_is_zero_at_the_start_alone():
    with pm.Model() as model:
        level, phi = pm.Normal("level"), pm.Normal("phi", 0.5, 0.2)
        x = pm.AR("x", [level, phi], constant=True, init_dist=pm.Normal.dist(shape=1), steps=N - 1)
        pm.Poisson("y", mu=pm.math.exp(x), observed=np.ones(N, int))
    assert "shares with level, phi through the mean" in described(model)


def described(model):
    """The words, on one line."""
    return " ".join(str(describe(model, metric="block")).split())


@pytest.mark.slow
def test_a_series_of_more_values_than_a_dense_process_may_have():
    n = 2000
    model = volatility(n, np.random.default_rng(1).standard_normal(n))
    idata = draw(model, RMHMC(metric="block", model=model), draws=3, tune=3)
    assert idata.posterior["x"].shape == (1, 3, n)


@pytest.mark.slow
def test_hyperparameters_alone_hold_the_series_and_leave_it_to_another_step():
    model = walk()
    with model:
        steps = [RMHMC(vars=["drift", "sigma"], metric="block"), RMHMC(vars=["f"], metric="fisher")]
    idata = draw(model, steps, draws=10, tune=10)
    assert len(np.unique(idata.posterior["sigma"])) > 5


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2])
def test_short_series(n):
    model = autoregression(lambda: [0.5], n=n)
    idata = draw(model, RMHMC(metric="block", model=model), draws=10, tune=10)
    assert len(np.unique(idata.posterior["x"].values[..., -1])) > 5


@pytest.mark.parametrize(
    ("build", "metric", "error", "match"),
    [
        (walk, WhitenedFisherMetric(), UnsupportedModelError, r"f is a series\. Use RMHMC\(metric=\"block\"\)"),
        (
            lambda: autoregression(lambda: [0.5, 0.1]), BlockMetric(), UnsupportedModelError,
            r"one series of the first order, and x is an autoregression of order 2\. Use RMHMC\(metric=\"flat\"\)",
        ),
        (
            lambda: walk((3, N)), BlockMetric(), UnsupportedModelError,
            "or one series of the first order, with hyperparameters.*\n?.*f: only a single series or map is read",
        ),
        (
            lambda: autoregression(lambda: [1.0]), BlockMetric(), ConfigurationError,
            "the standard deviation of its value 1 is inf, and its coefficient is 1. An autoregression that begins",
        ),
        (
            lambda: autoregression(lambda: [pm.Normal("phi", 1.2)]), BlockMetric(), ConfigurationError,
            "x has no density at the start values: .* is nan, and its coefficient is 1.2",
        ),
        (
            lambda: walk(sigma=pm.Normal.dist()), BlockMetric(), ConfigurationError,
            "of its value 2 is nan, and its coefficient is 1. Standard deviations must be positive",
        ),
    ],
    ids=["whitened", "order", "rows", "unit root", "start", "width"],
)  # fmt: skip
def test_series_that_do_not_fit_say_what_was_found_and_what_to_do(build, metric, error, match):
    with pytest.raises(error, match=match):
        RMHMC(metric=metric, model=build())
