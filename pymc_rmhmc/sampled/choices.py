"""The tables of metrics, integrators and trajectories: which one options ask for, and what a chain does with each.

This is the one place that asks which of them it has.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Protocol

from pymc_rmhmc.chains.conditional_density import DEFAULT_MAX_STEPS, DEFAULT_PATH_LENGTH
from pymc_rmhmc.dynamics.integrators import GeneralizedLeapfrog, ImplicitMidpoint, RotationSplitting
from pymc_rmhmc.dynamics.solvers import AndersonSolver
from pymc_rmhmc.dynamics.tao import ExplicitTao
from pymc_rmhmc.errors import ConfigurationError, counted, shown
from pymc_rmhmc.kernels.kernel import Trajectory
from pymc_rmhmc.kernels.trajectories import FixedSteps, JitteredPath, UTurn
from pymc_rmhmc.latent.charts.site import SitePolicy
from pymc_rmhmc.metrics import METRICS, CurvatureMetric, FlatMetric
from pymc_rmhmc.usage import switch, whole_number

__all__ = [
    "METRIC_NAMES", "check_reach", "check_step", "choose_integrator", "choose_metric", "choose_trajectory",
    "covering_step", "curvature_of", "for_blocks", "for_hierarchies", "integrator_in_words", "is_path_free",
    "longest_step", "policy_of", "trajectory_in_words",
]  # fmt: skip



INTEGRATORS: dict[str, Any] = {"generalized_leapfrog": GeneralizedLeapfrog, "implicit_midpoint": ImplicitMidpoint}
# Those with numbers of the user's own have no string.
OBJECTS = (*INTEGRATORS.values(), ExplicitTao)
TAO_NAMES = ("explicit_tao", "tao")
METRIC_NAMES = ("auto", *METRICS)
# What a metric of a user's own must have.
METRIC_ATTRIBUTES = ("bind", "name")

# The largest residual of a solved equation, in the metric's scale, about one standard deviation.
DEFAULT_SOLVER_TOL = 1e-9
# Evaluations of an equation per attempt.
DEFAULT_SOLVER_MAX_ITER = 100


def choose_metric(metric: Any, auto_metric: str) -> Any:
    """Return a metric object, from an object, a class or a string.

    Raises a `ConfigurationError` if it is none.
    """
    if isinstance(metric, str):
        name = auto_metric if metric == "auto" else metric
        if name not in METRICS:
            known = ", ".join(f'"{m}"' for m in METRIC_NAMES)
            raise ConfigurationError(
                f"Unknown metric {shown(metric)}: it must be one of {known}, or a metric object such as FlatMetric()."
            )
        return METRICS[name]()
    if isinstance(metric, type) and metric in METRICS.values():
        return metric()
    missing = [name for name in METRIC_ATTRIBUTES if not hasattr(metric, name)]
    if missing or isinstance(metric, type):
        lacks = f", which lacks {', '.join(missing)}" if 0 < len(missing) < len(METRIC_ATTRIBUTES) else ""
        raise ConfigurationError(
            f"metric must be a string or a metric such as FlatMetric() or HessianMetric(), got {shown(metric)}{lacks}. "
            'Leave it out, or give metric="flat".'
        )
    return metric


def policy_of(metric: Any) -> SitePolicy | None:
    """Return what tuning does with a metric's sites; None if it uses none."""
    return metric.policy if isinstance(metric, FlatMetric) else None


def curvature_of(metric: Any) -> str | None:
    """Return the likelihood's curvature that a metric is made of; None if it asks for none."""
    return metric.name if isinstance(metric, CurvatureMetric) else None


def default_integrator(metric: Any) -> type[RotationSplitting | GeneralizedLeapfrog | ImplicitMidpoint]:
    """Return the integrator that belongs to a metric, if the user chooses no other."""
    if isinstance(metric, FlatMetric):
        return RotationSplitting
    # SoftAbs is factorised in each evaluation of the leapfrog's drift anyway, and the midpoint's steps are longer.
    return ImplicitMidpoint if getattr(metric, "source", None) == "hessian" else GeneralizedLeapfrog


def choose_integrator(
    metric: Any, wanted: Any, solver_tol: float | None, solver_max_iter: int | None, check_reversibility: bool | None
) -> Any:
    """Return an integrator that fits the metric, with its solver.

    Raises a `ConfigurationError` if there is no such integrator, or an option has no effect on it.
    """
    options = {
        "integrator": wanted, "solver_tol": solver_tol, "solver_max_iter": solver_max_iter,
        "check_reversibility": check_reversibility,
    }  # fmt: skip
    given = [name for name, value in options.items() if value is not None]
    default = default_integrator(metric)
    if not default.implicit:
        _check_needs_none(metric, wanted, given)
        return default()
    if isinstance(wanted, OBJECTS):
        if len(given) > 1:
            raise ConfigurationError(
                f"{', '.join(given[1:])}: {_where_set(wanted)}"
            )
        return wanted
    solver = AndersonSolver(
        DEFAULT_SOLVER_TOL if solver_tol is None else solver_tol,
        DEFAULT_SOLVER_MAX_ITER if solver_max_iter is None else solver_max_iter,
    )
    check = check_reversibility is None or switch("check_reversibility", check_reversibility)
    return _integrator_class(default if wanted is None else wanted)(solver, check_reversibility=check)


def integrator_in_words(integrator: Any) -> str:
    """Name an integrator as a user would, and say if its steps are not checked."""
    if isinstance(integrator, ExplicitTao):
        return f"ExplicitTao(omega={integrator.omega:g})"
    name = next(name for name, made in INTEGRATORS.items() if isinstance(integrator, made))
    return f'"{name}"' + ("" if integrator.check_reversibility else " without a check that its steps can be reversed")


def _check_needs_none(metric: Any, integrator: Any, given: list[str]) -> None:
    """Raise for options of a solver, or an integrator, that a metric has no use for."""
    if integrator is not None and not isinstance(integrator, OBJECTS):
        _integrator_class(integrator)  # an unknown one is better called so
    if given:
        several = len(given) > 1
        raise ConfigurationError(
            f"{' and '.join(given)} {'have' if several else 'has'} no effect here: the {metric.name} metric is "
            f"integrated explicitly, by rotations. Leave {'them' if several else 'it'} out, or choose "
            'metric="hessian" or metric="fisher".'
        )


def _integrator_class(integrator: Any) -> Any:
    """Return the class that a string or class names."""
    if isinstance(integrator, type) and integrator in INTEGRATORS.values():
        return integrator
    if isinstance(integrator, str) and integrator in INTEGRATORS:
        return INTEGRATORS[integrator]
    if integrator in (ExplicitTao, *TAO_NAMES):
        raise ConfigurationError(
            "ExplicitTao needs a binding: give RMHMC(integrator=ExplicitTao(omega=10.0), step_size=0.1), with an omega "
            "well above the frequency of the motion."
        )
    known = ", ".join(f'"{name}"' for name in INTEGRATORS)
    raise ConfigurationError(
        f"Unknown integrator {shown(integrator)}: it must be one of {known}, GeneralizedLeapfrog(), ImplicitMidpoint() "
        "or ExplicitTao(omega=10.0). The flat metric takes none: leave integrator out."
    )


def _where_set(integrator: Any) -> str:
    """Say where a solver's options are set if the integrator was given as an object."""
    if not integrator.implicit:
        return "these have no effect, since ExplicitTao solves no equations. Leave them out."
    return (
        f"set these on the integrator itself, {type(integrator).__name__}(AndersonSolver(...), "
        "check_reversibility=...), or name the integrator by a string."
    )


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
