"""A Gaussian field times sites as a product of independent parts; see `pymc_rmhmc.latent.field.field_parts`.

Noise, y and derivatives of the parts lie one after another, and then what no site sees. Values that have a residual
each, ``j x - c``, are independent coefficients ``c/j + y/j`` of a part in the size of its sites.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
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
from pymc_rmhmc.latent.solvers.apart import Apart, ApartPlacement, of_part
from pymc_rmhmc.latent.solvers.precision import PrecisionSpace
from pymc_rmhmc.latent.solvers.site_space import SiteSpace, Term

__all__ = ["FieldInParts"]

type Array = NDArray[np.float64]
type Indices = NDArray[np.int64]

LOG_2PI = math.log(2.0 * math.pi)


@dataclass(slots=True)
class PartsPlacement(ApartPlacement):
    """Where the noise of a field's parts is placed."""

    space: FieldInParts | None = None

    @property
    def latents(self) -> Array:
        """The model's variables."""
        assert self.space is not None
        return self.space.to_model([part.latents for part in self.parts], np.asarray(self.unseen))

    @property
    def log_prior(self) -> float:
        """Their log density."""
        assert self.space is not None
        of_unseen = sum(each.log_prior(y) for each, y in self.space.unseen_with(np.asarray(self.unseen)))
        return self.space.log_constant + of_unseen + sum(part.log_prior for part in self.parts)


class FieldInParts(Apart):
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

    def __init__(
        self, stated: StatedField, sites: GaussianSites, parts: FieldParts, like: FieldInParts | None = None
    ) -> None:
        if not (math.isfinite(stated.log_normaliser) and np.isfinite(stated.numbers).all()):
            raise PriorFailure(Failure.NON_FINITE)
        self._stated, self._field = stated, parts
        self._ends = _kernel_ends(stated)
        kernels, where = stated.maps.kernels, tuple(part.sites for part in parts.all_parts)
        super().__init__((), where, sites, sum(kernels[k].size for k in parts.unseen))
        if like is not None and np.array_equal(like._stated.numbers, stated.numbers):
            self._operators: list[Operator | None] = like._operators
            self._known: list[_Residuals] = like._known
            self.spaces = like.spaces
            if like.sites is not sites:
                self.spaces = self._with_other_sites(like.spaces)
        else:
            self._operators = self._kernel_operators()
            self._known = [self._residuals_of(part) for part in parts.in_sites]
            self.spaces = self._made()
        self.log_constant = stated.log_normaliser + sum(
            0.5 * LOG_2PI * part.columns.size - float(np.log(np.abs(known.factor)).sum())
            for part, known in zip(parts.in_sites, self._known, strict=True)
        )
        self.log_constant += 0.5 * LOG_2PI * self._n_unseen
        self.log_evidence = self.log_constant + sum(space.log_evidence for space in self.spaces)

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

    def _made(self) -> tuple[Conditional, ...]:
        """Make the solver of every part."""
        rows, numbers = self._field.predictors, self._stated.numbers
        made, offset, entries = list[Conditional](), rows.offset * numbers[rows.offset_number], rows.entries(numbers)
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
            twin = self._first_twin(made)
            sites = _of_part_or_twin(self.sites, part.sites, twin)
            made.append(SiteSpace(mean, terms, sites, twin, by_design=part.design_moves, covariances=covariances))
        rest = self._field.sparse
        if rest is not None:
            own = np.concatenate([numbers[: self._n_numbers], *(numbers[slice(*self._ends[k])] for k in rest.kernels)])
            made.append(PrecisionSpace(StatedField(rest.maps, own, 0.0), of_part(self.sites, rest.sites)))
        return tuple(made)

    def _with_other_sites(self, spaces: Sequence[Conditional]) -> tuple[Conditional, ...]:
        """Make the solver of every part from that with other sites."""
        made = list[Conditional]()
        for space, where in zip(spaces, self._where, strict=True):
            twin = self._first_twin(made)
            sites = _of_part_or_twin(self.sites, where, twin)
            made.append(space.with_sites(sites) if twin is None else cast("SiteSpace", space).with_sites(sites, twin))
        return tuple(made)

    def _first_twin(self, made: Sequence[Conditional]) -> SiteSpace | None:
        """Return the first solver with the covariance of the part that is made next; None if it is the first."""
        twins = next((each for each in self._field.twins if len(made) in each), (len(made),))
        return None if twins[0] == len(made) else cast("SiteSpace", made[twins[0]])

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
        for part, values in zip(self._field.all_parts, parts, strict=True):
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

    def with_sites(self, sites: GaussianSites) -> FieldInParts:
        """Return the same prior times other sites."""
        return FieldInParts(self._stated, sites, self._field, self)

    def place(self, noise: Array) -> PartsPlacement:
        """Return where a z is placed."""
        eta, pulled, placed = self._placed(noise)
        unseen = noise[noise.size - self._n_unseen :]
        return PartsPlacement(eta, noise, pulled, placed[0].operator, None, placed, unseen, self)

    def enter(self, values: Array, noise: Array) -> Array:
        """Draw a z given the model's variables, from standard normal noise."""
        turned = values.copy()
        for rotation in self._field.rotations:
            rotation.forward(turned)
        *given, unseen = self._by_noise(noise)
        each = zip(self.spaces, self._field.all_parts, given, strict=True)
        parts = [space.enter(turned[part.columns], z) for space, part, z in each]
        held = zip(self._unseen_columns, self.unseen_with(unseen), strict=True)
        return np.concatenate([*parts, *(operator.from_model(turned[columns]) for columns, (operator, _) in held)])

    def pullback(self, placed: Placement, residual: Array) -> Pulled:
        """Return the gradient of ``ψ(η) + log E`` by z, and by the numbers u(θ)."""
        pulled = self._pulled(placed, residual)
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
        noise = self._after_another(each.noise for each in pulled)
        return Pulled(noise, np.zeros(0), [total], None, self._scattered(each.pushed for each in pulled))

    def _pulled(self, placed: Placement, residual: Array) -> list[Pulled]:
        """Return the gradient of each part; of twins the first has the derivative by their covariance."""
        parts, found = cast("PartsPlacement", placed).parts, dict[int, Pulled]()
        for twins in self._field.twins:
            spaces, own = [self.spaces[i] for i in twins], [parts[i] for i in twins]
            by_sites = [residual[self._where[i]] for i in twins]
            if len(twins) == 1:
                found[twins[0]] = spaces[0].pullback(own[0], by_sites[0])
            else:
                of_twins = SiteSpace.pullback_of_twins(cast("list[SiteSpace]", spaces), own, by_sites)
                found |= zip(twins, of_twins, strict=True)
        if self._field.sparse is not None:
            found[len(found)] = self.spaces[-1].pullback(parts[-1], residual[self._where[-1]])
        return [found[i] for i in range(len(self.spaces))]

    def _add_site_part(self, part: SitePart, known: _Residuals, pulled: Pulled, total: Array) -> None:
        """Add the derivative by the numbers of a part in the size of its sites to a total."""
        rows = self._field.predictors
        np.add.at(total, rows.offset_number[part.sites], rows.offset[part.sites] * pulled.mean)
        designs = pulled.design or [None] * len(part.terms)
        for term, bar, design_bar in zip(part.terms, pulled.vectors, designs, strict=True):
            by_entries = None if design_bar is None else design_bar[term.row, term.column]
            if term.kernel is not None and self._stated.maps.kernels[term.kernel].moves:
                start, end = self._ends[term.kernel]
                if bar.size == end - start:  # of twins the first alone has it
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
            bar = np.tril((bar + bar.T) @ operator.matrix()).T
        # In Fortran order, of which a transpose is read at once: K is symmetric.
        total[slice(*self._ends[kernel])] += bar.T.ravel()

    def _add_residuals(self, known: _Residuals, by_spread: Array, by_values: Array, total: Array) -> None:
        """Add the derivative by j and c, of what has these by 1/j and by c/j, and of the normaliser."""
        rows, factor = self._stated.maps.residuals, known.factor
        by_factor = -(by_spread + by_values * known.target) / factor**2 - 1.0 / factor
        np.add.at(total, rows.number[known.entries], rows.coefficient[known.entries] * by_factor)
        np.add.at(total, rows.offset_number[known.rows], rows.offset[known.rows] * by_values / factor)


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


def _of_part_or_twin(sites: GaussianSites, where: Indices, twin: SiteSpace | None) -> GaussianSites:
    """Return the sites of a part, with the very array of its twin's w̄ where the two are equal."""
    own = of_part(sites, where)
    if twin is None or not np.array_equal(own.precision, twin.sites.precision):
        return own
    return GaussianSites(own.linear, twin.sites.precision)


def _kernel_ends(stated: StatedField) -> list[tuple[int, int]]:
    """Return where the numbers of each kernel are among u."""
    sizes = [each.size**2 for each in stated.maps.kernels]
    ends = stated.numbers.size - sum(sizes) + np.cumsum([0, *sizes])
    return [(int(a), int(b)) for a, b in itertools.pairwise(ends)]
