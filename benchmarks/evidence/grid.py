"""The digits over a grid of hyperparameters, as in Kuss and Rasmussen (2005), figure 5: evidence and predictions.

Laplace's approximation, EP, EP corrected to second order, and a bridge to the posterior. Their test errors, and the
information of their predictions in bits: the mean of ``log₂ p(y*)`` over the test set, plus the entropy of the labels
in the training set. 0 is as good as guessing, and 1 about the best.

References
----------
Kuss and Rasmussen (2005), Assessing approximate inference for binary Gaussian process classification.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.special import log_ndtr

from benchmarks.evidence.problems import digits, squared_distances, squared_exponential_of
from benchmarks.problems import DATA, usps
from pymc_rmhmc.approximation import find_mode, laplace_sites
from pymc_rmhmc.approximation.ep import fit_ep, second_order_correction
from pymc_rmhmc.chains.reference import LatentReference
from pymc_rmhmc.evidence.evidence_methods import Settings, estimates_of
from pymc_rmhmc.evidence.evidence_models import EvidenceModel, LatentPart, read_model
from pymc_rmhmc.latent.charts.site import GaussianSites, SiteChart

__all__ = ["EASY", "LOG_AMPLITUDES", "LOG_LENGTHSCALES", "measure_row", "predictions", "target_of"]

type Array = NDArray[np.float64]

LOG_LENGTHSCALES = (2.0, 2.75, 3.5, 4.25, 5.0)
LOG_AMPLITUDES = (0.0, 1.5, 3.0, 4.0, 5.0)
REPLICATES = 64
# Of the bridge: at small amplitudes, and elsewhere.
EASY, ERROR, LARGER_ERROR = 3.0, 0.03, 0.2


def target_of(log_amplitude: float) -> float:
    """The standard error that is asked for."""
    return ERROR if log_amplitude <= EASY else LARGER_ERROR


@cache
def _split() -> tuple[Array, Array, Array, Array]:
    with np.load(DATA / "usps_3v5.npz") as data:
        x, other = (data[name].astype(np.float64) for name in ("X_train", "X_test"))
        return x, np.sign(data["y_train"].astype(float)), other, np.sign(data["y_test"].astype(float))


def predictions(log_lengthscale: float, log_amplitude: float, sites: GaussianSites) -> dict[str, float]:
    """Errors on the test set in per cent, and bits of information, of the prior times some sites."""
    x, y, other, y_test = _split()
    covariance = digits(log_lengthscale, log_amplitude).covariance
    across = squared_exponential_of(squared_distances(x, other), log_lengthscale, log_amplitude)
    root = np.sqrt(sites.precision)
    factor = linalg.cholesky(np.eye(y.size) + root[:, None] * covariance * root, lower=True)
    # The mean of f is K alpha.
    smoothed = root * linalg.cho_solve((factor, True), root * (covariance @ sites.linear))
    alpha = sites.linear - smoothed
    narrowed = linalg.solve_triangular(factor, root[:, None] * across, lower=True)
    variance = np.exp(2.0 * log_amplitude) - (narrowed**2).sum(axis=0)
    scaled = y_test * (across.T @ alpha) / np.sqrt(1.0 + np.maximum(variance, 0.0))
    share = np.mean(y > 0)
    entropy = -share * np.log2(share) - (1.0 - share) * np.log2(1.0 - share)
    bits = float(log_ndtr(scaled).mean() / np.log(2.0) + entropy)
    return {"test error": 100.0 * float(np.mean(scaled <= 0)), "bits": bits}


def measure_row(log_amplitude: float, seed: int, limit: float) -> dict:
    """Return the record of a row of cells, each method of a cell with the processor's seconds."""
    began = time.process_time()
    _measure(read_model(usps(60).centred()), np.random.default_rng(0), 10.0, 1.0)
    record: dict[str, Any] = {"compiling": time.process_time() - began, "cells": []}
    for log_lengthscale in LOG_LENGTHSCALES:
        began = time.process_time()
        read = read_model(digits(log_lengthscale, log_amplitude).centred())
        cell = {"log lengthscale": log_lengthscale, "log amplitude": log_amplitude}
        cell |= {"reading": time.process_time() - began}
        cell |= _measure(read, np.random.default_rng(seed), target_of(log_amplitude), limit)
        for name in ("laplace", "ep"):
            cell[name] |= predictions(log_lengthscale, log_amplitude, cell[name].pop("sites"))
        record["cells"].append(cell)
    return record


def _measure(read: EvidenceModel, rng: np.random.Generator, target: float, limit: float) -> dict:
    part: LatentPart = read.parts[0]
    began = time.process_time()
    sites = laplace_sites(find_mode(part.prior.predictor, part.likelihood))
    reference = LatentReference(SiteChart(part.prior, sites), part.likelihood)
    value = reference.log_constant + reference.at(np.zeros(reference.size))[0]
    fitting = time.process_time()
    fit = fit_ep(part.prior, part.likelihood, sites=sites)
    fitted = time.process_time()
    corrected = fit.log_evidence + second_order_correction(fit, part.likelihood)
    drawing = time.process_time()
    settings = Settings("bridge", fit.sites, target, limit, REPLICATES)
    with np.errstate(all="ignore"):
        ((_, _, bridge),) = estimates_of(read, settings, None, rng, None)
    ended = time.process_time()
    return {
        "laplace": {"value": value, "seconds": fitting - began, "sites": sites},
        "ep": {
            "value": fit.log_evidence, "seconds": fitted - fitting, "sites": fit.sites, "updates": int(fit.n_iter),
            "converged": bool(fit.converged), "sequential": bool(fit.is_sequential),
        },
        "corrected": {"value": corrected, "seconds": drawing - fitted},
        "bridge": {
            "value": bridge.log_evidence, "standard error": bridge.standard_error, "seconds": ended - drawing,
            "rungs": len(bridge.diagnostics["beta"]),
        },
    }  # fmt: skip
