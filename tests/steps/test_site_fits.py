"""What refits the sites is the user's to choose; whatever it gives, draws stay exact."""

from __future__ import annotations

from functools import partial

import arviz as az
import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_rmhmc import RMHMC, FlatMetric
from pymc_rmhmc.approximation import SiteFit, SiteRegression, find_mode, site_fit
from pymc_rmhmc.approximation import joint_mode as joint_approximation
from pymc_rmhmc.errors import ConfigurationError, Failure
from pymc_rmhmc.latent.charts import GaussianSites
from pymc_rmhmc.sampled import blocks
from tests.steps.conftest import COUNTS, N, X, draw, poisson_model
from tests.steps.test_joint_sampling import two_scales

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")


class Absurd(SiteFit):
    """Sites that pull neighbours apart, whatever the draws are."""

    def fit(self, held):
        assert held.linear.shape == self.centre.shape == self.variance.shape
        assert self.count > 0
        return GaussianSites(4.0 * np.cos(np.pi * np.arange(N)), np.full(N, 3.0))


class Broken(SiteFit):
    def __init__(self, n_sites: int, sites: GaussianSites) -> None:
        super().__init__(n_sites)
        self.sites = sites

    def fit(self, held):
        return self.sites


def run(model: pm.Model, **options):
    return draw(model, RMHMC(metric=FlatMetric(**options), model=model), draws=1500, tune=200)


@pytest.mark.slow
@pytest.mark.parametrize("make", [poisson_model, two_scales], ids=["latents alone", "with hyperparameters"])
def test_draws_with_the_sites_of_ones_own_fit_agree_and_are_less_effective(make):
    model = make()
    usual, absurd = run(model), run(model, site_fit=Absurd)
    difference = usual.posterior["f"].mean(("chain", "draw")) - absurd.posterior["f"].mean(("chain", "draw"))
    spread = usual.posterior["f"].std(("chain", "draw"))
    assert float(abs(difference / spread).max()) < 0.3
    # A fifth to a third, by seeds: steps are shorter, or fewer are accepted, or draws are more alike.
    least = [float(az.ess(each, var_names=["f"])["f"].min()) for each in (usual, absurd)]
    effective = [n / float(each.sample_stats["n_steps"].sum()) for n, each in zip(least, (usual, absurd), strict=True)]
    assert effective[1] < 0.7 * effective[0]


@pytest.mark.parametrize("make", [poisson_model, two_scales], ids=["latents alone", "with hyperparameters"])
def test_the_fit_of_a_chain_is_the_one_named_and_its_sites_are_kept(make):
    model = make()
    step = RMHMC(metric=FlatMetric(site_fit=Absurd), model=model)
    draw(model, step, draws=5, tune=60)
    sites = step.chains[0].tuned.sites
    (sites,) = sites if isinstance(sites, tuple) else (sites,)
    np.testing.assert_array_equal(sites.precision, np.full(N, 3.0))


def test_the_default_is_the_regression():
    model = poisson_model()
    runs = [draw(model, RMHMC(metric=metric, model=model)) for metric in ("flat", FlatMetric(site_fit=SiteRegression))]
    np.testing.assert_array_equal(*(run.posterior["f"].values for run in runs))


def separable() -> pm.Model:
    """Two classes of a process whose amplitude nothing bounds."""
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=pm.HalfCauchy("amplitude", 5.0) ** 2 * pm.gp.cov.Matern52(1, ls=0.5))
        f = gp.prior("f", X=X, reparameterize=False, jitter=1e-4)
        pm.Bernoulli("y", p=pm.math.invprobit(f), observed=(X[:, 0] > np.median(X)).astype(int))
    return model


def one_sided_groups() -> pm.Model:
    """Groups that have ones or zeros alone, of a scale that nothing bounds."""
    group = np.arange(18) % 6
    with pm.Model() as model:
        f = pm.Normal("f", 0.0, pm.HalfCauchy("amplitude", 2.0), shape=6)
        pm.Bernoulli("y", p=pm.math.invprobit(f[group]), observed=group % 2)
    return model


def tuned(model: pm.Model, **options) -> tuple:
    """A step, and where its chain stands, after so much tuning that it has been refitted for the last time."""
    step, point = RMHMC(metric=FlatMetric(**options), model=model), model.initial_point()
    step.setup_chain(np.random.default_rng(2), 300, 100)
    for _ in range(300):
        point, _ = step.step(point)
    step.stop_tuning()
    return step, point


@pytest.mark.parametrize("make", [separable, one_sided_groups])
def test_sites_follow_an_amplitude_that_nothing_bounds_and_a_restored_chain_goes_on_with_them(make):
    step, point = tuned(make(), chart="latent")
    (sites,) = step.chains[0].tuned.sites
    (exponents,) = sites.trend.exponents.T
    assert (exponents < -0.2).all()  # weaker where the amplitude is large
    state, ends = cloudpickle.loads(cloudpickle.dumps(step.sampling_state)), []
    for _ in range(2):
        at = point
        for _ in range(20):
            at, _ = step.step(at)
        ends.append(at["f"])
        step.sampling_state = state
    np.testing.assert_array_equal(*ends)
    assert step.chains[0].tuned.sites[0].trend.exponents.tolist() == sites.trend.exponents.tolist()  # frozen


def test_what_likelihoods_alone_read_is_not_followed(monkeypatch):
    """The sites' information is what follows it: a trend may stand where nothing else moves."""
    monkeypatch.setattr(site_fit, "SMALL", 0.0)
    monkeypatch.setattr(site_fit, "LEAST_SHARE", -np.inf)
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=pm.HalfNormal("amplitude", 1.0) ** 2 * pm.gp.cov.Matern52(1, ls=0.5))
        f = gp.prior("f", X=X, reparameterize=False, jitter=1e-4)
        pm.NegativeBinomial("y", mu=pm.math.exp(f), alpha=pm.HalfNormal("alpha", 3.0), observed=COUNTS)
    step, _ = tuned(model)
    exponents, which = step.chains[0].tuned.sites[0].trend.exponents, step._samplers[0].density.model.of_likelihoods
    assert which.size == 1
    assert (exponents[:, which] == 0.0).all()
    assert (np.delete(exponents, which, axis=1) != 0.0).all()


def test_sites_of_ones_own_fit_follow_no_trend():
    step, _ = tuned(separable(), site_fit=SiteRegression)
    assert isinstance(step.chains[0].tuned.sites[0], GaussianSites)


@pytest.mark.parametrize(
    ("sites", "says"),
    [
        (GaussianSites(np.zeros(3), np.zeros(N)), r"Broken.fit returned sites whose linear has the shape \(3,\)"),
        (GaussianSites(np.zeros(N), np.full(N, np.nan)), f"precision is not finite for {N} of them"),
        (GaussianSites(np.zeros(N), np.full(N, -0.1)), "negative precisions.*Clip them at 0"),
        (np.zeros(N), "Broken.fit returned a ndarray. It must return GaussianSites"),
    ],
)
def test_sites_that_cannot_be_used_are_an_error(sites, says):
    model = poisson_model()
    step = RMHMC(metric=FlatMetric(site_fit=partial(Broken, sites=sites)), model=model)
    with pytest.raises(ConfigurationError, match=says):
        draw(model, step)


@pytest.mark.parametrize("make", [poisson_model, two_scales], ids=["latents alone", "with hyperparameters"])
def test_sites_at_which_the_chain_has_no_density_are_not_taken_and_that_is_said(make, caplog):
    """They are finite, and so is what they were fitted to; under them every draw would fail, and no other follow."""
    model = make()
    sites = GaussianSites(np.full(N, 1e308), np.full(N, 1e308))
    step = RMHMC(metric=FlatMetric(site_fit=partial(Broken, sites=sites)), model=model)
    idata = draw(model, step, tune=60)
    assert not idata.sample_stats["failure"].any()
    assert (idata.posterior["f"].std("draw") > 0.1).all()
    state = step.chains[0]
    assert state.dropped_refits == len(state.refits) == 2
    assert "f: 2 of 2 refits of the Gaussian approximation" in caplog.text


class BadOnce(SiteRegression):
    """Sites of no use in one of its fits; it notes how many draws each has seen."""

    def __init__(self, n_sites: int, when: int, seen: list[int]) -> None:
        super().__init__(n_sites)
        self.when, self.seen = when, seen

    def fit(self, held):
        self.seen.append(self.count)
        if len(self.seen) - 1 == self.when:
            return GaussianSites(np.full(N, 1e308), np.full(N, 1e308))
        return super().fit(held)


@pytest.mark.parametrize(
    ("make", "when", "windows"),
    [
        (poisson_model, 0, [30, 60, 90]),
        (two_scales, 0, [30, 60, 150, 210]),
        (two_scales, 1, [30, 60, 90, 150]),
        (two_scales, 2, [30, 60, 150, 60]),
        (two_scales, 3, [30, 60, 150, 210]),
    ],
)
def test_a_refit_that_is_not_taken_costs_its_sites_alone(make, when, windows):
    """The draws that gave them are forgotten; hyperparameters are refitted and take turns from the third one on."""
    model, seen = make(), []
    step = RMHMC(metric=FlatMetric(site_fit=partial(BadOnce, when=when, seen=seen)), model=model)
    idata = draw(model, step, tune=300)
    assert seen == windows
    state = step.chains[0]
    assert state.dropped_refits == 1
    assert not idata.sample_stats["failure"].any()
    assert float(idata.sample_stats["acceptance_rate"].mean()) > 0.6
    if make is two_scales:
        assert state.tuned.emulator is not None


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_a_refit_waits_for_a_draw_with_a_density(sampled, seed):
    """It could not be judged where the log density has no slope: half of the draws, at which another step decides."""
    with pm.Model() as model:
        slopeless(0.55, sampled=sampled)
    sites = GaussianSites(np.full(N, 1e308), np.full(N, 1e308))
    step = RMHMC(metric=FlatMetric(site_fit=partial(Broken, sites=sites)), model=model)
    idata = draw(model, step, tune=60, random_seed=seed)
    assert step.chains[0].dropped_refits == 2
    failed = idata.sample_stats["failure"].values == Failure.NON_FINITE
    np.testing.assert_array_equal(failed[:, 1:], idata.posterior["z"].values[:, :-1] == 0)


def slopeless(probability: float, *, sampled: bool) -> None:
    """A process that a Bernoulli variable has the slope of."""
    z = pm.Bernoulli("z", probability)
    lengthscale = pm.LogNormal("ls", -1.0, 0.3) if sampled else 0.3
    f = pm.gp.Latent(cov_func=1.7 * pm.gp.cov.Matern52(1, ls=lengthscale)).prior("f", X=X)
    pm.CustomDist("y", f, z, logp=without_a_slope, observed=np.linspace(-1.0, 1.0, N))


def without_a_slope(value, f, z):
    """Where z is 0 the derivative is 0 times infinity."""
    return -0.5 * (value - f) ** 2 - 0.01 * pt.sqrt((1.0 + (value - f) ** 2) * z)


@pytest.mark.parametrize("sampled", [False, True])
def test_draws_at_which_there_is_no_slope_are_not_fitted_to(sampled):
    """Another step moves the chain there; its own trajectories fail and are counted."""
    with pm.Model() as model:
        slopeless(0.9, sampled=sampled)
        idata = draw(model, draws=100, tune=100)
    assert 0.0 < float(idata.posterior["z"].mean()) < 1.0
    assert (idata.sample_stats["failure"].values == Failure.NON_FINITE).any()
    assert float(idata.sample_stats["step_size_bar"].mean()) > 0.3


def test_what_makes_no_fit_is_an_error():
    with pytest.raises(ConfigurationError, match="must make a SiteFit from the number of sites"):
        FlatMetric(site_fit="regression")
    with pytest.raises(ConfigurationError, match="refit=False keeps them"):
        FlatMetric(refit=False, site_fit=SiteRegression)
    model = poisson_model()
    with pytest.raises(ConfigurationError, match=r"site_fit\(12\) returned a list, not a SiteFit"):
        draw(model, RMHMC(metric=FlatMetric(site_fit=lambda n: [0.0] * n), model=model))
    assert repr(FlatMetric(site_fit=Absurd)) == "FlatMetric(refit=True, site_fit=Absurd, emulate=True)"


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["SITE_ROUNDS", "MAX_ROUNDS", "ITERATIONS"])
def test_an_approximation_that_has_not_converged_is_a_start_like_another(monkeypatch, limit):
    """Sites and hyperparameters as they are after one round; tuning makes up for it."""
    model = two_scales()
    usual = run(model)
    monkeypatch.setattr(joint_approximation, limit, 1)
    stopped = run(model)
    assert not stopped.sample_stats["failure"].any()
    assert float(stopped.sample_stats["acceptance_rate"].mean()) > 0.7
    for name in ("ls", "eta"):
        ours, theirs = (np.log(r.posterior[name]) for r in (stopped, usual))
        assert abs(float(ours.mean() - theirs.mean())) < 0.35 * float(theirs.std())


def test_newton_that_has_not_converged_is_a_start_like_another(monkeypatch):
    model = poisson_model()
    usual = run(model)
    monkeypatch.setattr(blocks, "find_mode", partial(find_mode, max_iter=1))
    stopped = run(model)
    difference = usual.posterior["f"].mean(("chain", "draw")) - stopped.posterior["f"].mean(("chain", "draw"))
    assert float(abs(difference / usual.posterior["f"].std(("chain", "draw"))).max()) < 0.3
    assert not stopped.sample_stats["failure"].any()
