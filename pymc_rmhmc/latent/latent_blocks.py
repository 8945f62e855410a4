"""A model's latent blocks at one θ: which operators and which solver they take."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from pymc_rmhmc.errors import Failure, PriorFailure
from pymc_rmhmc.interfaces.joint_density import JointBlock
from pymc_rmhmc.interfaces.stated import StatedPrior, StatedVector
from pymc_rmhmc.latent.charts.moving_sites import MovingSites
from pymc_rmhmc.latent.charts.site import GaussianSites
from pymc_rmhmc.latent.conditional import Conditional
from pymc_rmhmc.latent.field.field_parts import parts_of
from pymc_rmhmc.latent.field.field_structure import MOST_CHEAP_DENSE, structure_of
from pymc_rmhmc.latent.forms import operator_of
from pymc_rmhmc.latent.solvers.apart import Rows, of_part
from pymc_rmhmc.latent.solvers.field_in_parts import FieldInParts
from pymc_rmhmc.latent.solvers.latent_space import LatentSpace, MovingWeights, StandingWeights
from pymc_rmhmc.latent.solvers.precision import PrecisionSpace
from pymc_rmhmc.latent.solvers.site_space import SiteSpace, Term

__all__ = [
    "Sites", "conditional_from", "conditional_of", "n_noise", "outlasts_theta", "prior_of", "sites_at",
    "theta_requires_refactorization",
]  # fmt: skip

type Array = NDArray[np.float64]
type Sites = GaussianSites | MovingSites


def sites_at(block: JointBlock, theta: Array, sites: Sites) -> GaussianSites:
    """The sites at θ."""
    if not sites.moves:
        return sites
    information = block.information(theta, sites.eta) if block.has_moving_sites else sites.information
    return sites.at(theta, information)


def prior_of(block: JointBlock, theta: Array, *, derivative: bool = True) -> StatedPrior:
    """What a block's prior is at θ.

    Without a derivative to come the block keeps nothing for it.

    Raises a `PriorFailure` if it takes an inverse, as of a precision, that does not exist.
    """
    try:
        prior = block.prior(theta)
    except np.linalg.LinAlgError:
        raise PriorFailure(Failure.NOT_POSITIVE_DEFINITE) from None
    if not derivative:
        block.forget()
    return prior


def conditional_of(block: JointBlock, theta: Array, sites: GaussianSites) -> Conditional:
    """A block at θ, times sites, without a derivative to come.

    Raises a `PriorFailure` if the prior cannot be used at θ.
    """
    return conditional_from(block, prior_of(block, theta, derivative=False), sites)


def conditional_from(block: JointBlock, stated: StatedPrior, sites: GaussianSites, like: Any = None) -> Conditional:
    """A block whose prior is known, times sites; `like` is one of the block's whose constant parts serve again.

    Raises a `PriorFailure` if the prior cannot be used.
    """
    if stated.field is not None:
        parts = parts_of(stated.field.maps)
        if parts is None:
            return PrecisionSpace(stated.field, sites, like)
        return FieldInParts(stated.field, sites, parts, like)
    if block.rows is not None:
        return _of_rows(block, stated, sites, like)
    if block.design_shape is not None:
        return _of_a_design(block, stated, sites, like)
    if not block.is_sum:
        return _of_a_vector(stated.vectors[0], stated.mean, stated.shift, sites, like)
    terms = [Term(operator_of(each), design) for each, design in zip(stated.vectors, stated.design, strict=True)]
    known = [getattr(vector, "covariance", None) for vector in stated.vectors]
    return SiteSpace(stated.mean, terms, sites, by_design=block.has_moving_design, covariances=known)


def _of_a_vector(
    vector: StatedVector, mean: Array, shift: Array | float, sites: GaussianSites, like: SiteSpace | None
) -> SiteSpace:
    """One vector whose values are the sites; what `like` has serves again."""
    term = Term(operator_of(vector, None if like is None else like.operator))
    known = getattr(vector, "covariance", None)
    return SiteSpace(mean, (term,), sites, like, shift=shift if vector.is_variable else None, covariances=(known,))


def _of_rows(block: JointBlock, stated: StatedPrior, sites: GaussianSites, like: Rows | None) -> Rows:
    """Each row at θ; a covariance that they share is factorised once."""
    assert block.rows is not None
    rows, is_shared = list[SiteSpace](), len(stated.vectors) == 1
    for i, where in enumerate(block.rows):
        vector = stated.vectors[0 if is_shared else i]
        known = like.rows[i] if like is not None else rows[0] if rows and is_shared else None
        own = like.rows[i].sites if like is not None and like.sites is sites else of_part(sites, where)
        rows.append(_of_a_vector(vector, stated.mean[where], stated.shift[where], own, known))
    return Rows(rows, tuple(block.rows), sites, is_shared=is_shared)


def _of_a_design(block: JointBlock, stated: StatedPrior, sites: GaussianSites, like: Any) -> Conditional:
    """Vectors that one matrix reads, by matrices in the size of the values or of the sites."""
    operators, moves = [operator_of(each) for each in stated.vectors], block.has_moving_design
    n, k = stated.design.shape
    if k > n and not block.is_sum:
        if like is not None and not moves:
            design = like.terms[0].design
        else:  # SciPy takes longer to look at a sparse matrix of this size than its products take
            design = stated.design.toarray() if sparse.issparse(stated.design) else stated.design
        return SiteSpace(stated.mean, [Term(operators[0], design)], sites, by_design=moves)
    if like is not None and not moves:
        weights = like.weights.at(sites)
    else:
        weights = (MovingWeights if _moves_weights(block) else StandingWeights)(stated.design, sites)
    return LatentSpace(weights, stated.mean, operators, sites, by_design=moves)


def _moves_weights(block: JointBlock) -> bool:
    """Whether θ moves A, or w̄ by more than one multiple for all."""
    return block.has_moving_design or (block.is_sum and block.has_moving_sites)


def theta_requires_refactorization(block: JointBlock) -> bool:
    """Whether a θ costs an (n, n) factor: a value is then a third of a gradient, and z moves for next to nothing.

    Coefficients are not dear: what is factorised there is had with its derivative.
    """
    if block.maps is not None:
        return block.maps.n_dense > MOST_CHEAP_DENSE or structure_of(block.maps).is_expensive
    has_factor = block.is_sum or block.design_shape is None
    return has_factor and (not block.fixed_covariance or block.has_moving_sites)


def outlasts_theta(block: JointBlock) -> bool:
    """Return whether parts of a block's conditional at one θ serve at another."""
    if block.maps is not None:
        return True
    if block.design_shape is None:
        return block.fixed_covariance
    # Of a design that moves no more than where it is not 0, and by that alone the form is chosen.
    return not (block.is_sum and block.has_moving_design)


def n_noise(block: JointBlock) -> int:
    """The size of a block's z."""
    if block.maps is not None:
        return block.n_residuals + block.n_sites
    if block.design_shape is None:
        return block.size + block.n_sites
    n, k = block.design_shape
    return k + (n if _moves_weights(block) else min(n, k))
