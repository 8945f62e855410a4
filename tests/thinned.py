"""Long tables of cases, of which the quick suite takes some and the statistical suite the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["thinned"]


def thinned(cases: Iterable[str], every: int = 3) -> list[Any]:
    """One case in so many, from the first on, is of the quick suite."""
    slow = pytest.mark.slow(by_python=True)
    return [pytest.param(case, marks=slow if i % every else ()) for i, case in enumerate(cases)]
