"""Steps of the implicit integrators that a metric of a whole model makes in compiled code."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.dynamics.hamiltonian import AdvancedSteps
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.metrics.bordered import layout_of
from pymc_rmhmc.metrics.implicit_loops import (
    INDEFINITE,
    NON_FINITE,
    NON_REVERSIBLE,
    SOLVER,
    Curved,
    Rules,
    follow,
    follow_midpoints,
    with_addresses,
)
from pymc_rmhmc.metrics.matrix_density import MatrixDensity
from pymc_rmhmc.metrics.sparsity import Probes

__all__ = ["Steps", "compiled_steps"]

type Array = NDArray[np.float64]
type Steps = Callable[..., AdvancedSteps]

# What the compiled steps report.
FAILURES = {
    0: Failure.NONE, NON_FINITE: Failure.NON_FINITE, SOLVER: Failure.SOLVER, NON_REVERSIBLE: Failure.NON_REVERSIBLE,
    INDEFINITE: Failure.NOT_POSITIVE_DEFINITE,
}  # fmt: skip


def compiled_steps(density: MatrixDensity, probes: Probes, alpha: float, *, is_metric: bool) -> Steps | None:
    """Return what makes the steps of a trajectory; None if the density's functions are not Numba's.

    Parameters
    ----------
    density : MatrixDensity
        It is given the vectors of the probes.
    probes : Probes
        Of border and blocks.
    alpha : float
        Of SoftAbs.
    is_metric : bool
        Whether the density's matrix is the metric itself.
    """
    native = density.native()
    if native is None:
        return None
    evaluate, pull, along = native
    if is_metric and along is None:
        return None
    along = along or pull
    curved = with_addresses(Curved(
        evaluate.address, pull.address, along.address, evaluate.rest, pull.rest, along.rest, probes.vectors,
        layout_of(probes.partition), probes.found_at, alpha, is_metric, 0, 0,
    ))  # fmt: skip

    def advance(
        position: Array, momentum: Array, n_steps: int, step_size: float, rules: tuple[float, int, int, float],
        *, midpoint: bool,
    ) -> AdvancedSteps:  # fmt: skip
        steps = follow_midpoints if midpoint else follow
        failure, x, p, error, n_iter, n_metrics, made = steps(
            curved, position, momentum, n_steps, step_size, Rules(*rules)
        )
        return AdvancedSteps(x, p, FAILURES[failure], error, n_iter, n_metrics, made)

    return advance
