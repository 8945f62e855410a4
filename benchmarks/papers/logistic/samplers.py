"""The samplers, and a run of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pymc as pm

import pymc_rmhmc
from benchmarks.catalogue.regressions import logistic
from benchmarks.papers.chains import measure_nutpie, measure_step, summary
from benchmarks.papers.paper import Run
from pymc_rmhmc import RMHMC, FisherMetric

__all__ = ["DATA_SETS", "REFERENCE", "SAMPLERS", "measure"]

DATA_SETS = ("australian", "german", "heart", "pima", "ripley")
# A long run of nutpie, with which the means of the others are compared.
REFERENCE = "reference"


@dataclass(frozen=True)
class Sampler:
    """A name for tables, what makes the step (None for nutpie), draws per draw asked for, and draws of tuning."""

    label: str
    make: Callable[[], Any] | None
    times: int = 1
    tune: int | None = None


def _langevin() -> dict[str, Sampler]:
    """Langevin samplers in the flat metric and in that of Fisher; the simplified one leaves out its derivatives."""
    mala, mmala = pymc_rmhmc.MALA, pymc_rmhmc.MMALA
    fisher = FisherMetric(chart="graph")
    return {
        "mala": Sampler("MALA", mala, 5),
        "mmala": Sampler("MMALA, Fisher", lambda: mmala(metric=fisher, simplified=False), 5),
        "simplified": Sampler("simplified MMALA, Fisher", lambda: mmala(metric=fisher, simplified=True), 5),
    }


SAMPLERS: dict[str, Sampler] = {
    "metropolis": Sampler("Metropolis", pm.Metropolis, 5, 2000),
    # These rows are there once the package has the samplers.
    **(_langevin() if hasattr(pymc_rmhmc, "MMALA") else {}),
    "hmc": Sampler("HMC", pm.HamiltonianMC, 1, 1000),
    "fisher": Sampler("RMHMC, Fisher", lambda: RMHMC(metric=FisherMetric(chart="graph"))),
    "flat": Sampler("RMHMC()", RMHMC),
    "nutpie": Sampler("nutpie", None),
}


def measure(run: Run) -> dict:
    """Two chains of a regression's coefficients; the experiment is the data set's name."""
    model = logistic(run.experiment)
    if run.sampler in (REFERENCE, "nutpie"):
        draws, record = measure_nutpie(model, ("beta",), run)
    else:
        sampler = SAMPLERS[run.sampler]
        assert sampler.make is not None
        draws, record = measure_step(model, sampler.make, ("beta",), run, sampler.tune)
    found = summary(draws)
    return record | found | {"said": f"ESS {min(found['ess']):.0f} in {record['tuning'] + record['sampling']:.1f} s"}
