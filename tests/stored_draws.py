"""Draws of twelve models with fixed seeds, to hold against those of another commit on the same machine.

Run `python -m tests.stored_draws keep` before a change of structure, and `python -m tests.stored_draws check` after it:
where nothing but structure has moved, the draws are equal bit for bit. They are kept in `build`, because processors
round differently; what is the same everywhere is tested statistically.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pymc as pm

import pymc_rmhmc
from pymc_rmhmc import MALA, RMHMC, EllipticalSlice, GeneralizedLeapfrog, SoftAbsMetric
from tests.model import joint_forms
from tests.model.conftest import BINARY, COUNTS, N, X

STORE = Path(__file__).resolve().parents[1] / "build" / "stored_draws.npz"
TUNE, DRAWS = 120, 40
MODELS: dict[str, Callable[[], object]] = {}


def stored[F: Callable[[], object]](build: F) -> F:
    """Add a model to the table; it returns the step."""
    MODELS[build.__name__] = build
    return build


def process() -> pm.gp.Latent:
    return pm.gp.Latent(cov_func=1.5 * pm.gp.cov.Matern32(1, ls=0.3))


@stored
def fixed_process() -> object:
    pm.Bernoulli("y", logit_p=process().prior("f", X), observed=BINARY)
    return RMHMC()


@stored
def fixed_process_by_the_papers() -> object:
    f = process().prior("f", X, reparameterize=False)
    pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)
    return RMHMC(metric="hessian", integrator=GeneralizedLeapfrog(), n_steps=5, step_size=0.3)


@stored
def process_with_hyperparameters() -> object:
    joint_forms.whitened()
    return RMHMC()


@stored
def process_with_turns() -> object:
    joint_forms.student_t()
    return RMHMC(trajectory="nuts")


@stored
def sum_of_processes() -> object:
    joint_forms.additive()
    return RMHMC()


@stored
def grid() -> object:
    joint_forms.on_a_grid()
    return RMHMC()


@stored
def rows() -> object:
    joint_forms.centred_rows_of_two_means()
    return RMHMC()


@stored
def basis() -> object:
    joint_forms.basis()
    return RMHMC()


@stored
def moving_design() -> object:
    joint_forms.factor_model()
    return RMHMC()


@stored
def hierarchy_by_the_graph() -> object:
    mu, tau = pm.Normal("mu"), pm.HalfNormal("tau")
    pm.Poisson("y", mu=pm.math.exp(pm.Normal("effects", mu, tau, shape=N)), observed=COUNTS)
    return RMHMC()


@stored
def whole_model_metric() -> object:
    x = pm.Normal("x", shape=3)
    pm.Normal("y", x[0] + x[1] ** 2 + x[2] * np.linspace(0.0, 1.0, 6), 0.5, observed=np.linspace(-1.0, 1.0, 6))
    return RMHMC(metric=SoftAbsMetric())


@stored
def langevin_and_slices() -> object:
    f = process().prior("f", X, reparameterize=False)
    g = process().prior("g", X, reparameterize=False)
    pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)
    pm.Bernoulli("z", logit_p=g, observed=BINARY)
    return [MALA([f]), EllipticalSlice([g])]


def drawn(build: Callable[[], object]) -> dict[str, np.ndarray]:
    """Return every free variable's draws in one chain."""
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step = build()
        result = pm.sample(
            DRAWS, tune=TUNE, chains=1, cores=1, step=step, random_seed=7, progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip
        return {v.name: result.posterior[v.name].values for v in model.free_RVs}


def main() -> int:
    """Keep the draws, or compare them with what was kept; the exit status is 0 if all are equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["keep", "check"])
    parser.add_argument("--only", action="append", choices=sorted(MODELS), help="this model alone")
    asked = parser.parse_args()
    print(f"{pymc_rmhmc.__file__}, {len(asked.only or MODELS)} models")
    found = {f"{name}/{v}": x for name in asked.only or MODELS for v, x in drawn(MODELS[name]).items()}
    if asked.what == "keep":
        STORE.parent.mkdir(exist_ok=True)
        np.savez(STORE, **found)
        return 0
    kept = np.load(STORE)
    differing = [key for key, x in found.items() if not np.array_equal(kept[key], x)]
    for key in differing:
        print(f"{key}: differs from draw {np.argmax((kept[key] != found[key]).reshape(DRAWS, -1).any(axis=1))} on")
    print(f"{len(found)} variables, {len(differing)} differ")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
