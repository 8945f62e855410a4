"""Reading a PyMC model: which parts are latent Gaussian, and how to evaluate them."""

from pymc_rmhmc.model.compile import CompiledBlock, CompiledModel, compile_model
from pymc_rmhmc.model.joint import JointModel, read_joint
from pymc_rmhmc.model.observation import Observation, names_by_value
from pymc_rmhmc.model.refusals import Predictors, said_once
from pymc_rmhmc.model.structure import LatentBlock, ModelStructure, model_in_context, read_structure
from pymc_rmhmc.model.together import read_together, warnings_of, with_predictors_or_without

__all__ = [
    "CompiledBlock",
    "CompiledModel",
    "JointModel",
    "LatentBlock",
    "ModelStructure",
    "Observation",
    "Predictors",
    "compile_model",
    "model_in_context",
    "names_by_value",
    "read_joint",
    "read_structure",
    "read_together",
    "said_once",
    "warnings_of",
    "with_predictors_or_without",
]
