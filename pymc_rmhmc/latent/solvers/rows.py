"""Several latent vectors, independent given θ: rows of one variable, each with sites of its own."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.latent.charts.site import GaussianSites
from pymc_rmhmc.latent.conditional import Placement, Pulled
from pymc_rmhmc.latent.solvers.site_space import SiteSpace

__all__ = ["Rows"]

type Array = NDArray[np.float64]


@dataclass(slots=True)
class RowsPlacement(Placement):
    """Where the noise of all rows is placed, and that of each."""

    rows: tuple[Placement, ...] = ()

    @property
    def whitened(self) -> Array:
        """Y, row after row."""
        return np.concatenate([row.whitened for row in self.rows])

    @property
    def latents(self) -> Array:
        """The model's variables, row after row."""
        return np.concatenate([row.latents for row in self.rows])

    @property
    def log_prior(self) -> float:
        """Their log density."""
        return sum(row.log_prior for row in self.rows)


class Rows:
    """Rows times Gaussian sites, at one θ; z, y and the model's variables are row after row.

    `rows`: each row.
    `where` (r, n) int: the sites of every row; N = r n.
    `sites`: of all rows: whoever has the same may use the rows' own again.
    `is_shared`: whether they have one covariance, of which one derivative is wanted.
    """

    weighted = None

    def __init__(
        self, rows: Sequence[SiteSpace], where: NDArray[np.int64], sites: GaussianSites, *, is_shared: bool
    ) -> None:
        self.rows, self.sites, self._where, self._is_shared = tuple(rows), sites, where, is_shared
        self.log_evidence = sum(row.log_evidence for row in self.rows)

    @property
    def n_noise(self) -> int:
        """The size of z: for each row a normal number for a latent value, and one for its site."""
        return 2 * self._where.size

    @property
    def centre(self) -> Array:
        """The sites where z is 0, (N,)."""
        return self._scattered(row.centre for row in self.rows)

    @property
    def centre_whitened(self) -> Array:
        """The y where z is 0, (N,)."""
        return np.concatenate([row.centre_whitened for row in self.rows])

    @property
    def mean(self) -> Array:
        """The sites where y is 0, (N,)."""
        return self._scattered(row.mean for row in self.rows)

    def with_sites(self, sites: GaussianSites) -> Rows:
        """Return the same prior times other sites."""
        rows = [row.with_sites(of_row(sites, where)) for row, where in zip(self.rows, self._where, strict=True)]
        return Rows(rows, self._where, sites, is_shared=self._is_shared)

    def mode(self, sites: GaussianSites) -> Array | None:
        """Return the y (N,) that is most likely with other sites; None if a row has none."""
        found = [row.mode(of_row(sites, where)) for row, where in zip(self.rows, self._where, strict=True)]
        known = [each for each in found if each is not None]
        return np.concatenate(known) if len(known) == len(found) else None

    def predict(self, whitened: Array) -> Array:
        """Return how far from their mean the sites of a y are, (N,)."""
        return self._scattered(row.predict(y) for row, y in self._with(whitened))

    def place(self, noise: Array) -> RowsPlacement:
        """Return where a z is placed."""
        placed = tuple(row.place(z) for row, z in self._with(noise))
        eta, pulled = self._scattered(each.eta for each in placed), np.concatenate([each.pulled for each in placed])
        return RowsPlacement(eta, noise, pulled, self.rows[0].operator, None, placed)

    def enter(self, values: Array, noise: Array) -> Array:
        """Draw a z given the model's variables, from standard normal noise."""
        parts = zip(self._with(values), self._with(noise), strict=True)
        return np.concatenate([row.enter(given, z) for (row, given), (_, z) in parts])

    def shifted(self, noise: Array, missing: Array) -> None:
        """Return None: rows do not ask for it."""
        return

    def marginals(self) -> tuple[Array, Array]:
        """Return mean and variance (N,) of each site under the prior times the sites' factors."""
        means, variances = zip(*(row.marginals() for row in self.rows), strict=True)
        return self._scattered(means), self._scattered(variances)

    def apply(self, noise: Array) -> Array:
        """Return ``T z`` of the map ``η = centre + T z``, (N,)."""
        return self._scattered(row.apply(z) for row, z in self._with(noise))

    def adjoint(self, sites: Array) -> Array:
        """Return ``Tᵀ v``."""
        return np.concatenate([row.adjoint(sites[where]) for row, where in zip(self.rows, self._where, strict=True)])

    def gram(self, sites: Array) -> Array:
        """Return ``T Tᵀ v``, (N,)."""
        return self._scattered(row.gram(sites[where]) for row, where in zip(self.rows, self._where, strict=True))

    def pullback(self, placed: Placement, residual: Array) -> Pulled:
        """Return the gradient of ``ψ(η) + log E``, by one covariance or by that of every row."""
        parts = zip(self.rows, cast("RowsPlacement", placed).rows, self._where, strict=True)
        pulled = [row.pullback(each, residual[where]) for row, each, where in parts]
        vectors = [bar for each in pulled for bar in each.vectors]
        if self._is_shared:
            vectors = [functools.reduce(operator.iadd, vectors)]
        noise, mean = np.concatenate([each.noise for each in pulled]), self._scattered(each.mean for each in pulled)
        return Pulled(noise, mean, vectors, None, self._scattered(each.pushed for each in pulled))

    def sites_pullback(self, placed: Placement, pulled: Pulled) -> Array:
        """Return the gradient of ``ψ(η) + log E`` by the logarithms of b and of w̄, (2, N)."""
        parts = zip(self.rows, cast("RowsPlacement", placed).rows, self._where, strict=True)
        found = [
            row.sites_pullback(each, pulled._replace(pushed=pulled.pushed[where])) for row, each, where in parts
        ]
        return np.stack([self._scattered(by_linear for by_linear, _ in found), self._scattered(p for _, p in found)])

    def _with(self, values: Array) -> Iterable[tuple[SiteSpace, Array]]:
        """Each row with its part of what goes row by row."""
        return zip(self.rows, np.split(values, len(self.rows)), strict=True)

    def _scattered(self, parts: Iterable[Array]) -> Array:
        """Return what the rows have, where their sites are."""
        whole = np.empty(self._where.size)
        for where, part in zip(self._where, parts, strict=True):
            whole[where] = part
        return whole


def of_row(sites: GaussianSites, where: NDArray[np.int64]) -> GaussianSites:
    """Return the sites of a row."""
    return GaussianSites(sites.linear[where], sites.precision[where])
