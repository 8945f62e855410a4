"""The Fisher information that is read from a model's graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from scipy.special import expit

from pymc_rmhmc.errors import ConfigurationError
from pymc_rmhmc.model.general.information import SOFTABS_ALPHA, fisher_information
from pymc_rmhmc.model.general.information_families import INFORMATION
from pymc_rmhmc.model.graph.graphs import PYTHON_MODE
from pymc_rmhmc.model.hyperparameters import Hyperparameters
from tests.model.conftest import exact_log_density
from tests.model.information_models import EACH, MODELS, information_function, information_of
from tests.thinned import thinned

pytestmark = [
    pytest.mark.usefixtures("pymc_by_python", "without_a_compiler"),
    # PyMC's start of an LKJCholeskyCov is compiled all the same.
    pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS"),
]

N_DRAWS = 20_000
# Standard errors of a mean of that many products of scores.
MOST_ERRORS = 5.0


@dataclass(frozen=True)
class Row:
    """One family and link.

    Attributes
    ----------
    distribution : PyMC distribution
        The family.
    parameters : callable
        From coordinates φ, which are free, to the distribution's arguments.
    at : tuple of float
        φ.
    options : dict
        Of a free variable.
    """

    distribution: type
    parameters: Callable
    at: tuple[float, ...]
    options: dict | None = None


def of_two(distribution, first="mu", second="sigma", at=(0.3, -0.4), **options):
    return Row(distribution, lambda p: {first: p[0], second: pt.exp(p[1])}, at, options)


def shapes(distribution, *names, at):
    return Row(distribution, lambda p: {name: pt.exp(p[i]) for i, name in enumerate(names)}, at)


CONTINUOUS = {
    "Normal": of_two(pm.Normal),
    "StudentT": Row(pm.StudentT, lambda p: {"mu": p[0], "sigma": pt.exp(p[1]), "nu": pt.exp(p[2])}, (0.3, -0.4, 1.2)),
    "Laplace": of_two(pm.Laplace, second="b"),
    "Cauchy": of_two(pm.Cauchy, "alpha", "beta"),
    "Logistic": of_two(pm.Logistic, second="s"),
    "Gumbel": of_two(pm.Gumbel, second="beta"),
    "LogNormal": of_two(pm.LogNormal),
    "LogitNormal": of_two(pm.LogitNormal, default_transform=pm.distributions.transforms.logodds),
    "HalfNormal": shapes(pm.HalfNormal, "sigma", at=(0.4,)),
    "HalfCauchy": shapes(pm.HalfCauchy, "beta", at=(0.4,)),
    "HalfStudentT": shapes(pm.HalfStudentT, "sigma", "nu", at=(0.4, 1.1)),
    "Exponential": shapes(pm.Exponential, "lam", at=(0.4,)),
    "Gamma": shapes(pm.Gamma, "alpha", "beta", at=(0.7, -0.3)),
    "InverseGamma": shapes(pm.InverseGamma, "alpha", "beta", at=(0.7, -0.3)),
    "Weibull": shapes(pm.Weibull, "alpha", "beta", at=(0.5, -0.3)),
    "Beta": shapes(pm.Beta, "alpha", "beta", at=(0.7, 0.2)),
    "Uniform": Row(pm.Uniform, lambda p: {"lower": -1.0 + 0.0 * p[0], "upper": 2.0}, (0.0,)),
}
DISCRETE = {
    "Bernoulli, logit": Row(pm.Bernoulli, lambda p: {"logit_p": p[0]}, (0.8,)),
    "Bernoulli, probit": Row(pm.Bernoulli, lambda p: {"p": pm.math.invprobit(p[0])}, (0.8,)),
    "Bernoulli, cloglog": Row(pm.Bernoulli, lambda p: {"p": 1.0 - pt.exp(-pt.exp(p[0]))}, (-0.8,)),
    "Bernoulli, identity": Row(pm.Bernoulli, lambda p: {"p": p[0]}, (0.3,)),
    "Binomial, logit": Row(pm.Binomial, lambda p: {"logit_p": p[0], "n": 5}, (0.8,)),
    "Binomial, probit": Row(pm.Binomial, lambda p: {"p": pm.math.invprobit(p[0]), "n": 5}, (0.8,)),
    "Poisson, log": Row(pm.Poisson, lambda p: {"mu": 2.0 * pt.exp(p[0])}, (0.3,)),
    "Poisson, identity": Row(pm.Poisson, lambda p: {"mu": p[0] ** 2 + p[1]}, (1.3, 0.5)),
    "NegativeBinomial, log": Row(pm.NegativeBinomial, lambda p: {"mu": pt.exp(p[0]), "alpha": 1.5}, (0.9,)),
    "NegativeBinomial, identity": Row(pm.NegativeBinomial, lambda p: {"mu": p[0], "alpha": 1.5}, (0.9,)),
    "NegativeBinomial, p": Row(pm.NegativeBinomial, lambda p: {"p": pt.sigmoid(p[0]), "n": 1.5}, (0.9,)),
    "Geometric, logit": Row(pm.Geometric, lambda p: {"p": pt.sigmoid(p[0])}, (-0.4,)),
    "Geometric, identity": Row(pm.Geometric, lambda p: {"p": p[0]}, (0.4,)),
}
ZEROS = {
    "ZeroInflatedPoisson": Row(
        pm.ZeroInflatedPoisson, lambda p: {"psi": pt.sigmoid(p[0]), "mu": pt.exp(p[1])}, (0.7, 0.4)
    ),
    "ZeroInflatedPoisson, identity": Row(pm.ZeroInflatedPoisson, lambda p: {"psi": p[0], "mu": p[1]}, (0.7, 0.9)),
    "ZeroInflatedBinomial": Row(
        pm.ZeroInflatedBinomial, lambda p: {"psi": pt.sigmoid(p[0]), "n": 4, "p": pt.sigmoid(p[1])}, (0.7, -0.9)
    ),
    "ZeroInflatedBinomial, identity": Row(
        pm.ZeroInflatedBinomial, lambda p: {"psi": p[0], "n": 4, "p": p[1]}, (0.7, 0.3)
    ),
    "ZeroInflatedNegativeBinomial": Row(
        pm.ZeroInflatedNegativeBinomial,
        lambda p: {"psi": pt.sigmoid(p[0]), "mu": pt.exp(p[1]), "alpha": 1.5}, (0.7, 0.9),
    ),
    "HurdlePoisson": Row(pm.HurdlePoisson, lambda p: {"psi": pt.sigmoid(p[0]), "mu": pt.exp(p[1])}, (0.7, 0.4)),
    "HurdleNegativeBinomial": Row(
        pm.HurdleNegativeBinomial,
        lambda p: {"psi": pt.sigmoid(p[0]), "mu": pt.exp(p[1]), "alpha": 1.5}, (0.7, 0.9),
    ),
    "HurdleGamma": Row(
        pm.HurdleGamma, lambda p: {"psi": pt.sigmoid(p[0]), "alpha": pt.exp(p[1]), "beta": pt.exp(p[2])},
        (0.7, 0.7, -0.3),
    ),
    "HurdleLogNormal": Row(
        pm.HurdleLogNormal, lambda p: {"psi": pt.sigmoid(p[0]), "mu": p[1], "sigma": pt.exp(p[2])}, (0.7, 0.3, -0.4)
    ),
}  # fmt: skip


def test_every_registered_family_has_a_row():
    tested = {*CONTINUOUS, *(name.split(",")[0] for name in DISCRETE), "Multinomial", "Categorical"}
    assert set(INFORMATION) == tested


def drawn(row: Row, n: int = N_DRAWS):
    numbers = {name: pt.as_tensor(value).eval() for name, value in row.parameters(pt.constant(row.at)).items()}
    return pm.draw(row.distribution.dist(**numbers, shape=n), random_seed=1)


def is_mean_product(scores, information):
    """Whether a matrix is the mean of ``s sᵀ`` over scores (k, n), by the standard error of this mean."""
    products = scores[:, None, :] * scores[None, :, :]
    error = products.std(axis=-1) / np.sqrt(scores.shape[1])
    np.testing.assert_array_less(np.abs(information - products.mean(axis=-1)), MOST_ERRORS * error + 1e-8)


@pytest.mark.parametrize("name", [name for name in (*CONTINUOUS, *DISCRETE, *ZEROS) if name != "Uniform"])
@pytest.mark.filterwarnings("ignore:No safe default transform")
def test_of_an_observation_it_is_the_covariance_of_the_score(name):
    row = (CONTINUOUS | DISCRETE | ZEROS)[name]
    y, k = drawn(row), len(row.at)
    with pm.Model() as one:
        phi = pm.Normal("phi", 0.0, 1.0, shape=k)
        row.distribution("y", **row.parameters(phi), observed=y)
    with pm.Model() as each:
        phis = pm.Normal("phi", 0.0, 1.0, shape=(k, y.size))
        observed = row.distribution("y", **row.parameters(phis), observed=y)
    value = each.rvs_to_values[phis]
    score = pytensor.function([value], pt.grad(each.logp(vars=[observed]), value), mode="FAST_COMPILE")
    information = (information_of(one, np.array(row.at)) - np.eye(k)) / y.size
    is_mean_product(score(np.repeat(np.array(row.at)[:, None], y.size, axis=1)), information)


@pytest.mark.parametrize("name", CONTINUOUS)
def test_a_free_variable_counts_as_a_parameter_by_its_location(name):
    row, k = CONTINUOUS[name], len(CONTINUOUS[name].at)
    options = row.options or {}

    def model(shape):
        with pm.Model() as made:
            phi = pm.Normal("phi", 0.0, 1.0, shape=(k, *shape))
            row.distribution("x", **row.parameters(phi), shape=shape, **options)
        return made

    each, one = model((N_DRAWS,)), model(())
    x, values = each["x"], [each.rvs_to_values[v] for v in (each["x"], each["phi"])]
    transform = each.rvs_to_transforms[x]
    draws, phis = drawn(row), np.repeat(np.array(row.at)[:, None], N_DRAWS, axis=1)
    if transform is not None:
        given = each.replace_rvs_by_values([transform.forward(pt.constant(draws), *x.owner.inputs)])
        draws = pytensor.function([values[1]], given, mode="FAST_COMPILE", on_unused_input="ignore")(phis)[0]
    gradient = pt.grad(each.logp(vars=[x]), values, disconnected_inputs="ignore")
    own, others = pytensor.function(values, gradient, mode="FAST_COMPILE", on_unused_input="ignore")(draws, phis)
    # Of φ first, as the model has it.
    found = information_of(one, np.array([*row.at, draws[0]])) - np.diag([*np.ones(k), 0.0])
    is_mean_product(np.vstack([others, own]), found)


@pytest.mark.parametrize("distribution", [pm.Multinomial, pm.Categorical])
@pytest.mark.parametrize("link", ["softmax", "identity"])
def test_of_categories_it_is_that_of_their_probabilities(distribution, link):
    at, n = np.array([0.4, -0.3, 0.1]), 6
    p = np.exp(at) / np.exp(at).sum()
    counts = np.array([[2, 3, 1], [1, 5, 0], [6, 0, 0]])
    kwargs = {"n": n, "observed": counts} if distribution is pm.Multinomial else {"observed": np.array([0, 2])}
    n_trials = 18 if distribution is pm.Multinomial else 2
    with pm.Model() as model:
        phi = pm.Normal("phi", 0.0, 1.0, shape=3)
        softmax = pm.math.softmax(phi) if link == "softmax" else pt.exp(phi) / pt.exp(phi).sum()
        distribution("y", p=softmax, **kwargs)
    expected = np.eye(3) + n_trials * (np.diag(p) - np.outer(p, p))
    np.testing.assert_allclose(information_of(model, at), expected, atol=1e-10)


@pytest.mark.parametrize("alpha", [0.5, 2.0, 20.0])
def test_of_the_negative_binomials_shape_it_is_about_that(alpha):
    y = pm.draw(pm.NegativeBinomial.dist(mu=4.0, alpha=alpha, shape=N_DRAWS), random_seed=2)
    with pm.Model() as one:
        phi = pm.Normal("phi", 0.0, 1.0, shape=2)
        pm.NegativeBinomial("y", mu=pt.exp(phi[0]), alpha=pt.exp(phi[1]), observed=y[:1])
    with pm.Model() as each:
        phis = pm.Normal("phi", 0.0, 1.0, shape=(2, y.size))
        observed = pm.NegativeBinomial("y", mu=pt.exp(phis[0]), alpha=pt.exp(phis[1]), observed=y)
    value, at = each.rvs_to_values[phis], np.log([4.0, alpha])
    score = pytensor.function([value], pt.grad(each.logp(vars=[observed]), value), mode="FAST_COMPILE")
    exact = np.mean(score(np.repeat(at[:, None], y.size, axis=1))[1] ** 2)
    found = information_of(one, at) - np.eye(2)
    assert found[0, 1] == 0.0
    assert 0.6 * exact < found[1, 1] < 1.15 * exact


@pytest.mark.parametrize("alpha", [0.3, 2.0, 20.0])
@pytest.mark.parametrize("log_mean", [-3.0, 1.0, 5.0])
@pytest.mark.parametrize("distribution", [pm.ZeroInflatedNegativeBinomial, pm.HurdleNegativeBinomial])
def test_of_extra_zeros_it_is_positive_definite(distribution, alpha, log_mean):
    """About a shape it has no closed form."""
    with pm.Model() as model:
        phi = pm.Normal("phi", 0.0, 1.0, shape=3)
        distribution("y", pt.sigmoid(phi[0]), mu=pt.exp(phi[1]), alpha=pt.exp(phi[2]), observed=[0, 1, 3])
    for logit in (-6.0, 0.0, 6.0):
        found = information_of(model, np.array([logit, log_mean, np.log(alpha)]))
        assert np.isfinite(found).all()
        assert np.linalg.eigvalsh(found - (1.0 - 1e-9) * np.eye(3)).min() > 0.0


@pytest.mark.parametrize("log_nu", [-2.0, 1.0, 4.5, 4.7, 8.0, 20.0])
def test_of_degrees_of_freedom_it_has_its_digits_everywhere(log_nu):
    import mpmath

    nu = mpmath.exp(log_nu)
    with mpmath.workdps(60):
        tri = [mpmath.psi(1, nu / 2), mpmath.psi(1, (nu + 1) / 2)]
        exact = nu**2 * ((tri[0] - tri[1]) / 4 - (nu + 5) / (2 * nu * (nu + 1) * (nu + 3)))
    row = INFORMATION["StudentT"].at(*(pt.constant(v) for v in (float(nu), 0.0, 1.0)))
    np.testing.assert_allclose(row.matrix[2][2].eval(), float(exact), rtol=1e-6)
    assert np.linalg.eigvalsh([[float(pt.as_tensor(v).eval()) for v in r[1:]] for r in row.matrix[1:]]).min() > 0.0


# --------------------------------------------------------------------------------------- whole models


def test_of_a_logistic_regression_it_is_the_weighted_gram_matrix_and_the_prior():
    rng = np.random.default_rng(0)
    x, beta = rng.standard_normal((40, 3)), np.array([0.4, -1.0, 2.0])
    with pm.Model() as model:
        b = pm.Normal("b", 0.0, 2.0, shape=3)
        pm.Bernoulli("y", logit_p=x @ b, observed=rng.integers(0, 2, 40))
    weight = expit(x @ beta) * expit(-x @ beta)
    np.testing.assert_allclose(information_of(model, beta), x.T @ (weight[:, None] * x) + 0.25 * np.eye(3), rtol=1e-12)


def test_of_a_funnel_it_is_diagonal():
    with pm.Model() as model:
        v = pm.Normal("v", 0.0, 3.0)
        pm.Normal("x", 0.0, pt.exp(-v / 2.0), shape=9)
    found = information_of(model, np.array([1.3, *np.linspace(-1.0, 2.0, 9)]))
    np.testing.assert_allclose(found, np.diag([1.0 / 9.0 + 4.5, *np.full(9, np.exp(1.3))]), rtol=1e-12)


def test_of_a_hierarchy_it_has_the_cross_block_of_effects_and_mean():
    tau, mu, y_sd = 0.7, 0.2, np.array([10.0, 12.0, 9.0])
    with pm.Model() as model:
        m, t = pm.Normal("mu", 0.0, 5.0), pm.HalfCauchy("tau", 5.0)
        effect = pm.Normal("effect", m, t, shape=3)
        pm.Normal("y", effect, y_sd, observed=np.array([28.0, 8.0, -3.0]))
    expected = np.zeros((5, 5))
    expected[0, 0], expected[1, 1] = 1.0 / 25.0 + 3.0 / tau**2, 0.5 + 2.0 * 3.0
    expected[0, 2:] = expected[2:, 0] = -1.0 / tau**2
    expected[2:, 2:] = np.diag(1.0 / tau**2 + 1.0 / y_sd**2)
    found = information_of(model, np.array([mu, np.log(tau), 1.0, 2.0, -1.0]))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


def gaussian_process_information(t, log_length, log_scale, log_noise, slope):
    """Of ``½ tr(C⁻¹∂C C⁻¹∂C) + ∂μᵀC⁻¹∂μ``, written out."""
    length, scale, noise = np.exp([log_length, log_scale, log_noise])
    squares = (t[:, None] - t[None, :]) ** 2
    k = scale**2 * np.exp(-0.5 * squares / length**2)
    c = k + noise**2 * np.eye(t.size)
    moved = [k * squares / length**2, 2.0 * k, 2.0 * noise**2 * np.eye(t.size)]
    scaled = [np.linalg.solve(c, m) for m in moved]
    found = np.zeros((4, 4))
    found[:3, :3] = [[0.5 * np.trace(a @ b) for b in scaled] for a in scaled]
    found[3, 3] = t @ np.linalg.solve(c, t)
    return found


def test_of_a_marginal_process_it_is_that_of_mean_and_covariance():
    t, rng = np.linspace(0.0, 3.0, 15), np.random.default_rng(3)
    with pm.Model() as model:
        length, scale, noise = (pm.LogNormal(name, 0.0, 1.0) for name in ("length", "scale", "noise"))
        slope = pm.Normal("slope", 0.0, 1.0)
        gp = pm.gp.Marginal(mean_func=pm.gp.mean.Linear(slope), cov_func=scale**2 * pm.gp.cov.ExpQuad(1, ls=length))
        gp.marginal_likelihood("y", t[:, None], rng.standard_normal(15), sigma=noise, jitter=0.0)
    at = np.array([-0.2, 0.4, -0.9, 0.3])
    expected = np.eye(4) + gaussian_process_information(t, *at)
    np.testing.assert_allclose(information_of(model, at), expected, rtol=1e-9, atol=1e-9)


def test_vectors_that_share_a_covariance_count_each():
    t, n = np.linspace(0.0, 3.0, 6), 4
    with pm.Model() as model:
        length, scale, noise = (pm.LogNormal(name, 0.0, 1.0) for name in ("length", "scale", "noise"))
        slope = pm.Normal("slope", 0.0, 1.0)
        c = scale**2 * pt.exp(-0.5 * (t[:, None] - t) ** 2 / length**2) + noise**2 * pt.eye(6)
        pm.MvNormal("y", slope * t, c, observed=np.zeros((n, 6)))
    at = np.array([-0.2, 0.4, -0.9, 0.3])
    expected = np.eye(4) + n * gaussian_process_information(t, *at)
    np.testing.assert_allclose(information_of(model, at), expected, rtol=1e-9, atol=1e-9)


def of_a_walk(phi):
    return pm.GaussianRandomWalk(
        "x", mu=phi[0], sigma=pt.exp(phi[1]), init_dist=pm.Normal.dist(phi[0], 2.0), steps=3, shape=(2, 4)
    )


def of_vectors(phi):
    c = pt.exp(phi[0]) * np.array([[1.0, 0.4], [0.4, 2.0]]) + pt.exp(phi[1]) * np.eye(2)
    return pm.MvNormal("x", phi[0] * np.array([1.0, -2.0]), c, shape=(2, 2))


VECTORS = {
    "GaussianRandomWalk": of_a_walk,
    "MvNormal": of_vectors,
    "ZeroSumNormal": lambda phi: pm.ZeroSumNormal("x", sigma=pt.exp(phi[0]), n_zerosum_axes=2, shape=(3, 4)),
    "Dirichlet": lambda phi: pm.Dirichlet("x", a=np.array([2.0, 1.0, 4.0])),
}


@pytest.mark.parametrize("name", thinned(VECTORS))
def test_of_a_vector_it_is_the_covariance_of_the_score(name):
    at = np.array([0.3, -0.4])
    with pm.Model() as model:
        phi = pm.Normal("phi", 0.0, 1.0, shape=2)
        x = VECTORS[name](phi)
    values = [model.rvs_to_values[v] for v in (phi, x)]
    term = model.logp(vars=[x])
    gradient = pt.concatenate([g.ravel() for g in pt.grad(term, values, disconnected_inputs="ignore")])
    score = pytensor.function(values, gradient, mode="FAST_COMPILE", on_unused_input="ignore")
    draws = pm.draw(pm.do(model, {phi: at})["x"], draws=4000, random_seed=4)
    transform = model.rvs_to_transforms[x]
    if transform is not None:
        draws = transform.forward(pt.constant(draws), *x.owner.inputs).eval()
    scores = np.stack([score(at, draw) for draw in draws], axis=1)
    found = information_of(model, np.array([*at, *draws[0].ravel()]))
    found[:2, :2] -= np.eye(2)
    is_mean_product(scores, found)


def test_of_an_autoregression_it_is_that_of_each_value_given_those_before():
    y, sigma = np.array([0.4, -0.2, 0.9, 1.4, 0.3]), np.exp(-0.4)
    with pm.Model() as model:
        phi = pm.Normal("phi", 0.0, 1.0, shape=3)
        pm.AR("y", phi[:2], pt.exp(phi[2]), constant=True, init_dist=pm.Normal.dist(phi[0], 2.0), observed=y)
    lags = np.stack([np.ones(4), y[:-1]])
    expected = np.eye(3)
    expected[:2, :2] += lags @ lags.T / sigma**2
    expected[0, 0] += 0.25
    expected[2, 2] += 2.0 * 4
    np.testing.assert_allclose(information_of(model, np.array([0.1, 0.6, -0.4])), expected, rtol=1e-12)


def test_a_likelihood_that_is_registered_adds_the_weight_of_its_predictor():
    at, psi, n = 0.4, 0.7, 3
    with pm.Model() as model:
        eta = pm.Normal("eta", 0.0, 1.0)
        pm.ZeroInflatedPoisson("y", psi, pt.exp(eta), observed=np.array([0, 2, 1]))
    rate = np.exp(at)
    spent = np.exp(-rate)
    q = psi * spent / (1.0 - psi + psi * spent)
    weight = psi * spent * rate**2 * q + psi * (rate - rate**2 * spent)
    np.testing.assert_allclose(information_of(model, np.array([at])), [[1.0 + n * weight]], rtol=1e-10)


def test_another_transform_than_the_locations_own_is_differentiated():
    cut = np.array([-0.4, 0.3, -0.2])
    with pm.Model() as model:
        pm.Normal("cut", 0.0, 2.0, shape=3, transform=pm.distributions.transforms.ordered)
    steps = np.exp(cut[1:])
    jacobian = np.array([[1.0, 0.0, 0.0], [1.0, steps[0], 0.0], [1.0, steps[0], steps[1]]])
    np.testing.assert_allclose(information_of(model, cut), 0.25 * jacobian.T @ jacobian, rtol=1e-12)


def softened(curvature):
    return curvature / np.tanh(SOFTABS_ALPHA * curvature)


def test_a_prior_that_is_not_registered_adds_the_softened_second_derivative():
    at = np.array([-2.0, 0.1, 1.4])
    with pm.Model() as model:
        pm.Moyal("x", 0.5, 2.0, shape=3)
    z = (at - 0.5) / 2.0
    np.testing.assert_allclose(information_of(model, at), np.diag(softened(0.5 * np.exp(-z) / 4.0)), rtol=1e-10)


def test_of_a_prior_of_a_vector_it_is_the_softened_diagonal_of_the_second_derivatives():
    with pm.Model() as model:
        pm.LKJCholeskyCov("c", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0, shape=2))
    log_density, at = exact_log_density(model), np.array([0.3, -0.5, 0.8])
    name, h = str(model.value_vars[0].name), 1e-3

    def second(i):
        moved = [log_density({name: at + step * np.eye(3)[i]}) for step in (-h, 0.0, h)]
        return (moved[0] - 2.0 * moved[1] + moved[2]) / h**2

    expected = [softened(-second(i)) for i in range(3)]
    np.testing.assert_allclose(information_of(model, at), np.diag(expected), rtol=1e-4, atol=1e-6)


def test_a_prior_without_curvature_is_left_with_the_least():
    with pm.Model() as model:
        pm.AsymmetricLaplace("x", kappa=1.3, mu=0.5, b=2.0)
    np.testing.assert_allclose(information_of(model, np.array([-0.8])), [[1.0 / SOFTABS_ALPHA]], rtol=1e-10)


def test_variables_of_another_step_count_as_known():
    with pm.Model() as model:
        v = pm.Normal("v", 0.0, 3.0)
        x = pm.Normal("x", 0.0, pt.exp(-v / 2.0), shape=4)
    np.testing.assert_allclose(information_of(model, np.array([0.3]), [v]), [[1.0 / 9.0 + 2.0]])
    point = model.initial_point() | {"v": np.array(0.6)}
    np.testing.assert_allclose(information_of(model, np.zeros(4), [x], point), np.exp(0.6) * np.eye(4))


def test_discrete_variables_of_another_step_count_as_observations():
    with pm.Model() as model:
        p = pm.Beta("p", 2.0, 3.0)
        z = pm.Bernoulli("z", p, shape=5)
        pm.Normal("y", z, 1.0, observed=np.zeros(5))
    w = expit(0.4) * expit(-0.4)
    np.testing.assert_allclose(information_of(model, np.array([0.4]), [p]), [[1.0 + 5.0 * w]])


def test_missing_observations_are_parameters():
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 2.0)
        pm.Normal("y", mu, 0.5, observed=np.array([0.3, np.nan, 1.0]))
    expected = [[0.25 + 12.0, -4.0], [-4.0, 4.0]]
    np.testing.assert_allclose(information_of(model, np.array([0.1, 0.7])), expected)


@pytest.mark.parametrize("name", EACH)
def test_it_is_symmetric_and_positive_definite_everywhere(name):
    model, rng = MODELS[name](), np.random.default_rng(5)
    information = information_function(model)
    size = sum(np.size(v) for v in model.initial_point().values())
    for _ in range(5):
        found = information(1.5 * rng.standard_normal(size))
        assert np.array_equal(found, found.T)
        np.linalg.cholesky(found)


# ---------------------------------------------------------------------------------------------- errors


def flat():
    pm.Normal("y", pm.Flat("x"), 1.0, observed=0.3)


def potential():
    x = pm.Normal("x")
    pm.Potential("bonus", -(x**4))


def custom():
    pm.CustomDist("y", pm.Normal("x"), logp=lambda value, mu: -((value - mu) ** 2), observed=np.zeros(2))


def truncated():
    pm.TruncatedNormal("y", mu=pm.Normal("x"), sigma=1.0, lower=0.0)


def censored():
    pm.Censored("y", pm.Normal.dist(pm.Normal("x"), 1.0), lower=0.0, upper=None, observed=np.ones(2))


def bounds():
    pm.Uniform("y", 0.0, pm.HalfNormal("x") + 3.0, observed=np.ones(2))


def ones():
    inflated = [pm.DiracDelta.dist(1), pm.Poisson.dist(pt.exp(pm.Normal("x")))]
    pm.Mixture("y", pt.stack([0.3, 0.7]), inflated, observed=np.array([1, 2]))


def concentration():
    pm.Dirichlet("y", pm.HalfNormal("x", shape=3))


def dims():
    import pymc.dims as pmd

    pmd.Normal("x", 0.0, 1.0, dims="place")


def mixture():
    pm.NormalMixture("y", w=[0.5, 0.5], mu=pm.Normal("x", shape=2), sigma=1.0, observed=np.zeros(2))


@pytest.mark.parametrize(
    "build, says",
    [
        (flat, r'x has a Flat prior, .*proper prior, such as pm\.Normal\(.x., 0, 10\)'),
        (potential, r'potential "bonus".*RMHMC\(metric="softabs"\)'),
        (custom, r'y: the expected information of CustomDist is not registered.*metric="softabs"'),
        (truncated, r"y: the expected information of TruncatedNormal is not registered"),
        (censored, r"y: the expected information of Censored is not registered"),
        (bounds, r"y: the expected information of Uniform is not registered"),
        (ones, r"y: the expected information of Mixture is not registered"),
        (dims, r"x is a variable of pymc\.dims"),
        (mixture, r"y: the expected information of Mixture is not registered, so"),
        (concentration, r"y: the expected information of Dirichlet is not registered when its concentration"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_what_has_no_information_names_itself(build, says):
    with pm.Model(coords={"place": range(2)}) as model:
        build()
    packed = Hyperparameters(model, model.free_RVs, model.initial_point())
    with pytest.raises(ConfigurationError, match=says):
        fisher_information(model, packed)


def test_a_parameter_that_a_likelihood_does_not_count_is_named(monkeypatch):
    """Of one that is registered with RMHMC alone."""
    monkeypatch.delitem(INFORMATION, "NegativeBinomial")
    with pm.Model() as model:
        x, alpha = pm.Normal("x"), pm.HalfNormal("alpha", 1.0)
        pm.NegativeBinomial("y", mu=pt.exp(x), alpha=alpha, observed=np.array([0, 2]))
    packed = Hyperparameters(model, model.free_RVs, model.initial_point())
    with pytest.raises(ConfigurationError, match="NegativeBinomial is not registered when alpha is sampled too"):
        fisher_information(model, packed)


@pytest.mark.parametrize("name", ["eight_schools", "process", "counts"])
def test_the_form_is_that_of_the_matrix(name):
    model = MODELS[name]()
    packed = Hyperparameters(model, model.free_RVs, model.initial_point())
    graph, u = fisher_information(model, packed), pt.dvector("u")
    function = pytensor.function([packed.symbol, u], [graph.form(u), u @ graph.matrix @ u], mode=PYTHON_MODE)
    rng = np.random.default_rng(4)
    found, expected = function(0.3 * rng.standard_normal(packed.size), rng.standard_normal(packed.size))
    assert found == pytest.approx(expected, rel=1e-9)


def test_a_potential_of_nothing_that_is_sampled_is_none_of_its_concern():
    with pm.Model() as model:
        x, z = pm.Normal("x"), pm.Normal("z", 0.0, 2.0)
        pm.Potential("bonus", -(x**4))
    np.testing.assert_allclose(information_of(model, np.zeros(1), [z]), [[0.25]])
