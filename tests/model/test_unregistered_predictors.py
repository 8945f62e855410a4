"""Linear predictors of likelihoods that nobody has registered: which are found, and what becomes of a model if not."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

from pymc_rmhmc import describe
from pymc_rmhmc.errors import DataError, UnsupportedModelError
from pymc_rmhmc.model import compile_model, read_structure, read_together
from pymc_rmhmc.model.forms.linear_normals import linear_normals
from pymc_rmhmc.model.graph.affine import predictor_node
from pymc_rmhmc.model.graph.graphs import Evaluator
from tests.model.conftest import COUNTS, INDEX, N, X, exact_log_density, gp_prior
from tests.model.joint_checks import assert_is_the_model, joint_of

pytestmark = pytest.mark.usefixtures("without_a_compiler")

DESIGN = np.random.default_rng(3).standard_normal((N, 4))
GROUP = np.arange(N) % 3
REAL = COUNTS / 2.0
WIDTHS = np.arange(1.0, 9.0)


PREDICTORS = {
    "as it is": lambda u: pm.Laplace("y", u, 1.0, observed=np.zeros(3)),
    "by two parameters": lambda u: pm.Laplace("y", u, pm.math.exp(u), observed=np.zeros(3)),
    "behind a link": lambda u: pm.Beta(
        "y", mu=pm.math.invlogit(u[[0, 1, 2, 2]] + 1.0), nu=9.0, observed=np.full(4, 0.5)
    ),
    "before cutpoints": lambda u: pm.OrderedLogistic(
        "y", eta=2.0 * u, cutpoints=[-1.0, 1.0], observed=[0, 1, 2], compute_p=False
    ),
    "in no way that is affine": lambda u: pm.Laplace("y", u[0] * u, 1.0, observed=np.zeros(3)),
}


@pytest.mark.parametrize("name", PREDICTORS)
def test_the_predictor_is_the_nearest_affine_expression_with_the_fewest_axes(name):
    with pm.Model() as model:
        u = pm.Normal("u", shape=3)
        variable = PREDICTORS[name](u)
    found = predictor_node(variable, [u])
    if name == "in no way that is affine":
        assert found is None
        assert linear_normals(model) == []
        return
    assert linear_normals(model) == [u]
    assert (found is u) == (name in ("as it is", "by two parameters"))
    (value,) = Evaluator(model, [found], {u: u.type()})({}, np.array([0.5, 1.0, 2.0]))
    expected = {"behind a link": [1.5, 2.0, 3.0, 3.0], "before cutpoints": [1.0, 2.0, 4.0]}
    np.testing.assert_allclose(value.ravel(), expected.get(name, [0.5, 1.0, 2.0]))


def intercept_and_slope() -> None:
    p = pm.math.invlogit(pm.Normal("a") + pm.Normal("b") * X[:, 0])
    pm.Beta("y", mu=p, nu=pm.Exponential("nu", 0.1), observed=np.linspace(0.1, 0.9, N))


def rows_and_columns() -> None:
    eta = pm.Normal("a", 0.0, pm.HalfNormal("s"), shape=3)[:, None] + pm.Normal("b", shape=4)[None, :]
    pm.Logistic("y", eta, 1.0, observed=np.linspace(-1.0, 1.0, 12).reshape(3, 4))


def one_in_a_scale() -> None:
    eta = DESIGN @ pm.Normal("a", 0.0, pm.HalfNormal("s"), shape=4)
    pm.Laplace("y", eta, pm.math.exp(pm.Normal("log_width")), observed=REAL)


def one_behind_an_observation() -> None:
    eta = DESIGN @ pm.Normal("a", 0.0, pm.HalfNormal("s"), shape=4)
    counts = pm.Poisson("counts", pm.math.exp(eta), observed=COUNTS)
    pm.Laplace("y", pm.Normal("b", shape=3)[GROUP] + pm.Normal("c", shape=1) * counts, 1.0, observed=REAL)


LATENTS = {
    intercept_and_slope: {"a", "b"}, rows_and_columns: {"a", "b"}, one_in_a_scale: {"a"},
    one_behind_an_observation: {"a", "b", "c"},
}  # fmt: skip


@pytest.mark.parametrize("make", LATENTS, ids=lambda make: make.__name__)
def test_as_many_coefficients_as_enter_together_are_latent(make):
    with pm.Model() as model:
        make()
    assert {v.name for v in read_structure(model).variables} == LATENTS[make]
    assert_is_the_model(joint_of(model), model)


def test_coefficients_of_a_scale_are_hyperparameters_of_a_process():
    with pm.Model() as model:
        f = gp_prior("f", ls=pm.HalfNormal("ls"), reparameterize=False)
        pm.Laplace("y", f, pm.math.exp(DESIGN @ pm.Normal("beta", shape=4)), observed=REAL)
    joint = joint_of(model, ["f", "beta"])
    assert joint.theta.names == ("beta",)
    assert_is_the_model(joint, model)


class WithoutDerivative(Op):
    """Of which nothing has a gradient."""

    def make_node(self, x):
        x = pt.as_tensor(x)
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.tanh(inputs[0])


def density(value, mu):
    return -((value - WithoutDerivative()(mu)) ** 2)


BEYOND = {
    "a softmax": lambda g: pm.Categorical(
        "z", p=pm.math.softmax(pt.concatenate([g, [0.0]])) * np.ones((N, 1)), observed=COUNTS % 3
    ),
    "sums of a link": lambda g: pm.Logistic("z", pt.cumsum(pt.exp(g)), 1.0, observed=REAL),
    "a total size": lambda g: pm.Laplace("z", g, 1.0, observed=REAL, total_size=100),
    "no derivative": lambda g: pm.CustomDist("z", g, logp=density, observed=REAL),
}


@pytest.mark.parametrize("name", BEYOND)
def test_a_predictor_that_cannot_be_sampled_leaves_the_rest_as_it_was(name):
    # With scales of their own, so that the chart of the graph does not take their place.
    design = np.hstack([DESIGN, DESIGN**2])
    with pm.Model() as model:
        coefficients = pm.Normal("b", 0.0, pm.HalfNormal("s") * WIDTHS, shape=8)
        pm.Poisson("y", pm.math.exp(design @ coefficients), observed=COUNTS)
        BEYOND[name](pm.Normal("g", 0.0, 0.5, shape=3)[GROUP])
    description = describe(model)
    assert [block.name for block in description.blocks] == ["b"]
    assert description.hyperparameters == ("s",)
    assert set(description.left_over) == {"g"}


@pytest.mark.parametrize("name", BEYOND)
def test_with_effects_of_groups_the_whole_model_is_sampled_if_it_has_a_derivative(name):
    with pm.Model() as model:
        effects = pm.Normal("b", 0.0, pm.HalfNormal("s"), shape=3)
        pm.Poisson("y", pm.math.exp(effects[GROUP]), observed=COUNTS)
        BEYOND[name](pm.Normal("g", 0.0, 0.5, shape=3)[GROUP])
    description = describe(model)
    if name == "no derivative":
        assert [block.name for block in description.blocks] == ["b"]
        assert set(description.left_over) == {"g"}
    else:
        assert set(description.charted) == {"b", "s", "g"}
        assert not description.left_over


def test_a_softmax_alone_has_no_block():
    with pm.Model() as model:
        BEYOND["a softmax"](pm.Normal("g", 0.0, 0.5, shape=3)[GROUP])
    description = describe(model)
    assert description.blocks == ()
    assert "no latent Gaussian block" in str(description)


def differences_in_latents(model: pm.Model, block, value_names, rng) -> tuple[float, float]:
    """Of the model's log density and of the block's, between two values of the latents."""
    exact, totals = exact_log_density(model), []
    point = model.initial_point()
    for _ in range(2):
        point = point | {name: 0.5 * rng.standard_normal(point[name].shape) for name in value_names}
        prior, likelihood = block.prior(point), block.likelihood(point)
        eta, gaussian = prior.shift.copy(), 0.0
        for (name, part), vector, design in zip(block.slices, prior.vectors, prior.design, strict=True):
            x = np.ravel(point[name])[part]
            factor = np.tril(vector.factor if vector.covariance is None else np.linalg.cholesky(vector.covariance))
            whitened = np.linalg.solve(factor, x - vector.location) if vector.is_variable else x
            gaussian -= 0.5 * whitened @ whitened
            moved = x if vector.is_variable else factor @ x
            eta = eta + (moved if design is None else design @ moved)
        totals.append((float(exact(point)), gaussian + likelihood.log_density(eta)))
    return totals[1][0] - totals[0][0], totals[1][1] - totals[0][1]


def test_a_likelihood_of_one_part_of_a_sum_does_not_read_the_sum():
    with pm.Model() as model:
        f, g = gp_prior("f", reparameterize=False), gp_prior("g", ls=0.1, reparameterize=False)
        pm.Logistic("z", mu=f[INDEX], s=pt.exp(f[INDEX]), observed=np.zeros(len(INDEX)))
        pm.Poisson("y", mu=pm.math.exp(f + g), observed=COUNTS)
    (block,) = compile_model(read_structure(model)).blocks
    found = differences_in_latents(model, block, ["f", "g"], np.random.default_rng(0))
    assert found[0] == pytest.approx(found[1], abs=1e-5)


@pytest.mark.parametrize("weights", [2.0, 0.0])
def test_weights_that_were_one_may_not_be_replaced(weights):
    with pm.Model() as model:
        weight, z = pm.Data("weight", np.ones(N)), pm.Normal("z", shape=3)
        pm.Logistic("y", mu=z[GROUP] * weight, s=1.0, observed=REAL)
    (block,) = compile_model(read_structure(model)).blocks
    with model:
        pm.set_data({"weight": np.where(np.arange(N) == 1, weights, 1.0)})
    with pytest.raises(UnsupportedModelError, match="y: its predictor multiplies latent values by something else"):
        block.likelihood(model.initial_point())


def test_data_are_looked_at_where_the_model_begins():
    """None of the usual places is between the bounds of an identity link."""
    with pm.Model() as model:
        mu = pm.Normal("a", 0.5, 0.1, initval=0.7) + pm.Normal("g", 0.0, 0.05, shape=3)[GROUP]
        pm.Beta("y", mu=mu, nu=5.0, observed=np.linspace(0.1, 0.9, N))
    compile_model(read_structure(model, ["a", "g"]))


def test_new_observations_out_of_the_support_are_refused():
    with pm.Model() as model:
        data = pm.Data("data", np.full(N, 0.5))
        u = pm.Normal("u", 0.0, pm.HalfNormal("s"), shape=3)
        pm.Beta("y", mu=pm.math.invlogit(u[GROUP]), nu=9.0, observed=data)
    structure, _ = read_together(model, None, model.initial_point())
    (block,) = compile_model(structure).blocks
    with model:
        pm.set_data({"data": np.where(np.arange(N) == 2, 1.5, 0.5)})
    with pytest.raises(DataError, match="out of their distribution's support for 1 observation,"):
        block.likelihood(model.initial_point())
