"""Models whose evidence is known, exactly or from long runs by two methods that agree."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from scipy import integrate, linalg, optimize
from scipy.special import gammaln, logsumexp
from scipy.stats import norm

from benchmarks.catalogue.regressions import logistic
from benchmarks.papers.cox.samplers import latent_model, process
from benchmarks.problems import DATA, Problem, usps

__all__ = [
    "EFFECTS", "JITTER", "PROBLEMS", "REFERENCES", "SPREADS", "EvidenceProblem", "digits", "exact_eight_schools",
    "exact_regression", "left_out", "pines", "references", "regression_data", "squared_distances",
    "squared_exponential_of",
]  # fmt: skip

type Array = NDArray[np.float64]

REFERENCES = Path(__file__).with_name("references.json")
JITTER = 1e-6
# Eight schools: effects and standard errors (Rubin 1981).
EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SPREADS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


@dataclass(frozen=True)
class EvidenceProblem:
    """A model, and what is known of its evidence.

    Attributes
    ----------
    label : str
        For tables.
    model : callable
        Returns the PyMC model.
    truth : callable
        Returns log p(y) in the convention of the source, and its standard error.
    small : callable
        Returns a model that is compiled as this one is, but runs quickly.
    constant : callable
        Returns what to add to PyMC's log p(y) where a source leaves out constants.
    """

    label: str
    model: Callable[[], pm.Model]
    truth: Callable[[], tuple[float, float]]
    small: Callable[[], pm.Model]
    constant: Callable[[], float] = lambda: 0.0


@cache
def digits(log_lengthscale: float = 4.85, log_amplitude: float = 5.1) -> Problem:
    """Threes against fives of USPS, without jitter, at any hyperparameters."""
    if (log_lengthscale, log_amplitude) == (4.85, 5.1):
        return usps()
    with np.load(DATA / "usps_3v5.npz") as data:
        x, y = data["X_train"].astype(np.float64), data["y_train"]
    covariance = squared_exponential_of(squared_distances(x, x), log_lengthscale, log_amplitude)
    # On the far corner of the grid rounding alone makes it indefinite.
    covariance[np.diag_indices_from(covariance)] *= 1.0 + 1e-10
    return Problem("USPS", "probit", covariance, 0.0, (y > 0).astype(int))


def squared_distances(x: Array, other: Array) -> Array:
    """``|x - x'|²`` between the rows of two arrays."""
    return np.maximum((x**2).sum(1)[:, None] + (other**2).sum(1) - 2.0 * x @ other.T, 0.0)


def squared_exponential_of(square: Array, log_lengthscale: float, log_amplitude: float) -> Array:
    """``σ² exp(-d²/(2 ℓ²))`` of squared distances."""
    return np.exp(2.0 * log_amplitude - 0.5 * square * np.exp(-2.0 * log_lengthscale))


def pines(side: int = 30) -> Problem:
    """Saplings in Finland, counted on a grid: a log-Gaussian Cox process with the parameters of the Cox problems."""
    at = np.loadtxt(DATA / "finpines.csv", delimiter=",", skiprows=1)
    counts = np.histogram2d(*at.T, bins=side, range=[[0.0, 1.0], [0.0, 1.0]])[0].ravel().astype(int)
    i, j = (axis.ravel() for axis in np.meshgrid(np.arange(side), np.arange(side), indexing="ij"))
    variance, beta = 1.91, 1.0 / 33.0
    covariance = variance * np.exp(-np.hypot(i[:, None] - i, j[:, None] - j) / (side * beta))
    return Problem("pines", "poisson", covariance, math.log(126.0) - 0.5 * variance, counts, 1.0 / side**2)


def left_out(counts: NDArray[np.int64], exposure: float) -> float:
    """What the sources leave out of a Poisson density: ``log y!``, and the exposure of ``y log(m exp f)``."""
    return float(gammaln(counts + 1.0).sum() - counts.sum() * math.log(exposure))


def eight_schools() -> pm.Model:
    """Centred."""
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0.0, 5.0), pm.HalfCauchy("tau", 5.0)
        theta = pm.Normal("theta", mu, tau, shape=8)
        pm.Normal("y", theta, SPREADS, observed=EFFECTS)
    return model


@cache
def exact_eight_schools() -> float:
    """μ and θ integrate in closed form, τ by quadrature."""

    def density(log_tau: float) -> float:
        tau = math.exp(log_tau)
        covariance = np.diag(SPREADS**2 + tau**2) + 25.0
        _, log_determinant = np.linalg.slogdet(2.0 * math.pi * covariance)
        square = EFFECTS @ np.linalg.solve(covariance, EFFECTS)
        prior = 2.0 * tau / (5.0 * math.pi * (1.0 + (tau / 5.0) ** 2))
        return math.exp(-0.5 * (square + log_determinant) + 30.0) * prior

    return math.log(integrate.quad(density, -20.0, 12.0, limit=400)[0]) - 30.0


@cache
def regression_data(n: int = 100) -> tuple[Array, Array]:
    """Places (n,) and noisy values (n,) of a smooth function."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(0.0, 10.0, n))
    covariance = 1.5**2 * np.exp(-0.5 * (x[:, None] - x) ** 2 / 1.2**2) + JITTER * np.eye(n)
    f = np.linalg.cholesky(covariance) @ rng.standard_normal(n)
    return x, f + 0.5 * rng.standard_normal(n)


def regression(n: int = 100) -> pm.Model:
    """A Gaussian process with normal noise, whose values are not integrated out; three hyperparameters."""
    x, y = regression_data(n)
    with pm.Model() as model:
        lengthscale, amplitude = pm.LogNormal("ls", 0.0, 0.7), pm.LogNormal("a", 0.0, 0.7)
        square = (x[:, None] - x) ** 2
        covariance = amplitude**2 * pt.exp(-0.5 * square / lengthscale**2) + JITTER * np.eye(n)
        f = pm.MvNormal("f", np.zeros(n), cov=covariance)
        noise = pm.LogNormal("s", -1.0, 0.7)
        pm.Normal("y", f, noise, observed=y)
    return model


@cache
def exact_regression(n: int = 100) -> float:
    """The function's values integrate in closed form, the logarithms of the hyperparameters on a grid."""
    x, y = regression_data(n)
    square = (x[:, None] - x) ** 2

    def log_density(t: Array) -> float:
        covariance = math.exp(2.0 * t[1]) * np.exp(-0.5 * square * math.exp(-2.0 * t[0]))
        covariance[np.diag_indices(n)] += JITTER + math.exp(2.0 * t[2])
        factor = linalg.cholesky(covariance, lower=True)
        whitened = linalg.solve_triangular(factor, y, lower=True)
        marginal = -0.5 * whitened @ whitened - np.log(np.diag(factor)).sum() - 0.5 * n * math.log(2.0 * math.pi)
        return float(marginal + norm.logpdf(t, [0.0, 0.0, -1.0], 0.7).sum())

    mode = optimize.minimize(lambda t: -log_density(t), [0.0, 0.0, -1.0])
    factor = np.linalg.cholesky(mode.hess_inv)
    axis = np.linspace(-6.5, 6.5, 20)
    values = [log_density(mode.x + factor @ np.array(at)) for at in itertools.product(axis, axis, axis)]
    return float(logsumexp(values) + 3.0 * math.log(axis[1] - axis[0]) + np.log(np.diag(factor)).sum())


def references() -> dict[str, dict[str, Any]]:
    """What long runs have found, by problem."""
    found: dict[str, dict[str, Any]] = json.loads(REFERENCES.read_text()) if REFERENCES.exists() else {}
    return found


def _stored(problem: str) -> tuple[float, float]:
    """The stored reference of a problem."""
    found = references().get(problem)
    return (math.nan, math.nan) if found is None else (found["log_evidence"], found["standard_error"])


PROBLEMS = {
    "usps": EvidenceProblem(
        "USPS 3 against 5", lambda: digits().centred(), lambda: _stored("usps"), lambda: usps(60).centred(),
    ),
    "pines": EvidenceProblem(
        "pines, 30 × 30", lambda: pines().centred(), lambda: _stored("pines"), lambda: pines(6).centred(),
        lambda: left_out(pines().y, 1.0 / 30**2),
    ),
    "cox": EvidenceProblem(
        "log-Gaussian Cox, 64 × 64", lambda: latent_model(whitened=False), lambda: (2171.774, 0.006),
        lambda: latent_model(whitened=False, side=8), lambda: left_out(process(64)[1], 1.0 / 64**2),
    ),
    "heart": EvidenceProblem(
        "heart, logistic", lambda: logistic("heart"), lambda: (-143.7236, 0.0013), lambda: logistic("heart"),
    ),
    "regression": EvidenceProblem(
        "GP, normal noise, three hyperparameters", regression, lambda: (exact_regression(), 0.0), regression,
    ),
    "eight": EvidenceProblem(
        "eight schools, centred", eight_schools, lambda: (exact_eight_schools(), 0.0), eight_schools,
    ),
}  # fmt: skip
