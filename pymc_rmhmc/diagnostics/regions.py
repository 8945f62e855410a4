"""Where failed trajectories lie: the values in which they are concentrated.

A failed trajectory leaves the chain where it began, so the draw that is recorded with it is its starting point. For
every scalar value, the draws with a failure are compared with the other draws by their empirical distributions, as in
the tests of Kolmogorov and Smirnov (one condition) and of Kuiper (two). Both depend on ranks alone. Where a draw takes
several trajectories, the recorded draw may have moved on from the start of the failed one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import xlogy

from pymc_rmhmc.diagnostics.table import shown

__all__ = ["Region", "find_region"]

# The share of the failures in a region, less that of the other draws. Below it, too many failures lie elsewhere to
# speak of a region. Centred funnels with steps too large for the neck had 0.43 to 0.68 and missed it; one with 0.23 was
# right.
CLEAR = 0.4
# A second condition must add this much: it fits noise better than one does, and takes longer to read.
SECOND_CONDITION = 0.1
# Values that tell the failures apart nearly as well. The first of them is named, and short variables come first.
NEARLY = 0.02
# How often failures without a region may seem to have one, over all values that are compared.
CHANCE = 1e-3
# Values by draws that are compared; above it, elements of the longest variables are left out. It takes about 0.1 s.
MOST_NUMBERS = 4_000_000
# Thresholds are looked for among so many quantiles.
N_THRESHOLDS = 200


@dataclass(frozen=True)
class Region:
    """Where failed trajectories began: in words, and its shares of the failures and of the draws."""

    condition: str
    share_of_failures: float
    share_of_draws: float


def find_region(posterior: Any, failed: np.ndarray) -> Region | None:
    """Return the region in which failed trajectories are concentrated; None if there is no clear one.

    Parameters
    ----------
    posterior : xarray.Dataset
        The draws. Variables that are no numbers, or have nan among their draws, are passed over.
    failed : (n_chains, n_draws) array of bool
        Draws at which a trajectory failed.
    """
    places = _places(failed)
    if not places or failed.all():
        return None
    names, rows = [], []
    for name, row in _scalars(posterior, failed.shape):
        names.append(name)
        rows.append(row)
    if not rows:
        return None
    mask = failed.ravel()
    tables = [_Table.of(row, mask) for row in rows]
    gains = np.array([table.gain for table in tables])
    others = failed.size - np.count_nonzero(failed)
    # The chance that two samples of one distribution are this far apart is about exp(-2 n gain²), in both directions.
    noise = np.sqrt(np.log(2.0 * len(rows) / CHANCE) * (1.0 / places + 1.0 / others) / 2.0)
    best = int(np.flatnonzero(gains >= gains.max() - NEARLY)[0])
    if gains[best] < max(CLEAR, noise):
        return None
    return tables[best].region(names[best])


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
        low, high = (shown(self.levels[i]) for i in (start, end))
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


def _scalars(posterior: Any, shape: tuple[int, ...]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the names and draws of the values that moved, those of short variables first."""
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


def _label(name: str, variable: Any, element: int) -> str:
    """Return the name of an element, as ArviZ writes it."""
    if variable.ndim == 2:
        return name
    index = np.unravel_index(element, variable.shape[2:])
    parts = [
        variable.coords[dim].values[i] if dim in variable.coords else i
        for dim, i in zip(variable.dims[2:], index, strict=True)
    ]
    return f"{name}[{', '.join(map(str, parts))}]"
