"""Blocks with their hyperparameters as functions of θ, against the model itself and against differences."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache, reduce

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.ops import view_op
from scipy import sparse
from scipy.stats import multivariate_normal, norm

from pymc_rmhmc.approximation.joint import moving_sites
from pymc_rmhmc.errors import DataError, UnsupportedModelError
from pymc_rmhmc.geometry.charts import GaussianSites, MarginalChart
from pymc_rmhmc.geometry.joint import JointTarget
from pymc_rmhmc.model import JointModel, compile_model, read_joint, read_structure, read_together
from pymc_rmhmc.model.dependence import linear_inputs
from pymc_rmhmc.model.graphs import substitute
from pymc_rmhmc.model.multipliers import is_never_zero
from tests.model.conftest import (
    BINARY,
    COUNTS,
    INDEX,
    INDEX_COUNTS,
    MODELS,
    N,
    X,
    covariance,
    exact_log_density,
    gp_prior,
)
from tests.model.test_compile import log_density as conditional_density

FORMS: dict[str, tuple[Callable[[], None], set[str]]] = {}


def form(*theta: str):
    """Add a model to the table, with the value variables that its θ must have."""

    def add(build: Callable[[], None]) -> Callable[[], None]:
        FORMS[build.__name__] = build, set(theta)
        return build

    return add


def poisson(f: pt.TensorVariable) -> None:
    pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)


@form("ls_log__")
def centred() -> None:
    poisson(gp_prior("f", ls=pm.Gamma("ls", 2.0, 4.0), mean=0.4, reparameterize=False))


@form("ls_log__")
def whitened() -> None:
    poisson(gp_prior("f", ls=pm.Gamma("ls", 2.0, 4.0), mean=0.4))


@form("level", "slope", "ls_log__")
def mean_function() -> None:
    mean = pm.gp.mean.Linear(coeffs=pm.Normal("slope", shape=1), intercept=pm.Normal("level"))
    gp = pm.gp.Latent(mean_func=mean, cov_func=pm.gp.cov.Matern32(1, ls=pm.HalfNormal("ls")))
    poisson(gp.prior("f", X, reparameterize=False))


@form("ls_log__", "alpha_log__", "centre", "offset_log__", "warp_log__", "slope", "period_log__", "noise_log__")
def kernels_of_many_kinds() -> None:
    ls, alpha, centre = pm.LogNormal("ls", -1.0, 0.3), pm.LogNormal("alpha"), pm.Normal("centre")
    offset, warp, slope = pm.LogNormal("offset"), pm.LogNormal("warp"), pm.Normal("slope")
    period, noise = pm.LogNormal("period"), pm.HalfNormal("noise")
    kernel = (
        pm.gp.cov.RatQuad(1, alpha=alpha, ls=ls)
        + 0.3 * pm.gp.cov.Linear(1, c=centre) * pm.gp.cov.Exponential(1, ls=2.0 * ls)
        + 0.1 * pm.gp.cov.Polynomial(1, c=centre, d=2, offset=offset)
        + pm.gp.cov.Cosine(1, ls=ls) * pm.gp.cov.ExpQuad(1, ls=ls)
        + pm.gp.cov.Periodic(1, period=period, ls=1.0)
        + pm.gp.cov.Circular(1, period=2.0 + period, tau=5.0)
        + pm.gp.cov.Gibbs(1, lambda x, by: 0.3 + by * x**2, args=(warp,))
        + pm.gp.cov.WarpedInput(1, pm.gp.cov.Matern32(1, ls=ls), lambda x, by: x**by, args=(1.0 + warp,))
        + pm.gp.cov.ScaledCov(1, pm.gp.cov.Matern12(1, ls=ls), lambda x, by: pt.exp(by * x), args=(slope,))
        + pm.gp.cov.Constant(noise) + pm.gp.cov.WhiteNoise(noise)
    )  # fmt: skip
    poisson(pm.gp.Latent(cov_func=kernel).prior("f", X, reparameterize=False))


@form("ls_log__", "weights", "kappa_log__")
def coregion() -> None:
    inputs = np.column_stack((X[:, 0], np.arange(N) % 2))
    weights, kappa = pm.Normal("weights", shape=(2, 1)), pm.HalfNormal("kappa", shape=2)
    outputs = pm.gp.cov.Coregion(2, W=weights, kappa=kappa, active_dims=[1])
    kernel = pm.gp.cov.Matern52(2, ls=pm.LogNormal("ls", -1.0, 0.3), active_dims=[0]) * outputs
    poisson(pm.gp.Latent(cov_func=kernel).prior("f", inputs, reparameterize=False, jitter=1e-4))


@form("level")
def mean_in_the_predictor_of_a_whitened_gp() -> None:
    gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(pm.Normal("level")), cov_func=pm.gp.cov.Matern32(1, ls=0.3))
    poisson(gp.prior("f", X))


@form("ls_log__", "eta_log__")
def ard() -> None:
    inputs = np.column_stack((X, np.cos(9.0 * X)))
    kernel = pm.HalfNormal("eta") ** 2 * pm.gp.cov.ExpQuad(2, ls=pm.LogNormal("ls", -0.5, 0.4, shape=2))
    poisson(pm.gp.Latent(cov_func=kernel).prior("f", inputs))


@form("ls_log__", "period_interval__", "eta_log__")
def sums_and_products() -> None:
    period = pm.Uniform("period", 0.2, 0.9)
    kernel = pm.gp.cov.Matern52(1, ls=pm.LogNormal("ls", -0.5, 0.4)) * pm.gp.cov.Periodic(1, period=period, ls=1.0)
    kernel += pm.HalfNormal("eta") ** 2 * pm.gp.cov.Matern32(1, ls=0.2) + pm.gp.cov.WhiteNoise(0.1)
    poisson(pm.gp.Latent(cov_func=kernel).prior("f", X, reparameterize=False))


@form("ls_log__", "alpha_log__")
def negative_binomial() -> None:
    f = gp_prior("f", ls=pm.Gamma("ls", 2.0, 4.0))
    pm.NegativeBinomial("y", mu=pm.math.exp(f), alpha=pm.Exponential("alpha", 1.0), observed=COUNTS)


@form("nu_log__", "sigma_log__")
def student_t() -> None:
    f = gp_prior("f", reparameterize=False)
    nu, sigma = pm.Gamma("nu", 4.0, 1.0), pm.HalfNormal("sigma", 1.0, shape=N)
    pm.StudentT("y", nu=nu, mu=f, sigma=sigma, observed=COUNTS / 2.0)


@form("alpha_log__", "ls_log__")
def gamma() -> None:
    alpha = pm.HalfNormal("alpha", 2.0)
    f = gp_prior("f", ls=pm.Gamma("ls", 2.0, 4.0))
    pm.Gamma("y", alpha=alpha, beta=alpha / pm.math.exp(f), observed=COUNTS + 0.5)


@form("shift")
def binomial() -> None:
    f = gp_prior("f", reparameterize=False)
    pm.Binomial("y", n=COUNTS + 2, logit_p=f + pm.Normal("shift"), observed=COUNTS)


@form("shift", "exposure_log__", "ls_log__")
def poisson_with_an_offset() -> None:
    shift, exposure = pm.Logistic("shift", 0.0, 0.5, shape=N), pm.HalfNormal("exposure")
    f = gp_prior("f", ls=pm.Gamma("ls", 2.0, 4.0))
    pm.Poisson("y", mu=exposure * pm.math.exp(f + shift), observed=COUNTS)


@form("ls_log__", "rate_log__", "above_log__")
def hierarchical() -> None:
    above = pm.HalfNormal("above")
    poisson(gp_prior("f", ls=pm.Gamma("ls", 2.0, pm.Exponential("rate", above))))


@form("ls_log__", "shift")
def gathered_with_repeats() -> None:
    f = gp_prior("f", ls=pm.Gamma("ls", 2.0, 4.0))
    pm.Poisson("y", mu=pm.math.exp(0.3 * pm.Normal("shift") + f[INDEX]), observed=INDEX_COUNTS)


@form("ls_log__", "tau_log__")
def two_gps_that_share() -> None:
    ls = pm.Gamma("ls", 2.0, 4.0)
    poisson(gp_prior("f", ls=ls))
    g = gp_prior("g", ls=2.0 * ls, reparameterize=False)
    pm.Bernoulli("z", logit_p=g, observed=BINARY)
    pm.Normal("w", g, pm.HalfNormal("tau"), observed=COUNTS / 3.0)


@form("scale_log__")
def precision() -> None:
    poisson(pm.MvNormal("f", mu=0.2, tau=pm.HalfNormal("scale") * np.linalg.inv(covariance()), shape=N))


@form("scale_log__")
def cholesky() -> None:
    poisson(pm.MvNormal("f", mu=np.ones(N), chol=pm.HalfNormal("scale") * np.linalg.cholesky(covariance())))


DESIGN = np.random.default_rng(3).standard_normal((N, 4))
GROUP = np.arange(N) % 5


@form("spread_log__")
def mixed_model() -> None:
    level, slopes = pm.Normal("level", 0.3, 2.0), pm.Normal("slopes", np.array([0.1, 0.2, 0.0, -0.2]), 1.5, shape=4)
    groups = pm.Normal("groups", 0.0, pm.HalfNormal("spread"), shape=5)
    poisson(level + pm.math.dot(DESIGN, slopes) + groups[GROUP])


@form("spread_log__", "middle", "alpha_log__")
def mixed_model_scaled_and_hierarchical() -> None:
    # The level is in the prior of another, and so a hyperparameter.
    spread, middle = pm.HalfNormal("spread"), pm.Normal("middle")
    groups = pm.Deterministic("groups", middle + spread * pm.Normal("raw", 0.5, 2.0, shape=5))
    slopes = pm.Normal("slopes", middle, 1.0, shape=4)
    mu = pm.math.exp(groups[GROUP] + DESIGN @ slopes)
    pm.NegativeBinomial("y", mu=mu, alpha=pm.Exponential("alpha", 1.0), observed=COUNTS)


def normal(eta: pt.TensorVariable) -> None:
    pm.Normal("y", eta, pm.HalfNormal("sigma"), observed=COUNTS / 3.0)


def dispersed(eta: pt.TensorVariable) -> None:
    pm.NegativeBinomial("y", mu=pm.math.exp(eta), alpha=pm.Exponential("alpha", 1.0), observed=COUNTS)


def groups() -> pt.TensorVariable:
    return pm.Normal("level", 0.3) + pm.Normal("groups", 0.2, pm.HalfNormal("spread"), shape=5)[GROUP]


@form("spread_log__", "sigma_log__")
def noise_of_a_mixed_model() -> None:
    normal(groups())


@form("spread_log__", "alpha_log__")
def dispersion_of_a_mixed_model() -> None:
    dispersed(groups())


@form("spread_log__", "sigma_log__")
def noise_of_a_regression() -> None:
    normal(DESIGN @ pm.Normal("slopes", 0.1, pm.HalfNormal("spread"), shape=4))


@form("spread_log__", "alpha_log__")
def dispersion_of_a_regression() -> None:
    dispersed(0.4 + DESIGN @ pm.Normal("slopes", 0.0, pm.HalfNormal("spread"), shape=4))


WIDE_DESIGN = np.random.default_rng(4).standard_normal((N, 2 * N))


@form("spread_log__", "sigma_log__")
def noise_beside_more_coefficients_than_data() -> None:
    normal(0.4 + 0.3 * WIDE_DESIGN @ pm.Normal("slopes", 0.0, pm.HalfNormal("spread"), shape=2 * N))


@form("spread_log__", "sigma_log__")
def coefficients_of_a_noise_and_of_counts() -> None:
    slopes = pm.Normal("slopes", 0.1, pm.HalfNormal("spread"), shape=4)
    normal(DESIGN @ slopes)
    pm.Bernoulli("z", logit_p=DESIGN[::-1] @ slopes, observed=BINARY)


@form("spread_log__", "other_log__")
def shrunk_coefficients_of_two_likelihoods() -> None:
    spread, other = pm.HalfNormal("spread", shape=4), pm.HalfNormal("other")
    slopes = other * (pm.Normal("raw", shape=4) / spread)
    poisson(DESIGN @ slopes)
    pm.Bernoulli("z", logit_p=pm.math.dot(DESIGN[::-1], slopes) - 0.3, observed=BINARY)


@form("ls_log__", "eta_log__")
def basis() -> None:
    kernel = pm.HalfNormal("eta") ** 2 * pm.gp.cov.Matern52(1, ls=pm.LogNormal("ls", -0.5, 0.4))
    gp = pm.gp.HSGP(m=[7], c=1.5, cov_func=kernel)
    poisson(gp.prior("f", X) + pm.Normal("level"))


@form("ls_log__")
def basis_with_more_coefficients_than_data() -> None:
    kernel = pm.gp.cov.Matern52(1, ls=pm.LogNormal("ls", -0.5, 0.4))
    gp = pm.gp.HSGP(m=[2 * N], c=1.5, cov_func=kernel, parametrization="centered")
    poisson(gp.prior("f", X))


@form("spread_log__", "middle")
def random_effects_alone() -> None:
    effects = pm.Normal("effects", pm.Normal("middle"), pm.HalfNormal("spread"), shape=N)
    pm.Poisson("y", mu=pm.math.exp(effects[INDEX]), observed=INDEX_COUNTS)


@form("spread_log__", "other_log__")
def scaled_after_the_matrix() -> None:
    """As mixed models are often written: what a number multiplies may be summed, indexed or multiplied first."""
    spread, other, middle = pm.HalfNormal("spread"), pm.HalfNormal("other"), pm.Normal("middle")
    groups = spread * (middle + 0.5 + pm.Normal("raw", 0.1, 2.0, shape=5)[GROUP])
    poisson(groups - (DESIGN @ pm.Normal("slopes", shape=4)) * 0.5 / other)


@form("spread_log__", "other_log__")
def scaled_in_turn_and_in_two_likelihoods() -> None:
    spread, other = pm.HalfNormal("spread"), pm.HalfNormal("other")
    raw, within = pm.Normal("raw", shape=5), pm.Normal("within", shape=(5, 2))
    poisson(spread * pt.exp(-other) * (raw[GROUP] + other * within[GROUP].sum(axis=1)))
    pm.Bernoulli("z", logit_p=0.3 - spread * pt.exp(-other) * raw[GROUP[::-1]], observed=BINARY)


@form("spread_log__", "other_log__")
def scaled_by_a_vector_with_numbers_in_it() -> None:
    """A slope that varies by group, written from left to right."""
    spread, other = pm.HalfNormal("spread"), pm.HalfNormal("other")
    slopes = (DESIGN[:, 0] * spread / (1.0 + other)) * pm.Normal("raw", shape=5)[GROUP]
    poisson(slopes + pm.Normal("level") - pm.Normal("within", shape=5)[GROUP] / (2.0 * DESIGN[:, 1] * other))


@form("spread_log__")
def scaled_after_being_joined() -> None:
    spread = pm.HalfNormal("spread")
    first, second = pm.Normal("first", shape=2), pm.Normal("second", shape=3)
    joined = spread * pt.concatenate([first, np.array([0.5]), second])
    poisson(joined[GROUP] + spread * pt.stack([first[0], second[1]])[GROUP % 2])
    pm.Bernoulli("z", logit_p=joined[GROUP[::-1]], observed=BINARY)


@form("scale_log__")
def exponents_of_exponents() -> None:
    """A matrix and its double, both exponentiated, and one of them twice."""
    r = -((X - X.T) ** 2) / pm.HalfNormal("scale")
    kernel = pt.exp(r) + 0.5 * pt.exp(2.0 * r) + 0.3 * pt.exp(r.T) + 0.1 * pt.exp(pt.exp(r) - 1.0) + np.eye(N)
    poisson(pm.MvNormal("f", np.zeros(N), cov=kernel))


@form("spread_log__")
def local_level() -> None:
    """A random walk as the sum of its steps."""
    poisson(pt.cumsum(pm.HalfNormal("spread") * pm.Normal("steps", shape=N)) + pm.Normal("start"))


@form("spread_log__")
def written_with_compound_operations() -> None:
    """Of a reference level, of deviations from a mean, and of a product by its indices."""
    spread, levels = pm.HalfNormal("spread"), pm.Normal("levels", shape=5)
    padded = spread * pt.pad(pm.Normal("padded", shape=4), (1, 0))
    set_there = pt.set_subtensor(pt.full(5, 0.3)[2:], pm.Normal("set", shape=3))
    slopes = pt.einsum("ij,j->i", DESIGN, spread * pm.Normal("slopes", shape=4))
    poisson((spread * (levels - levels.mean()) + padded + set_there)[GROUP] + slopes)


@form("ls_log__", "eta_log__")
def scaled_process() -> None:
    gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(0.7), cov_func=pm.gp.cov.Matern52(1, ls=pm.HalfNormal("ls")))
    pm.Poisson("y", mu=pm.math.exp(0.2 + pm.HalfNormal("eta") * gp.prior("f", X)[INDEX]), observed=INDEX_COUNTS)


@form("ls_log__", "weight", "level", "alpha_log__")
def process_times_a_number_of_any_sign() -> None:
    """Negative at one of two random points."""
    kernel = pm.gp.cov.ExpQuad(1, ls=pm.HalfNormal("ls"))
    gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(pm.Normal("level")), cov_func=kernel)
    f = 5.0 * pm.Normal("weight", 0.3) * gp.prior("f", X, reparameterize=False, jitter=0.1)
    f = pm.Deterministic("scaled", f - 0.3)
    pm.NegativeBinomial("y", mu=pm.math.exp(f), alpha=pm.Exponential("alpha", 1.0), observed=COUNTS)


@form("weight", "level")
def whitened_process_of_any_sign() -> None:
    """Its covariance stands still."""
    gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(pm.Normal("level")), cov_func=pm.gp.cov.Matern32(1, ls=0.3))
    poisson(gp.prior("f", X) * pt.sinh(pm.Normal("weight", -0.3)))


@form("ls_log__", "eta_log__", "tau_log__", "slope")
def scaled_processes_of_a_sum() -> None:
    """A coefficient that varies, one as in a sum of trends, and one process as it is."""
    x, eta, tau = np.linspace(-1.0, 1.0, N), pm.HalfNormal("eta"), pm.HalfNormal("tau")
    x[2] = 0.0
    f, g = gp_prior("f", ls=pm.HalfNormal("ls"), mean=0.3, reparameterize=False), gp_prior("g", ls=0.1)
    poisson(eta * f + x * tau * g / eta + gp_prior("h", ls=0.6) + x * pm.Normal("slope"))


@form("growth", "eta_log__")
def process_with_a_number_for_every_value() -> None:
    f = gp_prior("f", mean=0.3, reparameterize=False)
    poisson(pm.HalfNormal("eta") * f * pt.exp(pm.Normal("growth") * X[:, 0]))


@form("ls_log__", "weight")
def scaled_on_a_grid() -> None:
    f = grid(ls=pm.LogNormal("ls", -0.5, 0.4), mean=0.4)
    poisson(pm.Normal("weight", 0.2) * f[PLACES])


@form("warp", "spread_log__", "alpha_log__", "level")
def coefficients_of_warped_inputs() -> None:
    """And of a mean of their own."""
    slopes = pm.Normal("slopes", pm.Normal("level"), pm.HalfNormal("spread"), shape=4)
    mu = pm.math.exp(0.3 + pt.exp(pm.Normal("warp", 0.2) * DESIGN) @ slopes)
    pm.NegativeBinomial("y", mu=mu, alpha=pm.Exponential("alpha", 1.0), observed=COUNTS)


@form("warp", "spread_log__", "sigma_log__")
def more_coefficients_of_warped_inputs_than_data() -> None:
    wide = np.random.default_rng(9).standard_normal((N, N + 3))
    slopes = pm.Normal("slopes", 0.3, pm.HalfNormal("spread"), shape=N + 3)
    pm.Normal("y", pt.tanh(pm.Normal("warp", 0.2) * wide) @ slopes, pm.HalfNormal("sigma"), observed=COUNTS / 3.0)


@form("rate_log__", "sigma_log__", "spread_log__")
def decay() -> None:
    """Linear in all but a rate; of two variables that the data share out between them."""
    rate, t = pm.LogNormal("rate"), np.linspace(0.0, 3.0, N)
    start, spread = pm.Normal("start", 1.0, shape=5), pm.HalfNormal("spread")
    mean = pm.Normal("floor") + start[GROUP] * pt.exp(-rate * t) + spread * pm.Normal("slope")
    pm.Normal("y", mean, pm.HalfNormal("sigma"), observed=COUNTS / 3.0)
    pm.Bernoulli("z", logit_p=start[GROUP[::-1]] / rate, observed=BINARY)


@form("slope_log__")
def item_response() -> None:
    """Difficulty and ability of many, and discriminations that multiply both."""
    ability, easiness = pm.Normal("ability", shape=8), pm.Normal("easiness", 0.2, 0.7, shape=3)
    slope, item = pm.LogNormal("slope", 0.0, 0.5, shape=3), np.arange(N) % 3
    pm.Bernoulli("y", logit_p=slope[item] * (ability[np.arange(N) % 8] + easiness[item]), observed=BINARY)


@form("slope_log__", "spread_log__")
def sparse_item_response() -> None:
    ability = pm.Normal("ability", 0.3, pm.HalfNormal("spread"), shape=N)
    slope = pm.LogNormal("slope", 0.0, 0.5, shape=3)
    poisson(slope[np.arange(N) % 3] * ability[::-1])


@form("load", "sigma_log__")
def factor_model() -> None:
    """Linear in loads and in factors, though not in both: the many are latent, and what is added beside them."""
    load, factor, level = pm.Normal("load", 1.0, shape=2), pm.Normal("factor", shape=N), pm.Normal("level")
    mean = level + load * factor[:, None]
    pm.Normal("y", mean, pm.HalfNormal("sigma"), observed=np.stack([COUNTS, COUNTS[::-1]], axis=1) / 3.0)


@form("period_log__", "ls_log__", "eta_log__")
def periodic_hsgp() -> None:
    """Its basis functions move with the period."""
    kernel = pm.gp.cov.Periodic(1, period=pm.LogNormal("period"), ls=pm.HalfNormal("ls"))
    (cosines, sines), psd = pm.gp.HSGPPeriodic(m=4, scale=pm.HalfNormal("eta"), cov_func=kernel).prior_linearized(X)
    beta = pm.Normal("beta", size=7)
    poisson(cosines @ (psd * beta[:4]) + sines[:, 1:] @ (psd[1:] * beta[4:]))


@form("spread_log__", "weight")
def filtered_by_a_scan() -> None:
    """What is inside of one operation may be 0 at some θ alone, as here at a positive weight."""
    steps, weight = pm.MvNormal("steps", np.zeros(N), cov=pm.HalfNormal("spread") * np.eye(N)), pm.Normal("weight", 0.2)
    poisson(
        pytensor.scan(
            lambda step, level, weight: pt.maximum(-weight, 0.0) * level + step, sequences=[steps],
            outputs_info=[pt.zeros(())], non_sequences=[weight], return_updates=False,
        )
    )  # fmt: skip


@form("warp", "spread_log__")
def factors_as_long_as_the_coefficients() -> None:
    """And some of them next to nothing beside the others."""
    slopes, sizes = pm.Normal("slopes", 0.0, pm.HalfNormal("spread"), shape=4), np.array([1.0, 1e-12, 1e-10, 1.0])
    poisson(DESIGN @ (slopes * pt.exp(pm.Normal("warp", 0.2) * pt.arange(slopes.shape[0]))) + (DESIGN * sizes) @ slopes)


@form("ls_log__", "weight_log__")
def process_of_two_likelihoods_that_read_it_apart() -> None:
    f = gp_prior("f", ls=pm.HalfNormal("ls"), mean=0.3, reparameterize=False)
    poisson(f)
    pm.Bernoulli("z", logit_p=pm.HalfNormal("weight") * f, observed=BINARY)


@form("ls_log__", "weight", "warp", "start")
def process_and_coefficients_of_warped_inputs() -> None:
    """From the place where the multiplier is 0 on."""
    f, warp = gp_prior("f", ls=pm.HalfNormal("ls")), pm.Normal("warp", 0.2)
    slopes = pm.MvNormal("slopes", pm.Normal("start") * np.ones(4), cov=np.eye(4) + 0.4)
    poisson(pm.Normal("weight") * f + pt.exp(warp * DESIGN) @ slopes + warp)


@form("eta_log__", "weight")
def grid_times_what_may_be_nothing() -> None:
    poisson(pt.maximum(pm.Normal("weight", 0.5), 0.0) * grid(amplitude=pm.HalfNormal("eta"), mean=0.3)[PLACES])


@form("spread_log__", "other_log__")
def coefficients_of_two_likelihoods_with_different_scales() -> None:
    raw = pm.Normal("raw", shape=5)
    poisson(pm.HalfNormal("spread") * raw[GROUP])
    pm.Bernoulli("z", logit_p=pm.HalfNormal("other") * raw[GROUP], observed=BINARY)


@form("ls_log__", "weight")
def process_times_what_is_nothing_in_half_of_its_range() -> None:
    weight = pm.Normal("weight", 0.5)
    poisson((weight + abs(weight)) * gp_prior("f", ls=pm.HalfNormal("ls"), mean=0.3, reparameterize=False))


@form("weight_log__")
def process_times_a_product_over_an_axis() -> None:
    """No product of its factors, one by one."""
    poisson(pt.prod(pm.HalfNormal("weight") * DESIGN, axis=1) * gp_prior("f"))


@form("weight_log__", "power_log__")
def process_times_nothing_at_one_place() -> None:
    poisson((pm.HalfNormal("weight") * X[:, 0] ** pm.HalfNormal("power")) * gp_prior("f", reparameterize=False))


@form("ls_log__", "level")
def additive() -> None:
    f = gp_prior("f", ls=pm.HalfNormal("ls"), mean=0.3, reparameterize=False)
    poisson(f + gp_prior("g", ls=0.1) + pm.Normal("level"))


@form("ls_log__", "eta_log__")
def additive_read_apart() -> None:
    f = gp_prior("f", ls=pm.HalfNormal("ls"), reparameterize=False)
    g = pm.HalfNormal("eta") * np.eye(5) + 0.3
    g = pm.MvNormal("g", np.arange(5.0) / 9.0, cov=g @ g.T)
    pm.Poisson("y", mu=pm.math.exp(f[INDEX] + 0.5 * g[INDEX % 5]), observed=INDEX_COUNTS)


@form("ls_log__", "level", "sigma_log__")
def rows_read_across() -> None:
    """Whitened rows: the variable is (rows, places), and what predictors read of it (places, rows)."""
    f = gp_prior("f", ls=pm.Gamma("ls", 2.0, 4.0), n_outputs=2)
    counts = np.stack([COUNTS, COUNTS[::-1]])
    pm.Normal("y", f * np.ones((2, N)) + pm.Normal("level"), pm.HalfNormal("sigma"), observed=counts)


@form("ls_log__", "sigma_log__")
def rows_with_a_noise_each() -> None:
    f = gp_prior("f", ls=pm.Gamma("ls", 2.0, 4.0), n_outputs=2)
    sigma = pm.HalfNormal("sigma", shape=2)
    pm.Normal("y", f, sigma[:, None], observed=np.stack([COUNTS, COUNTS[::-1]]) / 3.0)


@form("ls_log__", "nu_log__", "sigma_log__")
def rows_with_a_noise_for_every_place() -> None:
    f = gp_prior("f", ls=pm.Gamma("ls", 2.0, 4.0), n_outputs=2)
    nu, sigma = pm.Gamma("nu", 4.0, 1.0), pm.HalfNormal("sigma", shape=N)
    pm.StudentT("y", nu=nu, mu=f, sigma=sigma, observed=np.stack([COUNTS, COUNTS[::-1]]) / 3.0)


@form("ls_log__")
def trials_by_column() -> None:
    f = gp_prior("f", ls=pm.Gamma("ls", 2.0, 4.0), n_outputs=2)
    pm.Binomial("y", n=np.arange(4, 4 + N), logit_p=f, observed=np.stack([COUNTS, COUNTS[::-1]]))


@form("ls_log__", "middle")
def centred_rows_of_two_means() -> None:
    covariance = pm.gp.cov.Matern32(1, ls=pm.Gamma("ls", 2.0, 4.0))(X) + 0.1 * np.eye(N)
    middle = pm.Normal("middle")
    f = pm.MvNormal("f", pt.stack([middle * pt.ones(N), pt.arange(N) / 3.0]), cov=covariance, shape=(2, N))
    pm.Poisson("y", mu=pm.math.exp(f[1]), observed=COUNTS)
    pm.Bernoulli("z", logit_p=f[::-1].T, observed=np.stack([BINARY, BINARY[::-1]], axis=1))


@form("middle")
def rows_that_stand_still() -> None:
    f = pm.MvNormal("f", np.zeros(N), cov=np.eye(N) + 0.4, shape=(2, N))
    pm.Poisson("y", mu=pm.math.exp(f + pm.Logistic("middle", shape=(2, 1))), observed=np.stack([COUNTS, COUNTS[::-1]]))


@form("scale_log__")
def stack_of_one_covariance() -> None:
    f = pm.MvNormal("f", np.zeros(N), cov=pm.HalfNormal("scale") * np.stack([np.eye(N) + 0.4]))
    pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS[None])


@form("scale_log__", "level", "sigma_log__")
def table_of_rows_with_covariances() -> None:
    covariances = pm.HalfNormal("scale") * (np.eye(4) + 0.3) * np.array([1.0, 2.0])[:, None, None, None]
    mean = pm.Normal("level", shape=(2, 1, 1)) * np.ones((2, 1, 4))
    f = pm.MvNormal("f", mean, cov=covariances, shape=(2, 3, 4))
    pm.Normal("y", f, pm.HalfNormal("sigma"), observed=np.linspace(-1.0, 1.0, 24).reshape(2, 3, 4))


@form("scale_log__", "level", "sigma_log__")
def rows_of_two_covariances() -> None:
    covariances = pm.HalfNormal("scale") * np.stack([np.eye(N) + 0.4, 2.0 * np.eye(N)])
    f = pm.MvNormal("f", pm.Normal("level") * np.ones(N), cov=covariances)
    pm.Normal("y", f, pm.HalfNormal("sigma", shape=2)[:, None], observed=np.stack([COUNTS, COUNTS[::-1]]) / 3.0)


@form("scale_log__")
def factors_of_two_rows_of_which_each_observation_reads_one_value() -> None:
    factors = np.stack([np.linalg.cholesky(np.eye(N) + 0.4), np.eye(N) * 1.5])
    f = pm.MvNormal("f", np.zeros(N), chol=pm.HalfNormal("scale") * factors)
    poisson(f.T[INDEX % N, np.arange(len(INDEX)) % 2][:N])


@form("ls_log__", "level")
def averaged_rows() -> None:
    f = gp_prior("f", ls=pm.HalfNormal("ls"), n_outputs=2)
    poisson(np.array([0.5, -0.3]) @ f + pm.Normal("level"))


@form("ls_log__", "alpha_log__")
def centred_rows_beside_a_vector() -> None:
    covariance = pm.gp.cov.Matern32(1, ls=pm.HalfNormal("ls"))(X) + 0.1 * np.eye(N)
    f = pm.MvNormal("f", np.linspace(0.0, 1.0, N), cov=covariance, shape=(2, N))
    mu = pm.math.exp(f[0] + f[1][::-1] + gp_prior("g"))
    pm.NegativeBinomial("y", mu=mu, alpha=pm.Exponential("alpha", 1.0), observed=COUNTS)


@form("ls_log__", "eta_log__", "level")
def scaled_rows() -> None:
    """A number for each, and whitened: the variable is (rows, places), and its source (places, rows)."""
    f = gp_prior("f", ls=pm.HalfNormal("ls"), n_outputs=2)
    eta = pm.Normal("level") + pm.HalfNormal("eta", shape=2)[:, None] * f
    pm.Poisson("y", mu=pm.math.exp(eta), observed=np.stack([COUNTS, COUNTS[::-1]]))


@form("scale_log__")
def correlated_coefficients() -> None:
    covariance = pm.HalfNormal("scale") * (np.eye(4) + 0.4)
    poisson(pm.math.dot(DESIGN, pm.MvNormal("slopes", np.ones(4), cov=covariance)))


def grid(name: str = "f", ls=0.4, *, amplitude=1.0, n: tuple[int, ...] = (3, 4), mean=0.0) -> pt.TensorVariable:
    """A process on a grid of twelve places."""
    kernels = [(amplitude**2 if i == 0 else 1.0) * pm.gp.cov.Matern52(1, ls=(1.0 + i) * ls) for i in range(len(n))]
    gp = pm.gp.LatentKron(mean_func=pm.gp.mean.Constant(mean), cov_funcs=kernels)
    return gp.prior(name, Xs=[np.linspace(0.0, 1.0, size)[:, None] for size in n])


PLACES = np.arange(N) % 12


@form("ls_log__", "eta_log__", "level")
def on_a_grid() -> None:
    f = grid(ls=pm.LogNormal("ls", -0.5, 0.4), amplitude=pm.HalfNormal("eta"), mean=pm.Normal("level"))
    pm.Poisson("y", mu=pm.math.exp(f[PLACES]), observed=COUNTS)


@form("ls_log__", "alpha_log__")
def on_a_grid_of_three_axes_read_as_an_array() -> None:
    f = grid(ls=pm.LogNormal("ls", -0.5, 0.4), n=(2, 3, 2)).reshape((6, 2))
    y = np.arange(12).reshape(6, 2)
    pm.NegativeBinomial("y", mu=pm.math.exp(f), alpha=pm.Exponential("alpha", 1.0), observed=y)


@form("shift")
def on_a_grid_that_stands_still() -> None:
    pm.Poisson("y", mu=pm.math.exp(grid()[PLACES] + pm.Normal("shift")), observed=COUNTS)


@form("ls_log__", "level")
def on_a_grid_beside_another() -> None:
    f = grid(ls=pm.LogNormal("ls", -0.5, 0.4)) + pm.Normal("level")
    poisson(f[PLACES] + gp_prior("g", ls=0.1, reparameterize=False))


@form("eta_log__")
def averages_over_a_grid() -> None:
    poisson(np.random.default_rng(4).dirichlet(np.ones(12), N) @ grid(amplitude=pm.HalfNormal("eta")))


@form("ls_log__")
def beside_others() -> None:
    ls = pm.Gamma("ls", 2.0, 4.0)
    poisson(gp_prior("f", ls=ls))
    pm.Normal("apart")
    pm.Normal("w", ls, 1.0, observed=np.array([0.3, 0.7]))
    pm.Potential("tilt", -(ls**2))


def build(name: str) -> pm.Model:
    with pm.Model() as model:
        FORMS[name][0]()
    return model


def random_point(model: pm.Model, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: value + 0.5 * rng.standard_normal(value.shape) if value.dtype.kind == "f" else value
        for name, value in model.initial_point().items()
    }


def joint_of(model: pm.Model, vars=None) -> JointModel:  # noqa: A002
    _, joint = read_together(model, vars, model.initial_point())
    assert isinstance(joint, JointModel), joint
    return joint


def log_density_of_a_sum(block, theta: np.ndarray, x: np.ndarray) -> float:
    """Priors and likelihood."""
    designs, mean, seconds, locations, scales, _ = block.prior(theta)
    total = 0.0
    eta, ends = mean.copy(), np.cumsum([0, *block.sizes])
    if block.design_shape is not None:
        designs = [designs[:, a:b] for a, b in itertools.pairwise(ends)]
    for i, kind in enumerate(block.kinds):
        values, second = x[ends[i] : ends[i + 1]], seconds[i]
        if kind == "kronecker":
            moved = reduce(np.kron, [np.linalg.cholesky(k) for k in second]) @ (np.sign(scales[i]) * values)
            total += norm.logpdf(values).sum()
        elif kind == "independent":
            moved = second * (values - locations[i]) / scales[i]
            total += norm.logpdf(values, locations[i], scales[i]).sum()
        elif kind == "centred":
            moved = scales[i] * (values - locations[i])
            total += multivariate_normal.logpdf(moved, np.zeros(values.size), second)
            total += np.log(np.abs(np.broadcast_to(scales[i], values.shape))).sum()
        else:
            moved = np.linalg.cholesky(second) @ (np.sign(scales[i]) * values)
            total += norm.logpdf(values).sum()
        eta += moved if designs[i] is None else designs[i] @ moved
    return total + block.likelihood(theta, eta)[0]


def log_density(joint: JointModel, point: dict[str, np.ndarray]) -> float:
    """Rest, likelihoods and dense priors."""
    theta = joint.theta.pack(point)
    total = joint.rest(theta)[0]
    for block in joint.blocks:
        x = np.concatenate([np.ravel(point[name]) for name in block.value_names])
        if block.kinds is not None:
            total += log_density_of_a_sum(block, theta, x)
            continue
        if block.design_shape is not None:
            design, mean, spread, location, deviation, _ = block.prior(theta)
            eta = mean + design @ (spread * (x - location) / deviation)
            total += norm.logpdf(x, location, deviation).sum() + block.likelihood(theta, eta)[0]
            continue
        mean, prior, shift = block.prior(theta)
        if isinstance(prior, tuple):
            eta = mean + reduce(np.kron, [np.linalg.cholesky(k) for k in prior]) @ x
            total += norm.logpdf(x).sum() + block.likelihood(theta, eta)[0]
            continue
        eta, rows = np.empty(block.n_sites), np.arange(x.size)[None] if block.rows is None else block.rows
        priors = prior if prior.ndim > 2 else [prior] * len(rows)
        for values, where, own in zip(x.reshape(rows.shape), rows, priors, strict=True):
            eta[where] = values + shift[where] if block.centred else mean[where] + np.linalg.cholesky(own) @ values
            row = multivariate_normal.logpdf(eta[where], mean[where], own)
            total += row if block.centred else norm.logpdf(values).sum()
        total += block.likelihood(theta, eta)[0]
    return total


def differences(function, at: np.ndarray, h: float = 1e-5) -> np.ndarray:
    return np.array([(function(at + h * e) - function(at - h * e)) / (2 * h) for e in np.eye(at.size)])


def assert_is_the_model(joint: JointModel, model: pm.Model, seeds=(1, 2)) -> None:
    exact = exact_log_density(model)
    for seed in seeds:
        point = random_point(model, seed)
        joint.bind(point)
        assert log_density(joint, point) == pytest.approx(float(exact(point)), rel=1e-8, abs=1e-7)


def differentiated(block, theta: np.ndarray):
    """The mean, and everything else of a prior that has a derivative, in the order of the weights."""
    prior = block.prior(theta)
    if block.kinds is not None:
        designs, mean, second, *_ = prior
        if block.design_shape is not None:
            designs = designs.data if sparse.issparse(designs) else designs
        elif block.has_moving_design:
            designs = [d.toarray() if sparse.issparse(d) else d for d in designs]
    elif block.design_shape is not None:
        designs, mean, second, *_ = prior
        designs = designs.data if sparse.issparse(designs) else designs
    else:
        mean, second, *_ = prior
    return mean, (second, designs) if block.has_moving_design else second


def bars_of(second, rng: np.random.Generator):
    """An array of the same shape for every array of what a prior states besides its mean."""
    if isinstance(second, np.ndarray):
        return rng.standard_normal(second.shape)
    return [bars_of(one, rng) for one in second]


def ordered(bars, order: str):
    return np.asarray(bars, order=order) if isinstance(bars, np.ndarray) else [ordered(bar, order) for bar in bars]


def contracted(second, bars) -> float:
    if isinstance(second, np.ndarray):
        return float((second * bars).sum())
    return sum(contracted(one, bar) for one, bar in zip(second, bars, strict=True))


@cache
def made(name: str) -> tuple[pm.Model, JointModel]:
    """A form's model and what is compiled of it, once for all tests of it."""
    model = build(name)
    return model, joint_of(model)


def made_by_values(name: str) -> tuple[pm.Model, JointModel]:
    """The same with the matrices of sums in the size of the latent values, however few the observations are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pymc_rmhmc.model.linear_blocks.MORE_OBSERVATIONS", 0.0)
        return made.__wrapped__(name)


@pytest.mark.parametrize("name", FORMS)
def test_the_parts_are_the_model_and_their_gradients_are_differences(name):
    model, joint = made(name)
    assert set(joint.theta.names) == FORMS[name][1]
    assert_parts_are_the_model(model, joint)


# Of every kind of vector, by a constant matrix and by one that moves, with sites that stand still and that move.
BY_VALUES = [
    "scaled_processes_of_a_sum", "process_and_coefficients_of_warped_inputs", "grid_times_what_may_be_nothing",
    "on_a_grid_beside_another", "centred_rows_beside_a_vector", "process_times_nothing_at_one_place",
]  # fmt: skip


@pytest.mark.parametrize("name", BY_VALUES)
def test_sums_in_the_size_of_their_values_are_the_model(name):
    model, joint = made_by_values(name)
    assert all(block.design_shape == (block.n_sites, block.size) for block in joint.blocks)
    assert_parts_are_the_model(model, joint)
    assert_gradient_is_a_difference_and_values_are_found_again(model, joint)


def assert_parts_are_the_model(model: pm.Model, joint: JointModel) -> None:
    assert_is_the_model(joint, model)
    rng = np.random.default_rng(3)
    theta = joint.theta.pack(random_point(model, 4))
    joint.bind(random_point(model, 4))
    near = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(joint.rest(theta)[1], differences(lambda at: joint.rest(at)[0], theta), **near)
    for block in joint.blocks:
        # Not symmetric: a triangle that stands for both must do.
        mean_bar, second_bars = rng.standard_normal(block.n_sites), bars_of(differentiated(block, theta)[1], rng)

        def along(at, block=block, mean_bar=mean_bar, second_bars=second_bars):
            mean, second = differentiated(block, at)
            return mean @ mean_bar + contracted(second, second_bars)

        for order in ("C", "F"):
            pulled = block.prior_pullback(theta, mean_bar, ordered(second_bars, order))
            np.testing.assert_allclose(pulled, differences(along, theta), **near)
        eta = rng.standard_normal(block.n_sites)
        if block.has_moving_sites:
            pair = rng.standard_normal((2, block.n_sites))
            bar = rng.standard_normal(block.information(theta, pair).size)
            exact = differences(lambda at, block=block, pair=pair, bar=bar: block.information(at, pair) @ bar, theta)
            np.testing.assert_allclose(block.information_pullback(theta, pair, bar), exact, **near)
            assert (block.information(theta, pair) >= 0.0).all()
        _, slope, by_theta = block.likelihood(theta, eta)
        by_eta = differences(lambda at, block=block: block.likelihood(theta, at)[0], eta)
        np.testing.assert_allclose(slope, by_eta, **near)
        exact = differences(lambda at, block=block, eta=eta: block.likelihood(at, eta)[0], theta)
        np.testing.assert_allclose(by_theta, exact, **near)


# Each form of the coefficients' chart, with a noise and with a dispersion.
MOVING = {
    "noise_of_a_mixed_model": "Arrow",
    "dispersion_of_a_mixed_model": "Arrow",
    "noise_of_a_regression": "ManyObservations",
    "dispersion_of_a_regression": "ManyObservations",
    "noise_beside_more_coefficients_than_data": "ManyCoefficients",
    "mixed_model_scaled_and_hierarchical": "ManyCoefficients",
}


@pytest.mark.parametrize("name", MOVING)
def test_sites_of_coefficients_follow_the_likelihood_and_the_gradient_is_differences(name):
    (model, joint), rng = made(name), np.random.default_rng(5)
    joint.bind(model.initial_point())
    (block,), d = joint.blocks, joint.theta.size
    theta, n = 0.3 * rng.standard_normal(d), block.n_sites
    fitted = GaussianSites(rng.standard_normal(n), rng.exponential(1.0, n))
    sites = moving_sites(block, theta, fitted, rng.standard_normal(n), rng.exponential(0.3, n))
    target = JointTarget(joint, [sites], MarginalChart.linear(theta, np.eye(d)))
    target.at(np.zeros(target.size))  # what is made once is made at another θ
    position = 0.7 * rng.standard_normal(target.size)
    point = target.at(position)
    assert type(point.conditionals[0]._weighted).__name__ == MOVING[name]
    slopes = differences(lambda at: target.at(at).log_density, position)
    np.testing.assert_allclose(point.gradient, slopes, rtol=1e-5, atol=1e-5)
    if "sigma_log__" in joint.theta.names:
        which = joint.theta.slices[joint.theta.names.index("sigma_log__")]
        for power in (1e-6, 1e6):
            position[which] = -0.5 * np.log(power)
            assert block.information(target.at(position).theta, sites.eta) == pytest.approx(power * sites.information)
            assert not target.at(position).failure


def test_sites_of_coefficients_stand_still_where_not_all_likelihoods_have_parameters():
    assert not joint_of(build("coefficients_of_a_noise_and_of_counts")).blocks[0].has_moving_sites


TARGETS = [
    "on_a_grid", "on_a_grid_of_three_axes_read_as_an_array", "averages_over_a_grid", "rows_read_across",
    "centred_rows_of_two_means", "rows_of_two_covariances", "averaged_rows",
    "table_of_rows_with_covariances", "stack_of_one_covariance", "centred_rows_beside_a_vector",
    "scaled_rows", "factors_of_two_rows_of_which_each_observation_reads_one_value", "rows_that_stand_still",
    "exponents_of_exponents", "scaled_process", "process_times_a_number_of_any_sign",
    "whitened_process_of_any_sign", "scaled_processes_of_a_sum", "process_with_a_number_for_every_value",
    "scaled_on_a_grid", "coefficients_of_warped_inputs", "more_coefficients_of_warped_inputs_than_data", "decay",
    "item_response", "sparse_item_response", "factor_model", "periodic_hsgp",
    "process_of_two_likelihoods_that_read_it_apart", "process_and_coefficients_of_warped_inputs",
    "grid_times_what_may_be_nothing", "filtered_by_a_scan", "factors_as_long_as_the_coefficients",
]  # fmt: skip


@pytest.mark.parametrize("name", TARGETS)
def test_the_gradient_is_a_difference_and_values_are_found_again(name):
    """From the chart's coordinates through covariances to the model's hyperparameters."""
    assert_gradient_is_a_difference_and_values_are_found_again(*made(name))


def assert_gradient_is_a_difference_and_values_are_found_again(model: pm.Model, joint: JointModel) -> None:
    rng = np.random.default_rng(5)
    joint.bind({})
    block, d = joint.blocks[0], joint.theta.size
    fitted = GaussianSites(rng.standard_normal(block.n_sites), rng.exponential(1.0, block.n_sites))
    sites = moving_sites(block, np.full(d, -0.3), fitted, *rng.exponential(0.5, (2, block.n_sites)))
    target = JointTarget(joint, [sites], MarginalChart.linear(np.full(d, -0.3), 0.3 * np.eye(d)))
    position = rng.standard_normal(target.size)
    exact = differences(lambda at: target.at(at).log_density, position)
    np.testing.assert_allclose(target.at(position).gradient, exact, rtol=1e-6, atol=1e-6)
    theta, values = 0.3 * rng.standard_normal(d), rng.standard_normal(block.size)
    initial, parts = model.initial_point(), np.split(values, np.cumsum(block.sizes)[:-1])
    named = {n: v.reshape(initial[n].shape) for n, v in zip(block.value_names, parts, strict=True)}
    for there in (theta, -theta):  # a number that multiplies a process has either sign
        point = target.at(target.enter(there, [values], rng))
        np.testing.assert_allclose(point.theta, there, atol=1e-9)
        np.testing.assert_allclose(target.latents(point)[0], values, atol=1e-7)
        exact = float(exact_log_density(model)(initial | joint.theta.unpack(there) | named))
        assert target.model_log_density(point) == pytest.approx(exact, abs=1e-6)


def test_a_site_that_nothing_observes_has_no_slope():
    joint = joint_of(build("gathered_with_repeats"))
    theta = np.zeros(joint.theta.size)
    joint.bind({})
    slope = joint.blocks[0].likelihood(theta, np.ones(N))[1]
    np.testing.assert_array_equal(slope == 0.0, ~np.isin(np.arange(N), INDEX))


def test_a_theta_is_packed_and_unpacked():
    model = build("poisson_with_an_offset")
    joint, point = joint_of(model), random_point(model, 5)
    back = joint.theta.unpack(joint.theta.pack(point))
    assert set(back) == set(joint.theta.names)
    for name, value in back.items():
        np.testing.assert_array_equal(value, point[name])


def logistic_with_a_scale() -> tuple[str, ...]:
    f = gp_prior("f", ls=pm.HalfNormal("ls"), mean=0.4, reparameterize=False)
    pm.Logistic("y", mu=f[INDEX] + pm.Normal("level"), s=pm.HalfNormal("s"), observed=INDEX_COUNTS / 2.0)
    return "level", "s_log__"


def laplace_of_a_scaled_process() -> tuple[str, ...]:
    f = pm.HalfNormal("amplitude") * gp_prior("f", ls=pm.HalfNormal("ls"))
    pm.Laplace("y", mu=f, b=pm.HalfNormal("b"), observed=COUNTS / 2.0)
    return "amplitude_log__", "b_log__"


def beta_of_a_link() -> tuple[str, ...]:
    mean, size = pm.math.invlogit(gp_prior("f", ls=pm.HalfNormal("ls"))), pm.HalfNormal("size", 5.0)
    pm.Beta("y", mean * size, (1.0 - mean) * size, observed=np.clip(COUNTS / 10.0, 0.1, 0.9))
    return ("size_log__",)


def censored_with_a_noise() -> tuple[str, ...]:
    noise = pm.Normal.dist(gp_prior("f", ls=pm.HalfNormal("ls")), pm.HalfNormal("noise"))
    pm.Censored("y", noise, lower=None, upper=2.0, observed=np.minimum(COUNTS, 2.0))
    return ("noise_log__",)


def registered_and_not_of_the_same_values() -> tuple[str, ...]:
    f = gp_prior("f", ls=pm.HalfNormal("ls"), reparameterize=False)
    pm.Logistic("y", mu=f[INDEX], s=pm.HalfNormal("s"), observed=INDEX_COUNTS / 2.0)
    pm.NegativeBinomial("z", mu=pm.math.exp(f + pm.Normal("level")), alpha=pm.HalfNormal("alpha"), observed=COUNTS)
    return "s_log__", "alpha_log__"


UNREGISTERED = [
    logistic_with_a_scale, laplace_of_a_scaled_process, beta_of_a_link, censored_with_a_noise,
    registered_and_not_of_the_same_values,
]  # fmt: skip


@pytest.mark.parametrize("make", UNREGISTERED, ids=lambda m: m.__name__)
def test_hyperparameters_of_likelihoods_that_are_not_registered_are_taken_in(make):
    with pm.Model() as model:
        alone = make()
    joint = joint_of(model)
    assert set(joint.theta.names) == {name for name in model.initial_point() if not name.startswith("f")}
    assert {joint.theta.names[i] for i in joint.of_likelihoods} == set(alone)
    assert_is_the_model(joint, model)
    # The slope by site and the gradient by θ, of a density that has kinks at no point that is drawn.
    (block,), rng = joint.blocks, np.random.default_rng(0)
    theta, eta = 0.3 * rng.standard_normal(joint.theta.size), 0.3 * rng.standard_normal(joint.blocks[0].n_sites)
    _, slope, gradient = block.likelihood(theta, eta)
    for along, found in ((0, gradient), (1, slope)):
        for i in range(found.size):
            ends = []
            for step in (-1e-6, 1e-6):
                moved = [theta.copy(), eta.copy()]
                moved[along][i] += step
                ends.append(block.likelihood(*moved)[0])
            assert found[i] == pytest.approx((ends[1] - ends[0]) / 2e-6, rel=1e-5, abs=1e-5)


def test_many_lengthscales_are_sampled_with_the_process():
    with pm.Model() as model:
        inputs = np.random.default_rng(0).standard_normal((N, 150))
        kernel = pm.gp.cov.ExpQuad(150, ls=10.0 + pm.HalfNormal("ls", shape=150))
        poisson(pm.gp.Latent(cov_func=kernel).prior("f", inputs, reparameterize=False))
    joint = joint_of(model)
    assert joint.theta.size == 150
    assert_is_the_model(joint, model)


def test_data_that_change_are_seen_at_the_next_bind():
    with pm.Model() as model:
        inputs, counts, exposure = pm.Data("x", X), pm.Data("counts", COUNTS), pm.Data("exposure", np.ones(N))
        kernel = pm.gp.cov.Matern32(1, ls=pm.HalfNormal("ls"))
        f = pm.gp.Latent(cov_func=kernel).prior("f", inputs, reparameterize=False)
        pm.Poisson("y", mu=exposure * pm.math.exp(f), observed=counts)
    joint, point = joint_of(model), random_point(model, 6)
    joint.bind(point)
    before = log_density(joint, point)
    with model:
        pm.set_data({"x": X**2, "counts": COUNTS[::-1].copy(), "exposure": np.linspace(1.0, 2.0, N)})
    assert log_density(joint, point) == before
    assert_is_the_model(joint, model)
    joint.bind(point)
    assert abs(log_density(joint, point) - before) > 0.1


def test_exponentials_are_those_of_the_data_that_are_bound():
    """They are kept from a prior to its derivative, and no longer: not where data change, nor in a pickle."""
    with pm.Model() as model:
        x = pm.Data("inputs", X[:, 0])
        distance = (x[:, None] - x[None, :]) ** 2 / pm.HalfNormal("ls")
        poisson(pm.MvNormal("f", np.zeros(N), cov=pt.exp(-distance) + np.eye(N)))
    joint = joint_of(model)
    (block,), theta, bars = joint.blocks, np.array([0.3]), (np.zeros(N), np.ones((N, N)))
    joint.bind({})
    block.prior(theta)
    assert block._prior._kept[1]
    assert not cloudpickle.loads(cloudpickle.dumps(joint)).blocks[0]._prior._kept[1]
    with model:
        pm.set_data({"inputs": 0.5 * X[:, 0]})
    joint.bind({})
    found = block.prior_pullback(theta, *bars)
    block.prior(theta)
    np.testing.assert_allclose(found, block.prior_pullback(theta, *bars), rtol=1e-12)


def test_a_pickled_joint_model_goes_on():
    model = build("two_gps_that_share")
    joint, point = joint_of(model), random_point(model, 7)
    copy = cloudpickle.loads(cloudpickle.dumps(joint))
    for held in (joint, copy):
        held.bind(point)
    assert log_density(copy, point) == log_density(joint, point)


def unregistered_beside_a_sum() -> None:
    f, g = gp_prior("f", ls=pm.HalfNormal("ls")), gp_prior("g")
    pm.Logistic("y", mu=f, s=1.0, observed=COUNTS / 2.0)
    pm.Poisson("z", mu=pm.math.exp(f + g), observed=COUNTS)


def outputs_of_which_one_is_unregistered() -> None:
    f = gp_prior("f", ls=pm.HalfNormal("ls"), n_outputs=2)
    pm.Logistic("y", mu=f[0], s=pm.HalfNormal("s"), observed=COUNTS / 2.0)
    pm.Poisson("z", mu=pm.math.exp(f[1] + pm.Normal("level")), observed=COUNTS)


def unregistered_beside_averages() -> None:
    f = gp_prior("f", ls=pm.HalfNormal("ls"))
    pm.Logistic("y", mu=f, s=1.0, observed=COUNTS / 2.0)
    pm.Poisson("z", mu=pm.math.exp(f.mean()), observed=3)


def many_rows() -> None:
    covariances = pm.HalfNormal("scale") * np.stack([np.eye(2) + 0.1 * i for i in range(9)])
    pm.Poisson("y", mu=pm.math.exp(pm.MvNormal("f", np.zeros(2), cov=covariances).sum(axis=0)), observed=np.ones(2))


def more_lengthscales_than_any() -> None:
    inputs = np.random.default_rng(0).standard_normal((N, 1001))
    kernel = pm.gp.cov.ExpQuad(1001, ls=pm.HalfNormal("ls", shape=1001))
    poisson(pm.gp.Latent(cov_func=kernel).prior("f", inputs))


REASONS = [
    (more_lengthscales_than_any, "there are 1001 hyperparameters, more than 1000"),
    (many_rows, "f has more than 8 rows, which would be one vector"),
    (
        unregistered_beside_a_sum,
        "the likelihood of f + g is not registered, and reads something else than one vector with a covariance",
    ),
    (outputs_of_which_one_is_unregistered, "the likelihood of f is not registered, and f has rows"),
    (unregistered_beside_averages, "the likelihood of f is not registered, and another reads more than single values"),
    (MODELS["centred"], "no block depends on continuous hyperparameters"),
]


@pytest.mark.parametrize(("make", "reason"), REASONS, ids=lambda v: getattr(v, "__name__", ""))
def test_what_cannot_be_sampled_together_says_why(make, reason):
    with pm.Model() as model:
        inner = make()
    model = inner or model
    assert read_together(model, None, model.initial_point())[1] == reason


def test_a_process_times_a_whole_number_that_moves_is_sampled_given_that():
    with pm.Model() as model:
        f = pm.MvNormal("f", np.zeros(N), cov=pm.HalfNormal("scale") * (np.eye(N) + 0.4))
        poisson(pt.cast(pm.Normal("weight", 1.7), "int64") * f)
    structure, reason = read_together(model, None, model.initial_point())
    assert reason == "how the predictor reads f depends on weight through an index, a comparison or a whole number"
    compiled, exact = compile_model(structure), exact_log_density(model)
    for seed in (1, 2):
        point = random_point(model, seed)
        assert conditional_density(compiled, point) == pytest.approx(float(exact(point)), abs=1e-8)


def test_a_design_that_a_variable_left_to_others_moves_is_none():
    with pm.Model() as model:
        warp, spread = pm.Normal("warp"), pm.HalfNormal("spread")
        poisson(pt.exp(warp * DESIGN) @ pm.Normal("slopes", 0.0, spread, shape=4))
    _, reason = read_together(model, ["slopes", "warp"], model.initial_point())
    assert isinstance(reason, JointModel)
    with pytest.raises(UnsupportedModelError, match="how the predictor reads slopes depends on warp"):
        read_together(model, ["slopes", "spread"], model.initial_point())


@pytest.mark.parametrize(("n", "shape"), [(6, None), (7, (7, 5)), (5000, (5000, 5))])
def test_a_vector_that_more_observations_read_has_its_matrices_in_its_own_size(n, shape):
    with pm.Model() as model:
        f, load = pm.MvNormal("f", np.zeros(5), cov=pm.HalfNormal("scale") * (np.eye(5) + 0.4)), pm.Normal("load")
        pm.Poisson("y", mu=pm.math.exp(load * f[np.arange(n) % 5]), observed=np.ones(n))
    joint = joint_of(model)
    (block,) = joint.blocks
    assert block.design_shape == shape


def test_of_normals_that_are_multiplied_the_larger_are_latent():
    """However their lengths are written."""
    with pm.Model(coords={"item": range(2), "person": range(4)}) as model:
        slope, ability = pm.Normal("slope", 1.0, dims="item"), pm.Normal("ability", dims="person")
        pm.Bernoulli("y", logit_p=slope * ability[:, None], observed=np.arange(8).reshape(4, 2) % 2)
    joint = joint_of(model)
    assert (joint.theta.names, joint.blocks[0].value_names) == (("slope",), ("ability",))


def test_a_small_number_is_none_of_the_zeros_of_a_design():
    """Beside a large one it would look like nothing, and grow with θ all the same."""
    with pm.Model() as model:
        grown = np.array([[1.0, 1e-10]] * N) * pt.exp(pm.Normal("warp", shape=2))
        poisson(grown @ pm.Normal("slopes", shape=2))
    joint = joint_of(model)
    joint.bind({})
    found = joint.blocks[0].prior(np.array([0.0, 20.0]))[0]
    np.testing.assert_allclose(found, np.array([[1.0, 1e-10 * np.exp(20.0)]] * N), rtol=1e-9)


def test_directions_are_as_few_as_the_zeros_of_a_design_allow():
    for name, directions in (("sparse_item_response", 1), ("item_response", 2), ("coefficients_of_warped_inputs", 4)):
        _, joint = made(name)
        at = {joint.theta.symbol: np.ones(joint.theta.size)}
        assert joint.blocks[0]._moving.directions.eval(at).shape[0] == directions


def switched(x: pt.TensorVariable, least: float) -> pt.TensorVariable:
    return pt.switch(x > least, x, least)


@pytest.mark.parametrize("written", ["maximum", "switch"])
def test_a_zero_that_hyperparameters_make_is_none_of_a_design(written):
    """Entries before a changepoint are 0 at nearly all θ, and there all the same."""
    with pm.Model() as model:
        change = pm.Normal("change", 1.5, 2.0)
        after = np.arange(N)[:, None] - pt.stack([change, change + 3.0])
        poisson((pt.maximum if written == "maximum" else switched)(after, 0.0) @ pm.Normal("trend", shape=2))
    joint = joint_of(model)
    joint.bind({})
    for change in (-1.0, 2.5, 5.0):
        exact = np.maximum(np.arange(N)[:, None] - [change, change + 3.0], 0.0)
        np.testing.assert_array_equal(joint.blocks[0].prior(np.array([change]))[0], exact)
    assert_is_the_model(joint, model)


@pytest.mark.parametrize("changed", ["values", "zeros"])
def test_data_of_a_moving_design_may_change_where_it_is_not_zero(changed):
    data = DESIGN * (np.arange(4) != np.arange(N)[:, None] % 4)
    with pm.Model() as model:
        inputs = pm.Data("inputs", data)
        poisson((inputs * pm.HalfNormal("scale", shape=4) ** 2) @ pm.Normal("slopes", pm.Normal("level"), shape=4))
    joint, point = joint_of(model), random_point(model, 6)
    joint.bind(point)
    before = log_density(joint, point)
    with model:
        pm.set_data({"inputs": 2.0 * data if changed == "values" else data[:, ::-1].copy()})
    if changed == "zeros":
        with pytest.raises(DataError, match="inputs: the latent values that predictors read have changed"):
            joint.bind(point)
        return
    joint.bind(point)
    assert abs(log_density(joint, point) - before) > 0.1
    assert_is_the_model(joint, model)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (lambda w: w, True),
        (lambda w: abs(w), True),
        (lambda w: pt.sqrt(w**2 + 1.0) * 3.0 / w, True),
        (lambda w: pt.exp(pt.maximum(w, 0.0)), True),
        (lambda w: (1.0 + w) ** 2 - pt.stack([w, 2.0 * w])[1], True),
        (lambda w: pt.tanh(w) ** 1.5, True),
        (lambda w: w + pt.exp(abs(w)), False),
        (lambda w: w - pt.sqrt(w**2), False),
        (lambda w: pt.maximum(w, 0.0), False),
        (lambda w: pt.floor(w), False),
        (lambda w: pt.constant(2.0), False),
        (lambda w: pm.Poisson("k", 1.0) * w, False),
        (lambda w: pt.as_tensor([0.0, 1.0])[pt.cast(w > 0.0, "int64")], False),
    ],
)
def test_a_multiplier_that_vanishes_in_no_region(expression, expected):
    with pm.Model() as model:
        multiplier = expression(pm.Normal("w"))
        assert is_never_zero(model, multiplier) == expected


def test_a_root_of_what_is_negative_is_no_number():
    """For coefficients, and for a process: only a 0 is raised to what has a slope."""
    with pm.Model() as model:
        weight = pm.Normal("weight", 0.5)
        f, b = pm.MvNormal("f", np.zeros(N), cov=np.eye(N)), pm.Normal("b", shape=5)
        poisson(pt.sqrt(weight) * f + (pt.sqrt(weight) * b)[GROUP])
    joint = joint_of(model, ["f", "b", "weight"])
    joint.bind({})
    for weight, is_known in ((0.5, True), (0.0, True), (-0.5, False)):
        _, _, seconds, _, (multiplier, _), _ = joint.blocks[0].prior(np.array([weight]))
        for array in (multiplier, *seconds):
            assert np.isfinite(array).all() == is_known


def test_the_shape_of_a_latent_that_is_left_in_a_graph_is_no_input():
    """A chain that took its own last draw for another step's would begin anew at every draw."""
    with pm.Model() as model:
        f = pm.MvNormal("f", np.zeros(N), cov=np.eye(N))
        poisson(pm.HalfNormal("weight") * (f - f.mean()))
    assert joint_of(model).inputs == ()


TIMES = np.arange(N)


def scaled_vector(size: int) -> pt.TensorVariable:
    return pm.MvNormal("f", np.zeros(size), cov=pm.HalfNormal("scale") * (np.eye(size) + 0.4))


def an_index_that_is_drawn() -> None:
    poisson(scaled_vector(3)[pm.Categorical("z", p=np.ones(3) / 3.0, shape=N)])


def a_level_before_a_switchpoint_and_one_after_it() -> None:
    levels = pm.Normal("levels", 0.0, pm.HalfNormal("scale"), shape=2)
    poisson(levels[(pm.DiscreteUniform("z", 1, N - 1) <= TIMES).astype("int64")])


def a_step_from_a_switchpoint_on() -> None:
    z, slopes = pm.DiscreteUniform("z", 1, N - 1), pm.Normal("slopes", 0.0, pm.HalfNormal("scale"), shape=2)
    poisson(slopes[0] + slopes[1] * (z <= TIMES))


def a_step_at_a_time_that_is_continuous() -> None:
    z, slopes = pm.Uniform("z", 0.0, N, initval=3.5), pm.Normal("slopes", 0.0, pm.HalfNormal("scale"), shape=2)
    poisson(slopes[0] + slopes[1] * (z < TIMES))


def a_step_written_as_a_number() -> None:
    z, slopes = pm.Uniform("z", 0.0, N, initval=3.5), pm.Normal("slopes", 0.0, pm.HalfNormal("scale"), shape=4)
    poisson((DESIGN * pt.cast(z <= TIMES, "float64")[:, None]) @ slopes)


def levels_at_a_time_that_is_continuous() -> None:
    levels = pm.Normal("levels", 0.0, pm.HalfNormal("scale"), shape=2)
    poisson(levels[(pm.Uniform("z", 0.0, N, initval=3.5) < TIMES).astype("int64")])


def a_vector_that_is_in_or_out() -> None:
    poisson(0.3 + pm.Bernoulli("z", 0.5) * scaled_vector(N))


def one_vector_or_the_other() -> None:
    z, f = pm.Bernoulli("z", 0.5), scaled_vector(N)
    poisson(pm.math.switch(z, f, f[::-1]))


def slopes_of_a_design_that_is_switched_on() -> None:
    z, slopes = pm.DiscreteUniform("z", 1, N - 1), pm.Normal("slopes", 0.0, pm.HalfNormal("scale"), shape=4)
    poisson(pt.einsum("ij,j->i", DESIGN * (z <= TIMES)[:, None], slopes))


def levels_as_long_as_a_switchpoint_says() -> None:
    z, levels = pm.DiscreteUniform("z", 1, N - 1), pm.Normal("levels", 0.0, pm.HalfNormal("scale"), shape=2)
    poisson(pt.concatenate([pt.full((z,), levels[0]), pt.full((N - z,), levels[1])]))


def a_level_as_far_as_a_switchpoint() -> None:
    z, levels = pm.DiscreteUniform("z", 1, N - 1), pm.Normal("levels", 0.0, pm.HalfNormal("scale"), shape=2)
    poisson(pt.concatenate([levels[0] + pt.zeros(z), levels[1] + pt.zeros(N)[z:]]))


def two_vectors_each_with_an_index() -> None:
    f, g = scaled_vector(3), pm.MvNormal("g", np.zeros(3), cov=np.eye(3))
    u, z = (pm.Categorical(name, p=np.ones(3) / 3.0, shape=N) for name in "uz")
    poisson(f[u] + g[z])


def values_and_weights_of_an_index() -> None:
    z = pm.Categorical("z", p=np.ones(3) / 3.0, shape=N)
    poisson(pt.as_tensor(np.array([1.0, 2.0, 3.0]))[z] * scaled_vector(3)[z])


READ_OTHERWISE = {
    slopes_of_a_design_that_is_switched_on: [{"z": np.array(2)}, {"z": np.array(5)}],
    levels_as_long_as_a_switchpoint_says: [{"z": np.array(2)}, {"z": np.array(5)}],
    a_level_as_far_as_a_switchpoint: [{"z": np.array(2)}, {"z": np.array(5)}],
    two_vectors_each_with_an_index: [{"z": np.arange(N) % 3}, {"z": np.arange(N) // 3, "u": np.arange(N)[::-1] // 3}],
    values_and_weights_of_an_index: [{"z": np.arange(N) % 3}, {"z": np.full(N, 2)}],
    an_index_that_is_drawn: [{"z": np.arange(N) % 3}, {"z": np.arange(N) // 3}, {"z": np.full(N, 2)}],
    a_level_before_a_switchpoint_and_one_after_it: [{"z": np.array(2)}, {"z": np.array(5)}],
    a_step_from_a_switchpoint_on: [{"z": np.array(2)}, {"z": np.array(5)}],
    a_step_at_a_time_that_is_continuous: [{"z_interval__": np.array(0.7)}, {"z_interval__": np.array(-1.0)}],
    levels_at_a_time_that_is_continuous: [{"z_interval__": np.array(0.7)}, {"z_interval__": np.array(-1.0)}],
    a_step_written_as_a_number: [{"z_interval__": np.array(0.7)}, {"z_interval__": np.array(-1.0)}],
    a_vector_that_is_in_or_out: [{"z": np.array(1)}, {"z": np.array(0)}],
    one_vector_or_the_other: [{"z": np.array(1)}, {"z": np.array(0)}],
}


@pytest.mark.parametrize("make", READ_OTHERWISE, ids=lambda make: make.__name__)
def test_latents_that_another_variable_makes_predictors_read_otherwise_are_sampled_given_it(make):
    """No number of points shows it: what is discrete, or behind a comparison, is the same at nearly all of them."""
    with pm.Model() as model:
        make()
    structure, reason = read_together(model, None, model.initial_point())
    assert isinstance(reason, str)
    assert reason.startswith("how the predictor reads")
    assert reason.removesuffix(" through an index, a comparison or a whole number").endswith(" z")
    # The step is built where the model begins, and sees the rest of the points afterwards.
    compiled, exact = compile_model(structure), exact_log_density(model)
    for there in READ_OTHERWISE[make]:
        point = random_point(model, 1) | there
        assert conditional_density(compiled, point) == pytest.approx(float(exact(point)), abs=1e-8)


@pytest.mark.parametrize("kind", ["process", "intercepts"])
def test_an_index_of_shared_data_may_be_set_to_what_it_is_and_to_nothing_else(kind):
    with pm.Model() as model:
        where = pm.Data("where", GROUP)
        spread = pm.HalfNormal("spread")
        if kind == "process":
            poisson(pm.MvNormal("f", np.zeros(5), cov=spread * (np.eye(5) + 0.4))[where])
        else:
            poisson(pm.Normal("f", 0.0, spread, shape=5)[where])
    joint, point = joint_of(model), random_point(model, 1)
    pm.set_data({"where": GROUP.copy()}, model=model)
    joint.bind(point)
    assert_is_the_model(joint, model)
    pm.set_data({"where": (GROUP + 1) % 5}, model=model)
    with pytest.raises(DataError, match=r"where: the latent values that y reads have changed.*new RMHMC"):
        joint.bind(point)


def test_a_factor_of_shared_data_may_not_be_changed():
    with pm.Model() as model:
        weight = pm.Data("weight", np.ones(N))
        poisson(weight * gp_prior("f", ls=pm.Gamma("ls", 2.0, 4.0)))
    joint, point = joint_of(model), random_point(model, 1)
    (block,) = compile_model(read_structure(model)).blocks
    pm.set_data({"weight": np.full(N, 2.0)}, model=model)
    with pytest.raises(DataError, match=r"weight: the latent values that y reads have changed"):
        joint.bind(point)
    with pytest.raises(UnsupportedModelError, match="If data have changed, build a new RMHMC"):
        block.likelihood(point)


def mean_and_vectors() -> tuple[pm.Model, pt.TensorVariable, pt.TensorVariable, pt.TensorVariable]:
    with pm.Model() as model:
        level, wide, f = pm.Normal("level"), pm.Normal("wide", shape=N), pm.MvNormal("f", np.zeros(N), cov=np.eye(N))
    return model, level, wide, f


ADDED = {
    "beside it": lambda level, wide, f: level + f,
    "before a look-up": lambda level, wide, f: (level + f)[INDEX],
    "before a slice": lambda level, wide, f: (wide + f)[1:],
    "before a matrix": lambda level, wide, f: DESIGN.T @ (wide + f),
    "before a sum over time": lambda level, wide, f: pt.cumsum(wide + f),
    "in a list": lambda level, wide, f: pt.concatenate([(level + f)[:3], wide[3:]]),
    "in a place": lambda level, wide, f: pt.set_subtensor(wide[1:], (level + f)[1:]),
    "where values are as long": lambda level, wide, f: f * pt.ones_like(wide * level),
    "in columns": lambda level, wide, f: pt.stack([level + f, wide]).reshape((N, 2)),
    "as long as something named": lambda level, wide, f: f * pt.ones_like(view_op(wide * level)),
    "about its mean": lambda level, wide, f: f - f.mean() + level,
}


@pytest.mark.parametrize("how", ADDED)
def test_what_is_added_to_latents_does_not_say_how_they_are_read(how):
    model, level, wide, f = mean_and_vectors()
    values = pt.dvector("values", shape=(N,))
    (plain,) = substitute([ADDED[how](level, wide, f)], {f: values}, model)
    assert linear_inputs(model, plain, [values]).values == ()
    (scaled,) = substitute([ADDED[how](level, wide, pt.exp(level) * f)], {f: values}, model)
    assert linear_inputs(model, scaled, [values]).values == ("level",)


def test_normals_that_multiply_one_another_are_not_both_coefficients():
    with pm.Model() as model:
        poisson((pm.Normal("factor") * pm.Normal("raw", shape=5))[GROUP])
    joint = joint_of(model)
    assert joint.theta.names == ("factor",)
    assert joint.blocks[0].value_names == ("raw",)
    assert_is_the_model(joint, model)


def test_a_design_of_shared_data_is_read_again_when_they_change():
    with pm.Model() as model:
        design = pm.Data("design", DESIGN)
        poisson(design @ pm.Normal("slopes", 0.0, pm.HalfNormal("spread"), shape=4))
    joint, point = joint_of(model), random_point(model, 6)
    with model:
        pm.set_data({"design": DESIGN[::-1].copy()})
    joint.bind(point)
    assert_is_the_model(joint, model)
    np.testing.assert_array_equal(joint.blocks[0].prior(joint.theta.pack(point))[0], DESIGN[::-1])



def test_named_hyperparameters_are_sampled_and_the_rest_conditioned_on():
    model = build("ard")
    joint = joint_of(model, ["f", "ls"])
    assert joint.theta.names == ("ls_log__",)
    assert "eta_log__" in joint.inputs
    assert_is_the_model(joint, model)
    _, reason = read_together(model, ["f"], model.initial_point())
    assert reason == "vars names latent variables alone"


def test_a_hyperparameter_that_no_block_depends_on_is_named():
    model = build("beside_others")
    joint = read_joint(read_structure(model), model.initial_point(), [model["apart"]])
    assert joint == "no block depends on apart"


def test_a_discrete_variable_is_conditioned_on():
    with pm.Model() as model:
        k = pm.Bernoulli("k", 0.4)
        ls = pm.HalfNormal("ls")
        poisson(gp_prior("f", ls=ls * pt.switch(k, 0.5, 2.0)))
    joint = joint_of(model)
    assert joint.theta.names == ("ls_log__",)
    assert "k" in joint.inputs
    exact, totals = exact_log_density(model), []
    for k in (0, 1):
        point = random_point(model, 8) | {"k": np.array(k)}
        joint.bind(point)
        totals.append(log_density(joint, point))
        assert totals[-1] == pytest.approx(float(exact(point)), abs=1e-7)
    assert totals[0] != pytest.approx(totals[1], abs=1e-3)


def test_vectors_of_coefficients_beside_a_process_are_latents():
    with pm.Model() as model:
        slopes = pm.Normal("slopes", 0.0, pm.HalfNormal("spread"), shape=4)
        poisson(pm.Normal("level") + gp_prior("f", ls=pm.HalfNormal("ls")) + pm.math.dot(DESIGN, slopes))
    structure, joint = read_together(model, None, model.initial_point())
    assert set(joint.theta.names) == {"spread_log__", "ls_log__"}
    assert set(structure.left_over) == {"spread", "ls"}
    assert sorted(joint.blocks[0].kinds) == ["independent", "independent", "whitened"]
    assert_is_the_model(joint, model)
    named = joint_of(model, ["f", "level", "slopes", "spread", "ls"])
    assert set(named.theta.names) == set(joint.theta.names)
    assert set(named.blocks[0].value_names) == set(joint.blocks[0].value_names)


# What is there beside a process, and whether it is latent as well.
BESIDE = {
    "a number alone": (lambda f: f + pm.Normal("b"), False),
    "slopes": (lambda f: f + DESIGN @ pm.Normal("b", shape=4), True),
    "a vector of one": (lambda f: f + pm.Normal("b", shape=1), False),
    "one that multiplies it": (lambda f: f * pm.Normal("b", shape=N), False),
    "one that is not read linearly": (lambda f: f + pt.exp(pm.Normal("b", shape=N)), False),
    "another prior": (lambda f: f + DESIGN @ pm.Laplace("b", 0.0, 1.0, shape=4), False),
}


@pytest.mark.parametrize("name", BESIDE)
def test_what_is_no_vector_of_coefficients_is_a_hyperparameter(name):
    write, is_latent = BESIDE[name]
    with pm.Model() as model:
        poisson(write(gp_prior("f", ls=pm.HalfNormal("ls"))))
    joint = joint_of(model)
    assert set(joint.theta.names) == ({"ls_log__"} if is_latent else {"ls_log__", "b"})
    assert_is_the_model(joint, model)


def test_coefficients_in_the_mean_of_a_process_are_hyperparameters_of_it():
    """As the mean of the process they are in its prior, and not independent of it."""
    with pm.Model() as model:
        slopes = pm.Normal("slopes", shape=4)
        f = pm.MvNormal("f", pt.dot(DESIGN, slopes), cov=pm.HalfNormal("scale") * (np.eye(N) + 0.4))
        poisson(f)
    assert set(joint_of(model).theta.names) == {"slopes", "scale_log__"}


def test_a_process_with_nothing_but_coefficients_beside_it_has_no_hyperparameters():
    with pm.Model() as model:
        poisson(pm.MvNormal("f", np.zeros(N), cov=np.eye(N) + 0.4) + DESIGN @ pm.Normal("slopes", shape=4))
    structure, joint = read_together(model, None, model.initial_point())
    assert [str(v.name) for v in structure.variables] == ["f", "slopes"]
    assert joint == "no block depends on continuous hyperparameters"


@pytest.mark.parametrize("n", [0, N])
def test_coefficients_that_too_many_or_no_observations_read_are_hyperparameters(n, monkeypatch):
    monkeypatch.setattr("pymc_rmhmc.model.together.MOST_ENTRIES", N * (N + 4) - 1)
    with pm.Model() as model:
        eta = gp_prior("f", ls=pm.HalfNormal("ls"))[np.arange(n)] + DESIGN[:n] @ pm.Normal("slopes", shape=4)
        pm.Poisson("y", mu=pm.math.exp(eta), observed=COUNTS[:n])
    assert set(joint_of(model).theta.names) == {"slopes", "ls_log__"}


def test_coefficients_beside_rows_are_hyperparameters():
    """With them the rows would be one vector, and its matrices as large as all of them."""
    with pm.Model() as model:
        slopes = pm.Normal("slopes", shape=4)
        f = pm.MvNormal("f", np.zeros(N), cov=pm.HalfNormal("scale") * (np.eye(N) + 0.4), shape=(2, N))
        pm.Poisson("y", mu=pm.math.exp(f + DESIGN @ slopes), observed=np.stack([COUNTS, COUNTS[::-1]]))
    joint = joint_of(model)
    assert set(joint.theta.names) == {"slopes", "scale_log__"}
    assert joint.blocks[0].rows.shape == (2, N)


def test_more_coefficients_than_a_dense_matrix_is_made_of_are_left_apart(monkeypatch):
    monkeypatch.setattr("pymc_rmhmc.model.together.MOST_COEFFICIENTS", 3)
    with pm.Model() as model:
        poisson(gp_prior("f", ls=pm.HalfNormal("ls")) + DESIGN @ pm.Normal("slopes", shape=4))
    assert set(joint_of(model).theta.names) == {"slopes", "ls_log__"}
