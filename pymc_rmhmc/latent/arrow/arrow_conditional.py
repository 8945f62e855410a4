"""Coefficients that a design with columns apart reads, at one θ: see `pymc_rmhmc.latent.arrow.arrow_design`.

The map of z is that of `latent.solvers.latent_space` with ``L = D``. Sites that follow θ have one multiple for all b,
r, and one for all w̄, ρ: b, W̄ and m, D are then ``(r/√ρ) b``, W̄ and ``√ρ m``, ``√ρ D`` for a predictor that is
measured in units of ``1/√ρ``. M and F stay, and the derivative by ρ is that by the unit, which the others contain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure, PriorFailure
from pymc_rmhmc.latent.arrow.arrow_design import Arrow, MovingArrow
from pymc_rmhmc.latent.charts.site import GaussianSites
from pymc_rmhmc.latent.conditional import LatentPlacement, Placement, Pulled
from pymc_rmhmc.latent.forms.coefficients import CoefficientsOperator
from pymc_rmhmc.latent.operators import Operator

__all__ = ["ArrowConditional"]

type Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ArrowPlacement(LatentPlacement):
    """Where a noise is placed, and what the loops had on the way."""

    drawn: tuple[Array, ...] = ()


class ArrowConditional:
    """Independent coefficients times Gaussian sites on their predictor, at one θ.

    Parameters
    ----------
    arrow : Arrow or MovingArrow
        A and the weights at θ̂.
    mean : (n,) array
        m, the predictor where y is 0.
    operator : Operator
        D.
    sites : GaussianSites
        With w̄ ≥ 0; where they follow θ by one power for all.

    Raises
    ------
    PriorFailure
        If something is not finite, or E has no factor.
    """

    def __init__(
        self, arrow: Arrow | MovingArrow, mean: Array, operator: Operator, sites: GaussianSites
    ) -> None:
        standing, multiple = sites.standing
        if not np.isfinite(mean).all():
            raise PriorFailure(Failure.NON_FINITE)
        self.arrow, self.mean, self._operator = arrow, mean, operator
        spread = cast("CoefficientsOperator", operator).spread
        root = self._root_multiple = math.sqrt(multiple)
        self._unit_mean, self._spread, self._precision = root * mean, root * spread, standing.precision
        self._sites = sites if root == 1.0 else GaussianSites(sites.linear / root, self._precision)
        slope = self._sites.gradient(self._unit_mean)
        inner = self._inner = arrow.inner(self._spread, slope)
        self._slope, self._centre_slope = slope, slope - self._precision * inner.explained
        self._unit_centre = self._unit_mean + inner.explained
        self.log_evidence = self._sites.log_density(self._unit_mean) + 0.5 * (inner.gained - inner.log_determinant)

    @property
    def n_noise(self) -> int:
        """The size of z: a normal number for each coefficient, and for each column of F."""
        return self._spread.size + self.arrow.n_noise

    @property
    def weighted(self) -> None:
        """None: see `compiled_coefficients` for compiled code."""
        return None

    @property
    def centre(self) -> Array:
        """The predictor where z is 0, (n,)."""
        return self._unit_centre / self._root_multiple

    @property
    def centre_whitened(self) -> Array:
        """The y where z is 0, (k,)."""
        return self._inner.centre

    def with_sites(self, sites: GaussianSites) -> ArrowConditional:
        """Return the same coefficients times the same sites, but for their multiples."""
        return ArrowConditional(self.arrow.at(sites), self.mean, self._operator, sites)

    def mode(self, sites: GaussianSites) -> Array | None:
        """Return the y (k,) that is most likely with other sites; None if E has no factor."""
        try:
            return self.with_sites(sites).centre_whitened
        except (PriorFailure, np.linalg.LinAlgError):
            return None

    def predict(self, whitened: Array) -> Array:
        """Return ``A D y``, (n,)."""
        return self.arrow.predict(self._spread * whitened) / self._root_multiple

    def place(self, noise: Array) -> ArrowPlacement:
        """Return where a z is placed."""
        drawn, whitened, predicted = self._inner.place(noise)
        eta = (self._unit_mean + predicted) / self._root_multiple
        return ArrowPlacement(eta, noise, predicted, self._operator, None, whitened, drawn)

    def enter(self, values: Array, noise: Array) -> Array:
        """Draw a z given the model's variables, from standard normal noise: see `LatentSpace.enter`."""
        missing = self._operator.from_model(values) - self.place(noise).whitened
        return np.asarray(noise + np.concatenate((missing, self.arrow.root_adjoint(self._spread * missing))))

    def shifted(self, noise: Array, missing: Array) -> None:
        """Return None: the sites do not tell y."""
        return

    def marginals(self) -> tuple[Array, Array]:
        """Return mean and variance (n,) of each predictor under the prior times the sites."""
        return self.centre, self._inner.variances() / self._root_multiple**2

    def apply(self, noise: Array) -> Array:
        """Return ``T z`` of the map ``η = centre + T z``, (n,)."""
        return self.place(noise).eta - self.centre

    def adjoint(self, sites: Array) -> Array:
        """Return ``Tᵀ v`` for a v (n,)."""
        return self._inner.adjoint(sites / self._root_multiple)

    def gram(self, sites: Array) -> Array:
        """Return ``T Tᵀ v``, (n,)."""
        return self._inner.gram(sites) / self._root_multiple**2

    def pullback(self, placed: Placement, residual: Array) -> Pulled:
        """Return the gradient of ``ψ(η) + log E`` where a z was placed, given ``∂ψ/∂η`` (n,)."""
        root, drawn = self._root_multiple, cast("ArrowPlacement", placed).drawn
        unit_residual = residual / root
        noise, pushed, spread_bar = self._inner.pullback(drawn, unit_residual)
        by_eta = unit_residual - self._precision * pushed
        design = None
        if self.arrow.by_design:
            arrow, k = cast("MovingArrow", self.arrow), self._spread.size
            slope = self._slope + arrow.root * placed.noise[k:] - self._precision * placed.pulled
            left = np.stack((by_eta, slope, self._centre_slope))
            right = np.stack((placed.whitened, noise[:k], self._inner.centre)) * self._spread
            design = arrow.design_bar(self._inner, left, right)
        return Pulled(noise, root * (by_eta + self._centre_slope), [root * spread_bar], design, pushed / root)

    def sites_pullback(self, placed: Placement, pulled: Pulled) -> Array:
        """Return the derivative of ``ψ(η) + log E`` by log r and by log ρ, (2, 1).

        The second is half of that by log √ρ, along which m and D grow and b falls, and ψ is one of ``η/√ρ``.
        """
        root, linear = self._root_multiple, self._sites.linear
        eta, pushed, residual = root * placed.eta, root * pulled.pushed, pulled.mean / root - self._centre_slope
        residual = residual + self._precision * pushed
        linear_bar = self._unit_centre + pushed
        by_unit = self._unit_mean @ pulled.mean / root + self._spread @ pulled.vectors[0] / root - linear @ linear_bar
        by_precision = 0.5 * (by_unit - residual @ eta + self._precision @ eta**2)
        return np.array([[linear @ (linear_bar - eta)], [by_precision]])
