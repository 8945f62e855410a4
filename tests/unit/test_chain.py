"""The loop of a chain, on a toy whose coordinates depend on what other steps move: its values never jump."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy as np
import pytest

from pymc_rmhmc.chains.chain import Chain
from pymc_rmhmc.chains.conditional_density import ConditionalDensityBase, Location, Variables
from pymc_rmhmc.errors import Failure, PriorFailure
from pymc_rmhmc.kernels.kernel import Transition
from pymc_rmhmc.tuning.adaptation import DualAveraging, Refit, RefitPolicy

TUNE, REFITS = 40, (4, 12, 24)
RNG = np.random.default_rng(0)


@dataclass
class Tuned:
    """What the toy has learned: a further shift, and whether it leaves a density."""

    shift: float = 0.0
    fails: bool = False
    seen: list = field(default_factory=list)


class ToyAdapter:
    """It refits to what `next` says, and gives a kernel up where it is told to."""

    schedule = SimpleNamespace(iterations=lambda tune: REFITS, watched_from=lambda tune: tune)

    def __init__(self) -> None:
        self.refits, self.gives_up, self.next = [], False, lambda with_sites: Tuned(shift=3.0)

    def initial(self) -> Tuned:
        return Tuned()

    def learn(self, tuned, step_size, outcome, *, stood) -> bool:
        return self.gives_up

    def observe(self, tuned, seen) -> None:
        tuned.seen.append(seen)

    def forget(self, tuned) -> None:
        tuned.seen = []

    def refit(self, tuned, step_size, moment, rng, *, with_sites) -> Refit:
        self.refits.append(moment.iteration)
        step_size.restart(0.25)
        return Refit(self.next(with_sites))

    def step_size(self, tuned, step_size):
        return step_size


@dataclass
class ToyCoordinates:
    """Where u stands for ``u + shift``; a phase is u."""

    shift: float
    fails: bool
    kernel_of: object

    def stand(self, values, coordinates, rng):
        return values - self.shift if coordinates is None else coordinates

    def failure(self, phase) -> Failure:
        return Failure.NON_FINITE if self.fails else Failure.NONE

    def locate(self, phase, values) -> Location:
        return Location(phase, phase + self.shift if values is None else values, -0.5 * float(phase @ phase))

    def seen(self, phase):
        return phase + self.shift

    def kernel(self, tuned, step_size, *, tuning):
        return self.kernel_of()

    def acceptance(self, phase, step_size, rng) -> float:
        return 0.8


@dataclass
class Ahead:
    """It adds 1 to every u."""

    accepts: bool = True
    parts: tuple | None = None

    def step(self, state, rng) -> Transition:
        return Transition(state + 1.0 if self.accepts else state, accepted=self.accepts, parts=self.parts)


class ToyDensity(ConditionalDensityBase):
    """It reads a and b, on which the coordinates depend."""

    name, n_functions, start_is_final, prior_moves = "x", 1, False, True

    def __init__(self) -> None:
        self.plan = SimpleNamespace(policy=SimpleNamespace(refit=True), init="given", step_size=None)
        self.variables, self.adapter = Variables((("x", slice(0, 2)),), {}), ToyAdapter()
        self.steps = SimpleNamespace(first=lambda acceptance: DualAveraging(0.5, 0.8))
        self.kernel, self.has_factor = Ahead(), True
        self.forget()

    def forget(self) -> None:
        self._given = self._coordinates = None

    def bind(self, point):
        known = self._given
        if known is not None and all(np.array_equal(known[name], point[name]) for name in ("a", "b")):
            return False, known
        self._given = {name: np.array(point[name]) for name in ("a", "b")}
        self.drop()
        return True, self._given

    def coordinates(self, tuned) -> ToyCoordinates:
        if not self.has_factor:
            raise PriorFailure(Failure.NOT_POSITIVE_DEFINITE)
        return self.made(tuned)

    def make(self, tuned) -> ToyCoordinates:
        shift = float(self._given["a"] + self._given["b"].sum() + tuned.shift)
        return ToyCoordinates(shift, tuned.fails, lambda: self.kernel)

    def start(self, tuned, values, rng, *, approximated):
        return values

    def start_error(self, point):
        return None


@pytest.fixture
def chain() -> Chain:
    made = Chain(ToyDensity(), ToyDensity().plan, np.zeros(2), own_initval=False)
    made.setup(TUNE)
    return made


def point_of(values, a: float = 0.5, b=(1.0, -2.0)) -> dict[str, np.ndarray]:
    return {"x": np.array(values, float), "a": np.array(a), "b": np.array(b)}


def drawn(chain: Chain, point, *, tuning: bool = True) -> np.ndarray:
    """The values after one draw."""
    chain.draw(point, RNG, tuning=tuning)
    return np.array(chain.values)


@pytest.mark.parametrize("moved", [{}, {"a": 7.0}, {"b": (1.0, 5.0)}, {"a": 7.0, "b": (4.0, 5.0)}], ids=str)
def test_a_draw_goes_on_from_the_points_values_whatever_other_steps_moved(chain, moved):
    """With coordinates of another a or b the values would jump by the difference."""
    first = drawn(chain, point_of([0.3, -0.4]))
    np.testing.assert_allclose(first, [1.3, 0.6])
    np.testing.assert_allclose(drawn(chain, point_of(first, **moved)), first + 1.0)
    # Another step may have moved the values too.
    np.testing.assert_allclose(drawn(chain, point_of([5.0, 6.0], **moved)), [6.0, 7.0])


def test_what_is_known_of_others_is_a_copy(chain):
    """Other steps may write into the very arrays of a point."""
    point = point_of([0.3, -0.4])
    drawn(chain, point)
    point["b"][1] += 6.0
    point["x"] = np.array(chain.values)
    before = chain.values.copy()
    np.testing.assert_allclose(drawn(chain, point), before + 1.0)


def test_coordinates_are_kept_to_the_last_bit_where_nothing_else_moved(chain):
    """Recomputed ones differ by rounding, and a replay would not be exact."""
    values = drawn(chain, point_of([1e9, -0.4]))
    chain.state.position = chain.state.position + 1e-12
    kept = chain.state.position
    chain._phase = None
    drawn(chain, point_of(values))
    np.testing.assert_array_equal(chain.state.position, kept + 1.0)


def test_a_refit_leaves_the_chain_where_it_is(chain):
    values = np.array([0.3, -0.4])
    for _ in range(REFITS[0] + 1):
        values = drawn(chain, point_of(values))
    assert chain.density.adapter.refits == [REFITS[0]]
    assert chain.state.tuned.shift == 3.0
    assert chain.average_step_size() == pytest.approx(0.25)
    np.testing.assert_allclose(values, np.array([0.3, -0.4]) + REFITS[0] + 1)


@pytest.mark.parametrize("fails", ["with sites", "always"])
def test_a_refit_without_a_density_is_dropped(chain, fails):
    """What it did to the step size too, and the chain goes on from where it stood."""
    chain.density.adapter.next = lambda with_sites: Tuned(3.0, fails=with_sites or fails == "always")
    values = np.array([0.3, -0.4])
    for _ in range(REFITS[0] + 1):
        values = drawn(chain, point_of(values))
    assert chain.state.dropped_refits == 1
    assert chain.state.tuned.shift == (0.0 if fails == "always" else 3.0)
    assert chain.average_step_size() == pytest.approx(0.5 if fails == "always" else 0.25)
    assert len(chain.state.tuned.seen) == 1  # the window is another
    np.testing.assert_allclose(values, np.array([0.3, -0.4]) + REFITS[0] + 1)


def test_a_refit_waits_for_a_draw_that_has_a_factor(chain):
    values = np.array([0.3, -0.4])
    for _ in range(REFITS[0]):
        values = drawn(chain, point_of(values))
    chain.density.has_factor = False
    for a in (1.0, 2.0):
        outcome = chain.draw(point_of(values, a=a), RNG, tuning=True)
        assert outcome.failure is Failure.NOT_POSITIVE_DEFINITE
        np.testing.assert_array_equal(chain.values, values)
        assert chain.log_density == -np.inf
    assert chain.density.adapter.refits == []
    chain.density.has_factor = True
    np.testing.assert_allclose(drawn(chain, point_of(values, a=3.0)), values + 1.0)
    assert chain.density.adapter.refits == [REFITS[0]]


def test_the_window_holds_draws_before_the_last_refit_where_there_is_a_density(chain):
    chain.density.adapter.next = lambda with_sites: replace(chain.state.tuned)
    values = np.array([0.3, -0.4])
    for i in range(TUNE):
        values = drawn(chain, point_of(values))
        assert len(chain.state.tuned.seen) == min(i + 1, REFITS[-1])
    np.testing.assert_allclose(chain.state.tuned.seen[2], np.array([0.3, -0.4]) + 3.0)


def test_where_a_kernel_is_given_up_the_values_stay(chain):
    """Its coordinates are another's."""
    values = drawn(chain, point_of([0.3, -0.4]))
    chain.density.adapter.gives_up, chain.state.tuned.shift = True, 9.0
    there = drawn(chain, point_of(values))
    np.testing.assert_allclose(there, values + 1.0)
    chain.density.adapter.gives_up = False
    np.testing.assert_allclose(drawn(chain, point_of(there)), there + 1.0)


@pytest.mark.parametrize("parts", [None, ()])
def test_values_are_taken_anew_where_moves_were_several_though_none_was_accepted(chain, parts):
    """Several moves place the values anew, in their last digits; a single one that is rejected places none."""
    values = drawn(chain, point_of([0.3, -0.4]))
    chain.density.kernel = Ahead(accepts=False, parts=parts)
    chain._phase = chain._phase + 1e-9
    found = drawn(chain, point_of(values))
    assert np.array_equal(found, values) == (parts is None)
    np.testing.assert_allclose(found, values, atol=2e-9)


def test_a_schedule_has_its_refits_in_order_and_none_in_a_short_tuning():
    policy = RefitPolicy(early=(3, 8))
    assert policy.iterations(200) == (3, 8, 20, 60, 120)
    assert policy.iterations(20) == ()
