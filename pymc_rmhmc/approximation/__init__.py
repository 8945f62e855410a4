"""Gaussian approximations of a posterior: the mode, the sites that stand in for a likelihood, and EP."""

from pymc_rmhmc.approximation.ep import EPFit, fit_ep, second_order_correction
from pymc_rmhmc.approximation.newton import Mode, find_mode
from pymc_rmhmc.approximation.site_fit import SiteFit, SiteRegression, laplace_sites, prior_expected_sites
from pymc_rmhmc.approximation.tilted import TiltedMoments, tilted_moments

__all__ = [
    "EPFit", "Mode", "SiteFit", "SiteRegression", "TiltedMoments", "find_mode", "fit_ep", "laplace_sites",
    "prior_expected_sites", "second_order_correction", "tilted_moments",
]  # fmt: skip
