"""What a paper's benchmark says of itself, and the papers that have one."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PAPERS", "Paper", "Run", "load_paper"]

# Each module has a `PAPER`.
NAMES = ("bivariate", "cobb", "cox", "filippone", "lalchand", "logistic", "paquet", "volatility")
PAPERS = {name: f"benchmarks.papers.{name}.experiments" for name in NAMES}


@dataclass(frozen=True)
class Run:
    """One measurement in a process of its own.

    Attributes
    ----------
    experiment, sampler : str
        What is sampled, and how.
    seed : int
        Of the random numbers.
    draws : int
        Per chain.
    limit : float
        Seconds of sampling, after which the run hands in what it has.
    """

    experiment: str
    sampler: str
    seed: int
    draws: int
    limit: float

    @property
    def key(self) -> dict:
        """What names the run among the results."""
        return {"experiment": self.experiment, "sampler": self.sampler, "seed": self.seed, "asked": self.draws}


@dataclass(frozen=True)
class Paper:
    """A paper's experiments.

    Attributes
    ----------
    title : str
        Who and when.
    runs : callable
        ``full -> runs``: those that are made by default, or all.
    measure : callable
        Make a run in this process and return its record.
    report : callable
        Print the tables of all records.
    draw : callable
        ``(records, folder, suffix) -> paths``: draw every figure whose records exist.
    """

    title: str
    runs: Callable[[bool], Sequence[Run]]
    measure: Callable[[Run], dict]
    report: Callable[[list[dict]], None]
    draw: Callable[[list[dict], Path, str], list[Path]]


def load_paper(name: str) -> Paper:
    """Import one paper's benchmark."""
    return importlib.import_module(PAPERS[name]).PAPER
