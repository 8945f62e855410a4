"""The expected information of counts and amounts with extra zeros: inflated families and hurdles.

An observation says whether it is 0, and if it is not what a distribution without its zeros says. With the probability
P of 0 and the base's own p₀, ψ its weight, and ``s₀ = ∂ log p₀/∂a``,

    F = ∂P ∂Pᵀ/(P (1 - P)) + w B,      B = F_base - p₀/(1 - p₀) s₀ s₀ᵀ,

where B is what the base says beyond whether it is 0. Zero inflation has ``P = 1 - ψ + ψ p₀`` and ``w = ψ``, a hurdle
``P = 1 - ψ`` and ``w = ψ/(1 - p₀)``: each term is positive semidefinite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.distribution import DiracDeltaRV
from pymc.distributions.truncated import TruncatedRV
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor.basic import Join
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.general.information_families import (
    INFORMATION,
    LEAST,
    TINY,
    Information,
    counts_of_negative_binomial,
    log_of,
)
from pymc_rmhmc.model.graph.source_code import distribution_of
from pymc_rmhmc.model.likelihoods.links import strip, undo_log, undo_logit

__all__ = ["extra_zeros_of", "information_of_zeros"]

type Symbol = TensorVariable


class ExtraZeros(NamedTuple):
    """What a variable with extra zeros is made of, as expressions of its model."""

    kind: str  # "Mixture" of zeros and a base, or "Hurdle"
    weight: Symbol  # ψ
    family: str  # of the base: a key of `BEYOND_ZERO`, or of `INFORMATION` where it is never 0
    parameters: tuple[Symbol, ...]  # of the base


class BeyondZero(NamedTuple):
    """A base's parameters, and what it says of them."""

    parameters: Sequence[Symbol]
    log_zero: Symbol | float  # log p₀
    slopes: Sequence[Symbol | float]  # s₀
    matrix: Sequence[Sequence[Symbol | float]]  # B


def extra_zeros_of(variable: Symbol) -> ExtraZeros | None:
    """Return what a zero-inflated or hurdle variable is made of; None for any other, or of an unknown base."""
    kind = distribution_of(variable)
    if kind not in ("Mixture", "Hurdle"):
        return None
    weights, *components = variable.owner.op.dist_params(variable.owner)
    if len(components) != 2 or not _is_always_zero(components[0]):
        return None
    base = components[1]
    known: Mapping[str, object] = BEYOND_ZERO
    if kind == "Hurdle" and isinstance(base.owner.op, TruncatedRV):
        # Its last two inputs are where it is truncated: from 1 on.
        base = base.owner.op.base_rv_op.make_node(*base.owner.inputs[:-2]).outputs[1]
    elif kind == "Hurdle":
        known = INFORMATION
    family = distribution_of(base)
    if family not in known:
        return None
    return ExtraZeros(kind, _last_of(weights), family, tuple(base.owner.op.dist_params(base.owner)))


def _is_always_zero(component: Symbol) -> bool:
    """Return whether a distribution has all its probability at 0: a mixture may have a peak elsewhere."""
    if not isinstance(component.owner.op, DiracDeltaRV):
        return False
    at = component.owner.inputs[-1]
    return isinstance(at, Constant) and not np.any(at.data)


def information_of_zeros(found: ExtraZeros, weight: Symbol, *parameters: Symbol) -> Information:
    """Return F about the log odds of ψ, or about ψ itself, and then the base's parameters."""
    at = BEYOND_ZERO.get(found.family, _never_zero(found.family))
    base = at(*parameters)
    eta = undo_logit(weight)
    read, psi, rest = (weight, weight, 1.0 - weight) if eta is None else (eta, pt.sigmoid(eta), pt.sigmoid(-eta))
    zero = pt.as_tensor(pt.exp(base.log_zero))
    positive = pt.maximum(-pt.expm1(base.log_zero), TINY)  # 1 - p₀
    by_psi = 1.0 if eta is None else psi * rest
    if found.kind == "Mixture":
        of_zero, slopes, weight_of_base = rest + psi * zero, [-positive * by_psi], psi
        slopes += [psi * zero * s for s in base.slopes]
        other = psi * positive
    else:
        of_zero, slopes, weight_of_base = rest, [-by_psi], psi / positive
        slopes += [0.0 for _ in base.slopes]
        other = psi
    scale = 1.0 / pt.maximum(of_zero * other, LEAST)
    matrix = [[scale * a * b for b in slopes] for a in slopes]
    for i, row in enumerate(base.matrix):
        for j, entry in enumerate(row):
            matrix[i + 1][j + 1] = matrix[i + 1][j + 1] + weight_of_base * entry
    return Information([read, *base.parameters], matrix)


def _last_of(weights: Symbol) -> Symbol:
    """Return the second of two weights, as it was before PyMC joined it with the first."""
    node = strip(weights).owner
    if node is not None and isinstance(node.op, Join):
        last: Variable = node.inputs[-1]
        return pt.squeeze(last, axis=-1) if last.type.shape[-1] == 1 else weights[..., 1]
    return weights[..., 1]


def _never_zero(family: str) -> Callable[..., BeyondZero]:
    def at(*parameters: Symbol) -> BeyondZero:
        known = INFORMATION[family].at(*parameters)
        return BeyondZero(known.parameters, -float("inf"), [0.0] * len(known.parameters), known.matrix)

    return at


def _beyond(known: Information, log_zero: Symbol, slope: Symbol) -> BeyondZero:
    """Return what a base of one parameter says beyond 0."""
    odds = 1.0 / pt.maximum(pt.expm1(-log_zero), TINY)
    beyond = pt.maximum(known.matrix[0][0] - odds * slope**2, TINY)
    return BeyondZero(known.parameters, log_zero, [slope], [[beyond]])


def _poisson(mu: Symbol) -> BeyondZero:
    known = INFORMATION["Poisson"].at(mu)
    return _beyond(known, -mu, -mu if undo_log(mu) is not None else -pt.ones_like(mu))


def _binomial(n: Symbol, p: Symbol) -> BeyondZero:
    eta = undo_logit(p)
    if eta is None:
        return _beyond(Information([p], [[n / pt.maximum(p * (1.0 - p), LEAST)]]), n * pt.log1p(-p), -n / (1.0 - p))
    return _beyond(INFORMATION["Binomial"].at(n, p), -n * pt.softplus(eta), -n * pt.sigmoid(eta))


def _negative_binomial(n: Symbol, p: Symbol) -> BeyondZero:
    """Return that of ``log μ`` and ``log α``, α = n, whose own is taken as the information in ``(y - μ)²``.

    As `INFORMATION` has it, but for what it adds for ``y = 0``.
    """
    log_mu, up, of_square, surprise = counts_of_negative_binomial(n, p)
    of_mean = _beyond(Information([log_mu], [[n * up]]), -surprise, -n * up)
    matrix = [[of_mean.matrix[0][0], 0.0], [0.0, of_square]]
    return BeyondZero([log_mu, log_of(n)], -surprise, [-n * up, n * up - surprise], matrix)


# Of bases that may be 0.
BEYOND_ZERO: dict[str, Callable[..., BeyondZero]] = {
    "Poisson": _poisson, "Binomial": _binomial, "NegativeBinomial": _negative_binomial,
}  # fmt: skip
