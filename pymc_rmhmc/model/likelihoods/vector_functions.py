"""Functions that likelihoods evaluate at thousands of values, in forms that compile to vector instructions.

Those of a library of C are called for one value after another: gradients of logit and probit likelihoods take half of
the time with these, or less, to the same digits. They have the right derivatives everywhere, also where they change
from one form to another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

__all__ = ["log1p_of_tail", "logistic_pair", "magnitude", "scaled_tail"]

type Tensor = TensorVariable

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
    terms, power = list[Any](coefficients), x
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
