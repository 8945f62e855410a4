"""A chain that makes the moves of `pymc_rmhmc.kernels.turns` one by one, and knows where it stands.

Kernels that are wrong on purpose are its subclasses: each overrides one move, and whole draws are made of what is left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian, SpannedHamiltonian
from pymc_rmhmc.dynamics.integrators import RotationSplitting, SurrogateFlow, SurrogateSplitting
from pymc_rmhmc.kernels.kernel import HMC, Cycle, Kernel, Transition
from pymc_rmhmc.kernels.trajectories import JitteredPath
from pymc_rmhmc.kernels.turns import (
    Alternation,
    BothMove,
    HyperparameterMove,
    JointMove,
    LatentDraw,
    LatentMove,
    ParameterMove,
    Turn,
    TurnState,
    between_joint_moves,
    stand,
)
from pymc_rmhmc.latent.charts import MarginalChart, MovingSites
from pymc_rmhmc.latent.emulator import Emulator
from pymc_rmhmc.latent.joint_target import JointTarget

ROUNDS = 2


@dataclass(frozen=True)
class Override:
    """A kernel that is a method of the chain."""

    chain: TurningChain
    move: Callable[[np.random.Generator], Transition[Any]]

    def step(self, state: TurnState, rng: np.random.Generator) -> Transition[Any]:
        self.chain.here = state
        outcome = self.move(rng)
        outcome.state = self.chain.here
        return outcome


class TurningChain:
    """What each move leads to becomes where the chain stands."""

    latent_move = LatentMove
    parameter_move = ParameterMove

    def __init__(
        self, target: JointTarget, emulator: Emulator, length: JitteredPath, parameters: MarginalChart | None = None
    ) -> None:
        self.target, self.length, self.parameters = target, length, parameters
        self.flow, self.splitting = SurrogateFlow(emulator), SurrogateSplitting(emulator, target.n_theta)
        self.trends = tuple(s.trend for s in target.sites if isinstance(s, MovingSites) and s.trend is not None)
        self.here: Any = None

    def stand(self, position: np.ndarray) -> None:
        self.here = stand(self.target, position)

    @property
    def joint_point(self):
        return self.here.point.held.joint(self.here.noise, self.here.point)

    def make(self, kernel: Kernel[TurnState], rng: np.random.Generator) -> Transition[Any]:
        outcome = kernel.step(self.here, rng)
        self.here = outcome.state
        return outcome

    def move_latents(self, step_size: float, rng: np.random.Generator):
        return self.make(self.latent_move(self.length, step_size, self.trends), rng)

    def move_hyperparameters(self, rng: np.random.Generator):
        return self.make(HyperparameterMove(self.target, self.flow, self.length), rng)

    def move_both(self, step_size: float, rng: np.random.Generator):
        return self.make(BothMove(self.target, self.splitting, self.length, step_size), rng)

    def move_parameters(self, rng: np.random.Generator):
        return self.make(self.parameter_move(self.target, self.parameters), rng)

    def joint_move(self, step_size: float) -> JointMove:
        hamiltonian = GaussianHamiltonian(self.target)
        return JointMove(self.target, HMC(hamiltonian, RotationSplitting(), self.length, step_size))

    def draw_latents(self, step_size: float, rng: np.random.Generator):
        hamiltonian = SpannedHamiltonian(self.here.point.held)
        return self.make(LatentDraw(HMC(hamiltonian, RotationSplitting(), self.length, step_size)), rng)

    def move_jointly(self, step_size: float, rng: np.random.Generator):
        return self.make(self.joint_move(step_size), rng)

    def draw_between(self, step_size: float, joint_step: float, rng: np.random.Generator) -> list[Transition[Any]]:
        """A trajectory of latents and then one of both."""
        kernel = between_joint_moves(self.target, self.length, step_size, 1, self.joint_move(joint_step))
        return list(self.make(kernel, rng).parts or ())

    def draw(self, step_size: float, rng: np.random.Generator) -> list[Transition[Any]]:
        """Single moves of both halves, in the order in which they are made."""
        latents = Override(self, lambda rng: self.move_latents(step_size, rng))
        turn = Turn(latents, Override(self, self.move_hyperparameters))
        return list(self.make(Alternation(self.target, Cycle((turn,) * ROUNDS)), rng).parts or ())
