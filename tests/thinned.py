"""Long tables of cases, of which the quick suite takes some and the statistical suite the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

__all__ = ["thinned"]


def thinned(cases: Iterable[Any], every: int = 3, *, with_also: Collection[Any] = ()) -> list[Any]:
    """One case in so many, from the first on, is of the quick suite, and so are those that planted faults ask for."""
    slow = pytest.mark.slow(by_python=True)
    return [
        pytest.param(*_values(case), marks=() if i % every == 0 or case in with_also else slow)
        for i, case in enumerate(cases)
    ]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
