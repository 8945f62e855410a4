"""Position-dependent metrics of any model, inside pm.sample: what a user sees of them."""

from __future__ import annotations

from functools import cache

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy.stats import norm

from pymc_rmhmc import (
    RMHMC,
    ConfigurationError,
    ExplicitTao,
    FisherMetric,
    FlatMetric,
    GraphMetric,
    ImplicitMidpoint,
    SoftAbsMetric,
    UnsupportedModelError,
)
from pymc_rmhmc.sampled import whole_model_metric
from tests.steps.conftest import draw, logistic, poisson_model
from tests.thinned import thinned

SEEN = np.array([-1.0, 0.5, 2.0])


@pytest.fixture(scope="module", autouse=True)
def derivatives_once():
    """Derivatives of a model are taken and compiled once for all tests with it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HessianModel", "MatrixModel"):
            patch.setattr(whole_model_metric, name, _once(getattr(whole_model_metric, name)))
        yield


def _once(build):
    made = {}

    def find(model, variables, point, *rest, **names):
        key = (id(model), tuple(v.name for v in variables), names.get("name"))
        if key not in made:
            made[key] = (model, build(model, variables, point, *rest, **names))  # the model keeps its id
        return made[key][1]

    return find


@cache
def funnel() -> pm.Model:
    """Three values whose scale is sampled too, seen with noise."""
    with pm.Model() as model:
        v = pm.Normal("v", 0.0, 1.0)
        x = pm.Normal("x", 0.0, pt.exp(0.5 * v), shape=3)
        pm.Normal("y", x, 1.0, observed=SEEN)
    return model


def value(model, name):
    return model.rvs_to_values[model[name]]


def widths(model):
    """The diagonal of the funnel's information."""
    return pt.diag(pt.concatenate([2.5 * pt.ones(1), (1.0 + pt.exp(-value(model, "v"))) * pt.ones(3)]))


def pull_of_zero(model):
    """A metric for the logistic regression: wider away from 0."""
    return pt.eye(2) * (3.0 + 1.0 / (1.0 + pt.sum(value(model, "b") ** 2)))


METRICS = {
    "softabs": SoftAbsMetric(alpha=1.0, structure="dense"),
    "blocks": SoftAbsMetric(alpha=1.0, structure="blocks"),
    "fisher": FisherMetric(chart="graph"),
    "graph": GraphMetric(widths),
}
# Short tuning, and equations that have no solution for long steps: shorter ones leave no failures to speak of.
WAYS = {
    "leapfrog": {"integrator": "generalized_leapfrog", "target_accept": 0.95},
    "midpoint": {"integrator": "implicit_midpoint", "target_accept": 0.95},
    "tao": {"integrator": ExplicitTao(omega=10.0), "step_size": 0.08, "n_steps": 12},
    "nuts": {"trajectory": "nuts", "target_accept": 0.99},
}


def log_densities(model, idata) -> np.ndarray:
    """The model's own log density at every draw of the first chain."""
    function = model.compile_logp()
    found = idata.posterior
    names = [v.name for v in model.value_vars]
    return np.array([
        float(function({name: found[name].values[0, i] for name in names})) for i in range(found.sizes["draw"])
    ])


# Every metric and every way once, and once more in the statistical suite: `tests/unit/test_metric_fields.py` has steps
# of all metrics with all integrators.
QUICK = [("softabs", "leapfrog"), ("blocks", "nuts"), ("fisher", "tao"), ("graph", "midpoint")]
SLOW = [("softabs", "nuts"), ("blocks", "leapfrog"), ("fisher", "midpoint"), ("graph", "tao")]


@pytest.mark.parametrize(("metric", "way"), [*QUICK, *(pytest.param(*each, marks=pytest.mark.slow) for each in SLOW)])
def test_every_metric_samples_with_every_integrator(metric, way):
    model = funnel()
    with model:
        step = RMHMC(metric=METRICS[metric], **WAYS[way])
    idata = draw(model, step, draws=100, tune=80)
    stats = idata.sample_stats
    assert np.mean(stats["failure"].values != 0) < 0.05
    assert 0.5 < stats["acceptance_rate"].mean() < 1.0
    assert np.unique(idata.posterior["v"]).size > 50
    np.testing.assert_allclose(stats["lp"].values[0], log_densities(model, idata), rtol=1e-10, atol=1e-10)
    assert np.isnan(stats["log_weight"]).all()  # there is no normal approximation


@cache
def truth() -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the logistic regression's coefficients, by a grid."""
    model, side = logistic(), np.linspace(-8.0, 8.0, 161)
    grid = np.array([(a, b) for a in side for b in side])
    at = np.linspace(-2.0, 2.0, 20)
    seen = model.rvs_to_values[model["y"]].data
    eta = grid[:, :1] + grid[:, 1:] * at
    log_density = -0.5 * (grid**2).sum(axis=1) / 4.0 + (seen * eta - np.logaddexp(0.0, eta)).sum(axis=1)
    weights = np.exp(log_density - log_density.max())
    weights /= weights.sum()
    mean = weights @ grid
    return mean, np.sqrt(weights @ (grid - mean) ** 2)


@pytest.mark.parametrize(
    "metric",
    thinned([FisherMetric(chart="graph"), SoftAbsMetric(structure="dense"), GraphMetric(pull_of_zero)]),
    ids=repr,
)
def test_a_logistic_regression_has_the_moments_of_a_grid(metric):
    model = logistic()
    with model:
        step = RMHMC(metric=metric, target_accept=0.95)
    idata = draw(model, step, draws=500, tune=150)
    found, (mean, spread) = idata.posterior["b"].values[0], truth()
    assert np.mean(idata.sample_stats["failure"].values != 0) < 0.05
    # Draws of a well-tuned chain are nearly independent; five standard errors of a quarter as many.
    np.testing.assert_allclose(found.mean(axis=0) / spread, mean / spread, atol=5.0 / np.sqrt(125))
    np.testing.assert_allclose(found.std(axis=0) / spread, 1.0, atol=0.35)


@pytest.mark.parametrize("metric", METRICS)
def test_a_seed_repeats_its_draws(metric):
    with funnel():
        step = RMHMC(metric=METRICS[metric])
    first, second, other = (
        draw(funnel(), step, draws=15, tune=20, random_seed=seed).posterior["x"].values for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)


def moving_centre() -> pm.Model:
    """One value whose prior's centre is sampled by another step."""
    with pm.Model() as model:
        k = pm.Bernoulli("k", 0.5)
        x = pm.Normal("x", 3.0 * k, 1.0)
        pm.Normal("y", x, 1.0, observed=1.0)
    return model


def grown(model):
    return pt.exp(0.3 * value(model, "k") * value(model, "x"))[None, None]


@pytest.mark.parametrize("metric", [SoftAbsMetric(), FisherMetric(chart="graph"), GraphMetric(grown)], ids=repr)
def test_beside_a_step_that_moves_what_the_density_depends_on(metric):
    model = moving_centre()
    with model:
        step = RMHMC(metric=metric)
    assert step.vars == [value(model, "x")]
    idata = draw(model, step, draws=800, tune=100)
    found = idata.posterior
    weights = norm.pdf(1.0, [0.0, 3.0], np.sqrt(2.0))
    assert found["k"].values.mean() == pytest.approx(weights[1] / weights.sum(), abs=0.12)
    for k, mean in ((0, 0.5), (1, 2.0)):
        x = found["x"].values[found["k"].values == k]
        assert x.mean() == pytest.approx(mean, abs=0.3)
        assert x.std() == pytest.approx(np.sqrt(0.5), abs=0.2)


def counted() -> pm.Model:
    with pm.Model() as model:
        y, centre = pm.Data("counts", np.array([1, 2, 4])), pm.Data("centre", np.zeros(3))
        pm.Poisson("y", pt.exp(pm.Normal("x", centre, 1.0, shape=3)), observed=y)
    return model


def curvature(model):
    return pt.diag(1.0 + pt.exp(value(model, "x"))) + 0.0 * pt.sum(model["centre"])


@pytest.mark.parametrize("metric", [SoftAbsMetric(), FisherMetric(chart="graph"), GraphMetric(curvature)], ids=repr)
def test_data_that_are_set_between_runs_are_seen(metric):
    model = counted()
    with model:
        step = RMHMC(metric=metric)
    before = draw(model, step, draws=60)
    with model:
        pm.set_data({"counts": np.array([90, 90, 200]), "centre": np.full(3, 4.0)})
    after = draw(model, step, draws=60)
    for idata in (before, after):
        assert np.mean(idata.sample_stats["failure"].values != 0) < 0.05
    # The last is at the data of now.
    np.testing.assert_allclose(after.sample_stats["lp"].values[0], log_densities(model, after), rtol=1e-10)
    np.testing.assert_allclose(after.posterior["x"].mean(("chain", "draw")), np.log([90, 90, 200]), atol=0.15)
    assert (before.posterior["x"].values < 3.0).all()


@pytest.mark.parametrize("metric", ["blocks", "graph"])
def test_chains_in_other_processes_are_those_of_this_one(metric):
    with funnel():
        step = RMHMC(metric=METRICS[metric])
    here, there = (
        draw(funnel(), step, draws=15, tune=20, chains=2, cores=cores).posterior["x"].values for cores in (1, 2)
    )
    np.testing.assert_array_equal(here, there)


@pytest.mark.parametrize(
    "metric",
    [METRICS["softabs"], METRICS["fisher"],
     GraphMetric(lambda model: (1.0 + pt.sum(value(model, "x") ** 2) + pt.exp(value(model, "v")))[None, None])],
    ids=repr,
)  # fmt: skip
def test_variables_that_are_named_move_given_the_others(metric):
    model = funnel()
    with model:
        step = RMHMC(["v"], metric=metric)
        rest = pm.Slice([model["x"]])
    assert step.vars == [value(model, "v")]
    idata = draw(model, [step, rest], draws=40, tune=40)
    assert np.unique(idata.posterior["v"]).size > 20
    assert np.unique(idata.posterior["x"]).size > 60
    assert np.mean(idata.sample_stats["failure"].values != 0) < 0.05


def test_a_latent_block_is_sampled_alone_unless_the_graph_is_asked_for():
    with poisson_model(sampled=True):
        latent, whole = RMHMC(metric=FisherMetric()), RMHMC(metric=FisherMetric(chart="graph"))
    assert [v.name for v in latent.vars] == ["f"]
    assert {v.name for v in whole.vars} == {"ls_log__", "f"}
    with funnel():
        assert {v.name for v in RMHMC(metric=FisherMetric()).vars} == {"x"}
    with pm.Model():
        pm.Gamma("y", pm.Exponential("a", 1.0), 1.0, observed=SEEN**2)
        assert [v.name for v in RMHMC(metric=FisherMetric()).vars] == ["a_log__"]
        with pytest.raises(UnsupportedModelError):
            RMHMC(metric=FisherMetric(chart="latent"))


THRESHOLD, STIFFNESS = 1.01, 3.0


def branching() -> pm.Model:
    """Two of ten values are coupled only where one more is above a threshold, which is not near the start."""
    with pm.Model() as model:
        gate = pm.Normal("gate", 2.0, 1.0, initval=0.0)
        x = pm.Normal("x", 0.0, 1.0, shape=10, initval=np.zeros(10))
        over = gate - THRESHOLD
        pm.Potential("tie", pt.switch(over > 0.0, -0.5 * STIFFNESS * over**3 * (x[0] - x[1]) ** 2, 0.0))
    return model


def branching_moments() -> tuple[float, float]:
    """The probability of being above, and the mean of ``(x₀ - x₁)²``."""
    gate = np.linspace(-6.0, 10.0, 20001)
    tied = 1.0 + 2.0 * STIFFNESS * np.maximum(gate - THRESHOLD, 0.0) ** 3
    weights = norm.pdf(gate, 2.0) / np.sqrt(tied)
    weights /= weights.sum()
    return float(weights[gate > THRESHOLD].sum()), float(weights @ (2.0 / tied))


@pytest.mark.slow
def test_a_structure_that_misses_an_entry_is_dropped_in_tuning():
    model = branching()
    with model:
        step = RMHMC(metric=SoftAbsMetric(alpha=1.0, structure="blocks"))
    (chain,) = step._samplers
    start = chain.density.variables.read(model.initial_point())
    first = chain.density.rehearsed(start, np.random.default_rng(0))
    chain.density.bind(model.initial_point())
    assert next(first).partition is not None
    idata = draw(model, step, draws=1200, tune=300)
    assert chain.state.tuned.partition is None
    above, apart = branching_moments()
    found = idata.posterior
    assert np.mean(found["gate"].values > THRESHOLD) == pytest.approx(above, abs=0.06)
    x = found["x"].values
    assert np.mean((x[..., 0] - x[..., 1]) ** 2) == pytest.approx(apart, rel=0.3)


@pytest.mark.usefixtures("compiled_ahead")
def test_a_structure_is_read_again_only_if_the_numbers_have_changed(monkeypatch):
    """For the check of its size, the rehearsal, and the chain it is the same."""
    seen, find = [], SoftAbsMetric.find_structure

    def noted(self, density, positions):
        seen.append(positions[0])
        return find(self, density, positions)

    monkeypatch.setattr(SoftAbsMetric, "find_structure", noted)
    model = counted()
    with model:
        step = RMHMC(metric=SoftAbsMetric())
    for n_reads in (1, 2):
        draw(model, step, draws=2, tune=2)
        draw(model, step, draws=2, tune=2)
        assert len(seen) == n_reads
        with model:
            pm.set_data({"centre": np.full(3, 0.1)})


def test_a_structure_that_holds_is_kept():
    with funnel():
        step = RMHMC(metric=METRICS["blocks"])
    draw(funnel(), step, draws=2, tune=120)
    assert step._samplers[0].state.tuned.partition is not None


def test_too_many_values_for_a_dense_matrix():
    with pm.Model():
        pm.Normal("x", shape=6000)
        with pytest.raises(ConfigurationError, match=r"6000 values needs dense matrices of 1\.1 GiB.*auto") as error:
            RMHMC(metric=SoftAbsMetric(structure="dense"))
    assert 'RMHMC(metric="flat")' in str(error.value)


def test_a_density_that_is_not_three_times_differentiable_names_the_operation():
    with pm.Model():
        pm.VonMises("angle", 0.0, pm.HalfNormal("kappa"), observed=[0.1, -0.2])
        with pytest.raises(UnsupportedModelError, match="I1.*derivatives up to the third.*metric=\"flat\""):
            RMHMC(metric=SoftAbsMetric())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: SoftAbsMetric(alpha=0.0), "alpha must be"),
        (lambda: SoftAbsMetric(alpha="big"), "alpha must be"),
        (lambda: SoftAbsMetric(structure="sparse"), "structure must be one of auto, dense, blocks"),
        (lambda: FisherMetric(chart="values"), "chart must be one of auto, latent, graph"),
        (lambda: GraphMetric(np.eye(2)), "needs a function that takes the model"),
        (lambda: GraphMetric(widths, name=""), "name must be a string"),
    ],
)
def test_a_metric_that_cannot_be(make, says):
    with pytest.raises(ConfigurationError, match=says):
        make()


TAO = ExplicitTao(omega=10.0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"metric": "softabs", "integrator": "leapfrog"}, "Unknown integrator 'leapfrog'"),
        ({"metric": "softabs", "integrator": "explicit_tao"}, r"ExplicitTao needs a binding.*ExplicitTao\(omega=10\.0"),
        ({"metric": "softabs", "integrator": ExplicitTao}, "ExplicitTao needs a binding"),
        ({"metric": "softabs", "integrator": TAO}, "ExplicitTao needs a step size"),
        ({"metric": "softabs", "integrator": TAO, "step_size": 0.3}, "is longer than 1/omega"),
        ({"metric": "softabs", "integrator": TAO, "step_size": 0.1, "solver_tol": 1e-8}, "solves no equations"),
        ({"metric": "softabs", "integrator": TAO, "step_size": 0.1, "check_reversibility": True},
         "check_reversibility: these have no effect"),
        ({"metric": "softabs", "integrator": ImplicitMidpoint(), "solver_max_iter": 9}, "set these on the integrator"),
        ({"metric": "flat", "integrator": TAO, "step_size": 0.1}, "integrator has no effect here: the flat metric"),
        ({"metric": FlatMetric(), "integrator": TAO, "step_size": 0.1}, "integrator has no effect here"),
        ({"metric": "soft"}, "Unknown metric 'soft'.*\"softabs\", \"softabs_curvature\""),
        ({"metric": GraphMetric(lambda model: pt.eye(2))}, r"has shape \(2, 2\), and must have \(4, 4\)"),
        ({"metric": "softabs", "compile_kwargs": {"mode": "FAST_RUN"}}, "compile_kwargs=.*has no effect here"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit(options, says):
    with funnel(), pytest.raises(ConfigurationError, match=says):
        RMHMC(**options)


def test_softabs_by_name_is_that_of_the_whole_model(caplog):
    with caplog.at_level("INFO"), funnel():
        assert {v.name for v in RMHMC(metric="softabs").vars} == {"v", "x"}
        with pytest.raises(ConfigurationError, match="x: its likelihood gives no \"softabs_curvature\" curvature"):
            RMHMC(metric="softabs_curvature")
    assert "softabs metric for v, x (4 values)" in caplog.text
