"""What a block's latent values are at one θ: a prior times Gaussian sites, and standard normal noise placed by both.

Sites ``exp(bᵀη - ½ ηᵀW̄η)`` stand in for the likelihood. For every θ the prior times the sites is a
Gaussian of the latent values, and z ~ N(0, I) is mapped onto it: z is nearly standard normal under the posterior
*whatever θ is*. What the map leaves to the target is

    φ(θ, z) = Σ ℓ(η) - sites(η) + log E(θ),     log E(θ) = log ∫ prior(η; θ) exp sites(η) dη.

The map is that of perturbation sampling, linear in z, with a z for every latent value and more for the sites' noise
(`pymc_rmhmc.latent.solvers`). With a dense covariance, value and gradient take two Choleskys, one inverse and one
Cholesky adjoint, where the square map takes two adjoints and more. No inverse of a covariance is formed.

References
----------
Papandreou and Yuille (2010), Gaussian sampling by local perturbations, for the map; Murray (2016), Differentiation
of the Cholesky decomposition, for the adjoint; Rasmussen and Williams (2006), section 3.6, for sites and B.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.latent.charts.site import GaussianSites
from pymc_rmhmc.latent.operators import Root

__all__ = ["Conditional", "LatentPlacement", "Placement", "Pulled"]

type Array = NDArray[np.float64]


# Not frozen, though nobody writes to it: one is made for every z, and freezing triples what that takes.
@dataclass(slots=True)
class Placement(ABC):
    """Where a noise is placed."""

    eta: Array  # (n,): the sites
    noise: Array  # z
    pulled: Array  # what the derivative needs again: what y is solved from, of n sites or k latent values
    operator: Root  # of the prior
    # (n,) array or float, optional: where the model's variable is the sites less something, this.
    shift: Array | float | None = None

    @property
    @abstractmethod
    def whitened(self) -> Array:
        """Y, of which the prior is standard normal, (k,)."""

    @property
    def latents(self) -> Array:
        """The model's variables, (k,)."""
        return self.operator.to_model(self.whitened) if self.shift is None else np.asarray(self.eta - self.shift)

    @property
    def log_prior(self) -> float:
        """Their log density."""
        return self.operator.log_prior(self.whitened)


@dataclass(slots=True)
class LatentPlacement(Placement):
    """Where a noise is placed, and y there."""

    whitened: Array = field(default_factory=lambda: np.zeros(0))


class Pulled(NamedTuple):
    """The gradient of ``ψ(η) + log E``, given ``∂ψ/∂η`` (n,)."""

    noise: Array  # by z
    mean: Array  # (n,): by m
    vectors: list[Any]  # by what each vector's operator is made of
    # By A, of a sparse one that reads all by its entries; or a list with that by each vector's; None where it is
    # constant.
    design: Any
    pushed: Array  # (n,): the covariance of the sites times ``∂ψ/∂η``


class Conditional(Protocol):
    """A block's latents at one θ as a function of standard normal noise. It never changes."""

    @property
    def log_evidence(self) -> float:
        """``log E``."""

    @property
    def n_noise(self) -> int:
        """The size of z."""

    @property
    def centre(self) -> Array:
        """The sites where z is 0, (n,)."""

    @property
    def centre_whitened(self) -> Array:
        """The y where z is 0, (k,)."""

    @property
    def mean(self) -> Array:
        """The sites where y is 0, (n,)."""

    @property
    def weighted(self) -> tuple[Array, Array, Array] | None:
        """The matrices of `gram` for compiled code, or None where it has none."""

    def predict(self, whitened: Array) -> Array:
        """Return how far from their mean the sites of a y are, (n,)."""

    def with_sites(self, sites: GaussianSites) -> Conditional:
        """Return the same prior times other sites."""

    def mode(self, sites: GaussianSites) -> Array | None:
        """Return the y (k,) that is most likely with other sites; None if there is none."""

    def place(self, noise: Array) -> Placement:
        """Return where a z is placed."""

    def enter(self, values: Array, noise: Array) -> Array:
        """Draw a z given the model's variables, from standard normal noise."""

    def shifted(self, noise: Array, missing: Array) -> Array | None:
        """Return the z nearest to one whose η is this much (n,) further; None where η does not tell the latents."""

    def marginals(self) -> tuple[Array, Array]:
        """Return mean and variance (n,) of the sites under the prior times the sites' own factors."""

    def apply(self, noise: Array) -> Array:
        """Return ``T z`` of the map ``η = centre + T z``, (n,)."""

    def adjoint(self, sites: Array) -> Array:
        """Return ``Tᵀ v`` for a v (n,)."""

    def gram(self, sites: Array) -> Array:
        """Return ``T Tᵀ v``, (n,): the covariance of the sites times v."""

    def matrices_of_parts(self, *, for_good: bool) -> tuple[Array, NDArray[np.int64]] | None:
        """Return the matrices of `gram` where they are worth their price; None where there are none.

        `pymc_rmhmc.latent.rotation.gram_of_parts` takes them. With `for_good` they serve as long as the map does, else
        for some trajectories.
        """

    def pullback(self, placed: Placement, residual: Array) -> Pulled:
        """Return the gradient of ``ψ(η) + log E`` where a z was placed, given ``∂ψ/∂η`` (n,)."""

    def sites_pullback(self, placed: Placement, pulled: Pulled) -> Array:
        """Return the gradient of ``ψ(η) + log E`` by the logarithms of b and of w̄, after `pullback`.

        For each site, (2, n), or summed over all, (2, 1).
        """
