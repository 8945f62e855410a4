"""What the `check` of a likelihood says of data and parameters that cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

__all__ = ["Check", "ParameterFault", "anything", "parameters_within", "places", "positive_parameters"]

type Check = Callable[[np.ndarray, dict[str, np.ndarray]], str | ParameterFault | None]

# PyMC turns counts that are not finite into the lowest integer there is.
LOWEST = float(np.iinfo(np.int64).min)


class ParameterFault(NamedTuple):
    """What a `check` returns where a parameter is at fault, and not the data.

    Attributes
    ----------
    name : str
        The parameter's name.
    words : str
        What goes after "the parameter NAME of y".
    """

    name: str
    words: str


def places(bad: np.ndarray, values: np.ndarray) -> str:
    """Return how many values are bad, where the first is, and what it is."""
    first = int(np.argmax(np.ravel(bad)))
    value = np.ravel(values)[first]
    made = ", which PyMC makes of nan and inf" if value == LOWEST else ""
    return f"{np.count_nonzero(bad)} of {bad.size}, the first at position {first} ({value:.4g}{made})"


def parameters_within(
    *names: str, least: float = 0.0, most: float = np.inf, words: str = "must be positive", data: Check | None = None
) -> Check:
    """Make a `check` that parameters lie in ``(least, most)``, or in ``[least, most]`` where `most` is finite.

    The check of the data comes afterwards: who is to blame for both is the parameter.
    """
    closed = np.isfinite(most)

    def check(y: np.ndarray, parameters: dict[str, np.ndarray]) -> str | ParameterFault | None:
        for name in names:
            values = parameters[name]
            bad = ~((values >= least) & (values <= most)) if closed else ~(values > least)
            if bad.any():
                return ParameterFault(name, f"{words}, and is not for {places(bad, values)}")
        return (data or anything)(y, parameters)

    return check


def positive_parameters(*names: str, data: Check | None = None) -> Check:
    """Make a `check` that parameters are above 0, followed by the data's check if there is one."""
    return parameters_within(*names, data=data)


def anything(y: np.ndarray, parameters: dict[str, np.ndarray]) -> None:
    """Accept whatever there is."""
    return
