"""Calling a function that Numba has compiled elsewhere by its address, from compiled code.

What a model compiles is not known when the loops of this package are written. A function's address, and whatever it
takes besides, are arguments of theirs: one loop, kept on disk, serves every model whose functions take arrays of the
same types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic
from numpy.typing import NDArray

__all__ = [
    "NativeFunction",
    "NativeLikelihood",
    "call_apart",
    "call_for_five_vectors",
    "call_for_five_vectors_and_matrix",
    "call_for_two_vectors",
    "call_for_value_and_slope",
    "call_for_value_slope_matrix",
    "call_for_vector",
    "call_likelihood",
    "native_function",
    "native_likelihood",
    "resolved",
]

type Array = NDArray[np.float64]

_SCALAR, _VECTOR = types.Array(types.float64, 0, "C"), types.Array(types.float64, 1, "C")
# Of whatever layout, of which nothing is made use.
_NUMBERS, _MATRIX = (types.Array(types.float64, n_dims, "A") for n_dims in (1, 2))
_Tuple: Any = types.Tuple


# What has been found of a function, by the kinds of its arguments: a chain beside another PyMC step binds the same one
# anew at every draw.
_found: WeakKeyDictionary[Any, dict[tuple[Any, ...], int | None]] = WeakKeyDictionary()


class NativeFunction(NamedTuple):
    """A compiled function for compiled code: its address, and what it takes after what it is given."""

    address: int
    rest: tuple[np.ndarray, ...]


@dataclass(frozen=True, slots=True)
class NativeLikelihood:
    """A compiled function of the sites: ``(η, *rest) -> (Σ ℓ, slope (n,))``.

    One that hyperparameters move as well is ``(θ, η, *rest) -> (Σ ℓ, slope, gradient by θ)``.

    Attributes
    ----------
    address : int
        Of its machine code, as Numba calls it.
    rest : tuple of arrays
        What it takes after η; of the types that it was compiled for.
    shift : (n,) array or None
        Added to the sites before they are handed over.
    owner : object
        Keeps the machine code in memory.
    """

    address: int
    rest: tuple[np.ndarray, ...]
    shift: Array | None
    owner: Any

    def __reduce__(self) -> Any:
        raise TypeError("The address of a compiled function is of no use in another process.")


def native_likelihood(
    function: Callable[..., Any], theta: Array | None, eta: Array, rest: Sequence[np.ndarray],
    shift: Array | None = None,
) -> NativeLikelihood | None:  # fmt: skip
    """Return the compiled function as an address; None where it is not Numba's, or returns something else."""
    if not isinstance(function, numba.core.dispatcher.Dispatcher):
        return None
    arguments = tuple(a for a in (theta, eta, *rest) if a is not None)
    address = _find(function, arguments, _result(theta is not None))
    return None if address is None else NativeLikelihood(address, tuple(rest), shift, function)


def native_function(
    function: Callable[..., Any], given: Sequence[Array], rest: Sequence[np.ndarray], call: Any
) -> NativeFunction | None:
    """Return the compiled function for one of the callers below; None if it is not Numba's, or returns something else.

    Whoever holds the address must hold the function as well.
    """
    if not isinstance(function, numba.core.dispatcher.Dispatcher):
        return None
    address = _find(function, (*given, *rest), _RESULTS[call])
    return None if address is None else NativeFunction(address, tuple(rest))


def _find(function: Any, arguments: Sequence[np.ndarray], result: Any) -> int | None:
    """Find where the machine code for such arguments is; look for it once."""
    known = _found.setdefault(function, {})
    kinds = (result, *((a.dtype.str, a.ndim, a.flags.num) for a in arguments))
    if kinds not in known:
        known[kinds] = _address(function, arguments, result)
    return known[kinds]


def _address(function: Any, arguments: Sequence[np.ndarray], result: Any) -> int | None:
    """Return the address of the machine code for such arguments; None if it returns something else."""
    type_of: Any = numba.typeof
    address, returned = resolved(function, tuple(type_of(a) for a in arguments))
    return address if _is_readable(returned, result) else None


def resolved(function: Any, kinds: tuple[Any, ...]) -> tuple[int, Any]:
    """Return where a compiled function's machine code for arguments of some types is, and the type that it returns."""
    compiled = _compiled(function, kinds)
    return int(compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)), compiled.signature.return_type


def _compiled(function: Any, kinds: tuple[Any, ...]) -> Any:
    """Compile a function as a call does: it may take its arguments as a tuple."""
    _, _, signature, _ = function.get_call_template(kinds, {})
    return function.overloads[signature]


def _is_readable(returned: Any, expected: Any) -> bool:
    """Return whether what is returned lies in memory as is expected.

    All arrays of so many dimensions lie there alike; the layout of a vector may be made use of.
    """
    members = tuple(getattr(returned, "types", ()))
    if len(members) != len(expected) or not all(isinstance(member, types.Array) for member in members):
        return False
    pairs = list(zip(members, expected, strict=True))
    alike = all((a.dtype, a.ndim) == (b.dtype, b.ndim) for a, b in pairs)
    return alike and all(b.ndim == 0 or b.layout in ("A", a.layout) for a, b in pairs)


def _result(moves: bool) -> Any:
    """Return the type of what a likelihood returns, which θ moves or does not."""
    return _Tuple((_SCALAR, _VECTOR, _NUMBERS) if moves else (_SCALAR, _VECTOR))


def _call_likelihood(typing_context: Any, address: Any, theta: Any, eta: Any, rest: Any) -> Any:
    """Return the types of a call of the function at an address, and what makes its code; θ may be None."""
    moves = not isinstance(theta, types.NoneType)
    for vector in (theta, eta) if moves else (eta,):
        # What the function was compiled for is not asked again.
        if (vector.dtype, vector.ndim, vector.layout) != (_VECTOR.dtype, 1, "C"):
            raise TypingError(f"a likelihood takes contiguous vectors of doubles, got {vector}")
    result = _result(moves)
    return result(types.int64, theta, eta, rest), _generator(result, 1 if moves else 2)


def _generator(result: Any, first: int) -> Any:
    """Return what makes the code of a call, of the arguments from the first on."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        # A tuple's members are passed one by one, as arguments are: the two look alike to what is called.
        return _call(context, builder, given[0], result, signature.args[first:], given[first:])

    return generate


def _call(context: Any, builder: Any, address: Any, result: Any, kinds: Any, values: Any) -> Any:
    """Write the code of a call; what it raises is raised."""
    kind = context.call_conv.get_function_type(result, kinds)
    pointer = builder.inttoptr(address, kind.as_pointer())
    status, returned = context.call_conv.call_function(builder, pointer, result, kinds, values)
    unlikely: Any = cgutils.if_unlikely
    with unlikely(builder, status.is_error):
        context.call_conv.return_status_propagate(builder, status)
    return returned


def _caller(result: Any) -> Any:
    """Return what calls the function at an address with a tuple of arrays, and with whatever else it takes."""

    def call(typing_context: Any, address: Any, given: Any, rest: Any) -> Any:
        if any((array.dtype, array.layout) != (_VECTOR.dtype, "C") for array in given):
            raise TypingError(f"what is called takes contiguous arrays of doubles, got {given}")
        return result(types.int64, given, rest), _generator(result, 1)

    return intrinsic(call)


_RETURNED = (
    _Tuple((_SCALAR, _NUMBERS)), _Tuple((_NUMBERS,) * 5), _Tuple((*(_NUMBERS,) * 5, _MATRIX)), _Tuple((_NUMBERS,)),
    _Tuple((_SCALAR, _NUMBERS, _MATRIX)), _Tuple((_NUMBERS,) * 2),
)  # fmt: skip
_CALLERS = tuple(_caller(result) for result in _RETURNED)
(
    call_for_value_and_slope, call_for_five_vectors, call_for_five_vectors_and_matrix, call_for_vector,
    call_for_value_slope_matrix, call_for_two_vectors,
) = _CALLERS  # fmt: skip
_RESULTS: dict[Any, Any] = dict(zip(_CALLERS, _RETURNED, strict=True))
call_likelihood: Any = intrinsic(_call_likelihood)


def _call_apart(typing_context: Any, address: Any, function: Any, arguments: Any) -> Any:
    """Return the types of a call of a compiled function of this package, and what makes its code.

    The function is called by its address for such arguments, which is that of `resolved`.

    The code of one that is called as usual is taken in, and compiled once more with what calls it.
    """
    result = _compiled(function.dispatcher, tuple(arguments)).signature.return_type

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        unpack: Any = cgutils.unpack_tuple
        values = unpack(builder, given[2], len(signature.args[2]))
        return _call(context, builder, given[0], result, tuple(signature.args[2]), values)

    return result(types.int64, function, arguments), generate


call_apart: Any = intrinsic(_call_apart)
