"""Hyperparameters and latents in one chain, inside pm.sample."""

from __future__ import annotations

import math
import re

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_rmhmc import RMHMC, FlatMetric
from pymc_rmhmc.errors import CovarianceError, Failure, SamplingError
from tests.model.conftest import exact_log_density
from tests.steps.conftest import COUNTS, N, X, draw
from tests.thinned import thinned

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")

# Where a model is sampled once, and for a short time.
evaluated_by_python = pytest.mark.usefixtures("without_a_compiler")


def two_scales(*, reparameterize: bool = False) -> pm.Model:
    """Counts on a line with an amplitude and a lengthscale."""
    with pm.Model() as model:
        ls, eta = pm.LogNormal("ls", -1.0, 0.3), pm.HalfNormal("eta", 2.0)
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(0.5), cov_func=eta**2 * pm.gp.cov.Matern52(1, ls=ls))
        pm.Poisson("y", mu=pm.math.exp(gp.prior("f", X=X, reparameterize=reparameterize)), observed=COUNTS)
    return model


def value_points(model: pm.Model, idata):
    """The value variables of every draw of the first chain."""
    for i in range(idata.posterior.sizes["draw"]):
        point = {}
        for variable in model.free_RVs:
            value, held = model.rvs_to_values[variable], idata.posterior[variable.name].values[0, i]
            point[value.name] = np.log(held) if value.name.endswith("_log__") else held
        yield point


def advance(step, point, count: int):
    points, stats = [], []
    for _ in range(count):
        point, (s,) = step.step(point)
        points.append(np.concatenate([np.ravel(value) for value in point.values()]))
        stats.append((s["energy"], s["step_size"], s["model_logp"]))
    return point, np.array(points), np.array(stats)


def goes_on_alike(steps, point, count: int):
    """From the first step's state each of them makes the same draws."""
    saved = cloudpickle.dumps(steps[0].sampling_state)
    _, first, first_stats = advance(steps[0], point, count)
    for again in steps:
        again.sampling_state = cloudpickle.loads(saved)
        _, second, second_stats = advance(again, point, count)
        np.testing.assert_array_equal(first, second)
        np.testing.assert_array_equal(first_stats, second_stats)
    assert np.ptp(first, axis=0).min() > 0.0


def test_hyperparameters_are_taken_in_and_the_log_says_so(caplog):
    model = two_scales()
    with model, caplog.at_level("INFO", logger="pymc"):
        step = RMHMC()
    assert {v.name for v in step.vars} == {"f", "ls_log__", "eta_log__"}
    (said,) = [r.message for r in caplog.records if "flat metric" in r.message]
    assert "f (12 values) together with ls, eta" in said
    assert "left to other steps" not in said


@pytest.mark.parametrize("reparameterize", [False, True])
def test_the_reported_log_density_is_the_models_at_every_draw(reparameterize):
    model = two_scales(reparameterize=reparameterize)
    idata = draw(model, RMHMC(model=model))
    assert idata.posterior["ls"].std() > 0.01
    assert idata.posterior["eta"].std() > 0.01
    assert (idata.sample_stats["failure"] == Failure.NONE).all()
    exact = exact_log_density(model)
    logp = [float(exact(point)) for point in value_points(model, idata)]
    np.testing.assert_allclose(idata.sample_stats["lp"].values[0], logp, atol=1e-6)


def noises_of_another_kind(form: str) -> pm.Model:
    """Distributions that nobody has registered, with a parameter of their own."""
    with pm.Model() as model:
        ls, eta = pm.LogNormal("ls", -1.0, 0.3), pm.HalfNormal("eta", 2.0)
        kernel, width = eta**2 * pm.gp.cov.Matern52(1, ls=ls), pm.HalfNormal("width")
        if form == "grid":
            gp = pm.gp.LatentKron(cov_funcs=[kernel, pm.gp.cov.Matern52(1, ls=0.5)])
            f = gp.prior("f", Xs=[X[:4], X[:3]])
        elif form == "random walk":
            f = pm.GaussianRandomWalk("f", sigma=eta * ls, init_dist=pm.Normal.dist(0.0, 2.0), shape=N)
        elif form == "groups":
            f = 0.5 + pm.Normal("f", ls, eta, shape=4)[np.arange(N) % 4]
        else:
            f = pm.gp.Latent(cov_func=kernel).prior("f", X=X, reparameterize=form == "whitened")
        pm.Logistic("y", mu=f, s=width, observed=pm.Data("data", COUNTS / 2.0))
    return model


@evaluated_by_python
@pytest.mark.parametrize(
    "form",
    ["centred", "groups", *(pytest.param(f, marks=pytest.mark.slow) for f in ("whitened", "grid", "random walk"))],
)
def test_hyperparameters_of_a_likelihood_that_is_not_registered_are_in_the_chain(form):
    model = noises_of_another_kind(form)
    with model:
        step = RMHMC(metric=FlatMetric(chart="latent"))
    assert len(step.vars) == 4
    exact, point = exact_log_density(model), model.initial_point()
    step.setup_chain(np.random.default_rng(1), 60, 40)
    for i in range(100):
        if i == 60:
            step.stop_tuning()
        point, (stats,) = step.step(point)
        assert stats["model_logp"] == pytest.approx(float(exact(point)), abs=1e-6)
    goes_on_alike((step, cloudpickle.loads(cloudpickle.dumps(step))), point, 10)


@pytest.mark.slow
@evaluated_by_python
def test_a_level_mixes_where_a_likelihood_is_read_by_its_graph():
    """Draws in a row have a correlation of -0.2 to 0; of sites that do not follow the level, 0.7 or more."""
    inputs = np.linspace(0.0, 1.0, 60)[:, None]
    noise = 0.5 * np.random.default_rng(0).standard_normal(60)
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=0.5 * pm.gp.cov.ExpQuad(1, 0.15)).prior("f", X=inputs, jitter=1e-4)
        counts = np.floor(np.exp(1.0 + np.sin(6.0 * inputs[:, 0]) + noise))
        pm.Poisson("y", pm.math.exp(f + pm.Normal("level", 0.0, 2.0)) + 0.01, observed=counts)
    level = draw(model, draws=400, tune=300).posterior["level"].values[0]
    moved = level - level.mean()
    # Of 400 draws it is known to 0.05.
    assert moved[1:] @ moved[:-1] < 0.4 * (moved @ moved)


def item_response() -> None:
    """Discriminations multiply what is linear: A is sparse, and moves."""
    person, item = np.divmod(np.arange(45), 3)
    slope, ability = pm.LogNormal("slope", 0.0, 0.5, shape=3), pm.Normal("ability", shape=15)
    easiness = pm.Normal("easiness", 0.0, pm.HalfNormal("spread"), shape=3)
    observed = (np.random.default_rng(0).random(45) < 0.6).astype(int)
    pm.Bernoulli("y", logit_p=slope[item] * (ability[person] + easiness[item]), observed=observed)


def decay() -> None:
    rate, t = pm.LogNormal("rate", 0.0, 0.5), np.linspace(0.0, 3.0, N)
    start, floor = pm.Normal("start", 1.0, 2.0), pm.Normal("floor")
    observed = 0.5 + 2.0 * np.exp(-t) + 0.1 * np.random.default_rng(1).standard_normal(N)
    pm.Normal("y", floor + start * pt.exp(-rate * t), pm.HalfNormal("sigma"), observed=observed)


def loaded_process() -> None:
    """From the place where nothing is read of it on."""
    f = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=pm.LogNormal("ls", -1.0, 0.3))).prior("f", X)
    pm.Poisson("y", mu=pm.math.exp(pm.Normal("load") * f), observed=COUNTS)


@evaluated_by_python
@pytest.mark.parametrize("form", thinned([item_response, decay, loaded_process]))
def test_whatever_predictors_read_by_is_sampled_with_it(form):
    with pm.Model() as model:
        form()
        step = RMHMC(metric=FlatMetric(chart="latent"))
    assert {v.name for v in step.vars} == {v.name for v in model.value_vars}
    idata = draw(model, step, draws=30, tune=30)
    assert (idata.sample_stats["failure"] != Failure.NONE).sum() <= 1
    assert idata.sample_stats["acceptance_rate"].mean() > 0.5
    exact = exact_log_density(model)
    logp = [float(exact(point)) for point in value_points(model, idata)]
    np.testing.assert_allclose(idata.sample_stats["lp"].values[0], logp, atol=1e-6)
    copy = cloudpickle.loads(cloudpickle.dumps(step))
    np.testing.assert_array_equal(*(advance(s, model.initial_point(), 3)[1] for s in (step, copy)))


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_one_and_two_cores_give_the_same_draws(context):
    model = two_scales()
    here = draw(model, RMHMC(model=model), chains=2)
    there = draw(model, RMHMC(model=model), chains=2, cores=2, mp_ctx=context)
    for name in ("f", "ls", "eta"):
        np.testing.assert_array_equal(here.posterior[name].values, there.posterior[name].values)
    assert not np.array_equal(here.posterior["ls"].values[0], here.posterior["ls"].values[1])


@pytest.mark.parametrize("during_tuning", [True, False])
def test_a_restored_state_replays_exactly(during_tuning):
    model = two_scales(reparameterize=True)
    with model:
        step, other = RMHMC(), RMHMC()
    step.setup_chain(np.random.default_rng(1), 80, 100)
    point, _, _ = advance(step, model.initial_point(), 30)
    if not during_tuning:
        step.stop_tuning()
    goes_on_alike((step, other), point, 40)  # across a refit, in tuning


def test_a_pickled_step_goes_on_where_it_was():
    model = two_scales()
    with model:
        step = RMHMC()
    step.setup_chain(np.random.default_rng(1), 40, 100)
    point, _, _ = advance(step, model.initial_point(), 50)
    copy = cloudpickle.loads(cloudpickle.dumps(step))
    np.testing.assert_array_equal(advance(step, point, 10)[1], advance(copy, point, 10)[1])


def test_sites_and_chart_are_refitted_in_tuning_and_frozen_for_the_draws():
    model = two_scales()
    with model:
        step = RMHMC()
    step.setup_chain(np.random.default_rng(1), 100, 30)
    point, seen = model.initial_point(), []
    for i in range(130):
        if i == 100:
            step.stop_tuning()
        point, _, _ = advance(step, point, 1)
        seen.append((step.chains[0].tuned.marginals, step.chains[0].tuned.sites))
    changes = [i for i in range(1, 130) if seen[i][0] is not seen[i - 1][0]]
    assert changes == list(step.chains[0].refits)
    assert changes
    assert seen[-1][1] is seen[changes[-1]][1]


def test_centred_and_whitened_forms_give_the_same_chain():
    """What the model calls its variable is no matter to the chart, which begins where an optimiser ends.

    That is not the last digit: two chains part by a millionth in so few draws, and would by more in many.
    """
    runs = [draw(two_scales(reparameterize=r), tune=20, draws=20) for r in (False, True)]
    for name in ("ls", "eta", "f"):
        np.testing.assert_allclose(*(run.posterior[name].values for run in runs), rtol=1e-4, atol=1e-4)


@evaluated_by_python
def test_latents_alone_leave_hyperparameters_to_other_steps(caplog):
    model = two_scales()
    with model, caplog.at_level("INFO", logger="pymc"):
        step = RMHMC(vars=["f"])
        assert [v.name for v in step.vars] == ["f"]
        assert "left to other steps: ls, eta" in caplog.text
        idata = draw(model, step, draws=20, tune=20)
    assert idata.posterior["ls"].std() > 0.0


def test_named_hyperparameters_are_sampled_and_the_rest_left(caplog):
    model = two_scales()
    with model, caplog.at_level("INFO", logger="pymc"):
        step = RMHMC(vars=["f", "ls"])
    assert {v.name for v in step.vars} == {"f", "ls_log__"}
    assert "together with ls; left to other steps: eta" in caplog.text
    step.setup_chain(np.random.default_rng(0), 20, 40)
    exact, means = exact_log_density(model), []
    for eta in (-2.0, 1.0):
        point, kept = model.initial_point() | {"eta_log__": np.array(eta)}, []
        for _ in range(30):
            point, (stats,) = step.step(point)
            kept.append(np.ptp(point["f"]))
            assert stats["model_logp"] == pytest.approx(float(exact(point)), abs=1e-6)
        assert point["eta_log__"] == eta
        means.append(np.mean(kept[5:]))
    assert means[1] > 2.0 * means[0]


def test_a_switchpoint_that_another_step_moves_is_seen_by_every_draw():
    """What a predictor reads depends on it: hyperparameters are left to other steps, and nothing stays compiled."""
    with pm.Model() as model:
        switch = pm.DiscreteUniform("switch", 1, N - 1)
        levels = pm.Normal("levels", 0.0, pm.HalfNormal("scale"), shape=2)
        pm.Poisson("y", mu=pm.math.exp(levels[(np.arange(N) >= switch).astype("int64")]), observed=COUNTS)
        step = RMHMC(metric=FlatMetric(chart="latent"))
        assert [v.name for v in step.vars] == ["levels"]
        exact, means = exact_log_density(model), []
        step.setup_chain(np.random.default_rng(0), 20, 80)
        for at in (2, N - 2):
            point, kept = model.initial_point() | {"switch": np.array(at)}, []
            for _ in range(50):
                point, (statistics,) = step.step(point)
                assert statistics["model_logp"] == pytest.approx(float(exact(point)), abs=1e-8)
                kept.append(point["levels"])
            means.append(np.mean(kept[10:], axis=0))
        assert np.abs(means[0] - means[1]).max() > 0.1
        draw(model, draws=20, tune=20)  # and beside the steps that PyMC gives the others


@evaluated_by_python
@pytest.mark.parametrize("discrete", [pm.BinaryGibbsMetropolis, pm.Metropolis])
def test_a_discrete_variable_beside_is_conditioned_on(discrete):
    with pm.Model() as model:
        k = pm.Bernoulli("k", 0.5) if discrete is pm.BinaryGibbsMetropolis else pm.Poisson("k", 1.0)
        ls = pm.LogNormal("ls", -1.0, 0.3)
        f = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=ls)).prior("f", X=X)
        pm.Poisson("y", mu=pm.math.exp(f + 0.3 * k), observed=COUNTS)
        step = RMHMC()
        idata = draw(model, [step, discrete([k])])
    assert {v.name for v in step.vars} == {"f_rotated_", "ls_log__"}
    assert np.unique(idata.posterior["k"]).size > 1
    exact = exact_log_density(model)
    step.setup_chain(np.random.default_rng(0), 10, 20)
    point = model.initial_point()
    for i in range(20):
        point["k"] = np.array(i % 2)
        point, (stats,) = step.step(point)
        assert point["k"] == i % 2
        assert stats["model_logp"] == pytest.approx(float(exact(point)), abs=1e-6)


def test_initial_values_that_are_given_are_kept():
    model, start = two_scales(), {"ls": 0.25, "eta": 1.1, "f": np.linspace(-0.5, 0.5, N)}
    still = {"step_size": 1e-9, "n_steps": 1, "model": model}
    with model:
        given = draw(model, RMHMC(**still), initvals=start, draws=2, tune=0)
        moved = draw(model, RMHMC(**still), draws=2, tune=0)
    for name, value in start.items():
        np.testing.assert_allclose(given.posterior[name].values[0, -1], value, atol=1e-6)
    gap = moved.posterior["ls"].values[0, 0] - np.exp(model.initial_point()["ls_log__"])
    assert abs(gap) > 1e-3


def test_a_covariance_that_cannot_be_factorised_at_the_start():
    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        f = pm.MvNormal("f", np.zeros(N), cov=scale * (np.ones((N, N)) - 0.5 * np.eye(N)))
        pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)
    with pytest.raises(CovarianceError, match=r"starting point.*scale_log__ = .*jitter"):
        draw(model)


@evaluated_by_python
def test_log_likelihood_and_predictions_work_after_a_run():
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=pm.LogNormal("ls", -1.0, 0.3)))
        f = gp.prior("f", X=X, reparameterize=False)
        pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)
    idata = draw(model)
    with model:
        pm.compute_log_likelihood(idata, progressbar=False)
        gp.conditional("f_new", Xnew=X + 0.001)
        predicted = pm.sample_posterior_predictive(idata, var_names=["f_new"], progressbar=False, random_seed=1)
    assert np.isfinite(idata.log_likelihood["y"].values).all()
    gap = predicted.posterior_predictive["f_new"].values - idata.posterior["f"].values
    assert np.abs(gap).mean() < 0.1


def basis() -> tuple[pm.Model, list]:
    with pm.Model() as model:
        gp = pm.gp.HSGP(m=[8], c=1.5, cov_func=pm.gp.cov.Matern52(1, ls=pm.LogNormal("ls", -1.0, 0.3)))
        pm.Poisson("y", mu=pm.math.exp(gp.prior("f", X=X)), observed=COUNTS)
    return model, [gp]


def trend_and_season() -> tuple[pm.Model, list]:
    with pm.Model() as model:
        trend = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=pm.LogNormal("ls", -1.0, 0.3)))
        season = pm.gp.Latent(cov_func=pm.HalfNormal("eta") ** 2 * pm.gp.cov.Periodic(1, period=0.3, ls=1.0))
        total = trend.prior("f", X=X) + season.prior("g", X=X)
        pm.Poisson("y", mu=pm.math.exp(total), observed=COUNTS)
    return model, [trend, season]


@evaluated_by_python
@pytest.mark.parametrize("make", [basis, trend_and_season])
def test_a_basis_and_a_sum_are_predicted_from(make):
    """Latent values next to where they were sampled are theirs, and new data are like the data."""
    model, processes = make()
    with model:
        step = RMHMC()
    assert {v.name for v in step.vars} == set(model.initial_point())  # hyperparameters too
    idata = draw(model, step, draws=100)
    with model:
        new = [gp.conditional(f"{name}_new", Xnew=X + 0.001) for gp, name in zip(processes, "fg", strict=False)]
        names = [variable.name for variable in new]
        predicted = pm.sample_posterior_predictive(idata, var_names=[*names, "y"], progressbar=False, random_seed=1)
    predicted = predicted.posterior_predictive
    for name in names:
        assert np.abs(predicted[name].values - idata.posterior[name.removesuffix("_new")].values).mean() < 0.1
    assert np.abs(predicted["y"].values.mean(axis=(0, 1)) - COUNTS).max() < 2.5


@evaluated_by_python
def test_a_covariance_that_another_step_makes_singular_is_a_counted_rejection():
    with pm.Model() as model:
        ls, level = pm.LogNormal("ls", -1.0, 0.3), pm.Normal("level", 0.0, 1.0)
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=ls))
        f = gp.prior("f", X=X, reparameterize=False, jitter=0.0)
        pm.Poisson("y", mu=pm.math.exp(level + f), observed=COUNTS)
        step = RMHMC(vars=["f", "level"], step_size=0.3, n_steps=2)
    step.setup_chain(np.random.default_rng(1), 0, 20)
    start = model.initial_point() | {"ls_log__": np.array(-3.0)}
    point, (statistics,) = step.step(start)
    assert statistics["failure"] == 0
    for _ in range(2):
        stayed, (statistics,) = step.step(point | {"ls_log__": np.array(8.0)})
        assert statistics["failure"] == Failure.NOT_POSITIVE_DEFINITE
        assert statistics["mean_tree_accept"] == 0.0
        np.testing.assert_array_equal(stayed["f"], point["f"])
    _, (statistics,) = step.step(point)
    assert statistics["failure"] == 0
    assert statistics["n_failures"] == 2


def test_a_chain_that_would_stand_still_is_stopped_at_the_end_of_tuning():
    says = r"max_steps=1 covers only .* of path_length=20, .*max_steps is too small"
    with two_scales(), pytest.raises(SamplingError, match=says):
        pm.sample(
            draws=5, tune=60, chains=1, cores=1, step=RMHMC(max_steps=1, path_length=20.0), random_seed=1,
            progressbar=False,
        )  # fmt: skip


def test_a_path_that_is_cut_short_is_said_at_the_end():
    with two_scales() as model:
        step = RMHMC(max_steps=2, path_length=4.0)
    step.setup_chain(np.random.default_rng(0), 80, 5)  # enough for no other warning
    point, said = model.initial_point(), []
    for i in range(85):
        if i == 80:
            step.stop_tuning()
        point, (statistics,) = step.step(point)
        said.append(statistics["warning"])
    assert said[:-1] == [None] * 84
    assert said[-1].level == "warn"
    says = r"f: the step size is .*, so max_steps=2 covers only .* of path_length=4\..*RMHMC\(max_steps=(\d+)\)"
    enough = int(re.search(says, said[-1].message)[1])
    assert enough == math.ceil(4.0 * 1.1 / step._samplers[0].average_step_size())


@evaluated_by_python
def test_functions_of_a_basis_beyond_double_precision_do_no_harm():
    """The square root of a spectral density that is 0 has no derivative."""
    rng = np.random.default_rng(2)
    x = np.sort(rng.uniform(-3.0, 3.0, 50))
    with pm.Model():
        kernel = pm.HalfNormal("eta") ** 2 * pm.gp.cov.ExpQuad(1, ls=pm.InverseGamma("ls", 5.0, 5.0))
        f = pm.gp.HSGP(m=[220], c=1.5, cov_func=kernel).prior("f", X=x[:, None])
        pm.Poisson("y", mu=pm.math.exp(f), observed=rng.poisson(np.exp(np.sin(x))))
        step = RMHMC()
        idata = pm.sample(
            draws=60, tune=60, chains=1, cores=1, step=step, random_seed=1, progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip
    assert not idata.sample_stats["failure"].any()
    assert idata.sample_stats["acceptance_rate"].mean() > 0.6


@evaluated_by_python
def test_the_warning_says_where_a_covariance_had_no_factor():
    """Without jitter, long lengthscales leave the kernel indefinite in double precision."""
    with pm.Model() as model:
        ls = pm.LogNormal("ls", 0.0, 1.5)
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=ls)).prior("f", X=X, reparameterize=False, jitter=0.0)
        pm.Poisson("y", mu=pm.math.exp(f), observed=np.ones(N, dtype=int))
        step = RMHMC(step_size=0.8, n_steps=2)
    step.setup_chain(np.random.default_rng(1), 0, 100)
    point, statistics = model.initial_point() | {"ls_log__": np.array(-1.5)}, {}
    for _ in range(100):
        point, (statistics,) = step.step(point)
        assert point["ls_log__"] < 3.0
    assert statistics["n_failures"] > 5
    assert "last not positive definite at ls_log__ = " in statistics["warning"].message


@evaluated_by_python
def test_where_a_covariance_had_no_factor_is_kept_when_another_step_goes_on():
    """What another step has moved is part of where it was; it has moved on when the chain says so."""
    with pm.Model() as model:
        ridge, eta = pm.LogNormal("ridge", 0.0, 1.0), pm.LogNormal("eta", 0.0, 0.3)
        covariance = eta * (np.ones((N, N)) - 0.1 * np.eye(N)) + ridge * np.eye(N)
        pm.Poisson("y", mu=pm.math.exp(pm.MvNormal("f", np.zeros(N), cov=covariance)), observed=COUNTS)
        step = RMHMC(vars=["f", "eta"])
    step.setup_chain(np.random.default_rng(1), 0, 12)
    point, _ = step.step(model.initial_point())
    kept, (statistics,) = step.step(point | {"ridge_log__": np.array(-60.0)})
    assert statistics["failure"] == Failure.NOT_POSITIVE_DEFINITE
    np.testing.assert_array_equal(kept["f"], point["f"])
    there = float(kept["eta_log__"])
    point = kept | {"ridge_log__": np.array(0.0)}
    for _ in range(10):
        point, (statistics,) = step.step(point | {"ridge_log__": point["ridge_log__"] + 0.1})
        assert statistics["failure"] == Failure.NONE
    said = statistics["warning"].message
    assert f"last not positive definite at eta_log__ = {np.round(there, 3)}, ridge_log__ = -60.0." in said


def grid() -> tuple[pm.Model, pm.gp.LatentKron]:
    """Counts on a grid of four by three with an amplitude and a lengthscale for each axis."""
    with pm.Model() as model:
        ls, eta = pm.LogNormal("ls", -1.0, 0.3, shape=2), pm.HalfNormal("eta", 2.0)
        kernels = [eta**2 * pm.gp.cov.Matern52(1, ls=ls[0]), pm.gp.cov.Matern52(1, ls=ls[1])]
        gp = pm.gp.LatentKron(mean_func=pm.gp.mean.Constant(0.5), cov_funcs=kernels)
        pm.Poisson("y", mu=pm.math.exp(gp.prior("f", Xs=[X[:4], X[:3]])), observed=COUNTS)
    return model, gp


@evaluated_by_python
def test_a_grid_is_sampled_with_its_hyperparameters_and_predicted_from():
    model, gp = grid()
    with model:
        step = RMHMC()
    assert {v.name for v in step.vars} == {"f_rotated_", "ls_log__", "eta_log__"}
    idata = draw(model, step)
    assert not idata.sample_stats["failure"].any()
    density = exact_log_density(model)
    exact = [density(point) for point in value_points(model, idata)]
    np.testing.assert_allclose(idata.sample_stats["lp"].values[0], exact, atol=1e-6)
    with model:
        gp.conditional("g", Xnew=np.array([[X[1, 0], X[2, 0]], [0.5, 0.9]]), jitter=1e-8)
        predicted = pm.sample_posterior_predictive(idata, var_names=["g"], random_seed=1, progressbar=False)
    # The first is a place of the grid, the second row's last.
    at_grid = predicted.posterior_predictive["g"].values[..., 0] - idata.posterior["f"].values[..., 5]
    assert np.abs(at_grid).max() < 0.05


def test_a_factor_that_is_not_positive_definite_is_an_error_with_its_eigenvalue():
    with pm.Model():
        x = np.array([[0.0], [0.0], [1.0]])
        kernels = [pm.gp.cov.Matern52(1, ls=0.5), pm.gp.cov.ExpQuad(1, ls=0.5)]
        f = pm.gp.LatentKron(cov_funcs=kernels).prior("f", Xs=[X[:4], x], jitter=-1e-3)
        pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)
        with pytest.raises(CovarianceError, match=r"f: .* not positive definite: its smallest eigenvalue is -0.000324"):
            RMHMC()


@pytest.mark.parametrize(("n_inputs", "steps"), [(2, 300), (120, 363)])
def test_tuning_is_as_long_as_the_mass_matrix_takes(n_inputs, steps):
    inputs = np.random.default_rng(0).standard_normal((N, n_inputs))
    with pm.Model():
        ls, eta = pm.HalfNormal("ls", 10.0, shape=n_inputs), pm.HalfNormal("eta", 2.0)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.Matern52(n_inputs, ls=1.0 + ls))
        pm.Poisson("y", mu=pm.math.exp(gp.prior("f", X=inputs)), observed=COUNTS)
        step = RMHMC()
    assert step.default_tune_steps == steps


def test_tuning_is_twice_as_long_where_draws_are_cheap_and_no_emulator_follows():
    with pm.Model():
        effects = pm.Normal("effects", 0.0, pm.HalfNormal("scale", 1.0), shape=3)
        pm.Poisson("y", mu=pm.math.exp(effects[np.arange(N) % 3]), observed=COUNTS)
        step = RMHMC(metric=FlatMetric(chart="latent"))
        assert RMHMC().default_tune_steps == 300  # in the chart of the graph, which is the default here
    assert step.default_tune_steps == 600


def test_a_discrete_variable_beside_chosen_ones_is_named_with_its_step(caplog):
    with pm.Model():
        late = pm.Bernoulli("late", 0.5)
        f = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=0.3)).prior("f", X=X, reparameterize=False)
        pm.Poisson("y", mu=pm.math.exp(f + late), observed=COUNTS)
        with caplog.at_level("INFO"):
            RMHMC(vars=[f])
    assert "late (sampled by BinaryGibbsMetropolis)" in caplog.text
