"""How predictors read latents: by a matrix that hyperparameters may move, and otherwise given what moves it."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.compile.ops import view_op

from pymc_rmhmc.errors import DataError, UnsupportedModelError
from pymc_rmhmc.model import JointModel, compile_model, read_structure, read_together
from pymc_rmhmc.model.graph.affine import linear_inputs
from pymc_rmhmc.model.graph.graphs import substitute
from pymc_rmhmc.model.graph.scales import is_never_zero
from tests.model.conftest import (
    INDEX,
    N,
    exact_log_density,
    gp_prior,
)
from tests.model.joint_checks import assert_is_the_model, joint_of, log_density, made, random_point
from tests.model.joint_forms import DESIGN, GROUP, poisson
from tests.model.test_compile import log_density as conditional_density

pytestmark = pytest.mark.usefixtures("without_a_compiler")


def test_a_process_times_a_whole_number_that_moves_is_sampled_given_that():
    with pm.Model() as model:
        f = pm.MvNormal("f", np.zeros(N), cov=pm.HalfNormal("scale") * (np.eye(N) + 0.4))
        poisson(pt.cast(pm.Normal("weight", 1.7), "int64") * f)
    structure, reason = read_together(model, None, model.initial_point())
    assert reason == "how the predictor reads f depends on weight through an index, a comparison or a whole number"
    compiled, exact = compile_model(structure), exact_log_density(model)
    for seed in (1, 2):
        point = random_point(model, seed)
        assert conditional_density(compiled, point) == pytest.approx(float(exact(point)), abs=1e-8)


def test_a_design_that_a_variable_left_to_others_moves_is_none():
    with pm.Model() as model:
        warp, spread = pm.Normal("warp"), pm.HalfNormal("spread")
        poisson(pt.exp(warp * DESIGN) @ pm.Normal("slopes", 0.0, spread, shape=4))
    _, reason = read_together(model, ["slopes", "warp"], model.initial_point())
    assert isinstance(reason, JointModel)
    with pytest.raises(UnsupportedModelError, match="how the predictor reads slopes depends on warp"):
        read_together(model, ["slopes", "spread"], model.initial_point())


@pytest.mark.parametrize(("n", "shape"), [(6, None), (7, (7, 5)), (5000, (5000, 5))])
def test_a_vector_that_more_observations_read_has_its_matrices_in_its_own_size(n, shape):
    with pm.Model() as model:
        f, load = pm.MvNormal("f", np.zeros(5), cov=pm.HalfNormal("scale") * (np.eye(5) + 0.4)), pm.Normal("load")
        pm.Poisson("y", mu=pm.math.exp(load * f[np.arange(n) % 5]), observed=np.ones(n))
    joint = joint_of(model)
    (block,) = joint.blocks
    assert block.design_shape == shape


def test_of_normals_that_are_multiplied_the_larger_are_latent():
    """However their lengths are written."""
    with pm.Model(coords={"item": range(2), "person": range(4)}) as model:
        slope, ability = pm.Normal("slope", 1.0, dims="item"), pm.Normal("ability", dims="person")
        pm.Bernoulli("y", logit_p=slope * ability[:, None], observed=np.arange(8).reshape(4, 2) % 2)
    joint = joint_of(model)
    assert (joint.theta.names, joint.blocks[0].value_names) == (("slope",), ("ability",))


def test_a_small_number_is_none_of_the_zeros_of_a_design():
    """Beside a large one it would look like nothing, and grow with θ all the same."""
    with pm.Model() as model:
        grown = np.array([[1.0, 1e-10]] * N) * pt.exp(pm.Normal("warp", shape=2))
        poisson(grown @ pm.Normal("slopes", shape=2))
    joint = joint_of(model)
    joint.bind({})
    found = joint.blocks[0].prior(np.array([0.0, 20.0])).design
    np.testing.assert_allclose(found, np.array([[1.0, 1e-10 * np.exp(20.0)]] * N), rtol=1e-9)


def test_directions_are_as_few_as_the_zeros_of_a_design_allow():
    for name, directions in (("sparse_item_response", 1), ("item_response", 2), ("coefficients_of_warped_inputs", 4)):
        _, joint = made(name)
        at = {joint.theta.symbol: np.ones(joint.theta.size)}
        assert joint.blocks[0]._moving.directions.eval(at).shape[0] == directions


def switched(x: pt.TensorVariable, least: float) -> pt.TensorVariable:
    return pt.switch(x > least, x, least)


@pytest.mark.parametrize("written", ["maximum", "switch"])
def test_a_zero_that_hyperparameters_make_is_none_of_a_design(written):
    """Entries before a changepoint are 0 at nearly all θ, and there all the same."""
    with pm.Model() as model:
        change = pm.Normal("change", 1.5, 2.0)
        after = np.arange(N)[:, None] - pt.stack([change, change + 3.0])
        poisson((pt.maximum if written == "maximum" else switched)(after, 0.0) @ pm.Normal("trend", shape=2))
    joint = joint_of(model)
    joint.bind({})
    for change in (-1.0, 2.5, 5.0):
        exact = np.maximum(np.arange(N)[:, None] - [change, change + 3.0], 0.0)
        np.testing.assert_array_equal(joint.blocks[0].prior(np.array([change])).design, exact)
    assert_is_the_model(joint, model)


@pytest.mark.parametrize("changed", ["values", "zeros"])
def test_data_of_a_moving_design_may_change_where_it_is_not_zero(changed):
    data = DESIGN * (np.arange(4) != np.arange(N)[:, None] % 4)
    with pm.Model() as model:
        inputs = pm.Data("inputs", data)
        poisson((inputs * pm.HalfNormal("scale", shape=4) ** 2) @ pm.Normal("slopes", pm.Normal("level"), shape=4))
    joint, point = joint_of(model), random_point(model, 6)
    joint.bind(point)
    before = log_density(joint, point)
    with model:
        pm.set_data({"inputs": 2.0 * data if changed == "values" else data[:, ::-1].copy()})
    if changed == "zeros":
        with pytest.raises(DataError, match="inputs: the latent values that predictors read have changed"):
            joint.bind(point)
        return
    joint.bind(point)
    assert abs(log_density(joint, point) - before) > 0.1
    assert_is_the_model(joint, model)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (lambda w: w, True),
        (lambda w: abs(w), True),
        (lambda w: pt.sqrt(w**2 + 1.0) * 3.0 / w, True),
        (lambda w: pt.exp(pt.maximum(w, 0.0)), True),
        (lambda w: (1.0 + w) ** 2 - pt.stack([w, 2.0 * w])[1], True),
        (lambda w: pt.tanh(w) ** 1.5, True),
        (lambda w: w + pt.exp(abs(w)), False),
        (lambda w: w - pt.sqrt(w**2), False),
        (lambda w: pt.maximum(w, 0.0), False),
        (lambda w: pt.floor(w), False),
        (lambda w: pt.constant(2.0), False),
        (lambda w: pm.Poisson("k", 1.0) * w, False),
        (lambda w: pt.as_tensor([0.0, 1.0])[pt.cast(w > 0.0, "int64")], False),
    ],
)
def test_a_multiplier_that_vanishes_in_no_region(expression, expected):
    with pm.Model() as model:
        multiplier = expression(pm.Normal("w"))
        assert is_never_zero(model, multiplier) == expected


def test_a_root_of_what_is_negative_is_no_number():
    """For coefficients, and for a process: only a 0 is raised to what has a slope."""
    with pm.Model() as model:
        weight = pm.Normal("weight", 0.5)
        f, b = pm.MvNormal("f", np.zeros(N), cov=np.eye(N)), pm.Normal("b", shape=5)
        poisson(pt.sqrt(weight) * f + (pt.sqrt(weight) * b)[GROUP])
    joint = joint_of(model, ["f", "b", "weight"])
    joint.bind({})
    for weight, is_known in ((0.5, True), (0.0, True), (-0.5, False)):
        process, effects = joint.blocks[0].prior(np.array([weight])).vectors
        for array in (process.multiplier, process.covariance, effects.spread):
            assert np.isfinite(array).all() == is_known


def test_the_shape_of_a_latent_that_is_left_in_a_graph_is_no_input():
    """A chain that took its own last draw for another step's would begin anew at every draw."""
    with pm.Model() as model:
        f = pm.MvNormal("f", np.zeros(N), cov=np.eye(N))
        poisson(pm.HalfNormal("weight") * (f - f.mean()))
    assert joint_of(model).inputs == ()


TIMES = np.arange(N)


def scaled_vector(size: int) -> pt.TensorVariable:
    return pm.MvNormal("f", np.zeros(size), cov=pm.HalfNormal("scale") * (np.eye(size) + 0.4))


def an_index_that_is_drawn() -> None:
    poisson(scaled_vector(3)[pm.Categorical("z", p=np.ones(3) / 3.0, shape=N)])


def a_level_before_a_switchpoint_and_one_after_it() -> None:
    levels = pm.Normal("levels", 0.0, pm.HalfNormal("scale"), shape=2)
    poisson(levels[(pm.DiscreteUniform("z", 1, N - 1) <= TIMES).astype("int64")])


def a_step_from_a_switchpoint_on() -> None:
    z, slopes = pm.DiscreteUniform("z", 1, N - 1), pm.Normal("slopes", 0.0, pm.HalfNormal("scale"), shape=2)
    poisson(slopes[0] + slopes[1] * (z <= TIMES))


def a_step_at_a_time_that_is_continuous() -> None:
    z, slopes = pm.Uniform("z", 0.0, N, initval=3.5), pm.Normal("slopes", 0.0, pm.HalfNormal("scale"), shape=2)
    poisson(slopes[0] + slopes[1] * (z < TIMES))


def a_step_written_as_a_number() -> None:
    z, slopes = pm.Uniform("z", 0.0, N, initval=3.5), pm.Normal("slopes", 0.0, pm.HalfNormal("scale"), shape=4)
    poisson((DESIGN * pt.cast(z <= TIMES, "float64")[:, None]) @ slopes)


def levels_at_a_time_that_is_continuous() -> None:
    levels = pm.Normal("levels", 0.0, pm.HalfNormal("scale"), shape=2)
    poisson(levels[(pm.Uniform("z", 0.0, N, initval=3.5) < TIMES).astype("int64")])


def a_vector_that_is_in_or_out() -> None:
    poisson(0.3 + pm.Bernoulli("z", 0.5) * scaled_vector(N))


def one_vector_or_the_other() -> None:
    z, f = pm.Bernoulli("z", 0.5), scaled_vector(N)
    poisson(pm.math.switch(z, f, f[::-1]))


def slopes_of_a_design_that_is_switched_on() -> None:
    z, slopes = pm.DiscreteUniform("z", 1, N - 1), pm.Normal("slopes", 0.0, pm.HalfNormal("scale"), shape=4)
    poisson(pt.einsum("ij,j->i", DESIGN * (z <= TIMES)[:, None], slopes))


def levels_as_long_as_a_switchpoint_says() -> None:
    z, levels = pm.DiscreteUniform("z", 1, N - 1), pm.Normal("levels", 0.0, pm.HalfNormal("scale"), shape=2)
    poisson(pt.concatenate([pt.full((z,), levels[0]), pt.full((N - z,), levels[1])]))


def a_level_as_far_as_a_switchpoint() -> None:
    z, levels = pm.DiscreteUniform("z", 1, N - 1), pm.Normal("levels", 0.0, pm.HalfNormal("scale"), shape=2)
    poisson(pt.concatenate([levels[0] + pt.zeros(z), levels[1] + pt.zeros(N)[z:]]))


def two_vectors_each_with_an_index() -> None:
    f, g = scaled_vector(3), pm.MvNormal("g", np.zeros(3), cov=np.eye(3))
    u, z = (pm.Categorical(name, p=np.ones(3) / 3.0, shape=N) for name in "uz")
    poisson(f[u] + g[z])


def values_and_weights_of_an_index() -> None:
    z = pm.Categorical("z", p=np.ones(3) / 3.0, shape=N)
    poisson(pt.as_tensor(np.array([1.0, 2.0, 3.0]))[z] * scaled_vector(3)[z])


READ_OTHERWISE = {
    slopes_of_a_design_that_is_switched_on: [{"z": np.array(2)}, {"z": np.array(5)}],
    levels_as_long_as_a_switchpoint_says: [{"z": np.array(2)}, {"z": np.array(5)}],
    a_level_as_far_as_a_switchpoint: [{"z": np.array(2)}, {"z": np.array(5)}],
    two_vectors_each_with_an_index: [{"z": np.arange(N) % 3}, {"z": np.arange(N) // 3, "u": np.arange(N)[::-1] // 3}],
    values_and_weights_of_an_index: [{"z": np.arange(N) % 3}, {"z": np.full(N, 2)}],
    an_index_that_is_drawn: [{"z": np.arange(N) % 3}, {"z": np.arange(N) // 3}, {"z": np.full(N, 2)}],
    a_level_before_a_switchpoint_and_one_after_it: [{"z": np.array(2)}, {"z": np.array(5)}],
    a_step_from_a_switchpoint_on: [{"z": np.array(2)}, {"z": np.array(5)}],
    a_step_at_a_time_that_is_continuous: [{"z_interval__": np.array(0.7)}, {"z_interval__": np.array(-1.0)}],
    levels_at_a_time_that_is_continuous: [{"z_interval__": np.array(0.7)}, {"z_interval__": np.array(-1.0)}],
    a_step_written_as_a_number: [{"z_interval__": np.array(0.7)}, {"z_interval__": np.array(-1.0)}],
    a_vector_that_is_in_or_out: [{"z": np.array(1)}, {"z": np.array(0)}],
    one_vector_or_the_other: [{"z": np.array(1)}, {"z": np.array(0)}],
}


@pytest.mark.parametrize("make", READ_OTHERWISE, ids=lambda make: make.__name__)
def test_latents_that_another_variable_makes_predictors_read_otherwise_are_sampled_given_it(make):
    """No number of points shows it: what is discrete, or behind a comparison, is the same at nearly all of them."""
    with pm.Model() as model:
        make()
    structure, reason = read_together(model, None, model.initial_point())
    assert isinstance(reason, str)
    assert reason.startswith("how the predictor reads")
    assert reason.removesuffix(" through an index, a comparison or a whole number").endswith(" z")
    # The step is built where the model begins, and sees the rest of the points afterwards.
    compiled, exact = compile_model(structure), exact_log_density(model)
    for there in READ_OTHERWISE[make]:
        point = random_point(model, 1) | there
        assert conditional_density(compiled, point) == pytest.approx(float(exact(point)), abs=1e-8)


@pytest.mark.parametrize("kind", ["process", "intercepts"])
def test_an_index_of_shared_data_may_be_set_to_what_it_is_and_to_nothing_else(kind):
    with pm.Model() as model:
        where = pm.Data("where", GROUP)
        spread = pm.HalfNormal("spread")
        if kind == "process":
            poisson(pm.MvNormal("f", np.zeros(5), cov=spread * (np.eye(5) + 0.4))[where])
        else:
            poisson(pm.Normal("f", 0.0, spread, shape=5)[where])
    joint, point = joint_of(model), random_point(model, 1)
    pm.set_data({"where": GROUP.copy()}, model=model)
    joint.bind(point)
    assert_is_the_model(joint, model)
    pm.set_data({"where": (GROUP + 1) % 5}, model=model)
    with pytest.raises(DataError, match=r"where: the latent values that y reads have changed.*new RMHMC"):
        joint.bind(point)


def test_a_factor_of_shared_data_may_not_be_changed():
    with pm.Model() as model:
        weight = pm.Data("weight", np.ones(N))
        poisson(weight * gp_prior("f", ls=pm.Gamma("ls", 2.0, 4.0)))
    joint, point = joint_of(model), random_point(model, 1)
    (block,) = compile_model(read_structure(model)).blocks
    pm.set_data({"weight": np.full(N, 2.0)}, model=model)
    with pytest.raises(DataError, match=r"weight: the latent values that y reads have changed"):
        joint.bind(point)
    with pytest.raises(UnsupportedModelError, match="If data have changed, build a new RMHMC"):
        block.likelihood(point)


def mean_and_vectors() -> tuple[pm.Model, pt.TensorVariable, pt.TensorVariable, pt.TensorVariable]:
    with pm.Model() as model:
        level, wide, f = pm.Normal("level"), pm.Normal("wide", shape=N), pm.MvNormal("f", np.zeros(N), cov=np.eye(N))
    return model, level, wide, f


ADDED = {
    "beside it": lambda level, wide, f: level + f,
    "before a look-up": lambda level, wide, f: (level + f)[INDEX],
    "before a slice": lambda level, wide, f: (wide + f)[1:],
    "before a matrix": lambda level, wide, f: DESIGN.T @ (wide + f),
    "before a sum over time": lambda level, wide, f: pt.cumsum(wide + f),
    "in a list": lambda level, wide, f: pt.concatenate([(level + f)[:3], wide[3:]]),
    "in a place": lambda level, wide, f: pt.set_subtensor(wide[1:], (level + f)[1:]),
    "where values are as long": lambda level, wide, f: f * pt.ones_like(wide * level),
    "in columns": lambda level, wide, f: pt.stack([level + f, wide]).reshape((N, 2)),
    "as long as something named": lambda level, wide, f: f * pt.ones_like(view_op(wide * level)),
    "about its mean": lambda level, wide, f: f - f.mean() + level,
}


@pytest.mark.parametrize("how", ADDED)
def test_what_is_added_to_latents_does_not_say_how_they_are_read(how):
    model, level, wide, f = mean_and_vectors()
    values = pt.dvector("values", shape=(N,))
    (plain,) = substitute([ADDED[how](level, wide, f)], {f: values}, model)
    assert linear_inputs(model, plain, [values]).values == ()
    (scaled,) = substitute([ADDED[how](level, wide, pt.exp(level) * f)], {f: values}, model)
    assert linear_inputs(model, scaled, [values]).values == ("level",)


def test_normals_that_multiply_one_another_are_not_both_coefficients():
    with pm.Model() as model:
        poisson((pm.Normal("factor") * pm.Normal("raw", shape=5))[GROUP])
    joint = joint_of(model)
    assert joint.theta.names == ("factor",)
    assert joint.blocks[0].value_names == ("raw",)
    assert_is_the_model(joint, model)


def test_a_design_of_shared_data_is_read_again_when_they_change():
    with pm.Model() as model:
        design = pm.Data("design", DESIGN)
        poisson(design @ pm.Normal("slopes", 0.0, pm.HalfNormal("spread"), shape=4))
    joint, point = joint_of(model), random_point(model, 6)
    with model:
        pm.set_data({"design": DESIGN[::-1].copy()})
    joint.bind(point)
    assert_is_the_model(joint, model)
    np.testing.assert_array_equal(joint.blocks[0].prior(joint.theta.pack(point)).design, DESIGN[::-1])
