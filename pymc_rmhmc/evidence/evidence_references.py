"""References of whole models: a tuned chain's coordinates, or heavier tails where the prior has some."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.chains.chain import AnyChain
from pymc_rmhmc.chains.reference import ResidualReference
from pymc_rmhmc.evidence.methods.tails import TailedReference, Tails, measured_tails, power_tails, with_fitting_tails
from pymc_rmhmc.evidence.tempering_families import moment_map
from pymc_rmhmc.graph_chart.affine_map import diagonal_map
from pymc_rmhmc.latent.charts import MarginalChart
from pymc_rmhmc.sampled.graph import GraphRecipe
from pymc_rmhmc.sampled.joint_recipe import TrajectorySetting

__all__ = ["WholeReference", "positions_of", "whole_reference"]

type Array = NDArray[np.float64]

# Tails heavier than this may be a power's: in draws those of t with 4 degrees of freedom measure 0.16, a normal's 0.
# The density itself shows a power's alone; t with 10 degrees of freedom has 0.1.
HEAVY, POWERFUL = 0.13, 0.1
# Fewer draws tell no tails.
FEWEST = 200
# The normal that a tailed reference replaces is so wide that adding and removing its log density costs no digits.
WIDE = 1e8
# Dense covariances of so many coordinates at most.
MOST_DENSE = 100


@dataclass(frozen=True)
class WholeReference:
    """What estimates of a whole model start from.

    Attributes
    ----------
    reference : ResidualReference
        It.
    is_heavy : bool
        Whether it has heavy tails, in which the chain itself is too rarely.
    """

    reference: ResidualReference
    is_heavy: bool


def whole_reference(chain: AnyChain, prior: Array, posterior: Array, rng: np.random.Generator) -> WholeReference:
    """Return the reference of a chain, or one with heavy tails where the prior has some.

    Parameters
    ----------
    chain : Chain
        After its tuning.
    prior : (n, k) array
        Draws of the model's values from their prior; empty where it has no draws, and then the tails are read from
        the density itself.
    posterior : (m, k) array
        Draws of the posterior, for centre and scales. They need not reach its tails.
    rng : numpy.random.Generator
        For draws of the reference.
    """
    normal = chain.reference()
    own = normal.own_tails
    if not own.size:
        return WholeReference(normal, is_heavy=False)
    plain = _scaled(chain, np.zeros(own.size), np.ones(own.size))
    of_prior = positions_of(plain, prior, rng)[:, own]
    # The density shows a power's tail that draws of the prior leave in doubt.
    tails = power_tails(plain, positions_of(plain, posterior, rng)[:, own])
    is_heavy = tails.heaviest > POWERFUL
    if len(of_prior) >= FEWEST:
        tails = measured_tails(of_prior)
        is_heavy |= tails.heaviest > HEAVY
    if not is_heavy:
        return WholeReference(normal, is_heavy=False)
    return WholeReference(_fitted(_with_tails(chain, tails), posterior, rng), is_heavy=True)


def positions_of(reference: ResidualReference, values: Array, rng: np.random.Generator) -> Array:
    """Return the coordinates (n, d) of some of the model's values (n, k), without those that have no density."""
    points = (reference.point_of(each, rng) for each in values)
    return np.array([point.position for point in points if point is not None]).reshape(-1, reference.size)


def _scaled(chain: AnyChain, centre: Array, spread: Array) -> ResidualReference:
    """Return the reference of a centre and scales, in those of the chart's coordinates that have their own tails."""
    recipe: Any = chain.recipe
    tuned = replace(chain.state.tuned, emulator=None)
    if isinstance(recipe, GraphRecipe):
        return recipe.exact_setting(replace(tuned, flat=tuple(diagonal_map(centre, spread)))).reference()
    marginals = MarginalChart.linear(centre, np.diag(spread))
    return TrajectorySetting.of(recipe.model, replace(tuned, marginals=marginals), recipe.plan).reference()


def _with_tails(chain: AnyChain, tails: Tails) -> TailedReference:
    """Return the reference whose coordinates have the centre, scale and tails that were measured."""
    inner = _scaled(chain, tails.centre, WIDE * tails.spread)
    lower, upper, shrink = np.zeros(inner.size), np.zeros(inner.size), np.ones(inner.size)
    lower[inner.own_tails], upper[inner.own_tails], shrink[inner.own_tails] = tails.lower, tails.upper, 1.0 / WIDE
    return TailedReference(inner, lower, upper, factor=np.diag(shrink))


def _fitted(reference: TailedReference, posterior: Array, rng: np.random.Generator) -> ResidualReference:
    """Fit a reference's mean and covariance to draws (m, k) of the posterior, in its coordinates."""
    own = reference.own_tails
    dense = own if own.size <= MOST_DENSE else own[:0]
    fitted = moment_map(positions_of(reference, posterior, rng)[:, own], dense)
    centre, factor, nothing = np.zeros(reference.size), np.eye(reference.size), np.zeros(reference.size)
    centre[own] = fitted.centre
    factor[np.ix_(own, own)] = fitted.factor if dense.size else np.diag(fitted.spread)
    return with_fitting_tails(TailedReference(reference, nothing, nothing, centre, factor), rng)
