"""Seconds of compiling: nested intervals count once, and whoever waits is told before."""

from __future__ import annotations

import numba
import pytest

from pymc_rmhmc import stopwatch
from pymc_rmhmc.linalg.compiled import compilation
from pymc_rmhmc.stopwatch import COMPILING, Stopwatch


@pytest.fixture
def clock(monkeypatch):
    """A clock that is a second later each time it is read."""
    ticks = iter(range(1000))
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: float(next(ticks)))


def test_nested_intervals_count_once(clock):
    watch = Stopwatch()
    with watch.running(), watch.running(), watch.running():
        pass
    assert watch.seconds == 1.0
    with watch.running():
        pass
    assert watch.seconds == 2.0


def test_an_interval_ends_with_an_error(clock):
    watch = Stopwatch()
    with pytest.raises(KeyError), watch.running():
        raise KeyError
    with watch.running():
        pass
    assert watch.seconds == 2.0


def test_each_outermost_interval_is_announced_before_it_begins():
    watch, said = Stopwatch(), []
    with watch.announced(lambda: said.append(watch.seconds)):
        with watch.running(), watch.running():
            assert said == [0.0]
        with watch.running():
            assert len(said) == 2
    with watch.running():
        pass
    assert len(said) == 2


def test_what_numba_compiles_is_counted():
    assert compilation.COMPILING is COMPILING
    before = COMPILING.seconds
    function = numba.njit(lambda x: x + 1.0)
    function(1.0)
    after = COMPILING.seconds
    assert after > before
    function(2.0)
    assert COMPILING.seconds == after
