"""What was asked of each problem, and whether it was met: intervals of ratios over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t

from benchmarks.joint_problems import JOINT_PROBLEMS
from benchmarks.linear_problems import LINEAR_PROBLEMS
from benchmarks.moving_problems import MOVING_PROBLEMS

__all__ = ["BARS", "LARGEST_RHAT", "SMALLEST_ESS", "Verdict", "interval", "shortcomings", "verdict"]

SMALLEST_ESS = 200.0
LARGEST_RHAT = 1.02
COVERAGE = 0.9

# The least ratio of effective draws a second, tuning included, to the best peer's: by the lower end of the interval.
BARS: dict[str, float] = {
    "logit": 2.0, "probit": 5.0, "usps": 4.0, "cox": 1.5, "cox 64": 1.5,
    **dict.fromkeys(JOINT_PROBLEMS, 20.0),
    **{name: 4.0 for name in JOINT_PROBLEMS if name.startswith(("logit", "cox"))},
    **dict.fromkeys(LINEAR_PROBLEMS, 1.5),
    **dict.fromkeys(MOVING_PROBLEMS, 1.0),
}  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """The ratio of two samplers over seeds: median, 90 % interval, and what is missing of a fair comparison."""

    median: float
    lower: float
    upper: float
    missing: tuple[str, ...]

    def words(self, bar: float) -> str:
        """Met or not, and why not."""
        said = "one seed" if np.isnan(self.lower) else "met" if self.lower >= bar else "not met"
        if any(reason.startswith("ours") for reason in self.missing):
            said = "not met"
        return "; ".join((said, *self.missing))


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """A 90 % t interval of the mean of log ratios, as ratios; NaN of a single one.

    Seeds are few and rates vary by factors: of the logarithms a normal distribution is a fair description, and the
    interval is one of the geometric mean.
    """
    logs = np.log(np.asarray(ratios, dtype=float))
    if logs.size < 2:
        return float("nan"), float("nan")
    half = t.ppf(0.5 + 0.5 * COVERAGE, logs.size - 1) * logs.std(ddof=1) / np.sqrt(logs.size)
    return float(np.exp(logs.mean() - half)), float(np.exp(logs.mean() + half))


def shortcomings(records: Sequence[dict]) -> list[str]:
    """What a sampler's runs miss: the least over seeds of ESS, the largest of R-hat."""
    said = []
    least = min(record["ess"] for record in records)
    largest = max(record["rhat"] or np.inf for record in records)
    if any(record.get("stopped") for record in records):
        said.append("stopped, an upper bound")
    if least < SMALLEST_ESS:
        said.append(f"ESS {least:.0f}")
    if not largest < LARGEST_RHAT:
        said.append(f"R-hat {largest:.3f}")
    return said


def verdict(ours: Sequence[dict], peer: Sequence[dict], column: str = "ess_per_second") -> Verdict | None:
    """Over the seeds that both ran; None if there is none."""
    by_seed = {record["seed"]: record[column] for record in peer}
    pairs = [(record[column], by_seed[record["seed"]]) for record in ours if record["seed"] in by_seed]
    ratios = [mine / theirs for mine, theirs in pairs if theirs > 0.0 and mine > 0.0]
    if not ratios:
        return None
    missing = [f"ours: {reason}" for reason in shortcomings(ours)]
    missing += [f"peer: {reason}" for reason in shortcomings(peer)]
    return Verdict(float(np.median(ratios)), *interval(ratios), tuple(missing))
