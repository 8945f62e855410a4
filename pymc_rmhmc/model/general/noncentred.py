"""Effects in their non-centred form, found in a graph: noise z that a model reads as ``μ + σz`` or ``μ + Lz``.

A chart moves such noise as it would move the effects themselves in a centred model, so that both ways of writing one
prior have one chart. Nothing needs to be right here but the speed: any location and scale give an exact sampler.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import toposort
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.graph.graphs import operation_name, reaches_by_value

__all__ = ["Effects", "NonCentredReader"]

type Symbol = TensorVariable

# What hands values on, all of them and in their order.
PASSING = {"Identity", "ViewOp", "Cast", "SpecifyShape"}
# What hands on some of them, or in another order.
GATHERING = {"Subtensor", "AdvancedSubtensor", "AdvancedSubtensor1", "Reshape"}
PRODUCTS = {"Dot", "Matmul"}


@dataclass(frozen=True, slots=True)
class Effects:
    """What is read in place of noise: μ and σ, which broadcast to it.

    If a factor multiplies each row, `scale` is this (columns, columns), and μ broadcasts to (rows, columns). Rows of
    effects may be columns of the noise.
    """

    location: Symbol
    scale: Symbol
    are_rows: bool = False
    by_columns: bool = False


class NonCentredReader:
    """Finds what a model reads in place of noise among the free variables that are sampled."""

    def __init__(self, model: pm.Model, variables: Sequence[TensorVariable]) -> None:
        self._model, self._variables = model, variables
        self._readers = _readers(model)
        # A level that is added to several effects is the location of the first: it cannot move all of them at once.
        self._claimed: set[TensorVariable] = set()

    def effects(self, noise: TensorVariable, shape: tuple[int, ...]) -> Effects | None:
        """Return what is read in place of a variable of this shape; None if nothing that moves multiplies it."""
        others = [v for v in self._variables if v is not noise]
        blockers = [v for v in self._model.basic_RVs if v is not noise]
        way = _Way(noise, shape, others, blockers)
        while len(readers := self._readers.get(way.at, [])) == 1:
            if not way.goes_on(readers[0]):
                break
        way.terms = [t for t in way.terms if not self._claimed & self._movers(t, blockers)]
        found = way.found()
        if found is not None:
            self._claimed |= self._movers(found.location, blockers)
        return found

    def _movers(self, symbol: TensorVariable, blockers: list[TensorVariable]) -> set[TensorVariable]:
        """Return the sampled variables that move an expression."""
        return {v for v in self._variables if reaches_by_value(symbol, [v], {}, blockers)}


@dataclass
class _Way:
    """The way from noise to what reads it, as far as it has been followed."""

    # `at`, `shape`: how far, and the shape of the noise.
    at: Variable
    shape: tuple[int, ...]
    # `others`, `blockers`: the variables that may move a location or a scale, and where graphs end.
    others: list[TensorVariable]
    blockers: list[TensorVariable]
    # `is_whole`, `is_turned`, `sign`: whether the values at this place are those of the noise in their order; whether
    # they are transposed; and the sign of the effects.
    is_whole: bool = True
    is_turned: bool = False
    sign: float = 1.0
    # `scales`, `terms`, `factor`, `by_columns`: the factors and summands that were met; L, if there is one; and whether
    # it multiplies columns of the noise.
    scales: list[Symbol] = field(default_factory=list)
    terms: list[Symbol] = field(default_factory=list)
    factor: Symbol | None = None
    by_columns: bool = False

    def __post_init__(self) -> None:
        self._noise = self.at
        self._moving: dict[Variable, bool] = {}
        self._reading: dict[Variable, bool] = {}

    def goes_on(self, reader: Apply) -> bool:
        """Follow what reads the values; whether it leads on."""
        name, output = operation_name(reader.outputs[0]), reader.outputs[0]
        beside = [i for i in reader.inputs if i is not self.at]
        leads = len(beside) == len(reader.inputs) - 1 and not any(self._is_read(i) for i in beside)
        if not leads or not self._takes(name, reader, beside):
            return False
        self.at = output
        return True

    def _takes(self, name: str, reader: Apply, beside: list[Symbol]) -> bool:
        """Note what an operation does to the values; False if that is none of what is known."""
        if name in PASSING:
            return True
        if name in GATHERING:
            self.is_whole = False
            return reader.inputs[0] is self.at
        if name == "DimShuffle":
            if self.is_whole and reader.op.new_order == (1, 0):
                self.is_turned = not self.is_turned
            else:
                self.is_whole = self.is_whole and reader.op.new_order == tuple(range(len(self.shape)))
            return True
        if name in PRODUCTS:
            return self._multiplies(reader)
        if name in {"Mul", "TrueDiv"}:
            return self._scales(reader, beside, is_divided=name == "TrueDiv")
        if name in {"Add", "Sub", "Neg"}:
            self._adds(name, reader, beside)
            return True
        return False

    def _multiplies(self, reader: Apply) -> bool:
        """Note a factor that multiplies the rows."""
        left, right = reader.inputs
        other = right if left is self.at else left
        if self.factor is not None or self.scales or self.terms or not self.is_whole or len(self.shape) != 2:
            return False
        if other.ndim != 2 or not self._moves(other):
            return False
        self.by_columns = (right is self.at) != self.is_turned
        self.factor = other if right is self.at else other.T
        return True

    def _scales(self, reader: Apply, beside: list[Symbol], *, is_divided: bool) -> bool:
        """Note what multiplies or divides the values; what multiplies a sum is no scale of the effects in it."""
        if self.terms or self.factor is not None or (is_divided and reader.inputs[0] is not self.at):
            return False
        moving = [i for i in beside if self._moves(i)]
        placed = [self._as_placed(i) for i in beside]
        if any(p is None for p, i in zip(placed, beside, strict=True) if i in moving):
            return not self.is_whole
        self.scales += [pt.reciprocal(p) if is_divided else p for p in placed if p is not None]
        if any(p is None for p in placed):
            self.is_whole = False
        return True

    def _adds(self, name: str, reader: Apply, beside: list[Symbol]) -> None:
        """Note what is added."""
        sign = 1.0 if name == "Add" else -1.0
        if name != "Add" and reader.inputs[-1] is self.at:  # of a difference the last, or of a sign the only one
            self.sign, sign = -self.sign, 1.0
        for each, by in [(t, s) for i in beside for t, s in _summands(i, sign)]:
            placed = self._as_placed(each)
            if placed is not None and self._moves(each):
                self.terms.append(self.sign * by * placed)
        self.is_whole = self.is_whole and all(self._as_placed(i) is not None for i in beside)

    def _as_placed(self, other: Symbol) -> Symbol | None:
        """Fit an operand of the values to the shape of the noise; None if it has more values."""
        if all(other.type.broadcastable):
            return other.reshape(()) if other.ndim else other
        shape = self.shape[::-1] if self.is_turned else self.shape
        pairs = list(zip(reversed(other.type.shape), reversed(shape), strict=False))
        if not self.is_whole or other.ndim > len(shape) or any(have not in (1, want) for have, want in pairs):
            return None
        if not self.is_turned:
            return other
        return pt.shape_padleft(other, len(shape) - other.ndim).T

    def _moves(self, symbol: Variable) -> bool:
        """Check whether another sampled variable moves an expression."""
        return reaches_by_value(symbol, self.others, self._moving, self.blockers)

    def _is_read(self, symbol: Variable) -> bool:
        """Check whether an expression depends on the noise."""
        return reaches_by_value(symbol, [self._noise], self._reading, self.blockers)

    def found(self) -> Effects | None:
        """Return what the way has led through."""
        location = sum(self.terms, pt.zeros(()))
        if self.factor is not None:
            turned = location.T if self.by_columns and location.ndim == 2 else location
            return Effects(turned, self.factor, are_rows=True, by_columns=self.by_columns)
        if not any(self._moves(s) for s in self.scales):
            return None
        return Effects(location, functools.reduce(operator.mul, self.scales))


def _summands(symbol: Symbol, sign: float) -> Iterable[tuple[Symbol, float]]:
    """Yield what is added up in an expression, with signs; for a sum that is a scalar the sum itself."""
    name = operation_name(symbol)
    if all(symbol.type.broadcastable) or name not in {"Add", "Sub"}:
        yield symbol, sign
        return
    for k, each in enumerate(symbol.owner.inputs):
        yield from _summands(each, -sign if name == "Sub" and k else sign)


def _readers(model: pm.Model) -> dict[Variable, list[Apply]]:
    """Map each variable of a model to what reads it, between random variables and potentials."""
    found: dict[Variable, dict[Apply, None]] = {}
    inputs = [*(i for v in model.basic_RVs for i in v.owner.inputs), *model.potentials]
    nodes = toposort([i for i in inputs if i.owner is not None], blockers=model.basic_RVs)
    for node in (*nodes, *(v.owner for v in model.basic_RVs)):
        if operation_name(node.outputs[0]) in {"Shape", "Shape_i"}:
            continue
        for read in dict.fromkeys(node.inputs):
            found.setdefault(read, {})[node] = None
    return {variable: list(nodes) for variable, nodes in found.items()}
