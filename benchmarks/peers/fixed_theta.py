"""Samplers of a Gaussian prior times a likelihood, at fixed θ: elliptical slice sampling and `mgrad_gaussian`."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np

from benchmarks.deadline import NEVER, Deadline
from benchmarks.outcome import Outcome
from benchmarks.peers.jax_chains import JaxSampler, log_likelihood, run, x64
from benchmarks.problems import Problem

# Chains of tens of thousands of draws of thousands of values: every tenth is kept, which loses nothing where
# neighbours are nearly equal.
MANY = 2000
THIN = 10


def elliptical_slice(
    problem: Problem, seed: int, deadline: Deadline = NEVER, draws: int = 20000, tune: int = 1000
) -> Outcome:
    """BlackJAX's, jitted, from the prior's mean; nothing to tune, so that tuning is what is thrown away."""
    jax = x64()
    import blackjax
    import jax.numpy as jnp

    kernel = blackjax.elliptical_slice(
        log_likelihood(problem), mean=jnp.full(problem.n, problem.mean), cov=jnp.asarray(problem.covariance)
    )

    def burn(position, key):
        def one(state, key):
            return kernel.step(key, state)[0], None

        return jax.lax.scan(one, kernel.init(position), jax.random.split(key, tune))[0], None

    def step(key, state, _):
        state, info = kernel.step(key, state)
        return state, info.subiter

    starts = [np.full(problem.n, problem.mean)] * 2
    result = run(JaxSampler(burn, step), starts, seed, draws, deadline, THIN if problem.n > MANY else 1)
    extra = {"likelihoods a draw": result.reported}
    return Outcome(result.positions, result.tuning, result.sampling, extra, result.stopped)


class _Climb(NamedTuple):
    """Stochastic approximation of log δ."""

    state: Any
    log_delta: Any
    average: Any


def mgrad_gaussian(
    problem: Problem, seed: int, deadline: Deadline = NEVER, draws: int = 20000, tune: int = 2000
) -> Outcome:
    """BlackJAX's, jitted, δ tuned to an acceptance of one half; the prior's SVD counts as tuning.

    Without the mean, which is taken out of f: ``f = mean + g``.
    """
    jax = x64()
    import jax.numpy as jnp
    from blackjax.mcmc.marginal_latent_gaussian import build_kernel, init, svd_from_covariance

    likelihood = log_likelihood(problem)
    covariance = jnp.asarray(problem.covariance)
    decompose = jax.jit(svd_from_covariance).lower(covariance).compile()
    started = time.perf_counter()
    parts = jax.block_until_ready(decompose(covariance))
    decomposing = time.perf_counter() - started
    kernel = build_kernel(parts)

    def log_density(g):
        return likelihood(problem.mean + g)

    def adapt(position, key):
        def one(climb, inputs):
            i, key = inputs
            state, info = kernel(key, climb.state, log_density, jnp.exp(climb.log_delta))
            rate = jnp.minimum(1.0, jnp.nan_to_num(info.acceptance_rate))
            log_delta = climb.log_delta + (rate - 0.5) / (1.0 + i) ** 0.6
            # The average of the second half is what is kept.
            weight = jnp.where(i < tune // 2, 1.0, 1.0 / (1.0 + i - tune // 2))
            return _Climb(state, log_delta, climb.average + weight * (log_delta - climb.average)), None

        first = _Climb(init(position, log_density, parts.U_t), jnp.zeros(()), jnp.zeros(()))
        climb, _ = jax.lax.scan(one, first, (jnp.arange(tune), jax.random.split(key, tune)))
        return climb.state, jnp.exp(climb.average)

    def step(key, state, delta):
        state, info = kernel(key, state, log_density, delta)
        return state, info.acceptance_rate

    result = run(
        JaxSampler(adapt, step), [np.zeros(problem.n)] * 2, seed, draws, Deadline(deadline.seconds - decomposing),
        THIN if problem.n > MANY else 1,
    )  # fmt: skip
    extra = {"acceptance": result.reported, "step size": float(np.mean(result.parameters)), "SVD": decomposing}
    tuning = result.tuning + decomposing
    return Outcome(problem.mean + result.positions, tuning, result.sampling, extra, result.stopped)
