"""The joint target where ϑ is held: a density of the latents' z.

The sites are ``η = centre + T z`` with a constant T, and the density sees z through them alone: the form that
`pymc_rmhmc.dynamics.hamiltonian.SpannedHamiltonian` advances in O(n²) a step.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.dynamics.hamiltonian import Advanced, Placed, SpannedState
from pymc_rmhmc.errors import Failure, PriorFailure, failure_of
from pymc_rmhmc.interfaces.joint_density import JointBlock
from pymc_rmhmc.latent.charts.site import GaussianSites
from pymc_rmhmc.latent.conditional import Conditional, Placement
from pymc_rmhmc.latent.joint_target import JointPoint, JointTarget
from pymc_rmhmc.latent.latent_blocks import sites_at
from pymc_rmhmc.latent.rotation import CompiledSites, Spread, advance_rotation, evaluate_sites, gram_of_parts

__all__ = ["LatentsGivenTheta", "LatentsPoint"]

type Array = NDArray[np.float64]


@dataclass(slots=True)
class LatentsPoint:
    """The sites of one z, where ϑ is held."""

    held: LatentsGivenTheta  # the density
    # ``ψ = Σ ℓ(η) - sites(η)``, of which a constant and the standard normal of z make the density of z.
    log_density: float = 0.0
    log_likelihood: float = 0.0  # ``Σ ℓ(η)``
    residual: Array = field(default_factory=lambda: np.zeros(0))  # (n,): ``∂ψ/∂η``, of all blocks
    # `eta`, `slope`: of (k,) arrays, as in `JointPoint`.
    eta: list[Array] = field(default_factory=list)
    slope: list[Array] = field(default_factory=list)
    failure: Failure = Failure.NONE  # NON_FINITE where ψ or its slope is
    # Where z is placed in every block, if it is a z that was evaluated, and not sites.
    placed: list[Placement] | None = None
    known_force: Array | None = None  # `force`, once it is known

    @property
    def force(self) -> Array:
        """``(∂ψ/∂η, T Tᵀ ∂ψ/∂η)`` in one array, (2 n,)."""
        if self.known_force is None:
            self.known_force = np.concatenate((self.residual, self.held.gram(self.residual)))
        return self.known_force

    @property
    def displacement(self) -> Array:
        """``T z``, (n,)."""
        return (self.eta[0] if len(self.eta) == 1 else joined(self.eta)) - self.held.centre


class LatentsGivenTheta:
    """The joint target where ϑ is held: a density of z, O(n²) a value or gradient.

    Raises a `PriorFailure` if a prior cannot be used at θ.

    `target`: of (ϑ, z).
    `standard` (d,): ϑ.
    `like`: one at a θ with the same priors, whose factors serve again.

    Attributes
    ----------
    theta : (d,) array
        θ.
    borrows : bool
        Whether factors are another's: they may differ from this θ's own in their last digits.
    log_marginal : float
        What the target's log density has beyond that of z: of ``log π(θ) + Σ log E(θ)``, what a standard normal of ϑ
        leaves.
    centre : (n,) array
        The sites of all blocks where z is 0.
    apply, adjoint, gram : callable
        ``T z`` of a z, ``Tᵀ v`` and ``T Tᵀ v`` of a v (n,), as `Conditional` has them.
    advances : bool
        Whether `advance` can be asked for.
    """

    def __init__(self, target: JointTarget, standard: Array, like: LatentsGivenTheta | None = None) -> None:
        placed = target.chart.place(standard)
        self.theta, self.standard, self.borrows = placed.theta, standard, like is not None
        if not np.isfinite(self.theta).all():
            raise PriorFailure(Failure.NON_FINITE)
        self._log_rest, _ = target.rest(self.theta)
        self._blocks = [self._block(target, which, like) for which in range(len(target.sites))]
        self.conditionals = [conditional for _, _, conditional in self._blocks]
        latents = self.conditionals[0] if len(self._blocks) == 1 else Together(self.conditionals)
        self.apply, self.adjoint, self.gram = latents.apply, latents.adjoint, latents.gram
        self.log_marginal = self._log_rest + placed.log_volume + 0.5 * float(standard @ standard)
        for conditional in self.conditionals:
            self.log_marginal += conditional.log_evidence
        self.centre = latents.centre
        # ψ and ``T Tᵀ`` for compiled code, where there is one block and the sites see a covariance.
        self._compiled: CompiledSites | None = None
        self._spread: Spread | None = None
        if len(self._blocks) == 1:
            self._spread = self.conditionals[0].weighted
            if target.lasts or target.holds_long:
                matrices = self.conditionals[0].matrices_of_parts(for_good=target.lasts)
                if matrices is not None:
                    self._spread, self.gram = matrices, partial(gram_of_parts, *matrices)
        if self._spread is not None:
            self._compiled = target.compiled_sites(self.theta, self.centre, self._blocks[0][1])
        self.advances = self._compiled is not None

    def __getstate__(self) -> dict[str, object]:
        # An address is of this process alone; without it steps are made one by one.
        return self.__dict__ | {"_compiled": None, "advances": False}

    def _block(
        self, target: JointTarget, which: int, like: LatentsGivenTheta | None
    ) -> tuple[JointBlock, GaussianSites, Conditional]:
        """A block, its sites at θ, and its latents."""
        block = target.density.blocks[which]
        held = target.sites[which]
        # Of the same priors, nothing but the likelihood's parameters has moved.
        if like is not None and not (held.moves and (block.has_moving_sites or held.tilt)):
            return like._blocks[which]
        sites = sites_at(block, self.theta, held)
        if like is not None:
            return block, sites, like.conditionals[which].with_sites(sites)
        return block, sites, target.conditional(which, self.theta, sites, derivative=False)

    def at_noise(self, noise: Array) -> LatentsPoint:
        """Evaluate at z."""
        if not self.centre.size:  # where z is placed is of no use to the density
            return self.at(self._by_block(self.centre))
        placed = self.place(noise)
        point = self.at([each.eta for each in placed])
        point.placed = placed
        return point

    def enter(self, latents: Sequence[Array], rng: np.random.Generator) -> Array:
        """A draw of z among those that place the model's latent variables of all blocks at given values."""
        held = zip(self.conditionals, latents, strict=True)
        return joined([each.enter(values, rng.standard_normal(each.n_noise)) for each, values in held])

    def at_sites(self, displacement: Array) -> LatentsPoint:
        """Evaluate at sites displaced from the centre by ``T z`` (n,)."""
        return self.at(self._by_block(self.centre + displacement))

    def advance(self, origin: Placed, point: LatentsPoint, n_steps: int, step_size: float) -> Advanced:
        """The steps that were made of a trajectory, and where it is then."""
        assert self._compiled is not None
        assert self._spread is not None
        n_steps, finite, (moved, driven, force), gained, eta, log_likelihood, log_density, slope = advance_rotation(
            *self._compiled, self.centre, self._spread, origin.displacement, origin.drive, point.force, n_steps,
            step_size,
        )  # fmt: skip
        failure = Failure.NONE if finite else Failure.NON_FINITE
        end = LatentsPoint(self, log_density, log_likelihood, force[: self.centre.size], [eta], [slope], failure)
        end.known_force = force if finite else None
        return Advanced(n_steps, finite, moved, driven, gained, end)

    def noise_at(self, end: SpannedState) -> Array:
        """A draw of z of those that are where a trajectory has led.

        What the sites do not see of z is standard normal wherever they are, and nothing on the way depends on it: it
        may as well be the momentum's, which is at hand. z itself would take a third longer to come by.
        """
        only, *others = self.conditionals
        shifted = None if others else only.shifted(end.origin.momentum, end.displacement - end.origin.drive)
        return end.position if shifted is None else shifted

    def at(self, placed: list[Array]) -> LatentsPoint:
        """Evaluate at the sites (k,) of every block."""
        if self._compiled is not None:
            log_likelihood, log_density, finite, slope, residual = evaluate_sites(*self._compiled, placed[0])
            failure = Failure.NONE if finite else Failure.NON_FINITE
            return LatentsPoint(self, log_density, log_likelihood, residual, placed, [slope], failure)
        point, residuals = LatentsPoint(self, eta=placed), []
        for (block, sites, _), eta in zip(self._blocks, placed, strict=True):
            log_likelihood, slope, _ = block.likelihood(self.theta, eta)
            at_sites, residual = sites.residual(eta, slope)
            point.log_likelihood += log_likelihood
            point.log_density += log_likelihood - at_sites
            point.slope.append(slope)
            residuals.append(residual)
        point.residual = joined(residuals)
        point.failure = failure_of(point.log_density, point.residual)
        return point

    def place(self, noise: Array) -> list[Placement]:
        """Where z is placed in every block."""
        only, *others = self.conditionals
        if not others:
            return [only.place(noise)]
        parts = split(noise, [each.n_noise for each in self.conditionals])
        return [conditional.place(part) for conditional, part in zip(self.conditionals, parts, strict=True)]

    def _by_block(self, sites: Array) -> list[Array]:
        return [sites] if len(self._blocks) == 1 else split(sites, [block.n_sites for block, _, _ in self._blocks])

    def joint(self, noise: Array, point: LatentsPoint) -> JointPoint:
        """The joint target's point (ϑ, z), without its gradient, of a z and what was found there."""
        return JointPoint(
            position=np.concatenate((self.standard, noise)),
            theta=self.theta,
            eta=point.eta,
            slope=point.slope,
            placed=self.place(noise) if point.placed is None else point.placed,
            log_given=self._log_rest + point.log_likelihood,
            log_density=self.log_marginal + point.log_density,
            failure=point.failure,
        )


class Together:
    """The maps of several blocks as one."""

    def __init__(self, conditionals: Sequence[Conditional]) -> None:
        self._conditionals = conditionals
        self.centre = joined([each.centre for each in conditionals])

    def apply(self, noise: Array) -> Array:
        """Return ``T z``, (n,)."""
        parts = split(noise, [each.n_noise for each in self._conditionals])
        return joined([each.apply(part) for each, part in zip(self._conditionals, parts, strict=True)])

    def adjoint(self, sites: Array) -> Array:
        """Return ``Tᵀ v`` for a v (n,)."""
        return joined([each.adjoint(part) for each, part in self._with_sites(sites)])

    def gram(self, sites: Array) -> Array:
        """Return ``T Tᵀ v``, (n,)."""
        return joined([each.gram(part) for each, part in self._with_sites(sites)])

    def _with_sites(self, sites: Array) -> Iterator[tuple[Conditional, Array]]:
        parts = split(sites, [each.centre.size for each in self._conditionals])
        return zip(self._conditionals, parts, strict=True)


def joined(parts: list[Array]) -> Array:
    """Return arrays one after another."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def split(whole: Array, sizes: Iterable[int]) -> list[Array]:
    """Return the parts of an array that have these sizes."""
    ends = list(itertools.accumulate(sizes, initial=0))
    return [whole[a:b] for a, b in itertools.pairwise(ends)]
