"""What a model's density costs, as far as its graph shows: decided without a clock, so that draws can be repeated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
from pytensor.graph.basic import Apply, Constant
from pytensor.graph.traversal import ancestors, toposort
from pytensor.scan.op import Scan
from pytensor.tensor.linalg.solvers.general import Solve
from pytensor.tensor.linalg.solvers.lstsq import Lstsq
from pytensor.tensor.math import Dot
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.graphs import Evaluator, inlined, shared_inputs
from pymc_rmhmc.model.hyperparameters import is_long

__all__ = ["MOST_EMULATED", "dear_in_words", "gradient_seconds", "is_dear"]

type Point = dict[str, np.ndarray]

# Seconds that a gradient takes, and that it takes for every number that it reads and for every multiplication of
# matrices. Measured on one core of 2024.
GRADIENT, NUMBER, MULTIPLICATION = 2e-6, 2e-8, 1e-10
# From so many seconds on an emulator of the density is cheaper by so much that it pays. There is one of so many values
# at most.
DEAR, MOST_EMULATED = 1e-3, 11
# Where PyTensor keeps factorisations and solves.
OF_MATRICES = ("pytensor.tensor.linalg", "pytensor.tensor.nlinalg", "pytensor.tensor.slinalg")
# An operation within a loop takes as long as so many multiplications, and one that PyTensor does not have may.
IN_A_LOOP, FOREIGN = 100.0, 1e7
# Where PyMC and PyTensor keep operations that call a solver of equations, or what JAX has compiled.
CALLING_OUT = ("pymc.ode", "pytensor.link.", "pytensor.tensor.optimize")


def gradient_seconds(model: pm.Model, variables: Sequence[TensorVariable], point: Point) -> float:
    """About how long one gradient of the log density by some of the variables takes."""
    (density,) = inlined([model.logp()], ())
    constants = [v for v in ancestors([density]) if isinstance(v, Constant) and is_long(v)]
    shared = [np.size(s.get_value(borrow=True)) for s in shared_inputs([density])]
    values = [np.size(point[str(model.rvs_to_values[v].name)]) for v in variables]
    n_numbers = sum([*values, *shared, *(c.data.size for c in constants)])
    return GRADIENT + NUMBER * n_numbers + MULTIPLICATION * _count_multiplications(model, density, point)


def is_dear(n_values: int, seconds: float) -> bool:
    """Whether trajectories of so many values follow an emulator of the density, whose gradient takes so long."""
    return n_values <= MOST_EMULATED and seconds >= DEAR


def dear_in_words(seconds: float) -> str:
    """What is said of it: one sentence without a full stop."""
    milliseconds = float(f"{1e3 * seconds:.1g}")
    return f"its gradient takes about {milliseconds:g} ms, so trajectories follow an emulator of it"


def _count_multiplications(model: pm.Model, density: TensorVariable, point: Point) -> float:
    """Multiplications that factors, solves and products of matrices take, and loops."""
    ordered = list(toposort([density]))
    unknown = FOREIGN * sum(_is_foreign(node) for node in ordered)
    nodes = [node for node in ordered if isinstance(_core(node), Scan | Dot) or _is_of_matrices(node)]
    loops = [node for node in nodes if isinstance(node.op, Scan)]
    products = [node for node in nodes if not isinstance(node.op, Scan)]
    if not nodes:
        return unknown
    counts = [node.inputs[0] for node in loops]
    shapes = [end.shape for node in products for end in (node.inputs[0], node.inputs[-1])]
    found = Evaluator(model, [*counts, *shapes])(point)
    steps, sizes = found[: len(loops)], [tuple(map(int, shape)) for shape in found[len(loops) :]]
    in_loops = sum(IN_A_LOOP * int(n) * len(node.op.fgraph.apply_nodes) for n, node in zip(steps, loops, strict=True))
    return unknown + in_loops + sum(map(_of_product, products, sizes[::2], sizes[1::2]))


def _core(node: Apply) -> Any:
    """The operation, without what repeats it for a batch."""
    return getattr(node.op, "core_op", node.op)


def _is_of_matrices(node: Apply) -> bool:
    return type(_core(node)).__module__.startswith(OF_MATRICES)


def _is_foreign(node: Apply) -> bool:
    """Whether an operation is a user's own, or calls one that PyTensor does not have."""
    home = type(_core(node)).__module__
    return not home.startswith(("pytensor.", "pymc.")) or home.startswith(CALLING_OUT)


def _of_product(node: Apply, first: tuple[int, ...], last: tuple[int, ...]) -> float:
    """Of every element of the first matrix with a row of the last; of a factor, with one of its own."""
    rows = last[-1] if len(last) > 1 else 1
    # Only these factorise one matrix and then solve for another.
    own = first[-1] if isinstance(_core(node), Solve | Lstsq) else 0
    return float(math.prod(first)) * float(rows + own)
