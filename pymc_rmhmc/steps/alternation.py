"""A joint chain's draw by halves: latent values where ϑ is held, then hyperparameters where z is.

Of what a step of the joint trajectory costs, most is θ's: a factor for every prior, and its derivative. With ϑ held
the latents' Hamiltonian flow is followed at the price of a few products of matrix and vector. With z held, ϑ follows
the flow of an emulated density, and the density itself is asked once, without its derivative: a third of a gradient in
place of three or four. In the chart (ϑ, z) the two are nearly independent, so that taking turns costs little. Where it
does cost, both may move at once: still along the emulator, and with the derivative by z alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian, GaussianState, SpannedHamiltonian
from pymc_rmhmc.dynamics.integrators import RotationSplitting
from pymc_rmhmc.dynamics.surrogates import SurrogateFlow, SurrogateSplitting
from pymc_rmhmc.dynamics.trajectory import JitteredPath, Transition, transition
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.geometry.charts import MarginalChart, MovingSites
from pymc_rmhmc.geometry.emulator import Emulator
from pymc_rmhmc.geometry.held import HeldNoise, HeldPoint, HeldTheta, WithoutThetaForce
from pymc_rmhmc.geometry.held_sites import HeldSites
from pymc_rmhmc.geometry.joint import JointPoint, JointTarget
from pymc_rmhmc.geometry.prior import PriorFailure

__all__ = ["Alternation", "Round", "together"]

type Array = NDArray[np.float64]

# Two are dearer than one by less than what they add to the tails' effective draws, beside what PyMC spends on a draw,
# and still cost less than one joint trajectory.
ROUNDS = 2
# Of parameters of the likelihoods given the latent values: a quarter of a period, in steps that are good for four times
# the precision that their chart was made for.
PARAMETER_LENGTH, PARAMETER_STEP = JitteredPath(0.5 * math.pi, 0.4, 10), 0.9


@dataclass(slots=True)
class Round:
    """One turn of each.

    Attributes
    ----------
    latents, hyperparameters : Transition
        What became of them, without the states: each keeps the factors of a θ.
    energy : float
        The joint H at the end, of both momenta.
    """

    latents: Transition[Any]
    hyperparameters: Transition[Any]
    energy: float


def together(rounds: Sequence[Round], before: Sequence[Transition[Any]] = ()) -> Transition[Any]:
    """A draw's rounds, and what came before them, as one: sums, the mean acceptance, the last energy."""
    moves = [*before, *(move for turn in rounds for move in (turn.latents, turn.hyperparameters))]
    errors = [move.energy_error for move in moves if not math.isnan(move.energy_error)]
    return Transition(
        None,
        accepted=any(move.accepted for move in moves),
        acceptance=sum(move.acceptance for move in moves) / len(moves),
        energy=rounds[-1].energy,
        energy_error=sum(errors) if errors else math.nan,
        failure=next((move.failure for move in moves if move.failure), Failure.NONE),
        n_steps=sum(move.n_steps for move in moves),
        n_metric_evals=sum(move.n_metric_evals for move in moves),
        n_emulator_divergences=sum(move.n_emulator_divergences for move in moves),
    )


class Alternation:
    """A chain that moves ϑ and z in turns.

    Parameters
    ----------
    target : JointTarget
        The density of (ϑ, z).
    emulator : Emulator
        Of ϑ's marginal log density.
    length : JitteredPath
        The rule for a trajectory's length.
    parameters : MarginalChart, optional
        Of the likelihoods' own parameters given the latent values, for `move_parameters`.
    """

    def __init__(
        self, target: JointTarget, emulator: Emulator, length: JitteredPath, parameters: MarginalChart | None = None
    ) -> None:
        self._target, self._length, self._parameters = target, length, parameters
        self._flow, self._splitting = SurrogateFlow(emulator), RotationSplitting()
        self._both = SurrogateSplitting(emulator, target.n_theta)
        self._trends = [s.trend for s in target.sites if isinstance(s, MovingSites) and s.trend is not None]
        self._noise: Array = np.empty(0)
        self._point: Any = None

    def stand(self, position: Array) -> None:
        """Begin at a (ϑ, z).

        Raises
        ------
        PriorFailure
            If a prior cannot be used there.
        """
        n_theta = self._target.n_theta
        self._point = HeldTheta(self._target, position[:n_theta]).at_noise(position[n_theta:])
        self._noise = position[n_theta:]

    def leave(self) -> None:
        """Let go of the factors, for as long as something else moves the chain."""
        self._point = None

    @property
    def joint_point(self) -> JointPoint:
        """Where the chain stands, or where the last draw has led it."""
        return self._point.held.joint(self._noise, self._point)

    def move_together(self, step_size: float, rng: np.random.Generator) -> Transition[Any]:
        """A trajectory of ϑ and z together; to be made before a draw's turns.

        ϑ follows the emulator and z its own force, which knows of every ϑ on the way. What a turn holds may be what
        keeps the other half where it is: this holds neither.

        Parameters
        ----------
        step_size : float
            Of the latents' trajectory.
        rng : numpy.random.Generator
            For momenta and decision.
        """
        density = WithoutThetaForce(self._target)
        hamiltonian: Any = GaussianHamiltonian(density)
        n_steps, size = self._length.draw(step_size, rng)
        state = GaussianState(density.standing(self._noise, self._point), np.empty(0))
        outcome = self._try(hamiltonian, self._both, state, n_steps, size, rng)
        if outcome.accepted:
            there = outcome.state.point
            self._noise, self._point = there.position[self._target.n_theta :], there.point
        outcome.state = None
        return outcome

    @property
    def moves_parameters(self) -> bool:
        """Whether likelihoods have parameters of their own, whose chart is known."""
        return self._parameters is not None

    def move_parameters(self, rng: np.random.Generator) -> Transition[Any]:
        """A trajectory of the likelihoods' own parameters, every latent value held; to be made before a draw's turns.

        z is drawn anew among those that place the latent values where they are. A turn holds z in place of them: of two
        ways to hold the latents a chain that goes both mixes at least as well as the better, and often better than
        either.

        References
        ----------
        Yu and Meng (2011), To center or not to center: that is not the question, section 2.3.
        """
        assert self._parameters is not None
        here = self._point
        density = HeldSites(self._target.density, here.held.theta, here.eta).within(self._parameters)
        hamiltonian: Any = GaussianHamiltonian(density)
        n_steps, size = PARAMETER_LENGTH.draw(PARAMETER_STEP, rng)
        outcome: Transition[Any] = transition(
            hamiltonian, self._splitting, hamiltonian.state(density.start), n_steps, size, rng
        )
        if outcome.accepted:
            outcome.failure = self._hold_latents(outcome.state.point.theta, rng)
            if outcome.failure:
                outcome.accepted, outcome.acceptance, outcome.energy_error = False, 0.0, math.nan
        outcome.state = None
        return outcome

    def _hold_latents(self, theta: Array, rng: np.random.Generator) -> Failure:
        """Go to a θ with all latent values; where that cannot be done, stay and say why.

        What is placed afterwards is another z: `draw` ends with one that is the chain's.
        """
        here: HeldPoint = self._point
        latents = [conditional.latents for conditional in here.held.conditionals]
        try:
            held = HeldTheta(self._target, self._target.chart.recover(theta), here.held)
        except PriorFailure as failure:
            return failure.failure
        point = held.at(here.eta)
        if not point.failure:
            self._point, self._noise = point, held.enter(latents, rng)
        return point.failure

    def draw(self, step_size: float, rng: np.random.Generator) -> list[Round]:
        """Move the latents, then the hyperparameters, so many times.

        Parameters
        ----------
        step_size : float
            Of the latents' trajectory.
        rng : numpy.random.Generator
            For both.
        """
        rounds = [self._round(step_size, rng) for _ in range(ROUNDS)]
        if not rounds[-1].hyperparameters.accepted:
            # From ϑ and z alone, as a chain that is restored here has it; and so it is after a move of ϑ.
            held = self._point.held
            self._point = (self._owning(held) if held.borrows else held).at_noise(self._noise)
        return rounds

    def _owning(self, held: HeldTheta) -> HeldTheta:
        """The same θ with factors of its own; what it has where it has none, by the last digit."""
        try:
            return HeldTheta(self._target, held.standard)
        except PriorFailure:
            return held

    def _round(self, step_size: float, rng: np.random.Generator) -> Round:
        latents = self._move_latents(step_size, rng)
        # The density of z is in that of ϑ as well.
        energy = latents.energy + self._point.log_density
        hyperparameters = self._move_hyperparameters(rng)
        latents.state = hyperparameters.state = None
        return Round(latents, hyperparameters, energy + hyperparameters.energy)

    def _move_latents(self, step_size: float, rng: np.random.Generator) -> Transition[Any]:
        """A trajectory of z."""
        hamiltonian: Any = SpannedHamiltonian(self._point.held)
        state = hamiltonian.stand(self._noise, self._point.displacement, self._point)
        outcome = self._length.move(hamiltonian, self._splitting, state, self._step_size_here(step_size), rng)
        if outcome.accepted:
            self._noise, self._point = self._point.held.noise_at(outcome.state), outcome.state.point
        return outcome

    def _step_size_here(self, step_size: float) -> float:
        """Of the latents' trajectory at the ϑ that is held, which may choose it: it stays as long as they move.

        Where latent values lie k times as far out as usual, z goes k times as fast into what bounds them. But far from
        where tuning has been k may be anything, and no step is shortened to where a path cannot be walked.
        """
        if not self._trends:
            return step_size
        theta = self._point.held.theta
        shorter = step_size / max(1.0, *(trend.widening(theta) for trend in self._trends))
        return max(shorter, min(step_size, self._length.covering))

    def _move_hyperparameters(self, rng: np.random.Generator) -> Transition[Any]:
        """A trajectory of ϑ along the emulator, judged by the density."""
        along = HeldNoise(self._target, self._noise)
        hamiltonian: Any = GaussianHamiltonian(along)
        # The whole path is one step: the flow divides it as it needs.
        _, length = self._length.draw(math.inf, rng)
        state = GaussianState(along.of(self._point), np.empty(0))
        outcome = self._try(hamiltonian, self._flow, state, 1, length, rng)
        if outcome.accepted:
            self._point = outcome.state.point.point
        return outcome

    def _try(
        self, hamiltonian: Any, integrator: Any, state: GaussianState, n_steps: int, size: float,
        rng: np.random.Generator,
    ) -> Transition[Any]:  # fmt: skip
        """A trajectory to another ϑ, on which the chain keeps no more of where it stands than it must."""
        held: HeldTheta = self._point.held
        has_left = False
        held.lend()
        try:
            outcome = _led(transition(hamiltonian, integrator, state, n_steps, size, rng))
            has_left = outcome.accepted
        finally:  # an interrupted chain may go on
            if not has_left:
                held.regain()
        return outcome


def _led(outcome: Transition[Any]) -> Transition[Any]:
    """Count a divergence of the emulator apart from failures: it says nothing of the posterior."""
    if outcome.failure in (Failure.ENERGY, Failure.NON_FINITE):
        outcome.failure, outcome.energy_error, outcome.n_emulator_divergences = Failure.NONE, math.nan, 1
    return outcome
