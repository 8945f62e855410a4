"""What a model's density costs, as far as its graph shows: decided without a clock, so that draws can be repeated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

import numpy as np
import pymc as pm
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.scan.op import Scan
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.linalg.solvers.general import Solve
from pytensor.tensor.linalg.solvers.lstsq import Lstsq
from pytensor.tensor.math import Dot
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.graph.graphs import Evaluator, core_op, inlined, shared_inputs
from pymc_rmhmc.model.hyperparameters import is_long

__all__ = ["MOST_EMULATED", "cost_in_words", "gradient_seconds", "is_expensive"]

type Point = dict[str, np.ndarray]

# Seconds of a gradient: as such, for every number that it reads, for every one that is read in a product alone, and for
# every multiplication of matrices. Measured on one core of 2024.
GRADIENT, NUMBER, FACTOR, MULTIPLICATION = 2e-6, 2e-8, 1e-9, 1e-10
# From so many seconds on an emulator of the density is cheaper by so much that it pays. There is one of so many values
# at most.
DEAR, MOST_EMULATED = 1e-3, 11
# Where PyTensor keeps factorisations and solves.
OF_MATRICES = ("pytensor.tensor.linalg", "pytensor.tensor.nlinalg", "pytensor.tensor.slinalg")
# Of these, what only puts matrices side by side.
PLACING = ("BlockDiagonal",)
# An operation within a loop takes as long as so many multiplications, and one that PyTensor does not have may.
IN_A_LOOP, FOREIGN = 100.0, 1e7
# Where PyMC and PyTensor keep operations that call a solver of equations, or what JAX has compiled.
CALLING_OUT = ("pymc.ode", "pytensor.link.", "pytensor.tensor.optimize")


def gradient_seconds(
    model: pm.Model, variables: Sequence[TensorVariable], point: Point, density: TensorVariable | None = None
) -> float:
    """Estimate how many seconds one gradient of the log density, which may be known, by some variables takes."""
    (density,) = inlined([model.logp() if density is None else density], ())
    constants = [v for v in ancestors([density]) if isinstance(v, Constant) and is_long(v)]
    sizes = {v: v.data.size for v in constants} | {
        s: np.size(s.get_value(borrow=True)) for s in shared_inputs([density])
    }
    in_products = _read_in_products(density)
    n_factors = sum(size for v, size in sizes.items() if v in in_products)
    values = [np.size(point[str(model.rvs_to_values[v].name)]) for v in variables]
    n_numbers = sum(values) + sum(sizes.values()) - n_factors
    multiplications = _count_multiplications(model, density, point)
    return GRADIENT + NUMBER * n_numbers + FACTOR * n_factors + MULTIPLICATION * multiplications


def _read_in_products(density: TensorVariable) -> set[Variable]:
    """Find what only products of matrices read, transposed or as it is."""
    inside, outside = set[Variable](), set[Variable]()
    for node in toposort([density]):
        if not isinstance(node.op, DimShuffle):
            (inside if isinstance(core_op(node.outputs[0]), Dot) else outside).update(map(_untransposed, node.inputs))
    return inside - outside


def _untransposed(variable: Variable) -> Variable:
    """Return the variable behind a transpose, or the variable itself."""
    node = variable.owner
    return node.inputs[0] if node is not None and isinstance(node.op, DimShuffle) else variable


def is_expensive(n_values: int, seconds: float) -> bool:
    """Check whether trajectories of so many values follow an emulator of a density whose gradient takes so long."""
    return n_values <= MOST_EMULATED and seconds >= DEAR


def cost_in_words(seconds: float) -> str:
    """Say how long the gradient takes and what follows from it: one sentence without a full stop."""
    milliseconds = float(f"{1e3 * seconds:.1g}")
    return f"its gradient takes about {milliseconds:g} ms, so trajectories follow an emulator of it"


def _count_multiplications(model: pm.Model, density: TensorVariable, point: Point) -> float:
    """Count the multiplications of factors, solves, products of matrices and loops, with foreign operations as many."""
    ordered = list(toposort([density]))
    loops = [node for node in ordered if isinstance(node.op, Scan)]
    products = [node for node in ordered if isinstance(core_op(node.outputs[0]), Dot) or _is_of_matrices(node)]
    shapes = [[i.shape for i in node.inputs[1:]] for node in loops]
    shapes += [[node.inputs[0].shape, node.inputs[-1].shape] for node in products]
    found = iter(_evaluated(model, [*(node.inputs[0] for node in loops), *chain.from_iterable(shapes)], point))
    steps = [int(next(found)) for _ in loops]
    sizes = [[tuple(map(int, next(found))) for _ in each] for each in shapes]
    in_loops = sum(n * _of_step(node, each) for n, node, each in zip(steps, loops, sizes[: len(loops)], strict=True))
    in_products = sum(_of_product(node, *each) for node, each in zip(products, sizes[len(loops) :], strict=True))
    return FOREIGN * sum(map(_is_foreign, ordered)) + in_loops + in_products


def _evaluated(model: pm.Model, expressions: Sequence[TensorVariable], point: Point) -> list[np.ndarray]:
    return Evaluator(model, expressions)(point) if expressions else []


def _of_step(loop: Apply, shapes: Sequence[tuple[int, ...]]) -> float:
    """Count the multiplications of one step of a loop whose inputs have these shapes, but for the number of steps.

    Matrices within it are as large as the largest that it is given: each step gets one place of the first axis, but of
    what does not change with the steps.
    """
    nodes, n_held = loop.op.fgraph.apply_nodes, loop.op.info.n_non_seqs
    each = [shape[1:] for shape in shapes[: len(shapes) - n_held]] + list(shapes[len(shapes) - n_held :])
    largest = max((max(shape) for shape in each if len(shape) > 1), default=0)
    n_matrices = sum(_is_of_matrices(node) or isinstance(core_op(node.outputs[0]), Dot) for node in nodes)
    return IN_A_LOOP * len(nodes) + float(n_matrices) * float(largest) ** 3


def _is_of_matrices(node: Apply) -> bool:
    kind = type(core_op(node.outputs[0]))
    return kind.__module__.startswith(OF_MATRICES) and kind.__name__ not in PLACING


def _is_foreign(node: Apply) -> bool:
    """Check whether an operation is a user's own, or calls one that PyTensor does not have."""
    home = type(core_op(node.outputs[0])).__module__
    return not home.startswith(("pytensor.", "pymc.")) or home.startswith(CALLING_OUT)


def _of_product(node: Apply, first: tuple[int, ...], last: tuple[int, ...]) -> float:
    """Count products of each element of the first matrix with a row of the last; a factor adds a row of the first."""
    rows = last[-1] if len(last) > 1 else 1
    # Only these factorise one matrix and then solve for another.
    own = first[-1] if isinstance(core_op(node.outputs[0]), Solve | Lstsq) else 0
    return float(math.prod(first)) * float(rows + own)
