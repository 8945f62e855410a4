"""Trajectories and chains of a Hamiltonian on its own, without PyMC's bookkeeping, for pictures of few dimensions."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray

from pymc_rmhmc import RMHMC, GeneralizedLeapfrog, GraphMetric
from pymc_rmhmc.kernels.trajectories import FixedSteps

__all__ = ["Chain", "Path", "constant_metric", "flow_of", "follow", "run_chain"]

type Array = NDArray[np.float64]


@dataclass
class Path:
    """Positions and momenta (steps + 1, d) and energies (steps + 1,) along a trajectory; shorter if a step failed."""

    q: Array
    p: Array
    energy: Array


@dataclass
class Chain:
    """Draws (draw, d), mean acceptance, the share of failed trajectories, and the processor's seconds."""

    draws: Array
    acceptance: float
    failed: float
    seconds: float


def constant_metric(matrix: Array) -> GraphMetric:
    """The same matrix everywhere: with the identity this is HMC with a unit mass."""
    return GraphMetric(lambda model: pt.as_tensor_variable(np.asarray(matrix, dtype=float)), name="constant")


def flow_of(model: pm.Model, metric: Any) -> Any:
    """The Hamiltonian of a whole model in a metric."""
    step = RMHMC(metric=metric, step_size=0.1, n_steps=1, init="keep", model=model)
    recipe = step._samplers[0].density
    recipe.bind(model.initial_point())
    return recipe.coordinates(recipe.adapter.initial()).hamiltonian


def follow(flow: Any, position: Array, momentum: Array, step_size: float, n_steps: int, integrator: Any = None) -> Path:
    """Follow the flow from a position and a momentum; without an integrator by the generalised leapfrog."""
    state = flow.state(np.asarray(position, dtype=float))
    state = type(state)(state.point, np.asarray(momentum, dtype=float))
    states = [state]
    mover = integrator or GeneralizedLeapfrog()
    for _ in range(n_steps):
        step = mover.step(flow, states[-1], step_size)
        if step.state is None:
            break
        states.append(step.state)
    return Path(
        np.array([s.position for s in states]), np.array([s.momentum for s in states]),
        np.array([flow.energy(s) for s in states]),
    )  # fmt: skip


def run_chain(
    flow: Any, start: Array, draws: int, step_size: float, n_steps: Callable[[np.random.Generator], int], seed: int,
    integrator: Any = None,
) -> Chain:  # fmt: skip
    """Sample with so many steps in a trajectory, drawn for each."""
    rng, mover = np.random.default_rng(seed), integrator or GeneralizedLeapfrog()
    state, accepted, failed = flow.state(np.asarray(start, dtype=float)), 0.0, 0
    kept, began = [], time.thread_time()
    for _ in range(draws):
        moved = FixedSteps(n_steps(rng)).move(flow, mover, state, step_size, rng)
        state, accepted, failed = moved.state, accepted + moved.acceptance, failed + bool(moved.failure)
        kept.append(state.position)
    return Chain(np.array(kept), accepted / draws, failed / draws, time.thread_time() - began)
