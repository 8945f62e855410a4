"""The latents' trajectory where ϑ is held, compiled from end to end.

The same splitting as `pymc_rmhmc.dynamics.integrators.RotationSplitting` makes of a
`pymc_rmhmc.dynamics.hamiltonian.SpannedHamiltonian` or a `pymc_rmhmc.dynamics.hamiltonian.SiteHamiltonian`, with
nothing of Python between its steps: at a hundred sites that takes longer than they do.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from pymc_rmhmc.dynamics.hamiltonian import kick, rotate
from pymc_rmhmc.latent.charts.site import residual_of_sites
from pymc_rmhmc.latent.solvers.dual import gram
from pymc_rmhmc.linalg.compiled.compilation import compiled
from pymc_rmhmc.linalg.compiled.native import call_likelihood
from pymc_rmhmc.linalg.products import multiply_in_streams, multiply_symmetric

__all__ = ["CompiledSites", "Spread", "advance_rotation", "evaluate_sites", "gram_of_parts", "gram_product"]

type Array = NDArray[np.float64]
# A likelihood less Gaussian sites, as compiled code has it: a `NativeLikelihood`'s address, what it reads besides, its
# rest and its shift; then the b and the w̄ of what is taken off.
type CompiledSites = tuple[int, Array | None, tuple[Array, ...], Array | None, Array, Array]

# The matrices of a map's ``S = T Tᵀ``: see `gram_product`.
type Spread = tuple[Array, ...] | tuple[Array, NDArray[np.int64]]


def gram_product(spread: Any, vector: Array) -> Array:
    """``S v`` for a map's ``S = T Tᵀ``, for compiled code alone.

    Of (S,) itself, which may be in single precision; as `gram_of_parts` has it, or `pymc_rmhmc.latent.solvers.dual`.
    """
    raise NotImplementedError


@overload(gram_product, strict=False)
def _compiled_gram_product(spread: Any, vector: Any) -> Any:
    if spread.count == 1 and spread[0].dtype == types.float32:
        return lambda spread, vector: multiply_in_streams(spread[0], vector)
    if spread.count == 1:
        return lambda spread, vector: multiply_symmetric(spread[0], vector)
    if spread.count == 2:
        return lambda spread, vector: gram_of_parts(spread[0], spread[1], vector)
    return lambda spread, vector: gram(spread[0], spread[1], spread[2], vector)


@compiled
def gram_of_parts(
    matrices: Array, where: NDArray[np.int64], vector: Array
) -> Array:  # pragma: no cover - compiled
    """``S v`` where S is of parts: p matrices (p, n, n), and the sites of the r parts that have each, (p, r, n)."""
    product, rows = np.empty(vector.size), np.empty(where.shape[1:])
    for m in range(where.shape[0]):
        for r in range(where.shape[1]):
            for i in range(where.shape[2]):
                rows[r, i] = vector[where[m, r, i]]
        found = np.dot(rows, matrices[m])
        for r in range(where.shape[1]):
            for i in range(where.shape[2]):
                product[where[m, r, i]] = found[r, i]
    return product


@compiled
def _gained(
    moved: Array, driven: Array, displacement: Array, drive: Array, angle: float
) -> float:  # pragma: no cover - compiled
    """``½ zᵀz + ½ pᵀp`` less that of the origin: see `pymc_rmhmc.dynamics.hamiltonian.SpannedHamiltonian`.

    0 where a and b alone are followed.
    """
    n, cosine, sine, gained = displacement.size, math.cos(angle), math.sin(angle), 0.0
    if moved.size == n:
        return gained
    for i in range(n):
        gained += moved[i] * (cosine * displacement[i] + sine * drive[i] + moved[n + i])
        gained += driven[i] * (cosine * drive[i] - sine * displacement[i] + driven[n + i])
    return 0.5 * gained


@compiled
def evaluate_sites(
    address: int, theta: Array | None, rest: tuple[Array, ...], shift: Array | None, linear: Array, precision: Array,
    eta: Array,
) -> tuple[float, float, bool, Array, Array]:  # pragma: no cover - compiled  # fmt: skip
    """``Σ ℓ``, ``ψ = Σ ℓ(η) - sites(η)``, whether ψ and its slope are numbers, ``∂ℓ/∂η`` and ``∂ψ/∂η``."""
    read = eta if shift is None else np.add(eta, shift)
    found = call_likelihood(address, theta, read, rest)
    log_likelihood, slope = found[0].item(), found[1]
    at_sites, residual = residual_of_sites(linear, precision, eta, slope)
    log_density, square = log_likelihood - at_sites, 0.0
    for i in range(residual.size):
        square += residual[i] * residual[i]
    return log_likelihood, log_density, math.isfinite(log_density) and math.isfinite(square), slope, residual


@compiled
def advance_rotation(
    address: int, theta: Array | None, rest: tuple[Array, ...], shift: Array | None, linear: Array, precision: Array,
    centre: Array, spread: Spread, displacement: Array, drive: Array, force: Array, n_steps: int,
    step_size: float,
) -> tuple[int, bool, Array, float, Array, float, float, Array]:  # pragma: no cover - compiled  # fmt: skip
    """Half a kick, then so many rotations with kicks between them, and half a kick.

    `address`, `theta`, `rest`, `shift`: of the likelihood.
    `linear`, `precision`, `centre` (n,): the sites, and where they are at z = 0.
    `spread`: for `gram_product`.
    `displacement`, `drive` (n,): of the trajectory's origin: ``T z₀`` and ``T p₀``.
    `force` (2 n,) or (n,): there: ``(∂ψ/∂η, S ∂ψ/∂η)``, or the second of these alone.
    `n_steps`, `step_size`: rotations, and the angle of each.

    Returns
    -------
    int, bool
        Steps that were made, and whether ψ and its slope are numbers after the last.
    an array and a float
        By rows moved, driven and the force there, and gained: see `pymc_rmhmc.dynamics.hamiltonian.Advanced`.
    arrays and floats
        η, ``Σ ℓ``, ψ and ``∂ℓ/∂η``.
    """
    # Loops where an expression of arrays would do: it takes the compiler longer, a fraction of a second each.
    n, made = centre.size, np.zeros((3, force.size))
    # Where a and b stand: after what says how far z and p are from a rotation, where that is followed too.
    first = force.size - n
    moved, driven = made[0], made[1]
    for i in range(n):
        moved[first + i], driven[first + i] = displacement[i], drive[i]
    made[2] = force
    force = made[2]
    kick(driven, force, 0.5 * step_size)
    eta, log_likelihood, log_density, slope = centre, 0.0, 0.0, centre
    for done in range(1, n_steps + 1):
        rotate(moved, driven, step_size)
        eta = np.empty(n)
        for i in range(n):
            eta[i] = centre[i] + moved[first + i]
        log_likelihood, log_density, finite, slope, residual = evaluate_sites(
            address, theta, rest, shift, linear, precision, eta
        )
        for i in range(first):
            force[i] = residual[i]
        if not finite:
            return done, False, made, 0.0, eta, log_likelihood, log_density, slope
        spanned = gram_product(spread, residual)
        for i in range(n):
            force[first + i] = spanned[i]
        kick(driven, force, step_size if done < n_steps else 0.5 * step_size)
    gained = _gained(moved, driven, displacement, drive, n_steps * step_size)
    return n_steps, True, made, gained, eta, log_likelihood, log_density, slope
