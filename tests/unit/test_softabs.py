"""SoftAbs: its scalar functions against many digits, and its matrix against its definition."""

from __future__ import annotations

import itertools

import mpmath
import numpy as np
import pytest

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.metrics.bordered_loops import (
    divided_difference,
    softabs,
)
from pymc_rmhmc.metrics.softabs_metric import ArrowSoftAbsMatrix
from pymc_rmhmc.metrics.sparsity import ArrowEntries, Partition

ALPHAS = (1.0, 1e2, 1e4, 1e6)
SIZES = (0.0, 1e-300, 1e-16, 1e-9, 1e-6, 0.01, 0.2, 0.31, 0.5, 0.69, 0.71, 1.0, 1.3, 3.0, 20.0, 39.0, 41.0, 150.0, 1e3)
GAPS = (0.0, *(10.0**k for k in range(-16, 4)), 0.29, 0.31)


def exact_value(value, alpha):
    x = mpmath.mpf(alpha) * mpmath.mpf(value)
    return (mpmath.mpf(value) * mpmath.coth(x)) if value else 1 / mpmath.mpf(alpha)


def exact_difference(first, second, alpha):
    """In many digits, so that the quotient may cancel."""
    with mpmath.workdps(700):
        if first != second:
            difference = mpmath.mpf(first) - mpmath.mpf(second)
            return (exact_value(first, alpha) - exact_value(second, alpha)) / difference
        x = mpmath.mpf(alpha) * mpmath.mpf(first)
        return mpmath.coth(x) - x / mpmath.sinh(x) ** 2 if first else mpmath.mpf(0)


def pairs(alpha):
    """Eigenvalues of either sign whose αλ is of many sizes, and their gaps both in λ and in αλ."""
    for size, gap, sign in itertools.product(SIZES, GAPS, (1.0, -1.0)):
        for unit in (1.0, 1.0 / alpha):
            for first in {size, size / alpha}:
                yield sign * first, sign * (first + gap * unit)
                yield sign * first, -sign * (first + gap * unit)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_divided_differences_keep_their_digits_at_any_gap(alpha):
    checked = 0
    for first, second in sorted(set(pairs(alpha)))[::5]:
        true = exact_difference(first, second, alpha)
        for found in (divided_difference(first, second, alpha), divided_difference(second, first, alpha)):
            assert np.isfinite(found)
            assert abs(mpmath.mpf(found) - true) <= 1e-13 * abs(true) + 1e-300, (first, second)
        checked += 1
    assert checked > 300


@pytest.mark.parametrize("alpha", ALPHAS)
def test_values_and_slopes_keep_their_digits(alpha):
    values = np.array([sign * size / unit for size in SIZES for sign in (1, -1) for unit in (1.0, alpha)])
    with mpmath.workdps(700):
        true = [exact_value(value, alpha) for value in values]
        slopes = [exact_difference(value, value, alpha) for value in values]
        assert max(abs(found / right - 1) for found, right in zip(softabs(values, alpha), true, strict=True)) < 1e-14
        for value, right in zip(values, slopes, strict=True):
            assert abs(divided_difference(value, value, alpha) - right) <= 1e-13 * abs(right) + 1e-300


def test_no_eigenvalue_is_too_large_or_too_small():
    values = np.array([0.0, 5e-324, -1e-310, 1e-160, 1.0, -1e10, 1e200, -1e300, 1.7e308])
    for alpha in (*ALPHAS, 1e12):
        differences = np.array([[divided_difference(a, b, alpha) for b in values] for a in values])
        assert np.isfinite(differences).all()
        assert (np.abs(differences) <= 1.0 + 1e-15).all()
        assert np.isfinite(softabs(values, alpha)).all()
        assert (softabs(values, alpha) > 0.0).all()


def symmetric(kind, rng):
    """Indefinite, with equal, nearly equal, zero and tiny eigenvalues."""
    vectors = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    values = {
        "apart": np.array([-3.0, -0.4, 0.01, 0.3, 1.0, 5.0]),
        "equal": np.array([-1.0, -1.0, 1.0, 1.0, 1.0, 2.0]),
        "close": np.array([-1.0, 1.0, 1.0 + 1e-12, 1.0 + 1e-7, 0.0, 1e-9]),
    }[kind]
    return (vectors * values) @ vectors.T


KINDS = ("apart", "equal", "close")


def soften(matrix, alpha):
    """Of a dense matrix, in which all parameters are the border."""
    size = len(matrix)
    entries = ArrowEntries(matrix, np.empty((size, 0)), np.empty(0))
    return ArrowSoftAbsMatrix.soften(entries, Partition.of(range(size), []), alpha)


def by_definition(matrix, alpha):
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * (values / np.tanh(alpha * values))) @ vectors.T


@pytest.mark.parametrize("kind", KINDS)
def test_the_matrix_is_softabs(kind):
    rng = np.random.default_rng(1)
    matrix, alpha = symmetric(kind, rng) + 1e-3 * np.eye(6), 20.0
    softened = soften(matrix, alpha)
    right = by_definition(matrix, alpha)
    u = rng.normal(size=6)
    np.testing.assert_allclose(softened.times(u), right @ u, rtol=1e-11)
    np.testing.assert_allclose(softened.solve(u), np.linalg.solve(right, u), rtol=1e-10)
    root = np.column_stack([softened.sqrt_times(unit) for unit in np.eye(softened.root_size)])
    np.testing.assert_allclose(root @ root.T, right, atol=1e-12)
    np.testing.assert_allclose(softened.scale, np.sqrt(np.diag(np.linalg.inv(right))), rtol=1e-10)
    np.testing.assert_allclose(softened.half_log_det, 0.5 * np.linalg.slogdet(right)[1], rtol=1e-11)


@pytest.mark.parametrize("alpha", [1.0, 30.0])
@pytest.mark.parametrize("kind", KINDS)
def test_bars_are_derivatives_by_the_matrix_that_is_softened(kind, alpha):
    rng = np.random.default_rng(2)
    matrix, u = symmetric(kind, rng), rng.normal(size=6)
    softened = soften(matrix, alpha)
    for _ in range(4):
        way = rng.normal(size=(6, 6))
        way = way + way.T
        step = 1e-5
        ahead, behind = (soften(matrix + sign * step * way, alpha) for sign in (1, -1))
        log_det = (ahead.half_log_det - behind.half_log_det) / (2 * step)
        quadratic = -0.5 * (u @ ahead.times(u) - u @ behind.times(u)) / (2 * step)
        np.testing.assert_allclose((softened.log_det_bar().border * way).sum(), log_det, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose((softened.quadratic_bar(u).border * way).sum(), quadratic, rtol=1e-6, atol=1e-7)


def test_a_matrix_that_is_not_finite_is_a_failure():
    matrix = np.eye(3)
    matrix[1, 2] = np.nan
    assert soften(matrix, 1.0) is Failure.NON_FINITE
