"""What is measured of a run: the smaller of bulk and tail ESS over all parameters, R-hat, and rates."""

from __future__ import annotations

import arviz as az
import numpy as np

from benchmarks.outcome import Outcome

# With fewer draws a chain no effective sample size can be told.
FEWEST = 100


def all_values(idata, names) -> np.ndarray:
    """The draws of some variables side by side, (chain, draw, n)."""
    held = (idata.posterior[name].values for name in names)
    return np.concatenate([values.reshape(*values.shape[:2], -1) for values in held], axis=-1)


def smallest_ess(draws: np.ndarray) -> float:
    """The smallest effective sample size over parameters of (chain, draw, n) values, bulk and tail."""
    data = az.from_dict({"posterior": {"f": draws}})
    return float(min(az.ess(data, method=method)["f"].min() for method in ("bulk", "tail")))


def largest_rhat(draws: np.ndarray) -> float:
    """The largest rank-normalised R-hat over parameters."""
    return float(az.rhat(az.from_dict({"posterior": {"f": draws}}))["f"].max())


def measured(outcome: Outcome) -> dict:
    """The record of a run.

    A run that was stopped counts with an upper bound of its rate. Had it gone on, its tuning would weigh less and
    less: so the effective draws it has are divided by the seconds that they took alone. With fewer than 100 draws a
    chain, or where it was still tuning, nothing can be said of its effective draws but that they are no more than
    the draws it has made: these are divided by the seconds.
    """
    chains, length = outcome.draws.shape[:2]
    enough = length >= FEWEST and outcome.stopped != "tuning"
    ess = smallest_ess(outcome.draws) if length >= 4 else 0.0  # ArviZ's own least
    total = outcome.tuning + outcome.sampling
    record = {
        "draws": chains * length, "ess": ess, "rhat": largest_rhat(outcome.draws) if length >= 4 else None,
        "tuning": outcome.tuning, "sampling": outcome.sampling, "stopped": outcome.stopped, "extra": outcome.extra,
    }  # fmt: skip
    if outcome.stopped:
        effective = ess if enough else float(chains * length)
        bound = effective / (total if outcome.stopped == "tuning" else outcome.sampling)
        return record | {"ess_per_second": bound, "ess_per_second_sampling": bound}
    return record | {"ess_per_second": ess / total, "ess_per_second_sampling": ess / outcome.sampling}
