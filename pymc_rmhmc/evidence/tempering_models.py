"""From a PyMC model to what parallel tempering moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm

from pymc_rmhmc.chains.variables import Variables
from pymc_rmhmc.evidence.evidence_checks import check_continuous, omitted_constants
from pymc_rmhmc.evidence.evidence_models import read_model
from pymc_rmhmc.evidence.latent_references import latent_reference
from pymc_rmhmc.evidence.methods.estimate import Progress
from pymc_rmhmc.evidence.methods.family import FixedFamily, ReferenceFamily
from pymc_rmhmc.evidence.tempering_families import graph_family, whole_family
from pymc_rmhmc.model.predictions import Predictions, predicted_variables, without
from pymc_rmhmc.model.words.bad_inputs import InputChecks

__all__ = ["TemperedModel", "read_tempered_model"]

type Point = dict[str, np.ndarray]


@dataclass(frozen=True)
class TemperedModel:
    """A model as tempering reads it.

    Attributes
    ----------
    family : callable
        From random numbers and a `Progress` to its references, for which a chain may have to be tuned.
    variables : Variables
        What a vector of its values holds.
    constant : float
        What the log evidence has beyond the reference's constant.
    complete : callable or None
        From random numbers to what draws predictions into a point; None where the model predicts nothing.
    """

    family: Callable[[np.random.Generator, Progress], ReferenceFamily]
    variables: Variables
    constant: float
    complete: Callable[[np.random.Generator], Callable[[Point], None]] | None


def read_tempered_model(model: pm.Model) -> TemperedModel:
    """Read a model: one latent block with all else fixed, or a whole model.

    Raises
    ------
    UnsupportedModelError
        If a variable cannot be moved by trajectories, such as a discrete one.
    Other errors
        As `RMHMC`.
    """
    predicted = predicted_variables(model)
    sampled = without(model, predicted)
    check_continuous(sampled)
    InputChecks(sampled).check(sampled.initial_point())
    complete = _completing(Predictions(model, predicted)) if predicted else None
    read = read_model(sampled)
    if len(read.parts) == 1 and not _has_rest(read):
        (part,) = read.parts
        return TemperedModel(
            lambda *_: FixedFamily(latent_reference(part, "auto", "tempering")[0]), part.variables, read.constant,
            complete,
        )  # fmt: skip
    if read.chain is not None:
        return TemperedModel(lambda *given: whole_family(read, *given), read.variables, read.constant, complete)
    family, variables = graph_family(sampled)  # several blocks
    constant = omitted_constants(sampled, [str(v.name) for v in sampled.free_RVs])
    return TemperedModel(lambda *_: family, variables, constant, complete)


def _has_rest(read: Any) -> bool:
    """Return whether anything outside the block is free."""
    (part,) = read.parts
    held = {name for name, _ in part.variables.slices}
    return any(str(value.name) not in held for value in read.model.value_vars)


def _completing(predictions: Predictions) -> Callable[[np.random.Generator], Callable[[Point], None]]:
    def with_numbers(rng: np.random.Generator) -> Callable[[Point], None]:
        def complete(point: Point) -> None:
            drawn, _ = predictions.draw(point, rng)
            point.update(drawn)

        return complete

    return with_numbers
