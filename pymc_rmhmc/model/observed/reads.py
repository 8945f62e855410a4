"""How predictors read latent values, the same at every θ: by a constant matrix, or one value each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pytensor.tensor.variable import TensorVariable
from scipy import sparse

from pymc_rmhmc.errors import DataError
from pymc_rmhmc.model.observed.observation import Observation
from pymc_rmhmc.model.observed.observations import AffineReader

__all__ = ["DesignReader", "PlainReading", "SameValues"]

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]

# A matrix with fewer entries than this share of its size (a column for each group of a mixed model) is kept sparse.
SPARSE_SHARE = 0.1


class DesignReader:
    """A of ``η = c + A x``, the observations of all variables stacked, found from the predictors' values.

    Parameters
    ----------
    model : pymc.Model
        The model.
    observations : sequence of Observation
        With linear predictors.
    nodes : sequence of TensorVariable
        What the predictors read.
    shapes : sequence of tuple of int
        Of the nodes.
    positions : sequence of (k,) int array
        Where the values of each node's variable are in the node, raveled.
    """

    def __init__(
        self, model: pm.Model, observations: Sequence[Observation], nodes: Sequence[TensorVariable],
        shapes: Sequence[tuple[int, ...]], positions: Sequence[NDArray[np.int64]],
    ) -> None:  # fmt: skip
        self._readers = [AffineReader(model, observation, nodes) for observation in observations]
        self._shapes, self._positions = list(shapes), list(positions)
        self.shared = [s for reader in self._readers for s in reader.shared]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The value variables that A depends on: with any, it is not the same everywhere."""
        return tuple(dict.fromkeys(name for reader in self._readers for name in reader.linear_inputs.values))

    def sizes(self, point: Point) -> list[int]:
        """Count the observations of each variable."""
        return [reader.form(point, self._shapes).offset.size for reader in self._readers]

    def n_rows(self, point: Point) -> int:
        """Count the rows of A."""
        return sum(self.sizes(point))

    def parts(self, point: Point, sizes: Sequence[int]) -> list[Any]:
        """Return A of every node, (n, k) each."""
        columns = np.cumsum([0, *sizes])
        whole = self(point)
        return [_kept(whole[:, a:b]) for a, b in itertools.pairwise(columns)]

    def __call__(self, point: Point) -> Any:
        """Return A (n, k) with the shared data as they are now, sparse where most of it is zero."""
        rows = []
        for reader in self._readers:
            maps = reader.form(point, self._shapes, matrices=True).maps
            parts = [m.dense(where.size)[:, where] for m, where in zip(maps, self._positions, strict=True)]
            rows.append(np.hstack(parts))
        return _kept(np.vstack(rows))


def _kept(matrix: Any) -> Any:
    """Return a matrix in the form that multiplies fastest."""
    dense = matrix.toarray() if sparse.issparse(matrix) else matrix
    share = np.count_nonzero(dense) / max(dense.size, 1)
    return sparse.csr_array(dense) if share < SPARSE_SHARE else np.ascontiguousarray(dense)


class SameValues:
    """A where each site is the sum of one value of each of several vectors."""

    shared: Sequence[Any] = ()

    def __init__(self, size: int, n_vectors: int) -> None:
        self._n_vectors = n_vectors
        self._matrix = sparse.hstack([sparse.eye_array(size)] * n_vectors, format="csr")

    def n_rows(self, point: Point) -> int:
        """Count the values of one vector."""
        return int(self._matrix.shape[0])

    def __call__(self, point: Point) -> Any:
        """Return identities side by side."""
        return self._matrix

    def parts(self, point: Point, sizes: Sequence[int]) -> list[Any]:
        """Return None for each vector, whose part is an identity."""
        return [None] * self._n_vectors


class PlainReading:
    """Observations of which each reads one value of every vector, as it is, whatever the model's other variables are.

    Parameters
    ----------
    readers : sequence of AffineReader
        Of the observations.
    shapes : sequence of tuple of int
        Of the latent vectors.
    point : dict
        Where they are read.

    Attributes
    ----------
    sites : list of (n_obs,) int array
        Which value, for each reader.
    """

    def __init__(self, readers: Sequence[AffineReader], shapes: Sequence[tuple[int, ...]], point: Point) -> None:
        self._shapes = list(shapes)
        self.sites = [self._index(reader, point) for reader in readers]
        # Only data can move what these read.
        self._moving = [(r, sites) for r, sites in zip(readers, self.sites, strict=True) if r.linear_inputs.shared]
        self._seen = self._data()

    def check(self, point: Point) -> None:
        """See that data that have been replaced still read the same values: sites are part of what is compiled.

        Raises
        ------
        DataError
            If they do not.
        """
        data = self._data()
        if all(a is b for a, b in zip(data, self._seen, strict=True)):
            return
        for reader, sites in self._moving:
            if not (reader.reads_values(point, self._shapes) and np.array_equal(self._index(reader, point), sites)):
                names = ", ".join(str(s.name) for s in reader.linear_inputs.shared)
                raise DataError(
                    f"{names}: the latent values that {reader.name} reads have changed since the step was built. Build "
                    "a new RMHMC."
                )
        self._seen = data

    def _data(self) -> list[Any]:
        return [s.get_value(borrow=True) for reader, _ in self._moving for s in reader.linear_inputs.shared]

    def _index(self, reader: AffineReader, point: Point) -> NDArray[np.int64]:
        index = reader.form(point, self._shapes).maps[0].index
        assert index is not None
        return index
