"""The roots of a model in its flat chart: variables that move others, which none moves, in maps that make them normal.

    x = location + spread sinh((asinh z + skewness) / tail)

is Jones and Pewsey's (2009) map of each value, as for the hyperparameters of latent values
(`pymc_rmhmc.latent.charts.marginal`): a scale of which the data say only that it is small has a slope on one side,
along which a trajectory would come back as late as it went far. Where all constants of a value are 0, it has no shape.

Of a covariance in PyMC's form, its Cholesky factor L with logarithms on the diagonal, what stands beside a diagonal
element is relative to it, as ``L_ij / L_ii``, with or without a shape: where a scale is small, so is its whole row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.transforms import CholeskyCovPacked, Transform
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.hyperparameters import joined, taken

__all__ = ["MOST_SHAPED", "N_SHAPE", "place_roots", "root_places"]

type Symbol = TensorVariable

# Values of one variable beyond which the fit of their shapes takes longer than steps gain by it: the 50 local scales of
# a horseshoe gained nothing. A covariance's factor has 15 at most, since charted rows have five columns at most.
MOST_SHAPED = 20
# The constants of each value.
N_SHAPE = 4


def root_places(
    parts: Sequence[tuple[slice, Transform | None]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where the values of some variables are, and pairs of these (r, 2): the first moves relative to the second.

    Of each variable its part of all values and its transform are given.
    """
    places, ratios = list[int](), list[tuple[int, int]]()
    for part, transform in parts:
        if isinstance(transform, CholeskyCovPacked):
            ratios += [(len(places) + own, len(places) + by) for own, by in _beside_diagonal(part.stop - part.start)]
        places += range(part.start, part.stop)
    return np.array(places, np.int64), np.array(ratios, np.int64).reshape(-1, 2)


def _beside_diagonal(length: int) -> list[tuple[int, int]]:
    """Pair what stands beside the diagonal of a packed triangle with the diagonal's element of its row."""
    rows = (math.isqrt(8 * length + 1) - 1) // 2
    ends = [i * (i + 3) // 2 for i in range(rows)]
    return [(end - i + j, end) for i, end in enumerate(ends) for j in range(i)]


def place_roots(
    coordinates: dict[Symbol, Symbol], ratios: NDArray[np.int64], constants: Symbol
) -> tuple[dict[Symbol, Symbol], Symbol]:
    """Return the values of some variables at their coordinates z, and ``log |∂x/∂z|`` of all.

    Both are by value variables. `ratios` (r, 2) pairs those of all k values that move relative to another one with that
    one. The constants are, for all values, the locations, the logarithms of the spreads, the skewnesses and the
    logarithms of the tails, (4 k,).
    """
    if not coordinates:
        return {}, pt.zeros(())
    z = joined(list(coordinates.values()))
    location, log_spread, skewness, log_tail = (constants[i * z.size : (i + 1) * z.size] for i in range(N_SHAPE))
    angle = (pt.arcsinh(z) + skewness) * pt.exp(-log_tail)
    log_cosh = pt.softplus(2.0 * angle) - angle - math.log(2.0)
    # Without a shape the map is the identity to the last bit, and its volume has no gradient: a density that does not
    # depend on a value is told by that.
    is_shaped = pt.neq(pt.abs(log_spread) + pt.abs(skewness) + pt.abs(log_tail) + pt.abs(location), 0.0)
    log_slopes = pt.switch(is_shaped, log_spread + log_cosh - log_tail - 0.5 * pt.log1p(z * z), 0.0)
    moved, log_slope = pt.switch(is_shaped, location + pt.exp(log_spread) * pt.sinh(angle), z), log_slopes.sum()
    if len(ratios):
        own, by = ratios.T
        moved, log_slope = pt.set_subtensor(moved[own], moved[own] * pt.exp(moved[by])), log_slope + moved[by].sum()
    placed, start = dict[Symbol, Symbol](), 0
    for value, part in coordinates.items():
        size = math.prod(part.type.shape)
        placed[value] = pt.specify_shape(taken(moved, slice(start, start + size), part.type.shape), value.type.shape)
        start += size
    return placed, log_slope
