"""BlackJAX's rmhmc: chunks of draws compiled ahead, the mass matrix a function of the position."""

from __future__ import annotations

import time
from functools import partial

import numpy as np

from benchmarks.outcome import Outcome
from benchmarks.peers.jax_chains import x64
from benchmarks.peers.riemannian.budget import draws_within
from benchmarks.peers.riemannian.problems import ALPHA, PRIOR_PRECISION, TOLERANCE, Funnel, Logistic

__all__ = ["midpoint"]

CHUNK = 50


def midpoint(problem: Funnel | Logistic, seed: int, seconds: float) -> Outcome:
    """Its implicit midpoint rule, which does not look whether its solver has converged; we count in a run aside."""
    jax = x64()
    log_density, mass_matrix = _target(problem)
    starts = problem.starts(seed)
    chunk, kernel, compiling = _compiled(problem, log_density, mass_matrix, starts[0], None)
    keys = list(jax.random.split(jax.random.key(seed), len(starts)))
    states = [kernel.init(jax.numpy.asarray(start)) for start in starts]
    jax.block_until_ready(chunk(states[0], keys[0]))
    started = time.process_time()
    jax.block_until_ready(chunk(states[0], keys[0]))
    n_chunks = -(-draws_within(seconds, (time.process_time() - started) / CHUNK) // CHUNK)
    kept, accepted = [[] for _ in starts], []
    started = time.process_time()
    for _ in range(n_chunks):
        for i in range(len(starts)):
            keys[i], use = jax.random.split(keys[i])
            states[i], (positions, acceptance) = chunk(states[i], use)
            kept[i].append(problem.measured(np.asarray(positions)))
            accepted.append(np.asarray(acceptance))
    spent = time.process_time() - started
    extra = {
        "acceptance": float(np.mean(accepted)), "failures": _failures(problem, log_density, mass_matrix, starts),
        "steps": float(problem.n_steps), "compile": compiling,
    }  # fmt: skip
    return Outcome(np.array([np.concatenate(part) for part in kept]), 0.0, spent, extra)


def _compiled(problem, log_density, mass_matrix, start, solver):
    """A chunk of draws, the kernel, and the seconds of compiling."""
    jax = x64()
    import blackjax
    from blackjax.mcmc.integrators import implicit_midpoint

    options = {"convergence_tol": TOLERANCE, "max_iters": 100} | ({} if solver is None else {"solver": solver})
    kernel = blackjax.rmhmc(
        log_density, problem.step_size, mass_matrix, problem.n_steps, integrator=partial(implicit_midpoint, **options)
    )

    def draw(state, key):
        state, info = kernel.step(key, state)
        return state, (state.position, info.acceptance_rate)

    started = time.process_time()
    state = kernel.init(jax.numpy.asarray(start))
    compiled = (
        jax.jit(lambda state, key: jax.lax.scan(draw, state, jax.random.split(key, CHUNK)))
        .lower(state, jax.random.key(0))
        .compile()
    )
    return compiled, kernel, time.process_time() - started


def _failures(problem, log_density, mass_matrix, starts) -> float:
    """The share of trajectories with a step whose solver did not converge, of a chunk a chain.

    A trajectory has as many solves as steps, and they are reported in order.
    """
    jax = x64()
    from blackjax.mcmc.integrators import solve_fixed_point_iteration

    converged: list[bool] = []

    def watched(function, start, **options):
        solution = solve_fixed_point_iteration(function, start, **options)
        jax.debug.callback(lambda success: converged.append(bool(success)), solution[2].success, ordered=True)
        return solution

    chunk, kernel, _ = _compiled(problem, log_density, mass_matrix, starts[0], watched)
    converged.clear()
    for i, start in enumerate(starts):
        jax.block_until_ready(chunk(kernel.init(jax.numpy.asarray(start)), jax.random.key(i)))
    jax.effects_barrier()
    return float(1.0 - np.reshape(converged, (-1, problem.n_steps)).all(axis=1).mean())


def _target(problem: Funnel | Logistic):
    """Log density and metric in JAX."""
    jax = x64()
    import jax.numpy as jnp

    if isinstance(problem, Funnel):

        def log_density(q):
            v, x = q[0], q[1:]
            return -(v**2 / 18.0 + 0.5 * jnp.sum(x**2) * jnp.exp(-v) + 0.5 * problem.groups * v)

        soft_abs, hessian = _soft_abs(), jax.hessian(log_density)
        return log_density, lambda q: soft_abs(-hessian(q))
    x, y = (jnp.asarray(part, dtype=float) for part in problem.data)

    def log_likelihood(q):
        eta = x @ q
        return y @ eta - jnp.sum(jax.nn.softplus(eta)) - 0.5 * PRIOR_PRECISION * q @ q

    def information(q):
        p = jax.nn.sigmoid(x @ q)
        return (x.T * (p * (1.0 - p))) @ x + PRIOR_PRECISION * jnp.eye(q.size)

    return log_likelihood, information


def _soft_abs():
    """``Q diag(λ coth αλ) Qᵀ`` with its own derivative: that of ``eigh`` is NaN where eigenvalues are equal."""
    jax = x64()
    import jax.numpy as jnp

    def parts(eigenvalues):
        scaled = ALPHA * eigenvalues
        small, large = jnp.abs(scaled) < 1e-4, jnp.abs(scaled) > 300.0
        safe = jnp.where(small | large, 1.0, scaled)
        value = jnp.where(small, (1.0 + scaled**2 / 3.0) / ALPHA, jnp.abs(eigenvalues))
        slope = jnp.where(small, 2.0 * scaled / 3.0, jnp.sign(scaled))
        between = ~(small | large)
        value = jnp.where(between, eigenvalues / jnp.tanh(safe), value)
        return value, jnp.where(between, 1.0 / jnp.tanh(safe) - safe / jnp.sinh(safe) ** 2, slope)

    @jax.custom_jvp
    def soft_abs(matrix):
        eigenvalues, vectors = jnp.linalg.eigh(matrix)
        return (vectors * parts(eigenvalues)[0]) @ vectors.T

    @soft_abs.defjvp
    def _(primals, tangents):
        eigenvalues, vectors = jnp.linalg.eigh(primals[0])
        value, slope = parts(eigenvalues)
        gap = eigenvalues[:, None] - eigenvalues
        equal = gap == 0.0
        ratio = jnp.where(equal, slope[:, None], (value[:, None] - value) / jnp.where(equal, 1.0, gap))
        change = vectors @ ((vectors.T @ tangents[0] @ vectors) * ratio) @ vectors.T
        return (vectors * value) @ vectors.T, change

    return soft_abs
