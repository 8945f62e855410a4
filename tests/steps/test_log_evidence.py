"""`log_evidence` on models whose evidence is known, and on what has none."""

from __future__ import annotations

import math
import re
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from pymc.distributions import transforms
from scipy import integrate, special
from scipy.stats import multivariate_normal, norm

from pymc_rmhmc import RMHMC, Annealing, GaussianSites, log_evidence, parallel_tempering
from pymc_rmhmc.errors import (
    ApproximationError,
    ConfigurationError,
    CovarianceError,
    DataError,
    EvidenceError,
    UnsupportedModelError,
)
from pymc_rmhmc.evidence.evidence_methods import _merged, halves
from pymc_rmhmc.evidence.evidence_models import check_proper, convention_in_words, omitted_constants, read_model
from pymc_rmhmc.evidence.methods.estimate import Estimate
from pymc_rmhmc.evidence.parallel_tempering import read_tempered_model
from tests.steps.conftest import draw, poisson_model
from tests.thinned import thinned

RNG = np.random.default_rng(0)
X = RNG.uniform(0.0, 3.0, (15, 1))
K = 1.2 * np.exp(-0.5 * (X - X.T) ** 2) + 1e-6 * np.eye(15)
Y = np.sin(2.0 * X[:, 0]) + 0.3 * RNG.standard_normal(15)
EFFECTS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


def estimate(model, **options):
    return log_evidence(model, **{"random_seed": 1, "progressbar": False, **options})


def far_from_zero() -> tuple[pm.Model, float]:
    """Where squares have no digits left for what the data say."""
    with pm.Model() as model:
        x = pm.MvNormal("x", np.full(15, 1e9), cov=K)
        pm.Normal("y", x, 0.3, observed=1e9 + Y)
    return model, float(multivariate_normal(np.zeros(15), K + 0.09 * np.eye(15)).logpdf(Y))


def noisy_gp() -> tuple[pm.Model, float]:
    with pm.Model() as model:
        f = pm.MvNormal("f", np.full(15, 0.2), cov=K)
        pm.Normal("y", f, 0.3, observed=Y)
    return model, float(multivariate_normal(np.full(15, 0.2), K + 0.09 * np.eye(15)).logpdf(Y))


def add_a_block() -> float:
    """Add latent values and their data to the model in context; return their log evidence."""
    g = pm.MvNormal("g", np.zeros(15), cov=K)
    pm.Normal("other", g, 0.5, observed=Y)
    return float(multivariate_normal(np.zeros(15), K + 0.25 * np.eye(15)).logpdf(Y))


def scaled_gp() -> tuple[pm.Model, float]:
    """With an amplitude that is sampled together with the latent values."""
    with pm.Model() as model:
        a = pm.LogNormal("a", 0.0, 0.5)
        f = pm.MvNormal("f", np.zeros(15), cov=a**2 * K)
        pm.Normal("y", f, 0.3, observed=Y)

    def given(log_a):
        density = multivariate_normal(np.zeros(15), math.exp(2.0 * log_a) * K + 0.09 * np.eye(15)).logpdf(Y)
        return math.exp(density + 10.0 - 2.0 * log_a**2) / (0.5 * math.sqrt(2.0 * math.pi))

    return model, math.log(integrate.quad(given, -4.0, 4.0, epsabs=1e-12)[0]) - 10.0


def regression() -> tuple[pm.Model, float]:
    """With a scale that is sampled: no latent Gaussian block is alone."""
    z = RNG.standard_normal((20, 2))
    y = z @ [1.0, -0.5] + 0.7 * np.random.default_rng(1).standard_normal(20)
    with pm.Model() as model:
        s = pm.HalfNormal("s", 1.0)
        b = pm.Normal("b", 0.0, 1.5, shape=2)
        pm.Normal("y", pm.math.dot(z, b), s, observed=y)

    def given(s):
        density = multivariate_normal(np.zeros(20), 2.25 * z @ z.T + s**2 * np.eye(20)).logpdf(y)
        return math.exp(density + 30.0) * 2.0 * math.exp(-0.5 * s**2) / math.sqrt(2.0 * math.pi)

    return model, math.log(integrate.quad(given, 0.05, 8.0, epsabs=1e-12)[0]) - 30.0


def eight_schools() -> tuple[pm.Model, float]:
    effects, errors = EFFECTS
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 5.0)
        tau = pm.HalfCauchy("tau", 5.0)
        theta = pm.Normal("theta", mu, tau, shape=8)
        pm.Normal("y", theta, errors, observed=effects)
    return model, -31.3113  # by quadrature over tau


EXACT = {
    "gp": noisy_gp, "far from zero": far_from_zero, "scaled gp": scaled_gp, "regression": regression,
    "eight schools": eight_schools,
}  # fmt: skip


@pytest.mark.parametrize(
    ("method", "name"),
    [
        *(("auto", name) for name in EXACT),
        *thinned([("bridge", name) for name in EXACT], 2),  # faults are planted for these
        # Of the others by annealing the slow suite has a hundred seeds.
        *(("annealing", name) for name in ("gp", "scaled gp")),
    ],
)
def test_every_method_finds_a_known_evidence(name, method):
    model, exact = EXACT[name]()
    found = estimate(model, method=method, target_error=0.03)
    assert float(found.standard_error) <= 0.03
    assert abs(float(found.log_evidence) - exact) < max(4.0 * float(found.standard_error), 1e-6)
    assert found.attrs["target_reached"]
    assert "log y!" in found.attrs["convention"]


def test_weights_of_draws_are_the_evidence_where_the_approximation_is_exact():
    model, exact = noisy_gp()
    with model:
        idata = draw(model, RMHMC())
    np.testing.assert_allclose(idata.sample_stats["log_weight"], exact, atol=1e-8)


@pytest.mark.parametrize("name", ["scaled gp", "eight schools"])
def test_weights_of_draws_have_the_inverse_of_the_evidence_as_their_mean(name):
    model, exact = EXACT[name]()
    with model:
        log_weights = draw(model, RMHMC(), tune=300, draws=600).sample_stats["log_weight"].values.ravel()
    assert 0.01 < log_weights.std() < 2.0
    assert special.logsumexp(-log_weights) - math.log(log_weights.size) == pytest.approx(-exact, abs=0.1)


def test_weights_stay_where_draws_do_and_hold_the_constants_of_other_variables():
    """Beside a block of latent values and a prediction there is a likelihood of its own."""
    model, exact = noisy_gp()
    with model:
        of_g = add_a_block()
        pm.Normal("known", 0.0, 1.0, observed=0.7)
        pm.Normal("new", model["f"][0], 1.0)
        idata = draw(model, RMHMC(step_size=3.0, n_steps=1), draws=60)
    expected = exact + of_g + norm.logpdf(0.7)
    np.testing.assert_allclose(idata.sample_stats["log_weight"], expected, atol=1e-8)
    count_model = poisson_model()
    with count_model:
        idata = draw(count_model, RMHMC(step_size=2.5, n_steps=1), draws=100)
    stays = idata.sample_stats["accepted"].values[0, 1:] == 0.0
    weights = idata.sample_stats["log_weight"].values[0]
    assert 5 < stays.sum() < 95
    np.testing.assert_array_equal(np.diff(weights) == 0.0, stays)


def test_approximations_are_exact_for_normal_noise():
    model, exact = noisy_gp()
    for method in ("laplace", "ep"):
        found = estimate(model, method=method)
        assert float(found.log_evidence) == pytest.approx(exact, abs=1e-6)
        assert math.isnan(float(found.standard_error))


@pytest.mark.parametrize("sites", ["laplace", "ep", "prior", GaussianSites(np.full(12, 0.5), np.full(12, 0.6))])
def test_any_sites_lead_to_the_same_evidence(sites):
    found = estimate(poisson_model(), sites=sites, method="bridge", target_error=0.04)
    best = estimate(poisson_model(), target_error=0.005)
    error = math.hypot(float(found.standard_error), float(best.standard_error))
    assert abs(float(found.log_evidence) - float(best.log_evidence)) < 4.0 * error


@pytest.mark.parametrize("kernel", ["elliptical_slice", "hessian", "hmc"])
def test_kernels_of_annealing(kernel):
    own = {"hessian": {"step_size": 0.2, "n_steps": 3}, "hmc": {"step_size": 0.02, "n_steps": 10}}
    options = own.get(kernel, {})
    method = Annealing(ladder="linear", n_rungs=5, kernel=kernel, bounds=False, **options)
    found = estimate(poisson_model(), method=method, replicates=32, target_error=0.2, max_seconds=20)
    best = estimate(poisson_model(), target_error=0.005)
    assert abs(float(found.log_evidence) - float(best.log_evidence)) < 4.0 * float(found.standard_error)


def test_blocks_add_up():
    model, exact = noisy_gp()
    with model:
        exact += add_a_block()
        pm.Normal("apart", 1.0, 2.0, observed=0.3)
    exact += -0.5 * 0.35**2 - math.log(2.0 * math.sqrt(2.0 * math.pi))
    found = estimate(model, method="bridge")
    assert float(found.log_evidence) == pytest.approx(exact, abs=1e-6)
    assert set(found.block.values) == {"f", "g"}
    assert float(found["ep of f"] + found["ep of g"]) == pytest.approx(exact, abs=1e-6)


def test_a_prediction_changes_nothing():
    model, exact = noisy_gp()
    with model:
        pm.Normal("new", model["f"][0], 1.0)
    assert float(estimate(model).log_evidence) == pytest.approx(exact, abs=1e-6)


def adjacency() -> np.ndarray:
    w = np.zeros((6, 6), int)
    for i, j in [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (0, 3)]:
        w[i, j] = w[j, i] = 1
    return w


@pytest.mark.parametrize("kind", ["car", "icar"])
def test_areal_models_are_normalised(kind):
    """Against the multivariate normal with the same precision, in the latent form and by the graph."""
    w, y = adjacency(), np.array([0.3, -0.2, 0.5, 0.1, 0.0, -0.4])
    degrees = np.diag(w.sum(axis=0))
    precision = degrees - (0.7 * w if kind == "car" else w - np.ones((6, 6)) / (0.1 * 6) ** 2)
    with pm.Model() as model:
        if kind == "car":
            x = pm.CAR("x", mu=np.zeros(6), W=w, alpha=0.7, tau=1.0)
        else:
            x = pm.ICAR("x", W=w, zero_sum_stdev=0.1)
        pm.Normal("y", x, 0.5, observed=y)
    exact = float(multivariate_normal(np.zeros(6), np.linalg.inv(precision) + 0.25 * np.eye(6)).logpdf(y))
    found = estimate(model)
    assert float(found.log_evidence) == pytest.approx(exact, abs=1e-5)
    assert "lacks constants" in found.attrs["convention"]
    # What the graph's chart adds to PyMC's own density.
    values = model.initial_point() | {"x": np.array([0.3, -0.1, 0.2, 0.0, 0.4, -0.5])}
    own = float(model.compile_logp(vars=[model["x"]])(values))
    normalised = multivariate_normal(np.zeros(6), np.linalg.inv(precision)).logpdf(values["x"])
    assert omitted_constants(model, ["x"]) == pytest.approx(normalised - own, abs=1e-9)
    assert omitted_constants(model, []) == 0.0


def test_rows_of_a_map_are_normalised_each():
    w, y = adjacency(), np.array([[0.3, -0.2, 0.5, 0.1, 0.0, -0.4], [0.0, 0.1, -0.3, 0.2, 0.4, 0.1]])
    with pm.Model() as model:
        pm.CAR("x", mu=np.zeros(6), W=w, alpha=0.7, tau=1.0, observed=y)
        a = pm.Normal("a", 0.0, 1.0)
        pm.Normal("z", a, 1.0, observed=0.5)
    law = multivariate_normal(np.zeros(6), np.linalg.inv(np.diag(w.sum(axis=0)) - 0.7 * w))
    exact = float(law.logpdf(y).sum()) + float(multivariate_normal(0.0, 2.0).logpdf(0.5))
    assert float(estimate(model).log_evidence) == pytest.approx(exact, abs=1e-6)


def test_tempering_has_what_stands_beside_its_reference():
    """Data that read no latent value, and what the density of a map's data lacks."""
    model, exact = noisy_gp()
    with model:
        pm.Normal("known", 0.0, 1.0, observed=0.7)
    exact += float(norm.logpdf(0.7))
    assert float(estimate(model, method="tempering").log_evidence) == pytest.approx(exact, abs=1e-6)
    drawn = parallel_tempering(model, draws=100, tune=50, random_seed=1, progressbar=False)
    assert float(drawn["tempering"].log_evidence) == pytest.approx(exact, abs=1e-6)
    with pm.Model() as model:
        pm.CAR("x", mu=np.zeros(6), W=adjacency(), alpha=0.7, tau=1.0, observed=np.linspace(-0.4, 0.5, 6))
        pm.Normal("z", 0.0, pm.HalfNormal("a", 1.0), observed=0.5)
    for read in (read_model(model), read_tempered_model(model)):
        assert read.constant == pytest.approx(omitted_constants(model, []))
        assert read.constant < -3.0


def test_the_error_of_repetitions_is_that_of_their_mean():
    known = ((1.0, 0.1), (1.1, 0.2), (0.9, 0.1), (1.2, 0.2))
    parts = [("f", "bridge", Estimate(*each, {"phi_ess": 100.0})) for each in known]
    name, method, found = _merged(parts)
    assert (name, method) == ("f", "bridge")
    assert found.log_evidence == pytest.approx(1.05)
    assert found.standard_error == pytest.approx(math.sqrt(0.1) / 4.0)
    with pytest.raises(EvidenceError, match="differ by more than their errors"):
        _merged([*parts, ("f", "bridge", Estimate(2.0, 0.1))])


def covariate_model(x, groups, order) -> pm.Model:
    """Effects of labelled groups about a line; no latent block stands alone."""
    with pm.Model(coords={"group": order}) as model:
        at = pm.Data("at", x)
        s = pm.HalfNormal("s", 1.0)
        effect = pm.Normal("effect", 0.0, s, dims="group")
        slope = pm.Normal("slope", 0.0, 1.0)
        which = np.array([order.index(g) for g in groups])
        pm.Normal("y", effect[which] + slope * at, 0.5, observed=np.linspace(-1.0, 1.0, 12) + 0.4 * (which == 0))
    return model


@pytest.mark.slow(by_python=True)
def test_draws_are_read_by_their_labels():
    """Of a model whose labels stand in another order; and not of one with another covariate."""
    x, groups = np.linspace(-1.0, 1.0, 12), list("abcabcabcabc")
    model = covariate_model(x, groups, ["a", "b", "c"])
    idata = posterior_of(model)
    turned = idata.isel(group=[2, 0, 1])
    with model:  # what is predicted afterwards is not asked of the draws
        pm.Normal("new", model["slope"], 1.0)
    same, again = (estimate(model, draws=each) for each in (idata, turned))
    assert float(again.log_evidence) == pytest.approx(float(same.log_evidence), abs=1e-9)
    with model:
        pm.set_data({"at": x + 1.0})
    with pytest.raises(DataError, match="other data of at"):
        estimate(model, draws=idata)
    other = covariate_model(x, ["d" if g == "c" else g for g in groups], ["a", "b", "d"])
    with pytest.raises(DataError, match="other labels along group"):
        estimate(other, draws=idata)


def posterior_of(model, draws=300, chains=4, seed=2) -> xr.DataTree:
    from pymc_rmhmc import RMHMC

    with model:
        return pm.sample(
            draws, tune=300, chains=chains, cores=1, step=RMHMC(), progressbar=False, random_seed=seed,
            compute_convergence_checks=False,
        )  # fmt: skip


@pytest.mark.parametrize("name", ["gp", "scaled gp"])
def test_draws_of_another_run_serve(name):
    model, exact = EXACT[name]()
    found = estimate(model, draws=posterior_of(model), target_error=0.05)
    assert abs(float(found.log_evidence) - exact) < max(4.0 * float(found.standard_error), 1e-6)


def test_what_is_fitted_to_draws_is_not_bridged_with_them():
    draws = np.arange(40.0).reshape(2, 10, 2)
    fitted, kept = halves(draws)
    assert not set(fitted.ravel()) & set(kept.ravel())
    assert fitted.size + kept.size == draws.size


def test_draws_of_other_models_and_other_data_are_refused():
    model, _ = noisy_gp()
    other, _ = regression()
    idata = posterior_of(model, draws=60, chains=2)
    with pytest.raises(DataError, match="has no s"):
        estimate(other, draws=idata)
    with pm.Model() as changed:
        f = pm.MvNormal("f", np.full(15, 0.2), cov=K)
        pm.Normal("y", f, 0.3, observed=Y + 0.1)
    with pytest.raises(DataError, match="other data of y"):
        estimate(changed, draws=idata)
    with pytest.raises(DataError, match="at least 100"):
        estimate(model, draws=idata.isel(draw=slice(0, 20)))
    with pytest.raises(ConfigurationError, match="draws= has no effect"):
        estimate(model, draws=idata, method="ep")
    with pytest.raises(DataError, match="no posterior"):
        estimate(model, draws=3)


@pytest.mark.slow(by_python=True)
def test_repetitions_run_on_an_executor():
    model, exact = regression()
    with ThreadPoolExecutor(1) as executor:
        found = estimate(model, executor=executor, target_error=0.1)
    assert found.sizes["repetition"] == 4
    assert abs(float(found.log_evidence) - exact) < 4.0 * float(found.standard_error)


@pytest.mark.slow
def test_repetitions_in_processes_are_those_in_threads():
    model, _ = scaled_gp()
    found = []
    for pool in (ThreadPoolExecutor(1), ProcessPoolExecutor(2)):
        with pool:
            found.append(estimate(model, executor=pool, target_error=0.1))
    in_threads, in_processes = (each["repetition_estimate"] for each in found)
    assert in_threads.size == 4
    # A process that compiles a function rounds otherwise than one that reads it.
    np.testing.assert_allclose(in_threads, in_processes, atol=1e-6)


def flat_prior():
    m = pm.Flat("m")
    pm.Normal("y", m, 1.0, observed=Y)


def discrete():
    k = pm.Bernoulli("k", 0.5)
    pm.Normal("y", k, 1.0, observed=Y)


def scaled_icar():
    s = pm.HalfNormal("s", 1.0)
    x = pm.ICAR("x", W=adjacency(), sigma=s)
    pm.Normal("y", x, 1.0, observed=Y[:6])


def islands():
    w = np.kron(np.eye(2, dtype=int), 1 - np.eye(3, dtype=int))
    x = pm.ICAR("x", W=w)
    pm.Normal("y", x, 1.0, observed=Y[:6])


def indefinite():
    f = pm.MvNormal("f", np.zeros(15), cov=K - 0.5 * np.eye(15))
    pm.Poisson("y", pm.math.exp(f), observed=np.arange(15))


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (flat_prior, EvidenceError, "does not exist: the prior of m is flat"),
        (discrete, UnsupportedModelError, "k: a discrete variable has no trajectories"),
        (scaled_icar, EvidenceError, "lacks a factor"),
        (islands, EvidenceError, "falls in several parts"),
        (indefinite, CovarianceError, "not positive definite"),
    ],
)
def test_models_without_an_evidence_are_refused(build, error, words):
    with pm.Model() as model:
        build()
    with pytest.raises(error, match=words):
        estimate(model)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "magic"}, "method must be one of"),
        ({"sites": "best"}, "sites must be one of"),
        ({"target_error": 0.0}, "target_error must be"),
        ({"target_error": "small"}, "target_error must be a number"),
        ({"max_seconds": -1}, "max_seconds must be"),
        ({"replicates": 0}, "replicates must be a whole number from 16"),
        ({"progressbar": "no"}, "progressbar must be True or False"),
        ({"executor": 3}, "executor must be"),
        ({"random_seed": "a"}, "random_seed must be an integer"),
        ({"colour": 1}, "cannot be called like this"),
        ({"draws": 1, "executor": 1}, "draws= and executor= together"),
        ({"method": "laplace", "sites": "ep"}, "sites= has no effect"),
        ({"method": "ep", "executor": ThreadPoolExecutor}, "executor= has no effect"),
        ({"method": "tempering", "replicates": 32}, "replicates= has no effect"),
        ({"method": "tempering", "draws": 1}, "draws= has no effect"),
        ({"sites": GaussianSites(np.zeros(3), np.zeros(3))}, "has 3 sites, and f has 12"),
        ({"sites": GaussianSites(np.zeros(12), np.full(12, -50.0))}, "is no normal density"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(ConfigurationError, match=words):
        estimate(poisson_model(), **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ladder": [0.0, 0.5, 0.4, 1.0]}, "ladder must increase"),
        ({"ladder": [0.1, 1.0]}, "ladder must begin with 0"),
        ({"ladder": [0.0, 0.9]}, "ladder must begin with 0"),
        ({"ladder": [0.0]}, "at least 2"),
        ({"ladder": 3}, "at least 2"),
        ({"ladder": "steep"}, "ladder must be one of"),
        ({"kernel": "gibbs"}, "kernel must be one of"),
        ({"n_rungs": 10}, "has no effect"),
        ({"ladder": "linear", "n_rungs": 0}, "n_rungs must be"),
        ({"step_size": 0.1}, "has no effect"),
        ({"kernel": "hmc", "step_size": -1.0}, "step_size must be"),
        ({"bounds": 1}, "bounds must be True or False"),
    ],
)
def test_bad_ladders_are_refused(options, words):
    with pytest.raises(ConfigurationError, match=words):
        Annealing(**options)


def test_there_must_be_a_model_with_data():
    with pytest.raises(ConfigurationError, match="there is none in context"):
        log_evidence()
    with pytest.raises(ConfigurationError, match=r"must be a pymc\.Model"):
        log_evidence("model")
    with pm.Model() as model:
        pm.Normal("x")
    with pytest.raises(EvidenceError, match="no observed data"):
        estimate(model)


def test_two_modes_are_told_and_found_by_tempering():
    """Where a chain is in one of two equal modes, a bridge would know of no other."""
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 3.0)
        pm.Normal("y", pm.math.abs(x), 0.5, observed=[2.1, 1.7, 2.4])
    for method in ("auto", "annealing"):
        with pytest.raises(EvidenceError, match="has several modes"):
            estimate(model, method=method)
    found = estimate(model, method="tempering", target_error=0.05, max_seconds=300)
    assert abs(float(found.log_evidence) + 3.0583) < 4.0 * float(found.standard_error) < 0.3
    assert found.round_trips.min() > 50


def cauchy_prior(x_prior) -> pm.Model:
    with pm.Model() as model:
        pm.Normal("y", x_prior(), 100.0, observed=[0.5])
    return model


@pytest.mark.parametrize(
    "prior",
    [
        lambda: pm.Cauchy("x", 0.0, 1.0),
        lambda: pm.CustomDist("x", logp=lambda x: -pm.math.log1p(x**2) - math.log(math.pi)),
    ],
    ids=["prior with draws", "prior without draws"],
)
def test_heavy_tails_are_in_the_evidence(prior):
    """A hundredth of the posterior lies beyond 60 scales, and a chain seldom goes there."""
    found = estimate(cauchy_prior(prior), target_error=0.02)
    assert abs(float(found.log_evidence) + 5.532082) < 4.0 * float(found.standard_error) < 0.08
    assert np.isfinite(found.acceptance).all()  # by walkers that have such tails: draws of a chain have no acceptance


def test_draws_of_one_mode_are_told():
    """Of two equal modes, and of a tail that they have missed."""
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 5.0)
        pm.Normal("y", pm.math.abs(x), 0.5, observed=[3.0])
    values = 3.0 + 0.5 * np.random.default_rng(1).standard_normal((4, 500))
    with pytest.raises(EvidenceError, match="has several modes"):
        estimate(model, draws=az.from_dict({"posterior": {"x": values}}))
    values = np.random.default_rng(1).standard_cauchy((4, 1500))
    near = np.where(np.abs(values) < 2.0, values, np.sign(values))
    with pytest.raises(EvidenceError, match="have missed a part of it"):
        estimate(cauchy_prior(lambda: pm.Cauchy("x", 0.0, 1.0)), draws=az.from_dict({"posterior": {"x": near}}))


def with_observation(prior) -> pm.Model:
    with pm.Model() as model:
        pm.Normal("y", prior(), 1.0, observed=0.3)
    return model


@pytest.mark.parametrize(
    ("prior", "share"),
    [
        (lambda: pm.Normal("x", 0.0, 1.0, transform=transforms.log), 0.5),
        (lambda: pm.Normal("x", 0.0, 1.0, transform=transforms.Interval(0.0, 1.0)), 0.341),
        (lambda: pm.Uniform("x", 0.0, 1.0, default_transform=transforms.Interval(0.0, 0.25)), 0.25),
        (lambda: pm.Normal("x", 0.0, 2.0, transform=transforms.circular), 0.884),
        (lambda: pm.Normal("x", 0.0, 1.0, transform=transforms.logodds), 0.341),
    ],
    ids=["log", "Interval", "bounded", "circular", "logodds"],
)
def test_priors_that_a_transform_restricts_are_told(prior, share):
    said = convention_in_words(with_observation(prior))
    found = re.search(r"The transform of x leaves about (\S+) of its prior", said)
    assert found, said
    assert float(found[1]) == pytest.approx(share, abs=4.0 * math.sqrt(share * (1.0 - share) / 4000))


def test_priors_that_no_transform_restricts_are_not_told():
    with pm.Model() as model:
        pm.HalfNormal("a")
        pm.Uniform("b", 0.0, pm.Exponential("c"))
        pm.VonMises("d", 0.0, 1.0)
        pm.Dirichlet("e", np.ones(3))
        pm.Beta("f", 1.0, 1.0, default_transform=transforms.Interval(0.0, 1.0))
        pm.Normal("y", 0.0, 1.0, observed=0.3)
    assert "The transform of" not in convention_in_words(model)


def test_densities_that_a_user_has_written():
    """One that is constant has no evidence; of others nobody knows whether they are normalised."""
    constant = with_observation(lambda: pm.CustomDist("x", logp=lambda x: pm.math.zeros_like(x)))
    with pytest.raises(EvidenceError, match="density of x falls no faster than"):
        check_proper(constant)
    cauchy = with_observation(lambda: pm.CustomDist("x", logp=lambda x: -pm.math.log1p(x**2)))
    check_proper(cauchy)
    assert "The density of x is taken as it stands" in convention_in_words(cauchy)


def weak_angle() -> pm.Model:
    with pm.Model() as model:
        a = pm.VonMises("a", 0.0, 0.5)
        pm.Normal("y", pm.math.cos(a), 2.0, observed=[0.3])
    return model


def test_angles_are_integrated_over_one_circle():
    """PyMC's values of an angle go round and round: over all of these its density has no finite integral."""
    assert [name for name, _ in read_model(weak_angle()).variables.slices] == ["a_interval__"]
    found = estimate(weak_angle(), target_error=0.02, max_seconds=30)
    assert abs(float(found.log_evidence) + 1.667851) < 4.0 * float(found.standard_error) < 0.08


def test_hmc_is_for_latent_values_that_are_read_as_they_are():
    x = np.linspace(-1.0, 1.0, 15)
    with pm.Model() as model:
        b = pm.Normal("b", 0.0, 1.0, shape=2)
        pm.Poisson("y", pm.math.exp(b[0] + b[1] * x), observed=np.arange(15) // 4)
    with pytest.raises(ConfigurationError, match="a linear predictor"):
        estimate(model, method=Annealing(kernel="hmc"))


def test_one_chain_of_draws_is_compared_with_itself():
    model, exact = noisy_gp()
    found = estimate(model, draws=posterior_of(model, chains=1))
    assert float(found.log_evidence) == pytest.approx(exact, abs=1e-6)
    assert np.isfinite(found.phi_rhat).all()


def test_methods_of_latent_blocks_are_refused_for_whole_models():
    model, _ = regression()
    with pytest.raises(ConfigurationError, match="latent Gaussian values alone"):
        estimate(model, method="ep")
    with pytest.raises(ConfigurationError, match="Leave sites out"):
        estimate(model, sites="laplace")
    with pytest.raises(ConfigurationError, match="Leave kernel out"):
        estimate(model, method=Annealing(kernel="hmc"))


def test_ep_that_does_not_converge_is_told():
    """Heavy tails and little noise beside outliers: the sites do not settle. Laplace and a bridge serve."""
    rng, n = np.random.default_rng(2), 30
    x = np.sort(rng.uniform(0.0, 10.0, n))[:, None]
    covariance = 4.0 * np.exp(-0.5 * (x - x.T) ** 2) + 1e-6 * np.eye(n)
    y = np.linalg.cholesky(covariance) @ rng.standard_normal(n) + 0.05 * rng.standard_t(2, n)
    y[::5] += 3.0
    with pm.Model() as model:
        f = pm.MvNormal("f", np.zeros(n), cov=covariance)
        pm.StudentT("y", nu=2, mu=f, sigma=0.05, observed=y)
    with pytest.raises(ApproximationError, match="does not converge"):
        estimate(model, method="ep")


@pytest.mark.parametrize("law", ["registered", "unregistered"])
def test_likelihoods_at_many_states_are_those_at_each(law):
    with pm.Model() as model:
        f = pm.MvNormal("f", np.zeros(15), cov=K)
        if law == "registered":
            pm.Poisson("y", pm.math.exp(f), observed=np.arange(15) // 4)
        else:
            pm.Gumbel("y", mu=f, beta=0.7, observed=Y)
    likelihood = read_model(model).parts[0].likelihood
    eta = np.random.default_rng(3).standard_normal((4, 15))
    totals, slopes = likelihood.gradient_rows(eta)
    for total, slope, row in zip(totals, slopes, eta, strict=True):
        wanted, gradient = likelihood.gradient(row)
        assert total == pytest.approx(wanted, rel=1e-12)
        np.testing.assert_allclose(slope, gradient, rtol=1e-12)
