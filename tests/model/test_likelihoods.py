"""Every registered likelihood against mpmath, against PyMC, and against its own definition of information."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import cloudpickle
import mpmath as mp
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.scalar.math import Log1mexp, Softplus, TriGamma
from pytensor.tensor.elemwise import Elemwise
from scipy.special import polygamma

from pymc_rmhmc.errors import ConfigurationError
from pymc_rmhmc.model.likelihoods import (
    Curvature,
    FallbackKernel,
    LikelihoodKernel,
    LikelihoodTerms,
    Reading,
    SlopeByNumPy,
    has_diagonal_hessian,
    lookup,
    read_likelihood,
    register_likelihood,
    registered_likelihoods,
    registry,
)
from pymc_rmhmc.model.likelihoods.likelihood_kernel import compile_outputs

mp.mp.dps = 60
WIDE = [-1000.0, -100.0, -15.0, -5.0, -3.9, -2.0, -0.3, 0.0, 0.7, 4.1, 12.0, 39.0, 100.0, 1000.0]
# Where e^η or its inverse enters the density itself, doubles end at 709.
RATES = [-600.0, -100.0, -15.0, -5.0, -2.0, -0.3, 0.0, 0.7, 4.1, 12.0, 100.0, 600.0]


@dataclass
class Row:
    """What is known of one likelihood, independently of the package."""

    log_density: Callable  # (η, y, *parameters) in mpmath
    ys: list[float]
    parameters: tuple[float, ...] = ()
    distribution: Callable | None = None  # (η vector, *parameters) to a PyMC variable
    support: Callable | None = None  # η, *parameters → all y with their weights, in mpmath
    etas: list[float] = field(default_factory=lambda: RATES)
    bad_y: list[float] = field(default_factory=list)


def ncdf(x):
    return mp.erfc(-x / mp.sqrt(2)) / 2


def bernoulli(success, failure):
    return lambda eta, y: mp.log(success(eta)) if y else mp.log(failure(eta))


def binomial(success, failure):
    return lambda eta, y, n: mp.log(mp.binomial(n, y)) + y * mp.log(success(eta)) + (n - y) * mp.log(failure(eta))


LOGIT = (lambda e: 1 / (1 + mp.exp(-e)), lambda e: 1 / (1 + mp.exp(e)))
PROBIT = (ncdf, lambda e: ncdf(-e))
CLOGLOG = (lambda e: -mp.expm1(-mp.exp(e)), lambda e: mp.exp(-mp.exp(e)))


def poisson(eta, y):
    return y * eta - mp.exp(eta) - mp.loggamma(y + 1)


def zero_inflated(eta, y, psi):
    if y == 0:
        return mp.log(1 - psi + psi * mp.exp(-mp.exp(eta)))
    return mp.log(psi) + poisson(eta, y)


def negative_binomial(eta, y, a):
    m = mp.exp(eta)
    rest = mp.loggamma(y + a) - mp.loggamma(a) - mp.loggamma(y + 1)
    return rest + a * mp.log(a / (a + m)) + y * mp.log(m / (a + m))


def normal(eta, y, s):
    return -((y - eta) ** 2) / (2 * s**2) - mp.log(s) - mp.log(2 * mp.pi) / 2


def student_t(eta, y, nu, s):
    d = (y - eta) / s
    constant = mp.loggamma((nu + 1) / 2) - mp.loggamma(nu / 2) - mp.log(nu * mp.pi) / 2 - mp.log(s)
    return constant - (nu + 1) / 2 * mp.log(1 + d**2 / nu)


def gamma(eta, y, a):
    return a * mp.log(a) - a * eta - mp.loggamma(a) + (a - 1) * mp.log(y) - a * y * mp.exp(-eta)


def weibull(eta, y, a):
    v = (mp.mpf(y) * mp.exp(-eta)) ** a
    return mp.log(a) - a * eta + (a - 1) * mp.log(y) - v


def counts_upto(n):
    return lambda eta, *parameters: range(n)


ROWS = {
    "bernoulli_logit": Row(bernoulli(*LOGIT), [0, 1], (), lambda e: pm.Bernoulli.dist(logit_p=e), counts_upto(2), WIDE, [2]),
    "bernoulli_probit": Row(bernoulli(*PROBIT), [0, 1], (), lambda e: pm.Bernoulli.dist(p=pm.math.invprobit(e)), counts_upto(2), WIDE, [-1]),
    "bernoulli_cloglog": Row(bernoulli(*CLOGLOG), [0, 1], (), lambda e: pm.Bernoulli.dist(p=1 - pt.exp(-pt.exp(e))), counts_upto(2), RATES, [0.5]),
    "binomial_logit": Row(binomial(*LOGIT), [0, 3, 7], (7.0,), lambda e, n: pm.Binomial.dist(n=n, logit_p=e), counts_upto(8), WIDE, [8, -1]),
    "binomial_probit": Row(binomial(*PROBIT), [0, 3, 7], (7.0,), lambda e, n: pm.Binomial.dist(n=n, p=pm.math.invprobit(e)), counts_upto(8), WIDE, [1.5]),
    "binomial_cloglog": Row(binomial(*CLOGLOG), [0, 3, 7], (7.0,), lambda e, n: pm.Binomial.dist(n=n, p=-pt.expm1(-pt.exp(e))), counts_upto(8), RATES, [9]),
    "poisson_log": Row(poisson, [0, 1, 40], (), lambda e: pm.Poisson.dist(mu=pt.exp(e)), counts_upto(120), RATES, [-1, 0.5]),
    "zeroinflatedpoisson_log": Row(zero_inflated, [0, 1, 40], (0.3,), lambda e, p: pm.ZeroInflatedPoisson.dist(psi=p, mu=pt.exp(e)), counts_upto(120), RATES, [-1]),
    "negativebinomial_log": Row(negative_binomial, [0, 2, 90], (1.7,), lambda e, a: pm.NegativeBinomial.dist(mu=pt.exp(e), alpha=a), None, RATES, [2.5]),
    "normal_identity": Row(normal, [-2.0, 0.3], (0.7,), lambda e, s: pm.Normal.dist(e, s), None, WIDE),
    "studentt_identity": Row(student_t, [-2.0, 0.3, 30.0], (3.5, 0.7), lambda e, nu, s: pm.StudentT.dist(nu=nu, mu=e, sigma=s), None, WIDE),
    "exponential_log": Row(lambda e, y: -e - y * mp.exp(-e), [0.1, 4.0], (), lambda e: pm.Exponential.dist(scale=pt.exp(e)), None, RATES, [-0.1]),
    "gamma_log": Row(gamma, [0.1, 4.0], (2.3,), lambda e, a: pm.Gamma.dist(alpha=a, beta=a / pt.exp(e)), None, RATES, [0.0]),
    "weibull_log": Row(weibull, [0.1, 4.0], (1.6,), lambda e, a: pm.Weibull.dist(alpha=a, beta=pt.exp(e)), None, [e for e in RATES if abs(e) < 300], [0.0]),
}  # fmt: skip


@pytest.fixture(params=ROWS)
def named(request):
    return request.param, ROWS[request.param], LikelihoodKernel(request.param)


def arguments(row, y, n=1):
    return [np.full(n, float(v)) for v in (y, *row.parameters)]


def test_every_registered_likelihood_has_a_row():
    ours = {name for name, entry in registered_likelihoods().items() if entry.terms.__module__.startswith("pymc_rmhmc")}
    assert ours == set(ROWS)


def derivatives(row, eta, y, orders):
    parameters = [mp.mpf(p) for p in row.parameters]
    with mp.workdps(80):
        return [mp.diff(lambda e: row.log_density(e, y, *parameters), mp.mpf(eta), order) for order in orders]


def assert_close(got, exact, rel, what):
    if abs(exact) < 1e-290:  # underflow: anything as small will do
        assert abs(got) < 1e-280, what
    elif abs(exact) < 1e290:
        assert got == pytest.approx(float(exact), rel=rel), what


def exact_density(row, eta, y):
    with mp.workdps(1000 if abs(eta) > 300 else 450):
        return row.log_density(mp.mpf(eta), y, *[mp.mpf(p) for p in row.parameters])


def test_log_density_and_slope_match_mpmath(named):
    _, row, kernel = named
    for y in row.ys:
        for eta in row.etas:
            exact = exact_density(row, eta, y)
            if abs(exact) > 1e290:
                continue
            value, slope = kernel.gradient(np.array([eta]), arguments(row, y))
            assert_close(value, exact, 1e-11, ("logp", y, eta))
            assert kernel.log_density(np.array([eta]), arguments(row, y)) == pytest.approx(value, rel=1e-13)
            slope_exact = tail_derivatives(row, eta, y)[0]
            scale = 1e-11 * max(1.0, abs(y))
            if abs(slope_exact) > scale:
                assert_close(slope[0], slope_exact, 1e-9, ("g", y, eta))


def tail_derivatives(row, eta, y):
    """First to third derivatives with enough digits that nothing is lost to cancellation."""
    digits = 1000 if abs(eta) > 300 else 450 if abs(eta) > 10 else 160
    with mp.workdps(digits):
        parameters = [mp.mpf(p) for p in row.parameters]
        step = mp.mpf(10) ** -30
        f = [row.log_density(mp.mpf(eta) + k * step, y, *parameters) for k in (-2, -1, 0, 1, 2)]
        first = (f[0] - 8 * f[1] + 8 * f[3] - f[4]) / (12 * step)
        second = (-f[0] + 16 * f[1] - 30 * f[2] + 16 * f[3] - f[4]) / (12 * step**2)
        third = (-f[0] + 2 * f[1] - 2 * f[3] + f[4]) / (2 * step**3)
        return first, second, third


def test_observed_curvature_matches_mpmath(named):
    name, row, kernel = named
    if "hessian" not in kernel.kinds:
        pytest.skip("not log-concave")
    for y in row.ys:
        for eta in row.etas:
            _, second, third = tail_derivatives(row, eta, y)
            if not 1e-250 < abs(second) < 1e250:
                continue
            _, _, w, r = kernel.curvature(np.array([eta]), arguments(row, y), "hessian")
            assert_close(w[0], -second, 1e-9, ("w", y, eta))
            assert kernel.weight(np.array([eta]), arguments(row, y), "hessian")[0] == pytest.approx(w[0], rel=1e-12)
            exact = third / second
            assert r[0] == pytest.approx(float(exact), rel=1e-6, abs=1e-9), ("r", y, eta)


def test_a_hessian_is_claimed_only_where_it_is_never_negative(named):
    _, row, kernel = named
    lowest = min(-float(tail_derivatives(row, eta, y)[1]) for y in row.ys for eta in row.etas if abs(eta) < 100)
    assert (lowest >= 0.0) == ("hessian" in kernel.kinds)


def information(name, row, eta):
    """E[(∂ℓ/∂η)²] by a sum over all y, or by quadrature."""
    p = [mp.mpf(v) for v in row.parameters]

    def integrand(y):
        slope = mp.diff(lambda e: row.log_density(e, y, *p), mp.mpf(eta))
        return slope**2 * mp.exp(row.log_density(mp.mpf(eta), y, *p))

    with mp.workdps(30):
        if row.support is not None:
            return mp.fsum(integrand(y) for y in row.support(eta, *row.parameters))
        if name == "negativebinomial_log":
            return mp.nsum(lambda y: integrand(int(y)), [0, 400])
        if name in ("normal_identity", "studentt_identity"):
            return mp.quad(integrand, [-mp.inf, eta - 5, eta, eta + 5, mp.inf])
        return mp.quad(integrand, [0, mp.exp(eta) / 10, mp.exp(eta), 5 * mp.exp(eta), mp.inf])


@pytest.mark.parametrize("eta", [-1.3, 0.4, 1.5])
def test_fisher_information_is_the_variance_of_the_score(named, eta):
    name, row, kernel = named
    w = kernel.weight(np.array([eta]), arguments(row, row.ys[0]), "fisher")[0]
    assert w == pytest.approx(float(information(name, row, eta)), rel=1e-6)


def test_what_sites_grow_by_is_positive_and_the_slope_grows_by_it():
    """At a held η, as the noise and the freedom move; the information of all observations does not know outliers."""
    terms = lookup("studentt_identity").terms
    eta, y, nu, sigma = pt.dvectors("eta", "y", "nu", "sigma")
    found = terms(eta, {"nu": nu, "sigma": sigma}, y)
    function = pytensor.function([eta, y, nu, sigma], [found.slope_weight, found.gradient])
    at, data = np.array([0.3, -1.0, 2.0, 40.0]), np.array([0.4, 2.0, 2.5, -7.0])
    here = function(at, data, np.full(4, 15.0), np.full(4, 0.4))
    there = function(at, data, np.full(4, 1.5), np.full(4, 0.1))
    np.testing.assert_allclose(there[0] / here[0], there[1] / here[1], rtol=1e-12)
    assert (here[0] > 0.0).all()
    # Of an outlier the slope falls as the noise does, of the others it rises.
    assert there[0][0] > 10.0 * here[0][0]
    assert there[0][3] < here[0][3]


def test_log_slope_of_the_information_is_its_derivative(named):
    _, row, kernel = named
    for eta in (-30.0, -4.0, -0.5, 0.0, 0.8, 3.0, 6.0):
        h = 1e-5
        args = arguments(row, row.ys[0])
        up, down = (kernel.weight(np.array([eta + d]), args, "fisher")[0] for d in (h, -h))
        _, _, w, r = kernel.curvature(np.array([eta]), args, "fisher")
        if w[0] > 1e-250:
            assert r[0] == pytest.approx((np.log(up) - np.log(down)) / (2 * h), rel=1e-5, abs=1e-6), eta


def test_everything_is_finite_and_curvature_is_not_negative(named):
    name, row, kernel = named
    eta = np.linspace(row.etas[0], row.etas[-1], 2001)
    if name == "bernoulli_cloglog":
        eta = np.linspace(-1000, 700, 2001)
    for y in row.ys:
        for kind in kernel.kinds:
            value, g, w, r = kernel.curvature(eta, arguments(row, y, eta.size), kind)
            assert np.isfinite(value)
            assert np.isfinite(g).all()
            assert np.isfinite(w).all()
            assert np.isfinite(r).all()
            assert (w >= 0.0).all()


def test_log_density_is_pymcs_where_pymcs_is_accurate(named):
    name, row, kernel = named
    # PyMC's invprobit divides by a single-precision √2: it is itself accurate to 1e-7 only.
    tolerance = 1e-6 if "probit" in name else 1e-8
    eta = np.linspace(-3.0, 3.0, 13)
    symbolic = pt.dvector("eta")
    for y in row.ys:
        variable = row.distribution(symbolic, *row.parameters)
        data = np.full(eta.size, y, dtype=variable.dtype)
        theirs = pytensor.function([symbolic], pm.logp(variable, data), mode="FAST_COMPILE")(eta)
        ours = [kernel.log_density(np.array([e]), arguments(row, y)) for e in eta]
        np.testing.assert_allclose(ours, theirs, atol=tolerance, rtol=tolerance)


def test_a_waiting_time_of_zero_says_as_much_at_any_rate():
    """Of a lowest η the rate overflows; ``0 e^{-η}`` is 0 all the same."""
    eta, y = np.array([-1000.0, -710.0, 0.0, 1000.0]), np.zeros(4)
    value, g, w, r = LikelihoodKernel("exponential_log").curvature(eta, (y,), "hessian")
    assert value == pytest.approx(-eta.sum())
    np.testing.assert_array_equal((g, w, r), ([-1.0] * 4, [0.0] * 4, [-1.0] * 4))


def test_an_exposure_of_zero_leaves_nothing_undefined():
    for name in ("poisson_log", "negativebinomial_log"):
        row, kernel = ROWS[name], LikelihoodKernel(name)
        for kind in kernel.kinds:
            value, g, w, _ = kernel.curvature(np.array([-np.inf]), arguments(row, 0), kind)
            assert value == pytest.approx(0.0, abs=1e-12)
            assert g[0] == w[0] == 0.0


def test_the_checks_name_impossible_data(named):
    name, row, _ = named
    parameters = {p: np.full(1, v) for p, v in zip(lookup(name).parameters, row.parameters, strict=True)}
    for y in row.ys:
        assert lookup(name).check(np.array([float(y)]), parameters) is None
    for y in row.bad_y:
        assert lookup(name).check(np.array([float(y)]), parameters)


SPELLINGS = {
    "bernoulli_logit": [
        lambda f: pm.Bernoulli.dist(logit_p=f),
        lambda f: pm.Bernoulli.dist(p=pm.math.sigmoid(f)),
        lambda f: pm.Bernoulli.dist(p=pm.math.invlogit(f)),
        lambda f: pm.Bernoulli.dist(p=1 / (1 + pt.exp(-f))),
    ],
    "bernoulli_probit": [
        lambda f: pm.Bernoulli.dist(p=pm.math.invprobit(f)),
        lambda f: pm.Bernoulli.dist(p=0.5 * (1 + pt.erf(f / np.sqrt(2)))),
        lambda f: pm.Bernoulli.dist(p=pt.erfc(-f / pt.sqrt(2.0)) / 2),
    ],
    "bernoulli_cloglog": [
        lambda f: pm.Bernoulli.dist(p=1 - pt.exp(-pt.exp(f))),
        lambda f: pm.Bernoulli.dist(p=-pt.expm1(-pt.exp(f))),
    ],
    "binomial_logit": [
        lambda f: pm.Binomial.dist(n=5, logit_p=f),
        lambda f: pm.Binomial.dist(n=np.arange(4), p=pm.math.sigmoid(f)),
    ],
    "binomial_probit": [lambda f: pm.Binomial.dist(n=5, p=pm.math.invprobit(f))],
    "binomial_cloglog": [lambda f: pm.Binomial.dist(n=5, p=-pt.expm1(-pt.exp(f)))],
    "poisson_log": [
        lambda f: pm.Poisson.dist(mu=pt.exp(f)),
        lambda f: pm.Poisson.dist(mu=pt.exp(f + 2.0)),
        lambda f: pm.Poisson.dist(mu=pt.exp(f) * np.arange(4)),
        lambda f: pm.Poisson.dist(mu=3.0 * pt.exp(f)),
        lambda f: pm.Poisson.dist(mu=pt.exp(f) / 3.0),
        lambda f: pm.Poisson.dist(mu=pt.exp(f) * pt.exp(0.5 * f)),
    ],
    "zeroinflatedpoisson_log": [lambda f: pm.ZeroInflatedPoisson.dist(psi=0.4, mu=2 * pt.exp(f))],
    "negativebinomial_log": [lambda f: pm.NegativeBinomial.dist(mu=pt.exp(f) * 2, alpha=3.0)],
    "normal_identity": [lambda f: pm.Normal.dist(f, 2.0), lambda f: pm.Normal.dist(f, tau=2.0)],
    "studentt_identity": [lambda f: pm.StudentT.dist(nu=4, mu=f, sigma=2.0)],
    "exponential_log": [
        lambda f: pm.Exponential.dist(scale=pt.exp(f)),
        lambda f: pm.Exponential.dist(lam=pt.exp(-f)),
        lambda f: pm.Exponential.dist(lam=1 / pt.exp(f)),
    ],
    "gamma_log": [lambda f: pm.Gamma.dist(alpha=2.0, beta=2.0 / pt.exp(f))],
    "weibull_log": [lambda f: pm.Weibull.dist(alpha=2.0, beta=pt.exp(f))],
}


@pytest.mark.parametrize("name", ROWS)
def test_each_spelling_is_recognised_and_means_the_same(name):
    """The reading's density equals PyMC's for the variable that was read: parameters and offsets included."""
    kernel = LikelihoodKernel(name)
    eta = np.array([-0.7, 0.1, 0.4, 1.2])
    y = {"bernoulli": 1.0, "binomial": 0.0, "poisson": 0.0, "zeroinflatedpoisson": 0.0}.get(name.split("_")[0], 2.0)
    for spelling in SPELLINGS[name]:
        f = pt.dvector("f")
        variable = spelling(f)
        likelihood, reading = read_likelihood(variable)
        assert likelihood.name == name
        total = reading.eta if reading.offset is None else reading.eta + reading.offset
        symbols = [total + 0 * f, *(reading.parameters[p] + 0 * f for p in likelihood.parameters)]
        values = pytensor.function([f], symbols, mode="FAST_COMPILE")(eta)
        ours = kernel.log_density(values[0], [np.full(4, y), *values[1:]])
        data = np.full(4, y, dtype=variable.dtype)
        theirs = pytensor.function([f], pm.logp(variable, data).sum(), mode="FAST_COMPILE")(eta)
        # Literals such as 3.0 are single precision in PyTensor's graphs, and so are their logarithms in PyMC's.
        assert ours == pytest.approx(float(theirs), abs=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda f: pm.Poisson.dist(mu=f**2),
        lambda f: pm.Bernoulli.dist(p=pt.clip(f, 0, 1)),
        lambda f: pm.Bernoulli.dist(p=0.3 * pt.erfc(-f / np.sqrt(2))),
        lambda f: pm.Bernoulli.dist(p=2 - pt.exp(-pt.exp(f))),
        lambda f: pm.Beta.dist(alpha=pt.exp(f), beta=1.0),
        lambda f: pm.Mixture.dist(w=[0.5, 0.5], comp_dists=[pm.Poisson.dist(pt.exp(f)), pm.Poisson.dist(3.0)]),
    ],
)
def test_other_links_are_left_alone(make):
    assert read_likelihood(make(pt.dvector("f"))) is None


def test_kernels_pickle_small_and_give_the_same():
    kernel = LikelihoodKernel("bernoulli_probit")
    eta, y = np.linspace(-3, 3, 7), [np.ones(7)]
    before = kernel.curvature(eta, y, "hessian")
    data = cloudpickle.dumps(kernel)
    assert len(data) < 1000
    for ours, theirs in zip(before, cloudpickle.loads(data).curvature(eta, y, "hessian"), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_registering_twice_or_with_an_unknown_kind_is_an_error():
    with pytest.raises(ConfigurationError, match="registered already"):
        register_likelihood(pm.Poisson, link="log", read=lambda mu: None)
    with pytest.raises(ConfigurationError, match="kinds"):
        register_likelihood(pm.Poisson, link="odd", read=lambda mu: None, kinds=["observed"])
    with pytest.raises(ConfigurationError, match="No likelihood"):
        LikelihoodKernel("unheard_of")


def test_a_users_own_likelihood_is_read_and_compiled():
    @register_likelihood(
        pm.Laplace, link="identity", kinds=["fisher"], parameters=["b"],
        read=lambda mu, b: Reading(mu, {"b": b}), name="laplace_of_the_tests",
    )  # fmt: skip
    def laplace(eta, parameters, y):
        b = parameters["b"]
        curvature = Curvature(1 / b**2 + 0 * eta, 0 * eta)
        return LikelihoodTerms(-pt.abs(y - eta) / b - pt.log(2 * b), pt.sign(y - eta) / b, {"fisher": curvature})

    likelihood, reading = read_likelihood(pm.Laplace.dist(mu=pt.dvector("f"), b=2.0))
    assert likelihood.name == "laplace_of_the_tests"
    assert set(reading.parameters) == {"b"}
    value, g = LikelihoodKernel(likelihood.name).gradient(np.zeros(1), [np.ones(1), np.full(1, 2.0)])
    assert value == pytest.approx(-0.5 - np.log(4.0))
    assert g[0] == 0.5


@pytest.mark.parametrize(
    ("options", "gives", "says"),
    [
        ({"kinds": ["fisher", "hessian"]}, {"b"}, "kinds names hessian, but the function returns fisher"),
        ({"kinds": ["fisher"], "parameters": ["b", "c"]}, {"b"}, "parameters names c, but `read` returns b"),
        ({"kinds": ["fisher"]}, None, "must return LikelihoodTerms, not tuple"),
        ({"kinds": ["fisher"], "parameters": []}, {"b"}, "reads the parameter 'b', which it is not given. Name it in para"),
        ({"kinds": ["fisher"]}, {"sum"}, "logp must have one value for each observation"),
        ({"kinds": ["fisher"], "read": lambda mu, b: 3}, {"b"}, "`read` must return a Reading, or None .* not 3"),
        ({"kinds": ["fisher"], "read": lambda mu: None}, {"b"}, "`read` must take 2 parameters, as many as LaplaceRV"),
    ],
)
def test_a_registration_that_does_not_give_what_it_says_is_an_error_where_a_model_is_read(options, gives, says):
    def terms(eta, parameters, y):
        fisher = {"fisher": Curvature(1.0 + 0.0 * eta, 0.0 * eta)}
        logp = -pt.abs(y - eta) / parameters["b"]
        found = (logp.sum() if gives == {"sum"} else logp, pt.sign(y - eta), fisher)
        return found if gives is None else LikelihoodTerms(*found)

    read = lambda mu, b: Reading(mu, {"b": b})  # noqa: E731
    options = {"parameters": ["b"], "link": "identity", "read": read, "name": "amiss", **options}
    register_likelihood(pm.Laplace, **options)(terms)
    try:
        with pytest.raises(ConfigurationError, match=says):
            read_likelihood(pm.Laplace.dist(mu=pt.dvector("f"), b=2.0))
    finally:
        del registry._REGISTRY["amiss"]


def student_kernel():
    """A density with no registered closed form: a StudentT written by hand."""
    eta, y, nu = pt.dvectors("eta", "y", "nu")
    return FallbackKernel(eta, (y, nu), -0.5 * (nu + 1) * pt.log1p((y - eta) ** 2 / nu))


@pytest.mark.parametrize(
    ("density", "slope"),
    [
        (lambda x: pt.log(pt.sigmoid(x)), lambda x: 1.0 / (1.0 + np.exp(x))),
        (lambda x: pt.softplus(x) ** 2, lambda x: 2.0 * np.logaddexp(0.0, x) / (1.0 + np.exp(-x))),
        (lambda x: pt.log1mexp(-pt.exp(x)), lambda x: np.exp(x) / np.expm1(np.exp(x))),
        (lambda x: pt.digamma(pt.exp(x)), lambda x: np.exp(x) * polygamma(1, np.exp(x))),
    ],
    ids=["sigmoid", "softplus", "log1mexp", "digamma"],
)
def test_slopes_by_numpy_are_exact_in_the_tails(density, slope):
    """As compiled code has them; and by functions of whole arrays, of which PyTensor has none for these."""
    x, eta = np.array([-30.0, -4.0, -0.3, 0.0, 0.2, 1.5, 4.0]), pt.dvector("eta")
    by_numpy = SlopeByNumPy(eta, (), density(eta))
    np.testing.assert_allclose(by_numpy(x, ()), slope(x), rtol=1e-9)
    held = [node.op.scalar_op for node in by_numpy._function.maker.fgraph.toposort() if isinstance(node.op, Elemwise)]
    assert held
    assert not any(isinstance(function, (Softplus, Log1mexp, TriGamma)) for function in held)
    np.testing.assert_array_equal(cloudpickle.loads(cloudpickle.dumps(by_numpy))(x, ()), by_numpy(x, ()))


def test_a_slope_by_numpy_is_not_finite_where_a_parameter_is_out_of_its_range():
    """As in compiled code, and no exception."""
    eta, sigma = pt.dvector("eta"), pt.dscalar("sigma")
    by_numpy = SlopeByNumPy(eta, (sigma,), pm.logp(pm.Normal.dist(eta, sigma), 1.0))
    np.testing.assert_allclose(by_numpy(np.zeros(2), (np.array(2.0),)), 0.25)
    by_numpy(np.zeros(2), (np.array(-2.0),))


def test_fallback_derivatives_and_softabs_match_mpmath():
    kernel = student_kernel()
    eta = np.array([-40.0, -2.1, -0.3, 0.0, 0.99999, 1.5, 8.0])
    args = [np.zeros(eta.size), np.full(eta.size, 1.0)]
    _, g, w, r = kernel.curvature(eta, args, "softabs_curvature")

    def density(e):
        return -mp.log(1 + e**2)

    def weight(e):
        h = mp.diff(density, e, 2)
        return h * mp.coth(100 * h) if h != 0 else mp.mpf(1) / 100

    for i, e in enumerate(eta):
        at = mp.mpf(float(e))
        assert g[i] == pytest.approx(float(mp.diff(density, at)), rel=1e-9, abs=1e-12)
        assert w[i] == pytest.approx(float(weight(at)), rel=1e-8)
        assert r[i] == pytest.approx(float(mp.diff(lambda v: mp.log(weight(v)), at)), rel=1e-5, abs=1e-6)
    assert (w > 0).all()


def test_fallback_survives_a_pickle():
    kernel = cloudpickle.loads(cloudpickle.dumps(student_kernel()))
    value, _ = kernel.gradient(np.zeros(2), [np.ones(2), np.full(2, 3.0)])
    assert value == pytest.approx(-4.0 * np.log1p(1 / 3.0))


def test_the_probe_tells_a_diagonal_hessian_from_another():
    rng, eta = np.random.default_rng(0), np.linspace(-1, 1, 6)
    assert has_diagonal_hessian(lambda e: -np.exp(e), eta, rng)
    assert not has_diagonal_hessian(lambda e: -np.exp(e) - np.roll(e, 1), eta, rng)
    far = np.full(40, -1.0)
    assert not has_diagonal_hessian(lambda e: -e - np.where(np.abs(e) > 4.0, np.roll(e, 1), 0.0), far, rng)
    with np.errstate(invalid="ignore"):
        assert has_diagonal_hessian(lambda e: np.where(e > -4.0, -e, np.inf - np.inf), far, rng)


def test_two_values_that_are_coupled_are_seen_whatever_signs_are_drawn():
    """Signs that are all turned around say the same of any Hessian."""
    for size in (2, 3, 9):
        swap = np.arange(size)
        swap[[0, 1]] = [1, 0]
        coupled = lambda e, swap=swap: -e - np.where(np.arange(e.size) < 2, 0.3 * e[swap], 0.0)  # noqa: E731
        rngs = [np.random.default_rng(seed) for seed in range(60)]
        assert not any(has_diagonal_hessian(coupled, np.zeros(size), rng) for rng in rngs)


@pytest.mark.filterwarnings("error:Numba will use object mode")
def test_what_numba_runs_in_python_is_not_said():
    """The curvature of a Beta takes a tri_gamma, which Numba has not."""
    eta, y = pt.dvector("eta"), pt.dvector("y")
    mean = pm.math.invlogit(eta)
    kernel = FallbackKernel(eta, (y,), pm.logp(pm.Beta.dist(5.0 * mean, 5.0 * (1.0 - mean)), y))
    assert np.isfinite(kernel.curvature(np.zeros(2), (np.full(2, 0.3),), "softabs_curvature")[1]).all()


def test_a_power_of_zero_is_infinite_and_no_exception():
    """Numba raises a ZeroDivisionError for 0 to a negative whole number, which ends a chain."""
    x, given, fixed = pt.dvector("x"), pt.lvector("n"), np.array([-1, 0, 2, -3])
    outputs = [x**given, x**fixed, pt.grad((x**fixed).sum(), x)]
    function = compile_outputs([x, given], outputs, exact=True)
    for values in (np.zeros(4), np.array([2.0, -3.0, 0.5, 4.0])):
        with np.errstate(all="ignore"):
            power, slope = values ** fixed.astype(float), fixed * values ** (fixed - 1.0)
        for array, expected in zip(function(values, fixed), (power, power, slope), strict=True):
            np.testing.assert_allclose(array, expected, rtol=1e-15)


@pytest.mark.parametrize("set_first", [True, False])
def test_writes_of_both_kinds_at_one_index_stay_what_they_are(set_first):
    """Derivatives of an LKJ factor hold such a pair, which PyTensor 3.3 makes one loop of one kind of write."""
    x, index = pt.dvector("x"), np.array([0, 2])
    value = pt.exp(x)
    outputs = [pt.ones(3)[index].set(value), pt.ones(3)[index].inc(2.0 * value)]
    order = [0, 1] if set_first else [1, 0]
    found = compile_outputs([x], [outputs[i] for i in order], exact=True)(np.zeros(2))
    expected = [[1.0, 1.0, 1.0], [3.0, 1.0, 3.0]]
    for i, array in zip(order, found, strict=True):
        np.testing.assert_allclose(array, expected[i])
