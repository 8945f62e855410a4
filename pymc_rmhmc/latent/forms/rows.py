"""Several latent vectors, independent given θ, as a function of (θ, z): rows of one variable.

Each has sites of its own. A K that they share, as those of ``n_outputs`` do, is factorised once for all.
"""

from __future__ import annotations

import copy
import functools
import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.latent.charts.site import GaussianSites
from pymc_rmhmc.latent.forms.conditional import DenseConditional

__all__ = ["RowsConditional"]

type Array = NDArray[np.float64]


class RowsConditional:
    """The prior ``N(m_r, K)`` of every row, times Gaussian sites, at one θ.

    Parameters
    ----------
    mean : (N,) array
        m, of all sites.
    covariance : (n, n) array or (r, n, n) array
        K in Fortran order, or that of every row, each in C order.
    sites : GaussianSites
        With w̄ ≥ 0, (N,).
    rows : (r, n) int array
        The sites of every row; N = r n.
    like : RowsConditional, optional
        One with the same K, whose factors serve again.
    shift : (N,) array
        What the sites have beyond the model's latent values.
    **options
        As in `DenseConditional`.

    Raises
    ------
    PriorFailure
        As `DenseConditional`.
    """

    def __init__(
        self, mean: Array, covariance: Array, sites: GaussianSites, rows: NDArray[np.int64],
        like: RowsConditional | None = None, *, shift: Array, same_sites: bool, **options: Any,
    ) -> None:  # fmt: skip
        self._where, self._is_shared = rows, covariance.ndim == 2
        self._rows: list[DenseConditional] = []
        for i, where in enumerate(rows):
            known = like._rows[i] if like is not None else self._rows[0] if self._rows and self._is_shared else None
            # A covariance is symmetric: its transpose is itself in Fortran order.
            own = covariance if self._is_shared else covariance[i].T
            self._rows.append(
                DenseConditional(
                    mean[where], own, GaussianSites(sites.linear[where], sites.precision[where]), known,
                    shift=shift[where], same_sites=same_sites and like is not None, **options,
                )
            )
        self.log_evidence = sum(row.log_evidence for row in self._rows)

    def with_sites(self, sites: GaussianSites) -> RowsConditional:
        """The same prior times other sites."""
        other = copy.copy(self)
        other._rows = [
            row.with_sites(GaussianSites(sites.linear[where], sites.precision[where]))
            for row, where in zip(self._rows, self._where, strict=True)
        ]
        other.log_evidence = sum(row.log_evidence for row in other._rows)
        return other

    @property
    def n_noise(self) -> int:
        """The size of z: for one row after another a normal number for a latent value, and one for its site."""
        return 2 * self._where.size

    def place(self, noise: Array) -> Array:
        """The sites η (N,) of z (2 N,)."""
        return self._scattered(row.place(z) for row, z in zip(self._rows, self._split(noise), strict=True))

    def enter(self, values: Array, noise: Array) -> Array:
        """A draw of z given the model's variable (N,), row after row; `noise` is (2 N,) standard normal."""
        parts = zip(self._rows, np.split(values, len(self._rows)), self._split(noise), strict=True)
        return np.concatenate([row.enter(part, z) for row, part, z in parts])

    @property
    def latents(self) -> Array:
        """The model's variable for the noise that was placed last, row after row, (N,)."""
        return np.concatenate([row.latents for row in self._rows])

    def log_prior(self) -> float:
        """The log density of the model's variable for the noise that was placed last."""
        return sum(row.log_prior() for row in self._rows)

    def marginals(self) -> tuple[Array, Array]:
        """Mean and variance (N,) of each site under the prior times the sites' factors."""
        means, variances = zip(*(row.marginals() for row in self._rows), strict=True)
        return self._scattered(means), self._scattered(variances)

    def pullback(self, residual: Array) -> tuple[Array, Array, Array]:
        """The gradient of ``ψ(η) + log E`` by z, m and K, or every row's K, for the values that were placed last.

        Where K moves this lets go of what another placing would need.
        """
        pulled = [row.pullback(residual[where]) for row, where in zip(self._rows, self._where, strict=True)]
        bars = [bar for _, _, bar in pulled]
        total = functools.reduce(operator.iadd, bars) if self._is_shared else np.stack(bars)
        return np.concatenate([noise for noise, _, _ in pulled]), self._scattered(m for _, m, _ in pulled), total

    @property
    def centre(self) -> Array:
        """The sites where z is 0, (N,)."""
        return self._scattered(row.centre for row in self._rows)

    def apply(self, noise: Array) -> Array:
        """``T z`` of the map ``η = centre + T z``, (N,)."""
        return self._scattered(row.apply(z) for row, z in zip(self._rows, self._split(noise), strict=True))

    def adjoint(self, sites: Array) -> Array:
        """``Tᵀ v``."""
        held = zip(self._rows, self._where, strict=True)
        return np.concatenate([row.adjoint(sites[where]) for row, where in held])

    def gram(self, sites: Array) -> Array:
        """``T Tᵀ v``, (N,)."""
        return self._scattered(row.gram(sites[where]) for row, where in zip(self._rows, self._where, strict=True))

    def sites_pullback(self, eta: Array) -> Array:
        """The gradient of ``ψ(η) + log E`` by the logarithms of b and of w̄, (2, n), of the last pullback and its η."""
        held = zip(self._rows, self._where, strict=True)
        pulled = [row.sites_pullback(eta[where]) for row, where in held]
        return np.stack([self._scattered(by_linear for by_linear, _ in pulled), self._scattered(p for _, p in pulled)])

    def _split(self, noise: Array) -> list[Array]:
        return np.split(noise, len(self._rows))

    def _scattered(self, parts: Any) -> Array:
        """What the rows have, where their sites are."""
        whole = np.empty(self._where.size)
        for where, part in zip(self._where, parts, strict=True):
            whole[where] = part
        return whole
