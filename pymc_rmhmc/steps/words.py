"""What a chain says of itself: of a path that its steps do not cover, of sites, of what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pymc_rmhmc.dynamics.trajectory import JitteredPath, Length

__all__ = ["advice_for", "cut_short", "in_words", "part_of_path", "path_in_words", "sites_kept"]

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
