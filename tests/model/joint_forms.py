"""Models of every form whose hyperparameters are sampled together with their latents, and the θ of each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt

from tests.model.conftest import (
    BINARY,
    COUNTS,
    INDEX,
    INDEX_COUNTS,
    N,
    X,
    covariance,
    gp_prior,
)

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


@form("ls_log__", "level", "rho", "spread_log__")
def about_a_process() -> None:
    f = gp_prior("f", ls=pm.Gamma("ls", 2.0, 4.0), mean=0.4)
    near = pm.HalfNormal("spread") ** 2 * pt.as_tensor(covariance())
    poisson(pm.MvNormal("h", pm.Normal("level") + pm.Normal("rho") * f, cov=near))


@form("ls_log__", "spread_log__")
def a_chain_of_processes() -> None:
    """Three vectors, each the mean of the next, of which all but the second are read."""
    f = gp_prior("f", ls=pm.Gamma("ls", 2.0, 4.0), mean=0.4, reparameterize=False)
    g = pm.MvNormal("g", f[::2], cov=pm.HalfNormal("spread") ** 2 * (np.eye((N + 1) // 2) + 0.3))
    h = pm.MvNormal("h", g[np.arange(N) // 2] - 0.2, chol=0.4 * np.eye(N))
    poisson(h)
    pm.Normal("z", f, 0.5, observed=COUNTS / 3.0)


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


@form("ls_log__", "level", "slope")
def powers_of_kernels_and_products_of_means() -> None:
    inputs, ls = np.column_stack((X, np.cos(9.0 * X))), pm.LogNormal("ls", -0.5, 0.4)
    by_axes = pm.gp.cov.Kron([pm.gp.cov.Matern52(1, ls=ls), pm.gp.cov.ExpQuad(1, ls=0.5)])
    kernel = pm.gp.cov.Matern32(2, ls=ls) ** 2 + by_axes
    line = pm.gp.mean.Linear(coeffs=pm.Normal("slope", shape=2), intercept=0.5)
    mean = line * pm.gp.mean.Constant(pm.Normal("level")) + pm.gp.mean.Constant(0.2)
    poisson(pm.gp.Latent(mean_func=mean, cov_func=kernel).prior("f", inputs, reparameterize=False))


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
def rows_with_an_exposure_each() -> None:
    f = gp_prior("f", ls=pm.HalfNormal("ls"), n_outputs=2)
    rate = np.array([[5.0], [1.0]]) * pm.math.exp(f + pm.Normal("level"))
    pm.Poisson("y", mu=rate, observed=np.stack([COUNTS, COUNTS[::-1]]))


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


SHARES = np.linspace(0.1, 0.9, N)


@form("tau_log__", "nu_log__", "level")
def groups_under_a_beta() -> None:
    """Not registered: its predictor is found behind a link."""
    groups = pm.Normal("groups", pm.Normal("level"), pm.HalfNormal("tau"), shape=3)
    p = pm.math.invlogit(0.3 + DESIGN @ pm.Normal("slopes", shape=4) + groups[np.arange(N) % 3])
    pm.Beta("y", mu=p, nu=pm.Exponential("nu", 0.1), observed=SHARES)


@form("tau_log__", "cuts_ordered__")
def groups_under_cutpoints() -> None:
    """Not registered: the likelihood lays the predictor out along another axis."""
    order = pm.distributions.transforms.ordered
    cuts = pm.Normal("cuts", [-1.0, 1.0], 1.0, transform=order, initval=[-1.0, 1.0])
    groups = pm.HalfNormal("tau") * pm.Normal("groups", shape=3)
    eta = X[:, 0] * pm.Normal("slope", shape=1) + groups[np.arange(N) % 3]
    pm.OrderedLogistic("y", eta=eta, cutpoints=cuts, observed=COUNTS % 3, compute_p=False)


@form("ls_log__", "eta_log__", "sigma_log__")
def basis_under_a_lognormal() -> None:
    kernel = pm.HalfNormal("eta") ** 2 * pm.gp.cov.Matern52(1, ls=pm.LogNormal("ls", -0.5, 0.4))
    f = pm.gp.HSGP(m=[5], c=1.5, cov_func=kernel).prior("f", X=X)
    pm.LogNormal("y", mu=f, sigma=pm.HalfNormal("sigma"), observed=SHARES)


@form("ls_log__", "b_log__", "level")
def a_sum_under_a_laplace() -> None:
    f = gp_prior("f", ls=pm.HalfNormal("ls")) + gp_prior("g", reparameterize=False) + pm.Normal("level")
    pm.Laplace("y", mu=f, b=pm.HalfNormal("b"), observed=COUNTS / 2.0)


@form("rate", "tau_log__", "s_log__")
def a_moving_design_under_a_logistic() -> None:
    slope = pt.exp(pm.Normal("rate") * X[:, 0])
    groups = pm.Normal("groups", 0.0, pm.HalfNormal("tau"), shape=3)[np.arange(N) % 3]
    pm.Logistic("y", mu=slope * groups, s=pm.HalfNormal("s"), observed=COUNTS / 2.0)


@form("ls_log__", "spread_log__", "beta_log__")
def a_process_beside_slopes_under_a_gumbel() -> None:
    slopes = pm.Normal("slopes", 0.0, pm.HalfNormal("spread"), shape=4)
    eta = gp_prior("f", ls=pm.HalfNormal("ls")) + DESIGN @ slopes
    pm.Gumbel("y", mu=eta, beta=pm.HalfNormal("beta"), observed=COUNTS / 2.0)


@form("ls_log__", "s_log__")
def a_sum_of_which_a_part_is_read_alone_by_a_logistic() -> None:
    f = gp_prior("f", ls=pm.HalfNormal("ls"))
    pm.Logistic("z", mu=f, s=pm.HalfNormal("s"), observed=COUNTS / 2.0)
    poisson(f + gp_prior("g"))


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
