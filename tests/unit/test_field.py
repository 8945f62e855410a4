"""A Gaussian field with a sparse precision against dense algebra and differences, on patterns of every sort."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy.linalg import block_diag

from pymc_rmhmc.errors import Failure, PriorFailure
from pymc_rmhmc.interfaces.stated import AffineRows, FieldKernel, FieldMaps, StatedField
from pymc_rmhmc.latent.charts import GaussianSites
from pymc_rmhmc.latent.field.field_structure import FieldStructure
from pymc_rmhmc.latent.solvers.precision import PrecisionSpace
from pymc_rmhmc.linalg.sparse_cholesky import BAND, FRONTS
from tests.unit.test_diagonal_chart import differences

EXACT = {"rtol": 1e-10, "atol": 1e-10}
NEAR = {"rtol": 2e-6, "atol": 2e-6}
NUMBERS = np.array([1.0, 0.8, -1.3, 0.4, 2.1])
NORMALISER = -3.7


def affine_rows(entries: list[list[int]], rng: np.random.Generator, *, moving: bool = True) -> AffineRows:
    """Rows with entries in these columns, each a number of u times a coefficient, and offsets of the same sort."""
    row = np.repeat(np.arange(len(entries)), [len(columns) for columns in entries])
    column = np.array([c for columns in entries for c in columns], np.int64)
    order = rng.permutation(row.size)  # in no order at all
    top = NUMBERS.size if moving else 1
    return AffineRows(
        row[order], column[order], rng.choice([-1.0, 1.0], row.size) * rng.uniform(0.4, 1.2, row.size),
        rng.integers(top, size=row.size), rng.standard_normal(len(entries)), rng.integers(top, size=len(entries)),
    )  # fmt: skip


def field_maps(
    size: int, residuals: list[list[int]], predictors: list[list[int]], *, dense: int = 0, seed: int = 0,
    moving: bool = True,
) -> FieldMaps:  # fmt: skip
    rng = np.random.default_rng(seed)
    return FieldMaps(
        size, affine_rows(residuals, rng, moving=moving), affine_rows(predictors, rng, moving=moving),
        rng.standard_normal((dense, size)), rng.standard_normal(dense),
    )  # fmt: skip


def singles(size: int) -> list[list[int]]:
    return [[i] for i in range(size)]


def random_rows(size: int, count: int, seed: int, most: int = 3) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [sorted(rng.choice(size, rng.integers(1, most + 1), replace=False).tolist()) for _ in range(count)]


def lattice(width: int) -> list[list[int]]:
    site = np.arange(width * width).reshape(width, width)
    across, along = np.stack([site[:-1], site[1:]], 2).reshape(-1, 2), np.stack([site[:, :-1], site[:, 1:]], 2)
    return [*across.tolist(), *along.reshape(-1, 2).tolist()]


def intrinsic(parts: int = 1, dense: int = 1) -> FieldMaps:
    """Differences alone, of one or more parts, which dense rows close; no number moves a difference's shape."""
    edges = [[3 * k + i, 3 * k + (i + 1) % 3] for k in range(parts) for i in range(3)]
    made, rng = (
        field_maps(3 * parts, edges, random_rows(3 * parts, 4, 7), dense=dense, seed=6),
        np.random.default_rng(1),
    )
    rows = made.residuals
    number = np.repeat(rng.integers(NUMBERS.size, size=len(edges)), 2)
    row, column = np.repeat(np.arange(len(edges)), 2), np.array(edges).ravel()
    coefficient = np.repeat(rng.uniform(0.5, 1.5, len(edges)), 2) * np.tile([1.0, -1.0], len(edges))
    return replace(made, residuals=replace(rows, row=row, column=column, coefficient=coefficient, number=number))


def beside(kernels: list[FieldKernel], maps: FieldMaps) -> FieldMaps:
    """The same, with the last values those of kernels, which no dense row reads."""
    made = replace(maps, kernels=tuple(kernels))
    made.dense[:, maps.size - made.n_dense :] = 0.0
    return made


def numbers_of(maps: FieldMaps) -> np.ndarray:
    """u, with a covariance or a factor of each kernel at its end."""
    rng, tails = np.random.default_rng(9), []
    for each in maps.kernels:
        lower = np.tril(rng.uniform(-1.5, 1.5, (each.size, each.size)), -1) / each.size
        lower += np.diag(rng.uniform(0.5, 1.5, each.size))
        tails.append((lower if each.is_factor else lower @ lower.T).ravel())
    return np.concatenate((NUMBERS, *tails))


WALK = [[0], *([i, i + 1] for i in range(8))]
MAPS = {
    "walk": field_maps(9, WALK, singles(9)),
    "walk, nothing moves": field_maps(9, WALK, singles(9), moving=False),
    "random rows": field_maps(9, [*singles(9), *random_rows(9, 7, 1)], random_rows(9, 12, 2)),
    "border": field_maps(9, [[8], *([i, 8] for i in range(8))], [[i % 8, 8] for i in range(20)], seed=2),
    "islands": field_maps(9, [*singles(9), [0, 1], [1, 2], [5, 6]], [[0, 1], [2], [5], [6]], seed=3),
    "residuals with no entry": field_maps(4, [*singles(4), [], [1, 2]], [[0], [], [3, 1]], seed=4),
    "no sites": field_maps(7, [*singles(7), *random_rows(7, 5, 3)], []),
    "a dense row": field_maps(8, [*singles(8), *random_rows(8, 4, 4)], random_rows(8, 5, 5), dense=1),
    "two dense rows": field_maps(8, [*singles(8), [0, 3], [4, 5]], random_rows(8, 5, 6), dense=2),
    "a dense row that closes": intrinsic(),
    "dense rows that close two parts": intrinsic(parts=2, dense=2),
    "a dense row that data close": intrinsic(parts=2, dense=1),
    "one value": field_maps(1, [[0]], [[0]], seed=5),
    "lattice": field_maps(49, [*singles(49), *lattice(7)], singles(49), seed=8),
    "a kernel": beside([FieldKernel(5, False, False)], field_maps(14, WALK, [[i, 9 + i % 5] for i in range(9)])),
    "a kernel by its factor": beside(
        [FieldKernel(4, True, True)], field_maps(13, [*WALK, [2, 10], [11]], random_rows(13, 15, 7))
    ),
    "two kernels and a dense row": beside(
        [FieldKernel(3, True, False), FieldKernel(4, False, False)],
        field_maps(15, [*singles(8), *random_rows(8, 4, 4), [4, 12]], random_rows(15, 20, 8), dense=1),
    ),
    "kernels alone": beside(
        [FieldKernel(100, False, False), FieldKernel(3, False, True)], field_maps(103, [], random_rows(103, 60, 9))
    ),
    "many pairs": field_maps(144, [*singles(144), *random_rows(144, 200, 3)], singles(144), seed=8),
}


@dataclass(frozen=True)
class Dense:
    """The same field by dense algebra."""

    maps: FieldMaps
    numbers: np.ndarray
    sites: GaussianSites

    @property
    def factors(self) -> list[np.ndarray]:
        """The factor of each kernel."""
        ends = self.numbers.size - np.cumsum([0, *(each.size**2 for each in self.maps.kernels[::-1])])[::-1]
        made = []
        for each, start, end in zip(self.maps.kernels, ends[:-1], ends[1:], strict=True):
            matrix = self.numbers[start:end].reshape(each.size, each.size)
            made.append(np.tril(matrix) if each.is_factor else np.linalg.cholesky(matrix))
        return made

    def of_kernels(self, centred: list[np.ndarray], whitened: list[np.ndarray]) -> np.ndarray:
        """Blocks for the kernels' values, of variables that are the vectors themselves and of whitened ones."""
        which = [a if k.is_variable else b for k, a, b in zip(self.maps.kernels, centred, whitened, strict=True)]
        return np.asarray(block_diag(*which)) if which else np.zeros((0, 0))

    @property
    def read(self) -> np.ndarray:
        """What rows read of the model's variables."""
        ones = [np.eye(each.size) for each in self.maps.kernels]
        return np.asarray(block_diag(np.eye(self.maps.size - self.maps.n_dense), self.of_kernels(ones, self.factors)))

    @property
    def normaliser(self) -> float:
        volumes = [np.log(np.diag(factor)).sum() for factor in self.factors]
        return NORMALISER - sum(v for v, k in zip(volumes, self.maps.kernels, strict=True) if k.is_variable)

    @staticmethod
    def _matrix(rows: AffineRows, size: int, numbers: np.ndarray) -> np.ndarray:
        made = np.zeros((rows.n_rows, size))
        np.add.at(made, (rows.row, rows.column), rows.coefficient * numbers[rows.number])
        return made

    @property
    def j(self) -> np.ndarray:
        maps, inverses = self.maps, [np.linalg.inv(factor) for factor in self.factors]
        ones = [np.eye(each.size) for each in maps.kernels]
        last = np.hstack((np.zeros((maps.n_dense, maps.size - maps.n_dense)), self.of_kernels(inverses, ones)))
        return np.vstack((self._matrix(maps.residuals, maps.size, self.numbers) @ self.read, maps.dense, last))

    @property
    def c(self) -> np.ndarray:
        rows = self.maps.residuals
        offset = rows.offset * self.numbers[rows.offset_number]
        return np.concatenate((offset, self.maps.dense_offset, np.zeros(self.maps.n_dense)))

    @property
    def a(self) -> np.ndarray:
        return self._matrix(self.maps.predictors, self.maps.size, self.numbers) @ self.read

    @property
    def shift(self) -> np.ndarray:
        rows = self.maps.predictors
        return rows.offset * self.numbers[rows.offset_number]

    @property
    def precision(self) -> np.ndarray:
        return self.j.T @ self.j + self.a.T @ (self.sites.precision[:, None] * self.a)

    @property
    def mean(self) -> np.ndarray:
        right = self.j.T @ self.c + self.a.T @ (self.sites.linear - self.sites.precision * self.shift)
        return np.linalg.solve(self.precision, right)

    def log_joint(self, x: np.ndarray) -> float:
        residuals, eta = self.j @ x - self.c, self.a @ x + self.shift
        return (
            self.normaliser
            - 0.5 * residuals @ residuals
            + self.sites.linear @ eta
            - 0.5 * (self.sites.precision @ eta**2)
        )

    @property
    def log_evidence(self) -> float:
        """By the joint density at a point that is not the mean, over the density of the conditional there."""
        x = np.linspace(-0.5, 0.7, self.maps.size)
        apart, (_, log_determinant) = x - self.mean, np.linalg.slogdet(self.precision)
        given = 0.5 * log_determinant - 0.5 * apart @ self.precision @ apart - 0.5 * x.size * np.log(2.0 * np.pi)
        return self.log_joint(x) - given


def sites_of(maps: FieldMaps, seed: int = 3) -> GaussianSites:
    rng, n = np.random.default_rng(seed), maps.predictors.n_rows
    precision = rng.exponential(1.0, n)
    precision[3:4] = 0.0  # as where nothing was observed
    return GaussianSites(rng.standard_normal(n), precision)


def stated(maps: FieldMaps, numbers: np.ndarray | None = None) -> StatedField:
    return StatedField(maps, numbers_of(maps) if numbers is None else numbers, NORMALISER)


@pytest.fixture(params=MAPS)
def maps(request) -> FieldMaps:
    return MAPS[request.param]


@pytest.fixture
def sites(maps) -> GaussianSites:
    return sites_of(maps)


@pytest.fixture
def space(maps, sites) -> PrecisionSpace:
    return PrecisionSpace(stated(maps), sites)


@pytest.fixture
def dense(maps, sites) -> Dense:
    return Dense(maps, numbers_of(maps), sites)


def test_both_kinds_of_factor_are_among_these_fields():
    kinds = {name: FieldStructure(each).layout.kind for name, each in MAPS.items()}
    assert kinds["walk"] == BAND
    assert kinds["many pairs"] == kinds["a kernel"] == FRONTS


def test_no_run_of_entries_has_both_constants_and_values(maps):
    """Of a run the columns are not looked at one by one: a constant's is beyond the vector of values."""
    pattern = FieldStructure(maps).pattern
    for rows in (pattern.residuals, pattern.predictors):
        for _, first, size, _, _ in rows.run:
            is_constant = rows.column[first : first + size] == maps.size
            assert is_constant.all() or not is_constant.any()


def test_the_evidence_is_what_normalises_prior_times_sites(space, dense):
    assert space.log_evidence == pytest.approx(dense.log_evidence, rel=1e-10, abs=1e-10)


def test_the_centre_is_the_conditional_mean(space, dense):
    np.testing.assert_allclose(space.root.displace(space.centre_whitened), dense.mean, **EXACT)
    np.testing.assert_allclose(space.centre, dense.a @ dense.mean + dense.shift, **EXACT)
    np.testing.assert_allclose(space.mean, dense.shift, **EXACT)


def test_marginals_are_those_of_the_dense_inverse(space, dense):
    mean, variance = space.marginals()
    np.testing.assert_allclose(mean, dense.a @ dense.mean + dense.shift, **EXACT)
    np.testing.assert_allclose(variance, np.diag(dense.a @ np.linalg.solve(dense.precision, dense.a.T)), **EXACT)


def latents_at(space: PrecisionSpace, noise: np.ndarray) -> np.ndarray:
    return space.root.displace(space.place(noise).whitened)


def test_noise_is_placed_as_the_prior_times_the_sites(space, dense):
    n_noise = len(dense.j) + dense.maps.predictors.n_rows
    assert space.n_noise == n_noise
    np.testing.assert_allclose(latents_at(space, np.zeros(n_noise)), dense.mean, **EXACT)
    part = np.column_stack([latents_at(space, e) - dense.mean for e in np.eye(n_noise)])
    np.testing.assert_allclose(part @ part.T, np.linalg.inv(dense.precision), **EXACT)
    noise = np.random.default_rng(4).standard_normal(n_noise)
    placed = space.place(noise)
    x = space.root.displace(placed.whitened)
    np.testing.assert_allclose(x, dense.mean + part @ noise, **EXACT)
    np.testing.assert_allclose(placed.eta, dense.a @ x + dense.shift, **EXACT)
    np.testing.assert_allclose(placed.latents, x, **EXACT)
    np.testing.assert_allclose(space.predict(placed.whitened), dense.a @ x, **EXACT)


def test_the_map_of_noise_its_adjoint_and_its_gram_are_one(space, dense):
    eye, around = np.eye(space.n_noise), np.eye(dense.maps.predictors.n_rows)
    if not around.size:
        assert space.apply(eye[0]).shape == (0,)
        return
    made = np.column_stack([space.apply(e) for e in eye])
    covariance = dense.a @ np.linalg.solve(dense.precision, dense.a.T)
    np.testing.assert_allclose(made @ made.T, covariance, **EXACT)
    np.testing.assert_allclose(np.column_stack([space.adjoint(e) for e in around]), made.T, **EXACT)
    np.testing.assert_allclose(np.column_stack([space.gram(e) for e in around]), covariance, **EXACT)


def test_given_latents_are_entered_where_they_were(space, dense):
    rng = np.random.default_rng(5)
    x = rng.standard_normal(dense.maps.size)
    entered = space.enter(x, rng.standard_normal(space.n_noise))
    np.testing.assert_allclose(latents_at(space, entered), x, **EXACT)


def test_the_noise_that_enters_has_its_law_given_the_latents(space, dense):
    """The noise's mean and covariance given x are those of a standard normal given ``T z = x - m``."""
    n_noise, rng = space.n_noise, np.random.default_rng(6)
    x, eye = rng.standard_normal(dense.maps.size), np.eye(space.n_noise)
    part = np.column_stack([latents_at(space, e) - latents_at(space, 0.0 * e) for e in eye])
    mean = space.enter(x, np.zeros(n_noise))
    np.testing.assert_allclose(mean, np.linalg.pinv(part) @ (x - dense.mean), rtol=1e-8, atol=1e-8)
    spread = np.column_stack([space.enter(x, e) - mean for e in eye])
    np.testing.assert_allclose(spread @ spread.T, eye - np.linalg.pinv(part) @ part, rtol=1e-8, atol=1e-8)


def test_the_prior_of_a_placed_point_is_the_residuals_density(space, dense):
    placed = space.place(np.random.default_rng(7).standard_normal(space.n_noise))
    residuals = dense.j @ placed.latents - dense.c
    assert placed.log_prior == pytest.approx(dense.normaliser - 0.5 * residuals @ residuals, rel=1e-10)


def placed_value(space: PrecisionSpace, noise: np.ndarray, weights: np.ndarray) -> float:
    """``ψ(η) + log E``, whose gradient a pullback gives, with ``ψ = Σ w sin η``."""
    return weights @ np.sin(space.place(noise).eta) + space.log_evidence


def test_pullbacks_match_differences(maps, sites, space):
    rng = np.random.default_rng(8)
    noise, weights = rng.standard_normal(space.n_noise), rng.standard_normal(maps.predictors.n_rows)
    placed = space.place(noise)
    pulled = space.pullback(placed, weights * np.cos(placed.eta))
    few, numbers = np.arange(min(noise.size, 40)), numbers_of(maps)
    # Of a kernel of many values its first rows.
    some = np.arange(1, min(numbers.size, 300))

    def moved(part):
        whole = noise.copy()
        whole[few] = part
        return placed_value(space, whole, weights)

    np.testing.assert_allclose(pulled.noise[few], differences(moved, noise[few]), **NEAR)

    def of_numbers(part):
        changed = numbers.copy()
        changed[some] = part
        return placed_value(PrecisionSpace(stated(maps, changed), sites, space), noise, weights)

    np.testing.assert_allclose(pulled.vectors[0][some], differences(of_numbers, numbers[some]), **NEAR)
    gram = np.column_stack([space.gram(e) for e in np.eye(weights.size)]) if weights.size else np.zeros((0, 0))
    np.testing.assert_allclose(pulled.pushed, gram @ (weights * np.cos(placed.eta)), **EXACT)


def test_the_derivative_of_the_evidence_alone_is_that_of_dense_algebra(maps, sites, space, dense):
    """With no slope beyond the sites' and no noise: only P's inverse and the mean matter."""
    placed = space.place(np.zeros(space.n_noise))
    pulled = space.pullback(placed, np.zeros(maps.predictors.n_rows))

    some = np.arange(1, min(dense.numbers.size, 300))

    def exact(part):
        changed = dense.numbers.copy()
        changed[some] = part
        return replace(dense, numbers=changed).log_evidence

    np.testing.assert_allclose(pulled.vectors[0][some], differences(exact, dense.numbers[some]), **NEAR)


def test_the_pullback_by_sites_matches_differences(maps, sites, space):
    rng, n = np.random.default_rng(9), maps.predictors.n_rows
    noise, weights = rng.standard_normal(space.n_noise), rng.standard_normal(n)
    placed = space.place(noise)
    residual = weights * np.cos(placed.eta) - sites.gradient(placed.eta)
    found = space.sites_pullback(placed, space.pullback(placed, residual))

    def value(moves):
        added, factor = moves[:n], np.exp(moves[n:])
        moved = GaussianSites(sites.linear + added, factor * sites.precision)
        at = space.with_sites(moved)
        # Of the likelihood that stays as it is, ψ is what the sites leave.
        return placed_value(at, noise, weights) - moved.log_density(at.place(noise).eta)

    if n <= 20:
        np.testing.assert_allclose(found.ravel(), differences(value, np.zeros(2 * n)), **NEAR)
        return
    along = rng.standard_normal((2, n))
    by_differences = differences(lambda t: value(t * along.ravel()), np.zeros(1))
    np.testing.assert_allclose((found * along).sum(), by_differences[0], **NEAR)


def test_other_sites_are_those_of_a_field_made_anew(maps, space):
    others = sites_of(maps, seed=11)
    moved, anew = space.with_sites(others), PrecisionSpace(stated(maps), others)
    exact = Dense(maps, numbers_of(maps), others)
    assert moved.log_evidence == pytest.approx(anew.log_evidence, rel=1e-12)
    assert moved.log_evidence == pytest.approx(exact.log_evidence, rel=1e-10)
    mode = space.mode(others)
    np.testing.assert_allclose(space.root.displace(mode), exact.mean, **EXACT)


def test_other_linear_terms_with_the_precision_of_before(maps, sites, space):
    """What is kept from one to the next must not hold what belongs to the first."""
    others = GaussianSites(sites.linear + 1.0, sites.precision)
    numbers = numbers_of(maps)
    numbers[1 : NUMBERS.size] *= np.linspace(0.7, 1.4, NUMBERS.size - 1)
    moved = PrecisionSpace(stated(maps, numbers), others, space)
    exact = Dense(maps, numbers, others)
    assert moved.log_evidence == pytest.approx(exact.log_evidence, rel=1e-10)
    np.testing.assert_allclose(moved.root.displace(moved.centre_whitened), exact.mean, **EXACT)
    np.testing.assert_allclose(
        moved.marginals()[1], np.diag(exact.a @ np.linalg.solve(exact.precision, exact.a.T)), **EXACT
    )
    # The first is as it was.
    assert space.log_evidence == pytest.approx(Dense(maps, numbers_of(maps), sites).log_evidence, rel=1e-10)


OPEN = {
    # No residual and no site reads the last value.
    "a value that nothing reads": field_maps(4, singles(3), [[0], [1]]),
    # Differences alone do not say where a walk is.
    "differences alone": field_maps(5, [[i, i + 1] for i in range(4)], [[0, 1]], moving=False),
}


@pytest.mark.parametrize("name", OPEN)
def test_a_field_that_nothing_closes_has_no_factor(name):
    maps = OPEN[name]
    if name == "differences alone":
        rows = maps.residuals
        sign = np.where(rows.column == rows.row, -1.0, 1.0)
        maps = replace(maps, residuals=replace(rows, coefficient=sign))
    sites = GaussianSites(np.ones(maps.predictors.n_rows), np.zeros(maps.predictors.n_rows))
    with pytest.raises(PriorFailure) as failed:
        PrecisionSpace(stated(maps), sites)
    assert failed.value.failure == Failure.NOT_POSITIVE_DEFINITE


@pytest.mark.parametrize("weight", [0.0, 1e-15])
@pytest.mark.parametrize("exactly", [False, True])
def test_dense_rows_that_leave_a_part_open_have_no_factor(exactly, weight):
    """One dense row closes one part; the other is open where no site reads it, or next to nothing."""
    maps = intrinsic(parts=2, dense=1)
    if exactly:  # in numbers that leave no rounding
        rows = replace(
            maps.residuals, coefficient=np.sign(maps.residuals.coefficient), number=0 * maps.residuals.number
        )
        maps = replace(maps, residuals=rows, dense=np.ones_like(maps.dense))
    n = maps.predictors.n_rows
    with pytest.raises(PriorFailure) as failed:
        PrecisionSpace(stated(maps), GaussianSites(np.zeros(n), np.full(n, weight)))
    assert failed.value.failure == Failure.NOT_POSITIVE_DEFINITE


@pytest.mark.parametrize("weight", [1e-6, 1e6])
def test_a_part_that_data_close_weakly_or_strongly_keeps_its_digits(weight):
    maps = intrinsic(parts=2, dense=1)
    maps = replace(maps, predictors=field_maps(6, [[0]], singles(6), seed=6).predictors)
    sites = GaussianSites(np.zeros(6), np.full(6, weight))
    space, exact = PrecisionSpace(stated(maps), sites), Dense(maps, NUMBERS, sites)
    assert space.log_evidence == pytest.approx(exact.log_evidence, rel=1e-8)


def test_sites_close_what_the_prior_leaves_open():
    maps = field_maps(5, [[i, i + 1] for i in range(4)], singles(5))
    open_at_first = PrecisionSpace(stated(maps), GaussianSites(np.ones(5), np.ones(5)))
    assert open_at_first.mode(GaussianSites(np.ones(5), np.full(5, 1e-3))) is not None
    exact = Dense(maps, NUMBERS, GaussianSites(np.ones(5), np.ones(5)))
    assert open_at_first.log_evidence == pytest.approx(exact.log_evidence, rel=1e-10)


def test_no_mode_is_none_where_there_is_no_factor():
    maps = field_maps(4, singles(3), singles(4))
    space = PrecisionSpace(stated(maps), GaussianSites(np.ones(4), np.ones(4)))
    assert space.mode(GaussianSites(np.ones(4), np.zeros(4))) is None


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_a_failure(bad):
    maps, numbers = MAPS["walk"], NUMBERS.copy()
    numbers[2] = bad
    for given in (stated(maps, numbers), StatedField(maps, NUMBERS, bad)):
        with pytest.raises(PriorFailure) as failed:
            PrecisionSpace(given, sites_of(maps))
        assert failed.value.failure == Failure.NON_FINITE


def test_a_value_that_a_dense_row_alone_reads_is_closed_by_it():
    """An area without neighbours: P has a factor, although without the dense row it has a 0 on its diagonal."""
    made = field_maps(4, [[0], [0, 1], [1, 2]], [[0], [1]], dense=1)
    space, exact = PrecisionSpace(stated(made), sites_of(made)), Dense(made, NUMBERS, sites_of(made))
    assert space.log_evidence == pytest.approx(exact.log_evidence, rel=1e-10)
    np.testing.assert_allclose(space.root.displace(space.centre_whitened), exact.mean, **EXACT)


def test_many_sites_on_one_value_and_a_precision_of_thirty_orders():
    """Weights that differ by far leave ten digits where the problem has them."""
    maps = field_maps(3, singles(3), [[i % 3] for i in range(60)])
    sites = GaussianSites(np.zeros(60), np.geomspace(1e-12, 1e6, 60))
    space, exact = PrecisionSpace(stated(maps), sites), Dense(maps, NUMBERS, sites)
    assert space.log_evidence == pytest.approx(exact.log_evidence, rel=1e-9)
    np.testing.assert_allclose(space.root.displace(space.centre_whitened), exact.mean, rtol=1e-9)
