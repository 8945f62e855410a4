"""Langevin proposals and elliptical slices leave their target alone: exact draws stay exact."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.kernels.single_moves import EllipticalSlice, Langevin
from pymc_rmhmc.metrics.flat import IdentityField
from tests.statistical.exact import Cell, changed, make_target, squash, stationarity
from tests.unit.banana import Banana, InformationField, TwistedField

FULL, SIMPLE = Langevin(simplified=False), Langevin()


def slice_of(flow, integrator, state, n_steps, step_size, rng):
    """A move as `stationarity` makes it."""
    return EllipticalSlice().move(flow, integrator, state, step_size, rng)


def test_elliptical_slices_keep_exact_draws_of_latent_values():
    cell = Cell("flat", "logit", "additive", beta=0.5)
    target = make_target(cell)
    outcome = stationarity(target, GaussianHamiltonian(target), None, cell, 1500, seed=7, move=slice_of)
    assert outcome.p_value > 1e-5
    assert outcome.failure_rate == 0.0
    assert outcome.moved > 0.2


@dataclass(frozen=True)
class Seen:
    """``φ = Σ log N(seen; z, noise²)`` at one z."""

    position: np.ndarray
    failure = Failure.NONE

    @property
    def log_density(self) -> float:
        return -0.5 * float(np.sum((self.position - SEEN) ** 2 / NOISE**2))

    @property
    def gradient(self) -> np.ndarray:
        return (SEEN - self.position) / NOISE**2


class Residual:
    def at(self, position):
        return Seen(position)


SEEN, NOISE = np.array([2.0]), np.array([1.0])


def test_elliptical_slices_keep_exact_draws_of_a_normal():
    flow, rng, count = GaussianHamiltonian(Residual()), np.random.default_rng(8), 3000
    sd = NOISE / np.sqrt(1.0 + NOISE**2)
    before = SEEN / (1.0 + NOISE**2) + sd * rng.standard_normal((count, 1))
    after, tried = [], 0
    for start in before:
        state = flow.state(start)
        for _ in range(2):
            outcome = EllipticalSlice().move(flow, None, state, 1.0, rng)
            state = outcome.state
            tried += outcome.n_steps
        after.append(state.position)
    assert changed(squash(np.array(after), before) - squash(before, before)) > 1e-5
    assert tried > 2 * 2 * count  # brackets shrink


# The last metric's derivative is not the same in any order of its indices.
OWN = [
    (IdentityField, SIMPLE, 0.6), (InformationField, FULL, 0.3), (TwistedField, SIMPLE, 0.8),
    (TwistedField, FULL, 0.8),
]  # fmt: skip


@pytest.mark.parametrize(("field", "kernel", "step_size"), OWN, ids=lambda v: getattr(v, "__name__", str(v)))
def test_langevin_keeps_exact_draws_of_any_density(field, kernel, step_size):
    scales = (1.0, 1.0, 1.0) if field is IdentityField else (1e-3, 1.0, 1e3)
    density, rng = Banana(scales), np.random.default_rng(5)
    flow, failures, accepted, count = field(density).hamiltonian(), 0, 0.0, 1500
    before, after = np.array([density.draw(rng) for _ in range(count)]), []
    for start in before:
        state = flow.state(start)
        for _ in range(3):
            outcome = kernel.move(flow, None, state, step_size, rng)
            state = outcome.state
            failures += bool(outcome.failure)
            accepted += outcome.acceptance
        after.append(state.position)
    assert changed(squash(np.array(after), before) - squash(before, before)) > 1e-5
    assert failures / (3 * count) < 0.05
    assert 0.3 < accepted / (3 * count) < 0.97
    assert np.abs((np.array(after) - before) / density.units).mean() > 0.2
