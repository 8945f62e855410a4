"""Calling a function that Numba has compiled elsewhere by its address, from compiled code.

What a model compiles is not known when the loops of this package are written. A function's address, and whatever it
takes besides, are arguments of theirs: one loop, kept on disk, serves every model whose functions take arrays of the
same types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

__all__ = ["NativeLikelihood", "call_likelihood", "native_likelihood"]

type Array = NDArray[np.float64]

_VECTOR = types.Array(types.float64, 1, "C")
# Of a likelihood: its sum, its slope by site, and its gradient by θ.
_RESULT = types.Tuple((types.Array(types.float64, 0, "C"), _VECTOR, _VECTOR))


@dataclass(frozen=True, slots=True)
class NativeLikelihood:
    """A compiled function ``(θ, η, *rest) -> (Σ ℓ, slope (n,), gradient (d,))``.

    Attributes
    ----------
    address : int
        Of its machine code, as Numba calls it.
    rest : tuple of arrays
        What it takes after θ and η.
    owner : object
        Keeps the machine code in memory.
    """

    address: int
    rest: tuple[np.ndarray, ...]
    owner: Any


def native_likelihood(
    function: Callable[..., Any], theta: Array, eta: Array, rest: Sequence[np.ndarray]
) -> NativeLikelihood | None:
    """The compiled function as an address; None where it is not Numba's, or returns something else."""
    if not isinstance(function, numba.core.dispatcher.Dispatcher):
        return None
    given = tuple(numba.typeof(a) for a in (theta, eta, *rest))
    # As a call compiles it: a function may take its arguments as a tuple.
    _, _, signature, _ = function.get_call_template(given, {})
    compiled = function.overloads[signature]
    if compiled.signature.return_type != _RESULT:
        return None
    address = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
    return NativeLikelihood(address, tuple(rest), function)


@intrinsic
def call_likelihood(typing_context: Any, address: Any, arguments: Any) -> Any:
    """``(Σ ℓ, slope, gradient)`` of the function at an address, for a tuple of its arguments."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        where, packed = given
        # A tuple's members are passed one by one, as arguments are: the two look alike to what is called.
        kind = context.call_conv.get_function_type(_RESULT, [arguments])
        pointer = builder.inttoptr(where, kind.as_pointer())
        status, result = context.call_conv.call_function(builder, pointer, _RESULT, [arguments], [packed])
        with cgutils.if_unlikely(builder, status.is_error):
            context.call_conv.return_status_propagate(builder, status)
        return result

    return _RESULT(types.int64, arguments), generate
