"""What a run says once: variables that two steps move, and a tuning that is too short."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

from pymc_rmhmc import RMHMC
from tests.steps.conftest import draw, poisson_model

TWICE = "another step moves"
SHORT = "is too short"


def messages(caplog, words):
    return [record.message for record in caplog.records if words in record.message]


@pytest.mark.parametrize("cores", [1, 2])
def test_variables_that_another_step_moves_too(caplog, cores):
    with poisson_model() as model, caplog.at_level("WARNING", logger="pymc"):
        step = [pm.Metropolis([model["f"]]), RMHMC()]
        draw(model, step, draws=5, tune=60, chains=2, cores=cores)
    (said,) = messages(caplog, TWICE)
    assert "moves f too" in said
    assert "Leave f out of the other step" in said


def warnings_of(step, model, moved):
    """What two draws say, between which something else moves a variable."""
    step.setup_chain(np.random.default_rng(0), 200, 10)
    point, (first,) = step.step(model.initial_point())
    _, (second,) = step.step({**point, moved: point[moved] + 0.01})
    return first["warning"], second["warning"]


@pytest.mark.parametrize("moved", ["ls_log__", "f_rotated_"])
def test_hyperparameters_that_another_step_moves_too(moved):
    with poisson_model(sampled=True, reparameterize=True) as model:
        step = RMHMC()
    before, said = warnings_of(step, model, moved)
    assert before is None
    assert f"moves {'ls' if moved == 'ls_log__' else 'f'} too" in said.message


def test_steps_beside_one_another_are_silent():
    with poisson_model(sampled=True) as model:
        step = RMHMC(vars=["f"])
    assert warnings_of(step, model, "ls_log__") == (None, None)


@pytest.mark.parametrize("cores", [1, 2])
def test_a_tuning_that_is_too_short(caplog, cores):
    """Each run says so once, however many chains it has."""
    with poisson_model() as model, caplog.at_level("WARNING", logger="pymc"):
        step = RMHMC()
        for runs in (1, 2):
            draw(model, step, draws=5, tune=5, chains=3, cores=cores)
            said = messages(caplog, SHORT)
            assert len(said) == runs
    assert "tune=5 is too short" in said[0]
    assert "Leave tune out, or give tune=200 or more" in said[0]


@pytest.mark.parametrize(
    ("options", "tune", "sampled", "needs"),
    [
        ({}, 0, False, 200),
        ({}, 49, False, 200),
        ({}, 50, False, None),
        ({"step_size": 0.5}, 0, False, None),
        ({}, 74, True, 300),
        ({}, 75, True, None),
    ],
)
def test_what_a_tuning_needs(options, tune, sampled, needs):
    with poisson_model(sampled=sampled) as model:
        step = RMHMC(**options)
    step.setup_chain(np.random.default_rng(0), tune, 10)
    said = step.step(model.initial_point())[1][0]["warning"]
    assert said is None if needs is None else f"tune={needs} or more" in said.message


def test_a_chain_that_goes_on_needs_no_tuning():
    with poisson_model() as model:
        step = RMHMC()
    step.setup_chain(np.random.default_rng(0), 60, 1)
    point = model.initial_point()
    for _ in range(60):
        point, _ = step.step(point)
    step.stop_tuning()
    step.setup_chain(np.random.default_rng(1), 0, 10)
    assert step.step(point)[1][0]["warning"] is None
