"""Calling a function that Numba has compiled elsewhere by its address, from compiled code.

What a model compiles is not known when the loops of this package are written. A function's address, and whatever it
takes besides, are arguments of theirs: one loop, kept on disk, serves every model whose functions take arrays of the
same types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn
from weakref import WeakKeyDictionary

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.cpu import CPUContext
from numba.core.dispatcher import Dispatcher
from numba.core.errors import TypingError
from numba.core.typing import Signature
from numba.extending import intrinsic
from numpy.typing import NDArray

__all__ = [
    "NativeFunction", "NativeLikelihood", "call_apart", "call_for_two_vectors", "call_for_value_and_slope",
    "call_for_value_and_two_slopes", "call_for_value_slope_matrix", "call_for_vector", "call_likelihood",
    "native_function", "native_likelihood", "resolved",
]  # fmt: skip

type Array = NDArray[np.float64]
# What makes the code of a call in compiled code, and the types of that call with it.
type Generator = Callable[[CPUContext, ir.IRBuilder, Signature, Sequence[ir.Value]], ir.Value]
type Lowered = tuple[Signature, Generator]
# Compiled code that calls an address: numbers are arrays without dimensions.
type Caller = Callable[..., tuple[Any, ...]]

_SCALAR, _VECTOR = types.Array(types.float64, 0, "C"), types.Array(types.float64, 1, "C")
# Of whatever layout, of which nothing is made use.
_NUMBERS, _MATRIX = types.Array(types.float64, 1, "A"), types.Array(types.float64, 2, "A")

# What has been found of a function, by the kinds of its arguments: a chain beside another PyMC step binds the same one
# anew at every draw.
_found: WeakKeyDictionary[Dispatcher, dict[tuple[object, ...], int | None]] = WeakKeyDictionary()


class NativeFunction(NamedTuple):
    """A compiled function for compiled code: its address, and what it takes after what it is given."""

    address: int
    rest: tuple[np.ndarray, ...]


@dataclass(frozen=True, slots=True)
class NativeLikelihood:
    """A compiled function of the sites: ``(η, *rest) -> (Σ ℓ, slope (n,))``.

    One that hyperparameters move as well is ``(θ, η, *rest) -> (Σ ℓ, slope, gradient by θ)``.
    """

    address: int  # of its machine code, as Numba calls it
    rest: tuple[np.ndarray, ...]  # what it takes after η, of the types that it was compiled for
    shift: Array | None  # added to the sites (n,) before they are handed over
    owner: object  # keeps the machine code in memory

    def __reduce__(self) -> NoReturn:
        raise TypeError("The address of a compiled function is of no use in another process.")


def native_likelihood(
    function: object, theta: Array | None, eta: Array, rest: Sequence[np.ndarray],
    shift: Array | None = None,
) -> NativeLikelihood | None:  # fmt: skip
    """Return the compiled function as an address; None where it is not Numba's, or returns something else."""
    arguments = tuple(a for a in (theta, eta, *rest) if a is not None)
    address = _find(function, arguments, _result(theta is not None))
    return None if address is None else NativeLikelihood(address, tuple(rest), shift, function)


def native_function(
    function: object, given: Sequence[Array], rest: Sequence[np.ndarray], call: object
) -> NativeFunction | None:
    """Return the compiled function for one of the callers below; None if it is not Numba's, or returns something else.

    Whoever holds the address must hold the function as well.
    """
    address = _find(function, (*given, *rest), _RESULTS[call])
    return None if address is None else NativeFunction(address, tuple(rest))


def _find(function: object, arguments: Sequence[np.ndarray], result: types.Type) -> int | None:
    """Find where the machine code for such arguments is, once; None if it is not Numba's, or returns something else."""
    if not isinstance(function, Dispatcher):
        return None
    known = _found.setdefault(function, {})
    kinds = (result, *((a.dtype.str, a.ndim, a.flags.num) for a in arguments))
    if kinds not in known:
        address, returned = resolved(function, tuple(numba.typeof(a) for a in arguments))
        known[kinds] = address if _is_readable(returned, result) else None
    return known[kinds]


def resolved(function: Any, kinds: tuple[types.Type, ...]) -> tuple[int, Any]:
    """Return where a compiled function's machine code for arguments of some types is, and the type that it returns."""
    compiled = _compiled(function, kinds)
    return int(compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)), compiled.signature.return_type


def _compiled(function: Dispatcher, kinds: tuple[types.Type, ...]) -> Any:
    """Compile a function as a call does: it may take its arguments as a tuple."""
    _, _, signature, _ = function.get_call_template(kinds, {})
    return function.overloads[signature]


def _is_readable(returned: types.Type, expected: types.Type) -> bool:
    """Return whether what is returned lies in memory as is expected.

    All arrays of so many dimensions lie there alike; the layout of a vector may be made use of.
    """
    members, wanted = (tuple(getattr(kind, "types", ())) for kind in (returned, expected))
    if len(members) != len(wanted) or not all(isinstance(member, types.Array) for member in members):
        return False
    pairs = list(zip(members, wanted, strict=True))
    alike = all((a.dtype, a.ndim) == (b.dtype, b.ndim) for a, b in pairs)
    return alike and all(b.ndim == 0 or b.layout in ("A", a.layout) for a, b in pairs)


def _result(moves: bool) -> types.Type:
    """Return the type of what a likelihood returns, which θ moves or does not."""
    return types.Tuple((_SCALAR, _VECTOR, _NUMBERS) if moves else (_SCALAR, _VECTOR))


def _call_likelihood(typing_context: object, address: types.Type, theta: Any, eta: Any, rest: types.Type) -> Lowered:
    """Return the types of a call of the function at an address, and what makes its code; θ may be None."""
    moves = not isinstance(theta, types.NoneType)
    for vector in (theta, eta) if moves else (eta,):
        # What the function was compiled for is not asked again.
        if (vector.dtype, vector.ndim, vector.layout) != (_VECTOR.dtype, 1, "C"):
            raise TypingError(f"a likelihood takes contiguous vectors of doubles, got {vector}")
    result = _result(moves)
    return result(types.int64, theta, eta, rest), _generator(result, 1 if moves else 2)


def _generator(result: types.Type, first: int) -> Generator:
    """Return what makes the code of a call, of the arguments from the first on."""

    def generate(
        context: CPUContext, builder: ir.IRBuilder, signature: Signature, given: Sequence[ir.Value]
    ) -> ir.Value:
        # A tuple's members are passed one by one, as arguments are: the two look alike to what is called.
        return _call(context, builder, given[0], result, signature.args[first:], given[first:])

    return generate


def _call(
    context: CPUContext, builder: ir.IRBuilder, address: ir.Value, result: types.Type, kinds: Sequence[types.Type],
    values: Sequence[ir.Value],
) -> ir.Value:  # fmt: skip
    """Write the code of a call; what it raises is raised."""
    kind = context.call_conv.get_function_type(result, kinds)
    pointer = builder.inttoptr(address, kind.as_pointer())
    status, returned = context.call_conv.call_function(builder, pointer, result, kinds, values)
    with cgutils.if_unlikely(builder, status.is_error):
        context.call_conv.return_status_propagate(builder, status)
    return returned


def _caller(result: types.Type) -> Caller:
    """Return what calls the function at an address with a tuple of arrays, and with whatever else it takes."""

    def call(typing_context: object, address: types.Type, given: Any, rest: types.Type) -> Lowered:
        if any((array.dtype, array.layout) != (_VECTOR.dtype, "C") for array in given):
            raise TypingError(f"what is called takes contiguous arrays of doubles, got {given}")
        return result(types.int64, given, rest), _generator(result, 1)

    made: Caller = intrinsic(call)
    return made


_RETURNED = (
    types.Tuple((_SCALAR, _NUMBERS)), types.Tuple((_NUMBERS,)), types.Tuple((_SCALAR, _NUMBERS, _MATRIX)),
    types.Tuple((_NUMBERS,) * 2), types.Tuple((_SCALAR, _NUMBERS, _NUMBERS)),
)  # fmt: skip
_CALLERS = tuple(_caller(result) for result in _RETURNED)
(
    call_for_value_and_slope, call_for_vector, call_for_value_slope_matrix, call_for_two_vectors,
    call_for_value_and_two_slopes,
) = _CALLERS  # fmt: skip
_RESULTS: dict[object, types.Type] = dict(zip(_CALLERS, _RETURNED, strict=True))
call_likelihood: Caller = intrinsic(_call_likelihood)


def _call_apart(typing_context: object, address: types.Type, function: Any, arguments: Any) -> Lowered:
    """Return the types of a call of a compiled function of this package, and what makes its code.

    The function is called by its address for such arguments, which is that of `resolved`.

    The code of one that is called as usual is taken in, and compiled once more with what calls it.
    """
    result = _compiled(function.dispatcher, tuple(arguments)).signature.return_type

    def generate(
        context: CPUContext, builder: ir.IRBuilder, signature: Signature, given: Sequence[ir.Value]
    ) -> ir.Value:
        kinds = tuple(signature.args[2])
        return _call(context, builder, given[0], result, kinds, cgutils.unpack_tuple(builder, given[2], len(kinds)))

    return result(types.int64, function, arguments), generate


call_apart: Callable[..., Any] = intrinsic(_call_apart)
