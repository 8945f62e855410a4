"""Latent values that are independent given θ, each with sites of its own: parts of a field, rows of a variable."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.latent.charts.site import GaussianSites
from pymc_rmhmc.latent.conditional import Conditional, Placement, Pulled
from pymc_rmhmc.latent.solvers.dual import gram_matrix
from pymc_rmhmc.latent.solvers.site_space import SiteSpace

__all__ = ["Apart", "ApartPlacement", "Rows", "of_part"]

type Array = NDArray[np.float64]


@dataclass(slots=True)
class ApartPlacement(Placement):
    """Where the noise of all parts is placed, that of each, and the y of what no site sees."""

    parts: tuple[Placement, ...] = ()
    unseen: Array | tuple[()] = ()

    @property
    def whitened(self) -> Array:
        """Y, part after part."""
        return np.concatenate([*(part.whitened for part in self.parts), self.unseen])

    @property
    def latents(self) -> Array:
        """The model's variables, part after part."""
        return np.concatenate([part.latents for part in self.parts])

    @property
    def log_prior(self) -> float:
        """Their log density."""
        return sum(part.log_prior for part in self.parts)


class Apart:
    """What parts times Gaussian sites have in common; noise and y lie part after part, and then what no site sees.

    `spaces`: each part at one θ.
    `where`: the sites of each part.
    `sites`: of all parts, (n,).
    `n_unseen`: how many values no site sees.
    """

    weighted = None

    def __init__(
        self, spaces: Sequence[Conditional], where: Sequence[NDArray[np.int64]], sites: GaussianSites, n_unseen: int = 0
    ) -> None:
        self.spaces, self._where, self.sites, self._n_unseen = tuple(spaces), where, sites, n_unseen

    @property
    def n_noise(self) -> int:
        """The size of z."""
        return sum((space.n_noise for space in self.spaces), start=self._n_unseen)

    @property
    def centre(self) -> Array:
        """The sites where z is 0, (n,)."""
        return self._scattered(space.centre for space in self.spaces)

    @property
    def centre_whitened(self) -> Array:
        """The y where z is 0."""
        return self._after_another(space.centre_whitened for space in self.spaces)

    @property
    def mean(self) -> Array:
        """The sites where y is 0, (n,)."""
        return self._scattered(space.mean for space in self.spaces)

    def mode(self, sites: GaussianSites) -> Array | None:
        """Return the y that is most likely with other sites; None if a part has none."""
        found = [space.mode(of_part(sites, where)) for space, where in self._with_sites()]
        known = [each for each in found if each is not None]
        return self._after_another(known) if len(known) == len(found) else None

    def predict(self, whitened: Array) -> Array:
        """Return how far from their mean the sites of a y are, (n,)."""
        split = self._split(whitened, (space.centre_whitened.size for space in self.spaces))
        return self._scattered(space.predict(y) for space, y in zip(self.spaces, split, strict=False))

    def shifted(self, noise: Array, missing: Array) -> None:
        """Return None: sites of all parts do not tell how each of them moves."""
        return

    def marginals(self) -> tuple[Array, Array]:
        """Return mean and variance (n,) of each site under the prior times the sites' factors."""
        means, variances = zip(*(space.marginals() for space in self.spaces), strict=True)
        return self._scattered(means), self._scattered(variances)

    def apply(self, noise: Array) -> Array:
        """Return ``T z`` of the map ``η = centre + T z``, (n,)."""
        split = self._by_noise(noise)
        return self._scattered(space.apply(z) for space, z in zip(self.spaces, split, strict=False))

    def adjoint(self, sites: Array) -> Array:
        """Return ``Tᵀ v`` for a v (n,)."""
        return self._after_another(space.adjoint(sites[where]) for space, where in self._with_sites())

    def gram(self, sites: Array) -> Array:
        """Return ``T Tᵀ v``, (n,)."""
        return self._scattered(space.gram(sites[where]) for space, where in self._with_sites())

    def matrices_of_parts(self, *, for_good: bool) -> tuple[Array, NDArray[np.int64]] | None:
        """Return a matrix for all parts that have a factor in common, if these are as many each and of one size.

        For some trajectories only one is worth its price: it takes as long as some hundred products.
        """
        alike: dict[int, list[int]] = {}
        for i, space in enumerate(self.spaces):
            if space.weighted is None:
                return None
            alike.setdefault(id(space.weighted[1]), []).append(i)
        if not for_good and not len(alike) == 1 < len(self.spaces):
            return None
        if len({where.size for where in self._where}) > 1 or len({len(each) for each in alike.values()}) > 1:
            return None
        weighted = [self.spaces[i].weighted or () for i, *_ in alike.values()]
        where = np.array([[self._where[i] for i in each] for each in alike.values()])
        return np.stack([gram_matrix(*each) for each in weighted]), where

    def sites_pullback(self, placed: Placement, pulled: Pulled) -> Array:
        """Return the gradient of ``ψ(η) + log E`` by b, and by the logarithms of w̄, (2, n)."""
        parts = zip(self.spaces, cast("ApartPlacement", placed).parts, self._where, strict=True)
        found = [
            space.sites_pullback(each, pulled._replace(pushed=pulled.pushed[where])) for space, each, where in parts
        ]
        return np.stack([self._scattered(by_linear for by_linear, _ in found), self._scattered(p for _, p in found)])

    def _placed(self, noise: Array) -> tuple[Array, Array, tuple[Placement, ...]]:
        """Return the sites η of a z, their part of the pullback, and where each part is placed."""
        placed = tuple(space.place(z) for space, z in zip(self.spaces, self._by_noise(noise), strict=False))
        return self._scattered(each.eta for each in placed), np.concatenate([each.pulled for each in placed]), placed

    def _pulled(self, placed: Placement, residual: Array) -> list[Pulled]:
        """Return the gradient of ``ψ(η) + log E`` of each part."""
        parts = zip(self.spaces, cast("ApartPlacement", placed).parts, self._where, strict=True)
        return [space.pullback(each, residual[where]) for space, each, where in parts]

    def _with_sites(self) -> Iterable[tuple[Conditional, NDArray[np.int64]]]:
        return zip(self.spaces, self._where, strict=True)

    def _by_noise(self, noise: Array) -> list[Array]:
        """Return the noise of each part, and then what no site sees."""
        return self._split(noise, (space.n_noise for space in self.spaces))

    @staticmethod
    def _split(values: Array, sizes: Iterable[int]) -> list[Array]:
        return np.split(values, list(itertools.accumulate(sizes)))

    def _after_another(self, parts: Iterable[Array]) -> Array:
        """Return what the parts have, and 0 for what no site sees."""
        return np.concatenate([*parts, np.zeros(self._n_unseen)])

    def _scattered(self, parts: Iterable[Array]) -> Array:
        """Return what the parts have, where their sites are."""
        whole = np.empty(self.sites.linear.size)
        for where, part in zip(self._where, parts, strict=True):
            whole[where] = part
        return whole


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


def of_part(sites: GaussianSites, where: NDArray[np.int64]) -> GaussianSites:
    """Return the sites of a part."""
    return GaussianSites(sites.linear[where], sites.precision[where])
