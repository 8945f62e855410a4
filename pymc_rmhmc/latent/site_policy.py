"""What tuning does with the sites of the flat metric."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_rmhmc.errors import ConfigurationError, shown
from pymc_rmhmc.option_numbers import one_of

__all__ = ["SitePolicy"]

SITES = ("fitted", "prior_expected")


@dataclass(frozen=True, slots=True)
class SitePolicy:
    """How a chain tunes its sites, and what it builds on them; see `FlatMetric` for the meaning of each.

    Attributes
    ----------
    refit : bool
        Refit the sites in tuning.
    site_fit : callable or None
        What makes a `SiteFit` from the number of sites; None for the default.
    emulate : bool
        Fit an emulator of the hyperparameters' marginal density in tuning.
    sites : str
        "fitted" or "prior_expected".

    Raises
    ------
    ConfigurationError
        If one is not of its type, or `site_fit` is given with ``refit=False``.
    """

    refit: bool = True
    site_fit: Callable[[int], Any] | None = None
    emulate: bool = True
    sites: str = "fitted"

    def __post_init__(self) -> None:
        one_of("sites", self.sites, SITES, 'Leave it out, or give FlatMetric(sites="prior_expected").')
        for option in ("refit", "emulate"):
            value = getattr(self, option)
            if not isinstance(value, bool | np.bool_):
                raise ConfigurationError(
                    f"{option} must be True or False, got {shown(value)}. "
                    f"Give FlatMetric({option}=False) to switch it off."
                )
            object.__setattr__(self, option, bool(value))
        if self.sites == "prior_expected":
            if self.site_fit is not None:
                raise ConfigurationError(
                    'site_fit refits the sites, but those of sites="prior_expected" are constant: leave one of them '
                    "out."
                )
            object.__setattr__(self, "refit", False)
        if self.site_fit is None:
            return
        if not callable(self.site_fit):
            raise ConfigurationError(
                "site_fit must make a SiteFit from the number of sites, such as the class SiteRegression, got "
                f"{shown(self.site_fit)}."
            )
        if not self.refit:
            raise ConfigurationError("site_fit refits the sites, but refit=False keeps them: leave one of them out.")
