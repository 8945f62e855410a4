"""The latents' trajectory where ϑ is held, compiled from end to end.

The same splitting as `pymc_rmhmc.dynamics.integrators.RotationSplitting` makes of a
`pymc_rmhmc.dynamics.hamiltonian.SpannedHamiltonian`, with nothing of Python between its steps: at a hundred sites that
takes longer than they do.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.geometry.charts.dual import gram
from pymc_rmhmc.geometry.compilation import compiled
from pymc_rmhmc.geometry.native import call_likelihood

__all__ = ["evaluate_sites", "follow_rotation"]

type Array = NDArray[np.float64]


@compiled
def evaluate_sites(
    address: int, theta: Array, rest: tuple[Array, ...], linear: Array, precision: Array, eta: Array
) -> tuple[float, float, Array, Array]:  # pragma: no cover - compiled
    """``Σ ℓ``, ``ψ = Σ ℓ(η) - sites(η)``, ``∂ℓ/∂η`` and ``∂ψ/∂η``."""
    total, slope, _ = call_likelihood(address, (theta, eta, *rest))
    log_likelihood = total.item()
    log_density, residual = log_likelihood, np.empty(eta.size)
    for i in range(eta.size):
        pull = linear[i] - precision[i] * eta[i]
        log_density -= 0.5 * (linear[i] + pull) * eta[i]
        residual[i] = slope[i] - pull
    return log_likelihood, log_density, slope, residual


@compiled
def follow_rotation(
    address: int, theta: Array, rest: tuple[Array, ...], linear: Array, precision: Array, centre: Array,
    weighted: tuple[Array, Array, Array, Array, Array], moved: Array, driven: Array, force: Array, n_steps: int,
    step_size: float,
) -> tuple[int, bool, Array, Array, Array, float, float, Array, Array, Array]:  # pragma: no cover - compiled  # fmt: skip
    """Half a kick, then so many rotations with kicks between them, and half a kick.

    Parameters
    ----------
    address, theta, rest
        Of the likelihood.
    linear, precision, centre : (n,) array
        The sites, and where they are at z = 0.
    weighted : tuple of arrays
        For `pymc_rmhmc.geometry.charts.dual.gram`.
    moved, driven, force : (2 n,) array
        As in `pymc_rmhmc.dynamics.hamiltonian.SpannedState`, and the point's force.
    n_steps : int
        Rotations.
    step_size : float
        The angle of each.

    Returns
    -------
    int, bool
        Steps that were made, and whether ψ and its slope are numbers after the last.
    arrays and floats
        moved and driven there; η, ``Σ ℓ``, ψ, ``∂ℓ/∂η``, ``∂ψ/∂η`` and the force.
    """
    n = centre.size
    cosine, sine = math.cos(step_size), math.sin(step_size)
    moved, driven, force = moved.copy(), driven + 0.5 * step_size * force, force.copy()
    eta, log_likelihood, log_density, slope, residual = centre, 0.0, 0.0, centre, centre
    for done in range(1, n_steps + 1):
        for i in range(2 * n):
            turned = cosine * moved[i] + sine * driven[i]
            driven[i] = cosine * driven[i] - sine * moved[i]
            moved[i] = turned
        eta = centre + moved[n:]
        log_likelihood, log_density, slope, residual = evaluate_sites(address, theta, rest, linear, precision, eta)
        square = 0.0
        for i in range(n):
            square += residual[i] * residual[i]
        if not (math.isfinite(log_density) and math.isfinite(square)):
            return done, False, moved, driven, eta, log_likelihood, log_density, slope, residual, force
        force[:n], force[n:] = residual, gram(*weighted, residual)
        time = step_size if done < n_steps else 0.5 * step_size
        for i in range(2 * n):
            driven[i] += time * force[i]
    return n_steps, True, moved, driven, eta, log_likelihood, log_density, slope, residual, force
