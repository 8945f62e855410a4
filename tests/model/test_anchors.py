"""Sites that follow what shifts a likelihood: where they are anchored, and that the model stays what it is."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_rmhmc.model.observed.observed_terms import linear_reads
from tests.model.conftest import COUNTS, INDEX, INDEX_COUNTS, N, X, gp_prior
from tests.model.joint_checks import (
    assert_gradient_is_a_difference_and_values_are_found_again,
    assert_is_the_model,
    joint_of,
)

pytestmark = pytest.mark.usefixtures("without_a_compiler")

REAL = COUNTS / 2.0
CATEGORIES = np.array([0, 2, 1, 3, 3, 0, 1])
DESIGN = np.random.default_rng(3).standard_normal((N, 3))


def process(**options) -> pt.TensorVariable:
    return gp_prior("f", ls=pm.HalfNormal("ls"), **options)


def level() -> pt.TensorVariable:
    return pm.Normal("level", 0.0, 2.0)


def rate() -> pt.TensorVariable:
    return pm.HalfNormal("rate", 2.0)


def cutpoints() -> pt.TensorVariable:
    ordered = pm.distributions.transforms.ordered
    return pm.Normal("level", 0.0, 2.0, shape=3, transform=ordered, initval=[-1.0, 0.2, 1.5])


def a_background() -> None:
    pm.Poisson("y", pm.math.exp(process() + level()) + 0.01, observed=COUNTS)


def nothing_added() -> None:
    pm.Poisson("y", pm.math.exp(process() + level()) + 0.0, observed=COUNTS)


def censored() -> None:
    noise = pm.Normal.dist(process(reparameterize=False) + level(), pm.HalfNormal("noise"))
    pm.Censored("y", noise, lower=None, upper=1.5, observed=np.minimum(REAL, 1.5))


def a_rate_and_a_background() -> None:
    pm.Poisson("y", np.linspace(0.5, 2.0, N) * rate() * pm.math.exp(process()) + 0.01, observed=COUNTS)


def a_rate_that_divides() -> None:
    pm.Gamma("y", 2.0, 1.0 / (1.0 / (pm.math.exp(-process()) / rate()) + 0.01), observed=REAL + 0.1)


def a_registered_rate() -> None:
    exposures = np.array([0.0, *np.linspace(0.5, 2.0, N - 1)])
    pm.Poisson("y", exposures * rate() * pm.math.exp(process()), observed=COUNTS)


def twice() -> None:
    pm.Laplace("y", 2.0 * process() + level(), 1.0, observed=REAL)


def mirrored() -> None:
    pm.Laplace("y", level() - process(), 1.0, observed=REAL)


def looked_up() -> None:
    pm.Logistic("y", process(reparameterize=False)[INDEX] + level(), 0.7, observed=INDEX_COUNTS / 2.0)


def behind_a_scale() -> None:
    pm.Laplace("y", pm.HalfNormal("amplitude") * process() + level(), 1.0, observed=REAL)


def by_two_parameters() -> None:
    f, shift = process(), level()
    pm.Logistic("y", f + shift, pm.math.exp(0.5 * (f + shift)), observed=REAL)


def ordered_logistic() -> None:
    pm.OrderedLogistic("y", eta=process(), cutpoints=cutpoints(), observed=CATEGORIES, compute_p=False)


def ordered_probit() -> None:
    pm.OrderedProbit("y", eta=process(), cutpoints=cutpoints(), observed=CATEGORIES, compute_p=False)


def cutpoints_of_coefficients() -> None:
    eta = DESIGN @ pm.Normal("f", 0.0, pm.HalfNormal("ls"), shape=3)
    pm.OrderedLogistic("y", eta=eta, cutpoints=cutpoints(), observed=CATEGORIES, compute_p=False)


# What the sites gain where the hyperparameter that moves gains 1 on its unconstrained scale.
GAINS = {
    a_background: 1.0, nothing_added: 1.0, censored: 1.0, a_rate_and_a_background: 1.0, a_rate_that_divides: 1.0,
    a_registered_rate: np.array([0.0] + [1.0] * (N - 1)), twice: 0.5, mirrored: -1.0, behind_a_scale: 1.0,
    by_two_parameters: 1.0,
    looked_up: np.isin(np.arange(N), INDEX).astype(float), ordered_logistic: -1.0, ordered_probit: -1.0,
    cutpoints_of_coefficients: -1.0,
}  # fmt: skip


def moving(joint) -> np.ndarray:
    """The coordinate of a level or a log rate, or the one of ordered cutpoints that shifts all of them."""
    step = np.zeros(joint.theta.size)
    (name,) = (name for name in joint.theta.names if name.startswith(("level", "rate")))
    step[joint.theta.slices[joint.theta.names.index(name)].start] = 1.0
    return step


@pytest.mark.parametrize("make", GAINS, ids=lambda make: make.__name__)
def test_sites_follow_what_shifts_a_likelihood(make):
    with pm.Model() as model:
        make()
    joint = joint_of(model)
    joint.bind(model.initial_point())
    (block,), theta = joint.blocks, 0.3 * np.random.default_rng(0).standard_normal(joint.theta.size)
    step = moving(joint)
    before, after = (block.prior(at).shift.copy() for at in (theta, theta + step))
    np.testing.assert_allclose(after - before, GAINS[make], atol=1e-12)
    # Where sites are held, what moves them may not move.
    assert not step[joint.of_likelihoods].any()


# One of every way to be anchored.
WAYS = [
    a_background, a_rate_and_a_background, a_registered_rate, looked_up, behind_a_scale, by_two_parameters,
    ordered_logistic, cutpoints_of_coefficients,
]  # fmt: skip


@pytest.mark.parametrize("make", WAYS, ids=lambda make: make.__name__)
def test_a_model_with_anchored_sites_is_the_model(make):
    with pm.Model() as model:
        make()
    joint = joint_of(model)
    assert_is_the_model(joint, model)
    assert_gradient_is_a_difference_and_values_are_found_again(model, joint)


def test_the_slope_of_a_likelihood_does_not_move_with_what_sites_follow():
    """Of ordered categories, at the same sites: by the common shift it is the same, by one cutpoint nearly."""
    with pm.Model() as model:
        ordered_logistic()
    joint = joint_of(model)
    joint.bind(model.initial_point())
    (block,), theta = joint.blocks, joint.theta.pack(model.initial_point())
    eta = block.prior(theta).shift + np.linspace(-0.5, 0.5, N)
    slope = block.likelihood(theta, eta)[1]
    np.testing.assert_allclose(block.likelihood(theta + 2.0 * moving(joint), eta)[1], slope, rtol=1e-9)
    first = joint.theta.slices[joint.theta.names.index("level_ordered__")].start
    apart = theta.copy()
    apart[first + 1] += 0.3  # the distance of the first two, as its logarithm
    change = np.exp(apart[first + 1]) - np.exp(theta[first + 1])
    moved = block.likelihood(apart, eta)[1] - slope
    np.testing.assert_allclose(moved[np.isin(CATEGORIES, [0, 3])], 0.0, atol=1e-12)
    # Had its sites stood still, the slope of a category between two cutpoints would have moved by a curvature of 0.3.
    assert (np.abs(moved[CATEGORIES == 1]) < 0.1 * change).all()


def test_the_end_of_an_ordered_scale_follows_its_own_cutpoint():
    with pm.Model() as model:
        ordered_logistic()
    joint = joint_of(model)
    joint.bind(model.initial_point())
    theta = joint.theta.pack(model.initial_point())
    cuts = np.array([-1.0, 0.2, 1.5])
    shift = joint.blocks[0].prior(theta).shift
    np.testing.assert_allclose(shift[CATEGORIES == 0], -cuts[0])
    np.testing.assert_allclose(shift[CATEGORIES == 3], -cuts[2])
    assert ((-cuts[1] < shift[CATEGORIES == 1]) & (shift[CATEGORIES == 1] < -cuts[0])).all()


STILL = {
    "of either sign": lambda f: pm.Poisson("y", 9.0 + pm.Normal("w") * pm.math.exp(f), observed=COUNTS),
    "a scale": lambda f: pm.Laplace("y", f, pm.HalfNormal("w"), observed=REAL),
    "beside a curve": lambda f: pm.Laplace("y", pm.Normal("w") + pm.math.exp(f), 1.0, observed=REAL),
}


@pytest.mark.parametrize("name", STILL)
def test_sites_stand_still_where_nothing_shifts_what_is_read(name):
    with pm.Model() as model:
        STILL[name](process())
    joint = joint_of(model)
    assert not joint.blocks[0].prior(np.full(joint.theta.size, -0.4)).shift.any()
    assert_is_the_model(joint, model)


def test_a_shape_that_is_part_of_a_mean_moves_while_sites_are_held():
    """Of a Gamma with a rate, both in the offset: sites follow the rate alone."""
    with pm.Model() as model:
        shape = pm.HalfNormal("shape")
        pm.Gamma("y", shape, 1.0 / (rate() * pm.math.exp(process())), observed=REAL + 0.1)
    joint = joint_of(model)
    assert [joint.theta.names[i] for i in joint.of_likelihoods] == ["shape_log__"]
    shift = [joint.blocks[0].prior(at).shift.copy() for at in np.vstack([np.zeros(3), np.eye(3)])]
    for name, moved in zip(joint.theta.names, shift[1:], strict=True):
        np.testing.assert_allclose(moved - shift[0], name == "rate_log__", atol=1e-12)
    assert_is_the_model(joint, model)


def test_slices_of_what_is_added_are_read_as_one():
    """An ordered probit has its tails from parts of one difference, each divided by a constant."""
    with pm.Model() as model:
        ordered_probit()
    (read,) = linear_reads(model, model["y"], model["f"])
    assert read.node.ndim == 2
    assert not read.logarithms


def test_a_curvature_that_is_nowhere_known_weighs_alike(monkeypatch):
    monkeypatch.setattr("pymc_rmhmc.model.observed.observed_terms._slope", lambda *_: None)
    with pm.Model() as model:
        ordered_logistic()
    joint = joint_of(model)
    joint.bind(model.initial_point())
    theta = joint.theta.pack(model.initial_point())
    np.testing.assert_allclose(joint.blocks[0].prior(theta).shift, -np.mean([-1.0, 0.2, 1.5]))
    assert_is_the_model(joint, model)


def test_a_process_at_unobserved_places_is_anchored_where_it_is_read():
    with pm.Model() as model:
        f = process()
        pm.Laplace("y", f[:3] + pm.Normal("level"), 1.0, observed=REAL[:3])
        pm.Laplace("z", f[3:] + pm.Normal("other"), 1.0, observed=REAL[3:] + X[3:, 0])
    joint = joint_of(model)
    theta = np.arange(1.0, joint.theta.size + 1.0)
    point = joint.theta.unpack(theta)
    expected = np.repeat([float(point["level"]), float(point["other"])], [3, N - 3])
    np.testing.assert_allclose(joint.blocks[0].prior(theta).shift, expected)


@pytest.mark.parametrize("apart", [False, True])
def test_a_rate_of_one_likelihood_that_is_a_parameter_of_another_moves_what_is_held(apart):
    """It moves sites by the first, so that moving it with the sites held would leave their prior out."""
    with pm.Model() as model:
        f, scale = process(), rate()
        g = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=0.3)).prior("g", X=X) if apart else f
        pm.Poisson("y", scale * pm.math.exp(f), observed=COUNTS)
        pm.NegativeBinomial("z", mu=pm.math.exp(g), alpha=scale, observed=COUNTS)
    joint = joint_of(model)
    assert joint.of_likelihoods.size == 0
    assert_is_the_model(joint, model)


def test_a_rate_that_is_a_parameter_of_its_own_likelihood_stays_one():
    with pm.Model() as model:
        shape = pm.HalfNormal("shape", 2.0)
        pm.Gamma("y", alpha=shape, beta=shape / pm.math.exp(process()), observed=REAL + 0.1)
    joint = joint_of(model)
    assert [joint.theta.names[i] for i in joint.of_likelihoods] == ["shape_log__"]
