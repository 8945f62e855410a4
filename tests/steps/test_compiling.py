"""Everything is compiled in `RMHMC()`, said, and recorded; nothing of it changes a draw."""

from __future__ import annotations

import logging
import re

import numpy as np
import pymc as pm
import pytest

from pymc_rmhmc import RMHMC
from pymc_rmhmc.errors import ConfigurationError
from pymc_rmhmc.latent.latents_given_theta import LatentsGivenTheta
from pymc_rmhmc.stopwatch import COMPILING
from tests.steps.conftest import COUNTS, X, draw, poisson_model

pytestmark = pytest.mark.usefixtures("pymc_by_python", "compiled_ahead")


def build(model, **options) -> RMHMC:
    with model:
        return RMHMC(**options)


def lines(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if "compil" in record.getMessage()]


@pytest.fixture
def not_ahead(monkeypatch):
    """Nothing is compiled before it is called."""
    monkeypatch.setattr("pymc_rmhmc.steps.rehearsal._rehearse", lambda sampler, point: None)


def test_nothing_is_left_to_compile_for_a_chain_that_takes_turns(caplog):
    model = poisson_model(sampled=True)
    with caplog.at_level(logging.INFO, "pymc.rmhmc"):
        step = build(model)
    first, last = lines(caplog)
    assert first.startswith("RMHMC: compiling 5 functions for f, ls, usually 10 to 40 s the first time; kept in ")
    assert last.startswith("RMHMC: compiled in ")
    before = COMPILING.seconds
    stats = draw(model, step, draws=20, tune=200).sample_stats
    assert step.chains[0].tuned.tried == 1
    assert COMPILING.seconds == before
    assert step._compile_seconds > 0.0
    assert (stats["compile_seconds"] == step._compile_seconds).all()
    assert (stats["compile_seconds_in_chain"] == 0.0).all()


@pytest.mark.parametrize("metric", ["flat", "hessian"])
def test_at_fixed_hyperparameters_neither(metric):
    model = poisson_model()
    step = build(model, metric=metric)
    before = COMPILING.seconds
    draw(model, step)
    assert COMPILING.seconds == before


def test_with_two_cores_the_parent_has_compiled_for_both():
    model = poisson_model(sampled=True)
    stats = draw(model, build(model), draws=10, tune=20, chains=2, cores=2).sample_stats
    assert (stats["compile_seconds_in_chain"] == 0.0).all()
    assert np.unique(stats["compile_seconds"]).size == 1


def test_what_a_chain_compiles_after_all_is_said_once_and_recorded(caplog, not_ahead):
    model = poisson_model(sampled=True)
    step = build(model)
    with caplog.at_level(logging.INFO, "pymc.rmhmc"):
        stats = draw(model, step, draws=10, tune=20, discard_tuned_samples=False).warmup_sample_stats
    first, last = lines(caplog)
    assert first.startswith("RMHMC: compiling a function that this chain needs now")
    assert re.fullmatch(r"RMHMC: compiled in \d+\.\d s\.", last)
    in_chain = stats["compile_seconds_in_chain"].values[0]
    assert in_chain[0] > 0.0
    assert (np.diff(in_chain) >= 0.0).all()
    assert np.allclose(stats["compile_seconds"].values[0], step._compile_seconds + in_chain)


@pytest.mark.parametrize("sampled", [False, True])
def test_no_draw_depends_on_it(sampled, monkeypatch):
    def draws():
        return draw(poisson_model(sampled=sampled), tune=60).posterior

    ahead = draws()
    monkeypatch.setattr("pymc_rmhmc.steps.rehearsal._rehearse", lambda sampler, point: None)
    late = draws()
    for name in ahead.data_vars:
        assert np.array_equal(ahead[name], late[name])


def test_few_matrices_are_factorised_for_it(monkeypatch):
    """Compiling may not take longer than a draw of many latent values, whatever paths the user asks for."""
    counted = []

    def cost(self, *args, call=LatentsGivenTheta.__init__, **options):
        counted.append(self)
        return call(self, *args, **options)

    monkeypatch.setattr(LatentsGivenTheta, "__init__", cost)
    build(poisson_model(sampled=True), max_steps=1000)
    assert 0 < len(counted) < 20


@pytest.mark.parametrize("metric", ["flat", "hessian"])
def test_a_start_that_overflows_does_not_stop_the_step_from_being_built(metric):
    with pm.Model() as model:
        f = pm.MvNormal("f", np.zeros(12), cov=np.eye(12), initval=np.full(12, 800.0))
        pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)
    draws = draw(model, build(model, metric=metric, init="laplace")).posterior["f"]
    assert np.abs(draws.values).max() < 10.0


def test_a_start_without_a_density_is_an_error_of_the_chain_that_begins_there():
    with pm.Model() as model:
        ls = pm.LogNormal("ls", -1.0, 0.3)
        f = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=ls)).prior("f", X=X)
        pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)
        pm.Potential("nowhere", ls * np.nan)
    step = build(model)
    with pytest.raises(ConfigurationError, match="nowhere"):
        draw(model, step)


def test_a_model_that_is_built_anew_compiles_nothing_anew():
    """PyTensor and Numba never free all that they compiled, so each would take memory for good."""
    steps = [build(poisson_model(sampled=True)) for _ in range(2)]
    assert steps[0]._compile_seconds > 0.0
    assert steps[1]._compile_seconds == 0.0
