"""Forms of latent Gaussian priors, as models have them: a new form is a file and a row here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.interfaces.stated import StatedVector
from pymc_rmhmc.model.forms import coefficients, dense, kronecker
from pymc_rmhmc.model.forms.priors import LatentVariable

__all__ = ["FORMS", "Form", "form_of"]

type Array = NDArray[np.float64]


class Form(Protocol):
    """What a form's file says of a vector: its expressions, and what is stated of their values."""

    def matrices(self, latent: LatentVariable, shape: tuple[int, ...]) -> list[TensorVariable]:
        """Return what the covariance of a variable of this shape is made of, as expressions."""

    def in_a_sum(
        self, latent: LatentVariable, shape: tuple[int, ...], scale: TensorVariable | None
    ) -> tuple[list[TensorVariable], TensorVariable, TensorVariable, TensorVariable]:
        """Return the same of what a predictor reads times a scale, if any; and what `state` takes besides.

        The second is what sites read where the vector is at its mean, the third and fourth location and scale.
        """

    def state(
        self, given: Sequence[Array], location: Array | float, scale: Array | float, *, is_centred: bool,
        moves: bool = True,
    ) -> StatedVector:  # fmt: skip
        """State a vector, from values of these expressions."""

    def state_at_a_point(
        self, given: Sequence[Array], root: str, mean: Array, rows: Sequence[int], *, is_centred: bool
    ) -> Sequence[StatedVector]:
        """State some rows of a variable where nothing moves, from the matrices of this kind that the model gives.

        The mean has the variable's shape.
        """


FORMS: dict[str, Form] = {"dense": dense, "kronecker": kronecker, "coefficients": coefficients}


def form_of(latent: LatentVariable) -> str:
    """Return the name of a vector's form: objects that are copied keep it, as a module has no copy."""
    if latent.form == "independent":
        return "coefficients"
    return "kronecker" if latent.root == "kronecker" else "dense"
