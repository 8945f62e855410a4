"""A plugin of pytest by which every chain differs in its last digits: ``pytest -p tests.nudged``.

What another processor does to a sum, or a new version of BLAS, this does to every momentum: of a chaotic chain it makes
another, after some dozens of draws, without compiling anything anew. ``NUDGE`` says how far, as a share of a momentum.
"""

from __future__ import annotations

import os

from pymc_rmhmc.dynamics.hamiltonian import (
    GaussianHamiltonian,
    RiemannianHamiltonian,
    SiteHamiltonian,
    SpannedHamiltonian,
)

NUDGE = 1.0 + float(os.environ.get("NUDGE", "1e-13"))


class Nudged:
    """Random numbers, by a hair other ones."""

    def __init__(self, rng) -> None:
        self._rng = rng

    def standard_normal(self, size):
        return NUDGE * self._rng.standard_normal(size)


def pytest_configure() -> None:
    for kind in (GaussianHamiltonian, RiemannianHamiltonian, SiteHamiltonian, SpannedHamiltonian):
        usual = kind.refresh

        def refresh(self, state, rng, usual=usual):
            return usual(self, state, Nudged(rng))

        kind.refresh = refresh


# They compare with workers that are not nudged, start pytest themselves, or compare states to the last bit.
LEFT_OUT = (
    "test_one_and_two_cores_give_the_same_draws",
    "test_workers_can_be_started_in_every_way",
    "test_planted_faults.py",
    "test_the_input_is_not_changed",
)


def pytest_collection_modifyitems(config, items) -> None:
    left = [item for item in items if any(name in item.nodeid for name in LEFT_OUT)]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]
