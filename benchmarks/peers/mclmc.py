"""BlackJAX's adjusted MCLMC on the whitened model, with BlackJAX's own tuning."""

from __future__ import annotations

import numpy as np

from benchmarks.deadline import NEVER, Deadline
from benchmarks.joint_problems import JointProblem
from benchmarks.outcome import Outcome
from benchmarks.peers.jax_chains import JaxSampler, run, x64
from benchmarks.problems import Problem

# Of `adjusted_mclmc_find_L_and_step_size`: what its documentation calibrates to. At 0.9, and with trajectories of 8
# steps for its 2, the effective draws a second were as many or fewer.
TARGET = 0.65


def adjusted(
    problem: Problem | JointProblem, seed: int, deadline: Deadline = NEVER, draws: int = 5000
) -> Outcome:
    """Diagonal preconditioning, trajectories of random length, step size and length tuned for 0.3 × draws."""
    jax = x64()
    import blackjax
    import jax.numpy as jnp
    from blackjax.mcmc.adjusted_mclmc_dynamic import make_random_trajectory_length_fn
    from jax.flatten_util import ravel_pytree
    from pymc.sampling.jax import get_jaxified_logp

    model = problem.whitened()
    joint = get_jaxified_logp(model)  # the log density itself, whatever its argument's default is called
    point = model.initial_point()
    start, unravel = ravel_pytree([jnp.asarray(point[v.name], dtype=float) for v in model.value_vars])

    def log_density(values):
        return joint(unravel(values))

    kernel = blackjax.adjusted_mclmc_dynamic.build_kernel(integration_steps_fn=make_random_trajectory_length_fn(True))

    def tune(position, key):
        first, use = jax.random.split(key)
        state = blackjax.adjusted_mclmc_dynamic.init(position, log_density, first)
        state, parameters, _ = blackjax.adjusted_mclmc_find_L_and_step_size(
            kernel, log_density, draws, state, use, target=TARGET
        )
        return state, parameters

    def step(key, state, parameters):
        state, info = kernel(
            key, state, log_density, parameters.step_size, inverse_mass_matrix=parameters.inverse_mass_matrix,
            integration_steps_params=(parameters.L / parameters.step_size,),
        )  # fmt: skip
        return state, info.acceptance_rate

    # PyMC's own jitter.
    rng = np.random.default_rng(seed)
    starts = [np.asarray(start) + rng.uniform(-1.0, 1.0, start.size) for _ in range(2)]
    result = run(JaxSampler(tune, step), starts, seed, draws, deadline)
    extra = {
        "acceptance": result.reported,
        "step size": float(np.mean([p.step_size for p in result.parameters])),
    }
    values = _natural(model, problem.parameters, unravel)(result.positions)
    return Outcome(values, result.tuning, result.sampling, extra, result.stopped)


def _natural(model, parameters: tuple[str, ...], unravel):
    """From unconstrained positions (chain, draw, k) to the parameters that are compared: outside of the clock."""
    jax = x64()
    import jax.numpy as jnp
    from pymc.sampling.jax import get_jaxified_graph

    graph = get_jaxified_graph(
        inputs=model.value_vars, outputs=model.replace_rvs_by_values([model[name] for name in parameters])
    )
    one = jax.jit(lambda x: jnp.concatenate([jnp.ravel(part) for part in graph(*unravel(x))]))
    return lambda positions: np.array([[np.asarray(one(x)) for x in chain] for chain in positions])
