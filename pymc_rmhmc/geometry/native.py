"""Calling a function that Numba has compiled elsewhere by its address, from compiled code.

What a model compiles is not known when the loops of this package are written. A function's address, and whatever it
takes besides, are arguments of theirs: one loop, kept on disk, serves every model whose functions take arrays of the
same types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic
from numpy.typing import NDArray

__all__ = ["NativeLikelihood", "call_likelihood", "native_likelihood"]

type Array = NDArray[np.float64]

_SCALAR, _VECTOR = types.Array(types.float64, 0, "C"), types.Array(types.float64, 1, "C")


# What has been found of a function, by the kinds of its arguments: a chain beside another PyMC step binds the same one
# anew at every draw.
_found: WeakKeyDictionary[Any, dict[tuple[Any, ...], int | None]] = WeakKeyDictionary()


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
    """The compiled function as an address; None where it is not Numba's, or returns something else."""
    if not isinstance(function, numba.core.dispatcher.Dispatcher):
        return None
    arguments = tuple(a for a in (theta, eta, *rest) if a is not None)
    known = _found.setdefault(function, {})
    kinds = (theta is None, *((a.dtype.str, a.ndim, a.flags.num) for a in arguments))
    if kinds not in known:
        known[kinds] = _address(function, arguments, _result(theta is not None))
    address = known[kinds]
    return None if address is None else NativeLikelihood(address, tuple(rest), shift, function)


def _address(function: Any, arguments: Sequence[np.ndarray], result: Any) -> int | None:
    """Of the machine code for such arguments; None if it returns something else."""
    type_of: Any = numba.typeof
    # As a call compiles it: a function may take its arguments as a tuple.
    _, _, signature, _ = function.get_call_template(tuple(type_of(a) for a in arguments), {})
    compiled = function.overloads[signature]
    if not _is_readable(compiled.signature.return_type, result):
        return None
    return int(compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name))


def _is_readable(returned: Any, expected: Any) -> bool:
    """Whether what is returned lies in memory as is expected.

    All arrays of so many dimensions lie there alike. Of the slope alone the layout is made use of.
    """
    members = tuple(getattr(returned, "types", ()))
    if len(members) != len(expected) or not all(isinstance(member, types.Array) for member in members):
        return False
    alike = all((a.dtype, a.ndim) == (b.dtype, b.ndim) for a, b in zip(members, expected, strict=True))
    return alike and members[1].layout == "C"


def _result(moves: bool) -> Any:
    """What a likelihood returns, which θ moves or does not."""
    kind: Any = types.Tuple
    return kind((_SCALAR, _VECTOR, _VECTOR) if moves else (_SCALAR, _VECTOR))


def _call_likelihood(typing_context: Any, address: Any, theta: Any, eta: Any, rest: Any) -> Any:
    """What the function at an address returns; θ may be None."""
    moves = not isinstance(theta, types.NoneType)
    for vector in (theta, eta) if moves else (eta,):
        # What the function was compiled for is not asked again.
        if (vector.dtype, vector.ndim, vector.layout) != (_VECTOR.dtype, 1, "C"):
            raise TypingError(f"a likelihood takes contiguous vectors of doubles, got {vector}")
    result = _result(moves)

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        # A tuple's members are passed one by one, as arguments are: the two look alike to what is called.
        first = 1 if moves else 2
        kinds, values = signature.args[first:], given[first:]
        kind = context.call_conv.get_function_type(result, kinds)
        pointer = builder.inttoptr(given[0], kind.as_pointer())
        status, returned = context.call_conv.call_function(builder, pointer, result, kinds, values)
        unlikely: Any = cgutils.if_unlikely
        with unlikely(builder, status.is_error):
            context.call_conv.return_status_propagate(builder, status)
        return returned

    return result(types.int64, theta, eta, rest), generate


call_likelihood: Any = intrinsic(_call_likelihood)
