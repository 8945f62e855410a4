"""What a draw reports: names and types as PyMC's NUTS has them, so that ArviZ finds them, and our own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pymc.stats.convergence import SamplerWarning, WarningType

from pymc_rmhmc.diagnostics.failures import failure_advice
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.kernels.kernel import Transition, merge_blocks

__all__ = ["STATISTICS", "FailureCount", "block_statistics"]

# A key that NUTS has too must have its dtype: in a compound PyMC stacks them.
STATISTICS: dict[str, tuple[Any, Any]] = {
    "mean_tree_accept": (np.float64, []),
    "tree_size": (np.float64, []),
    "model_logp": (np.float64, []),
    "energy": (np.float64, []),
    "energy_error": (np.float64, []),
    "diverging": (bool, []),
    "step_size": (np.float64, []),
    "step_size_bar": (np.float64, []),
    "perf_counter_start": (np.float64, []),
    "perf_counter_diff": (np.float64, []),
    "process_time_diff": (np.float64, []),
    "compile_seconds": (np.float64, []),
    "compile_seconds_in_chain": (np.float64, []),
    "failure": (np.int64, []),
    "n_failures": (np.int64, []),
    "reversal_error": (np.float64, []),
    "n_solver_iter": (np.int64, []),
    "n_metric_evals": (np.int64, []),
    "n_emulator_divergences": (np.int64, []),
    "log_weight": (np.float64, []),
    "accepted": (np.float64, []),  # as Metropolis has it
    "warning": (SamplerWarning, None),
}

# These speak of the posterior's geometry, and PyMC's advice on divergences fits them.
ALWAYS_DIVERGING = {Failure.ENERGY, Failure.NON_FINITE, Failure.NON_REVERSIBLE}
# The others (a solver that gave up, a metric without a factor) are rejections like any other while rare.
ALARM_RATE = 0.05
ALARM_MIN_DRAWS = 20


def block_statistics(outcomes: Sequence[Transition[Any]]) -> dict[str, Any]:
    """Return the statistics of one draw of all blocks."""
    outcome = merge_blocks(outcomes)
    return {
        "mean_tree_accept": outcome.acceptance,
        "tree_size": float(outcome.n_steps),
        "energy": outcome.energy,
        "energy_error": outcome.energy_error,
        "failure": int(outcome.failure),
        "reversal_error": outcome.reversal_error,
        "n_solver_iter": outcome.n_solver_iter,
        "n_metric_evals": outcome.n_metric_evals,
        "n_emulator_divergences": outcome.n_emulator_divergences,
        "accepted": float(outcome.accepted),
    }


class FailureCount:
    """Failures of the draws after tuning, by cause, and the summary at the end of the chain."""

    def __init__(self) -> None:
        self.n_draws = 0
        self.counts: dict[Failure, int] = {}

    @property
    def total(self) -> int:
        """Draws after tuning whose trajectory failed."""
        return sum(self.counts.values())

    def add(self, failure: Failure) -> None:
        """Count one draw after tuning."""
        self.n_draws += 1
        if failure:
            self.counts[failure] = self.counts.get(failure, 0) + 1

    def diverging(self, failure: Failure) -> bool:
        """Return whether this draw counts as a divergence: see `ALWAYS_DIVERGING` and `ALARM_RATE`."""
        if not failure:
            return False
        if failure in ALWAYS_DIVERGING:
            return True
        return self.n_draws >= ALARM_MIN_DRAWS and self.counts.get(failure, 0) > ALARM_RATE * self.n_draws

    def warning(
        self, refused: str = "", remarks: str = "", step_size: float | None = None
    ) -> SamplerWarning | None:
        """Return the message for the end of a chain; None if all went well.

        Parameters
        ----------
        refused : str
            Where a covariance was last not positive definite.
        remarks : str
            Further messages, on causes of slow sampling.
        step_size : float or None
            The step size that the user gave; None if it is adapted.
        """
        advice = failure_advice(self.counts, self.n_draws, step_size)
        level = "info" if advice is None and not remarks else "warn"
        lost = self.counts.get(Failure.NOT_POSITIVE_DEFINITE, 0)
        if advice is None and lost:
            advice = (
                f"RMHMC: {lost} of {self.n_draws} trajectories failed because a covariance or metric was not positive "
                "definite. This is harmless while it is rare."
            )
        if advice is not None and refused and lost:
            advice += f" The covariance was last not positive definite at {refused}."
        said = "\n".join(filter(None, (advice, remarks)))
        return SamplerWarning(WarningType.BAD_PARAMS, said, level) if said else None
