"""Hard models with free hyperparameters: each is sampled correctly or refused with a typed error; none hangs."""

from __future__ import annotations

import logging
import re
import signal

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_rmhmc import RMHMC, FlatMetric, register_likelihood, summarize_failures
from pymc_rmhmc.approximation import SiteFit
from pymc_rmhmc.chains import judgement
from pymc_rmhmc.chains.judgement import JUDGEMENT, part_of_path
from pymc_rmhmc.errors import CovarianceError, DataError, Failure, SamplingError
from pymc_rmhmc.latent.charts import GaussianSites
from pymc_rmhmc.latent.latent_blocks import theta_requires_refactorization
from pymc_rmhmc.model.likelihoods import Curvature, LikelihoodTerms, Reading, registry
from pymc_rmhmc.sampled.graph import GraphDensity
from tests.steps.conftest import COUNTS, N, X, draw, poisson_model

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")

# Of the statistical suite.
long_run = pytest.mark.slow

# Seconds of processor time after which a model hangs: each takes less than ten. A clock would tell how busy the machine
# is.
TOO_LONG = 150.0
LS = (-1.0, 0.5)  # of log ls, a priori
TWICE = np.repeat(X[::2], 2, axis=0)


@pytest.fixture(autouse=True)
def none_hangs():
    """Where a signal can wake a test that does not end, it fails."""

    def stop(number, frame):
        pytest.fail(f"not done after {TOO_LONG:.0f} seconds of processor time")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, TOO_LONG)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0.0)
    signal.signal(signal.SIGPROF, before)


def gp_of(inputs, **options):
    eta, ls = pm.HalfNormal("eta", 2.0), pm.LogNormal("ls", *LS)
    return pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.Matern52(1, ls=ls)).prior("f", X=inputs, **options)


def run(build, step_size=None, **options):
    """Draws, all of which must be finite and must move; hyperparameters too.

    After so much tuning hyperparameters of a covariance and latent values take turns, as by default; or give them up
    where an emulator is no use.
    """
    with pm.Model() as model:
        build()
        step = RMHMC(step_size=step_size)
    idata = draw(model, step, **{"draws": 200, "tune": 200, **options})
    (sampler,) = step._samplers
    if not isinstance(sampler.density, GraphDensity):
        dear = any(theta_requires_refactorization(block) for block in sampler.density.model.blocks)
        n_turns, _ = step.chains[0].tuned.trial
        assert (n_turns > 0) == (dear and options.get("tune", 200) >= 200)
    assert np.isfinite(idata.sample_stats["lp"]).all()
    for name, values in idata.posterior.items():
        assert np.isfinite(values.values).all(), name
        assert (values.std("draw") > 0.0).all(), name
        # More than one place: a chain that is stuck for most of the time has few.
        assert np.unique(values.values.reshape(values.sizes["draw"], -1)[:, 0]).size > 50, name
    return idata


def went_well(idata) -> bool:
    """Few failures, and the acceptance that is aimed at or more; of the step's own draws, in a compound too."""
    stats = idata.sample_stats
    failures = int((np.nan_to_num(stats["failure"]) != Failure.NONE).sum())
    return failures <= 3 and float(np.nanmean(stats["acceptance_rate"])) > 0.7


def has_mean(values, exact: float) -> bool:
    values = np.asarray(values)
    return abs(values.mean() - exact) < 4.5 * float(az.mcse(values))


def mean_f(idata) -> np.ndarray:
    return idata.posterior["f"].mean(("chain", "draw")).values


@long_run
def test_one_latent_value():
    idata = run(lambda: pm.Poisson("y", mu=pm.math.exp(gp_of(X[:1])), observed=np.array([3])))
    assert went_well(idata)
    assert 0.0 < mean_f(idata)[0] < np.log(3.0)
    assert has_mean(np.log(idata.posterior["ls"]), LS[0])  # one value knows nothing of a lengthscale


@long_run
def test_one_coefficient():
    def build():
        pm.Bernoulli("y", logit_p=pm.HalfNormal("tau", 1.0) * pm.Normal("u", shape=1), observed=np.array([1]))

    idata = run(build)
    assert went_well(idata)
    assert 0.0 < float(idata.posterior["u"].mean()) < 1.0


def nothing_read() -> None:
    none = np.array([], dtype=int)
    pm.Poisson("y", mu=pm.math.exp(gp_of(X)[none]), observed=none)


def everything_missing() -> None:
    # Another step imputes them given the latent values. With little noise the two would hold each other fast.
    pm.Normal("y", gp_of(X), 2.0, observed=np.full(N, np.nan))


@long_run
@pytest.mark.parametrize("build", [nothing_read, everything_missing])
def test_no_data_leave_the_prior(build, request):
    if build is nothing_read:
        request.getfixturevalue("without_a_compiler")
    # What is missing is moved by another step, and what an emulator was fitted to with it.
    idata = run(build, draws=400, tune=100 if build is everything_missing else 200)
    assert went_well(idata)
    assert has_mean(np.log(idata.posterior["ls"]), LS[0])
    assert has_mean(np.log(idata.posterior["ls"]) ** 2, LS[0] ** 2 + LS[1] ** 2)
    assert has_mean(idata.posterior["eta"], 2.0 * np.sqrt(2.0 / np.pi))
    assert has_mean(idata.posterior["f"][..., 3], 0.0)


@pytest.mark.parametrize("vars", [None, ["f", "g"]])
def test_a_sum_without_data_is_refused(vars):  # noqa: A002
    none = np.array([], dtype=int)
    with pm.Model():
        total = gp_of(X)[none] + pm.MvNormal("g", np.zeros(3), cov=np.eye(3) + 0.4)[none]
        pm.Poisson("y", mu=pm.math.exp(total), observed=none)
        with pytest.raises(DataError, match=r"f \+ g has no observations: the data are empty"):
            RMHMC(vars)


def test_a_process_that_nothing_observes_is_said_to_be_drawn_from_the_prior(caplog):
    with pm.Model(), caplog.at_level("WARNING", logger="pymc.rmhmc"):
        gp_of(X)
        RMHMC()
    assert "Nothing in this model is observed, so the draws are of the prior" in caplog.text


@long_run
def test_a_process_that_nothing_observes_beside_one_that_is():
    def build():
        pm.Poisson("y", mu=pm.math.exp(gp_of(X)), observed=COUNTS)
        covariance = pm.gp.cov.Matern52(1, ls=pm.LogNormal("unread", *LS))
        pm.gp.Latent(cov_func=covariance).prior("g", X=X[:3])

    idata = run(build)
    assert went_well(idata)
    assert has_mean(np.log(idata.posterior["unread"]), LS[0])


@long_run
def test_values_that_nothing_observes_follow_from_the_others():
    idata = run(lambda: pm.Poisson("y", mu=pm.math.exp(gp_of(X)[:4]), observed=np.full(4, 40)))
    assert went_well(idata)
    f = idata.posterior["f"].std(("chain", "draw")).values
    assert f[-1] > 3.0 * f[0]
    assert mean_f(idata)[4] > 2.0


@long_run
def test_groups_that_nothing_observes_have_the_prior():
    def build():
        u = pm.Normal("u", 0.0, pm.LogNormal("tau", 0.0, 0.3), shape=3)
        pm.Bernoulli("y", logit_p=u[np.arange(N) % 2], observed=(np.arange(N) % 2))

    idata = run(build)
    assert went_well(idata)
    u = idata.posterior["u"]
    assert float(u[..., 0].mean()) < -0.5
    assert float(u[..., 1].mean()) > 0.5
    assert has_mean(u[..., 2], 0.0)


NONE = np.zeros(N, dtype=int)
ALL_ZERO = {
    "poisson": lambda f: pm.Poisson("y", mu=pm.math.exp(f), observed=NONE),
    "negative binomial": lambda f: pm.NegativeBinomial(
        "y", mu=pm.math.exp(f), alpha=pm.Exponential("alpha", 1.0), observed=NONE
    ),
    "inflated by zeros": lambda f: pm.ZeroInflatedPoisson(
        "y", psi=pm.Beta("psi", 2.0, 2.0), mu=pm.math.exp(f), observed=NONE
    ),
    "binomial": lambda f: pm.Binomial("y", n=4, logit_p=f, observed=NONE),
}


@long_run
@pytest.mark.parametrize("name", ALL_ZERO)
def test_counts_that_are_all_zero(name):
    idata = run(lambda: ALL_ZERO[name](gp_of(X)))
    assert went_well(idata)
    assert (mean_f(idata) < (-0.1 if name == "inflated by zeros" else -0.5)).all()


@pytest.mark.parametrize("reparameterize", [False, True])
def test_counts_that_are_all_zero_beside_a_level(reparameterize):
    """What is added to a site is then, to PyTensor, added to what is 0."""
    with pm.Model() as model:
        f = gp_of(X, reparameterize=reparameterize)
        pm.Poisson("y", mu=pm.math.exp(pm.Normal("level", 0.0, 2.0) + f), observed=NONE)
    assert np.isfinite(draw(model).posterior["level"]).all()


def separable_values() -> None:
    pm.Bernoulli("y", logit_p=gp_of(X), observed=(X[:, 0] > 0.5).astype(int))


def separable_coefficients() -> None:
    b = pm.Normal("b", 0.0, pm.HalfNormal("eta", 3.0), shape=2)
    f = pm.Deterministic("f", np.column_stack((np.ones(N), X[:, 0] - 0.5)) @ b)
    pm.Bernoulli("y", logit_p=f, observed=(X[:, 0] > 0.5).astype(int))


def separable_by_probit() -> None:
    pm.Bernoulli("y", p=pm.math.invprobit(gp_of(X)), observed=(X[:, 0] > 0.5).astype(int))


@long_run
@pytest.mark.parametrize("build", [separable_values, separable_coefficients, separable_by_probit])
def test_separable_classes(build):
    idata = run(build)
    assert went_well(idata)
    assert mean_f(idata)[0] < -0.5
    assert mean_f(idata)[-1] > 0.5
    assert float(np.abs(idata.posterior["f"]).max()) < 1e3  # the prior holds what the data do not


@long_run
def test_duplicated_inputs_with_jitter_have_equal_values():
    idata = run(lambda: pm.Poisson("y", mu=pm.math.exp(gp_of(TWICE, jitter=1e-6)), observed=COUNTS))
    assert went_well(idata)
    f = idata.posterior["f"].values
    assert np.abs(f[..., ::2] - f[..., 1::2]).max() < 0.02


@pytest.mark.parametrize("reparameterize", [False, True])
def test_duplicated_inputs_without_jitter_are_refused(reparameterize):
    with pm.Model() as model:
        f = gp_of(TWICE, jitter=0.0, reparameterize=reparameterize)
        pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)
    with pytest.raises(CovarianceError, match=r"ls_log__ = -0\.875.*remove duplicated inputs"):
        draw(model)


@long_run
def test_hyperparameters_at_their_boundaries():
    """The data want a lengthscale above its bound, no amplitude, and no inflation by zeros."""

    def build():
        ls, eta = pm.Uniform("ls", 0.05, 0.3), pm.HalfNormal("eta", 1e-3)
        f = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.Matern52(1, ls=ls)).prior("f", X=X, jitter=1e-12)
        mu = pm.math.exp(f + pm.Normal("level", 2.0, 1.0))
        pm.ZeroInflatedPoisson("y", psi=pm.Beta("psi", 2.0, 0.5), mu=mu, observed=np.full(N, 7))

    idata = run(build)
    assert went_well(idata)
    ls, psi = idata.posterior["ls"].values, idata.posterior["psi"].values
    assert ls.min() > 0.05
    assert ls.max() < 0.3
    assert psi.max() <= 1.0
    assert psi.mean() > 0.9
    assert has_mean(idata.posterior["eta"], 1e-3 * np.sqrt(2.0 / np.pi))
    assert abs(float(idata.posterior["level"].mean()) - np.log(7.0)) < 0.1


@pytest.mark.parametrize("in_turns", [False, True])
def test_a_covariance_that_is_lost_at_some_hyperparameters_is_a_counted_rejection(caplog, in_turns):
    """Equal correlations are positive definite above -1/(N - 1) alone, and the data are nearly there."""

    def build():
        rho = pm.Uniform("rho", -1.0, 1.0, initval=0.0)
        covariance = 0.5 * (np.eye(4) * (1.0 - rho) + rho * np.ones((4, 4)))
        f = pm.MvNormal("f", np.zeros(4), cov=covariance)
        pm.Normal("y", f, 0.3, observed=np.array([0.9, -1.0, 0.6, -0.5]))

    caplog.set_level(logging.INFO, logger="pymc")
    # Of joint trajectories the step size is given: one that is tuned to refusals is a matter of chance.
    idata = run(build, tune=200) if in_turns else run(build, tune=100, step_size=0.2)
    assert float(idata.posterior["rho"].min()) > -1.0 / 3.0
    assert re.search(r"last not positive definite at rho_interval__ = -?\d", caplog.text)
    assert float(idata.posterior["rho"].std()) > 0.05
    stats = idata.sample_stats
    lost = stats["failure"] == Failure.NOT_POSITIVE_DEFINITE
    assert int(lost.sum()) > 0
    if not in_turns:  # in turns other moves of the same draw may be accepted
        assert (stats["acceptance_rate"].values[lost.values] == 0.0).all()
        kept = np.diff(idata.posterior["rho"].values[0], prepend=np.nan)[lost.values[0]]
        assert (kept[np.isfinite(kept)] == 0.0).all()
    summary = summarize_failures(idata)
    assert summary.counts[Failure.NOT_POSITIVE_DEFINITE].sum() == int(lost.sum())
    assert "NOT_POSITIVE_DEFINITE" in str(summary)
    assert int(stats["n_failures"][0, -1]) == summary.total


@long_run
def test_outliers_for_which_sites_fit_nowhere():
    """Far out the likelihood is not concave: no Gaussian site stands for it."""
    y = np.sin(6.0 * X[:, 0]) + 0.3 * np.random.default_rng(0).standard_normal(N)
    far = np.isin(np.arange(N), (2, 7))
    y[far] = 1e3, -1e5
    idata = run(lambda: pm.StudentT("y", nu=4.0, mu=gp_of(X), sigma=pm.HalfNormal("sigma", 0.3), observed=y))
    assert went_well(idata)
    assert np.abs(mean_f(idata)).max() < 3.0


@pytest.fixture
def phases():
    """Latent values of which tens of thousands of turns are seen but for their whole number: a mode in every turn."""

    @register_likelihood(
        pm.Laplace, link="identity", kinds=["fisher"], parameters=["b"], read=lambda mu, b: Reading(mu, {"b": b}),
        name="phases_of_the_tests",
    )  # fmt: skip
    def terms(eta, parameters, y):
        turned = 30000.0 * (y - eta)
        information = Curvature(1.0 / parameters["b"] ** 2 + 0.0 * eta, 0.0 * eta)
        return LikelihoodTerms(2.0 * pt.cos(turned), 60000.0 * pt.sin(turned), {"fisher": information})

    yield
    del registry._REGISTRY["phases_of_the_tests"]


@pytest.mark.parametrize("sampled", [False, True])
def test_a_chain_that_stands_still_under_a_log_concave_likelihood_is_told_of_the_prior(monkeypatch, sampled):
    """Its sites fit; no other metric is of use. Of a prior that stands still there is nothing to say."""
    monkeypatch.setattr(judgement, "part_of_path", lambda path, step_size: 0.01)
    of_prior = r"The likelihood is log-concave.*covariance is almost singular.*NUTS"
    says = of_prior if sampled else "does not fit this posterior. Reparametrize the model, or use NUTS"
    with pytest.raises(SamplingError, match=f"{says}.*raise max_steps or give n_steps"):
        draw(poisson_model(sampled=sampled), tune=100)


def test_a_path_that_the_options_cut_is_no_fault_of_the_metric():
    says = r"max_steps=5 covers only .* of path_length=100, .*max_steps is too small.*RMHMC\(max_steps=\d+\)"
    with poisson_model() as model:
        step = RMHMC(path_length=100, max_steps=5)
    step.setup_chain(np.random.default_rng(1), 10, 10)
    step.step(model.initial_point())
    (state,), (sampler,) = step.chains, step._samplers
    state.iteration, state.step_size.average = JUDGEMENT.enough_tuning, 1.0
    with pytest.raises(SamplingError, match=says) as error:
        sampler._judge()
    assert "NUTS" not in str(error.value)
    state.step_size.average = 10.0
    assert "max_steps is too small" in sampler.remarks()
    assert "another metric" not in sampler.remarks()


class Blind(SiteFit):
    """Sites that know nothing of the likelihood, whatever the draws are: steps stay as short as its modes are wide."""

    def fit(self, held):
        return GaussianSites(np.zeros_like(held.linear), np.zeros_like(held.precision))


# Which chain is stopped must not hang on the last digits of arithmetic. Of a chain that fits its own sites it does:
# whether they fit the one mode that it has found. Under blind sites every chain's steps are far too short.
@pytest.mark.parametrize(("metric", "fixed"), [("fisher", False), ("fisher", True), ("softabs_curvature", True)])
def test_sites_that_are_hopeless_are_an_error_that_says_what_to_use(phases, fixed, metric):
    """A metric for which the likelihood has a curvature: that step can be built."""
    with pm.Model() as model:
        f = pm.MvNormal("f", np.zeros(N), cov=np.eye(N)) if fixed else gp_of(X)
        if metric == "fisher":
            pm.Laplace("y", mu=f, b=1.0, observed=np.sin(6.0 * X[:, 0]))
        else:  # not registered
            pm.VonMises("y", mu=30000.0 * f, kappa=2.0, observed=np.sin(6.0 * X[:, 0]))
    says = rf'f: after 100 tuning draws the step size is .*several modes.*with RMHMC\(metric="{metric}"\).*NUTS'
    with model:
        step = RMHMC(metric=FlatMetric(site_fit=Blind))
    with pytest.raises(SamplingError, match=says):
        draw(model, step, tune=100)
    (sampler,) = step._samplers
    covered = part_of_path(sampler._path, sampler.average_step_size())
    assert covered < 0.1 * JUDGEMENT.least_of_path  # not by a hair's breadth, here or on another processor
    with model:
        RMHMC(vars=["f"], metric=metric)


# After so many tuning draws steps that cover so much of a path stop the chain, or do not.
JUDGED = [
    (JUDGEMENT.enough_tuning, 0.99 * JUDGEMENT.least_of_path, True),
    (JUDGEMENT.enough_tuning, 1.01 * JUDGEMENT.least_of_path, False),
    (JUDGEMENT.enough_tuning - 1, 0.01 * JUDGEMENT.least_of_path, False),
    (2000, 1e-6, True),
]


@pytest.mark.parametrize("sampled", [False, True])
def test_a_chain_is_stopped_by_the_part_of_its_path_that_its_steps_cover(sampled):
    """Whatever the chain: a step size is given to it in place of the one that tuning would have found."""
    model = poisson_model(sampled=sampled)
    with model:
        step = RMHMC()
    for n_tuned, share, stopped in JUDGED:
        step.setup_chain(np.random.default_rng(1), 10, 10)
        point, _ = step.step(model.initial_point())
        (state,) = step.chains
        state.iteration, state.step_size.average = n_tuned, share * step._plan.trajectory.covering
        step.stop_tuning()
        if stopped:
            with pytest.raises(SamplingError, match=f"f: after {n_tuned} tuning draws the step size is "):
                step.step(point)
        else:
            _, (statistics,) = step.step(point)
            assert statistics["failure"] == Failure.NONE


@long_run
def test_counts_by_the_million():
    counts = 10**6 * np.array([0, 1, 3, 2, 5, 4, 6, 3, 1, 0, 2, 1])
    idata = run(lambda: pm.Poisson("y", mu=pm.math.exp(gp_of(np.linspace(0, 1, 12)[:, None])), observed=counts))
    assert went_well(idata)
    assert float(idata.sample_stats["step_size"].mean()) > 0.1
    seen = counts > 0
    np.testing.assert_allclose(mean_f(idata)[seen], np.log(counts[seen]), atol=0.01)


def test_no_latent_values():
    with pm.Model() as model:
        pm.Poisson("y", mu=pm.math.exp(gp_of(X[:0])), observed=np.empty(0, dtype=int))
    with pytest.raises(DataError, match="no latent values"):
        draw(model)


def effects(kind: str, scale, n: int):
    if kind == "sum to zero":
        return pm.ZeroSumNormal("e", sigma=scale, shape=n)
    return pm.StudentT("e", nu=5.0, mu=0.0, sigma=scale, shape=n)


@pytest.mark.parametrize("kind", ["sum to zero", "heavy-tailed"])
def test_a_chain_does_not_begin_where_a_scale_is_zero_and_so_are_its_effects(kind):
    """There the density has no bound, and no chain that begins there leaves."""
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(8), 6)
    counts = rng.poisson(np.exp(1.0 + 0.5 * rng.standard_normal(8)[group]))
    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        pm.Poisson("y", mu=pm.math.exp(pm.Normal("level", 0.0, 2.0) + effects(kind, scale, 8)[group]), observed=counts)
    idata = draw(model, chains=4, draws=150, tune=300)
    assert (idata.posterior["scale"].median("draw") > 0.1).all()


def test_units_may_be_tiny():
    """As of a concentration in mol: a start at a distance of 1 is far off, and so is a step of 1e-5."""
    unit, noise = 1e-9, np.random.default_rng(0).standard_normal(30)
    with pm.Model() as model:
        a, s = pm.Normal("a", 0.0, 10.0 * unit), pm.HalfNormal("s", 10.0 * unit)
        pm.Normal("y", a, s, observed=unit * (1.0 + 0.3 * noise))
    found = draw(model, draws=300, tune=150).posterior / unit
    assert float(found["a"].mean()) == pytest.approx(1.0 + 0.3 * noise.mean(), abs=0.02)
    assert float(found["s"].mean()) == pytest.approx(0.3 * noise.std(), rel=0.1)


def test_values_may_be_a_billion():
    """Of a time in seconds, say, whose square has no digits left for what the data say."""
    y = 1e9 + np.array([3.0, -4.0, 6.0, 1.0])
    with pm.Model() as model:
        x = pm.Normal("x", 1e9, 10.0)
        pm.Normal("y", x, 5.0, observed=y)
    found = draw(model, draws=500, tune=200).posterior["x"] - 1e9
    precision = 4.0 / 25.0 + 0.01
    assert float(found.mean()) == pytest.approx(6.0 / 25.0 / precision, abs=0.5)
    assert float(found.std()) == pytest.approx(precision**-0.5, rel=0.12)
