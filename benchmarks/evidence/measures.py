"""One estimate of the evidence, with the processor's seconds of reading, compiling, tuning and estimating apart."""

from __future__ import annotations

import copy
import time
from typing import Any

import numpy as np
import pymc as pm

from benchmarks.evidence.problems import PROBLEMS, EvidenceProblem
from pymc_rmhmc import Annealing
from pymc_rmhmc.approximation.ep import EPFit, fit_ep, second_order_correction
from pymc_rmhmc.chains.chain import Chain
from pymc_rmhmc.evidence.evidence_methods import Settings, estimates_of
from pymc_rmhmc.evidence.evidence_models import EvidenceModel, read_model
from pymc_rmhmc.evidence.evidence_references import latent_reference
from pymc_rmhmc.evidence.methods.annealing import annealed_evidence
from pymc_rmhmc.evidence.methods.estimate import Estimate

__all__ = ["REPLICATES", "annealed", "estimate", "expectation_propagation", "measure"]

REPLICATES = 64
# What `estimates_of` says while it tunes.
TUNING = ("tuning a chain",)


class Clock:
    """The processor's seconds when a first draw is made, and estimates on the way by seconds of estimating."""

    def __init__(self) -> None:
        self.began = time.process_time()
        self.drawing = self.began
        self.history: list[tuple[float, float, float]] = []

    def __call__(self, value: float, error: float, doing: str) -> None:
        """Note what an estimate says of itself."""
        now = time.process_time()
        if doing in TUNING:
            return
        if self.drawing == self.began:
            self.drawing = now
        known = (value, error)
        if np.isfinite(value) and (not self.history or self.history[-1][1:] != known):
            self.history.append((now - self.drawing, *known))


def measure(problem: str, method: str, seed: int, target: float, limit: float, sites: str = "auto") -> dict:
    """Return the record of an estimate: to a standard error, or for so many wall-clock seconds."""
    held = PROBLEMS[problem]
    began = time.process_time()
    _run(held.small(), method, seed, 10.0, 1.0, sites)
    compiled = time.process_time() - began
    model = held.model()
    record = _run(model, method, seed, target, limit, sites)
    record["compiling"] += compiled
    return _shifted(record, held)


def estimate(model: pm.Model, method: str, seed: int, target: float, limit: float) -> dict:
    """Return the record of an estimate of some model, whatever is compiled on the way."""
    return _run(model, method, seed, target, limit, "auto")


def _shifted(record: dict, problem: EvidenceProblem) -> dict:
    constant = problem.constant()
    history = [(seconds, value + constant, error) for seconds, value, error in record["history"]]
    moved = {name: record[name] + constant for name in ("value", "ep", "second order") if name in record}
    return record | moved | {"history": history}


def _run(model: pm.Model, method: str, seed: int, target: float, limit: float, sites: str) -> dict:
    rng = np.random.default_rng(seed)
    began = time.process_time()
    read = read_model(model)
    record: dict[str, Any] = {"reading": time.process_time() - began, "compiling": 0.0}
    if read.chain is not None:
        began = time.process_time()
        _compile(read.chain, {name: np.array(value, order="C") for name, value in read.point.items()})
        record["compiling"] = time.process_time() - began
    with np.errstate(all="ignore"):
        return record | _estimated(read, method, rng, Settings(method, sites, target, limit, REPLICATES))


def _compile(chain: Chain, point: dict[str, np.ndarray]) -> None:
    """Let a copy make a short trajectory: what it calls is compiled for both."""
    twin = copy.copy(chain)
    twin.density = copy.copy(chain.density)
    twin.restore(twin.new_state())
    twin.rehearse(point, np.random.default_rng(0))


def _estimated(read: EvidenceModel, method: str, rng: np.random.Generator, settings: Settings) -> dict:
    if method == "ep":
        return expectation_propagation(read)
    clock = Clock()
    if method == "annealing":
        found, name = annealed(read, settings, rng, clock), method
    else:
        ((_, name, found),) = estimates_of(read, settings, None, rng, clock)
    ended = time.process_time()
    flat = {name: float(v) for name, v in found.diagnostics.items() if np.ndim(v) == 0}
    betas = found.diagnostics.get("beta")
    return {
        "value": found.log_evidence, "standard error": found.standard_error, "taken": name,
        "tuning": clock.drawing - clock.began, "estimating": ended - clock.drawing, "history": clock.history,
        "diagnostics": flat, "rungs": 0 if betas is None else len(betas),
    }  # fmt: skip


def annealed(read: EvidenceModel, settings: Settings, rng: np.random.Generator, clock: Clock) -> Estimate:
    """Annealed importance sampling of a latent block; its ladder counts as tuning."""
    (part,) = read.parts
    reference, _ = latent_reference(part, settings.sites, "annealing")
    options = settings.method if isinstance(settings.method, Annealing) else Annealing(bounds=False)
    make, betas = options.prepared(reference, settings.replicates, rng)
    constant = reference.log_constant + read.constant
    clock.drawing = time.process_time()
    progress = settings.progress(clock)
    progress.move(constant)
    found = annealed_evidence(make, betas, settings.replicates, rng, progress, bounds=options.bounds)
    return found.shifted(constant)


def expectation_propagation(read: EvidenceModel) -> dict:
    """EP's evidence of a latent block, and what the second order adds."""
    (part,) = read.parts
    began = time.process_time()
    fit: EPFit = fit_ep(part.prior, part.likelihood)
    fitted = time.process_time()
    corrected = fit.log_evidence + second_order_correction(fit, part.likelihood)
    ended = time.process_time()
    return {
        "value": fit.log_evidence + read.constant, "standard error": 0.0, "taken": "ep", "tuning": 0.0,
        "estimating": fitted - began, "correcting": ended - fitted, "history": [],
        "second order": corrected + read.constant, "ep": fit.log_evidence + read.constant,
        "converged": bool(fit.converged), "updates": int(fit.n_iter), "rungs": 0,
    }  # fmt: skip
