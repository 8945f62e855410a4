"""Sites that follow the likelihood's own parameters.

A noise, a dispersion or degrees of freedom scale the likelihood's slope and curvature alike. Sites that stood still
would fit at one value of them: at another every latent value has the wrong spread, and the sum of what that leaves
ties the parameter to the length of z. So the sites of such a likelihood are raised to the power

    ρ_i(θ) = I_i(θ) / I_i(θ̂),

a site's information as a share of what it was at a constant θ̂. It is what the likelihood's slope grows by: the Fisher
information for most, and of a Student t the weight that tells outliers from the others, without which outliers would
pull as hard as the others where the noise is small. I is the mean over two constant η, a standard deviation below and
above where a site lay: at its mean alone, an observation that lies there would tell too much. Sites of coefficients
have one power for all, the share of their information together (`pymc_rmhmc.geometry.charts.diagonal`). Any function of
θ is exact, as long as it is differentiated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.geometry.charts.site import GaussianSites
from pymc_rmhmc.geometry.compilation import compiled

__all__ = ["MovingSites", "RaisedSites", "slope_by_powers"]

type Array = NDArray[np.float64]


@compiled
def _to_power(
    information: Array, fitted: Array, linear: Array, precision: Array
) -> tuple[Array, Array, Array]:  # pragma: no cover - compiled
    """The sites' b and w̄ to the power ``information / fitted``, or 1 where fitted is 0, and the power."""
    power = np.ones(information.size)
    for i in range(information.size):
        if fitted[i] > 0.0:
            power[i] = information[i] / fitted[i]
    return power * linear, power * precision, power


@dataclass(frozen=True, slots=True)
class MovingSites:
    """Sites, and the information at which they were fitted.

    Attributes
    ----------
    sites : GaussianSites
        At θ̂.
    eta : (2, n) array
        Where the information is taken.
    information : (n,) array, or (1,) of all together
        ``I(θ̂)``; where it is 0 the sites do not move.
    """

    sites: GaussianSites
    eta: Array
    information: Array

    def at(self, information: Array) -> RaisedSites:
        """The sites at a θ where the information is this."""
        linear, precision, power = _to_power(information, self.information, self.sites.linear, self.sites.precision)
        return RaisedSites(linear, precision, self, power)


@dataclass(frozen=True, slots=True)
class RaisedSites(GaussianSites):
    """Moving sites at one θ.

    Attributes
    ----------
    held : MovingSites
        What they are at θ̂.
    power : (n,) array, or (1,) for all
        ρ.
    """

    held: MovingSites
    power: Array

    def pullback(self, power_bar: Array) -> Array:
        """The derivative by the information of a function of ρ, from its derivative by log ρ."""
        information = self.power * self.held.information
        return np.divide(power_bar, information, out=np.zeros_like(power_bar), where=information > 0.0)


def slope_by_powers(
    linear: Array, precision: Array, centre: Array, explained: Array, pushed: Array, site_noise: Array, eta: Array
) -> Array:
    """The gradient of ``ψ(η) + log E`` by the logarithm of each site's power, (n,).

    Parameters
    ----------
    linear, precision : (n,) array
        Of the sites.
    centre, explained : (n,) array
        Under the prior times the sites η's mean, and its variance times w̄.
    pushed : (n,) array
        That variance, as a matrix, times ``∂ψ/∂η``.
    site_noise, eta : (n,) array
        z₂, and where it was placed.
    """
    evidence = linear * centre - 0.5 * (precision * centre**2 + explained)
    placed = pushed * (linear + 0.5 * np.sqrt(precision) * site_noise - precision * eta)
    # The last term is ψ's own sites.
    return np.asarray(evidence + placed - eta * (linear - 0.5 * precision * eta))
