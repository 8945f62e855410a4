"""Whole runs with two hyperparameters against grids: nothing is compared but the posterior itself."""

from __future__ import annotations

import arviz as az
import numpy as np
import pymc as pm
import pytest
from scipy.special import gammaln, logsumexp
from scipy.stats import norm

from pymc_rmhmc import RMHMC, FlatMetric
from tests.steps.conftest import draw

pytestmark = pytest.mark.slow

X = np.array([0.0, 0.15, 0.4, 0.5, 0.8, 1.0])[:, None]
REAL = np.array([0.9, 1.4, 0.3, -0.2, -1.1, 0.4])
SIGMA, JITTER = 0.5, 1e-6
PAIR, COUNTS = np.array([[0.0], [0.5]]), np.array([0, 4])
AXIS = np.linspace(-5.0, 5.0, 81)  # of each hyperparameter, in prior standard deviations
PRIORS = ((-1.0, 0.6), (0.0, 0.5))  # mean and sd of the logarithms of lengthscale and amplitude


def hyperparameters():
    return pm.LogNormal("lengthscale", *PRIORS[0]), pm.LogNormal("amplitude", *PRIORS[1])


def process(inputs, *, reparameterize: bool, **options):
    lengthscale, amplitude = hyperparameters()
    gp = pm.gp.Latent(cov_func=amplitude**2 * pm.gp.cov.Exponential(1, ls=lengthscale))
    return gp.prior("f", inputs, reparameterize=reparameterize, jitter=JITTER, **options)


def covariance(inputs, lengthscale: float, amplitude: float) -> np.ndarray:
    # PyMC's Exponential is exp(-r / 2).
    return amplitude**2 * np.exp(-0.5 * np.abs(inputs - inputs.T) / lengthscale) + JITTER * np.eye(len(inputs))


def grid(inputs, conditional):
    """Weights of a grid of the logarithms of both, and what `conditional` says of f at each, weighted.

    ``conditional(K)`` gives log p(y | θ), and moments of f given θ.
    """
    axes = [mean + sd * AXIS for mean, sd in PRIORS]
    logs = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)
    evidences, moments = [], []
    for pair in logs:
        evidence, of_f = conditional(covariance(inputs, *np.exp(pair)))
        evidences.append(evidence)
        moments.append(of_f)
    log_weight = np.array(evidences) + norm.logpdf((logs - np.array(PRIORS)[:, 0]) / np.array(PRIORS)[:, 1]).sum(axis=1)
    weight = np.exp(log_weight - log_weight.max())
    edge = np.abs((logs - np.array(PRIORS)[:, 0]) / np.array(PRIORS)[:, 1]).max(axis=1) > 4.9
    assert weight[edge].sum() < 1e-4 * weight.sum()
    return logs, weight / weight.sum(), np.array(moments)


def of_normal(covariance):
    """A Normal likelihood integrates out: moments of the first and last value, and a tail probability."""
    total = covariance + SIGMA**2 * np.eye(len(REAL))
    gain = np.linalg.solve(total, covariance).T
    mean, spread = gain @ REAL, covariance - gain @ covariance
    sd = np.sqrt(spread.diagonal())
    evidence = -0.5 * REAL @ np.linalg.solve(total, REAL) - 0.5 * np.linalg.slogdet(total)[1]
    squares = mean**2 + sd**2
    return evidence, [mean[0], mean[-1], squares[0], squares[-1], norm.sf(1.5, mean[0], sd[0])]


NOISE_PRIOR = (np.log(0.5), 0.5)  # of the logarithm


def of_normal_and_noise(covariance):
    """The same with the noise summed out over a grid; and moments of the logarithm of the noise."""
    values, vectors = np.linalg.eigh(covariance)
    along, log_noise = vectors.T @ REAL, NOISE_PRIOR[0] + NOISE_PRIOR[1] * AXIS
    square = np.exp(2.0 * log_noise)[:, None]
    total = values + square
    log_weight = norm.logpdf(AXIS) - 0.5 * (along**2 / total + np.log(total)).sum(axis=1)
    weight = np.exp(log_weight - logsumexp(log_weight))
    means = (values * along / total) @ vectors[[0, -1]].T
    sds = np.sqrt((values * square / total) @ (vectors[[0, -1]] ** 2).T)
    of_f = [*(weight @ means), *(weight @ (means**2 + sds**2)), weight @ norm.sf(1.5, means[:, 0], sds[:, 0])]
    return logsumexp(log_weight), [*of_f, weight @ log_noise, weight @ log_noise**2]


NODES = np.linspace(-7.0, 7.0, 101)
NOISE = np.stack(np.meshgrid(NODES, NODES, indexing="ij"), -1).reshape(-1, 2)
NOISE_WEIGHT = np.exp(-0.5 * (NOISE**2).sum(axis=1))
NOISE_WEIGHT /= NOISE_WEIGHT.sum()


def of_poisson(covariance):
    """Two latent values under counts, by a sum over whitened noise; 1.5 is the tail's beginning of the second here."""
    f = NOISE @ np.linalg.cholesky(covariance).T
    weight = NOISE_WEIGHT * np.exp((COUNTS * f - np.exp(f) - gammaln(COUNTS + 1.0)).sum(axis=1))
    evidence = weight.sum()
    first, last = f.T
    held = (first, last, first**2, last**2, last > 1.5)
    return np.log(evidence), [float(weight @ h / evidence) for h in held]


def normal_model(*, reparameterize: bool) -> pm.Model:
    with pm.Model() as model:
        pm.Normal("y", process(X, reparameterize=reparameterize), SIGMA, observed=REAL)
    return model


def noise_model() -> pm.Model:
    with pm.Model() as model:
        noise = pm.LogNormal("noise", *NOISE_PRIOR)
        pm.Normal("y", process(X, reparameterize=False), noise, observed=REAL)
    return model


def poisson_model(*, reparameterize: bool) -> pm.Model:
    with pm.Model() as model:
        pm.Poisson("y", pm.math.exp(process(PAIR, reparameterize=reparameterize)), observed=COUNTS)
    return model


ROW_COUNTS = np.array([[7, 17, 20, 31, 50, 44], [0, 1, 0, 2, 1, 4]])
EXPOSURE = np.array([20.0, 1.0])
PATHS = np.random.default_rng(0).standard_normal((6, 1000))
PATHS = np.hstack((PATHS, -PATHS))


def rows_model() -> pm.Model:
    with pm.Model() as model:
        f = process(X, reparameterize=False, n_outputs=2)
        pm.Poisson("y", EXPOSURE[:, None] * pm.math.exp(f), observed=ROW_COUNTS)
    return model


def of_row(covariance, counts, exposure):
    """Importance sampling of a row of counts from its Laplace approximation: log p(y | θ), the draws, their weights."""
    precision, f = np.linalg.inv(covariance), np.zeros(len(counts))
    for _ in range(100):  # Newton's method; steps of at most 1 do not overshoot
        rate = exposure * np.exp(f)
        move = np.linalg.solve(precision + np.diag(rate), counts - rate - precision @ f)
        f = f + move / max(1.0, np.abs(move).max())
        if np.abs(move).max() < 1e-9:
            break
    root = np.linalg.cholesky(np.linalg.inv(precision + np.diag(exposure * np.exp(f))))
    drawn = f[:, None] + root @ PATHS
    log_joint = counts @ drawn - exposure * np.exp(drawn).sum(axis=0) - 0.5 * (drawn * (precision @ drawn)).sum(axis=0)
    log_joint -= 0.5 * np.linalg.slogdet(covariance)[1]
    log_weight = log_joint + 0.5 * (PATHS**2).sum(axis=0) + np.log(root.diagonal()).sum()
    return logsumexp(log_weight) - np.log(log_weight.size), drawn, np.exp(log_weight - logsumexp(log_weight))


def of_rows(covariance):
    """Two rows with one covariance, of which the first is seen better; a value of each."""
    given = [of_row(covariance, *row) for row in zip(ROW_COUNTS, EXPOSURE, strict=True)]
    (first, of_first), (last, of_last) = ((f[i], weight) for (_, f, weight), i in zip(given, (0, -1), strict=True))
    squares = (of_first @ first**2, of_last @ last**2)
    return sum(each[0] for each in given), [of_first @ first, of_last @ last, *squares, of_last @ (last > 1.5)]


CASES = {
    "normal, centred": (lambda: normal_model(reparameterize=False), X, of_normal, 0),
    "normal with a noise, centred": (noise_model, X, of_normal_and_noise, 0),
    "poisson, whitened": (lambda: poisson_model(reparameterize=True), PAIR, of_poisson, -1),
    "rows, centred": (rows_model, X, of_rows, -1),
}


@pytest.mark.parametrize("name", CASES)
def test_means_spreads_and_tails_are_those_of_a_grid(name):
    build, inputs, conditional, tail_of = CASES[name]
    logs, weight, moments = grid(inputs, conditional)
    exact, features = [], []
    model = build()
    step = RMHMC(model=model)
    idata = draw(model, step, draws=4000, tune=500, chains=2)
    assert step.chains[0].tuned.emulator is not None  # latents and hyperparameters moved in turns
    assert float((idata.sample_stats["failure"] > 0).mean()) < 0.01
    f = idata.posterior["f"].values.reshape(*idata.posterior["lengthscale"].shape, -1)
    for values, log in zip(("lengthscale", "amplitude"), logs.T, strict=True):
        drawn = np.log(idata.posterior[values].values)
        mean = float(weight @ log)
        tail = mean + 1.2 * np.sqrt(float(weight @ log**2) - mean**2)
        between = np.interp(tail, *_cumulative(log, weight))
        features += [drawn, (drawn - mean) ** 2, drawn > tail]
        exact += [mean, float(weight @ (log - mean) ** 2), 1.0 - between]
    both = (np.log(idata.posterior["lengthscale"].values), np.log(idata.posterior["amplitude"].values))
    features.append(both[0] * both[1])
    exact.append(float(weight @ logs.prod(axis=1)))
    features += [f[..., 0], f[..., -1], f[..., 0] ** 2, f[..., -1] ** 2, f[..., tail_of] > 1.5]
    if "noise" in idata.posterior:
        log_noise = np.log(idata.posterior["noise"].values)
        features += [log_noise, log_noise**2]
    exact += list(weight @ moments)
    errors = [float(az.mcse(np.asarray(values, dtype=float))) for values in features]
    z = [(np.mean(v) - e) / s for v, e, s in zip(features, exact, errors, strict=True)]
    # Four dozen features in all: 4.5 standard errors is one false alarm in 4000 suites.
    assert np.abs(z).max() < 4.5, np.round(z, 2)
    # The comparison is worth something: an eighth of a standard deviation would be seen.
    assert max(s / np.std(v) for v, s in zip(features, errors, strict=True)) < 0.125 / 4.5


def _cumulative(values: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where the distribution function of a grid's margin is known, between its points, and its values there."""
    points = np.unique(values)
    mass = np.array([weight[values == point].sum() for point in points])
    return points + 0.5 * (points[1] - points[0]), np.cumsum(mass)


@pytest.mark.parametrize("how", ["once", "twice"])
def test_a_value_that_is_both_mean_and_log_scale(how):
    """Given the scale of the values each has a grid of its own: their posterior is no product of two likelihoods."""
    group, sizes = np.repeat(np.arange(3), (2, 5, 12)), (0, 2, 7, 19)
    data = np.random.default_rng(2).normal(0.5, 1.5, group.size)
    with pm.Model() as model:
        s = pm.LogNormal("s", *PRIORS[1])
        a = pm.Normal("a", 0, s, shape=3)
        mean = a[group]
        pm.Normal("y", mean, pm.math.exp(mean if how == "once" else a[group]), observed=data)
    idata = draw(model, RMHMC(metric=FlatMetric(chart="field"), model=model), draws=4000, tune=1000, chains=2)

    log_s, values = PRIORS[1][0] + PRIORS[1][1] * AXIS, np.linspace(-8.0, 8.0, 4001)
    likelihood = np.array([
        norm.logpdf(data[first:last, None], values, np.exp(values)).sum(axis=0)
        for first, last in zip(sizes, sizes[1:], strict=False)
    ])  # fmt: skip
    joint = likelihood + norm.logpdf(values, 0.0, np.exp(log_s)[:, None])[:, None]
    evidence = logsumexp(joint, axis=2)
    log_weight = norm.logpdf(AXIS) + evidence.sum(axis=1)
    weight = np.exp(log_weight - logsumexp(log_weight))
    given = np.exp(joint - evidence[..., None])
    for power in (1, 2):
        true = weight @ (given @ values**power)
        drawn = idata.posterior["a"] ** power
        error = np.asarray(az.mcse(drawn, method="mean"))
        assert (np.abs(drawn.mean(("chain", "draw")).values - true) < 4.0 * error).all()
    drawn = np.log(idata.posterior["s"])
    assert abs(float(drawn.mean()) - weight @ log_s) < 4.0 * float(az.mcse(drawn, method="mean"))
