"""What a joint target reads of a model's latent blocks, and each block at one θ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.latent.charts.moving_sites import MovingSites
from pymc_rmhmc.latent.charts.site import GaussianSites
from pymc_rmhmc.latent.forms.conditional import DenseConditional
from pymc_rmhmc.latent.forms.diagonal import DiagonalConditional
from pymc_rmhmc.latent.forms.joined import JoinedConditional
from pymc_rmhmc.latent.forms.kronecker import KroneckerConditional, KroneckerPart
from pymc_rmhmc.latent.forms.moving_design import MovingDesignConditional
from pymc_rmhmc.latent.forms.parts import CoefficientsPart, Part, VectorPart
from pymc_rmhmc.latent.forms.rows import RowsConditional
from pymc_rmhmc.latent.forms.summed import SummedConditional
from pymc_rmhmc.latent.prior import PriorFailure

__all__ = [
    "Bound",
    "Conditional",
    "JointBlock",
    "JointDensity",
    "Sites",
    "conditional_of",
    "has_dear_hyperparameters",
    "n_noise",
    "parts_of",
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


class Conditional(Protocol):
    """A block's latents at one θ as a function of standard normal noise."""

    log_evidence: float

    @property
    def n_noise(self) -> int:
        """The size of z."""

    @property
    def latents(self) -> Array:
        """The model's variables for the noise that was placed last."""

    def with_sites(self, sites: GaussianSites) -> Conditional:
        """The same prior times other sites, which with a design differ in their multiples alone."""

    def place(self, noise: Array) -> Array:
        """The sites of z, (n,)."""

    def enter(self, values: Array, noise: Array) -> Array:
        """A draw of z given the model's variables, from standard normal noise."""

    def log_prior(self) -> float:
        """The log density of the model's variables for the noise that was placed last."""

    def marginals(self) -> tuple[Array, Array]:
        """Mean and variance (n,) of the sites under the prior times the sites' own factors."""

    def pullback(self, residual: Array) -> tuple[Array, Array, Any]:
        """The gradient of ``ψ(η) + log E`` by z and by what `JointBlock.prior_pullback` takes.

        What only another placing would need may be gone afterwards.
        """

    @property
    def centre(self) -> Array:
        """The sites where z is 0, (n,)."""

    def apply(self, noise: Array) -> Array:
        """``T z`` of the map ``η = centre + T z``, (n,); z may have been placed then."""

    def adjoint(self, sites: Array) -> Array:
        """``Tᵀ v``, for a v (n,); more can be placed afterwards."""

    def gram(self, sites: Array) -> Array:
        """``T Tᵀ v``, (n,)."""

    def sites_pullback(self, eta: Array) -> Array:
        """The gradient of ``ψ(η) + log E`` by the logarithms of b and of w̄, of the last pullback and its η.

        As `JointBlock.information`: for each site, (2, n), or with a design for all, (2, 1).
        """


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
    if not isinstance(sites, MovingSites):
        return sites
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
    block: JointBlock, theta: Array, sites: GaussianSites, like: Any = None, *, same_sites: bool = True,
    derivative: bool = True,
) -> Conditional:  # fmt: skip
    """A block at θ, times sites; `like` is one of the block's whose constant parts serve again.

    Without a derivative to come the block lets go, before factors are made, of what that would need.

    Raises
    ------
    PriorFailure
        If the prior cannot be used at θ.
    """
    if block.kinds is not None:
        design, mean, parts, _ = parts_of(block, theta, derivative=derivative)
        if block.design_shape is None:
            return SummedConditional(mean, parts, sites, by_design=block.has_moving_design)
        return JoinedConditional(
            design, mean, parts, sites, like, same_sites=same_sites, by_design=block.has_moving_design
        )
    if block.design_shape is not None:
        design, mean, spread, location, scale, _ = prior_of(block, theta, derivative=derivative)
        form = MovingDesignConditional if block.has_moving_design else DiagonalConditional
        return form(design, mean, spread, location, scale, sites, like)
    mean, covariance, shift = prior_of(block, theta, derivative=derivative)
    if isinstance(covariance, tuple):
        return KroneckerConditional(
            mean, covariance, sites, like, by_covariance=not block.fixed_covariance, same_sites=same_sites
        )
    options = {"centred": block.centred, "by_covariance": not block.fixed_covariance, "same_sites": same_sites}
    if block.rows is not None:
        return RowsConditional(mean, covariance, sites, block.rows, like, shift=shift, **options)
    return DenseConditional(mean, covariance, sites, like, shift=shift, **options)


def has_dear_hyperparameters(block: JointBlock) -> bool:
    """Whether a θ costs an (n, n) factor: a value is then a third of a gradient, and z moves for next to nothing.

    Coefficients are not dear: what is factorised there is had with its derivative.
    """
    has_factor = block.kinds is not None or block.design_shape is None
    return has_factor and (not block.fixed_covariance or block.has_moving_sites)


def parts_of(block: JointBlock, theta: Array, *, derivative: bool = True) -> tuple[Any, Array, list[Part], Array]:
    """A sum's A, m, its parts at θ, and what the sites have beyond the model's latents; see `prior_of`.

    Parts know of their own A where the vectors have one each, and A is None then.

    Raises
    ------
    PriorFailure
        If one of the priors cannot be used at θ.
    """
    given, mean, *stated, shift = prior_of(block, theta, derivative=derivative)
    kinds, parts = block.kinds or (), list[Part]()
    whole, designs = (None, given) if block.design_shape is None else (given, [None] * len(kinds))
    for kind, design, second, location, scale in zip(kinds, designs, *stated, strict=True):
        if kind == "independent":
            parts.append(CoefficientsPart(design, second, location, scale))
        elif kind == "kronecker":
            parts.append(KroneckerPart(design, second, np.sign(scale)))
        else:
            parts.append(VectorPart(design, second, location, centred=kind == "centred", multiplier=scale))
    return whole, mean, parts, shift


def n_noise(block: JointBlock) -> int:
    """The size of a block's z."""
    if block.kinds is not None:
        return block.size + block.n_sites
    if block.design_shape is None:
        return 2 * block.n_sites
    n, k = block.design_shape
    return k + (n if block.has_moving_design else min(n, k))
