"""A matrix of value variables as compiled functions: ours, and a user's."""

from __future__ import annotations

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.scalar.basic import UnaryScalarOp, upgrade_to_float
from pytensor.tensor.elemwise import Elemwise

from pymc_rmhmc.errors import ConfigurationError
from pymc_rmhmc.model.general.derivatives import MatrixModel, of_value_variables
from pymc_rmhmc.model.general.information import fisher_information
from tests.model.information_models import EACH, MODELS

# PyMC's start of an LKJCholeskyCov is compiled all the same.
pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")
by_python = pytest.mark.usefixtures("pymc_by_python", "without_a_compiler")


def fisher(model, packed):
    return fisher_information(model, packed)


def matrix_model(model, build=fisher, variables=None) -> MatrixModel:
    return MatrixModel(model, model.free_RVs if variables is None else variables, model.initial_point(), build)


def agrees_with_differences(made: MatrixModel, seed: int) -> None:
    rng = np.random.default_rng(seed)
    theta = rng.standard_normal(made.size)
    along, bar = rng.standard_normal(made.size), rng.standard_normal((made.size, made.size))
    step = 1e-5
    ahead, behind = (made.matrix(theta + sign * step * along) for sign in (1.0, -1.0))
    expected = np.sum(bar * (ahead - behind)) / (2.0 * step)
    found = made.pullback(theta, bar) @ along
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * np.abs(bar * ahead).sum())


@by_python
@pytest.mark.parametrize("name", EACH)
def test_the_pullback_is_the_derivative(name):
    made = matrix_model(MODELS[name]())
    for seed in range(3):
        agrees_with_differences(made, seed)


def test_compiled_functions_say_what_the_graph_says():
    made = matrix_model(MODELS["eight_schools_apart"]())
    agrees_with_differences(made, 0)
    again = cloudpickle.loads(cloudpickle.dumps(made))
    theta = np.linspace(-1.0, 1.0, made.size)
    assert np.array_equal(again.matrix(theta), made.matrix(theta))
    assert np.array_equal(made.matrix(theta), made.matrix(theta).T)


def funnel() -> pm.Model:
    with pm.Model() as model:
        v = pm.Normal("v", 0.0, 3.0)
        pm.Normal("x", 0.0, pt.exp(v / 2.0), shape=2)
    return model


def value(model, name):
    return model.rvs_to_values[model[name]]


def widths(model):
    return pt.diag(pt.concatenate([pt.ones(1), pt.exp(-value(model, "v")) * pt.ones(2)]))


@by_python
def test_a_users_matrix_has_rows_in_the_models_order():
    model = funnel()
    made = matrix_model(model, of_value_variables(widths))
    np.testing.assert_allclose(made.matrix(np.array([0.5, 1.0, 2.0])), np.diag([1.0, *np.full(2, np.exp(-0.5))]))
    other = matrix_model(model, of_value_variables(widths), [model["x"], model["v"]])
    theta = np.array([1.0, 2.0, 0.5])
    np.testing.assert_allclose(other.matrix(theta), np.diag([*np.full(2, np.exp(-0.5)), 1.0]))
    np.testing.assert_allclose(other.pullback(theta, np.eye(3)), [0.0, 0.0, -2.0 * np.exp(-0.5)])


@by_python
def test_random_variables_stand_for_their_values():
    with pm.Model() as model:
        pm.HalfNormal("s")
    made = matrix_model(model, of_value_variables(lambda m: pt.diag((1.0 + m["s"])[None])))
    np.testing.assert_allclose(made.matrix(np.array([0.3])), [[1.0 + np.exp(0.3)]])


@by_python
def test_a_constant_matrix_has_no_derivative():
    made = matrix_model(funnel(), of_value_variables(lambda m: pt.diag(pt.constant([1.0, 2.0, 3.0]))))
    np.testing.assert_allclose(made.pullback(np.zeros(3), np.eye(3)), np.zeros(3))


@by_python
def test_data_and_variables_of_other_steps_are_bound():
    with pm.Model() as model:
        x = pm.Data("x", np.array([1.0, 2.0]))
        v, b = pm.Normal("v", 0.0, 1.0), pm.Normal("b", 0.0, 1.0)
        pm.Poisson("y", pt.exp(b * x + v), observed=np.array([1, 3]))
    made = matrix_model(model, variables=[b])
    assert made.inputs == ("v",)

    def expected(data, other):
        return [[1.0 + np.sum(data**2 * np.exp(0.2 * data + other))]]

    np.testing.assert_allclose(made.matrix(np.array([0.2])), expected(np.array([1.0, 2.0]), 0.0))
    with model:
        pm.set_data({"x": np.array([0.5, -1.0])})
    made.bind({"b": np.array(0.0), "v": np.array(0.7)})
    np.testing.assert_allclose(made.matrix(np.array([0.2])), expected(np.array([0.5, -1.0]), 0.7))


class Opaque(UnaryScalarOp):
    """A function without a derivative."""

    def impl(self, x):
        return x

    def pullback(self, inputs, outputs, cotangents):
        raise NotImplementedError("Opaque has no derivative")


opaque = Elemwise(Opaque(upgrade_to_float, name="opaque"))

WRONG = {
    "number": (lambda m: 3.0, "must return a symbolic matrix of the value variables, and returned a value with 0 axes"),
    "nothing": (lambda m: None, "and returned None"),
    "word": (lambda m: "fisher", "and returned 'fisher'"),
    "shape": (lambda m: pt.eye(2), r"has shape \(2, 2\), and must have \(3, 3\): a row for each value of v, x"),
    "oblong": (lambda m: pt.ones((3, 2)), r"has shape \(3, 2\)"),
    "stranger": (lambda m: pt.eye(3) * pt.dscalar("q"), "depends on q, which the model does not have"),
    "negative": (lambda m: -2.0 * pt.eye(3), "least eigenvalue is -2"),
    "lopsided": (lambda m: pt.tri(3), r"not symmetric: the entry of v and x\[0\] is 0"),
    "infinite": (lambda m: pt.eye(3) / value(m, "v"), "not finite at the start: the entry of v and v is inf"),
    "steep": (lambda m: pt.eye(3) * (1.0 + pt.sqrt(value(m, "v"))), "derivative by v is not finite at the start"),
    "opaque": (
        lambda m: pt.eye(3) * (1.0 + opaque(value(m, "v"))),
        "PyTensor cannot differentiate the matrix of GraphMetric .*Opaque",
    ),
}


@by_python
@pytest.mark.parametrize("kind", WRONG)
def test_a_matrix_that_is_none_says_what_is_wrong(kind):
    function, says = WRONG[kind]
    with pytest.raises(ConfigurationError, match=says):
        matrix_model(funnel(), of_value_variables(function))


@by_python
def test_what_information_depends_on_must_have_a_derivative():
    with pm.Model() as model:
        pm.Normal("y", opaque(pm.Normal("x")), 1.0, observed=0.3)
    with pytest.raises(ConfigurationError, match="PyTensor cannot differentiate what y depends on .*Opaque"):
        matrix_model(model)
