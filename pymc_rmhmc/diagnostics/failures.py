"""Failed trajectories: how many, why, where, and what to change.

A failed trajectory leaves the chain where it began, so the draw that is recorded with it is its starting point. For
every scalar value, the draws with a failure are compared with the other draws by their empirical distributions, as in
the tests of Kolmogorov and Smirnov (one condition) and of Kuiper (two). Both depend on ranks alone. Where a draw takes
several trajectories, the recorded draw may have moved on from the start of the failed one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import arviz as az
import numpy as np
import xarray as xr
from scipy.special import xlogy
from scipy.stats import f, rankdata

from pymc_rmhmc.diagnostics.result_statistics import LARGEST_RHAT, four_digits, one_group_in_words
from pymc_rmhmc.errors import DataError, Failure, shown
from pymc_rmhmc.usage import called_as

__all__ = ["ADVICE", "FailureSummary", "failure_advice", "remedy_for", "summarize_failures"]

# Names and draws, (n_chains n_draws,), of the values that are looked at.
type Scalars = list[tuple[str, np.ndarray]]

SMALLER_STEPS = "Take smaller steps with RMHMC(target_accept=0.95), or 0.99 if it is that already."
# What each cause means, and what to do about it.
ADVICE = {
    Failure.SOLVER: (
        "the equations of an implicit step could not be solved",
        (
            f"{SMALLER_STEPS} A larger solver_max_iter seldom helps, because most of these equations have no solution."
        ),
    ),
    Failure.NON_REVERSIBLE: (
        "a step did not return to its start when it was integrated back",
        f'{SMALLER_STEPS} Or use RMHMC(integrator="implicit_midpoint"), which is more stable.',
    ),
    Failure.NOT_POSITIVE_DEFINITE: (
        "a covariance or metric was not positive definite",
        (
            "Add jitter to the covariance, as in gp.prior(..., jitter=1e-4). Or narrow the priors of hyperparameters "
            "at which the covariance is almost singular or an autoregression explodes."
        ),
    ),
    Failure.NON_FINITE: (
        "the log density or its gradient was not finite",
        (
            "Check the priors, the links and the scale of the data: the trajectory reached values at which the density "
            "overflows or a parameter is out of range. A rate needs pm.math.exp(f), and a probability needs logit_p=f "
            "or pm.math.invlogit(f)."
        ),
    ),
    Failure.ENERGY: ("the energy rose by more than 1000", SMALLER_STEPS),
}
# Below this rate failures cost next to nothing, and the chain says nothing at its end.
WORTH_SAYING = 0.01
# Above this share of all trajectories the draws are not to be trusted. A Gaussian process with 22 % of even failures
# was right, a funnel with 58 % of them wrong. Failures that lie together in one region are never harmless: a ridge with
# 5 to 41 of them in 2000 draws had three quarters of its width.
MOST_OF_ALL = 0.4
# From these shares on, the failures are said to lie in a region, or most of them; below, many of them.
NEARLY_ALL, MOST = 0.9, 0.5
# The share of the failures in a region, less that of the other draws. Below it, too many failures lie elsewhere to
# speak of a region. Centred funnels with steps too large for the neck had 0.43 to 0.68 and missed it; one with 0.23 was
# right.
CLEAR = 0.4
# A second condition must add this much: it fits noise better than one does, and takes longer to read.
SECOND_CONDITION = 0.1
# Values that tell the failures apart nearly as well. The first of them is named, and short variables come first.
NEARLY = 0.02
# How often failures without a region may seem to have one, and equal chains to differ, over all values.
CHANCE = 1e-3
# Values by draws that are compared; above it, elements of the longest variables are left out. It takes about 0.1 s.
MOST_NUMBERS = 4_000_000
# Thresholds are looked for among so many quantiles.
N_THRESHOLDS = 200


def remedy_for(cause: Failure, step_size: float | None) -> str:
    """Return what to do about a cause of failures, with the step size if the user fixed it."""
    remedy = ADVICE[cause][1]
    if step_size is None:
        return remedy
    return remedy.replace(SMALLER_STEPS, f"Take smaller steps with RMHMC(step_size={0.5 * step_size:.2g}).")


@dataclass(frozen=True)
class FailureSummary:
    """Failed trajectories by cause and chain. Print it to read them.

    Attributes
    ----------
    counts : dict of Failure to (n_chains,) int array
        Failures after tuning.
    tuning_counts : dict of Failure to (n_chains,) int array, or None
        Failures in tuning; None if the tuning draws were discarded.
    n_draws : int
        Draws per chain after tuning.
    n_emulator_divergences : (n_chains,) int array
        Moves along the emulator, after tuning, that ended where the posterior density is not finite or lower by a
        factor of ``e^1000``. The emulator is wrong there. The moves are rejected and do not count as failures.
    step_size : float or None
        The step size that was given to `RMHMC`; None if it was adapted.
    region : str
        Where the failures after tuning lie, such as ``"v is above 4.1"``; empty if there is no clear region. A failed
        trajectory leaves the chain where it began, so the region holds the starting points.
    region_failures : float
        Share of the failures that lie in the region, from 0 to 1; nan without a region.
    region_draws : float
        Share of all draws that lie in the region, from 0 to 1; nan without a region.
    disagreement : str
        The value in which the chains differ most, such as ``"v"``, if its R-hat is above 1.05 and above what chance
        explains for so few draws; empty if the chains agree or there is one.
    rhat : float
        R-hat of that value; nan if the chains agree.

    Notes
    -----
    A region is given if its share of the failures exceeds its share of the other draws by at least 0.4, and by more
    than chance explains for so many failures. It is a condition on one scalar value of the posterior: the one that
    tells the failures from the other draws best.
    """

    counts: dict[Failure, np.ndarray]
    tuning_counts: dict[Failure, np.ndarray] | None
    n_draws: int
    n_emulator_divergences: np.ndarray
    step_size: float | None = None
    region: str = ""
    region_failures: float = math.nan
    region_draws: float = math.nan
    disagreement: str = ""
    rhat: float = math.nan

    @property
    def total(self) -> int:
        """Number of failed trajectories after tuning, in all chains."""
        return int(sum(count.sum() for count in self.counts.values()))

    @property
    def rate(self) -> float:
        """Failed trajectories after tuning as a part of all draws."""
        return self.total / max(1, self._all_draws())

    @property
    def region_rate(self) -> float:
        """Failed trajectories in the region as a part of the draws there; nan without a region."""
        return self.rate * self.region_failures / self.region_draws

    @property
    def is_trusted(self) -> bool:
        """Whether the failures are harmless and the chains agree.

        It is False if the failures lie in a region, or if more than 40 % of all trajectories failed. Each failure is
        only a rejection, but the chain then seldom enters or leaves that part, and longer runs seldom help. It is also
        False if the chains differ: some of them have not seen all of the posterior, with or without failures.
        """
        return self.failures_are_harmless and not self.disagreement

    @property
    def failures_are_harmless(self) -> bool:
        """Whether the failures do not seem to keep the chain from a part of the posterior."""
        return self.rate <= MOST_OF_ALL and not self.region

    def __str__(self) -> str:
        if self.total == 0:
            lines = ["No trajectory failed after tuning."]
        else:
            lines = [f"{self.total} of {self._all_draws()} trajectories failed after tuning ({self.rate:.2%})."]
            for cause, count in self.counts.items():
                if count.sum():
                    meaning, remedy = ADVICE[cause][0], remedy_for(cause, self.step_size)
                    chains = ", ".join(str(int(c)) for c in count)
                    lines.append(f"  {cause.name}: {int(count.sum())} (by chain: {chains}): {meaning}.")
                    lines.append(f"      {remedy}")
            lines += self._harm_in_words()
        if self.disagreement:
            lines.append(
                f"Do not trust the draws: the chains differ in {self.disagreement} (R-hat {self.rhat:.2f}, at most "
                f"{LARGEST_RHAT} is trusted). Tune and draw for longer, and look at each chain: several modes of "
                "continuous variables need parallel_tempering."
            )
        if self.n_emulator_divergences.sum():
            chains = ", ".join(str(int(c)) for c in self.n_emulator_divergences)
            lines.append(
                f"{int(self.n_emulator_divergences.sum())} moves along the emulator ended where the posterior density "
                f"is almost zero (by chain: {chains}). They were rejected, and are harmless while they are few."
            )
        if self.tuning_counts is not None:
            tuned = {c.name: int(n.sum()) for c, n in self.tuning_counts.items() if n.sum()}
            lines.append("In tuning: " + (", ".join(f"{k} {v}" for k, v in tuned.items()) or "none") + ".")
        return "\n".join(lines)

    __repr__ = __str__

    def _harm_in_words(self) -> list[str]:
        """Say where the failures lie if that is clear, and whether not to trust the draws."""
        lines = []
        warning = (
            f"Do not trust the draws: {_percent(self.rate)} of all trajectories failed, so the chain may never enter "
            "some part of the posterior."
        )
        if self.region:
            who = "Most of them lie" if self.region_failures > MOST else "Many of them lie"
            who = "They lie" if self.region_failures >= NEARLY_ALL else who
            shares = f"{_percent(self.region_failures)} of the failures, and {_percent(self.region_draws)} of the draws"
            lines.append(f"{who} where {self.region}: {shares}.")
            warning = (
                f"Do not trust the draws there or beyond: {_percent(self.region_rate)} of the trajectories from there "
                "failed, so the chain may seldom enter or leave that region."
            )
        if not self.failures_are_harmless:
            smaller = remedy_for(Failure.ENERGY, self.step_size)
            lines += [warning, f"    {smaller} With SoftAbsMetric, raise its alpha. Or use another metric."]
        return lines

    def _all_draws(self) -> int:
        chains = next((count.size for count in self.counts.values()), 1)
        return self.n_draws * chains


@called_as("summarize_failures(idata), one result at a time")
def summarize_failures(idata: xr.DataTree) -> FailureSummary:
    """Count the failed trajectories of a result by cause, and find where they lie.

    Parameters
    ----------
    idata : xarray.DataTree
        A result of `pymc.sample` with an `RMHMC` step, alone or next to other steps.

    Returns
    -------
    FailureSummary
        Print it: it says how many trajectories failed, why and where, whether to trust the draws, and what to do.

    Raises
    ------
    DataError
        If it is no result of `pymc.sample`, or has no `failure` statistic.

    Examples
    --------
    >>> from pymc_rmhmc import summarize_failures
    >>> summarize_failures(idata)  # doctest: +SKIP
    No trajectory failed after tuning.
    """
    _check_result(idata)
    codes = _statistic(idata, "sample_stats", "failure", np.nanmax)
    if codes is None:
        raise DataError(
            "The result has no `failure` statistic: only runs with an RMHMC step have one. For NUTS look at "
            "idata.sample_stats.diverging, for parallel_tempering at idata.sample_stats.acceptance: its failures "
            f"count as rejections. {_groups(idata)}"
        )
    tuning = _statistic(idata, "warmup_sample_stats", "failure", np.nanmax)
    divergences = _statistic(idata, "sample_stats", "n_emulator_divergences", np.nansum)
    posterior = idata.children.get("posterior")
    found = [] if posterior is None else list(_scalars(posterior.dataset, codes.shape))
    return FailureSummary(
        _count(codes),
        None if tuning is None else _count(tuning),
        codes.shape[1],
        np.zeros(len(codes), dtype=int) if divergences is None else divergences.sum(axis=1),
        _given_step_size(idata),
        *find_region(found, codes > 0),
        *_disagreement(found, codes.shape),
    )


def failure_advice(counts: Mapping[Failure, int], n_draws: int, step_size: float | None = None) -> str | None:
    """Return a message on a chain's failures after tuning; None if they are too few to matter.

    `step_size` is what was given to `RMHMC`; None if it is adapted.
    """
    total = sum(counts.values())
    if total <= WORTH_SAYING * n_draws:
        return None
    worst = max(counts, key=lambda cause: counts[cause])
    meaning, remedy = ADVICE[worst][0], remedy_for(worst, step_size)
    return (
        f"RMHMC: {total} of {n_draws} trajectories failed after tuning, {counts[worst]} of them because {meaning} "
        f"({worst.name}). {remedy}"
    )


def _check_result(idata: object) -> None:
    """Look whether something is a tree of groups, as `pymc.sample` returns."""
    if one_group_in_words(idata):
        raise DataError(
            "summarize_failures takes the whole result of pm.sample, and was given one group of it. Give the whole "
            "idata: summarize_failures(idata)."
        )
    if hasattr(idata, "children") and hasattr(idata, "groups"):
        return
    trace = " Make one of a MultiTrace with pm.to_inference_data(trace)." if hasattr(idata, "get_values") else ""
    raise DataError(
        f"summarize_failures takes the result of pm.sample, an xarray.DataTree, got {shown(idata)}.{trace} Give it "
        "what idata = pm.sample(step=RMHMC()) returned."
    )


def _groups(idata: xr.DataTree) -> str:
    """Say what there is instead."""
    if "sample_stats" not in idata.children:
        return f"Its groups are {', '.join(idata.children) or 'none'}, without sample_stats."
    return f"Its statistics are {', '.join(map(str, idata.children['sample_stats'].dataset.data_vars)) or 'none'}."


def _statistic(
    idata: xr.DataTree, group: str, name: str, over_samplers: Callable[..., np.ndarray]
) -> np.ndarray | None:
    """Return a statistic of whole numbers (chain, draw) of a group; None if it is not there.

    A ZarrTrace keeps the statistics of each step apart, with the step's number before the name.
    """
    if group not in idata.children:
        return None
    held = idata.children[group].dataset
    names = _keys(held, name)
    if not names:
        return None
    values = np.stack([np.asarray(held[key].values, dtype=float) for key in names], axis=-1)
    values = values.reshape(*values.shape[:2], -1)
    # A compound: samplers without the statistic are filled with nan or a blank.
    return over_samplers(values, axis=-1).astype(int)


def _keys(held: xr.Dataset, name: str) -> list[str]:
    """List the names under which a dataset keeps a statistic."""
    return [str(key) for key in held.data_vars if re.fullmatch(rf"(sampler_\d+__)?{name}", str(key))]


def _given_step_size(idata: xr.DataTree) -> float | None:
    """Return the smallest step size that was given to an RMHMC; None if all were adapted.

    Only a step size that is adapted has an average.
    """
    held, given = idata.children["sample_stats"].dataset, []
    for name in _keys(held, "step_size"):
        if f"{name}_bar" in held:
            used, average = (np.asarray(held[key].values, dtype=float) for key in (name, f"{name}_bar"))
            given += used[np.isfinite(used) & np.isnan(average)].tolist()
    return min(given, default=None)


def _percent(share: float) -> str:
    """Write a share from 0 to 1 in per cent, with a digit after the point if it is small."""
    return f"{100.0 * share:.{0 if share >= 0.02 else 1}f} %"


def _count(codes: np.ndarray) -> dict[Failure, np.ndarray]:
    return {cause: (codes == cause).sum(axis=1) for cause in Failure if cause}


class Region(NamedTuple):
    """Where failed trajectories began: in words, and its shares of the failures and of the draws."""

    condition: str = ""
    share_of_failures: float = math.nan
    share_of_draws: float = math.nan


def find_region(found: Scalars, failed: np.ndarray) -> Region:
    """Return the region where failed trajectories (n_chains, n_draws) are concentrated; without a condition if none."""
    places = _places(failed)
    if not places or failed.all() or not found:
        return Region()
    names, rows = zip(*found, strict=True)
    mask = failed.ravel()
    tables = [_Table.of(row, mask) for row in rows]
    gains = np.array([table.gain for table in tables])
    others = failed.size - np.count_nonzero(failed)
    # The chance that two samples of one distribution are this far apart is about exp(-2 n gain²), in both directions.
    noise = np.sqrt(np.log(2.0 * len(rows) / CHANCE) * (1.0 / places + 1.0 / others) / 2.0)
    best = int(np.flatnonzero(gains >= gains.max() - NEARLY)[0])
    return Region() if gains[best] < max(CLEAR, noise) else tables[best].region(names[best])


def _disagreement(found: Scalars, shape: tuple[int, ...]) -> tuple[str, float]:
    """Return the value in which chains of a shape (n_chains, n_draws) differ most, and its R-hat; "" if they agree."""
    chains, half = shape[0], shape[1] // 2
    if chains < 2 or half < 2 or not found:
        return "", math.nan
    names, rows = zip(*found, strict=True)
    worst = _most_unlike(np.array(rows), shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        rhat = float(az.rhat(rows[worst].reshape(shape)))
    # Halves of equal chains differ too: for independent normal draws by Fisher's F, of values and of their spread.
    by_chance = f.isf(CHANCE / (2 * len(rows)), 2 * chains - 1, 2 * chains * (half - 1))
    differs = rhat > max(LARGEST_RHAT, math.sqrt(1.0 + by_chance / half))
    return (names[worst], rhat) if differs else ("", math.nan)


def _most_unlike(rows: np.ndarray, shape: tuple[int, ...]) -> int:
    """Return which value (n_values, n_chains n_draws) has the largest R-hat of ranks, in place or in spread.

    ArviZ takes milliseconds for each value.
    """
    half = shape[1] // 2
    ranks = rankdata(rows, axis=1)
    both = np.array([ranks, np.abs(ranks - ranks.mean(axis=1, keepdims=True))])
    halves = both.reshape(2, len(rows), *shape)[..., : 2 * half].reshape(2, len(rows), 2 * shape[0], half)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = halves.mean(axis=-1).var(axis=-1) / halves.var(axis=-1).mean(axis=-1)
    return int(np.nan_to_num(ratio.max(axis=0), posinf=np.inf).argmax())


@dataclass(frozen=True)
class _Table:
    """How many failures and how many other draws of a value lie up to each of its quantiles."""

    levels: np.ndarray
    failures: np.ndarray
    others: np.ndarray

    @staticmethod
    def of(row: np.ndarray, failed: np.ndarray) -> _Table:
        """Count the draws of a value."""
        ordered = np.sort(row)
        levels = ordered[np.linspace(0, row.size - 1, N_THRESHOLDS + 1).astype(int)]
        failures = np.searchsorted(np.sort(row[failed]), levels, side="right")
        return _Table(levels, failures, np.searchsorted(ordered, levels, side="right") - failures)

    @property
    def excess(self) -> np.ndarray:
        """Share of the failures less that of the other draws, up to each quantile."""
        return self.failures / self.failures[-1] - self.others / self.others[-1]

    @property
    def gain(self) -> float:
        """The largest excess of a region with one condition, or with two less what a second must add."""
        below, above = self.excess.max(), -self.excess.min()
        return float(max(below, above, below + above - SECOND_CONDITION))

    def region(self, name: str) -> Region:
        """Return the most likely region, among those of the best shape and with a clear excess.

        The bounds of largest excess would take in all where failures are more frequent than on average. The most likely
        step of the failure rate keeps to where they are frequent.
        """
        ends = np.concatenate(([0], self.failures)), np.concatenate(([0], self.others))
        # A region begins above one level and ends at another; before the first level lie no draws.
        failures, others = (np.maximum(end[None, :] - end[:, None], 0) for end in ends)
        below, above = self.excess.max(), -self.excess.min()
        two = below + above - SECOND_CONDITION >= max(below, above)
        outside = two and self.excess.argmax() < self.excess.argmin()
        if outside:
            failures, others = self.failures[-1] - failures, self.others[-1] - others
        allowed = failures / self.failures[-1] - others / self.others[-1] >= CLEAR
        if not two:
            one = np.zeros_like(allowed)
            one[0, :] = below >= above
            one[:, -1] |= above > below
            allowed &= one
        likely = np.where(allowed, _log_likelihood(failures, others, self.failures[-1], self.others[-1]), -np.inf)
        start, end = np.unravel_index(int(likely.argmax()), likely.shape)
        inside = failures[start, end], failures[start, end] + others[start, end]
        return Region(
            self._in_words(name, int(start) - 1, int(end) - 1, bool(outside)),
            float(inside[0] / self.failures[-1]),
            float(inside[1] / (self.failures[-1] + self.others[-1])),
        )

    def _in_words(self, name: str, start: int, end: int, outside: bool) -> str:
        """Say a region that begins above one level and ends at another, or that lies outside them."""
        low, high = (four_digits(self.levels[i]) for i in (start, end))
        last = len(self.levels) - 1
        if outside:
            parts = [f"at most {low}"] * (start >= 0) + [f"above {high}"] * (end < last)
            return f"{name} is {' or '.join(parts)}"
        if start < 0:
            return f"{name} is at most {high}"
        return f"{name} is above {low}" if end == last else f"{name} is above {low} and at most {high}"


def _log_likelihood(failures: np.ndarray, others: np.ndarray, all_failures: int, all_others: int) -> np.ndarray:
    """Return the log likelihood of one failure rate inside each region and another outside."""
    total = np.zeros(failures.shape)
    for k, m in ((failures, others), (all_failures - failures, all_others - others)):
        total += xlogy(k, k / np.maximum(k + m, 1)) + xlogy(m, m / np.maximum(k + m, 1))
    return total


def _places(failed: np.ndarray) -> float:
    """Estimate from how many places the failures come: a chain that stays somewhere fails there repeatedly."""
    padded = np.pad(failed, ((0, 0), (1, 1))).astype(int)
    steps = np.diff(padded, axis=1).ravel()
    lengths = np.flatnonzero(steps == -1) - np.flatnonzero(steps == 1)
    # As many runs of equal length would tell as much.
    return float(lengths.sum() ** 2 / np.sum(lengths**2)) if lengths.size else 0.0


def _scalars(posterior: xr.Dataset, shape: tuple[int, ...]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the names and draws of the values that moved, those of short variables first.

    Variables that are no numbers, or have nan among their draws, are passed over.
    """
    room = max(1, MOST_NUMBERS // (shape[0] * shape[1]))
    for name, variable in sorted(posterior.data_vars.items(), key=lambda item: item[1].size):
        if variable.dtype.kind not in "biuf" or variable.dims[:2] != ("chain", "draw") or variable.shape[:2] != shape:
            continue
        size = int(np.prod(variable.shape[2:]))
        chosen = np.unique(np.linspace(0, size - 1, min(size, room)).astype(int))
        room -= chosen.size
        draws = np.asarray(variable.values, dtype=float).reshape(shape[0] * shape[1], size).T[chosen]
        for element, row in zip(chosen, np.ascontiguousarray(draws), strict=True):
            if not np.isnan(row).any() and (row != row[0]).any():
                yield _label(str(name), variable, int(element)), row


def _label(name: str, variable: xr.DataArray, element: int) -> str:
    """Return the name of an element, as ArviZ writes it."""
    if variable.ndim == 2:
        return name
    index = np.unravel_index(element, variable.shape[2:])
    parts = [
        variable.coords[dim].values[i] if dim in variable.coords else i
        for dim, i in zip(variable.dims[2:], index, strict=True)
    ]
    return f"{name}[{', '.join(map(str, parts))}]"
