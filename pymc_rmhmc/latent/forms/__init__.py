"""Forms of a prior: what a model states of a vector, and the operator of it. A new form is a file and a row here."""

from __future__ import annotations

from typing import Any

from pymc_rmhmc.interfaces.stated import StatedCoefficients, StatedDense, StatedKronecker, StatedVector
from pymc_rmhmc.latent.forms.coefficients import CoefficientsOperator
from pymc_rmhmc.latent.forms.dense import DenseOperator
from pymc_rmhmc.latent.forms.kronecker import KroneckerOperator
from pymc_rmhmc.latent.operators import Operator

__all__ = ["FORMS", "operator_of"]

FORMS: dict[type, Any] = {
    StatedCoefficients: CoefficientsOperator,
    StatedDense: DenseOperator,
    StatedKronecker: KroneckerOperator,
}


def operator_of(stated: StatedVector, like: Operator | None = None) -> Operator:
    """Return the operator of a vector's prior; what `like` is made of serves again.

    Raises a `PriorFailure` if the prior cannot be used.
    """
    form = FORMS[type(stated)]
    operator: Operator = form(stated) if like is None else form(stated, like)
    return operator
