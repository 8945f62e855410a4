"""Several latent vectors that are read as a sum, as a function of (θ, z).

Additive processes, a process beside coefficients: ``η = m + Σ_s A_s L_s y_s`` with maps A_s and
``y_s ~ N(0, I)`` a priori, where ``L_s L_sᵀ`` is a vector's covariance matrix, or L_s diagonal. The map of z is that
of one vector (`pymc_rmhmc.latent.forms.conditional`), with ``Q = Σ A_s L_s L_sᵀ A_sᵀ`` in place of K:

    a = (I + W̄Q)⁻¹ (b - W̄(m + Σ A_s L_s z_s) + s z₂),     y_s = z_s + L_sᵀ A_sᵀ a,      s = sqrt(w̄).

Where A_s moves with θ its derivative is ``(Q̄ + Q̄ᵀ) A_s L_s L_sᵀ + v (L_s z_s)ᵀ``, with v that by the draw of the prior.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.latent.charts.site import GaussianSites
from pymc_rmhmc.latent.forms.conditional import SitesOnCovariance
from pymc_rmhmc.latent.forms.parts import Part

__all__ = ["SummedConditional"]

type Array = NDArray[np.float64]


class SummedConditional(SitesOnCovariance):
    """A sum of vectors times Gaussian sites, at one θ.

    Parameters
    ----------
    mean : (n,) array
        m, the sites where every y is 0.
    parts : sequence of Part
        The vectors.
    sites : GaussianSites
        With w̄ ≥ 0.
    by_design : bool
        Whether the derivative by every A is wanted.

    Raises
    ------
    PriorFailure
        If something is not finite, or B not positive definite.
    """

    def __init__(
        self, mean: Array, parts: Sequence[Part], sites: GaussianSites, *, by_design: bool = False
    ) -> None:
        self._parts, self._by_design = tuple(parts), by_design
        total = np.asfortranarray(sum(part.covariance() for part in self._parts), dtype=np.float64)
        super().__init__(mean, total, sites)
        ends = np.cumsum([0, *(part.size for part in self._parts)])
        self._slices = [slice(int(a), int(b)) for a, b in itertools.pairwise(ends)]
        self._n_latent = int(ends[-1])

    @property
    def n_noise(self) -> int:
        """The size of z: a normal number for each latent value, and for each site."""
        return self._n_latent + self._mean.size

    def place(self, noise: Array) -> Array:
        """The sites (n,) of z."""
        held = list(zip(self._parts, self._slices, strict=True))
        self._noise = noise
        drawn = sum((part.predict(part.scale(noise[where])) for part, where in held), np.zeros_like(self._mean))
        sites = self._place_drawn(drawn, noise[self._n_latent :])
        self._placed = [
            noise[where] + part.unscale_adjoint(part.collect(self._placed_dual)) for part, where in held
        ]
        return sites

    def enter(self, values: Array, noise: Array) -> Array:
        """A draw of z given the model's variables; `noise` is standard normal.

        As for one vector: ``z = z' + ((y - y(z')), s Σ A_s L_s (y_s - y_s(z')))``.
        """
        self.place(noise)
        given = [part.from_model(values[where]) for part, where in zip(self._parts, self._slices, strict=True)]
        missing = [y - placed for y, placed in zip(given, self._placed, strict=True)]
        sites = sum(part.predict(part.scale(y)) for part, y in zip(self._parts, missing, strict=True))
        return np.asarray(noise + np.concatenate((*missing, self._root * sites)))

    @property
    def latents(self) -> Array:
        """The model's variables for the noise that was placed last, one after another."""
        return np.concatenate([part.to_model(y) for part, y in zip(self._parts, self._placed, strict=True)])

    def log_prior(self) -> float:
        """Their log density."""
        square = sum(float(y @ y) for y in self._placed)
        volume = sum(part.log_volume() for part in self._parts)
        return -0.5 * square - 0.5 * self._n_latent * math.log(2.0 * math.pi) - volume

    def pullback(self, residual: Array) -> tuple[Array, Array, Any]:
        """The gradient of ``ψ(η) + log E`` by z, by m, and by every part's K, K_i or D, and with it by every A.

        Nothing can be placed afterwards.

        Parameters
        ----------
        residual : (n,) array
            ``∂ψ/∂η``.
        """
        spread, centre = self._dual(residual), self._centre_dual
        noise = self._pull_noise(spread)
        del self._covariance
        covariance_bar = np.zeros((spread.size, spread.size), order="F")
        self._add_covariance_bar(covariance_bar, spread)
        held = list(zip(self._parts, self._collected, [self._noise[where] for where in self._slices], strict=True))
        design_bars = [part.design_bar(covariance_bar, spread, z) for part, _, z in held] if self._by_design else None
        bars = [part.pullback(part.between(covariance_bar), collected, z) for part, collected, z in held]
        return noise, spread + centre, bars if design_bars is None else (bars, design_bars)

    def _pull_noise(self, spread: Array) -> Array:
        self._pushed = self._multiply(spread)
        self._collected = [part.collect(spread) for part in self._parts]
        held = zip(self._parts, self._collected, strict=True)
        noises = [part.unscale_adjoint(collected) for part, collected in held]
        return np.concatenate((*noises, self._root * self._pushed))
