"""What recipes share that move continuous variables of any model, by the model's whole density."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.chains.plan import Plan
from pymc_rmhmc.chains.recipe import RecipeBase
from pymc_rmhmc.chains.variables import Point, Variables
from pymc_rmhmc.errors import RMHMCError
from pymc_rmhmc.sampled.start_errors import density_error

__all__ = ["WholeModelRecipe"]

# What the sums of shared data are called next to the names of variables.
DATA = "shared data"

type Array = NDArray[np.float64]


class WholeModelRecipe(RecipeBase):
    """Continuous variables of a model given the others; see `Recipe`.

    Parameters
    ----------
    model : GeneralModel or ValueModel
        Their density.
    name : str
        For messages.
    plan : Plan
        Metric, integrator, lengths.
    labels : mapping of str to str
        What users call the value variables.
    """

    prior_moves = True

    def __init__(self, model: Any, name: str, plan: Plan, labels: Mapping[str, str]) -> None:
        self.model, self.name, self.plan = model, name, plan
        packed = model.variables
        parts = tuple((n, slice(0, p.stop - p.start)) for n, p in zip(packed.names, packed.slices, strict=True))
        self.variables, self.steps = Variables(parts, labels), plan.steps()
        self.forget()

    def forget(self) -> None:
        """See `Recipe`."""
        self._given: Point | None = None
        self._setting: Any = None

    @property
    def start_is_final(self) -> bool:
        """See `Recipe`."""
        return not self.model.inputs

    def bind(self, point: Point) -> tuple[bool, Point]:
        """See `Recipe`."""
        known = self._given
        if known is not None and all(np.array_equal(known[name], point[name]) for name in self.model.inputs):
            return False, known
        data = self._data() if known is None else known[DATA]
        self._given = {name: np.array(point[name]) for name in self.model.inputs} | {DATA: data}
        self.model.bind(point)
        self.drop()
        return True, self._given

    def _data(self) -> Array:
        """Return checksums of the shared data, once per run: coordinates that were kept are useless with other data."""
        arrays = (np.ascontiguousarray(shared.get_value(borrow=True)) for shared in self.model.shared)
        return np.array([zlib.crc32(array) for array in arrays], np.float64)

    def drop(self) -> None:
        """See `Recipe`."""
        self._setting = None

    def start_error(self, point: Point) -> RMHMCError | None:
        """See `Recipe`."""
        return density_error(self.model.terms, self.model.names, point)

    def where_refused(self) -> str:
        """See `Recipe`."""
        return ""

    def curvatures(self, values: Array) -> set[str]:
        """See `Recipe`."""
        return set()
