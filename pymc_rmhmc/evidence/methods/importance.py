"""The reference alone: importance sampling from it, its Laplace approximation, and modes that it does not know of.

Importance weights, bridges and chains that begin at one mode say nothing of another, however heavy it is. What they
find is then too small, with a small error. A search from elsewhere costs some hundred gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, sparse, special
from scipy.sparse.linalg import spsolve_triangular

from pymc_rmhmc.chains.reference import Reference, ResidualReference
from pymc_rmhmc.dynamics.hamiltonian import Density, DensityPoint
from pymc_rmhmc.errors import EvidenceError, Failure
from pymc_rmhmc.evidence.methods.estimate import LARGEST_K, Estimate, Progress, log_mean, pareto_k, weight_ess

__all__ = [
    "TailedReference", "Tails", "check_modes", "importance_evidence", "laplace_evidence", "measured_tails",
    "power_tails", "with_fitting_tails",
]  # fmt: skip

type Array = NDArray[np.float64]

# Draws at first.
FIRST = 2000
# A Hessian by differences of the gradient takes two of them for every coordinate.
MOST_COORDINATES, DIFFERENCE = 2000, 1e-4
# Of each search. Modes that are farther apart than this, in standard deviations of the reference, may be two.
ITERATIONS, APART = 100, 4.0
# On the straight way between two modes the log density is lower than at either by so much, at one of so many points.
BARRIER, POINTS = 2.0, 15
# A mode whose log density is lower by more than this holds little of the posterior.
NEARLY_AS_HIGH = 3.0


def importance_evidence(
    reference: Reference, replicates: int, rng: np.random.Generator, progress: Progress
) -> Estimate:
    """Estimate ``log E[exp φ]`` by the mean over draws of the reference; whether it can be trusted k̂ tells.

    It ends early where k̂ is too large after the first draws.
    """
    walkers = reference.walkers(replicates, rng)
    drawn = [walkers.phi.copy()]
    wanted = FIRST
    while True:
        begun = progress.seconds
        while len(drawn) * replicates < wanted:
            walkers.redraw(rng)
            drawn.append(walkers.phi.copy())
        log_weights = np.concatenate(drawn)
        value, error = log_mean(log_weights)
        progress.note(value, error, f"importance sampling, {log_weights.size} draws")
        k = pareto_k(log_weights)
        if k >= LARGEST_K or progress.is_met(error) or not progress.may_grow(begun, 2.0, 1.0):
            break
        wanted *= 2
    diagnostics = {"pareto_k": k, "weight_ess": weight_ess(log_weights), "n_states": float(log_weights.size)}
    return Estimate(value, error, diagnostics, progress.history)


def laplace_evidence(reference: Reference) -> Estimate:
    """Return the Laplace approximation of ``log E[exp φ]`` in the reference's coordinates.

    There is an error if the density has no mode that can be found, or there are too many coordinates.
    """
    if reference.size > MOST_COORDINATES:
        raise EvidenceError(
            f"The Laplace approximation of a whole model needs a Hessian of its {reference.size} coordinates, and at "
            f'most {MOST_COORDINATES} are taken. Give method="bridge".'
        )
    mode, height = climb(reference, np.zeros(reference.size), 1000)
    sides = [
        [negative_log_density(reference, mode + side * step)[1] for side in (1.0, -1.0)]
        for step in DIFFERENCE * np.eye(reference.size)
    ]
    rows = [(ahead - behind) / (2.0 * DIFFERENCE) for ahead, behind in sides]
    sign, log_determinant = np.linalg.slogdet(0.5 * (np.array(rows) + np.array(rows).T))
    if sign <= 0 or not math.isfinite(log_determinant):
        raise EvidenceError(
            "The posterior has no mode at which it curves down in every direction, so that there is no Laplace "
            'approximation. Give method="bridge".'
        )
    return Estimate(float(height - 0.5 * log_determinant), math.nan)


def check_modes(name: str, reference: Reference, places: Iterable[Array]) -> None:
    """Raise where the density leads from some places (d,) to a mode about as high as that at the reference's centre.

    Such places are draws of the prior. The name is that of what is estimated, for the message.
    """
    centre, best = climb(reference, np.zeros(reference.size), ITERATIONS)
    for at in places:
        place, height = climb(reference, at, ITERATIONS)
        if height > best - NEARLY_AS_HIGH and _is_apart(reference, centre, place, min(best, height)):
            raise EvidenceError(
                f"{name}: the posterior has several modes, and the estimate would be that of one alone. Give "
                'method="tempering".'
            )


def _is_apart(reference: Reference, first: Array, second: Array, height: float) -> bool:
    """Return whether two modes are far apart with lower densities between them; the lower mode has this height."""
    if np.linalg.norm(first - second) <= APART:
        return False
    shares = np.linspace(0.0, 1.0, POINTS + 2)[1:-1]
    between = min(-negative_log_density(reference, first + share * (second - first))[0] for share in shares)
    return between < height - BARRIER


def climb(reference: Reference, start: Array, iterations: int) -> tuple[Array, float]:
    """Return the mode to which the density of z leads from a start, and ``φ - ½ |z|²`` there."""
    found = optimize.minimize(
        lambda z: negative_log_density(reference, z), start, jac=True, method="L-BFGS-B",
        options={"maxiter": iterations, "ftol": 1e-14, "gtol": 1e-7},
    )  # fmt: skip
    return found.x, -float(found.fun)


def negative_log_density(reference: Reference, z: Array) -> tuple[float, Array]:
    """Return ``½ |z|² - φ(z)`` and its gradient, for a minimiser that steps back from large values."""
    value, gradient = reference.at(z)
    if not (math.isfinite(value) and np.isfinite(gradient).all()):
        return 1e100, z
    return 0.5 * float(z @ z) - value, z - gradient


# ---------------------------------------------------- heavier tails

# References with heavier tails than the normal's, where a prior's or a posterior's are.
#
# Importance weights from a normal to a density with an exponential tail have no variance, and trajectories seldom enter
# a tail like Cauchy's, or come back. In coordinates ``z = c + L s`` with ``s = u exp(½ h u²)`` for each u, a standard
# normal u has tails like ``|s|^(-1/h)``: h = 1 is as heavy as Cauchy's, and h = 0 changes nothing. φ is then that of u.
#
# References
# ----------
# Tukey (1977), Exploratory data analysis; Goerg (2015), The Lambert way to Gaussianize heavy-tailed data, section 2:
# the map, and its inverse by Lambert's W.


# Tails that are tried, and draws for each.
TRIED_TAILS, TRIED = (0.0, 0.03, 0.06, 0.1, 0.2), 1000
# Where there are more coordinates with tails of their own, changing all of them costs more than it gains.
MOST = 30
TINY = 1e-300
# Where a tail is asked whether it is a power's, in scales, and how much steeper an exponential one grows at least.
NEAR, FAR, POWER = 8.0, 32.0, 2.0
# Quantiles of a prior's draws between which its tails are measured. Beyond the heaviest tail, numbers lose all digits.
QUANTILES, HEAVIEST = (0.75, 0.85, 0.9, 0.95, 0.975, 0.99), 1.5


@dataclass(frozen=True, slots=True)
class Tails:
    """Where each coordinate lies under some law, how widely near there, and its h below and above, each (d,)."""

    centre: Array
    spread: Array
    lower: Array
    upper: Array

    @property
    def heaviest(self) -> float:
        """The largest h."""
        return float(np.maximum(self.lower, self.upper).max(initial=0.0))


@dataclass(slots=True)
class TailedPoint:
    """φ and its gradient at u, and the point that stands for z."""

    position: Array
    log_density: float
    gradient: Array
    failure: Failure
    inner: DensityPoint | None


@dataclass(frozen=True, slots=True)
class TailedDensity:
    """The residual of u, from that of z, h of negative and positive u (d,), c (d,), and L (d, d), lower triangular.

    Most coordinates are noises that L leaves as they are: it is sparse, for there may be thousands.
    """

    residual: Density[DensityPoint]
    lower: Array
    upper: Array
    centre: Array
    factor: sparse.csr_array

    def _h(self, signed: Array) -> Array:
        return np.where(signed < 0.0, self.lower, self.upper)

    def to_z(self, u: Array) -> Array:
        """Return z of u."""
        return self.centre + self.factor @ (u * np.exp(0.5 * self._h(u) * u * u))

    def to_u(self, z: Array) -> Array:
        """Return u of z."""
        s = spsolve_triangular(self.factor, z - self.centre, lower=True)
        h = self._h(s)
        heavy = h > 0.0
        found = s.copy()
        found[heavy] = np.sign(s[heavy]) * np.sqrt(special.lambertw(h[heavy] * s[heavy] ** 2).real / h[heavy])
        return found

    def at(self, position: Array) -> TailedPoint:
        """Evaluate at u (d,)."""
        with np.errstate(over="ignore"):
            z = self.to_z(position)
        if not np.isfinite(z).all():
            return TailedPoint(position, np.nan, np.zeros_like(position), Failure.NON_FINITE, None)
        return self.seen(self.residual.at(z), position, z)

    def seen(self, point: DensityPoint, u: Array, z: Array) -> TailedPoint:
        """Return the point at u that a point at z is."""
        if point.failure != Failure.NONE:
            return TailedPoint(u, np.nan, np.zeros_like(u), point.failure, point)
        h = self._h(u)
        bent = 1.0 + h * u * u
        value = point.log_density + 0.5 * (u @ u - z @ z) + float((0.5 * h * u * u + np.log(bent)).sum())
        slope = np.exp(0.5 * h * u * u) * bent
        gradient = (self.factor.T @ (point.gradient - z)) * slope + u + h * u * (1.0 + 2.0 / bent)
        return TailedPoint(u, float(value), gradient, Failure.NONE, point)


class TailedReference(ResidualReference):
    """A whole model's reference with other tails, and perhaps another centre and scale.

    The inner one may be of this kind too. The others are as `TailedDensity` has them, with 0 and 1 by default.
    """

    def __init__(
        self, inner: ResidualReference, lower: Array, upper: Array, centre: Array | None = None,
        factor: Array | None = None,
    ) -> None:  # fmt: skip
        centre = np.zeros(inner.size) if centre is None else centre
        factor = np.eye(inner.size) if factor is None else factor
        density = TailedDensity(inner.residual, lower, upper, centre, sparse.csr_array(factor))
        log_volume = float(np.log(factor.diagonal()).sum())

        def stand(values: Array, rng: np.random.Generator) -> TailedPoint:
            point = inner.stand(values, rng)
            return density.seen(point, density.to_u(point.position), point.position)

        def values_at(point: TailedPoint) -> Array:
            return inner.values_at(point.inner)

        super().__init__(density, inner.size, inner.log_constant + log_volume, stand, values_at)
        self.own_tails = inner.own_tails


def measured_tails(drawn: Array) -> Tails:
    """Return where draws (n, d) of some law lie, how widely, and how heavy their tails are.

    Of ``x = c + s u exp(½ h u²)`` the logarithm of ``(x - c)/u`` is a line in ``½ u²``, whose slope is h.
    """
    u = special.ndtri(QUANTILES)
    design = np.stack([np.ones_like(u), 0.5 * u * u], axis=1)
    centre = np.median(drawn, axis=0)
    above, below = (np.quantile(side, QUANTILES, axis=0) for side in (drawn - centre, centre - drawn))
    ratios = np.log(np.maximum(np.hstack([above, below]), TINY) / u[:, None])
    levels, slopes = np.linalg.lstsq(design, ratios, rcond=None)[0].reshape(2, 2, -1)
    upper, lower = np.clip(slopes, 0.0, HEAVIEST)
    return Tails(centre, np.exp(levels.mean(axis=0)), lower, upper)


def power_tails(reference: ResidualReference, drawn: Array) -> Tails:
    """Return the tails of a density that falls like a power along some coordinates, and those of a normal elsewhere.

    ``-r ∂ log p / ∂r`` grows like r² for a normal, like r where the tail is exponential, and tends to ``1 + 1/h`` for a
    power. The first d coordinates are asked, with the others at 0; draws in these (n, d) give centre and scale.
    """
    found = measured_tails(drawn)
    lower, upper = np.zeros(found.centre.size), np.zeros(found.centre.size)
    for i, spread in enumerate(found.spread):
        for tail, sign in ((lower, -1.0), (upper, 1.0)):
            near, far = (_steepness(reference, found.centre, i, sign * radius * spread) for radius in (NEAR, FAR))
            if far < POWER * near:
                tail[i] = min(1.0 / max(far - 1.0, TINY), HEAVIEST)
    return Tails(found.centre, found.spread, lower, upper)


def _steepness(reference: ResidualReference, centre: Array, i: int, step: float) -> float:
    """Return ``-r ∂ log p / ∂r`` a step from the centre along one coordinate; nan where there is no density."""
    position = np.zeros(reference.size)
    position[: centre.size] = centre
    position[i] += step
    value, gradient = reference.at(position)
    return -step * float(gradient[i] - position[i]) if np.isfinite(value) else np.nan


def with_fitting_tails(reference: ResidualReference, rng: np.random.Generator) -> ResidualReference:
    """Return a reference whose importance weights have the lightest tail among a few."""
    which = reference.own_tails
    if which.size > MOST or not which.size:
        return reference
    found: list[tuple[float, float, ResidualReference]] = []
    for h in TRIED_TAILS:
        tail = np.zeros(reference.size)
        tail[which] = h
        made = reference if h == 0.0 else TailedReference(reference, tail, tail)
        found.append((pareto_k(made.walkers(TRIED, rng).phi), h, made))
    return min(found)[2]
