"""What is measured of a run: the smaller of bulk and tail ESS over all parameters, and R-hat."""

from __future__ import annotations

import arviz as az
import numpy as np


def smallest_ess(draws: np.ndarray) -> float:
    """The smallest effective sample size over parameters of (chain, draw, n) values, bulk and tail."""
    data = az.from_dict({"posterior": {"f": draws}})
    return float(min(az.ess(data, method=method)["f"].min() for method in ("bulk", "tail")))


def largest_rhat(draws: np.ndarray) -> float:
    """The largest rank-normalised R-hat over parameters."""
    return float(az.rhat(az.from_dict({"posterior": {"f": draws}}))["f"].max())
