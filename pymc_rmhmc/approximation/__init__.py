"""Gaussian approximations of a posterior: the mode, and the sites that stand in for a likelihood."""

from pymc_rmhmc.approximation.newton import Mode, find_mode
from pymc_rmhmc.approximation.sites import SiteFit, SiteRegression, laplace_sites, prior_expected_sites

__all__ = ["Mode", "SiteFit", "SiteRegression", "find_mode", "laplace_sites", "prior_expected_sites"]
