"""The arguments that a user gave a distribution, found again behind PyMC's conversions."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

from pymc_rmhmc import RMHMC, ConfigurationError, DataError
from pymc_rmhmc.model.words.user_arguments import arguments_of, nan_in_words, values_in_words

N = 6
POSITIVE, UNIT, COUNTS = np.linspace(0.5, 2.0, N), np.linspace(0.1, 0.9, N), np.arange(N)
BAD = np.where(np.arange(N) == 3, np.nan, 1.0)
# NaN too, but of finite numbers.
LOST = pm.math.log(np.where(np.arange(N) == 3, -1.0, 2.0))
# A distribution, its data, and arguments of which the first is the one that is spoilt.
FORMS = [
    (pm.Gamma, POSITIVE, ("mu", "sigma")), (pm.Gamma, POSITIVE, ("sigma", "mu")),
    (pm.Gamma, POSITIVE, ("beta", "alpha")),
    (pm.Beta, UNIT, ("mu", "sigma")), (pm.Beta, UNIT, ("nu", "mu")), (pm.Beta, UNIT, ("alpha", "beta")),
    (pm.InverseGamma, POSITIVE, ("mu", "sigma")), (pm.InverseGamma, POSITIVE, ("beta", "alpha")),
    (pm.NegativeBinomial, COUNTS, ("mu", "alpha or n")), (pm.NegativeBinomial, COUNTS, ("alpha or n", "mu")),
    (pm.NegativeBinomial, COUNTS, ("p", "alpha or n")), (pm.Weibull, POSITIVE, ("beta", "alpha")),
    (pm.Normal, POSITIVE, ("tau", "mu")), (pm.StudentT, POSITIVE, ("lam", "mu", "nu")),
    (pm.Wald, POSITIVE, ("mu", "lam")),
    (pm.SkewNormal, POSITIVE, ("mu", "alpha", "sigma")), (pm.Exponential, POSITIVE, ("lam",)),
    (pm.LogNormal, POSITIVE, ("tau", "mu")),
]  # fmt: skip


@pytest.mark.parametrize("as_number", [False, True], ids=["variables", "numbers"])
@pytest.mark.parametrize(("kind", "data", "names"), FORMS, ids=lambda v: getattr(v, "__name__", None))
def test_each_argument_is_found_under_the_name_that_was_given(kind, data, names, as_number):
    with pm.Model() as model:
        s = pm.HalfNormal("s")
        spoilt = pm.math.invlogit(s) * BAD
        others = {name: 0.5 if as_number else pm.math.invlogit(s) / 2.0 for name in names[1:]}
        given = {name.split()[0]: value for name, value in ({names[0]: spoilt} | others).items()}
        y = kind("y", **given, observed=data)
    assert names[0] in arguments_of(y)
    if not as_number:
        assert set(names) <= set(arguments_of(y))
    words = nan_in_words(model, y, model.initial_point())
    assert words == f"the argument {names[0]} of y is NaN at position 3 (1 of 6 values)"


def test_a_distribution_of_others_has_a_parameter():
    with pm.Model() as model:
        mu = pm.HalfNormal("s") * BAD
        y = pm.ZeroInflatedPoisson("y", psi=0.5, mu=mu, observed=COUNTS)
        z = pm.Normal("z", pm.Normal("b"), np.full(2, 2.0), observed=np.zeros(2))
    words = nan_in_words(model, y, model.initial_point())
    assert words.endswith("of y is NaN at position 3 (1 of 6 values)")
    assert nan_in_words(model, z, model.initial_point()) == ""
    assert values_in_words(model, z, model.initial_point()) == "mu = 0, sigma = 2"


@pytest.mark.parametrize("kind", [pm.Gamma, pm.InverseGamma])
def test_a_covariate_behind_latent_values(kind):
    with pm.Model():
        f = pm.MvNormal("f", np.zeros(N), cov=np.eye(N))
        kind("y", mu=pm.math.exp(f * LOST), sigma=1.0, observed=POSITIVE)
        with pytest.raises(DataError, match="The argument mu of y is NaN at position 3 .1 of 6 values.*Look for NaN"):
            RMHMC()


def test_a_parameter_out_of_range_behind_latent_values():
    with pm.Model():
        f = pm.MvNormal("f", np.zeros(N), cov=np.eye(N))
        pm.Gamma("y", mu=pm.math.exp(f), sigma=-1.0, observed=POSITIVE)
        says = "PyMC needs alpha > 0, beta > 0. At the model's initial point it has mu = 1, sigma = -1. Correct"
        with pytest.raises(DataError, match=says):
            RMHMC()


def test_a_predictor_of_a_registered_likelihood():
    with pm.Model():
        f = pm.MvNormal("f", np.zeros(N), cov=np.eye(N))
        pm.Poisson("y", mu=pm.math.exp(f * BAD), observed=COUNTS)
        with pytest.raises(DataError, match="Constants in the formula of y are not finite in 1 of .*position 3"):
            RMHMC()


@pytest.mark.parametrize(
    ("mu", "sigma", "says"),
    [
        (LOST, 1.0, r"of y is nan, since the argument mu of y is NaN at position 3 \(1 of 6 values\)"),
        (1.0, -1.0, "of y is -inf, since it needs alpha > 0, beta > 0 but has mu = 1, sigma = -1"),
    ],
)
def test_a_chain_in_the_chart_of_the_graph(mu, sigma, says):
    with pm.Model():
        s = pm.HalfNormal("s")
        pm.Gamma("y", mu=s * mu, sigma=sigma, observed=POSITIVE)
        with pytest.raises(ConfigurationError, match=says):
            pm.sample(2, tune=10, chains=1, cores=1, step=RMHMC(), progressbar=False)
