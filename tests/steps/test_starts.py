"""Chains that cannot begin say which part of the model is at fault; a better start is looked for where nobody chose."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

from pymc_rmhmc import RMHMC, FlatMetric
from pymc_rmhmc.errors import ConfigurationError, CovarianceError, DataError, SamplingError
from tests.steps.conftest import COUNTS, X, draw

pytestmark = pytest.mark.usefixtures("pymc_by_python", "without_a_compiler")


def poisson_gp(free: bool, inputs=X, shift: float = 0.0):
    ls = pm.LogNormal("ls", -1.0, 0.3) if free else 0.3
    f = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=ls)).prior("f", X=inputs)
    pm.Poisson("y", mu=pm.math.exp(f + shift), observed=COUNTS)
    return ls


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("shift", [710.0, 1000.0])
def test_a_likelihood_that_overflows_is_blamed(free, shift):
    with pm.Model() as model:
        poisson_gp(free, shift=shift)
    with pytest.raises(ConfigurationError, match=r"^f: the log likelihood is -inf .*offset, link and units") as caught:
        draw(model)
    assert "jitter" not in str(caught.value)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_the_rest_of_the_model_is_blamed(value):
    with pm.Model() as model:
        ls = poisson_gp(free=True)
        pm.Potential("penalty", ls * 0.0 + value)
    named = r"^The log density of ls, penalty is (nan|-inf) .*not the latent values"
    with pytest.raises(ConfigurationError, match=named):
        draw(model)


@pytest.mark.parametrize("free", [False, True])
def test_inputs_that_overflow_are_blamed(free):
    with pm.Model() as model:
        poisson_gp(free, inputs=1e200 * X)
    with pytest.raises(DataError, match=r"^f: the prior's mean or covariance .*not finite.* (R|r)escale") as caught:
        draw(model)
    assert "jitter" not in str(caught.value)


def test_a_covariance_without_a_factor_still_is_one():
    with pm.Model() as model:
        scale = pm.LogNormal("scale", -1.0, 0.3)
        f = pm.MvNormal("f", np.zeros(12), cov=scale * (np.ones((12, 12)) - 0.5 * np.eye(12)))
        pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)
    with pytest.raises(CovarianceError, match=r"^f: the prior covariance is not positive definite .*jitter"):
        draw(model)


def walk_smoother() -> pm.Model:
    """A public notebook's: the prior's mean of the precision is so large that nothing can be computed there."""
    data = 3.0 * np.sin(np.linspace(0.0, 6.0, 40)) + np.random.default_rng(1).normal(0.0, 0.5, 40)
    with pm.Model() as model:
        tau = pm.Exponential("tau", 1e-5)
        z = pm.GaussianRandomWalk("z", sigma=(0.1 / tau) ** 0.5, init_dist=pm.Normal.dist(0.0, 100.0), shape=40)
        pm.Normal("y", z, (0.9 / tau) ** 0.5, observed=data)
    return model


@pytest.mark.parametrize("chart", ["latent", "field"])
def test_a_start_that_nobody_chose_is_left_for_a_better_one(chart):
    """A field of Normal data can be computed at that start, and moves on."""
    model = walk_smoother()
    with model:
        draws = draw(model, RMHMC(metric=FlatMetric(chart=chart)), tune=100).posterior
    # The data's noise has a standard deviation of about a half.
    assert 1.0 < float(draws["tau"].mean()) < 40.0
    assert np.abs(draws["z"].values).max() < 10.0


@pytest.mark.usefixtures("compiled_ahead")
@pytest.mark.filterwarnings("ignore:invalid value", "ignore:divide by zero")
def test_a_chain_begins_elsewhere_where_the_models_start_has_no_gradient(caplog):
    lags = np.abs(np.subtract.outer(np.arange(4), np.arange(4)))
    with pm.Model() as model:
        rho = pm.Uniform("rho", -1.0, 1.0)
        pm.Poisson("y", pm.math.exp(pm.MvNormal("f", np.zeros(4), cov=rho**lags)), observed=np.arange(4))
    with caplog.at_level("INFO", logger="pymc"):
        idata = draw(model, draws=10, tune=10)
    assert "not finite at the model's initial point, where rho_interval__ = 0.0" in " ".join(caplog.text.split())
    assert len(np.unique(idata.posterior["rho"])) > 3


def test_a_start_that_was_chosen_is_not():
    model = walk_smoother()
    with pytest.raises(CovarianceError, match="starting point"), model:
        draw(model, RMHMC(init="keep", metric=FlatMetric(chart="latent")))


def test_a_chain_that_stands_still_in_tuning_is_stopped():
    with pm.Model() as model:
        poisson_gp(free=False)
    with pytest.raises(SamplingError, match=r"^f: no value changed in the last \d+ tuning draws"), model:
        draw(model, RMHMC(metric="hessian", step_size=500.0, n_steps=1), tune=80)


def test_a_chain_that_could_not_begin_in_tuning_is_stopped():
    """No factor where another step has put the correlation, and it stays there."""
    with pm.Model() as model:
        rho = pm.Uniform("rho", -1.0, 1.0, initval=-0.9)
        cov = rho * np.ones((4, 4)) + (1.0 - rho) * np.eye(4)
        f = pm.MvNormal("f", np.zeros(4), cov=cov)
        pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS[:4])
        step = RMHMC(vars=["f"])
    step.setup_chain(np.random.default_rng(0), 100, 10)
    point = model.initial_point()
    for _ in range(100):
        point, _ = step.step(point)
    step.stop_tuning()
    with pytest.raises(SamplingError, match=r"^f: no value changed in the last 40 tuning draws.*NOT_POSITIVE_DEFINITE"):
        step.step(point)


def test_values_are_named_as_the_model_has_them():
    with pm.Model():
        ls = pm.LogNormal("my_ls_of_f", -1.0, 0.3, shape=2)
        f = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=ls[0]) * ls[1]).prior("f", X=X)
        pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)
        (sampler,) = RMHMC()._samplers
    named = sampler.density.variables.label
    assert [named(i) for i in (0, 1, 2, 13)] == ["my_ls_of_f[0]", "my_ls_of_f[1]", "f[0]", "f[11]"]


def test_a_chain_that_stands_still_in_its_draws_says_so():
    with pm.Model() as model:
        poisson_gp(free=False)
        step = RMHMC(metric="hessian", step_size=500.0, n_steps=1)
    draw(model, step, tune=0, draws=30)
    assert "no value changed in 30 draws" in step._summary(last=True).message
