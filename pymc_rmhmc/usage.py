"""Calls with arguments that a public function does not take: said with a call that it does."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

from pymc_rmhmc.errors import ConfigurationError

__all__ = ["called_as"]


def called_as[**P, R](usage: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function so that a call with other arguments is a `ConfigurationError` that shows the usage."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                name = getattr(function, "__name__", "the function")
                raise ConfigurationError(f"{name}() cannot be called like this: {error}. Write {usage}.") from None
            return function(*args, **kwargs)

        return checked

    return decorate
