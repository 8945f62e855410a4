"""An index that is out of bounds is found before compiled code reads past the end of an array."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pymc.dims as pmd
import pytest

from pymc_rmhmc import RMHMC, DataError, describe
from pymc_rmhmc.model.words.bad_inputs import IndexBounds

GROUPS = np.repeat(np.arange(1, 9), 6)
COUNTS = np.arange(48) % 5
WANTED = "y: index 8 is out of bounds for axis {axis} with size 8 of {name} .6 of 48 indices{data}.. Indices begin at 0"


def effects():
    return pm.Normal("u", 0.0, pm.HalfNormal("tau"), shape=8)


def constant():
    pm.Poisson("y", pm.math.exp(effects()[GROUPS]), observed=COUNTS)
    return WANTED.format(axis=0, name="u", data="")


def normal():
    pm.Normal("y", effects()[GROUPS], 1.0, observed=COUNTS)
    return WANTED.format(axis=0, name="u", data="")


def data():
    pm.Poisson("y", pm.math.exp(effects()[pm.Data("group", GROUPS)]), observed=COUNTS)
    return WANTED.format(axis=0, name="u", data=" in group")


def process():
    gp = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=pm.LogNormal("ls")))
    f = gp.prior("f", X=np.linspace(0.0, 1.0, 8)[:, None])
    pm.Poisson("y", pm.math.exp(f[pm.Data("group", GROUPS)]), observed=COUNTS)
    return WANTED.format(axis=0, name="f", data=" in group")


def potential():
    pm.Potential("y", -(pm.Normal("u", shape=(3, 8))[1, pm.Data("group", GROUPS)] ** 2).sum())
    return WANTED.format(axis=1, name="u", data=" in group")


def custom():
    pm.CustomDist("y", effects(), logp=lambda y, u: -((y - u[GROUPS]) ** 2), observed=COUNTS)
    return WANTED.format(axis=0, name="u", data="")


def negative():
    pm.Normal("y", effects()[np.array([-9, 2, 8])], 1.0, observed=np.zeros(3))
    return r"y: index 8 .* of u \(2 of 3 indices\). .* Correct them"


def missing():
    pm.Normal("y", effects()[np.array([0, 1, -1, 1])], 1.0, observed=np.zeros(4))
    return r"y: index -1 along axis 0 with size 8 of u \(1 of 4 indices\) would be read as the last, .* or write 7 if"


def missing_data():
    pm.Poisson("y", pm.math.exp(effects()[pm.Data("group", np.where(GROUPS == 3, -1, GROUPS - 1))]), observed=COUNTS)
    return r"index -1 .* of u \(6 of 48 indices in group\) would be read as the last"


def missing_computed():
    rows = np.arange(48) % 3
    pm.Normal("y", pm.Laplace("u", 0, 1, shape=(3, 8))[rows, pm.Data("one", GROUPS - 1) - 1], 1.0, observed=COUNTS)
    return r"index -1 along axis 1 with size 8 of u \(6 of 48 indices in one\)"


def other_code():
    pm.Normal("y", effects()[np.array([0, 1, -8, 1])], 1.0, observed=np.zeros(4))
    return "index -8 .* would be read as number 0, .* or write 0 if number 0 is meant"


def prior():
    means = pm.Normal("m", shape=3)
    pm.Normal("y", pm.Normal("u", means[np.array([1, 2, 3])]), 1.0, observed=np.zeros(3))
    return "u: index 3 is out of bounds for axis 0 with size 3 of m"


def mask():
    pm.Normal("y", effects()[pm.Data("chosen", np.ones(9, bool))].sum(), 1.0, observed=np.zeros(3))
    return r"y: the mask in chosen has the shape \(9,\), and u has \(8,\)"


BUILDERS = [
    constant, normal, data, process, potential, custom, negative, missing, missing_data, missing_computed, other_code,
    prior, mask,
]  # fmt: skip


@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
def test_an_index_out_of_bounds_is_found_when_the_step_is_built(build):
    with pm.Model() as model:
        says = build()
        with pytest.raises(DataError, match=says):
            RMHMC()
    with pytest.raises(DataError, match=says):
        describe(model)


def test_an_index_by_named_dimensions():
    with pm.Model(coords={"county": range(8), "row": range(48)}) as model:
        u = pmd.Normal("u", mu=0.0, sigma=1.0, dims="county")
        group = pmd.Data("group", GROUPS, dims="row")
        pmd.Normal("y", mu=u.isel(county=group), sigma=1.0, observed=pmd.as_xtensor(1.0 * COUNTS, dims="row"))
    with pytest.raises(DataError, match=WANTED.format(axis=0, name="u", data=" in group")):
        IndexBounds(model).check(model.initial_point())


@pytest.mark.usefixtures("without_a_compiler")
@pytest.mark.parametrize("build", [data, process])
def test_an_index_that_new_data_put_out_of_bounds(build):
    with pm.Model():
        says = build()
        pm.set_data({"group": GROUPS - 1})
        step = RMHMC()
        step.setup_chain(np.random.default_rng(0), 10, 10)
        pm.set_data({"group": GROUPS})
        with pytest.raises(DataError, match=says):
            step.setup_chain(np.random.default_rng(0), 10, 10)



def test_an_index_that_another_step_moves():
    with pm.Model() as model:
        u = pm.Laplace("u", 0.0, 1.0, shape=8)
        pm.Poisson("y", pm.math.exp(u[pm.DiscreteUniform("k", 0, 9)]), observed=COUNTS)
    bounds, point = IndexBounds(model), model.initial_point()
    bounds.check(point)
    bounds.check_moved(point)
    assert len(bounds.moving) == 1
    with pytest.raises(DataError, match=r"y: index 9 .* of u \(1 of 1 indices in k\)"):
        bounds.check_moved(point | {"k": np.array(9)})


def test_indices_within_bounds_are_left_alone():
    with pm.Model() as model:
        u = pm.Normal("u", shape=(8, 2))
        u = pm.math.stack([u[np.arange(8) - 1, 0], u[np.array([-1, 0, *range(1, 7)]), 1]], axis=1)  # no value twice
        mean = u[GROUPS - 9, 1] + u[: pm.Data("first", np.array(1)), 0].sum() + u[-1, pm.Data("column", np.array(0))]
        pm.Normal("y", mean, 1.0, observed=COUNTS)
    bounds = IndexBounds(model)
    bounds.check(model.initial_point())
    assert [read.data for read in bounds._reads] == [" in column"]
    assert bounds.moving == []


def test_a_size_that_data_give_is_not_looked_at_in_every_draw():
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=pm.LogNormal("ls")))
        f = gp.prior("f", X=pm.Data("x", np.linspace(0.0, 1.0, 8)[:, None]))
        pm.Poisson("y", pm.math.exp(f[GROUPS - 1]), observed=COUNTS)
    bounds = IndexBounds(model)
    bounds.check(model.initial_point())
    assert bounds.moving == []
    pm.set_data({"x": np.linspace(0.0, 1.0, 7)[:, None]}, model=model)
    with pytest.raises(DataError, match="y: index 7 is out of bounds for axis 0 with size 7 of f"):
        bounds.check(model.initial_point() | {"f_rotated_": np.zeros(7)})
