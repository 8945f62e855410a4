"""Summaries of variables whose draws are not stored, against draws that are."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr

from pymc_rmhmc import RMHMC, ConfigurationError, DataError, RunningSummary
from tests.steps.conftest import COUNTS, X, draw, logistic

N_CHAINS, N_DRAWS = 4, 1000
NOTHING_STORED = SimpleNamespace(varnames=())


def process() -> pm.Model:
    """A process on named places with its scale; its values are computed from others."""
    with pm.Model(coords={"place": [f"p{i}" for i in range(len(X))]}) as model:
        scale = pm.HalfNormal("scale", 1.0)
        cov = pm.gp.cov.Matern52(1, ls=0.3)
        f = pm.gp.Latent(cov_func=cov).prior("f", X=X, dims="place")
        pm.Poisson("y", mu=pm.math.exp(0.5 + scale * f), observed=COUNTS)
    return model


def fed(values: Sequence[np.ndarray], **options) -> RunningSummary:
    """A summary of chains (draw, 2) that no step made, in turns as processes deliver them."""
    with logistic():
        summary = RunningSummary("b", **options)
    for i in range(max(map(len, values))):
        for chain, each in enumerate(values):
            if i < len(each):
                summary(NOTHING_STORED, SimpleNamespace(chain=chain, draw_idx=i, tuning=False, point={"b": each[i]}))
    return summary


def autoregression(phi: float, size: int = 2, n: int = N_DRAWS) -> np.ndarray:
    rng = np.random.default_rng(3)
    x = np.zeros((N_CHAINS, n + 200, size))
    for i in range(1, n + 200):
        x[:, i] = phi * x[:, i - 1] + rng.standard_normal((N_CHAINS, size))
    return x[:, 200:]


@pytest.mark.parametrize("cores", [1, 2])
def test_it_says_what_stored_draws_say(cores, caplog):
    with process() as model:
        summary = RunningSummary(["f", "scale"], quantiles=[0.1, 0.5], n_kept=16)
        idata = draw(model, chains=2, cores=cores, draws=50, tune=60, callback=summary)
    assert "PyMC stores each draw of f, scale as well" in caplog.text
    found, kept = summary.dataset(), summary.draws()
    assert found["f"].dims == ("statistic", "place")
    assert found["f"].place.values[3] == "p3"
    assert list(found.statistic.values) == ["mean", "sd", "mcse_mean", "ess_mean", "r_hat", "10%", "50%"]
    for name in ("f", "scale"):
        stored = idata.posterior[name]
        every = stored.stack(all=("chain", "draw"))
        np.testing.assert_allclose(found[name].sel(statistic="mean"), every.mean("all"), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(found[name].sel(statistic="sd"), every.std("all", ddof=1), rtol=1e-10)
        np.testing.assert_allclose(kept[name], stored.sel(draw=kept.draw), rtol=1e-10, atol=1e-12)
        quantiles = stored.sel(draw=kept.draw).quantile([0.1, 0.5], ("chain", "draw"))
        np.testing.assert_allclose(found[name].sel(statistic=["10%", "50%"]), quantiles, rtol=1e-10, atol=1e-12)
    assert kept.draw.values.tolist() == list(range(0, 50, 4))


def test_variables_are_summarised_and_predicted_from_that_are_not_stored(caplog):
    with process() as model:
        summary = RunningSummary("f_rotated_", n_kept=20)
        idata = draw(model, RMHMC(), callback=summary, var_names=["scale"])
        kept = summary.draws()
        joined = xr.merge([idata.posterior.dataset.sel(draw=kept.draw), kept])
        predicted = pm.sample_posterior_predictive(joined, progressbar=False, random_seed=1, var_names=["f", "y"])
    assert list(idata.posterior.data_vars) == ["scale"]
    assert "stores" not in caplog.text
    assert predicted.posterior_predictive["y"].shape == (1, 15, len(X))
    factor = np.linalg.cholesky(pm.gp.cov.Matern52(1, ls=0.3)(X).eval() + 1e-6 * np.eye(len(X)))
    np.testing.assert_allclose(predicted.posterior_predictive["f"], kept["f_rotated_"].values @ factor.T, rtol=1e-6)


@pytest.mark.parametrize(("phi", "at_least", "at_most"), [(0.0, 0.8, 1.25), (0.8, 0.8, 1.35), (-0.5, 0.8, 1.25)])
def test_effective_draws_are_about_those_of_arviz(phi, at_least, at_most):
    """Of many values at once: each alone is uncertain by a seventh."""
    x = autoregression(phi, size=100)
    ratio = fed(x).dataset()["b"].sel(statistic="ess_mean").values / N_CHAINS / N_DRAWS * (1 + phi) / (1 - phi)
    assert at_least < np.median(ratio) < at_most
    assert ratio.std() < 0.25
    found = fed(x).dataset()["b"]
    error = found.sel(statistic="mean") / found.sel(statistic="mcse_mean")
    assert 0.8 < float(np.sqrt((error**2).mean())) < 1.25


def test_chains_that_differ_have_a_large_r_hat(caplog):
    x = autoregression(0.3)
    same = fed(x).dataset()["b"].sel(statistic="r_hat").values
    np.testing.assert_allclose(same, [az.rhat(x[..., i], method="split") for i in range(2)], atol=1e-3)
    assert not caplog.text
    x[0, :, 1] += 2.0
    one, other = fed(x).dataset()["b"].sel(statistic="r_hat").values
    assert one == same[0]
    assert other == pytest.approx(float(az.rhat(x[..., 1], method="split")), rel=0.01)
    assert "R-hat of b is above 1.05" in caplog.text
    drifting = np.arange(N_DRAWS)[None, :, None] / N_DRAWS + 0.1 * autoregression(0.0)
    assert fed(drifting[:1]).dataset()["b"].sel(statistic="r_hat").min() > 1.5


@pytest.mark.parametrize("n", [1, 7, 8, 9, 300, 1024])
def test_kept_draws_are_evenly_spaced_whatever_their_number(n):
    kept = fed(autoregression(0.0, n=1024)[:, :n], n_kept=9).draws()
    steps = np.diff(kept.draw.values)
    assert kept.draw.values[0] == 0
    assert n < 8 or 4 <= kept.draw.size <= 8
    assert (steps == steps[:1]).all()


def test_a_chain_that_was_interrupted_counts_by_its_draws():
    x = autoregression(0.0)
    summary = fed([*x[:3], x[3, :100]], n_kept=50)
    kept, every = summary.draws(), np.concatenate([*x[:3], x[3, :100]])
    np.testing.assert_array_equal(kept["b"], x[:, kept.draw.values])
    assert kept.draw.values.tolist() == list(range(0, 100, 32))
    found = summary.dataset()["b"]
    np.testing.assert_allclose(found.sel(statistic="mean"), every.mean(axis=0))
    np.testing.assert_allclose(found.sel(statistic="sd"), every.std(axis=0, ddof=1))
    assert (abs(found.sel(statistic="ess_mean") / len(every) - 1.0) < 0.5).all()


def test_of_few_draws_and_of_a_constant_nothing_is_said_but_their_moments():
    few = fed(autoregression(0.0)[:, :3]).dataset()["b"]
    assert np.isnan(few.sel(statistic=["mcse_mean", "ess_mean", "r_hat"])).all()
    assert np.isfinite(few.sel(statistic=["mean", "sd", "50%"])).all()
    constant = fed(np.full((N_CHAINS, 100, 2), 0.3)).dataset()["b"]
    assert (constant.sel(statistic="sd") < 1e-12).all()


def test_another_run_begins_anew():
    x = autoregression(0.0)
    summary = fed(x)
    for i in range(40):
        summary(NOTHING_STORED, SimpleNamespace(chain=0, draw_idx=i, tuning=i < 20, point={"b": x[0, i]}))
    np.testing.assert_allclose(summary.dataset()["b"].sel(statistic="mean"), x[0, 20:40].mean(axis=0))
    assert summary.draws()["b"].shape == (1, 20, 2)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"var_names": ["b", "c"]}, "var_names: 'c' is no variable of the model. Name what is to be summarised: b"),
        ({"var_names": []}, "var_names: nothing is named"),
        ({"var_names": "b", "quantiles": [0.5, 1.0]}, "quantiles must be numbers between 0 and 1"),
        ({"var_names": "b", "quantiles": ["mean"]}, "quantiles must be numbers between 0 and 1"),
        ({"var_names": "b", "n_kept": 1}, "n_kept must be a whole number"),
        ({"names": "b"}, "RunningSummary.. cannot be called like this"),
    ],
)
def test_wrong_arguments(arguments, says):
    with logistic(), pytest.raises(ConfigurationError, match=says):
        RunningSummary(**arguments)


def test_without_a_draw_there_is_nothing_to_summarise():
    with logistic():
        summary = RunningSummary("b")
    for read in (summary.dataset, summary.draws):
        with pytest.raises(DataError, match="There are no draws to summarise yet"):
            read()
    with pytest.raises(ConfigurationError, match="of another model"):
        summary(NOTHING_STORED, SimpleNamespace(chain=0, draw_idx=0, tuning=False, point={"c": np.zeros(2)}))
