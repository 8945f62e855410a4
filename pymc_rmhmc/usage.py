"""Calls with arguments that a public function or class does not take: said with a call that it does."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

from pymc_rmhmc.errors import ConfigurationError

__all__ = ["called_as"]


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
