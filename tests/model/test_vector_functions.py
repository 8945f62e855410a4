"""Functions in forms that compile to vector instructions, beside those of SciPy."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from scipy.special import erfcx, expit

from pymc_rmhmc.model.likelihoods.binary import log1p_of_tail, logistic_pair, scaled_tail
from pymc_rmhmc.model.likelihoods.registry import lookup

X = np.concatenate(([0.0], np.geomspace(1e-12, 1e12, 4001), np.linspace(0.0, 12.0, 3001)))


def value(function, x):
    given = pt.dvector()
    return pytensor.function([given], function(given), mode="NUMBA")(x)


def test_the_tail_is_that_of_the_normal_to_the_last_digits():
    np.testing.assert_allclose(value(scaled_tail, X), 0.5 * erfcx(X / np.sqrt(2.0)), rtol=3e-15)


def test_the_logarithm_is_right_to_the_last_digits_of_the_smallest_numbers():
    x = np.concatenate((-X[X <= 0.5], X[X <= 1.0]))
    np.testing.assert_allclose(value(log1p_of_tail, x), np.log1p(x), rtol=1e-15)


def test_the_logistic_function_and_its_integral_hold_in_both_tails():
    x = np.concatenate((X, -X))
    integral, derivative = value(lambda z: list(logistic_pair(z)), x)
    np.testing.assert_allclose(integral, np.logaddexp(0.0, x), rtol=2e-15, atol=0.0)
    np.testing.assert_allclose(derivative, expit(x), rtol=2e-15, atol=1e-300)


def test_what_is_not_a_number_stays_so():
    for function in (scaled_tail, log1p_of_tail, lambda z: logistic_pair(z)[0]):
        assert np.isnan(value(function, np.array([np.nan]))).all()


def test_infinities_have_their_limits():
    far = np.array([np.inf])
    assert value(scaled_tail, far) == 0.0
    for x, expected in ((np.inf, (np.inf, 1.0)), (-np.inf, (0.0, 0.0))):
        assert np.ravel(value(lambda z: list(logistic_pair(z)), np.array([x]))) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["bernoulli_logit", "bernoulli_probit", "binomial_logit", "binomial_probit"])
def test_slopes_are_derivatives_where_forms_meet(name):
    eta, y = pt.dvector(), np.array([0.0, 1.0, 1.0])
    terms = lookup(name).terms(eta, {"n": pt.constant(np.array([2.0, 2.0, 1.0]))}, pt.constant(y))
    slope = pt.grad(terms.logp.sum(), eta)
    weight = -pt.grad(terms.gradient.sum(), eta)
    outputs = [slope, terms.gradient, weight, terms.curvature["hessian"].weight]
    found = pytensor.function([eta], outputs, mode="FAST_COMPILE")(np.zeros(3))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-13)
    np.testing.assert_allclose(found[2], found[3], rtol=1e-13)
