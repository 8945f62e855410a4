"""MALA, MMALA and EllipticalSlice inside pm.sample: what a user sees of them."""

from __future__ import annotations

import logging
from functools import cache

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_rmhmc import (
    MALA,
    MMALA,
    RMHMC,
    ConfigurationError,
    EllipticalSlice,
    FisherMetric,
    FlatMetric,
    GraphMetric,
    UnsupportedModelError,
    summarize_failures,
)
from tests.steps.conftest import draw, logistic, poisson_model
from tests.thinned import thinned


@cache
def latent() -> pm.Model:
    return poisson_model()


def ends(idata, name: str) -> tuple[np.ndarray, np.ndarray]:
    held = idata.posterior[name]
    return held.mean(("chain", "draw")).values, held.std(("chain", "draw")).values


CASES = {
    "MALA": (logistic, "b", MALA),
    "MMALA of all values": (logistic, "b", lambda: MMALA(metric=FisherMetric(chart="graph"))),
    "MMALA, full drift": (logistic, "b", lambda: MMALA(metric=FisherMetric(chart="graph"), simplified=False)),
    "MMALA of latent values": (latent, "f", MMALA),
    "MMALA of latent values, full drift": (latent, "f", lambda: MMALA(metric="hessian", simplified=False)),
    "MMALA in a constant metric": (latent, "f", lambda: MMALA(metric=FlatMetric(sites="prior_expected"))),
    "slices": (latent, "f", EllipticalSlice),
}


@cache
def of_rmhmc(build, variable):
    model = build()
    with model:
        return ends(draw(model, RMHMC(), draws=1500, tune=200), variable)


@pytest.mark.parametrize("name", thinned(CASES))
def test_it_samples_what_rmhmc_samples(name):
    build, variable, make = CASES[name]
    model = build()
    with model:
        step = make()
    draws = 6000 if name == "slices" else 2500
    mean, sd = ends(draw(model, step, draws=draws, tune=400, chains=2), variable)
    expected, spread = of_rmhmc(build, variable)
    np.testing.assert_allclose(mean, expected, atol=0.25 * spread.max())
    np.testing.assert_allclose(sd, spread, rtol=0.25)


def test_draws_repeat_with_their_seed_and_in_workers():
    model = latent()
    for make in (MMALA, EllipticalSlice):
        with model:
            step = make()
        here = draw(model, step, chains=2)
        there = draw(model, step, chains=2, cores=2)
        np.testing.assert_array_equal(here.posterior["f"], there.posterior["f"])


def test_the_step_size_is_tuned_to_the_acceptance_that_is_asked_for():
    model = logistic()
    for target in (None, 0.8):
        with model:
            step = MALA(target_accept=target)
        accepted = draw(model, step, draws=600, tune=600).sample_stats.acceptance_rate.mean()
        assert abs(float(accepted) - (0.574 if target is None else target)) < 0.08
    with model:
        step = MALA(step_size=0.05)
    assert float(draw(model, step).sample_stats.step_size.max()) == 0.05


def test_a_slice_has_no_step_size_and_counts_its_points():
    idata = draw(latent(), EllipticalSlice(model=latent()))
    assert np.isnan(idata.sample_stats.step_size).all()
    assert (idata.sample_stats.n_steps >= 1).all()
    assert idata.sample_stats.accepted.all()
    assert summarize_failures(idata).is_trusted


def test_it_shares_a_model_with_other_steps(caplog):
    model = poisson_model(sampled=True)
    with caplog.at_level(logging.INFO, logger="pymc.rmhmc"), model:
        steps = [EllipticalSlice(["f"]), pm.Slice([model["ls"]])]
    assert "EllipticalSlice: prior metric for f (12 values); left to other steps: ls" in caplog.text
    idata = draw(model, steps)
    assert idata.posterior["ls"].std() > 0.0


def test_each_speaks_in_its_own_name(caplog):
    with caplog.at_level(logging.INFO, logger="pymc.rmhmc"), logistic():
        MALA()
    assert "MALA: euclidean metric for b (2 values)" in caplog.text
    assert "RMHMC" not in caplog.text


REFUSED = {
    "flat metric": (lambda: MMALA(metric="flat"), r"flat metric of latent values alone.*MALA\(\) or RMHMC\(\)"),
    "flat object": (lambda: MMALA(metric=FlatMetric()), "MMALA takes the flat metric of latent values alone"),
    "unknown metric": (lambda: MMALA(metric="riemann"), "Unknown metric 'riemann'"),
    "simplified": (lambda: MMALA(simplified=1), "simplified must be True or False, got 1"),
    "both": (lambda: MALA(step_size=0.1, target_accept=0.5), "leave one of them out"),
    "step size": (lambda: MALA(step_size=0.0), "step_size must be a number"),
    "steps": (lambda: MALA(n_steps=3), "MALA has no argument n_steps"),
    "other name": (lambda: MALA(epsilon=0.1), r"Give MALA\(step_size=0\.1\)"),
    "no step size": (lambda: EllipticalSlice(step_size=0.1), "EllipticalSlice has no argument step_size"),
    "start": (lambda: EllipticalSlice(init="mode"), "init must be one of"),
    "seed": (lambda: MALA(seed=1), r"pm\.sample\(random_seed=1, step=MALA\(\)\)"),
    "blocked": (lambda: MALA(blocked=False), "because MALA moves all its variables together"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_call_says_what_to_write(name):
    call, says = REFUSED[name]
    with logistic(), pytest.raises(ConfigurationError, match=says):
        call()


def test_slices_need_a_latent_gaussian_vector():
    with pm.Model():
        pm.Gamma("x", 2.0, 1.0)
        with pytest.raises(UnsupportedModelError):
            EllipticalSlice()


def test_the_full_drift_is_refused_in_many_dimensions():
    with pm.Model():
        pm.Normal("x", 0.0, 1.0, shape=101)
        with pytest.raises(ConfigurationError, match=r"5151 derivatives.*101 values.*at most 100.*simplified=True"):
            MMALA(metric=GraphMetric(lambda m: pt.diag(1.0 + m.rvs_to_values[m["x"]] ** 2)), simplified=False)


def test_the_constant_metric_of_the_priors_expectation_samples_latent_values_alone(caplog):
    model = poisson_model(sampled=True)
    with caplog.at_level(logging.INFO, logger="pymc.rmhmc"), model:
        RMHMC(metric=FlatMetric(sites="prior_expected"))
    assert "flat metric for f (12 values); left to other steps: ls (the flat metric with prior_expected sites" in (
        caplog.text
    )
    with latent():
        step = RMHMC(metric=FlatMetric(sites="prior_expected"))
    mean, sd = ends(draw(latent(), step, draws=1500, tune=200), "f")
    expected, spread = ends(draw(latent(), RMHMC(model=latent()), draws=1500, tune=200), "f")
    np.testing.assert_allclose(mean, expected, atol=0.2 * spread.max())
    np.testing.assert_allclose(sd, spread, rtol=0.2)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sites": "prior"}, r"sites must be one of.*prior_expected"),
        ({"sites": "prior_expected", "chart": "graph"}, 'chart="graph" has no sites'),
        ({"sites": "prior_expected", "site_fit": int}, "are constant: leave one of them out"),
    ],
)
def test_sites_that_cannot_be_say_so(options, says):
    with pytest.raises(ConfigurationError, match=says):
        FlatMetric(**options)
