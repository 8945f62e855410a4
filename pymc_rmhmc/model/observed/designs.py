"""How predictors read latent values: one value each, by a constant matrix, or by one that hyperparameters move.

A(θ) of ``η = c + A x`` is evaluated in as few directions as it takes. A is the derivative of η by x, and a column of it
what η gains along a unit vector. Columns that have no row in common are had from one direction together: the
discriminations of a test's items take one, a varying intercept beside a slope two, a full matrix one for each column.
Where A is 0 whatever θ is, is read off the predictor with random numbers in place of θ, and of whatever is more than a
sum of products of it: no number of θ could show it. Where latent values and θ go through an operation together that is
none (a scan, a solution of equations), A is taken to be 0 nowhere.

References
----------
Curtis, Powell and Reid (1974), On the estimation of sparse Jacobian matrices, for the directions.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace, vectorize_graph
from pytensor.tensor.variable import TensorVariable
from scipy import sparse

from pymc_rmhmc.errors import DataError
from pymc_rmhmc.model.graph.affine import PRODUCTS, SHAPING
from pymc_rmhmc.model.graph.graphs import (
    LINEAR_OPERATIONS,
    by_python,
    operation_name,
    reaches_by_value,
    shared_inputs,
    value_inputs,
)
from pymc_rmhmc.model.hyperparameters import Hyperparameters
from pymc_rmhmc.model.observed.observation import Observation
from pymc_rmhmc.model.observed.observations import AffineReader, predictor_of

__all__ = ["DesignReader", "MovingDesign", "PlainReading", "Predictors", "SameValues", "why_not_moving"]

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]
type Shapes = Sequence[tuple[int, ...]]
type Positions = Sequence[NDArray[np.int64]]
type Matrix = Array | sparse.csr_array

# A matrix with fewer entries than this share of its size (a column for each group of a mixed model) is kept sparse.
SPARSE_SHARE = 0.1
# What makes 0 of numbers that have nothing to do with one another only where it always does.
SUMS_OF_PRODUCTS = {
    *LINEAR_OPERATIONS, *SHAPING, *PRODUCTS, "TrueDiv", "CumOp", "IncSubtensor", "AdvancedIncSubtensor",
    "AdvancedIncSubtensor1",
}  # fmt: skip
READ_OTHERWISE = "have changed since the step was built. Build a new RMHMC."


@dataclass(frozen=True, eq=False)
class Predictors:
    """The linear predictors of a block's observations, and the nodes that they read."""

    model: pm.Model
    observations: Sequence[Observation]
    nodes: Sequence[TensorVariable]
    shapes: Shapes  # of the nodes
    positions: Positions  # where the values of each node's variable are in the node, raveled


def _stacked(read: Sequence[Sequence[np.ndarray]], positions: Positions) -> np.ndarray:
    """Stack the matrices (n_obs, k) by which each predictor reads each node, columns in the variables' order."""
    rows = [[part[:, where] for part, where in zip(parts, positions, strict=True)] for parts in read]
    return np.vstack([np.hstack(parts) for parts in rows])


class DesignReader:
    """A of ``η = c + A x``, the observations of all variables stacked, found from the predictors' values."""

    def __init__(self, predictors: Predictors) -> None:
        model, nodes = predictors.model, predictors.nodes
        self._readers = [AffineReader(model, observation, nodes) for observation in predictors.observations]
        self._shapes, self._positions = list(predictors.shapes), list(predictors.positions)
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

    def parts(self, point: Point, sizes: Sequence[int]) -> list[Matrix]:
        """Return A of every node, (n, k) each."""
        whole = self._whole(point)
        return [_kept(whole[:, a:b]) for a, b in itertools.pairwise(np.cumsum([0, *sizes]))]

    def __call__(self, point: Point) -> Matrix:
        """Return A (n, k) with the shared data as they are now, sparse where most of it is zero."""
        return _kept(self._whole(point))

    def _whole(self, point: Point) -> Array:
        maps = [reader.form(point, self._shapes, matrices=True).maps for reader in self._readers]
        read = [[m.dense(where.size) for m, where in zip(each, self._positions, strict=True)] for each in maps]
        return _stacked(read, self._positions)


def _kept(matrix: Array) -> Matrix:
    """Return a matrix in the form that multiplies fastest."""
    share = np.count_nonzero(matrix) / max(matrix.size, 1)
    return sparse.csr_array(matrix) if share < SPARSE_SHARE else np.ascontiguousarray(matrix)


class SameValues:
    """A where each site is the sum of one value of each of several vectors."""

    shared: Sequence[SharedVariable] = ()

    def __init__(self, size: int, n_vectors: int) -> None:
        self._n_vectors = n_vectors
        self._matrix = sparse.hstack([sparse.eye_array(size)] * n_vectors, format="csr")

    def n_rows(self, point: Point) -> int:
        """Count the values of one vector."""
        return int(self._matrix.shape[0])

    def __call__(self, point: Point) -> Matrix:
        """Return identities side by side."""
        return self._matrix

    def parts(self, point: Point, sizes: Sequence[int]) -> list[None]:
        """Return None for each vector, whose part is an identity."""
        return [None] * self._n_vectors


class PlainReading:
    """Observations of which each reads one value of every vector, as it is, whatever the model's other variables are.

    `sites` says for each reader which values these are.
    """

    def __init__(self, readers: Sequence[AffineReader], shapes: Sequence[tuple[int, ...]], point: Point) -> None:
        self._shapes = list(shapes)
        self.sites = [self._index(reader, point) for reader in readers]
        # Only data can move what these read.
        self._moving = [(r, sites) for r, sites in zip(readers, self.sites, strict=True) if r.linear_inputs.shared]
        self._seen = self._data()

    def check(self, point: Point) -> None:
        """Raise a DataError if data that have been replaced read other values: sites are part of what is compiled."""
        data = self._data()
        if all(a is b for a, b in zip(data, self._seen, strict=True)):
            return
        for reader, sites in self._moving:
            if not (reader.reads_values(point, self._shapes) and np.array_equal(self._index(reader, point), sites)):
                names = ", ".join(str(s.name) for s in reader.linear_inputs.shared)
                raise DataError(f"{names}: the latent values that {reader.name} reads {READ_OTHERWISE}")
        self._seen = data

    def _data(self) -> list[np.ndarray]:
        return [s.get_value(borrow=True) for reader, _ in self._moving for s in reader.linear_inputs.shared]

    def _index(self, reader: AffineReader, point: Point) -> NDArray[np.int64]:
        index = reader.form(point, self._shapes).maps[0].index
        assert index is not None
        return index


class MovingDesign:
    """A(θ) of ``η = c + A x``, the observations of all variables stacked.

    Attributes
    ----------
    shape : tuple of int
        Of A, (n, k).
    directions : TensorVariable
        What η gains along each direction, an expression of θ, (c, n).
    """

    def __init__(self, predictors: Predictors, theta: Hyperparameters, point: Point) -> None:
        etas, holders, moving = _graphs(predictors, theta)
        self._patterns = [_Pattern(predictors.model, eta, holders, moving) for eta in etas]
        self._shapes, self._positions = list(predictors.shapes), list(predictors.positions)
        self.shared = [s for p in self._patterns for s in p.shared]
        where = self._where(point)
        self.shape = where.shape
        self._rows, self._columns = np.nonzero(where)
        colours = _colours(where)
        self._n_directions = int(colours.max(initial=0)) + 1
        self._at = colours[self._columns] * self.shape[0] + self._rows
        # Of a sparse array scipy looks at every index when it is made: one is made, and copies have other entries.
        self._sparse = sparse.csr_array(where, dtype=np.float64) if where.mean() < SPARSE_SHARE else None
        seeds = (colours == np.arange(self._n_directions)[:, None]).astype(np.float64)
        self.directions = self._along(seeds, theta)

    def __getstate__(self) -> dict[str, object]:
        # A worker has compiled functions of the directions; where they are is asked again of data that may be replaced.
        return self.__dict__ | {"directions": None} | ({} if self.shared else {"_patterns": []})

    def n_rows(self, point: Point) -> int:
        """Count the rows of A."""
        return self.shape[0]

    def _where(self, point: Point) -> NDArray[np.bool_]:
        """Find where A may be other than 0, (n, k)."""
        return _stacked([pattern(point, self._shapes) for pattern in self._patterns], self._positions)

    def _along(self, seeds: Array, theta: Hyperparameters) -> TensorVariable:
        """Return what η gains along some directions (c, k), as an expression of θ, (c, n)."""
        cuts = np.cumsum([where.size for where in self._positions])[:-1]
        parts = zip(np.split(seeds, cuts, axis=1), self._positions, strict=True)
        read = [part[:, np.argsort(where)] for part, where in parts]
        gained = []
        for pattern in self._patterns:
            batches, origin = {}, {}
            for holder, shape, part in zip(pattern.holders, self._shapes, read, strict=True):
                batches[holder] = pt.as_tensor(part.reshape(-1, *shape))
                origin[holder] = pt.specify_shape(pt.zeros(shape), holder.type.shape)
            (predictor,) = theta.place([pattern.predictor])
            base = clone_replace([predictor], origin)[0].ravel()
            along = vectorize_graph(predictor, batches)
            along = along.reshape((len(seeds), -1)) if along.ndim > predictor.ndim else base
            gained.append(along - base)
        return pt.concatenate([pt.broadcast_to(g, (len(seeds), g.shape[-1])) for g in gained], axis=1)

    def matrix(self, directions: Array) -> Matrix:
        """Return A (n, k) of what η gains along the directions, sparse where most of it is always 0."""
        entries = directions.ravel()[self._at]
        if self._sparse is not None:
            made = copy(self._sparse)
            made.data = entries
            return made
        matrix = np.zeros(self.shape)
        matrix[self._rows, self._columns] = entries
        return matrix

    def pullback(self, bar: Array, mean_bar: Array, centre: Array) -> Array:
        """Return the derivative by what η gains along the directions, (c, n).

        It is made of Ā, (n, k) or of a sparse A's entries, and of `mean_bar` (n,), that by A times the `centre` of x
        (k,), besides.
        """
        directions = np.zeros((self._n_directions, self.shape[0]))
        entries = bar[self._rows, self._columns] if bar.ndim == 2 else bar
        if centre.any():
            entries = entries + mean_bar[self._rows] * centre[self._columns]
        directions.ravel()[self._at] = entries
        return directions

    def check(self, point: Point) -> None:
        """Raise a DataError if data that have been replaced move A where it was 0: directions have been compiled."""
        where, known = self._where(point), np.zeros(self.shape, dtype=bool)
        known[self._rows, self._columns] = True
        if where.shape != self.shape or (where & ~known).any():
            names = ", ".join(str(s.name) for s in self.shared)
            raise DataError(f"{names}: the latent values that predictors read {READ_OTHERWISE}")


def why_not_moving(predictors: Predictors, theta: Hyperparameters) -> str:
    """Say what stands between θ and A that has no derivative; return "" if nothing does. See `MovingDesign`."""
    etas, holders, moving = _graphs(predictors, theta)
    has_whole = any(_factors(eta, holders, moving)[1] for eta in etas)
    return "an index, a comparison or a whole number" if has_whole else ""


def _graphs(
    predictors: Predictors, theta: Hyperparameters
) -> tuple[list[TensorVariable], list[TensorVariable], list[TensorVariable]]:
    """Return predictors as graphs of value variables and of holders for what they read, the holders, and what moves."""
    model, holders = predictors.model, {node: node.type() for node in predictors.nodes}
    moving = [value for value in model.value_vars if value.name in theta.names]
    return [predictor_of(model, o, holders) for o in predictors.observations], list(holders.values()), moving


class _Pattern:
    """Where the linear part of one predictor, a graph of value variables and holders, may be other than 0."""

    def __init__(
        self, model: pm.Model, predictor: TensorVariable, holders: Sequence[TensorVariable],
        moving: Sequence[TensorVariable],
    ) -> None:  # fmt: skip
        self.predictor, self.holders = predictor, list(holders)
        factors, _, self._is_full = _factors(predictor, holders, moving)
        stand_ins = [f.type() for f in factors]
        (free,) = clone_replace([predictor], dict(zip(factors, stand_ins, strict=True)))
        graphs = [free, *factors]
        values = value_inputs(model, graphs)
        self.names, self.shared = [str(v.name) for v in values], shared_inputs(graphs)
        # A factor may be as long as the latent values are.
        self._lengths = by_python([*holders, *values], [f.shape for f in factors])
        self._free = by_python([*holders, *stand_ins, *values], free)

    def __call__(self, point: Point, shapes: Shapes) -> list[NDArray[np.bool_]]:
        """Find where it may be other than 0, (n_obs, k) for each holder."""
        rng, zeros = np.random.default_rng(0), [np.zeros(shape) for shape in shapes]
        values = [point[name] for name in self.names]
        random = [rng.uniform(0.5, 1.5, tuple(shape)) for shape in self._lengths(*zeros, *values)]
        with np.errstate(all="ignore"):
            origin = self._free(*zeros, *random, *values)
            if self._is_full:
                return [np.ones((origin.size, zero.size), dtype=bool) for zero in zeros]
            return [self._read(which, zeros, [*random, *values], origin) for which in range(len(zeros))]

    def _read(
        self, which: int, zeros: Sequence[Array], given: Sequence[np.ndarray], origin: Array
    ) -> NDArray[np.bool_]:
        """Find what each value of one holder moves, (n_obs, k); what is no number is not 0."""
        columns, inputs = [], list(zeros)
        for unit in np.eye(zeros[which].size):
            inputs[which] = unit.reshape(zeros[which].shape)
            columns.append(np.ravel(self._free(*inputs, *given) - origin != 0.0))
        return np.column_stack(columns)


def _factors(
    predictor: TensorVariable, holders: Sequence[TensorVariable], moving: Sequence[TensorVariable]
) -> tuple[list[TensorVariable], bool, bool]:
    """Find what moves of that of which a predictor is a sum of products.

    And whether whole numbers are among it; and whether the predictor is more than such a sum in latent values.
    """
    of_latents: dict[Variable, bool] = {}
    of_moving: dict[Variable, bool] = {}
    found, has_whole, is_more = [], False, False
    waiting, seen = [predictor], {predictor}
    while waiting:
        variable = waiting.pop()
        inputs = [] if variable.owner is None else variable.owner.inputs
        moved = [i for i in inputs if reaches_by_value(i, moving, of_moving)]
        is_factor = not reaches_by_value(variable, holders, of_latents)
        is_sum = operation_name(variable) in SUMS_OF_PRODUCTS
        is_whole = not variable.dtype.startswith("float")
        # A comparison may choose between two values, but not be a value itself.
        has_whole |= is_whole or (is_sum and not all(i.dtype.startswith("float") for i in moved))
        if is_factor and (is_whole or not is_sum):
            found.append(variable)
            continue
        # On the way from latent values everything is affine in them, though not in what moves.
        is_more |= not is_factor and bool(moved) and not is_sum
        further = [i for i in inputs if i in moved or reaches_by_value(i, holders, of_latents)]
        waiting += [i for i in dict.fromkeys(further) if i not in seen]
        seen.update(further)
    return found, has_whole, is_more


def _colours(where: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Give a number to every column (k,), the same for columns that have no row in common; greedily."""
    if where.sum(axis=1).max(initial=0) == where.shape[1]:
        return np.arange(where.shape[1])
    colours = np.empty(where.shape[1], dtype=np.int64)
    taken: list[NDArray[np.bool_]] = []
    for j, column in enumerate(where.T):
        free = next((c for c, rows in enumerate(taken) if not (rows & column).any()), len(taken))
        if free == len(taken):
            taken.append(np.zeros_like(column))
        taken[free] |= column
        colours[j] = free
    return colours
