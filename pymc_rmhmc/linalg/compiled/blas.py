"""BLAS for compiled code: SciPy's own routines, called without Python between them.

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

from pymc_rmhmc.linalg.compiled.compilation import compiled

__all__ = [
    "multiply_by_triangle", "solve_in_place", "subtract_product", "subtract_symmetric_product", "symmetric_product",
]  # fmt: skip

type Array = NDArray[np.float64]

LOWER, UPPER, PLAIN, TRANSPOSED = (ord(letter) for letter in "LUNT")
LEFT, RIGHT = (ord(letter) for letter in "LR")


def _routine(name: str, n_arguments: int) -> Any:
    """Return a routine of SciPy's BLAS that takes so many addresses, as Fortran has it."""
    symbol = f"pymc_rmhmc_{name}"
    binding.add_symbol(symbol, get_cython_function_address("scipy.linalg.cython_blas", name))
    return types.ExternalFunction(symbol, types.void(*([types.uintp] * n_arguments)))


_dtrsv = _routine("dtrsv", 8)
_dsymv = _routine("dsymv", 10)
_dgemm = _routine("dgemm", 13)
_dsymm = _routine("dsymm", 12)
_dtrmm = _routine("dtrmm", 11)


# In what follows arrays whose addresses are taken are read once more afterwards: until then they are not let go of.


@compiled
def solve_in_place(factor: Array, vector: Array, transpose: bool) -> None:  # pragma: no cover - compiled
    """Overwrite v with ``L⁻¹ v`` or ``L⁻ᵀ v``, for a lower triangular, Fortran-ordered L; v is contiguous."""
    letters = np.array([LOWER, PLAIN, TRANSPOSED], dtype=np.uint8)
    numbers = np.array([vector.size, 1], dtype=np.int32)
    letter, number = letters.ctypes.data, numbers.ctypes.data
    trans = letter + 2 if transpose else letter + 1
    _dtrsv(letter, trans, letter + 1, number, factor.ctypes.data, number, vector.ctypes.data, number + 4)
    if letters[0] != LOWER or numbers[1] != 1:
        vector[:] = np.nan


@compiled
def symmetric_product(matrix: Array, vector: Array) -> Array:  # pragma: no cover - compiled
    """Return ``S v`` for a symmetric, contiguous S, of which one triangle is read, and a contiguous v."""
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


# Parts of a matrix, given as such: what lies between two of their columns is the whole matrix's.


@compiled
def subtract_product(
    total: Array, left: Array, right: Array, by_left: bool, by_right: bool
) -> None:  # pragma: no cover - compiled
    """Take A B from a part of a matrix; A and B are parts of Fortran-ordered ones, either or both transposed."""
    letters = np.array([PLAIN, TRANSPOSED], dtype=np.uint8)
    summed = left.shape[0] if by_left else left.shape[1]
    numbers = np.array([total.shape[0], total.shape[1], summed, 0, 0, 0], dtype=np.int32)
    numbers[3], numbers[4], numbers[5] = left.strides[1] // 8, right.strides[1] // 8, total.strides[1] // 8
    factors = np.array([-1.0, 1.0])
    letter, number, factor = letters.ctypes.data, numbers.ctypes.data, factors.ctypes.data
    _dgemm(
        letter + by_left, letter + by_right, number, number + 4, number + 8, factor, left.ctypes.data, number + 12,
        right.ctypes.data, number + 16, factor + 8, total.ctypes.data, number + 20,
    )  # fmt: skip
    if letters[0] != PLAIN or numbers[2] != summed or factors[0] != -1.0:
        total[:] = np.nan


@compiled
def subtract_symmetric_product(total: Array, symmetric: Array, right: Array) -> None:  # pragma: no cover - compiled
    """Take S B from a part of a matrix; S and B are parts of Fortran-ordered ones, and S's lower triangle is read."""
    letters = np.array([LOWER, LEFT], dtype=np.uint8)
    numbers = np.array([total.shape[0], total.shape[1], 0, 0, 0], dtype=np.int32)
    numbers[2], numbers[3], numbers[4] = symmetric.strides[1] // 8, right.strides[1] // 8, total.strides[1] // 8
    factors = np.array([-1.0, 1.0])
    letter, number, factor = letters.ctypes.data, numbers.ctypes.data, factors.ctypes.data
    _dsymm(
        letter + 1, letter, number, number + 4, factor, symmetric.ctypes.data, number + 8, right.ctypes.data,
        number + 12, factor + 8, total.ctypes.data, number + 16,
    )  # fmt: skip
    if letters[0] != LOWER or numbers[0] != total.shape[0] or factors[0] != -1.0:
        total[:] = np.nan


@compiled
def multiply_by_triangle(
    values: Array, triangle: Array, from_right: bool, by: float
) -> None:  # pragma: no cover - compiled
    """Overwrite V with ``by L V`` or ``by V L``, for parts of Fortran-ordered matrices and a lower triangular L."""
    letters = np.array([LEFT, RIGHT, LOWER, PLAIN], dtype=np.uint8)
    numbers = np.array([values.shape[0], values.shape[1], 0, 0], dtype=np.int32)
    numbers[2], numbers[3] = triangle.strides[1] // 8, values.strides[1] // 8
    factors = np.array([by])
    letter, number = letters.ctypes.data, numbers.ctypes.data
    _dtrmm(
        letter + from_right, letter + 2, letter + 3, letter + 3, number, number + 4, factors.ctypes.data,
        triangle.ctypes.data, number + 8, values.ctypes.data, number + 12,
    )  # fmt: skip
    if letters[0] != LEFT or numbers[0] != values.shape[0] or factors[0] != by:
        values[:] = np.nan
