"""The problems that samplers are compared on: seeded, with their sizes as arguments.

Each gives a covariance K, data y, and two PyMC models of one posterior: centred (for RMHMC) and whitened
(for NUTS).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy.special import expit, ndtr

DATA = Path(__file__).resolve().parent.parent / "data"


@dataclass(frozen=True)
class Problem:
    """A latent Gaussian problem at fixed hyperparameters.

    Attributes
    ----------
    name : str
        With the size.
    likelihood : str
        "logit", "probit" or "poisson".
    covariance : (n, n) array
        K.
    mean : float
        The prior mean.
    y : (n,) array
        0 and 1, or counts.
    exposure : float
        Of a Poisson likelihood.
    """

    name: str
    likelihood: str
    covariance: np.ndarray
    mean: float
    y: np.ndarray
    exposure: float = 1.0

    parameters = ("f",)

    @property
    def n(self) -> int:
        """The number of latent values."""
        return self.y.size

    def observe(self, f: pt.TensorVariable) -> None:
        """Add the likelihood of latent values f to the model in context."""
        if self.likelihood == "poisson":
            pm.Poisson("y", mu=self.exposure * pm.math.exp(f), observed=self.y)
        elif self.likelihood == "logit":
            pm.Bernoulli("y", logit_p=f, observed=self.y)
        else:
            pm.Bernoulli("y", p=pm.math.invprobit(f), observed=self.y)

    def centred(self) -> pm.Model:
        """``f ~ MvNormal(mean, K)``."""
        with pm.Model() as model:
            self.observe(pm.MvNormal("f", np.full(self.n, self.mean), cov=self.covariance))
        return model

    def whitened(self) -> pm.Model:
        """``f = mean + L v`` with ``v ~ N(0, I)`` and L a constant."""
        factor = np.linalg.cholesky(self.covariance)
        with pm.Model() as model:
            v = pm.Normal("v", 0.0, 1.0, shape=self.n)
            # In the probit's tail PyMC's own density is -inf: log Φ is what a careful user writes.
            # As data: a compiler that is given a constant of 100 MB keeps it in its code.
            f = pm.Deterministic("f", self.mean + pt.dot(pm.Data("factor", factor), v))
            if self.likelihood == "probit":
                pm.Potential("y", pm.logcdf(pm.Normal.dist(0.0, 1.0), (2 * self.y - 1) * f).sum())
            else:
                self.observe(f)
        return model


def squared_exponential(x: np.ndarray, lengthscale: float, amplitude: float, jitter: float) -> np.ndarray:
    """``amplitude² exp(-|x - x'|²/(2 lengthscale²)) + jitter I``."""
    square = ((x[:, None, :] - x[None, :, :]) ** 2).sum(axis=-1)
    return amplitude**2 * np.exp(-0.5 * square / lengthscale**2) + jitter * np.eye(x.shape[0])


def logit(n: int = 200, seed: int = 0) -> Problem:
    """Classification on the plane with the logit link, moderately correlated."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2.0, 2.0, (n, 2))
    covariance = squared_exponential(x, 1.0, 2.0, 1e-6)
    f = np.linalg.cholesky(covariance) @ rng.standard_normal(n)
    return Problem(f"logit n={n}", "logit", covariance, 0.0, (rng.random(n) < expit(f)).astype(int))


def probit(n: int = 500, seed: int = 0) -> Problem:
    """Classification with the probit link under a smooth, strongly correlated prior of large amplitude."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2.0, 2.0, (n, 2))
    covariance = squared_exponential(x, 2.0, 6.0, 1e-5)
    f = np.linalg.cholesky(covariance) @ rng.standard_normal(n)
    return Problem(f"probit n={n}", "probit", covariance, 0.0, (rng.random(n) < ndtr(f)).astype(int))


def usps(n: int | None = None, seed: int = 0) -> Problem:
    """USPS 3 against 5 at log ℓ = 4.85, log σ = 5.1, with no jitter: condition 2·10¹⁰."""
    with np.load(DATA / "usps_3v5.npz") as data:
        x, y = data["X_train"].astype(np.float64)[:n], data["y_train"][:n]
    covariance = squared_exponential(x, np.exp(4.85), np.exp(5.1), 0.0)
    return Problem(f"USPS n={y.size}", "probit", covariance, 0.0, (y > 0).astype(int))


def cox(side: int = 32, seed: int = 0) -> Problem:
    """A log-Gaussian Cox process on a square grid, with distances in cell indices as in the slides."""
    rng = np.random.default_rng(seed)
    variance, beta = 1.91, 1.0 / 33.0
    i, j = (axis.ravel() for axis in np.meshgrid(np.arange(side), np.arange(side), indexing="ij"))
    distance = np.hypot(i[:, None] - i, j[:, None] - j)
    covariance = variance * np.exp(-distance / (side * beta))
    mean, exposure = np.log(126.0) - 0.5 * variance, 1.0 / side**2
    f = mean + np.linalg.cholesky(covariance) @ rng.standard_normal(side**2)
    y = rng.poisson(exposure * np.exp(f))
    return Problem(f"Cox {side}x{side}", "poisson", covariance, mean, y, exposure)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "logit": logit, "probit": probit, "usps": usps, "cox": cox, "cox 64": lambda: cox(64),
}  # fmt: skip
