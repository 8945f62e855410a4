"""Messages of a chain: steps too short for the path, refits that were dropped, and the remedies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from pymc_rmhmc.chains.plan import DEFAULT_MAX_STEPS, DEFAULT_PATH_LENGTH
from pymc_rmhmc.diagnostics.failures import ADVICE, SMALLER_STEPS
from pymc_rmhmc.errors import Failure, listed
from pymc_rmhmc.kernels.trajectories import JitteredPath

__all__ = [
    "IF_SLOW", "advice_for", "barely_moves", "cut_short", "hardly_moved", "in_words", "is_cut_by_options", "more_steps",
    "moved_slowly", "never_moved", "part_of_path", "path_in_words", "sites_kept", "stood_still",
]  # fmt: skip

type Point = dict[str, np.ndarray]

MOST_SAID = 10
HOPELESS = "The metric does not fit this posterior. Reparametrize the model, or use NUTS."
HOPELESS_SITES = (
    "The flat metric's Gaussian approximation does not fit this likelihood, which has several modes in a latent value "
    "or is far from log-concave. "
)
HOPELESS_PRIOR = (
    "The likelihood is log-concave, so the prior is the probable cause. It may allow hyperparameters at which the "
    "covariance is almost singular or an autoregression explodes. Narrow the priors of the hyperparameters, or use "
    "NUTS."
)
IMPROPER = (
    "The probable cause is the Flat or HalfFlat prior of {}: if the data do not bound it, it has no posterior "
    "distribution. Give it a proper prior, such as pm.Normal or pm.HalfNormal."
)
LEAVE_STEP_SIZE_OUT = "Leave step_size out of RMHMC, so that it is adapted."
IF_SLOW = " If slow sampling is acceptable, raise max_steps or give n_steps."
# Of the curvatures that a likelihood may give, those that are positive where it has several modes.
ALWAYS_POSITIVE = ("fisher", "softabs_curvature")


def in_words(values: Point) -> str:
    """Return values by name; of long arrays only their length."""
    said = [np.round(v, 3).tolist() if np.size(v) <= MOST_SAID else f"({np.size(v)} values)" for v in values.values()]
    return ", ".join(f"{name} = {value}" for name, value in zip(values, said, strict=True))


def part_of_path(length: JitteredPath | None, step_size: float) -> float:
    """Return the part of the path that `max_steps` steps cover; 1 where there is no path that is to be covered."""
    return 1.0 if length is None else step_size / length.covering


def path_in_words(length: JitteredPath, step_size: float) -> str:
    """Say how far trajectories get before `max_steps` ends them."""
    return (
        f"the step size is {step_size:.2g}, so max_steps={length.max_steps} covers only "
        f"{length.max_steps * step_size:.2g} of path_length={length.path_length:.3g}"
    )


def barely_moves(name: str, n_draws: int, path: str, advice: str) -> str:
    """Say that a chain would barely move, and give the remedy."""
    return (
        f"{name}: after {n_draws} tuning draws {path}, and the chain would barely move. {advice}"
    )


def is_cut_by_options(length: JitteredPath, covered: float, needed: float) -> bool:
    """Return whether steps that cover so much of the path would cover what is needed of the default path."""
    return covered * length.covering >= needed * DEFAULT_PATH_LENGTH / DEFAULT_MAX_STEPS


def more_steps(length: JitteredPath, step_size: float) -> str:
    """Say which `max_steps` would be enough for the path, or which `path_length` for the steps."""
    longest = length.max_steps * step_size / (1.0 + length.jitter)
    return (
        f"max_steps is too small for this path_length. Give RMHMC(max_steps={_enough_steps(length, step_size)}), or "
        f"RMHMC(path_length={longest:.2g}) and the same max_steps."
    )


def _enough_steps(length: JitteredPath, step_size: float) -> int:
    """Count the steps that the longest path takes."""
    return math.ceil(length.path_length * (1.0 + length.jitter) / step_size)


def cut_short(name: str, length: JitteredPath, step_size: float, *, by_options: bool, is_trusted: bool = True) -> str:
    """Say that `max_steps` ends trajectories early, and which number would not; call trusted draws correct."""
    if by_options:
        remedy = more_steps(length, step_size)
    else:
        enough = _enough_steps(length, step_size)
        remedy = f"Raise the limit with RMHMC(max_steps={enough}), reparametrize the model, or try another metric."
    correct = "The draws are correct, but the chain is slow. " if is_trusted else ""
    return f"{name}: {path_in_words(length, step_size)}. {correct}{remedy}"


def sites_kept(name: str, n_dropped: int, n_refits: int, *, is_trusted: bool = True) -> str:
    """Say that refits in tuning could not be used; empty if all could."""
    if not n_dropped:
        return ""
    correct = "The draws are correct, but the chain may be slow. " if is_trusted else ""
    return (
        f"{name}: {n_dropped} of {n_refits} refits of the Gaussian approximation in tuning gave no finite log density "
        f"and were dropped. {correct}Give pm.sample a larger tune=, and check site_fit if it is your own."
    )


def stood_still(name: str, failures: Sequence[Failure], step_size: float | None = None) -> str:
    """Say that tuning ended with draws that are all the same, and why.

    Parameters
    ----------
    name : str
        The variables of the chain.
    failures : sequence of Failure
        Of these draws. A cause of fewer than half of them is not named.
    step_size : float or None
        The step size that the user gave; None if it is adapted.
    """
    causes = Counter(failure for failure in failures if failure)
    cause, count = causes.most_common(1)[0] if causes else (Failure.NONE, 0)
    if 2 * count >= len(failures):
        meaning, remedy = ADVICE[cause]
        found = f"{count} of their trajectories failed because {meaning} ({cause.name})."
        if step_size is not None:
            large = _is_too_large(step_size)
            is_replaced = SMALLER_STEPS in remedy
            remedy = remedy.replace(SMALLER_STEPS, large) if is_replaced else f"{large} If that does not help: {remedy}"
    else:
        found = "Every proposal was rejected."
        elsewhere = "tart elsewhere with `initvals`, reparametrize the model, or use NUTS."
        given = "" if step_size is None else f"{_is_too_large(step_size)} If that does not help, s"
        remedy = (given or "S") + elsewhere
    still = f"no value changed in the last {len(failures)} tuning draws, so the chain stands still"
    return f"{name}: {still}. {found} {remedy}"


def _is_too_large(step_size: float) -> str:
    return f"step_size={step_size:.3g} is probably too large. {LEAVE_STEP_SIZE_OUT}"


def never_moved(name: str, n_draws: int, step_size: float | None = None) -> str:
    """Say that all draws after tuning are the same; `step_size` is the user's, None if it is adapted."""
    if step_size is None:
        remedy = "Reparametrize the model, or use NUTS."
    else:
        remedy = f"{_is_too_large(step_size)} If that does not help, reparametrize the model, or use NUTS."
    return (
        f"{name}: no value changed in {n_draws} draws after tuning. These draws say nothing about the posterior. "
        f"{remedy}"
    )


def hardly_moved(label: str, effective: float, n_draws: int, step_size: float | None = None) -> str:
    """Say that a chain hardly moved; `step_size` is the user's, None if it is adapted."""
    if step_size is None:
        remedy = "Reparametrize the model, give narrower priors, or compare with NUTS."
    else:
        remedy = (
            f"The probable cause is that you gave step_size={step_size:.3g}. {LEAVE_STEP_SIZE_OUT} If that does not "
            "help, reparametrize the model, give narrower priors, or compare with NUTS."
        )
    return (
        f"{label}: {n_draws} draws are worth about {max(1.0, effective):.0f} independent ones. Do not trust this "
        f"chain. {remedy}"
    )


def moved_slowly(label: str, effective: float, n_draws: int) -> str:
    """Say that a chain makes few effective draws, and what helps."""
    return (
        f"{label}: {n_draws} draws of this chain are worth about {effective:.0f} independent ones. Look at R-hat "
        'before you use them. Draw more, or try RMHMC(trajectory="nuts").'
    )


def advice_for(
    curvatures: Callable[[], set[str]], *, uses_sites: bool, prior_moves: bool, flat_priors: Sequence[str] = ()
) -> str:
    """Return what to do where a metric is hopeless: a proper prior, one for the likelihood's curvature, or NUTS."""
    if flat_priors:
        return IMPROPER.format(listed(flat_priors))
    if not uses_sites:
        return HOPELESS
    # A likelihood has a Hessian for a curvature only where that is never negative.
    if "hessian" in curvatures():
        return HOPELESS_PRIOR if prior_moves else HOPELESS
    metrics = [kind for kind in ALWAYS_POSITIVE if kind in curvatures()]
    if not metrics:
        return f"{HOPELESS_SITES}Use NUTS."
    return (
        f'{HOPELESS_SITES}Sample the latent values with RMHMC(metric="{metrics[0]}"), which leaves hyperparameters to '
        "PyMC's other steps, or use NUTS for all."
    )
