"""The joint target with one half held: the map of every kind of conditional, and both halves against the whole."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian, GaussianState, SpannedHamiltonian
from pymc_rmhmc.dynamics.integrators import RotationSplitting
from pymc_rmhmc.errors import Failure, PriorFailure
from pymc_rmhmc.interfaces.stated import StatedCoefficients, StatedDense, StatedKronecker
from pymc_rmhmc.latent.charts import GaussianSites, MarginalChart
from pymc_rmhmc.latent.forms import operator_of
from pymc_rmhmc.latent.joint_target import JointTarget
from pymc_rmhmc.latent.latent_blocks import sites_at
from pymc_rmhmc.latent.latents_given_theta import LatentsGivenTheta
from pymc_rmhmc.latent.solvers.site_space import SiteSpace, Term
from pymc_rmhmc.latent.theta_densities import ThetaGivenNoise
from tests.unit import test_diagonal_chart, test_kronecker_chart, test_summed_chart
from tests.unit.placing import Placing, dense_block, grid_block, rows_block
from tests.unit.test_joint_chart import PRECISIONS, THETA, FixedBlock, N, ToyBlock, ToyDensity, joint, make
from tests.unit.toys import kernel

EXTREME = np.array([1e8, 0.0, 0.3, 3e8, 1e-3, 50.0])


def dense_at(sites: GaussianSites, *, centred: bool) -> Placing:
    mean, prior, _ = make()
    return dense_block(mean, prior, sites, shift=0.3, centred=centred)


def dense(precision: np.ndarray, *, centred: bool) -> Placing:
    return dense_at(GaussianSites(make()[2].linear, precision), centred=centred)


def rows_at(sites: GaussianSites) -> Placing:
    """Rows whose sites are not neighbours."""
    mean, prior, _ = make()
    where = np.arange(2 * N).reshape(N, 2).T.copy()
    mean = np.concatenate((mean, -mean))
    return rows_block(mean, prior, sites, where, shift=np.zeros(2 * N), centred=True)


def sites_of_rows() -> GaussianSites:
    """One of the rows sees little."""
    rng = np.random.default_rng(0)
    precision = rng.exponential(1.0, 2 * N)
    precision[1::2] *= 1e-3
    return GaussianSites(rng.standard_normal(2 * N), precision)


def rows() -> Placing:
    return rows_at(sites_of_rows())


def sum_with_a_grid_at(sites: GaussianSites) -> Placing:
    rng, n = np.random.default_rng(1), 7
    gather = sparse.csr_array((np.ones(n), (np.arange(n), np.arange(n) % 6)), shape=(n, 6))
    terms = [
        Term(operator_of(StatedKronecker((kernel(2, jitter=1e-2), kernel(3, jitter=1e-2)))), gather),
        Term(operator_of(StatedDense(np.asfortranarray(kernel(n, jitter=1e-2)), np.zeros(n), True))),
        Term(
            operator_of(StatedCoefficients(np.array([0.7, 0.0]), np.zeros(2), np.ones(2))), rng.standard_normal((n, 2))
        ),
    ]
    return Placing(SiteSpace(rng.standard_normal(n), terms, sites))


def sum_with_a_grid() -> Placing:
    rng, n = np.random.default_rng(1), 7
    return sum_with_a_grid_at(GaussianSites(rng.standard_normal(n), rng.exponential(1.0, n) * (np.arange(n) != 3)))


CONDITIONALS = {
    **{
        f"dense, {form}, {name} precisions": (lambda p=p, form=form: dense(p, centred=form == "centred"))
        for form in ("centred", "whitened")
        for name, p in (PRECISIONS | {"extreme": EXTREME}).items()
    },
    "rows": rows,
    **{
        f"grid, {grid}": (lambda grid=grid: grid_block(*test_kronecker_chart.stated(grid)))
        for grid in test_kronecker_chart.GRIDS
    },
    **{
        f"{shape}, {kind}, {'standing' if power is None else 'raised'}": (
            lambda stated=(shape, kind, power): test_diagonal_chart.Stated(*stated).conditional()
        )
        for shape in test_diagonal_chart.SHAPES
        for kind, power in (("dense", None), ("sparse", 0.3))
    },
    **{form: (lambda form=form: test_summed_chart.Stated(form).conditional()) for form in test_summed_chart.FORMS},
    "sum with a grid": sum_with_a_grid,
}


@pytest.mark.parametrize("name", CONDITIONALS)
def test_centre_adjoint_and_gram_are_those_of_the_map_that_places(name):
    build, rng = CONDITIONALS[name], np.random.default_rng(2)
    placing = build()
    n_noise, near = placing.n_noise, {"rtol": 1e-7, "atol": 1e-8}
    centre = placing.place(np.zeros(n_noise))
    part = np.column_stack([placing.place(e) - centre for e in np.eye(n_noise)])
    np.testing.assert_allclose(placing.centre, centre, **near)
    z, (v, w) = rng.standard_normal(n_noise), rng.standard_normal((2, centre.size))
    # With nothing placed, and twice: nobody need have been there.
    fresh = build()
    np.testing.assert_allclose(fresh.centre, centre, **near)
    for vector in (v, w, v):
        np.testing.assert_allclose(fresh.adjoint(vector), part.T @ vector, **near)
        np.testing.assert_allclose(fresh.gram(vector), part @ (part.T @ vector), **near)
    # Between placing and what is read of it, nothing of it is lost.
    exact = placing.place(z).copy()
    np.testing.assert_allclose(exact, centre + part @ z, **near)
    held = placing.latents.copy(), placing.log_prior()
    fresh.place(z)
    fresh.adjoint(v)
    fresh.gram(w)
    np.testing.assert_allclose(fresh.latents, held[0], **near)
    assert fresh.log_prior() == pytest.approx(held[1], rel=1e-8, abs=1e-7)
    np.testing.assert_array_equal(fresh.place(z), exact)
    np.testing.assert_allclose(fresh.adjoint(v), part.T @ v, **near)
    np.testing.assert_allclose(fresh.gram(v), part @ (part.T @ v), **near)
    np.testing.assert_allclose(fresh.centre, centre, **near)
    # And the derivative is that of the noise that was placed last.
    placing.place(z)
    for mine, other in zip(fresh.pullback(v)[:2], placing.pullback(v)[:2], strict=True):
        np.testing.assert_allclose(mine, other, **near)



@pytest.mark.parametrize("name", CONDITIONALS)
def test_noise_that_is_entered_has_the_law_of_all_that_leads_to_the_same_latents(name):
    """The projection of any noise on what leads there: nothing of it in the rows of the map, all of it beside them."""
    conditional, rng = CONDITIONALS[name](), np.random.default_rng(10)
    size = conditional.n_noise

    def latents(noise):
        conditional.place(noise)
        return conditional.latents.copy()

    origin = latents(np.zeros(size))
    part = np.column_stack([latents(e) - origin for e in np.eye(size)])
    values = latents(rng.standard_normal(size))
    start = conditional.enter(values, np.zeros(size))
    spread = np.column_stack([conditional.enter(values, e) - start for e in np.eye(size)])
    # Sites of every precision: what is of no size beside 1e8 has fewer digits.
    near = 1e-3 if "extreme" in name else 1e-7
    np.testing.assert_allclose(latents(start), values, atol=near)
    np.testing.assert_allclose(part @ spread, 0.0, atol=near)
    np.testing.assert_allclose(spread, spread.T, atol=near)
    np.testing.assert_allclose(spread @ spread, spread, atol=near)
    assert np.trace(spread) == pytest.approx(size - np.linalg.matrix_rank(part, tol=1e-6), abs=near)
    # Of the noise that leads there the shortest.
    np.testing.assert_allclose(spread @ start, 0.0, atol=near)


def other_sites(sites: GaussianSites) -> GaussianSites:
    """Some of them a hundred times as strong, some a hundred times as weak, and one of none."""
    by = np.geomspace(0.01, 100.0, sites.linear.size)
    by[1] = 0.0
    return GaussianSites(by * sites.linear + 0.3, by * sites.precision)


def summed(form: str):
    """In either form of a sum."""

    def build(sites: GaussianSites):
        stated = test_summed_chart.Stated(form)
        stated.sites = sites
        return stated.conditional()

    sites = test_summed_chart.Stated().sites
    return build, sites, other_sites(sites)


def of_coefficients(shape: str, kind: str):
    """Sites of coefficients differ in their power alone."""
    stated = test_diagonal_chart.Stated(shape, kind)
    return (lambda sites: stated.conditional(sites=sites)), stated.raised(0.3), stated.raised(7.0)


def on_a_grid(grid: str):
    mean, factors, sites = test_kronecker_chart.stated(grid)
    return (lambda at: grid_block(mean, factors, at)), sites, other_sites(sites)


# How each is made of sites, the sites that it has, and others.
OF_SITES = {
    **{
        f"dense, {form}": lambda form=form: (
            lambda sites: dense_at(sites, centred=form == "centred"), make()[2], other_sites(make()[2])
        )
        for form in ("centred", "whitened")
    },
    "rows": lambda: (rows_at, sites_of_rows(), other_sites(sites_of_rows())),
    **{f"grid, {grid}": (lambda grid=grid: on_a_grid(grid)) for grid in test_kronecker_chart.GRIDS},
    **{form: (lambda form=form: summed(form)) for form in test_summed_chart.FORMS},
    "sum with a grid": lambda: (
        sum_with_a_grid_at, (sites := GaussianSites(np.linspace(-1.0, 1.0, 7), np.geomspace(0.1, 4.0, 7))),
        other_sites(sites),
    ),
    **{
        f"coefficients, {shape}, {kind}": (lambda stated=(shape, kind): of_coefficients(*stated))
        for shape, kind in test_diagonal_chart.CASES
    },
}  # fmt: skip


@pytest.mark.parametrize("name", OF_SITES)
def test_the_same_prior_with_other_sites_is_as_if_it_had_been_made_with_them(name):
    build, sites, others = OF_SITES[name]()
    first, fresh = build(sites), build(others)
    first.place(np.ones(first.n_noise))
    borrowed = first.with_sites(others)
    rng, near = np.random.default_rng(11), {"rtol": 1e-8, "atol": 1e-8}
    noise, residual = rng.standard_normal(fresh.n_noise), rng.standard_normal(fresh.centre.size)
    kept = [first.latents.copy(), first.centre.copy(), first.log_evidence]
    assert borrowed.n_noise == fresh.n_noise
    assert borrowed.log_evidence == pytest.approx(fresh.log_evidence, rel=1e-10, abs=1e-9)
    assert abs(borrowed.log_evidence - first.log_evidence) > 1e-2
    np.testing.assert_allclose(borrowed.centre, fresh.centre, **near)
    np.testing.assert_allclose(borrowed.place(noise), fresh.place(noise), **near)
    np.testing.assert_allclose(borrowed.latents, fresh.latents, **near)
    assert borrowed.log_prior() == pytest.approx(fresh.log_prior(), rel=1e-9)
    np.testing.assert_allclose(borrowed.adjoint(residual), fresh.adjoint(residual), **near)
    np.testing.assert_allclose(borrowed.gram(residual), fresh.gram(residual), **near)
    for mine, other in zip(borrowed.marginals(), fresh.marginals(), strict=True):
        np.testing.assert_allclose(mine, other, **near)
    np.testing.assert_allclose(borrowed.enter(kept[0], noise), fresh.enter(kept[0], noise), **near)
    # What it was made of is left as it stood, with the noise that was placed there.
    np.testing.assert_array_equal(first.latents, kept[0])
    np.testing.assert_array_equal(first.centre, kept[1])
    assert first.log_evidence == kept[2]


@pytest.mark.parametrize("name", OF_SITES)
def test_sites_may_be_changed_again_and_back(name):
    build, sites, others = OF_SITES[name]()
    first, near = build(sites), {"rtol": 1e-8, "atol": 1e-8}
    back = first.with_sites(others).with_sites(sites)
    noise = np.random.default_rng(12).standard_normal(first.n_noise)
    assert back.log_evidence == pytest.approx(first.log_evidence, rel=1e-10, abs=1e-9)
    np.testing.assert_allclose(back.place(noise), first.place(noise), **near)
    np.testing.assert_allclose(back.latents, first.latents, **near)


def target_of(name: str) -> JointTarget:
    """Two blocks, one of which is whitened."""
    if name in ("standing", "moving", "both"):
        target = joint(moving=name != "standing")
        if name == "both":
            target = JointTarget(target.density, (target.sites[0], joint().sites[1]), target.chart)
        return target
    other = joint(moving=name == "fixed, moving sites")
    blocks = [FixedBlock(block.y, block.centred, fixed_covariance=True) for block in other.density.blocks]
    return JointTarget(ToyDensity(tuple(blocks)), other.sites, other.chart)


def one_block() -> JointTarget:
    target = joint(moving=True)
    return JointTarget(ToyDensity(target.density.blocks[:1]), target.sites[:1], target.chart)


TARGETS = {
    **{name: (lambda name=name: target_of(name)) for name in ("standing", "moving", "both")},
    "one block": one_block,
    "fixed covariance": lambda: target_of("fixed"),
    "fixed covariance, moving sites": lambda: target_of("fixed, moving sites"),
}


@pytest.fixture(params=TARGETS.values(), ids=TARGETS)
def target(request) -> JointTarget:
    return request.param()


def test_either_half_held_is_the_whole(target):
    rng, d = np.random.default_rng(3), target.n_theta
    for position in rng.standard_normal((3, target.size)):
        standard, noise = position[:d], position[d:]
        whole = target.at(position)
        held = LatentsGivenTheta(target, standard)
        point = held.at_noise(noise)
        np.testing.assert_allclose(held.theta, whole.theta, rtol=1e-14)
        assert held.log_marginal + point.log_density == pytest.approx(whole.log_density, rel=1e-12, abs=1e-9)
        np.testing.assert_allclose(held.adjoint(point.residual), whole.gradient[d:], rtol=1e-9, atol=1e-9)
        marginal = ThetaGivenNoise(target, noise).at(standard)
        assert marginal.failure is Failure.NONE
        assert marginal.log_density == pytest.approx(whole.log_density, rel=1e-12, abs=1e-9)
        np.testing.assert_array_equal(marginal.position, standard)
        assert ThetaGivenNoise(target, noise).of(point).log_density == marginal.log_density


def test_a_trajectorys_end_is_a_noise_that_leads_there_and_what_sites_do_not_see_of_it_is_normal(target):
    """Over many momenta with one way along the sites, that part has the mean and the spread of a standard normal."""
    rng, d = np.random.default_rng(7), target.n_theta
    held = LatentsGivenTheta(target, 0.3 * rng.standard_normal(d))
    hamiltonian, noise = SpannedHamiltonian(held), rng.standard_normal(target.size - d)
    part = np.column_stack([held.apply(unit) for unit in np.eye(noise.size)])
    hidden = np.eye(noise.size) - np.linalg.pinv(part) @ part
    ends = []
    for _ in range(40):
        start = hamiltonian.refresh(hamiltonian.state(noise), rng)
        end = RotationSplitting().path(hamiltonian, start, 2, 0.4).state
        found = held.noise_at(end)
        np.testing.assert_allclose(held.apply(found), end.displacement, rtol=1e-7, atol=1e-7)
        seen = found - end.position
        np.testing.assert_allclose(part @ seen, 0.0, atol=1e-6)
        ends.append(hidden @ found)
    if len(held.conditionals) > 1:  # there it is the trajectory's own
        np.testing.assert_array_equal(found, end.position)
        return
    # Of as many normals: five standard errors.
    count = 40 * np.trace(hidden)
    assert np.square(ends).sum() == pytest.approx(count, abs=5.0 * np.sqrt(2.0 * count))


def test_what_it_says_of_the_point_is_what_the_whole_says(target):
    rng, d = np.random.default_rng(4), target.n_theta
    first, second = rng.standard_normal((2, target.size))
    held = LatentsGivenTheta(target, first[:d])
    # A point elsewhere, with its gradient, which lets go of what was factorised there.
    target.at(second)
    LatentsGivenTheta(target, second[:d]).at_noise(second[d:])
    held.at_noise(second[d:])
    point = held.joint(first[d:], held.at_noise(first[d:]))
    exact = target.at(first)
    np.testing.assert_array_equal(point.position, first)
    assert point.log_given == pytest.approx(exact.log_given, rel=1e-12)
    assert point.log_density == pytest.approx(exact.log_density, rel=1e-12, abs=1e-9)
    assert target.model_log_density(point) == pytest.approx(target.model_log_density(exact), rel=1e-10)
    for name in ("eta", "slope"):
        for mine, other in zip(getattr(point, name), getattr(exact, name), strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-9, atol=1e-9)
    for mine, other in zip(target.latents(point), target.latents(exact), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-8, atol=1e-8)


def test_sites_and_noise_lead_to_the_same_point(target):
    rng, d = np.random.default_rng(5), target.n_theta
    standard, noise = np.split(rng.standard_normal(target.size), [d])
    held = LatentsGivenTheta(target, standard)
    placed = held.at_noise(noise)
    np.testing.assert_allclose(held.apply(noise), placed.displacement, atol=1e-12)
    there = held.at_sites(placed.displacement)
    assert there.log_density == pytest.approx(placed.log_density, rel=1e-12)
    assert there.log_likelihood == pytest.approx(placed.log_likelihood, rel=1e-12)
    np.testing.assert_allclose(there.residual, placed.residual, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(there.displacement, placed.displacement, atol=1e-12)
    residual, pushed = np.split(there.force, 2)
    np.testing.assert_array_equal(residual, there.residual)
    np.testing.assert_allclose(pushed, held.apply(held.adjoint(residual)), rtol=1e-8, atol=1e-8)


def test_its_residual_is_the_slope_by_sites(target):
    rng, d, h = np.random.default_rng(6), target.n_theta, 1e-5
    held = LatentsGivenTheta(target, rng.standard_normal(d))
    displacement = held.apply(rng.standard_normal(target.size - d))
    value = lambda at: held.at_sites(at).log_density  # noqa: E731
    moved = h * np.eye(displacement.size)
    slopes = [(value(displacement + e) - value(displacement - e)) / (2.0 * h) for e in moved]
    np.testing.assert_allclose(held.at_sites(displacement).residual, slopes, rtol=1e-6, atol=1e-6)


def test_the_latents_trajectory_is_that_of_the_whole_with_the_hyperparameters_held(target):
    """What is followed through the sites, at O(n²) a step, is the flow of z in its own coordinates."""
    d = target.n_theta
    standard, noise = np.split(np.random.default_rng(7).standard_normal(target.size), [d])
    held, splitting = LatentsGivenTheta(target, standard), RotationSplitting()

    class OfNoise:
        def at(self, position):
            whole = target.at(np.concatenate((standard, position)))
            whole.position, whole.gradient = position, whole.gradient[d:]
            return whole

    spanned, plain = SpannedHamiltonian(held), GaussianHamiltonian(OfNoise())
    ours, theirs = spanned.state(noise), plain.state(noise)
    ours, theirs = (flow.refresh(s, np.random.default_rng(8)) for flow, s in ((spanned, ours), (plain, theirs)))
    start = spanned.energy(ours) - plain.energy(theirs)
    for _ in range(4):
        ours, theirs = (splitting.step(f, s, 0.3).state for f, s in ((spanned, ours), (plain, theirs)))
        np.testing.assert_allclose(ours.position, theirs.position, atol=1e-8)
        np.testing.assert_allclose(ours.momentum, theirs.momentum, atol=1e-8)
        assert spanned.energy(ours) - plain.energy(theirs) == pytest.approx(start, abs=1e-7)


def without_jitter(centre: np.ndarray) -> JointTarget:
    target = joint()
    for block in target.density.blocks:
        block.jitter = 0.0
    return JointTarget(target.density, target.sites, MarginalChart.linear(centre, np.eye(4)))


each_failure = pytest.mark.parametrize(
    ("index", "value", "cause"),
    [(0, 1e4, "NON_FINITE"), (1, 30.0, "NOT_POSITIVE_DEFINITE"), (3, -400.0, "NON_FINITE"), (2, np.nan, "NON_FINITE")],
)


@each_failure
def test_a_failure_on_the_way_of_the_hyperparameters_is_a_value(index, value, cause):
    centre = THETA.copy()
    centre[index] = value
    target, noise = without_jitter(centre), np.zeros(4 * N)
    along = ThetaGivenNoise(target, noise)
    with np.errstate(all="ignore"):
        point = along.at(np.zeros(4))
    assert point.failure is Failure[cause]
    assert GaussianHamiltonian(along).failure(GaussianState(point, np.zeros(4))) is Failure[cause]
    if cause == "NOT_POSITIVE_DEFINITE":
        np.testing.assert_allclose(target.refused, centre, rtol=1e-12)
    else:
        assert target.refused is None
    if index != 3:  # there the prior is well, and the likelihood is not
        with np.errstate(all="ignore"), pytest.raises(PriorFailure):
            LatentsGivenTheta(target, np.zeros(4))


def test_nothing_is_noted_where_every_prior_has_a_factor():
    target = joint()
    assert ThetaGivenNoise(target, np.zeros(target.size - 4)).at(np.zeros(4)).failure is Failure.NONE
    assert target.refused is None


def test_a_density_that_is_not_finite_at_some_sites_is_a_failure_there_alone():
    class Bounded(ToyBlock):
        def compiled_likelihood(self):
            return self.likelihood, ()

        def likelihood(self, theta, eta):
            value, slope, by_theta = super().likelihood(theta, eta)
            return (value if eta.max() < 50.0 else -np.inf), slope, by_theta

    target = joint()
    blocks = [Bounded(block.y, block.centred) for block in target.density.blocks]
    target = JointTarget(ToyDensity(tuple(blocks)), target.sites, target.chart)
    held = LatentsGivenTheta(target, np.zeros(4))
    assert held.at_noise(np.zeros(4 * N)).failure is Failure.NONE
    assert held.at_sites(np.full(2 * N, 1e3)).failure is Failure.NON_FINITE
    assert held.joint(np.zeros(4 * N), held.at_sites(np.full(2 * N, 1e3))).failure is Failure.NON_FINITE
    assert ThetaGivenNoise.of(held.at_sites(np.full(2 * N, 1e3))).failure is Failure.NON_FINITE
    assert held.at_noise(np.zeros(4 * N)).failure is Failure.NONE


def test_sites_that_move_are_those_of_the_held_hyperparameters():
    target = joint(moving=True)
    theta = target.chart.place(np.zeros(4)).theta
    standing = [sites_at(block, theta, sites)
                for sites, block in zip(target.sites, target.density.blocks, strict=True)]  # fmt: skip
    noise = np.random.default_rng(9).standard_normal(target.size - 4)
    frozen = JointTarget(target.density, standing, target.chart)
    here = [LatentsGivenTheta(t, np.zeros(4)).at_noise(noise) for t in (target, frozen)]
    assert here[0].log_density == pytest.approx(here[1].log_density, rel=1e-12)
    elsewhere = [LatentsGivenTheta(t, np.ones(4)).at_noise(noise) for t in (target, frozen)]
    assert abs(elsewhere[0].log_density - elsewhere[1].log_density) > 1e-3
