"""Several latent vectors, independent given θ: rows of one variable, each with sites of its own."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.latent.charts.site import GaussianSites
from pymc_rmhmc.latent.conditional import Placement, Pulled
from pymc_rmhmc.latent.solvers.apart import Apart, ApartPlacement, of_part
from pymc_rmhmc.latent.solvers.site_space import SiteSpace

__all__ = ["Rows"]

type Array = NDArray[np.float64]


class Rows(Apart):
    """Rows times Gaussian sites, at one θ; z, y and the model's variables are row after row.

    `rows`: each row.
    `where` of (n,) int: the sites of every row; N = r n.
    `sites`: of all rows: whoever has the same may use the rows' own again.
    `is_shared`: whether they have one covariance, of which one derivative is wanted.
    """

    def __init__(
        self, rows: Sequence[SiteSpace], where: Sequence[NDArray[np.int64]], sites: GaussianSites, *, is_shared: bool
    ) -> None:
        super().__init__(rows, where, sites)
        self.rows, self._is_shared = tuple(rows), is_shared
        self.log_evidence = sum(row.log_evidence for row in rows)

    def with_sites(self, sites: GaussianSites) -> Rows:
        """Return the same prior times other sites."""
        rows = [row.with_sites(of_part(sites, where)) for row, where in zip(self.rows, self._where, strict=True)]
        return Rows(rows, self._where, sites, is_shared=self._is_shared)

    def place(self, noise: Array) -> ApartPlacement:
        """Return where a z is placed."""
        eta, pulled, placed = self._placed(noise)
        return ApartPlacement(eta, noise, pulled, self.rows[0].operator, None, placed)

    def enter(self, values: Array, noise: Array) -> Array:
        """Draw a z given the model's variables, from standard normal noise."""
        given = np.split(values, len(self.rows))
        parts = zip(self.rows, given, self._by_noise(noise), strict=False)
        return np.concatenate([row.enter(each, z) for row, each, z in parts])

    def pullback(self, placed: Placement, residual: Array) -> Pulled:
        """Return the gradient of ``ψ(η) + log E``, by one covariance or by that of every row."""
        pulled = self._pulled(placed, residual)
        vectors = [bar for each in pulled for bar in each.vectors]
        if self._is_shared:
            vectors = [functools.reduce(operator.iadd, vectors)]
        noise, mean = np.concatenate([each.noise for each in pulled]), self._scattered(each.mean for each in pulled)
        return Pulled(noise, mean, vectors, None, self._scattered(each.pushed for each in pulled))
