"""Latent Gaussian blocks with normal noise beside a poor normal approximation: every density between is known."""

from __future__ import annotations

import numpy as np
from scipy.stats import multivariate_normal

from pymc_rmhmc.chains.reference import LatentReference, ResidualReference
from pymc_rmhmc.latent.charts.site import FactorizedPrior, GaussianSites, SiteChart
from tests.unit.toys import centred_prior, kernel, narrow_prior


class Normal:
    """Normal noise."""

    compiled_gradient = None
    kinds = ("hessian", "fisher")

    def __init__(self, y, sigma=0.7):
        self.y, self.sigma = y, sigma

    def gradient(self, eta):
        standard = (self.y - eta) / self.sigma
        constant = np.log(self.sigma) + 0.5 * np.log(2.0 * np.pi)
        return float(-0.5 * standard @ standard - constant * eta.size), standard / self.sigma

    def pointwise(self, eta):
        standard = (self.y - eta) / self.sigma
        return -0.5 * standard**2 - np.log(self.sigma) - 0.5 * np.log(2.0 * np.pi), standard / self.sigma

    def gradient_rows(self, eta):
        values, slopes = self.pointwise(eta)
        return values.sum(axis=1), slopes

    def curvature(self, eta, kind):
        return *self.gradient(eta), self.weight(eta, kind), np.zeros(eta.size)

    def weight(self, eta, kind):
        return np.full(eta.size, self.sigma**-2)


class NormalBlock:
    """A block, and what is known of it.

    `share` is how much of the likelihood the reference has: 0 is the prior, 1 is the posterior.
    """

    def __init__(self, n=5, share=0.4, k=None, sigma=0.7):
        rng = np.random.default_rng(n)
        self.share, self.n, self.sigma = share, n, sigma
        self.prior = FactorizedPrior(centred_prior(n) if k is None else narrow_prior(n))
        self.y = rng.standard_normal(n)
        self.likelihood = Normal(self.y, sigma)
        precision = np.full(n, share / sigma**2)
        self.sites = GaussianSites(precision * (self.y + 0.2), precision)
        self.reference = LatentReference(SiteChart(self.prior, self.sites if share else None), self.likelihood)

    @property
    def prior_moments(self):
        predictor = self.prior.predictor
        return predictor.offset, predictor.matrix @ predictor.matrix.T

    @property
    def log_evidence(self):
        mean, covariance = self.prior_moments
        return multivariate_normal(mean, covariance + self.sigma**2 * np.eye(self.n)).logpdf(self.y)

    def moments(self, beta):
        """Mean and covariance of η at a β."""
        mean, covariance = self.prior_moments
        weight = beta / self.sigma**2 + (1.0 - beta) * self.sites.precision * bool(self.share)
        linear = beta * self.y / self.sigma**2 + (1.0 - beta) * self.sites.linear * bool(self.share)
        precision = np.linalg.inv(covariance) + np.diag(weight)
        posterior = np.linalg.inv(precision)
        return posterior @ (np.linalg.solve(covariance, mean) + linear), posterior

    def sites_log_density(self, eta):
        """The log density of the reference's sites at η (count, n), up to a constant."""
        if not self.share:
            return np.zeros(len(eta))
        return eta @ self.sites.linear - 0.5 * eta**2 @ self.sites.precision

    def as_residual(self):
        """The same reference by its residual alone, as whole models have it."""
        target = self.reference.target
        return ResidualReference(
            target, self.reference.size, self.reference.log_constant,
            lambda values, rng: target.at(self.reference.chart.from_model(values)),
            lambda point: self.reference.chart.to_model(point.position, point.eta),
        )  # fmt: skip

    def states(self, beta, count, rng, walkers):
        """Exact draws at a β in the coordinates of some walkers."""
        mean, covariance = self.moments(beta)
        sites = rng.multivariate_normal(mean, covariance, count)
        displacement = sites - self.reference.chart.predictor.offset
        if walkers.states.shape[1] == self.n and hasattr(walkers, "sites"):
            return displacement
        return np.linalg.solve(self.reference.chart.predictor.matrix, displacement.T).T

    def sites_of(self, walkers):
        """Η where walkers stand."""
        predictor = self.reference.chart.predictor
        return walkers.sites if hasattr(walkers, "sites") else predictor.offset + walkers.states @ predictor.matrix.T


def exact_line(slope=1.3, curvature=0.8):
    """φ(z) = a z - ½ b z² in one dimension: a function of draws, and log E exp βφ."""

    def phi(z):
        return slope * z - 0.5 * curvature * z**2

    def log_ratio(beta):
        return 0.5 * (beta * slope) ** 2 / (1.0 + beta * curvature) - 0.5 * np.log1p(beta * curvature)

    def draws(beta, count, rng):
        precision = 1.0 + beta * curvature
        return phi(beta * slope / precision + rng.standard_normal(count) / np.sqrt(precision))

    return draws, log_ratio


__all__ = ["Normal", "NormalBlock", "exact_line", "kernel"]
