"""A design A with the weights w̄ of its sites: products, ``M = AᵀW̄A``, and a root F of M by which noise is drawn.

Where A is constant and w̄ moves by a common multiple alone, M and its root are made once; F has then at most k columns.
Otherwise ``F = Aᵀ s``, s = √w̄, which has a derivative by both.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from pymc_rmhmc.errors import Failure, PriorFailure
from pymc_rmhmc.latent.charts.site import GaussianSites
from pymc_rmhmc.linalg.products import Products, is_finite, products_of

__all__ = ["MovingWeights", "StandingWeights", "Weights"]

type Array = NDArray[np.float64]


class Weights(Protocol):
    """A and w̄ at one θ.

    Attributes
    ----------
    products : Products
        With A.
    gram : (k, k) array
        M, in Fortran order.
    n_noise : int
        The number of F's columns.
    by_multiple : bool
        Whether all w̄ move by one multiple.
    """

    products: Products
    gram: Array
    n_noise: int
    by_multiple: bool

    def at(self, sites: GaussianSites) -> Weights:
        """Return those of the same A and other sites."""

    def root(self, noise: Array) -> Array:
        """Return ``F z₂``, (k,)."""

    def root_adjoint(self, values: Array) -> Array:
        """Return ``Fᵀ v``."""


class StandingWeights:
    """A constant A, and w̄ that move by a common multiple alone.

    Raises a `PriorFailure` if A is not finite, or the multiple no positive number.

    Parameters
    ----------
    design : (n, k) array or sparse array
        A.
    sites : GaussianSites
        With w̄ ≥ 0.
    like : StandingWeights, optional
        One with the same A; M serves again if the sites have the same w̄ but for a multiple.
    """

    by_multiple = True

    def __init__(self, design: Any, sites: GaussianSites, like: StandingWeights | None = None) -> None:
        standing, multiple = sites.standing
        self.products: Products = _products(design) if like is None else like.products
        is_known = like is not None and like._whole.precision is standing.precision
        self._whole: _Gram = like._whole if is_known and like else _Gram(self.products, standing.precision)
        self._multiple, self.n_noise = multiple, min(self._whole.gram.shape[0], standing.precision.size)
        self.gram: Array = self._whole.gram if multiple == 1.0 else multiple * self._whole.gram

    def at(self, sites: GaussianSites) -> StandingWeights:
        """Return those of the same A and other sites."""
        return StandingWeights(None, sites, self)

    def root(self, noise: Array) -> Array:
        """Return ``F z₂``, (k,)."""
        return np.asarray(self._whole.root @ (math.sqrt(self._multiple) * noise))

    def root_adjoint(self, values: Array) -> Array:
        """Return ``Fᵀ v``, (k,)."""
        return np.asarray(math.sqrt(self._multiple) * (self._whole.root.T @ values))


class _Gram:
    """M of constant w̄."""

    def __init__(self, products: Products, precision: Array) -> None:
        self.precision, self.gram = precision, products.gram(precision)

    @cached_property
    def root(self) -> Array:
        """F, which a search for a mode has no use for."""
        values, vectors = np.linalg.eigh(self.gram)
        # The largest are last, and no more of them than there are sites are not 0.
        first = max(0, values.size - self.precision.size)
        return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0)))[:, first:])


class MovingWeights:
    """An A or w̄ that move with θ, or both.

    Raises a `PriorFailure` if A is not finite.

    Parameters
    ----------
    design : (n, k) array or sparse array
        A.
    sites : GaussianSites
        With w̄ ≥ 0.
    like : MovingWeights, optional
        One with the same A; M serves again if the sites' w̄ are the same array.
    """

    by_multiple = False

    def __init__(self, design: Any, sites: GaussianSites, like: MovingWeights | None = None) -> None:
        self.products: Products = _products(design) if like is None else like.products
        self._precision, self._site_root, self.n_noise = sites.precision, np.sqrt(sites.precision), sites.precision.size
        same = like is not None and like._precision is sites.precision
        self.gram: Array = like.gram if same and like is not None else self.products.gram(sites.precision)

    def at(self, sites: GaussianSites) -> MovingWeights:
        """Return those of the same A and other sites."""
        return MovingWeights(None, sites, self)

    def root(self, noise: Array) -> Array:
        """Return ``F z₂``, (k,)."""
        return self.products.collect(self._site_root * noise)

    def root_adjoint(self, values: Array) -> Array:
        """Return ``Fᵀ v``, (n,)."""
        return np.asarray(self._site_root * self.products.predict(values))


def _products(design: Any) -> Products:
    """Return products with an A whose entries are numbers."""
    if not is_finite(design):
        raise PriorFailure(Failure.NON_FINITE)
    return products_of(sparse.csr_array(design) if sparse.issparse(design) else design)
