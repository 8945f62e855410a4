"""Counts with a logarithmic link: Poisson, zero-inflated Poisson, negative binomial.

An exposure enters as ``η = f + log(exposure)``; an exposure of 0 makes η = -inf, where only a count of 0
is possible, and every term below is finite.
"""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.distribution import DiracDeltaRV
from pymc.distributions.mixture import MixtureRV
from pytensor.graph.basic import Constant, equal_computations
from pytensor.scalar import basic as ps
from pytensor.scalar import math as psm
from pytensor.tensor.basic import MakeVector
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.random.basic import PoissonRV
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.likelihoods.links import GATHERS, argument, equals, log_reading, operands, strip
from pymc_rmhmc.model.likelihoods.registry import (
    Curvature,
    LikelihoodTerms,
    ParameterFault,
    Reading,
    check_parameters,
    places,
    register_likelihood,
)

__all__ = ["mean_of_odds"]

type Tensor = TensorVariable
type Parameters = dict[str, TensorVariable]


def _counts(y: np.ndarray, parameters: dict[str, np.ndarray]) -> str | None:
    bad = (y < 0) | (y != np.floor(y))
    return f"must be counts 0, 1, 2, ..., and are not for {places(bad, y)}" if bad.any() else None


@register_likelihood(pm.Poisson, link="log", read=log_reading, check=_counts)
def poisson_log(eta: Tensor, parameters: Parameters, y: Tensor) -> LikelihoodTerms:
    """Return the terms of ``ℓ = yη - e^η - log y!``: ``g = y - e^η``, ``w = e^η``, ``r = 1``; observed is expected."""
    rate = pt.exp(eta)
    curvature = Curvature(rate, pt.ones_like(eta))
    logp = pt.switch(y > 0.0, y * eta, 0.0) - rate - pt.gammaln(y + 1.0)
    return LikelihoodTerms(logp, y - rate, {"hessian": curvature, "fisher": curvature})


def _zero_inflated_counts(y: np.ndarray, parameters: dict[str, np.ndarray]) -> str | ParameterFault | None:
    wrong = _counts(y, parameters)
    bad = (parameters["psi"] == 0.0) & (y > 0)
    if wrong is None and bad.any():
        return ParameterFault("psi", f"is 0, which allows no count above 0, and there are such: {places(bad, y)}")
    return wrong


def _read_zero_inflated(weights: Tensor, *components: Tensor) -> Reading | None:
    """Read what PyMC builds as a mixture of a point mass at 0 and a Poisson, with weights (1 - ψ, ψ)."""
    if len(components) != 2:
        return None
    zero, poisson = components
    if not isinstance(zero.owner and zero.owner.op, DiracDeltaRV) or not equals(_parameter(zero), 0.0):
        return None
    if not isinstance(poisson.owner and poisson.owner.op, PoissonRV):
        return None
    return log_reading(_parameter(poisson), psi=_last_weight(weights))


def _parameter(variable: Tensor) -> Tensor:
    """Return a distribution's first parameter."""
    parameter: Tensor = variable.owner.op.dist_params(variable.owner)[0]
    return parameter


def _last_weight(weights: Tensor) -> Tensor:
    """Return ψ of the weights ``stack([1 - ψ, ψ])``."""
    owner = weights.owner
    if owner is not None and isinstance(owner.op, MakeVector) and len(owner.inputs) == 2:
        return owner.inputs[1]
    return weights[..., 1]


@register_likelihood(
    MixtureRV,
    link="log",
    name="zeroinflatedpoisson_log",
    parameters=["psi"],
    kinds=["fisher"],
    read=_read_zero_inflated,
    check=check_parameters("psi", most=1.0, words="must lie between 0 and 1", data=_zero_inflated_counts),
)
def zero_inflated_poisson_log(eta: Tensor, parameters: Parameters, y: Tensor) -> LikelihoodTerms:
    """Return the terms of a Poisson count with probability ψ, else 0: not log-concave, so Fisher information only.

    With ``λ = e^η``, ``P₀ = 1 - ψ + ψe^{-λ}`` and ``q = ψe^{-λ}/P₀``, the chance that a 0 is the Poisson's:
    ``w = ψe^{-λ}λ² q + ψ(λ - λ²e^{-λ})``. q is a logistic function of ``logit ψ - λ``, so that ψ = 1 and
    large λ are no special cases.
    """
    psi = parameters["psi"]
    rate = pt.exp(eta)
    log_psi = pt.log(psi)
    log_odds = log_psi - pt.log1p(-psi) - rate
    q = pt.sigmoid(log_odds)
    zero = y < 0.5
    # log P₀ from whichever of its two terms is the larger: the other form would cancel.
    log_zero = pt.switch(
        log_odds < 0.0, pt.log1p(-psi) + pt.softplus(log_odds), log_psi - rate + pt.softplus(-log_odds)
    )
    counted = log_psi + pt.switch(zero, 0.0, y * eta) - rate - pt.gammaln(y + 1.0)
    spent = pt.exp(-rate)
    first = psi * (rate * spent) * (rate * q)  # in this order 0 · inf does not arise
    second = psi * rate * (1.0 - rate * spent)
    weight = first + second
    slope = first * (2.0 - 2.0 * rate + rate * q) + psi * rate * (1.0 - rate * spent * (2.0 - rate))
    log_slope = pt.switch(weight > 0.0, slope / pt.switch(weight > 0.0, weight, 1.0), 1.0)
    return LikelihoodTerms(
        pt.switch(zero, log_zero, counted),
        pt.switch(zero, -rate * q, y - rate),
        {"fisher": Curvature(weight, log_slope)},
    )


def _read_negative_binomial(n: Tensor, p: Tensor) -> Reading | None:
    """Read n = α and p = α/(μ + α), written ``sigmoid(log α - log μ)``, into which PyMC turns (μ, α)."""
    mean = mean_of_odds(p, n)
    return None if mean is None else log_reading(mean, alpha=n)


def mean_of_odds(p: Tensor, alpha: Tensor) -> Tensor | None:
    """Return μ of ``sigmoid(log α - log μ)`` or ``α / (μ + α)``; None for any other p."""
    odds = argument(p, psm.Sigmoid)
    difference = None if odds is None else operands(odds, ps.Sub)
    if difference is not None:
        log_alpha, log_mean = _number(strip(difference[0])), strip(difference[1])
        if not _is_logarithm(log_alpha, alpha):
            return None
        mean = argument(log_mean, ps.Log)
        return pt.exp(log_mean) if mean is None else mean
    ratio = operands(p, ps.TrueDiv)
    total = None if ratio is None or not _same(ratio[0], alpha) else operands(ratio[1], ps.Add)
    if total is None or len(total) != 2:
        return None
    return next((mean for mean, other in (total, total[::-1]) if _same(other, alpha)), None)


def _is_logarithm(value: Tensor, of: Tensor) -> bool:
    """Check whether a value is written as another's logarithm, or the other as its exponential."""
    inner = argument(value, ps.Log)
    if inner is not None:
        return _same(inner, of)
    other = _number(strip(of))
    if isinstance(value, Constant) and isinstance(other, Constant):
        numbers = np.asarray(other.data, dtype=np.float64)
        # What has no logarithm is read too: its own check says then what is wrong with it.
        with np.errstate(all="ignore"):
            return bool(np.allclose(value.data, np.log(numbers), rtol=1e-6, equal_nan=True))
    exponent = argument(other, ps.Exp)
    return exponent is not None and _same(exponent, value)


def _same(left: Tensor, right: Tensor) -> bool:
    """Check whether two expressions are one, up to broadcast dimensions and, for a single number, up to gathers."""
    left, right = _number(left), _number(right)
    if isinstance(left, Constant) and isinstance(right, Constant):
        return np.array_equal(left.data, right.data, equal_nan=True)
    return equal_computations([left], [right])


def _number(value: Tensor) -> Tensor:
    """Return the single number that is broadcast and gathered, as for PyMC's missing observations, or the value."""
    inner = value
    while inner.owner is not None and isinstance(inner.owner.op, GATHERS):
        inner = inner.owner.inputs[0]
    if inner.ndim == 0:
        return inner
    while value.owner is not None and isinstance(value.owner.op, DimShuffle):
        value = value.owner.inputs[0]
    return value


@register_likelihood(
    pm.NegativeBinomial,
    link="log",
    parameters=["alpha"],
    read=_read_negative_binomial,
    check=check_parameters("alpha", data=_counts),
)
def negative_binomial_log(eta: Tensor, parameters: Parameters, y: Tensor) -> LikelihoodTerms:
    """Return the terms for mean ``e^η``, variance ``μ + μ²/α``. With ``t = η - log α``, all in σ(t): nothing overflows.

    ``g = yσ(-t) - ασ(t)``; observed ``w = (y + α)σ(t)σ(-t)``, ``r = -tanh(t/2)``; expected
    ``w = ασ(t)``, ``r = σ(-t)``.
    """
    alpha = parameters["alpha"]
    t = eta - pt.log(alpha)
    up, down = pt.sigmoid(t), pt.sigmoid(-t)
    logp = (
        pt.gammaln(y + alpha)
        - pt.gammaln(alpha)
        - pt.gammaln(y + 1.0)
        - alpha * pt.softplus(t)
        - pt.switch(y > 0.0, y * pt.softplus(-t), 0.0)
    )
    curvature = {
        "hessian": Curvature((y + alpha) * up * down, -pt.tanh(0.5 * t)),
        "fisher": Curvature(alpha * up, down),
    }
    return LikelihoodTerms(logp, y * down - alpha * up, curvature)
