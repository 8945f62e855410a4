"""`laplace` and `ep` on PyMC models: against closed forms and long runs, and what is said of bad input."""

from __future__ import annotations

from functools import cache

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from scipy.stats import multivariate_normal

from pymc_rmhmc import GaussianApproximation, ep, laplace
from pymc_rmhmc.errors import (
    ApproximationError,
    ConfigurationError,
    CovarianceError,
    DataError,
    UnsupportedLikelihoodError,
    UnsupportedModelError,
)
from pymc_rmhmc.evidence import approximations
from pymc_rmhmc.model.graph.graphs import PYTHON_MODE
from tests.model.conftest import MODELS, exact_log_density
from tests.steps.conftest import COUNTS, N, X, logistic, poisson_model

N_OBSERVED = 20
BOTH = pytest.mark.parametrize("approximate", [laplace, ep])


def covariance(ls=0.3):
    return 1.3 * np.exp(-0.5 * (X - X.T) ** 2 / ls**2) + 0.1 * np.eye(N)


@cache
def sampled_model():
    return poisson_model(reparameterize=True, sampled=True)


@BOTH
def test_a_normal_model_is_exact(approximate):
    """Mean, covariance and evidence are those of regression, with what is observed beside the block."""
    y, noise = np.linspace(-1.0, 1.5, N), 0.4
    with pm.Model() as model:
        f = pm.MvNormal("f", np.full(N, 0.2), cov=covariance())
        pm.Normal("y", f, noise, observed=y)
        pm.Normal("elsewhere", 0.5, 2.0, observed=1.0)
    found = approximate(model)
    total = covariance() + noise**2 * np.eye(N)
    gain = covariance() @ np.linalg.inv(total)
    exact = multivariate_normal.logpdf(y, np.full(N, 0.2), total) + multivariate_normal.logpdf(1.0, 0.5, 4.0)
    assert found.log_evidence == pytest.approx(exact, abs=1e-7)
    np.testing.assert_allclose(found.mean["f"], 0.2 + gain @ (y - 0.2), atol=1e-7)
    factor = found.covariance_factor
    np.testing.assert_allclose(factor @ factor.T, covariance() - gain @ covariance(), atol=1e-8)
    np.testing.assert_array_equal(factor, np.tril(factor))
    np.testing.assert_allclose(found.eta_mean, found.mean["f"], atol=1e-9)
    np.testing.assert_allclose(found.eta_variance, (factor**2).sum(axis=1), rtol=1e-9)
    assert found.converged
    assert found.given == {}


@BOTH
@pytest.mark.parametrize("form", ["centred", "whitened", "coefficients"])
def test_draws_have_the_mean_and_covariance(approximate, form):
    model = logistic() if form == "coefficients" else poisson_model(reparameterize=form == "whitened")
    found = approximate(model)
    (name,) = found.mean
    values = found.sample(4000, random_seed=1).posterior[name].values
    assert values.shape == (1, 4000, *found.mean[name].shape)
    factor = found.covariance_factor
    standard = np.linalg.solve(factor, (values[0] - found.mean[name]).T)
    np.testing.assert_allclose(standard.mean(axis=1), 0.0, atol=0.08)
    np.testing.assert_allclose(np.cov(standard), np.eye(len(factor)), atol=0.12)


def test_ep_is_nearer_to_the_exact_posterior_than_laplace():
    """Of a logistic regression with two coefficients, by a grid: its mean, and the evidence with the second order."""
    model, axes, at = logistic(), np.linspace(-12.0, 12.0, 401), np.linspace(-2.0, 2.0, N_OBSERVED)
    y = model.rvs_to_values[model["y"]].data
    a, b = np.meshgrid(axes, axes, indexing="ij")
    eta = a[..., None] + b[..., None] * at
    log_density = -np.logaddexp(0.0, np.where(y == 1, -eta, eta)).sum(axis=-1) - (a**2 + b**2) / 8.0
    weights = np.exp(log_density)
    exact = np.log(weights.sum() * (axes[1] - axes[0]) ** 2 / (8.0 * np.pi))
    slope = (weights * b).sum() / weights.sum()
    by_laplace, by_ep = laplace(model), ep(model)
    assert abs(by_ep.mean["b"][1] - slope) < 0.05 * abs(by_laplace.mean["b"][1] - slope)
    assert abs(by_ep.log_evidence - exact) < abs(by_laplace.log_evidence - exact)
    assert by_ep.log_evidence + by_ep.second_order == pytest.approx(exact, abs=2e-3)
    assert by_laplace.second_order is None


@BOTH
def test_independent_blocks_add(approximate):
    """Evidences, and the sites one after the other."""
    with pm.Model() as both:
        f = pm.MvNormal("f", np.zeros(N), cov=covariance())
        g = pm.MvNormal("g", np.zeros(N), cov=2.0 * covariance())
        pm.Poisson("y", pm.math.exp(f), observed=COUNTS)
        pm.Bernoulli("z", logit_p=g, observed=COUNTS > 1)
    with pm.Model() as first:
        f = pm.MvNormal("f", np.zeros(N), cov=covariance())
        pm.Poisson("y", pm.math.exp(f), observed=COUNTS)
    with pm.Model() as second:
        g = pm.MvNormal("g", np.zeros(N), cov=2.0 * covariance())
        pm.Bernoulli("z", logit_p=g, observed=COUNTS > 1)
    whole, *parts = (approximate(model) for model in (both, first, second))
    assert whole.log_evidence == pytest.approx(sum(part.log_evidence for part in parts), abs=1e-9)
    np.testing.assert_allclose(whole.mean["g"], parts[1].mean["g"], atol=1e-9)
    assert whole.sites.linear.shape == (2 * N,)
    assert whole.covariance_factor.shape == (2 * N, 2 * N)
    if approximate is ep:
        assert whole.second_order == pytest.approx(sum(part.second_order for part in parts), abs=1e-9)


@BOTH
def test_other_variables_are_held_at_the_point(approximate):
    """By their own names or their value variables', and the evidence is the one at that value."""
    held = approximate(sampled_model(), {"ls": 0.5})
    assert held.given["ls"] == pytest.approx(0.5)
    assert approximate(sampled_model(), {"ls_log__": np.log(0.5)}).log_evidence == pytest.approx(held.log_evidence)
    initial = np.exp(sampled_model().initial_point()["ls_log__"])
    assert approximate(sampled_model()).given["ls"] == pytest.approx(initial)
    with pm.Model() as fixed:
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(0.5), cov_func=1.5 * pm.gp.cov.Matern52(1, ls=0.5))
        pm.Poisson("y", mu=pm.math.exp(gp.prior("f", X=X)), observed=COUNTS)
    assert held.log_evidence == pytest.approx(approximate(fixed).log_evidence, abs=1e-8)
    drawn = held.sample(3, random_seed=2).posterior
    np.testing.assert_allclose(drawn["ls"].values, 0.5)
    assert "ls" in repr(held)


@BOTH
@pytest.mark.parametrize("form", ["whitened", "additive_gathered", "two_outputs_whitened", "mvnormal_tau_rows"])
def test_the_evidence_is_that_of_the_models_own_density(approximate, form):
    """By importance sampling from the approximation, with PyMC's log density and all its constants."""
    model = MODELS[form]()
    found = approximate(model)
    factor, rng = found.covariance_factor, np.random.default_rng(0)
    flat = np.concatenate([value.ravel() for value in found.mean.values()])
    cuts = np.cumsum([value.size for value in found.mean.values()])[:-1]
    terms = [variable for variable in model.basic_RVs if variable.name not in found.given]
    log_density, point = exact_log_density(model, vars=terms), model.initial_point()
    log_ratios = []
    for z in rng.standard_normal((300, flat.size)):
        parts = np.split(flat + factor @ z, cuts)
        shaped = {name: p.reshape(value.shape) for p, (name, value) in zip(parts, found.mean.items(), strict=True)}
        log_normal = -0.5 * (z @ z + z.size * np.log(2.0 * np.pi)) - np.log(np.diag(factor)).sum()
        log_ratios.append(float(log_density(point | shaped)) - log_normal)
    ratios = np.exp(np.array(log_ratios) - max(log_ratios))
    error = ratios.std() / ratios.mean() / np.sqrt(ratios.size)
    evidence = found.log_evidence + (found.second_order or 0.0)
    tolerance = 4.0 * error + (0.01 if approximate is ep else 0.15)
    assert max(log_ratios) + np.log(ratios.mean()) == pytest.approx(evidence, abs=tolerance)


@BOTH
def test_an_intercept_is_integrated_out(approximate):
    """With a Normal prior it adds a constant to the covariance."""
    with pm.Model() as model:
        a = pm.Normal("a", 0.5, 2.0)
        f = pm.MvNormal("f", np.zeros(N), cov=covariance())
        pm.Poisson("y", pm.math.exp(a + f), observed=COUNTS)
    with pm.Model() as whole:
        f = pm.MvNormal("f", np.full(N, 0.5), cov=covariance() + 4.0)
        pm.Poisson("y", pm.math.exp(f), observed=COUNTS)
    found, expected = approximate(model), approximate(whole)
    assert found.given == {}
    assert found.log_evidence == pytest.approx(expected.log_evidence, abs=1e-6)
    np.testing.assert_allclose(found.mean["f"] + found.mean["a"], expected.mean["f"], atol=1e-5)
    assert found.sample(2).posterior["a"].shape == (1, 2)


def test_draws_hold_deterministics_and_names_of_dimensions():
    with pm.Model(coords={"place": list("abcdefghijkl")}) as model:
        f = pm.MvNormal("f", np.zeros(N), cov=covariance(), dims="place")
        pm.Deterministic("rate", pm.math.exp(f), dims="place")
        pm.Poisson("y", pm.math.exp(f), observed=COUNTS, dims="place")
    drawn = ep(model).sample(7, random_seed=3)
    assert isinstance(drawn, xr.DataTree)
    assert drawn.posterior["rate"].dims == ("chain", "draw", "place")
    assert drawn.posterior["rate"].coords["place"].values.tolist() == list("abcdefghijkl")
    np.testing.assert_allclose(drawn.posterior["rate"], np.exp(drawn.posterior["f"]))
    again = ep(model).sample(7, random_seed=3)
    np.testing.assert_array_equal(again.posterior["f"], drawn.posterior["f"])


@pytest.mark.parametrize("when", ["before", "after"])
def test_predictions_at_new_inputs(when):
    """A `gp.conditional` that is added before the approximation, or after it."""
    new = np.linspace(0.0, 1.0, N)[:, None] + 1e-3
    with pm.Model():
        ls = pm.LogNormal("ls", -1.0, 0.3)
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(0.5), cov_func=1.5 * pm.gp.cov.Matern52(1, ls=ls))
        f = gp.prior("f", X=X)
        pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)
        if when == "before":
            gp.conditional("f_new", new)
        drawn = ep(point={"ls": 0.3}).sample(200, random_seed=4)
        if when == "after":
            gp.conditional("f_new", new)
        predicted = pm.sample_posterior_predictive(
            drawn, var_names=["f_new", "y"], random_seed=5, progressbar=False
        ).posterior_predictive
    # So near the old inputs it is the process there.
    np.testing.assert_allclose(
        predicted["f_new"].mean(("chain", "draw")), drawn.posterior["f"].mean(("chain", "draw")), atol=0.1
    )
    assert predicted["y"].shape == (1, 200, N)
    assert abs(float(predicted["y"].mean()) - COUNTS.mean()) < 0.5


def test_shared_data_are_read_at_the_call():
    with pm.Model() as model:
        counts = pm.Data("counts", COUNTS)
        pm.Deterministic("seen", counts)
        f = pm.MvNormal("f", np.zeros(N), cov=covariance())
        pm.Poisson("y", pm.math.exp(f), observed=counts)
    before = ep(model).log_evidence
    with model:
        pm.set_data({"counts": COUNTS + 1})
        after = ep()
        pm.set_data({"counts": COUNTS})
    assert before != pytest.approx(after.log_evidence)
    assert ep(model).log_evidence == pytest.approx(before)
    # What was fitted stays with its data.
    np.testing.assert_array_equal(after.sample(2).posterior["seen"][0, 0], COUNTS + 1)


BAD_POINTS = [
    ({"lengthscale": 1.0}, "point names 'lengthscale'.*It has f_rotated_, ls"),
    ({"y": COUNTS}, "point names 'y'"),
    ({"ls": [0.3, 0.4]}, r"point\['ls'\] has shape \(2,\), and ls has shape \(\)"),
    ({"ls": np.nan}, "1 non-finite value"),
    ({"ls": "long"}, "must hold numbers"),
    ({"ls": -1.0}, "point gives ls_log__ a value that is not finite on the unconstrained scale"),
    ([0.3], "point must be a dict of values by name"),
]
BAD_OPTIONS = [
    ({"damping": 0.0}, "damping must be a number from 0.001 to 1"),
    ({"damping": 1.5}, "damping must be a number from 0.001 to 1, got 1.5"),
    ({"tolerance": 0.0}, "tolerance must be a number from 1e-12"),
    ({"max_iter": 0}, "max_iter must be a whole number from 1"),
    ({"max_iter": 2.5}, "max_iter must be a whole number"),
    ({"steps": 3}, "ep.. cannot be called like this"),
]


@pytest.mark.parametrize("point, message", BAD_POINTS)
def test_a_bad_point_is_named(point, message):
    with pytest.raises(ConfigurationError, match=message):
        laplace(sampled_model(), point)


@pytest.mark.parametrize("options, message", BAD_OPTIONS)
def test_a_bad_option_is_named(options, message):
    with pytest.raises(ConfigurationError, match=message):
        ep(sampled_model(), **options)


def no_block():
    x = pm.Gamma("x", 2.0, 1.0)
    pm.Poisson("y", x, observed=3)


def discrete():
    k = pm.Poisson("k", 3.0)
    f = pm.MvNormal("f", np.zeros(N), cov=covariance())
    pm.Poisson("y", pm.math.exp(f + k), observed=COUNTS)


def missing():
    f = pm.MvNormal("f", np.zeros(N), cov=covariance())
    pm.Normal("y", f, 1.0, observed=np.ma.masked_greater(COUNTS.astype(float), 4.0))


def singular():
    f = pm.MvNormal("f", np.zeros(N), cov=np.ones((N, N)))
    pm.Poisson("y", pm.math.exp(f), observed=COUNTS)


def bad_data():
    f = pm.MvNormal("f", np.zeros(N), cov=covariance())
    pm.Poisson("y", pm.math.exp(f), observed=-COUNTS)


BAD_MODELS = [
    (no_block, UnsupportedModelError, "latent Gaussian"),
    (discrete, UnsupportedModelError, "k: discrete variables have no Gaussian approximation"),
    (missing, UnsupportedModelError, "y_unobserved: the data have missing values"),
    (singular, CovarianceError, "not positive definite"),
    (bad_data, DataError, "the data of y"),
]


@BOTH
@pytest.mark.parametrize("build, error, message", BAD_MODELS)
@pytest.mark.filterwarnings("ignore:Data in y contains missing values")
def test_a_model_that_cannot_be_approximated_is_a_typed_error(approximate, build, error, message):
    with pm.Model() as model:
        build()
    with pytest.raises(error, match=message):
        approximate(model)


@BOTH
def test_no_model_in_context(approximate):
    with pytest.raises(ConfigurationError, match=f"{approximate.__name__} reads a model, and there is none in context"):
        approximate()


def test_ep_that_does_not_converge_is_an_error():
    """Never a result: with too few updates, and where several fixed points compete."""
    with pytest.raises(ApproximationError, match=r"did not converge in 1 updates: .*max_iter=1.*laplace\(\)"):
        ep(poisson_model(), max_iter=1)
    at, rng = np.linspace(0.0, 2.0, N), np.random.default_rng(0)
    y = np.where(np.arange(N) % 3 == 0, 3.0, 0.0) + 0.02 * rng.standard_t(2, N)
    with pm.Model() as model:
        f = pm.MvNormal("f", np.zeros(N), cov=9.0 * np.exp(-0.5 * (at[:, None] - at) ** 2) + 1e-6 * np.eye(N))
        pm.StudentT("y", nu=2.0, mu=f, sigma=0.02, observed=y)
    with pytest.raises(ApproximationError, match="did not converge"):
        ep(model)
    assert isinstance(laplace(model), GaussianApproximation)


@pytest.mark.parametrize("draws", [0, -1, 2.5, True, "many"])
def test_a_bad_number_of_draws_is_named(draws):
    with pytest.raises(ConfigurationError, match="draws must be a whole number from 1 up"):
        laplace(poisson_model()).sample(draws)


def three_classes(n: int = 12) -> pm.Model:
    at, rng = np.linspace(0.0, 4.0, n)[:, None], np.random.default_rng(3)
    with pm.Model() as model:
        amplitude = pm.HalfNormal("amplitude", 1.0)
        logits = [
            pm.gp.Latent(cov_func=amplitude**2 * pm.gp.cov.Matern52(1, ls=ls)).prior(f"f{k}", at, jitter=1e-4)
            for k, ls in enumerate((0.5, 1.0, 2.0))
        ]
        pm.Categorical("y", logit_p=pt.stack(logits, axis=1), observed=rng.integers(3, size=n))
    return model


def mean_and_spread() -> pm.Model:
    """Its likelihood curves upwards along the spread of many observations, and the posterior does not."""
    at, rng = np.linspace(0.0, 4.0, 15)[:, None], np.random.default_rng(4)
    with pm.Model() as model:
        level, kernel = pm.Normal("level", 0.0, 1.0), pm.gp.cov.Matern52(1, ls=0.8)
        f, g = (pm.gp.Latent(cov_func=kernel).prior(name, at, reparameterize=False, jitter=1e-4) for name in "fg")
        pm.Normal("y", f, pt.exp(level + g), observed=rng.standard_normal(15) * np.linspace(0.2, 2.0, 15))
        pm.Potential("elsewhere", pt.as_tensor_variable(-1.5))
    return model


def rate_and_inflation() -> pm.Model:
    """Effects of groups on both parameters of one variable, of which one is registered with one predictor."""
    rng = np.random.default_rng(5)
    group = rng.integers(6, size=40)
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 1.0)
        a, b = pm.Normal("a", 0.0, scale, shape=6), pm.Normal("b", 0.0, 1.0, shape=6)
        pm.ZeroInflatedPoisson("y", pm.math.invlogit(b[group]), pt.exp(1.0 + a[group]), observed=rng.poisson(2.0, 40))
    return model


@pytest.mark.parametrize("build", [three_classes, mean_and_spread, rate_and_inflation])
def test_laplace_of_several_predictors_is_the_mode_and_the_curvature_there(build):
    """By PyMC's own log density of the latent values, its slope and its second derivatives."""
    model = build()
    found = laplace(model)
    names = {str(v.name) for v in model.free_RVs if v.ndim or v.name == "level"}
    assert set(found.mean) == names
    point = model.initial_point() | found.mean
    slope = model.compile_dlogp(vars=[model[name] for name in found.mean], mode=PYTHON_MODE)
    np.testing.assert_allclose(slope(point), 0.0, atol=1e-4)
    factor, mode = found.covariance_factor, np.concatenate([value.ravel() for value in found.mean.values()])

    def slope_at(values: np.ndarray) -> np.ndarray:
        parts = np.split(values, np.cumsum([value.size for value in found.mean.values()])[:-1])
        shapes = {name: value.shape for name, value in found.mean.items()}
        return slope(point | {name: part.reshape(shapes[name]) for name, part in zip(shapes, parts, strict=True)})

    along = [(slope_at(mode - 1e-5 * column) - slope_at(mode + 1e-5 * column)) / 2e-5 for column in factor.T]
    np.testing.assert_allclose(factor.T @ np.array(along).T, np.eye(len(factor)), atol=1e-5)
    np.testing.assert_array_equal(factor, np.tril(factor))
    others = [v for v in model.free_RVs if v.name not in found.mean]
    at_mode = float(model.compile_logp(mode=PYTHON_MODE)(point))
    at_mode -= float(model.compile_logp(vars=others, mode=PYTHON_MODE)(point)) if others else 0.0
    evidence = at_mode + np.log(np.diag(factor)).sum() + 0.5 * len(factor) * np.log(2.0 * np.pi)
    assert found.log_evidence == pytest.approx(evidence, abs=1e-6)
    assert found.sites is None
    assert set(found.given) == {str(v.name) for v in others}


def test_predictors_have_their_own_variances():
    """Those of contrasts of classes, of which draws of the latent values have the same."""
    found = laplace(three_classes())
    draws = found.sample(4000, random_seed=2).posterior
    logits = np.stack([draws[f"f{k}"].values[0] for k in range(3)], axis=-1)
    assert found.eta_variance.shape == found.eta_mean.shape == (24,)
    total = (logits - logits.mean(axis=-1, keepdims=True)).var(axis=0).sum()
    assert found.eta_variance.sum() == pytest.approx(total, rel=0.05)


def test_ep_names_laplace_where_an_observation_has_several_predictors():
    with pytest.raises(UnsupportedLikelihoodError, match=r"laplace\(model\) approximates its latent values"):
        ep(three_classes())


def test_more_predictors_than_matrices_take_are_named(monkeypatch):
    monkeypatch.setattr(approximations, "MOST_COUPLED", 50)
    with pytest.raises(UnsupportedModelError, match=r"matrices of 60 rows here, and takes up to 50. Sample with RMHMC"):
        laplace(three_classes())


def test_a_covariance_without_a_factor_is_named_where_there_are_several_predictors():
    with pytest.raises(CovarianceError, match="not positive definite where"):
        laplace(mean_and_two_points_that_are_one())


def mean_and_two_points_that_are_one() -> pm.Model:
    at = np.repeat(np.linspace(0.0, 1.0, 6), 2)[:, None]
    with pm.Model() as model:
        ls = pm.HalfNormal("ls", 1.0)
        f, g = (
            pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=ls)).prior(name, at, reparameterize=False, jitter=0.0)
            for name in "fg"
        )
        pm.Normal("y", f, pt.exp(g), observed=np.zeros(12))
    return model
