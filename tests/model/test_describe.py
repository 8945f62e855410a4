"""What a user is told of a model."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

from pymc_rmhmc import describe

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
    assert by_name["f"].depends_on == ("ls_log__",)
    assert "centred" in by_name["g"].prior
    assert by_name["g"].kinds == ("fisher",)
    assert description.metric == "flat"
    assert description.left_over == {"ls": "NUTS", "k": "Metropolis"}
    for word in ("Sampled by RMHMC", "Left to other steps", "NUTS", "Metropolis", "constant sites"):
        assert word in printed


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
        pm.Normal("y", mu, 1.0, observed=[1.0, 2.0])
        description = describe()
    assert description.blocks == ()
    assert "No latent Gaussian block" in capsys.readouterr().out
    assert description.left_over == {"mu": "NUTS"}
    assert "no latent Gaussian block" in description.reasons["mu"]


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
