"""The table of trajectories: which one options ask for, and how long its steps may be.

This is the one place that asks which trajectory it has.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Protocol

from pymc_rmhmc.chains.plan import DEFAULT_MAX_STEPS, DEFAULT_PATH_LENGTH
from pymc_rmhmc.errors import ConfigurationError, counted, shown
from pymc_rmhmc.kernels.kernel import Trajectory
from pymc_rmhmc.kernels.trajectories import FixedSteps, JitteredPath, UTurn
from pymc_rmhmc.option_numbers import whole_number

__all__ = [
    "check_reach", "check_step", "choose_trajectory", "covering_step", "for_blocks", "for_hierarchies", "is_path_free",
    "longest_step", "trajectory_in_words",
]  # fmt: skip

TRAJECTORIES = ("auto", "static", "nuts")

# Of a trajectory that ends where it turns back.
DEFAULT_MOST_LEAVES = 1023
DEFAULT_JITTER = 0.1
# In the chart that is read from the graph what is left is less normal: a scale's logarithm moves slowly. Somewhat
# longer paths make more effective draws per gradient on hierarchies (2.0 of 1.6, 2.0 and 2.5).
DEFAULT_GENERAL_PATH_LENGTH = 2.0
DEFAULT_GENERAL_JITTER = 0.3
# Where a metric drops what a process and its hyperparameters share, they move together only along long paths. The
# worst hyperparameter of a classifier of 100 values had 0.2, 0.3 and 0.9 effective draws a second at 1.7, 5 and 10,
# and no more at 20.
DEFAULT_BLOCK_PATH_LENGTH = 10.0


class Asked(Protocol):
    """What the user says of trajectories; None where nothing was said."""

    @property
    def trajectory(self) -> str:
        """The name."""

    @property
    def n_steps(self) -> Any:
        """A number of steps that is the same for all."""

    @property
    def path_length(self) -> Any:
        """The mean length."""

    @property
    def jitter(self) -> Any:
        """How much lengths vary."""

    @property
    def max_steps(self) -> Any:
        """The most steps."""

    @property
    def target_accept(self) -> Any:
        """The acceptance to reach."""


def choose_trajectory(options: Asked) -> Trajectory:
    """Return how a draw is made: a path whose steps are counted beforehand, or one that ends where it turns back."""
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


def _u_turn(options: Asked) -> UTurn:
    """Return a trajectory that ends where it turns back, with as many doublings as `max_steps` allows."""
    others = {"n_steps": options.n_steps, "path_length": options.path_length, "jitter": options.jitter}
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise ConfigurationError(
            f'{" and ".join(given)} {"fix" if len(given) > 1 else "fixes"} how long a trajectory is, but with '
            'trajectory="nuts" it ends where it turns back: leave one of them out. max_steps limits it.'
        )
    most = DEFAULT_MOST_LEAVES if options.max_steps is None else whole_number("max_steps", options.max_steps)
    return UTurn(max(1, int(most + 1).bit_length() - 1))


def trajectory_in_words(trajectory: Trajectory) -> str:
    """Say how long a trajectory is, after «each trajectory is»."""
    if isinstance(trajectory, UTurn):
        return f"doubled until it turns back, with fewer than {2**trajectory.max_depth} steps"
    if isinstance(trajectory, FixedSteps):
        return f"{counted(trajectory.n_steps, 'step')} long"
    path = trajectory.path
    varied = f" ± {100.0 * path.jitter:g} %" if path.jitter else ""
    return f"a path of length {path.path_length:g}{varied}, of at most {counted(path.max_steps, 'step')}"


def for_hierarchies(options: Asked, trajectory: Trajectory) -> Trajectory:
    """Return the same path, but longer and of more varied length, unless one is asked for."""
    return _longer(options, trajectory, DEFAULT_GENERAL_PATH_LENGTH, DEFAULT_GENERAL_JITTER)


def is_path_free(options: Asked) -> bool:
    """Return whether the length of paths is left to tuning."""
    return options.path_length is None and options.jitter is None


def for_blocks(options: Asked, trajectory: Trajectory) -> Trajectory:
    """Return the same path, but much longer, unless one is asked for."""
    return _longer(options, trajectory, DEFAULT_BLOCK_PATH_LENGTH, DEFAULT_JITTER)


def _longer(options: Asked, trajectory: Trajectory, length: float, jitter: float) -> Trajectory:
    """Return a path with another length and jitter in the place of what is not asked for."""
    path = trajectory.path
    if path is None:
        return trajectory
    length = length if options.path_length is None else path.path_length
    jitter = jitter if options.jitter is None else path.jitter
    longer: Trajectory = replace(path, path_length=length, jitter=jitter)
    return longer


def check_reach(step_size: float, trajectory: Trajectory) -> None:
    """Check that steps of a given size can walk the path: cut short, all paths would be one, without jitter."""
    path = trajectory.path
    if path is None:
        return
    needed = math.ceil(path.longest / step_size)
    if needed > path.max_steps:
        raise ConfigurationError(
            f"step_size={step_size:.3g} needs {shown(needed)} steps for a path of up to {path.longest_in_words}, and "
            f"max_steps is {shown(path.max_steps)}: give a larger step_size or max_steps, a shorter path_length, or "
            "n_steps."
        )


def check_step(step_size: float, trajectory: Trajectory, longest: float) -> None:
    """Check that a step of a given size fits into the path; without a path, into the most that is ever of use."""
    if step_size <= longest:
        return
    path = trajectory.path
    if path is None:
        raise ConfigurationError(
            f"step_size={step_size:.3g} is too long: a longer step than {longest:.3g} turns back within itself. Give a "
            "smaller step_size, or leave it out."
        )
    raise ConfigurationError(
        f"step_size={step_size:.3g} is longer than a path, which is at most {path.longest_in_words} long. Give a "
        "smaller step_size, a longer path_length, or n_steps."
    )


def longest_step(trajectory: Trajectory, step_size: float | None, *, integrator: Any) -> float:
    """Return the largest step size that may be found or given.

    Where the density is normal the flat metric's flow is a rotation, and a step ε of the implicit midpoint one by
    ``2 atan(ε/2)``: both are accepted whatever the angle. Past a quarter of a turn acceptance would tune the first to
    none at all, and the second to half a turn, there and back, with equations that grow harder.
    """
    tuned = step_size is None
    if isinstance(trajectory, JitteredPath):
        is_bounded = tuned and integrator.implicit and integrator.accepts_any_step
        return min(trajectory.longest, DEFAULT_PATH_LENGTH) if is_bounded else trajectory.longest
    if isinstance(trajectory, UTurn) and integrator.accepts_any_step:
        return DEFAULT_PATH_LENGTH
    if isinstance(trajectory, FixedSteps) and tuned and integrator.accepts_any_step:
        return DEFAULT_PATH_LENGTH / trajectory.n_steps
    return math.inf


def covering_step(options: Asked, trajectory: Trajectory, integrator: Any) -> float:
    """Return the step size below which a path that is cut short need not be accepted as often; 0 for none.

    None where the target or the number of steps is the user's, or where steps that are too long end in equations
    without a solution; and who asks for few steps in a path is given the few that are accepted.
    """
    path = trajectory.path
    if path is None or options.target_accept is not None or integrator.implicit:
        return 0.0
    return min(path.covering, path.path_length / DEFAULT_MAX_STEPS)
