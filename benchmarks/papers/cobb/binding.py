"""The binding of the explicit integrator as the paper prints it, and as the paper's released code has it."""

from __future__ import annotations

import math

import numpy as np

from pymc_rmhmc import ExplicitTao

__all__ = ["OverwrittenBinding"]


class OverwrittenBinding(ExplicitTao):
    """`ExplicitTao` with the published acceptance, and with the binding that hamiltorch has.

    hamiltorch updates q, p, q̃ and p̃ in this order, and each update already uses the new values of those before it.
    So the binding is not the rotation of eq. (12). It does not preserve volume: near ``2ωε = π`` it makes both copies
    all but equal in every step.
    """

    def __init__(self, omega: float) -> None:
        super().__init__(omega, acceptance="one_copy_approximate")

    def bind(self, q, p, copy_q, copy_p, time):
        """Return q, p, q̃ and p̃ after a time, each computed from those that are new already."""
        cos, sin = math.cos(2.0 * self.omega * time), math.sin(2.0 * self.omega * time)
        state = np.array([q, p, copy_q, copy_p])
        # Rows of the rotation: how each of the four depends on all of them.
        rotation = 0.5 * np.array(
            [
                [1 + cos, sin, 1 - cos, -sin],
                [-sin, 1 + cos, sin, 1 - cos],
                [1 - cos, -sin, 1 + cos, sin],
                [sin, 1 - cos, -sin, 1 + cos],
            ]
        )
        for i in range(4):
            state[i] = rotation[i] @ state
        return tuple(state)
