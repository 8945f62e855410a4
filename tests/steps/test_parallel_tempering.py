"""`parallel_tempering`: what it returns of a PyMC model, and what it refuses."""

from __future__ import annotations

import math

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy.stats import norm

from pymc_rmhmc import log_evidence, parallel_tempering
from pymc_rmhmc.errors import ConfigurationError, UnsupportedModelError
from pymc_rmhmc.evidence.evidence_draws import prior_draws
from pymc_rmhmc.evidence.evidence_references import widening
from pymc_rmhmc.evidence.parallel_tempering import DrawReader, TemperedModel, posterior_tree, read_tempered_model
from tests.steps.conftest import poisson_model
from tests.steps.test_log_evidence import scaled_gp

pytestmark = [
    pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS"),
    pytest.mark.usefixtures("pymc_by_python"),
]

OPTIONS = {"draws": 300, "tune": 200, "random_seed": 1, "progressbar": False}


def two_signs() -> pm.Model:
    """A mean whose sign is not known, with a scale for each of two groups and a prediction."""
    with pm.Model(coords={"group": ["a", "b"]}) as model:
        x = pm.Normal("x", 0.0, 3.0)
        scale = pm.HalfNormal("scale", 1.0, dims="group")
        pm.Deterministic("double", 2.0 * scale, dims="group")
        pm.Normal("y", pm.math.abs(x), 0.5, observed=[2.1, 1.7, 2.4])
        pm.Normal("z", 0.0, scale, observed=[0.5, 1.0], dims="group")
        pm.Normal("new", x, 0.5)
    return model


@pytest.fixture(scope="module")
def model(pymc_by_python) -> pm.Model:
    return two_signs()


@pytest.fixture(scope="module")
def idata(model) -> xr.DataTree:
    return parallel_tempering(model, keep="all", temperatures=5, **OPTIONS)


def test_draws_have_the_form_of_pm_sample(model, idata):
    posterior = idata.posterior
    assert set(posterior.data_vars) == {"x", "scale", "double", "new"}
    assert posterior["scale"].dims == ("chain", "draw", "group")
    assert list(posterior["group"].values) == ["a", "b"]
    assert dict(posterior["x"].sizes) == {"chain": 2, "draw": 300}
    assert np.allclose(posterior["double"], 2.0 * posterior["scale"])
    assert (posterior["scale"] > 0.0).all()
    assert list(idata.observed_data["y"].values) == [2.1, 1.7, 2.4]
    assert 0.4 < idata.sample_stats["acceptance"].mean() <= 1.0
    assert 0.2 < (posterior["x"] > 0.0).mean() < 0.8
    assert abs(posterior["new"] - posterior["x"]).mean() == pytest.approx(0.4, abs=0.1)
    assert float(az.ess(posterior["scale"]).min()) > 50


def test_the_log_density_is_the_models(model, idata):
    log_density = model.compile_logp()
    for draw in (0, 299):
        at = idata.posterior.isel(chain=1, draw=draw)
        point = {"x": at["x"].values, "scale_log__": np.log(at["scale"].values), "new": at["new"].values}
        assert idata.sample_stats["lp"].values[1, draw] == pytest.approx(float(log_density(point)))


def test_the_ladder_is_told(idata):
    known = idata["tempering"]
    assert known["beta"].values[[0, -1]].tolist() == [0.0, 1.0]
    assert known["rejection"].sizes == {"pair": 4}
    assert float(known["barrier"]) == pytest.approx(float(known["rejection"].sum()))
    assert known["round_trips"].sizes == {"chain": 2}
    assert known["round_trips"].min() > 5
    assert float(known["acceptance"][0]) == 1.0
    assert known["phi"].sizes == {"chain": 2, "draw": 300, "temperature": 5}


def test_draws_of_all_temperatures_are_kept_when_asked_for(idata):
    tempered = idata["tempered_posterior"]
    assert tempered["scale"].dims == ("chain", "draw", "temperature", "group")
    assert np.allclose(tempered["x"].isel(temperature=-1), idata.posterior["x"])
    assert list(tempered["group"].values) == ["a", "b"]


def evidence_of_two_signs() -> float:
    """By sums over grids."""
    x, s = np.linspace(-15.0, 15.0, 60001), np.linspace(1e-6, 12.0, 60001)

    def normal(v, m, sd):
        return np.exp(-0.5 * ((v - m) / sd) ** 2) / (sd * math.sqrt(2.0 * math.pi))

    of_x = normal(x, 0.0, 3.0) * np.prod([normal(y, np.abs(x), 0.5) for y in (2.1, 1.7, 2.4)], axis=0)
    of_scales = [np.trapezoid(2.0 * normal(s, 0.0, 1.0) * normal(z, 0.0, s), s) for z in (0.5, 1.0)]
    return math.log(np.trapezoid(of_x, x)) + sum(map(math.log, of_scales))


def test_the_evidence_is_that_of_a_grid(idata):
    known = idata["tempering"]
    error = float(known["standard_error"])
    assert 0.0 < error < 0.2
    assert abs(float(known["log_evidence"]) - evidence_of_two_signs()) < 4.0 * error


def test_one_seed_gives_the_same_draws_in_context(model):
    options = OPTIONS | {"draws": 150, "tune": 100, "temperatures": [0.0, 0.1, 0.4, 1.0]}
    with model:
        first, second = (parallel_tempering(**options) for _ in range(2))
    assert first.posterior.equals(second.posterior)
    assert first["tempering"]["beta"].values.tolist() == [0.0, 0.1, 0.4, 1.0]
    assert "tempered_posterior" not in first.children


def test_a_latent_block_starts_from_its_laplace_approximation():
    model = poisson_model()
    read = read_tempered_model(model)
    assert read.start(np.random.default_rng(0), None)[1] is None
    idata = parallel_tempering(model, **OPTIONS)
    log_density = model.compile_logp()
    at = idata.posterior["f"].values[0, 7]
    assert idata.sample_stats["lp"].values[0, 7] == pytest.approx(float(log_density({"f": at})))
    assert float(idata["tempering"]["standard_error"]) < 0.02
    assert float(idata["tempering"]["barrier"]) < 0.5


@pytest.fixture(scope="module")
def read(model) -> TemperedModel:
    return read_tempered_model(model)


def test_a_reference_is_refitted_and_states_keep_their_values(read):
    rng = np.random.default_rng(0)
    first, refit = read.start(rng, None)
    drawn = first.values(rng.standard_normal((200, 3)), rng)
    assert drawn[:, 0].std() == pytest.approx(3.0, rel=0.2)  # the prior's
    values = np.array([1.0, -0.5, 0.3]) + drawn * [0.1, 0.5, 0.5]
    second = refit(values)
    for reference in (first, second):
        states = reference.positions(values, rng)
        assert reference.values(states, rng) == pytest.approx(values)
    assert states.mean(axis=0) == pytest.approx(np.zeros(3), abs=1e-6)
    assert widening(3) ** 2 * np.cov(states.T) == pytest.approx(np.eye(3), abs=0.1)
    # The same density in other coordinates: log p(x) = C + φ(u) + log N(u) - log |dx/du|.
    assert first.log_constant != second.log_constant


def test_hyperparameters_begin_at_their_prior_and_latent_values_at_what_a_chain_knows():
    model, exact = scaled_gp()
    read, rng = read_tempered_model(model), np.random.default_rng(0)
    reference, refit = read.start(rng, None)
    values = reference.values(rng.standard_normal((300, reference.size)), rng)
    assert values[:, 0].mean() == pytest.approx(0.0, abs=0.1)
    assert values[:, 0].std() == pytest.approx(0.5, rel=0.15)
    states = reference.positions(values, rng)
    assert reference.values(states, rng) == pytest.approx(values)
    narrower = refit(values * np.concatenate(([0.2], np.ones(values.shape[1] - 1))))
    seen = narrower.values(rng.standard_normal((300, reference.size)), rng)[:, 0]
    assert seen.std() == pytest.approx(widening(1) * 0.1, rel=0.15)
    idata = parallel_tempering(model, **OPTIONS)
    found = idata["tempering"]
    assert abs(float(found["log_evidence"]) - exact) < 4.0 * float(found["standard_error"]) < 0.2
    assert float(found["barrier"]) < 1.0


SIDES = np.array([1.6, 1.9, 1.7, 1.2])
SMOOTH = np.exp(-0.5 * (np.arange(4.0)[:, None] - np.arange(4.0)) ** 2 / 4.0) + 1e-6 * np.eye(4)


def unsigned(*, sampled: bool) -> tuple[pm.Model, float]:
    """Latent values whose sign is not known, and their evidence by draws of the prior."""
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 3.0) if sampled else 2.0
        f = pm.MvNormal("f", np.zeros(4), cov=scale**2 * SMOOTH)
        pm.Normal("y", pm.math.abs(f), 0.5, observed=SIDES)
    scales = 3.0 * np.abs(rng.standard_normal(10**6)) if sampled else np.full(10**6, 2.0)
    drawn = scales[:, None] * (rng.standard_normal((10**6, 4)) @ np.linalg.cholesky(SMOOTH).T)
    return model, float(np.log(np.exp(norm(np.abs(drawn), 0.5).logpdf(SIDES).sum(axis=1)).mean()))


@pytest.mark.parametrize(
    "sampled",
    [
        pytest.param(False, id="scale known", marks=pytest.mark.slow(by_python=True)),
        pytest.param(True, id="scale sampled"),
    ],
)
def test_no_mode_of_latent_values_is_lost(sampled):
    model, exact = unsigned(sampled=sampled)
    idata = parallel_tempering(model, **OPTIONS | {"draws": 500, "tune": 400})
    assert 0.3 < float((idata.posterior["f"][..., 0] > 0.0).mean()) < 0.7
    error = float(idata["tempering"]["standard_error"])
    assert abs(float(idata["tempering"]["log_evidence"]) - exact) < 4.0 * error < 0.4
    if not sampled:
        found = log_evidence(model, method="tempering", target_error=0.1, random_seed=1, progressbar=False)
        assert abs(float(found.log_evidence) - exact) < 4.0 * float(found.standard_error)


def test_a_prior_without_draws_has_none():
    rng = np.random.default_rng(0)
    with pm.Model() as flat:
        x = pm.Flat("x")
    assert len(prior_draws(flat, [x], rng)) == 0
    with pm.Model() as bounded:
        u = pm.Uniform("u", -1.0, 3.0, shape=2)
    found = prior_draws(bounded, [u], rng)
    assert found.shape[1] == 2
    assert found.mean() == pytest.approx(0.0, abs=0.3)  # the logit of a uniform


def test_values_become_a_posterior(model, read):
    tree = posterior_tree(
        model, np.full((2, 3, 3), 0.5), DrawReader(model, read.variables, None, np.random.default_rng(0)), {}
    )
    assert np.allclose(tree.posterior["scale"], math.exp(0.5))
    assert tree.sample_stats["lp"].sizes == {"chain": 2, "draw": 3}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"draws": 0}, "draws must be a whole number"),
        ({"replicas": 0}, "replicas must be"),
        ({"replicas": 1.5}, "replicas must be"),
        ({"tune": 0}, "tune must be"),
        ({"temperatures": 1}, "from 2 up"),
        ({"temperatures": [0.0, 0.7, 0.5, 1.0]}, "must increase"),
        ({"temperatures": [0.1, 1.0]}, "begin with 0"),
        ({"temperatures": [0.0, 0.9]}, "end with 1"),
        ({"temperatures": "many"}, "a sequence"),
        ({"keep": "none"}, "keep must be one of"),
        ({"swaps": "some"}, "swaps must be one of"),
        ({"max_seconds": -1}, "max_seconds"),
        ({"progressbar": "no"}, "progressbar"),
        ({"random_seed": -1}, "random_seed must be"),
        ({"chains": 4}, "cannot be called like this"),
    ],
)
def test_what_cannot_be_used_is_refused_at_once(model, options, says):
    with pytest.raises(ConfigurationError, match=says):
        parallel_tempering(model, **options)


def test_there_must_be_a_model():
    with pytest.raises(ConfigurationError, match="none in context"):
        parallel_tempering()


def test_discrete_variables_are_refused():
    with pm.Model() as model:
        k = pm.Poisson("k", 2.0)
        pm.Normal("y", k, 1.0, observed=1.0)
    with pytest.raises(UnsupportedModelError, match="k: a discrete variable has no trajectories"):
        parallel_tempering(model)
