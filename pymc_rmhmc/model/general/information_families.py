"""The expected information of a distribution about its parameters, in closed form.

With the score ``s = ∂ log p(x)/∂a`` of parameters a, the information of one element is ``F = E[s sᵀ]``. Scales and
shapes are taken by their logarithms: F is then of moderate size everywhere. Where the density depends on a location
and the value through their difference, on a scale such as ``log x``, F of the location is F of the value too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pytensor.tensor as pt
from pytensor.tensor.special import Softmax, log_softmax
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.likelihoods.binary import binomial_cloglog, binomial_probit
from pymc_rmhmc.model.likelihoods.counts import mean_of_odds
from pymc_rmhmc.model.likelihoods.links import strip, undo_cloglog, undo_log, undo_logit, undo_probit

__all__ = [
    "INFORMATION", "SCALES", "Information", "InformationRow", "counts_of_negative_binomial", "log_of",
    "log_probabilities",
]  # fmt: skip

type Symbol = TensorVariable
type Entry = TensorVariable | float

# On what scale of the value the first parameter is a location, and PyMC's transform to this scale.
SCALES = {"identity": "", "log": "LogTransform", "logit": "LogOddsTransform", "interval": "Interval"}
TINY = 1e-300
# A probability or mean that is not read through its link counts as no less: of less it has no digits, and no weight.
LEAST = 1e-12
EULER = 0.5772156649015329
# Of a standard Gumbel variable about its location and log scale.
GUMBEL_CROSS, GUMBEL_SCALE = EULER - 1.0, (1.0 - EULER) ** 2 + math.pi**2 / 6.0
# Terms of the recurrence before the asymptotic series of the trigamma function, which then has 12 digits.
TRIGAMMA_STEPS = 10
# From this many degrees of freedom on a series serves, where the closed form has lost half of its digits.
LARGE_NU = 100.0


@dataclass(frozen=True, slots=True)
class Information:
    """The information of one element of a variable about its parameters."""

    # Functions of the distribution's parameters, k of them. They broadcast to the variable's shape. If the family has a
    # location, it is the first.
    parameters: Sequence[Symbol]
    # F, k × k: symmetric, positive definite, elementwise; numbers where an entry is constant.
    matrix: Sequence[Sequence[Entry]]


class InformationRow(NamedTuple):
    """One family."""

    # From the distribution's parameters, in the order of PyMC's ``dist_params``, to an `Information`.
    at: Callable[..., Information]
    # The scale of the value on which the first parameter is its location: a key of `SCALES`, or "" for none.
    location: str = ""
    n_categories_axes: int = 0  # axes that the parameters have and the variable has not: 1 of Categorical


def log_of(value: Symbol) -> Symbol:
    """Return ``log value``, without the exponential in ``value = exp(η) · factor``."""
    found = undo_log(value)
    if found is None:
        return pt.log(value)
    eta, offset = found
    return eta if offset is None else eta + offset


def is_softmax(p: Symbol) -> bool:
    """Check whether probabilities are a softmax of something."""
    inner = strip(p)
    return inner.owner is not None and isinstance(inner.owner.op, Softmax) and inner.ndim == p.ndim


def log_probabilities(p: Symbol) -> Symbol:
    """Return ``log p``, by the stable form of a log-softmax where p is a softmax."""
    if not is_softmax(p):
        return pt.log(p)
    node = strip(p).owner
    return log_softmax(node.inputs[0], axis=node.op.axis)


def trigamma(x: Symbol) -> Symbol:
    """Compute ψ₁ by recurrence and series: Numba has no trigamma with derivatives."""
    far = x + TRIGAMMA_STEPS
    terms = [1.0 / (x + k) ** 2 for k in range(TRIGAMMA_STEPS)]
    inverse = 1.0 / far
    square = inverse**2
    coefficients = (1.0 / 6.0, -1.0 / 30.0, 1.0 / 42.0, -1.0 / 30.0, 5.0 / 66.0)
    series = sum((c * square**k for k, c in enumerate(coefficients)), start=pt.zeros_like(inverse))
    return pt.add(*terms, inverse, 0.5 * square, inverse * square * series)


def _rounded(x: Symbol) -> Symbol:
    """Return ``x ψ₁(x) - 1`` > 0; about ``1/(2x)`` for a large x, where the difference loses digits."""
    far = pt.maximum(x, LARGE_NU)
    inverse = 1.0 / far
    series = inverse * (0.5 + inverse * (1.0 / 6.0 - inverse**2 / 30.0))
    near = pt.minimum(x, LARGE_NU)
    return pt.switch(x < LARGE_NU, near * trigamma(near) - 1.0, series)


# ----------------------------------------------------------------------------------- location and scale


def _location_scale(location: Symbol, scale: Symbol, of_location: Entry, of_scale: float) -> Information:
    """Return F of a symmetric density: location and scale are orthogonal, `of_location` is in units of the scale."""
    return Information([location, log_of(scale)], [[of_location / scale**2, 0.0], [0.0, of_scale]])


def _normal(mu: Symbol, sigma: Symbol) -> Information:
    return _location_scale(mu, sigma, 1.0, 2.0)


def _laplace(mu: Symbol, b: Symbol) -> Information:
    return _location_scale(mu, b, 1.0, 1.0)


def _cauchy(alpha: Symbol, beta: Symbol) -> Information:
    return _location_scale(alpha, beta, 0.5, 0.5)


def _logistic(mu: Symbol, s: Symbol) -> Information:
    return _location_scale(mu, s, 1.0 / 3.0, (3.0 + math.pi**2) / 9.0)


def _gumbel(mu: Symbol, beta: Symbol) -> Information:
    return Information([mu, log_of(beta)], [[1.0 / beta**2, GUMBEL_CROSS / beta], [GUMBEL_CROSS / beta, GUMBEL_SCALE]])


def _of_nu(nu: Symbol) -> tuple[Symbol, Symbol, Symbol]:
    """Return the three entries of F of Student's t about ``log σ`` and ``log ν`` (Lange, Little and Taylor, 1989)."""
    near, inverse = pt.minimum(nu, LARGE_NU), 1.0 / pt.maximum(nu, LARGE_NU)
    closed = 0.25 * (trigamma(0.5 * near) - trigamma(0.5 * near + 0.5)) - (near + 5.0) / (
        2.0 * near * (near + 1.0) * (near + 3.0)
    )
    series = inverse**2 * (3.5 - inverse * (13.0 - inverse * (39.5 - inverse * (119.0 - 363.5 * inverse))))
    of_nu = pt.switch(nu < LARGE_NU, near**2 * closed, series)
    return 2.0 * nu / (nu + 3.0), -2.0 * nu / ((nu + 1.0) * (nu + 3.0)), of_nu


def _student_t(nu: Symbol, mu: Symbol, sigma: Symbol) -> Information:
    of_scale, cross, of_nu = _of_nu(nu)
    of_location = (nu + 1.0) / ((nu + 3.0) * sigma**2)
    matrix = [[of_location, 0.0, 0.0], [0.0, of_scale, cross], [0.0, cross, of_nu]]
    return Information([mu, log_of(sigma), log_of(nu)], matrix)


# ------------------------------------------------------------------------- locations of the logarithm


def _half_student_t(nu: Symbol, sigma: Symbol) -> Information:
    of_scale, cross, of_nu = _of_nu(nu)
    return Information([log_of(sigma), log_of(nu)], [[of_scale, cross], [cross, of_nu]])


def _gamma(alpha: Symbol, scale: Symbol) -> Information:
    return Information([log_of(scale), log_of(alpha)], [[alpha, alpha], [alpha, alpha * (1.0 + _rounded(alpha))]])


def _inverse_gamma(alpha: Symbol, beta: Symbol) -> Information:
    return Information([log_of(beta), log_of(alpha)], [[alpha, -alpha], [-alpha, alpha * (1.0 + _rounded(alpha))]])


def _weibull(alpha: Symbol, beta: Symbol) -> Information:
    cross = GUMBEL_CROSS * alpha
    return Information([log_of(beta), log_of(alpha)], [[alpha**2, cross], [cross, GUMBEL_SCALE]])


# ------------------------------------------------------------------------------- between two bounds


def _beta(a: Symbol, b: Symbol) -> Information:
    """Return F of a Beta. Its location, a shift of the log-odds, is 0: no parameter, but free variables have it."""
    both = a + b
    of_both, third = trigamma(both), -a * b / both
    matrix = [
        [a * b / (both + 1.0), -third, third],
        [-third, a**2 * (trigamma(a) - of_both), -a * b * of_both],
        [third, -a * b * of_both, b**2 * (trigamma(b) - of_both)],
    ]
    return Information([pt.zeros_like(both), log_of(a), log_of(b)], matrix)


def _uniform(lower: Symbol, upper: Symbol) -> Information:
    """Return F of a Uniform: the value variable of a free one is a standard logistic, wherever its bounds are."""
    return Information([pt.zeros_like(lower + upper)], [[1.0 / 3.0]])


# ---------------------------------------------------------------------------------------------- counts


def _binomial(n: Symbol, p: Symbol) -> Information:
    eta = undo_logit(p)
    if eta is not None:
        return Information([eta], [[n * pt.sigmoid(eta) * pt.sigmoid(-eta)]])
    for undo, likelihood in ((undo_probit, binomial_probit), (undo_cloglog, binomial_cloglog)):
        eta = undo(p)
        if eta is not None:
            terms = likelihood(eta, {"n": n}, pt.zeros_like(eta))
            return Information([eta], [[terms.curvature["fisher"].weight]])
    return Information([p], [[n / pt.maximum(p * (1.0 - p), LEAST)]])


def _poisson(mu: Symbol) -> Information:
    if undo_log(mu) is None:
        return Information([mu], [[1.0 / pt.maximum(mu, LEAST)]])
    log_mu = log_of(mu)
    return Information([log_mu], [[pt.exp(log_mu)]])


class CountsOfNegativeBinomial(NamedTuple):
    """What the information of a negative binomial is made of; α = n."""

    log_mu: Symbol
    up: Symbol  # μ/(μ + α)
    of_square: Symbol  # about log α, in ``(y - μ)²``
    surprise: Symbol  # ``-log P(y = 0)``


def counts_of_negative_binomial(n: Symbol, p: Symbol) -> CountsOfNegativeBinomial:
    """Read a negative binomial, with a mean that is read through its logarithm where it is written so."""
    mean = mean_of_odds(p, n)
    log_mu = pt.log(n) + pt.log1p(-p) - pt.log(p) if mean is None else log_of(mean)
    odds = log_mu - log_of(n)
    up = pt.sigmoid(odds)
    of_square = up**2 / (2.0 + 6.0 / n + pt.sigmoid(-odds) / pt.maximum(pt.exp(log_mu), TINY))
    return CountsOfNegativeBinomial(log_mu, up, of_square, n * pt.softplus(odds))


def _negative_binomial(n: Symbol, p: Symbol) -> Information:
    """Return F about ``log μ`` and ``log α``, α = n.

    That of α has no closed form, and is taken as the information in ``(y - μ)²`` and in ``y = 0``. With
    ``V = μ + μ²/α`` and the kurtosis ``3 + 6/α + 1/V`` the first is ``(∂V/∂ log α)²/(V² (2 + 6/α + 1/V))``. Their sum
    is 0.35 to 1.1 of the information from a mean of 0.5 on, and never less than a tenth of it.
    """
    log_mu, up, of_square, surprise = counts_of_negative_binomial(n, p)
    of_zero = pt.exp(-surprise) * (surprise - n * up) ** 2 / pt.maximum(-pt.expm1(-surprise), TINY)
    return Information([log_mu, log_of(n)], [[n * up, 0.0], [0.0, of_square + of_zero]])


def _geometric(p: Symbol) -> Information:
    eta = undo_logit(p)
    if eta is not None:
        return Information([eta], [[pt.sigmoid(-eta)]])
    return Information([p], [[1.0 / pt.maximum(p**2 * (1.0 - p), LEAST)]])


def _multinomial(n: Symbol, p: Symbol) -> Information:
    """Return ``n Σⱼ ∂pⱼ ∂pⱼᵀ/pⱼ``, in terms of log p where p is a softmax."""
    n = n[..., None] if n.ndim else n
    if is_softmax(p):
        log_p = log_probabilities(p)
        return Information([log_p], [[n * pt.exp(log_p)]])
    return Information([p], [[n / pt.maximum(p, LEAST)]])


# By the names of distributions in PyMC.
INFORMATION = {
    "Normal": InformationRow(_normal, "identity"),
    "StudentT": InformationRow(_student_t, "identity"),
    "Laplace": InformationRow(_laplace, "identity"),
    "Cauchy": InformationRow(_cauchy, "identity"),
    "Logistic": InformationRow(_logistic, "identity"),
    "Gumbel": InformationRow(_gumbel, "identity"),
    "LogNormal": InformationRow(_normal, "log"),
    "HalfNormal": InformationRow(lambda loc, sigma: Information([log_of(sigma)], [[2.0]]), "log"),
    "HalfCauchy": InformationRow(lambda beta: Information([log_of(beta)], [[0.5]]), "log"),
    "HalfStudentT": InformationRow(_half_student_t, "log"),
    "Exponential": InformationRow(lambda scale: Information([log_of(scale)], [[1.0]]), "log"),
    "Gamma": InformationRow(_gamma, "log"),
    "InverseGamma": InformationRow(_inverse_gamma, "log"),
    "Weibull": InformationRow(_weibull, "log"),
    "LogitNormal": InformationRow(_normal, "logit"),
    "Beta": InformationRow(_beta, "logit"),
    "Uniform": InformationRow(_uniform, "interval"),
    "Bernoulli": InformationRow(lambda p: _binomial(pt.ones(()), p)),
    "Binomial": InformationRow(_binomial),
    "Poisson": InformationRow(_poisson),
    "NegativeBinomial": InformationRow(_negative_binomial),
    "Geometric": InformationRow(_geometric),
    "Multinomial": InformationRow(_multinomial),
    "Categorical": InformationRow(lambda p: _multinomial(pt.ones(()), p), n_categories_axes=1),
}
