"""From a likelihood's closed forms, or its graph, to compiled functions of plain arrays.

A kernel takes vectors (η, y, parameters), all of one length, and knows no model: any two models with the
same likelihood share it, in the process and in Numba's cache on disk.
"""

from __future__ import annotations

import itertools
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial

import numpy as np
import pytensor
import pytensor.scalar as ps
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.compile import Function
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FrozenFunctionGraph, FunctionGraph
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.graph.traversal import ancestors
from pytensor.scalar.math import Log1mexp, Softplus, TriGamma
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import UnsupportedLikelihoodError
from pymc_rmhmc.model.graph.graphs import PYTHON_MODE, WITHOUT_TRACES, inlined, replaced
from pymc_rmhmc.model.likelihoods.registry import Curvature, LikelihoodTerms, lookup
from pymc_rmhmc.stopwatch import COMPILING

__all__ = ["FallbackKernel", "Kernel", "LikelihoodKernel", "SlopeByNumPy", "compile_outputs", "has_diagonal_hessian"]

type Array = NDArray[np.float64]
type Arguments = Sequence[Array]
type Compiled = Callable[..., Sequence[Array]]

# 1/α is the least curvature a site gets. In whitened coordinates the prior adds 1, so that a floor of
# 1e-2 leaves prior-dominated sites alone, and |h| well above it is taken as it is.
SOFTABS_ALPHA = 100.0
# |αh| below which coth's series is used: its first neglected term is then under 1e-16.
SERIES_BELOW = 1e-2

# Spreads of the points at which a Hessian is looked at; near its place a density must be finite.
NEAR, WIDTHS = 0.5, (0.5, 0.5, 0.5, 3.0, 12.0)

# Into how many pairs of halves values are put to see whether one half moves the gradient of the other.
N_HALVES = 3

# Spreads of the points at which it is seen which site an element of the log density reads.
SPREADS = (0.3, 2.0)


class Kernel(ABC):
    """Compiled functions of one likelihood; `arguments` is ``(y, *parameters)``, each (n,)."""

    kinds: tuple[str, ...]

    @abstractmethod
    def _function(self, output: str, kind: str | None = None) -> Compiled:
        """Return one compiled function, compiled at its first use in each process; `select_outputs` names them."""

    @abstractmethod
    def pointwise(self, eta: Array, arguments: Arguments) -> tuple[Array, Array]:
        """Return ℓ and g, each (m, n), for m vectors η, (m, n)."""

    def gradient_rows(self, eta: Array, arguments: Arguments) -> tuple[Array, Array]:
        """Return ``Σ ℓ`` (m,) and g (m, n) for m vectors η, (m, n)."""
        log_density, slope = self.pointwise(eta, arguments)
        return log_density.sum(axis=1), slope

    def log_density(self, eta: Array, arguments: Arguments) -> float:
        """Return ``Σ ℓ``."""
        return float(self._function("log_density")(eta, *arguments)[0])

    def gradient(self, eta: Array, arguments: Arguments) -> tuple[float, Array]:
        """Return ``Σ ℓ`` and g (n,)."""
        total, slope = self.compiled_gradient(eta, *arguments)
        return float(total), slope

    @property
    def compiled_gradient(self) -> Compiled:
        """The function that `gradient` calls, with η and then the arguments."""
        return self._function("gradient")

    def curvature(self, eta: Array, arguments: Arguments, kind: str) -> tuple[float, Array, Array, Array]:
        """Return ``Σ ℓ``, g, w and r, each of the last three (n,)."""
        total, slope, weight, log_slope = self._function("curvature", kind)(eta, *arguments)
        return float(total), slope, weight, log_slope

    def weight(self, eta: Array, arguments: Arguments, kind: str) -> Array:
        """Return w (n,)."""
        return np.asarray(self._function("weight", kind)(eta, *arguments)[0])


class LikelihoodKernel(Kernel):
    """The kernel of a registered likelihood, by its name, which is all that is pickled."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kinds = lookup(name).kinds

    def _function(self, output: str, kind: str | None = None) -> Compiled:
        return _compiled(self.name, output, kind)

    def pointwise(self, eta: Array, arguments: Arguments) -> tuple[Array, Array]:
        """Return ℓ and g, each (m, n), for m vectors η, (m, n), laid end to end because the kernel takes vectors."""
        repeated = [np.tile(argument, len(eta)) for argument in arguments]
        log_density, slope = self._function("pointwise")(np.ravel(eta), *repeated)
        return log_density.reshape(eta.shape), slope.reshape(eta.shape)


class FallbackKernel(Kernel):
    """The kernel of a log density that nobody wrote down in closed form, given by its graph.

    PyTensor differentiates it three times, and SoftAbs makes the curvature of its second derivative, of any sign.
    It is elementwise or summed, and every element depends on one site of the symbolic vector η. The values of the other
    inputs are the kernel's arguments.
    """

    kinds = ("softabs_curvature",)

    def __init__(self, eta: TensorVariable, inputs: Sequence[TensorVariable], log_density: TensorVariable) -> None:
        self._graph = (eta, tuple(inputs), log_density)
        self._functions: dict[str, Compiled] = {}
        self._elements: tuple[tuple[Array, ...], NDArray[np.int64]] | None = None

    def pointwise(self, eta: Array, arguments: Arguments) -> tuple[Array, Array]:
        """Return ℓ and g by site, each (m, n), for m vectors η, (m, n).

        Raises UnsupportedLikelihoodError if one density covers observations of several sites: it has no value by site.
        """
        sites, size = self._sites_of_elements(eta.shape[1], arguments), eta.shape[1]
        function, rows = self._function("pointwise"), []
        for row in eta:
            log_density, slope = function(np.ascontiguousarray(row), *arguments)
            # Elements that read no site come last.
            rows.append((np.bincount(sites, log_density, size + 1)[:size], slope.copy()))
        return np.array([row[0] for row in rows]), np.array([row[1] for row in rows])

    def gradient_rows(self, eta: Array, arguments: Arguments) -> tuple[Array, Array]:
        """Return ``Σ ℓ`` (m,) and g (m, n) for m vectors η, (m, n), also where one density covers several sites."""
        rows = [(total, slope.copy()) for total, slope in (self.gradient(row, arguments) for row in eta)]
        return np.array([total for total, _ in rows]), np.array([slope for _, slope in rows])

    def _sites_of_elements(self, size: int, arguments: Arguments) -> NDArray[np.int64]:
        """Find the site of each element of the log density; `size` for those that read none.

        Sites are moved by the binary digits of their numbers: an element changes with a digit that is 1 in its site's
        number, and does not with one that is 0.
        """
        held = self._elements
        if held is not None and all(a is b for a, b in zip(held[0], arguments, strict=True)):
            return held[1]
        function, rng = self._function("pointwise"), np.random.default_rng(0)
        numbers = np.arange(size) + 1
        found: dict[tuple[int, int], NDArray[np.bool_]] = {}
        for spread in SPREADS:
            origin = spread * rng.standard_normal(size)
            moved = origin + rng.uniform(0.3, 0.6, size)
            before = function(origin, *arguments)[0].copy()
            for digit, value in itertools.product(range(size.bit_length()), (0, 1)):
                after = function(np.where((numbers >> digit) & 1 == value, moved, origin), *arguments)[0]
                changed = ~((after == before) | (np.isnan(after) & np.isnan(before)))
                found[digit, value] = found.get((digit, value), False) | changed
        if any((found[digit, 0] & found[digit, 1]).any() for digit in range(size.bit_length())):
            raise UnsupportedLikelihoodError(
                "The likelihood gives one log density for observations of several latent values, and expectation "
                "propagation needs one for each. Use laplace(), or a distribution that has a density by observation."
            )
        number = sum(found[digit, 1].astype(np.int64) << digit for digit in range(size.bit_length()))
        sites = np.asarray(np.where(number == 0, size, number - 1))
        self._elements = (tuple(arguments), sites)
        return sites

    def _function(self, output: str, kind: str | None = None) -> Compiled:
        if output not in self._functions:
            eta, inputs, log_density = self._graph
            outputs = select_outputs(differentiate(log_density, eta), output, "softabs_curvature")
            self._functions[output] = compile_outputs((eta, *inputs), outputs)
        return self._functions[output]

    def __getstate__(self) -> dict[str, object]:
        # Compiled functions stay in their process: the worker compiles its own, from Numba's cache.
        return {"_graph": self._graph, "_functions": {}, "_elements": None}


def softabs(h: TensorVariable, slope: TensorVariable) -> Curvature:
    """Return ``w = h coth(α h)`` and ``r = ∂ log w``, for a second derivative h and its own derivative.

    See Betancourt (2013), A general metric for Riemannian manifold Hamiltonian Monte Carlo, eq. 7. Near 0, with
    ``t = αh``: ``t coth t = 1 + t²/3 - t⁴/45 + 2t⁶/945``; far from it ``coth t = ±1``.
    """
    t = SOFTABS_ALPHA * h
    small = abs(t) < SERIES_BELOW
    safe = pt.switch(small, 1.0, t)
    square = pt.switch(small, t, 0.0) ** 2
    near = 1.0 + square * (1.0 / 3.0 - square * (1.0 / 45.0 - square * (2.0 / 945.0)))
    weight = pt.switch(small, near, safe / pt.tanh(safe)) / SOFTABS_ALPHA
    # d(t coth t)/dt = coth t - t / sinh² t; sinh² overflows to inf harmlessly.
    far_slope = 1.0 / pt.tanh(safe) - safe / pt.sinh(pt.clip(safe, -300.0, 300.0)) ** 2
    near_slope = t * (2.0 / 3.0 - square * (4.0 / 45.0))
    return Curvature(weight, pt.switch(small, near_slope, far_slope) * slope / weight)


def differentiate(logp: TensorVariable, eta: TensorVariable) -> LikelihoodTerms:
    """Return the slope and the SoftAbs curvature of an elementwise log density, by reverse mode.

    Since ``ℓᵢ`` depends on ``ηᵢ`` alone, the gradient of a sum is the vector of derivatives, three times
    over.
    """
    gradient = pytensor.grad(logp.sum(), eta)
    h = pytensor.grad(gradient.sum(), eta, disconnected_inputs="ignore")
    third = pytensor.grad(h.sum(), eta, disconnected_inputs="ignore")
    return LikelihoodTerms(logp, gradient, {"softabs_curvature": softabs(h, third)})


@node_rewriter([Elemwise])
def _as_numpy_has_it(fgraph: FunctionGraph, node: Apply) -> list[TensorVariable] | None:
    """Replace functions that PyTensor takes one number at a time without a compiler, by ones for whole arrays."""
    x, function = node.inputs[0], node.op.scalar_op
    if isinstance(function, Softplus):
        made = pt.maximum(x, 0.0) + pt.log1p(pt.exp(-abs(x)))
    elif isinstance(function, Log1mexp):
        made = pt.switch(x < -np.log(2.0), pt.log1p(-pt.exp(x)), pt.log(-pt.expm1(x)))
    elif isinstance(function, TriGamma):
        made = pt.polygamma(np.int64(1), x)
    else:
        return None
    return [made.astype(node.outputs[0].type.dtype)]


# With the rewrites that keep a density finite in its tails, as a compiled function has them.
STABLE_PYTHON_MODE = PYTHON_MODE.including("stabilize", "specialize", "local_check_parameter_to_ninf_switch").register(
    (dfs_rewriter(_as_numpy_has_it), 4.5)
)


class SlopeByNumPy:
    """The gradient of a summed log density, for looking at it a few times: NumPy evaluates it, and nothing is compiled.

    It takes what `FallbackKernel` takes. The first call raises one of `NO_DERIVATIVE` if PyTensor lacks a derivative.
    """

    def __init__(self, eta: TensorVariable, inputs: Sequence[TensorVariable], log_density: TensorVariable) -> None:
        self._graph = (eta, tuple(inputs), log_density)
        self._function: Function | None = None

    def __call__(self, eta: Array, arguments: Arguments) -> Array:
        """Return g (n,), given sites and what else the density depends on."""
        if self._function is None:
            symbol, inputs, log_density = self._graph
            slope = inlined([differentiate(log_density, symbol).gradient], ())
            self._function = pytensor.function(
                [symbol, *inputs], slope, mode=STABLE_PYTHON_MODE, on_unused_input="ignore"
            )
        with np.errstate(all="ignore"):
            return np.asarray(self._function(eta, *arguments)[0])

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_function": None}


def has_diagonal_hessian(
    gradient: Callable[[Array], Array], eta: Array, rng: np.random.Generator, *, finite: bool = True
) -> bool:
    """Check whether each element of a gradient depends on its own η alone, at random points near η and far from it.

    `finite` says whether the gradient has to be finite near η.

    For a diagonal Hessian a product with a vector of signs, times the signs, is the diagonal whatever the
    signs are: all such vectors must give the same. Two that differ by one sign for all values would give the same of
    any Hessian. Far out a density may not be finite, which says nothing.
    """
    step = 1e-5
    for width in WIDTHS:
        at = eta + width * rng.standard_normal(eta.size)
        diagonals = []
        first = rng.choice([-1.0, 1.0], eta.size)
        for turned in _turned(eta.size, rng):
            signs = first * turned
            up, down = gradient(at + step * signs), gradient(at - step * signs)
            with np.errstate(invalid="ignore"):
                diagonals.append(signs * (up - down) / (2.0 * step))
        seen = np.isfinite(diagonals).all(axis=0)
        if finite and width <= NEAR and not seen.all():
            return False
        one = diagonals[0][seen]
        scale = 1.0 + np.abs(one).max(initial=0.0)
        if not all(np.allclose(one, other[seen], atol=1e-4 * scale, rtol=1e-4) for other in diagonals[1:]):
            return False
    return True


def _turned(size: int, rng: np.random.Generator) -> list[Array]:
    """Return signs (size,) that change a vector of signs: not at all, and for one half of the values or another.

    Of few values any two are in different halves once, by the digits of their numbers.
    """
    if size <= 2**N_HALVES:
        digits = [digit for digit in range(N_HALVES) if size > 2**digit]
        halves = [(np.arange(size) >> digit) % 2 == 1 for digit in digits]
    else:
        halves = [rng.integers(0, 2, size) == 1 for _ in range(N_HALVES)]
    return [np.ones(size), *(np.where(half, -1.0, 1.0) for half in halves)]


@node_rewriter([Elemwise])
def _powers_without_exceptions(fgraph: FunctionGraph, node: Apply) -> list[TensorVariable] | None:
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


def compile_outputs(inputs: Sequence[Variable], outputs: Sequence[Variable], *, exact: bool = False) -> Compiled:
    """Compile with Numba and return the function beneath PyTensor's own, which checks nothing.

    A call costs a few microseconds instead of tens. Inputs must be contiguous. With `exact` sums are not
    rearranged, so that every process gets the same last digit; elementwise functions need not pay for that.
    """
    graph = FrozenFunctionGraph.from_io(list(inputs), _without_generators(outputs), dedup_nodes=True)
    return compiled_graph(graph, pytensor.config.numba__fastmath and not exact)


# PyTensor and Numba never free all that they compiled: a model that is built anew for each data set would grow by a
# megabyte with each.
@lru_cache(maxsize=50)
def compiled_graph(graph: FrozenFunctionGraph, fast: bool) -> Compiled:
    """Compile a graph, with sums rearranged for speed or not; the last ones are compiled once a process."""
    flags = pytensor.config.change_flags(numba__fastmath=fast, **WITHOUT_TRACES)
    with COMPILING.running(), flags, warnings.catch_warnings():
        # Numba has no tri_gamma, and a user can do nothing about that.
        warnings.filterwarnings("ignore", message="Numba will use object mode", category=UserWarning)
        thawed = graph.unfreeze()
        build = partial(
            pytensor.function, thawed.inputs, thawed.outputs, trust_input=True, on_unused_input="ignore"
        )
        function = build(mode=NUMBA_MODE)
        # Numba compiles at the first call: what is dropped here has cost the rewriting alone.
        if _mixes_writes(function):
            function = build(mode=NUMBA_MODE.excluding("fuse_elemwise"))
    # Not public API: where it is missing, the function itself serves, only slower.
    return getattr(function.vm, "jit_fn", function)


def _without_generators(outputs: Sequence[Variable]) -> list[Variable]:
    """Return expressions with constants in place of random states.

    The log density of a distribution that is made of others holds the others' draws, for their shapes alone. Rewriting
    drops the draws, but a random state that is shared would stay an argument of the function.
    """
    states = [v for v in ancestors(list(outputs)) if isinstance(v, SharedVariable) and isinstance(v.type, RandomType)]
    constants = {v: Constant(v.type, v.get_value(borrow=True)) for v in states}
    return replaced(outputs, constants) if states else list(outputs)


def _mixes_writes(function: Function) -> bool:
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
def _compiled(name: str, output: str, kind: str | None) -> Compiled:
    """Compile one function of a registered likelihood."""
    likelihood = lookup(name)
    eta, y = pt.dvector("eta"), pt.dvector("y")
    parameters = {parameter: pt.dvector(parameter) for parameter in likelihood.parameters}
    terms = likelihood.terms(eta, parameters, y)
    return compile_outputs((eta, y, *parameters.values()), select_outputs(terms, output, kind))


def select_outputs(terms: LikelihoodTerms, output: str, kind: str | None) -> list[TensorVariable]:
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
