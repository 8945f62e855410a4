"""Moves of a joint chain by halves: latent values where ϑ is held, hyperparameters where z is held.

Most of what a step of a joint trajectory costs is θ's: a factor for every prior, and its derivative. With ϑ held, the
latents' Hamiltonian flow costs a few products of matrix and vector. With z held, ϑ follows the flow of an emulated
density, and the density itself is evaluated once, without its derivative: a third of a gradient in place of three or
four. In the chart (ϑ, z) the two are nearly independent, so that taking turns costs little. Where it does cost, both
may move at once: still along the emulator, and with the derivative by z alone.

The same trajectories along a surrogate serve a chain in one density: `SurrogateHMC`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian, GaussianState, SpannedHamiltonian, ValuePoint
from pymc_rmhmc.dynamics.integrators import RotationSplitting, SurrogateFlow, SurrogateSplitting
from pymc_rmhmc.errors import Failure, PriorFailure
from pymc_rmhmc.kernels.kernel import HMC, Cycle, Kernel, Outcome, Sometimes, Transition, merge
from pymc_rmhmc.kernels.trajectories import JitteredPath, transition
from pymc_rmhmc.latent.charts import MarginalChart
from pymc_rmhmc.latent.charts.moving_sites import SiteTrend
from pymc_rmhmc.latent.emulator import Emulator
from pymc_rmhmc.latent.joint_target import JointPoint, JointTarget
from pymc_rmhmc.latent.latents_given_theta import LatentsGivenTheta, LatentsPoint
from pymc_rmhmc.latent.theta_densities import ParametersGivenLatents, ThetaGivenNoise, WithoutThetaForce

__all__ = [
    "ALONG_DENSITY", "ALONG_SURROGATE", "HYPERPARAMETERS", "JOINT", "LATENTS", "Alternation", "BothMove", "DensityMove",
    "HyperparameterMove", "JointMove", "LatentDraw", "LatentMove", "ParameterMove", "SurrogateHMC", "Turn", "TurnMoves",
    "TurnState", "between_joint_moves", "stand", "without_divergence",
]  # fmt: skip

type Array = NDArray[np.float64]

# The kinds of moves from which tuning learns what a surrogate is worth, and what steps the others take.
ALONG_SURROGATE, ALONG_DENSITY = "along a surrogate", "along the density"


@dataclass(frozen=True, slots=True)
class SurrogateHMC[P: ValuePoint]:
    """A trajectory along a surrogate's flow, which asks the density itself once, at the end.

    References
    ----------
    Neal (2011), MCMC using Hamiltonian dynamics, the section on using approximations to compute the trajectory.
    """

    hamiltonian: GaussianHamiltonian[P]
    flow: SurrogateFlow
    length: JitteredPath

    def step(self, state: GaussianState[P], rng: np.random.Generator) -> Transition[GaussianState[P]]:
        """Move; the whole path is one step, which the flow divides as it needs."""
        _, length = self.length.draw(math.inf, rng)
        outcome = transition(self.hamiltonian, self.flow, state, 1, length, rng)
        outcome.kind = ALONG_SURROGATE
        return without_divergence(outcome)


@dataclass(frozen=True, slots=True)
class DensityMove[State, Other]:
    """A trajectory along the density itself, whose states have other coordinates: `enter` goes there."""

    kernel: Kernel[Other]
    enter: Callable[[State], Other]
    leave: Callable[[Other], State]

    def step(self, state: State, rng: np.random.Generator) -> Transition[State]:
        """Go there, move and come back; where the move is rejected, nothing is rounded on the way."""
        outcome: Outcome = self.kernel.step(self.enter(state), rng)
        outcome.state, outcome.kind = self.leave(outcome.state) if outcome.accepted else state, ALONG_DENSITY
        return outcome


def without_divergence[State](outcome: Transition[State]) -> Transition[State]:
    """Count a divergence of the surrogate apart from others: it says nothing of the posterior.

    A start without a density is no divergence of the surrogate.
    """
    if outcome.failure in (Failure.ENERGY, Failure.NON_FINITE) and math.isfinite(outcome.energy):
        outcome.failure, outcome.energy_error, outcome.n_emulator_divergences = Failure.NONE, math.nan, 1
    return outcome


# The kinds of moves that tuning learns from.
LATENTS, HYPERPARAMETERS, JOINT = "latents", "hyperparameters", "joint"
# Of parameters of the likelihoods given the latent values: a quarter of a period, in steps that are good for four times
# the precision that their chart was made for.
PARAMETER_LENGTH, PARAMETER_STEP = JitteredPath(0.5 * math.pi, 0.4, 10), 0.9
SPLITTING = RotationSplitting()


@dataclass(slots=True)
class TurnState:
    """Where a chain stands that moves by halves: z, and its sites where ϑ is held."""

    noise: Array
    point: LatentsPoint

    @property
    def position(self) -> Array:
        """(ϑ, z)."""
        return np.concatenate((self.point.held.standard, self.noise))

    @property
    def seen(self) -> JointPoint:
        """The joint target's point here."""
        return self.point.held.joint(self.noise, self.point)

    @property
    def coordinates(self) -> tuple[Array, Array]:
        """Z, and ``T z``: what a trajectory of z begins at."""
        return self.noise, self.point.displacement


def stand(target: JointTarget, position: Array) -> TurnState:
    """Stand at a (ϑ, z); raise a `PriorFailure` where a prior cannot be used."""
    noise = position[target.n_theta :]
    return TurnState(noise, LatentsGivenTheta(target, position[: target.n_theta]).at_noise(noise))


@dataclass(frozen=True, slots=True)
class LatentMove:
    """A trajectory of z where ϑ is held.

    Steps are at most so long where the sites were fitted, and shorter where those that follow a trend are wider.
    """

    length: JitteredPath
    step_size: float
    trends: Sequence[SiteTrend] = ()

    def step(self, state: TurnState, rng: np.random.Generator) -> Transition[TurnState]:
        """Move z."""
        held = state.point.held
        hamiltonian: Any = SpannedHamiltonian(held)  # whose states are others
        n_steps, size = self.length.draw(self.step_size_at(state), rng)
        outcome: Outcome = transition(
            hamiltonian, SPLITTING, state, n_steps, size, rng, most_finer=self.length.max_steps
        )
        if outcome.accepted:
            state = TurnState(held.noise_at(outcome.state), outcome.state.point)
        outcome.state, outcome.kind = state, LATENTS
        return outcome

    def step_size_at(self, state: TurnState) -> float:
        """Return the step size at the ϑ that is held, which may choose it: it stays as long as z moves.

        Where latent values lie k times as far out as usual, z goes k times as fast into what bounds them. But far from
        where tuning has been k may be anything, and no step is shortened to where a path cannot be walked.
        """
        if not self.trends:
            return self.step_size
        theta = state.point.held.theta
        shorter = self.step_size / max(1.0, *(trend.widening(theta) for trend in self.trends))
        return max(shorter, min(self.step_size, self.length.covering))


@dataclass(frozen=True, slots=True)
class LatentDraw:
    """A draw of a chain in which z alone moves."""

    kernel: HMC[TurnState]  # whose other states are a trajectory's

    def step(self, state: TurnState, rng: np.random.Generator) -> Transition[TurnState]:
        """Move z."""
        held = state.point.held
        outcome: Outcome = self.kernel.step(state, rng)
        if outcome.accepted:  # from z alone, as a chain that is restored here has it
            noise = held.noise_at(outcome.state)
            state = TurnState(noise, held.at_noise(noise))
        outcome.state = state
        return outcome


class FreshLatents:
    """A draw of z where no site sees it: it is standard normal whatever ϑ is."""

    def step(self, state: TurnState, rng: np.random.Generator) -> Transition[TurnState]:
        """Draw z."""
        return Transition(TurnState(rng.standard_normal(state.noise.size), state.point), True, 1.0)


@dataclass(frozen=True, slots=True)
class HyperparameterMove:
    """A trajectory of ϑ along an emulator of its marginal density where z is held, judged by the density."""

    target: JointTarget
    flow: SurrogateFlow
    length: JitteredPath

    def step(self, state: TurnState, rng: np.random.Generator) -> Transition[TurnState]:
        """Move ϑ."""
        along = ThetaGivenNoise(self.target, state.noise)
        phase = GaussianState(along.of(state.point), np.empty(0))
        _, length = self.length.draw(math.inf, rng)
        outcome: Outcome = transition(GaussianHamiltonian(along), self.flow, phase, 1, length, rng)
        without_divergence(outcome)
        if outcome.accepted:
            state = TurnState(state.noise, outcome.state.point.point)
        outcome.state, outcome.kind = state, HYPERPARAMETERS
        return outcome


@dataclass(frozen=True, slots=True)
class BothMove:
    """A trajectory of ϑ and z together; to be made before a draw's turns.

    ϑ follows the emulator and z its own force, which knows of every ϑ on the way. What a turn holds may be what
    keeps the other half where it is: this holds neither. The steps are those of the latents' trajectory.
    """

    target: JointTarget
    splitting: SurrogateSplitting
    length: JitteredPath
    step_size: float

    def step(self, state: TurnState, rng: np.random.Generator) -> Transition[TurnState]:
        """Move both."""
        density = WithoutThetaForce(self.target)
        hamiltonian = GaussianHamiltonian(density)
        n_steps, size = self.length.draw(self.step_size, rng)
        phase = GaussianState(density.standing(state.noise, state.point), np.empty(0))
        outcome: Outcome = without_divergence(transition(hamiltonian, self.splitting, phase, n_steps, size, rng))
        if outcome.accepted:
            there = outcome.state.point
            state = TurnState(there.position[self.target.n_theta :], there.point)
        outcome.state = state
        return outcome


@dataclass(frozen=True, slots=True)
class ParameterMove:
    """A trajectory of the likelihoods' own parameters, every latent value held; to be made before a draw's turns.

    z is drawn anew among those that place the latent values where they are. A turn holds z in place of them: of two
    ways to hold the latents a chain that goes both mixes at least as well as the better, and often better than
    either.

    References
    ----------
    Yu and Meng (2011), To center or not to center: that is not the question, section 2.3.
    """

    target: JointTarget
    chart: MarginalChart

    def step(self, state: TurnState, rng: np.random.Generator) -> Transition[TurnState]:
        """Move the parameters."""
        given = ParametersGivenLatents(self.target.density, state.point.held.theta, state.point.eta)
        density = given.within(self.chart)
        hamiltonian = GaussianHamiltonian(density)
        n_steps, size = PARAMETER_LENGTH.draw(PARAMETER_STEP, rng)
        outcome: Outcome = transition(hamiltonian, SPLITTING, hamiltonian.state(density.start), n_steps, size, rng)
        if outcome.accepted:
            there = self.hold_latents(state, outcome.state.point.theta, rng)
            if isinstance(there, Failure):
                outcome.accepted, outcome.acceptance, outcome.energy_error = False, 0.0, math.nan
                outcome.failure = there
            else:
                state = there
        outcome.state = state
        return outcome

    def hold_latents(self, state: TurnState, theta: Array, rng: np.random.Generator) -> TurnState | Failure:
        """Go to a θ with all latent values, or say why that cannot be done.

        What is placed afterwards is another z: `Alternation` ends with one that is the chain's.
        """
        here = state.point
        latents = [each.latents for each in here.placed or here.held.place(state.noise)]
        try:
            held = LatentsGivenTheta(self.target, self.target.chart.recover(theta), here.held)
        except PriorFailure as failure:
            return failure.failure
        point = held.at(here.eta)
        return point.failure or TurnState(held.enter(latents, rng), point)


@dataclass(frozen=True, slots=True)
class JointMove:
    """A joint trajectory, as of a chain which takes no turns; to be made before a draw's turns."""

    target: JointTarget
    kernel: HMC[GaussianState[JointPoint]]

    def step(self, state: TurnState, rng: np.random.Generator) -> Transition[TurnState]:
        """Move both."""
        outcome: Outcome = self.kernel.step(self.kernel.hamiltonian.state(state.position), rng)
        end, outcome.state = outcome.state.position, state
        if outcome.accepted:
            try:
                outcome.state = stand(self.target, end)
            except PriorFailure as failure:  # it had a factor a moment ago, to the last digit
                outcome = Transition(
                    state, failure=failure.failure, acceptance=outcome.acceptance, n_steps=outcome.n_steps
                )
        outcome.kind = JOINT
        return outcome


@dataclass(frozen=True, slots=True)
class Turn:
    """The latents' move, then the hyperparameters'."""

    latents: Kernel[TurnState]
    hyperparameters: Kernel[TurnState]

    def step(self, state: TurnState, rng: np.random.Generator) -> Transition[TurnState]:
        """Move one half, then the other; the energy is the joint H at the end, of both momenta."""
        latents: Outcome = self.latents.step(state, rng)
        state = latents.state
        # The density of z is in that of ϑ as well.
        energy = latents.energy + state.point.log_density
        latents.state = None
        hyperparameters = self.hyperparameters.step(state, rng)
        turn = merge((latents, hyperparameters))
        turn.energy = energy + hyperparameters.energy
        turn.energy_error = latents.energy_error
        if not hyperparameters.n_emulator_divergences:
            turn.energy_error += hyperparameters.energy_error
        return turn


@dataclass(frozen=True, slots=True)
class Alternation:
    """A draw of a chain that moves ϑ and z in turns: a cycle of turns, and what is done before them."""

    target: JointTarget
    cycle: Cycle[TurnState]

    def step(self, state: TurnState, rng: np.random.Generator) -> Transition[TurnState]:
        """Make one draw."""
        outcome = self.cycle.step(state, rng)
        assert outcome.parts is not None
        if not outcome.parts[-1].accepted:  # the last move of ϑ
            # From ϑ and z alone, as a chain that is restored here has it; and so it is after a move of ϑ.
            noise, held = outcome.state.noise, outcome.state.point.held
            outcome.state = TurnState(noise, (self._owning(held) if held.borrows else held).at_noise(noise))
        return outcome

    def _owning(self, held: LatentsGivenTheta) -> LatentsGivenTheta:
        """Return the same ϑ with factors that belong to it alone, or as it is where rounding leaves it none."""
        try:
            return LatentsGivenTheta(self.target, held.standard)
        except PriorFailure:
            return held


def between_joint_moves(
    target: JointTarget, length: JitteredPath, step_size: float, rounds: int, joint: JointMove
) -> Alternation:
    """Return trajectories of z where ϑ is held, and then a joint one, for a density that no emulator tells."""
    latents = LatentMove(length, step_size, _trends(target))
    return Alternation(target, Cycle((*(latents,) * rounds, joint)))


def _trends(target: JointTarget) -> tuple[SiteTrend, ...]:
    return tuple(sites.trend for sites in target.sites if sites.trend is not None)


@dataclass(frozen=True, slots=True)
class TurnMoves:
    """What the moves of an alternation are made of, for as long as sites and emulator stay."""

    target: JointTarget
    flow: SurrogateFlow
    splitting: SurrogateSplitting
    length: JitteredPath
    trends: tuple[SiteTrend, ...]
    parameters: ParameterMove | None

    @classmethod
    def of(
        cls, target: JointTarget, emulator: Emulator, length: JitteredPath, parameters: MarginalChart | None
    ) -> TurnMoves:
        """Return those of an emulator, and of the chart of the likelihoods' own parameters if it is known."""
        return cls(
            target, SurrogateFlow(emulator), SurrogateSplitting(emulator, target.n_theta), length, _trends(target),
            None if parameters is None else ParameterMove(target, parameters),
        )  # fmt: skip

    def kernel(
        self, step_size: float, rounds: int, *first: Kernel[TurnState], both: float, parameters: float
    ) -> Alternation:
        """Return a draw's moves, of which those of both halves and of the parameters have a probability."""
        target, length = self.target, self.length
        hyperparameters = HyperparameterMove(target, self.flow, length)
        if not target.n_sites:
            return Alternation(target, Cycle((*first, FreshLatents(), hyperparameters)))
        before = (*first, Sometimes(both, BothMove(target, self.splitting, length, step_size)))
        if self.parameters is not None:
            before = (*before, Sometimes(parameters, self.parameters))
        turn = Turn(LatentMove(length, step_size, self.trends), hyperparameters)
        return Alternation(target, Cycle((*before, *(turn,) * rounds)))
