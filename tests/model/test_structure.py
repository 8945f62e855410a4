"""What is found in a model: variables, blocks, likelihoods, and what is left."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_rmhmc.errors import UnsupportedModelError
from pymc_rmhmc.model import read_structure
from pymc_rmhmc.model.structure import has_own_initval
from tests.model.conftest import BINARY, COUNTS, MODELS, N, covariance, gp_prior

# Names of the blocks' latent variables, and of the observations of each.
FOUND = {
    "centred": [(["f"], ["y"])],
    "whitened": [(["f_rotated_"], ["y"])],
    "dims": [(["f_rotated_"], ["y"])],
    "on_a_grid": [(["f_rotated_"], ["y"])],
    "mvnormal_cov": [(["f"], ["y"])],
    "mvnormal_tau": [(["f"], ["y"])],
    "two_outputs_whitened": [(["f_rotated_"], ["y"])],
    "two_gps": [(["f_rotated_"], ["y"]), (["g"], ["z"])],
    "shared_latent": [(["f"], ["y", "z"])],
    "additive": [(["f_rotated_", "g"], ["y"])],
    "additive_and_alone": [(["f_rotated_", "g_rotated_"], ["y", "z"])],
    "missing_observations": [(["f"], ["y_unobserved", "y_observed"])],
    "unregistered": [(["f"], ["y"])],
    "unregistered_sum": [(["f_rotated_", "g"], ["y"])],
    "unregistered_coefficients": [(["f"], ["y"])],
}


@pytest.mark.parametrize("name", FOUND)
def test_blocks_are_the_connected_parts(name):
    structure = read_structure(MODELS[name]())
    found = [
        ([v.variable.name for v in block.latents], [o.variable.name for o in block.observations])
        for block in structure.blocks
    ]
    assert [(latents, sorted(observed)) for latents, observed in found] == [
        (latents, sorted(observed)) for latents, observed in FOUND[name]
    ]


@pytest.mark.parametrize("name", MODELS)
def test_every_form_is_found_without_naming_it(name):
    model = MODELS[name]()
    structure = read_structure(model)
    sampled = {v.name for v in structure.variables}
    assert sampled == {v.name for v in model.free_RVs if v.name.startswith(("f", "g"))}
    assert set(structure.left_over) == {v.name for v in model.free_RVs} - sampled
    assert [v.name for v in structure.value_vars] == [v.name for v in structure.variables]


@pytest.mark.parametrize(
    ("name", "form", "root"),
    [
        ("centred", "centred", "covariance"),
        ("whitened", "whitened", "covariance"),
        ("mvnormal_cov", "centred", "covariance"),
        ("mvnormal_chol", "centred", "cholesky"),
        ("mvnormal_upper_chol", "centred", "cholesky"),
        ("mvnormal_lkj", "centred", "cholesky"),
        ("mvnormal_tau", "centred", "precision"),
        ("mvnormal_tau_rows", "centred", "precision"),
        ("two_outputs_centred", "centred", "covariance"),
        ("on_a_grid", "whitened", "kronecker"),
        ("averages_over_a_grid", "whitened", "kronecker"),
    ],
)
def test_the_prior_is_read_as_the_model_states_it(name, form, root):
    (block,) = read_structure(MODELS[name]()).blocks
    (latent,) = block.latents
    assert (latent.form, latent.root) == (form, root)
    assert latent.name == "f"


@pytest.mark.parametrize("given", ["name", "variable", "value", "deterministic", "list"])
def test_variables_may_be_named_in_several_ways(given):
    model = MODELS["whitened"]()
    rotated = model["f_rotated_"]
    vars_ = {
        "name": "f_rotated_",
        "variable": rotated,
        "value": model.rvs_to_values[rotated],
        "deterministic": model["f"],
        "list": ["f", rotated],
    }[given]
    assert read_structure(model, vars_).variables == [rotated]


def test_the_likelihood_and_its_curvatures_are_named():
    (block,) = read_structure(MODELS["other_parameter"]()).blocks
    (observation,) = block.observations
    assert "negativebinomial" in observation.label
    assert "log" in observation.label
    assert set(observation.kinds) <= {"hessian", "fisher"}
    (block,) = read_structure(MODELS["unregistered"]()).blocks
    assert block.observations[0].likelihood is None
    assert block.observations[0].kinds == ("softabs_curvature",)


def test_independent_normals_must_be_named():
    with pm.Model() as model:
        b = pm.Normal("b", shape=N)
        pm.Poisson("y", mu=pm.math.exp(gp_prior("f") + b), observed=COUNTS)
    assert [v.name for v in read_structure(model).variables] == ["f_rotated_"]
    assert {v.name for v in read_structure(model, ["f", "b"]).variables} == {"f_rotated_", "b"}


def test_what_cannot_be_sampled_is_left_with_the_reason():
    with pm.Model() as model:
        pm.Poisson("y", mu=pm.math.exp(gp_prior("f")), observed=COUNTS)
        g = gp_prior("g", reparameterize=False)
        pm.Potential("penalty", -(g**4).sum())
        gp_prior("h", reparameterize=False)
    structure = read_structure(model)
    assert [v.name for v in structure.variables] == ["f_rotated_"]
    assert "penalty" in structure.reasons["g"]
    assert "no likelihood" in structure.reasons["h"]


def nested() -> pm.Model:
    """The scale of f's prior is the GP g."""
    with pm.Model() as model:
        g = gp_prior("g")
        scale = pt.exp(g)
        v = pm.Normal("f_rotated_", shape=N)
        f = pt.linalg.cholesky(covariance() * scale[:, None] * scale[None, :]) @ v
        pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)
        pm.Bernoulli("z", logit_p=g, observed=BINARY)
    return model


def test_a_latent_in_the_prior_of_another_is_left_to_other_steps():
    structure = read_structure(nested())
    assert [v.name for v in structure.variables] == ["f_rotated_"]
    assert structure.reasons["g_rotated_"] == "the prior of f depends on it"


def test_rotated_values_that_are_read_twice_are_left_with_the_reason():
    with pm.Model() as model:
        f = gp_prior("f")
        pm.Poisson("y", mu=pm.math.exp(f + 0.3 * model["f_rotated_"] ** 2), observed=COUNTS)
        gp_prior("g", reparameterize=False)
        pm.GaussianRandomWalk("w", sigma=1.0, init_dist=pm.Normal.dist(), steps=3)
        pm.StudentT("t", 3.0)
    reasons = r"(?s)f: read as.*g, w: no likelihood depends on it.*not Gaussian: t \(StudentT\)"
    with pytest.raises(UnsupportedModelError, match=reasons):
        read_structure(model)
    assert read_structure(model, ["f_rotated_"]).blocks[0].latents[0].form == "independent"


ROOT = np.linalg.cholesky(covariance() + np.eye(N))


def factor(n: int) -> pt.TensorVariable:
    return pt.linalg.cholesky(pt.as_tensor(ROOT[:n, :n] @ ROOT[:n, :n].T))


def grid_of_one_factor(v):
    same = factor(3)
    return pm.math.kron_dot([same, same], v).flatten()


def grid_read_as_an_array(v):
    """As the reader's own reshapes go on from there."""
    return pm.math.kron_dot([factor(3), factor(3)], v).flatten().reshape((3, 3)).T.flatten()


def axes_in_the_wrong_order(v):
    return (factor(3) @ (factor(3) @ v.reshape((3, 3))).reshape((3, 3)).T).flatten()


def upper_factor(v):
    return pm.math.kron_dot([factor(3).T, factor(3)], v).flatten()


def read_besides(v):
    return pm.math.kron_dot([factor(3), factor(3)], v).flatten() + 0.1 * v


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (grid_of_one_factor, True),
        (grid_read_as_an_array, True),
        (axes_in_the_wrong_order, False),
        (upper_factor, False),
        (read_besides, False),
    ],
)
def test_a_kronecker_product_is_found_by_what_it_comes_to(make, found):
    with pm.Model() as model:
        f = make(pm.Normal("f_rotated_", shape=9))
        pm.Poisson("y", mu=pm.math.exp(f), observed=np.arange(9))
    root = "kronecker" if found else "scale"
    assert read_structure(model, ["f_rotated_"]).blocks[0].latents[0].root == root


@pytest.mark.parametrize("law", [{"sigma": 2.0}, {"mu": 1.0}, {"sigma": "free"}])
def test_values_that_are_not_standard_normal_are_none_of_a_grid(law):
    with pm.Model() as model:
        law = {name: pm.HalfNormal("s") if value == "free" else value for name, value in law.items()}
        f = pm.math.kron_dot([factor(3), factor(3)], pm.Normal("f_rotated_", **law, shape=9)).flatten()
        pm.Poisson("y", mu=pm.math.exp(f), observed=np.arange(9))
    (latent,) = read_structure(model).blocks[0].latents
    assert (latent.form, latent.root) == ("independent", "scale")


def test_initial_values_of_the_users_are_seen():
    model = MODELS["centred"]()
    assert not has_own_initval(model, read_structure(model).variables)
    with pm.Model() as model:
        f = pm.MvNormal("f", np.zeros(N), np.eye(N), initval=np.ones(N))
        pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)
    assert has_own_initval(model, read_structure(model).variables)
    assert not has_own_initval(model, ())
