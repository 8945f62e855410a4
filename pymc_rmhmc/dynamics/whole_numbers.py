"""Options that count something."""

from __future__ import annotations

import math
import numbers
from typing import Any

from pymc_rmhmc.errors import ConfigurationError

__all__ = ["whole_number"]


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
