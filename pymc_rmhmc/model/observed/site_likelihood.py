"""The likelihood of a block as a function of its sites: kernels bound to data, gathers summed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.model.likelihoods import Kernel, LikelihoodKernel

__all__ = ["BoundTerm", "SiteLikelihood"]

type Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class BoundTerm:
    """One observed variable: its kernel, its data, and how it reads the sites."""

    kernel: Kernel
    arguments: tuple[Array, ...]  # (y, *parameters), each of the observations' length
    index: NDArray[np.int64] | None = None  # of sites (n_obs,); None where observation i reads site i
    offset: Array | None = None  # added to what is read (n_obs,)

    def read(self, eta: Array) -> Array:
        """Return the observations' linear predictors, (n_obs,) or (m, n_obs)."""
        read = eta if self.index is None else eta[..., self.index]
        return read if self.offset is None else read + self.offset

    def kind(self, wanted: str) -> str:
        """Choose the kind of curvature that serves for a wanted one: itself, or the last that the kernel has."""
        return wanted if wanted in self.kernel.kinds else self.kernel.kinds[-1]


class SiteLikelihood:
    """``Σ_obs ℓ`` as a function of the sites η (n_sites,), with slope and curvature by site.

    Sites that are read several times sum their observations' terms; sites that are not read have none. There is a term
    for each observed variable; none leaves the prior alone.
    """

    def __init__(self, n_sites: int, terms: Sequence[BoundTerm]) -> None:
        self.n_sites = n_sites
        self.terms = tuple(terms)
        held = [set(term.kernel.kinds) for term in self.terms]
        common = set.intersection(*held) if held else {"hessian", "fisher"}
        # Where no kind is common, "softabs_curvature" is: each term that has none gives its own information instead,
        # which is a smooth curvature above 0 as well.
        kinds = tuple(kind for kind in ("hessian", "fisher", "softabs_curvature") if kind in common)
        self.kinds = kinds or ("softabs_curvature",)
        # One variable that reads every site in order needs neither gather nor sum.
        self._only = self.terms[0] if len(self.terms) == 1 and self.terms[0].index is None else None

    def log_density(self, eta: Array) -> float:
        """Return ``Σ_obs ℓ``."""
        return sum(term.kernel.log_density(term.read(eta), term.arguments) for term in self.terms)

    def gradient(self, eta: Array) -> tuple[float, Array]:
        """Return ``Σ_obs ℓ`` and its slope by site (n_sites,)."""
        if self._only is not None:
            return self._only.kernel.gradient(self._only.read(eta), self._only.arguments)
        total, slope = 0.0, np.zeros(self.n_sites)
        for term in self.terms:
            value, part = term.kernel.gradient(term.read(eta), term.arguments)
            total += value
            slope += self._by_site(term, part)
        return total, slope

    @property
    def compiled_gradient(self) -> tuple[Callable[..., Sequence[Array]], Array | None, tuple[Array, ...]] | None:
        """Where one variable reads every site in order, the function that `gradient` calls; else None.

        With it come what is added to η (n_sites,), if anything, and what the function takes after that sum.
        """
        if self._only is None:
            return None
        return self._only.kernel.compiled_gradient, self._only.offset, self._only.arguments

    def curvature(self, eta: Array, kind: str) -> tuple[float, Array, Array, Array]:
        """Return ``Σ_obs ℓ``, and by site the slope, the curvature w, and ``r = ∂ log w/∂η`` (0 where w is 0)."""
        if self._only is not None:
            return self._only.kernel.curvature(self._only.read(eta), self._only.arguments, kind)
        total, sums = 0.0, np.zeros((3, self.n_sites))
        for term in self.terms:
            value, slope, weight, log_slope = term.kernel.curvature(term.read(eta), term.arguments, term.kind(kind))
            total += value
            # r does not add, but ∂w does.
            for i, part in enumerate((slope, weight, weight * log_slope)):
                sums[i] += self._by_site(term, part)
        slope, weight, weight_slope = sums
        present = weight > 0.0
        log_slope = np.divide(weight_slope, weight, out=np.zeros(self.n_sites), where=present)
        return total, slope, weight, log_slope

    def weight(self, eta: Array, kind: str) -> Array:
        """Return the curvature by site alone."""
        if self._only is not None:
            return self._only.kernel.weight(self._only.read(eta), self._only.arguments, kind)
        total = np.zeros(self.n_sites)
        for term in self.terms:
            total += self._by_site(term, term.kernel.weight(term.read(eta), term.arguments, term.kind(kind)))
        return total

    def pointwise(self, eta: Array) -> tuple[Array, Array]:
        """Return ℓ and its slope by site, not summed over sites, in the shape of η: (n_sites,) or (m, n_sites)."""
        rows = np.atleast_2d(eta)
        sums = np.zeros((2, *rows.shape))
        for term in self.terms:
            parts = term.kernel.pointwise(np.ascontiguousarray(term.read(rows)), term.arguments)
            for i, part in enumerate(parts):
                sums[i] += self._rows_by_site(term, part)
        return sums[0].reshape(eta.shape), sums[1].reshape(eta.shape)

    def gradient_rows(self, eta: Array) -> tuple[Array, Array]:
        """Return ``Σ_obs ℓ`` (m,) and its slope by site (m, n_sites) at many η (m, n_sites)."""
        totals, slopes = np.zeros(len(eta)), np.zeros(eta.shape)
        for term in self.terms:
            total, slope = term.kernel.gradient_rows(np.ascontiguousarray(term.read(eta)), term.arguments)
            totals += total
            slopes += self._rows_by_site(term, slope)
        return totals, slopes

    def restricted(self, sites: NDArray[np.int64]) -> SiteLikelihood:
        """Restrict the likelihood to some sites (r,), as a function of their values in this order."""
        place = np.full(self.n_sites, -1)
        place[sites] = np.arange(len(sites))
        return SiteLikelihood(len(sites), [_restricted(term, place, np.asarray(sites)) for term in self.terms])

    def _by_site(self, term: BoundTerm, values: Array) -> Array:
        """Sum observations' values by site."""
        if term.index is None:
            return values
        return np.bincount(term.index, weights=values, minlength=self.n_sites)

    def _rows_by_site(self, term: BoundTerm, values: Array) -> Array:
        """Sum observations' values (m, n_obs) by site, (m, n_sites)."""
        if term.index is None:
            return values
        where = term.index + self.n_sites * np.arange(len(values))[:, None]
        sums = np.bincount(where.ravel(), weights=values.ravel(), minlength=len(values) * self.n_sites)
        return sums.reshape(len(values), self.n_sites)


def _restricted(term: BoundTerm, place: NDArray[np.int64], sites: NDArray[np.int64]) -> BoundTerm:
    """Restrict a term to some sites; `place` (n_sites,) is where each site is among them, -1 for the others."""
    if term.index is None:
        observations, index = sites, None
    else:
        observations = np.flatnonzero(place[term.index] >= 0)
        index = place[term.index][observations]
    offset = None if term.offset is None else term.offset[observations]
    if isinstance(term.kernel, LikelihoodKernel):
        return BoundTerm(term.kernel, tuple(a[observations] for a in term.arguments), index, offset)
    size = place.size if term.index is None else term.index.size
    return BoundTerm(_PartOfKernel(term.kernel, size, observations), term.arguments, index, offset)


class _PartOfKernel(Kernel):
    """A kernel as a function of some of its values, where its arguments cannot be cut; it gives `pointwise` alone."""

    def __init__(self, kernel: Kernel, size: int, observations: NDArray[np.int64]) -> None:
        self.kinds, self._kernel, self._size, self._observations = kernel.kinds, kernel, size, observations

    def _function(self, output: str, kind: str | None = None) -> Callable[..., Sequence[Array]]:
        raise NotImplementedError(f"A part of a kernel has no {output}.")

    def pointwise(self, eta: Array, arguments: Sequence[Array]) -> tuple[Array, Array]:
        """Return ℓ and g, each (m, r), for m vectors of the r values."""
        whole = np.zeros((len(eta), self._size))
        whole[:, self._observations] = eta
        log_density, slope = self._kernel.pointwise(whole, arguments)
        return log_density[:, self._observations], slope[:, self._observations]
