"""Sequential Monte Carlo of PyMC and of BlackJAX, on two models with a known evidence."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm

from benchmarks.evidence.problems import EFFECTS, JITTER, PROBLEMS, SPREADS, regression_data

__all__ = ["BLACKJAX_SETTINGS", "PEERS", "SIZES", "blackjax_smc", "pymc_smc"]

# Draws of PyMC, particles of BlackJAX.
SIZES = {
    ("pymc", "regression"): (250, 1000, 4000), ("pymc", "eight"): (250, 1000, 4000),
    ("blackjax", "regression"): (16, 64, 192), ("blackjax", "eight"): (250, 1000, 4000),
}  # fmt: skip
CHAINS = 2
# Step size, steps of a trajectory and trajectories at each temperature: the best of a few that were tried.
BLACKJAX_SETTINGS = {"regression": (0.03, 20, 5), "eight": (0.5, 5, 10)}
# Particles after weighting are worth this share of them.
TARGET_ESS = 0.5


def pymc_smc(problem: str, size: int, seed: int) -> dict:
    """``pm.sample_smc`` as it comes; its estimates of two runs are averaged."""
    model = PROBLEMS[problem].model()
    began = time.process_time()
    _pymc_run(model, 20, seed)
    compiled = time.process_time() - began
    began = time.process_time()
    values = _pymc_run(model, size, seed)
    seconds = time.process_time() - began
    return {
        "value": float(np.mean(values)), "values": values, "compiling": compiled, "estimating": seconds,
        "tuning": 0.0, "reading": 0.0,
    }  # fmt: skip


def _pymc_run(model: pm.Model, draws: int, seed: int) -> list[float]:
    with model:
        found = pm.sample_smc(
            draws=draws, chains=CHAINS, cores=1, progressbar=False, random_seed=seed, compute_convergence_checks=False
        )
    return [_last(chain) for chain in found.sample_stats["log_marginal_likelihood"].values]


def _last(chain: Any) -> float:
    """The last number of a chain's record, which is padded."""
    values = np.concatenate([np.ravel(np.asarray(each, dtype=float)) for each in np.ravel(chain)])
    return float(values[np.isfinite(values)][-1])


def _eight_schools(jnp: Any, jax: Any) -> tuple[int, Callable[[Any], Any]]:
    """The log likelihood of standard normal coordinates."""

    def log_likelihood(x: Any) -> Any:
        tau = 5.0 * jnp.tan(0.5 * jnp.pi * (2.0 * jax.scipy.stats.norm.cdf(jnp.abs(x[1])) - 1.0))
        return jax.scipy.stats.norm.logpdf(jnp.asarray(EFFECTS), 5.0 * x[0] + tau * x[2:], jnp.asarray(SPREADS)).sum()

    return 10, log_likelihood


def _regression(jnp: Any, jax: Any) -> tuple[int, Callable[[Any], Any]]:
    """The log likelihood of standard normal coordinates: three hyperparameters and the whitened values."""
    places, y = (jnp.asarray(each) for each in regression_data())
    square, n = (places[:, None] - places) ** 2, y.size

    def log_likelihood(x: Any) -> Any:
        lengthscale, amplitude = jnp.exp(0.7 * x[0]), jnp.exp(0.7 * x[1])
        covariance = amplitude**2 * jnp.exp(-0.5 * square / lengthscale**2) + JITTER * jnp.eye(n)
        f = jnp.linalg.cholesky(covariance) @ x[3:]
        return jax.scipy.stats.norm.logpdf(y, f, jnp.exp(-1.0 + 0.7 * x[2])).sum()

    return n + 3, log_likelihood


def blackjax_smc(problem: str, size: int, seed: int) -> dict:
    """BlackJAX's adaptive tempered SMC with HMC, in coordinates in which the prior is standard normal."""
    import blackjax
    import jax
    import jax.numpy as jnp
    from blackjax.smc import extend_params, resampling

    jax.config.update("jax_enable_x64", True)
    d, log_likelihood = {"regression": _regression, "eight": _eight_schools}[problem](jnp, jax)
    step_size, n_steps, moves = BLACKJAX_SETTINGS[problem]
    parameters = {
        "step_size": step_size, "inverse_mass_matrix": jnp.ones(d), "num_integration_steps": n_steps,
    }  # fmt: skip
    smc = blackjax.adaptive_tempered_smc(
        lambda x: -0.5 * jnp.sum(x**2), log_likelihood, blackjax.hmc.build_kernel(), blackjax.hmc.init,
        extend_params(parameters), resampling.systematic, TARGET_ESS, num_mcmc_steps=moves,
    )  # fmt: skip
    step = jax.jit(smc.step)

    def run(key: Any) -> tuple[float, int, float]:
        first, key = jax.random.split(key)
        state, total, stages, accepted = smc.init(jax.random.normal(first, (size, d))), 0.0, 0, []
        while float(state.tempering_param) < 1.0:
            key, now = jax.random.split(key)
            state, info = step(now, state)
            total, stages = total + float(info.log_likelihood_increment), stages + 1
            accepted.append(float(info.update_info.acceptance_rate.mean()))
        return total, stages, accepted[-1]

    began = time.process_time()
    state = smc.init(jax.random.normal(jax.random.key(0), (size, d)))
    jax.block_until_ready(step(jax.random.key(1), state))
    compiled = time.process_time() - began
    began = time.process_time()
    value, stages, acceptance = run(jax.random.key(seed))
    return {
        "value": value, "stages": stages, "acceptance": acceptance, "compiling": compiled, "tuning": 0.0,
        "estimating": time.process_time() - began, "reading": 0.0,
    }  # fmt: skip


PEERS = {"pymc": pymc_smc, "blackjax": blackjax_smc}
