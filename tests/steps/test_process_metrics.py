"""Metrics of a process with its hyperparameters, inside pm.sample: what a user sees of them."""

from __future__ import annotations

import logging
from functools import cache

import arviz as az
import numpy as np
import pymc as pm
import pytest

from pymc_rmhmc import (
    MALA,
    MMALA,
    RMHMC,
    BlockMetric,
    ConfigurationError,
    EllipticalSlice,
    ImplicitMidpoint,
    UnsupportedModelError,
    WhitenedFisherMetric,
    describe,
)
from pymc_rmhmc.kernels import single_moves
from pymc_rmhmc.sampled import process
from tests.steps.conftest import COUNTS, N, X, draw

METRICS = {"block": BlockMetric, "whitened_fisher": WhitenedFisherMetric}
QUICK = (("block", "whitened"), ("whitened_fisher", "centred"))
# Other forms are read by what reads them for any metric.
SLOW = (("block", "mvnormal"),)
PAIRS = [*QUICK, *(pytest.param(*each, marks=pytest.mark.slow) for each in SLOW)]


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


@pytest.mark.parametrize("form", ["whitened", "centred"])
@pytest.mark.parametrize("metric", METRICS)
def test_hyperparameters_alone_hold_the_process_in_the_metrics_coordinates(metric, form):
    """Whatever the model has: f, or ν with f = L(θ) ν."""
    model = gp(form=form)
    step = RMHMC(vars=["ls", "scale"], metric=metric, model=model, step_size=0.3, n_steps=2)
    assert [v.name for v in step.vars] == ["ls_log__", "scale_log__"]
    own = "f_rotated_" if form == "whitened" else "f"
    step.setup_chain(np.random.default_rng(1), tune=0, draws=4)
    point = model.initial_point() | {own: 0.3 * np.random.default_rng(0).standard_normal(N)}
    for turn in range(3):
        before = whitened_and_not(point, form)
        moved, _ = step.step(point)
        after, still = whitened_and_not(moved, form), int(metric == "block")
        assert moved["ls_log__"] != point["ls_log__"]
        np.testing.assert_allclose(after[still], before[still], rtol=1e-9, atol=1e-9)
        assert np.abs(after[1 - still] - before[1 - still]).max() > 1e-3
        # Another step moves the process, or not.
        point = moved if turn else moved | {own: moved[own] + 0.1}


def whitened_and_not(point, form):
    """ν and f at a point of a model."""
    scale, ls = np.exp(point["scale_log__"]), np.exp(point["ls_log__"])
    lower = np.linalg.cholesky(scale**2 * pm.gp.cov.Matern52(1, ls=ls)(X).eval() + 1e-4 * np.eye(N))
    if form == "whitened":
        return point["f_rotated_"], lower @ point["f_rotated_"]
    return np.linalg.solve(lower, point["f"]), point["f"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metric", "form", "said"),
    [
        ("block", "whitened", "f is held."), ("whitened_fisher", "centred", "L⁻¹(f - mean) is held, and f follows."),
        pytest.param("block", "centred", "f is held.", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_hyperparameters_in_turn_with_the_process(metric, form, said, caplog):
    model, own = gp(form=form), "f_rotated_" if form == "whitened" else "f"
    with caplog.at_level(logging.INFO, logger="pymc.rmhmc"), model:
        steps = [RMHMC(vars=["f"], metric="fisher"), RMHMC(vars=["ls", "scale"], metric=metric)]
    assert f"left to other steps: f (not named in vars). {said}" in " ".join(caplog.text.split())
    with caplog.at_level(logging.WARNING):
        idata = draw(model, steps, draws=15, tune=25, chains=2, cores=2 if form == "centred" else 1)
    assert "another step moves" not in caplog.text
    assert len(np.unique(idata.posterior["ls"])) > 10
    point = {f"{name}_log__": np.log(idata.posterior[name].values[0, -1]) for name in ("ls", "scale")}
    point[own] = idata.posterior[own].values[0, -1]
    assert idata.sample_stats["lp"].values[0, -1, -1] == pytest.approx(model.compile_logp()(point), abs=1e-5)


@pytest.mark.parametrize("moved", ["f", "ls_log__"])
def test_a_second_step_for_the_same_hyperparameter_is_still_told(moved):
    """Nobody is told of the process, which another step samples."""
    model = gp(form="centred")
    step = RMHMC(vars=["ls", "scale"], metric="block", model=model)
    step.setup_chain(np.random.default_rng(0), 200, 10)
    point, _ = step.step(model.initial_point())
    _, (statistics,) = step.step(point | {moved: point[moved] + 0.01})
    said = statistics["warning"]
    assert said is None if moved == "f" else "another step moves ls too" in said.message


@pytest.mark.slow
def test_turns_with_the_process_agree_with_the_flat_metric():
    exact, model = exact_summary(), gp(form="whitened")
    with model:
        steps = [RMHMC(vars=["f"], metric="fisher"), RMHMC(vars=["ls", "scale"], metric="whitened_fisher")]
    found = summary(draw(model, steps, draws=500, tune=300, chains=2))
    errors = np.hypot(exact["error"], found["error"])
    np.testing.assert_array_less(np.abs(exact["mean"] - found["mean"]), 4.5 * errors)
    # An error must not hide a difference.
    assert (errors < 0.35 * exact["sd"]).all()


def test_only_the_process_and_its_hyperparameters_together_have_long_paths():
    """In the block of hyperparameters alone nothing is dropped."""
    model, lengths = gp(form="centred"), []
    for metric, named in (("block", None), ("block", ["ls", "scale"]), ("whitened_fisher", None)):
        (chain,) = RMHMC(vars=named, metric=metric, model=model)._samplers
        lengths.append(chain.plan.trajectory.path.path_length)
    assert lengths == [10.0, 1.7, 1.7]


@pytest.mark.slow
def test_a_variable_that_is_left_is_sampled_by_pymc():
    model = gp()
    idata = draw(model, [RMHMC(vars=["f", "ls"], metric="block", model=model)], draws=10, tune=10)
    assert len(np.unique(idata.posterior["scale"])) > 2


@pytest.mark.slow
def test_describe_says_which_priors_count_with_softabs():
    with pm.Model() as model:
        share = pm.Kumaraswamy("share", 2.0, 2.0)
        scale = pm.Gamma("scale", 4.0, 8.0)
        x = np.linspace(0.0, 1.0, 4)[:, None]
        f = pm.gp.Latent(cov_func=scale * pm.gp.cov.Matern52(1, ls=share)).prior("f", X=x)
        pm.Poisson("y", pm.math.exp(f), observed=[0, 1, 2, 1])
    assert "The prior of share counts with the SoftAbs of the curvature" in described(model, metric="block")


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
        (large, ConfigurationError, r"501 values of f, .*takes at most 500: its matrices are dense, .*metric=.flat"),
        (uninformed, ConfigurationError, "y: the expected information of SkewNormal is not registered, so block"),
    ],
)
def test_models_that_do_not_fit_say_what_was_found_and_what_to_do(build, error, match):
    with pytest.raises(error, match=match):
        RMHMC(metric=BlockMetric(), model=build())


def small(n=N, *, ls=None, scale=None, level=None, form="centred"):
    """A process of n values, whose hyperparameters have other priors than usual."""
    with pm.Model() as model:
        lengthscale = pm.LogNormal("ls", -1.0, 0.3) if ls is None else ls("ls")
        kernel = pm.gp.cov.Matern52(1, ls=lengthscale)
        kernel = kernel if scale is None else scale("scale") ** 2 * kernel
        f = pm.gp.Latent(cov_func=kernel).prior("f", X=X[:n], reparameterize=form == "whitened", jitter=1e-4)
        pm.Poisson("y", mu=pm.math.exp(f if level is None else f + level("level")), observed=COUNTS[:n])
    return model


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("priors", "match"),
    [
        ({"scale": pm.HalfFlat}, r"scale has a HalfFlat prior, .* such as pm.HalfNormal\('scale', 10\)"),
        ({"level": pm.Flat}, r"level has a Flat prior, .* such as pm.Normal\('level', 0, 10\)"),
    ],
)
def test_priors_without_curvature_are_named(metric, priors, match):
    """Also of what the process or its likelihood informs: with no data at all the metric would be singular."""
    model = small(**priors)
    (name,) = priors
    for named in (None, [name]):
        with pytest.raises(ConfigurationError, match=match):
            RMHMC(vars=named, metric=metric, model=model)


def bounded(name):
    return pm.Uniform(name, 0.05, 1.0, default_transform=None, initval=0.3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("named", "options", "metric"),
    [
        # A prior that is constant between bounds, on a scale with them and on one without.
        (None, {"ls": lambda name: pm.Uniform(name, 0.05, 1.0)}, "block"), (None, {"ls": bounded}, "whitened_fisher"),
        # A flat prior of what another step samples.
        (["f", "ls"], {"scale": pm.HalfFlat}, "block"),
        # A single value, and a single hyperparameter.
        (None, {"n": 1, "form": "whitened"}, "whitened_fisher"), (["ls"], {"n": 1, "form": "whitened"}, "block"),
        # What the likelihood alone reads: the covariance has no derivative by it.
        (["level"], {"level": pm.Normal}, "block"), (["f", "level"], {"level": pm.Normal}, "whitened_fisher"),
    ],
)  # fmt: skip
def test_small_and_odd_models_are_sampled(named, options, metric):
    model = small(**options)
    step = RMHMC(vars=named, metric=metric, model=model, step_size=0.1, n_steps=2)
    step.setup_chain(np.random.default_rng(1), tune=0, draws=8)
    own, n = "f_rotated_" if options.get("form") else "f", options.get("n", N)
    # At 0 the likelihood says nothing of hyperparameters in whitened coordinates.
    start = point = model.initial_point() | {own: np.cos(3.0 * X[:n, 0])}
    for _ in range(8):
        point, (statistics,) = step.step(point)
        assert statistics["model_logp"] == pytest.approx(model.compile_logp()(point), abs=1e-6)
    assert all((point[str(v.name)] != start[str(v.name)]).all() for v in step.vars)


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: MMALA(metric="nonsense"), ConfigurationError, r"Unknown metric 'nonsense': .*\"block\", \"whitened_f"),
        (lambda: MMALA(["f"], metric="block"), ConfigurationError, "vars names f alone, and the block metric moves it"),
        (lambda: MALA(metric="block"), ConfigurationError, "MALA has no argument metric. Its arguments are vars"),
        (lambda: EllipticalSlice(["ls"]), ConfigurationError, "ls: its prior is .* Leave ls out of vars, or leave v"),
        (lambda: EllipticalSlice(["f", "ls"]), ConfigurationError, "moves latent Gaussian values alone. Leave ls out"),
        (lambda: EllipticalSlice(metric="block"), ConfigurationError, "EllipticalSlice has no argument metric"),
        (lambda: RMHMC([], metric="block"), ConfigurationError, "vars is empty, so there is nothing to sample"),
    ],
)
def test_steps_and_metrics_that_do_not_fit(make, error, match):
    with small(), pytest.raises(error, match=match):
        make()


@pytest.mark.slow
def test_the_fisher_metric_takes_hyperparameters_alone_too():
    with small() as model:
        step = MMALA(["ls"], metric="fisher", step_size=0.3)
    assert [v.name for v in step.vars] == ["ls_log__"]
    step.setup_chain(np.random.default_rng(1), tune=0, draws=2)
    assert step.step(model.initial_point())[0]["ls_log__"] != model.initial_point()["ls_log__"]


@pytest.mark.parametrize("named", [None, ["s"]])
def test_a_model_without_a_process_says_so(named):
    with pm.Model() as model:
        s = pm.HalfNormal("s")
        pm.Normal("y", 0.0, s, observed=[1.0, 2.0])
    with pytest.raises(UnsupportedModelError, match="needs one latent Gaussian vector .* with hyperparameters"):
        RMHMC(vars=named, metric=BlockMetric(), model=model)


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


@cache
def exact_summary():
    """Of the flat metric."""
    return summary(draw(gp(), draws=1000, tune=400, chains=2))


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
    monkeypatch.setattr(single_moves, "MOST_DIVERGED", 5)
    with pytest.raises(ConfigurationError, match=r"derivatives of the metric.*at most 5.*simplified=True"):
        MMALA(metric=BlockMetric(), simplified=False, model=model)


@pytest.mark.slow
def test_coordinates_of_other_data_are_not_kept():
    """A second run with the same step begins where its point is, also after `pm.set_data`."""
    with pm.Model() as model:
        x = pm.Data("x", X)
        ls = pm.LogNormal("ls", -1.0, 0.3)
        f = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=ls)).prior("f", X=x, reparameterize=False, jitter=1e-4)
        pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)
        step = RMHMC(metric="whitened_fisher", step_size=1e-6, n_steps=1)
    rng, point = np.random.default_rng(0), model.initial_point()
    step.setup_chain(rng, 2, 2)
    for _ in range(3):
        point, _ = step.step(point)
    with model:
        pm.set_data({"x": 3.0 * X})
    step.setup_chain(rng, 0, 2)
    after, _ = step.step(point)
    np.testing.assert_allclose(after["f"], point["f"], atol=1e-4)
