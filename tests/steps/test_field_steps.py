"""RMHMC on series and maps as one Gaussian field: draws, messages, and states that go on where they were."""

from __future__ import annotations

import math
from functools import cache, partial

import arviz as az
import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.exceptions import SamplingError
from scipy import stats
from scipy.special import logsumexp

from pymc_rmhmc import RMHMC, FlatMetric, describe, log_evidence
from pymc_rmhmc.errors import CovarianceError, DataError, Failure, RMHMCError, UnsupportedModelError
from tests.model.conftest import exact_log_density
from tests.steps.conftest import draw
from tests.steps.test_joint_sampling import advance, goes_on_alike, value_points
from tests.thinned import thinned

pytestmark = [
    pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS"),
    pytest.mark.usefixtures("without_a_compiler"),
]

T = 44  # as many as the field is taken for
COUNTS = np.random.default_rng(0).poisson(np.exp(1.0 + 0.5 * np.sin(np.arange(T) / 6.0)))
RING = np.roll(np.eye(T), 1, axis=0) + np.roll(np.eye(T), -1, axis=0)
FIELD = {"metric": FlatMetric(chart="field")}


def series() -> pm.Model:
    with pm.Model(coords={"t": np.arange(T)}) as model:
        phi, s, mu = pm.Uniform("phi", -0.5, 1.0), pm.HalfNormal("s", 0.5), pm.Normal("mu", 0, 2)
        h = pm.AR("h", rho=pt.stack([phi]), sigma=s, init_dist=pm.Normal.dist(0, 1), dims="t")
        pm.Deterministic("level", pt.exp(mu + h), dims="t")
        pm.Poisson("y", pt.exp(mu + h), observed=pm.Data("data", COUNTS), dims="t")
    return model


def bym() -> pm.Model:
    with pm.Model() as model:
        mu, s, rho = pm.Normal("mu", 0, 2), pm.HalfNormal("s"), pm.Beta("rho", 1, 1)
        phi, theta = pm.ICAR("phi", W=RING), pm.Normal("theta", 0, 1, shape=T)
        eta = mu + s * (pt.sqrt(1 - rho) * theta + pt.sqrt(rho / 1.7) * phi)
        pm.Poisson("y", pt.exp(eta), observed=COUNTS)
    return model


def proper_map() -> pm.Model:
    with pm.Model() as model:
        alpha, tau, mu = pm.Beta("alpha", 2, 2), pm.Gamma("tau", 2, 2), pm.Normal("mu", 0, 2)
        x = pm.CAR("x", mu=mu * np.ones(T), W=RING, alpha=alpha, tau=tau)
        pm.Poisson("y", pt.exp(x), observed=COUNTS)
    return model


def season(size: int = 12) -> pm.Model:
    with pm.Model() as model:
        s, ls = pm.HalfNormal("s", 0.5), pm.Gamma("ls", 6, 3)
        trend = pm.GaussianRandomWalk("trend", sigma=s, init_dist=pm.Normal.dist(0, 2), shape=T)
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=ls)).prior("f", np.linspace(0, 5, size)[:, None])
        pm.Poisson("y", pt.exp(trend + f[np.arange(T) % size]), observed=COUNTS)
    return model


def effects() -> pm.Model:
    """So few that nobody takes a field unless it is asked for; no site, since the data are normal."""
    rng, group = np.random.default_rng(1), np.arange(30) % 5
    with pm.Model() as model:
        mu, s, noise = pm.Normal("mu"), pm.HalfNormal("s"), pm.HalfNormal("noise")
        a = pm.Normal("a", mu, s, shape=5)
        pm.Normal("y", a[group], noise, observed=rng.normal(size=5)[group] + 0.5 * rng.normal(size=30))
    return model


def running_sum() -> pm.Model:
    """A walk with a drift, as the sum of its steps."""
    with pm.Model() as model:
        s, mu, z = pm.HalfNormal("s", 0.5), pm.Normal("mu", 0, 2), pm.Normal("z", 0, 1, shape=T)
        h = pm.Deterministic("h", mu + pt.cumsum(s * z + pm.Normal("drift", 0, 0.1)))
        pm.Poisson("y", pt.exp(h), observed=COUNTS)
    return model


MODELS = {
    "series": (series, {"h", "mu"}), "BYM": (bym, {"phi", "theta", "mu"}), "map": (proper_map, {"x", "mu"}),
    "process": (season, {"trend, f (56 values)"}),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_neighbours_are_sampled_as_a_field_and_the_log_says_so(name, caplog):
    build, latents = MODELS[name]
    model = build()
    with model, caplog.at_level("INFO", logger="pymc"):
        step = RMHMC()
    (said,) = [r.message for r in caplog.records if "Gaussian field" in r.message]
    assert "neighbours in" in said
    assert "left to other steps" not in said
    assert all(variable in said for variable in latents)
    assert {v.name for v in step.vars} == {v.name for v in model.continuous_value_vars}
    idata = draw(model, step)
    assert (idata.sample_stats["failure"] == Failure.NONE).all()
    assert all(idata.posterior[v.name].std() > 0.0 for v in model.free_RVs)


def walk() -> pm.Model:
    with pm.Model() as model:
        s, mu = pm.HalfNormal("s", 0.5), pm.Normal("mu", 0, 2)
        h = pm.GaussianRandomWalk("h", sigma=s, init_dist=pm.Normal.dist(0, 1), shape=T)
        pm.Poisson("y", pt.exp(mu + h), observed=COUNTS)
    return model


def two_processes() -> pm.Model:
    x = np.linspace(0, 5, 80)[:, None]
    with pm.Model() as model:
        kernels = [pm.Gamma(f"scale_{k}", 6, 6) * pm.gp.cov.Matern52(1, ls=1.0) for k in "fg"]
        f, g = (pm.gp.Latent(cov_func=kernel).prior(k, x) for k, kernel in zip("fg", kernels, strict=True))
        pm.Normal("y", f, pt.exp(g), observed=np.sin(x[:, 0]))
    return model


def alike_processes(*, is_fixed: bool = False) -> pm.Model:
    apart = np.abs(np.subtract.outer(np.arange(60.0), np.arange(60.0)))
    with pm.Model() as model:
        ls = 5.0 if is_fixed else pm.InverseGamma("ls", 5, 20)
        f = pm.MvNormal("f", np.zeros(60), cov=2.0 * pt.exp(-apart / ls), shape=(3, 60))
        pm.Categorical("y", logit_p=f.T, observed=np.arange(60) // 7 % 3)
    return model


def fixed_processes() -> pm.Model:
    return alike_processes(is_fixed=True)


@pytest.mark.parametrize("build", thinned([walk, running_sum, alike_processes, two_processes, fixed_processes]))
def test_the_reported_log_density_is_the_models_at_every_draw(build):
    model = build()
    idata = draw(model, RMHMC(model=model))
    exact = exact_log_density(model)
    logp = [float(exact(point)) for point in value_points(model, idata)]
    np.testing.assert_allclose(idata.sample_stats["lp"].values[0], logp, atol=1e-6)


@cache
def sampled() -> tuple[pm.Model, object]:
    model = series()
    with model:
        step = RMHMC()
        return model, pm.sample(
            120, tune=250, chains=2, cores=1, step=step, progressbar=False, random_seed=3,
            compute_convergence_checks=False,
        )  # fmt: skip


@pytest.mark.slow(by_python=True)
def test_draws_predict_the_data():
    model, idata = sampled()
    with model:
        predicted = pm.sample_posterior_predictive(idata, progressbar=False, random_seed=1)
    mean = predicted.posterior_predictive["y"].mean(("chain", "draw")).values
    assert np.corrcoef(mean, COUNTS)[0, 1] > 0.5
    np.testing.assert_allclose(
        idata.posterior["level"], np.exp(idata.posterior["mu"] + idata.posterior["h"]), rtol=1e-10
    )


def test_most_trajectories_are_accepted():
    _, idata = sampled()
    assert 0.5 < float(idata.sample_stats["acceptance_rate"].mean()) <= 1.0
    assert not idata.sample_stats["diverging"].any()


@pytest.mark.parametrize(
    ("build", "during_tuning"),
    thinned([
        (series, True), (effects, True), (effects, False), (running_sum, False), (alike_processes, False),
        (fixed_processes, True),
    ]),  # fmt: skip
)
def test_a_restored_state_goes_on_alike_in_any_step(build, during_tuning):
    model = build()
    with model:
        step, other = RMHMC(**FIELD), RMHMC(**FIELD)
    step.setup_chain(np.random.default_rng(1), 60, 100)
    point, _, _ = advance(step, model.initial_point(), 30)
    if not during_tuning:
        step.stop_tuning()
        point, _, _ = advance(step, point, 5)
    goes_on_alike((step, other, cloudpickle.loads(cloudpickle.dumps(step))), point, 12)


@pytest.mark.slow
def test_chains_of_other_processes_are_those_of_this_one():
    def run(cores):
        model = series()
        with model:
            return pm.sample(
                20, tune=30, chains=2, cores=cores, mp_ctx="spawn", step=RMHMC(), progressbar=False, random_seed=3,
                compute_convergence_checks=False,
            ).posterior  # fmt: skip

    here, there = run(1), run(2)
    for name in ("h", "mu", "phi", "s"):
        # Graphs are evaluated by Python here, and compiled there: they round differently.
        np.testing.assert_allclose(here[name], there[name], rtol=1e-6, atol=1e-8)


def test_the_field_is_taken_where_it_is_asked_for(caplog):
    model = effects()
    with model, caplog.at_level("INFO", logger="pymc"):
        step = RMHMC(**FIELD)
    assert "the Gaussian field" in caplog.text
    assert "because the metric asks for it" in caplog.text
    idata = draw(model, step)
    assert (idata.sample_stats["failure"] == Failure.NONE).all()


@pytest.mark.parametrize("n", [39, 40])
def test_a_series_of_scalars_is_a_field_where_it_is_long(n):
    with pm.Model() as model:
        s, x = pm.HalfNormal("s", 0.5), [pm.Normal("x0", 0, 2)]
        for t in range(1, n + 1):
            x.append(pm.Normal(f"x{t}", x[-1], s))
        pm.Poisson("y", pt.exp(pt.stack(x)), observed=np.resize(COUNTS, n + 1))
    said = str(describe(model))
    assert ("each the mean of another" in said) == (n >= 40)
    assert ("Gaussian field" in said) == (n >= 40)


@pytest.mark.parametrize("n_effects", [100, 140])
def test_a_few_neighbours_with_many_effects_are_a_field(n_effects):
    ring = np.roll(np.eye(12), 1, axis=0) + np.roll(np.eye(12), -1, axis=0)
    with pm.Model() as model:
        phi, s = pm.ICAR("phi", W=ring), pm.HalfNormal("s")
        own = pm.Normal("own", 0, s, shape=n_effects)
        pm.Poisson("y", pt.exp(phi[np.arange(n_effects) % 12] + own), observed=np.resize(COUNTS, n_effects))
    assert ("Gaussian field" in str(describe(model))) == (n_effects == 140)


@pytest.mark.parametrize("nested", ["about regions", "under effects", ""])
def test_a_few_neighbours_about_a_vector_are_a_field(nested):
    ring = np.roll(np.eye(12), 1, axis=0) + np.roll(np.eye(12), -1, axis=0)
    with pm.Model() as model:
        mu, s, t = pm.Normal("mu", 0, 2), pm.HalfNormal("s"), pm.HalfNormal("t")
        region = pm.Normal("region", mu, t, shape=4)[np.arange(12) // 3] if nested == "about regions" else mu
        x = pm.CAR("x", mu=region * np.ones(12), W=ring, alpha=0.9, tau=s**-2)
        pm.Poisson("y", pt.exp(pm.Normal("own", x, t) if nested == "under effects" else x), observed=COUNTS[:12])
    assert ("Gaussian field" in str(describe(model))) == bool(nested)


def effects_on_two(n_groups: int) -> pm.Model:
    with pm.Model() as model:
        group, s = np.arange(3 * n_groups) % n_groups, pm.HalfNormal("s", 1, shape=2)
        u = pm.Normal("u", 0, s, shape=(n_groups, 2))
        pm.Normal("y", u[group, 0], pt.exp(u[group, 1]), observed=np.sin(group))
    return model


def effects_on_classes() -> pm.Model:
    with pm.Model() as model:
        s = pm.HalfNormal("s", 1, shape=3)
        u = pm.Normal("u", 0, s, shape=(50, 3))
        pm.Categorical("y", logit_p=u[np.arange(100) % 50], observed=np.arange(100) % 3)
    return model


def robust_effects() -> pm.Model:
    with pm.Model() as model:
        s = pm.HalfNormal("s")
        u = pm.Normal("u", 0, s, shape=160)
        pm.StudentT("y", nu=pm.Gamma("nu", 2, 0.1), mu=u, sigma=pm.HalfNormal("noise"), observed=np.sin(np.arange(160)))
    return model


@pytest.mark.parametrize(
    ("build", "is_field"),
    [
        (two_processes, True), (partial(effects_on_two, 80), True), (effects_on_classes, True),
        (partial(effects_on_two, 20), False), (robust_effects, False),
    ],
)  # fmt: skip
def test_what_is_read_through_several_predictors_is_a_field(build, is_field):
    assert ("through several predictors" in " ".join(str(describe(build())).split())) is is_field


def by_matrix(design: np.ndarray) -> pm.Model:
    """Effects that a matrix reads, beside a mean and a scale."""
    with pm.Model() as model:
        mu, s = pm.Normal("mu"), pm.HalfNormal("s")
        u = pm.Normal("u", 0, s, shape=design.shape[1])
        pm.Poisson("y", pt.exp(mu + pt.dot(design, u)), observed=np.resize(COUNTS, len(design)))
    return model


@pytest.mark.parametrize("kind", ["indicators", "few", "bands", "dense"])
def test_effects_of_groups_are_a_field_if_a_matrix_reads_them(kind):
    """Not those of a basis, nor so few that the chart of the graph is as fast."""
    group = np.arange(240) % (10 if kind == "few" else 60)
    design = np.eye(group.max() + 1)[group]
    if kind == "bands":
        design = sum(np.roll(design, k, axis=1) for k in range(4))
    elif kind == "dense":
        design = np.random.default_rng(3).normal(size=design.shape)
    said = " ".join(str(describe(by_matrix(design))).split())
    assert ("Gaussian field" in said) == (kind == "indicators")
    assert ("because a sparse matrix reads mu, u" in said) == (kind == "indicators"), said


def test_describe_says_what_the_field_is():
    description = describe(series())
    printed = " ".join(str(description).split())
    assert "h + mu: 45 values behind 44 observations, Gaussian field with a sparse precision" in printed
    assert "read by y: poisson (log link); depends on phi, s." in printed
    assert description.hyperparameters == ("phi", "s")
    printed = " ".join(str(describe(running_sum())).split())
    assert "z + mu + drift: 46 values behind 44 observations" in printed
    assert "because the running sum of z is a walk with a sparse precision, read by y: poisson" in printed
    printed = " ".join(str(describe(effects(), **FIELD)).split())
    assert "because the metric asks for it" in printed
    assert "depends on s, noise" in printed


def test_a_process_with_as_many_values_as_a_series_is_no_part_of_a_field():
    printed = " ".join(str(describe(season())).split())
    assert "trend + f: 56 values behind 44 observations, Gaussian field with a sparse precision and" in printed
    assert "and the dense covariance of f, because" in printed
    assert "next to which f has few values" in printed
    assert "Gaussian field" not in str(describe(season(T // 2)))


def without_gaussians() -> None:
    pm.Poisson("y", pm.Gamma("g", 2.0, 1.0), observed=COUNTS)


def in_another_prior() -> None:
    x = pm.GaussianRandomWalk("x", sigma=pm.HalfNormal("s"), init_dist=pm.Normal.dist(0, 1), shape=T)
    rate = pm.Gamma("rate", 2.0, pt.exp(x[3]))
    pm.Poisson("y", rate * pt.exp(x), observed=COUNTS)


def of_sums_with_gaps() -> None:
    """Where nothing is added a step cannot be told from its sums."""
    z = pm.Normal("z", shape=400)
    walk = pm.HalfNormal("s") * pt.cumsum(z * (np.arange(400) % 7 > 0))
    pm.Poisson("y", pt.exp(walk), observed=np.ones(400, int))


REFUSED = {
    "nothing Gaussian": (without_gaussians, "no free variable is Gaussian"),
    "in another prior": (in_another_prior, "x is no part of one: the prior of rate depends on it and is not Gaussian"),
    "running sums with gaps": (of_sums_with_gaps, "a matrix with too many entries"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_field_that_is_asked_for_and_is_none_is_refused_by_the_reason(name):
    build, why = REFUSED[name]
    with pm.Model():
        build()
        with pytest.raises(UnsupportedModelError, match=why):
            RMHMC(**FIELD)


def without_scales() -> pm.Model:
    with pm.Model() as model:
        x = pm.GaussianRandomWalk("x", sigma=0.3, init_dist=pm.Normal.dist(0, 1), shape=T)
        pm.Poisson("y", pt.exp(x), observed=COUNTS)
    return model


def test_a_field_without_hyperparameters_is_sampled():
    model = without_scales()
    with model:
        step = RMHMC(**FIELD)
    idata = draw(model, step)
    assert (idata.sample_stats["failure"] == Failure.NONE).all()
    exact = exact_log_density(model)
    logp = [float(exact(point)) for point in value_points(model, idata)]
    np.testing.assert_allclose(idata.sample_stats["lp"].values[0], logp, atol=1e-6)


def of_four_parts(each: int) -> pm.Model:
    """Rings of which only one has data: the one soft sum to zero does not say where the others are."""
    ring = np.roll(np.eye(each), 1, axis=0) + np.roll(np.eye(each), -1, axis=0)
    with pm.Model() as model:
        phi = pm.ICAR("phi", W=np.kron(np.eye(4), ring))
        pm.Poisson("y", pt.exp(pm.HalfNormal("s") * phi[:each]), observed=COUNTS[:each])
    return model


@pytest.mark.parametrize("each", [11, 30], ids=["the sum is a sparse row", "the sum is a dense row"])
def test_a_map_that_nothing_closes_is_an_error_by_name(each):
    model = of_four_parts(each)
    with pytest.raises(
        CovarianceError, match="phi: the prior precision and the data leave a direction without a bound"
    ):
        draw(model, RMHMC(model=model))


def test_neighbours_that_are_not_mutual_are_an_error():
    weights = RING.copy()
    weights[0, 1] = 0.0
    with pm.Model() as model:
        x = pm.CAR("x", mu=np.zeros(T), W=weights, alpha=pm.Beta("alpha", 2, 2), tau=1.0)
        pm.Poisson("y", pt.exp(x), observed=COUNTS)
    with pytest.raises(DataError, match="W is a symmetric adjacency matrix"):
        draw(model, RMHMC(model=model))


def test_a_proper_map_with_an_area_without_neighbours_is_no_field():
    with pm.Model():
        weights = np.pad(RING[:-1, :-1], (0, 1))
        x = pm.CAR("x", mu=np.zeros(T), W=weights, alpha=pm.Beta("alpha", 2, 2), tau=1.0)
        pm.Poisson("y", pt.exp(x), observed=COUNTS)
        with pytest.raises(UnsupportedModelError, match="no free variable is Gaussian"):
            RMHMC(**FIELD)


@pytest.mark.parametrize("size", [1, 2])
def test_the_shortest_series_are_sampled(size):
    with pm.Model() as model:
        x = pm.AR("x", rho=[0.5], sigma=pm.HalfNormal("s"), init_dist=pm.Normal.dist(0, 1), shape=size)
        pm.Poisson("y", pt.exp(x), observed=COUNTS[:size])
    idata = draw(model, RMHMC(model=model, **FIELD))
    assert (idata.sample_stats["failure"] == Failure.NONE).all()


def test_new_counts_are_seen():
    model = series()
    with model:
        step = RMHMC()
        before = draw(model, step, draws=60, tune=80).posterior["mu"].mean()
        pm.set_data({"data": 1000 * (COUNTS + 1)})
        after = draw(model, step, draws=60, tune=80).posterior["mu"].mean()
    assert after - before > 4.0


def test_new_covariates_need_a_new_step():
    with pm.Model() as model:
        x = pm.Data("x", np.linspace(-1.0, 1.0, T))
        h = pm.GaussianRandomWalk("h", sigma=pm.HalfNormal("s"), init_dist=pm.Normal.dist(0, 1), shape=T)
        pm.Poisson("y", pt.exp(h + pm.Normal("b") * x), observed=COUNTS)
        step = RMHMC()
        pm.set_data({"x": np.linspace(1.0, -3.0, T)})
    with pytest.raises(DataError, match=r"x has other values"):
        draw(model, step)


def test_data_that_no_count_can_be_are_an_error_and_no_draw():
    model = series()
    with model:
        step = RMHMC()
        pm.set_data({"data": np.full(T, -1)})
        with pytest.raises((RMHMCError, SamplingError), match="y"):
            draw(model, step)


# --- the evidence ---

Y = np.cumsum(np.random.default_rng(5).normal(size=T)) * 0.3


def gaussian_series() -> pm.Model:
    with pm.Model() as model:
        s = pm.LogNormal("s", -1.0, 0.5)
        h = pm.AR("h", rho=[0.9], sigma=s, init_dist=pm.Normal.dist(0, 1), shape=T)
        pm.Normal("y", h, 0.4, observed=Y)
    return model


def gaussian_sum() -> pm.Model:
    with pm.Model() as model:
        s, z = pm.LogNormal("s", -1.0, 0.5), pm.Normal("z", 0, 1, shape=T)
        pm.Normal("y", 0.9 ** np.arange(T) * pt.cumsum(z * s / 0.9 ** np.arange(T)), 0.4, observed=Y)
    return model


def exact_evidence(coefficient: float, first: float) -> float:
    """By quadrature over the one hyperparameter; without a deviation of its own the first value has that of a step."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    values = []
    root = np.linalg.inv(np.eye(T) - coefficient * np.eye(T, k=-1))
    for node in nodes:
        s = math.exp(-1.0 + 0.5 * node)
        covariance = root @ np.diag([(first or s) ** 2, *([s**2] * (T - 1))]) @ root.T + 0.16 * np.eye(T)
        values.append(stats.multivariate_normal.logpdf(Y, np.zeros(T), covariance))
    return float(logsumexp(values, b=weights / weights.sum()))


def posterior_by_quadrature() -> tuple[np.ndarray, np.ndarray]:
    """Mean of log s and of every h, and mean of their squares."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    log_densities, first, second = [], [], []
    for log_s in -1.0 + 0.5 * nodes:
        root = np.linalg.inv(np.eye(T) - 0.9 * np.eye(T, k=-1))
        prior = root @ np.diag([1.0, *([math.exp(2.0 * log_s)] * (T - 1))]) @ root.T
        covariance = prior + 0.16 * np.eye(T)
        log_densities.append(stats.multivariate_normal.logpdf(Y, np.zeros(T), covariance))
        gain = np.linalg.solve(covariance, prior).T
        mean, variance = gain @ Y, np.diag(prior - gain @ prior)
        first.append([log_s, *mean])
        second.append([log_s**2, *(mean**2 + variance)])
    shares = weights * np.exp(np.array(log_densities) - max(log_densities))
    shares /= shares.sum()
    return shares @ np.array(first), shares @ np.array(second)


def test_normal_data_take_turns_in_which_latent_values_are_drawn_anew():
    with gaussian_series():
        result = pm.sample(
            1000, tune=200, chains=2, cores=1, step=RMHMC(**FIELD), random_seed=1, progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip
    h, log_s = result.posterior["h"].values, np.log(result.posterior["s"].values)
    draws = np.concatenate((log_s[..., None], h), axis=-1)
    for values, exact in zip((draws, draws**2), posterior_by_quadrature(), strict=True):
        errors = np.array([float(az.mcse(each)) for each in np.moveaxis(values, -1, 0)])
        assert (np.abs(values.mean(axis=(0, 1)) - exact) / errors).max() < 4.5
    assert min(float(az.ess(each)) for each in np.moveaxis(h, -1, 0)) > 1400
    # One value of the density a draw, and a joint trajectory in three of ten.
    assert result.sample_stats["n_steps"].values.mean() < 3.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "coefficient", "first"), [(gaussian_series, 0.9, 1.0), (gaussian_sum, 0.9, 0.0)]
)
def test_the_evidence_of_a_gaussian_series_is_exact_but_for_its_error(build, coefficient, first):
    found = log_evidence(build(), random_seed=1, progressbar=False)
    error = float(found["standard_error"])
    assert error < 0.06
    assert float(found["log_evidence"]) == pytest.approx(exact_evidence(coefficient, first), abs=4.0 * error + 0.01)
