"""Potentials that are sums of squares as rows of a Gaussian field, and Flat vectors that they hold."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import sparse

from pymc_rmhmc import FlatMetric, describe
from pymc_rmhmc.errors import ConfigurationError, UnsupportedModelError
from pymc_rmhmc.interfaces.stated import AffineRows
from pymc_rmhmc.model.field.field_model import FieldPlan, plan_field
from pymc_rmhmc.model.field.field_or_other import as_field, field_asked_for
from tests.model.test_field_models import Placed, check_density, joint_of, model_of
from tests.thinned import thinned

pytestmark = [
    pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS"),
    pytest.mark.usefixtures("without_a_compiler"),
]

T = 24
COUNTS = np.random.default_rng(0).poisson(3.0, size=100)

type Square = Callable[[pt.TensorVariable], pt.TensorVariable]


def ring(n: int) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(n), (np.arange(n) + 1) % n


def soft(value) -> None:
    pm.Potential("soft", pm.logp(pm.Normal.dist(0, 0.001 * value.type.shape[0]), value.sum()))


def icar(square: Square, factor: Callable = lambda s: 1.0, n: int = T, prior: Callable | None = None):
    """A map on a ring, with its scale's normaliser and a soft sum of 0."""

    def build():
        s = pm.HalfNormal("s")
        phi = pm.Flat("phi", shape=n) if prior is None else prior("phi", n, s)
        first, second = ring(n)
        pm.Potential("icar", -0.5 * factor(s) * square(phi[first] - phi[second]))
        pm.Potential("scale", -(n - 1) * pt.log(s))
        soft(phi)
        pm.Poisson("y", pt.exp(s * phi), observed=COUNTS[:n])

    return build


def summed(d):
    return (d**2).sum()


def walk(order: int, total: Callable = lambda density: density, n: int = T):
    def build():
        s, x = pm.HalfNormal("s"), pm.Flat("x", shape=n)
        pm.Potential("steps", total(pm.logp(pm.Normal.dist(0, s), pt.diff(x, n=order))))
        pm.Poisson("y", pt.exp(x), observed=COUNTS[:n])

    return build


def several_in_one():
    """Steps and a level in one potential, with a density of the scale itself."""
    s, x = pm.HalfNormal("s"), pm.Flat("x", shape=T)
    level = -0.5 * ((x.sum() - 3.0) / s) ** 2
    pm.Potential("both", -0.5 * summed(x[1:] - x[:-1]) / s**2 - T * pt.log(s) - s + level)
    pm.Poisson("y", pt.exp(x), observed=COUNTS[:T])


def correlated():
    """Whitened by a factor that moves."""
    s, x = pm.HalfNormal("s"), pm.Flat("x", shape=6)
    cov = s**2 * (np.eye(6) + 0.3)
    pm.Potential("correlated", pm.logp(pm.MvNormal.dist(np.ones(6), cov=cov), x))
    pm.Poisson("y", pt.exp(x), observed=COUNTS[:6])


def about_a_mean():
    """A regression as a potential: data in it, and a mean that is in the field too."""
    s, mu = pm.HalfNormal("s"), pm.Flat("mu")
    x = pm.Normal("x", mu, 1, shape=T)
    pm.Potential("seen", pm.logp(pm.Normal.dist(x, s), COUNTS[:T] / 3.0))


def weighted_by_a_vector():
    w, x = pm.HalfNormal("w", shape=T - 1), pm.Flat("x", shape=T)
    pm.Potential("steps", -0.5 * (w * (x[1:] - x[:-1]) ** 2).sum() + 0.5 * pt.log(w).sum())
    pm.Poisson("y", pt.exp(x), observed=COUNTS[:T])


def from_anywhere():
    """A walk with a Flat beginning, which data hold."""
    s = pm.HalfNormal("s")
    x = pm.GaussianRandomWalk("x", sigma=s, init_dist=pm.Flat.dist(), shape=T)
    pm.Poisson("y", pt.exp(x), observed=COUNTS[:T])


def scalars():
    s = pm.HalfNormal("s")
    x = [pm.Flat(f"x{t}") for t in range(10)]
    pm.Potential("steps", -0.5 * sum((x[t] - x[t - 1]) ** 2 for t in range(1, 10)) / s**2 - 9 * pt.log(s))
    pm.Poisson("y", pt.exp(pt.stack(x)), observed=COUNTS[:10])


# Each with the potentials that are rows.
READ: dict[str, tuple[Callable[[], object], set[str]]] = {
    "a power": (icar(summed), {"icar", "soft"}),
    "a square": (icar(lambda d: pt.sqr(d).sum()), {"icar", "soft"}),
    "a product with itself": (icar(lambda d: (d * d).sum()), {"icar", "soft"}),
    "a dot": (icar(lambda d: pt.dot(d, d)), {"icar", "soft"}),
    "an inner product": (icar(lambda d: d @ d), {"icar", "soft"}),
    "not summed": (icar(lambda d: d**2), {"icar", "soft"}),
    "of what is positive": (icar(lambda d: summed(pt.abs(d))), {"icar", "soft"}),
    "a precision": (icar(summed, lambda s: s), {"icar", "soft"}),
    "a scale": (icar(summed, lambda s: 1 / s**2), {"icar", "soft"}),
    "weights, one of them 0": (icar(lambda d: (np.linspace(0, 1, T) * d**2).sum()), {"icar", "soft"}),
    "a Normal beneath": (
        icar(summed, prior=lambda name, n, s: pm.Normal(name, 0, 1 + s, shape=n)), {"icar", "soft"}
    ),
    "a dense row": (icar(summed, lambda s: s, n=80), {"icar", "soft"}),
    "first differences": (walk(1), {"steps"}),
    "first differences, summed": (walk(1, pt.sum), {"steps"}),
    "second differences": (walk(2), {"steps"}),
    "several in one": (several_in_one, {"both"}),
    "correlated": (correlated, {"correlated"}),
    "about a mean": (about_a_mean, {"seen"}),
    "a weight for each": (weighted_by_a_vector, {"steps"}),
    "scalars": (scalars, {"steps"}),
    "a Flat beginning": (from_anywhere, set()),
}  # fmt: skip


@pytest.mark.parametrize("name", thinned(READ, with_also=["a scale"]))
def test_the_density_of_a_field_with_squares_is_the_models(name):
    build, potentials = READ[name]
    model = model_of(build)
    plan, joint = joint_of(model)
    flat = {v.name for v in model.free_RVs if v.name[0] in "xp"}
    assert flat <= {v.name for v in plan.choice.latents}
    assert {v.name for v in plan.choice.rows if v in model.potentials} == potentials
    assert len(joint.blocks[0].maps.dense) == (name == "a dense row")
    check_density(Placed(model, joint))


def precision_of(build: Callable[[], object]) -> np.ndarray:
    """Return JᵀJ where θ is at the beginning."""
    model = model_of(build)
    _, joint = joint_of(model)
    (block,) = joint.blocks
    stated = block.prior(joint.theta.pack(model.initial_point())).field

    def matrix(rows: AffineRows) -> np.ndarray:
        entries = rows.entries(stated.numbers), (rows.row, rows.column)
        return sparse.csr_array(entries, shape=(rows.n_rows, block.maps.size)).toarray()

    rows = np.vstack((matrix(block.maps.residuals), block.maps.dense))
    return rows.T @ rows


@pytest.mark.parametrize("n", [T, 80])
def test_neighbours_by_squares_are_those_of_pymcs_map(n):
    def by_pymc():
        first, second = ring(n)
        w = np.zeros((n, n))
        w[first, second] = w[second, first] = 1.0
        s = pm.HalfNormal("s")
        phi = pm.ICAR("phi", W=w)
        pm.Poisson("y", pt.exp(s * phi), observed=COUNTS[:n])

    np.testing.assert_allclose(precision_of(icar(summed, n=n)), precision_of(by_pymc), rtol=1e-12, atol=1e-9)


def test_a_walk_by_its_steps_is_a_walk_with_a_flat_beginning():
    def by_pymc():
        s = pm.HalfNormal("s")
        x = pm.GaussianRandomWalk("x", sigma=s, init_dist=pm.Normal.dist(0, 1e9), shape=T)
        pm.Poisson("y", pt.exp(x), observed=COUNTS[:T])

    np.testing.assert_allclose(precision_of(walk(1)), precision_of(by_pymc), rtol=1e-10, atol=1e-15)


# --- what is no sum of squares ---


def partly(prior: Callable = lambda: pm.Normal("x", 0, 1, shape=T)):
    """Squares and a cosine: a likelihood of all of it."""
    s, x = pm.HalfNormal("s"), prior()
    pm.Potential("bent", -0.5 * s * summed(x[1:] - x[:-1]) - 0.1 * pt.cos(x).sum())
    pm.Poisson("y", pt.exp(x), observed=COUNTS[:T])


def with_a_product():
    """Squares and a product of neighbours."""
    s, x = pm.HalfNormal("s"), pm.Normal("x", 0, 1, shape=T)
    pm.Potential("bent", -0.5 * s * (summed(x[1:]) - (x[1:] * x[:-1]).sum()))
    pm.Poisson("y", pt.exp(x), observed=COUNTS[:T])


def tilted():
    s, x = pm.HalfNormal("s"), pm.Normal("x", 0, 1, shape=T)
    pm.Potential("bent", -0.5 * s * summed(x) + x.sum())
    pm.Poisson("y", pt.exp(x), observed=COUNTS[:T])


@pytest.mark.parametrize("build", [partly, with_a_product])
def test_what_is_quadratic_in_part_is_read_as_a_likelihood(build):
    model = model_of(build)
    plan, joint = joint_of(model)
    assert not any(v in plan.choice.rows for v in model.potentials)
    assert {o.variable.name for o in plan.choice.observations} == {"y", "bent"}
    check_density(Placed(model, joint))


def test_what_is_quadratic_in_part_is_no_prior():
    """Sites approximate it, and nothing else would hold a Flat vector."""
    model = model_of(lambda: partly(lambda: pm.Flat("x", shape=T)))
    with pytest.raises(UnsupportedModelError, match="x is no part of one: the potential bent is no sum of squares"):
        field_asked_for(model, model.initial_point())


def test_squares_with_a_slope_of_a_sum_are_left_to_the_graph():
    model = model_of(tilted)
    assert plan_field(model, model.initial_point()) == (
        "x is no part of one: bent reads it and one value for all of it"
    )
    assert as_field(model, model.initial_point()) == ""


def test_a_weight_that_latent_values_give_leaves_these_out():
    def build():
        log_s, x = pm.Normal("log_s"), pm.Flat("x", shape=T)
        pm.Potential("steps", -0.5 * pt.exp(-2 * log_s) * summed(x[1:] - x[:-1]) - (T - 1) * log_s)
        pm.Poisson("y", pt.exp(x), observed=COUNTS[:T])

    plan, _ = joint_of(model_of(build))
    assert {v.name for v in plan.choice.latents} == {"x"}
    assert {v.name for v in plan.choice.rows} == {"x", "steps"}
    assert {v.name for v in plan.theta.variables} == {"log_s"}


def negative(weight: Callable, n: int = 60):
    def build():
        t, x = pm.Uniform("t", -4, 4), pm.Normal("x", 0, 0.3, shape=n)
        pm.Potential("apart", -0.5 * weight(t) * summed(x[1:] - x[:-1]))
        pm.Poisson("y", pt.exp(x), observed=COUNTS[:n])

    return build


@pytest.mark.parametrize("weight", [lambda t: -1.0, lambda t: t, lambda t: t + 2.5, lambda t: -pt.exp(t)])
def test_squares_that_may_grow_are_refused_by_name(weight):
    """Wherever their weight is negative: where the model begins, or further away."""
    model = model_of(negative(weight))
    point = model.initial_point()
    with pytest.raises(UnsupportedModelError, match="the potential apart grows with its squares"):
        field_asked_for(model, point)
    assert as_field(model, point) == ""


# --- what nothing holds ---


def no_level():
    s, mu = pm.HalfNormal("s"), pm.Flat("mu")
    x = pm.Flat("x", shape=T)
    pm.Potential("steps", pm.logp(pm.Normal.dist(0, s), pt.diff(x)))
    pm.Poisson("y", pt.exp(mu + x), observed=COUNTS[:T])


def no_slope():
    s, x = pm.HalfNormal("s"), pm.Flat("x", shape=T)
    pm.Potential("steps", pm.logp(pm.Normal.dist(0, s), pt.diff(x, n=2)))
    pm.Poisson("y", pt.exp(x[3]), observed=3)


def islands():
    """Two, of which the sum is held."""
    s, x = pm.HalfNormal("s"), pm.Flat("x", shape=100)
    pm.Potential("steps", -0.5 * (summed(pt.diff(x[:40])) + summed(pt.diff(x[40:]))))
    soft(x)
    pm.Normal("y", pt.diff(x[:10]), s, observed=COUNTS[:9])


def no_beginning():
    s = pm.HalfNormal("s")
    x = pm.GaussianRandomWalk("x", sigma=s, init_dist=pm.Flat.dist(), shape=T)
    pm.Normal("y", pt.diff(x), s, observed=COUNTS[: T - 1])


def nothing_at_all():
    s, x = pm.HalfNormal("s"), pm.Flat("x", shape=T)
    z = pm.Flat("z", shape=3)
    pm.Potential("steps", -0.5 * summed(pt.diff(x)) - 0.5 * z[0] ** 2 - 0.5 * z[1] ** 2)
    pm.Poisson("y", pt.exp(s * x), observed=COUNTS[:T])


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (no_level, r"Nothing holds the level of x and mu where the prior of x, mu is Flat"),
        (no_slope, r"Nothing holds 23 of 24 values of x where"),
        (islands, r"Nothing holds x where"),
        (no_beginning, r"Nothing holds the level of x where the prior of x is Flat"),
        (nothing_at_all, r"Nothing holds the level of 1 of 3 values of z where the prior of x, z is Flat"),
    ],
)
def test_a_direction_that_nothing_holds_is_named(build, said):
    model = model_of(build)
    with pytest.raises(ConfigurationError, match=said):
        field_asked_for(model, model.initial_point())


@pytest.mark.parametrize("order", [1, 2])
def test_a_direction_of_a_long_series_is_found(order):
    def build():
        s, x = pm.HalfNormal("s"), pm.Flat("x", shape=5000)
        pm.Potential("steps", pm.logp(pm.Normal.dist(0, s), pt.diff(x, n=order)))
        pm.Normal("y", pt.diff(x[:100], n=order), s, observed=np.zeros(100 - order))

    model = model_of(build)
    with pytest.raises(ConfigurationError, match="Nothing holds"):
        field_asked_for(model, model.initial_point())


def test_a_long_walk_that_one_observation_holds_is_held():
    """The least eigenvalue of its precision is 1e-8 of the largest."""
    n = 10_000

    def build():
        x = pm.Flat("x", shape=n)
        pm.Potential("steps", -0.5 * summed(pt.diff(x)) / pm.HalfNormal("s") ** 2)
        pm.Normal("y", x[0], 1, observed=1.0)

    model = model_of(build)
    assert not isinstance(field_asked_for(model, model.initial_point()), str)


# --- which models are sampled as such a field ---


@pytest.mark.parametrize(
    ("build", "potential", "latent"), [(icar(summed, n=60), "icar", "phi"), (walk(2, n=40), "steps", "x")]
)
def test_a_map_or_a_series_by_its_squares_is_sampled_as_a_field(build, potential, latent):
    model = model_of(build)
    found = as_field(model, model.initial_point())
    assert found is not None
    assert found.why == f"the squares in {potential} tie values of {latent} in a sparse precision"
    said = str(describe(model))
    assert found.why in " ".join(said.split())
    assert f"{potential}: Potential, of which residuals are read" in said


def only_a_sum():
    x = pm.Normal("x", 0, pm.HalfNormal("s"), shape=60)
    soft(x)
    pm.Poisson("y", pt.exp(x), observed=COUNTS[:60])


@pytest.mark.parametrize("build", [only_a_sum, walk(1, n=30)])
def test_a_sum_alone_and_a_short_series_are_left_to_others(build):
    model = model_of(build)
    assert isinstance(plan_field(model, model.initial_point()), FieldPlan)
    assert as_field(model, model.initial_point()) == ""
    assert "Gaussian field" in str(describe(model, metric=FlatMetric(chart="field")))
