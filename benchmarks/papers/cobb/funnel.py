"""The paper's funnel: ``v ~ N(0, 3²)`` and ten values ``N(0, e⁻ᵛ)``, eleven dimensions in all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import arviz as az
import numpy as np
import pymc as pm

from benchmarks.deadline import Deadline
from benchmarks.papers.cobb.binding import OverwrittenBinding
from benchmarks.papers.cobb.divergence import (
    autocorrelation,
    binned_divergence,
    normal_divergence,
    running_divergence,
)
from benchmarks.papers.paper import Run
from benchmarks.peers.pymc_chains import CHAINS, PymcRun, sample
from pymc_rmhmc import RMHMC, ExplicitTao, SoftAbsMetric
from pymc_rmhmc.metrics.graph_metric import MatrixDensity

__all__ = [
    "LABELS",
    "PUBLISHED",
    "SAMPLERS",
    "SD",
    "SETTINGS",
    "SHORT",
    "SHORTER",
    "SIZE",
    "Calls",
    "funnel",
    "hamiltonian_of",
    "measure_funnel",
]  # fmt: skip

SIZE, SD = 10, 3.0
LAGS, KEPT, POINTS = 60, 1000, 40
# The steps of the authors' own tutorial: 25 of 0.14. The others cover the same path.
PUBLISHED = {"step_size": 0.14, "n_steps": 25}
LOOSE = {"integrator": "generalized_leapfrog", "solver_tol": 1e-5, "check_reversibility": False}
SHORT, SHORTER = {"step_size": 0.05, "n_steps": 70}, {"step_size": 0.02, "n_steps": 175}


def _riemannian(**options: Any) -> Callable[[], RMHMC]:
    return lambda: RMHMC(metric=SoftAbsMetric(1e6, structure="dense"), init="keep", **options)


def _nuts() -> pm.NUTS:
    """As `pm.sample` makes it."""
    return pm.init_nuts(chains=CHAINS, random_seed=0, progressbar=False)[1]


def _hand_tuned() -> pm.HamiltonianMC:
    """25 leapfrog steps of 0.05, the best KL of 0.03, 0.05, 0.1, 0.15 and 0.2 with 100 000 draws at seed 100."""
    return pm.HamiltonianMC(
        path_length=0.05 * 25.5, step_scale=0.05 * (SIZE + 1) ** 0.25, adapt_step_size=False, step_rand=None,
        scaling=np.ones(SIZE + 1), is_cov=True,
    )  # fmt: skip


# What makes each step, and its tuning draws; None for its own number.
SAMPLERS: dict[str, tuple[Callable[[], Any], int | None]] = {
    "nuts": (_nuts, 1000),
    "hmc": (_hand_tuned, 0),
    "implicit": (_riemannian(**PUBLISHED, integrator="generalized_leapfrog"), 0),
    "implicit loose": (_riemannian(**PUBLISHED, **LOOSE), 0),
    "midpoint": (_riemannian(**PUBLISHED, integrator="implicit_midpoint"), 0),
    "explicit released": (_riemannian(**PUBLISHED, integrator=OverwrittenBinding(10.0)), 0),
    "explicit printed": (_riemannian(**SHORT, integrator=ExplicitTao(5.0, acceptance="one_copy_approximate")), 0),
    "explicit exact": (_riemannian(**SHORTER, integrator=ExplicitTao(12.5, 0.01)), 0),
    "flat": (RMHMC, None),
}
LABELS = {
    "nuts": "NUTS",
    "hmc": "HMC, hand-tuned",
    "implicit": "implicit leapfrog",
    "implicit loose": "implicit leapfrog, loose",
    "midpoint": "implicit midpoint",
    "explicit released": "explicit, as released",
    "explicit printed": "explicit, as printed",
    "explicit exact": "explicit, exact",
    "flat": "RMHMC()",
}
SETTINGS = {
    "nuts": "PyMC's own, target 0.8",
    "hmc": "ε = 0.05, 25 steps",
    "implicit": "ε = 0.14, 25 steps",
    "implicit loose": "the same, tolerance 1e-5, unchecked",
    "midpoint": "ε = 0.14, 25 steps",
    "explicit released": "ε = 0.14, 25 steps, ω = 10",
    "explicit printed": "ε = 0.05, 70 steps, ω = 5",
    "explicit exact": "ε = 0.02, 175 steps, ω = 12.5, σ = 0.01",
    "flat": "as it comes",
}


def funnel(size: int = SIZE) -> pm.Model:
    """The model as the paper's tutorial writes it."""
    with pm.Model() as model:
        v = pm.Normal("v", 0.0, SD)
        pm.Normal("x", 0.0, pm.math.exp(-0.5 * v), shape=size)
    return model


def hamiltonian_of(model: pm.Model) -> Any:
    """The Hamiltonian of a whole model in the dense SoftAbs metric."""
    step = RMHMC(metric=SoftAbsMetric(1e6, structure="dense"), step_size=0.1, n_steps=1, init="keep", model=model)
    recipe = step._samplers[0].density
    recipe.bind(model.initial_point())
    return recipe.coordinates(recipe.adapter.initial()).hamiltonian


class Calls:
    """Counts evaluations of the Hessian, and of its derivative, from now on."""

    def __init__(self) -> None:
        self.hessians = self.thirds = 0
        at, pullback = MatrixDensity.at, MatrixDensity.pullback

        def counted_at(density, position):
            self.hessians += 1
            return at(density, position)

        def counted_pullback(density, point, bar):
            self.thirds += 1
            return pullback(density, point, bar)

        MatrixDensity.at, MatrixDensity.pullback = counted_at, counted_pullback  # type: ignore[method-assign]


def measure_funnel(run: Run) -> dict:
    """Two chains of one sampler, from v = 0."""
    calls, (make, tune) = Calls(), SAMPLERS[run.sampler]
    with funnel():
        step, starts = make(), _starts(run)
        acceptance = "accept" if run.sampler == "hmc" else "mean_tree_accept"
        length = "n_steps" if run.sampler == "hmc" else "tree_size"
        failed = "failure" if isinstance(step, RMHMC) else "diverging"
        names = ("process_time_diff", acceptance, length, failed)
        compiled = ("compile_seconds_in_chain",) if run.sampler == "flat" else ()
        made = sample(
            step, ("v", "x"), run.draws, tune, run.seed, Deadline(run.limit), (*names, *compiled),
            start=starts, first_tune=None if run.sampler == "flat" else 2,
        )  # fmt: skip
    record = _record(made, names)
    trajectories = record["draws"]
    record |= {"hessians": calls.hessians / trajectories, "thirds": calls.thirds / trajectories}
    if compiled:
        record["tuning"] -= sum(float(tuned[compiled[0]][-1]) for tuned, _ in made.ends)
    record["said"] = f"KL {record['kl']:.3g}, ESS {record['ess']:.0f}, accepted {record['acceptance']:.2f}"
    return record


def _starts(run: Run) -> Any:
    """A start for each chain: v = 0 and x from its distribution there; NUTS has PyMC's own."""
    if run.sampler == "nuts":
        return pm.init_nuts(chains=CHAINS, random_seed=run.seed, progressbar=False)[0]
    x = np.random.default_rng(1000 + run.seed).standard_normal((CHAINS, SIZE))
    return [{"v": 0.0, "x": each} for each in x]


def _record(made: PymcRun, names: tuple[str, ...]) -> dict:
    """Everything that tables and figures need, in numbers that JSON takes."""
    time, acceptance, length, failed = names
    v = made.draws[..., 0]
    data = az.from_dict({"posterior": {"v": v}})
    counts = np.unique(np.geomspace(4, v.shape[1], POINTS).astype(int))
    kept = made.draws[:, :: max(1, v.shape[1] * CHAINS // KEPT), :2]
    return {
        "draws": int(v.size),
        "stopped": made.stopped,
        "tuning": float(np.sum(made.tuned[time])),
        "sampling": float(np.sum(made.drawn[time])),
        "acceptance": float(np.mean(made.drawn[acceptance])),
        "steps": float(np.mean(made.drawn[length])),
        "failed": float(np.mean(np.asarray(made.drawn[failed], dtype=float) > 0.0)),
        "kl": normal_divergence(v),
        "kl_bins": binned_divergence(v),
        "mean": float(v.mean()),
        "sd": float(v.std()),
        "mcse": float(az.mcse(data, method="mean")["v"]),
        "ess": float(min(az.ess(data, method=method)["v"] for method in ("bulk", "tail"))),
        "rhat": float(az.rhat(data)["v"]),
        "counts": (CHAINS * counts).tolist(),
        "running": running_divergence(v, counts.tolist()),
        "autocorrelation": autocorrelation(v, LAGS),
        "v": np.round(kept[..., 0], 3).tolist(),
        "x": np.round(kept[..., 1], 3).tolist(),
    }
