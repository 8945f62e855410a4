"""Independent Normals, such as coefficients that a matrix reads; see `Form` for the functions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.interfaces.stated import StatedCoefficients, StatedDense
from pymc_rmhmc.model.forms.priors import LatentVariable

__all__ = ["in_a_sum", "matrices", "state", "state_at_a_point"]

type Array = NDArray[np.float64]


def matrices(latent: LatentVariable, shape: tuple[int, ...]) -> list[TensorVariable]:
    """Return the standard deviations as an expression."""
    return [latent.matrix]


def in_a_sum(
    latent: LatentVariable, shape: tuple[int, ...], scale: TensorVariable | None
) -> tuple[list[TensorVariable], TensorVariable, TensorVariable, TensorVariable]:
    """Return D; what the sites read where y is 0; mean and standard deviation of the variable."""
    assert latent.mean is not None
    # As in PyMC a standard deviation below 0 is none; a scale that multiplies may have either sign.
    deviation = pt.switch(latent.matrix > 0.0, latent.matrix, np.nan)
    # A mean or a scale may be one number for all.
    parts = latent.mean, deviation, pt.ones(()) if scale is None else scale
    location, deviation, scale = (pt.broadcast_to(part, shape).ravel() for part in parts)
    return [scale * deviation], scale * location, location, deviation


def state(
    given: Sequence[Array], location: Array | float, scale: Array | float, *, is_centred: bool, moves: bool = True
) -> StatedCoefficients:
    """State coefficients with the D of what is read."""
    return StatedCoefficients(given[0], np.asarray(location), np.asarray(scale))


def state_at_a_point(
    given: Sequence[Array], root: str, mean: Array, rows: Sequence[int], *, is_centred: bool
) -> list[StatedDense]:
    """State one vector with a diagonal factor, whose values may be the sites."""
    diagonal = np.diag(np.ravel(np.broadcast_to(given[0], mean.shape)))
    return [StatedDense(None, mean.ravel(), is_centred, factor=diagonal) for _ in rows]
