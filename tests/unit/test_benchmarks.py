"""The benchmark's two models are one posterior, and its problems are what they say."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
from scipy.stats import multivariate_normal

from benchmarks import path_length
from benchmarks.bars import BARS, interval, shortcomings, verdict
from benchmarks.catalogue.entry import Entry
from benchmarks.catalogue.headline import LARGER
from benchmarks.catalogue.models import ALL, CATALOGUE, GROUPS
from benchmarks.catalogue.moments import agreement, allowed, moments, truths
from benchmarks.catalogue.page import write_page
from benchmarks.deadline import Deadline
from benchmarks.growth import slope
from benchmarks.harness import DRAWS, SAMPLERS, TABLE
from benchmarks.joint_problems import cox as free_cox
from benchmarks.joint_problems import regression
from benchmarks.joint_target import build as build_joint_target
from benchmarks.linear_problems import hsgp, mixed, weeks_and_stores
from benchmarks.measures import largest_rhat, measured, smallest_ess
from benchmarks.moving_problems import item_response, loaded_counts
from benchmarks.outcome import CannotRunError, Outcome, merged
from benchmarks.peers.laplace import joint_gaussian
from benchmarks.peers.nuts import laplace_mass
from benchmarks.peers.ours import flat
from benchmarks.problems import cox, logit, probit, usps
from benchmarks.site_fits import MomentMatching
from benchmarks.square_chart import SquareChart
from pymc_rmhmc import RMHMC
from pymc_rmhmc.latent.charts import GaussianSites
from tests.model.conftest import exact_log_density

SMALL = {"logit": lambda: logit(12), "probit": lambda: probit(12), "cox": lambda: cox(4), "usps": lambda: usps(12)}


@pytest.mark.parametrize("name", SMALL)
def test_centred_and_whitened_are_one_posterior(name):
    problem = SMALL[name]()
    centred, whitened = exact_log_density(problem.centred()), exact_log_density(problem.whitened())
    factor = np.linalg.cholesky(problem.covariance)
    rng, gaps = np.random.default_rng(0), []
    for _ in range(4):
        # Small latents: PyMC's own probit density is -inf a few units further out.
        v = 0.02 * rng.standard_normal(problem.n)
        f = problem.mean + factor @ v
        log_jacobian_free = centred({"f": f}) - whitened({"v": v})
        gaps.append(float(log_jacobian_free))
    np.testing.assert_allclose(gaps, gaps[0], atol=1e-5)


@pytest.mark.parametrize(
    "problem",
    [
        *(regression(name, 12) for name in ("logit", "poisson", "negative binomial", "student t")), free_cox(4),
        loaded_counts(12),
    ],  # fmt: skip
    ids=lambda problem: problem.name,
)
def test_joint_problems_are_one_posterior_in_both_forms(problem):
    centred, whitened = problem.centred(), problem.whitened()
    exact, exact_whitened = exact_log_density(centred), exact_log_density(whitened)
    rng, gaps = np.random.default_rng(0), []
    matrix = centred.replace_rvs_by_values([centred["f"].owner.inputs[-1]])[0]
    options = {"point_fn": False, "on_unused_input": "ignore", "mode": "FAST_COMPILE"}
    covariance_of = centred.compile_fn(matrix, inputs=centred.value_vars, **options)
    for _ in range(4):
        point = {k: v + 0.3 * rng.standard_normal(np.shape(v)) for k, v in centred.initial_point().items()}
        factor = np.linalg.cholesky(covariance_of(*(point[v.name] for v in centred.value_vars)))
        rotated = {"f_rotated_": 0.5 * rng.standard_normal(factor.shape[0])}
        mean = float(point.get("mean", 0.0))
        theta = {name: value for name, value in point.items() if name != "f"}
        ours = exact(theta | {"f": mean + factor @ rotated["f_rotated_"]})
        gaps.append(ours + np.log(factor.diagonal()).sum() - exact_whitened(theta | rotated))
    np.testing.assert_allclose(gaps, 0.0, atol=1e-4)
    assert set(problem.parameters) <= set(centred.named_vars)


@pytest.mark.parametrize(
    "problem",
    [
        hsgp((8,), 20), hsgp((3, 4), 20), mixed("poisson", 6, 3), mixed("negative binomial", 6, 3),
        mixed("bernoulli", 6, 3), mixed("beta", 6, 3), item_response(6, 3), weeks_and_stores(5, 4, 30),
    ],
    ids=lambda problem: problem.name,
)  # fmt: skip
def test_linear_problems_are_one_posterior_in_both_forms(problem):
    centred, whitened = problem.centred(), problem.whitened()
    exact, exact_whitened = exact_log_density(centred), exact_log_density(whitened)
    (name,) = {"weights", "u", "difficulty", "effect"} & set(problem.parameters)
    scale = whitened[name].owner.inputs[0]  # the deterministic is a named copy of z times its scale
    (factor,) = [part for part in scale.owner.inputs if part is not whitened["z"]]
    deviation = whitened.compile_fn(
        whitened.replace_rvs_by_values([factor])[0], inputs=whitened.value_vars, on_unused_input="ignore",
        mode="FAST_COMPILE",
    )
    rng, gaps = np.random.default_rng(0), []
    for _ in range(4):
        point = {k: v + 0.3 * rng.standard_normal(np.shape(v)) for k, v in whitened.initial_point().items()}
        wide = np.broadcast_to(deviation(point), point["z"].shape)
        theirs = {k: v for k, v in point.items() if k != "z"} | {name: wide * point["z"]}
        gaps.append(exact(theirs) + np.log(wide).sum() - exact_whitened(point))
    np.testing.assert_allclose(gaps, 0.0, atol=1e-8)
    assert set(problem.parameters) <= set(centred.named_vars)
    assert set(problem.parameters) <= set(whitened.named_vars)


def test_the_problems_are_seeded_and_have_their_sizes():
    for make in (logit, probit):
        np.testing.assert_array_equal(make(20).y, make(20).y)
        assert make(20).n == 20
    assert cox(5).n == 25
    digits = usps()
    assert digits.n == 767
    assert 1e10 < np.linalg.cond(digits.covariance) < 1e11
    # Neighbouring cells of the slides' field: exp(-33/32).
    field = cox(32).covariance
    assert field[0, 1] / field[0, 0] == pytest.approx(np.exp(-33.0 / 32.0))


def test_the_measures():
    rng = np.random.default_rng(0)
    draws = rng.standard_normal((2, 500, 3))
    assert 500 < smallest_ess(draws) < 1500
    assert largest_rhat(draws) < 1.02
    assert largest_rhat(draws + np.array([0.0, 3.0])[:, None, None]) > 1.5


def test_usps_known_values():
    """Laplace's log evidence of the digits, -111.001 (Rasmussen and Williams' approximation)."""
    from pymc_rmhmc.approximation import find_mode, laplace_sites
    from pymc_rmhmc.latent.charts import SiteChart
    from pymc_rmhmc.latent.charts.site import FactorizedPrior
    from pymc_rmhmc.model import compile_model, read_structure

    problem = usps()
    with pm.Model() as model:
        f = pm.MvNormal("f", np.zeros(problem.n), cov=problem.covariance)
        problem.observe(f)
    block = compile_model(read_structure(model)).blocks[0]
    point = model.initial_point()
    prior, likelihood = FactorizedPrior(block.prior(point)), block.likelihood(point)
    mode = find_mode(prior.predictor, likelihood, "hessian")
    assert mode.converged
    sites = laplace_sites(mode)
    gap = likelihood.log_density(mode.eta) - sites.log_density(mode.eta)
    assert SiteChart(prior, sites).log_evidence + gap == pytest.approx(-111.001, abs=2e-3)


def test_every_row_of_the_table_has_its_sampler_and_its_bar():
    assert {sampler for row in TABLE.values() for sampler in row} <= set(SAMPLERS)
    assert set(TABLE) == set(BARS)
    assert all(sampler in TABLE[problem] for problem, sampler in DRAWS)


def test_an_interval_is_of_the_geometric_mean():
    lower, upper = interval([2.0, 8.0])
    assert lower * upper == pytest.approx(16.0)
    # t of one degree of freedom at 0.95 is 6.314; the standard error of two logs is half their distance.
    assert np.log(upper / 4.0) == pytest.approx(6.3138 * 0.5 * np.log(4.0), rel=1e-4)
    assert interval([3.0, 3.0, 3.0]) == pytest.approx((3.0, 3.0))
    assert np.isnan(interval([3.0])).all()


def _record(seed, rate, ess=500.0, rhat=1.0, stopped=""):
    return {"seed": seed, "ess_per_second": rate, "ess": ess, "rhat": rhat, "stopped": stopped}


def test_a_bar_is_met_by_the_lower_end_and_not_by_chains_that_have_not_converged():
    theirs = [_record(seed, 1.0) for seed in range(3)]
    ours = [_record(seed, rate) for seed, rate in enumerate((3.0, 3.1, 2.9))]
    told = verdict(ours, theirs)
    assert told.median == 3.0
    assert 2.5 < told.lower < 3.0 < told.upper
    assert told.words(2.5) == "met"
    assert told.words(3.0) == "not met"
    short = verdict([_record(seed, 3.0, ess=100.0) for seed in range(3)], theirs)
    assert short.words(1.0) == "not met; ours: ESS 100"
    stopped = verdict(ours, [_record(seed, 1.0, rhat=1.05, stopped="sampling") for seed in range(3)])
    assert stopped.words(2.0) == "met; peer: stopped, an upper bound; peer: R-hat 1.050"
    assert verdict(ours, [_record(7, 1.0)]) is None
    assert verdict(ours[:1], theirs).words(1.0) == "one seed"
    assert shortcomings([_record(0, 1.0, rhat=None)]) == ["R-hat inf"]


def test_a_run_that_was_stopped_counts_with_an_upper_bound():
    draws = np.random.default_rng(0).standard_normal((2, 400, 2))
    whole = measured(Outcome(draws, 6.0, 4.0))
    assert whole["ess_per_second"] == pytest.approx(whole["ess"] / 10.0)
    stopped = measured(Outcome(draws, 6.0, 4.0, stopped="sampling"))
    assert stopped["ess_per_second"] == pytest.approx(whole["ess"] / 4.0)
    few = measured(Outcome(draws[:, :10], 6.0, 4.0, stopped="sampling"))
    assert few["ess_per_second"] == pytest.approx(20 / 4.0)
    tuning = measured(Outcome(draws, 8.0, 0.0, stopped="tuning"))
    assert tuning["ess_per_second"] == pytest.approx(800 / 8.0)
    assert measured(Outcome(draws[:, :1], 8.0, 0.0, stopped="tuning"))["rhat"] is None


def test_chains_of_unequal_length_are_cut_with_their_seconds():
    long, short = (Outcome(np.zeros((1, n, 3)), 1.0, n / 10.0, {"steps": 4.0}) for n in (40, 20))
    short.stopped = "sampling"
    both = merged([long, short])
    assert both.draws.shape == (2, 20, 3)
    assert (both.tuning, both.sampling, both.stopped) == (2.0, 4.0, "sampling")
    short.stopped = "tuning"
    assert merged([long, short]).stopped == "tuning"


def test_a_deadline_is_shared_between_chains():
    deadline = Deadline(10.0)
    assert deadline.left == np.inf
    deadline.begin()
    assert 4.0 < deadline.share(2).left <= 5.0
    assert not deadline.passed
    assert Deadline(np.inf).share(2).left == np.inf
    over = Deadline(0.0)
    over.begin()
    assert over.passed


class AfterLooks(Deadline):
    """Passed when each chain has looked at it so often, however fast the machine is."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks = looks

    @property
    def passed(self) -> bool:
        self.looks -= 1
        return self.looks < 0

    def share(self, chains: int) -> AfterLooks:
        return AfterLooks(self.looks)


@pytest.mark.filterwarnings("ignore:Found chain dimension to be longer than draw")
def test_samplers_in_pymc_stop_at_their_deadline():
    problem = logit(12)
    outcome = flat(problem, 0, AfterLooks(400), draws=10**6)
    assert outcome.stopped == "sampling"
    assert 4 < outcome.draws.shape[1] < 400
    assert outcome.draws.shape[::2] == (2, 12)
    assert laplace_mass(problem, 0, Deadline(0.0)).stopped == "tuning"
    whole = laplace_mass(problem, 0, draws=20, tune=20)
    assert (whole.draws.shape, whole.stopped) == ((2, 20, 12), "")


def test_a_joint_mode_gives_a_mass_matrix_or_a_reason():
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 1.0)
        pm.Normal("y", 0.0, scale, observed=np.array([1.0, -1.0, 2.0]))
    found = joint_gaussian(model)
    # log p(log s) = log s - s²/2 - 3 log s - 3/s²: s⁴ + 2 s² = 6, and the curvature is 2 s² + 12/s².
    square = np.sqrt(7.0) - 1.0
    assert found.start["scale"] == pytest.approx(np.sqrt(square), rel=1e-3)
    np.testing.assert_allclose(found.covariance, [[1.0 / (2.0 * square + 12.0 / square)]], rtol=1e-3)
    with pm.Model() as unbounded:
        noise = pm.HalfNormal("noise", 1.0)
        # x at both data and noise at 0: a pole.
        pm.Normal("y", pm.Normal("x"), noise, observed=np.array([0.5, 0.5]))
    with pytest.raises(CannotRunError, match="no joint mode"):
        joint_gaussian(unbounded)


def test_a_slope_is_the_power():
    sizes = np.array([100.0, 200.0, 400.0])
    assert slope(sizes, 3.0 * sizes**2.1) == pytest.approx(2.1)


def test_the_joint_target_that_is_timed_can_be_evaluated():
    built = build_joint_target(12)
    point = built.target.at(np.random.default_rng(0).standard_normal(built.target.size))
    assert not point.failure
    assert np.isfinite(point.gradient).all()


def test_the_square_chart_that_is_timed_is_the_posterior_and_its_gradient_a_difference():
    """Its density by z less the Jacobian is the model's, for a θ and for the evidence's change with it."""
    built, rng = build_joint_target(12), np.random.default_rng(1)
    sites = GaussianSites(rng.standard_normal(12), rng.exponential(0.5, 12))
    chart, (block,) = SquareChart(built.model, sites), built.model.blocks
    d, h = built.theta.size, 1e-5

    def value(position):
        return chart.at(position[:d], position[d:])[0]

    def expected(position):
        theta, z = position[:d], position[d:]
        stated = block.prior(theta)
        mean, covariance = stated.mean, stated.vectors[0].covariance
        factor = np.linalg.cholesky(covariance)
        root = np.linalg.cholesky(np.eye(12) + factor.T @ np.diag(sites.precision) @ factor)
        f = factor @ np.linalg.solve(root.T, np.linalg.solve(root, factor.T @ sites.linear) + z)
        jacobian = np.log(np.diag(factor)).sum() - np.log(np.diag(root)).sum()
        prior = multivariate_normal.logpdf(f, np.zeros(12), covariance)
        total = built.model.rest(theta)[0] + block.likelihood(theta, mean + f)[0] + prior + jacobian
        return total + 0.5 * z @ z  # what a standard normal leaves

    there, here = (np.concatenate((built.theta, np.zeros(12))) + 0.3 * rng.standard_normal(d + 12) for _ in range(2))
    assert value(there) - value(here) == pytest.approx(expected(there) - expected(here), abs=1e-8)
    _, by_theta, by_z = chart.at(there[:d], there[d:])
    differences = [(value(there + h * e) - value(there - h * e)) / (2.0 * h) for e in np.eye(d + 12)]
    np.testing.assert_allclose(np.concatenate((by_theta, by_z)), differences, rtol=1e-6, atol=1e-6)


def test_matched_moments_are_those_of_prior_times_sites():
    problem, rng = logit(12), np.random.default_rng(0)
    precision, linear = rng.exponential(1.0, 12), rng.standard_normal(12)
    covariance = np.linalg.inv(np.linalg.inv(problem.covariance) + np.diag(precision))
    mean, factor = covariance @ linear, np.linalg.cholesky(covariance)
    fit = MomentMatching(12, problem.covariance)
    draws = rng.standard_normal((4000, 12))
    draws -= draws.mean(axis=0)
    draws = draws @ np.linalg.inv(np.linalg.cholesky(draws.T @ draws / 4000)).T  # of exactly these two moments
    for draw in draws @ factor.T + mean:
        fit.add(draw, linear - precision * draw)
    found = fit.fit(GaussianSites(np.zeros(12), np.full(12, 0.5)))
    np.testing.assert_allclose(found.precision, precision, atol=0.01)
    np.testing.assert_allclose(found.linear, linear, atol=0.05)


def test_the_paths_that_are_compared_are_options_of_the_step():
    with logit(6).centred():
        for options in (*path_length.RULES.values(), *path_length.GRID.values()):
            RMHMC(**options)


def test_the_catalogue_names_each_model_once():
    own = [name for group, names in GROUPS.items() if group != "headline" for name in names]
    assert sorted([*own, *LARGER]) == sorted(ALL)
    assert set(LARGER) <= set(GROUPS["headline"]) <= set(ALL)


@pytest.mark.parametrize("name", CATALOGUE)
def test_catalogue_models_have_what_is_measured(name):
    entry = CATALOGUE[name]
    written = entry.written()
    names = set(entry.names or [v.name for v in written.free_RVs])
    assert set(entry.logged) | set(entry.compared) | set(entry.truth) <= names <= set(written.named_vars)
    if entry.other is not None:
        assert names <= set(entry.other().named_vars)


@pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")
@pytest.mark.parametrize("name", [name for name, entry in CATALOGUE.items() if entry.other is not None])
def test_catalogue_forms_are_one_posterior(name):
    """With everything else fixed, effects and their standardised form differ by a constant Jacobian."""
    written, other = CATALOGUE[name].written(), CATALOGUE[name].other()
    exact, exact_other = exact_log_density(written), exact_log_density(other)
    shared = [v.name for v in written.value_vars if v.name in other.initial_point()]
    own = [v.name for v in written.value_vars if v.name not in shared]
    values = other.compile_fn(
        other.replace_rvs_by_values([other[n] for n in own]), inputs=other.value_vars, on_unused_input="ignore",
        mode="FAST_COMPILE",
    )  # fmt: skip
    rng, gaps = np.random.default_rng(0), []
    at = {k: v + 0.3 * rng.standard_normal(np.shape(v)) for k, v in other.initial_point().items()}
    for _ in range(3):
        point = {k: v if k in shared else 0.5 * rng.standard_normal(np.shape(v)) for k, v in at.items()}
        theirs = {k: point[k] for k in shared} | dict(zip(own, values(point), strict=True))
        gaps.append(exact(theirs) - exact_other(point))
    np.testing.assert_allclose(gaps, gaps[0], atol=1e-6)


def test_agreement_of_moments():
    rng = np.random.default_rng(0)
    entry = Entry(pm.Model, logged=("b",), truth={"a": (0.0, 1.0)})
    draws = rng.standard_normal((2, 1000, 2))
    mine = moments(np.stack([draws[..., 0], np.exp(draws[..., 1])], axis=-1), ["a", "b"], entry)
    other = moments(np.exp(rng.standard_normal((2, 1000, 2))) - [1.0, 0.0], ["a", "b"], entry)
    assert set(mine) == {"a", "log b"}
    assert truths(mine, entry)[0] < allowed(mine, mine)
    z, where = agreement(mine, other)
    assert z > allowed(mine, other)
    assert where.endswith("of a")


def test_the_documentations_table_has_seconds_and_what_is_only_a_bound(tmp_path):
    """Of a peer whose chains do not agree, or which was stopped; and no bound that says nothing."""
    about = {
        "asked": 1000, "commit": "abc+", "machine": "a machine", "finished": 0.0, "limit": 100.0,
        "versions": {"pymc": "6", "nutpie": "0", "numba": "0"},
    }  # fmt: skip

    def runs(problem, ours, theirs, **peer):
        good = {"seed": 0, "ess": 900.0, "rhat": 1.001, "stopped": ""} | about | {"problem": problem}
        yield good | {"sampler": "rmhmc", "ess_per_second": ours}
        yield good | {"sampler": "nutpie", "ess_per_second": theirs} | peer

    records = [
        *runs("poisson 100", 100.0, 1.0),
        *runs("logit 100", 100.0, 4.0, rhat=1.3),
        *runs("student t 100", 100.0, 0.5, stopped="tuning"),
        *runs("eight schools", 100.0, 300.0, rhat=1.3),
    ]
    write_page(records, tmp_path / "page.md")
    said = (tmp_path / "page.md").read_text()
    assert "| Gaussian process, 100 counts | 10 | 1000 | 100 |" in said
    assert "| Gaussian process, 100 times yes or no | 10 | stuck, 250 | ≥ 25 |" in said
    assert "| Gaussian process, 100 values with outliers | 10 | at least 2000 | ≥ 200 |" in said
    assert "| eight schools | 10 | stuck, 3.3 |  |" in said
    assert "Measured on 1970-01-01, commit `abc`" in said
    records[0]["finished"] = 86400.0
    write_page(records, tmp_path / "page.md")
    assert "Measured from 1970-01-01 to 1970-01-02," in (tmp_path / "page.md").read_text()
