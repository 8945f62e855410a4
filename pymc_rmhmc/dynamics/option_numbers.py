"""Options that are numbers."""

from __future__ import annotations

import math
import numbers
from typing import Any

from pymc_rmhmc.errors import ConfigurationError

__all__ = ["real_number", "whole_number"]


def real_number(name: str, value: Any) -> float:
    """An option that measures something; its range is for the caller to look at.

    Raises
    ------
    ConfigurationError
        If it is no number.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ConfigurationError(f"{name} must be a number, got {value!r}.")
    return float(value)


def whole_number(name: str, value: Any) -> int:
    """An option that counts something, given as an integer or as a number that is one.

    Raises
    ------
    ConfigurationError
        If it is none, or not positive.
    """
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    number = float(value) if is_number else math.nan
    if not (number >= 1.0 and number.is_integer()):
        raise ConfigurationError(f"{name} must be a positive integer, got {value!r}.")
    return int(number)
