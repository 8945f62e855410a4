"""BLAS and LAPACK for compiled code: SciPy's own routines, called without Python between them.

Between two calls from Python NumPy takes as long as BLAS does for a product of a hundred numbers. The routines are
found by name when compiled code is loaded, so that Numba can keep it on disk.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import binding
from numba import types
from numba.extending import get_cython_function_address
from numpy.typing import NDArray

from pymc_rmhmc.geometry.compilation import compiled

__all__ = ["factorise", "factorise_in_place", "multiply_in_place", "solve_in_place", "symmetric_product"]

type Array = NDArray[np.float64]

LOWER, UPPER, PLAIN, TRANSPOSED = (ord(letter) for letter in "LUNT")


def _routine(library: str, name: str, n_arguments: int) -> Any:
    """A routine of SciPy's BLAS or LAPACK that takes so many addresses, as Fortran has it."""
    symbol = f"pymc_rmhmc_{name}"
    binding.add_symbol(symbol, get_cython_function_address(f"scipy.linalg.cython_{library}", name))
    return types.ExternalFunction(symbol, types.void(*([types.uintp] * n_arguments)))


_dtrsv = _routine("blas", "dtrsv", 8)
_dtrmv = _routine("blas", "dtrmv", 8)
_dsymv = _routine("blas", "dsymv", 10)
_dpotrf = _routine("lapack", "dpotrf", 5)


# In what follows arrays whose addresses are taken are read once more afterwards: until then they are not let go of.


@compiled
def _triangle_in_place(factor: Array, vector: Array, transpose: bool, inverse: bool) -> None:  # pragma: no cover
    """A lower triangular, Fortran-ordered L, transposed or not, or the inverse of that, times v in v's place."""
    letters = np.array([LOWER, PLAIN, TRANSPOSED], dtype=np.uint8)
    numbers = np.array([vector.size, 1], dtype=np.int32)
    letter, number = letters.ctypes.data, numbers.ctypes.data
    trans = letter + 2 if transpose else letter + 1
    if inverse:
        _dtrsv(letter, trans, letter + 1, number, factor.ctypes.data, number, vector.ctypes.data, number + 4)
    else:
        _dtrmv(letter, trans, letter + 1, number, factor.ctypes.data, number, vector.ctypes.data, number + 4)
    if letters[0] != LOWER or numbers[1] != 1:
        vector[:] = np.nan


@compiled
def solve_in_place(factor: Array, vector: Array, transpose: bool) -> None:  # pragma: no cover
    """``L⁻¹ v`` or ``L⁻ᵀ v`` in place of v, for a lower triangular, Fortran-ordered L; v is contiguous."""
    _triangle_in_place(factor, vector, transpose, True)


@compiled
def multiply_in_place(factor: Array, vector: Array, transpose: bool) -> None:  # pragma: no cover
    """``L v`` or ``Lᵀ v`` in place of v, for a lower triangular, Fortran-ordered L; v is contiguous."""
    _triangle_in_place(factor, vector, transpose, False)


@compiled
def symmetric_product(matrix: Array, vector: Array) -> Array:  # pragma: no cover - compiled
    """``S v`` for a symmetric, contiguous S, of which one triangle is read, and a contiguous v."""
    product = np.empty(vector.size)
    letters, numbers = np.array([UPPER], dtype=np.uint8), np.array([vector.size, 1], dtype=np.int32)
    factors = np.array([1.0, 0.0])
    number, factor = numbers.ctypes.data, factors.ctypes.data
    _dsymv(
        letters.ctypes.data, number, factor, matrix.ctypes.data, number, vector.ctypes.data, number + 4, factor + 8,
        product.ctypes.data, number + 4,
    )  # fmt: skip
    if letters[0] != UPPER or numbers[1] != 1 or factors[0] != 1.0:
        product[:] = np.nan
    return product


@compiled
def factorise_in_place(matrix: Array) -> bool:  # pragma: no cover - compiled
    """The lower Cholesky factor in place of a Fortran-ordered matrix's lower triangle; False if there is none."""
    letters = np.array([LOWER], dtype=np.uint8)
    numbers = np.array([matrix.shape[0], 0], dtype=np.int32)
    number = numbers.ctypes.data
    _dpotrf(letters.ctypes.data, number, matrix.ctypes.data, number, number + 4)
    # A matrix with a value that is not finite has no factor either: LAPACK would return one with nan or infinity in it.
    checked = 0.0
    for i in range(matrix.shape[0]):
        checked += matrix[i, i] + matrix[-1, i]
    return letters[0] == LOWER and numbers[1] == 0 and bool(np.isfinite(checked))


@compiled
def factorise(matrix: Array) -> tuple[bool, Array]:  # pragma: no cover - compiled
    """Whether a matrix, of which the lower triangle is read, has a lower Cholesky factor; and it, in Fortran order."""
    n = matrix.shape[0]
    rows, held = np.zeros((n, n)), matrix.T
    for j in range(n):
        row, copied = rows[j, j:], held[j, j:]
        for i in range(n - j):
            row[i] = copied[i]
    factor = rows.T
    return factorise_in_place(factor), factor
