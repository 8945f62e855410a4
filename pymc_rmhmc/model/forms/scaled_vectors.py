"""Where predictors read each latent vector: at the variable, or behind a scale that multiplies it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pymc as pm
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.forms.linear_normals import ScaledSource, scaled_source
from pymc_rmhmc.model.forms.priors import LatentVariable
from pymc_rmhmc.model.graph.graphs import Evaluator, inlined
from pymc_rmhmc.model.graph.multipliers import is_never_zero
from pymc_rmhmc.model.graph.scales import scales_first
from pymc_rmhmc.model.structure import LatentBlock

__all__ = ["vector_sources", "with_coefficients", "with_scales_first"]

type Point = dict[str, np.ndarray]


def with_scales_first(model: pm.Model, block: LatentBlock) -> LatentBlock:
    """A block whose latent vectors are multiplied by their scales before any matrix is."""
    readings = [o.reading for o in block.observations if o.reading is not None]
    sources = [latent.source for latent in block.latents]
    etas = scales_first(model, inlined(_etas(block), [*sources, *model.basic_RVs]), sources)
    observations = [
        replace(o, reading=reading._replace(eta=eta))
        for o, reading, eta in zip(block.observations, readings, etas, strict=True)
    ]
    return replace(block, observations=tuple(observations))


def vector_sources(
    model: pm.Model, block: LatentBlock, shapes: Sequence[tuple[int, ...]], point: Point
) -> list[ScaledSource]:
    """Where each vector is read: with a covariance behind a number that multiplies all of it, if there is one."""
    etas, variables = _etas(block), [latent.variable for latent in block.latents]
    found = []
    for latent, shape in zip(block.latents, shapes, strict=True):
        plain = ScaledSource(latent.source)
        # Coefficients are their own sources; and rows have one covariance, which no number of each may multiply.
        if latent.form == "independent" or latent.variable.ndim != 1:
            found.append(plain)
            continue
        scaled = scaled_source(latent.source, etas, variables, lambda factor: is_never_zero(model, factor))
        found.append(scaled if scaled.is_scaled and _fits(model, latent, scaled, shape, point) else plain)
    return found


def _fits(
    model: pm.Model, latent: LatentVariable, scaled: ScaledSource, shape: tuple[int, ...], point: Point
) -> bool:
    """Whether a multiplier has a number for each value of a vector, or one for all, and is not 0 at a point."""
    (scale,) = Evaluator(model, [scaled.scale])(point)
    if np.broadcast_shapes(scale.shape, shape) != shape or (latent.root == "kronecker" and scale.size != 1):
        return False
    return bool(np.isfinite(scale).all() and scale.all())


def with_coefficients(
    model: pm.Model, block: LatentBlock, vectors: Sequence[ScaledSource], shapes: Sequence[tuple[int, ...]],
    point: Point,
) -> list[ScaledSource]:  # fmt: skip
    """Where each vector is read; coefficients too behind the scale that multiplies them."""
    etas, variables = _etas(block), [latent.variable for latent in block.latents]
    found = []
    for latent, vector, shape in zip(block.latents, vectors, shapes, strict=True):
        if latent.form != "independent":
            found.append(vector)
            continue
        scaled = scaled_source(latent.variable, etas, variables)
        # A product with more values than the variable is no scale of it.
        same = np.shape(Evaluator(model, [scaled.node])(point)[0]) == shape
        found.append(scaled if same else vector)
    return found


def _etas(block: LatentBlock) -> list[TensorVariable]:
    """The predictors."""
    return [o.reading.eta for o in block.observations if o.reading is not None]
