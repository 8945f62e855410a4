"""Two chains of a JAX sampler: compiled first, then in turns, so that a deadline leaves both with as many draws."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.deadline import Deadline
from benchmarks.problems import Problem

__all__ = ["JaxRun", "JaxSampler", "log_likelihood", "run", "x64"]

CHUNK = 100


@dataclass(frozen=True)
class JaxSampler:
    """What is jitted.

    Attributes
    ----------
    tune : callable
        From a start and a key to (state, parameters); its time is tuning's.
    step : callable
        From (key, state, parameters) to (state, a number worth a mean: acceptance, or evaluations).
    """

    tune: Callable[[Any, Any], tuple[Any, Any]]
    step: Callable[[Any, Any, Any], tuple[Any, Any]]


@dataclass
class JaxRun:
    """Positions (chain, draw, n), seconds, the mean of what `step` reports, and whether the deadline came first."""

    positions: np.ndarray
    tuning: float
    sampling: float
    reported: float
    parameters: list[Any]
    stopped: str


def x64():
    """JAX with double precision."""
    import jax

    jax.config.update("jax_enable_x64", True)
    return jax


def run(
    sampler: JaxSampler, starts: Sequence[np.ndarray], seed: int, draws: int, deadline: Deadline, thin: int = 1
) -> JaxRun:
    """At least one chunk a chain: 100 draws that are kept, one of every `thin` that are made."""
    jax = x64()
    keys = list(jax.random.split(jax.random.key(seed), len(starts)))
    tune, chunk = _compiled(sampler, starts[0], keys[0], thin)
    deadline.begin()
    started, tuned = time.perf_counter(), []
    for i, start in enumerate(starts):
        keys[i], use = jax.random.split(keys[i])
        tuned.append(jax.block_until_ready(tune(start, use)))
    tuning = time.perf_counter() - started
    states, kept, reported = [state for state, _ in tuned], [[] for _ in starts], []
    started, made, wanted = time.perf_counter(), 0, -(-draws // (CHUNK * thin))
    while made < wanted and not (made and deadline.passed):
        for i, (_, parameters) in enumerate(tuned):
            keys[i], use = jax.random.split(keys[i])
            states[i], positions, values = chunk(use, states[i], parameters)
            kept[i].append(np.asarray(positions))
            reported.append(float(values))
        made += 1
    sampling = time.perf_counter() - started
    return JaxRun(
        np.array([np.concatenate(part) for part in kept]), tuning, sampling, float(np.mean(reported)),
        [parameters for _, parameters in tuned], "sampling" if made < wanted else "",
    )  # fmt: skip


def _compiled(sampler: JaxSampler, start: np.ndarray, key: Any, thin: int) -> tuple[Callable, Callable]:
    """Tuning, and a chunk of draws, compiled ahead for their shapes."""
    jax = x64()

    def chunk(key, state, parameters):
        def one(state, key):
            state, value = sampler.step(key, state, parameters)
            return state, value

        def keep(state, key):
            state, values = jax.lax.scan(one, state, jax.random.split(key, thin))
            return state, (state.position, values.mean())

        state, (positions, values) = jax.lax.scan(keep, state, jax.random.split(key, CHUNK))
        return state, positions, values.mean()

    tune = jax.jit(sampler.tune).lower(start, key).compile()
    state, parameters = jax.eval_shape(sampler.tune, start, key)
    return tune, jax.jit(chunk).lower(key, state, parameters).compile()


def log_likelihood(problem: Problem) -> Callable[[Any], Any]:
    """``Σ ℓ(f)`` in JAX, up to a constant."""
    jax = x64()
    import jax.numpy as jnp

    y = jnp.asarray(problem.y, dtype=float)
    if problem.likelihood == "poisson":
        return lambda f: jnp.sum(y * f - problem.exposure * jnp.exp(f))
    if problem.likelihood == "logit":
        return lambda f: jnp.sum(y * f - jax.nn.softplus(f))
    return lambda f: jnp.sum(jax.scipy.stats.norm.logcdf((2 * y - 1) * f))
