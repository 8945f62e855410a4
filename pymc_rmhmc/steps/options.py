"""The options of `RMHMC`, checked when the step is built and settled into what a chain needs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from pymc_rmhmc.chains.plan import DEFAULT_MAX_STEPS, DEFAULT_PATH_LENGTH, Plan
from pymc_rmhmc.dynamics.option_numbers import real_number, whole_number
from pymc_rmhmc.errors import ConfigurationError, shown
from pymc_rmhmc.kernels.kernel import Trajectory
from pymc_rmhmc.kernels.trajectories import FixedSteps, JitteredPath
from pymc_rmhmc.kernels.u_turn import UTurn
from pymc_rmhmc.steps.metric_choice import choose_integrator, choose_metric, curvature_of, policy_of

__all__ = ["Options", "Plan", "settle"]

INITS = ("auto", "laplace", "keep")
TRAJECTORIES = ("auto", "static", "nuts")

# Of a trajectory that ends where it turns back.
DEFAULT_MOST_LEAVES = 1023
DEFAULT_JITTER = 0.1
# In the chart that is read from the graph what is left is less normal: a scale's logarithm moves slowly, and paths half
# as long again make more effective draws for each gradient on hierarchies.
DEFAULT_GENERAL_PATH_LENGTH = 2.5
DEFAULT_GENERAL_JITTER = 0.3
# From the same measurement: an explicit step is cheap against what PyMC spends on a draw, and a higher
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
    if options.init not in INITS:
        raise ConfigurationError(
            f"init must be one of {', '.join(INITS)}, got {shown(options.init)}. It says where a chain starts; "
            'init="auto" is the default.'
        )
    if options.blas_threads is not None:
        whole_number("blas_threads", options.blas_threads)
    step_size = _step_size(options)
    trajectory = _trajectory(options)
    longest = _longest_step(trajectory, step_size, integrator=integrator)
    if step_size is not None:
        _check_reach(step_size, trajectory)
    if step_size is not None and step_size > longest:
        raise ConfigurationError(
            f"step_size={step_size:.3g} is longer than a path, which is at most {longest:.3g} long. "
            "Give a smaller step_size, a longer path_length, or n_steps."
        )
    target = None if options.target_accept is None else real_number("target_accept", options.target_accept)
    kind = "implicit" if integrator.implicit else "explicit"
    default_target = DEFAULT_TARGET_ACCEPT[kind]
    return Plan(
        metric=metric,
        policy=policy_of(metric),
        curvature=curvature_of(metric),
        integrator=integrator,
        trajectory=trajectory,
        general_trajectory=_general_trajectory(options, trajectory),
        may_repeat=options.n_steps is None,
        step_size=step_size,
        initial_step_size=INITIAL_STEP_SIZE[kind],
        max_step_size=longest,
        target_accept=default_target if target is None else target,
        held_target_accept=DEFAULT_HELD_TARGET_ACCEPT if target is None else target,
        init=options.init,
        covering_step_size=_covering_step(options, trajectory, integrator),
    )


def _check_reach(step_size: float, length: Trajectory) -> None:
    """Steps of a given size must be able to walk the path: cut short, all paths would be one, without jitter."""
    if not isinstance(length, JitteredPath):
        return
    needed = math.ceil(length.path_length * (1.0 + length.jitter) / step_size)
    if needed > length.max_steps:
        raise ConfigurationError(
            f"step_size={step_size:.3g} needs {shown(needed)} steps for a path of up to "
            f"{length.path_length * (1.0 + length.jitter):.3g}, and max_steps is {shown(length.max_steps)}: give a "
            "larger step_size or max_steps, a shorter path_length, or n_steps."
        )


def _longest_step(length: Trajectory, step_size: float | None, *, integrator: Any) -> float:
    """The largest step size that may be found or given.

    Where the density is normal the flat metric's flow is a rotation, and a step ε of the implicit midpoint one by
    ``2 atan(ε/2)``: both are accepted whatever the angle. Past a quarter of a turn acceptance would tune the first to
    none at all, and the second to half a turn, there and back, with equations that grow harder.
    """
    tuned = step_size is None
    if isinstance(length, JitteredPath):
        whole = length.path_length * (1.0 + length.jitter)
        is_bounded = tuned and integrator.implicit and integrator.accepts_any_step
        return min(whole, DEFAULT_PATH_LENGTH) if is_bounded else whole
    if isinstance(length, UTurn) and integrator.accepts_any_step:
        return DEFAULT_PATH_LENGTH
    if isinstance(length, FixedSteps) and tuned and integrator.accepts_any_step:
        return DEFAULT_PATH_LENGTH / length.n_steps
    return math.inf


def _covering_step(options: Options, length: Trajectory, integrator: Any) -> float:
    """The step size below which a path that is cut short need not be accepted as often; 0 for none.

    None where the target or the number of steps is the user's, or where steps that are too long end in equations
    without a solution; and who asks for few steps in a path is given the few that are accepted.
    """
    if options.target_accept is not None or integrator.implicit or not isinstance(length, JitteredPath):
        return 0.0
    return min(length.covering, length.path_length / DEFAULT_MAX_STEPS)


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


def _trajectory(options: Options) -> Trajectory:
    """How a draw is made: a path whose steps are counted beforehand, or one that ends where it turns back."""
    if options.trajectory not in TRAJECTORIES:
        known = ", ".join(f'"{name}"' for name in TRAJECTORIES)
        raise ConfigurationError(
            f"Unknown trajectory {shown(options.trajectory)}: it must be one of {known}. "
            'trajectory="auto" is the default.'
        )
    if options.trajectory == "nuts":
        return _u_turn(options)
    if options.n_steps is not None:
        others = {"path_length": options.path_length, "jitter": options.jitter, "max_steps": options.max_steps}
        given = [name for name, value in others.items() if value is not None]
        if given:
            raise ConfigurationError(
                f"n_steps fixes the number of steps, but {' and '.join(given)} would change it: leave one out."
            )
        return FixedSteps(options.n_steps)
    return JitteredPath(
        DEFAULT_PATH_LENGTH if options.path_length is None else options.path_length,
        DEFAULT_JITTER if options.jitter is None else options.jitter,
        DEFAULT_MAX_STEPS if options.max_steps is None else options.max_steps,
    )


def _u_turn(options: Options) -> UTurn:
    """A trajectory that ends where it turns back, with as many doublings as `max_steps` allows."""
    others = {"n_steps": options.n_steps, "path_length": options.path_length, "jitter": options.jitter}
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise ConfigurationError(
            f'{" and ".join(given)} {"fix" if len(given) > 1 else "fixes"} how long a trajectory is, but with '
            'trajectory="nuts" it ends where it turns back: leave one of them out. max_steps limits it.'
        )
    most = DEFAULT_MOST_LEAVES if options.max_steps is None else whole_number("max_steps", options.max_steps)
    return UTurn(max(1, int(most + 1).bit_length() - 1))


def _general_trajectory(options: Options, trajectory: Trajectory) -> Trajectory:
    """The same path, but longer and of more varied length, unless one is asked for."""
    if not isinstance(trajectory, JitteredPath):
        return trajectory
    return replace(
        trajectory,
        path_length=DEFAULT_GENERAL_PATH_LENGTH if options.path_length is None else trajectory.path_length,
        jitter=DEFAULT_GENERAL_JITTER if options.jitter is None else trajectory.jitter,
    )
