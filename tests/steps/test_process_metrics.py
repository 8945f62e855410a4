"""Metrics of a process with its hyperparameters, inside pm.sample: what a user sees of them."""

from __future__ import annotations

import logging
from functools import cache

import arviz as az
import numpy as np
import pymc as pm
import pytest

from pymc_rmhmc import (
    MMALA,
    RMHMC,
    BlockMetric,
    ConfigurationError,
    ImplicitMidpoint,
    UnsupportedModelError,
    WhitenedFisherMetric,
    describe,
)
from pymc_rmhmc.kernels import langevin
from pymc_rmhmc.steps import process
from tests.steps.conftest import COUNTS, N, X, draw

METRICS = {"block": BlockMetric, "whitened_fisher": WhitenedFisherMetric}
FORMS = ("whitened", "centred", "mvnormal")
QUICK = (("block", "whitened"), ("whitened_fisher", "centred"))
PAIRS = [
    pytest.param(metric, form, marks=() if (metric, form) in QUICK else pytest.mark.slow)
    for metric in METRICS
    for form in FORMS
]


@pytest.fixture(scope="module", autouse=True)
def derivatives_once():
    """A model is compiled once for all tests with it: both metrics ask the same of it."""
    made = {}
    build = process.ProcessModel

    def find(model, block, hyperparameters, point, metric):
        key = (id(model), tuple(v.name for v in hyperparameters))
        if key not in made:
            made[key] = (model, build(model, block, hyperparameters, point, metric))  # the model keeps its id
        return made[key][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "ProcessModel", find)
        yield


@cache
def gp(likelihood: str = "poisson", form: str = "whitened") -> pm.Model:
    """A process with two hyperparameters, on a line."""
    with pm.Model() as model:
        ls, scale = pm.LogNormal("ls", -1.0, 0.3), pm.HalfNormal("scale", 1.0)
        kernel = scale**2 * pm.gp.cov.Matern52(1, ls=ls)
        if form == "mvnormal":
            f = pm.MvNormal("f", np.zeros(N), cov=kernel(X) + 1e-4 * np.eye(N))
        else:
            f = pm.gp.Latent(cov_func=kernel).prior("f", X=X, reparameterize=form == "whitened", jitter=1e-4)
        if likelihood == "poisson":
            pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)
        elif likelihood == "bernoulli":
            pm.Bernoulli("y", logit_p=f, observed=(COUNTS > 2).astype(int))
        else:
            level, noise = pm.Normal("level"), pm.HalfNormal("noise", 1.0)
            pm.Normal("y", level + f, noise, observed=np.log1p(COUNTS))
    return model


@pytest.mark.parametrize(("metric", "form"), PAIRS)
def test_a_process_and_its_hyperparameters_are_sampled_together(metric, form):
    model = gp(form=form)
    idata = draw(model, RMHMC(metric=metric, model=model))
    assert {"f", "ls", "scale"} <= set(idata.posterior)
    assert len(np.unique(idata.posterior["ls"])) > 15
    last = {name: np.log(idata.posterior[name].values[0, -1]) for name in ("ls", "scale")}
    own = "f_rotated_" if form == "whitened" else "f"
    point = {"ls_log__": last["ls"], "scale_log__": last["scale"], own: idata.posterior[own].values[0, -1]}
    assert idata.sample_stats["lp"].values[0, -1] == pytest.approx(model.compile_logp()(point), abs=1e-5)


@pytest.mark.parametrize(
    "options", [
        pytest.param({"integrator": ImplicitMidpoint()}, marks=pytest.mark.slow), {"trajectory": "nuts"},
        {"step_size": 0.3, "n_steps": 2},
    ],
    ids=["midpoint", "nuts", "fixed"],
)  # fmt: skip
def test_integrators_and_trajectories(options):
    model = gp()
    idata = draw(model, RMHMC(metric=WhitenedFisherMetric(), model=model, **options), draws=5, tune=5)
    assert len(np.unique(idata.posterior["ls"])) > 2


@pytest.mark.slow
def test_hyperparameters_alone_hold_the_process_and_leave_it_to_another_step():
    model = gp(form="centred")
    with model:
        steps = [RMHMC(vars=["ls", "scale"], metric="block"), RMHMC(vars=["f"], metric="fisher")]
    idata = draw(model, steps, draws=10, tune=10)
    assert len(np.unique(idata.posterior["ls"])) > 5
    with pytest.raises(ConfigurationError, match=r"reparameterize=False\), or give RMHMC\(metric=.whitened_fisher"):
        RMHMC(vars=["ls"], metric="block", model=gp())


def test_a_variable_that_is_left_is_sampled_by_pymc():
    model = gp()
    idata = draw(model, [RMHMC(vars=["f", "ls"], metric="block", model=model)], draws=10, tune=10)
    assert len(np.unique(idata.posterior["scale"])) > 2


def test_describe_says_what_the_blocks_drop():
    said = described(gp("normal"), metric="block")
    assert "The blocks drop the information that f shares with level through the likelihood." in said
    assert "The derivatives of its covariance take 2.25 KiB." in said
    assert "f shares no expected information" in described(gp(), metric="block")
    assert "moves as L⁻¹(f - mean)" in described(gp(), metric="whitened_fisher")


def described(model, **options):
    """The words, on one line."""
    return " ".join(str(describe(model, **options)).split())


def without_hyperparameters():
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=0.3)).prior("f", X=X)
        pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)
    return model


def regression():
    with pm.Model() as model:
        b, s = pm.Normal("b", shape=3), pm.HalfNormal("s")
        pm.Normal("y", b[0] + b[1] * X[:, 0] + b[2] * X[:, 0] ** 2, s, observed=COUNTS)
    return model


def two_processes():
    with pm.Model() as model:
        ls = pm.LogNormal("ls", -1.0, 0.3)
        gps = [pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=ls)).prior(name, X=X) for name in "fg"]
        pm.Poisson("y", mu=pm.math.exp(gps[0] + gps[1]), observed=COUNTS)
    return model


def area():
    with pm.Model() as model:
        f = pm.CAR("f", np.zeros(N), 1.0 - np.eye(N), 0.5, pm.HalfNormal("tau"))
        pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)
    return model


def summed():
    with pm.Model() as model:
        ls = pm.LogNormal("ls", -1.0, 0.3)
        f = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=ls)).prior("f", X=X)
        pm.Poisson("y", mu=pm.math.exp(f + pm.math.mean(f)), observed=COUNTS)
    return model


def large():
    at = np.linspace(0.0, 1.0, 501)[:, None]
    with pm.Model() as model:
        ls = pm.LogNormal("ls", -1.0, 0.3)
        f = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=ls)).prior("f", X=at)
        pm.Poisson("y", mu=pm.math.exp(f), observed=np.zeros(501, int))
    return model


def uninformed():
    with pm.Model() as model:
        ls = pm.LogNormal("ls", -1.0, 0.3)
        f = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=ls)).prior("f", X=X)
        pm.SkewNormal("y", mu=f, sigma=1.0, alpha=2.0, observed=COUNTS.astype(float))
    return model


@pytest.mark.parametrize(
    ("build", "error", "match"),
    [
        (without_hyperparameters, ConfigurationError, r"f has no hyperparameters .* Use RMHMC\(metric=\"fisher\"\)"),
        (regression, UnsupportedModelError, "is a vector of independent Normals|needs a Gaussian process"),
        (two_processes, UnsupportedModelError, r"the model has 2: f.*g.* Use RMHMC\(metric=\"flat\"\)"),
        (area, UnsupportedModelError, r"f is an areal model \(CAR\)\. Use RMHMC\(metric=\"flat\"\)"),
        (summed, UnsupportedModelError, "An observation reads several values of f"),
        (large, ConfigurationError, r"There are 501 values of f, and the block metric takes at most 500"),
        (uninformed, ConfigurationError, "y: the expected information of SkewNormal is not registered, so block"),
    ],
)
def test_models_that_do_not_fit_say_what_was_found_and_what_to_do(build, error, match):
    with pytest.raises(error, match=match):
        RMHMC(metric=BlockMetric(), model=build())


@pytest.mark.parametrize(
    ("named", "match"),
    [
        (["f"], r"vars names f alone, and the block metric moves it together with its hyperparameters ls, scale"),
        (["f", "y_"], "no variable"),
    ],
)
def test_vars_that_do_not_fit(named, match):
    with pytest.raises(ConfigurationError, match=match):
        RMHMC(vars=named, metric="block", model=gp())


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", ["poisson", "bernoulli"])
def test_all_forms_and_metrics_agree_with_the_flat_metric(likelihood):
    options = {"draws": 1000, "tune": 400, "chains": 2}
    exact = summary(draw(gp(likelihood), **options))
    for metric in METRICS:
        for form in ("whitened", "centred"):
            model = gp(likelihood, form)
            found = summary(draw(model, RMHMC(metric=metric, model=model), **options))
            errors = np.hypot(exact["error"], found["error"])
            np.testing.assert_array_less(np.abs(exact["mean"] - found["mean"]), 4.5 * errors)
            # An error must not hide a difference.
            assert (errors < 0.35 * exact["sd"]).all()


def summary(idata):
    """Means, deviations and errors of f, log ls and log scale."""
    names = {"f": idata.posterior["f"], "ls": np.log(idata.posterior["ls"]), "scale": np.log(idata.posterior["scale"])}
    found = {"mean": [], "sd": [], "error": []}
    for values in names.values():
        samples = np.atleast_3d(values.values)
        for i in range(samples.shape[2]):
            chain = samples[:, :, i]
            ess = float(az.ess({"x": chain})["x"])
            found["mean"].append(chain.mean())
            found["sd"].append(chain.std())
            found["error"].append(chain.std() / np.sqrt(ess))
    return {name: np.array(each) for name, each in found.items()}


def test_langevin_moves_speak_in_their_own_name_and_have_their_bound(caplog, monkeypatch):
    model = gp()
    with caplog.at_level(logging.INFO, logger="pymc.rmhmc"):
        MMALA(metric=BlockMetric(), model=model)
    assert "MMALA: block metric for f, ls, scale" in caplog.text
    monkeypatch.setattr(langevin, "MOST_DIVERGED", 5)
    with pytest.raises(ConfigurationError, match=r"derivatives of the metric.*at most 5.*simplified=True"):
        MMALA(metric=BlockMetric(), simplified=False, model=model)
