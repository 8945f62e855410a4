"""The funnel and five logistic regressions: density, metric and derivatives in closed form, and where chains start."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pymc as pm
from scipy.special import expit

from benchmarks.catalogue.hierarchies import funnel
from benchmarks.catalogue.regressions import logistic, logistic_data

__all__ = ["ALPHA", "CHAINS", "PROBLEMS", "TOLERANCE", "Funnel", "Logistic"]

CHAINS = 2
# Of the fixed-point solvers: the default of this package and of mici. BlackJAX's is 1e-6.
TOLERANCE = 1e-9
# Of SoftAbs, everywhere: this package's default. mici's, 1, floors the curvature of the funnel's mouth.
ALPHA = 1e6
PRIOR_PRECISION = 0.01


@dataclass(frozen=True)
class Funnel:
    """Neal's funnel: ``v ~ N(0, 3²)`` and ``x ~ N(0, exp v)``, in the SoftAbs metric. Only v is measured.

    Attributes
    ----------
    step_size, n_steps
        The same for every sampler that has fixed ones.
    """

    groups: int = 10
    step_size: float = 0.25
    n_steps: int = 24

    # Of the seconds that a sampler gets on a regression: its draws have ten times the steps.
    share = 4.0
    labels = ("v",)
    truth = {"v": (0.0, 3.0)}  # noqa: RUF012 - nobody writes to it

    @property
    def metric(self) -> str:
        return "softabs"

    def model(self) -> pm.Model:
        """As it is written, centred."""
        return funnel(self.groups, centred=True)

    def point(self, q: np.ndarray) -> dict[str, Any]:
        """Values by variable."""
        return {"v": q[0], "x": q[1:]}

    def measured(self, q: np.ndarray) -> np.ndarray:
        """What is compared, of (..., d) values."""
        return q[..., :1]

    def starts(self, seed: int) -> list[np.ndarray]:
        """Exact draws."""
        rng = np.random.default_rng(seed)
        draws = []
        for _ in range(CHAINS):
            v = 3.0 * rng.standard_normal()
            draws.append(np.append(v, np.exp(0.5 * v) * rng.standard_normal(self.groups)))
        return draws

    def energy(self, q: np.ndarray) -> float:
        """Negative log density."""
        v, x = q[0], q[1:]
        return v * v / 18.0 + 0.5 * (x @ x) * np.exp(-v) + 0.5 * self.groups * v

    def gradient(self, q: np.ndarray) -> np.ndarray:
        """Its gradient."""
        v, x = q[0], q[1:]
        tight = np.exp(-v)
        return np.append(v / 9.0 - 0.5 * (x @ x) * tight + 0.5 * self.groups, x * tight)

    def matrix(self, q: np.ndarray) -> np.ndarray:
        """Its Hessian, which SoftAbs makes positive."""
        v, x = q[0], q[1:]
        tight = np.exp(-v)
        hessian = tight * np.eye(self.groups + 1)
        hessian[0, 0] = 1.0 / 9.0 + 0.5 * (x @ x) * tight
        hessian[0, 1:] = hessian[1:, 0] = -tight * x
        return hessian

    def pullback(self, q: np.ndarray, bar: np.ndarray) -> np.ndarray:
        """``Σ bar_ij ∂H_ij/∂q``."""
        v, x = q[0], q[1:]
        tight = np.exp(-v)
        cross = bar[0, 1:] + bar[1:, 0]
        first = -0.5 * (x @ x) * bar[0, 0] + cross @ x - np.trace(bar[1:, 1:])
        return tight * np.append(first, bar[0, 0] * x - cross)


@dataclass(frozen=True)
class Logistic:
    """A logistic regression in the metric of its Fisher information, which is its Hessian."""

    name: str
    step_size: float = 0.5
    n_steps: int = 3

    share = 1.0
    truth = None

    @property
    def metric(self) -> str:
        return "fisher"

    @cached_property
    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Inputs (n, d) and outcomes."""
        return logistic_data(self.name)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(f"beta[{i}]" for i in range(self.data[0].shape[1]))

    def model(self) -> pm.Model:
        """As it is written."""
        return logistic(self.name)

    def point(self, q: np.ndarray) -> dict[str, Any]:
        """Values by variable."""
        return {"beta": q}

    def measured(self, q: np.ndarray) -> np.ndarray:
        """All coefficients."""
        return q

    def starts(self, seed: int) -> list[np.ndarray]:
        """Draws of the Laplace approximation."""
        q = np.zeros(self.data[0].shape[1])
        for _ in range(50):
            q = q - np.linalg.solve(self.matrix(q), self.gradient(q))
        factor = np.linalg.cholesky(np.linalg.inv(self.matrix(q)))
        rng = np.random.default_rng(seed)
        return [q + factor @ rng.standard_normal(q.size) for _ in range(CHAINS)]

    def energy(self, q: np.ndarray) -> float:
        """Negative log density."""
        x, y = self.data
        eta = x @ q
        return np.logaddexp(0.0, eta).sum() - y @ eta + 0.5 * PRIOR_PRECISION * (q @ q)

    def gradient(self, q: np.ndarray) -> np.ndarray:
        """Its gradient."""
        x, y = self.data
        return x.T @ (expit(x @ q) - y) + PRIOR_PRECISION * q

    def matrix(self, q: np.ndarray) -> np.ndarray:
        """``XᵀWX`` and the prior's precision."""
        x, _ = self.data
        p = expit(x @ q)
        return (x.T * (p * (1.0 - p))) @ x + PRIOR_PRECISION * np.eye(q.size)

    def pullback(self, q: np.ndarray, bar: np.ndarray) -> np.ndarray:
        """``Σ bar_ij ∂G_ij/∂q``."""
        x, _ = self.data
        p = expit(x @ q)
        return x.T @ (((x @ bar) * x).sum(axis=1) * (p * (1.0 - p) * (1.0 - 2.0 * p)))


PROBLEMS: dict[str, Funnel | Logistic] = {
    "funnel 10": Funnel(),
    **{f"logistic {name}": Logistic(name) for name in ("australian", "german", "heart", "pima")},
    # Its cubic bends the posterior: half the step, twice as many.
    "logistic ripley": Logistic("ripley", 0.25, 6),
}
