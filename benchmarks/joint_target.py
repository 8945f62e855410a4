"""A joint target that can be evaluated anywhere, for timing its gradient: no chain, no search for a mode."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.joint_problems import regression
from pymc_rmhmc.latent.charts import GaussianSites, MarginalChart
from pymc_rmhmc.latent.joint_target import JointTarget
from pymc_rmhmc.model import JointModel, read_together

__all__ = ["Built", "build"]


@dataclass
class Built:
    """A target, what it is made of, and θ at the model's initial point."""

    model: JointModel
    target: JointTarget
    theta: np.ndarray


def build(n: int) -> Built:
    """GP classification on the plane with two lengthscales and an amplitude, sites of weight ¼."""
    problem = regression("logit", n).centred()
    point = problem.initial_point()
    _, joint = read_together(problem, None, point)
    assert not isinstance(joint, str)
    joint.bind(point)
    theta = np.concatenate([np.ravel(point[problem.rvs_to_values[v].name]) for v in joint.theta.variables])
    sites = GaussianSites(np.zeros(n), np.full(n, 0.25))
    return Built(joint, JointTarget(joint, [sites], MarginalChart.linear(theta, 0.1 * np.eye(theta.size))), theta)
