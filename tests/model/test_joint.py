"""Blocks with their hyperparameters as functions of θ, against the model itself and against differences."""

from __future__ import annotations

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import sparse

from pymc_rmhmc.approximation.joint_mode import moving_sites
from pymc_rmhmc.latent.charts import GaussianSites, MarginalChart
from pymc_rmhmc.latent.joint_target import JointTarget
from pymc_rmhmc.latent.latent_blocks import sites_at
from pymc_rmhmc.model.likelihoods.likelihood_kernel import compile_outputs
from tests.model.conftest import (
    COUNTS,
    INDEX,
    N,
    X,
)
from tests.model.joint_checks import (
    assert_gradient_is_a_difference_and_values_are_found_again,
    assert_is_the_model,
    assert_parts_are_the_model,
    bars_of,
    differences,
    differentiated,
    joint_of,
    log_density,
    made,
    made_by_values,
    ordered,
    parts_of,
    pulled_back,
    random_point,
)
from tests.model.joint_forms import FORMS, build, poisson
from tests.thinned import thinned

pytestmark = pytest.mark.usefixtures("without_a_compiler")


@pytest.mark.parametrize("name", thinned(FORMS, 4))
def test_the_parts_are_the_model_and_their_gradients_are_differences(name):
    model, joint = made(name)
    assert set(joint.theta.names) == FORMS[name][1]
    assert_parts_are_the_model(model, joint)


# Graphs of many operations, and arrays of each kind that a prior states.
COMPILED = ["student_t", "exponents_of_exponents", "sparse_item_response"]
COMPILED_FOR_LONG = [
    "kernels_of_many_kinds", "written_with_compound_operations", "filtered_by_a_scan", "decay", "scaled_rows",
    "on_a_grid_of_three_axes_read_as_an_array",
]  # fmt: skip


@pytest.mark.parametrize("name", [*COMPILED, *(pytest.param(n, marks=pytest.mark.slow) for n in COMPILED_FOR_LONG)])
def test_what_a_compiler_makes_of_the_graphs_is_what_they_say(name):
    """Against Python, by which these are evaluated in the other tests of this file."""
    model, plain = made(name)
    plain.bind(model.initial_point())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pymc_rmhmc.model.hyperparameters.compile_outputs", compile_outputs)
        compiled, rng, d = cloudpickle.loads(cloudpickle.dumps(plain)), np.random.default_rng(8), plain.theta.size
        theta = 0.3 * rng.standard_normal(d)
        found = [compiled.rest(theta), *(values_of(block, theta) for block in compiled.blocks)]
    assert_alike(found, [plain.rest(theta), *(values_of(block, theta) for block in plain.blocks)])


def values_of(block, theta: np.ndarray) -> list:
    """All that a block says at a θ."""
    rng, prior = np.random.default_rng(9), block.prior(theta)
    bars = ordered(bars_of(differentiated(block, theta)[1], rng), "F")
    values = [parts_of(prior), pulled_back(block, theta, rng.standard_normal(block.n_sites), bars)]
    values.append(block.likelihood(theta, 0.3 * rng.standard_normal(block.n_sites)))
    if block.has_moving_sites:
        values.append(block.information(theta, rng.standard_normal((2, block.n_sites))))
    return values


def assert_alike(found, expected) -> None:
    if isinstance(expected, (list, tuple)):
        for one, other in zip(found, expected, strict=True):
            assert_alike(one, other)
    elif sparse.issparse(expected):
        assert_alike(found.toarray(), expected.toarray())
    elif expected is not None:
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


# Of every kind of vector, by a constant matrix and by one that moves, with sites that stand still and that move.
BY_VALUES = [
    "scaled_processes_of_a_sum", "process_and_coefficients_of_warped_inputs", "grid_times_what_may_be_nothing",
    "on_a_grid_beside_another", "centred_rows_beside_a_vector", "process_times_nothing_at_one_place",
]  # fmt: skip


@pytest.mark.parametrize("name", BY_VALUES)
def test_sums_in_the_size_of_their_values_are_the_model(name):
    model, joint = made_by_values(name)
    assert all(block.design_shape == (block.n_sites, block.size) for block in joint.blocks)
    assert_parts_are_the_model(model, joint)
    assert_gradient_is_a_difference_and_values_are_found_again(model, joint)


# Each form of the coefficients' chart, with a noise and with a dispersion.
MOVING = {
    "noise_of_a_mixed_model": "LatentSpace",
    "dispersion_of_a_mixed_model": "LatentSpace",
    "noise_of_a_regression": "LatentSpace",
    "dispersion_of_a_regression": "LatentSpace",
    "noise_beside_more_coefficients_than_data": "SiteSpace",
    "mixed_model_scaled_and_hierarchical": "SiteSpace",
}


@pytest.mark.parametrize("name", MOVING)
def test_sites_of_coefficients_follow_the_likelihood_and_the_gradient_is_differences(name):
    (model, joint), rng = made(name), np.random.default_rng(5)
    joint.bind(model.initial_point())
    (block,), d = joint.blocks, joint.theta.size
    theta, n = 0.3 * rng.standard_normal(d), block.n_sites
    fitted = GaussianSites(rng.standard_normal(n), rng.exponential(1.0, n))
    sites = moving_sites(block, theta, fitted, rng.standard_normal(n), rng.exponential(0.3, n))
    target = JointTarget(joint, [sites], MarginalChart.linear(theta, np.eye(d)))
    target.at(np.zeros(target.size))  # what is made once is made at another θ
    position = 0.7 * rng.standard_normal(target.size)
    point = target.at(position)
    form = target.conditional(0, point.theta, sites_at(block, point.theta, sites))
    assert type(form).__name__ == MOVING[name]
    slopes = differences(lambda at: target.at(at).log_density, position)
    np.testing.assert_allclose(point.gradient, slopes, rtol=1e-5, atol=1e-5)
    if "sigma_log__" in joint.theta.names:
        which = joint.theta.slices[joint.theta.names.index("sigma_log__")]
        for power in (1e-6, 1e6):
            position[which] = -0.5 * np.log(power)
            assert block.information(target.at(position).theta, sites.eta) == pytest.approx(power * sites.information)
            assert not target.at(position).failure


def test_sites_of_coefficients_stand_still_where_not_all_likelihoods_have_parameters():
    assert not joint_of(build("coefficients_of_a_noise_and_of_counts")).blocks[0].has_moving_sites


TARGETS = [
    "on_a_grid", "on_a_grid_of_three_axes_read_as_an_array", "averages_over_a_grid", "rows_read_across",
    "centred_rows_of_two_means", "rows_of_two_covariances", "averaged_rows",
    "table_of_rows_with_covariances", "stack_of_one_covariance", "centred_rows_beside_a_vector",
    "scaled_rows", "factors_of_two_rows_of_which_each_observation_reads_one_value", "rows_that_stand_still",
    "exponents_of_exponents", "scaled_process", "process_times_a_number_of_any_sign",
    "whitened_process_of_any_sign", "scaled_processes_of_a_sum", "process_with_a_number_for_every_value",
    "scaled_on_a_grid", "coefficients_of_warped_inputs", "more_coefficients_of_warped_inputs_than_data", "decay",
    "item_response", "sparse_item_response", "factor_model", "periodic_hsgp",
    "process_of_two_likelihoods_that_read_it_apart", "process_and_coefficients_of_warped_inputs",
    "grid_times_what_may_be_nothing", "filtered_by_a_scan", "factors_as_long_as_the_coefficients",
]  # fmt: skip


@pytest.mark.parametrize("name", thinned(TARGETS, with_also=["rows_of_two_covariances"]))
def test_the_gradient_is_a_difference_and_values_are_found_again(name):
    """From the chart's coordinates through covariances to the model's hyperparameters."""
    assert_gradient_is_a_difference_and_values_are_found_again(*made(name))


def test_a_site_that_nothing_observes_has_no_slope():
    joint = joint_of(build("gathered_with_repeats"))
    theta = np.zeros(joint.theta.size)
    joint.bind({})
    slope = joint.blocks[0].likelihood(theta, np.ones(N))[1]
    np.testing.assert_array_equal(slope == 0.0, ~np.isin(np.arange(N), INDEX))


def test_a_theta_is_packed_and_unpacked():
    model = build("poisson_with_an_offset")
    joint, point = joint_of(model), random_point(model, 5)
    back = joint.theta.unpack(joint.theta.pack(point))
    assert set(back) == set(joint.theta.names)
    for name, value in back.items():
        np.testing.assert_array_equal(value, point[name])


def test_data_that_change_are_seen_at_the_next_bind():
    with pm.Model() as model:
        inputs, counts, exposure = pm.Data("x", X), pm.Data("counts", COUNTS), pm.Data("exposure", np.ones(N))
        kernel = pm.gp.cov.Matern32(1, ls=pm.HalfNormal("ls"))
        f = pm.gp.Latent(cov_func=kernel).prior("f", inputs, reparameterize=False)
        pm.Poisson("y", mu=exposure * pm.math.exp(f), observed=counts)
    joint, point = joint_of(model), random_point(model, 6)
    joint.bind(point)
    before = log_density(joint, point)
    with model:
        pm.set_data({"x": X**2, "counts": COUNTS[::-1].copy(), "exposure": np.linspace(1.0, 2.0, N)})
    assert log_density(joint, point) == before
    assert_is_the_model(joint, model)
    joint.bind(point)
    assert abs(log_density(joint, point) - before) > 0.1


def test_exponentials_are_those_of_the_data_that_are_bound():
    """They are kept from a prior to its derivative, and no longer: not where data change, nor in a pickle."""
    with pm.Model() as model:
        x = pm.Data("inputs", X[:, 0])
        distance = (x[:, None] - x[None, :]) ** 2 / pm.HalfNormal("ls")
        poisson(pm.MvNormal("f", np.zeros(N), cov=pt.exp(-distance) + np.eye(N)))
    joint = joint_of(model)
    (block,), theta, bars = joint.blocks, np.array([0.3]), (np.zeros(N), [np.ones((N, N))], None)
    joint.bind({})
    block.prior(theta)
    assert block._prior._kept[1]
    assert not cloudpickle.loads(cloudpickle.dumps(joint)).blocks[0]._prior._kept[1]
    with model:
        pm.set_data({"inputs": 0.5 * X[:, 0]})
    joint.bind({})
    found = block.prior_pullback(theta, *bars)
    block.prior(theta)
    np.testing.assert_allclose(found, block.prior_pullback(theta, *bars), rtol=1e-12)


def test_a_pickled_joint_model_goes_on():
    model = build("two_gps_that_share")
    joint, point = joint_of(model), random_point(model, 7)
    copy = cloudpickle.loads(cloudpickle.dumps(joint))
    for held in (joint, copy):
        held.bind(point)
    assert log_density(copy, point) == log_density(joint, point)
