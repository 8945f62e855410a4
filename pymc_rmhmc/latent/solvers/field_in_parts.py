"""A Gaussian field times sites as a product of independent parts; see `pymc_rmhmc.latent.field.field_parts`.

Noise, y and derivatives of the parts lie one after another, and then what no site sees. Values that have a residual
each, ``j x - c``, are independent coefficients ``c/j + y/j`` of a part in the size of its sites.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from pymc_rmhmc.errors import Failure, PriorFailure
from pymc_rmhmc.interfaces.stated import StatedCoefficients, StatedDense, StatedField
from pymc_rmhmc.latent.charts.site import GaussianSites
from pymc_rmhmc.latent.conditional import Conditional, Placement, Pulled
from pymc_rmhmc.latent.field.field_parts import FieldParts, SitePart, TermOfPart, kernel_columns
from pymc_rmhmc.latent.forms import operator_of
from pymc_rmhmc.latent.operators import Operator
from pymc_rmhmc.latent.solvers.precision import PrecisionSpace
from pymc_rmhmc.latent.solvers.rows import of_row
from pymc_rmhmc.latent.solvers.site_space import SiteSpace, Term

__all__ = ["FieldInParts"]

type Array = NDArray[np.float64]
type Indices = NDArray[np.int64]

LOG_2PI = math.log(2.0 * math.pi)


@dataclass(slots=True)
class PartsPlacement(Placement):
    """Where the noise of all parts is placed."""

    space: FieldInParts | None = None
    parts: tuple[Placement, ...] = ()
    unseen: Array | None = None

    @property
    def whitened(self) -> Array:
        """Y, part after part."""
        assert self.unseen is not None
        return np.concatenate([*(part.whitened for part in self.parts), self.unseen])

    @property
    def latents(self) -> Array:
        """The model's variables."""
        assert self.space is not None
        assert self.unseen is not None
        return self.space.to_model([part.latents for part in self.parts], self.unseen)

    @property
    def log_prior(self) -> float:
        """Their log density."""
        assert self.space is not None
        assert self.unseen is not None
        of_unseen = sum(each.log_prior(y) for each, y in self.space.unseen_with(self.unseen))
        return self.space.log_constant + of_unseen + sum(part.log_prior for part in self.parts)


class _Part(NamedTuple):
    """A part at one θ: its solver, its sites, and its latent values."""

    space: Conditional
    sites: Indices
    columns: Indices


class FieldInParts:
    """A field in parts times Gaussian sites, at one θ; see `Conditional`.

    Parameters
    ----------
    stated : StatedField
        J, c, A and a as multiples of u(θ), and every K.
    sites : GaussianSites
        With w̄ ≥ 0.
    parts : FieldParts
        Which values are independent of which.
    like : FieldInParts, optional
        One of the same field: where u is the same its matrices serve again.

    Raises
    ------
    PriorFailure
        If something is not finite, or has no factor.
    """

    weighted = None

    def __init__(
        self, stated: StatedField, sites: GaussianSites, parts: FieldParts, like: FieldInParts | None = None
    ) -> None:
        self._stated, self._field, self.sites = stated, parts, sites
        if not (math.isfinite(stated.log_normaliser) and np.isfinite(stated.numbers).all()):
            raise PriorFailure(Failure.NON_FINITE)
        self._ends = _kernel_ends(stated)
        if like is not None and np.array_equal(like._stated.numbers, stated.numbers):
            self._operators: list[Operator | None] = like._operators
            self._known: list[_Residuals] = like._known
            self.parts: list[_Part] = like.parts
            if like.sites is not sites:
                own = [part.space.with_sites(of_row(sites, part.sites)) for part in like.parts]
                self.parts = [part._replace(space=space) for part, space in zip(like.parts, own, strict=True)]
        else:
            self._operators = self._kernel_operators()
            self._known = [self._residuals_of(part) for part in parts.in_sites]
            self.parts = self._made()
        self.log_constant = stated.log_normaliser + sum(
            0.5 * LOG_2PI * part.columns.size - float(np.log(np.abs(known.factor)).sum())
            for part, known in zip(parts.in_sites, self._known, strict=True)
        )
        self.log_constant += 0.5 * LOG_2PI * self._n_unseen
        self.log_evidence = self.log_constant + sum(part.space.log_evidence for part in self.parts)

    def _kernel_operators(self) -> list[Operator | None]:
        """Factorise every K that is not of the sparse part, those of one group once."""
        maps, sparse_part = self._stated.maps, self._field.sparse
        skipped = () if sparse_part is None else sparse_part.kernels
        made: list[Operator | None] = []
        for k, (kernel, (start, end)) in enumerate(zip(maps.kernels, self._ends, strict=True)):
            like = None if kernel.same_as is None else made[kernel.same_as]
            if k in skipped:
                made.append(None)
                continue
            matrix = self._stated.numbers[start:end].reshape(kernel.size, kernel.size)
            given = (None, matrix) if kernel.is_factor else (matrix.T, None)
            stated = StatedDense(given[0], 0.0, kernel.is_variable, moves=kernel.moves, factor=given[1])
            made.append(operator_of(stated, like))
        return made

    def _residuals_of(self, part: SitePart) -> _Residuals:
        """Return j and c of a part's values that have a residual each."""
        rows, numbers = self._stated.maps.residuals, self._stated.numbers
        entries = part.terms[-1].residuals
        offsets = rows.row[entries]
        return _Residuals(
            entries, offsets, rows.coefficient[entries] * numbers[rows.number[entries]],
            rows.offset[offsets] * numbers[rows.offset_number[offsets]],
        )  # fmt: skip

    def _made(self) -> list[_Part]:
        """Make the solver of every part."""
        rows, numbers = self._field.predictors, self._stated.numbers
        made, offset, entries = list[_Part](), rows.offset * numbers[rows.offset_number], rows.entries(numbers)
        for part, known in zip(self._field.in_sites, self._known, strict=True):
            mean, terms, covariances = offset[part.sites], list[Term](), list[Array | None]()
            for each in part.terms:
                operator = self._operator(each, known)
                design = each.design
                if design is None and not each.is_read_as_it_is:
                    shape = part.sites.size, each.columns.size
                    design = sparse.csr_array((entries[each.entries], (each.row, each.column)), shape=shape)
                if each.kernel is None:
                    centre = known.target / known.factor
                    mean = mean + (centre if design is None else design @ centre)
                terms.append(Term(operator, design))
                covariances.append(self._covariance(each))
            space = SiteSpace(
                mean, terms, of_row(self.sites, part.sites), by_design=part.design_moves, covariances=covariances
            )
            made.append(_Part(space, part.sites, part.columns))
        rest = self._field.sparse
        if rest is not None:
            own = np.concatenate([numbers[: self._n_numbers], *(numbers[slice(*self._ends[k])] for k in rest.kernels)])
            precision = PrecisionSpace(StatedField(rest.maps, own, 0.0), of_row(self.sites, rest.sites))
            made.append(_Part(precision, rest.sites, rest.columns))
        return made

    def _operator(self, term: TermOfPart, known: _Residuals) -> Operator:
        """Return L of a vector."""
        if term.kernel is not None:
            operator = self._operators[term.kernel]
            assert operator is not None
            return operator
        with np.errstate(divide="ignore"):
            spread = 1.0 / known.factor
        made: Operator = operator_of(StatedCoefficients(spread, known.target * spread, spread))
        return made

    def _covariance(self, term: TermOfPart) -> Array | None:
        """Return K where it is at hand."""
        if term.kernel is None or self._stated.maps.kernels[term.kernel].is_factor:
            return None
        size = term.columns.size
        return self._stated.numbers[slice(*self._ends[term.kernel])].reshape(size, size).T

    @property
    def _n_numbers(self) -> int:
        """How many numbers u begins with that are not of kernels."""
        return self._ends[0][0]

    @property
    def _n_unseen(self) -> int:
        return sum(self._stated.maps.kernels[k].size for k in self._field.unseen)

    def unseen_with(self, values: Array) -> list[tuple[Operator, Array]]:
        """Return the kernels that no row reads, each with its part of values."""
        found, first = [], 0
        for k in self._field.unseen:
            operator = self._operators[k]
            assert operator is not None
            found.append((operator, values[first : first + operator.size]))
            first += operator.size
        return found

    def to_model(self, parts: Sequence[Array], unseen: Array) -> Array:
        """Return the model's variables (n,), from those of each part and the y of what no row reads."""
        made = np.empty(self._stated.maps.size)
        for part, values in zip(self.parts, parts, strict=True):
            made[part.columns] = values
        for columns, (operator, values) in zip(self._unseen_columns, self.unseen_with(unseen), strict=True):
            made[columns] = operator.to_model(values)
        for each in self._field.rotations:
            each.back(made)
        return made

    @property
    def _unseen_columns(self) -> list[Indices]:
        columns = kernel_columns(self._stated.maps)
        return [columns[k] for k in self._field.unseen]

    @property
    def n_noise(self) -> int:
        """The size of z."""
        return sum([part.space.n_noise for part in self.parts], start=self._n_unseen)

    @property
    def centre(self) -> Array:
        """The sites where z is 0, (n,)."""
        return self._scattered(part.space.centre for part in self.parts)

    @property
    def centre_whitened(self) -> Array:
        """The y where z is 0, part after part."""
        return np.concatenate([*(part.space.centre_whitened for part in self.parts), np.zeros(self._n_unseen)])

    @property
    def mean(self) -> Array:
        """The sites where y is 0, (n,)."""
        return self._scattered(part.space.mean for part in self.parts)

    def with_sites(self, sites: GaussianSites) -> FieldInParts:
        """Return the same prior times other sites."""
        return FieldInParts(self._stated, sites, self._field, self)

    def mode(self, sites: GaussianSites) -> Array | None:
        """Return the y that is most likely with other sites; None if a part has none."""
        found = [part.space.mode(of_row(sites, part.sites)) for part in self.parts]
        known = [each for each in found if each is not None]
        return np.concatenate([*known, np.zeros(self._n_unseen)]) if len(known) == len(found) else None

    def predict(self, whitened: Array) -> Array:
        """Return how far from their mean the sites of a y are, (n,)."""
        sizes = [part.space.centre_whitened.size for part in self.parts]
        return self._scattered(
            part.space.predict(y) for part, y in zip(self.parts, self._split(whitened, sizes), strict=False)
        )

    def place(self, noise: Array) -> PartsPlacement:
        """Return where a z is placed."""
        *given, unseen = self._by_noise(noise)
        placed = tuple(part.space.place(z) for part, z in zip(self.parts, given, strict=True))
        eta, pulled = self._scattered(each.eta for each in placed), np.concatenate([each.pulled for each in placed])
        return PartsPlacement(eta, noise, pulled, placed[0].operator, None, self, placed, unseen)

    def enter(self, values: Array, noise: Array) -> Array:
        """Draw a z given the model's variables, from standard normal noise."""
        turned = values.copy()
        for each in self._field.rotations:
            each.forward(turned)
        *given, unseen = self._by_noise(noise)
        parts = [part.space.enter(turned[part.columns], z) for part, z in zip(self.parts, given, strict=True)]
        held = zip(self._unseen_columns, self.unseen_with(unseen), strict=True)
        return np.concatenate([*parts, *(operator.from_model(turned[columns]) for columns, (operator, _) in held)])

    def shifted(self, noise: Array, missing: Array) -> None:
        """Return None: the sites do not tell what no site sees."""
        return

    def marginals(self) -> tuple[Array, Array]:
        """Return mean and variance (n,) of each site under the prior times the sites' factors."""
        means, variances = zip(*(part.space.marginals() for part in self.parts), strict=True)
        return self._scattered(means), self._scattered(variances)

    def apply(self, noise: Array) -> Array:
        """Return ``T z`` of the map ``η = centre + T z``, (n,)."""
        return self._scattered(
            part.space.apply(z) for part, z in zip(self.parts, self._by_noise(noise), strict=False)
        )

    def adjoint(self, sites: Array) -> Array:
        """Return ``Tᵀ v`` for a v (n,)."""
        return np.concatenate([
            *(part.space.adjoint(sites[part.sites]) for part in self.parts), np.zeros(self._n_unseen)
        ])  # fmt: skip

    def gram(self, sites: Array) -> Array:
        """Return ``T Tᵀ v``, (n,)."""
        return self._scattered(part.space.gram(sites[part.sites]) for part in self.parts)

    def pullback(self, placed: Placement, residual: Array) -> Pulled:
        """Return the gradient of ``ψ(η) + log E`` by z, and by the numbers u(θ)."""
        held = zip(self.parts, cast("PartsPlacement", placed).parts, strict=True)
        pulled = [part.space.pullback(each, residual[part.sites]) for part, each in held]
        total = np.zeros(self._stated.numbers.size)
        for part, known, each in zip(self._field.in_sites, self._known, pulled, strict=False):
            self._add_site_part(part, known, each, total)
        if self._field.sparse is not None:
            own, first = pulled[-1].vectors[0], self._n_numbers
            total[:first] += own[:first]
            for k in self._field.sparse.kernels:
                start, end = self._ends[k]
                total[start:end] += own[first : first + end - start]
                first += end - start
        noise = np.concatenate([*(each.noise for each in pulled), np.zeros(self._n_unseen)])
        return Pulled(noise, np.zeros(0), [total], None, self._scattered(each.pushed for each in pulled))

    def _add_site_part(self, part: SitePart, known: _Residuals, pulled: Pulled, total: Array) -> None:
        """Add the derivative by the numbers of a part in the size of its sites to a total."""
        rows = self._field.predictors
        np.add.at(total, rows.offset_number[part.sites], rows.offset[part.sites] * pulled.mean)
        designs = pulled.design or [None] * len(part.terms)
        for term, bar, design_bar in zip(part.terms, pulled.vectors, designs, strict=True):
            by_entries = None if design_bar is None else design_bar[term.row, term.column]
            if term.kernel is not None and self._stated.maps.kernels[term.kernel].moves:
                self._add_kernel(term.kernel, bar, total)
            elif term.kernel is None:
                entries = rows.coefficient[term.entries] * self._stated.numbers[rows.number[term.entries]]
                by_values = np.bincount(term.column, entries * pulled.mean[term.row], term.columns.size)
                self._add_residuals(known, bar, by_values, total)
                if by_entries is not None:
                    by_entries = by_entries + pulled.mean[term.row] * (known.target / known.factor)[term.column]
            if by_entries is not None:
                np.add.at(total, rows.number[term.entries], rows.coefficient[term.entries] * by_entries)

    def _add_kernel(self, kernel: int, bar: Array, total: Array) -> None:
        """Add the derivative by a K, or by its factor."""
        operator = self._operators[kernel]
        assert operator is not None
        if self._stated.maps.kernels[kernel].is_factor:
            bar = np.tril((bar + bar.T) @ operator.matrix())
        total[slice(*self._ends[kernel])] += bar.ravel()

    def _add_residuals(self, known: _Residuals, by_spread: Array, by_values: Array, total: Array) -> None:
        """Add the derivative by j and c, of what has these by 1/j and by c/j, and of the normaliser."""
        rows, factor = self._stated.maps.residuals, known.factor
        by_factor = -(by_spread + by_values * known.target) / factor**2 - 1.0 / factor
        np.add.at(total, rows.number[known.entries], rows.coefficient[known.entries] * by_factor)
        np.add.at(total, rows.offset_number[known.rows], rows.offset[known.rows] * by_values / factor)

    def sites_pullback(self, placed: Placement, pulled: Pulled) -> Array:
        """Return the gradient of ``ψ(η) + log E`` by b, and by the logarithms of w̄, (2, n)."""
        held = zip(self.parts, cast("PartsPlacement", placed).parts, strict=True)
        found = [
            part.space.sites_pullback(each, pulled._replace(pushed=pulled.pushed[part.sites])) for part, each in held
        ]
        return np.stack([self._scattered(by_linear for by_linear, _ in found), self._scattered(p for _, p in found)])

    def _by_noise(self, noise: Array) -> list[Array]:
        return self._split(noise, [part.space.n_noise for part in self.parts])

    @staticmethod
    def _split(values: Array, sizes: Iterable[int]) -> list[Array]:
        """Return what each part has of values, and then what no site sees."""
        return np.split(values, list(itertools.accumulate(sizes)))

    def _scattered(self, parts: Iterable[Array]) -> Array:
        """Return what the parts have, where their sites are."""
        whole = np.empty(self._field.predictors.n_rows)
        for part, values in zip(self.parts, parts, strict=True):
            whole[part.sites] = values
        return whole


class _Residuals(NamedTuple):
    """Values with one residual each, ``j x - c``.

    Attributes
    ----------
    entries, rows : (k,) int array
        Of J.
    factor, target : (k,) array
        j and c.
    """

    entries: Indices
    rows: Indices
    factor: Array
    target: Array


def _kernel_ends(stated: StatedField) -> list[tuple[int, int]]:
    """Return where the numbers of each kernel are among u."""
    sizes = [each.size**2 for each in stated.maps.kernels]
    ends = stated.numbers.size - sum(sizes) + np.cumsum([0, *sizes])
    return [(int(a), int(b)) for a, b in itertools.pairwise(ends)]
