"""The paper's logistic regressions: two coefficients from a distant start, and eleven under two priors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm

from benchmarks.papers.cobb.divergence import autocorrelation
from benchmarks.papers.cobb.funnel import hamiltonian_of
from benchmarks.papers.paper import Run
from pymc_rmhmc import RMHMC, ExplicitTao, GeneralizedLeapfrog, SoftAbsMetric

__all__ = [
    "PATH_STEP", "PRIORS", "ROWS", "SCHEMES", "START", "TRUTH", "data_set", "measure_paths", "measure_regression",
    "measure_start",
]  # fmt: skip

SCHEMES = ("hmc", "implicit", "explicit")
# Nothing of this is in the text of the paper: the data, the start and the path are ours.
TRUTH, START = np.array([1.0, -0.5]), np.array([3.0, 3.0])
ROWS, HELD_OUT, LAGS = 200, 1000, 40
# Precisions of the prior in figure 6, and the paths of figure 5 in units of the time of the Hamiltonian.
PRIORS, PATHS = {"weak": 0.1, "strong": 100.0}, {"long": 2.5, "short": 1.4}
STEP, PATH_STEP, OMEGA = 0.1, 0.05, 0.5
# The binding of explicit paths in figure 7; 0 is Pihajoki's integrator.
OMEGAS = (0.0, 0.1, 0.3, 1.0, 6.0, 10.0)


@dataclass(frozen=True)
class Data:
    """Rows with a last column of ones, labels 0 and 1, and the weights that made them."""

    design: np.ndarray
    labels: np.ndarray
    weights: np.ndarray

    def model(self, precision: float) -> pm.Model:
        """The regression, with the prior ``N(0, 1/precision)``."""
        with pm.Model() as model:
            w = pm.Normal("w", 0.0, precision**-0.5, shape=self.weights.size)
            pm.Bernoulli("y", logit_p=pm.math.dot(self.design, w), observed=self.labels)
        return model


def data_set(weights: np.ndarray, rows: int, seed: int) -> Data:
    """Draw standard normal inputs, and labels of them."""
    rng = np.random.default_rng(seed)
    design = np.column_stack([rng.standard_normal((rows, weights.size - 1)), np.ones(rows)])
    chance = 1.0 / (1.0 + np.exp(-design @ weights))
    return Data(design, (rng.random(rows) < chance).astype(int), weights)


def _step(scheme: str, path: float, unit: float, size: int) -> Any:
    """A step with a path in units of the posterior; HMC has as many leapfrog steps, `unit` being a typical sd."""
    n_steps = max(1, round(path / STEP))
    if scheme == "hmc":
        return pm.HamiltonianMC(
            path_length=STEP * unit * (n_steps + 0.5), step_scale=STEP * unit * size**0.25, adapt_step_size=False,
            step_rand=None, scaling=np.ones(size), is_cov=True,
        )  # fmt: skip
    explicit = scheme == "explicit"
    integrator = ExplicitTao(OMEGA, acceptance="one_copy_approximate") if explicit else "generalized_leapfrog"
    return RMHMC(
        metric=SoftAbsMetric(1e6, structure="dense"), integrator=integrator, step_size=STEP, n_steps=n_steps,
        init="keep",
    )  # fmt: skip


@dataclass(frozen=True)
class Chain:
    """Draws (draw, n) of one chain, the processor's seconds, and the mean acceptance."""

    draws: np.ndarray
    seconds: float
    acceptance: float


def _chain(model: pm.Model, scheme: str, path: float, start: np.ndarray, run: Run) -> Chain:
    """One chain from a start, compiled before the clock starts."""
    curvature = np.linalg.eigvalsh(-model.compile_d2logp(negate_output=False)({"w": start}))
    with model:
        step = _step(scheme, path, float(np.median(curvature)) ** -0.5, start.size)
        options: dict[str, Any] = {"tune": 0, "chains": 1, "cores": 1, "step": step, "progressbar": False}
        options |= {"initvals": {"w": start}, "compute_convergence_checks": False}
        idata = pm.sample(draws=run.draws, random_seed=run.seed, **options)
    stats = idata["sample_stats"].dataset
    accepted = next(stats[name] for name in ("acceptance_rate", "accept") if name in stats)
    return Chain(
        idata["posterior"]["w"].values[0], float(stats["process_time_diff"].sum()), float(accepted.mean())
    )  # fmt: skip


def measure_start(run: Run) -> dict:
    """Figure 1: the way from a distant start, with a prior of precision 1."""
    model = data_set(TRUTH, ROWS, seed=0).model(1.0)
    chain = _chain(model, run.sampler, PATHS["short"], START, run)
    return {
        "draws": len(chain.draws), "seconds": chain.seconds, "acceptance": chain.acceptance,
        "w": np.round(chain.draws, 4).tolist(), "said": f"{chain.seconds:.2f} s, accepted {chain.acceptance:.2f}",
    }  # fmt: skip


def measure_regression(run: Run) -> dict:
    """Figures 5 and 6: eleven weights, with both paths and under both priors."""
    weights = np.random.default_rng(1).standard_normal(11)
    data, held_out = data_set(weights, ROWS, seed=1), data_set(weights, HELD_OUT, seed=2)
    record: dict[str, Any] = {"truth": np.round(weights, 3).tolist(), "draws": run.draws, "said": ""}
    for prior, precision in PRIORS.items():
        for path, length in PATHS.items():
            model = data.model(precision)
            mode = pm.find_MAP(model=model, progressbar=False)["w"]
            chain = _chain(model, run.sampler, length, mode, run)
            chance = (1.0 / (1.0 + np.exp(-held_out.design @ chain.draws.T))).mean(axis=1)
            record[f"{prior} {path}"] = {
                "seconds": chain.seconds,
                "acceptance": chain.acceptance,
                "autocorrelation": autocorrelation(chain.draws[None, :, 0], LAGS),
                "accuracy": float(np.mean((chance > 0.5) == held_out.labels)),
                "mean": np.round(chain.draws.mean(axis=0), 3).tolist(),
                "quantiles": np.round(np.quantile(chain.draws, (0.05, 0.95), axis=0), 3).tolist(),
                "w": np.round(chain.draws[:: max(1, run.draws // 200), :5], 3).tolist(),
            }
            record["said"] += f"{prior} {path}: {chain.seconds:.2f} s, accepted {chain.acceptance:.2f}. "
    return record


def measure_paths(run: Run) -> dict:
    """Figure 7: one trajectory of the two weights, by the implicit integrator and by explicit ones."""
    model = data_set(TRUTH, ROWS, seed=0).model(1.0)
    base, start = hamiltonian_of(model), np.array([0.0, 1.0])
    paths, errors = {}, {}
    for name, integrator in [("implicit", GeneralizedLeapfrog()), *((f"{o:g}", _bound(o)) for o in OMEGAS)]:
        flow, rng = integrator.extend(base), np.random.default_rng(run.seed)
        state = flow.refresh(flow.state(start), rng)
        first, visited, moved = base.energy(state), [state.position], []
        with np.errstate(all="ignore"):
            for step in integrator.path(flow, state, run.draws, PATH_STEP):
                if step.state is None:
                    break
                visited.append(step.state.position)
                moved.append(float(abs(base.energy(step.state) - first)))
        paths[name], errors[name] = np.round(visited, 3).tolist(), max(moved, default=float("nan"))
    return {"paths": paths, "errors": errors, "said": f"{len(paths)} trajectories"}


def _bound(omega: float) -> ExplicitTao:
    """An explicit integrator for any ω, 0 too."""
    integrator = ExplicitTao(max(omega, 1e-3), acceptance="one_copy_approximate")
    integrator.omega = omega
    return integrator
