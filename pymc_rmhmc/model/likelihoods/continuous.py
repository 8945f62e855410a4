"""Continuous observations: Normal and StudentT at the predictor; Exponential, Gamma, Weibull on its log.

The last three have ``e^η`` as mean (Exponential, Gamma) or scale (Weibull); their log density is concave
in η for every y, and their Fisher information does not depend on η.
"""

from __future__ import annotations

import math

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.likelihoods.links import log_reading, undo_log
from pymc_rmhmc.model.likelihoods.registry import (
    Curvature,
    LikelihoodTerms,
    Reading,
    check_parameters,
    places,
    register_likelihood,
)

__all__: list[str] = []

type Tensor = TensorVariable
type Parameters = dict[str, TensorVariable]


def _not_negative(y: np.ndarray, parameters: dict[str, np.ndarray]) -> str | None:
    return f"must not be negative, and are for {places(y < 0, y)}" if (y < 0).any() else None


def _positive(y: np.ndarray, parameters: dict[str, np.ndarray]) -> str | None:
    return f"must be positive, and are not for {places(y <= 0, y)}" if (y <= 0).any() else None


@register_likelihood(
    pm.Normal,
    link="identity",
    parameters=["sigma"],
    read=lambda mu, sigma: Reading(mu, {"sigma": sigma}),
    check=check_parameters("sigma"),
)
def normal_identity(eta: Tensor, parameters: Parameters, y: Tensor) -> LikelihoodTerms:
    """Return the terms of a Normal: ``g = (y - η)/σ²``, ``w = 1/σ²``, ``r = 0``."""
    sigma = parameters["sigma"]
    standard = (y - eta) / sigma
    curvature = Curvature(1.0 / sigma**2 + pt.zeros_like(eta), pt.zeros_like(eta))
    logp = -0.5 * standard**2 - pt.log(sigma) - 0.5 * math.log(2.0 * math.pi)
    return LikelihoodTerms(logp, standard / sigma, {"hessian": curvature, "fisher": curvature})


@register_likelihood(
    pm.StudentT,
    link="identity",
    parameters=["nu", "sigma"],
    kinds=["fisher"],
    read=lambda nu, mu, sigma: Reading(mu, {"nu": nu, "sigma": sigma}),
    check=check_parameters("nu", "sigma"),
)
def student_t_identity(eta: Tensor, parameters: Parameters, y: Tensor) -> LikelihoodTerms:
    """Return the terms of Student's t: ``g = (ν+1)d / (σ(ν+d²))`` with ``d = (y-η)/σ``.

    The Fisher information ``w = (ν+1)/((ν+3)σ²)`` is constant. The density is not log-concave: beyond ``d² = ν`` the
    observed curvature is negative. The slope is ``(y-η)`` times the weight ``(ν+1)/(σ²(ν+d²))`` of iteratively
    reweighted least squares, which tells outliers from the others.
    """
    nu, sigma = parameters["nu"], parameters["sigma"]
    d = (y - eta) / sigma
    logp = (
        pt.gammaln(0.5 * (nu + 1.0))
        - pt.gammaln(0.5 * nu)
        - 0.5 * pt.log(nu * math.pi)
        - pt.log(sigma)
        - 0.5 * (nu + 1.0) * pt.log1p(d**2 / nu)
    )
    weight = (nu + 1.0) / ((nu + 3.0) * sigma**2) + pt.zeros_like(eta)
    slope_weight = (nu + 1.0) / (sigma**2 * (nu + d**2))
    curvature = {"fisher": Curvature(weight, pt.zeros_like(eta))}
    return LikelihoodTerms(logp, slope_weight * (y - eta), curvature, slope_weight)


@register_likelihood(pm.Exponential, link="log", read=log_reading, check=_not_negative)
def exponential_log(eta: Tensor, parameters: Parameters, y: Tensor) -> LikelihoodTerms:
    """Return the terms of an Exponential with mean ``e^η``.

    With ``v = y e^{-η}``, ``g = v - 1``, observed ``w = v`` and ``r = -1``, expected ``w = 1``.
    """
    # A 0 says as much at the lowest η, where the rate overflows.
    v = pt.switch(pt.eq(y, 0.0), 0.0, y * pt.exp(-eta))
    curvature = {
        "hessian": Curvature(v, -pt.ones_like(eta)),
        "fisher": Curvature(pt.ones_like(eta), pt.zeros_like(eta)),
    }
    return LikelihoodTerms(-eta - v, v - 1.0, curvature)


def _read_gamma(alpha: Tensor, scale: Tensor) -> Reading | None:
    """Read PyMC's Gamma, of shape α and scale 1/β: the mean is ``α · scale``."""
    found = undo_log(scale)
    if found is None:
        return None
    eta, offset = found
    log_alpha = pt.log(alpha.astype("float64"))
    return Reading(eta, {"alpha": alpha}, log_alpha if offset is None else offset + log_alpha)


@register_likelihood(
    pm.Gamma, link="log", parameters=["alpha"], read=_read_gamma, check=check_parameters("alpha", data=_positive)
)
def gamma_log(eta: Tensor, parameters: Parameters, y: Tensor) -> LikelihoodTerms:
    """Return the terms of a Gamma with mean ``e^η`` and shape α.

    With ``v = α y e^{-η}``, ``g = v - α``, observed ``w = v``, expected ``w = α``.
    """
    alpha = parameters["alpha"]
    v = alpha * y * pt.exp(-eta)
    logp = alpha * (pt.log(alpha) - eta) - pt.gammaln(alpha) + (alpha - 1.0) * pt.log(y) - v
    curvature = {
        "hessian": Curvature(v, -pt.ones_like(eta)),
        "fisher": Curvature(alpha + pt.zeros_like(eta), pt.zeros_like(eta)),
    }
    return LikelihoodTerms(logp, v - alpha, curvature)


@register_likelihood(
    pm.Weibull,
    link="log",
    parameters=["alpha"],
    read=lambda alpha, beta: log_reading(beta, alpha=alpha),
    check=check_parameters("alpha", data=_positive),
)
def weibull_log(eta: Tensor, parameters: Parameters, y: Tensor) -> LikelihoodTerms:
    """Scale ``e^η``, shape α: with ``v = (y e^{-η})^α``, ``g = α(v - 1)``, observed ``w = α²v``, expected ``α²``."""
    alpha = parameters["alpha"]
    v = pt.exp(alpha * (pt.log(y) - eta))
    logp = pt.log(alpha) - alpha * eta + (alpha - 1.0) * pt.log(y) - v
    curvature = {
        "hessian": Curvature(alpha**2 * v, -alpha + pt.zeros_like(eta)),
        "fisher": Curvature(alpha**2 + pt.zeros_like(eta), pt.zeros_like(eta)),
    }
    return LikelihoodTerms(logp, alpha * (v - 1.0), curvature)
