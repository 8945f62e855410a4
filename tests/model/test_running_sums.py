"""Running sums of Normals, which a field takes as walks: which are read, and that the density is the model's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from pymc_rmhmc.model.field.field_model import DENSE, FieldPlan, plan_field
from tests.model.test_field_models import Placed, check_density, joint_of, model_of
from tests.thinned import thinned

pytestmark = [
    pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS"),
    pytest.mark.usefixtures("without_a_compiler"),
]

T = 90  # more than the entries that a row of a field may have
RNG = np.random.default_rng(0)
COUNTS, TABLE, REAL = RNG.poisson(3.0, size=T), RNG.poisson(3.0, size=(3, T)), RNG.normal(size=T)
GROWING, GAPS = np.linspace(0.5, 2.0, T), RNG.uniform(0.5, 1.5, size=T)


def scale(name: str = "s"):
    return pm.HalfNormal(name, 1.0)


def steps(*shape: int, name: str = "z"):
    return pm.Normal(name, 0, 1, shape=shape or T)


def counted(walk) -> None:
    pm.Poisson("y", pt.exp(0.3 * walk), observed=COUNTS)


def in_rows(walk) -> None:
    pm.Poisson("y", pt.exp(0.3 * walk), observed=TABLE)


def with_drift() -> None:
    s, drift, z = scale(), pm.Normal("drift"), steps()
    pm.StudentT("y", 4.0, mu=pt.cumsum(z * s + drift), sigma=scale("noise"), observed=REAL)


def with_drift_of_theta() -> None:
    counted(pt.cumsum(scale() * steps() + scale("drift")))


def with_beginning() -> None:
    first = pm.Normal("first", 0, 3)
    counted(pt.cumsum(pt.concatenate([first[None], scale() * steps(T - 1)])))


def with_beginning_of_theta() -> None:
    first = pm.Gamma("first", 2.0, 1.0)
    counted(pt.cumsum(pt.concatenate([first[None], scale() * steps(T - 1)])))


def from_zero() -> None:
    counted(pm.Normal("mu") + pt.cumsum(pt.concatenate([[0.0], scale() * steps(T - 1)])))


def of_a_scale_by_time() -> None:
    counted(pt.cumsum(pt.exp(pm.Normal("growth") * GROWING + pm.Normal("level")) * steps()))


def reverting() -> None:
    """An Ornstein-Uhlenbeck process at irregular times, as its solution is written."""
    times, rate = np.cumsum(0.1 * GAPS), pm.Gamma("rate", 2.0, 2.0)
    innovation = pt.sqrt(-pt.expm1(-0.2 * rate))
    counted(scale() * pt.exp(-rate * times) * pt.cumsum(pt.exp(rate * times) * innovation * steps()))


def by_scan(first, noises, *others):
    """An autoregression by its transition."""
    return pytensor.scan(
        lambda noise, before, s, *others: sum(others, start=0.0) + 0.7 * before + s * noise, sequences=[noises],
        outputs_info=[first], non_sequences=[scale(), *others], return_updates=False,
    )  # fmt: skip


def of_rows_by_scan() -> None:
    in_rows(by_scan(pm.Normal("first", shape=3), steps(T, 3), pm.Normal("drift")).T)


def scanned_with_a_beginning() -> None:
    walk = by_scan(pm.Normal("first", 0, 3), steps(T - 1))
    counted(pt.concatenate([[0.0], walk]))


def of_two_lags(first) -> None:
    walk = pytensor.scan(
        lambda noise, earlier, before, s: 0.5 * before - 0.3 * earlier + s * noise, sequences=[steps(T - 2)],
        outputs_info=[{"initial": first, "taps": [-2, -1]}], non_sequences=[scale()], return_updates=False,
    )  # fmt: skip
    counted(pt.concatenate([[0.0, 0.0], walk]))


def with_the_logarithm_of_a_scale() -> None:
    """Which is Gaussian itself."""
    counted(pt.exp(pm.Normal("log_s")) * pt.cumsum(steps()))


def of_rows() -> None:
    in_rows(pt.cumsum(pm.HalfNormal("s", shape=(3, 1)) * steps(3, T), axis=-1))


def of_columns() -> None:
    in_rows((pm.HalfNormal("s", shape=3) * steps(T, 3).cumsum(axis=0)).T)


def of_rows_from_beginnings() -> None:
    first = pm.Normal("first", 0, 2, shape=(3, 1))
    in_rows(pt.cumsum(pt.concatenate([first, scale() * steps(3, T - 1)], axis=1), axis=1))


def factor():
    return pm.LKJCholeskyCov("factor", n=3, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0, shape=3))[0]


def of_correlated_rows_from_beginnings() -> None:
    first, drift = pm.Normal("first", 0, 2, shape=(3, 1)), pm.Normal("drift", shape=(3, 1))
    in_rows(pt.cumsum(pt.concatenate([first, drift + factor() @ steps(3, T - 1)], axis=1), axis=1))


def of_a_drift_that_is_one() -> None:
    drift = pt.cumsum(scale("q") * steps(name="u"))
    counted(pt.cumsum(scale() * steps() + 0.1 * drift))


def summed_twice() -> None:
    counted(0.05 * pt.cumsum(pt.cumsum(scale() * steps())))


def of_two_noises() -> None:
    counted(pt.cumsum(scale() * steps() + scale("q") * steps(name="u")))


def of_unscaled_steps() -> None:
    counted(pt.cumsum(pm.Normal("z", 0.1, scale(), shape=T)))


def of_steps_that_are_read_elsewhere() -> None:
    z = steps()
    pm.Normal("x", 0.5 * z, scale("noise"), observed=REAL)
    counted(scale() * pt.cumsum(z))


def of_some_steps() -> None:
    walk = scale() * pt.cumsum(steps(T + 3)[1:-2])
    pm.Poisson("y", pt.exp(pt.concatenate([walk[5:], walk[:5]])), observed=COUNTS)


def of_correlated_steps() -> None:
    x = pm.AR("x", rho=[0.5], sigma=scale(), init_dist=pm.Normal.dist(0, 1), shape=T)
    counted(0.3 * pt.cumsum(x))


def flattened() -> None:
    pm.Poisson("y", pt.exp(scale() * pt.cumsum(steps(3, T))), observed=TABLE.ravel())


# How many values each sum takes the place of.
SUMS: dict[str, tuple[Callable[[], None], list[int]]] = {
    "scaled afterwards": (lambda: counted(scale() * pt.cumsum(steps())), [T]),
    "scaled before": (lambda: counted(pm.math.cumsum(scale() * steps())), [T]),
    "with a level": (lambda: counted(pm.Normal("mu") + steps().cumsum() * scale()), [T]),
    "with a negative scale": (lambda: counted(pt.cumsum(-2.0 * steps())), [T]),
    "with a drift": (with_drift, [T]),
    "with a drift that is no latent value": (with_drift_of_theta, [T]),
    "with a beginning": (with_beginning, [T]),
    "with a beginning that is no latent value": (with_beginning_of_theta, [T - 1]),
    "from zero": (from_zero, [T - 1]),
    "of a scale by time": (of_a_scale_by_time, [T]),
    "reverting": (reverting, [T]),
    "by scan": (lambda: counted(by_scan(pt.zeros(()), steps())), [T]),
    "by scan, with a beginning": (scanned_with_a_beginning, [T]),
    "by scan, of rows": (of_rows_by_scan, [3 * T + 3]),
    "of two lags": (lambda: of_two_lags(pt.constant([0.5, -1.0])), [T - 2]),
    "of two lags, with beginnings": (lambda: of_two_lags(pm.Normal("first", 0.0, 2.0, shape=2)), [T]),
    "with the logarithm of a scale": (with_the_logarithm_of_a_scale, [T]),
    "of rows": (of_rows, [3 * T]),
    "of columns": (of_columns, [3 * T]),
    "of rows from beginnings": (of_rows_from_beginnings, [3 * T]),
    "of a drift that is one": (of_a_drift_that_is_one, [T, T]),
    "summed twice": (summed_twice, [T, T]),
    "of two noises": (of_two_noises, [T]),
    "of unscaled steps": (of_unscaled_steps, [T]),
    "of steps that are read elsewhere": (of_steps_that_are_read_elsewhere, [T]),
    "of some steps": (of_some_steps, [T]),
    "of correlated steps": (of_correlated_steps, [T]),
    "of correlated rows": (lambda: in_rows(pt.cumsum(factor() @ steps(3, T), axis=1)), [3 * T]),
    "of correlated columns": (lambda: in_rows(pt.cumsum(steps(T, 3) @ factor().T, axis=0).T), [3 * T]),
    "of correlated rows from beginnings": (of_correlated_rows_from_beginnings, [3 * T - 3]),
    "of a table as one": (flattened, [3 * T]),
}


@pytest.mark.parametrize("name", thinned(SUMS, with_also=["scaled before", "with a drift", "of two lags", "reverting"]))
def test_a_walk_has_the_density_of_the_steps_that_the_model_names(name):
    build, places = SUMS[name]
    model = model_of(build)
    plan, joint = joint_of(model)
    assert [each.size for each in plan.expressions.walks] == places
    assert "log_s" not in {v.name for v in plan.choice.latents}
    placed = Placed(model, joint)
    check_density(placed)
    _check_volume(placed)


def _check_volume(placed: Placed) -> None:
    """Steps are no denser or thinner than walks: their density is the same at any θ."""
    values, theta = placed.block.maps.values, placed.position[: placed.joint.theta.size]
    matrix = np.zeros((values.n_rows, values.n_rows))
    matrix[values.row, values.column] = values.entries(placed.block.prior(theta).field.numbers)
    assert np.linalg.slogdet(matrix)[1] == pytest.approx(0.0, abs=1e-8)


def with_gaps() -> None:
    counted(scale() * pt.cumsum(steps() * (np.arange(T) % 7 > 0)))


def of_steps_that_are_mixed_otherwise_each_time() -> None:
    mixing = pt.exp(GROWING[:, None, None] * pm.HalfNormal("mixing", shape=(3, 3)))
    in_rows(pt.cumsum((mixing @ steps(T, 3)[..., None])[..., 0], axis=0).T)


def of_exponentials() -> None:
    counted(0.01 * pt.cumsum(pt.exp(steps())))


def of_two_states() -> None:
    walk, _ = pytensor.scan(
        lambda noise, before, other: (0.5 * before + 0.1 * other + noise, before - other), sequences=[steps()],
        outputs_info=[pt.zeros(()), pt.zeros(())], return_updates=False,
    )  # fmt: skip
    counted(walk)


NO_SUMS = {
    "of two states": (of_two_states, DENSE),
    "with gaps": (with_gaps, DENSE),
    "of steps that are mixed otherwise each time": (of_steps_that_are_mixed_otherwise_each_time, DENSE),
    "of exponentials": (of_exponentials, "z is no part of one: y reads it through a running sum of products"),
}


@pytest.mark.parametrize("name", NO_SUMS)
def test_what_cannot_be_told_from_its_sum_is_no_walk(name):
    build, why = NO_SUMS[name]
    model = model_of(build)
    plan = plan_field(model, model.initial_point(), [model["z"]])
    assert (plan if isinstance(plan, str) else plan.read()) == why


def test_steps_that_are_read_elsewhere_as_well_make_one_walk_alone():
    """Two sums of the same steps: the second one is a multiple of the first."""

    def build():
        z = steps()
        counted(pt.cumsum(scale() * z))
        pm.StudentT("x", 4.0, mu=pt.cumsum(scale("q") * z), sigma=1.0, observed=REAL)

    plan, joint = joint_of(model_of(build))
    assert [each.size for each in plan.expressions.walks] == [T]
    assert joint.blocks[0].maps.predictors.row.size == 2 * T


def test_a_sum_that_reads_more_at_other_values_is_refused():
    """Far from where it was read, the step before is added in part."""

    def build():
        z, u = steps(), pm.Uniform("u", -4.0, 4.0)
        late = pt.concatenate([z[:1], z[:-1]])
        counted(pt.cumsum(z + pt.switch(u > 1.7, u - 1.7, 0.0) * (late - z)))

    model = model_of(build)
    plan = plan_field(model, model.initial_point())
    assert isinstance(plan, FieldPlan)
    assert isinstance(plan.read(), str)
