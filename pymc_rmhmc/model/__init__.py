"""Reading a PyMC model: which parts are latent Gaussian, and how to evaluate them."""

from pymc_rmhmc.model.compile import CompiledBlock, CompiledModel, compile_model
from pymc_rmhmc.model.forms.joint_model import JointModel, read_joint
from pymc_rmhmc.model.observed.observation import names_by_value
from pymc_rmhmc.model.structure import LatentBlock, ModelStructure, model_in_context, read_structure
from pymc_rmhmc.model.together import read_together, warnings_of, with_predictors_or_without
from pymc_rmhmc.model.words.refusals import said_once

__all__ = [
    "CompiledBlock", "CompiledModel", "JointModel", "LatentBlock", "ModelStructure", "compile_model",
    "model_in_context", "names_by_value", "read_joint", "read_structure", "read_together", "said_once", "warnings_of",
    "with_predictors_or_without",
]  # fmt: skip
