"""Failures of trajectories: how many, why, and what to change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_rmhmc.errors import DataError, Failure

__all__ = ["ADVICE", "FailureSummary", "failure_advice", "summarize_failures"]

# What each cause means and what to do about it, as one would say it to a colleague.
ADVICE = {
    Failure.SOLVER: (
        "the implicit step's equations were not solved",
        (
            "take smaller steps (a smaller step_size, or a higher target_accept where it is adapted); more iterations "
            "(solver_max_iter) help seldom, since most such equations have no solution at all"
        ),
    ),
    Failure.NON_REVERSIBLE: (
        "a step integrated back did not return",
        (
            "take smaller steps (a smaller step_size, or a higher target_accept where it is adapted); of the "
            "integrators the implicit midpoint is the more stable"
        ),
    ),
    Failure.NOT_POSITIVE_DEFINITE: (
        "a covariance or metric could not be factorised",
        "add jitter to the covariance, or keep its hyperparameters away from where it is singular or explodes",
    ),
    Failure.NON_FINITE: (
        "the log density or a gradient was not finite",
        "check the priors and the scale of the data: the trajectory left the region where doubles suffice",
    ),
    Failure.ENERGY: (
        "the energy error exceeded 1000",
        "take smaller steps (a smaller step_size, or a higher target_accept where it is adapted)",
    ),
}
# A rate that is worth a word at the end of a chain: below it, rejections of this kind cost next to nothing.
WORTH_SAYING = 0.01


@dataclass(frozen=True)
class FailureSummary:
    """Failures by cause and chain; print it.

    Attributes
    ----------
    counts : dict of Failure to (n_chains,) int array
        After tuning.
    tuning_counts : dict of Failure to (n_chains,) int array, or None
        In tuning, if those draws were kept.
    n_draws : int
        Draws a chain, after tuning.
    n_astray : (n_chains,) int array
        Moves after tuning along an emulated density that ended where the posterior's own is lower by more than
        ``e^1000``, or not finite. They are rejected, and are no failures: it is the emulator that is wrong there.
    """

    counts: dict[Failure, np.ndarray]
    tuning_counts: dict[Failure, np.ndarray] | None
    n_draws: int
    n_astray: np.ndarray

    @property
    def total(self) -> int:
        """Failed trajectories after tuning, all chains together."""
        return int(sum(count.sum() for count in self.counts.values()))

    @property
    def rate(self) -> float:
        """The same, as a part of all draws."""
        chains = next((count.size for count in self.counts.values()), 1)
        return self.total / max(1, self.n_draws * chains)

    def __str__(self) -> str:
        if self.total == 0:
            lines = ["No trajectory failed after tuning."]
        else:
            lines = [f"{self.total} of {self._all_draws()} trajectories failed after tuning ({self.rate:.2%})."]
            for cause, count in self.counts.items():
                if count.sum():
                    meaning, remedy = ADVICE[cause]
                    chains = ", ".join(str(int(c)) for c in count)
                    lines.append(f"  {cause.name}: {int(count.sum())} (by chain: {chains}): {meaning}.")
                    lines.append(f"      To do: {remedy}.")
        if self.n_astray.sum():
            chains = ", ".join(str(int(c)) for c in self.n_astray)
            lines.append(
                f"{int(self.n_astray.sum())} moves along the emulated density were led astray (by chain: {chains}) "
                "and rejected: no harm while they are few."
            )
        if self.tuning_counts is not None:
            tuned = {c.name: int(n.sum()) for c, n in self.tuning_counts.items() if n.sum()}
            lines.append("In tuning: " + (", ".join(f"{k} {v}" for k, v in tuned.items()) or "none") + ".")
        return "\n".join(lines)

    __repr__ = __str__

    def _all_draws(self) -> int:
        chains = next((count.size for count in self.counts.values()), 1)
        return self.n_draws * chains


def summarize_failures(idata: Any) -> FailureSummary:
    """Count the failed trajectories of a result by cause.

    Parameters
    ----------
    idata : xarray.DataTree
        A result of `pymc.sample` with an `RMHMC` step; in a compound the step is found by itself.

    Returns
    -------
    FailureSummary
        Its string says how many failed, why, and what to do.

    Raises
    ------
    DataError
        If the result has no `failure` statistic.

    Examples
    --------
    >>> from pymc_rmhmc import summarize_failures
    >>> summarize_failures(idata)  # doctest: +SKIP
    No trajectory failed after tuning.
    """
    codes = _statistic(idata, "sample_stats", "failure", np.nanmax)
    if codes is None:
        raise DataError(
            "The result has no `failure` statistic: only runs with an RMHMC step have one. For NUTS look at "
            "idata.sample_stats.diverging."
        )
    tuning = _statistic(idata, "warmup_sample_stats", "failure", np.nanmax)
    astray = _statistic(idata, "sample_stats", "n_astray", np.nansum)
    return FailureSummary(
        _count(codes),
        None if tuning is None else _count(tuning),
        codes.shape[1],
        np.zeros(len(codes), dtype=int) if astray is None else astray.sum(axis=1),
    )


def failure_advice(counts: Mapping[Failure, int], n_draws: int) -> str | None:
    """One or two sentences on a chain's failures, None where they are too few to matter.

    Parameters
    ----------
    counts : mapping of Failure to int
        After tuning.
    n_draws : int
        After tuning.
    """
    total = sum(counts.values())
    if total <= WORTH_SAYING * n_draws:
        return None
    worst = max(counts, key=lambda cause: counts[cause])
    meaning, remedy = ADVICE[worst]
    return (
        f"RMHMC: {total} of {n_draws} trajectories failed after tuning, {counts[worst]} of them because {meaning} "
        f"({worst.name}). To do: {remedy}."
    )


def _statistic(idata: Any, group: str, name: str, over_samplers: Callable[..., Any]) -> np.ndarray | None:
    """A statistic of whole numbers (chain, draw) of a group, None if it is not there."""
    if group not in idata.children or name not in idata[group].dataset:
        return None
    values = np.asarray(idata[group].dataset[name].values)
    if values.ndim == 3:  # a compound: samplers without the statistic are filled with nan or a blank
        values = over_samplers(values.astype(float), axis=-1)
    return values.astype(int)


def _count(codes: np.ndarray) -> dict[Failure, np.ndarray]:
    return {cause: (codes == cause).sum(axis=1) for cause in Failure if cause}
