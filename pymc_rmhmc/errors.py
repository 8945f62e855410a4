"""What can go wrong, in two kinds.

A *mistake of the user's* is an exception of this module that says what was found and what to do instead. It is raised
when the object is built, or, where it cannot be known before, when a chain begins or its tuning ends. A *failure inside
a trajectory* is a value, `Failure`: the proposal is rejected, the cause is counted, and the chain goes on.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

__all__ = [
    "ConfigurationError",
    "CovarianceError",
    "DataError",
    "Failure",
    "RMHMCError",
    "SamplingError",
    "UnsupportedLikelihoodError",
    "UnsupportedModelError",
]


class RMHMCError(Exception):
    """Base of every exception that this package raises on purpose."""


class ConfigurationError(RMHMCError, ValueError):
    """An option is unknown, out of range, without effect or contradicts another, or a start has no finite density."""


class SamplingError(RMHMCError, RuntimeError):
    """Tuning has ended, and shows that the chain would stand still."""


class UnsupportedModelError(RMHMCError, TypeError):
    """The variables to be sampled do not form a latent Gaussian block that can be read.

    Attributes
    ----------
    reasons : dict of str to str
        Where a model has no block at all, why each of its variables forms none.
    """

    def __init__(self, message: str = "", reasons: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.reasons = reasons or {}


class UnsupportedLikelihoodError(UnsupportedModelError):
    """An observed variable cannot serve as the likelihood of a latent Gaussian block."""


class DataError(RMHMCError, ValueError):
    """Data or a result are missing, not finite, out of the distribution's support, or have changed their shape."""


class CovarianceError(RMHMCError, np.linalg.LinAlgError):
    """A covariance that stays as it is, or one at a chain's starting point, is not positive definite."""


class Failure(IntEnum):
    """Why a trajectory could not be followed to an acceptable end (0: it could).

    The integer is what the statistic ``failure`` holds.
    """

    NONE = 0
    SOLVER = 1
    NON_REVERSIBLE = 2
    NOT_POSITIVE_DEFINITE = 3
    NON_FINITE = 4
    ENERGY = 5
