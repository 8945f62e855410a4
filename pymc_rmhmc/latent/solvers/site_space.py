"""Latent vectors times Gaussian sites by (n, n) matrices, n the number of sites.

For a sum of vectors ``η = m + Σ A_s L_s y_s`` with ``Q = Σ A_s L_s L_sᵀ A_sᵀ``, and a draw ``h = Σ A_s L_s z_s`` of the
prior and noise ``s z₂`` on the sites, s = √w̄,

    a = (I + W̄Q)⁻¹ (b - W̄(m + h) + s z₂),      y_s = z_s + L_sᵀ A_sᵀ a,      η = m + h + Q a.

A covariance that is read as it is has no A. Where A_s moves with θ its derivative is
``(Q̄ + Q̄ᵀ) A_s L_s L_sᵀ + v (L_s z_s)ᵀ``, with v that by the draw of the prior.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure, PriorFailure
from pymc_rmhmc.latent.charts.moving_sites import slope_by_sites
from pymc_rmhmc.latent.charts.site import GaussianSites
from pymc_rmhmc.latent.conditional import Placement, Pulled
from pymc_rmhmc.latent.operators import Design, Operator, places_of, stacked, without_factor
from pymc_rmhmc.latent.solvers.dual import (
    MOST_LOST,
    centre_of_sites,
    dual,
    factor_of_sites,
    gram,
    lost_in_rounding,
    place,
    roots_of_sites,
    variances_of_sites,
    weigh,
)
from pymc_rmhmc.linalg.cholesky import add_covariance_terms, inverse_lower, inverse_of_product
from pymc_rmhmc.linalg.products import is_finite, multiply_symmetric

__all__ = ["SiteSpace", "Term"]

type Array = NDArray[np.float64]


class Term(NamedTuple):
    """A vector of a sum, and the matrix by which it is read."""

    operator: Operator  # L, (k, k)
    design: Design | None = None  # (n, k) array or sparse array, or None: A; None for the identity

    def predict(self, values: Array) -> Array:
        """Return ``A v``, (n,)."""
        return values if self.design is None else np.asarray(self.design @ values)

    def collect(self, sites: Array) -> Array:
        """Return ``Aᵀ v``, (k,)."""
        return sites if self.design is None else np.asarray(self.design.T @ sites)

    def pullback(self, covariance_bar: Array, collected: Array, noise: Array) -> Any:
        """Return the operator's derivative, from those by Q and by ``L z``."""
        operator = self.operator
        if not operator.moves:
            return operator.no_pullback()
        if self.design is None:
            between = operator.restrict(covariance_bar)
        else:
            between = operator.contract(self.design, covariance_bar)
        return operator.pullback(between, collected, noise)

    def design_bar(self, covariance_bar: Array, spread: Array, noise: Array) -> Array:
        """Return the derivative by A (n, k), from those by Q and by ``A L z``."""
        assert self.design is not None
        both_ways = np.asarray((covariance_bar + covariance_bar.T) @ self.design)
        through = self.operator.draw(self.operator.draw_adjoint(np.asfortranarray(both_ways.T)))
        return np.asarray(through.T + np.outer(spread, self.operator.draw(noise)))


@dataclass
class SitePlacement(Placement):
    """Where a noise is placed, and by which vectors."""

    terms: tuple[Term, ...] = ()

    @cached_property
    def whitened(self) -> Array:
        """Y, of which the prior is standard normal, (k,)."""
        operator = self.operator
        return self.noise[: operator.size] + operator.draw_adjoint(collect(self.terms, self.pulled))


def collect(terms: Sequence[Term], sites: Array) -> Array:
    """Return every ``A_sᵀ v``, (k,)."""
    if len(terms) == 1 and terms[0].design is None:
        return sites
    return np.concatenate([term.collect(sites) for term in terms])


class SiteSpace:
    """The sum of some vectors times Gaussian sites, at one θ.

    Raises a `PriorFailure` if something is not finite, or ``B = I + sQs`` not positive definite.

    `mean` (n,): m, the sites where every y is 0.
    `terms`: the vectors.
    `sites`: with w̄ ≥ 0.
    `like`: one with the same Q, which serves again; and so does the factor of B if the sites' w̄ are the same array.
    `shift` (n,) array or float, optional: where the model's variable is the sites less something, this.
    `by_design`: whether the derivative by every A is wanted.
    `covariances` of (k, k) arrays or None, optional: every ``L Lᵀ`` in Fortran order, where it is at hand.
    """

    log_evidence: float
    weighted: tuple[Array, Array, Array]  # Q, B's factor and the roots, as compiled code has them
    _covariance: Array
    _same: SiteSpace | None = None  # that with which B was factorised, if another

    def __init__(
        self, mean: Array, terms: Sequence[Term], sites: GaussianSites, like: SiteSpace | None = None, *,
        shift: Array | float | None = None, by_design: bool = False, covariances: Sequence[Array | None] | None = None,
    ) -> None:  # fmt: skip
        self.terms = tuple(terms)
        if by_design and not all(is_finite(term.design) for term in self.terms if term.design is not None):
            raise PriorFailure(Failure.NON_FINITE)
        self._stack = terms[0].operator if len(terms) == 1 else stacked([term.operator for term in terms])
        # One vector whose values are the sites.
        self._is_plain = len(terms) == 1 and terms[0].design is None
        self.mean, self._shift, self._by_design = mean, shift, by_design
        known = [None] * len(terms) if covariances is None else covariances
        if like is not None:
            covariance = like._covariance
        elif self._is_plain and known[0] is not None:
            covariance = np.asfortranarray(known[0])
        else:
            seen = [term.operator.seen(term.design, K) for term, K in zip(terms, known, strict=True)]
            covariance = np.asfortranarray(seen[0] if len(seen) == 1 else sum(seen))
        self.sites, self._covariance = sites, covariance
        if like is None or like.sites.precision is not sites.precision:
            has_factor, self._inner, self._roots, found, self.log_evidence = weigh(
                covariance, mean, sites.linear, sites.precision
            )
            if not has_factor:
                raise without_factor(covariance if np.isfinite(self._roots).all() else self._roots)
            self.weighted = covariance, self._inner, self._roots
        else:
            self._same = like._same or like
            self._inner, self._roots = like._inner, roots_of_sites(sites.precision, covariance.diagonal())
            self.weighted = covariance, self._inner, self._roots
            found, self.log_evidence = centre_of_sites(*self.weighted, mean, sites.linear, sites.precision)
            if lost_in_rounding(self._inner, self._roots, covariance.diagonal().copy(), found[1]) > MOST_LOST:
                raise without_factor(covariance)
        # What is not finite in a mean leaves no number of what it makes.
        if not (math.isfinite(self.log_evidence) or np.isfinite(mean).all()):
            raise PriorFailure(Failure.NON_FINITE)
        self._slope: Array = found[0]
        self._centre_dual: Array = found[1]
        self.centre: Array = found[2]

    @cached_property
    def _slices(self) -> list[slice]:
        """Where each vector's values are among those of all."""
        return places_of([term.operator for term in self.terms])

    @property
    def n_noise(self) -> int:
        """The size of z: a normal number for each latent value, and for each site."""
        return self._stack.size + self.mean.size

    @property
    def operator(self) -> Operator:
        """The first vector."""
        return self.terms[0].operator

    @property
    def centre_whitened(self) -> Array:
        """The y where z is 0, (k,)."""
        return self._stack.draw_adjoint(collect(self.terms, self._centre_dual))

    def with_sites(self, sites: GaussianSites, like: SiteSpace | None = None) -> SiteSpace:
        """Return the same prior times other sites, for which only a factor of B is made again.

        `like`: one with the same Q that may have been made with this w̄.
        """
        return SiteSpace(self.mean, self.terms, sites, like or self, shift=self._shift, by_design=self._by_design)

    def mode(self, sites: GaussianSites) -> Array | None:
        """Return the y (k,) that is most likely with other sites; None if B has no factor.

        The evidence is not asked for, so that rounding may leave nothing of it.
        """
        roots = roots_of_sites(sites.precision, self._covariance.diagonal())
        has_factor, inner = factor_of_sites(self._covariance, roots[0])
        if not has_factor:
            return None
        pulled = dual(self._covariance, inner, roots, sites.gradient(self.mean))
        return self._stack.draw_adjoint(collect(self.terms, pulled))

    def predict(self, whitened: Array) -> Array:
        """Return ``Σ A_s L_s y_s``, (n,)."""
        drawn = self._stack.draw(whitened)
        if self._is_plain:
            return drawn
        parts = zip(self.terms, self._slices, strict=True)
        return np.asarray(sum(term.predict(drawn[where]) for term, where in parts))

    def place(self, noise: Array) -> SitePlacement:
        """Return where a z is placed."""
        k = self._stack.size
        pulled, eta = place(
            *self.weighted, self.mean, self._slope, self.sites.precision, self.predict(noise[:k]), noise[k:]
        )
        return SitePlacement(eta, noise, pulled, self._stack, self._shift, self.terms)

    def enter(self, values: Array, noise: Array) -> Array:
        """Draw a z given the model's variables, from standard normal noise.

        With z' any noise and T the linear part of the map from z to y, ``z = z' + Tᵀ(TTᵀ)⁻¹ (y - y(z'))``, which adds
        ``y - y(z')`` and ``s Σ A_s L_s (y_s - y_s(z'))``.
        """
        if self._shift is not None:
            entered = self.shifted(noise, values + self._shift - self.place(noise).eta)
            assert entered is not None
            return entered
        missing = self._stack.from_model(values) - self.place(noise).whitened
        return np.asarray(noise + np.concatenate((missing, self._roots[0] * self.predict(missing))))

    def shifted(self, noise: Array, missing: Array) -> Array | None:
        """Return the z nearest to one whose η is this much (n,) further; None where η does not tell the latents.

        With T the linear part of the map to η, ``Tᵀ(TTᵀ)⁻¹ = (L⁻¹, s)`` for one vector that is read as it is.
        """
        undrawn = self._stack.undraw(missing) if self._is_plain else None
        return None if undrawn is None else noise + np.concatenate((undrawn, self._roots[0] * missing))

    def marginals(self) -> tuple[Array, Array]:
        """Return mean and variance (n,) of each site under the prior times the sites' factors."""
        return self.centre, variances_of_sites(*self.weighted)

    def apply(self, noise: Array) -> Array:
        """Return ``T z`` of the map ``η = centre + T z``, (n,)."""
        return np.asarray(self.place(noise).eta - self.centre)

    def adjoint(self, sites: Array) -> Array:
        """Return ``Tᵀ v`` for a v (n,)."""
        spread = dual(*self.weighted, sites)
        return self._pull(spread, collect(self.terms, spread))[0]

    def gram(self, sites: Array) -> Array:
        """Return ``T Tᵀ v``, (n,)."""
        return gram(*self.weighted, sites)

    def matrices_of_parts(self, *, for_good: bool) -> None:
        """Return None: there is one part, and what `weighted` holds serves."""
        return

    def pullback(self, placed: Placement, residual: Array) -> Pulled:
        """Return the gradient of ``ψ(η) + log E`` where a z was placed, given ``∂ψ/∂η`` (n,)."""
        spread = dual(*self.weighted, residual)
        collected = collect(self.terms, spread)
        vectors, designs = self._bars(placed, spread, collected)
        return self._pulled(spread, collected, vectors, designs)

    def _pulled(
        self, spread: Array, collected: Array, vectors: list[Any], designs: list[Array | None] | None
    ) -> Pulled:
        noise, pushed = self._pull(spread, collected)
        return Pulled(noise, spread + self._centre_dual, vectors, designs, pushed)

    @staticmethod
    def pullback_of_twins(
        twins: Sequence[SiteSpace], placed: Sequence[Placement], residuals: Sequence[Array]
    ) -> list[Pulled]:
        """Return the `pullback` of vectors with one dense covariance, each read as it is.

        The first has the derivative by this covariance, for which one adjoint of its factor serves.
        """
        operator, size = twins[0].operator, twins[0].operator.size
        spread = [dual(*each.weighted, by) for each, by in zip(twins, residuals, strict=True)]
        bars = [operator.no_pullback() for _ in twins]
        if operator.moves:
            noise = np.stack([each.noise[:size] for each in placed], axis=1)
            bars[0] = operator.pullback_of_draw(np.stack(spread, axis=1), noise)
            for each, where, by in zip(twins, placed, spread, strict=True):
                each._add_covariance_bar(bars[0], where, by)
        return [each._pulled(by, by, [bar], None) for each, by, bar in zip(twins, spread, bars, strict=True)]

    def sites_pullback(self, placed: Placement, pulled: Pulled) -> Array:
        """Return the gradient of ``ψ(η) + log E`` by b, and by the logarithms of w̄, (2, n)."""
        return slope_by_sites(
            self.sites.precision, self.centre, self._explained, pulled.pushed, placed.noise[self._stack.size :],
            placed.eta,
        )  # fmt: skip

    @cached_property
    def _inverse(self) -> Array:
        """The lower triangle of B⁻¹."""
        return inverse_of_product(self._inner) if self._same is None else self._same._inverse

    @cached_property
    def _explained(self) -> Array:
        """The variance of every site times its w̄, which is ``1 - (B⁻¹)ᵢᵢ``."""
        if any(term.operator.moves for term in self.terms):
            return 1.0 - self._inverse.diagonal()
        # What θ does not move is kept for all θ: without another matrix as large as Q.
        half = inverse_lower(self._inner)
        return np.asarray(1.0 - np.einsum("ij,ij->j", half, half))

    def _bars(
        self, placed: Placement, spread: Array, collected: Array
    ) -> tuple[list[Any], list[Array | None] | None]:
        """Return the derivatives by the operators, and by every A; None for an identity."""
        if self._is_plain:
            # One array as large as K in place of two.
            operator = self.operator
            if not operator.moves:
                return [operator.no_pullback()], None
            start = operator.pullback_of_draw(collected, placed.noise[: operator.size])
            if start is not None:
                self._add_covariance_bar(start, placed, spread)
                return [start], None
        bar = np.zeros(self._covariance.shape, order="F")
        self._add_covariance_bar(bar, placed, spread)
        parts = list(zip(self.terms, self._slices, strict=True))
        vectors = [term.pullback(bar, collected[where], placed.noise[where]) for term, where in parts]
        if not self._by_design:
            return vectors, None
        return vectors, [
            None if term.design is None else term.design_bar(bar, spread, placed.noise[where]) for term, where in parts
        ]

    def _add_covariance_bar(self, total: Array, placed: Placement, spread: Array) -> None:
        """Add the derivative by Q to an (n, n) array in Fortran order, but for what goes through the draw."""
        add_covariance_terms(total, spread, placed.pulled, self._centre_dual, self._inverse, self._roots[0])

    def _pull(self, spread: Array, collected: Array) -> tuple[Array, Array]:
        """Return the derivative by z, and ``Q v``, from that by the draw of the prior v, and every ``A_sᵀ v``."""
        pushed = multiply_symmetric(self._covariance, spread)
        by_prior = self._stack.draw_adjoint(collected)
        return np.concatenate((by_prior, self._roots[0] * pushed)), pushed
