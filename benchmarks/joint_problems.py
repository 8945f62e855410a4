"""Problems whose hyperparameters are sampled as well: seeded, with their sizes as arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pymc as pm
from scipy.special import expit

from benchmarks.problems import squared_exponential

__all__ = ["JOINT_PROBLEMS", "JointProblem"]


@dataclass(frozen=True)
class JointProblem:
    """A latent Gaussian problem with free hyperparameters.

    Attributes
    ----------
    name : str
        With the size.
    build : callable
        From whether the latent values are whitened to the model.
    parameters : tuple of str
        Everything that is compared: hyperparameters, and "f".
    """

    name: str
    build: Callable[[bool], pm.Model]
    parameters: tuple[str, ...]

    def centred(self) -> pm.Model:
        """``f ~ MvNormal(m(θ), K(θ))``."""
        return self.build(False)

    def whitened(self) -> pm.Model:
        """``f = m(θ) + L(θ) v`` with ``v ~ N(0, I)``."""
        return self.build(True)


def regression(likelihood: str, n: int = 100, seed: int = 0) -> JointProblem:
    """A GP on the plane with two lengthscales and an amplitude, under one of four likelihoods."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2.0, 2.0, (n, 2))
    f = np.linalg.cholesky(squared_exponential(x, 0.8, 2.0, 1e-6)) @ rng.standard_normal(n)
    y = {
        "logit": lambda: (rng.random(n) < expit(f)).astype(int),
        "poisson": lambda: rng.poisson(np.exp(f)),
        "negative binomial": lambda: rng.negative_binomial(3.0, 3.0 / (3.0 + np.exp(f))),
        "student t": lambda: f + 0.3 * rng.standard_t(4.0, n),
    }[likelihood]()

    def build(whitened: bool) -> pm.Model:
        with pm.Model() as model:
            lengthscale = pm.InverseGamma("lengthscale", 5.0, 5.0, shape=2)
            amplitude = pm.HalfNormal("amplitude", 2.0)
            gp = pm.gp.Latent(cov_func=amplitude**2 * pm.gp.cov.ExpQuad(2, ls=lengthscale))
            latent = gp.prior("f", X=x, reparameterize=whitened)
            if likelihood == "logit":
                pm.Bernoulli("y", logit_p=latent, observed=y)
            elif likelihood == "poisson":
                pm.Poisson("y", mu=pm.math.exp(latent), observed=y)
            elif likelihood == "negative binomial":
                shape = pm.HalfNormal("shape", 5.0)
                pm.NegativeBinomial("y", mu=pm.math.exp(latent), alpha=shape, observed=y)
            else:
                freedom, noise = pm.Gamma("freedom", 2.0, 0.1), pm.HalfNormal("noise", 1.0)
                pm.StudentT("y", nu=freedom, mu=latent, sigma=noise, observed=y)
        return model

    own = {"negative binomial": ("shape",), "student t": ("freedom", "noise")}.get(likelihood, ())
    return JointProblem(f"{likelihood} ARD n={n}", build, ("lengthscale", "amplitude", *own, "f"))


def cox(side: int = 16, seed: int = 0) -> JointProblem:
    """A log-Gaussian Cox process on a square grid with a free mean, amplitude and lengthscale."""
    rng = np.random.default_rng(seed)
    axis = (np.arange(side) + 0.5) / side
    x = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    distance = np.hypot(x[:, None, 0] - x[:, 0], x[:, None, 1] - x[:, 1])
    covariance = 1.4**2 * np.exp(-distance / 0.15)
    f = np.log(500.0) - 0.98 + np.linalg.cholesky(covariance) @ rng.standard_normal(side**2)
    y, area = rng.poisson(np.exp(f) / side**2), 1.0 / side**2

    def build(whitened: bool) -> pm.Model:
        with pm.Model() as model:
            mean = pm.Normal("mean", 5.0, 2.0)
            amplitude = pm.HalfNormal("amplitude", 2.0)
            lengthscale = pm.InverseGamma("lengthscale", 3.0, 0.5)
            covariance = amplitude**2 * pm.gp.cov.Exponential(2, ls=lengthscale)
            gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(mean), cov_func=covariance)
            latent = gp.prior("f", X=x, reparameterize=whitened)
            pm.Poisson("y", mu=area * pm.math.exp(latent), observed=y)
        return model

    return JointProblem(f"Cox {side}x{side}, free", build, ("mean", "amplitude", "lengthscale", "f"))


def separable(n: int = 24, seed: int = 0) -> JointProblem:
    """Two classes on a line that can be separated, of a process whose amplitude nothing bounds."""
    x = np.sort(np.random.default_rng(seed).uniform(0.0, 1.0, n))[:, None]

    def build(whitened: bool) -> pm.Model:
        with pm.Model() as model:
            lengthscale = pm.TruncatedNormal("lengthscale", 0.3, 0.2, lower=0.05)
            amplitude = pm.HalfCauchy("amplitude", 5.0)
            gp = pm.gp.Latent(cov_func=amplitude**2 * pm.gp.cov.ExpQuad(1, ls=lengthscale))
            latent = gp.prior("f", X=x, reparameterize=whitened, jitter=1e-5)
            pm.Bernoulli("y", p=pm.math.invprobit(latent), observed=(x[:, 0] > 0.5).astype(int))
        return model

    return JointProblem(f"separable n={n}", build, ("lengthscale", "amplitude", "f"))


JOINT_PROBLEMS: dict[str, Callable[[], JointProblem]] = {
    **{
        f"{likelihood} ARD {n}": lambda likelihood=likelihood, n=n: regression(likelihood, n)
        for likelihood in ("logit", "poisson", "negative binomial", "student t")
        for n in (100, 300)
    },
    **{f"cox free {side}": lambda side=side: cox(side) for side in (16, 24)},
    "separable 24": separable,
}
