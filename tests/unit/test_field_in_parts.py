"""A Gaussian field in independent parts against the same field by one precision, which dense algebra has checked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.linalg import hadamard

from pymc_rmhmc.errors import Failure, PriorFailure
from pymc_rmhmc.interfaces.stated import AffineRows, FieldKernel, FieldMaps, StatedField
from pymc_rmhmc.latent.charts import GaussianSites
from pymc_rmhmc.latent.field.field_parts import parts_of, sites_of_twins
from pymc_rmhmc.latent.rotation import gram_of_parts
from pymc_rmhmc.latent.solvers.field_in_parts import FieldInParts
from pymc_rmhmc.latent.solvers.precision import PrecisionSpace
from tests.unit.test_diagonal_chart import differences
from tests.unit.test_field import NORMALISER, NUMBERS, WALK, affine_rows, beside, field_maps, numbers_of, singles

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def of_classes(n: int, kernels: list[FieldKernel], contrasts: np.ndarray, offset: float = 0.3) -> FieldMaps:
    """Vectors of n values each, of which rows read contrasts (r, k) of each position."""
    r, k = contrasts.shape
    row, column, coefficient = [], [], []
    for i in range(n):
        for a, b in zip(*np.nonzero(contrasts), strict=True):
            row.append(r * i + a)
            column.append(n * b + i)
            coefficient.append(contrasts[a, b])
    rows = AffineRows(
        np.array(row), np.array(column), np.array(coefficient), np.zeros(len(row), np.int64),
        np.full(r * n, offset), np.zeros(r * n, np.int64),
    )  # fmt: skip
    none = affine_rows([], np.random.default_rng(0))
    return FieldMaps(n * k, none, rows, np.zeros((0, n * k)), np.zeros(0), None, tuple(kernels))


def alike(n: int, k: int, *, is_variable: bool = False, is_factor: bool = False) -> list[FieldKernel]:
    first = FieldKernel(n, is_variable, is_factor)
    return [first, *(replace(first, same_as=0) for _ in range(k - 1))]


def moved(maps: FieldMaps, read: list[int]) -> FieldMaps:
    """The same, with a number of θ in what rows read of the latent values of some kernels."""
    size = maps.kernels[0].size
    number = np.isin(maps.predictors.column // size, read).astype(np.int64)
    return replace(maps, predictors=replace(maps.predictors, number=number))


HELMERT = np.array([[1.0, -1.0, 0.0], [1.0, 1.0, -2.0]]) / np.sqrt([[2.0], [6.0]])
KERNELS = [FieldKernel(5, True, False), FieldKernel(5, False, True)]
# What is in each, and how many parts are of the sites' size, with a rest or without, and with how many unseen.
BOTH = [[k // 5, 2 + k] for k in range(10)]
MANY = [*([2 + i % 5] for i in range(30)), *([i] for i in range(7, 12))]
MAPS = {
    "both about one level": (beside(KERNELS, field_maps(12, singles(2), [[0, 2 + k] for k in range(10)])), 1, 1, 0),
    "two means": (beside(KERNELS, field_maps(12, singles(2), BOTH, seed=3)), 2, 0, 0),
    "nothing moves": (
        beside(KERNELS, field_maps(12, singles(2), BOTH, moving=False)), 2, 0, 0
    ),
    "a walk apart": (
        beside([FieldKernel(5, False, False)], field_maps(14, WALK, singles(14))), 1, 1, 0
    ),
    "read by another residual": (
        beside(KERNELS, field_maps(12, [*singles(2), [3, 4]], BOTH)), 1, 1, 0
    ),
    "many sites": (
        beside(KERNELS, field_maps(12, singles(2), MANY)), 1, 1, 0
    ),
    "nobody reads one": (beside(KERNELS, field_maps(12, singles(2), [[0, 2 + i] for i in range(5)])), 1, 1, 1),
    "contrasts of classes": (of_classes(4, [FieldKernel(4, False, False)] * 3, HELMERT), 1, 0, 0),
    "contrasts of alike classes": (of_classes(4, alike(4, 3), HELMERT), 2, 0, 1),
    "of alike variables": (of_classes(4, alike(4, 3, is_variable=True), HELMERT), 2, 0, 1),
    "of alike factors": (of_classes(4, alike(4, 3, is_factor=True), HELMERT), 2, 0, 1),
    "alike classes one by one": (of_classes(4, alike(4, 3), np.eye(3)), 3, 0, 0),
    "contrasts that are not orthogonal": (of_classes(4, alike(4, 3), np.array([[1.0, -1, 0], [0, 1, -1]])), 1, 0, 1),
    "next to orthogonal": (of_classes(4, alike(4, 3), np.array([[1.0, 9e-6, 0.0], [0.0, 1.0, -9e-6]])), 1, 0, 1),
    "rows of other sizes": (
        of_classes(4, alike(4, 2), np.array([[1.0, 1.0], [1e-11, -1e-11]])), 2, 0, 0
    ),
    "one as it is, one by a number": (
        moved(of_classes(4, [FieldKernel(4, False, False)] * 2, np.ones((1, 2))), [1]), 1, 0, 0
    ),
    "four of eight directions": (of_classes(3, alike(3, 8), hadamard(8)[2:6] / np.sqrt(8.0)), 4, 0, 4),
}  # fmt: skip
IN_PARTS = pytest.mark.parametrize("name", MAPS)


def numbers_with_alike(maps: FieldMaps) -> np.ndarray:
    numbers, first = numbers_of(maps), maps.kernels[0].size ** 2
    if any(each.same_as is not None for each in maps.kernels):
        numbers[NUMBERS.size :] = np.tile(numbers[NUMBERS.size : NUMBERS.size + first], len(maps.kernels))
    return numbers


def random_sites(maps: FieldMaps, seed: int = 1) -> GaussianSites:
    rng, n = np.random.default_rng(seed), maps.predictors.n_rows
    return GaussianSites(rng.standard_normal(n), rng.uniform(0.2, 2.0, n))


def in_parts(maps: FieldMaps, numbers: np.ndarray | None = None, sites: GaussianSites | None = None) -> FieldInParts:
    parts = parts_of(maps)
    assert parts is not None
    stated = StatedField(maps, numbers_with_alike(maps) if numbers is None else numbers, NORMALISER)
    return FieldInParts(stated, random_sites(maps) if sites is None else sites, parts)


def whole(maps: FieldMaps) -> PrecisionSpace:
    return PrecisionSpace(StatedField(maps, numbers_with_alike(maps), NORMALISER), random_sites(maps))


@IN_PARTS
def test_a_field_is_split_where_its_rows_meet_in_nothing(name):
    maps, n_parts, n_rest, n_unseen = MAPS[name]
    parts = parts_of(maps)
    assert (len(parts.in_sites), int(parts.sparse is not None), len(parts.unseen)) == (n_parts, n_rest, n_unseen)
    sites = [each.sites for each in (*parts.in_sites, *([parts.sparse] if n_rest else []))]
    np.testing.assert_array_equal(np.sort(np.concatenate(sites)), np.arange(maps.predictors.n_rows))


@pytest.mark.parametrize(
    "maps",
    [
        field_maps(9, WALK, singles(9)),
        beside(KERNELS, field_maps(12, singles(2), [[2 + k % 10, 2 + (k + 5) % 10] for k in range(30)])),
        beside(KERNELS[:1], field_maps(7, singles(2), [[0, 2 + i] for i in range(5)], dense=1)),
        beside(KERNELS[:1], field_maps(7, singles(2), [[i, 6] for i in range(2)], seed=4)).__class__(
            5, affine_rows([], np.random.default_rng(0)), affine_rows([[0], [], [1]], np.random.default_rng(0)),
            np.zeros((0, 5)), np.zeros(0), None, (FieldKernel(5, True, False),),
        ),
    ],
    ids=["no kernel", "more sites than values", "a dense row", "a row that reads nothing"],
)  # fmt: skip
def test_what_gains_nothing_stays_whole(maps):
    assert parts_of(maps) is None


@IN_PARTS
def test_evidence_and_marginals_are_those_of_one_precision(name):
    maps = MAPS[name][0]
    made, one = in_parts(maps), whole(maps)
    assert made.log_evidence == pytest.approx(one.log_evidence, rel=1e-9)
    assert made.n_noise == one.n_noise
    for mine, its in zip((made.centre, *made.marginals()), (one.centre, *one.marginals()), strict=True):
        np.testing.assert_allclose(mine, its, **CLOSE)
    v = np.random.default_rng(3).standard_normal(maps.predictors.n_rows)
    np.testing.assert_allclose(made.gram(v), one.gram(v), **CLOSE)
    np.testing.assert_allclose(made.apply(made.adjoint(v)), made.gram(v), **CLOSE)


@IN_PARTS
def test_the_models_values_are_those_of_one_precision(name):
    maps = MAPS[name][0]
    made, one = in_parts(maps), whole(maps)
    placed = made.place(np.random.default_rng(5).standard_normal(made.n_noise))
    y = one.root.from_model(placed.latents)
    np.testing.assert_allclose(one.predict(y) + one.mean, placed.eta, **CLOSE)
    assert placed.log_prior == pytest.approx(one.root.log_prior(y), rel=1e-9)
    np.testing.assert_allclose(made.predict(placed.whitened) + made.mean, placed.eta, **CLOSE)
    again = made.place(made.enter(placed.latents, np.random.default_rng(6).standard_normal(made.n_noise)))
    np.testing.assert_allclose(again.latents, placed.latents, **CLOSE)
    np.testing.assert_allclose(again.eta, placed.eta, **CLOSE)


@IN_PARTS
def test_noise_is_placed_with_the_covariance_of_one_precision(name):
    maps = MAPS[name][0]
    made, one = in_parts(maps), whole(maps)
    base = made.place(np.zeros(made.n_noise)).latents
    columns = np.array([made.place(e).latents - base for e in np.eye(made.n_noise)])
    its_base = one.root.to_model(one.place(np.zeros(one.n_noise)).whitened)
    its = np.array([one.root.to_model(one.place(e).whitened) - its_base for e in np.eye(one.n_noise)])
    np.testing.assert_allclose(base, its_base, **CLOSE)
    np.testing.assert_allclose(columns.T @ columns, its.T @ its, **CLOSE)


TWINS = [name for name, (maps, *_) in MAPS.items() if sites_of_twins(maps)]


def with_one_precision(maps: FieldMaps, seed: int = 1) -> GaussianSites:
    """Random sites whose twins have one w̄."""
    sites = random_sites(maps, seed)
    for twins in sites_of_twins(maps):
        sites.precision[twins] = sites.precision[twins[0]]
    return sites


def factors(made: FieldInParts) -> set[int]:
    return {id(space.weighted[1]) for space in made.spaces}


def test_of_alike_vectors_those_are_twins_that_are_read_as_they_are():
    assert set(TWINS) == {
        "contrasts of alike classes", "of alike variables", "of alike factors", "alike classes one by one",
        "four of eight directions",
    }  # fmt: skip


@pytest.mark.parametrize("name", TWINS)
def test_twins_with_one_precision_have_one_factor(name):
    maps = MAPS[name][0]
    sites, other = with_one_precision(maps), with_one_precision(maps, 11)
    made = in_parts(maps, sites=sites)
    for each in (made, made.with_sites(other), in_parts(maps).with_sites(sites)):
        assert len(factors(each)) == 1 < len(each.spaces)
    assert len(factors(made.with_sites(random_sites(maps)))) == len(made.spaces)
    one = PrecisionSpace(StatedField(maps, numbers_with_alike(maps), NORMALISER), sites)
    for each in (made, in_parts(maps).with_sites(sites)):
        assert each.log_evidence == pytest.approx(one.log_evidence, rel=1e-9)
        np.testing.assert_allclose(each.marginals(), one.marginals(), **CLOSE)


@pytest.mark.parametrize(
    ("name", "sites"), [*((name, random_sites) for name in MAPS), *((name, with_one_precision) for name in TWINS)]
)
def test_derivatives_are_those_of_differences(name, sites):
    maps = MAPS[name][0]
    numbers, rng = numbers_with_alike(maps), np.random.default_rng(7)
    made = in_parts(maps, sites=sites(maps))
    noise, residual = rng.standard_normal(made.n_noise), rng.standard_normal(maps.predictors.n_rows)
    pulled = made.pullback(made.place(noise), residual)
    symmetric = directions_of_kernels(maps, rng)

    def value(by: np.ndarray, at: np.ndarray) -> float:
        moved = numbers.copy()
        moved[1 : NUMBERS.size] += by[: NUMBERS.size - 1]
        moved += by[NUMBERS.size - 1 :] @ symmetric
        space = in_parts(maps, moved, sites(maps))
        return float(residual @ space.place(at).eta) + space.log_evidence

    zero = np.zeros(NUMBERS.size - 1 + len(symmetric))
    slope = np.concatenate((pulled.vectors[0][1 : NUMBERS.size], symmetric @ pulled.vectors[0]))
    np.testing.assert_allclose(slope, differences(lambda by: value(by, noise), zero), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(pulled.noise, differences(lambda at: value(zero, at), noise), rtol=1e-5, atol=1e-5)


def directions_of_kernels(maps: FieldMaps, rng: np.random.Generator) -> np.ndarray:
    """A change of each K, or of its factor, the same of those that are alike."""
    made = dict[int, np.ndarray]()
    ends = numbers_of(maps).size - np.cumsum([0, *(each.size**2 for each in maps.kernels[::-1])])[::-1]
    for k, each in enumerate(maps.kernels):
        group = k if each.same_as is None else each.same_as
        if group not in made:
            made[group] = np.zeros(ends[-1])
            change = rng.standard_normal((each.size, each.size))
            own = np.tril(change) if each.is_factor else change + change.T
        made[group][ends[k] : ends[k + 1]] = own.ravel()
    return np.array(list(made.values()))


@pytest.mark.parametrize(
    ("name", "given"), [*((name, random_sites) for name in MAPS), *((name, with_one_precision) for name in TWINS)]
)
def test_derivatives_by_sites_are_those_of_one_precision(name, given):
    maps = MAPS[name][0]
    sites, one, rng = given(maps), whole(maps), np.random.default_rng(8)
    made, residual = in_parts(maps, sites=sites), rng.standard_normal(maps.predictors.n_rows)
    noise = rng.standard_normal(made.n_noise)

    def value(by: np.ndarray) -> float:
        b, w = np.split(by, 2)
        at = in_parts(maps, sites=GaussianSites(sites.linear + b, sites.precision * np.exp(w)))
        eta = at.place(noise).eta
        return float(residual @ (eta - base)) + at.log_evidence - at.sites.log_density(eta) + sites.log_density(eta)

    placed = made.place(noise)
    base = placed.eta
    found = made.sites_pullback(placed, made.pullback(placed, residual))
    slope = differences(value, np.zeros(2 * base.size)).reshape(2, -1)
    np.testing.assert_allclose(found, slope, rtol=1e-5, atol=1e-5)
    assert one.n_noise == made.n_noise


@IN_PARTS
def test_other_sites_serve_what_is_made(name):
    maps = MAPS[name][0]
    made, other = in_parts(maps), random_sites(maps, 11)
    again, anew = made.with_sites(other), in_parts(maps, sites=other)
    assert again.log_evidence == pytest.approx(anew.log_evidence, rel=1e-12)
    np.testing.assert_allclose(again.centre, anew.centre, **CLOSE)
    np.testing.assert_allclose(made.predict(made.mode(other)) + made.mean, anew.centre, **CLOSE)


@pytest.mark.parametrize("precisions", [random_sites, with_one_precision])
@IN_PARTS
def test_lasting_matrices_are_the_parts(name, precisions):
    """One for all parts with one factor; none where parts are of several sizes, or one has no covariance."""
    maps = MAPS[name][0]
    made = in_parts(maps, sites=precisions(maps))
    found = made.matrices_of_parts(for_good=True)
    sizes = {space.mean.size for space in made.spaces}
    if any(space.weighted is None for space in made.spaces) or len(sizes) > 1:
        assert found is None
        return
    matrices, where = found
    assert len(matrices) == len(factors(made))
    assert (made.matrices_of_parts(for_good=False) is not None) == (len(matrices) == 1 < len(made.spaces))
    assert where.size == maps.predictors.n_rows
    vector = np.random.default_rng(3).standard_normal(where.size)
    np.testing.assert_allclose(gram_of_parts(matrices, where, vector), made.gram(vector), **CLOSE)


def test_a_twin_whose_evidence_is_lost_in_rounding_is_a_failure():
    """The first twin's centre is near its mean, and the second's as far as the last digits of B reach."""
    maps = MAPS["contrasts of alike classes"][0]
    sites = with_one_precision(maps)
    _, second, *_ = sites_of_twins(maps)[0]
    sites.linear[second] = 1e9
    with pytest.raises(PriorFailure) as raised:
        in_parts(maps, sites=sites)
    assert raised.value.failure is Failure.NOT_POSITIVE_DEFINITE


@pytest.mark.parametrize(
    ("where", "value", "failure"), [(1, np.nan, Failure.NON_FINITE), (-1, -9.0, Failure.NOT_POSITIVE_DEFINITE)]
)
def test_what_cannot_be_factorised_is_a_failure(where, value, failure):
    maps = MAPS["contrasts of classes"][0]
    numbers = numbers_with_alike(maps)
    numbers[where] = value
    with pytest.raises(PriorFailure) as raised:
        in_parts(maps, numbers)
    assert raised.value.failure is failure
