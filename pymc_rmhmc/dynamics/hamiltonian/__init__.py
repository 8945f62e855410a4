"""Hamiltonians: what they ask of a metric or a density, and the four that there are."""

from pymc_rmhmc.dynamics.hamiltonian.gaussian import GaussianHamiltonian, GaussianState, dot
from pymc_rmhmc.dynamics.hamiltonian.protocols import (
    Advanced,
    AdvancedSteps,
    Bridge,
    Density,
    DensityPoint,
    FixedPointSolver,
    Hamiltonian,
    ImplicitEquation,
    Metric,
    MetricField,
    MetricMatrix,
    MetricPoint,
    NearbyPoint,
    Placed,
    SitePoint,
    Solution,
)
from pymc_rmhmc.dynamics.hamiltonian.riemannian import RiemannianHamiltonian, RiemannianState
from pymc_rmhmc.dynamics.hamiltonian.site_coordinates import InvertibleSiteDensity, SiteHamiltonian, SiteState
from pymc_rmhmc.dynamics.hamiltonian.spanned import Origin, SiteDensity, SpannedHamiltonian, SpannedState

__all__ = [
    "Advanced",
    "AdvancedSteps",
    "Bridge",
    "Density",
    "DensityPoint",
    "FixedPointSolver",
    "GaussianHamiltonian",
    "GaussianState",
    "Hamiltonian",
    "ImplicitEquation",
    "InvertibleSiteDensity",
    "Metric",
    "MetricField",
    "MetricMatrix",
    "MetricPoint",
    "NearbyPoint",
    "Origin",
    "Placed",
    "RiemannianHamiltonian",
    "RiemannianState",
    "SiteDensity",
    "SiteHamiltonian",
    "SitePoint",
    "SiteState",
    "Solution",
    "SpannedHamiltonian",
    "SpannedState",
    "dot",
]
