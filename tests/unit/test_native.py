"""Compiled functions called by their address: what is found, what is not, and what comes of what goes wrong."""

from __future__ import annotations

import gc
import pickle
import resource
import sys
import weakref
from pathlib import Path

import numba
import numpy as np
import pytest

from pymc_rmhmc.latent.rotation import evaluate_sites
from pymc_rmhmc.linalg.compiled.native import (
    call_apart,
    call_for_value_and_slope,
    call_for_vector,
    native_function,
    native_likelihood,
    resolved,
)

N, THETA = 5, np.array([0.7, -0.2])


@numba.njit
def fixed(eta, y):
    return np.array(-0.5 * ((y - eta) ** 2).sum()), y - eta


@numba.njit
def many(*arguments):
    eta, y, scale = arguments
    return np.array(-0.5 * ((y - eta) ** 2 / scale).sum()), (y - eta) / scale


@numba.njit
def moved(theta, eta, y):
    precision = np.exp(theta[0])
    square = ((y - eta) ** 2).sum()
    gradient = np.zeros(theta.size)
    gradient[0] = -0.5 * precision * square
    return np.array(-0.5 * precision * square), precision * (y - eta), gradient


@numba.njit
def raising(eta, y):
    if y[0] > 2:
        raise ValueError("an observation that cannot be")
    return np.array(0.0), eta.copy()


@numba.njit
def without_slope(eta, y):
    return np.array(0.0), eta.sum()


@pytest.fixture
def sites():
    rng = np.random.default_rng(0)
    return rng.standard_normal(N), rng.exponential(1.0, N), rng.standard_normal(N)


def evaluate(native, theta, linear, precision, eta):
    return evaluate_sites(native.address, theta, native.rest, native.shift, linear, precision, eta)


def check(found, total, slope, linear, precision, eta):
    log_likelihood, log_density, finite, returned, residual = found
    assert finite
    assert log_likelihood == pytest.approx(total, rel=1e-13)
    assert log_density == pytest.approx(total - linear @ eta + 0.5 * precision @ eta**2, rel=1e-12)
    np.testing.assert_allclose(returned, slope, rtol=1e-13)
    np.testing.assert_allclose(residual, slope - linear + precision * eta, rtol=1e-12)


@pytest.mark.parametrize("y", [np.arange(N), np.linspace(-1.0, 1.0, N)], ids=["counts", "numbers"])
@pytest.mark.parametrize("writeable", [True, False])
@pytest.mark.parametrize("shift", [None, 0.3])
def test_a_function_is_called_with_the_sites_and_its_data(sites, y, writeable, shift):
    y.flags.writeable = writeable
    shift = None if shift is None else np.linspace(0.0, shift, N)
    native = native_likelihood(fixed, None, sites[2], (y,), shift)
    read = sites[2] if shift is None else sites[2] + shift
    check(evaluate(native, None, *sites), *fixed(read, y), *sites)


def test_so_is_one_that_takes_whatever_comes(sites):
    y, scale = np.arange(N), np.linspace(1.0, 2.0, N)
    native = native_likelihood(many, None, sites[2], (y, scale))
    check(evaluate(native, None, *sites), *many(sites[2], y, scale), *sites)


def test_one_that_hyperparameters_move_has_them_first(sites):
    y = np.arange(N)
    native = native_likelihood(moved, THETA, sites[2], (y,))
    for theta in (THETA, THETA + 1.0):
        check(evaluate(native, theta, *sites), *moved(theta, sites[2], y)[:2], *sites)


def test_what_is_not_compiled_or_returns_something_else_is_not_called(sites):
    y = np.arange(N)
    assert native_likelihood(fixed.py_func, None, sites[2], (y,)) is None
    assert native_likelihood(without_slope, None, sites[2], (y,)) is None
    assert native_likelihood(moved, None, THETA, (sites[2], y)) is None


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["a site", "a slope's datum"])
def test_what_is_not_a_number_is_noticed(sites, bad, where):
    linear, precision, eta = (each.copy() for each in sites)
    y = np.linspace(-1.0, 1.0, N)
    (eta if where == "a site" else y)[2] = bad
    native = native_likelihood(fixed, None, eta, (y,))
    with np.errstate(all="ignore"):
        assert not evaluate(native, None, linear, precision, eta)[2]


def test_what_it_raises_is_raised(sites):
    good, bad = np.zeros(N), np.full(N, 3.0)
    native = native_likelihood(raising, None, sites[2], (good,))
    assert evaluate(native, None, *sites)[0] == 0.0
    with pytest.raises(ValueError, match="an observation that cannot be"):
        evaluate(native_likelihood(raising, None, sites[2], (bad,)), None, *sites)


def resident() -> int:
    """Bytes of this process in memory now."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("the system does not say how much memory is in use")
    return int(statm.read_text().split()[1]) * resource.getpagesize()


def test_nothing_is_kept_and_nothing_is_lost():
    """A reference too many would leak 0.8 MB a call, one too few would free what is still in use."""
    n = 100_000
    y, nothing = np.arange(n) % 3, np.zeros(n)
    etas = [np.linspace(-1.0, 1.0, n), np.linspace(3.0, -2.0, n)]
    native = native_likelihood(fixed, None, etas[0], (y,))
    results = [evaluate(native, None, nothing, nothing, eta)[3] for eta in etas]
    held, before = [sys.getrefcount(a) for a in (y, *etas)], resident()
    for i in range(300):
        found = evaluate(native, None, nothing, nothing, etas[i % 2])[3]
    assert [sys.getrefcount(a) for a in (y, *etas)] == held
    assert resident() - before < 50_000_000  # of 240
    np.testing.assert_array_equal(found, y - etas[1])
    for result, eta in zip(results, etas, strict=True):
        np.testing.assert_array_equal(result, y - eta)


@numba.njit
def backwards(eta, y):
    return np.array(0.0), y[::-1] + eta.sum() * y[::-1]


@numba.njit
def turned(eta, y):
    return np.array(0.0), y[::-1]


@numba.njit
def with_a_number(eta, y):
    return np.array(0.0), y - eta, 5


@numba.njit
def number_first(eta, y):
    return np.array(0.0), 5, y - eta


@pytest.mark.parametrize("function", [turned, with_a_number, number_first])
def test_a_slope_that_lies_otherwise_in_memory_is_not_read(sites, function):
    assert native_likelihood(function, None, sites[2], (np.arange(1.0 * N),)) is None
    assert native_likelihood(backwards, None, sites[2], (np.arange(1.0 * N),)) is not None


@pytest.mark.parametrize("eta", [np.zeros(2 * N)[::2], np.zeros(N, dtype=np.float32), np.zeros((N, 1))])
def test_only_contiguous_doubles_are_handed_over(sites, eta):
    native = native_likelihood(fixed, None, sites[2], (np.arange(N),))
    with pytest.raises(numba.TypingError):
        evaluate(native, None, sites[0], sites[1], eta)


def test_data_of_another_type_are_another_function(sites):
    """An address that was found for counts must not read numbers."""
    whole = native_likelihood(fixed, None, sites[2], (np.arange(N),))
    same = native_likelihood(fixed, None, sites[2], (np.arange(N) + 1,))
    other = native_likelihood(fixed, None, sites[2], (np.linspace(0.0, 1.0, N),))
    assert same.address == whole.address != other.address
    assert same.rest[0][0] == 1
    check(evaluate(other, None, *sites), *fixed(sites[2], other.rest[0]), *sites)


def test_machine_code_lives_as_long_as_its_address(sites):
    @numba.njit
    def passing(eta, y):
        return np.array(7.0), y - eta

    native = native_likelihood(passing, None, sites[2], (np.arange(N),))
    alive = weakref.ref(passing)
    del passing
    gc.collect()
    assert alive() is native.owner
    assert evaluate(native, None, *sites)[0] == 7.0


def test_an_address_does_not_travel(sites):
    with pytest.raises(TypeError, match="another process"):
        pickle.dumps(native_likelihood(fixed, None, sites[2], (np.arange(N),)))


@numba.njit
def called(pair, x):
    if x.size == 0:
        raise ValueError("nothing to add to")
    return (pair[0] + x, x.sum()), pair[1]


@numba.njit
def caller(address, pair, x):
    (moved, total), number = call_apart(address, called, (pair, x))
    return moved, total, number


def test_a_function_of_our_own_is_called_apart_with_tuples_in_and_out():
    pair, x = (np.linspace(0.0, 1.0, N), 7), np.arange(1.0 * N)
    address, returned = resolved(called, (numba.typeof(pair), numba.typeof(x)))
    assert len(returned) == 2
    moved, total, number = caller(address, pair, x)
    np.testing.assert_array_equal(moved, pair[0] + x)
    assert (total, number) == (x.sum(), 7)
    # Called as usual it would be taken in.
    assert "nothing to add to" not in next(iter(caller.inspect_llvm().values()))
    with pytest.raises(ValueError, match="nothing to add to"):
        caller(address, pair, np.zeros(0))


def test_what_is_called_apart_keeps_nothing():
    n = 100_000
    pair, x = (np.zeros(n), 1), np.ones(n)
    address, _ = resolved(called, (numba.typeof(pair), numba.typeof(x)))
    held, before = [sys.getrefcount(a) for a in (pair[0], x)], resident()
    for _ in range(300):
        moved, *_ = caller(address, pair, x)
    assert [sys.getrefcount(a) for a in (pair[0], x)] == held
    assert resident() - before < 50_000_000  # of 240
    np.testing.assert_array_equal(moved, x)


@numba.njit
def rest(theta, scale):
    return np.array(scale[0] * theta.sum()), np.broadcast_to(scale, theta.shape)


@numba.njit
def value_of(address, theta, given):
    total, gradient = call_for_value_and_slope(address, (theta,), given)
    return total.item(), gradient.copy()


def test_a_gradient_may_lie_in_memory_as_it_will():
    scale = np.array([3.0])
    native = native_function(rest, (THETA,), (scale,), call_for_value_and_slope)
    total, gradient = value_of(native.address, THETA, native.rest)
    assert total == pytest.approx(1.5)
    np.testing.assert_array_equal(gradient, [3.0, 3.0])


def test_a_function_that_returns_something_else_or_is_not_compiled_is_not_found():
    assert native_function(rest, (THETA,), (np.array([3.0]),), call_for_vector) is None
    assert native_function(rest.py_func, (THETA,), (np.array([3.0]),), call_for_value_and_slope) is None
