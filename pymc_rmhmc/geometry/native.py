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

_SCALAR, _VECTOR = types.Array(types.float64, 0, "C"), types.Array(types.float64, 1, "C")


@dataclass(frozen=True, slots=True)
class NativeLikelihood:
    """A compiled function of the sites: ``(η, *rest) -> (Σ ℓ, slope (n,))``.

    One that hyperparameters move as well is ``(θ, η, *rest) -> (Σ ℓ, slope, gradient by θ)``.

    Attributes
    ----------
    address : int
        Of its machine code, as Numba calls it.
    rest : tuple of arrays
        What it takes after η.
    shift : (n,) array or None
        Added to the sites before they are handed over.
    owner : object
        Keeps the machine code in memory.
    """

    address: int
    rest: tuple[np.ndarray, ...]
    shift: Array | None
    owner: Any


def native_likelihood(
    function: Callable[..., Any], theta: Array | None, eta: Array, rest: Sequence[np.ndarray],
    shift: Array | None = None,
) -> NativeLikelihood | None:  # fmt: skip
    """The compiled function as an address; None where it is not Numba's, or returns something else."""
    if not isinstance(function, numba.core.dispatcher.Dispatcher):
        return None
    type_of: Any = numba.typeof
    given = tuple(type_of(a) for a in (theta, eta, *rest) if a is not None)
    # As a call compiles it: a function may take its arguments as a tuple.
    _, _, signature, _ = function.get_call_template(given, {})
    compiled: Any = function.overloads[signature]
    if not _is_readable(compiled.signature.return_type, _result(theta is not None)):
        return None
    address = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
    return NativeLikelihood(address, tuple(rest), shift, function)


def _is_readable(returned: Any, expected: Any) -> bool:
    """Whether what is returned lies in memory as is expected.

    All arrays of so many dimensions lie there alike. Of the slope alone the layout is made use of.
    """
    members = tuple(getattr(returned, "types", ()))
    kinds = [(member.dtype, member.ndim) for member in members if isinstance(member, types.Array)]
    return kinds == [(wanted.dtype, wanted.ndim) for wanted in expected] and members[1].layout == "C"


def _result(moves: bool) -> Any:
    """What a likelihood returns, which θ moves or does not."""
    kind: Any = types.Tuple
    return kind((_SCALAR, _VECTOR, _VECTOR) if moves else (_SCALAR, _VECTOR))


def _call_likelihood(typing_context: Any, address: Any, theta: Any, eta: Any, rest: Any) -> Any:
    """What the function at an address returns; θ may be None."""
    moves = not isinstance(theta, types.NoneType)
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
