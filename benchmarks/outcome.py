"""What a sampler hands back to the harness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import xarray as xr


class CannotRunError(Exception):
    """A sampler cannot be run on a problem; the message says why, and is kept as the record."""


@dataclass
class Outcome:
    """Draws of all that is compared (chain, draw, n), seconds of tuning and sampling, and what is worth a column.

    Seconds are of the sampler's own work, chain after chain on one core; compilation is left out for all.

    Attributes
    ----------
    stopped : str
        Empty; "sampling" where the deadline came before the last draw, and "tuning" where it came before the first
        one: the draws are then those of tuning.
    """

    draws: np.ndarray
    tuning: float
    sampling: float
    extra: dict[str, float] = field(default_factory=dict)
    stopped: str = ""


def stacked(posterior: xr.Dataset, names: Sequence[str]) -> np.ndarray:
    """Some variables' draws side by side, (chain, draw, n)."""
    columns = [posterior[name].values for name in names]
    return np.concatenate([c.reshape(*c.shape[:2], -1) for c in columns], axis=-1)


def merged(chains: Sequence[Outcome]) -> Outcome:
    """Chains that ran one after another, as one run.

    Where one was stopped, the longer is cut to the shorter, and its seconds with it. If any was stopped in tuning,
    nothing was sampled: what the others have counts as tuning too.
    """
    stopped = next((kind for kind in ("tuning", "sampling") if any(c.stopped == kind for c in chains)), "")
    lengths = [chain.draws.shape[1] for chain in chains]
    n = min(lengths)
    spent = [chain.sampling * n / max(1, length) for chain, length in zip(chains, lengths, strict=True)]
    keys = chains[0].extra
    extra = {key: float(np.mean([c.extra[key] for c in chains if key in c.extra])) for key in keys}
    draws = np.concatenate([chain.draws[:, :n] for chain in chains])
    return Outcome(draws, sum(chain.tuning for chain in chains), sum(spent), extra, stopped)
