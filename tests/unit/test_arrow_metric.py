"""SoftAbs by blocks: its matrix against a dense one, and its bars against finite differences."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.metrics.softabs_metric import ArrowSoftAbsMatrix
from pymc_rmhmc.metrics.sparsity import ArrowEntries, Partition, Probes, hessian_pattern, partition
from tests.unit.sparse_toys import TOYS

PARTITIONS = {
    "groups": Partition.of([3], [[0], [1], [2], [4]]),
    "slopes": Partition.of([0, 7], [[1, 2], [3, 4], [6, 5]]),
    "uneven": Partition.of([4, 0, 9], [[1], [2], [8, 3], [5, 6, 7], range(10, 18)]),
    "one block": Partition.of([0], [range(1, 8)]),
    "no border": Partition.of([], [[1], [0], [2, 3]]),
    "no blocks": Partition.of(range(5), []),
}
KINDS = ("indefinite", "tiny", "equal", "convex")


def symmetric(size, kind, rng):
    matrix = rng.normal(size=(size, size))
    if kind == "convex":
        return matrix @ matrix.T + 8.0 * np.eye(size)
    if kind == "equal":
        return np.diag(np.where(np.arange(size) % 2 == 0, -1.0, 1.0))
    return (matrix + matrix.T) * (1e-9 if kind == "tiny" else 1.0)


def entries_of(part, kind, seed=0):
    """Symmetric, and of the kind in every block and in the border."""
    rng = np.random.default_rng(seed)
    border = symmetric(part.border.size, kind, rng)
    blocks = [symmetric(size, kind, rng).ravel() for size in part.sizes]
    coupling = 0.3 * rng.normal(size=(part.border.size, part.inner.size))
    return ArrowEntries(border, coupling, np.concatenate([np.empty(0), *blocks]))


def dense(part, entries):
    return Probes(part).matrix(entries).toarray()


def softened(matrix, alpha):
    values, vectors = np.linalg.eigh(matrix)
    safe = np.where(abs(alpha * values) > 1e-6, values, 1.0)
    soft = np.where(safe == values, safe / np.tanh(alpha * safe), 1.0 / alpha)
    return (vectors * soft) @ vectors.T


def by_definition(part, entries, alpha):
    """G as a dense array in the order of the parameters."""
    order, n = np.append(part.inner, part.border), part.inner.size
    matrix = dense(part, entries)[np.ix_(order, order)]
    blocks, coupling = np.zeros((n, n)), matrix[n:, :n]
    for start, end in zip(part.starts[:-1], part.starts[1:], strict=True):
        blocks[start:end, start:end] = softened(matrix[start:end, start:end], alpha)
    through = coupling @ np.linalg.inv(blocks)
    lower = np.block([[np.eye(n), np.zeros((n, part.border.size))], [through, np.eye(part.border.size)]])
    middle = np.zeros_like(matrix)
    middle[:n, :n], middle[n:, n:] = blocks, softened(matrix[n:, n:] - through @ coupling.T, alpha)
    made = np.empty_like(matrix)
    made[np.ix_(order, order)] = lower @ middle @ lower.T
    return made


@pytest.mark.parametrize("alpha", [1.0, 30.0])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PARTITIONS)
def test_the_matrix_is_that_of_its_definition(name, kind, alpha):
    part = PARTITIONS[name]
    entries = entries_of(part, kind)
    matrix, right = ArrowSoftAbsMatrix.soften(entries, part, alpha), by_definition(part, entries, alpha)
    u = np.random.default_rng(1).normal(size=part.size)
    close = {"rtol": 1e-9, "atol": 1e-10 * abs(right).max()}
    np.testing.assert_allclose(matrix.times(u), right @ u, **close)
    np.testing.assert_allclose(matrix.solve(right @ u), u, rtol=1e-8, atol=1e-8)
    root = np.column_stack([matrix.sqrt_times(unit) for unit in np.eye(matrix.root_size)])
    np.testing.assert_allclose(root @ root.T, right, **close)
    np.testing.assert_allclose(matrix.scale, np.sqrt(np.diag(np.linalg.inv(right))), rtol=1e-8)
    np.testing.assert_allclose(matrix.half_log_det, 0.5 * np.linalg.slogdet(right)[1], rtol=1e-9, atol=1e-9)
    assert np.linalg.eigvalsh(right).min() > 0.0


@pytest.mark.parametrize("name", PARTITIONS)
def test_a_convex_matrix_is_left_as_it_is(name):
    part = PARTITIONS[name]
    entries = entries_of(part, "convex")
    matrix = ArrowSoftAbsMatrix.soften(entries, part, 1e3)
    u = np.random.default_rng(2).normal(size=part.size)
    np.testing.assert_allclose(matrix.times(u), dense(part, entries) @ u, rtol=1e-10)


def moved(entries, way, step):
    return ArrowEntries(*(entry + step * along for entry, along in zip(entries, way, strict=True)))


@pytest.mark.parametrize("alpha", [1.0, 30.0])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PARTITIONS)
def test_bars_are_derivatives_by_the_entries(name, kind, alpha):
    part = PARTITIONS[name]
    entries = entries_of(part, kind)
    u = np.random.default_rng(4).normal(size=part.size)
    matrix = ArrowSoftAbsMatrix.soften(entries, part, alpha)
    bars = (matrix.log_det_bar(), matrix.quadratic_bar(u))
    for seed in range(5, 9):
        way, step = entries_of(part, "indefinite", seed), 1e-5 / alpha
        ends = [ArrowSoftAbsMatrix.soften(moved(entries, way, sign * step), part, alpha) for sign in (1, -1)]
        log_dets = [end.half_log_det for end in ends]
        quadratics = [-0.5 * float(u @ end.times(u)) for end in ends]
        for bar, (ahead, behind) in zip(bars, (log_dets, quadratics), strict=True):
            found = sum(float((one * two).sum()) for one, two in zip(bar, way, strict=True))
            size = sum(float(abs(one * two).sum()) for one, two in zip(bar, way, strict=True))
            assert abs(found - (ahead - behind) / (2 * step)) < 1e-6 * (size + alpha * (1.0 + abs(ahead)) * 1e-2)


@pytest.mark.parametrize("name", TOYS)
def test_bars_become_gradients_of_a_density(name):
    """From the products to the matrix, and back through them."""
    toy, rng, alpha = TOYS[name](), np.random.default_rng(9), 5.0
    x = 0.3 * rng.normal(size=toy.d)
    probes = Probes(partition(hessian_pattern(toy.products, x)))

    def matrix_at(x):
        return ArrowSoftAbsMatrix.soften(probes.recover(-toy.products(x, probes.vectors)), probes.partition, alpha)

    matrix, u, way = matrix_at(x), rng.normal(size=toy.d), 1e-5 * rng.normal(size=toy.d)
    log_det = 0.5 * (matrix_at(x + way).half_log_det - matrix_at(x - way).half_log_det)
    quadratic = -0.25 * (u @ matrix_at(x + way).times(u) - u @ matrix_at(x - way).times(u))
    for bar, right in ((matrix.log_det_bar(), log_det), (matrix.quadratic_bar(u), quadratic)):
        np.testing.assert_allclose(-toy.pullback(x, probes.vectors, probes.weights(bar)) @ way, right, rtol=1e-5)


def test_groups_of_any_order_of_size_keep_their_digits():
    """Eigenvalues of a small block are right relative to themselves, whatever the units of its parameters."""
    part = Partition.of([0], [[1, 2, 3]])
    units = np.array([1e-8, 1.0, 1e8])
    block = np.array([[2.0, 0.5, 0.3], [0.5, 3.0, -0.4], [0.3, -0.4, 1.0]])
    entries = ArrowEntries(np.eye(1), np.zeros((1, 3)), (units[:, None] * block * units).ravel())
    matrix = ArrowSoftAbsMatrix.soften(entries, part, 1e20)
    np.testing.assert_allclose(matrix.half_log_det, 0.5 * np.linalg.slogdet(block)[1], rtol=1e-12)


@pytest.mark.parametrize("part", [0, 1, 2])
def test_entries_that_are_not_finite_are_a_failure(part):
    entries = entries_of(PARTITIONS["slopes"], "convex")
    entries[part].ravel()[-1] = np.inf
    assert ArrowSoftAbsMatrix.soften(entries, PARTITIONS["slopes"], 1.0) is Failure.NON_FINITE
