"""BlackJAX's rmhmc with the same metric. It has no adaptation: step size and length were searched by hand."""

from __future__ import annotations

import time

import numpy as np

from benchmarks.deadline import NEVER, Deadline
from benchmarks.outcome import Outcome
from benchmarks.peers.jax_chains import log_likelihood
from benchmarks.problems import Problem

# (step size, steps) and draws a chain: the best of a few pairs whose path is near a quarter period.
SETTINGS = {"logit": ((0.6, 3), 300), "probit": ((0.4, 4), 50)}


def run(problem: Problem, seed: int, deadline: Deadline = NEVER, draws: int | None = None, tune: int = 5) -> Outcome:
    """``G(f) = W(f) + K⁻¹``, from a draw of the Laplace approximation."""
    (step_size, n_steps), settled = SETTINGS[problem.likelihood]
    draws = settled if draws is None else draws
    deadline.begin()  # not looked at: a few draws, a minute or two
    import blackjax
    import jax

    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp

    precision = jnp.asarray(np.linalg.inv(problem.covariance))
    y = jnp.asarray(problem.y)

    likelihood = log_likelihood(problem)

    def log_density(f):
        return likelihood(f) - 0.5 * f @ precision @ f

    def weight(f):
        if problem.likelihood == "logit":
            return jax.nn.sigmoid(f) * jax.nn.sigmoid(-f)
        z = (2 * y - 1) * f
        rho = jnp.exp(jax.scipy.stats.norm.logpdf(z) - jax.scipy.stats.norm.logcdf(z))
        return rho * (z + rho)

    kernel = blackjax.rmhmc(log_density, step_size, lambda f: precision + jnp.diag(weight(f)), n_steps)
    step = jax.jit(kernel.step)
    chains, spent = [], [0.0, 0.0]
    accepted = []
    for chain in range(2):
        key = jax.random.key(100 * seed + chain)
        state = kernel.init(jnp.asarray(laplace_draw(problem, 100 * seed + chain)))
        jax.block_until_ready(step(key, state)[0].position)
        kept = []
        for phase, count in enumerate((tune, draws)):
            started = time.perf_counter()
            for _ in range(count):
                key, use = jax.random.split(key)
                state, info = step(use, state)
                if phase:
                    kept.append(np.asarray(state.position))
                    accepted.append(float(info.acceptance_rate))
            jax.block_until_ready(state.position)
            spent[phase] += time.perf_counter() - started
        chains.append(kept)
    extra = {"acceptance": float(np.mean(accepted)), "step size": step_size}
    return Outcome(np.array(chains), spent[0], spent[1], extra)


def laplace_draw(problem: Problem, seed: int) -> np.ndarray:
    """A start for the peers that have no search of their own."""
    from pymc_rmhmc.approximation import find_mode, laplace_sites
    from pymc_rmhmc.latent.charts import SiteChart
    from pymc_rmhmc.latent.charts.site import FactorizedPrior
    from pymc_rmhmc.model import compile_model, read_structure

    model = problem.centred()
    block = compile_model(read_structure(model)).blocks[0]
    point = model.initial_point()
    prior, likelihood = FactorizedPrior(block.prior(point)), block.likelihood(point)
    chart = SiteChart(prior, laplace_sites(find_mode(prior.predictor, likelihood, "hessian")))
    return chart.to_model(np.random.default_rng(seed).standard_normal(problem.n))
