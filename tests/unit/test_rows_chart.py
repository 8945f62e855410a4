"""The graph's chart of an MvNormal whose rows share a covariance: its density, its Jacobian, and the way into it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_rmhmc.graph_chart.constants import RowsChart
from pymc_rmhmc.model.general.chart import MOST_COLUMNS, ChartedRows
from pymc_rmhmc.model.general.roots import N_SHAPE
from tests.unit.test_general_chart import Charted, derivative, without_compiling  # noqa: F401

# A plane is fitted to scores alone.
NO_MOMENTS = np.empty((0, 0))


def lower(k: int) -> pt.TensorVariable:
    """A lower triangle of free numbers whose diagonal is positive, and no multiple of the unit matrix."""
    free = pm.Normal("free", 0.0, 0.5, shape=k * (k + 1) // 2)
    made = pt.zeros((k, k))
    made = pt.set_subtensor(made[np.tril_indices(k)], free)
    return made - pt.diag(pt.diag(made)) + pt.diag(pt.exp(pt.diag(made)))


def factor() -> None:
    pm.MvNormal("x", pm.Normal("a", 1.0, 1.0, shape=3), chol=lower(3), shape=(2, 3))


def one_row() -> None:
    root = lower(2)
    pm.MvNormal("x", np.array([0.5, -1.0]), cov=root @ root.T + 0.1 * pt.eye(2), shape=2)


def means_of_rows() -> None:
    pm.MvNormal("x", pm.Normal("a", 1.0, 1.0, shape=(2, 1, 2)), chol=lower(2), shape=(2, 3, 2))


def correlations() -> None:
    sds = pm.HalfNormal.dist(1.0, shape=2)
    chol, _, _ = pm.LKJCholeskyCov("lkj", n=2, eta=2.0, sd_dist=sds, compute_corr=True)
    pm.MvNormal("x", pm.Normal("a", shape=2), chol=chol, shape=(3, 2))


def most_columns() -> None:
    spread = pm.HalfNormal("spread", 1.0, shape=MOST_COLUMNS)
    fixed = np.tril(0.3 * np.random.default_rng(2).standard_normal((MOST_COLUMNS, MOST_COLUMNS)), -1)
    pm.MvNormal("x", pm.Normal("a"), chol=spread[:, None] * (fixed + np.eye(MOST_COLUMNS)), shape=(2, MOST_COLUMNS))


FORMS = {
    "factor": factor,
    "covariance of one row": one_row,
    "means of rows in two dimensions": means_of_rows,
    "correlations": correlations,
    "most columns": most_columns,
}
# Others are read, and their products written out, in the same way.
DEAR = ("correlations", "most columns")
PARAMETERS = [
    pytest.param(form, marks=pytest.mark.slow if name in DEAR else (), id=name) for name, form in FORMS.items()
]


def model_of(form: Callable[[], None]) -> pm.Model:
    with pm.Model() as model:
        form()
        x = model["x"]
        pm.Poisson("y", pt.exp(0.3 * x), observed=np.ones(x.type.shape, int))
        pm.Potential("known", -0.1 * (x.sum(axis=-1) ** 2).sum())
    return model


class Rows(Charted):
    """A chart of rows with constants that differ from row to row, where no part of them may be mistaken for another."""

    def __init__(self, form: Callable[[], None]) -> None:
        super().__init__(model_of(form), chart=np.empty(0))
        ((self.places, self.k, _),) = self.general.charts
        self.rows = self.places.size // self.k
        rng = np.random.default_rng(5)
        halves = rng.standard_normal((self.rows, self.k, self.k))
        self.weights, self.pulls = halves @ halves.transpose(0, 2, 1), rng.standard_normal((self.rows, self.k))
        self.chart = np.concatenate([self.weights.ravel(), self.pulls.ravel()])

    def parents(self, x):
        """The score of the rest (r, k), and the mean (r, k) and the factor (k, k) of the prior, at values x."""
        score, moments, _ = self.general.scores(np.ascontiguousarray(x))
        mean, root = np.split(moments, [self.places.size])
        return score.reshape(self.rows, self.k), mean.reshape(self.rows, self.k), root.reshape(self.k, self.k)

    def at_values(self, x) -> dict[str, np.ndarray]:
        return self.general.variables.unpack(x)


@pytest.fixture(scope="module", params=PARAMETERS)
def rows(request, without_compiling) -> Rows:  # noqa: F811
    return Rows(request.param)


def test_rows_are_charted_and_all_else_is_not(rows):
    (only,) = rows.general.charted
    assert isinstance(only, ChartedRows)
    assert only.variable is rows.model["x"]
    assert RowsChart(rows.places, rows.k).n_constants == rows.chart.size
    assert rows.general.n_constants == rows.chart.size + N_SHAPE * rows.general.roots.size


def test_the_density_is_the_models_and_the_jacobian(rows):
    logp = rows.model.compile_logp()
    for chart in (rows.filled, np.zeros_like(rows.filled), 1e3 * rows.filled):
        z = rows.point(1)
        value, found = rows.general.density(z, chart)
        x, log_jacobian = found[rows.d : 2 * rows.d], found[-1]
        assert value - log_jacobian == pytest.approx(float(logp(rows.at_values(x))), rel=1e-9, abs=1e-8)


def test_gradient_and_log_jacobian_are_those_of_the_density_and_the_map(rows):
    z = rows.point(2)
    *jacobian, gradient = derivative(lambda at: np.append(rows.at(at)[2], rows.at(at)[0]), z)
    np.testing.assert_allclose(rows.at(z)[1], gradient, rtol=2e-5, atol=2e-5)
    assert rows.at(z)[3] == pytest.approx(np.linalg.slogdet(np.array(jacobian))[1], abs=1e-5)


def test_values_are_where_the_formula_places_them(rows):
    """By dense algebra: ``z`` is standard normal where the prior meets the plane ``score = b - Wx``."""
    z = rows.point(3)
    x = rows.at(z)[2]
    _, mean, root = rows.parents(x)
    for row, own in enumerate(z[rows.places].reshape(rows.rows, rows.k)):
        inner = np.linalg.cholesky(np.eye(rows.k) + root.T @ rows.weights[row] @ root)
        pulled = root.T @ (rows.pulls[row] - rows.weights[row] @ mean[row])
        t = np.linalg.solve(inner @ inner.T, pulled) + np.linalg.solve(inner.T, own)
        np.testing.assert_allclose(x[rows.places].reshape(-1, rows.k)[row], mean[row] + root @ t, rtol=1e-9, atol=1e-9)


def test_moments_are_those_of_the_prior(rows):
    """The log density of x's prior is that of its mean and of its factor times the transpose."""
    x = rows.at(rows.point(4))[2]
    _, mean, root = rows.parents(x)
    off = np.linalg.solve(root, (x[rows.places].reshape(rows.rows, rows.k) - mean).T)
    expected = -0.5 * (off**2).sum() - rows.rows * (np.log(root.diagonal()).sum() + 0.5 * rows.k * np.log(2 * np.pi))
    own = rows.model.compile_logp(vars=[rows.model["x"]])
    assert float(own(rows.at_values(x))) == pytest.approx(expected, rel=1e-10)


def test_scores_are_of_all_but_the_own_prior(rows):
    logp, own = rows.model.compile_logp(), rows.model.compile_logp(vars=[rows.model["x"]])
    x = rows.at(rows.point(5))[2]
    expected = derivative(lambda at: np.array(float(logp(rows.at_values(at))) - float(own(rows.at_values(at)))), x)
    np.testing.assert_allclose(rows.parents(x)[0].ravel(), expected[rows.places], rtol=1e-4, atol=1e-5)


def test_the_way_in_leads_to_where_the_map_began(rows):
    """Whatever the constants: a chain that enters values stands at their own coordinates."""
    z, chart = rows.point(6), rows.chart
    for times in (1.0, 0.0, 1e4):
        rows.chart = times * chart
        try:
            np.testing.assert_allclose(rows.entered(rows.at(z)[2]), z, rtol=1e-7, atol=1e-7)
        finally:
            rows.chart = chart


def test_planes_of_scores_are_found_from_few_draws_of_each_row():
    """And rows that no score tells of have none."""
    rng, k, n_rows = np.random.default_rng(0), 3, 2
    chart = RowsChart(np.arange(n_rows * k), k)
    halves = rng.standard_normal((n_rows, k, k))
    weights, pulls = halves @ halves.transpose(0, 2, 1) + np.eye(k), rng.standard_normal((n_rows, k))
    weights[1], pulls[1] = 0.0, 0.0
    draws = np.array([1.0, 2.0, 0.5]) * rng.standard_normal((40, n_rows, k)) + 3.0
    scores = pulls - np.einsum("rij,trj->tri", weights, draws)
    found = chart.fit(draws.reshape(40, -1), scores.reshape(40, -1), np.zeros((40, n_rows * k)), NO_MOMENTS)
    np.testing.assert_allclose(found, np.concatenate([weights.ravel(), pulls.ravel()]), rtol=1e-3, atol=1e-3)


def test_a_plane_that_rises_has_no_weight():
    """A W that is not positive would leave no Jacobian where the scale is large."""
    rng, chart = np.random.default_rng(1), RowsChart(np.arange(2), 2)
    draws, rising = rng.standard_normal((30, 2)), np.array([[0.5, 1.0], [1.0, 0.5]])  # of eigenvalues 1.5 and -0.5
    weights = chart.fit(draws, -draws @ rising, np.zeros((30, 2)), NO_MOMENTS)[:4].reshape(2, 2)
    np.testing.assert_allclose(np.linalg.eigvalsh(weights), [0.0, 1.5], atol=1e-4)


def test_a_normal_likelihood_leaves_a_standard_normal_wherever_the_parents_are():
    """The planes are its own: each row's density in z is that of a standard normal, at any mean and factor."""
    with pm.Model() as model:
        pm.MvNormal("x", pm.Normal("a", shape=2), chol=lower(2), shape=(3, 2))
        noise = np.array([[0.5, 0.2], [0.2, 0.3]])
        pm.MvNormal("y", model["x"], cov=noise, observed=np.arange(6.0).reshape(3, 2))
    charted = Charted(model, chart=np.empty(0))
    ((places, k, _),) = charted.general.charts
    chart, rng = RowsChart(places, k), np.random.default_rng(2)
    draws = rng.standard_normal((30, charted.d))
    scores, _, own = (np.array(part) for part in zip(*map(charted.general.scores, draws), strict=True))
    charted.chart = chart.fit(draws[:, places], scores, own, NO_MOMENTS)
    np.testing.assert_allclose(charted.chart[:4].reshape(2, 2), np.linalg.inv(noise), rtol=1e-3)
    for seed in range(3):
        z = charted.point(seed)
        np.testing.assert_allclose(charted.at(z)[1][places], -z[places], atol=2e-3)


@pytest.mark.parametrize("spoilt", ["precision", "columns"])
def test_other_covariances_are_left_as_pymc_has_them(spoilt):
    """A precision has no factor that is at hand, and products of many columns are not written out."""
    k = 2 if spoilt == "precision" else MOST_COLUMNS + 1
    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        given = {"tau": np.eye(k) / scale**2} if spoilt == "precision" else {"cov": np.eye(k) * scale**2}
        pm.MvNormal("x", np.zeros(k), shape=(2, k), **given)
    charted = Charted(model)
    assert charted.general.charted == []
    z = charted.point(0)
    value, _, x, log_jacobian = charted.at(z)
    np.testing.assert_array_equal(x, z)
    expected = float(model.compile_logp()(charted.general.variables.unpack(x)))
    assert (log_jacobian, value) == (0.0, pytest.approx(expected))
