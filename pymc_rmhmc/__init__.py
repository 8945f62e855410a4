"""Riemannian manifold Hamiltonian Monte Carlo for PyMC: latent Gaussian models, and any other."""

from pymc_rmhmc import errors
from pymc_rmhmc.approximation import SiteFit, SiteRegression
from pymc_rmhmc.diagnostics.compare import compare
from pymc_rmhmc.diagnostics.failures import FailureSummary, summarize_failures
from pymc_rmhmc.diagnostics.plots import plot_compare
from pymc_rmhmc.dynamics.integrators import GeneralizedLeapfrog, ImplicitMidpoint
from pymc_rmhmc.dynamics.solvers import AndersonSolver
from pymc_rmhmc.dynamics.tao import ExplicitTao
from pymc_rmhmc.errors import (
    ApproximationError,
    ConfigurationError,
    CovarianceError,
    DataError,
    EvidenceError,
    Failure,
    RMHMCError,
    SamplingError,
    UnsupportedLikelihoodError,
    UnsupportedModelError,
)
from pymc_rmhmc.evidence.approximations import GaussianApproximation, ep, laplace
from pymc_rmhmc.evidence.evidence_methods import Annealing
from pymc_rmhmc.evidence.evidence_plots import plot_evidence, plot_rungs
from pymc_rmhmc.evidence.log_evidence import log_evidence
from pymc_rmhmc.evidence.parallel_tempering import parallel_tempering
from pymc_rmhmc.latent.charts import GaussianSites
from pymc_rmhmc.metrics import (
    BlockMetric,
    DenseField,
    FisherMetric,
    FlatMetric,
    GraphMetric,
    HessianMetric,
    MetricFieldBase,
    SoftAbsMetric,
    WhitenedFisherMetric,
)
from pymc_rmhmc.model.field.residuals import register_residuals
from pymc_rmhmc.model.general.families import register_family, registered_families
from pymc_rmhmc.model.likelihoods import (
    Curvature,
    LikelihoodTerms,
    Reading,
    register_likelihood,
    registered_likelihoods,
)
from pymc_rmhmc.model.likelihoods.links import undo_cloglog, undo_log, undo_logit, undo_probit
from pymc_rmhmc.model.words.describe import BlockDescription, MetricDescription, ModelDescription
from pymc_rmhmc.steps.executors import sample_chains
from pymc_rmhmc.steps.rmhmc import RMHMC
from pymc_rmhmc.steps.running_summary import RunningSummary
from pymc_rmhmc.steps.selection import describe
from pymc_rmhmc.steps.simple_steps import MALA, MMALA, EllipticalSlice

# The only place where the version stands: the build reads it from here.
__version__ = "0.1.0"

__all__ = [
    "MALA",
    "MMALA",
    "RMHMC",
    "AndersonSolver",
    "Annealing",
    "ApproximationError",
    "BlockDescription",
    "BlockMetric",
    "ConfigurationError",
    "CovarianceError",
    "Curvature",
    "DataError",
    "DenseField",
    "EllipticalSlice",
    "EvidenceError",
    "ExplicitTao",
    "Failure",
    "FailureSummary",
    "FisherMetric",
    "FlatMetric",
    "GaussianApproximation",
    "GaussianSites",
    "GeneralizedLeapfrog",
    "GraphMetric",
    "HessianMetric",
    "ImplicitMidpoint",
    "LikelihoodTerms",
    "MetricDescription",
    "MetricFieldBase",
    "ModelDescription",
    "RMHMCError",
    "Reading",
    "RunningSummary",
    "SamplingError",
    "SiteFit",
    "SiteRegression",
    "SoftAbsMetric",
    "UnsupportedLikelihoodError",
    "UnsupportedModelError",
    "WhitenedFisherMetric",
    "__version__",
    "compare",
    "describe",
    "ep",
    "errors",
    "laplace",
    "log_evidence",
    "parallel_tempering",
    "plot_compare",
    "plot_evidence",
    "plot_rungs",
    "register_family",
    "register_likelihood",
    "register_residuals",
    "registered_families",
    "registered_likelihoods",
    "sample_chains",
    "summarize_failures",
    "undo_cloglog",
    "undo_log",
    "undo_logit",
    "undo_probit",
]
