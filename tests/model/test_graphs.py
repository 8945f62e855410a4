"""What is compiled of a model: small graphs, without loops."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.logprob.utils import ParameterValueError
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors, toposort
from pytensor.scan.op import Scan
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.shape import Reshape
from scipy import stats
from scipy.special import expit

from pymc_rmhmc.model import compile_model, read_structure
from pymc_rmhmc.model.general.chart import charted_variables
from pymc_rmhmc.model.general.density import GeneralModel
from pymc_rmhmc.model.graph.graphs import by_python, replaced
from pymc_rmhmc.model.graph.stable import stable
from tests.model.conftest import MODELS
from tests.model.test_compile import log_density


@pytest.mark.parametrize("name", ["centred_free_lengthscale", "mvnormal_rows", "two_outputs_whitened", "unregistered"])
def test_nothing_that_is_evaluated_every_draw_holds_a_scan(name, monkeypatch):
    """PyTensor's loop costs more than all the rest of such a graph."""
    compiled, compile_function = [], pytensor.function

    def recording(*args, **kwargs):
        compiled.append(compile_function(*args, **kwargs))
        return compiled[-1]

    monkeypatch.setattr(pytensor, "function", recording)
    model = MODELS[name]()
    log_density(compile_model(read_structure(model)), model.initial_point())
    operations = [node.op for function in compiled for node in function.maker.fgraph.apply_nodes]
    assert operations
    assert not any(isinstance(operation, Scan) for operation in operations)


def looped_walk(n_steps):
    """A random walk whose steps are scalars of their own."""
    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        steps = [pm.Normal("x0", 0.0, 1.0)]
        for t in range(1, n_steps):
            steps.append(pm.Normal(f"x{t}", steps[-1], scale))
        pm.Normal("y", pt.stack(steps), 1.0, observed=np.linspace(0.0, 1.0, n_steps))
    return model


def test_graphs_of_series_in_a_loop_grow_with_its_steps():
    """Each step adds as many operations to each function, however many there are before it."""
    models = [looped_walk(n_steps) for n_steps in (8, 12, 16)]
    read = [GeneralModel(model, model.free_RVs, model.initial_point()) for model in models]
    for name in ("density", "value", "scores"):
        outputs = [getattr(general, name)._graph[2] for general in read]
        few, more, most = (sum(1 for _ in toposort(graph)) for graph in outputs)
        assert 0 < most - more == more - few, name
    # PyTensor lifts a reshape through all that is before it, one operation at a time.
    short, long = (
        sum(isinstance(node.op, DimShuffle | Reshape) for node in toposort(general.density._graph[2]))
        for general in (read[0], read[-1])
    )
    assert short == long


def test_steps_of_series_in_a_loop_are_relative_to_the_one_before():
    """What is before that moves a step through it alone."""
    model = looped_walk(4)
    shapes = dict.fromkeys(model.free_RVs, ())
    found = {each.variable.name: each.parents for each in charted_variables(model, model.free_RVs, shapes)}
    assert found == {"x1": ("scale", "x0"), "x2": ("scale", "x1"), "x3": ("scale", "x2")}


def test_one_of_several_outputs_is_replaced():
    """The others of its operation follow what it reads."""
    x, y, z = pt.dvectors("xyz")
    values, vectors = pt.linalg.eigh(pt.outer(x, x))
    read = set(ancestors(replaced([values.sum() + vectors.sum()], {values: z, x: y})))
    assert {y, z} <= read
    assert x not in read


@pytest.mark.parametrize("of_two_parts", [False, True])
def test_large_counts_without_zeros_have_a_slope(of_two_parts):
    """The probability of 0, by which theirs is divided, underflows from a rate of 745 on."""
    eta, y = pt.dvector("eta"), np.array([1, 4, 2, 1000, 20_000])
    truncated = pm.Truncated.dist(pm.Poisson.dist(pt.exp(eta)), lower=1)
    counts = pm.HurdlePoisson.dist(np.full(5, 0.5), pt.exp(eta)) if of_two_parts else truncated
    log_density = stable(pm.logp(counts, y))
    at = np.array([-20.0, 0.5, 3.0, 7.0, 10.0])
    value, slope = by_python([eta], [log_density, pytensor.grad(log_density.sum(), eta)])(at)
    rate = np.exp(at)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(slope, y - rate - rate / np.expm1(rate), rtol=1e-9, atol=1e-7)
    poisson = stats.poisson(rate)
    share = np.log(0.5) if of_two_parts else 0.0
    np.testing.assert_allclose(value, poisson.logpmf(y) - np.log(-np.expm1(-rate)) + share, rtol=1e-8)


def ordinal(eta: np.ndarray, cutpoints: np.ndarray, y: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the log probability of category y and its slope by η, with logarithms of sums alone."""
    above, below = (np.append(cutpoints, np.inf)[y] - eta, np.insert(cutpoints, 0, -np.inf)[y] - eta)
    between = np.log1p(-np.exp(below - above))
    value = -np.logaddexp(0.0, -above) - np.logaddexp(0.0, below) + between
    return value, expit(below) - expit(-above)


@pytest.mark.parametrize("y", range(4))
def test_ordinal_categories_have_a_slope_far_from_all_cutpoints(y):
    """Where σ is 1 in all digits, differences of two have no logarithm."""
    cutpoints, at = np.array([-1.0, 0.5, 2.0]), np.array([-300.0, -45.0, -3.0, 0.0, 4.0, 45.0, 300.0])
    eta = pt.dvector("eta")
    log_density = stable(pm.logp(pm.OrderedLogistic.dist(eta=eta, cutpoints=cutpoints), np.full(7, y)))
    value, slope = by_python([eta], [log_density, pytensor.grad(log_density.sum(), eta)])(at)
    for found, expected in zip((value, slope), ordinal(at, cutpoints, y), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("y", [0, 1])
def test_one_cutpoint_makes_two_categories(y):
    eta, at, cutpoint = pt.dvector("eta"), np.array([-60.0, 0.3, 60.0]), np.array([0.5])
    log_density = stable(pm.logp(pm.OrderedLogistic.dist(eta=eta, cutpoints=cutpoint), np.full(3, y)))
    np.testing.assert_allclose(by_python([eta], log_density)(at), ordinal(at, cutpoint, y)[0], rtol=1e-9, atol=1e-12)


def test_differences_of_every_other_value_stay():
    eta, cutpoints = pt.dvector("eta"), np.array([-1.0, 0.5, 2.0])
    cumulated = pt.concatenate([pt.zeros((2, 1)), pt.sigmoid(cutpoints - eta[:, None]), pt.ones((2, 1))], axis=-1)
    other = cumulated[:, 1::2] - cumulated[:, :-1:2]
    found, expected = by_python([eta], [stable(other), other])(np.array([0.2, 1.0]))
    np.testing.assert_array_equal(found, expected)


def test_one_ordinal_observation_and_cutpoints_in_the_wrong_order():
    """Without an axis of observations; probabilities below 0 are PyMC's to find."""
    eta, cutpoints = pt.dscalar("eta"), pt.dvector("cutpoints")
    log_density = stable(pm.logp(pm.OrderedLogistic.dist(eta=eta, cutpoints=cutpoints), 1))
    found = by_python([eta, cutpoints], log_density)
    np.testing.assert_allclose(found(-45.0, [-1.0, 0.5]), ordinal(np.array(-45.0), np.array([-1.0, 0.5]), 1)[0])
    for wrong in ([0.5, -1.0], [800.0, -800.0]):
        with pytest.raises(ParameterValueError):
            found(0.0, wrong)


def test_rates_of_single_precision_are_taken():
    """The order is of whole numbers, and the function of both in double precision."""
    rate = pt.fvector("rate")
    log_density = pm.logp(pm.Truncated.dist(pm.Poisson.dist(rate), lower=1), np.array([1, 2]))
    found = by_python([rate], stable(log_density))(np.array([1.0, 2.0], "float32"))
    np.testing.assert_allclose(found, by_python([rate], log_density)(np.array([1.0, 2.0], "float32")), rtol=1e-6)


def test_other_incomplete_gamma_functions_stay():
    """The probability of counts up to 1 is of two terms."""
    rate = pt.dvector("rate")
    log_density = pm.logp(pm.Truncated.dist(pm.Poisson.dist(rate), lower=2), np.array([2, 3]))
    found = by_python([rate], stable(log_density))(np.array([1.0, 2.0]))
    poisson = stats.poisson([1.0, 2.0])
    np.testing.assert_allclose(found, poisson.logpmf([2, 3]) - poisson.logsf(1), rtol=1e-9)


@pytest.mark.parametrize("lengthscale", [3.0, pt.as_tensor(3.0) * 0.1])
def test_a_covariance_of_constants_has_one_lengthscale(lengthscale):
    """Where the reciprocal of 3 is a number of single precision in some places alone, the diagonal is not 1."""
    x = np.linspace(0.0, 10.0, 8)[:, None]
    (found,) = by_python([], [pm.gp.cov.ExpQuad(1, lengthscale)(x)])()
    np.testing.assert_allclose(np.diag(found), 1.0, rtol=0, atol=1e-14)
    np.testing.assert_allclose(found, pm.gp.cov.ExpQuad(1, lengthscale)(x).eval(), rtol=0, atol=1e-14)


def test_a_matrix_of_constants_is_not_folded():
    """A fixed covariance would be stored in each function that reads it, and each worker's copy."""
    value = pt.dvector()
    covariance = pm.gp.cov.ExpQuad(1, 3.0)(np.linspace(0.0, 10.0, 50)[:, None])
    function = by_python([value], covariance @ value)
    constants = [v for v in function.maker.fgraph.variables if isinstance(v, Constant)]
    assert max(constant.data.size for constant in constants) == 50
