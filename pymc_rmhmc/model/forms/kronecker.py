"""A latent vector on a grid, whose covariance is a Kronecker product; see `Form` for the functions.

What is compiled is of the size of the K_i, and not of their product.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.interfaces.stated import StatedKronecker
from pymc_rmhmc.model.forms.priors import LatentVariable

__all__ = ["in_a_sum", "matrices", "state", "state_at_a_point"]

type Array = NDArray[np.float64]


def matrices(latent: LatentVariable, shape: tuple[int, ...]) -> list[TensorVariable]:
    """Return the K_i as expressions."""
    return list(latent.matrices)


def in_a_sum(
    latent: LatentVariable, shape: tuple[int, ...], scale: TensorVariable | None
) -> tuple[list[TensorVariable], TensorVariable, TensorVariable, TensorVariable]:
    """Return the K_i, of which one takes the number, and what else `LatentVariable.scaled` does."""
    return latent.scaled(list(latent.matrices), shape, scale)


def state(
    given: Sequence[Array], location: Array | float, scale: Array | float, *, is_centred: bool, moves: bool = True
) -> StatedKronecker:
    """State a whitened vector with the K_i of what is read."""
    return StatedKronecker(tuple(given), np.sign(scale), moves)


def state_at_a_point(
    given: Sequence[Array], root: str, mean: Array, rows: Sequence[int], *, is_centred: bool
) -> list[StatedKronecker]:
    """State the one vector that such a variable is."""
    return [StatedKronecker(tuple(given)) for _ in rows]
