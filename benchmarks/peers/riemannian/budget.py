"""How many draws a sampler makes: as many as fit into the same seconds for all, judged by a few made beforehand."""

from __future__ import annotations

from benchmarks.peers.riemannian.problems import CHAINS

__all__ = ["draws_within"]

FEWEST, MOST = 100, 20000


def draws_within(seconds: float, per_draw: float) -> int:
    """Draws a chain."""
    return int(min(MOST, max(FEWEST, seconds / (CHAINS * per_draw))))
