"""Bridges, annealing and importance sampling on densities whose evidence is known."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from pymc_rmhmc.chains.reference import ResidualReference
from pymc_rmhmc.errors import EvidenceError, Failure
from pymc_rmhmc.evidence.evidence_methods import Annealing
from pymc_rmhmc.evidence.methods.annealing import (
    FlatParticles,
    adaptive_ladder,
    anneal,
    annealed_evidence,
    flat_particles,
)
from pymc_rmhmc.evidence.methods.bridge import AdaptiveBridge, _in_groups, next_beta, systematic
from pymc_rmhmc.evidence.methods.estimate import (
    Progress,
    check_acceptance,
    check_mixing,
    log_mean,
    pareto_k,
    weight_ess,
)
from pymc_rmhmc.evidence.methods.importance import (
    TailedReference,
    importance_evidence,
    laplace_evidence,
    measured_tails,
    power_tails,
    with_fitting_tails,
)
from pymc_rmhmc.evidence.methods.path_estimates import jackknife, log_ratios
from tests.unit.evidence_toys import NormalBlock, exact_line

RNG = np.random.default_rng


def references(block):
    return {"sites": block.reference, "residual": block.as_residual()}


@pytest.mark.parametrize("betas", [(0.0, 1.0), (0.0, 0.3, 1.0), (0.0, 0.1, 0.5, 1.0)])
def test_several_densities_give_the_ratio(betas):
    draws, log_ratio = exact_line()
    rng = RNG(1)
    found = log_ratios(betas, [draws(beta, 40_000, rng) for beta in betas])
    np.testing.assert_allclose(found, [log_ratio(beta) for beta in betas], atol=0.02)


def test_two_densities_solve_bennetts_equation():
    draws, _ = exact_line()
    rng = RNG(2)
    u, v = draws(0.0, 300, rng), draws(1.0, 500, rng)
    c = log_ratios((0.0, 1.0), [u, v])[-1]

    def share(phi):
        return 1.0 / (1.0 + 300 / 500 * np.exp(c - phi))

    assert share(u).sum() + share(v).sum() == pytest.approx(500.0, rel=1e-8)


def test_the_ratio_bears_draws_without_density():
    draws, _ = exact_line()
    rng = RNG(3)
    u, v = draws(0.0, 4000, rng), draws(1.0, 4000, rng)
    half = np.concatenate((u, np.full(4000, -np.inf)))
    whole, halved = (log_ratios((0.0, 1.0), [each, v], (4000.0, 4000.0))[-1] for each in (u, half))
    assert halved == pytest.approx(whole - np.log(2.0), abs=1e-2)


def test_the_jackknife_has_the_error_of_repetitions():
    draws, log_ratio = exact_line()
    betas, found = (0.0, 0.4, 1.0), []
    for seed in range(60):
        rng = RNG(seed)
        groups = [[draws(beta, 50, rng) for _ in range(16)] for beta in betas]
        found.append(jackknife(betas, groups, [800.0] * 3))
    values, errors = np.array(found).T
    z = (values - log_ratio(1.0)) / errors
    assert 0.75 < np.sqrt(np.mean(z**2)) < 1.3


@pytest.mark.parametrize("kind", ["sites", "residual"])
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_walkers_keep_the_density_at_a_beta(kind, beta):
    block = NormalBlock()
    rng = RNG(7)
    walkers = references(block)[kind].walkers(3000, rng)
    walkers.place(block.states(beta, 3000, rng, walkers))
    moved = [walkers.move(beta, 0.9, 2, rng) for _ in range(3)]
    assert np.mean(moved) > 0.9
    mean, covariance = block.moments(beta)
    standard = np.linalg.solve(np.linalg.cholesky(covariance), (block.sites_of(walkers) - mean).T)
    distance = (standard**2).sum(axis=0)
    assert stats.kstest(distance, stats.chi2(block.n).cdf).pvalue > 1e-3
    assert np.abs(standard.mean(axis=1)).max() < 4.5 / np.sqrt(3000)


@pytest.mark.parametrize("kind", ["sites", "residual"])
def test_walkers_may_have_a_beta_and_a_step_each(kind):
    block, betas = NormalBlock(), np.repeat([0.2, 1.0], 2000)
    rng = RNG(8)
    walkers = references(block)[kind].walkers(4000, rng)
    walkers.place(np.concatenate([block.states(beta, 2000, rng, walkers) for beta in (0.2, 1.0)]))
    for _ in range(3):
        walkers.move(betas, np.where(betas < 0.5, 1.2, 0.7), 2, rng)
    for beta, part in zip((0.2, 1.0), np.split(block.sites_of(walkers), 2), strict=True):
        mean, covariance = block.moments(beta)
        standard = np.linalg.solve(np.linalg.cholesky(covariance), (part - mean).T)
        assert stats.kstest((standard**2).sum(axis=0), stats.chi2(block.n).cdf).pvalue > 1e-3


def test_both_kinds_of_walkers_make_the_same_trajectories():
    """From the same noise: in sites and in z."""
    block = NormalBlock()
    sites, residual = (reference.walkers(6, RNG(3)) for reference in references(block).values())
    np.testing.assert_allclose(sites.phi, residual.phi, rtol=1e-10)
    accepted = [walkers.move(0.8, 0.6, 3, RNG(4)) for walkers in (sites, residual)]
    np.testing.assert_allclose(*accepted, rtol=1e-8)
    np.testing.assert_allclose(sites.phi, residual.phi, rtol=1e-8)


def test_walkers_that_change_places_take_all_with_them():
    block = NormalBlock()
    walkers = block.reference.walkers(4, RNG(1))
    walkers.move(1.0, 0.5, 2, RNG(2))
    phi, states = walkers.phi.copy(), walkers.states.copy()
    walkers.swap(np.array([0]), np.array([3]))
    np.testing.assert_array_equal(walkers.phi, phi[[3, 1, 2, 0]])
    again = block.reference.walkers(4, RNG(1))
    again.place(states[[3, 1, 2, 0]])
    np.testing.assert_allclose(walkers.move(1.0, 0.5, 2, RNG(5)), again.move(1.0, 0.5, 2, RNG(5)))
    np.testing.assert_allclose(walkers.states, again.states)


@pytest.mark.parametrize("kind", ["sites", "residual"])
def test_walkers_that_are_drawn_again_move_by_forces_of_where_they_are(kind):
    reference = references(NormalBlock())[kind]
    walkers = reference.walkers(4, RNG(1))
    walkers.move(1.0, 0.5, 2, RNG(2))
    walkers.redraw(RNG(3), np.array([0, 2]))
    again = reference.walkers(4, RNG(1))
    again.place(walkers.states.copy())
    np.testing.assert_allclose(walkers.phi, again.phi)
    np.testing.assert_allclose(walkers.move(1.0, 0.5, 2, RNG(5)), again.move(1.0, 0.5, 2, RNG(5)))
    np.testing.assert_allclose(walkers.states, again.states)


KINDS_OF_PARTICLES = {
    "flat": Annealing(ladder="linear", n_rungs=4),
    "kernel": Annealing(ladder="linear", n_rungs=4, kernel="elliptical_slice"),
    "hmc": Annealing(ladder="linear", n_rungs=4, kernel="hmc", step_size=0.1, n_steps=6),
}  # fmt: skip


@pytest.mark.parametrize("options", KINDS_OF_PARTICLES.values(), ids=KINDS_OF_PARTICLES)
def test_particles_that_have_moved_know_where_they_are(options):
    """After moves, and after copies of some are taken, φ and slopes are those of the states."""
    block = NormalBlock(n=4, share=0.3)
    rng = RNG(1)
    make, _ = options.prepared(block.reference, 6, rng)
    particles = make(6)
    before = particles.phi.copy()
    for chosen in (None, np.array([5, 0, 0, 3, 2, 2])):
        if chosen is not None:
            particles.take(chosen)
        else:
            for _ in range(3):
                particles.move(0.5, rng)
        walkers = getattr(particles, "walkers", None)
        if walkers is not None:
            sites = walkers.sites
        else:
            sites = getattr(particles, "_sites", getattr(particles, "values", None))
        values = block.likelihood.gradient_rows(sites)[0] - block.sites_log_density(sites)
        # Up to the sites' constant.
        np.testing.assert_allclose(np.diff(particles.phi), np.diff(values), rtol=1e-6, atol=1e-8)
        if hasattr(particles, "_evaluate"):
            known = particles.phi, particles._prior, particles._slopes
            for held, found in zip(known, particles._evaluate(sites), strict=True):
                np.testing.assert_allclose(held, found, rtol=1e-9, atol=1e-12)
    assert (particles.phi != before).all()


def test_groups_of_a_bridge_know_nothing_of_one_another():
    """Each goes on from draws of its own, and there are as many as the jackknife needs."""
    bridge = AdaptiveBridge(NormalBlock().reference, 64, RNG(1))
    assert bridge.n_groups == 32
    labels = np.repeat(np.arange(32.0), 2)
    states = np.broadcast_to(labels[None, :, None], (5, 64, 1))
    phi = RNG(2).standard_normal((32, 10))
    np.testing.assert_array_equal(bridge._resampled(phi, states, 1.0)[:, 0], labels)


def test_draws_of_chains_are_cut_into_successive_pieces():
    pieces = _in_groups(np.arange(4 * 260).reshape(4, 260), 32)
    of_a_chain = np.arange(256).reshape(8, 32)
    np.testing.assert_array_equal(pieces, np.concatenate([260 * chain + of_a_chain for chain in range(4)]))


@pytest.mark.parametrize("kind", ["sites", "residual"])
@pytest.mark.parametrize("share", [0.0, 0.4])
def test_a_bridge_finds_the_evidence(kind, share):
    block = NormalBlock(n=8, share=share, sigma=0.15)
    reference = references(block)[kind]
    progress = Progress(0.1)
    found = AdaptiveBridge(reference, 64, RNG(1)).run(progress).shifted(reference.log_constant)
    assert found.standard_error <= 0.1
    assert abs(found.log_evidence - block.log_evidence) < 4.0 * found.standard_error
    assert found.diagnostics["beta"][[0, -1]].tolist() == [0.0, 1.0]


def test_a_bridge_that_takes_too_long_is_told():
    block = NormalBlock(n=8, share=0.0, sigma=0.05)
    with pytest.raises(EvidenceError, match=r"has come to beta = .* larger max_seconds"):
        AdaptiveBridge(block.reference, 64, RNG(1)).run(Progress(0.1, 1e-6))


def test_a_bridge_takes_draws_of_the_posterior():
    block = NormalBlock(n=8, share=0.4, sigma=0.3)
    rng = RNG(2)
    walkers = block.reference.walkers(4000, rng)
    walkers.place(block.states(1.0, 4000, rng, walkers))

    class Source:
        residuals = walkers.phi.reshape(4, 1000)

        def extend(self, share):
            return False

    progress = Progress(1e-6)
    found = AdaptiveBridge(block.reference, 64, rng, Source()).run(progress)
    error = found.log_evidence + block.reference.log_constant - block.log_evidence
    assert abs(error) < 4.0 * found.standard_error < 0.2


def test_weights_to_the_next_beta_are_worth_what_is_asked():
    phi = 6.0 * RNG(1).standard_normal(2000)
    beta = next_beta(phi, 0.2, 0.1)
    assert weight_ess((beta - 0.2) * phi) == pytest.approx(200.0, rel=1e-3)
    assert next_beta(0.01 * phi, 0.0, 0.1) == 1.0
    half = np.where(np.arange(2000) < 1000, phi, -np.inf)
    assert weight_ess((next_beta(half, 0.0, 0.1) * phi)[:1000]) == pytest.approx(100.0, rel=1e-3)
    assert 0.0 < next_beta(1e30 * phi, 0.0, 0.1) < 1e-28
    with pytest.raises(EvidenceError, match="Nearly everywhere"):
        next_beta(np.where(np.arange(2000) < 5, phi, -np.inf), 0.0, 0.1)


def test_systematic_draws_are_even():
    drawn = systematic(np.log([0.5, 0.25, 0.25]), 8, RNG(1))
    assert np.bincount(drawn).tolist() == [4, 2, 2]


KERNELS = [
    Annealing(), Annealing(ladder="geometric", n_rungs=15), Annealing(ladder=[0.0, 0.1, 0.4, 1.0]),
    Annealing(ladder="linear", n_rungs=6, kernel="elliptical_slice"),
    Annealing(ladder="linear", n_rungs=4, kernel="hessian", step_size=0.5, n_steps=2, bounds=False),
    Annealing(ladder="linear", n_rungs=4, kernel="fisher", step_size=0.5, n_steps=2, bounds=False),
    Annealing(ladder="linear", n_rungs=4, kernel="hmc", step_size=0.1, n_steps=6),
]  # fmt: skip


@pytest.mark.parametrize("options", KERNELS, ids=lambda each: f"{each.kernel}-{each.n_rungs}")
def test_annealing_finds_the_evidence_and_bounds_it(options):
    block = NormalBlock(n=4, share=0.3, sigma=0.4)
    rng, reference = RNG(3), block.reference
    count = 400 if options.kernel == "flat" else 100
    make, betas = options.prepared(reference, count, rng)
    found = annealed_evidence(make, betas, count, rng, Progress(10.0), bounds=options.bounds)
    found = found.shifted(reference.log_constant)
    assert abs(found.log_evidence - block.log_evidence) < 4.0 * found.standard_error < 0.6
    if not options.bounds:
        return
    assert found.diagnostics["lower_bound"] - 0.1 < block.log_evidence < found.diagnostics["upper_bound"] + 0.1


def test_weights_are_unbiased_on_a_crude_ladder():
    """Of Z itself, with kernels that mix badly: where the weight is taken after the move they are not."""
    block = NormalBlock(n=3, share=0.3, sigma=0.5)
    rng, reference = RNG(4), block.reference
    particles = FlatParticles(reference.walkers(40_000, rng), lambda beta: 2)
    log_weights, _ = anneal(particles, np.linspace(0.0, 1.0, 4), rng)
    value, error = log_mean(log_weights)
    assert abs(value + reference.log_constant - block.log_evidence) < 4.0 * error < 0.05


def test_states_of_no_weight_that_a_run_has_not_seen_are_in_its_error():
    """One in 300: a run of 512 has none of them as often as it has three, and its own weights give no error then."""
    share = 1.0 / 300.0
    seen = RNG(6).random((1000, 512)) < 1.0 - share
    found = np.array([log_mean(np.where(row, 0.0, -np.inf), unseen=1) for row in seen])
    z = (found[:, 0] - np.log1p(-share)) / found[:, 1]
    assert 0.8 < np.sqrt(np.mean(z**2)) < 1.2
    assert log_mean(np.zeros(512))[1] == 0.0


def test_a_ladder_is_frozen_before_the_counted_run():
    block = NormalBlock(n=6, share=0.0, sigma=0.2)
    rng = RNG(5)
    ladder = adaptive_ladder(block.reference, 64, rng)
    assert (np.diff(ladder.betas) > 0.0).all()
    found_beforehand = ladder.betas.copy()
    make = flat_particles(block.reference, ladder, rng)
    for _ in range(2):
        found = annealed_evidence(make, ladder.betas, 64, rng, Progress(10.0), bounds=False)
        np.testing.assert_array_equal(found.diagnostics["beta"], found_beforehand)


def test_ladders_go_from_0_to_1():
    block = NormalBlock(n=2)
    for ladder in ("geometric", "linear"):
        _, betas = Annealing(ladder=ladder, n_rungs=7).prepared(block.reference, 16, RNG(1))
        assert betas.size == 8
        assert betas[[0, -1]].tolist() == [0.0, 1.0]
        assert (np.diff(betas) > 0.0).all()


def test_importance_sampling_tells_whether_it_can_be_trusted():
    good, poor = NormalBlock(share=0.9), NormalBlock(n=8, share=0.0, sigma=0.1)
    found = [importance_evidence(each.reference, 64, RNG(1), Progress(0.01)) for each in (good, poor)]
    assert found[0].diagnostics["pareto_k"] < 0.5 < found[1].diagnostics["pareto_k"]
    error = found[0].log_evidence + good.reference.log_constant - good.log_evidence
    assert abs(error) < 4.0 * found[0].standard_error < 0.05


def test_laplace_is_exact_for_a_normal_posterior():
    block = NormalBlock()
    for reference in references(block).values():
        found = laplace_evidence(reference)
        assert found.log_evidence + reference.log_constant == pytest.approx(block.log_evidence, abs=1e-5)


def test_estimates_are_refused_where_draws_cannot_be_trusted():
    with pytest.raises(EvidenceError, match=r"beta = 0\.5 only 30%"):
        check_acceptance(np.array([0.1, 0.5]), np.array([0.9, 0.3]))
    rng = RNG(1)
    good = rng.standard_normal((4, 500))
    assert check_mixing("φ", good)[0] < 1.05
    with pytest.raises(EvidenceError, match="differs between chains"):
        check_mixing("φ", good + 2.0 * np.arange(4)[:, None])
    with pytest.raises(EvidenceError, match="effective draws"):
        check_mixing("φ", rng.standard_normal((4, 20)))
    assert check_mixing("φ", np.ones((4, 20)))[0] == 1.0
    with pytest.raises(EvidenceError, match="differs between chains"):  # the halves of one
        check_mixing("φ", np.linspace(0.0, 1.0, 500)[None] + 0.01 * good[:1])


def test_the_shape_of_the_weights_tail():
    rng = RNG(1)
    for k in (0.2, 0.6, 1.2):  # of a Pareto law itself
        assert pareto_k(-k * np.log1p(-rng.random(20_000))) == pytest.approx(k, abs=0.2)
    assert pareto_k(0.3 * rng.standard_normal(2000)) < 0.5
    assert pareto_k(5.0 * rng.standard_normal(2000)) > 0.7
    assert pareto_k(np.zeros(500)) == -np.inf
    assert pareto_k(np.full(500, -np.inf)) == np.inf


@pytest.mark.parametrize("tail", [0.0, 0.3])
def test_other_tails_leave_the_density_as_it_is(tail):
    """The gradient is that of the value, and the evidence is the same, with tails, centre and scale of two maps."""
    block = NormalBlock(n=4, share=0.5, sigma=0.5)
    nothing = np.zeros(4)
    inner = TailedReference(block.as_residual(), np.array([0.1, 0.0, tail, 0.0]), np.array([tail, 0.0, 0.2, 0.1]))
    factor = np.tril(0.1 * RNG(2).standard_normal((4, 4))) + np.diag([1.2, 1.0, 1.1, 0.9])
    reference = TailedReference(inner, nothing, nothing + 0.1 * tail, np.array([0.1, -0.1, 0.0, 0.2]), factor)
    u = 1.5 * RNG(1).standard_normal(4)
    value, gradient = reference.at(u)
    steps = 1e-6 * np.eye(4)
    slopes = [(reference.at(u + step)[0] - reference.at(u - step)[0]) / 2e-6 for step in steps]
    np.testing.assert_allclose(gradient, slopes, atol=1e-5)
    np.testing.assert_allclose(reference.residual.to_u(reference.residual.to_z(u)), u, rtol=1e-12)
    found = importance_evidence(reference, 64, RNG(2), Progress(0.03))
    error = found.log_evidence + reference.log_constant - block.log_evidence
    assert abs(error) < 4.0 * found.standard_error < 0.3
    values = reference.values(reference.walkers(3, RNG(3)).states, RNG(4))
    np.testing.assert_allclose(reference.residuals(values, RNG(4)), reference.walkers(3, RNG(3)).phi, rtol=1e-8)
    point = reference.residual.at(u)
    assert value == pytest.approx(reference.residuals([reference.values_at(point)], RNG(1))[0])


def one_dimensional(log_density):
    """The reference of a density, given with its gradient, beside N(0, 1) in its own coordinate."""

    class Residual:
        def at(self, z):
            value, slope = log_density(z[0])
            return SimpleNamespace(
                log_density=value + 0.5 * z @ z, gradient=slope + z, failure=Failure.NONE, position=z
            )

    return ResidualReference(Residual(), 1, 0.0, lambda values, rng: None, lambda point: point.position)


def exponential(z):
    return -np.sqrt(1.0 + z * z), -z / np.sqrt(1.0 + z * z)


def power(z, nu=1.0):
    return -0.5 * (nu + 1.0) * np.log1p(z * z / nu), -(nu + 1.0) * z / (nu + z * z)


def test_tails_are_chosen_by_the_weights():
    """A posterior with exponential tails in one coordinate."""
    reference = one_dimensional(exponential)
    chosen = with_fitting_tails(reference, RNG(1))
    assert isinstance(chosen, TailedReference)
    k = [pareto_k(each.walkers(4000, RNG(2)).phi) for each in (reference, chosen)]
    assert k[1] < 0.3 < k[0]


def test_tails_are_measured_by_draws_of_the_prior():
    """Of t with 1 and 2 degrees of freedom, shifted and scaled; of a normal; and of a law with one heavy side."""
    rng = RNG(1)
    draws = np.array([3.0 + 2.0 * rng.standard_t(1, 4000), rng.standard_t(2, 4000), rng.standard_normal(4000)])
    one_side = np.where(draws[2] > 0.0, np.abs(rng.standard_t(1, 4000)), draws[2])
    tails = measured_tails(np.vstack([draws, one_side]).T)
    np.testing.assert_allclose(tails.upper, [0.9, 0.35, 0.0, 0.9], atol=0.15)
    np.testing.assert_allclose(tails.lower, [0.9, 0.35, 0.0, 0.0], atol=0.15)
    assert tails.centre[0] == pytest.approx(3.0, abs=0.3)
    assert 1.5 < tails.spread[0] < 3.0


@pytest.mark.parametrize(
    ("law", "h"),
    [(power, 1.0), (lambda z: power(z, 4.0), 0.25), (exponential, 0.0), (lambda z: (-0.5 * z * z, -z), 0.0)],
    ids=["Cauchy", "t4", "exponential", "normal"],
)
def test_tails_like_a_power_are_seen_in_the_density(law, h):
    tails = power_tails(one_dimensional(law), RNG(1).standard_normal((500, 1)))
    np.testing.assert_allclose([*tails.lower, *tails.upper], h, atol=0.02)


def test_a_bridge_to_draws_that_miss_a_part_is_refused():
    """A quarter of the posterior: its draws mix, and weights of the reference see that the rest is lacking."""
    block = NormalBlock(n=3, share=0.9, sigma=0.5)
    rng = RNG(2)
    walkers = block.reference.walkers(8000, rng)
    walkers.place(block.states(1.0, 8000, rng, walkers))
    kept = walkers.phi[walkers.states[:, 0] > np.quantile(walkers.states[:, 0], 0.75)]

    class Source:
        def extend(self, share):
            return False

    for draws, is_whole in ((walkers.phi[:2000], True), (kept[:2000], False)):
        source = Source()
        source.residuals = draws.reshape(4, -1)
        bridge = AdaptiveBridge(block.reference, 64, RNG(3), source)
        if is_whole:
            bridge.run(Progress(0.05))
            continue
        with pytest.raises(EvidenceError, match="have missed a part of it"):
            bridge.run(Progress(0.05))
