"""Changes of coordinates. A chart must never bias: its Jacobian is part of the density."""

from pymc_rmhmc.latent.charts.marginal import MarginalChart
from pymc_rmhmc.latent.charts.moving_sites import MovingSites, SiteTilt, SiteTrend
from pymc_rmhmc.latent.charts.site import GaussianSites, SiteChart

__all__ = ["GaussianSites", "MarginalChart", "MovingSites", "SiteChart", "SiteTilt", "SiteTrend"]
