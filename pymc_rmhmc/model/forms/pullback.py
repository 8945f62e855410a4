"""Functions of θ together with their derivative, which share the exponentials of large matrices.

Nearly every covariance function is the exponential of a matrix, and its derivative has the same exponential in it.
Compiled code takes them one number at a time, and NumPy eight at a time: so the graph is cut there, and NumPy takes
them, once. At n = 300 this halves what a kernel and its derivative cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.gradient import disconnected_grad, grad
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Exp
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.hyperparameters import GraphFunction
from pymc_rmhmc.model.observed.observed_terms import gradient_by

__all__ = ["Differentiated"]

type Array = NDArray[np.float64]

# Each is kept from value to derivative, and is as large as a covariance matrix.
MOST_KEPT = 4


class Differentiated:
    """Expressions of θ, and the gradient of their inner product with weights.

    Parameters
    ----------
    model : pymc.Model
        For its value variables.
    theta : TensorVariable
        θ (d,).
    outputs : sequence of TensorVariable
        The expressions.
    weighted : sequence of TensorVariable
        Those with weights, in the weights' order; each is one of `outputs`.
    """

    def __init__(
        self, model: pm.Model, theta: TensorVariable, outputs: Sequence[TensorVariable],
        weighted: Sequence[TensorVariable],
    ) -> None:  # fmt: skip
        exponentials = _where_to_cut(outputs, theta)
        exponents = [e.owner.inputs[0] for e in exponentials]
        held = [e.type() for e in exponentials]
        cut = clone_replace([*outputs, *weighted], dict(zip(exponentials, held, strict=True)))
        values, weighted = cut[: len(outputs)], cut[len(outputs) :]
        bars = [w.type() for w in weighted]
        along = sum(((w * bar).sum() for w, bar in zip(weighted, bars, strict=True)), pt.zeros(()))
        gradient = gradient_by(along, theta)
        if exponentials:
            slopes = grad(along, held, disconnected_inputs="ignore", return_disconnected="zero")
            through = [
                (disconnected_grad(slope * e) * x).sum() for x, slope, e in zip(exponents, slopes, held, strict=True)
            ]
            gradient = gradient + gradient_by(sum(through), theta)
        self._exponents = GraphFunction(model, [theta], exponents) if exponents else None
        self._values = GraphFunction(model, [theta, *held], values)
        self._gradient = GraphFunction(model, [theta, *held, *bars], [gradient])
        self._kept: tuple[bytes, list[Array]] = (b"", [])

    def forget(self) -> None:
        """Let go of the exponentials of the last θ: something else that they depend on has moved."""
        self._kept = (b"", [])

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_kept": (b"", [])}

    @property
    def functions(self) -> tuple[GraphFunction, ...]:
        """Everything that is bound to a point."""
        first = (self._exponents,) if self._exponents else ()
        return *first, self._values, self._gradient

    @property
    def bound(self) -> tuple[Any, Any] | None:
        """The functions of θ, and of θ and the weights, each with what it takes besides; None if NumPy has a part."""
        if self._exponents is not None:
            return None
        values, gradient = self._values, self._gradient
        return (values.function, values.bound), (gradient.function, gradient.bound)

    def __call__(self, theta: Array) -> Sequence[Array]:
        """The expressions at θ."""
        self._kept = (theta.tobytes(), self._exponentials(theta))
        return self._values(theta, *self._kept[1])

    def pullback(self, theta: Array, *weights: Array) -> Array:
        """``Σ ∂(expression) / ∂θ · weight``, (d,)."""
        at, kept = self._kept
        self.forget()
        return self._gradient(theta, *(kept if at == theta.tobytes() else self._exponentials(theta)), *weights)[0]

    def _exponentials(self, theta: Array) -> list[Array]:
        if self._exponents is None:
            return []
        with np.errstate(over="ignore"):
            return [
                np.exp(x, out=None if np.may_share_memory(x, theta) else x) for x in self._exponents(theta)
            ]


def _where_to_cut(outputs: Sequence[TensorVariable], theta: TensorVariable) -> list[TensorVariable]:
    """Exponentials of matrices that θ moves; of one within another the outer."""
    held = [
        v
        for v in ancestors(list(outputs))
        if isinstance(v, TensorVariable) and v.ndim == 2 and v.owner is not None and isinstance(v.owner.op, Elemwise)
        and isinstance(v.owner.op.scalar_op, Exp) and v.owner.inputs[0].dtype == v.dtype and theta in ancestors([v])
    ]  # fmt: skip
    inner = set(ancestors([v.owner.inputs[0] for v in held]))
    outer = [v for v in held if v not in inner]
    return outer if len(outer) <= MOST_KEPT else []
