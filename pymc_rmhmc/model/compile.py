"""From a model's structure to functions of plain arrays.

A block's latent variables become *vectors* ``x_j ~ N(μ_j, Σ_j)`` and its predictor *sites*
``η = c + Σ A_j x_j``. Where every observation reads one latent value as it is, the sites are the latent
values, however often each is read; else the sites are the observations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor
from numpy.typing import NDArray
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.interfaces.stated import StatedPrior, StatedVector
from pymc_rmhmc.model.forms.components import LatentReader, LatentRow
from pymc_rmhmc.model.graph.graphs import PYTHON_MODE, shared_inputs
from pymc_rmhmc.model.graph.linear_form import SourceMap
from pymc_rmhmc.model.observed.designs import PlainReading
from pymc_rmhmc.model.observed.observation import Observation
from pymc_rmhmc.model.observed.observations import AffineReader, RegisteredReader
from pymc_rmhmc.model.observed.site_likelihood import BoundTerm, SiteLikelihood
from pymc_rmhmc.model.observed.unregistered_readers import PredictedReader, UnregisteredReader
from pymc_rmhmc.model.structure import LatentBlock, ModelStructure, has_own_initval

__all__ = ["CompiledBlock", "CompiledModel", "compile_model"]

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]
type ObservationReader = RegisteredReader | PredictedReader | UnregisteredReader


class CompiledBlock:
    """A latent Gaussian block as functions of a point of the model.

    Attributes
    ----------
    sites_are_latents : bool
        Whether every site is one latent value, in order.
    slices : tuple of (str, slice)
        Each vector's value variable, and its part of the raveled values.
    prior_inputs, likelihood_inputs : tuple of str
        The value variables that each depends on.
    """

    def __init__(
        self,
        name: str,
        readers: Sequence[LatentReader],
        rows: Sequence[LatentRow],
        observations: Sequence[ObservationReader],
        point: Point,
    ) -> None:
        self.name = name
        self._readers, self._rows = tuple(readers), tuple(rows)
        self._observations = tuple(observations)
        self.slices = tuple(
            (readers[r.latent].value_name, slice(r.row * r.size, (r.row + 1) * r.size)) for r in rows
        )
        self.n_latent = sum(row.size for row in rows)
        self._shapes = [reader.source_shape(point) for reader in self._readers]
        self.sites_are_latents = self._reads_plainly(point)
        if self.sites_are_latents:
            self.n_sites = rows[0].size
        else:
            self.n_sites = sum(o.form(point, self._shapes).offset.size for o in observations)
        affine = [o for o in self._observations if isinstance(o, AffineReader)]
        predictors = [] if self.sites_are_latents else [i for o in affine for i in o.predictor_inputs]
        self.prior_inputs = tuple(dict.fromkeys([*(i for r in self._readers for i in r.inputs), *predictors]))
        self.likelihood_inputs = tuple(dict.fromkeys(i for o in self._observations for i in o.inputs))
        self.likelihood(point)  # data that cannot be used are found here

    @property
    def n_observed_variables(self) -> int:
        """How many observed variables read the block."""
        return len(self._observations)

    def prior(self, point: Point) -> StatedPrior:
        """Return the prior at a point, with the shared data as they are now."""
        by_latent: dict[int, list[StatedVector]] = {}
        for latent, reader in enumerate(self._readers):
            by_latent[latent] = list(reader.vectors(point, [row for row in self._rows if row.latent == latent]))
        vectors = tuple(by_latent[row.latent].pop(0) for row in self._rows)
        designs = [None] * len(vectors) if self.sites_are_latents else self._predictors(point)
        mean = shift = np.zeros(self.n_sites)
        for vector, design in zip(vectors, designs, strict=True):
            if vector.is_variable:
                location = vector.location
                mean = mean + (location if design is None else design @ location)
        return StatedPrior(mean, shift, vectors, designs)

    def given(self, point: Point, vector: int) -> tuple[str, Sequence[Array]]:
        """Return of which kind a vector's matrix is in the model, and the matrix, or those of a Kronecker product."""
        row = self._rows[vector]
        reader = self._readers[row.latent]
        return reader.root, reader.given(point, row)

    def likelihood(self, point: Point, plain: PlainReading | None = None) -> SiteLikelihood:
        """Return the likelihood at a point, bound to the data as they are now; raise if these cannot be used.

        `plain` says which values observations read once a scale has been taken for a part of the latents: the sites of
        this likelihood are then these, where by themselves they would be observations.
        """
        if plain is not None and not self.sites_are_latents:
            held = zip(self._observations, plain.sites, strict=True)
            read = [observation.bind_whole(point, self._shapes, sites) for observation, sites in held]
            return SiteLikelihood(math.prod(self._shapes[0]), read)
        terms: list[BoundTerm] = []
        start = 0
        for observation in self._observations:
            if self.sites_are_latents:
                terms.append(observation.bind(point, self._shapes, self._site_of, self.n_sites))
                continue
            size = observation.form(point, self._shapes).offset.size
            whole = len(self._observations) == 1
            terms.append(observation.bind_whole(point, self._shapes, None if whole else np.arange(start, start + size)))
            start += size
        return SiteLikelihood(self.n_sites, terms)

    def check_inputs(self, point: Point) -> None:
        """Raise a `DataError` or `CovarianceError` for inputs of no use in priors, whatever the hyperparameters."""
        for reader in self._readers:
            reader.check_inputs(point)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the shared data that the block reads."""
        held = [s for part in (*self._readers, *self._observations) for s in part.shared]
        return {str(s.name): np.shape(s.get_value(borrow=True)) for s in held}

    def _site_of(self, maps: Sequence[SourceMap]) -> NDArray[np.int64]:
        """Return each observation's site, from the source positions that it reads; -1 for another block's."""
        row = self._rows[0]
        lookup = np.full(int(np.prod(self._shapes[row.latent])), -1)
        lookup[row.positions] = np.arange(row.size)
        return lookup[maps[row.latent].index]

    def _reads_plainly(self, point: Point) -> bool:
        """Check whether the sites can be the latent values: one value per reading, the same for every latent."""
        if not self._observations:
            return len(self._rows) == 1
        affine = [o for o in self._observations if isinstance(o, AffineReader)]
        if not all(o.always_reads_values(point, self._shapes) for o in affine):
            return False
        # What is not registered may read one of the latents and not their sum.
        if len(self._rows) > 1 and any(isinstance(o, UnregisteredReader) for o in self._observations):
            return False
        one_row_each = len({row.latent for row in self._rows}) == len(self._rows)
        return one_row_each and len({row.size for row in self._rows}) == 1

    def _predictors(self, point: Point) -> list[Array]:
        """Return A of each row, with the observations of all variables stacked."""
        stacked = []
        for row in self._rows:
            parts = []
            for observation in self._observations:
                source_map = observation.form(point, self._shapes, matrices=True).maps[row.latent]
                size = int(np.prod(self._shapes[row.latent]))
                parts.append(source_map.dense(size)[:, row.positions])
            stacked.append(np.vstack(parts))
        return stacked


class CompiledModel(NamedTuple):
    """Blocks, and the rest of the model's log density: everything but the blocks' priors and likelihoods.

    Rows that nothing connects are blocks of their own. `own_initval` says for each block whether the model gives one of
    its variables an `initval`, and `rest_inputs` has the value variables that the rest depends on.
    """

    blocks: tuple[CompiledBlock, ...]
    own_initval: tuple[bool, ...]
    rest_inputs: tuple[str, ...]
    rest_log_density: Callable[[Point], float]


def compile_model(
    structure: ModelStructure,
    point: Point | None = None,
    compile_kwargs: dict[str, object] | None = None,
    *,
    with_rest: bool = True,
) -> CompiledModel:
    """Turn a model's structure into functions.

    Shapes are taken and data checked at the point, by default the model's initial one. The `compile_kwargs` are for the
    function of the rest of the log density, if that is wanted and not constant.

    Raises a `DataError` if data or inputs cannot be used, and an `UnsupportedModelError` if a predictor is not affine
    in the latent values.
    """
    model = structure.model
    point = model.initial_point() if point is None else point
    blocks: list[CompiledBlock] = []
    own_initval: list[bool] = []
    for block in structure.blocks:
        made = _compile_block(model, block, point)
        blocks += made
        own_initval += [has_own_initval(model, [latent.variable for latent in block.latents])] * len(made)
    inputs, rest = _compile_rest(structure, compile_kwargs or {}) if with_rest else ((), _Constant(0.0))
    return CompiledModel(tuple(blocks), tuple(own_initval), inputs, rest)


def _make_reader(
    model: pm.Model, block: LatentBlock, observation: Observation, sources: Sequence[TensorVariable],
    shapes: Sequence[tuple[int, ...]], point: Point,
) -> ObservationReader:  # fmt: skip
    """Make the reader that fits a block's observation of sources with the given shapes."""
    if observation.likelihood is not None:
        return block.registered_reader(model, observation, sources)
    if observation.reading is not None:
        return PredictedReader(model, observation, sources, point)
    return UnregisteredReader(model, observation, sources, shapes)


def _compile_block(model: pm.Model, block: LatentBlock, point: Point) -> list[CompiledBlock]:
    """Compile one block, or one for each row of a variable whose rows are read apart."""
    readers = block.latent_readers(model)
    shapes = [reader.source_shape(point) for reader in readers]
    sources = [latent.source for latent in block.latents]
    observations = [_make_reader(model, block, o, sources, shapes, point) for o in block.observations]
    rows = [row for i, reader in enumerate(readers) for row in reader.rows(i, point)]
    apart = len(readers) == 1 and len(rows) > 1 and all(
        isinstance(o, AffineReader) and o.always_reads_values(point, shapes) for o in observations
    )
    if not apart:
        return [CompiledBlock(block.name, readers, rows, observations, point)]
    return [
        CompiledBlock(f"{block.name}[{row.row}]", readers, [row], observations, point) for row in rows
    ]


def _compile_rest(
    structure: ModelStructure, compile_kwargs: dict[str, object]
) -> tuple[tuple[str, ...], Callable[[Point], float]]:
    """Compile the log density of everything that is not in a block; it is a constant if nothing in it is free."""
    model = structure.model
    if not structure.rest:
        return (), _Constant(0.0)
    log_density = model.logp(vars=structure.rest, sum=True)
    held = set(ancestors([log_density]))
    values = [v for v in model.value_vars if v in held]
    if not values:
        constant = pytensor.function([], log_density, mode=PYTHON_MODE)
        # Data that are shared may be replaced.
        return (), _Rest(constant, ()) if shared_inputs([log_density]) else _Constant(float(constant()))
    function = pytensor.function(values, log_density, on_unused_input="ignore", **compile_kwargs)
    return tuple(str(v.name) for v in values), _Rest(function, tuple(str(v.name) for v in values))


@dataclass
class _Constant:
    value: float

    def __call__(self, point: Point) -> float:
        return self.value


@dataclass
class _Rest:
    function: Callable[..., np.ndarray]
    names: tuple[str, ...]

    def __call__(self, point: Point) -> float:
        return float(self.function(*(point[name] for name in self.names)))


