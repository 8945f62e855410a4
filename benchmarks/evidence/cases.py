"""What is asked of estimates of the evidence, and the runs that measure it."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.evidence.grid import EASY, LOG_AMPLITUDES
from benchmarks.evidence.peers import SIZES

__all__ = ["ASKED", "EP", "REFERENCE_RUNS", "Asked", "Run", "all_runs"]

# EP's evidence of the digits, to all digits printed.
EP, EP_TOLERANCE = -106.0892, 0.0005


@dataclass(frozen=True)
class Run:
    """One measurement in a process of its own.

    Attributes
    ----------
    kind : str
        "estimate", "grid", "peer", "path" (estimates against time) or "reference".
    problem, method : str
        What, and how; of a grid's row the log amplitude.
    seed : int
        Of the random numbers.
    target : float
        The standard error asked for; of a peer the size.
    limit : float
        Wall-clock seconds after which an estimate takes what it has.
    """

    kind: str
    problem: str
    method: str
    seed: int
    target: float
    limit: float

    @property
    def key(self) -> dict:
        """What names the run among the results."""
        return {name: getattr(self, name) for name in ("kind", "problem", "method", "seed", "target")}


@dataclass(frozen=True)
class Asked:
    """A line of the table.

    Attributes
    ----------
    problem, method : str
        Of the run.
    error : float
        The standard error, or for `is_distance` the distance from the truth.
    seconds : float or None
        Of the processor.
    is_distance : bool
        Whether `error` is a distance.
    after_tuning : bool
        Whether tuning is left out of the seconds.
    value : str
        Which number of the record is compared.
    """

    problem: str
    method: str
    error: float
    seconds: float | None = None
    is_distance: bool = False
    after_tuning: bool = False
    value: str = "value"

    @property
    def run(self) -> Run:
        """The run that measures it, of the first seed."""
        if self.method == "ep":
            return Run("estimate", self.problem, self.method, 0, 0.0, 60.0)
        return Run("estimate", self.problem, self.method, 0, self.error, 6.0 * (self.seconds or 10.0))


ASKED = (
    Asked("usps", "ep", EP_TOLERANCE, 1.0, is_distance=True),
    Asked("usps", "ep", 0.04, is_distance=True, value="second order"),
    Asked("usps", "bridge", 0.015, 10.0),
    Asked("usps", "bridge", 0.006, 60.0),
    Asked("usps", "annealing", 0.022, 10.0),
    Asked("pines", "auto", 0.02, 6.0),
    Asked("cox", "auto", 0.006, 40.0),
    Asked("heart", "auto", 0.007, 1.0),
    Asked("regression", "auto", 0.01, 3.0, after_tuning=True),
    Asked("eight", "auto", 0.006),
)  # fmt: skip
# Of each problem both together have a standard error below 0.003.
REFERENCE_RUNS = {
    "usps": (
        Run("reference", "usps", "bridge", 11, 0.004, 1200.0), Run("reference", "usps", "annealing", 12, 0.005, 1200.0)
    ),
    "pines": (
        Run("reference", "pines", "bridge", 11, 0.003, 900.0), Run("reference", "pines", "annealing", 12, 0.005, 900.0)
    ),
}  # fmt: skip
# Beside the peers: an estimate that goes on for so long.
PATHS = tuple(
    Run("path", problem, "auto", seed, 0.0015, 120.0) for problem in ("regression", "eight") for seed in (0, 1)
)


def all_runs(seeds: int) -> list[Run]:
    """Return all runs but the reference's, each once."""
    runs = []
    for seed in range(seeds):
        for asked in ASKED:
            run = asked.run
            runs.append(Run(run.kind, run.problem, run.method, seed, run.target, run.limit))
    runs += [Run("grid", "usps", f"{ls:g}", 0, 0.0, 400.0 if ls <= EASY else 15.0) for ls in LOG_AMPLITUDES]
    runs += PATHS
    for (peer, problem), sizes in SIZES.items():
        runs += [Run("peer", problem, peer, seed, float(size), 300.0) for size in sizes for seed in (0, 1)]
    return list(dict.fromkeys(runs))
