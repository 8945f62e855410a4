"""Which variables are sampled together with latents, which are left to other steps, and the reason that is given."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_rmhmc.model import read_joint, read_structure, read_together
from tests.model.conftest import (
    COUNTS,
    INDEX,
    INDEX_COUNTS,
    MODELS,
    N,
    exact_log_density,
    gp_prior,
)
from tests.model.joint_checks import assert_is_the_model, joint_of, log_density, random_point
from tests.model.joint_forms import DESIGN, build, poisson

pytestmark = pytest.mark.usefixtures("without_a_compiler")


def test_named_hyperparameters_are_sampled_and_the_rest_conditioned_on():
    model = build("ard")
    joint = joint_of(model, ["f", "ls"])
    assert joint.theta.names == ("ls_log__",)
    assert "eta_log__" in joint.inputs
    assert_is_the_model(joint, model)
    _, reason = read_together(model, ["f"], model.initial_point())
    assert reason == "vars names latent variables alone"


def test_a_hyperparameter_that_no_block_depends_on_is_named():
    model = build("beside_others")
    joint = read_joint(read_structure(model), model.initial_point(), [model["apart"]])
    assert joint == "no block depends on apart"


def test_a_discrete_variable_is_conditioned_on():
    with pm.Model() as model:
        k = pm.Bernoulli("k", 0.4)
        ls = pm.HalfNormal("ls")
        poisson(gp_prior("f", ls=ls * pt.switch(k, 0.5, 2.0)))
    joint = joint_of(model)
    assert joint.theta.names == ("ls_log__",)
    assert "k" in joint.inputs
    exact, totals = exact_log_density(model), []
    for k in (0, 1):
        point = random_point(model, 8) | {"k": np.array(k)}
        joint.bind(point)
        totals.append(log_density(joint, point))
        assert totals[-1] == pytest.approx(float(exact(point)), abs=1e-7)
    assert totals[0] != pytest.approx(totals[1], abs=1e-3)


def test_many_lengthscales_are_sampled_with_the_process():
    with pm.Model() as model:
        inputs = np.random.default_rng(0).standard_normal((N, 150))
        kernel = pm.gp.cov.ExpQuad(150, ls=10.0 + pm.HalfNormal("ls", shape=150))
        poisson(pm.gp.Latent(cov_func=kernel).prior("f", inputs, reparameterize=False))
    joint = joint_of(model)
    assert joint.theta.size == 150
    assert_is_the_model(joint, model)


def logistic_with_a_scale() -> tuple[str, ...]:
    f = gp_prior("f", ls=pm.HalfNormal("ls"), mean=0.4, reparameterize=False)
    pm.Logistic("y", mu=f[INDEX] + pm.Normal("level"), s=pm.HalfNormal("s"), observed=INDEX_COUNTS / 2.0)
    return ("s_log__",)


def laplace_of_a_scaled_process() -> tuple[str, ...]:
    f = pm.HalfNormal("amplitude") * gp_prior("f", ls=pm.HalfNormal("ls"))
    pm.Laplace("y", mu=f, b=pm.HalfNormal("b"), observed=COUNTS / 2.0)
    return ("b_log__",)


def beta_of_a_link() -> tuple[str, ...]:
    mean, size = pm.math.invlogit(gp_prior("f", ls=pm.HalfNormal("ls"))), pm.HalfNormal("size", 5.0)
    pm.Beta("y", mean * size, (1.0 - mean) * size, observed=np.clip(COUNTS / 10.0, 0.1, 0.9))
    return ("size_log__",)


def censored_with_a_noise() -> tuple[str, ...]:
    noise = pm.Normal.dist(gp_prior("f", ls=pm.HalfNormal("ls")), pm.HalfNormal("noise"))
    pm.Censored("y", noise, lower=None, upper=2.0, observed=np.minimum(COUNTS, 2.0))
    return ("noise_log__",)


def registered_and_not_of_the_same_values() -> tuple[str, ...]:
    f = gp_prior("f", ls=pm.HalfNormal("ls"), reparameterize=False)
    pm.Logistic("y", mu=f[INDEX], s=pm.HalfNormal("s"), observed=INDEX_COUNTS / 2.0)
    pm.NegativeBinomial("z", mu=pm.math.exp(f + pm.Normal("level")), alpha=pm.HalfNormal("alpha"), observed=COUNTS)
    return "s_log__", "alpha_log__"


UNREGISTERED = [
    logistic_with_a_scale, laplace_of_a_scaled_process, beta_of_a_link, censored_with_a_noise,
    registered_and_not_of_the_same_values,
]  # fmt: skip


@pytest.mark.parametrize("make", UNREGISTERED, ids=lambda m: m.__name__)
def test_hyperparameters_of_likelihoods_that_are_not_registered_are_taken_in(make):
    with pm.Model() as model:
        alone = make()
    joint = joint_of(model)
    assert set(joint.theta.names) == {name for name in model.initial_point() if not name.startswith("f")}
    assert {joint.theta.names[i] for i in joint.of_likelihoods} == set(alone)
    assert_is_the_model(joint, model)
    # The slope by site and the gradient by θ, of a density that has kinks at no point that is drawn.
    (block,), rng = joint.blocks, np.random.default_rng(0)
    theta, eta = 0.3 * rng.standard_normal(joint.theta.size), 0.3 * rng.standard_normal(joint.blocks[0].n_sites)
    _, slope, gradient = block.likelihood(theta, eta)
    for along, found in ((0, gradient), (1, slope)):
        for i in range(found.size):
            ends = []
            for step in (-1e-6, 1e-6):
                moved = [theta.copy(), eta.copy()]
                moved[along][i] += step
                ends.append(block.likelihood(*moved)[0])
            assert found[i] == pytest.approx((ends[1] - ends[0]) / 2e-6, rel=1e-5, abs=1e-5)


def outputs_of_which_one_is_unregistered() -> None:
    f = gp_prior("f", ls=pm.HalfNormal("ls"), n_outputs=2)
    pm.Logistic("y", mu=f[0], s=pm.HalfNormal("s"), observed=COUNTS / 2.0)
    pm.Poisson("z", mu=pm.math.exp(f[1] + pm.Normal("level")), observed=COUNTS)


def unregistered_beside_averages() -> None:
    f = gp_prior("f", ls=pm.HalfNormal("ls"))
    pm.Logistic("y", mu=f, s=1.0, observed=COUNTS / 2.0)
    pm.Poisson("z", mu=pm.math.exp(f.mean()), observed=3)


def many_rows() -> None:
    covariances = pm.HalfNormal("scale") * np.stack([np.eye(2) + 0.1 * i for i in range(9)])
    pm.Poisson("y", mu=pm.math.exp(pm.MvNormal("f", np.zeros(2), cov=covariances).sum(axis=0)), observed=np.ones(2))


def more_lengthscales_than_any() -> None:
    inputs = np.random.default_rng(0).standard_normal((N, 1001))
    kernel = pm.gp.cov.ExpQuad(1001, ls=pm.HalfNormal("ls", shape=1001))
    poisson(pm.gp.Latent(cov_func=kernel).prior("f", inputs))


REASONS = [
    (more_lengthscales_than_any, "there are 1001 hyperparameters, more than 1000"),
    (many_rows, "f has more than 8 rows, which would be one vector"),
    (outputs_of_which_one_is_unregistered, "the likelihood of f has no closed form here, and f has rows"),
    (
        unregistered_beside_averages,
        "the likelihood of f has no closed form here, and another reads more than single values",
    ),
    (MODELS["centred"], "no block depends on continuous hyperparameters"),
]


@pytest.mark.parametrize(("make", "reason"), REASONS, ids=lambda v: getattr(v, "__name__", ""))
def test_what_cannot_be_sampled_together_says_why(make, reason):
    with pm.Model() as model:
        inner = make()
    model = inner or model
    assert read_together(model, None, model.initial_point())[1] == reason


def test_vectors_of_coefficients_beside_a_process_are_latents():
    with pm.Model() as model:
        slopes = pm.Normal("slopes", 0.0, pm.HalfNormal("spread"), shape=4)
        poisson(pm.Normal("level") + gp_prior("f", ls=pm.HalfNormal("ls")) + pm.math.dot(DESIGN, slopes))
    structure, joint = read_together(model, None, model.initial_point())
    assert set(joint.theta.names) == {"spread_log__", "ls_log__"}
    assert set(structure.left_over) == {"spread", "ls"}
    joint.bind({})
    kinds = [type(each).__name__ for each in joint.blocks[0].prior(np.zeros(joint.theta.size)).vectors]
    assert sorted(kinds) == ["StatedCoefficients", "StatedCoefficients", "StatedDense"]
    assert_is_the_model(joint, model)
    named = joint_of(model, ["f", "level", "slopes", "spread", "ls"])
    assert set(named.theta.names) == set(joint.theta.names)
    assert set(named.blocks[0].value_names) == set(joint.blocks[0].value_names)


# What is there beside a process, and whether it is latent as well.
BESIDE = {
    "a number alone": (lambda f: f + pm.Normal("b"), False),
    "slopes": (lambda f: f + DESIGN @ pm.Normal("b", shape=4), True),
    "a vector of one": (lambda f: f + pm.Normal("b", shape=1), False),
    "one that multiplies it": (lambda f: f * pm.Normal("b", shape=N), False),
    "one that is not read linearly": (lambda f: f + pt.exp(pm.Normal("b", shape=N)), False),
    "another prior": (lambda f: f + DESIGN @ pm.Laplace("b", 0.0, 1.0, shape=4), False),
}


@pytest.mark.parametrize("name", BESIDE)
def test_what_is_no_vector_of_coefficients_is_a_hyperparameter(name):
    write, is_latent = BESIDE[name]
    with pm.Model() as model:
        poisson(write(gp_prior("f", ls=pm.HalfNormal("ls"))))
    joint = joint_of(model)
    assert set(joint.theta.names) == ({"ls_log__"} if is_latent else {"ls_log__", "b"})
    assert_is_the_model(joint, model)


def test_coefficients_in_the_mean_of_a_process_are_hyperparameters_of_it():
    """As the mean of the process they are in its prior, and not independent of it."""
    with pm.Model() as model:
        slopes = pm.Normal("slopes", shape=4)
        f = pm.MvNormal("f", pt.dot(DESIGN, slopes), cov=pm.HalfNormal("scale") * (np.eye(N) + 0.4))
        poisson(f)
    assert set(joint_of(model).theta.names) == {"slopes", "scale_log__"}


def test_a_process_with_nothing_but_coefficients_beside_it_has_no_hyperparameters():
    with pm.Model() as model:
        poisson(pm.MvNormal("f", np.zeros(N), cov=np.eye(N) + 0.4) + DESIGN @ pm.Normal("slopes", shape=4))
    structure, joint = read_together(model, None, model.initial_point())
    assert [str(v.name) for v in structure.variables] == ["f", "slopes"]
    assert joint == "no block depends on continuous hyperparameters"


@pytest.mark.parametrize("n", [0, N])
def test_coefficients_that_too_many_or_no_observations_read_are_hyperparameters(n, monkeypatch):
    monkeypatch.setattr("pymc_rmhmc.model.together.MOST_ENTRIES", N * (N + 4) - 1)
    with pm.Model() as model:
        eta = gp_prior("f", ls=pm.HalfNormal("ls"))[np.arange(n)] + DESIGN[:n] @ pm.Normal("slopes", shape=4)
        pm.Poisson("y", mu=pm.math.exp(eta), observed=COUNTS[:n])
    assert set(joint_of(model).theta.names) == {"slopes", "ls_log__"}


def test_coefficients_beside_rows_are_hyperparameters():
    """With them the rows would be one vector, and its matrices as large as all of them."""
    with pm.Model() as model:
        slopes = pm.Normal("slopes", shape=4)
        f = pm.MvNormal("f", np.zeros(N), cov=pm.HalfNormal("scale") * (np.eye(N) + 0.4), shape=(2, N))
        pm.Poisson("y", mu=pm.math.exp(f + DESIGN @ slopes), observed=np.stack([COUNTS, COUNTS[::-1]]))
    joint = joint_of(model)
    assert set(joint.theta.names) == {"slopes", "scale_log__"}
    assert joint.blocks[0].rows.shape == (2, N)


def test_more_coefficients_than_a_dense_matrix_is_made_of_are_left_apart(monkeypatch):
    monkeypatch.setattr("pymc_rmhmc.model.together.MOST_COEFFICIENTS", 3)
    with pm.Model() as model:
        poisson(gp_prior("f", ls=pm.HalfNormal("ls")) + DESIGN @ pm.Normal("slopes", shape=4))
    assert set(joint_of(model).theta.names) == {"slopes", "ls_log__"}
