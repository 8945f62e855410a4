"""Bernoulli and binomial likelihoods with logit, probit and complementary log-log links.

A Bernoulli observation is a binomial one with a single trial. Every formula is written for one tail:
the success at η, or the failure, so that nothing is subtracted from 1. Sources: Rasmussen and Williams
(2006), section 3.4.3 and table 3.1; math in Paquet and Fraccaro (2016), section 4.4, with the
cancellation in the tails removed.

Functions of thousands of values are in forms that compile to vector instructions: those of a library of C are called
for one value after another, and gradients of logit and probit likelihoods take half of the time without them, or less,
to the same digits. They have the right derivatives everywhere, also where they change from one form to another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.likelihoods.links import undo_cloglog, undo_logit, undo_probit
from pymc_rmhmc.model.likelihoods.registry import (
    Curvature,
    LikelihoodTerms,
    ParameterFault,
    Reading,
    places,
    register_likelihood,
)

__all__ = ["log1p_of_tail", "logistic_pair", "scaled_tail"]

type Tensor = TensorVariable
type Parameters = dict[str, TensorVariable]

# Below z = -4 the closed forms of w and r have lost 3 digits to cancellation, and this many terms of the
# continued fraction give 14; above, the closed forms serve. Both are checked against mpmath.
TAIL_START = 4.0
TAIL_TERMS = 24
# ``(1 + 2x) erfcx(x)`` in powers of ``t = (x - 3.75)/(x + 3.75)``, the lowest first: the Chebyshev interpolation at 120
# nodes with 60 digits, cut after the 24th degree. Its relative error is 1e-15 from 0 to infinity.
MIDDLE = 3.75
ERFCX = (
    1.2375126308378275, -0.14024059858554697, 0.0035854154854644293, 0.0822767384901452, -0.10880393014174886,
    0.09230432116037748, -0.05869339858963677, 0.028362277418956406, -0.009746579558029276, 0.0017556258528952954,
    0.0002937136655913448, -0.0002901540805408417, 5.164909889268241e-05, 2.238423915508223e-05,
    -1.1444146237700524e-05, -9.73559896736775e-07, 1.751637648849062e-06, -5.7218230603224086e-08,
    -2.5866850716155884e-07, 2.3263508708859124e-08, 3.8675334242222354e-08, -3.744210080962018e-09,
    -5.1739902140113095e-09, 3.1114333809799254e-10, 4.2514714447963895e-10,
)
# ``atanh(s)/s`` in powers of s², the lowest first: for s from -1/3 to 1/3 what is left out is below 1e-17.
ATANH = tuple(1.0 / (2 * k + 1) for k in range(16))


def _polynomial(coefficients: Sequence[float], x: Tensor) -> Tensor:
    """Evaluate a polynomial at x by Estrin's scheme: neighbours are joined, so that little waits for anything."""
    terms: list[Tensor | float] = [*coefficients]
    power = x
    while len(terms) > 1:
        joined = [low + high * power for low, high in zip(terms[::2], terms[1::2], strict=False)]
        terms, power = joined + terms[2 * len(joined) :], pt.sqr(power)
    value: Tensor = terms[0]
    return value


def magnitude(x: Tensor) -> Tensor:
    """Return ``abs(x)``, whose derivative at 0 is 1: what is smooth in x by one form on either side stays so."""
    return pt.switch(x < 0.0, -x, x)


def scaled_tail(x: Tensor) -> Tensor:
    """Return the normal tail relative to its density, ``exp(x²/2) Φ(-x)``, for x ≥ 0.

    References
    ----------
    Shepherd and Laframboise (1981), Chebyshev approximation of (1 + 2x) exp(x²) erfc x in 0 ≤ x < ∞, for the form.
    """
    x = x / math.sqrt(2.0)
    # Written as a quotient, t would not be a number at infinity.
    return 0.5 * _polynomial(ERFCX, 1.0 - 2.0 * MIDDLE / (x + MIDDLE)) / (1.0 + 2.0 * x)


def log1p_of_tail(x: Tensor) -> Tensor:
    """Return ``log(1 + x)`` for x from -1/2 to 1, where it is ``2 atanh(x/(2 + x))``."""
    s = x / (2.0 + x)
    # As s * s the quotient would be taken apart, and divided by at every power.
    return 2.0 * s * _polynomial(ATANH, pt.sqr(s))


def logistic_pair(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``log(1 + eˣ)`` and its derivative ``1/(1 + e⁻ˣ)``, from one exponential."""
    power = pt.exp(-magnitude(x))
    return pt.switch(x < 0.0, 0.0, x) + log1p_of_tail(power), pt.switch(x < 0.0, power, 1.0) / (1.0 + power)


def _zero_or_one(y: np.ndarray, parameters: dict[str, np.ndarray]) -> str | None:
    bad = (y != 0) & (y != 1)
    return f"must be 0 or 1, and are not for {places(bad, y)}" if bad.any() else None


def _trials(y: np.ndarray, parameters: dict[str, np.ndarray]) -> str | ParameterFault | None:
    n = parameters["n"]
    bad = ~((n >= 0) & (n == np.floor(n)))
    if bad.any():
        return ParameterFault("n", f"must be a whole number, 0 or more, and is not for {places(bad, n)}")
    bad = (y < 0) | (y != np.floor(y)) | (y > n)
    if not bad.any():
        return None
    return f"must be whole numbers from 0 to n, and are not for {places(bad, y)}, where n is {n[bad][0]:.4g}"


def _reading(eta: Tensor | None, **parameters: Tensor) -> Reading | None:
    return None if eta is None else Reading(eta, parameters)


def _log_choose(n: Tensor, y: Tensor) -> Tensor:
    return pt.gammaln(n + 1.0) - pt.gammaln(y + 1.0) - pt.gammaln(n - y + 1.0)


def _log_slope(slope: Tensor, weight: Tensor) -> Tensor:
    """Return ``∂w/∂η / w``, 0 where there is no curvature at all."""
    return pt.switch(weight > 0.0, slope / pt.switch(weight > 0.0, weight, 1.0), 0.0)


# ---------------------------------------------------------------------------------------------- logit


def _logit_curvature(eta: Tensor) -> Curvature:
    """Return ``w = σ(η)σ(-η)`` and ``r = -tanh(η/2)`` of one trial."""
    return Curvature(logistic_pair(eta)[1] * logistic_pair(-eta)[1], -pt.tanh(0.5 * eta))


@register_likelihood(pm.Bernoulli, link="logit", read=lambda p: _reading(undo_logit(p)), check=_zero_or_one)
def bernoulli_logit(eta: Tensor, parameters: Parameters, y: Tensor) -> LikelihoodTerms:
    """Return the terms of ``ℓ = -log(1 + e^{-z})``, z = ±η: ``g = ±σ(-z)``, ``w = σ(η)σ(-η)``, ``r = -tanh(η/2)``."""
    sign = 2.0 * y - 1.0
    curvature = _logit_curvature(eta)
    surprise, missed = logistic_pair(-sign * eta)
    return LikelihoodTerms(-surprise, sign * missed, {"hessian": curvature, "fisher": curvature})


@register_likelihood(
    pm.Binomial, link="logit", parameters=["n"], read=lambda n, p: _reading(undo_logit(p), n=n), check=_trials
)
def binomial_logit(eta: Tensor, parameters: Parameters, y: Tensor) -> LikelihoodTerms:
    """Sum the Bernoulli terms of y successes and n - y failures."""
    n = parameters["n"]
    (of_success, failing), (of_failure, succeeding) = logistic_pair(-eta), logistic_pair(eta)
    logp = _log_choose(n, y) - y * of_success - (n - y) * of_failure
    of_one = _logit_curvature(eta)
    curvature = Curvature(n * of_one.weight, of_one.log_slope)
    return LikelihoodTerms(logp, y * failing - (n - y) * succeeding, {"hessian": curvature, "fisher": curvature})


# --------------------------------------------------------------------------------------------- probit


def _log_normal_cdf(z: Tensor) -> Tensor:
    """Return log Φ(z), from the tail beyond abs(z)."""
    scaled, bell = scaled_tail(magnitude(z)), pt.exp(-0.5 * z**2)
    return pt.switch(z < 0.0, pt.log(scaled) - 0.5 * z**2, log1p_of_tail(-scaled * bell))


def _mills(z: Tensor) -> Tensor:
    """Return ρ(z) = φ(z)/Φ(z), with neither over- nor underflow: it is 0 beyond z = 38."""
    scaled, bell = scaled_tail(magnitude(z)), pt.exp(-0.5 * z**2)
    left = z < 0.0
    return pt.switch(left, 1.0, bell) / (math.sqrt(2.0 * math.pi) * pt.switch(left, scaled, 1.0 - scaled * bell))


def _probit_curvature(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``w = ρ(z + ρ)`` and ``∂ log w/∂z`` at z.

    In the left tail, x = -z, ``c_k = k/(x + c_{k+1})``: ``ρ = x + c₁``, ``w = ρ c₁``,
    ``∂ log w/∂z = c₁c₂(c₂ - c₃)``. c₃ is about half as large again as c₂, so that their difference keeps its digits.
    """
    rho = _mills(z)
    gap = z + rho
    closed = rho * gap, (1.0 - gap * (z + 2.0 * rho)) / gap
    x = pt.maximum(-z, TAIL_START)
    tail = [pt.zeros_like(x)]
    for k in range(TAIL_TERMS, 0, -1):
        tail.append(k / (x + tail[-1]))
    c3, c2, c1 = tail[-3], tail[-2], tail[-1]
    left = z < -TAIL_START
    return (
        pt.switch(left, (x + c1) * c1, closed[0]),
        pt.switch(left, c1 * c2 * (c2 - c3), closed[1]),
    )


def _probit_fisher(eta: Tensor) -> Curvature:
    """Return ``w = φ²/(Φ(η)Φ(-η)) = ρ(η)ρ(-η)`` and ``r = ρ(-η) - ρ(η) - 2η``."""
    right, left = _mills(eta), _mills(-eta)
    return Curvature(right * left, left - right - 2.0 * eta)


@register_likelihood(pm.Bernoulli, link="probit", read=lambda p: _reading(undo_probit(p)), check=_zero_or_one)
def bernoulli_probit(eta: Tensor, parameters: Parameters, y: Tensor) -> LikelihoodTerms:
    """Return the terms of ``ℓ = log Φ(z)``, z = ±η: ``g = ±ρ(z)``, ``w = ρ(z + ρ)``."""
    sign = 2.0 * y - 1.0
    z = sign * eta
    weight, slope = _probit_curvature(z)
    curvature = {"hessian": Curvature(weight, sign * slope), "fisher": _probit_fisher(eta)}
    return LikelihoodTerms(_log_normal_cdf(z), sign * _mills(z), curvature)


@register_likelihood(
    pm.Binomial, link="probit", parameters=["n"], read=lambda n, p: _reading(undo_probit(p), n=n), check=_trials
)
def binomial_probit(eta: Tensor, parameters: Parameters, y: Tensor) -> LikelihoodTerms:
    """Sum the terms of y successes at η and n - y failures at -η."""
    n = parameters["n"]
    failures = n - y
    logp = _log_choose(n, y) + y * _log_normal_cdf(eta) + failures * _log_normal_cdf(-eta)
    (w1, r1), (w0, r0) = _probit_curvature(eta), _probit_curvature(-eta)
    weight = y * w1 + failures * w0
    # A tail's weight underflows where its log-slope grows without bound: 0 · inf is no slope.
    slope = pt.switch(w1 > 0.0, y * w1 * r1, 0.0) - pt.switch(w0 > 0.0, failures * w0 * r0, 0.0)
    fisher = _probit_fisher(eta)
    curvature = {
        "hessian": Curvature(weight, _log_slope(slope, weight)),
        "fisher": Curvature(n * fisher.weight, fisher.log_slope),
    }
    return LikelihoodTerms(logp, y * _mills(eta) - failures * _mills(-eta), curvature)


# -------------------------------------------------------------------------------------------- cloglog

# Beyond e^±690 a success is certain, or the rate nothing, to the last bit; the rate is held within so that
# 0/0 and 0 · inf do not arise.
MAX_LOG_RATE = 690.0


def _success_rate(eta: Tensor) -> Tensor:
    return pt.exp(pt.clip(eta, -MAX_LOG_RATE, MAX_LOG_RATE))


def _cloglog_success(eta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ℓ, g, w and ``∂ log w/∂η`` of a success, ``ℓ = log(1 - e^{-μ})`` with ``μ = e^η``.

    ``g = μ/(e^μ - 1)``, ``w = g u`` with ``u = μ + g - 1``, and ``r = μ/u - g - u``. For small μ,
    ``u = μ/2 + (x coth x - 1)`` with x = μ/2 by the bracket's series.
    """
    rate = _success_rate(eta)
    g = rate / pt.expm1(rate)
    x2 = (0.5 * rate) ** 2
    series = 0.5 * rate + x2 * (1.0 / 3.0 - x2 * (1.0 / 45.0 - x2 * (2.0 / 945.0)))
    u = pt.switch(rate < 0.02, series, rate + g - 1.0)
    logp = pt.switch(rate < 1e-15, eta, pt.log(-pt.expm1(-rate)))
    return logp, g, g * u, rate / u - g - u


@register_likelihood(pm.Bernoulli, link="cloglog", read=lambda p: _reading(undo_cloglog(p)), check=_zero_or_one)
def bernoulli_cloglog(eta: Tensor, parameters: Parameters, y: Tensor) -> LikelihoodTerms:
    """Return the terms of a success, ``ℓ = log(1 - e^{-μ})``, or a failure, ``ℓ = -μ``, with ``μ = e^η``."""
    logp, g, w, r = _cloglog_success(eta)
    rate, success = pt.exp(eta), y > 0.5
    # Fisher: p g² + (1 - p) μ² = μ g, and its log-slope 1 - u.
    curvature = {
        "hessian": Curvature(pt.switch(success, w, rate), pt.switch(success, r, 1.0)),
        "fisher": Curvature(_cloglog_fisher(eta, g), 1.0 - _cloglog_u(eta)),
    }
    return LikelihoodTerms(pt.switch(success, logp, -rate), pt.switch(success, g, -rate), curvature)


@register_likelihood(
    pm.Binomial, link="cloglog", parameters=["n"], read=lambda n, p: _reading(undo_cloglog(p), n=n), check=_trials
)
def binomial_cloglog(eta: Tensor, parameters: Parameters, y: Tensor) -> LikelihoodTerms:
    """Sum the terms of y successes and n - y failures."""
    n = parameters["n"]
    failures = n - y
    logp, g, w, r = _cloglog_success(eta)
    rate = pt.exp(eta)
    lost = pt.switch(failures > 0.0, failures * rate, 0.0)
    weight = y * w + lost
    slope = pt.switch(w > 0.0, y * w * r, 0.0) + lost
    curvature = {
        "hessian": Curvature(weight, _log_slope(slope, weight)),
        "fisher": Curvature(n * _cloglog_fisher(eta, g), 1.0 - _cloglog_u(eta)),
    }
    return LikelihoodTerms(_log_choose(n, y) + y * logp - lost, y * g - lost, curvature)


def _cloglog_u(eta: Tensor) -> Tensor:
    """Return u of `_cloglog_success`, to the accuracy that ``1 - u`` needs."""
    rate = _success_rate(eta)
    return rate + rate / pt.expm1(rate) - 1.0


def _cloglog_fisher(eta: Tensor, g: Tensor) -> Tensor:
    """Return ``μ²/(e^μ - 1) = μ g``; g underflows long before the capped rate is reached."""
    return _success_rate(eta) * g
