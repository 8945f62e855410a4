"""What a step in the metrics of a process with its hyperparameters costs, next to its dense linear algebra.

Steps of the generalised leapfrog, with the check, on Filippone's classifier with three hyperparameters. What counts as
dense algebra is the time in Cholesky factors, their inverses, and products of n × n matrices; not the elements of K and
of its derivatives. Run with ``python -m benchmarks.process_cost``.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, partialmethod
from typing import Any

import numpy as np

import pymc_rmhmc.metrics.field as dense
import pymc_rmhmc.metrics.processes.block as dense_block
import pymc_rmhmc.metrics.processes.process_density as process_density
import pymc_rmhmc.metrics.processes.whitened as whitened
from benchmarks.papers.filippone.samplers import PARAMETERS, TRUTH, classifier
from pymc_rmhmc import BlockMetric, GeneralizedLeapfrog, WhitenedFisherMetric
from pymc_rmhmc.kernels.trajectories import transition
from pymc_rmhmc.metrics.processes.block import DenseBlock
from pymc_rmhmc.metrics.processes.process_density import Kernel, WhitenedDensity
from pymc_rmhmc.metrics.processes.whitened import WhitenedField
from pymc_rmhmc.sampled.process import find_process
from pymc_rmhmc.tuning.adaptation import DualAveraging

MODULES = (process_density, dense_block, dense, whitened)
TIMED = ("cholesky", "inverse_lower", "multiply_lower", "_triple_traces")
N_STEPS, DRAWS, TARGET = 5, 30, 0.8


class Algebra:
    """Seconds in functions of matrices, and how many factors were made."""

    def __init__(self, n: int) -> None:
        self.n, self.seconds, self.factors, self._inside = n, 0.0, 0, False

    def timed(self, function: Callable[..., Any], *values: Any, **options: Any) -> Any:
        """Call a function; count it if all its arguments are large matrices."""
        if min(min(v.shape[-2:]) if v.ndim > 1 else 1 for v in values) < self.n:
            return function(*values, **options)
        self.factors += function.__name__ == "cholesky"
        return self.whole(function, *values, **options)

    def whole(self, function: Callable[..., Any], *values: Any, **options: Any) -> Any:
        """Call a function and count it, without what is called in it."""
        if self._inside:
            return function(*values, **options)
        self._inside, began = True, time.process_time()
        try:
            return function(*values, **options)
        finally:
            self.seconds, self._inside = self.seconds + time.process_time() - began, False


@contextmanager
def watched(algebra: Algebra) -> Iterator[None]:
    """Time the functions in the modules that use them, and the methods that are products of matrices."""
    held = [(module, name, getattr(module, name)) for module in MODULES for name in TIMED if hasattr(module, name)]
    whole = [(DenseBlock, "log_det_bar"), (WhitenedField, "_matrix"), (vars(Kernel)["information"], "func")]
    methods = [(owner, name, getattr(owner, name)) for owner, name in whole]
    for module, name, function in held:
        setattr(module, name, partial(algebra.timed, function))
    for owner, name, method in methods:
        counted = partial(algebra.whole, method)
        setattr(owner, name, counted if name == "func" else partialmethod(counted))
    try:
        yield
    finally:
        for owner, name, function in [*held, *methods]:
            setattr(owner, name, function)


def measure(n: int, metric: Any) -> tuple[float, ...]:
    """Milliseconds a step, those of dense algebra, factors and iterations a step, acceptance and step size."""
    model = classifier(whitened=False, points=n)
    process = find_process(model, None, model.initial_point(), metric, None).density_model
    flow = metric.bind(process).hamiltonian()
    rng = np.random.default_rng(1)
    whitened_values = np.concatenate((rng.standard_normal(n), [TRUTH[name] for name in PARAMETERS]))
    values = WhitenedDensity(process).at(whitened_values).model_values
    state = flow.state(flow.field.density.enter(values))
    adaptation, algebra, integrator = DualAveraging(0.1, TARGET), Algebra(n), GeneralizedLeapfrog()
    seconds, steps, iterations, acceptance = 0.0, 0, 0, []
    for i in range(2 * DRAWS):
        size = adaptation.current if i < DRAWS else adaptation.average
        if i == DRAWS:
            algebra = Algebra(n)
        began = time.process_time()
        with watched(algebra):
            outcome = transition(flow, integrator, state, N_STEPS, size, rng)
        spent, state = time.process_time() - began, outcome.state
        if i < DRAWS:
            adaptation.update(outcome.acceptance)
            continue
        seconds, steps, iterations = seconds + spent, steps + outcome.n_steps, iterations + outcome.n_solver_iter
        acceptance.append(outcome.acceptance)
    return (
        1e3 * seconds / steps, 1e3 * algebra.seconds / steps, algebra.factors / steps, iterations / steps,
        float(np.mean(acceptance)), adaptation.average,
    )  # fmt: skip


def main() -> None:
    """Print one line for each size and metric."""
    columns = ("n", "metric", "ms a step", "dense algebra", "ratio", "factors", "iterations", "accepted", "step size")
    print("| " + " | ".join(columns) + " |\n|" + " --- |" * len(columns))
    np.seterr(all="ignore")  # what overflows in a trajectory is a counted failure, as in the step itself
    for n in (100, 300):
        for metric in (BlockMetric(), WhitenedFisherMetric()):
            total, algebra, factors, iterations, accepted, size = measure(n, metric)
            print(
                f"| {n} | {metric.name} | {total:.2f} | {algebra:.2f} | {total / algebra:.2f} | {factors:.1f} |"
                f" {iterations:.1f} | {accepted:.2f} | {size:.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
