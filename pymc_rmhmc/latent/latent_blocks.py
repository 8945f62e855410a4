"""What a joint target reads of a model's latent blocks, and each block at one θ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.latent.arrow.arrow_conditional import ArrowConditional
from pymc_rmhmc.latent.arrow.arrow_design import Arrow, MovingArrow
from pymc_rmhmc.latent.arrow.arrow_pattern import arrow_pattern
from pymc_rmhmc.latent.charts.moving_sites import MovingSites
from pymc_rmhmc.latent.charts.site import GaussianSites
from pymc_rmhmc.latent.conditional import Conditional
from pymc_rmhmc.latent.forms.coefficients import CoefficientsOperator
from pymc_rmhmc.latent.forms.dense import DenseOperator
from pymc_rmhmc.latent.forms.kronecker import KroneckerOperator
from pymc_rmhmc.latent.operators import Operator
from pymc_rmhmc.latent.prior import PriorFailure
from pymc_rmhmc.latent.solvers.latent_space import LatentSpace
from pymc_rmhmc.latent.solvers.rows import Rows, of_row
from pymc_rmhmc.latent.solvers.site_space import SiteSpace, Term
from pymc_rmhmc.latent.solvers.weighted_design import MovingWeights, StandingWeights

__all__ = [
    "Bound",
    "JointBlock",
    "JointDensity",
    "Sites",
    "conditional_from",
    "conditional_of",
    "has_dear_hyperparameters",
    "n_noise",
    "prior_of",
    "sites_at",
]

type Array = NDArray[np.float64]
type Sites = GaussianSites | MovingSites
# A function that may be compiled, and what it takes after what it is given.
type Bound = tuple[Callable[..., Any], tuple[np.ndarray, ...]]


class JointBlock(Protocol):
    """Latent Gaussian variables that are read together, as functions of θ."""

    @property
    def design_shape(self) -> tuple[int, int] | None:
        """Of the A by which all latent values are read, (n, k).

        None for one vector with a covariance matrix, whose values are sites, and for a sum whose vectors have a matrix
        each.
        """

    @property
    def has_moving_design(self) -> bool:
        """Whether A, of coefficients or of the vectors of a sum, moves with θ."""

    @property
    def n_sites(self) -> int:
        """The number of sites, n."""

    @property
    def size(self) -> int:
        """The number of latent values."""

    @property
    def centred(self) -> bool:
        """Of a vector with a covariance, whether it is the model's variable itself, and not ``L⁻¹(η - m)``."""

    @property
    def fixed_covariance(self) -> bool:
        """Whether the covariance matrix is the same at every θ."""

    @property
    def rows(self) -> NDArray[np.int64] | None:
        """Of several vectors that are independent given θ, the sites of each (r, n); None for one vector."""

    @property
    def kinds(self) -> Sequence[str] | None:
        """Of the vectors of a sum; None for one vector, or for coefficients alone.

        "centred" or "whitened" for a vector with a covariance matrix, "kronecker" for a whitened one whose covariance
        is a Kronecker product, "independent" for coefficients.
        """

    @property
    def has_moving_sites(self) -> bool:
        """Whether parameters of the likelihood move the information of the sites."""

    def information(self, theta: Array, eta: Array) -> Array:
        """The mean over two η (2, n) of each site's information, (n,), or with a design of all, (1,).

        That is what the likelihood's slope at a site grows by with θ, and needed where sites move.
        """

    def information_pullback(self, theta: Array, eta: Array, bar: Array) -> Array:
        """``Σ ∂I/∂θ Ī``, (d,)."""

    def compiled_information(self) -> tuple[Bound, Bound]:
        """The functions that the two call, where sites move, and what they take after what is given there."""

    def prior(self, theta: Array) -> tuple[Any, ...]:
        """What the latents' prior is at θ.

        With a covariance: mean and covariance of the sites, and what they have beyond the model's latents, (n,). Rows
        may have a covariance each, (r, n, n). Of
        a vector on a grid, in place of the covariance, a tuple of those of which it is the Kronecker product.
        With a design: A, m (n,), D (k,), location and scale (k,) of the model's variables, and again what the
        sites have beyond them. Of a sum, of every part: A, or None for the identity, or the A of all; then m; of every
        part its K or D, location and scale; and the last again.
        """

    def forget(self) -> None:
        """Let go of what the derivative of the prior that was asked for last would need: there will be none."""

    def prior_pullback(self, theta: Array, mean_bar: Array, second_bar: Any) -> Array:
        """``Σ ∂m/∂θ m̄ + Σ ∂K/∂θ K̄`` or ``Σ ∂m/∂θ m̄ + Σ ∂D/∂θ D̄``, (d,).

        A Kronecker product has a K̄ for each factor, and a sum a K̄, D̄ or list of K̄ for each part. Where A moves this
        is a pair, with Ā at the end: an array like A, of a sparse one that of its entries, or a list as A is one.
        """

    def likelihood(self, theta: Array, eta: Array) -> tuple[float, Array, Array]:
        """``Σ ℓ``, its slope by site (n,), and its gradient by θ (d,)."""

    def compiled_likelihood(self) -> Bound:
        """The function that `likelihood` calls, and what it takes after θ and η."""

    def compiled_prior(self) -> tuple[Bound, Bound, bool] | None:
        """Of coefficients, what makes their prior; None of everything else.

        A function of θ, for what A reads where y is 0 (k,), D (k,), location and scale (k,), what the sites have beyond
        the latents (n,), and if A moves its directions (c, n): see `places`. Then one of θ and of weights of the first,
        the second and what follows the scale, for the gradient of the weighted sum (d,). Then whether θ moves the
        first.
        """

    @property
    def places(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] | None:
        """Of a sparse A that moves, by rows, each entry's place in the directions (c, n), and its column."""


class JointDensity(Protocol):
    """The blocks, and what else of the log density depends on θ."""

    @property
    def blocks(self) -> Sequence[JointBlock]:
        """Independent of one another given θ."""

    @property
    def of_likelihoods(self) -> NDArray[np.int64]:
        """The coordinates of θ that likelihoods read and priors do not: the sites may stand still while they move."""

    def rest(self, theta: Array) -> tuple[float, Array]:
        """The log density beyond the blocks' priors and likelihoods, and its gradient (d,)."""

    def compiled_rest(self) -> Bound:
        """The function that `rest` calls, and what it takes after θ."""


def sites_at(block: JointBlock, theta: Array, sites: Sites) -> GaussianSites:
    """The sites at θ."""
    if not sites.moves:
        return cast("GaussianSites", sites)
    sites = cast("MovingSites", sites)
    information = block.information(theta, sites.eta) if block.has_moving_sites else sites.information
    return sites.at(theta, information)


def prior_of(block: JointBlock, theta: Array, *, derivative: bool = True) -> tuple[Any, ...]:
    """What a block's prior is at θ.

    Without a derivative to come the block lets go of what that would need.

    Raises
    ------
    PriorFailure
        If it takes an inverse, as of a precision, that does not exist.
    """
    try:
        prior = block.prior(theta)
    except np.linalg.LinAlgError:
        raise PriorFailure(Failure.NOT_POSITIVE_DEFINITE, 0) from None
    if not derivative:
        block.forget()
    return prior


def conditional_of(
    block: JointBlock, theta: Array, sites: GaussianSites, like: Any = None, *, derivative: bool = True
) -> Conditional:
    """A block at θ, times sites; `like` is one of the block's whose constant parts serve again.

    Without a derivative to come the block lets go, before factors are made, of what that would need.

    Raises
    ------
    PriorFailure
        If the prior cannot be used at θ.
    """
    return conditional_from(block, prior_of(block, theta, derivative=derivative), sites, like)


def conditional_from(block: JointBlock, stated: tuple[Any, ...], sites: GaussianSites, like: Any = None) -> Conditional:
    """A block whose prior is known, times sites; see `prior_of` and `conditional_of`.

    Raises
    ------
    PriorFailure
        If the prior cannot be used.
    """
    if block.kinds is not None:
        return _of_a_sum(block, stated, sites, like)
    if block.design_shape is not None:
        return _of_coefficients(block, stated, sites, like)
    mean, covariance, shift = stated
    if block.rows is not None:
        return _of_rows(block, stated, sites, like)
    known = None if like is None else like.operator
    if isinstance(covariance, tuple):
        grid = KroneckerOperator(covariance, moves=not block.fixed_covariance, like=known)
        return SiteSpace(mean, [Term(grid)], sites, like, is_sum=False)
    dense = DenseOperator(covariance, centred=block.centred, moves=not block.fixed_covariance, like=known)
    own = shift if block.centred else None
    return SiteSpace(mean, [Term(dense, None, covariance)], sites, like, shift=own, is_sum=False)


def _of_rows(block: JointBlock, stated: tuple[Any, ...], sites: GaussianSites, like: Rows | None) -> Rows:
    """Each row at θ; a covariance that they share is factorised once."""
    (mean, covariance, shift), where = stated, block.rows
    assert where is not None
    is_shared, rows = covariance.ndim == 2, list[SiteSpace]()
    for i, at in enumerate(where):
        first = like.rows[i] if like is not None else rows[0] if rows and is_shared else None
        # A covariance is symmetric: its transpose is itself in Fortran order.
        matrix, own = covariance if is_shared else covariance[i].T, shift[at] if block.centred else None
        dense = DenseOperator(
            matrix, centred=block.centred, moves=not block.fixed_covariance,
            like=None if first is None else cast("DenseOperator", first.operator),
        )  # fmt: skip
        terms = [Term(dense, None, matrix)]
        rows.append(SiteSpace(mean[at], terms, of_row(sites, at), first, shift=own, is_sum=False))
    return Rows(rows, where, is_shared=is_shared)


def _of_a_sum(
    block: JointBlock, stated: tuple[Any, ...], sites: GaussianSites, like: LatentSpace | None
) -> Conditional:
    """Several vectors at θ: by one matrix that reads all of them, or each by its own."""
    design, mean, seconds, *_ = stated
    operators = _operators(block, stated)
    by_design = block.has_moving_design
    if block.design_shape is None:
        matrices = [second if getattr(second, "ndim", 1) == 2 else None for second in seconds]
        terms = [Term(*each) for each in zip(operators, design, matrices, strict=True)]
        return SiteSpace(mean, terms, sites, by_design=by_design)
    if like is not None:
        weights = like.weights.at(sites, None)
    else:
        weights = MovingWeights(design, sites) if _moves_weights(block) else StandingWeights(design, sites)
    return LatentSpace(weights, mean, operators, sites, by_design=by_design)


def _operators(block: JointBlock, stated: tuple[Any, ...]) -> list[Operator]:
    """The vectors of a sum at θ."""
    _, _, seconds, locations, scales, _ = stated
    found = list[Operator]()
    for kind, second, location, scale in zip(block.kinds or (), seconds, locations, scales, strict=True):
        if kind == "independent":
            found.append(CoefficientsOperator(second, location, scale))
        elif kind == "kronecker":
            found.append(KroneckerOperator(second, np.sign(scale)))
        else:
            found.append(DenseOperator(second, location, centred=kind == "centred", multiplier=scale))
    return found


def _of_coefficients(
    block: JointBlock, stated: tuple[Any, ...], sites: GaussianSites, like: Any
) -> Conditional:
    """Coefficients at θ, in the cheapest of three forms; of a moving A the first one decides for all."""
    design, mean, spread, location, scale, _ = stated
    operator, moves = CoefficientsOperator(spread, location, scale), block.has_moving_design
    arrow = _arrow(design, sites, like, moves=moves)
    if arrow is not None:
        return ArrowConditional(arrow, mean, operator, sites)
    n, k = design.shape
    if k > n:
        return SiteSpace(mean, [Term(operator, design)], sites, is_sum=False, by_design=moves)
    if moves:
        return LatentSpace(MovingWeights(design, sites), mean, [operator], sites, is_sum=False, by_design=True)
    weights = StandingWeights(design, sites) if like is None else like.weights.at(sites, None)
    return LatentSpace(weights, mean, [operator], sites, is_sum=False)
def _arrow(design: Any, sites: GaussianSites, like: Any, *, moves: bool) -> Arrow | MovingArrow | None:
    """A whose columns have no row in common, with its weights; None of another."""
    precision = sites.standing[0].precision
    if like is not None:
        known = getattr(like, "arrow", None)
        if known is None or not moves:
            return None if known is None else known.at(sites)
        return MovingArrow(known.pattern, design.data, precision)
    if moves:
        # An array may be 0 at one θ alone. With more columns than rows Ā is the sum of differences that the (n, n) form
        # does not lose.
        pattern = arrow_pattern(design) if sparse.issparse(design) and design.shape[1] <= design.shape[0] else None
        return None if pattern is None else MovingArrow(pattern, design.data, precision)
    rows = sparse.csr_array(design, copy=True)
    rows.eliminate_zeros()
    pattern = arrow_pattern(rows)
    return None if pattern is None else Arrow(pattern, rows.data, precision)


def _moves_weights(block: JointBlock) -> bool:
    """Whether θ moves A, or w̄ by more than one multiple for all."""
    return block.has_moving_design or (block.kinds is not None and block.has_moving_sites)


def has_dear_hyperparameters(block: JointBlock) -> bool:
    """Whether a θ costs an (n, n) factor: a value is then a third of a gradient, and z moves for next to nothing.

    Coefficients are not dear: what is factorised there is had with its derivative.
    """
    has_factor = block.kinds is not None or block.design_shape is None
    return has_factor and (not block.fixed_covariance or block.has_moving_sites)


def n_noise(block: JointBlock) -> int:
    """The size of a block's z."""
    if block.design_shape is None:
        return block.size + block.n_sites
    n, k = block.design_shape
    return k + (n if _moves_weights(block) else min(n, k))
