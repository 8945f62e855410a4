"""SoftAbs of a matrix with a border and blocks, at a cost that grows with the number of blocks.

For ``M = [[D, Bᵀ], [B, A]]`` with D block diagonal, the blocks are softened first, then the Schur complement of the
border:

    D' = softabs(D),      S = A - B D'⁻¹ Bᵀ,      S' = softabs(S)
    G = L diag(D', S') Lᵀ,      L = [[1, 0], [B D'⁻¹, 1]]

G is positive definite. It is M itself where M has no eigenvalue near or below 0; elsewhere it is another matrix than
SoftAbs of all of M. With ``D = Q Λ Qᵀ`` and ``Y = s(Λ)⁻¹ Qᵀ Bᵀ``, the bar T of S and those of the two numbers that a
metric needs are

    A̅ = T,      B̅ᵀ = Q [-2 Y T - (û + k̂) u_borderᵀ],      D̅ = Q (J ∘ [Y T Yᵀ + E]) Qᵀ

    ½ log|G|      T = bar of ½ log|S'|,              E = diag(½ / s(Λ)),            no second term of B̅
    -½ uᵀGu       T = bar of -½ u_borderᵀ S' u_border,      E = ½ (k̂k̂ᵀ - ûûᵀ),      û = Qᵀ u_inner,  k̂ = Y u_border
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.metrics import bordered_loops as loops
from pymc_rmhmc.metrics.sparsity import ArrowEntries, Partition

__all__ = ["ArrowSoftAbsMatrix", "layout_of"]

type Array = NDArray[np.float64]


def layout_of(partition: Partition) -> loops.Layout:
    """Return a partition as compiled code takes it."""
    m = partition.border.size
    edge = np.array([0, m]), np.array([0, m * m])
    return loops.Layout(partition.border, partition.inner, partition.starts, partition.entry_starts, *edge)


class ArrowSoftAbsMatrix:
    """A positive definite matrix ``G = L diag(D', S') Lᵀ`` of softened blocks and a border; `soften` makes one.

    With all parameters in the border it is the SoftAbs of M itself.

    Parameters
    ----------
    layout : Layout
        Which parameters are the border, and which blocks the others fall into.
    factor : Factor
        Of G.

    Attributes
    ----------
    half_log_det : float
        ``½ log|G|``.
    scale : (d,) array
        ``sqrt(diag(G⁻¹))``.

    Notes
    -----
    A bar is the derivative of a number by the entries of M, not of G: see `ArrowEntries` and `Probes.weights`.

    References
    ----------
    Betancourt (2013), A general metric for Riemannian manifold Hamiltonian Monte Carlo.
    """

    def __init__(self, layout: loops.Layout, factor: loops.Factor) -> None:
        self._layout, self._factor = layout, factor
        self.half_log_det = float(factor.half_log_det)
        self.scale: float | Array = loops.scale(layout, factor)

    @classmethod
    def soften(cls, entries: ArrowEntries, partition: Partition, alpha: float) -> ArrowSoftAbsMatrix | Failure:
        """Decompose M of its entries, or say why it cannot be. Of a block or a border the lower triangle is read."""
        layout = layout_of(partition)
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
        return loops.differences(self._layout, self._factor)
