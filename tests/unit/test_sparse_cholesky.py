"""Sparse factors of both kinds against dense ones, for patterns of every sort."""

from __future__ import annotations

import cloudpickle
import numpy as np
import pytest
import scipy.sparse as sp

from pymc_rmhmc.linalg.multifrontal import COLUMNS, N_FACTS, ROWS
from pymc_rmhmc.linalg.sparse_cholesky import (
    BAND,
    FRONTS,
    factorise,
    last_panel,
    select,
    solve,
    sparse_layout,
    substitute,
)


def _from_pairs(n, pairs):
    """A symmetric pattern with a full diagonal."""
    rows, columns = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return sp.csr_array(
        (
            np.ones(2 * rows.size + n),
            (np.concatenate([rows, columns, np.arange(n)]), np.concatenate([columns, rows, np.arange(n)])),
        ),
        (n, n),
    )


def _chain(n, width=1):
    return _from_pairs(n, [(i, i + a) for a in range(1, width + 1) for i in range(n - a)])


def _lattice(nx, ny):
    site = np.arange(nx * ny).reshape(nx, ny)
    across = np.stack([site[:-1].ravel(), site[1:].ravel()], axis=1)
    along = np.stack([site[:, :-1].ravel(), site[:, 1:].ravel()], axis=1)
    return _from_pairs(nx * ny, np.concatenate([across, along]))


def _with_dense(pattern, count):
    """The pattern with rows after it that all others read."""
    n = pattern.shape[0]
    dense = sp.csr_array(np.ones((count, n)))
    return sp.csr_array(sp.block_array([[pattern, dense.T], [dense, np.ones((count, count))]]))


def _random(n, entries, seed=0):
    return _from_pairs(n, np.random.default_rng(seed).integers(n, size=(entries, 2)))


def _shuffled(pattern, seed=1):
    order = np.random.default_rng(seed).permutation(pattern.shape[0])
    return sp.csr_array(pattern[order][:, order])


def _crossed(first, second, pairs):
    rng = np.random.default_rng(2)
    joined = np.stack([rng.integers(first, size=pairs), first + rng.integers(second, size=pairs)], axis=1)
    return _from_pairs(first + second, joined)


def _season(n, period):
    """A local linear trend, level after level and slope after slope, with a coefficient a day of the week."""
    pairs = [(t, t + 1) for t in range(n - 1)] + [(n + t, n + t + 1) for t in range(n - 1)]
    pairs += [(t, n + t) for t in range(n)] + [(t + 1, n + t) for t in range(n - 1)]
    pairs += [(t, 2 * n + t % period) for t in range(n)]
    return _from_pairs(2 * n + period, pairs)


PATTERNS = {
    "one": sp.csr_array(np.ones((1, 1))),
    "two apart": sp.csr_array(np.eye(2)),
    "isolated": sp.csr_array(sp.eye_array(7)),
    "chain": _chain(90),
    "chain shuffled": _shuffled(_chain(90)),
    "chain of width 2": _chain(61, 2),
    "chain of width 3": _chain(60, 3),
    "chain of width 12": _chain(70, 12),
    "chain shorter than its width": _chain(5, 4),
    "chain with a mean": _with_dense(_chain(80), 1),
    "width 2 with a mean": _with_dense(_chain(80, 2), 1),
    "chain with a border of 5": _shuffled(_with_dense(_chain(80), 5)),
    "width 3 with a border of 16": _shuffled(_with_dense(_chain(120, 3), 16)),
    "islands with a border": _with_dense(sp.csr_array(sp.block_diag([_chain(20), sp.eye_array(3), _chain(30, 2)])), 2),
    "season": _season(60, 7),
    "islands": sp.csr_array(sp.block_diag([_chain(20), sp.eye_array(3), _lattice(6, 7), np.ones((5, 5))])),
    "star": _from_pairs(501, [(0, i) for i in range(1, 501)]),
    "star in a lattice": _with_dense(_lattice(20, 25), 1),
    "dense": sp.csr_array(np.ones((50, 50))),
    "dense of several panels": sp.csr_array(np.ones((210, 210))),
    "lattice": _lattice(9, 11),
    "large lattice": _lattice(30, 31),
    "random": _random(120, 150),
    "random and full": _random(150, 2000),
    "crossed": _crossed(200, 15, 900),
    "crossed, with all of many": _with_dense(sp.csr_array(sp.eye_array(30)), 110),
}
BOTH = [(name, kind) for name in PATTERNS for kind in (BAND, FRONTS)]


def _with_full_end(pattern, count):
    """A pattern whose last rows are all neighbours."""
    end = sp.csr_array((pattern.shape[0] - count,) * 2)
    return sp.csr_array(pattern + sp.block_diag([end, np.ones((count, count))]))


LEFT_OUT = {
    "season": (_with_full_end(_season(60, 7), 7), 7),
    "random": (_with_full_end(_random(120, 150), 9), 9),
    "islands that read none": (_with_full_end(PATTERNS["islands"], 5), 5),
    "each reads one": (_with_full_end(_from_pairs(15, [(i, 10 + i % 5) for i in range(10)]), 5), 5),
    "several panels": (_with_full_end(_crossed(300, 110, 900), 110), 110),
    "all": (PATTERNS["dense"], 50),
}


class Case:
    """A positive definite matrix of a pattern, its dense inverse, and what the layout's functions find."""

    def __init__(self, pattern, layout, scale=1.0, seed=3):
        n = pattern.shape[0]
        rng = np.random.default_rng(seed)
        rows, columns = sp.tril(pattern).tocoo().coords
        values = rng.normal(size=rows.size)
        lower = np.zeros((n, n))
        lower[rows, columns] = values
        matrix = np.tril(lower, -1) + np.tril(lower, -1).T
        diagonal = np.abs(matrix).sum(axis=1) + rng.uniform(0.1, 2.0, size=n)
        self.matrix = scale * (matrix + np.diag(diagonal))
        self.layout, self.rows, self.columns = layout, rows, columns
        # Either of a pair of entries may be asked for.
        flip = rng.random(rows.size) < 0.5
        self.places = layout.places(np.where(flip, rows, columns), np.where(flip, columns, rows))
        self.flat = np.zeros(layout.n_stored)
        self.flat[self.places] = self.matrix[rows, columns]

    def factorised(self):
        return factorise(self.layout.kind, self.layout.index, self.flat)

    def solved(self, vectors):
        made = np.ascontiguousarray(vectors[self.layout.order].T)
        solve(self.layout.kind, self.layout.index, self.flat, made)
        back = np.empty_like(vectors)
        back[self.layout.order] = made.T
        return back

    def selected(self):
        inverse = np.full(self.layout.n_stored, np.nan)
        select(self.layout.kind, self.layout.index, self.flat, inverse)
        if self.layout.kind == BAND:
            return inverse
        table = self.layout.index[1].reshape(-1, N_FACTS)
        return inverse[: (table[:, COLUMNS] * table[:, ROWS]).sum()]  # what is behind the panels is no entry's place


@pytest.mark.parametrize(("name", "kind"), BOTH)
def test_factors_solves_and_entries_of_the_inverse_are_the_dense_ones(name, kind):
    layout = sparse_layout(PATTERNS[name], kind=kind)
    case = Case(PATTERNS[name], layout)
    assert layout.kind == kind
    assert sorted(layout.order) == list(range(layout.size))
    assert np.unique(case.places).size == case.places.size
    expected = np.linalg.inv(case.matrix)
    assert case.factorised() == pytest.approx(np.linalg.slogdet(case.matrix)[1], rel=1e-10, abs=1e-10)
    for n_vectors in (1, 2, 5):
        vectors = np.random.default_rng(n_vectors).normal(size=(layout.size, n_vectors))
        np.testing.assert_allclose(case.solved(vectors), expected @ vectors, rtol=1e-10, atol=1e-11)
    inverse = case.selected()
    assert np.isfinite(inverse).all()
    np.testing.assert_allclose(inverse[case.places], expected[case.rows, case.columns], rtol=1e-10, atol=1e-12)


def _spoilt(name, kind, at, value):
    """A case with the diagonal entry at a place of the order, counted from either end, made small or wrong."""
    case = Case(PATTERNS[name], sparse_layout(PATTERNS[name], kind=kind))
    site = case.layout.order[at]
    case.flat[case.layout.places(site, site)] = value
    return case


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
@pytest.mark.parametrize("at", [0, 1, -2, -1])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("chain", BAND),
        ("chain of width 2", BAND),
        ("chain of width 3", BAND),
        ("width 2 with a mean", BAND),
        ("season", BAND),
        ("chain", FRONTS),
        ("lattice", FRONTS),
        ("dense", FRONTS),
        ("dense of several panels", FRONTS),
    ],
)
def test_a_matrix_that_is_not_positive_definite_has_no_log_determinant(name, kind, at, value):
    assert np.isnan(_spoilt(name, kind, at, value).factorised())


@pytest.mark.parametrize("kind", [BAND, FRONTS])
@pytest.mark.parametrize("scale", [1e-250, 1e-120, 1e-9, 1e9, 1e120, 1e250])
def test_log_determinants_neither_overflow_nor_vanish(kind, scale):
    pattern = _chain(2000)
    case = Case(pattern, sparse_layout(pattern, kind=kind))
    expected = np.linalg.slogdet(case.matrix)[1] + 2000 * np.log(scale)
    case.flat *= scale
    assert case.factorised() == pytest.approx(expected, rel=1e-12)


def test_a_log_determinant_of_large_and_small_pivots_is_exact():
    pattern = sp.csr_array(sp.eye_array(400))
    layout = sparse_layout(pattern)
    flat = np.zeros(layout.n_stored)
    flat[layout.places(layout.order, layout.order)] = np.tile([1e300, 1e-300, 1e-160, 1e160], 100)
    assert abs(factorise(layout.kind, layout.index, flat)) < 1e-9


@pytest.mark.parametrize("kind", [BAND, FRONTS])
def test_an_entry_without_a_place_is_an_error(kind):
    pattern = sp.csr_array(sp.block_diag([_chain(30), _lattice(4, 5)]))
    layout = sparse_layout(pattern, kind=kind)
    for row, column in ((0, 29), (3, 45), (45, 3)):
        with pytest.raises(ValueError, match="pattern lacks"):
            layout.places(np.array([0, row]), np.array([1, column]))


@pytest.mark.parametrize("kind", [BAND, FRONTS])
def test_a_layout_survives_pickling(kind):
    pattern = _with_dense(_chain(40), 2)
    layout = sparse_layout(pattern, kind=kind)
    restored = cloudpickle.loads(cloudpickle.dumps(layout))
    first, second = Case(pattern, layout), Case(pattern, restored)
    assert second.factorised() == first.factorised()
    np.testing.assert_array_equal(second.selected(), first.selected())


@pytest.mark.parametrize(
    ("name", "kind", "width", "border"),
    [
        ("chain", BAND, 1, 0),
        ("chain shuffled", BAND, 1, 0),
        ("isolated", BAND, 0, 0),
        ("chain with a mean", BAND, 1, 1),
        ("chain with a border of 5", BAND, 1, 5),
        ("width 3 with a border of 16", BAND, 3, 16),
        ("season", BAND, 2, 7),
        ("star", BAND, 0, 1),
        ("dense", FRONTS, 0, 0),
        ("large lattice", FRONTS, 0, 0),
        ("crossed", BAND, 0, 15),
        ("random and full", FRONTS, 0, 0),
    ],
)
def test_the_kind_is_the_one_that_costs_least(name, kind, width, border):
    layout = sparse_layout(PATTERNS[name])
    assert (layout.kind, *layout.index[0][1:3]) == (kind, width, border)


def test_columns_that_are_said_to_be_dense_are_in_the_border():
    layout = sparse_layout(_chain(40), kind=BAND, dense_columns=np.array([7, 20]))
    assert set(layout.order[-2:]) == {7, 20}
    assert Case(_chain(40), layout).factorised() > 0.0


def test_a_pattern_is_read_whatever_its_format_values_and_triangle():
    pattern = _with_dense(_lattice(5, 6), 1)
    wide = sp.csr_array((pattern.data, pattern.indices.astype(np.int64), pattern.indptr.astype(np.int64)))
    others = [pattern * -1.0, pattern.tocoo(), sp.csc_matrix(pattern), wide, sp.tril(pattern, -1), sp.triu(pattern)]
    for kind in (BAND, FRONTS):
        expected = sparse_layout(pattern, kind=kind)
        for other in others:
            found = sparse_layout(other, kind=kind)
            np.testing.assert_array_equal(found.order, expected.order)
            for one, another in zip(found.index, expected.index, strict=True):
                np.testing.assert_array_equal(one, another)


def test_both_kinds_are_given_the_same_types():
    """Compiled code takes either without being compiled again."""
    first, second = (sparse_layout(_chain(20), kind=kind).index for kind in (BAND, FRONTS))
    assert len(first) == len(second)
    assert {each.dtype for each in (*first, *second)} == {np.dtype(np.int64)}
    assert all(each.flags.c_contiguous and each.flags.writeable for each in (*first, *second))


def test_level_and_slope_of_a_trend_are_ordered_alike():
    counts = sparse_layout(_season(60, 7)[:120, :120]).index[0]
    assert list(counts) == [120, 2, 0]


def test_a_lattice_is_stored_with_little_fill():
    """A band would store 1,010,000 numbers, and nested dissection's factor has some 200,000."""
    layout = sparse_layout(_lattice(100, 100))
    assert layout.kind == FRONTS
    assert layout.n_stored < 350_000


def test_what_is_not_in_the_pattern_is_never_dense():
    """Of a hundred thousand rows a dense matrix would not fit in memory."""
    layout = sparse_layout(_with_dense(_chain(100_000), 3))
    assert layout.kind == BAND
    assert layout.n_stored == 500_000 + 9


@pytest.mark.parametrize("name", LEFT_OUT)
def test_rows_that_are_left_out_have_what_the_others_take_from_them(name):
    pattern, count = LEFT_OUT[name]
    layout = sparse_layout(pattern, n_open=count)
    case, n = Case(pattern, layout), pattern.shape[0]
    first, matrix = n - count, case.matrix
    np.testing.assert_array_equal(layout.order[first:], np.arange(first, n))
    above, beside = matrix[:first, :first], matrix[:first, first:]
    left = matrix[first:, first:] - beside.T @ np.linalg.solve(above, beside)
    exact = np.linalg.slogdet(above)[1] if first else 0.0
    assert case.factorised() == pytest.approx(exact, rel=1e-10, abs=1e-10)
    np.testing.assert_allclose(np.triu(last_panel(layout.index, case.flat)), np.triu(left), rtol=1e-10, atol=1e-10)
    vectors = np.random.default_rng(5).standard_normal((3, n))
    made = np.ascontiguousarray(vectors[:, layout.order])
    substitute(layout.index, case.flat, made, False)
    made[:, first:] = np.linalg.solve(left, made[:, first:].T).T
    substitute(layout.index, case.flat, made, True)
    np.testing.assert_allclose(made, np.linalg.solve(matrix, vectors.T).T[:, layout.order], rtol=1e-9, atol=1e-9)
    inverse, exact_inverse = np.zeros(layout.n_stored), np.linalg.inv(matrix)
    last_panel(layout.index, inverse)[:] = exact_inverse[first:, first:]
    select(layout.kind, layout.index, case.flat, inverse)
    found = inverse[layout.places(case.rows, case.columns)]
    np.testing.assert_allclose(found, exact_inverse[case.rows, case.columns], rtol=1e-9, atol=1e-9)
