"""Parallel tempering of PyMC models: modes far apart, and an error that is what it says."""

from __future__ import annotations

import math

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_rmhmc import parallel_tempering
from pymc_rmhmc.evidence.methods.ensemble import REVERSIBLE, SCHEMES
from tests.unit.tempering_toys import normal_evidence, normal_phi, run

pytestmark = pytest.mark.slow

MODES = np.array([[-6.0, -4.0], [6.0, -3.0], [0.0, 7.0]])
WEIGHTS, WIDTH, LOG_EVIDENCE = np.array([0.5, 0.3, 0.2]), 0.35, math.log(37.0)


def three_modes() -> pm.Model:
    """Three normal densities 20 to 34 standard deviations apart, in a wide prior; the evidence is 37."""
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 6.0, shape=2)
        square = ((x[None, :] - MODES) ** 2).sum(axis=1) / WIDTH**2
        parts = np.log(WEIGHTS) - 0.5 * square - math.log(2.0 * math.pi * WIDTH**2)
        prior = pm.logp(pm.Normal.dist(0.0, 6.0), x).sum()
        pm.Potential("mixture", pt.logsumexp(parts) - prior + LOG_EVIDENCE)
    return model


@pytest.fixture(scope="module")
def runs():
    """Both schemes on eight temperatures, 4000 sweeps."""
    options = {"draws": 4000, "tune": 1000, "temperatures": 8, "random_seed": 2, "progressbar": False}
    return {swaps: parallel_tempering(three_modes(), swaps=swaps, **options) for swaps in SCHEMES}


def test_all_modes_have_their_weights(runs):
    x = runs["nonreversible"].posterior["x"].values.reshape(-1, 2)
    nearest = ((x[:, None] - MODES) ** 2).sum(axis=-1).argmin(axis=1)
    shares = np.bincount(nearest, minlength=3) / nearest.size
    # Every round trip brings an independent mode at best.
    trips = float(runs["nonreversible"]["tempering"]["round_trips"].sum())
    assert np.abs(shares - WEIGHTS).max() < 4.0 * math.sqrt(0.25 / trips)
    for mode, centre in enumerate(MODES):
        own = x[nearest == mode]
        assert own.mean(axis=0) == pytest.approx(centre, abs=0.1)
        assert own.std(axis=0) == pytest.approx(np.full(2, WIDTH), abs=0.05)


def test_the_evidence_of_three_modes(runs):
    known = runs["nonreversible"]["tempering"]
    error = float(known["standard_error"])
    assert error < 0.1
    assert abs(float(known["log_evidence"]) - LOG_EVIDENCE) < 4.0 * error


def test_deterministic_swaps_make_more_round_trips(runs):
    trips = {swaps: found["tempering"]["round_trips"].values for swaps, found in runs.items()}
    assert trips["nonreversible"].min() >= 300
    assert trips["nonreversible"].sum() >= 1.7 * trips[REVERSIBLE].sum()


def test_errors_are_what_they_say_over_a_hundred_seeds():
    truth = normal_evidence(2)
    z = []
    for seed in range(100):
        estimate = run(normal_phi, 2, seed=seed, draws=300, tune=120).estimate
        z.append((estimate.log_evidence - truth) / estimate.standard_error)
    assert 0.8 < math.sqrt(np.mean(np.square(z))) < 1.2
    assert abs(np.mean(z)) < 0.4
