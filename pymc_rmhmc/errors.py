"""Exceptions and failures.

An *exception* says what is wrong with a model, an option or data, and what to do. It is raised as early as possible:
when an object is built, when a chain begins, or when tuning ends.

A *failure* is not an exception. It is the reason why one trajectory was rejected, a value of `Failure`. It is counted,
and the chain goes on.
"""

from __future__ import annotations

import math
import numbers
import reprlib
import textwrap
from collections.abc import Iterable
from enum import IntEnum
from typing import Any

import numpy as np

__all__ = [
    "ApproximationError", "ConfigurationError", "CovarianceError", "DataError", "EvidenceError", "Failure",
    "RMHMCError", "SamplingError", "UnsupportedLikelihoodError", "UnsupportedModelError",
]  # fmt: skip

# Numbers below this are shown with all their digits.
SHORT_NUMBER = 1_000_000
LONGEST_SHOWN = 60
# As many names as a line of a message can hold.
MOST_NAMES = 6
# Columns of a line in the log.
LOG_WIDTH = 150


class RMHMCError(Exception):
    """Base class of all exceptions of this package."""


class ConfigurationError(RMHMCError, ValueError):
    """An option is unknown, out of range, contradicts another or has no effect; or a start has no finite density."""


class SamplingError(RMHMCError, RuntimeError):
    """Tuning has ended, and the chain would barely move; or the workers of chains died too often.

    Attributes
    ----------
    finished : xarray.DataTree or None
        Of an error in `sample_chains`, the chains that finished before, if any.
    """

    finished: Any = None


class EvidenceError(RMHMCError, RuntimeError):
    """The evidence does not exist, or no estimate of it can be trusted."""


class ApproximationError(RMHMCError, RuntimeError):
    """A Gaussian approximation was not found: Newton's method or expectation propagation did not converge."""


class UnsupportedModelError(RMHMCError, TypeError):
    """RMHMC cannot sample the model, or not in the chart that was asked for.

    Attributes
    ----------
    reasons : dict of str to str
        For each variable, why it is no latent Gaussian vector; empty if the message says all.
    advice : dict of str to str
        For variables that are read in another form, what to write.
    """

    def __init__(
        self, message: str = "", reasons: dict[str, str] | None = None, advice: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.reasons = reasons or {}
        self.advice = advice or {}


class UnsupportedLikelihoodError(UnsupportedModelError):
    """RMHMC cannot read the likelihood of a latent Gaussian vector."""


class DataError(RMHMCError, ValueError):
    """Data or a result are missing, not finite, outside the distribution's support, or of a changed shape."""


class CovarianceError(RMHMCError, np.linalg.LinAlgError):
    """A constant covariance, or one at a chain's first point, is not positive definite."""


class Failure(IntEnum):
    """Cause of a failed trajectory; the integer is the statistic ``failure``, 0 for none."""

    NONE = 0
    SOLVER = 1
    NON_REVERSIBLE = 2
    NOT_POSITIVE_DEFINITE = 3
    NON_FINITE = 4
    ENERGY = 5


class PriorFailure(Exception):  # noqa: N818 - it is caught and counted, never shown
    """A prior that cannot be used at some hyperparameters; `failure` is the cause to count."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.name)
        self.failure = failure


# An energy error above this is `Failure.ENERGY`, a divergence; in a tree it ends the trajectory, as in NUTS.
MAX_ENERGY_ERROR = 1000.0


def listed(names: Iterable[str], kind: str = "variables", between: str = ", ", most: int = MOST_NAMES) -> str:
    """Return names as a list, for a message: of more than `most` the first two and the last.

    A list that is cut short begins with the number of names and what they are, unless `kind` is empty.
    """
    held = list(names)
    if len(held) <= most:
        return between.join(held)
    short = between.join([*held[:2], "…", held[-1]])
    return f"{len(held)} {kind} {short}" if kind else short


def counted(n: int, noun: str) -> str:
    """Return a number and a noun, in the plural but for 1."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def unread_in_words(name: str) -> str:
    """Say that a value has no posterior distribution, since no density depends on it."""
    return (
        f"{name}: the model's log density does not depend on it, so it has no posterior distribution. Give it a proper "
        f"prior in place of a Flat one, such as pm.Normal, or data that depend on it with observed=."
    )


def wrapped(text: str, width: int = LOG_WIDTH) -> str:
    """Return text with its long lines broken; lines of code, which are indented, stay whole."""
    return "\n".join(line if line.startswith(" ") else _broken(line, width) for line in text.split("\n"))


def _broken(line: str, width: int) -> str:
    indent = "  " if line.startswith(("- ", "RMHMC: ")) else ""
    return textwrap.fill(line, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def shown(value: Any) -> str:
    """Return a value in a few characters, for a message: whatever a user gives, the message stays short."""
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        number = int(value)
        if abs(number) < SHORT_NUMBER:
            return str(number)
        try:
            return f"{float(number):.3g}"
        except OverflowError:
            return f"about {'-' if number < 0 else ''}1e{abs(number).bit_length() * 30103 // 100000}"
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return f"{float(value):.3g}"
    short = reprlib.Repr(maxstring=LONGEST_SHOWN, maxother=LONGEST_SHOWN)
    return " ".join(short.repr(value).split())


def failure_of(log_density: float, slope: np.ndarray) -> Failure:
    """Return NON_FINITE where a log density or any number of its slope is infinite or nan."""
    # One number tells whether all are finite: a sum of squares cannot cancel.
    finite = math.isfinite(log_density) and math.isfinite(float(slope @ slope))
    return Failure.NONE if finite else Failure.NON_FINITE
