"""Every option reaches what it is for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pymc as pm
import pytest
from threadpoolctl import threadpool_info

from pymc_rmhmc import RMHMC, ConfigurationError
from pymc_rmhmc.dynamics.integrators import ImplicitMidpoint
from pymc_rmhmc.steps.options import Options, settle
from pymc_rmhmc.usage import RANGES
from tests.steps.conftest import poisson_model

ROOT = Path(__file__).resolve().parents[2]


def begun(**options):
    """A step whose chain has begun, and its first point."""
    with poisson_model() as model:
        step = RMHMC(**options)
    step.setup_chain(np.random.default_rng(1), 0, 10)
    return step, model.initial_point()


def test_the_solver_and_the_path():
    plan = settle(Options(metric="hessian", solver_tol=1e-6, solver_max_iter=7, jitter=0.3, path_length=2.0), "flat")
    assert (plan.integrator.solver.tolerance, plan.integrator.solver.max_iter) == (1e-6, 7)
    assert (plan.trajectory.path_length, plan.trajectory.jitter) == (2.0, 0.3)


@pytest.mark.parametrize(("jitter", "lengths"), [(0.0, 1), (0.5, 50)])
def test_paths_are_as_long_as_jitter_lets_them_be(jitter, lengths):
    length = settle(Options(jitter=jitter, path_length=1.0), "flat").trajectory
    rng = np.random.default_rng(0)
    made = [np.prod(length.draw(0.3, rng)) for _ in range(50)]
    assert np.unique(np.round(made, 12)).size == lengths
    assert 1.0 - jitter <= min(made) <= max(made) <= 1.0 + jitter


def test_a_path_is_divided_into_steps_no_longer_than_the_one_that_is_given():
    n_steps, size = settle(Options(step_size=0.4, path_length=1.0, jitter=0.0), "flat").trajectory.draw(
        0.4, np.random.default_rng(0)
    )
    assert (n_steps, size) == (3, pytest.approx(1.0 / 3.0))


MIDPOINT = {"metric": "hessian", "integrator": "implicit_midpoint"}


@pytest.mark.parametrize(
    ("options", "longest"),
    [
        ({"n_steps": 4}, 1.7 / 4),
        ({"n_steps": 4, "step_size": 1.0}, np.inf),
        ({"n_steps": 4, "metric": "hessian"}, np.inf),
        ({"path_length": 3.0, "jitter": 0.5}, 4.5),
        ({"path_length": 20.0, "jitter": 0.0, "metric": "hessian"}, 20.0),
        ({"path_length": 20.0, **MIDPOINT}, 1.7),
        ({"path_length": 1.0, "jitter": 0.1, **MIDPOINT}, 1.1),
        ({"n_steps": 2, **MIDPOINT}, 0.85),
        ({"n_steps": 2, "step_size": 3.0, **MIDPOINT}, np.inf),
        ({"path_length": 20.0, "jitter": 0.0, "step_size": 3.0, **MIDPOINT, "integrator": ImplicitMidpoint()}, 20.0),
    ],
)
def test_no_step_is_tuned_past_the_path(options, longest):
    """A rotation is accepted whatever its angle: a whole turn would leave a chain where it is.

    So is a step of the implicit midpoint where the density is normal, which turns by no more than half a turn however
    long it is.
    """
    assert settle(Options(**options), "flat").max_step_size == pytest.approx(longest)


@pytest.mark.parametrize("options", [{"n_steps": 3.0}, {"max_steps": np.float64(2.0), "step_size": 1.0}])
def test_a_number_that_is_an_integer_is_taken_for_one(options):
    step, point = begun(blas_threads=np.int64(1), **options)
    _, (statistics,) = step.step(point)
    assert statistics["tree_size"] == next(iter(options.values()))


def test_a_given_number_of_steps_walks_a_whole_path_with_hyperparameters_too():
    """The joint chain's own bound, half a path, is for paths that are divided."""
    with poisson_model(sampled=True) as model:
        step = RMHMC(n_steps=4)
    step.setup_chain(np.random.default_rng(1), 40, 1)
    step.step(model.initial_point())
    assert step.chains[0].step_size.maximum == pytest.approx(1.7 / 4)


@pytest.mark.parametrize(("threads", "held"), [(1, 1), (None, None)])
def test_blas_threads_are_held_or_left_alone(threads, held):
    def limits():
        return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

    with poisson_model() as model:
        step = RMHMC(blas_threads=threads)
    before = limits()
    step.setup_chain(np.random.default_rng(1), 0, 1)
    try:
        assert limits() == (before if held is None else [held] * len(before))
    finally:
        step.step(model.initial_point())  # the last draw lets go
    assert limits() == before


def test_random_numbers_are_those_that_are_given():
    def first(rng):
        with poisson_model() as model:
            step = RMHMC(rng=rng)
        return step.step(model.initial_point())[0]["f"]

    np.testing.assert_array_equal(first(3), first(3))
    assert not np.array_equal(first(3), first(4))


def test_where_the_model_is_first_evaluated_is_not_where_a_chain_is_expected_to_begin():
    """The model's own initial point is nobody's choice: a chain from there begins at the Laplace approximation."""
    elsewhere = {"f": np.full(12, 0.7)}
    (step, point), (other, _) = begun(), begun(initial_point=elsewhere)
    assert other._initial_point["f"][0] == 0.7
    np.testing.assert_array_equal(step.step(point)[0]["f"], other.step(point)[0]["f"])
    kept, _ = begun(initial_point=elsewhere, step_size=1e-9, n_steps=1)
    np.testing.assert_allclose(kept.step(elsewhere)[0]["f"], elsewhere["f"], atol=1e-7)


def test_every_sentence_on_path_lengths_has_the_defaults():
    plan = settle(Options(), "flat")
    usual, hierarchies, blocks = plan.trajectory, plan.general_trajectory, plan.block_trajectory
    said = " ".join(RMHMC.__doc__.split())
    assert f"The default is {usual.path_length}, a" in said
    assert f"chart of the graph {hierarchies.path_length}, and" in said
    assert f"of a process with its hyperparameters {blocks.path_length:g}." in said
    page = " ".join((ROOT / "docs" / "metrics.md").read_text().split())
    assert f"have the length {blocks.path_length:g} by default, where other metrics have {usual.path_length}" in page
    assert f"The default is {usual.jitter}, or {hierarchies.jitter} for hierarchies" in said
    assert f"path_length={usual.path_length}, or {hierarchies.path_length} for" in RANGES["path_length"].advice
    assert f"jitter={usual.jitter}, or {hierarchies.jitter} for" in RANGES["jitter"].advice
    page = (ROOT / "docs" / "how_it_works.md").read_text()
    for path in (usual, hierarchies):
        assert f"uniform within {100 * path.jitter:.0f} % of {path.path_length}" in page


def test_fixed_steps_must_cover_the_longer_path_of_a_hierarchy_too():
    with pm.Model():
        effects = pm.Normal("effects", 0.0, pm.HalfNormal("scale"), shape=5)
        pm.Normal("y", effects, 1.0, observed=np.zeros(5))
        with pytest.raises(ConfigurationError, match=r"130 steps for a path of up to 2\.6 \(path_length=2 and jit"):
            RMHMC(step_size=0.02)
