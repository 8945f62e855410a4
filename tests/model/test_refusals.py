"""Models in which there is nothing to sample: the true reason comes first, once, and with what to do."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from pymc_rmhmc import RMHMC, FlatMetric, describe
from pymc_rmhmc.errors import UnsupportedModelError
from pymc_rmhmc.model import read_structure
from tests.model.conftest import COUNTS, N, X

pytestmark = [
    pytest.mark.usefixtures("without_a_compiler"),
    pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS", "ignore:.*missing values"),
]

DESIGN = np.stack([np.ones(N), X[:, 0]], axis=1)
VALUES = np.array([0.3, -0.2, 0.8, 0.1, -0.5, 0.4, 0.9])
NUTS = "As it is, sample the model with RMHMC(), which needs no such block, or with NUTS: pm.sample() without step=."


def factor() -> pt.TensorVariable:
    return pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0))[0]


def marginal() -> None:
    kernel = pm.HalfNormal("eta") ** 2 * pm.gp.cov.ExpQuad(1, pm.Gamma("ls", 2, 1))
    gp = pm.gp.Marginal(mean_func=pm.gp.mean.Constant(pm.Normal("level")), cov_func=kernel)
    gp.marginal_likelihood("y", X=X, y=VALUES, sigma=pm.HalfNormal("sigma"))


def marginal_of_no_normal() -> None:
    gp = pm.gp.Marginal(cov_func=pm.gp.cov.ExpQuad(1, pm.Gamma("ls", 2, 1)))
    gp.marginal_likelihood("y", X=X, y=VALUES, sigma=pm.HalfNormal("sigma"))


def vector_autoregression() -> None:
    data = np.stack([VALUES, VALUES[::-1]], axis=1)
    mean = pm.Normal("c", shape=2) + data[:-1] @ pm.Normal("B", 0, 0.5, shape=(2, 2))
    pm.MvNormal("y", mean, chol=factor(), observed=data[1:])


def structural_equations() -> None:
    loadings = pm.Normal("loadings", 1.0, 0.5, shape=3)
    spread = pm.HalfNormal("spread", shape=3)
    cov = loadings[:, None] * loadings[None, :] + pt.diag(spread**2)
    pm.MvNormal("y", pm.Normal("tau", shape=3), cov=cov, observed=np.stack([VALUES[:3], VALUES[3:6]]))


def multinomial() -> None:
    p = pm.math.softmax(DESIGN @ pm.Normal("b", shape=(2, 3)), axis=1)
    pm.Multinomial("y", n=4, p=p, observed=np.tile([1, 1, 2], (N, 1)))


def categorical() -> None:
    p = pm.math.softmax(pm.Normal("a", shape=3) + DESIGN @ pm.Normal("b", shape=(2, 3)), axis=1)
    pm.Categorical("y", p=p, observed=COUNTS % 3)


def mixture() -> None:
    pm.NormalMixture(
        "y", w=pm.Dirichlet("w", np.ones(2)), mu=pm.Normal("mu", 0, 3, shape=2), sigma=1.0, observed=VALUES
    )


def renewal() -> None:
    log_r = pm.GaussianRandomWalk("log_r", sigma=pm.HalfNormal("s"), init_dist=pm.Normal.dist(), shape=N)
    infected = pytensor.scan(
        lambda r, before: r * before, sequences=[pt.exp(log_r)], outputs_info=[pm.Exponential("i0", 0.1)],
        return_updates=False,
    )  # fmt: skip
    pm.Poisson("y", mu=infected, observed=COUNTS)


def normal_under_a_potential() -> None:
    b = pm.Normal("b", shape=2)
    pm.Poisson("y", mu=pm.math.exp(DESIGN @ b), observed=COUNTS)
    pm.Potential("shrink", -pt.abs(b).sum())


def likelihood_as_a_potential() -> None:
    a, b = pm.Normal("a"), pm.Normal("b", shape=2)
    pm.Potential("lik", pm.logp(pm.Normal.dist(a + DESIGN @ b, pm.HalfNormal("s")), VALUES).sum())


def observed_garch() -> None:
    pm.GARCH11(
        "y", omega=pm.HalfNormal("omega"), alpha_1=pm.Beta("a", 1, 1), beta_1=pm.Beta("b", 1, 1), initial_vol=1.0,
        observed=VALUES,
    )  # fmt: skip


def beta_rates() -> None:
    phi, k = pm.Beta("phi", 1, 1), pm.Exponential("k", 1.0)
    pm.Binomial("y", n=9, p=pm.Beta("theta", phi * k, (1 - phi) * k, shape=N), observed=COUNTS)


def laplace_effects() -> None:
    pm.Normal("y", DESIGN @ pm.Laplace("b", 0, 1, shape=2), pm.HalfNormal("s"), observed=VALUES)


def effects_of_a_users_distribution() -> None:
    b = pm.CustomDist("b", 0.0, dist=lambda mu, size: pm.Normal.dist(mu, 1.0, size=size), shape=2)
    pm.Normal("y", DESIGN @ b, pm.HalfNormal("s"), observed=VALUES)


def not_linear() -> None:
    pm.Poisson("y", mu=pm.math.exp(pt.sqr(pm.Normal("a"))), observed=COUNTS)


def imputed() -> None:
    mu = pm.math.exp(DESIGN @ pm.Normal("b", shape=2))
    pm.Gamma("y", mu=mu, sigma=1.0, observed=np.ma.masked_array(VALUES**2, np.arange(N) < 2))


def effects_with_a_free_mean() -> None:
    effects = pm.StudentT("u", 4.0, mu=pm.Normal("mu"), sigma=1.0, shape=N)
    pm.Poisson("y", mu=pm.math.exp(effects), observed=COUNTS)


def many_of_a_covariance() -> None:
    means = [pm.Normal(f"k_{i}") for i in range(15)]
    spreads = [*(pm.HalfNormal(f"v_{i}") for i in range(10)), *(pm.Beta(f"w_{i}", 1, 1) for i in range(5))]
    pm.MvNormal("y", pt.stack(means), cov=pt.diag(pt.stack(spreads)), observed=np.zeros((4, 15)))


OF_ONE = "the likelihood {0} of y does not factorise into one for each observation"
OF_ONE_VECTOR = (
    OF_ONE.format("MvNormal") + ": if pm.gp.Marginal makes it, keep it, because it integrates the latent values out."
)
OVER_LATENTS = (
    "the likelihood of y does not factorise over the latent values: an observation depends on several of them through "
    "a map that is not linear."
)
POTENTIAL = (
    "the Potential {0} depends on it: write it as a prior or an observed variable (pm.Censored for censored data)."
)
BOUNDED = (
    "y_unobserved stands for missing values of a bounded distribution, which are transformed: leave them out of the "
    "data, and their rows out of the predictor (f[seen] for a vector f)."
)
# The lines that are said before what is said of every model: the true reason, for which variables, is the first.
REFUSED: dict[Callable[[], None], list[str]] = {
    marginal: [f"level: {OF_ONE_VECTOR}", "not Gaussian: eta, sigma (HalfNormal); ls (Gamma)."],
    marginal_of_no_normal: [f"y: {OF_ONE_VECTOR}", "not Gaussian: ls (Gamma); sigma (HalfNormal)."],
    vector_autoregression: [f"c, B: {OF_ONE.format('MvNormal')}.", "not Gaussian: chol (LKJCholeskyCov)."],
    structural_equations: [f"loadings, tau: {OF_ONE.format('MvNormal')}.", "not Gaussian: spread (HalfNormal)."],
    multinomial: [f"b: {OF_ONE.format('Multinomial')}."],
    categorical: [f"a, b: {OVER_LATENTS}"],
    mixture: [f"mu: {OVER_LATENTS}", "not Gaussian: w (Dirichlet)."],
    renewal: ["log_r: the likelihood Poisson of y contains a Scan.", "not Gaussian: s (HalfNormal); i0 (Exponential)."],
    normal_under_a_potential: [f"b: {POTENTIAL.format('shrink')}"],
    likelihood_as_a_potential: [f"a, b: {POTENTIAL.format('lik')}", "not Gaussian: s (HalfNormal)."],
    observed_garch: [f"y: {OF_ONE.format('GARCH11')}.", "not Gaussian: omega (HalfNormal); a, b (Beta)."],
    beta_rates: ["not Gaussian: phi, theta (Beta); k (Exponential)."],
    laplace_effects: ["not Gaussian: b (Laplace); s (HalfNormal)."],
    effects_of_a_users_distribution: [
        "b: a CustomDist is not read, whatever it is made of.", "not Gaussian: s (HalfNormal).",
    ],
    not_linear: ["a: the predictor of y is not linear in it (`sqr`)."],
    imputed: [f"b: {BOUNDED}", "not Gaussian: y_unobserved (Gamma)."],
    effects_with_a_free_mean: ["mu: the prior of u depends on it.", "not Gaussian: u (StudentT)."],
    many_of_a_covariance: [
        f"15 variables k_0, k_1, …, k_14: {OF_ONE.format('MvNormal')}.",
        "not Gaussian: 10 variables v_0, v_1, …, v_9 (HalfNormal); w_0, w_1, w_2, w_3, w_4 (Beta).",
    ],
}  # fmt: skip


@pytest.mark.parametrize("build", REFUSED, ids=lambda build: build.__name__)
def test_the_true_reason_comes_first_and_once(build):
    with pm.Model() as model:
        build()
        with pytest.raises(UnsupportedModelError) as raised:
            RMHMC(metric=FlatMetric(chart="latent"))
    first, *reasons, last = str(raised.value).splitlines()
    assert first == "The model has no latent Gaussian block that RMHMC could sample:"
    assert reasons == [f"- {line}" for line in REFUSED[build]]
    assert last.startswith(NUTS)
    assert "unless it is named in vars" not in str(raised.value)
    free = {str(v.name) for v in model.free_RVs}
    assert free <= set(raised.value.reasons) <= free | {"y"}
    assert all(raised.value.reasons.values())


def test_naming_a_variable_brings_no_other_reason():
    for build in (multinomial, vector_autoregression, normal_under_a_potential):
        with pm.Model() as model:
            build()
        with pytest.raises(UnsupportedModelError) as raised:
            read_structure(model)
        for name in ("b",) if "b" in model.named_vars else ("c", "B"):
            reason = raised.value.reasons[name].replace("depends on it", f"depends on {name}")
            with pytest.raises(UnsupportedModelError, match=re.escape(reason)):
                read_structure(model, [name])


@pytest.mark.parametrize("build", REFUSED, ids=lambda build: build.__name__)
def test_what_has_no_latent_block_is_sampled_in_the_chart_of_its_graph(build):
    with pm.Model() as model:
        build()
    description = describe(model)
    assert set(description.charted) == {str(v.name) for v in model.free_RVs}
    because = {mixture: "y mixes distributions"}.get(build, "the model has no latent Gaussian block")
    assert description.why.startswith(because)


def test_what_is_left_beside_a_block_has_its_own_reason():
    with pm.Model() as model:
        multinomial()
        pm.Poisson("counts", mu=pm.math.exp(DESIGN @ pm.Normal("slopes", shape=2)), observed=COUNTS)
        above = pm.Normal("above")
        pm.StudentT("below", 3.0, above)
        pm.Normal("apart")
    structure = read_structure(model)
    assert [v.name for v in structure.variables] == ["slopes"]
    assert "does not factorise" in structure.reasons["b"]
    assert structure.reasons["above"] == "the prior of below depends on it"
    assert structure.reasons["below"] == "not Gaussian (StudentT)"
    assert structure.reasons["apart"] == "no likelihood depends on it"


def test_of_two_that_are_multiplied_the_smaller_has_its_reason():
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("u", shape=(3, 1)) @ pm.Normal("v", shape=(5, 1)).T, 1.0, observed=np.zeros((3, 5)))
    assert read_structure(model).reasons == {"u": "no predictor is linear in it and v together"}


def test_a_normal_beside_latent_vectors_can_be_named():
    with pm.Model() as model:
        f = pm.MvNormal("f", np.zeros(N), cov=np.eye(N))
        pm.Poisson("y", mu=pm.math.exp(f + pm.Normal("b", shape=N)), observed=COUNTS)
    (why,) = read_structure(model).reasons.values()
    assert why == "next to f it is sampled as a latent variable only if vars names them all"
    assert [v.name for v in read_structure(model, ["f", "b"]).variables] == ["f", "b"]
