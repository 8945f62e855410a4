"""The options of `RMHMC`, checked when the step is built and settled into what a chain needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pymc_rmhmc.chains.plan import Plan
from pymc_rmhmc.dynamics.integrators import RotationSplitting
from pymc_rmhmc.errors import ConfigurationError, shown
from pymc_rmhmc.kernels.kernel import Trajectory
from pymc_rmhmc.option_numbers import real_number, whole_number
from pymc_rmhmc.sampled.metric_choice import choose_integrator, choose_metric, curvature_of, policy_of
from pymc_rmhmc.sampled.trajectory_choice import (
    check_reach,
    check_step,
    choose_trajectory,
    covering_step,
    for_blocks,
    for_hierarchies,
    is_path_free,
    longest_step,
)

__all__ = ["Options", "Plan", "settle", "settle_move"]

INITS = ("auto", "laplace", "keep")

# Measured by benchmarks/path_length.py: an explicit step is cheap against what PyMC spends on a draw, and a higher
# acceptance doubles the tail ESS; an implicit step costs a factorisation, and fewer of them win.
DEFAULT_TARGET_ACCEPT = {"explicit": 0.9, "implicit": 0.8}
# In the time of the Hamiltonian: where the search for a step size begins.
INITIAL_STEP_SIZE = {"explicit": 1.0, "implicit": 0.25}
# Of latent values that move where hyperparameters are held, and once more before a draw is done.
DEFAULT_HELD_TARGET_ACCEPT = 0.8


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for; None where nothing was said. See `RMHMC` for the meaning of each."""

    metric: Any = "auto"
    integrator: Any = None
    step_size: float | None = None
    target_accept: float | None = None
    trajectory: str = "auto"
    path_length: float | None = None
    n_steps: int | None = None
    jitter: float | None = None
    max_steps: int | None = None
    init: str = "auto"
    solver_tol: float | None = None
    solver_max_iter: int | None = None
    check_reversibility: bool | None = None
    blas_threads: int | None = 1


def settle(options: Options, auto_metric: str) -> Plan:
    """Check the options and fill in what was left open.

    Parameters
    ----------
    options : Options
        As the user gave them.
    auto_metric : str
        What ``metric="auto"`` means for the block.

    Raises
    ------
    ConfigurationError
        For anything unknown, out of range, contradictory, or without effect in this combination.
    """
    metric = choose_metric(options.metric, auto_metric)
    integrator = choose_integrator(
        metric, options.integrator, options.solver_tol, options.solver_max_iter, options.check_reversibility
    )
    _check_common(options)
    step_size = _step_size(options)
    integrator.check_step_size(step_size)
    trajectory = choose_trajectory(options)
    trajectory.check_integrator(integrator)
    longest = longest_step(trajectory, step_size, integrator=integrator)
    if step_size is not None:
        check_reach(step_size, trajectory)
        check_step(step_size, trajectory, longest)
    target = None if options.target_accept is None else real_number("target_accept", options.target_accept)
    kind = "implicit" if integrator.implicit else "explicit"
    default_target = DEFAULT_TARGET_ACCEPT[kind]
    return Plan(
        metric=metric,
        policy=policy_of(metric),
        curvature=curvature_of(metric),
        integrator=integrator,
        trajectory=trajectory,
        general_trajectory=for_hierarchies(options, trajectory),
        block_trajectory=for_blocks(options, trajectory),
        may_repeat=options.n_steps is None,
        may_lengthen=step_size is None and trajectory.path is not None and is_path_free(options),
        step_size=step_size,
        initial_step_size=INITIAL_STEP_SIZE[kind],
        max_step_size=longest,
        target_accept=default_target if target is None else target,
        held_target_accept=DEFAULT_HELD_TARGET_ACCEPT if target is None else target,
        init=options.init,
        covering_step_size=covering_step(options, trajectory, integrator),
    )


def settle_move(options: Options, move: Trajectory, target_accept: float, sampler: str) -> Plan:
    """Check and fill in the options of a sampler whose draws are single moves, without an integrator.

    Parameters
    ----------
    options : Options
        As the user gave them; the metric is an object.
    move : Trajectory
        What makes a draw.
    target_accept : float
        The acceptance to reach if the user gives none.
    sampler : str
        Its name, for messages.

    Raises
    ------
    ConfigurationError
        As `settle`.
    """
    _check_common(options)
    target = options.target_accept
    target_accept = target_accept if target is None else real_number("target_accept", target)
    return Plan(
        metric=options.metric,
        policy=policy_of(options.metric),
        curvature=curvature_of(options.metric),
        integrator=RotationSplitting(),
        trajectory=move,
        general_trajectory=move,
        block_trajectory=move,
        may_repeat=False,
        may_lengthen=False,
        step_size=_step_size(options),
        initial_step_size=INITIAL_STEP_SIZE["implicit"],
        max_step_size=math.inf,
        target_accept=target_accept,
        held_target_accept=target_accept,
        init=options.init,
        covering_step_size=0.0,
        sampler=sampler,
        alone=True,
    )


def _check_common(options: Options) -> None:
    """Raise for options that have nothing to do with how draws are made."""
    if options.init not in INITS:
        raise ConfigurationError(
            f"init must be one of {', '.join(INITS)}, got {shown(options.init)}. It says where a chain starts; "
            'init="auto" is the default.'
        )
    if options.blas_threads is not None:
        whole_number("blas_threads", options.blas_threads)


def _step_size(options: Options) -> float | None:
    """Return the fixed step size, with which no target goes; None to adapt."""
    if options.step_size is None:
        return None
    step_size = real_number("step_size", options.step_size)
    if options.target_accept is not None:
        raise ConfigurationError(
            "target_accept tunes the step size, but step_size is given and stays fixed: leave one of them out."
        )
    return step_size
