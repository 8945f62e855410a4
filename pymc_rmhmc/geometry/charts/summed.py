"""Several latent vectors that are read as a sum, as a function of (θ, z).

Additive processes, a process beside coefficients: ``η = m + Σ_s A_s L_s y_s`` with maps A_s and
``y_s ~ N(0, I)`` a priori, where ``L_s L_sᵀ`` is a vector's covariance matrix, or L_s diagonal. The map of z is that
of one vector (`pymc_rmhmc.geometry.charts.conditional`), with ``Q = Σ A_s L_s L_sᵀ A_sᵀ`` in place of K:

    a = (I + W̄Q)⁻¹ (b - W̄(m + Σ A_s L_s z_s) + s z₂),     y_s = z_s + L_sᵀ A_sᵀ a,      s = sqrt(w̄).

Where A_s moves with θ its derivative is ``(Q̄ + Q̄ᵀ) A_s L_s L_sᵀ + v (L_s z_s)ᵀ``, with v that by the draw of the prior.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.geometry.charts.conditional import SitesOnCovariance, factor_or_fail
from pymc_rmhmc.geometry.charts.site import GaussianSites
from pymc_rmhmc.geometry.linalg import cholesky_adjoint_of_product, multiply_lower, solve_lower
from pymc_rmhmc.geometry.prior import PriorFailure

__all__ = ["CoefficientsPart", "Part", "SummedConditional", "VectorPart"]

type Array = NDArray[np.float64]


class Part(ABC):
    """One vector of a sum.

    Parameters
    ----------
    design : (n, k) array or sparse array, or None
        A_s; None for the identity.
    """

    size: int

    def __init__(self, design: Any) -> None:
        self.design = design

    def predict(self, values: Array) -> Array:
        """``A v``, (n,)."""
        return values if self.design is None else np.asarray(self.design @ values)

    def collect(self, sites: Array) -> Array:
        """``Aᵀ v``, (k,)."""
        return sites if self.design is None else np.asarray(self.design.T @ sites)

    def between(self, matrix: Array) -> Array:
        """``Aᵀ S A`` of a symmetric S, (k, k)."""
        return matrix if self.design is None else np.asarray(self.design.T @ (self.design.T @ matrix).T)

    def design_bar(self, covariance_bar: Array, spread: Array, noise: Array) -> Array:
        """The derivative by A (n, k), from that by Q and from that by ``A L z``, which is `spread`."""
        both_ways = np.asarray((covariance_bar + covariance_bar.T) @ self.design)
        return self.times_covariance(both_ways) + np.outer(spread, self.scale(noise))

    @abstractmethod
    def scale(self, whitened: Array) -> Array:
        """``L y``."""

    @abstractmethod
    def times_covariance(self, matrix: Array) -> Array:
        """``M L Lᵀ`` for an M (n, k)."""

    @abstractmethod
    def unscale_adjoint(self, values: Array) -> Array:
        """``Lᵀ v``."""

    @abstractmethod
    def covariance(self) -> Array:
        """``A L Lᵀ Aᵀ``, (n, n)."""

    @abstractmethod
    def to_model(self, whitened: Array) -> Array:
        """The model's variable for a y."""

    @abstractmethod
    def from_model(self, values: Array) -> Array:
        """The y of the model's variable."""

    @abstractmethod
    def log_volume(self) -> float:
        """``log |∂ variable / ∂y|``."""

    @abstractmethod
    def pullback(self, covariance_bar: Array, collected: Array, noise: Array) -> Any:
        """The derivative by K, by all K_i or by D, from that by Q and from that of ``L z``, which is `collected`."""


class VectorPart(Part):
    """A vector x with a covariance matrix, which the predictor reads times d: ``d x = d m + L y``.

    Parameters
    ----------
    design : (n, k) array or sparse array, or None
        A; None for the identity.
    covariance : (k, k) array
        Of ``d x``, in Fortran order.
    location : (k,) array
        m, the mean of x.
    centred : bool
        Whether the model's variable is x itself. If not it is the whitened vector ``sign(d) y``, which is the same
        whatever d is.
    multiplier : (k,) array or float
        d, of any sign.
    """

    def __init__(
        self, design: Any, covariance: Array, location: Array, *, centred: bool, multiplier: Array | float = 1.0
    ) -> None:
        super().__init__(design)
        self.size = covariance.shape[0]
        self._covariance, self._factor = covariance, factor_or_fail(covariance)
        self._location, self._centred, self._multiplier = location, centred, np.asarray(multiplier)

    def scale(self, whitened: Array) -> Array:
        """``L y``."""
        return multiply_lower(self._factor, whitened)

    def times_covariance(self, matrix: Array) -> Array:
        """``M L Lᵀ`` for an M (n, k)."""
        return np.asarray(matrix @ self._covariance)

    def unscale_adjoint(self, values: Array) -> Array:
        """``Lᵀ v``."""
        return multiply_lower(self._factor, values, transpose=True)

    def covariance(self) -> Array:
        """``A L Lᵀ Aᵀ``, (n, n)."""
        if self.design is None:
            return self._covariance
        return np.asarray(self.design @ (self.design @ self._covariance).T)

    def to_model(self, whitened: Array) -> Array:
        """The model's variable for a y."""
        if not self._centred:
            return np.asarray(np.sign(self._multiplier) * whitened)
        return np.asarray(self._location + self.scale(whitened) / self._multiplier)

    def from_model(self, values: Array) -> Array:
        """The y of the model's variable."""
        if not self._centred:
            return np.asarray(np.sign(self._multiplier) * values)
        return solve_lower(self._factor, self._multiplier * (values - self._location))

    def log_volume(self) -> float:
        """``log |∂ variable / ∂y|``."""
        if not self._centred:
            return 0.0
        return float((np.log(self._factor.diagonal()) - np.log(np.abs(self._multiplier))).sum())

    def pullback(self, covariance_bar: Array, collected: Array, noise: Array) -> Array:
        """The derivative by the covariance, which is let go of."""
        del self._covariance
        return self.between(covariance_bar) + cholesky_adjoint_of_product(self._factor, collected, noise)


class CoefficientsPart(Part):
    """Independent coefficients; the model's variable is ``location + deviation y``, and ``spread y`` is read."""

    def __init__(self, design: Any, spread: Array, location: Array, deviation: Array) -> None:
        super().__init__(design)
        if not (np.isfinite(spread).all() and np.isfinite(deviation).all()):
            raise PriorFailure(Failure.NON_FINITE, 0)
        self.size = spread.size
        self._spread, self._location, self._deviation = spread, location, deviation

    def scale(self, whitened: Array) -> Array:
        """``L y``."""
        return self._spread * whitened

    def times_covariance(self, matrix: Array) -> Array:
        """``M D²`` for an M (n, k)."""
        return np.asarray(matrix * self._spread**2)

    def unscale_adjoint(self, values: Array) -> Array:
        """``Lᵀ v``."""
        return self._spread * values

    def covariance(self) -> Array:
        """``A L Lᵀ Aᵀ``, (n, n)."""
        if self.design is None:
            return np.diag(self._spread**2)
        scaled = self.design @ np.diag(self._spread)
        return np.asarray(scaled @ scaled.T)

    def to_model(self, whitened: Array) -> Array:
        """The model's variable for a y."""
        return self._location + self._deviation * whitened

    def from_model(self, values: Array) -> Array:
        """The y of the model's variable."""
        return (values - self._location) / self._deviation

    def log_volume(self) -> float:
        """``log |∂ variable / ∂y|``."""
        return float(np.log(np.abs(self._deviation)).sum())

    def pullback(self, covariance_bar: Array, collected: Array, noise: Array) -> Array:
        """The derivative by D."""
        return np.asarray(2.0 * self._spread * self.between(covariance_bar).diagonal() + collected * noise)


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
        bars = [part.pullback(covariance_bar, collected, z) for part, collected, z in held]
        return noise, spread + centre, bars if design_bars is None else (bars, design_bars)

    def _pull_noise(self, spread: Array) -> Array:
        self._pushed = self._multiply(spread)
        self._collected = [part.collect(spread) for part in self._parts]
        held = zip(self._parts, self._collected, strict=True)
        noises = [part.unscale_adjoint(collected) for part, collected in held]
        return np.concatenate((*noises, self._root * self._pushed))
