"""What a gradient costs is read from the graph, without a clock, and decides whether an emulator stands in for it."""

from __future__ import annotations

import time

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

from pymc_rmhmc.approximation.emulation import are_few
from pymc_rmhmc.model.general.cost import DEAR, MOST_EMULATED, cost_in_words, gradient_seconds, is_expensive

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")


def seconds(model: pm.Model, shift: float = 0.0) -> float:
    point = {name: value + shift for name, value in model.initial_point().items()}
    return gradient_seconds(model, model.free_RVs, point)


def process(n: int) -> pm.Model:
    """A process of n observations, whose covariance is factorised."""
    with pm.Model() as model:
        cov = pm.gp.cov.ExpQuad(1, ls=pm.LogNormal("ls"))
        inputs, y = np.linspace(0.0, 1.0, n)[:, None], np.zeros(n)
        pm.gp.Marginal(cov_func=cov).marginal_likelihood("y", X=inputs, y=y, sigma=pm.HalfNormal("s"))
    return model


def test_a_factor_of_a_matrix_costs_its_cube():
    small, middle, large = (seconds(process(n)) for n in (12, 150, 300))
    assert 6.0 < large / middle < 9.0
    assert not is_expensive(2, small)
    assert is_expensive(2, large)


CUBES = {
    "solve": lambda a: pt.linalg.solve(a, pt.ones(200)),
    "least squares": lambda a: pt.linalg.lstsq(a, pt.ones(200), -1.0)[0],
    "inverse": lambda a: pt.linalg.inv(a)[0],
    "eigenvalues": lambda a: pt.linalg.eigh(a)[0],
    "determinant": lambda a: pt.linalg.slogdet(a)[1],
    "exponential": lambda a: pt.linalg.expm(a)[0],
}


@pytest.mark.parametrize("solve", CUBES.values(), ids=CUBES)
def test_what_else_takes_the_cube_of_a_matrix_counts(solve):
    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        pm.Potential("made", solve(scale * pt.eye(200)).sum())
    assert seconds(model) > 200**3 * 1e-10


def product(rows: int, columns: int, others: int | None = None) -> pm.Model:
    """A matrix times a vector of values, or times a matrix that depends on one."""
    with pm.Model() as model:
        if others is None:
            made = pt.dot(np.ones((rows, columns)), pm.Normal("b", shape=columns))
        else:
            made = pt.dot(np.ones((rows, columns)), pm.Normal("b") * pt.ones((columns, others)))
        pm.Potential("made", made.sum())
    return model


def test_products_count_their_multiplications():
    thin, wide = seconds(product(400, 100, 5)), seconds(product(400, 100, 405))
    assert wide - thin == pytest.approx(400 * 100 * 400 * 1e-10, rel=1e-6)
    # A sum of as many numbers takes longer than a product of a matrix and a vector.
    with pm.Model() as model:
        pm.Potential("made", (pm.Normal("b") * np.ones((400, 100))).sum())
    assert seconds(model) > 10.0 * seconds(product(400, 100)) > 0.0


def test_a_batch_of_matrices_counts_each():
    def factors(count: int) -> pm.Model:
        with pm.Model() as model:
            scale = pm.HalfNormal("scale")
            pm.Potential("made", pt.linalg.cholesky(scale * pt.tile(pt.eye(30), (count, 1, 1))).sum())
        return model

    assert seconds(factors(50)) - seconds(factors(10)) == pytest.approx(40 * 30**3 * 1e-10, rel=1e-6)


def loop(n_steps) -> pm.Model:
    with pm.Model() as model:
        rate = pm.Normal("rate")
        values = pytensor.scan(
            lambda last, rate: pt.tanh(rate * last) + 0.1, outputs_info=pt.ones(()), non_sequences=[rate],
            n_steps=n_steps, return_updates=False,
        )  # fmt: skip
        pm.Normal("y", values[-1], 1.0, observed=0.3)
    return model


def test_a_loop_costs_as_much_as_it_is_long():
    short, long, longer = (seconds(loop(n)) for n in (10, 10_010, 20_010))
    assert longer - long == pytest.approx(long - short)
    assert long > 10.0 * short
    assert is_expensive(1, seconds(loop(200_000)))


class Doubled(Op):
    """A user's own: nobody knows what it does."""

    def make_node(self, x):
        return Apply(self, [pt.as_tensor(x)], [pt.as_tensor(x).type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = 2.0 * inputs[0]

    def pullback(self, inputs, outputs, cotangents):
        return [2.0 * cotangents[0]]


class Elsewhere(Doubled):
    """As a function that another library compiles has it."""


Elsewhere.__module__ = "pytensor.link.jax.ops"


@pytest.mark.parametrize("make", [Doubled, Elsewhere])
def test_an_operation_that_is_a_users_own_is_dear(make):
    def model(operation) -> pm.Model:
        with pm.Model() as made:
            pm.Normal("y", operation(pm.Normal("b")), 1.0, observed=0.3)
        return made

    assert is_expensive(1, seconds(model(make())))
    assert not is_expensive(1, seconds(model(lambda b: 2.0 * b)))
    # One for each is counted.
    twice = seconds(model(lambda b: make()(make()(b))))
    assert twice > 1.8 * seconds(model(make()))


@pytest.mark.parametrize("shared", [False, True])
def test_every_number_that_is_read_counts(shared):
    def read(n: int) -> float:
        with pm.Model() as model:
            data = pm.Data("data", np.zeros(n)) if shared else np.zeros(n)
            pm.Normal("y", pm.Normal("mean"), 1.0, observed=data)
        return seconds(model)

    assert read(31_000) - read(1000) == pytest.approx(30_000 * 2e-8, rel=1e-6)
    assert not is_expensive(1, read(1000))
    assert is_expensive(1, read(100_000))


def test_values_count_and_those_of_other_steps_do_not():
    with pm.Model() as model:
        many, one = pm.Normal("many", shape=1000), pm.Normal("one")
        pm.Normal("y", many.sum() + one, 1.0, observed=0.0)
    point = model.initial_point()
    both, alone = (gradient_seconds(model, variables, point) for variables in ([many, one], [one]))
    assert both - alone == pytest.approx(1000 * 2e-8)


def test_no_clock_and_no_value_decides(monkeypatch):
    """Two machines, or two runs on a busy one, make the same draws."""
    model = process(20)
    usual, ticks = seconds(model), iter(range(10**9))
    for clock in ("perf_counter", "process_time", "monotonic", "time"):
        monkeypatch.setattr(time, clock, lambda: 1e3 * next(ticks) ** 2)
    assert seconds(model) == usual == seconds(model, 0.7)


def test_no_more_values_are_emulated_than_an_emulator_has_points_for():
    assert are_few(MOST_EMULATED)
    assert not are_few(MOST_EMULATED + 1)
    assert MOST_EMULATED == 11
    assert is_expensive(MOST_EMULATED, DEAR)
    assert not is_expensive(MOST_EMULATED + 1, 1e3)
    assert not is_expensive(1, 0.99 * DEAR)


def test_how_long_it_takes_is_said_in_milliseconds():
    assert cost_in_words(0.0348) == "its gradient takes about 30 ms, so trajectories follow an emulator of it"
    assert "about 2 ms" in cost_in_words(0.00184)


def test_matrices_within_a_loop_count_in_every_step():
    def filtered(n_steps: int) -> pm.Model:
        with pm.Model() as model:
            start = pm.HalfNormal("scale") * pt.eye(60)
            step = lambda before: pt.linalg.cholesky(before) + pt.eye(60)  # noqa: E731
            last = pytensor.scan(step, outputs_info=[start], n_steps=n_steps, return_updates=False)
            pm.Potential("made", last[-1].sum())
        return model

    assert seconds(filtered(30)) - seconds(filtered(10)) >= 20 * 60**3 * 1e-10


def test_matrices_side_by_side_are_no_factor():
    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        pm.Potential("made", pt.linalg.block_diag(scale * pt.eye(200), pt.eye(200)).sum())
    assert seconds(model) < 1e-3
