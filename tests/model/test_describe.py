"""What a user is told of a model."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

from pymc_rmhmc import RMHMC, describe

N = 8
X = np.linspace(0.0, 1.0, N)[:, None]


def test_blocks_priors_likelihoods_and_what_is_left(capsys):
    with pm.Model() as model:
        lengthscale = pm.LogNormal("ls", -1.0, 0.3)
        count = pm.Poisson("k", 3.0)
        f = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=lengthscale)).prior("f", X=X)
        g = pm.MvNormal("g", np.zeros(N), cov=np.eye(N))
        pm.Poisson("y", mu=pm.math.exp(f), observed=np.arange(N))
        pm.StudentT("z", nu=4, mu=g + count, sigma=1.0, observed=np.zeros(N))
        description = describe(model)
    printed = capsys.readouterr().out
    assert printed.strip() == str(description).strip() == repr(description).strip()
    by_name = {block.name: block for block in description.blocks}
    assert by_name["f"].n_latent == by_name["f"].n_sites == N
    assert "whitened" in by_name["f"].prior
    assert by_name["f"].likelihoods == ("y: poisson (log link)",)
    assert by_name["f"].kinds == ("hessian", "fisher")
    assert by_name["f"].depends_on == ("ls",)
    assert "centred" in by_name["g"].prior
    assert by_name["g"].kinds == ("fisher",)
    assert description.metric == "flat"
    assert description.hyperparameters == ("ls",)
    assert description.alone == ""
    assert description.left_over == {"k": "Metropolis"}
    assert set(description.reasons) == {"k"}
    for word in ("Sampled by RMHMC", "Left to other steps", "Metropolis", "constant sites", "in one chain: ls."):
        assert word in printed


def _gp(name, **options):
    return pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=0.3)).prior(name, X=X, **options)


def _gathered():
    """Hyperparameters of mean, covariance and likelihood, and one above them; values read twice and not at all."""
    above = pm.HalfNormal("above")
    level, ls = pm.Normal("level", 0, above), pm.LogNormal("ls", -1.0, 0.3)
    f = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=ls)).prior("f", X=X, reparameterize=False)
    places = np.array([0, 0, 3, 5])
    pm.NegativeBinomial("y", mu=pm.math.exp(level + f[places]), alpha=pm.HalfNormal("alpha"), observed=[1, 0, 2, 4])


def _nothing_free():
    pm.Poisson("y", mu=pm.math.exp(_gp("f")), observed=np.arange(N))


def _additive():
    pm.Poisson("y", mu=pm.math.exp(pm.Normal("level") + _gp("f") + _gp("g")), observed=np.arange(N))


def _rows():
    pm.Poisson("y", mu=pm.math.exp(pm.Normal("level") + _gp("f", n_outputs=2)), observed=np.ones((2, N), dtype=int))


def _unregistered():
    pm.Laplace("y", mu=_gp("f"), b=pm.HalfNormal("b"), observed=np.zeros(N))


def _unregistered_rows():
    pm.Laplace("y", mu=_gp("f", n_outputs=2), b=pm.HalfNormal("b"), observed=np.zeros((2, N)))


def _combined():
    averages = np.full((3, N), 1.0 / N) @ _gp("f")
    pm.Poisson("y", mu=pm.math.exp(pm.Normal("level") + averages), observed=[1, 2, 3])


@pytest.mark.parametrize(
    ("build", "taken", "reason"),
    [
        (_gathered, ("above", "level", "ls", "alpha"), ""),
        (_nothing_free, (), "no block depends on continuous hyperparameters"),
        (_additive, ("level",), ""),
        (_rows, ("level",), ""),
        (_unregistered, ("b",), ""),
        (_unregistered_rows, (), "the likelihood of f has no closed form here, and f has rows"),
        (_combined, ("level",), ""),
    ],
)
def test_hyperparameters_that_are_taken_in_are_those_that_the_step_samples(build, taken, reason, caplog):
    with pm.Model() as model:
        build()
        description = describe()
        with caplog.at_level("INFO", logger="pymc.rmhmc"):
            step = RMHMC()
    assert description.hyperparameters == taken
    assert description.alone == reason
    names = {str(rv.name) for rv in model.free_RVs}
    sampled = {str(model.values_to_rvs[value].name) for value in step.vars}
    assert set(description.left_over) == names - sampled
    assert set(taken) <= sampled
    words = f"together with {', '.join(taken)}" if taken else reason
    assert not description.left_over or words in caplog.text
    assert (f"in one chain: {', '.join(taken)}." if taken else f"sampled alone: {reason}.") in _one_line(description)


def _one_line(description):
    return " ".join(str(description).split())


def test_rows_of_one_variable_are_described_one_by_one():
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=0.3)).prior("f", X=X, n_outputs=2)
        pm.Bernoulli("y", logit_p=f, observed=np.zeros((2, N), dtype=int))
        description = describe()
    assert [block.name for block in description.blocks] == ["f[0]", "f[1]"]
    assert describe(model).blocks[0].likelihoods == ("y: bernoulli (logit link)",)


def test_a_model_without_latent_gaussian_blocks_says_why(capsys):
    with pm.Model():
        mu = pm.Normal("mu")
        pm.Normal("y", mu**2, 1.0, observed=[1.0, 2.0])
        description = describe()
    assert description.blocks == ()
    assert description.hyperparameters == ()
    assert "No latent Gaussian block" in capsys.readouterr().out
    assert description.left_over == {"mu": "NUTS"}
    assert description.reasons == {"mu": "the predictor of y is not linear in it (`pow`)"}


def test_a_latent_variable_that_cannot_be_sampled_is_named_with_its_reason():
    with pm.Model():
        f = pm.MvNormal("f", np.zeros(N), cov=np.eye(N))
        g = pm.MvNormal("g", np.zeros(N), cov=np.eye(N))
        pm.Poisson("y", mu=pm.math.exp(f), observed=np.arange(N))
        pm.MvNormal("z", mu=g, cov=np.eye(N), observed=np.zeros(N))
        description = describe()
    assert [block.name for block in description.blocks] == ["f"]
    assert "does not factorise" in description.reasons["g"]
    assert description.left_over["g"] == "NUTS"


@pytest.mark.parametrize("psi", [0.3, "free"])
def test_a_zero_inflated_poisson_is_read_as_registered(psi):
    with pm.Model():
        f = pm.MvNormal("f", np.zeros(N), cov=np.eye(N))
        chance = pm.Beta("psi", 2, 2) if psi == "free" else psi
        pm.ZeroInflatedPoisson("y", psi=chance, mu=pm.math.exp(f), observed=np.arange(N))
        description = describe()
    assert description.blocks[0].likelihoods == ("y: zeroinflatedpoisson (log link)",)
    assert description.blocks[0].kinds == ("fisher",)
