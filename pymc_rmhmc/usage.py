"""Checks of what public functions are given: names of arguments, and options that must be numbers."""

from __future__ import annotations

import functools
import inspect
import math
import numbers
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pymc_rmhmc.errors import ConfigurationError, shown

__all__ = ["RANGES", "Range", "called_as", "count", "one_of", "real_number", "switch", "whole_number"]



def called_as[**P, R](usage: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function or a class so that a call with other arguments is a `ConfigurationError` with the usage."""

    def decorate(called: Callable[P, R]) -> Callable[P, R]:
        if isinstance(called, type):
            called.__init__ = _checked(called.__init__, called.__name__, usage)  # type: ignore[misc]
            return called
        return _checked(called, getattr(called, "__name__", "the function"), usage)

    return decorate


def _checked[**P, R](function: Callable[P, R], name: str, usage: str) -> Callable[P, R]:
    """Wrap a function, so that its arguments are checked where a call of it fails."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TypeError:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise ConfigurationError(f"{name}() cannot be called like this: {error}. Write {usage}.") from None
            raise

    return checked


# Characters of a number that is shown in full.
LONGEST_NUMBER = 12


class Range(NamedTuple):
    """The values that an option may take: from the least to the most, which is out of range itself if `below` is set.

    The advice ends the message: why there are bounds, and what to do.
    """

    least: float
    most: float
    advice: str
    below: bool = False

    def holds(self, number: float) -> bool:
        """Return whether a number lies within the bounds; nan does not."""
        return self.least <= number and (number < self.most if self.below else number <= self.most)

    def __str__(self) -> str:
        return f"from {shown(self.least)} to {'below ' if self.below else ''}{shown(self.most)}"


STEPS = "A trajectory needs at least one step, and a draw with more than a million would take hours. "
RANGES = {
    "step_size": Range(
        1e-12, 1e3,
        "A shorter step does not move a chain, a longer one is never accepted. Leave step_size out to have it tuned.",
    ),
    "target_accept": Range(
        0.01, 0.999, "It is the acceptance that the step size is tuned to. Leave it out, or try target_accept=0.95."
    ),
    "path_length": Range(
        1e-6, 1e4,
        "A shorter path does not move a chain, a longer one turns in circles. The default is path_length=1.7, "
        "or 2.0 for hierarchies.",
    ),
    "jitter": Range(
        0.0, 1.0,
        "A path's length varies by this fraction and must stay positive. The default is jitter=0.1, or 0.3 for "
        "hierarchies.",
        below=True,
    ),
    "n_rungs": Range(1, 1e6, "Each is a move of every state. The default is n_rungs=200."),
    "target_error": Range(
        1e-6, 10.0, "It is a standard error of log p(y): two models differ noticeably by 1. The default is 0.05."
    ),
    "max_seconds": Range(0.1, 1e7, "Give max_seconds=None for no limit."),
    "replicates": Range(16, 1e5, "So many states move at once, in up to 32 groups for the error. The default is 64."),
    "n_steps": Range(1, 1e6, f"{STEPS}Leave n_steps out, and path_length decides."),
    "max_steps": Range(1, 1e6, f'{STEPS}The default is max_steps=100, or 1023 with trajectory="nuts".'),
    "max_depth": Range(1, 20, "A trajectory has fewer than 2**max_depth steps. The default is max_depth=10."),
    "solver_tol": Range(
        1e-13, 1e-2,
        "Rounding keeps a solver from less, and with more an implicit step is neither reversible nor volume "
        "preserving. The default is solver_tol=1e-9.",
        below=True,
    ),
    "solver_max_iter": Range(
        1, 1e5, "What is not solved by then has no solution as a rule. The default is solver_max_iter=100."
    ),
    "depth": Range(0, 100, "So many earlier residuals are kept and mixed. The default is depth=6."),
    "alpha": Range(
        1e-3, 1e12,
        "The metric's absolute value of a curvature is sharp above 1/alpha; a small alpha makes wide directions slow. "
        "The default is alpha=1e6.",
    ),
    "omega": Range(
        1e-3, 1e6,
        "It binds the two copies: well above the frequency of the motion, with steps of at most 1/omega. "
        "Try ExplicitTao(omega=10.0).",
    ),
    "sigma": Range(1e-6, 1e3, "It is how far apart the two copies begin. Leave it out, or try sigma=0.1."),
    "mass": Range(
        1e-12, 1e12,
        "It scales the distance between the two copies as the metric would. The default is mass=1.0.",
    ),
    "damping": Range(
        1e-3, 1.0,
        "It is the fraction of each update of EP's sites that is made. The default is damping=1.0; try damping=0.5 "
        "where EP does not converge.",
    ),
    "tolerance": Range(
        1e-12, 0.1, "It is a fraction of standard deviations and variances. The default is tolerance=1e-6."
    ),
    "max_iter": Range(1, 1e6, "It is the most updates of all sites. The default is max_iter=100."),
    "blas_threads": Range(
        1, 1024, "It limits the threads of matrix products. The default is blas_threads=1; None leaves them alone."
    ),
}  # fmt: skip


def real_number(name: str, value: object) -> float:
    """Return an option that measures something as a float, or raise if it is no number or out of its range."""
    allowed = RANGES[name]
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise ConfigurationError(f"{name} must be a number, got {shown(value)}. Give one {allowed}. {allowed.advice}")
    number = _as_float(value)
    if not allowed.holds(number):
        raise ConfigurationError(f"{name} must be a number {allowed}, got {_unrounded(value)}. {allowed.advice}")
    return number


def whole_number(name: str, value: object) -> int:
    """Return an option that counts something, given as an integer or a number that is one, or raise if it is none."""
    allowed = RANGES[name]
    number = _as_float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    if not (allowed.holds(number) and number.is_integer()):
        raise ConfigurationError(f"{name} must be a whole number {allowed}, got {shown(value)}. {allowed.advice}")
    return int(number)


def count(name: str, value: object, example: int, least: int = 1) -> int:
    """Return an argument that counts something, given as an integer of at least the least, or raise if it is not."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < least:
        raise ConfigurationError(
            f"{name} must be a whole number from {least} up, got {shown(value)}. Give, for example, {name}={example}."
        )
    return int(value)


def switch(name: str, value: object) -> bool:
    """Return an option that counts something, an integer or a number that is one, or raise if it is none."""
    if not isinstance(value, bool | np.bool_):
        raise ConfigurationError(
            f"{name} must be True or False, got {shown(value)}. Other values could be read either way: "
            f"give {name}=True or {name}=False."
        )
    return bool(value)


def one_of(name: str, value: object, known: tuple[str, ...], advice: str) -> str:
    """Return an option that is one of a few words, or raise if it is none of them."""
    if not isinstance(value, str) or value not in known:
        raise ConfigurationError(f"{name} must be one of {', '.join(known)}, got {shown(value)}. {advice}")
    return value


def _unrounded(value: numbers.Real) -> str:
    """Return a number in a few characters, with all digits of a short one: 0.9995 is not 1."""
    digits = repr(_as_float(value))
    is_short = not isinstance(value, numbers.Integral) and len(digits) <= LONGEST_NUMBER
    return digits.removesuffix(".0") if is_short else shown(value)


def _as_float(value: numbers.Real) -> float:
    """Return a real number as a float; infinity for an integer that is too large for one."""
    try:
        return float(value)
    except OverflowError:
        return -math.inf if value < 0 else math.inf
