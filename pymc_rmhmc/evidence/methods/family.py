"""References that are refitted to draws of the posterior while parallel tempering adapts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.chains.reference import Reference

__all__ = ["FixedFamily", "ReferenceFamily"]

type Array = NDArray[np.float64]


class ReferenceFamily(ABC):
    """A first reference of a model, and better ones once there are draws.

    Attributes
    ----------
    refits : bool
        Whether there are others than the first.

    References
    ----------
    Surjanovic, Syed, Bouchard-Côté and Campbell (2022), Parallel tempering with a variational reference: the
    reference with the moments of the posterior has the smallest forward divergence to it.
    """

    refits = True

    @abstractmethod
    def first(self, rng: np.random.Generator) -> Reference:
        """Return the reference to begin with."""

    @abstractmethod
    def refitted(self, values: Array) -> Reference | None:
        """Return a reference with the moments of some draws (n, k) of the posterior; None to keep what there is."""

    @abstractmethod
    def states(self, reference: Reference, values: Array, rng: np.random.Generator) -> Array:
        """Return the states of walkers (n, m) of a reference at some of the model's values (n, k)."""

    @abstractmethod
    def values(self, reference: Reference, states: Array, rng: np.random.Generator) -> Array:
        """Return the model's values (n, k) at some states (n, m) of walkers."""


@dataclass(frozen=True, slots=True)
class _Standing:
    """Walkers that only stand, for what asks where."""

    states: Array


class FixedFamily(ReferenceFamily):
    """One reference, which is not refitted: such as that of a chain that has been tuned.

    Parameters
    ----------
    reference : Reference
        It.
    """

    refits = False

    def __init__(self, reference: Reference) -> None:
        self.reference = reference

    def first(self, rng: np.random.Generator) -> Reference:
        """See `ReferenceFamily`."""
        return self.reference

    def refitted(self, values: Array) -> Reference | None:
        """See `ReferenceFamily`."""
        return None

    def states(self, reference: Reference, values: Array, rng: np.random.Generator) -> Array:
        """See `ReferenceFamily`."""
        raise NotImplementedError("a reference that stays the same places no walkers")

    def values(self, reference: Reference, states: Array, rng: np.random.Generator) -> Array:
        """See `ReferenceFamily`."""
        walkers: Any = _Standing(states)
        return reference.values(walkers, rng)
