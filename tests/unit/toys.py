"""Small latent Gaussian problems in plain NumPy, independent of PyMC and of the package's own kernels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, gammaln

from pymc_rmhmc.evidence.methods.annealing import TemperedLikelihood
from pymc_rmhmc.interfaces.stated import StatedDense
from pymc_rmhmc.latent.target import LatentTarget

type Array = NDArray[np.float64]


@dataclass
class ToyComponent:
    mean: Array | None = None
    covariance: Array | None = None
    cholesky: Array | None = None
    predictor: Array | None = None
    centred: bool = True


@dataclass
class ToyPrior:
    """Components as the dense references read them, and as `StatedPrior` states them."""

    components: tuple[ToyComponent, ...]
    offset: Array

    @property
    def shift(self) -> Array:
        return self.offset

    @property
    def vectors(self) -> tuple[StatedDense, ...]:
        return tuple(
            StatedDense(c.covariance, 0.0 if c.mean is None else c.mean, c.centred, factor=c.cholesky)
            for c in self.components
        )

    @property
    def design(self) -> list[Array | None]:
        return [c.predictor for c in self.components]

    @property
    def mean(self) -> Array:
        means = [(c.predictor, c.mean) for c in self.components if c.centred and c.mean is not None]
        return sum((mean if design is None else design @ mean for design, mean in means), self.offset)


class Logit:
    """Bernoulli with y = ±1 and the logit link."""

    compiled_gradient = None
    kinds = ("hessian", "fisher")

    def __init__(self, y: Array) -> None:
        self.y = y

    def log_density(self, eta: Array) -> float:
        return float(-np.logaddexp(0.0, -self.y * eta).sum())

    def gradient(self, eta: Array) -> tuple[float, Array]:
        return self.log_density(eta), self.y * expit(-self.y * eta)

    def curvature(self, eta: Array, kind: str) -> tuple[float, Array, Array, Array]:
        p = expit(eta)
        return *self.gradient(eta), p * expit(-eta), 1.0 - 2.0 * p

    def weight(self, eta: Array, kind: str) -> Array:
        return expit(eta) * expit(-eta)

    @staticmethod
    def simulate(eta: Array, rng: np.random.Generator) -> Array:
        return np.where(rng.random(eta.size) < expit(eta), 1.0, -1.0)


class Poisson:
    """Counts with the log link."""

    compiled_gradient = None
    kinds = ("hessian", "fisher")

    def __init__(self, y: Array) -> None:
        self.y = y

    def log_density(self, eta: Array) -> float:
        return float((self.y * eta - np.exp(eta) - gammaln(self.y + 1.0)).sum())

    def gradient(self, eta: Array) -> tuple[float, Array]:
        return self.log_density(eta), self.y - np.exp(eta)

    def curvature(self, eta: Array, kind: str) -> tuple[float, Array, Array, Array]:
        return *self.gradient(eta), np.exp(eta), np.ones_like(eta)

    def weight(self, eta: Array, kind: str) -> Array:
        return np.exp(eta)

    @staticmethod
    def simulate(eta: Array, rng: np.random.Generator) -> Array:
        return rng.poisson(np.exp(eta)).astype(float)


class StudentT:
    """Robust regression with 4 degrees of freedom and unit scale: not log-concave, Fisher weight constant."""

    compiled_gradient = None
    kinds = ("fisher",)
    nu = 4.0

    def __init__(self, y: Array) -> None:
        self.y = y

    def log_density(self, eta: Array) -> float:
        return float((-0.5 * (self.nu + 1.0) * np.log1p((self.y - eta) ** 2 / self.nu)).sum())

    def gradient(self, eta: Array) -> tuple[float, Array]:
        residual = self.y - eta
        return self.log_density(eta), (self.nu + 1.0) * residual / (self.nu + residual**2)

    def curvature(self, eta: Array, kind: str) -> tuple[float, Array, Array, Array]:
        return *self.gradient(eta), self.weight(eta, kind), np.zeros_like(eta)

    def weight(self, eta: Array, kind: str) -> Array:
        return np.full_like(eta, (self.nu + 1.0) / (self.nu + 3.0))

    @classmethod
    def simulate(cls, eta: Array, rng: np.random.Generator) -> Array:
        return eta + rng.standard_t(cls.nu, eta.size)


LIKELIHOODS = {"logit": Logit, "poisson": Poisson, "student_t": StudentT}


def kernel(n: int, lengthscale: float = 0.4, amplitude: float = 1.3, jitter: float = 1e-6) -> Array:
    """A squared exponential covariance on n even points of the unit interval."""
    x = np.linspace(0.0, 1.0, n)
    square = (x[:, None] - x) ** 2 / lengthscale**2
    return amplitude**2 * np.exp(-0.5 * square) + jitter * np.eye(n)


def centred_prior(n: int, mean: float = 0.3) -> ToyPrior:
    """A centred GP seen once at every input: x = f, A = I."""
    return ToyPrior((ToyComponent(mean=np.full(n, mean), covariance=kernel(n)),), np.zeros(n))


def rotated_prior(n: int, mean: float = 0.3) -> ToyPrior:
    """The same GP with whitened values: the model's variable is ν."""
    return ToyPrior((ToyComponent(covariance=kernel(n), centred=False),), np.full(n, mean))


def additive_prior(n: int) -> ToyPrior:
    """Two components of different shape: a GP, and a linear predictor with fewer columns than sites."""
    design = np.column_stack((np.ones(n), np.linspace(-1.0, 1.0, n)))
    return ToyPrior(
        (
            ToyComponent(mean=np.full(n, 0.2), covariance=kernel(n)),
            ToyComponent(mean=np.array([0.1, -0.2]), cholesky=np.array([[0.8, 0.0], [0.3, 0.5]]), predictor=design),
        ),
        np.linspace(-0.5, 0.5, n),
    )


def wide_prior(n: int) -> ToyPrior:
    """A centred GP of large amplitude and little correlation: its metric varies much over the posterior."""
    return ToyPrior((ToyComponent(covariance=kernel(n, lengthscale=0.25, amplitude=2.5)),), np.zeros(n))


def narrow_prior(n: int, n_blind: int = 0) -> ToyPrior:
    """A linear predictor alone, of fewer coefficients than sites, of which the first read none of them."""
    design = np.column_stack((np.ones(n), np.linspace(-1.0, 1.0, n)))
    design[:n_blind] = 0.0
    component = ToyComponent(mean=np.array([0.1, -0.2]), cholesky=np.array([[0.9, 0.0], [0.4, 1.1]]), predictor=design)
    return ToyPrior((component,), np.linspace(-0.5, 0.5, n))


def wide_narrow_prior(n: int) -> ToyPrior:
    """The first five columns of that process's factor, each with a standard normal coefficient."""
    design = np.linalg.cholesky(kernel(n, lengthscale=0.25, amplitude=2.5))[:, :5]
    return ToyPrior((ToyComponent(mean=np.zeros(5), cholesky=np.eye(5), predictor=design),), np.zeros(n))


PRIORS = {
    "centred": centred_prior, "rotated": rotated_prior, "additive": additive_prior, "narrow": narrow_prior,
}  # fmt: skip


def dense_log_posterior(prior: ToyPrior, likelihood: Logit | Poisson | StudentT, x: Array) -> float:
    """``log p(x) + log p(y given x)`` written out with SciPy's normal density."""
    from scipy.stats import multivariate_normal

    eta, start, total = prior.offset.copy(), 0, 0.0
    for component in prior.components:
        root = component.cholesky
        if root is None and component.covariance is not None:
            root = np.linalg.cholesky(component.covariance)
        size = root.shape[0]
        part = x[start : start + size]
        start += size
        if component.centred:
            mean = np.zeros(size) if component.mean is None else component.mean
            total += multivariate_normal.logpdf(part, mean, root @ root.T)
            value = part
        else:
            total += multivariate_normal.logpdf(part, np.zeros(size), np.eye(size))
            value = root @ part
        eta = eta + (value if component.predictor is None else component.predictor @ value)
    return float(total) + likelihood.log_density(eta)


def coarse_gram(target: LatentTarget, change: float = 0.3) -> NDArray[np.float32]:
    """A chart's ``ΦΦᵀ`` in single precision, of which every value is changed by so much, up or down."""
    gram = target.chart.predictor.gram
    signs = np.tril(np.sign(np.random.default_rng(4).standard_normal(gram.shape)))
    return np.asfortranarray(gram * (1.0 + change * (signs + np.tril(signs, -1).T)), dtype=np.float32)


def whole_likelihood(target: LatentTarget):
    """A target's likelihood at β = 1, and its β."""
    given = target.likelihood
    return (given.likelihood, given.beta) if isinstance(given, TemperedLikelihood) else (given, 1.0)


def problem(prior: str = "centred", likelihood: str = "logit", n: int = 6, seed: int = 3):
    """A prior and a likelihood with data simulated from them."""
    rng = np.random.default_rng(seed)
    made = PRIORS[prior](n)
    eta = rng.multivariate_normal(np.full(n, 0.3), kernel(n))
    family = LIKELIHOODS[likelihood]
    return made, family(family.simulate(eta, rng))
