"""Hamiltonians: what they ask of a metric or a density, and the three that there are."""

from pymc_rmhmc.dynamics.hamiltonian.gaussian import GaussianHamiltonian, GaussianState, dot
from pymc_rmhmc.dynamics.hamiltonian.protocols import (
    Density,
    DensityPoint,
    Hamiltonian,
    ImplicitEquation,
    Metric,
    MetricPoint,
    NearbyPoint,
)
from pymc_rmhmc.dynamics.hamiltonian.riemannian import RiemannianHamiltonian, RiemannianState
from pymc_rmhmc.dynamics.hamiltonian.spanned import (
    Followed,
    Origin,
    SiteDensity,
    SitePoint,
    SpannedHamiltonian,
    SpannedState,
)

__all__ = [
    "Density",
    "DensityPoint",
    "Followed",
    "GaussianHamiltonian",
    "GaussianState",
    "Hamiltonian",
    "ImplicitEquation",
    "Metric",
    "MetricPoint",
    "NearbyPoint",
    "Origin",
    "RiemannianHamiltonian",
    "RiemannianState",
    "SiteDensity",
    "SitePoint",
    "SpannedHamiltonian",
    "SpannedState",
    "dot",
]
