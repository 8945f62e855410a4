"""From a likelihood's closed forms to compiled functions of plain arrays.

A kernel takes vectors (η, y, parameters), all of one length, and knows no model: any two models with the
same likelihood share it, in the process and in Numba's cache on disk.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np
import pytensor
import pytensor.scalar as ps
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.graph.graphs import WITHOUT_TRACES, replaced
from pymc_rmhmc.model.likelihoods.registry import LikelihoodTerms, lookup
from pymc_rmhmc.stopwatch import COMPILING

__all__ = ["Kernel", "LikelihoodKernel", "compile_outputs"]

type Array = NDArray[np.float64]
type Arguments = Sequence[Array]


class Kernel(Protocol):
    """Compiled functions of one likelihood; `arguments` is ``(y, *parameters)``, each (n,)."""

    kinds: tuple[str, ...]

    def log_density(self, eta: Array, arguments: Arguments) -> float:
        """Return ``Σ ℓ``."""

    def gradient(self, eta: Array, arguments: Arguments) -> tuple[float, Array]:
        """Return ``Σ ℓ`` and g (n,)."""

    @property
    def compiled_gradient(self) -> Callable[..., Sequence[Array]]:
        """The function that `gradient` calls, with η and then the arguments."""

    def curvature(self, eta: Array, arguments: Arguments, kind: str) -> tuple[float, Array, Array, Array]:
        """Return ``Σ ℓ``, g, w and r, each of the last three (n,)."""

    def weight(self, eta: Array, arguments: Arguments, kind: str) -> Array:
        """Return w (n,)."""

    def pointwise(self, eta: Array, arguments: Arguments) -> tuple[Array, Array]:
        """Return ℓ and g, each (m, n), for m vectors η, (m, n)."""

    def gradient_rows(self, eta: Array, arguments: Arguments) -> tuple[Array, Array]:
        """Return ``Σ ℓ`` (m,) and g (m, n) for m vectors η, (m, n)."""


class LikelihoodKernel:
    """The kernel of a registered likelihood, compiled at its first use in each process.

    Parameters
    ----------
    name : str
        Of the registered likelihood. Only the name is pickled.

    Raises
    ------
    ConfigurationError
        If no likelihood has this name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.kinds = lookup(name).kinds

    def log_density(self, eta: Array, arguments: Arguments) -> float:
        """Return ``Σ ℓ``."""
        return float(_compiled(self.name, "log_density", None)(eta, *arguments)[0])

    def gradient(self, eta: Array, arguments: Arguments) -> tuple[float, Array]:
        """Return ``Σ ℓ`` and g (n,)."""
        total, slope = self.compiled_gradient(eta, *arguments)
        return float(total), slope

    @property
    def compiled_gradient(self) -> Callable[..., Sequence[Array]]:
        """The function that `gradient` calls, with η and then the arguments."""
        return _compiled(self.name, "gradient", None)

    def curvature(self, eta: Array, arguments: Arguments, kind: str) -> tuple[float, Array, Array, Array]:
        """Return ``Σ ℓ``, g, w and r, each of the last three (n,)."""
        total, slope, weight, log_slope = _compiled(self.name, "curvature", kind)(eta, *arguments)
        return float(total), slope, weight, log_slope

    def weight(self, eta: Array, arguments: Arguments, kind: str) -> Array:
        """Return w (n,)."""
        return np.asarray(_compiled(self.name, "weight", kind)(eta, *arguments)[0])

    def pointwise(self, eta: Array, arguments: Arguments) -> tuple[Array, Array]:
        """Return ℓ and g, each (m, n), for m vectors η, (m, n), laid end to end because the kernel takes vectors."""
        repeated = [np.tile(argument, len(eta)) for argument in arguments]
        log_density, slope = _compiled(self.name, "pointwise", None)(np.ravel(eta), *repeated)
        return log_density.reshape(eta.shape), slope.reshape(eta.shape)

    def gradient_rows(self, eta: Array, arguments: Arguments) -> tuple[Array, Array]:
        """Return ``Σ ℓ`` (m,) and g (m, n) for m vectors η, (m, n)."""
        log_density, slope = self.pointwise(eta, arguments)
        return log_density.sum(axis=1), slope


@node_rewriter([Elemwise])
def _powers_without_exceptions(fgraph: Any, node: Apply) -> list[TensorVariable] | None:
    """Replace powers with negative whole exponents by a division, so that 0 to one of them is infinite.

    Numba raises a ZeroDivisionError there, in the middle of a chain.
    """
    if not isinstance(node.op.scalar_op, ps.Pow) or not node.outputs[0].type.dtype.startswith("float"):
        return None
    base, exponent = node.inputs
    if np.dtype(exponent.type.dtype).kind != "i":
        return None
    if isinstance(exponent, Constant):
        if (exponent.data >= 0).all():
            return None
        positive, is_negative = pt.constant(np.abs(exponent.data)), pt.constant(exponent.data < 0)
    elif getattr(exponent.owner, "op", None) == pt.abs:
        return None  # this is the result
    else:
        positive, is_negative = pt.abs(exponent), exponent < 0
    power = base**positive
    return [pt.switch(is_negative, pt.reciprocal(power), power).astype(node.outputs[0].type.dtype)]


# As in PyMC's own functions, a parameter out of its range is a log density of -inf, not an exception. Powers wait for
# the rewrites that find cheaper forms of them, and come before those that join elementwise operations.
NUMBA_MODE = pytensor.compile.mode.get_mode("NUMBA").including("local_check_parameter_to_ninf_switch").register(
    (dfs_rewriter(_powers_without_exceptions), 2.95)
)


def compile_outputs(
    inputs: Sequence[Any], outputs: Sequence[Any], *, exact: bool = False
) -> Callable[..., Sequence[Array]]:
    """Compile with Numba and return the function beneath PyTensor's own, which checks nothing.

    A call costs a few microseconds instead of tens. Inputs must be contiguous. With `exact` sums are not
    rearranged, so that every process gets the same last digit; elementwise functions need not pay for that.
    """
    fast = pytensor.config.numba__fastmath and not exact
    flags = pytensor.config.change_flags(numba__fastmath=fast, **WITHOUT_TRACES)
    with COMPILING.running(), flags, warnings.catch_warnings():
        # Numba has no tri_gamma, and a user can do nothing about that.
        warnings.filterwarnings("ignore", message="Numba will use object mode", category=UserWarning)
        given: dict[str, Any] = {"trust_input": True, "on_unused_input": "ignore"}
        outputs = _without_generators(outputs)
        function = pytensor.function(list(inputs), outputs, mode=NUMBA_MODE, **given)
        # Numba compiles at the first call: what is dropped here has cost the rewriting alone.
        if _mixes_writes(function):
            unfused = NUMBA_MODE.excluding("fuse_elemwise")
            function = pytensor.function(list(inputs), outputs, mode=unfused, **given)
    # Not public API: where it is missing, the function itself serves, only slower.
    return getattr(function.vm, "jit_fn", function)


def _without_generators(outputs: Sequence[Any]) -> list[Any]:
    """Return expressions with constants in place of random states.

    The log density of a distribution that is made of others holds the others' draws, for their shapes alone. Rewriting
    drops the draws, but a random state that is shared would stay an argument of the function.
    """
    states = [v for v in ancestors(list(outputs)) if isinstance(v, SharedVariable) and isinstance(v.type, RandomType)]
    constants = {v: Constant(v.type, v.get_value(borrow=True)) for v in states}
    return replaced(outputs, constants) if states else list(outputs)


def _mixes_writes(function: Any) -> bool:
    """Check whether one loop sets elements of an array and adds to those of another at the same index.

    PyTensor 3.3 compiles all writes at an index as it does the first of them: what is to be set is added.
    """
    for node in function.maker.fgraph.apply_nodes:
        for entry in getattr(node.op, "indexed_outputs", ()):
            writes = [] if entry is None else [node.op.fgraph.outputs[i].owner.op for i in entry[0]]
            if len({getattr(op, "set_instead_of_inc", None) for op in writes}) > 1:
                return True
    return False


@cache
def _compiled(name: str, output: str, kind: str | None) -> Callable[..., Sequence[Array]]:
    """Compile one function of a registered likelihood."""
    likelihood = lookup(name)
    eta, y = pt.dvector("eta"), pt.dvector("y")
    parameters = {parameter: pt.dvector(parameter) for parameter in likelihood.parameters}
    terms = likelihood.terms(eta, parameters, y)
    return compile_outputs((eta, y, *parameters.values()), select_outputs(terms, output, kind))


def select_outputs(terms: LikelihoodTerms, output: str, kind: str | None) -> list[Any]:
    """Select the symbolic outputs of one of a kernel's functions."""
    total = terms.logp.sum()
    if output == "log_density":
        return [total]
    if output == "gradient":
        return [total, terms.gradient]
    if output == "pointwise":
        return [terms.logp.ravel(), terms.gradient]
    assert kind is not None
    curvature = terms.curvature[kind]
    if output == "weight":
        return [curvature.weight]
    return [total, terms.gradient, curvature.weight, curvature.log_slope]
