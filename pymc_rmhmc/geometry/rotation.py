"""The latents' trajectory where ϑ is held, compiled from end to end.

The same splitting as `pymc_rmhmc.dynamics.integrators.RotationSplitting` makes of a
`pymc_rmhmc.dynamics.hamiltonian.SpannedHamiltonian`, with nothing of Python between its steps: at a hundred sites that
takes longer than they do.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba.extending import overload
from numpy.typing import NDArray

from pymc_rmhmc.geometry.blas import symmetric_product
from pymc_rmhmc.geometry.charts.dual import gram
from pymc_rmhmc.geometry.charts.site import residual_of_sites
from pymc_rmhmc.geometry.compilation import compiled
from pymc_rmhmc.geometry.native import call_likelihood

__all__ = ["evaluate_sites", "follow_rotation", "gram_product"]

type Array = NDArray[np.float64]


def gram_product(spread: Any, vector: Array) -> Array:
    """``S v`` for a map's ``S = T Tᵀ``: of (S,) itself, or as `pymc_rmhmc.geometry.charts.dual.gram` has it.

    For compiled code alone.
    """
    raise NotImplementedError


@overload(gram_product, strict=False)
def _compiled_gram_product(spread: Any, vector: Any) -> Any:
    if spread.count == 1:
        return lambda spread, vector: symmetric_product(spread[0], vector)
    return lambda spread, vector: gram(spread[0], spread[1], spread[2], spread[3], spread[4], vector)


@compiled
def _rotate(moved: Array, driven: Array, angle: float) -> None:  # pragma: no cover - compiled
    cosine, sine = math.cos(angle), math.sin(angle)
    for i in range(moved.size):
        turned = cosine * moved[i] + sine * driven[i]
        driven[i] = cosine * driven[i] - sine * moved[i]
        moved[i] = turned


@compiled
def _kick(driven: Array, force: Array, time: float) -> None:  # pragma: no cover - compiled
    for i in range(driven.size):
        driven[i] += time * force[i]


@compiled
def evaluate_sites(
    address: int, theta: Array | None, rest: tuple[Array, ...], shift: Array | None, linear: Array, precision: Array,
    eta: Array,
) -> tuple[float, float, Array, Array]:  # pragma: no cover - compiled  # fmt: skip
    """``Σ ℓ``, ``ψ = Σ ℓ(η) - sites(η)``, ``∂ℓ/∂η`` and ``∂ψ/∂η``."""
    read = eta if shift is None else np.add(eta, shift)
    found = call_likelihood(address, theta, read, rest)
    log_likelihood, slope = found[0].item(), found[1]
    at_sites, residual = residual_of_sites(linear, precision, eta, slope)
    return log_likelihood, log_likelihood - at_sites, slope, residual


@compiled
def follow_rotation(
    address: int, theta: Array | None, rest: tuple[Array, ...], shift: Array | None, linear: Array, precision: Array,
    centre: Array, spread: tuple[Array, ...], moved: Array, driven: Array, force: Array, n_steps: int,
    step_size: float,
) -> tuple[int, bool, Array, Array, Array, float, float, Array, Array]:  # pragma: no cover - compiled  # fmt: skip
    """Half a kick, then so many rotations with kicks between them, and half a kick.

    Parameters
    ----------
    address, theta, rest, shift
        Of the likelihood.
    linear, precision, centre : (n,) array
        The sites, and where they are at z = 0.
    spread : tuple of arrays
        For `gram_product`.
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
        moved and driven there; η, ``Σ ℓ``, ψ, ``∂ℓ/∂η`` and the force, of which the first half is ``∂ψ/∂η``.
    """
    # Loops where an expression of arrays would do: it takes the compiler longer, a fraction of a second each.
    n = centre.size
    moved, driven, force = moved.copy(), driven.copy(), force.copy()
    _kick(driven, force, 0.5 * step_size)
    eta, log_likelihood, log_density, slope = centre, 0.0, 0.0, centre
    for done in range(1, n_steps + 1):
        _rotate(moved, driven, step_size)
        eta = np.empty(n)
        for i in range(n):
            eta[i] = centre[i] + moved[n + i]
        log_likelihood, log_density, slope, residual = evaluate_sites(
            address, theta, rest, shift, linear, precision, eta
        )
        square = 0.0
        for i in range(n):
            force[i] = residual[i]
            square += residual[i] * residual[i]
        if not (math.isfinite(log_density) and math.isfinite(square)):
            return done, False, moved, driven, eta, log_likelihood, log_density, slope, force
        spanned = gram_product(spread, residual)
        for i in range(n):
            force[n + i] = spanned[i]
        _kick(driven, force, step_size if done < n_steps else 0.5 * step_size)
    return n_steps, True, moved, driven, eta, log_likelihood, log_density, slope, force
