"""How long paths are: tried out in tuning where some value moves slowly, or where longer paths cost next to nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.kernels.trajectories import JitteredPath

__all__ = ["PATHS", "PathPolicy", "PathTrial", "lag_one_correlation"]

type Array = NDArray[np.float64]

SMALLEST = 1e-300  # in place of the variance of what did not move


@dataclass(frozen=True, slots=True)
class PathPolicy:
    """Which lengths are tried, and when. Measured by `benchmarks/path_length.py`.

    Attributes
    ----------
    multiples : tuple of float
        Of the default length. Along a curved ridge paths of 10 made five to ten times as many effective draws as paths
        of 2, and those of 20 fewer again.
    jitter : float
        Of longer paths, whose lengths must not all lead back to where they began.
    fewest : int
        Draws of a window, below which lengths are not compared.
    slow : float
        A lag-one autocorrelation above this is slow.
    better : float
        A longer path must make so many times as many effective draws for the same time.
    """

    multiples: tuple[float, ...] = (1.0, 2.5, 5.0)
    jitter: float = 0.5
    fewest: int = 60
    slow: float = 0.5
    better: float = 1.2

    def is_slow(self, positions: Array) -> bool:
        """Return whether successive draws (t, d) of some coordinate are much alike."""
        return lag_one_correlation(positions) > self.slow

    @property
    def slow_effective(self) -> float:
        """The effective draws of a draw at that autocorrelation, of a process of the first order."""
        return (1.0 - self.slow) / (1.0 + self.slow)

    def path(self, path: JitteredPath, multiple: float) -> JitteredPath:
        """Return a path so many times as long."""
        if multiple == 1.0:
            return path
        return replace(path, path_length=multiple * path.path_length, jitter=max(path.jitter, self.jitter))


PATHS = PathPolicy()


@dataclass
class PathTrial:
    """What tuning knows of lengths.

    Attributes
    ----------
    multiple : float
        Of the default length: that of draws.
    is_slow : bool
        Whether some coordinate moves slowly at that length.
    explores : bool
        Whether tuning draws take all lengths in turn.
    n_made : int
        Tuning draws since the last refit.
    last : (float, int)
        The multiple and the number of steps of the last tuning draw.
    moves : list of (float, int)
        The same for the draws that are kept since the last refit.
    """

    multiple: float = 1.0
    is_slow: bool = False
    explores: bool = False
    n_made: int = 0
    last: tuple[float, int] = (1.0, 0)
    moves: list[tuple[float, int]] = field(default_factory=list)

    @property
    def current(self) -> float:
        """The multiple of the next tuning draw."""
        return PATHS.multiples[self.n_made % len(PATHS.multiples)] if self.explores else self.multiple

    def note_steps(self, n_steps: int) -> None:
        """Take the steps of a tuning draw."""
        self.last, self.n_made = (self.current, n_steps), self.n_made + 1

    def note_draw(self) -> None:
        """Keep the last tuning draw."""
        self.moves.append(self.last)

    def next(
        self, positions: Array, step_seconds: float, draw_seconds: float, *, may_explore: bool, is_last: bool
    ) -> PathTrial:
        """Return what is known after a window.

        Parameters
        ----------
        positions : (t, d) array
            Draws in coordinates in which they are about standard normal, one for each of `moves`.
        step_seconds, draw_seconds : float
            What a step costs, and a draw besides its steps.
        may_explore, is_last : bool
            Whether lengths may be tried, and whether no other window follows.
        """
        if self.explores and len(positions) >= PATHS.fewest:
            multiple, effective = self._best(positions, step_seconds, draw_seconds)
            is_slow = effective < PATHS.slow_effective
            return PathTrial(multiple, is_slow, explores=is_slow and not is_last)
        is_slow, steps = PATHS.is_slow(positions), float(np.mean([n for _, n in self.moves]))
        is_cheap = max(PATHS.multiples) * steps * step_seconds < draw_seconds
        explores = may_explore and not is_last and (is_cheap or is_slow)
        return PathTrial(self.multiple, is_slow, explores=explores)

    def _best(self, positions: Array, step_seconds: float, draw_seconds: float) -> tuple[float, float]:
        """The multiple with most effective draws of the slowest coordinate for the time, and these per draw."""
        # Squares tell how the width is explored, where a path of half a period would change every sign.
        squares = (positions - positions.mean(axis=0)) ** 2
        both = np.hstack([positions, squares])
        jumps, variance = np.diff(both, axis=0) ** 2, both.var(axis=0)
        multiples, steps = np.array(self.moves).T
        found = []
        for multiple in PATHS.multiples:
            own = multiples == multiple
            correlation = 1.0 - jumps[own[1:]].mean(axis=0) / np.maximum(2.0 * variance, SMALLEST)
            effective = float(np.min((1.0 - correlation) / (1.0 + np.maximum(correlation, 0.0))))
            rate = min(effective, 1.0) / (draw_seconds + step_seconds * steps[own].mean())
            found.append((rate if multiple == PATHS.multiples[0] else rate / PATHS.better, multiple, effective))
        _, multiple, effective = max(found)
        return multiple, effective


def lag_one_correlation(positions: Array) -> float:
    """Return the largest lag-one autocorrelation of some coordinate's draws (t, d)."""
    centred = positions - positions.mean(axis=0)
    products, squares = (centred[1:] * centred[:-1]).sum(axis=0), (centred**2).sum(axis=0)
    return float(np.max(np.divide(products, squares, out=np.zeros_like(products), where=squares > 0.0), initial=0.0))
