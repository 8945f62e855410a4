"""Each mistake that can be seen in a model is a typed error that says what was found and what to do."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.distributions.transforms import ordered

from pymc_rmhmc import RMHMC
from pymc_rmhmc.errors import (
    ConfigurationError,
    CovarianceError,
    DataError,
    UnsupportedLikelihoodError,
    UnsupportedModelError,
)
from pymc_rmhmc.model import compile_model, read_structure
from pymc_rmhmc.model.graph.source_code import distribution_of
from pymc_rmhmc.model.likelihoods import registered_likelihoods, registry
from tests.model.conftest import COUNTS, MODELS, N, X, covariance, gp_prior


def compiled(model, names=None):
    return compile_model(read_structure(model, names))


def poisson(f, **kwargs):
    pm.Poisson("y", mu=pm.math.exp(f), observed=kwargs.pop("observed", COUNTS), **kwargs)


def test_a_discrete_variable():
    with pm.Model() as model:
        pm.Poisson("k", 3.0)
        poisson(gp_prior("f"))
    with pytest.raises(UnsupportedModelError, match="k is discrete.*leave it out of vars"):
        read_structure(model, ["k"])


def test_a_prior_that_is_not_gaussian():
    model = MODELS["other_parameter"]()
    with pytest.raises(UnsupportedModelError, match="alpha.*Exponential.*hyperparameter.*vars=.*f.*alpha"):
        read_structure(model, ["alpha"])


@pytest.mark.parametrize("wanted", [["ls"], ["eta", "ls"]])
def test_hyperparameters_alone(wanted):
    with pm.Model() as model:
        ls, eta = pm.InverseGamma("ls", 5, 1), pm.HalfNormal("eta")
        poisson(pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.Matern52(1, ls)).prior("f", X))
    names = ", ".join(f'"{name}"' for name in ("f", *wanted))
    prior = "InverseGamma" if wanted[0] == "ls" else "HalfNormal"
    says = rf"{wanted[0]}: its prior is {prior}, .*hyperparameter.*Leave vars out, .*RMHMC\(vars=\[{names}\]\)"
    with pytest.raises(UnsupportedModelError, match=says):
        read_structure(model, wanted)


NAMES_OF_PYMC = {
    "InverseGamma": {"alpha": 3, "beta": 1}, "NegativeBinomial": {"mu": 1, "alpha": 1},
    "Weibull": {"alpha": 1, "beta": 1}, "LogNormal": {}, "StudentT": {"nu": 3},
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES_OF_PYMC)
def test_distributions_have_the_names_of_their_classes(name):
    with pm.Model():
        found = distribution_of(getattr(pm, name)("v", **NAMES_OF_PYMC[name]))
    assert found == name


def test_an_unknown_name():
    with pytest.raises(ConfigurationError, match='no variable "g". The free variables of the model are f'):
        read_structure(MODELS["centred"](), ["g"])


def test_an_observed_variable():
    with pytest.raises(ConfigurationError, match="y, which is not a free random variable"):
        read_structure(MODELS["centred"](), ["y"])


def test_a_model_without_latent_gaussian_variables():
    with pm.Model() as model:
        pm.Normal("y", pm.math.sin(pm.Normal("mu")), pm.HalfNormal("sigma"), observed=COUNTS)
    with pytest.raises(UnsupportedModelError, match=r"(?s)no latent Gaussian block.*mu.*sigma"):
        read_structure(model)


def test_a_student_process():
    with pm.Model() as model:
        process = pm.gp.TP(scale_func=pm.gp.cov.ExpQuad(1, 0.3), nu=4)
        poisson(process.prior("f", np.linspace(0, 1, N)[:, None]))
    with pytest.raises(UnsupportedModelError, match="f_rotated_.*StudentT"):
        read_structure(model, ["f_rotated_"])


def test_a_potential():
    with pm.Model() as model:
        f = gp_prior("f", reparameterize=False)
        poisson(f)
        pm.Potential("smooth", -pt.sum(f**4))
    with pytest.raises(UnsupportedModelError, match="Potential smooth depends on f"):
        read_structure(model, ["f"])
    with pytest.raises(UnsupportedModelError, match="(?s)no latent Gaussian block.*smooth"):
        read_structure(model)


def test_a_predictor_that_is_not_affine_in_neighbours():
    with pm.Model() as model:
        f = gp_prior("f", reparameterize=False)
        poisson(f * f[::-1])
    with pytest.raises(UnsupportedModelError, match="y does not factorise .* a map that is not linear"):
        compiled(model)


def test_a_product_of_two_latents():
    with pm.Model() as model:
        poisson(gp_prior("f", reparameterize=False) * gp_prior("g", reparameterize=False))
    with pytest.raises(UnsupportedModelError, match="y.*non-linear"):
        compiled(model)


def test_two_processes_in_two_parameters():
    with pm.Model() as model:
        f, g = gp_prior("f", reparameterize=False), gp_prior("g", reparameterize=False)
        pm.Normal("y", f, pm.math.exp(g), observed=COUNTS)
    with pytest.raises(UnsupportedLikelihoodError, match="f, g enter y by several of its parameters: .*name in vars"):
        read_structure(model, ["f", "g"])
    assert [v.name for v in read_structure(model, ["g"]).variables] == ["g"]


def test_a_likelihood_that_does_not_factorise():
    with pm.Model() as model:
        pm.MvNormal("y", gp_prior("f", reparameterize=False), np.eye(N), observed=COUNTS.astype(float))
    with pytest.raises(UnsupportedLikelihoodError, match="y does not factorise"):
        read_structure(model, ["f"])


def test_an_unregistered_likelihood_that_mixes_latent_values():
    with pm.Model() as model:
        f = gp_prior("f", reparameterize=False)
        pm.Logistic("y", mu=pt.cumsum(pt.exp(f)), s=1.0, observed=COUNTS.astype(float))
    with pytest.raises(UnsupportedLikelihoodError, match="y does not factorise over the latent values"):
        compiled(model)


def test_a_transformed_free_variable_as_likelihood():
    with pm.Model() as model:
        pm.Exponential("z", pm.math.exp(gp_prior("f", reparameterize=False)))
    with pytest.raises(UnsupportedLikelihoodError, match="z depends on f and is transformed"):
        read_structure(model, ["f"])


def test_single_precision():
    model = MODELS["centred"]()
    with (
        pytensor.config.change_flags(floatX="float32"),
        pytest.raises(ConfigurationError, match="float32.*floatX"),
    ):
        read_structure(model)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_offset_that_is_not_finite(bad):
    offset = np.where(np.arange(N) == 2, bad, 0.1)
    with pm.Model() as model:
        poisson(gp_prior("f", reparameterize=False) + offset)
    with pytest.raises(DataError, match=r"y.*not finite( \(NaN\))? for 1 observation"):
        compiled(model)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_an_exposure_that_cannot_be(bad):
    exposure = np.where(np.arange(N) == 2, bad, 1.5)
    with pm.Model() as model:
        pm.Poisson("y", mu=exposure * pm.math.exp(gp_prior("f", reparameterize=False)), observed=COUNTS)
    says = r"exposure of y.*must be finite and not negative, and is not for 1 of 7, the first at position 2 \("
    with pytest.raises(DataError, match=says), np.errstate(invalid="ignore"):
        compiled(model)


def test_an_exposure_of_zero_with_events():
    with pm.Model() as model:
        mu = np.array([1.0, 0.0] + [2.0] * (N - 2)) * pm.math.exp(gp_prior("f", reparameterize=False))
        pm.Poisson("y", mu=mu, observed=COUNTS)
    says = r"counts above 0 where its exposure is 0: 1 of 7, the first at position 1 \(2\)"
    with pytest.raises(DataError, match=says), np.errstate(divide="ignore"):
        compiled(model)


def test_a_parameter_that_is_not_finite():
    with pm.Model() as model:
        f = gp_prior("f", reparameterize=False)
        pm.Normal("y", f, np.where(np.arange(N) == 1, np.nan, 1.0), observed=COUNTS)
    says = r"the parameter sigma \(or tau, lam\) of y has values that are not finite: 1 of 7.*position 1 \(nan\)"
    with pytest.raises(DataError, match=says):
        compiled(model)


def test_data_out_of_support():
    with pm.Model() as model:
        poisson(gp_prior("f", reparameterize=False), observed=COUNTS - 1)
    with pytest.raises(DataError, match="the data of y must"):
        compiled(model)


def latent():
    return gp_prior("f", reparameterize=False)


def spoilt(bad, good=COUNTS):
    """Values with one that is bad."""
    return np.where(np.arange(N) == 2, bad, good.astype(float))


UNREGISTERED = {
    "infinite data": (
        lambda: pm.Logistic("y", latent(), 1.0, observed=spoilt(np.inf)),
        "data of y have 1 non-finite value, the first at position 2",
    ),
    "data of a whitened GP": (
        lambda: pm.Logistic("y", gp_prior("f"), 1.0, observed=spoilt(-np.inf)),
        "data of y have 1 non-finite value",
    ),
    "nan offset": (lambda: pm.Logistic("y", latent() + spoilt(np.nan), 1.0, observed=COUNTS), "mu of y is NaN"),
    "nan parameter": (lambda: pm.Logistic("y", latent(), spoilt(np.nan, COUNTS + 1), observed=COUNTS), "s of y is NaN"),
    "parameter out of range": (lambda: pm.Logistic("y", latent(), -1.0, observed=COUNTS), "s > 0"),
    "support": (
        lambda: pm.LogNormal("y", latent(), 1.0, observed=spoilt(-0.5, COUNTS + 1)),
        r"out of their distribution's support for 1 observation.*\[-0.5\]",
    ),
    "open support": (
        lambda: pm.Beta("y", mu=pm.math.sigmoid(latent()), nu=5.0, observed=COUNTS / 4.0),
        "support for 3 observations",
    ),
    "an index out of bounds": (
        lambda: pm.Logistic("y", latent()[pm.Data("i", np.arange(N) + 1)], 1.0, observed=COUNTS),
        "index 7 is out of bounds",
    ),
}


@pytest.mark.parametrize("name", UNREGISTERED)
def test_data_of_an_unregistered_likelihood(name):
    build, words = UNREGISTERED[name]
    with pm.Model() as model:
        build()
    with pytest.raises(DataError, match=words):
        compiled(model)


def test_support_that_the_latent_value_moves_is_no_error():
    with pm.Model() as model:
        pm.Pareto("y", alpha=2.0, m=pt.exp(latent()), observed=(COUNTS + 1) / 60.0)
    assert compiled(model).blocks[0].n_sites == N


def test_new_data_of_an_unregistered_likelihood_are_checked():
    with pm.Model() as model:
        pm.Logistic("y", latent(), 1.0, observed=pm.Data("counts", COUNTS.astype(float)))
    (block,) = compiled(model).blocks
    pm.set_data({"counts": spoilt(np.inf)}, model=model)
    with pytest.raises(DataError, match="data of y have 1 non-finite value"):
        block.likelihood(model.initial_point())


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda f: pm.Normal("y", f, -1.0, observed=COUNTS), "sigma"),
        (lambda f: pm.StudentT("y", nu=spoilt(0.0, COUNTS + 1), mu=f, sigma=1.0, observed=COUNTS), "nu"),
        (lambda f: pm.NegativeBinomial("y", mu=pt.exp(f), alpha=-1.0, observed=COUNTS), "alpha"),
        (lambda f: pm.Weibull("y", alpha=-2.0, beta=pt.exp(f), observed=COUNTS + 1.0), "alpha"),
    ],
)
def test_a_parameter_that_must_be_positive(build, name):
    with pm.Model() as model:
        build(latent())
    with pytest.raises(DataError, match=rf"parameter {name}( \(or tau, lam\))? of y must be positive, and is not for"):
        compiled(model)


SEVEN = np.arange(1.0, 8.0)
# By registered likelihood and parameter: a model with these values of it.
PARAMETERS = {
    ("binomial_logit", "n"): lambda f, n: pm.Binomial("y", n=n, p=pm.math.invlogit(f), observed=COUNTS),
    ("binomial_probit", "n"): lambda f, n: pm.Binomial("y", n=n, p=pm.math.invprobit(f), observed=COUNTS),
    ("binomial_cloglog", "n"): lambda f, n: pm.Binomial("y", n=n, p=1.0 - pt.exp(-pt.exp(f)), observed=COUNTS),
    ("normal_identity", "sigma"): lambda f, s: pm.Normal("y", f, s, observed=COUNTS),
    ("studentt_identity", "nu"): lambda f, nu: pm.StudentT("y", nu=nu, mu=f, sigma=1.0, observed=COUNTS),
    ("studentt_identity", "sigma"): lambda f, s: pm.StudentT("y", nu=4.0, mu=f, sigma=s, observed=COUNTS),
    ("gamma_log", "alpha"): lambda f, a: pm.Gamma("y", alpha=a, beta=pt.exp(-f), observed=SEVEN),
    ("weibull_log", "alpha"): lambda f, a: pm.Weibull("y", alpha=a, beta=pt.exp(f), observed=SEVEN),
    ("negativebinomial_log", "alpha"): lambda f, a: pm.NegativeBinomial("y", mu=pt.exp(f), alpha=a, observed=COUNTS),
    ("zeroinflatedpoisson_log", "psi"): lambda f, p: pm.ZeroInflatedPoisson("y", psi=p, mu=pt.exp(f), observed=COUNTS),
}


def test_every_parameter_of_a_registered_likelihood_has_a_row():
    ours = {k: v for k, v in registered_likelihoods().items() if v.terms.__module__.startswith("pymc_rmhmc.")}
    assert set(PARAMETERS) == {(name, parameter) for name, held in ours.items() for parameter in held.parameters}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
@pytest.mark.parametrize("row", PARAMETERS, ids="-".join)
def test_a_parameter_at_fault_is_named_with_its_place(row, bad):
    """And not the data, which it may make impossible."""
    values = np.full(N, 0.5 if row[1] == "psi" else 9.0)
    values[3:5] = bad
    with pm.Model() as model, np.errstate(invalid="ignore"):
        PARAMETERS[row](latent(), values)
    says = rf"the parameter {row[1]}.* of y .*2 of 7, the first at position 3 \("
    with pytest.raises(DataError, match=says) as error:
        compiled(model)
    assert str(error.value).endswith("Correct this argument of y.")


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda f: pm.Binomial("y", n=2, p=pm.math.invlogit(f), observed=COUNTS), r"data of y .*\(4\), where n is 2"),
        (lambda f: pm.ZeroInflatedPoisson("y", psi=1.5, mu=pt.exp(f), observed=COUNTS), "psi of y must lie between 0"),
        (lambda f: pm.ZeroInflatedPoisson("y", psi=0.0, mu=pt.exp(f), observed=COUNTS), "psi of y is 0, which allows"),
        (lambda f: pm.Normal("y", f, tau=spoilt(np.nan, COUNTS + 1), observed=COUNTS), r"sigma \(or tau, lam\) of y"),
    ],
)
def test_who_is_to_blame(build, says):
    with pm.Model() as model:
        build(latent())
    with pytest.raises(DataError, match=says):
        compiled(model)


def coefficients():
    return X ** np.arange(3) @ pm.Normal("beta", 0.0, 1.0, shape=3)


PRIORS = {
    "centred": latent,
    "whitened": lambda: gp_prior("f"),
    "free": lambda: gp_prior("f", ls=pm.Gamma("ls", 2.0, 4.0)),
    "coefficients": coefficients,
}
WRONG_SHAPES = {
    "data": (lambda f: pm.Poisson("y", pt.exp(f), observed=COUNTS[:5]), (5,), "mu", (7,)),
    "data of an unregistered one": (lambda f: pm.Logistic("y", f, 1.0, observed=COUNTS[:5]), (5,), "mu", (7,)),
    "two dimensions": (lambda f: pm.Poisson("y", pt.exp(f), observed=np.ones((2, 5), int)), (2, 5), "mu", (1, 7)),
    "sigma": (lambda f: pm.Normal("y", f, np.ones(5), observed=COUNTS), (7,), "sigma", (5,)),
    "n": (lambda f: pm.Binomial("y", np.full(5, 9), pm.math.invlogit(f), observed=COUNTS), (7,), "n", (5,)),
    "s of an unregistered one": (lambda f: pm.Logistic("y", f, np.ones(5), observed=COUNTS), (7,), "s", (5,)),
    "an index": (lambda f: pm.Poisson("y", pt.exp(f[np.arange(5)]), observed=COUNTS), (7,), "mu", (5,)),
    "alpha": (lambda f: pm.NegativeBinomial("y", mu=2.0, alpha=pt.exp(f), observed=COUNTS[:5]), (5,), "alpha", (7,)),
    "a column": (lambda f: pm.Poisson("y", pt.exp(f), observed=COUNTS[:, None]), (7, 1), "mu", (1, 7)),
    "shared data": (
        lambda f: pm.Poisson("y", pt.exp(f), observed=pm.Data("d", COUNTS[:5])), (5,), "(mu|its linear predictor)", (7,)
    ),
    "shared sigma": (lambda f: pm.Normal("y", f, pm.Data("s", np.ones(5)), observed=COUNTS), (7,), "sigma", (5,)),
}  # fmt: skip


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("name", WRONG_SHAPES)
def test_shapes_that_do_not_fit_are_both_named(name, prior):
    build, data, parameter, shape = WRONG_SHAPES[name]
    with pm.Model():
        build(PRIORS[prior]())
        says = rf"y: the data have the shape {re.escape(str(data))}, and {parameter} has {re.escape(str(shape))}"
        with pytest.raises(DataError, match=says):
            RMHMC()


@pytest.mark.parametrize("prior", PRIORS)
def test_shapes_of_a_distribution_that_is_made_of_another(prior):
    with pm.Model():
        noise = pm.Normal.dist(PRIORS[prior](), 1.0)
        pm.Censored("y", noise, lower=None, upper=2.0, observed=COUNTS[:5] / 3.0)
        says = r"y: the data and their distribution, Censored, .*do not fit \(.*\(5,\), \(7,\).*f\[index\]"
        with pytest.raises(DataError, match=says):
            RMHMC()



def test_infinite_counts_that_pymc_has_made_integers():
    with pm.Model() as model, np.errstate(invalid="ignore"):
        poisson(latent(), observed=spoilt(np.inf))
    with pytest.raises(DataError, match=r"data of y must be counts.*position 2 \(.*which PyMC makes of nan and inf"):
        compiled(model)


def test_a_check_that_says_nothing(monkeypatch):
    with pm.Model() as model:
        pm.Normal("y", latent(), 1.0, observed=COUNTS)
    normal = replace(registered_likelihoods()["normal_identity"], check=lambda y, parameters: True)
    monkeypatch.setattr(registry, "_REGISTRY", {"normal_identity": normal})
    with pytest.raises(ConfigurationError, match="`check` must return a sentence, a ParameterFault or None, got True"):
        compiled(model)


def test_a_design_whose_shape_has_changed():
    with pm.Model():
        beta = pm.Normal("beta", 0.0, 1.0, shape=3)
        pm.Poisson("y", mu=pt.exp(pm.Data("design", np.ones((5, 3))) @ beta), observed=COUNTS)
        with pytest.raises(DataError, match=r"The linear predictor of y: .*\(5,\).*\(7,\)"):
            RMHMC()


def test_an_index_out_of_bounds():
    with pm.Model() as model:
        poisson(latent()[pm.Data("i", np.arange(N) + 1)])
    with pytest.raises(DataError, match="predictor of y: index 7 is out of bounds"):
        compiled(model)


def mvnormal(**kwargs):
    """An RMHMC for an MvNormal with a prior that cannot be used."""
    with pm.Model():
        poisson(pm.MvNormal("f", np.zeros(N), **kwargs))
        return RMHMC()


def test_a_fixed_precision_that_is_not_positive_definite():
    tau = np.linalg.inv(covariance()) - 10.0 * np.eye(N)
    with pytest.raises(CovarianceError, match=r"f: the prior precision \(tau\) is not.*smallest eigenvalue is -9.*Add"):
        mvnormal(tau=tau)


ZEROS, ONES = np.zeros((N, N)), np.ones((N, N))
INDEFINITE = {
    "zeros": ZEROS,
    "ones": ONES,
    "negative": -2.5 * np.eye(N),
    "indefinite": np.eye(N) - 0.4 * ONES,
    "large": 1e8 * (np.eye(N) - 0.4 * ONES),
    "small": 1e-8 * (np.eye(N) - 0.4 * ONES),
    "a zero on the diagonal": np.diag(np.arange(N) / 3.0),
    "a negative one": np.diag(np.arange(N) - 1.0),
}


@pytest.mark.parametrize("argument", ["cov", "tau"])
@pytest.mark.parametrize("name", INDEFINITE)
def test_what_is_to_be_added_to_a_diagonal_is_enough(argument, name):
    with pytest.raises(CovarianceError, match=r"is not positive definite.*Add .* or more") as error:
        mvnormal(**{argument: INDEFINITE[name]})
    (advice,) = re.findall(rf"{argument}={argument} (\+ .* \* np.eye\({N}\))", str(error.value))
    mended = eval(f"matrix {advice}", {"matrix": INDEFINITE[name], "np": np})
    assert isinstance(mvnormal(**{argument: mended}), RMHMC)


def test_a_jitter_that_is_raised_as_advised_is_enough():
    x = np.repeat(np.linspace(0.0, 1.0, 4), 2)[:, None]

    def made(jitter):
        with pm.Model():
            gp = pm.gp.Latent(cov_func=1e12 * pm.gp.cov.ExpQuad(1, 1.0))
            poisson(gp.prior("f", x, reparameterize=False, jitter=jitter), observed=np.arange(8))
            return RMHMC()

    says = "raise the jitter of gp.prior, which is 1e-06 by default, by as much"
    with pytest.raises(CovarianceError, match=says) as error:
        made(1e-6)
    (ridge,) = re.findall(r"Add (\S+) or more", str(error.value))
    assert isinstance(made(1e-6 + float(ridge)), RMHMC)


def test_a_factor_with_zeros_on_its_diagonal():
    factor = np.eye(N)
    factor[2, 2] = 0.0
    says = r"the Cholesky factor \(chol\) is not positive for 1 of 7 values, the first at position 2.*linalg.cholesky"
    with pytest.raises(CovarianceError, match=says):
        mvnormal(chol=factor)


def test_an_intrinsic_precision_is_singular_whatever_its_rounding():
    for seed in range(5):
        weights = np.triu(np.random.default_rng(seed).random((N, N)), 1)
        weights = weights + weights.T
        with pytest.raises(CovarianceError, match="precision.*intrinsic"):
            mvnormal(tau=np.diag(weights.sum(1)) - weights)


@pytest.mark.parametrize("kind", ["cov", "chol", "tau"])
def test_a_fixed_prior_that_is_not_finite(kind):
    matrix = covariance()
    matrix[2, 2] = np.nan
    with pytest.raises(DataError, match=r"prior of f are not finite in 1 of \d+ values, the first at row 2, column 2"):
        mvnormal(**{kind: matrix})


def test_a_lower_factor_that_is_an_upper_one():
    """PyMC's density would be of its diagonal alone, and its draws of something else."""
    upper = np.linalg.cholesky(covariance()).T
    with pytest.raises(CovarianceError, match=r"chol of f has values above its diagonal.*cov=A @ A\.T"):
        mvnormal(chol=upper)
    with pm.Model():
        poisson(pm.MvNormal("f", np.zeros(N), chol=pm.HalfNormal("scale") * upper))
        with pytest.raises(CovarianceError, match="chol of f has values above its diagonal"):
            RMHMC()
    assert isinstance(mvnormal(chol=upper, lower=False), RMHMC)
    assert isinstance(mvnormal(chol=upper.T + 1e-15 * upper), RMHMC)
    assert isinstance(mvnormal(cov=upper @ upper.T), RMHMC)


@pytest.mark.parametrize(("kind", "word"), [("cov", "covariance"), ("tau", "precision")])
def test_a_fixed_prior_that_is_not_symmetric(kind, word):
    matrix = covariance()
    matrix[0, 3] += 0.2
    with pytest.raises(CovarianceError, match=f"prior {word} of f is not symmetric.*up to 0.2"):
        mvnormal(**{kind: matrix})


def test_inputs_that_are_not_finite_under_free_hyperparameters():
    x = X.copy()
    x[2] = np.nan
    with pm.Model():
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, pm.Gamma("ls", 2.0, 4.0)))
        poisson(gp.prior("f", x))
        with pytest.raises(DataError, match=r"inputs of the prior of f are not finite in 1 of .* row 2, column 0"):
            RMHMC(vars=["f"])


@pytest.mark.parametrize("prior", [pm.MvNormal, pm.Normal])
def test_a_transformed_latent_variable(prior):
    with pm.Model() as model:
        parameters = {"cov": np.eye(N)} if prior is pm.MvNormal else {}
        f = prior("f", np.zeros(N), **parameters, transform=ordered, initval=np.arange(N), shape=N)
        poisson(f)
    with pytest.raises(UnsupportedModelError, match=r"f: its values are transformed \(Ordered\).*leave it out of vars"):
        read_structure(model, ["f"])


@pytest.mark.parametrize("vars_", [["f", "g"], ["g", "f"]])
def test_a_latent_in_the_prior_of_another(vars_):
    with pm.Model() as model:
        g = pm.MvNormal("g", np.zeros(N), np.eye(N))
        poisson(pm.MvNormal("f", g, covariance()))
    with pytest.raises(UnsupportedModelError, match="prior of f depends on g.*leave g out of vars"):
        read_structure(model, vars_)


def test_a_total_size():
    with pm.Model() as model:
        pm.Poisson("y", mu=pm.math.exp(latent()), observed=COUNTS, total_size=70)
    with pytest.raises(UnsupportedLikelihoodError, match="y has a total_size.*leave total_size out"):
        read_structure(model, ["f"])


def test_vars_that_hold_something_else():
    with pytest.raises(ConfigurationError, match="vars holds 3, which is neither"):
        read_structure(MODELS["centred"](), ["f", 3])


def test_an_unregistered_likelihood_whose_derivative_is_not_a_number():
    with pm.Model() as model:
        f = pm.MvNormal("f", np.zeros(9), cov=np.eye(9))
        # A root of 0, which is no more than a detour.
        logp = lambda value, mu: -((value - mu) ** 2) - pt.sqrt(pt.maximum(-((value - mu) ** 2), 0.0))  # noqa: E731
        pm.CustomDist("y", f, logp=logp, observed=np.ones(9))
    with pytest.raises(UnsupportedLikelihoodError, match="the derivative of the log density of y.* is not a number"):
        compile_model(read_structure(model))


@pytest.mark.slow
def test_an_unregistered_likelihood_that_mixes_outputs():
    with pm.Model() as model:
        f = gp_prior("f", n_outputs=3)
        pm.Categorical("y", p=pm.math.softmax(f.T, axis=-1), observed=COUNTS % 3)
    with pytest.raises(UnsupportedLikelihoodError, match="y does not factorise over the latent values"):
        compiled(model)


def test_the_reason_for_leaving_a_variable():
    structure = read_structure(MODELS["other_parameter"]())
    assert structure.left_over == ("alpha",)
    assert structure.reasons["alpha"] == "not Gaussian (Exponential)"
