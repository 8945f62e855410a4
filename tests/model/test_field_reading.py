"""Residuals of Gaussian distributions against PyMC's densities, patterns of affine maps, and what is no field."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.logprob.utils import ParameterValueError
from scipy import sparse

import pymc_rmhmc.model.field.residuals as residuals_module
from pymc_rmhmc import describe, register_residuals
from pymc_rmhmc.errors import ConfigurationError, UnsupportedModelError
from pymc_rmhmc.latent.field.field_parts import parts_of
from pymc_rmhmc.model.field.affinity import FieldGraphs
from pymc_rmhmc.model.field.field_model import DENSE, FieldPlan, plan_field
from pymc_rmhmc.model.field.field_or_other import FIELD, InField, as_field, field_asked_for
from pymc_rmhmc.model.field.maps import NotSparse, colours_of, find_pattern
from pymc_rmhmc.model.field.residuals import has_residuals
from pymc_rmhmc.model.graph.graphs import by_python, value_inputs
from tests.model.conftest import exact_log_density
from tests.thinned import thinned

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")

RING = np.roll(np.eye(6), 1, axis=0) + np.roll(np.eye(6), -1, axis=0)
WEIGHTED = RING * np.add.outer(np.arange(6.0), np.arange(6.0))
ISLAND = np.pad(RING, (0, 1))
COVARIANCE = np.array([[1.0, 0.4, -0.2], [0.4, 1.5, 0.3], [-0.2, 0.3, 0.8]])


def scale(name: str = "s"):
    return pm.HalfNormal(name, 1.0)


def start(scaled: object = 2.0):
    return pm.Normal.dist(0.3, scaled)


def correlated(**written) -> None:
    pm.MvNormal("x", pm.Normal("m", 0, 1, shape=3), **{name: make() for name, make in written.items()}, shape=(4, 3))


FAMILIES: dict[str, Callable[[], object]] = {
    "normal": lambda: pm.Normal("x", pm.Normal("m"), scale(), shape=5),
    "normal, one for each": lambda: pm.Normal("x", np.arange(5.0), np.linspace(0.5, 2.0, 5)),
    "normal, a scale of columns": lambda: pm.Normal("x", 1.0, pm.HalfNormal("s", 1.0, shape=3), shape=(4, 3)),
    "normal, a scale of rows": lambda: pm.Normal("x", 1.0, pm.HalfNormal("s", 1.0, shape=(4, 1)), shape=(4, 3)),
    "normal, a mean of rows": lambda: pm.Normal("x", pm.Normal("m", shape=(4, 1)), scale(), shape=(4, 3)),
    "normal, by its precision": lambda: pm.Normal("x", 0.5, tau=pm.Gamma("tau", 2, 2), shape=5),
    "normal, a scalar": lambda: pm.Normal("x", pm.Normal("m"), scale()),
    "correlated, covariance": lambda: correlated(cov=lambda: scale() * COVARIANCE),
    "correlated, factor": lambda: correlated(chol=lambda: scale() * np.linalg.cholesky(COVARIANCE)),
    "correlated, precision": lambda: correlated(tau=lambda: scale() * np.linalg.inv(COVARIANCE)),
    "correlated, a prior of factors": lambda: correlated(
        chol=lambda: pm.LKJCholeskyCov("ch", eta=2, n=3, sd_dist=pm.Exponential.dist(1, shape=3))[0]
    ),
    "correlated, one row": lambda: pm.MvNormal("x", np.zeros(3), cov=scale() * COVARIANCE),
    "correlated, factor with a negative entry": lambda: pm.MvNormal(
        "x", np.zeros(3), chol=scale() * np.linalg.cholesky(COVARIANCE) * np.array([1.0, -1.0, 1.0])
    ),
    "autoregression": lambda: pm.AR(
        "x", rho=pt.stack([pm.Normal("r", 0.5, 0.1)]), sigma=scale(), init_dist=start(), shape=9
    ),
    "autoregression, constant": lambda: pm.AR(
        "x", rho=pm.Normal("r", 0.3, 0.1, shape=2), sigma=scale(), constant=True, init_dist=start(), shape=9
    ),
    "autoregression of 2": lambda: pm.AR(
        "x", rho=pm.Normal("r", 0.3, 0.1, shape=2), sigma=scale(), init_dist=pm.Normal.dist(0, 1, shape=2), shape=9
    ),
    "autoregression of 3, constant": lambda: pm.AR(
        "x", rho=pm.Normal("r", 0.3, 0.1, shape=4), sigma=scale(), constant=True,
        init_dist=pm.Normal.dist([0.1, 0.2, 0.3], 1.5), shape=9,
    ),
    "autoregression, a correlated beginning": lambda: pm.AR(
        "x", rho=[0.4, -0.2, 0.1], sigma=scale(), init_dist=pm.MvNormal.dist(np.zeros(3), COVARIANCE), shape=9
    ),
    "autoregression, a stationary beginning": lambda: pm.AR(
        "x", rho=[0.9], sigma=(s := scale()), init_dist=pm.Normal.dist(0, s / np.sqrt(1 - 0.81)), shape=9
    ),
    "autoregression that explodes": lambda: pm.AR("x", rho=[1.4], sigma=scale(), init_dist=start(), shape=9),
    "autoregression, batches": lambda: pm.AR(
        "x", rho=pm.Normal("r", 0.3, 0.1, shape=(3, 2)), sigma=pm.HalfNormal("s", 1.0, shape=3),
        init_dist=pm.Normal.dist(0, 1, shape=(3, 2)), shape=(3, 8),
    ),
    "autoregression, one step": lambda: pm.AR("x", rho=[0.5], sigma=scale(), init_dist=start(), shape=2),
    "walk": lambda: pm.GaussianRandomWalk("x", sigma=scale(), init_dist=start(), shape=9),
    "walk, drift": lambda: pm.GaussianRandomWalk("x", mu=pm.Normal("m"), sigma=scale(), init_dist=start(), shape=9),
    "walk, a drift for each step": lambda: pm.GaussianRandomWalk(
        "x", mu=pm.Normal("m", shape=8), sigma=scale(), init_dist=start(), shape=9
    ),
    "walk, a scale for each step": lambda: pm.GaussianRandomWalk(
        "x", sigma=pm.HalfNormal("s", 1.0, shape=8), init_dist=start(), shape=9
    ),
    "walk, batches": lambda: pm.GaussianRandomWalk("x", sigma=scale(), init_dist=start(), shape=(3, 8)),
    "walk, a scale for each batch": lambda: pm.GaussianRandomWalk(
        "x", sigma=pm.HalfNormal("s", 1.0, shape=3), init_dist=start(), shape=(3, 8)
    ),
    "walk, two values": lambda: pm.GaussianRandomWalk("x", sigma=scale(), init_dist=start(), shape=2),
    "walk, as many batches as steps": lambda: pm.GaussianRandomWalk(
        "x", mu=pm.Normal("m", shape=3), sigma=pm.HalfNormal("s", 1.0, shape=(3, 1)), init_dist=start(), shape=(3, 4)
    ),
    "walk of vectors": lambda: pm.MvGaussianRandomWalk(
        "x", mu=pm.Normal("m", shape=3), cov=scale() * COVARIANCE, shape=(7, 3),
        init_dist=pm.MvNormal.dist(np.ones(3), np.eye(3)),
    ),
    "walk of vectors, factor": lambda: pm.MvGaussianRandomWalk(
        "x", mu=np.zeros(3), chol=scale() * np.linalg.cholesky(COVARIANCE), shape=(7, 3),
        init_dist=pm.MvNormal.dist(np.zeros(3), chol=np.linalg.cholesky(COVARIANCE)),
    ),
    "stochastic equation": lambda: pm.EulerMaruyama(
        "x", 0.1, lambda x, k, m, s: (k * (m - x), s), (scale("k"), pm.Normal("m"), scale()), init_dist=start(),
        shape=9, initval=np.zeros(9),
    ),
    "stochastic equation, batches": lambda: pm.EulerMaruyama(
        "x", 0.1, lambda x, k: (-k * x, 0.5), (pm.HalfNormal("k", 1.0, shape=3),), init_dist=start(), shape=(3, 8),
        initval=np.zeros((3, 8)),
    ),
    "intrinsic map": lambda: pm.ICAR("x", W=RING, sigma=scale()),
    "intrinsic map, another sum": lambda: pm.ICAR("x", W=RING, sigma=scale(), zero_sum_stdev=0.7),
    "intrinsic map, an area without neighbours": lambda: pm.ICAR("x", W=ISLAND, sigma=scale()),
    "map": lambda: pm.CAR("x", mu=np.arange(6.0), W=RING, alpha=pm.Beta("al", 2, 2), tau=pm.Gamma("tau", 2, 2)),
    "map, sparse": lambda: pm.CAR(
        "x", mu=pm.Normal("m") * np.ones(6), W=sparse.csr_matrix(RING), alpha=pm.Beta("al", 2, 2), tau=2.0
    ),
    "map, neighbours apart": lambda: pm.CAR("x", mu=np.zeros(6), W=RING, alpha=-0.7, tau=pm.Gamma("tau", 2, 2)),
    "map, either way": lambda: pm.CAR("x", mu=np.zeros(6), W=RING, alpha=pm.Uniform("al", -1, 1), tau=1.3),
    "map, independent": lambda: pm.CAR("x", mu=np.zeros(6), W=RING, alpha=0.0, tau=pm.Gamma("tau", 2, 2)),
    "map, weights": lambda: pm.CAR("x", mu=np.zeros(6), W=WEIGHTED, alpha=pm.Beta("al", 2, 2), tau=0.4),
    "sum to zero": lambda: pm.ZeroSumNormal("x", sigma=scale(), shape=6),
    "sum to zero, rows": lambda: pm.ZeroSumNormal("x", sigma=scale(), shape=(4, 6)),
    "sum to zero, both ways": lambda: pm.ZeroSumNormal("x", sigma=scale(), n_zerosum_axes=2, shape=(4, 6)),
    "observed": lambda: pm.Normal("x", pm.Normal("m", shape=5), scale(), observed=np.linspace(-1.0, 2.0, 5)),
    "observed, correlated": lambda: pm.MvNormal(
        "x", pm.Normal("m", shape=3), scale() * COVARIANCE, observed=np.arange(6.0).reshape(2, 3)
    ),
}  # fmt: skip


def model_of(build: Callable[[], object]) -> pm.Model:
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        build()
    return model


def moved_point(model: pm.Model, seed: int, spread: float = 0.4) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: value + spread * rng.standard_normal(value.shape) if value.dtype.kind == "f" else value
        for name, value in model.initial_point().items()
    }


@pytest.mark.parametrize("name", thinned(FAMILIES))
def test_residuals_are_those_of_pymcs_density(name):
    """With half their squares the density does not move with the variable, and is the normaliser where one is given."""
    model = model_of(FAMILIES[name])
    variable = model["x"]
    assert has_residuals(variable)
    graphs = FieldGraphs(model, model.initial_point())
    values, normaliser = graphs.residuals[variable]
    given = value_inputs(model, [values] if normaliser is None else [values, normaliser])
    outputs = [values] if normaliser is None else [values, normaliser]
    evaluate, exact = by_python(given, outputs), exact_log_density(model, vars=[variable])
    point = moved_point(model, 0)
    value = model.rvs_to_values[variable].name
    rest = []
    for seed in range(3):
        if value in point:
            point[value] = moved_point(model, seed, 1.5)[value]
        found = evaluate(*(point[v.name] for v in given))
        assert found[0].ndim == 1
        rest.append(exact(point) + 0.5 * found[0] @ found[0])
        if normaliser is not None:
            assert float(found[1]) == pytest.approx(rest[-1], rel=1e-10, abs=1e-10)
    np.testing.assert_allclose(rest, rest[0], rtol=1e-10, atol=1e-10)
    other = moved_point(model, 7)
    if normaliser is not None:
        found = evaluate(*(other[v.name] for v in given))
        assert float(found[1]) == pytest.approx(exact(other) + 0.5 * found[0] @ found[0], rel=1e-10, abs=1e-10)


NONE: dict[str, Callable[[], object]] = {
    "another distribution": lambda: pm.StudentT("x", nu=3, sigma=1, shape=4),
    "a Normal of an exponent": lambda: pm.LogNormal("x", 0, 1, shape=4),
    "a half of one": lambda: pm.HalfNormal("x", 1, shape=4),
    "a truncated one": lambda: pm.TruncatedNormal("x", 0, 1, lower=-1, shape=4),
    "a walk of other steps": lambda: pm.RandomWalk(
        "x", innovation_dist=pm.StudentT.dist(nu=3, sigma=1), init_dist=pm.Normal.dist(0, 1), shape=5
    ),
    "a walk from elsewhere": lambda: pm.GaussianRandomWalk("x", sigma=1.0, init_dist=pm.Exponential.dist(1.0), shape=5),
    "an autoregression from elsewhere": lambda: pm.AR(
        "x", rho=[0.5], sigma=1.0, init_dist=pm.Laplace.dist(0, 1), shape=5
    ),
    "a covariance for each row": lambda: pm.MvNormal("x", np.zeros((2, 3)), cov=np.stack([COVARIANCE, 2 * COVARIANCE])),
    "a mixture": lambda: pm.NormalMixture("x", [0.5, 0.5], [0, 1], [1, 2], shape=3),
}  # fmt: skip


@pytest.mark.parametrize("name", NONE)
def test_what_is_not_gaussian_has_no_residuals(name):
    assert not has_residuals(model_of(NONE[name])["x"])


def test_a_map_with_an_area_without_neighbours_has_no_proper_form():
    """CAR's own precision is 0 there, so that PyMC's density is not one."""
    model = model_of(lambda: pm.CAR("x", mu=np.zeros(7), W=ISLAND, alpha=0.5, tau=1.0))
    assert not has_residuals(model["x"])


# --- patterns ---


def affine(matrix: np.ndarray, offset: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    return lambda values: matrix @ values + offset


def entries_of(row, column) -> set[tuple[int, int]]:
    return set(zip(row.tolist(), column.tolist(), strict=True))


def random_matrix(shape: tuple[int, int], density: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    made = sparse.random_array(shape, density=density, rng=rng, data_sampler=rng.standard_normal)
    return made.toarray()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("shape", "density"), [((40, 30), 0.1), ((500, 200), 0.01), ((200, 900), 0.003), ((60, 300), 0.04)]
)
def test_a_pattern_is_that_of_the_matrix(shape, density, seed):
    matrix, rng = random_matrix(shape, density, seed), np.random.default_rng(seed)
    half = shape[1] // 3
    blocks = [slice(0, half), slice(half, shape[1])]
    row, column, dense = find_pattern([affine(matrix, rng.standard_normal(shape[0]))], blocks)
    assert dense.size == 0
    assert entries_of(row, column) == entries_of(*matrix.nonzero())


def test_entries_of_all_sizes_are_found():
    """A small entry beside a large one in a row is an entry."""
    rng = np.random.default_rng(0)
    n = 300
    matrix = np.diag(np.geomspace(1e-8, 1e8, n)) @ (np.eye(n) + np.diag(np.geomspace(1e3, 1e-3, n - 1), 1))
    row, column, _ = find_pattern([affine(matrix, rng.standard_normal(n))], [slice(0, n)])
    assert entries_of(row, column) == entries_of(*matrix.nonzero())


def test_a_sine_after_whole_turns_is_no_entry():
    """Twelve values a turn: every sixth sine is rounding alone, and is read as 0 beside an offset."""
    n = 240
    sine, offset = np.sin(2 * np.pi * np.arange(n) / 12), 3.0 + np.arange(n) / 7.0
    row, column, dense = find_pattern([lambda x: (offset - x[:n] - sine * x[n:]) / 0.3], [slice(0, n), slice(n, 2 * n)])
    assert not dense.size
    seen = np.abs(sine) > 1e-9
    assert set(zip(row, column, strict=True)) == {(i, i) for i in range(n)} | {(i, n + i) for i in np.flatnonzero(seen)}


def test_an_entry_that_is_zero_at_one_point_is_found_at_another():
    n = 200
    full = np.eye(n) + 0.5 * np.eye(n, k=1)
    row, column, _ = find_pattern([affine(np.eye(n), np.zeros(n)), affine(full, np.ones(n))], [slice(0, n)])
    assert entries_of(row, column) == entries_of(*full.nonzero())


@pytest.mark.parametrize("n_dense", [1, 5])
def test_dense_rows_are_told_apart_from_sparse_ones(n_dense):
    n, rng = 400, np.random.default_rng(1)
    matrix = np.vstack((random_matrix((500, n), 0.01, 2), rng.standard_normal((n_dense, n))))
    matrix = matrix[rng.permutation(len(matrix))]
    row, column, dense = find_pattern([affine(matrix, np.zeros(len(matrix)))], [slice(0, n)])
    expected = np.flatnonzero((matrix != 0.0).sum(axis=1) == n)
    np.testing.assert_array_equal(dense, expected)
    kept = matrix.copy()
    kept[expected] = 0.0
    assert entries_of(row, column) == entries_of(*kept.nonzero())


def test_a_dense_column_is_no_hindrance():
    """A mean that every row reads."""
    n = 300
    matrix = np.column_stack((np.eye(n), np.ones(n)))
    row, column, dense = find_pattern([affine(matrix, np.zeros(n))], [slice(0, n), slice(n, n + 1)])
    assert dense.size == 0
    assert entries_of(row, column) == entries_of(*matrix.nonzero())


def test_too_many_dense_rows_are_refused():
    with pytest.raises(NotSparse):
        find_pattern([affine(np.random.default_rng(0).standard_normal((300, 300)), np.zeros(300))], [slice(0, 300)])


@pytest.mark.parametrize("seed", range(5))
def test_no_row_has_two_entries_of_one_colour(seed):
    matrix = random_matrix((300, 120), 0.03, seed)
    matrix[:, 0] = 1.0
    row, column = (each.astype(np.int64) for each in matrix.nonzero())
    colour = colours_of(row, column, matrix.shape)
    assert colour.min() >= 0
    for each in matrix:
        at = np.flatnonzero(each)
        assert np.unique(colour[at]).size == at.size


def test_a_row_that_is_too_long_has_no_colours():
    with pytest.raises(NotSparse):
        colours_of(np.zeros(100, np.int64), np.arange(100), (1, 100))


def test_bands_take_as_few_colours_as_entries():
    n = 400
    row, column = (np.eye(n) + np.eye(n, k=1) + np.eye(n, k=2)).nonzero()
    assert colours_of(row.astype(np.int64), column.astype(np.int64), (n, n)).max() <= 3


# --- what is a part of a field, and what is not ---

COUNTS = np.random.default_rng(0).poisson(3.0, size=30)


def planned(build: Callable[[], object]) -> FieldPlan | str:
    model = model_of(build)
    return plan_field(model, model.initial_point())


def latents_of(plan: FieldPlan) -> set[str]:
    return {v.name for v in plan.choice.latents}


def test_a_field_takes_all_that_is_gaussian_and_affine():
    def build():
        mu, s = pm.Normal("mu"), pm.HalfNormal("s")
        walk = pm.GaussianRandomWalk("walk", sigma=s, init_dist=pm.Normal.dist(0, 1), shape=30)
        day = pm.Normal("day", 0, pm.HalfNormal("sd"), shape=7)
        pm.Poisson("y", pt.exp(mu + walk + 0.5 * day[np.arange(30) % 7]), observed=COUNTS)

    plan = planned(build)
    assert latents_of(plan) == {"mu", "walk", "day"}
    assert {v.name for v in plan.theta.variables} == {"s", "sd"}
    assert plan.choice.refused == {}
    (observation,) = plan.choice.observations
    assert observation.likelihood is not None


def test_what_breaks_it_is_left_out_by_name():
    """A scale that is the exponent of a Normal. A Normal that enters squared is read before it is."""

    def build():
        log_s, bent = pm.Normal("log_s"), pm.Normal("bent", shape=30)
        walk = pm.GaussianRandomWalk("walk", sigma=pt.exp(log_s), init_dist=pm.Normal.dist(0, 1), shape=30)
        pm.Poisson("y", pt.exp(walk + 0.1 * bent**2), observed=COUNTS)

    plan = planned(build)
    assert latents_of(plan) == {"walk", "bent"}
    assert {v.name: why for v, why in plan.choice.refused.items()} == {
        "log_s": "it does not enter the prior of walk affinely"
    }
    (observation,) = plan.choice.observations
    assert observation.likelihood is None
    assert len(observation.predictors) == 2


def test_a_scale_that_is_negative_where_it_is_moved_is_a_predictor():
    """PyMC's check of it raises in the density, which is not what is asked."""

    def build():
        x, h = pm.Normal("x", 0, 1, shape=30), pm.Normal("h", 0.5, 1, shape=30)
        pm.Normal("y", x, h, observed=np.linspace(-1, 1, 30))

    try:
        plan = planned(build)
    except ParameterValueError as error:
        pytest.fail(f"a check of the density was raised: {error}")
    (observation,) = plan.choice.observations
    assert observation.shapes == ((30,), (30,))


def several(n_predictors: int) -> pm.Model:
    """A mean and a scale that are sums of exponentials."""
    with pm.Model() as model:
        parts = [pt.exp(pm.Normal(f"x{i}", 0, pm.HalfNormal(f"s{i}"), shape=30)) for i in range(n_predictors)]
        pm.Normal("y", sum(parts[1:]), parts[0], observed=np.linspace(-1, 1, 30))
    return model


def test_more_predictors_than_are_taken_are_counted():
    assert isinstance(as_field(several(8), several(8).initial_point()), InField)
    said = "y has 9 predictors (a Gaussian field takes up to 8)"
    assert as_field(several(9), several(9).initial_point()) == said
    assert f"because the model has no latent Gaussian block, and {said}:" in " ".join(str(describe(several(9))).split())


def test_processes_behind_several_predictors_that_are_too_large_are_counted():
    """Nothing is said where no observation has several."""
    x, policy = np.linspace(0, 1, 90)[:, None], replace(FIELD, most_dense=150)
    for is_several in (True, False):
        with pm.Model() as model:
            f, g = (pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, pm.Gamma(f"l{k}", 2, 2))).prior(k, x) for k in "fg")
            mean, scale_of_y = (f, pt.exp(g)) if is_several else (f + g, 1.0)
            pm.Normal("y", mean, scale_of_y, observed=x[:, 0])
        said = as_field(model, model.initial_point(), policy)
        assert said == ("f, g have 180 values (a Gaussian field takes up to 150 of processes)" if is_several else "")


@pytest.mark.parametrize(("n", "is_field"), [(12, True), (6, False)])
def test_few_values_of_processes_behind_several_predictors_are_a_field(n, is_field):
    """In the graph's chart three classes of 30 points made 2 effective draws of 1000."""
    x = np.linspace(0, 5, n)[:, None]
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=4.0 * pm.gp.cov.ExpQuad(1, 1.5))
        f = gp.prior("f", x, n_outputs=3, reparameterize=False)
        pm.Categorical("y", logit_p=f.T, observed=np.arange(n) % 3)
    assert isinstance(as_field(model, model.initial_point()), InField) == is_field


def test_a_prior_that_depends_on_it_and_is_not_gaussian_is_named():
    def build():
        x = pm.GaussianRandomWalk("x", sigma=1.0, init_dist=pm.Normal.dist(0, 1), shape=30)
        rate = pm.Gamma("rate", 2.0, pt.exp(x[3]))
        pm.Poisson("y", rate * pt.exp(x), observed=COUNTS)

    model = model_of(build)
    with pytest.raises(UnsupportedModelError, match="but x is no part of one: the prior of rate depends on it"):
        field_asked_for(model, model.initial_point())


def test_a_normal_within_a_step_function_is_not_affine():
    """Second differences of a step are 0 almost everywhere: away from the step it is a constant."""

    def build():
        x = pm.Normal("x", 0, pm.HalfNormal("s"), shape=30)
        pm.Poisson("y", pt.exp(pt.switch(x > 0, x, 2.0 * x)), observed=COUNTS)

    plan = planned(build)
    # The predictor is piecewise affine: the values that have been compared lie on both sides.
    assert isinstance(plan, str) or plan.choice.observations[0].likelihood is None or not latents_of(plan)


def test_a_variable_asked_for_alone_is_looked_at_alone():
    def build():
        mu = pm.Normal("mu")
        a = pm.Normal("a", mu, pm.HalfNormal("s"), shape=30)
        pm.Poisson("y", pt.exp(a), observed=COUNTS)

    model = model_of(build)
    plan = plan_field(model, model.initial_point(), [model["a"]])
    assert latents_of(plan) == {"a"}
    assert {v.name for v in plan.theta.variables} == {"mu", "s"}


def test_a_triangle_of_many_has_too_many_entries():
    def build():
        s, z = pm.HalfNormal("s"), pm.Normal("z", shape=400)
        pm.Poisson("y", pt.exp(s * (np.tri(400) @ z)), observed=np.ones(400, int))

    model = model_of(build)
    plan = plan_field(model, model.initial_point())
    assert plan.read() == DENSE
    with pytest.raises(UnsupportedModelError, match="too many entries"):
        field_asked_for(model, model.initial_point())


def test_a_running_sum_that_a_process_adds_to_has_too_many_entries():
    def build():
        s, ls, z = pm.HalfNormal("s"), pm.Gamma("ls", 6, 3), pm.Normal("z", shape=200)
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=ls)).prior("f", np.linspace(0, 5, 20)[:, None])
        pm.Poisson("y", pt.exp(pt.cumsum(s * z + f[np.arange(200) % 20])), observed=np.ones(200, int))

    model = model_of(build)
    with pytest.raises(UnsupportedModelError, match="too many entries"):
        field_asked_for(model, model.initial_point())
    assert as_field(model, model.initial_point()) == ""


def test_a_discrete_variable_in_the_field_is_named():
    """Another step samples it, so that the maps would move between draws."""

    def build():
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.GaussianRandomWalk("x", sigma=pm.HalfNormal("s"), init_dist=pm.Normal.dist(0, 1), shape=30)
        pm.Poisson("y", pt.exp(x * (1.0 + k)), observed=COUNTS)

    plan = planned(build)
    said = plan if isinstance(plan, str) else plan.read()
    assert isinstance(said, str)
    assert "k" in said


def test_a_coefficient_that_is_zero_where_a_model_begins_is_found():
    def build():
        slope, s = pm.HalfNormal("slope", initval=1.0), pm.HalfNormal("s")
        phi = pm.Uniform("phi", -1.0, 1.0)  # 0 to begin with
        x = pm.AR("x", rho=pt.stack([phi]), sigma=s, init_dist=pm.Normal.dist(0, 1), shape=30)
        pm.Poisson("y", pt.exp(slope * x), observed=COUNTS)

    model = model_of(build)
    point = model.initial_point()
    assert point["phi_interval__"] == 0.0
    read = plan_field(model, point).read()
    rows = read.moving.maps.residuals
    assert np.bincount(rows.row).max() == 2
    assert rows.row.size == 30 + 29


# --- residuals of one's own ---


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(residuals_module, "_FAMILIES", dict(residuals_module._FAMILIES))


def drawn_back(value, mu, sigma):
    return (value - mu) / sigma


def test_a_distribution_of_ones_own_is_registered(registry):
    """Its normaliser is taken from PyMC's density."""

    def build():
        x = pm.Moyal("x", 0.0, pm.HalfNormal("s"), shape=30)  # no Gaussian, but it does for the words
        pm.Poisson("y", pt.exp(x), observed=COUNTS)

    model = model_of(build)
    assert not has_residuals(model["x"])
    register_residuals(pm.Moyal, drawn_back)
    assert has_residuals(model["x"])
    assert FieldGraphs(model, model.initial_point()).residuals[model["x"]].log_normaliser is None
    assert latents_of(plan_field(model, model.initial_point())) == {"x"}


@pytest.mark.parametrize("arguments", [(3, drawn_back), (pm.Normal, 3), (dict, drawn_back), (pm.Normal,)])
def test_what_cannot_be_registered_is_an_error(registry, arguments):
    with pytest.raises(ConfigurationError, match=r"register_residuals(\(\))? (needs|cannot be called like this)"):
        register_residuals(*arguments)


def process(name: str, **given: object) -> pm.Distribution:
    apart = np.abs(np.subtract.outer(np.arange(12.0), np.arange(12.0)))
    return pm.MvNormal(name, np.zeros(12), cov=pt.exp(-apart / given.pop("ls", 2.0)), **given)


def test_a_vector_may_be_a_parameter_as_it_is():
    with pm.Model() as model:
        pm.Normal("y", process("f"), pt.exp(process("g", ls=pm.HalfNormal("ls"))), observed=np.zeros(12))
    read = plan_field(model, model.initial_point()).read()
    assert not isinstance(read, str), read
    assert read.moving.maps.predictors.n_rows == 24


def test_a_small_spread_hides_no_other_observation():
    """Where one spread is small, slopes of its observation leave those of others no digits."""
    where = np.array([0, 3, 3, 5, 9, 10, 2, 1, 4, 6])
    with pm.Model() as model:
        f, g, s = process("f"), process("g"), pm.HalfNormal("s")
        b = pm.Normal("b", 0, s, shape=3)
        pm.Normal("y", f[where], pt.exp(b[where % 3] + 5.0 * s * g[where]), observed=where / 2.0)
    read = plan_field(model, model.initial_point()).read()
    assert not isinstance(read, str), read
    assert read.moving.maps.predictors.n_rows == 20


@pytest.mark.parametrize("form", ["rows", "outputs", "a loop", "whitened one by one"])
def test_alike_processes_are_kernels_of_one_covariance(form):
    with pm.Model() as model:
        ls, x = pm.HalfNormal("ls"), np.arange(12.0)[:, None]
        gp = pm.gp.Latent(cov_func=pm.gp.cov.Matern32(1, ls=ls))
        if form == "rows":
            f = process("f", ls=ls, shape=(3, 12)).T
        elif form == "outputs":
            f = gp.prior("f", x, n_outputs=3).T
        elif form == "a loop":
            f = pt.stack([process(f"f{k}", ls=ls) for k in range(3)], axis=1)
        else:
            f = pt.stack([gp.prior(f"f{k}", x) for k in range(3)], axis=1)
        pm.Categorical("y", logit_p=f, observed=np.arange(12) % 3)
    point = {name: value + 0.3 for name, value in model.initial_point().items()}
    read = plan_field(model, point).read()
    assert [each.same_as for each in read.plan.kernels] == [None, 0, 0]
    parts = parts_of(read.moving.maps)
    assert [each.sites.size for each in parts.in_sites] == [12, 12]
    assert len(parts.unseen) == 1


def test_processes_of_two_covariances_are_not_alike():
    with pm.Model() as model:
        f = pt.stack([process("f", ls=pm.HalfNormal("a")), process("g", ls=pm.HalfNormal("b"))], axis=1)
        pm.Categorical("y", logit_p=f, observed=np.arange(12) % 2)
    read = plan_field(model, model.initial_point()).read()
    assert [each.same_as for each in read.plan.kernels] == [None, None]


def test_a_flat_level_next_to_a_process_is_held_by_data():
    with pm.Model() as model:
        level = pm.Flat("level")
        pm.Poisson("y", pt.exp(level + process("f", ls=pm.HalfNormal("ls"))), observed=np.ones(12, int))
    read = plan_field(model, model.initial_point()).read()
    assert read.moving.maps.size == 13
