"""Models that look like a form that is read, and are another: their density is PyMC's, or an error says why not."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_rmhmc.approximation.joint_mode import _predictors, laplace_sites_at
from pymc_rmhmc.errors import UnsupportedLikelihoodError, UnsupportedModelError
from pymc_rmhmc.model import read_structure
from pymc_rmhmc.model.compile import compile_model
from pymc_rmhmc.model.likelihoods import read_likelihood
from tests.model.conftest import COUNTS, INDEX, INDEX_COUNTS, N, X, covariance, exact_log_density, gp_prior
from tests.model.joint_checks import assert_is_the_model, joint_of, random_point
from tests.model.joint_forms import DESIGN, GROUP, poisson

pytestmark = pytest.mark.usefixtures("without_a_compiler")


def moving_covariance() -> pt.TensorVariable:
    return pm.gp.cov.Matern52(1, ls=pm.LogNormal("ls", -1.0, 0.3))(X) + 0.1 * pt.eye(N)


def rotated_with_a_scale_of_its_own() -> None:
    """In place of an amplitude of the kernel."""
    z = pm.Normal("z", 0.0, pm.HalfNormal("scale"), shape=N)
    poisson(pm.Deterministic("f", pt.linalg.cholesky(moving_covariance()) @ z))


def rotated_with_a_mean() -> None:
    z = pm.Normal("f_rotated_", 0.7, 1.0, shape=N)
    poisson(pt.linalg.cholesky(moving_covariance()) @ z)


def rotated_with_numbers_of_its_own() -> None:
    z = pm.Normal("f_rotated_", 0.0, np.linspace(0.5, 2.0, N), shape=N)
    poisson(pt.linalg.cholesky(moving_covariance()) @ z)


def columns_that_are_rotated() -> None:
    """As many as rows, so that no shape gives it away."""
    z = pm.Normal("z", shape=(N, N))
    f = pt.linalg.cholesky(moving_covariance()) @ z
    pm.Poisson("y", mu=pm.math.exp(f), observed=np.arange(N * N).reshape(N, N) % 5)


def fewer_columns_that_are_rotated() -> None:
    z = pm.Normal("z", shape=(N, 2))
    f = pt.linalg.cholesky(moving_covariance()) @ z
    pm.Poisson("y", mu=pm.math.exp(f), observed=np.column_stack([COUNTS, COUNTS[::-1]]))


def covariances_stacked_at_the_end() -> None:
    one, other, ls = covariance(), covariance() + np.eye(N), pm.LogNormal("ls", 0.0, 0.3)
    stacked = pt.stack([ls * one[:2, :2], other[:2, :2]], axis=-1)
    f = pm.MvNormal("f", np.zeros((2, 2)), cov=pt.moveaxis(stacked, -1, 0))
    pm.Poisson("y", mu=pm.math.exp(f), observed=np.array([[1, 0], [3, 2]]))


def odds_of_something_else_than_the_shape() -> None:
    f = gp_prior("f", ls=pm.HalfNormal("ls"))
    pm.NegativeBinomial("y", n=pm.Exponential("n", 0.2), p=pm.math.sigmoid(1.5 - f), observed=COUNTS)


def share_of_something_else_than_the_shape() -> None:
    f = gp_prior("f", ls=pm.HalfNormal("ls"))
    pm.NegativeBinomial("y", n=5, p=1.0 / (1.0 + pm.math.exp(f)), observed=COUNTS)


def inflated_at_one() -> None:
    f = gp_prior("f", ls=pm.HalfNormal("ls"))
    parts = [pm.DiracDelta.dist(1), pm.Poisson.dist(pm.math.exp(f))]
    pm.Mixture("y", w=[0.3, 0.7], comp_dists=parts, observed=COUNTS)


def volatility() -> None:
    vol = pm.GaussianRandomWalk("vol", sigma=pm.HalfNormal("step"), init_dist=pm.Normal.dist(), shape=N)
    pm.StudentT("y", nu=pm.Gamma("nu", 2.0, 0.1), mu=0.2, sigma=pm.math.exp(vol), observed=COUNTS - 1.5)


def another_link_beside_an_exponential() -> None:
    vol = gp_prior("vol", ls=pm.HalfNormal("ls"))
    pm.Poisson("y", mu=pm.math.exp(pm.Normal("level")) * pt.softplus(vol), observed=COUNTS)


def location_and_scale_of_one_process() -> None:
    f = gp_prior("f", ls=pm.HalfNormal("ls"), reparameterize=False)
    pm.Normal("y", f, pm.math.exp(0.3 * f), observed=COUNTS / 3.0)


def gamma_by_its_deviation() -> None:
    slopes = pm.Normal("slopes", 0.0, pm.HalfNormal("spread"), shape=4)
    pm.Gamma("y", mu=pm.math.exp(DESIGN @ slopes), sigma=pm.HalfNormal("deviation"), observed=COUNTS + 0.5)


def coefficients_of_a_scale() -> None:
    slopes = pm.Normal("slopes", 0.0, pm.HalfNormal("spread"), shape=4)
    pm.Normal("y", pm.Normal("level"), pm.math.exp(0.1 + DESIGN @ slopes), observed=COUNTS / 3.0)


def rotated_in_the_shape_of_data() -> None:
    """No value of the data matters to what is rotated."""
    data = pm.Data("data", X)
    z = pm.Normal("f_rotated_", mu=pt.zeros(data.shape[0]), sigma=1.0, shape=N)
    poisson(pt.linalg.cholesky(moving_covariance()) @ z)


def odds_of_the_shapes_logarithm() -> None:
    log_shape, f = pm.Normal("log_shape"), gp_prior("f", ls=pm.HalfNormal("ls"))
    pm.NegativeBinomial("y", n=pm.math.exp(log_shape), p=pm.math.sigmoid(log_shape - f), observed=COUNTS)
    pm.NegativeBinomial("z", n=5, p=pm.math.sigmoid(np.log(5.0) - f), observed=COUNTS)


def volatility_beside_a_few_slopes() -> None:
    vol = pm.GaussianRandomWalk("vol", sigma=pm.HalfNormal("step"), init_dist=pm.Normal.dist(), shape=N)
    pm.Normal("y", DESIGN @ pm.Normal("slopes", shape=4), pm.math.exp(vol), observed=COUNTS - 1.5)


FORMS = [
    rotated_with_a_scale_of_its_own, rotated_with_a_mean, rotated_with_numbers_of_its_own, columns_that_are_rotated,
    fewer_columns_that_are_rotated, covariances_stacked_at_the_end, odds_of_something_else_than_the_shape,
    share_of_something_else_than_the_shape, inflated_at_one, volatility, another_link_beside_an_exponential,
    location_and_scale_of_one_process, rotated_in_the_shape_of_data, odds_of_the_shapes_logarithm,
    volatility_beside_a_few_slopes,
    gamma_by_its_deviation, coefficients_of_a_scale,
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_what_looks_like_a_form_is_read_as_what_it_is(form):
    with pm.Model() as model:
        form()
    assert_is_the_model(joint_of(model), model)


def test_a_standard_deviation_below_zero_is_none():
    with pm.Model() as model:
        tau = pm.Normal("tau", 1.0, 1.0)
        poisson(pm.Normal("level") + pm.Normal("u", 0.0, tau, shape=5)[GROUP])
    joint, point = joint_of(model), random_point(model, 3)
    assert "tau" in joint.theta.names
    for tau in (0.7, -0.7):
        point["tau"] = np.array(tau)
        joint.bind(point)
        spread = joint.blocks[0].prior(joint.theta.pack(point)).vectors[0].spread
        possible = np.isfinite(float(exact_log_density(model)(point)))
        assert possible == np.isfinite(spread).all() == (tau > 0.0)


@pytest.mark.parametrize(
    ("odds", "closed"), [("log", True), ("exp", True), ("numbers", True), ("others", False)]
)
def test_odds_are_those_of_the_shape_however_it_is_written(odds, closed):
    with pm.Model():
        log_shape, f = pm.Normal("log_shape"), gp_prior("f")
        n, p = {
            "log": (log_shape**2, pm.math.sigmoid(pt.log(log_shape**2) - f)),
            "exp": (pt.exp(log_shape), pm.math.sigmoid(log_shape - f)),
            "numbers": (5, pm.math.sigmoid(np.log(5.0) - f)),
            "others": (5, pm.math.sigmoid(np.log(4.0) - f)),
        }[odds]
        y = pm.NegativeBinomial("y", n=n, p=p, observed=COUNTS)
    found = read_likelihood(y)
    assert (found is not None and found[0].name == "negativebinomial_log") == closed


def mean_and_noise() -> str:
    f, g = gp_prior("f", reparameterize=False), gp_prior("g", reparameterize=False)
    pm.Normal("y", f, pm.math.exp(g), observed=COUNTS)
    return "f"


def mean_and_dispersion() -> str:
    f, g = gp_prior("f"), gp_prior("g")
    pm.NegativeBinomial("y", mu=pm.math.exp(f), alpha=pm.math.exp(g), observed=COUNTS)
    return "f_rotated_"


def sum_of_which_one_is_in_the_noise() -> str:
    f, g = gp_prior("f", reparameterize=False), gp_prior("g", reparameterize=False)
    pm.Normal("y", f + g, pm.math.exp(0.3 * f), observed=COUNTS)
    return "g"


@pytest.mark.parametrize("form", [mean_and_noise, mean_and_dispersion, sum_of_which_one_is_in_the_noise])
def test_of_processes_in_several_parameters_those_of_the_predictor_are_sampled(form):
    with pm.Model() as model:
        name = form()
    structure = read_structure(model)
    assert [v.name for v in structure.variables] == [name]
    (reason,) = (r for v, r in structure.reasons.items() if v != name)
    assert "enters y by another parameter than other latent values" in reason


def masked() -> np.ma.MaskedArray:
    return np.ma.masked_array(COUNTS.astype(float), mask=[0, 1, 0, 0, 1, 0, 0])


def zero_inflated_counts(f: pt.TensorVariable) -> None:
    pm.ZeroInflatedPoisson("y", psi=0.5, mu=pm.math.exp(f), observed=masked().astype(int))


def durations(f: pt.TensorVariable) -> None:
    pm.Exponential("y", scale=pm.math.exp(f), observed=masked() + 0.5)


@pytest.mark.parametrize(
    ("likelihood", "says"),
    [(zero_inflated_counts, "of one distribution with missing values: leave them out"),
     (durations, "y_unobserved stands for missing values of a bounded distribution, .*: leave them out")],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*missing values")
def test_missing_values_that_cannot_be_imputed_are_to_be_left_out(likelihood, says):
    with pm.Model() as model:
        likelihood(gp_prior("f"))
    with pytest.raises(UnsupportedLikelihoodError, match=says):
        read_structure(model, ["f"])


@pytest.mark.filterwarnings("ignore:.*missing values")
@pytest.mark.parametrize("likelihood", [zero_inflated_counts, durations])
def test_so_it_is_said_of_a_regression_that_nobody_named(likelihood):
    with pm.Model() as model:
        likelihood(DESIGN @ pm.Normal("slopes", shape=4))
    with pytest.raises(UnsupportedModelError, match="slopes: .*leave them out of the data"):
        read_structure(model)


@pytest.mark.filterwarnings("ignore:.*missing values")
def test_missing_covariates_are_latent():
    """They are read, and may be more than the coefficients that they are multiplied by."""
    with pm.Model() as model:
        given = np.ma.masked_array(np.linspace(-1.0, 1.0, N), masked().mask)
        x = pm.Normal("x", pm.Normal("level"), 1.3, observed=given)
        pm.Normal("y", pm.Normal("a") + pm.Normal("b") * x, pm.HalfNormal("noise"), observed=COUNTS / 3.0)
    assert "x_unobserved" in [v.name for v in read_structure(model).variables]
    assert_is_the_model(joint_of(model), model)


@pytest.mark.filterwarnings("ignore:.*missing values")
def test_missing_values_of_something_else_do_no_harm():
    with pm.Model() as model:
        zero_inflated_counts(pm.Normal("apart", shape=N))
        pm.Poisson("z", mu=pm.math.exp(gp_prior("f")), observed=COUNTS)
    assert [v.name for v in read_structure(model).variables] == ["f_rotated_"]


@pytest.mark.filterwarnings("ignore:.*missing values")
def test_a_regression_has_missing_responses_imputed():
    with pm.Model() as model:
        slopes = pm.Normal("slopes", 0.0, pm.HalfNormal("spread"), shape=4)
        pm.Normal("y", DESIGN @ slopes, pm.HalfNormal("noise"), observed=masked())
    joint = joint_of(model)
    assert set(joint.theta.names) == {"spread_log__", "noise_log__"}
    assert "y_unobserved" in joint.inputs
    assert_is_the_model(joint, model)


@pytest.mark.filterwarnings("ignore:.*missing values")
@pytest.mark.parametrize("shape", [(), N])
def test_a_negative_binomial_with_missing_counts_is_the_registered_one(shape):
    with pm.Model() as model:
        alpha = pm.HalfNormal("alpha", shape=shape)
        pm.NegativeBinomial("y", mu=pm.math.exp(gp_prior("f")), alpha=alpha, observed=masked().astype(int))
    (block,) = read_structure(model).blocks
    assert {o.likelihood.name for o in block.observations} == {"negativebinomial_log"}


def looked_up(f: pt.TensorVariable) -> None:
    pm.Poisson("y", mu=pm.math.exp(0.2 + f[INDEX]), observed=INDEX_COUNTS)


def read_twice(f: pt.TensorVariable) -> None:
    poisson(f)
    pm.Normal("z", f - 0.3, 0.5, observed=COUNTS / 3.0)


def a_part(f: pt.TensorVariable) -> None:
    pm.Poisson("y", mu=pm.math.exp(f[:4]), observed=COUNTS[:4])


@pytest.mark.parametrize("likelihood", [looked_up, read_twice, a_part, poisson])
def test_a_scaled_process_has_the_same_sites_when_a_chain_starts(likelihood):
    """Hyperparameters held, what the predictor reads of it is no single value; with them a scaled one."""
    with pm.Model() as model:
        f = pm.HalfNormal("eta") * gp_prior("f", ls=pm.HalfNormal("ls"))
        likelihood(f)
    structure, joint, point = read_structure(model), joint_of(model), random_point(model, 5)
    (compiled,), (block,) = compile_model(structure, point, with_rest=False).blocks, joint.blocks
    held = compiled.likelihood(point, block.plain)
    assert held.n_sites == block.n_sites
    joint.bind(point)
    theta, eta = joint.theta.pack(point), np.random.default_rng(0).standard_normal(block.n_sites)
    # One is of the sites without the part that all observations of a site have.
    (_, shift) = _predictors(block, theta)
    assert held.log_density(eta) == pytest.approx(float(block.likelihood(theta, eta + shift)[0]))
    (sites,) = laplace_sites_at(joint, lambda theta: [[held]], theta)
    assert np.isfinite(sites.linear).all()


def test_a_vector_without_values_is_no_latent():
    """A regression whose covariates have all been left out."""
    with pm.Model() as model:
        slopes, u = pm.Normal("slopes", shape=0), pm.Normal("u", 0.0, pm.HalfNormal("spread"), shape=5)
        poisson(np.zeros((N, 0)) @ slopes + u[GROUP])
    joint = joint_of(model)
    assert [v.name for v in read_structure(model).variables] == ["u"]
    assert_is_the_model(joint, model)
    with pytest.raises(UnsupportedModelError, match="slopes: it has no latent values"):
        read_structure(model, ["slopes"])
