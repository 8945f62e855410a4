"""What a chain says of itself: of a path that its steps do not cover, of sites, of what to do instead."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pymc_rmhmc.diagnostics.failures import ADVICE
from pymc_rmhmc.dynamics.trajectory import JitteredPath, Length
from pymc_rmhmc.errors import Failure

__all__ = ["advice_for", "cut_short", "hardly_moved", "in_model_words", "in_words", "listed", "never_moved",
    "part_of_path", "path_in_words", "sites_kept", "stood_still"]

type Point = dict[str, np.ndarray]

MOST_SAID = 10
HOPELESS = "the metric does not fit the posterior. Reparametrise the model, or sample it with NUTS."
HOPELESS_SITES = (
    "the constant Gaussian sites of the flat metric do not fit the likelihood, which has several modes in a latent "
    "value, or is far from log-concave. "
)
HOPELESS_PRIOR = (
    "the posterior is not what the flat metric takes it for, although the likelihood is log-concave. Look at the "
    "values of the hyperparameters in tuning: a prior may allow some at which the covariance is next to singular, or "
    "explodes. Give narrower priors, or sample all of it with NUTS."
)
# Of the curvatures that a likelihood may give, those that are positive where it has several modes.
ALWAYS_POSITIVE = ("fisher", "softabs")


def in_words(values: Point) -> str:
    """Values by name; of long arrays only how many they are."""
    said = [np.round(v, 3).tolist() if np.size(v) <= MOST_SAID else f"({np.size(v)} values)" for v in values.values()]
    return ", ".join(f"{name} = {value}" for name, value in zip(values, said, strict=True))


def listed(names: Sequence[str]) -> str:
    """Names for a sentence; of many, the first and how many more there are."""
    more = len(names) - MOST_SAID
    return ", ".join(names[:MOST_SAID]) + (f" and {more} more" if more > 0 else "")


def part_of_path(length: Length, step_size: float) -> float:
    """What `max_steps` steps cover of the path; all of it where the number of steps is the user's."""
    return step_size / length.covering if isinstance(length, JitteredPath) else 1.0


def path_in_words(length: Length, step_size: float) -> str:
    """How far trajectories get, where `max_steps` ends them."""
    assert isinstance(length, JitteredPath)
    return (
        f"only steps of {step_size:.2g} are accepted, and {length.max_steps} of them cover "
        f"{length.max_steps * step_size:.2g} of a path of {length.path_length:.2g}"
    )


def cut_short(name: str, path: str) -> str:
    """That `max_steps` ends trajectories before their path does."""
    return (
        f"{name}: {path}, so that it is cut short. The chain is right and slow: raise max_steps, reparametrise the "
        "model, or try another metric."
    )


def sites_kept(name: str, n_dropped: int, n_refits: int) -> str:
    """That sites which tuning found could not be taken; empty where all were."""
    if not n_dropped:
        return ""
    return (
        f"{name}: in tuning the log density was not finite with the sites that draws gave ({n_dropped} of {n_refits} "
        "times), and the sites before were kept. The chain is right, and may be slow."
    )


def in_model_words(value_name: str) -> str:
    """The variable's name of a value variable: without its transform, or the whitening of a Gaussian process."""
    return re.sub(r"_(\w+__|rotated_)$", "", value_name)


def stood_still(name: str, failures: Sequence[Failure]) -> str:
    """That tuning ended with draws that are all the same, and why."""
    causes = Counter(failure for failure in failures if failure)
    if not causes:
        why = "Every proposal was rejected. Start elsewhere with `initvals`, reparametrize the model, or use NUTS."
    else:
        ((cause, count),) = causes.most_common(1)
        meaning, remedy = ADVICE[cause]
        why = f"{count} of their trajectories failed because {meaning} ({cause.name}). To do: {remedy}."
    return f"{name}: no value changed in the last {len(failures)} tuning draws, so the chain stands still. {why}"


def never_moved(name: str, n_draws: int) -> str:
    """That all draws after tuning are the same."""
    return (
        f"{name}: no value changed in {n_draws} draws after tuning. These draws say nothing about the posterior. "
        "Reparametrize the model, or use NUTS."
    )


def hardly_moved(label: str, effective: float, n_draws: int) -> str:
    """That a chain was very slow when tuning ended."""
    return (
        f"{label}: the last {n_draws} tuning draws are worth about {max(1.0, effective):.0f} independent ones. Do not "
        "trust this chain before R-hat and ESS are good. Reparametrize the model, give narrower priors, or compare "
        "with NUTS."
    )


def advice_for(metric: Any, curvatures: Callable[[], set[str]], *, prior_moves: bool) -> str:
    """What to sample with in place of a hopeless metric: one for which the likelihood has a curvature, or NUTS."""
    if not metric.uses_sites:
        return HOPELESS
    # A likelihood has a Hessian for a curvature only where that is never negative.
    if "hessian" in curvatures():
        return HOPELESS_PRIOR if prior_moves else HOPELESS
    metrics = [kind for kind in ALWAYS_POSITIVE if kind in curvatures()]
    if not metrics:
        return f"{HOPELESS_SITES}Sample it with NUTS."
    return (
        f'{HOPELESS_SITES}Sample the latent values with metric="{metrics[0]}" (and hyperparameters with '
        "PyMC's own steps beside it), or all of it with NUTS."
    )
