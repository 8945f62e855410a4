"""Figure 2: annealed importance sampling of a classifier's evidence, by HMC and RMHMC, from the prior and from EP's q.

USPS digits, 3 against 5, at log ℓ = 4.85 and log σ = 5.1. A replicate is one state that is led from where it begins to
the posterior, over B values of β in geometric progression; its weight is an estimate of the evidence.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from benchmarks.evidence.measures import estimate
from benchmarks.papers.paper import Run
from benchmarks.problems import usps
from pymc_rmhmc import Annealing
from pymc_rmhmc.approximation.ep import fit_ep, second_order_correction
from pymc_rmhmc.chains.reference import LatentReference
from pymc_rmhmc.evidence.evidence_models import LatentPart, read_model
from pymc_rmhmc.evidence.methods.annealing import anneal
from pymc_rmhmc.latent.charts.site import GaussianSites, SiteChart

__all__ = ["OURS", "PANELS", "Panel", "measure_annealing", "replicate"]

# Of our own: the standard error at which they stop, if they are not stopped before.
OURS = {"bridge": ("ours: bridge from q", 0.006), "flat": ("ours: annealing from q, flat metric", 0.01)}

# The first β above 0. Log weights of draws of the prior (σ = 164) have a standard deviation of 7e6 β: at 1e-4 one
# state loses hundreds of nats in its first step, and at 1e-7 less than one.
FIRST, FIRST_FROM_PRIOR = 1e-4, 1e-7


@dataclass(frozen=True)
class Panel:
    """A panel of the figure.

    Attributes
    ----------
    label : str
        As in the paper.
    n_rungs : int
        B.
    from_prior : bool
        Whether states begin at the prior, and not at EP's q.
    kernel : str
        Of `Annealing`.
    step_size, n_steps : float, int
        Of trajectories.
    """

    label: str
    n_rungs: int
    from_prior: bool = False
    kernel: str = "hessian"
    step_size: float = 0.1
    n_steps: int = 10

    def options(self, n_rungs: int | None = None) -> Annealing:
        """Return how it anneals: 0, and a geometric progression, whose start the paper does not print."""
        betas = np.geomspace(FIRST_FROM_PRIOR if self.from_prior else FIRST, 1.0, n_rungs or self.n_rungs)
        return Annealing(
            ladder=[0.0, *betas], kernel=self.kernel, step_size=self.step_size, n_steps=self.n_steps, bounds=False
        )


PANELS = {
    "a": Panel("AISq-RMHMC", 12),
    "b": Panel("AISq-RMHMC", 120),
    "c": Panel("AISq-RMHMC", 240),
    "d": Panel("AIS-RMHMC", 1200, from_prior=True),
    "e": Panel("AISq-RMHMC", 540),
    "f": Panel("AIS-RMHMC", 2000, from_prior=True),
    "g": Panel("AISq-HMC", 400, kernel="hmc", step_size=0.02, n_steps=200),
}


def measure_annealing(run: Run) -> dict:
    """Return the record of a panel's replicates, or of one of ours."""
    if run.sampler in OURS:
        return _ours(run)
    panel, rng = PANELS[run.sampler], np.random.default_rng(run.seed)
    small = read_model(usps(60).centred()).parts[0]
    began = time.process_time()
    replicate(small, None if panel.from_prior else _approximation(small)[0], panel, 4, rng)
    compiled = time.process_time()
    part = read_model(usps().centred()).parts[0]
    fitting = time.process_time()
    sites, ep, corrected = _approximation(part)
    fitted = time.process_time()
    record: dict = {
        "ep": ep, "second order": corrected, "compiling": compiled - began, "fitting": fitted - fitting,
        "values": [], "seconds": [], "acceptance": [], "draws": 0, "stopped": "",
    }  # fmt: skip
    ends = time.perf_counter() + run.limit
    while record["draws"] < run.draws and (not record["draws"] or time.perf_counter() < ends):
        began = time.process_time()
        value, acceptance = replicate(part, None if panel.from_prior else sites, panel, panel.n_rungs, rng)
        record["seconds"].append(time.process_time() - began)
        record["values"].append(value)
        record["acceptance"].append(acceptance)
        record["draws"] += 1
    if record["draws"] < run.draws:
        record["stopped"] = "sampling"
    said = f"{record['values'][0]:.3f} in {record['seconds'][0]:.0f} s, accepted {record['acceptance'][0]:.2f}"
    return record | {"said": said}


def replicate(
    part: LatentPart, sites: GaussianSites | None, panel: Panel, n_rungs: int, rng: np.random.Generator
) -> tuple[float, float]:
    """Lead one state to the posterior; return the logarithm of its weight, and the mean acceptance on the way."""
    reference = LatentReference(SiteChart(part.prior, sites, lasting=True), part.likelihood)
    with np.errstate(all="ignore"):
        make, taken = panel.options(n_rungs).prepared(reference, 1, rng)
        (log_weight,), accepted = anneal(make(1), taken, rng)
    return reference.log_constant + float(log_weight), float(np.nanmean(accepted))


def _approximation(part: LatentPart) -> tuple[GaussianSites, float, float]:
    """EP's sites, its log evidence, and this with the second order."""
    fit = fit_ep(part.prior, part.likelihood)
    return fit.sites, fit.log_evidence, fit.log_evidence + second_order_correction(fit, part.likelihood)


def _ours(run: Run) -> dict:
    """One of ours, with its estimates on the way."""
    method, target = "bridge" if run.sampler == "bridge" else "annealing", OURS[run.sampler][1]
    began = time.process_time()
    estimate(usps(60).centred(), method, run.seed, 10.0, 1.0)
    compiled = time.process_time() - began
    found = estimate(usps().centred(), method, run.seed, target, run.limit)
    # The fit of q, and for annealing the search for a ladder, are within the seconds.
    history = [(found["tuning"] + seconds, value, error) for seconds, value, error in found["history"]]
    return {
        "history": history, "values": [found["value"]], "seconds": [found["tuning"] + found["estimating"]],
        "standard error": found["standard error"], "compiling": compiled, "draws": 1, "stopped": "",
        "said": f"{found['value']:.4f} ± {found['standard error']:.4f}",
    }  # fmt: skip
