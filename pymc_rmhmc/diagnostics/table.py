"""A data frame that shows as many digits as mean something, and its notes."""

from __future__ import annotations

import html
import math
from typing import Any

import numpy as np
import pandas as pd

__all__ = ["ComparisonTable", "shown"]

# From here on all digits before the point are shown.
LARGE = 1000.0
WIDTH = 80


class ComparisonTable(pd.DataFrame):
    """What `compare` returns: a `pandas.DataFrame` that shows four digits, and ``attrs["notes"]`` below.

    The values keep all their digits, and so do tables that are made of it (``.T``, some of its columns).
    """

    @property
    def _constructor(self) -> type[ComparisonTable]:
        return ComparisonTable

    def _shown(self) -> pd.DataFrame:
        """Return the same table with text in it."""
        return pd.DataFrame(self.map(shown).to_numpy(dtype=object), index=self.index, columns=self.columns)

    @property
    def _notes(self) -> list[str]:
        return list(self.attrs.get("notes", ()))

    def __repr__(self) -> str:
        # Pandas would leave columns out of a wide table, and wrap it only in a terminal.
        table = self._shown()
        text = table.to_string()
        if text.find("\n") > WIDTH:
            turned = table.T if len(table) < len(table.columns) else table
            text = turned.to_string(line_width=WIDTH)
        return "\n".join([text, *(f"Note: {note}" for note in self._notes)])

    __str__ = __repr__

    def _repr_html_(self) -> str:
        # Pandas types its own method as one that may return nothing, where a notebook is not to have HTML.
        table: Any = self._shown()._repr_html_()
        notes = "<br>".join(html.escape(f"Note: {note}") for note in self._notes)
        return f"{table or ''}\n<p>{notes}</p>" if notes else f"{table or ''}"


def shown(value: Any) -> str:
    """Write a value as text: whole numbers whole, others with four digits, and large ones without an exponent."""
    if not isinstance(value, float | np.floating) or not math.isfinite(value):
        return str(value)
    number = float(value)
    return f"{number:.0f}" if abs(number) >= LARGE else f"{number:.4g}"
