"""The options of a step, settled into what a chain needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pymc_rmhmc.kernels.kernel import Trajectory
from pymc_rmhmc.latent.charts.site import SitePolicy
from pymc_rmhmc.tuning.adaptation import StepSizeRule

__all__ = ["DEFAULT_MAX_STEPS", "DEFAULT_PATH_LENGTH", "NEARNESS", "Plan"]

DEFAULT_MAX_STEPS = 100
# Measured on the smaller of bulk and tail ESS (benchmarks/path_length.py): in coordinates in which the
# posterior is nearly standard normal a quarter of a period makes the next draw nearly independent. A
# little more costs no step on most trajectories and makes up for those that are rejected; much more makes
# means antithetic and starves the tails.
DEFAULT_PATH_LENGTH = 1.7
# A draw of an approximation that has no density, or next to none, is tried again so much nearer its centre.
NEARNESS = (1.0, 0.5, 0.25, 0.0)

@dataclass(frozen=True, slots=True)
class Plan:
    """Options settled for one block."""

    metric: Any  # a metric, such as `FlatMetric`; a string is settled by now
    policy: SitePolicy | None  # what tuning does with the metric's sites; None if it uses none
    curvature: str | None  # the curvature of the likelihood that the metric is made of; None if it asks for none
    integrator: Any  # one that fits the metric
    trajectory: Trajectory  # how a draw is made
    general_trajectory: Trajectory  # the same for the chart that is read from the graph of a hierarchy
    block_trajectory: Trajectory  # the same for a process and its hyperparameters in two blocks
    # Whether a draw of a cheap model may take several trajectories: not where the number of steps is the user's.
    may_repeat: bool
    # Whether tuning may find a longer path than that of `general_trajectory`: not where length or jitter are the
    # user's.
    may_lengthen: bool
    step_size: float | None  # fixed, or None to adapt
    # `initial_step_size`, `max_step_size`: where the search begins, and its bound.
    initial_step_size: float
    max_step_size: float
    target_accept: float  # for the adaptation
    held_target_accept: float  # for that of latent values which move where their hyperparameters are held
    init: str  # "auto", "laplace" or "keep"
    covering_step_size: float  # with shorter steps the path is not covered, and a lower acceptance is enough
    flat_priors: tuple[str, ...] = ()  # the model's variables whose prior is improper, for messages
    sampler: str = "RMHMC"  # the step's name, for messages
    alone: bool = False  # whether latent values are sampled without hyperparameters in any metric

    def steps(self, fewest: int = 1) -> StepSizeRule:
        """Return how the step size is found; of a path there are at least so many steps."""
        few = 1 if self.trajectory.path is None else fewest
        return StepSizeRule(
            self.step_size, self.initial_step_size, self.max_step_size / few, self.target_accept,
            self.covering_step_size,
        )  # fmt: skip

    @property
    def may_emulate(self) -> bool:
        """Whether steps and paths are left to tuning, and turns along an emulator too."""
        tunes = self.step_size is None and self.trajectory.path is not None
        return tunes and self.policy is not None and self.policy.emulate

    @property
    def uses_sites(self) -> bool:
        """Whether the coordinates are those of Gaussian sites."""
        return self.policy is not None

    @property
    def takes_hyperparameters(self) -> bool:
        """Whether hyperparameters are sampled too: in the chart that fitted sites make for both."""
        return self.policy is not None and self.policy.sites == "fitted" and not self.alone
