"""Ranks of a truth among draws, which are uniform if the sampler is right, and when to look at them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import chi2

PLACES, COMPONENTS = 20, 4


def rank(truth: np.ndarray, others: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each quantity's rank among its draws; ties, where a draw kept the state, are broken by chance."""
    return (others < truth).sum(axis=0) + rng.integers(0, (others == truth).sum(axis=0), endpoint=True)


def p_value(ranks: np.ndarray) -> float:
    """Of uniform ranks (simulations, quantities): Neyman's smooth test, Bonferroni's over the quantities.

    The first orthogonal polynomials of a rank are its shift, spread, skew and kurtosis, which is what wrong samplers
    change; the chi-square of a histogram needs several times as many simulations to see them.
    """
    powers = np.vander(np.linspace(-1.0, 1.0, PLACES), COMPONENTS + 1, increasing=True)
    polynomials = np.sqrt(PLACES) * np.linalg.qr(powers)[0][:, 1:]  # of mean 0 and variance 1 over the ranks
    scores = polynomials[ranks].sum(axis=0) / np.sqrt(len(ranks))
    return min(1.0, float(chi2.sf((scores**2).sum(axis=1), COMPONENTS).min()) * ranks.shape[1])


@dataclass(frozen=True)
class Looks:
    """When what a sampler did is looked at: at the end of all runs, or of a mutant as soon as it is rejected.

    A mutant is looked at after a quarter and a half of the runs too, and its p-values are Bonferroni's over the looks.
    Most are rejected at the first: the second half would only say so again.

    Attributes
    ----------
    runs : int
    until : float, optional
        The p-value below which a mutant is rejected.
    test : callable
        From an array with a row for each run to a p-value.
    """

    # With fewer runs their mean is not normal enough to be asked.
    FEWEST = 50

    runs: int
    until: float | None = None
    test: Callable[[np.ndarray], float] = p_value

    @property
    def early(self) -> tuple[int, ...]:
        """After how many runs a mutant is looked at before the end."""
        if self.until is None:
            return ()
        return tuple(place for place in (self.runs // 4, self.runs // 2) if place >= self.FEWEST)

    def decided(self, rows: Sequence[np.ndarray]) -> bool:
        """Whether it is time to stop."""
        if self.until is not None and len(rows) in self.early:
            return self.p_value(rows) < self.until
        return len(rows) >= self.runs

    def p_value(self, rows: Sequence[np.ndarray]) -> float:
        """Of the runs so far."""
        return min(1.0, (len(self.early) + 1) * self.test(np.array(rows)))
