"""The pattern of a Hessian, its border and blocks, and its entries from a few products."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from pymc_rmhmc.metrics.sparsity import ArrowEntries, Partition, Probes, hessian_pattern, partition, unite
from tests.unit.sparse_toys import TOYS, ExponentialSum, branched, groups

# Rounding of products, many times over.
EXACT = 1e-10


@pytest.fixture(params=TOYS)
def toy(request):
    return TOYS[request.param]()


def place(toy, seed=0):
    return 0.3 * np.random.default_rng(seed).normal(size=toy.d)


def random_entries(part, rng):
    m, n = part.border.size, part.inner.size
    return ArrowEntries(rng.normal(size=(m, m)), rng.normal(size=(m, n)), rng.normal(size=part.entry_starts[-1]))


@pytest.mark.parametrize("chunk", [7, 1000])
def test_the_pattern_is_that_of_the_entries(toy, chunk):
    x = place(toy)
    pattern = hessian_pattern(toy.products, x, chunk)
    np.testing.assert_array_equal(pattern.toarray(), (toy.hessian(x) != 0.0) | np.eye(toy.d, dtype=bool))


BORDERS = {"groups": [0], "slopes": [120, 121], "crossed": [80, 81, 82, 83], "uneven": [0, 1]}
SIZES = {"groups": [1] * 100, "slopes": [2] * 60, "crossed": [1] * 80, "uneven": sorted([1, 2, 3, 5, 8] * 6)}


@pytest.mark.parametrize("name", TOYS)
def test_the_border_and_the_blocks_are_those_of_the_model(name):
    toy = TOYS[name]()
    part = partition(hessian_pattern(toy.products, place(toy)))
    assert part.border.tolist() == BORDERS[name]
    assert part.sizes.tolist() == SIZES[name]
    assert (part.size, part.n_blocks, part.n_places) == (toy.d, len(SIZES[name]), max(SIZES[name]))
    assert sorted([*part.border, *part.inner]) == list(range(toy.d))
    assert len(Probes(part).vectors) == len(BORDERS[name]) + max(SIZES[name])


@pytest.mark.parametrize("kind", ["one", "full"])
def test_without_a_structure_that_pays_the_partition_is_dense(kind):
    d = 2 if kind == "one" else 120
    pattern = {
        "one": lambda: hessian_pattern(groups(1).products, np.zeros(2)),
        "full": lambda: sparse.csr_array(np.ones((d, d), dtype=bool)),
    }[kind]()
    part = partition(pattern)
    assert part.is_dense
    assert part.border.tolist() == list(range(d))
    np.testing.assert_array_equal(Probes(part).vectors, np.eye(d))


def test_parts_without_a_coupling_need_no_border():
    part = partition(sparse.eye_array(300, dtype=bool))
    assert part.border.size == 0
    assert part.n_blocks == 300


def test_a_few_products_give_every_entry(toy):
    x = place(toy)
    probes = Probes(partition(hessian_pattern(toy.products, x)))
    found = probes.matrix(probes.recover(-toy.products(x, probes.vectors))).toarray()
    np.testing.assert_allclose(found, -toy.hessian(x), atol=1e-12)


@pytest.mark.parametrize("part", [
    Partition.of([5, 0], [[1], [2], [3, 4], [6, 7, 8]]), Partition.of([], [[0], [2, 1]]), Partition.of(range(4), []),
], ids=["both", "blocks", "border"])  # fmt: skip
def test_weights_are_the_adjoint_of_the_recovery(part):
    rng = np.random.default_rng(0)
    probes, bar = Probes(part), random_entries(part, rng)
    found = rng.normal(size=probes.vectors.shape)
    entries = probes.recover(found)
    right = sum(float((one * two).sum()) for one, two in zip(bar, entries, strict=True))
    np.testing.assert_allclose((probes.weights(bar) * found).sum(), right, rtol=1e-12)


def test_a_bar_is_pulled_back_through_the_products(toy):
    rng, x = np.random.default_rng(1), place(toy)
    probes = Probes(partition(hessian_pattern(toy.products, x)))
    bar = random_entries(probes.partition, rng)

    def along(x):
        entries = probes.recover(-toy.products(x, probes.vectors))
        return sum(float((one * two).sum()) for one, two in zip(bar, entries, strict=True))

    found = -toy.pullback(x, probes.vectors, probes.weights(bar))
    for _ in range(3):
        way = 1e-5 * rng.normal(size=toy.d)
        np.testing.assert_allclose(found @ way, 0.5 * (along(x + way) - along(x - way)), rtol=1e-5)


def test_a_pattern_holds_where_it_was_found(toy):
    x = place(toy)
    probes = Probes(partition(hessian_pattern(toy.products, x)))
    assert probes.mismatch(toy.products, x, np.random.default_rng(2)) < EXACT


@pytest.mark.parametrize("entry", [(1, 61), (60, 120)], ids=["first", "last"])
def test_an_entry_that_the_pattern_misses_is_a_mismatch(entry):
    toy, x = branched(), np.full(121, 0.1)
    pattern = hessian_pattern(toy.products, x).tolil()
    pattern[entry] = pattern[entry[::-1]] = False
    probes = Probes(partition(pattern))
    assert probes.partition.sizes.tolist() == [1] * 2 + [2] * 59
    assert probes.mismatch(toy.products, x, np.random.default_rng(3)) > 1e-2


def test_a_branch_that_is_not_taken_is_not_seen_until_patterns_are_united():
    toy, rng = branched(), np.random.default_rng(4)
    off, on = np.full(121, -0.1), np.full(121, 0.1)
    seen = hessian_pattern(toy.products, off)
    probes = Probes(partition(seen))
    assert probes.partition.n_places == 1
    assert probes.mismatch(toy.products, off, rng) < EXACT
    assert probes.mismatch(toy.products, on, rng) > 1e-2
    both = Probes(partition(unite(seen, hessian_pattern(toy.products, on))))
    assert both.partition.n_places == 2
    assert max(both.mismatch(toy.products, x, rng) for x in (off, on)) < EXACT


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
def test_a_mismatch_does_not_depend_on_units(unit):
    """Of the parameters of a missing entry, whose row may be small beside the others."""
    toy, rng = branched(), np.random.default_rng(5)
    scale = np.ones(121)
    scale[[1, 61]] = unit
    x = np.full(121, 0.1)
    split = Probes(Partition.of([0], [*([i, i + 60] for i in range(2, 61)), [1], [61]]))
    assert split.mismatch(lambda x, V: toy.products(x, V * scale) * scale, x, rng) > 1e-2


def test_a_hessian_that_is_not_finite_has_no_pattern():
    toy, x = ExponentialSum(2, [(1.0, {0: 1.0, 1: 1.0})]), np.array([1e3, 0.0])
    with pytest.raises(ValueError, match="not finite at this position"):
        hessian_pattern(toy.products, x)
    assert np.isnan(Probes(Partition.of([0], [[1]])).mismatch(toy.products, x, np.random.default_rng(6)))
