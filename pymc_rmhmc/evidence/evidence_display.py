"""The line that shows an estimate of the evidence as it grows."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

__all__ = ["displayed", "in_a_line"]


@contextlib.contextmanager
def displayed(progressbar: bool) -> Iterator[Callable[[str], None]]:
    """Give what shows a line, with the time since; without a progress bar it shows nothing."""
    if not progressbar:
        yield lambda line: None
        return
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), transient=True) as display:
        task = display.add_task("log p(y)")
        yield lambda line: display.update(task, description=line)


def in_a_line(value: float, error: float, doing: str) -> str:
    """Return an estimate, if there is one, and what is done."""
    known = f" {value:.3f} ± {error:.3f}" if math.isfinite(value) else ""
    return f"log p(y){known}: {doing}"
