"""Fixed-point solvers for the implicit steps of an integrator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from pymc_rmhmc.usage import called_as, real_number, whole_number

__all__ = ["AndersonSolver", "Solution"]

type Array = NDArray[np.float64]

# The memory of the second attempt. Of the equations of a drift that six columns leave turning in circles, three
# columns solve two in three; of a kick's, which as a rule have no root then, none.
SECOND_DEPTH = 3
# Added to the unit diagonal of the normal equations, so that columns that repeat one another have a solution.
RIDGE = 1e-13
# Added to squared lengths, so that a column of zeros (the map stood still) divides nothing by zero.
TINY = 1e-300


@dataclass(frozen=True, slots=True)
class Solution:
    """Result of a fixed-point iteration."""

    argument: Array  # (n,), the last x at which the map was evaluated
    value: Array  # (n,), the map there, f(x)
    residual: float  # ``max |f(x) - x|``; inf if the iteration met a value that is not finite
    n_iter: int  # how often the map was evaluated, in both attempts if there were two
    converged: bool  # whether the residual is within the tolerance


@called_as("AndersonSolver(tolerance=1e-9, max_iter=100, depth=6)")
class AndersonSolver:
    """Solve ``x = f(x)`` by Anderson acceleration, to a tolerance on the residual.

    Plain iteration diverges if the prior is strongly correlated. Anderson acceleration mixes the last few residuals by
    least squares, and then converges in a few evaluations. If the first attempt does not converge, a second one begins
    at the same start with a shorter memory. The solver never raises: its `Solution` says whether it converged.

    Parameters
    ----------
    tolerance : float
        Bound on ``max |f(x) - x|``, in units of x (for the integrators: prior standard deviations).
    max_iter : int
        The most evaluations of f per attempt.
    depth : int
        The number of earlier residuals that are mixed; 0 is plain iteration.

    Raises
    ------
    ConfigurationError
        An argument is out of range.

    References
    ----------
    Walker and Ni (2011), Anderson acceleration for fixed-point iterations, algorithm AA (type II).
    """

    def __init__(self, tolerance: float, max_iter: int, depth: int = 6) -> None:
        self.tolerance = real_number("solver_tol", tolerance)
        self.max_iter = whole_number("solver_max_iter", max_iter)
        self.depth = whole_number("depth", depth)

    def solve(self, function: Callable[[Array], Array], start: Array) -> Solution:
        """Iterate from `start` until the residual is within the tolerance or evaluations run out."""
        first = self._attempt(function, start, self.depth)
        if first.converged or first.n_iter == 1 or self.depth <= SECOND_DEPTH:
            return first
        second = self._attempt(function, start, SECOND_DEPTH)
        return replace(second, n_iter=first.n_iter + second.n_iter)

    def _attempt(self, function: Callable[[Array], Array], start: Array, depth: int) -> Solution:
        """Iterate with a memory of `depth` columns."""
        x = start
        value = function(x)
        residual = value - x
        error = _largest(residual)
        size = x.size
        # Columns are overwritten in turn: the order of the columns does not matter to least squares.
        residual_changes = np.empty((size, depth), order="F")
        value_changes = np.empty((size, depth), order="F")
        for n_iter in range(1, self.max_iter + 1):
            if error <= self.tolerance:
                return Solution(x, value, error, n_iter, converged=True)
            if not np.isfinite(error) or n_iter == self.max_iter:
                break
            held = min(n_iter - 1, depth)
            x = value - _mixing(residual_changes[:, :held], value_changes[:, :held], residual)
            new_value = function(x)
            new_residual = new_value - x
            if depth:
                column = (n_iter - 1) % depth
                residual_changes[:, column] = new_residual - residual
                value_changes[:, column] = new_value - value
            value, residual, error = new_value, new_residual, _largest(new_residual)
        return Solution(x, value, error, n_iter, converged=False)


def _largest(vector: Array) -> float:
    """Return ``max |v|``, inf if any element is not finite."""
    largest = float(np.abs(vector).max(initial=0.0))
    return largest if np.isfinite(largest) else np.inf


def _mixing(residual_changes: Array, value_changes: Array, residual: Array) -> Array | float:
    """Return the correction ``ΔF γ`` with ``γ = argmin ‖residual - ΔR γ‖``."""
    if residual_changes.shape[1] == 0:
        return 0.0
    # Columns are scaled to unit length: near convergence they differ by many orders of magnitude. The normal
    # equations are a quarter of the cost of a factorisation of the columns at a few hundred values, and what
    # they lose costs iterations at worst: the residual that is tested is the map's own.
    gram = residual_changes.T @ residual_changes
    scale = 1.0 / np.sqrt(gram.diagonal() + TINY)
    gram *= scale
    gram *= scale[:, None]
    gram.flat[:: scale.size + 1] += RIDGE
    _, gamma, info = lapack.dposv(gram, (residual_changes.T @ residual) * scale)
    if info != 0:
        return 0.0
    return np.asarray(value_changes @ (gamma * scale))
