"""The SoftAbs metric: the Hessian of the negative log density, with its eigenvalues softly made positive."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.dynamics.hamiltonian import MakeSteps
from pymc_rmhmc.errors import ConfigurationError, Failure
from pymc_rmhmc.metrics import bordered_loops as loops
from pymc_rmhmc.metrics.field import MetricFieldBase
from pymc_rmhmc.metrics.graph_metric import MatrixDensity, MatrixPoint, compiled_steps, matrix_density
from pymc_rmhmc.metrics.sparsity import (
    MOST_OF_DENSE,
    ArrowEntries,
    Partition,
    Probes,
    hessian_pattern,
    partition,
    unite,
)
from pymc_rmhmc.usage import called_as, one_of, real_number

__all__ = ["ArrowSoftAbsMatrix", "SoftAbsField", "SoftAbsMetric"]

type Array = NDArray[np.float64]

STRUCTURES = ("auto", "dense", "blocks")
# Of a product with the Hessian that its blocks give, relative: rounding leaves 1e-12, a missing entry about 1.
MOST_MISMATCH = 1e-6
# What a dense Hessian takes, and the vectors, products and derivatives beside it, in bytes: more is refused.
MATRICES, MOST_BYTES = 4, 2**30


@called_as("SoftAbsMetric(), or SoftAbsMetric(alpha=1e6)")
class SoftAbsMetric:
    """SoftAbs metric of any model: ``G = Q diag(λ coth αλ) Qᵀ`` of the Hessian ``Q diag(λ) Qᵀ`` of -log density.

    Where the curvature is large, G is the Hessian with its eigenvalues made positive. Directions with less curvature
    than about 1/α are given that curvature. RMHMC samples all continuous variables in it, with the values and bounds'
    transforms that PyMC uses.

    Parameters
    ----------
    alpha : float
        How sharp the absolute value is, from 1e-3 to 1e12, in units of the inverse curvature of the variables.
        Curvatures below ``1/alpha`` count as ``1/alpha``. With a small one a chain crosses wide directions slowly or
        not at all. With a large one the metric nearly vanishes where an eigenvalue of the Hessian changes its sign: if
        steps get very short there, lower it.
    structure : {"auto", "dense", "blocks"}
        How the Hessian is factorised. "dense" takes all eigenvalues, in O(d³). "blocks" finds small blocks of values
        that are coupled by few others, as in a hierarchy, and costs O(d). "auto" takes the cheaper one.

    Raises
    ------
    ConfigurationError
        If `alpha` or `structure` is out of range. When RMHMC is built: if the dense matrix would be too large.
    UnsupportedModelError
        When RMHMC is built: if the log density cannot be differentiated three times.

    Notes
    -----
    A step costs the Hessian, its factor, and one more derivative of the graph. It is for models whose curvature
    changes much and that no flat chart can straighten: on the models measured ``RMHMC()`` is faster.

    References
    ----------
    Betancourt (2013), A general metric for Riemannian manifold Hamiltonian Monte Carlo, eq. 9 to 13.

    Examples
    --------
    >>> from pymc_rmhmc import SoftAbsMetric
    >>> SoftAbsMetric(alpha=1e4)
    SoftAbsMetric(alpha=10000.0, structure='auto')
    """

    name, chart, source = "softabs", "graph", "hessian"

    def __init__(self, alpha: float = 1e6, structure: str = "auto") -> None:
        self.alpha = real_number("alpha", alpha)
        self.structure = one_of("structure", structure, STRUCTURES, "Leave it out, and the cheaper one is taken.")

    def __repr__(self) -> str:
        return f"SoftAbsMetric(alpha={self.alpha}, structure={self.structure!r})"

    def find_structure(self, density: MatrixDensity, positions: Sequence[Array]) -> Partition | None:
        """Return the border and the blocks that make the metric cheap; None if the dense matrix is to be taken.

        An entry that is seen at none of the positions (d,) is missed: compare with `holds` later. Raise a
        `ConfigurationError` if the dense matrix is to be taken, and is too large.
        """
        wanted = math.inf if self.structure == "blocks" else MOST_OF_DENSE
        found = None if self.structure == "dense" else _structure(density, positions, wanted)
        if found is not None and found.is_dense and self.structure == "auto":
            found = None
        if found is None:
            _check_size(density.size, self.structure)
        return found

    def holds(self, density: MatrixDensity, partition: Partition, position: Array, rng: np.random.Generator) -> bool:
        """Return whether the blocks hold all of the Hessian at a position, by a product with a random vector."""
        mismatch = Probes(partition).mismatch(density.products, position, rng)
        return math.isnan(mismatch) or mismatch < MOST_MISMATCH

    def bind(self, density: MatrixDensity) -> SoftAbsField:
        """Return the metric of a density, by blocks if it has any; raise a `ConfigurationError` without a Hessian."""
        density = matrix_density(density, self.name)
        found = density.partition or Partition.of(range(density.size), [])
        return SoftAbsField(density, found, self.alpha)


def _structure(density: MatrixDensity, positions: Sequence[Array], most_of_dense: float) -> Partition | None:
    """Choose a partition of the pattern that is seen at positions; None where no Hessian is finite."""
    nothing = np.zeros((1, density.size))
    finite = [position for position in positions if np.isfinite(density.products(position, nothing)).all()]
    if not finite:
        return None
    return partition(unite(*(hessian_pattern(density.products, at) for at in finite)), most_of_dense=most_of_dense)


def _check_size(size: int, structure: str) -> None:
    """Raise a `ConfigurationError` if a dense Hessian of so many values would not fit."""
    needed = MATRICES * 8 * size**2
    if needed > MOST_BYTES:
        other = " or SoftAbsMetric(structure=\"auto\")" if structure == "dense" else ""
        raise ConfigurationError(
            f"The SoftAbs metric of {size} values needs dense matrices of {needed / 2**30:.1f} GiB, and their "
            f"eigenvalues in each step. Give RMHMC(metric=\"flat\"){other}, or name fewer variables in vars=."
        )


class SoftAbsField(MetricFieldBase[MatrixPoint, ArrowEntries]):
    """The metric of a Hessian of a border and blocks; a bar is the derivative by each entry of the negative Hessian."""

    def __init__(self, density: MatrixDensity, partition: Partition, alpha: float) -> None:
        self._probes, self._alpha = Probes(partition), alpha
        self._matrices = density.with_vectors(self._probes.vectors)
        super().__init__(self._matrices)

    def at(self, point: MatrixPoint) -> ArrowSoftAbsMatrix | Failure:
        """Soften the blocks, then the border; a `Failure` if the Hessian is not finite."""
        entries = self._probes.recover(-point.matrix)
        return ArrowSoftAbsMatrix.soften(entries, self._probes.partition, self._alpha)

    def pullback(self, point: MatrixPoint, bar: ArrowEntries) -> Array:
        """Pull a bar back by one call of the compiled derivative, (d,)."""
        return -self._matrices.pullback(point, self._probes.weights(bar))

    def compiled_steps(self) -> MakeSteps | None:
        """See `MetricFieldBase`."""
        return compiled_steps(self._matrices, self._probes, float(self._alpha), is_metric=False)


class ArrowSoftAbsMatrix:
    """A positive definite matrix ``G = L diag(D', S') Lᵀ`` of softened blocks and a border; `soften` makes one.

    With all parameters in the border it is the SoftAbs of M itself. A bar is the derivative of a number by the entries
    of M, not of G: see `ArrowEntries` and `Probes.weights`.
    """

    def __init__(self, layout: loops.Layout, factor: loops.Factor) -> None:
        self._layout, self._factor = layout, factor
        self.half_log_det = float(factor.half_log_det)
        self.scale: float | Array = loops.scale(layout, factor)

    @classmethod
    def soften(cls, entries: ArrowEntries, partition: Partition, alpha: float) -> ArrowSoftAbsMatrix | Failure:
        """Decompose M of its entries, or say why it cannot be. Of a block or a border the lower triangle is read."""
        layout = partition.layout
        try:
            border, coupling, blocks = (np.ascontiguousarray(part) for part in entries)
            finite, factor = loops.soften(layout, border, coupling, blocks, float(alpha))
        except np.linalg.LinAlgError:
            return Failure.NON_FINITE
        return cls(layout, factor) if finite else Failure.NON_FINITE

    @property
    def root_size(self) -> int:
        """The size of a vector that `sqrt_times` takes: d."""
        return int(self._layout.border.size + self._layout.inner.size)

    def solve(self, vector: Array) -> Array:
        """Return ``G⁻¹ vector``, (d,)."""
        return loops.solve(self._layout, self._factor, vector)

    def times(self, vector: Array) -> Array:
        """Return ``G vector``, (d,)."""
        return loops.times(self._layout, self._factor, vector)

    def sqrt_times(self, vector: Array) -> Array:
        """Return ``L diag(Q sqrt(s), R) vector`` with ``R Rᵀ = S'``, (d,); the vector's border comes last."""
        return loops.sqrt_times(self._layout, self._factor, vector)

    def log_det_bar(self) -> ArrowEntries:
        """Return the bar of ``½ log|G|``."""
        return ArrowEntries(*loops.log_det_bar(self._layout, self._factor, self._differences))

    def quadratic_bar(self, velocity: Array) -> ArrowEntries:
        """Return the bar of ``-½ uᵀGu`` at a fixed u."""
        return ArrowEntries(*loops.quadratic_bar(self._layout, self._factor, self._differences, velocity))

    @cached_property
    def _differences(self) -> loops.Differences:
        """J of every block, and of the border."""
        return loops.differences(self._factor)
