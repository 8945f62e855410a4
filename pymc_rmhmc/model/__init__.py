"""Reading a PyMC model: which parts are latent Gaussian, and how to evaluate them."""

from pymc_rmhmc.model.compile import CompiledBlock, CompiledModel, compile_model
from pymc_rmhmc.model.structure import LatentBlock, ModelStructure, Observation, read_structure

__all__ = [
    "CompiledBlock",
    "CompiledModel",
    "LatentBlock",
    "ModelStructure",
    "Observation",
    "compile_model",
    "read_structure",
]
