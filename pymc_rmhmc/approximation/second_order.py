"""The second-order correction of expectation propagation's log evidence.

With ρᵢⱼ the correlation of two sites under the approximation and κₗᵢ the cumulant of order l of site i's standardised
tilted density,

    log Z ≈ log Z_EP + ½ Σₗ (1/l!) Σ_{i≠j} κₗᵢ κₗⱼ ρᵢⱼˡ ,   l = 3, 4, ...

The sum over l is cut after order 8, and costs O(n²).

References
----------
Opper, Paquet and Winther (2013), Perturbative corrections for approximate inference in Gaussian latent variable models,
section 4.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.approximation.ep import EPFit
from pymc_rmhmc.approximation.tilted import PointwiseLikelihood, tilted_moments

__all__ = ["second_order_correction"]

type Array = NDArray[np.float64]

LEAST_ORDER = 3


def second_order_correction(fit: EPFit, likelihood: PointwiseLikelihood) -> float:
    """Return what the second order adds to EP's log evidence.

    Parameters
    ----------
    fit : EPFit
        A converged fit.
    likelihood : PointwiseLikelihood
        Over its sites.

    Returns
    -------
    float
    """
    tilted = tilted_moments(likelihood, fit.cavity_mean, fit.cavity_variance, cumulants=True)
    assert tilted.cumulants is not None
    return correction_of(fit.chart.predictor.gram, tilted.cumulants)


def correction_of(covariance: Array, cumulants: Array) -> float:
    """Return the sum over orders and pairs of sites.

    Parameters
    ----------
    covariance : (n, n) array
        Of the sites under the approximation.
    cumulants : (m, n) array
        Of orders 3, 4, ..., m + 2.
    """
    spread = np.sqrt(covariance.diagonal())
    spread = np.where(spread > 0.0, spread, np.inf)
    correlation = covariance / np.outer(spread, spread)
    # Only pairs of different sites count.
    np.fill_diagonal(correlation, 0.0)
    total, power = 0.0, correlation**LEAST_ORDER
    for order, kappa in enumerate(cumulants, LEAST_ORDER):
        total += 0.5 * float(kappa @ (power @ kappa)) / math.factorial(order)
        power *= correlation
    return total
