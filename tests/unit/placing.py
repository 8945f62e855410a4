"""A conditional that remembers what it has placed last, for tests that place and then ask."""

from __future__ import annotations

from typing import Any

import numpy as np

from pymc_rmhmc.interfaces.stated import StatedCoefficients, StatedDense, StatedKronecker, StatedPrior
from pymc_rmhmc.latent.charts import GaussianSites
from pymc_rmhmc.latent.conditional import Conditional, Placement, Pulled
from pymc_rmhmc.latent.latent_blocks import conditional_from
from pymc_rmhmc.model.forms.linear_blocks import _at_entries

__all__ = ["Placing", "coefficients", "dense_block", "form_of", "grid_block", "rows_block"]


class Placing:
    """A conditional, and where it has placed a noise last."""

    def __init__(self, inner: Conditional, design: Any = None, *, is_sum: bool = True) -> None:
        self.inner, self.design, self.is_sum = inner, design, is_sum
        self.placed: Placement | None = None
        self.pulled: Pulled | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def place(self, noise: np.ndarray) -> np.ndarray:
        self.placed = self.inner.place(noise)
        return self.placed.eta

    @property
    def latents(self) -> np.ndarray:
        return self.placed.latents

    def log_prior(self) -> float:
        return self.placed.log_prior

    def pullback(self, residual: np.ndarray) -> tuple:
        placed = self.inner.place(np.zeros(self.inner.n_noise)) if self.placed is None else self.placed
        self.pulled = self.inner.pullback(placed, residual)
        vectors, design = self.pulled.vectors, self.pulled.design
        if not self.is_sum:
            (vectors,) = vectors
            design = _at_entries(design[0], self.design) if isinstance(design, list) else design
        return self.pulled.noise, self.pulled.mean, vectors if design is None else (vectors, design)

    def sites_pullback(self, eta: np.ndarray) -> np.ndarray:
        assert eta is self.placed.eta
        return self.inner.sites_pullback(self.placed, self.pulled)

    def with_sites(self, sites: GaussianSites) -> Placing:
        return Placing(self.inner.with_sites(sites), self.design, is_sum=self.is_sum)


class _Block:
    """What `conditional_from` asks of a block."""

    design_shape = rows = None
    has_moving_design = has_moving_sites = is_sum = False
    maps = None

    def __init__(self, **stated: Any) -> None:
        self.__dict__.update(stated)


def _of(block: _Block, stated: StatedPrior, sites: GaussianSites, like: Placing | None) -> Placing:
    made = conditional_from(block, stated, sites, None if like is None else like.inner)
    return Placing(made, stated.design, is_sum=False)


def dense_block(mean, covariance, sites, like=None, *, shift=0.0, centred=True, by_covariance=True) -> Placing:
    """A vector with a dense covariance."""
    shift = shift * np.ones_like(mean)
    vector = StatedDense(covariance, mean - shift, centred, moves=by_covariance)
    return _of(_Block(), StatedPrior(mean, shift, (vector,)), sites, like)


def grid_block(mean, covariances, sites, like=None, *, by_covariance=True) -> Placing:
    """A vector on a grid."""
    vector = StatedKronecker(tuple(covariances), moves=by_covariance)
    return _of(_Block(), StatedPrior(mean, np.zeros_like(mean), (vector,)), sites, like)


def rows_block(mean, covariance, sites, where, *, shift, centred) -> Placing:
    """Rows of a variable."""
    vector = StatedDense(covariance, np.zeros(len(covariance)), centred)
    return _of(_Block(rows=where), StatedPrior(mean, shift, (vector,)), sites, None)


def coefficients(design, mean, spread, location, scale, sites, like=None, *, moving=False) -> Placing:
    """Independent coefficients."""
    block = _Block(design_shape=design.shape, has_moving_design=moving)
    vector = StatedCoefficients(spread, location, scale)
    return _of(block, StatedPrior(mean, np.zeros_like(mean), (vector,), design), sites, like)


def form_of(conditional: Placing) -> str:
    """The name of the form by which coefficients are placed."""
    return type(conditional.inner).__name__
