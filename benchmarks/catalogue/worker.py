"""One run in one process: ``python -m benchmarks.catalogue.worker NAME SAMPLER SEED SECONDS DRAWS``."""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
import warnings

import numpy as np
import pymc as pm

from benchmarks.catalogue.entry import Entry
from benchmarks.catalogue.models import CATALOGUE
from benchmarks.catalogue.moments import moments
from benchmarks.deadline import Deadline
from benchmarks.measures import measured
from benchmarks.outcome import Outcome, merged
from benchmarks.peers.nuts import nutpie_chains
from benchmarks.peers.pymc_chains import CHAINS, Watch, collected
from pymc_rmhmc import RMHMC, FisherMetric, FlatMetric, SoftAbsMetric
from pymc_rmhmc.sampled.graph import GraphDensity
from pymc_rmhmc.sampled.whole_model_metric import RiemannianDensity

__all__ = ["OTHER_FORM", "RMHMC_OPTIONS"]

RMHMC_OPTIONS = {
    "rmhmc": {},
    "rmhmc-latent": {"metric": FlatMetric(chart="latent")},
    "rmhmc-graph": {"metric": FlatMetric(chart="graph")},
    "rmhmc-fisher": {"metric": FisherMetric(chart="graph")},
    "rmhmc-softabs": {"metric": SoftAbsMetric()},
}
OTHER_FORM = "nutpie-other"


class Clock(Watch):
    """Also counts the processor's seconds of tuning and of draws, without compiling, and what the step reports."""

    def __init__(self, deadline: Deadline, began: float) -> None:
        super().__init__(deadline)
        self.began, self.first = began, float("nan")
        self.seconds: dict[int, list[float]] = {}
        self.compiling = 0.0
        self.reported: list[dict] = []
        self._before, self._compiled = 0.0, 0.0

    def __call__(self, trace, draw) -> None:
        """Called after each draw."""
        now = time.thread_time()  # cheaper than the clock of the whole process
        stats = next(s for s in draw.stats if "compile_seconds_in_chain" in s)
        if draw.chain not in self.seconds:
            if not self.seconds:
                self.first = time.process_time() - self.began
            self.seconds[draw.chain] = [0.0, 0.0]
            # What happens between chains is PyMC's: the first draw has its own seconds.
            self._before, self._compiled = now - float(stats["process_time_diff"]), 0.0
        spent, grown = now - self._before, float(stats["compile_seconds_in_chain"]) - self._compiled
        self._compiled += grown
        compiling = spent * min(1.0, grown / max(1e-9, float(stats["perf_counter_diff"])))
        self.compiling += compiling
        self.seconds[draw.chain][not draw.tuning] += spent - compiling
        if not draw.tuning:
            self.reported.append(stats)
        self._before = time.thread_time()
        super().__call__(trace, draw)


def run_rmhmc(entry: Entry, sampler: str, seed: int, deadline: Deadline, draws: int, said: list[str]) -> Outcome:
    """``pm.sample(step=RMHMC(...))``, seconds by the processor's clock."""
    with entry.written() as model:
        watch = Clock(deadline, time.process_time())
        step = RMHMC(**RMHMC_OPTIONS[sampler])
        said.append("chart: " + _chart(step))
        deadline.begin()
        pm.sample(
            draws=draws, chains=CHAINS, cores=1, step=step, random_seed=seed, progressbar=False,
            compute_convergence_checks=False, discard_tuned_samples=False, callback=watch,
        )  # fmt: skip
    run = collected(watch, measured_names(entry, model), (), float("nan"))
    tuning, sampling = (sum(seconds[i] for seconds in watch.seconds.values()) for i in range(2))
    reported = watch.reported or [{}]
    extra = {
        "failures": float(np.mean([s.get("failure", 0) > 0 for s in reported])),
        "acceptance": float(np.mean([s.get("mean_tree_accept", np.nan) for s in reported])),
        "steps": float(np.mean([s.get("tree_size", np.nan) for s in reported])),
        "step size": float(np.mean([s.get("step_size", np.nan) for s in reported])),
        "first draw": watch.first, "compile": watch.first + watch.compiling, "draws of tuning": watch.n_tuned[0],
    }  # fmt: skip
    return Outcome(run.draws, tuning, sampling, extra, run.stopped)


def _chart(step: RMHMC) -> str:
    """The coordinates in which it samples."""
    recipe = step._samplers[0].density
    if isinstance(recipe, RiemannianDensity):
        return "none"
    return "graph" if isinstance(recipe, GraphDensity) else "latent"


def run_nutpie(entry: Entry, sampler: str, seed: int, deadline: Deadline, draws: int) -> Outcome:
    """The model as written, or its other form, for the same variables."""
    names = measured_names(entry, entry.written())
    build = entry.other if sampler == OTHER_FORM else entry.written
    return merged(nutpie_chains(build(), names, seed, deadline, draws, time.process_time))


def measured_names(entry: Entry, written: pm.Model) -> tuple[str, ...]:
    """The variables that are measured."""
    return entry.names or tuple(str(v.name) for v in written.free_RVs)


def _labels(entry: Entry) -> list[str]:
    """The name of each measured value."""
    written = entry.written()
    shapes = {name: written[name].shape.eval() for name in measured_names(entry, written)}
    return [
        f"{name}[{','.join(map(str, index))}]" if len(shape) else name
        for name, shape in shapes.items()
        for index in np.ndindex(*shape)
    ]


class _Said(logging.Handler):
    def __init__(self, said: list[str]) -> None:
        super().__init__()
        self._said = said

    def emit(self, record: logging.LogRecord) -> None:
        self._said.append(record.getMessage())


def main(name: str, sampler: str, seed: str, seconds: str, draws: str) -> None:
    """Run, measure, and print a line for the harness."""
    said: list[str] = []
    logger = logging.getLogger("pymc.rmhmc")
    logger.addHandler(_Said(said))
    logger.setLevel(logging.INFO)
    logging.getLogger("pymc").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    entry, deadline = CATALOGUE[name], Deadline(float(seconds))
    try:
        if sampler in RMHMC_OPTIONS:
            outcome = run_rmhmc(entry, sampler, int(seed), deadline, int(draws), said)
        else:
            outcome = run_nutpie(entry, sampler, int(seed), deadline, int(draws))
        record = measured(outcome)
        record["moments"] = {} if outcome.stopped == "tuning" else moments(outcome.draws, _labels(entry), entry)
    except Exception as error:  # noqa: BLE001 - it is what is recorded
        frames = traceback.extract_tb(error.__traceback__)
        record = {
            "error": f"{type(error).__name__}: {error}",
            "where": [f"{frame.filename.split('/')[-1]}:{frame.lineno} {frame.name}" for frame in frames[-6:]],
        }
    print("RESULT " + json.dumps(record | {"said": said}))


if __name__ == "__main__":
    main(*sys.argv[1:])
