"""Hamiltonians: what they ask of a metric or a density, and the four that there are."""

from pymc_rmhmc.dynamics.hamiltonian.gaussian import (
    GaussianHamiltonian,
    GaussianState,
    SiteHamiltonian,
    SpannedHamiltonian,
    SpannedState,
    dot,
    kick,
    rotate,
    turned,
)
from pymc_rmhmc.dynamics.hamiltonian.protocols import (
    Advanced,
    AdvancedSteps,
    AndersonSolver,
    Density,
    DensityPoint,
    Hamiltonian,
    ImplicitEquation,
    MakeSteps,
    MetricMatrix,
    MetricPoint,
    Placed,
    SitePoint,
    Solution,
    ValuePoint,
)
from pymc_rmhmc.dynamics.hamiltonian.riemannian import MetricField, RiemannianHamiltonian, RiemannianState

__all__ = [
    "Advanced", "AdvancedSteps", "AndersonSolver", "Density", "DensityPoint", "GaussianHamiltonian", "GaussianState",
    "Hamiltonian", "ImplicitEquation", "MakeSteps", "MetricField", "MetricMatrix", "MetricPoint", "Placed",
    "RiemannianHamiltonian", "RiemannianState", "SiteHamiltonian", "SitePoint", "Solution", "SpannedHamiltonian",
    "SpannedState", "ValuePoint", "dot", "kick", "rotate", "turned",
]  # fmt: skip
