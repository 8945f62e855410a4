"""Sites that follow θ: the likelihood's own parameters by their information, any others along a trend.

A noise, a dispersion or degrees of freedom scale the likelihood's slope and curvature alike. Sites that stood still
would fit at one value of them: at another every latent value has the wrong spread, and the sum of what that leaves
ties the parameter to the length of z. So the sites of such a likelihood are raised to the power

    ρ_i(θ) = I_i(θ) / I_i(θ̂),

a site's information as a share of what it was at a constant θ̂. It is what the likelihood's slope grows by: the Fisher
information for most, and of a Student t the weight that tells outliers from the others, without which outliers would
pull as hard as the others where the noise is small. I is the mean over two constant η, a standard deviation below and
above where a site lay: at its mean alone, an observation that lies there would tell too much. Sites of coefficients
have one power for all, the share of their information together (`pymc_rmhmc.latent.solvers.latent_space`).

Where the data bound the latent values on one side alone, as classes that can be separated do, the latent values grow
with their prior's amplitude, and the likelihood's slope and curvature where they lie fall off. Sites of a common
amplitude would hold them too near at a rare large one, and a chain would hardly go there. So all b and all w̄ of a block
may also be multiplied by two functions of θ, ``(1 + M) / (1 + M exp(-t))`` of a t that is linear (`SiteTrend`). Of an
amplitude's logarithm that is a power of the amplitude where it is large, and a constant where it is small: the w̄ of one
probit under a normal prior, by regression, is ``(2/π) / (1 + (1 - 2/π) amplitude²)``. Sites may get as weak as they
will, for the prior holds what they let go, and no stronger than the constant.

What a parameter does to the slope beyond its scale, as degrees of freedom move the scale that outliers tell, ρ does not
follow. So in a field b also gets, for each coordinate that the likelihood reads, how its expected slope at those two η
grows at θ̂, times ``tanh(θ - θ̂)``: straight where the posterior is, and bounded beyond (`SiteTilt`). Of Student t
returns on a walk of log volatility the degrees of freedom and the walk's level had a correlation of 0.7 in z, and
have none: 2905 days made 190 effective draws a second and make 577.

Any function of θ is exact, as long as it is differentiated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from pymc_rmhmc.errors import Failure, PriorFailure
from pymc_rmhmc.latent.charts.site import GaussianSites
from pymc_rmhmc.linalg.compiled.compilation import compiled

__all__ = ["MovingSites", "RaisedSites", "SiteTilt", "SiteTrend", "grown", "raised", "slope_by_sites", "tilted"]

type Array = NDArray[np.float64]
type Indices = NDArray[np.int64]

# The logarithm of what is still a number.
MOST_WIDENING = 700.0


@compiled
def _to_power(
    information: Array, fitted: Array, growth: Array, linear: Array, precision: Array
) -> tuple[Array, Array, Array]:  # pragma: no cover - compiled
    """The sites' b and w̄ to the power ``information / fitted``, or 1 where fitted is 0, and grown; and the power."""
    power = np.ones(information.size)
    for i in range(information.size):
        if fitted[i] > 0.0:
            power[i] = information[i] / fitted[i]
    return growth[0] * power * linear, growth[1] * power * precision, power


@compiled
def tilted(
    theta: Array, centre: Array, which: Indices, slopes: Array
) -> tuple[Array, Array]:  # pragma: no cover - compiled
    """`SiteTilt.at` for compiled code: what is added to b, and the derivative of each coordinate's share of it."""
    added, growth = np.zeros(slopes.shape[1]), np.zeros(which.size)
    for j in range(which.size):
        along = math.tanh(theta[which[j]] - centre[which[j]])
        growth[j] = 1.0 - along * along
        added += along * slopes[j]
    return added, growth


@compiled
def raised(
    theta: Array, information: Array, fitted: Array, linear: Array, precision: Array, centre: Array, exponents: Array,
    log_most: Array,
) -> tuple[Array, Array, Array, Array]:  # pragma: no cover - compiled  # fmt: skip
    """`MovingSites.at` for compiled code: b, w̄ and the power, and how the logarithm of both multiples grows with t."""
    growth, slope = np.empty(2), np.empty(2)
    for row in range(2):
        along = -log_most[row]
        for j in range(theta.size):
            along += exponents[row, j] * (theta[j] - centre[j])
        # As `grown` has it.
        growth[row], slope[row] = (1.0 + math.exp(log_most[row])) / (1.0 + np.exp(-along)), 1.0 / (1.0 + np.exp(along))
    b, w, power = _to_power(information, fitted, growth, linear, precision)
    return b, w, power, slope


def grown(along: Array, log_most: Array) -> tuple[Array, Array]:
    """``(1 + M) / (1 + M exp(-t))`` of an array of t, and the derivative of its logarithm by t."""
    return (1.0 + np.exp(log_most)) * special.expit(along - log_most), special.expit(log_most - along)


@dataclass(frozen=True, slots=True)
class SiteTrend:
    """What a block's b and w̄ are multiplied by where θ is not where they were fitted."""

    centre: Array  # (d,): the θ at which both are multiplied by 1
    # (2, d): of b and of w̄: how t grows with θ; 0 for what only likelihoods read. Where nothing else moves, factors
    # serve again.
    exponents: Array
    log_most: Array  # (2,): of both: log M

    def at(self, theta: Array) -> Array:
        """The two multiples (2,) at a θ."""
        return grown(self._along(theta), self.log_most)[0]

    def pullback(self, theta: Array, by_logarithms: Array) -> Array:
        """The derivative by θ (d,) of a function of the multiples, from that by their logarithms (2,)."""
        return np.asarray((grown(self._along(theta), self.log_most)[1] * by_logarithms) @ self.exponents)

    def widening(self, theta: Array) -> float:
        """How many times as far out as at the centre latent values lie: far out, w̄ falls with its square."""
        return math.exp(min(-0.5 * float(self._along(theta)[1]), MOST_WIDENING))

    def _along(self, theta: Array) -> Array:
        """Both t."""
        return np.asarray(self.exponents @ (theta - self.centre))


@dataclass(frozen=True, slots=True)
class SiteTilt:
    """What is added to a block's b where the likelihood's parameters are not where sites were fitted."""

    centre: Array  # (d,): θ̂, where nothing is added
    which: Indices  # (k,): the coordinates of θ that the likelihood reads
    # (k, n): how b grows with each of them at θ̂, as the likelihood's expected slope does beyond the sites' power.
    slopes: Array

    def at(self, theta: Array) -> Array:
        """What is added at a θ, (n,)."""
        return np.asarray(tilted(theta, self.centre, self.which, self.slopes)[0])

    def pullback(self, theta: Array, by_linear: Array) -> Array:
        """The derivative by θ (d,) of a function of b, from that by b (n,)."""
        found = np.zeros_like(theta)
        found[self.which] = tilted(theta, self.centre, self.which, self.slopes)[1] * (self.slopes @ by_linear)
        return found


@dataclass(frozen=True, slots=True)
class MovingSites:
    """Sites, and what they follow."""

    sites: GaussianSites  # at θ̂
    eta: Array  # (2, n): where the information is taken; (2, 0) where the likelihood has no parameters
    # (n,) array, or (1,) of all together: ``I(θ̂)``; where it is 0 a site has no power. Where the likelihood has no
    # parameters, a single 1.
    information: Array
    trend: SiteTrend | None = None  # with the same θ̂
    tilt: SiteTilt | None = None  # where sites have a power each; with the same θ̂
    moves: ClassVar[Literal[True]] = True

    def at(self, theta: Array, information: Array) -> RaisedSites:
        """The sites at a θ, where the information is this."""
        growth = np.ones(2) if self.trend is None else self.trend.at(theta)
        linear, precision, power = _to_power(
            information, self.information, growth, self.sites.linear, self.sites.precision
        )
        total = linear if self.tilt is None else linear + self.tilt.at(theta)
        return RaisedSites(total, precision, self, power, growth, linear)


@dataclass(frozen=True, slots=True)
class RaisedSites(GaussianSites):
    """Moving sites at one θ."""

    held: MovingSites  # what they are at θ̂
    power: Array  # (n,) array, or (1,) for all: ρ
    growth: Array  # (2,): what all b and all w̄ are multiplied by besides
    multiplied: Array  # (n,): b less what the tilt adds

    @property
    def standing(self) -> tuple[GaussianSites, float]:
        """The sites at θ̂ and by what all their w̄ are multiplied here, where that is one number.

        Raises a `PriorFailure` if that is no positive number.
        """
        if self.power.size > 1:
            return self, 1.0
        multiple = float(self.power.item() * self.growth[1])
        if not 0.0 < multiple < math.inf:
            raise PriorFailure(Failure.NON_FINITE)
        return self.held.sites, multiple

    def by_logarithms(self, slopes: Array) -> Array:
        """The derivative by the logarithms of what b and w̄ are multiplied by, from what a solver has, (2, n)."""
        # One multiple of all sites is a logarithm already.
        return slopes if slopes.shape[1] == 1 else np.stack((self.multiplied * slopes[0], slopes[1]))

    def pullback(self, by_logarithms: Array) -> Array:
        """The derivative by the information of a function of b and w̄, from that by their logarithms, (2, n)."""
        information, power_bar = self.power * self.held.information, by_logarithms.sum(axis=0)
        if self.power.size == 1:
            power_bar = power_bar.sum(keepdims=True)
        return np.divide(power_bar, information, out=np.zeros_like(power_bar), where=information > 0.0)


@compiled
def slope_by_sites(
    precision: Array, centre: Array, explained: Array, pushed: Array, site_noise: Array, eta: Array
) -> Array:  # pragma: no cover - compiled
    """The gradient of ``ψ(η) + log E`` by each b, and by the logarithm of each w̄, (2, n).

    `precision` (n,): of the sites.
    `centre`, `explained` (n,): under the prior times the sites η's mean, and its variance times w̄.
    `pushed` (n,): that variance, as a matrix, times ``∂ψ/∂η``.
    `site_noise`, `eta` (n,): z₂, and where it was placed.
    """
    # Of the evidence, of what is placed, and of ψ's own sites.
    found = np.empty((2, eta.size))
    found[0] = centre + pushed - eta
    found[1] = 0.5 * (precision * (eta**2 - centre**2) - explained)
    found[1] += pushed * (0.5 * np.sqrt(precision) * site_noise - precision * eta)
    return found
