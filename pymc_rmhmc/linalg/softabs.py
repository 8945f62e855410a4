"""SoftAbs of a symmetric matrix: its eigenvalues λ become ``s(λ) = λ coth(αλ)``, which is positive and smooth.

A derivative by the softened matrix becomes one by the matrix itself through the divided differences

    Jᵢⱼ = [s(λᵢ) - s(λⱼ)] / (λᵢ - λⱼ),        Jᵢᵢ = s'(λᵢ)

The quotient itself loses about ``eps s / |λᵢ - λⱼ|``. With ``a = α|λᵢ|`` and ``b = α|λⱼ|``, and ``f(x) = x coth x``,

    J = F (λᵢ + λⱼ) / (|λᵢ| + |λⱼ|),     F = [f(a) - f(b)] / (a - b)

and F has three forms, none of which cancels where it is used:

    both small       (a + b) Σₙ cₙ (a²ⁿ - b²ⁿ) / (a² - b²)       with f(x) = Σₙ cₙ x²ⁿ
    close together   ½ (coth a + coth b) - ½ (a + b) sinh(a - b) / [(a - b) sinh a sinh b]
    far apart        1 + [h(a) - h(b)] / (a - b)                 with h(x) = f(x) - x = 2x / (e²ˣ - 1)
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import zeta

from pymc_rmhmc.linalg.compiled.compilation import compiled

__all__ = ["divided_difference", "softabs"]

type Array = NDArray[np.float64]

# x coth x = 1 + Σₙ cₙ x²ⁿ from n = 1 on. Its radius is π; up to SMALL the terms left out are below 1e-16.
N_TERMS = 14
_N = np.arange(1, N_TERMS + 1)
SERIES = 2.0 * np.where(_N % 2 == 1, 1.0, -1.0) * zeta(2.0 * _N) / math.pi ** (2.0 * _N)
SMALL = 0.7
# Closer than this, the quotient of differences would lose digits.
CLOSE = 0.3
# Beyond this, x coth x is x to the last digit.
LARGE = 40.0


@compiled
def _excess(x: float) -> float:  # pragma: no cover - compiled
    """Return ``x coth x - x`` for x ≥ 0."""
    if x > LARGE:
        return 2.0 * x * math.exp(-2.0 * x) if x < 300.0 else 0.0
    return 2.0 * x / math.expm1(2.0 * x) if x > 0.0 else 1.0


@compiled
def _quotient(a: float, b: float, gap: float) -> float:  # pragma: no cover - compiled
    """Return F for a, b ≥ 0 that are not both small; `gap` is ``a - b`` without the rounding of either."""
    if min(a, b) > LARGE:
        return 1.0
    if abs(gap) >= CLOSE:
        return 1.0 + (_excess(a) - _excess(b)) / gap
    ratio = math.sinh(gap) / gap if gap != 0.0 else 1.0
    return 0.5 * (1.0 / math.tanh(a) + 1.0 / math.tanh(b)) - 0.5 * (a + b) * ratio / (math.sinh(a) * math.sinh(b))


@compiled
def soft(value: float, alpha: float) -> float:  # pragma: no cover - compiled
    """Return ``s(λ) = λ coth(αλ)``; ``1/α`` at 0."""
    return abs(value) + _excess(alpha * abs(value)) / alpha


@compiled
def divided_difference(first: float, second: float, alpha: float) -> float:  # pragma: no cover - compiled
    """Return ``[s(λ₁) - s(λ₂)] / (λ₁ - λ₂)``, and ``s'(λ)`` if both are λ."""
    a, b = alpha * abs(first), alpha * abs(second)
    if max(a, b) > SMALL:
        sign = (0.5 * first + 0.5 * second) / (0.5 * abs(first) + 0.5 * abs(second))
        return sign * _quotient(a, b, alpha * (abs(first) - abs(second)))
    total, mixed, power = 0.0, 1.0, 1.0
    for coefficient in SERIES:
        total += coefficient * mixed
        power *= b * b
        mixed = a * a * mixed + power
    return alpha * (first + second) * total


@compiled
def softabs(values: Array, alpha: float) -> Array:  # pragma: no cover - compiled
    """Return ``s(λ) = λ coth(αλ)`` for every eigenvalue, (d,)."""
    made = np.empty(values.size)
    for i in range(values.size):
        made[i] = soft(values[i], alpha)
    return made
