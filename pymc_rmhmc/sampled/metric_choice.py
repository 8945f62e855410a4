"""The table of metrics and integrators: what a chain does with each, and what a user's own must have.

This is the one place that asks which metric or integrator it has.
"""

from __future__ import annotations

from typing import Any

from pymc_rmhmc.dynamics.integrators import GeneralizedLeapfrog, ImplicitMidpoint, RotationSplitting
from pymc_rmhmc.dynamics.solvers import AndersonSolver
from pymc_rmhmc.dynamics.tao import ExplicitTao
from pymc_rmhmc.errors import ConfigurationError, shown
from pymc_rmhmc.latent.site_policy import SitePolicy
from pymc_rmhmc.metrics import METRICS, CurvatureMetric, FlatMetric
from pymc_rmhmc.option_numbers import switch

__all__ = ["METRIC_NAMES", "choose_integrator", "choose_metric", "curvature_of", "integrator_in_words", "policy_of"]

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

    Raises
    ------
    ConfigurationError
        If it is none.
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

    Raises
    ------
    ConfigurationError
        If there is no such integrator, or an option has no effect on it.
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
