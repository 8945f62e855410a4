"""Free variables on which nothing observed depends: which they are, and that each draw of the rest gives one."""

from __future__ import annotations

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytest
from pymc.distributions.transforms import Interval, log, logodds
from scipy import stats

from pymc_rmhmc import RMHMC, describe
from pymc_rmhmc.model.predictions import Predictions, predicted_variables, without
from pymc_rmhmc.model.words.bad_inputs import InputChecks

X = np.linspace(0.0, 3.0, 8)[:, None]


def process(*, rotated: bool) -> pm.Model:
    """A Gaussian process with a conditional that was made before sampling."""
    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        gp = pm.gp.Latent(cov_func=scale**2 * pm.gp.cov.ExpQuad(1, 1.0))
        f = gp.prior("f", X=X, reparameterize=rotated)
        pm.Poisson("y", mu=pm.math.exp(f), observed=np.arange(8) % 3)
        gp.conditional("f_new", X[:2] + 4.0)
    return model


def chain() -> pm.Model:
    """A number that is observed, a positive one that depends on it, and a count of that."""
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 1.0)
        pm.Normal("y", x, 0.5, observed=0.7)
        z = pm.Gamma("z", alpha=2.0, beta=pm.math.exp(x))
        n = pm.Poisson("n", mu=3.0 + z)
        pm.Deterministic("half", n / 2)
    return model


def names(variables) -> list[str]:
    return [variable.name for variable in variables]


@pytest.mark.parametrize("rotated", [True, False])
def test_a_conditional_is_predicted_and_the_process_is_read(rotated):
    model = process(rotated=rotated)
    assert names(predicted_variables(model)) == ["f_new"]
    described = describe(model)
    assert [block.name for block in described.blocks] == ["f"]
    assert described.hyperparameters == ("scale",)
    said = "Drawn from their priors given these, since nothing observed depends on them: f_new."
    assert said in str(described)
    assert said in described._repr_html_()


def test_what_nothing_observed_depends_on_is_predicted_at_any_depth():
    assert names(predicted_variables(chain())) == ["z", "n"]


def test_what_is_named_is_sampled_and_what_depends_on_it_is_predicted():
    model = chain()
    assert names(predicted_variables(model, [model["z"]])) == ["n"]
    assert names(predicted_variables(model, [model["x"]])) == ["z", "n"]


def test_nothing_is_predicted_without_data_or_parents_or_of_missing_values():
    with pm.Model() as prior:
        pm.Normal("z", pm.Normal("x"), 1.0)
    with pm.Model() as apart:
        pm.Normal("y", pm.Normal("x"), 1.0, observed=0.0)
        pm.Normal("alone")
    with pm.Model() as missing, pytest.warns(pm.exceptions.ImputationWarning):
        pm.Normal("y", pm.Normal("x"), 1.0, observed=np.array([1.0, np.nan]))
    for model in (prior, apart, missing):
        assert predicted_variables(model) == []
        assert without(model, []) is model


@pytest.mark.parametrize(
    "build",
    [
        lambda mu: pm.Normal("c", mu, shape=3, transform=Interval(1.0, None), initval=[2.0, 2.0, 2.0]),
        lambda mu: pm.Normal("c", mu, transform=log, initval=1.0),
        lambda mu: pm.HalfNormal("c", pm.math.exp(mu), transform=Interval(0.0, 1.0)),
        lambda mu: pm.Uniform("c", mu, mu + 2.0, transform=Interval(0.0, 0.1)),
        lambda mu: pm.CustomDist("c", mu, logp=lambda c, mu: -((c - mu) ** 2)),
        lambda mu: pm.ICAR("c", W=np.ones((3, 3)) - np.eye(3), sigma=pm.math.exp(mu)),
    ],
    ids=["censored", "log", "below-1", "narrower", "without-random", "icar"],
)
def test_what_no_likelihood_reads_is_sampled_where_its_density_need_not_integrate_to_1(build):
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("y", mu, observed=0.5)
        build(mu)
    assert predicted_variables(model) == []


def test_the_transforms_that_pymc_gives_by_itself_leave_predictions():
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("y", mu, observed=0.5)
        scale = pm.HalfNormal("scale", pm.math.exp(mu))
        pm.Uniform("bounded", 0.0, scale)
        pm.Truncated("cut", pm.Normal.dist(mu, scale), lower=0.0)
        pm.Beta("share", scale, 1.0)
        pm.CustomDist("own", mu, dist=lambda mu, size: pm.Normal.dist(mu, 1.0, size=size))
        pm.Beta("other", 1.0, 1.0, transform=logodds)  # on nothing else it depends
    view = without(model, predicted_variables(model))
    assert names(predicted_variables(model)) == ["scale", "bounded", "cut", "share", "own"]
    assert view.compile_logp(mode="FAST_COMPILE")(view.initial_point()) < 0.0


def test_a_variable_without_values_is_a_constant_of_those_who_read_it():
    with pm.Model(coords={"row": range(2), "column": []}) as model:
        x = pm.Normal("x", dims=("row", "column"))
        share = pm.Dirichlet("share", np.ones(3), shape=(0, 3))
        pm.Normal("y", pm.Normal("mu") + x.sum() + share.sum(), observed=0.5)
    empty = predicted_variables(model)
    assert names(empty) == ["x", "share"]
    view = without(model, empty)
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        drawn, log_density = Predictions(model, empty).draw(view.initial_point(), np.random.default_rng(0))
        found = view.compile_logp()({"mu": 0.0})
    assert found == pytest.approx(stats.norm.logpdf([0.0, 0.5]).sum())
    assert {name: values.shape for name, values in drawn.items()} == {"x": (2, 0), "share_simplex__": (0, 2)}
    assert log_density == 0.0


@pytest.mark.parametrize("free", [True, False])
def test_missing_values_of_an_observed_vector_are_sampled(free):
    data = np.arange(12.0).reshape(6, 2)
    data[2, 1] = np.nan
    with pm.Model() as model:
        mu = pm.Normal("mu", shape=2) if free else np.zeros(2)
        pm.MvNormal("y", mu, cov=np.eye(2), observed=data)
    InputChecks(model).check(model.initial_point())
    assert predicted_variables(model) == []
    assert "y_unobserved: " in str(describe(model))


def test_a_potential_makes_a_variable_one_that_is_sampled():
    model = chain()
    with model:
        pm.Potential("bound", -model["z"])
    assert names(predicted_variables(model)) == ["n"]


def test_the_view_lacks_them_and_the_model_keeps_them():
    model = chain()
    view = without(model, predicted_variables(model))
    assert names(view.free_RVs) == ["x"]
    assert names(view.deterministics) == []
    assert list(view.initial_point()) == ["x"]
    assert names(model.free_RVs) == ["x", "z", "n"]
    assert names(model.deterministics) == ["half"]


def test_draws_are_of_the_prior_given_the_rest():
    """By the probability transform of both: uniform whatever x is, and no two draws alike."""
    model = chain()
    predictions, rng = Predictions(model, predicted_variables(model)), np.random.default_rng(1)
    ranks, counts = [], []
    for x in rng.normal(size=400):
        drawn, log_density = predictions.draw({"x": np.array(x)}, rng)
        point = {"x": np.array(x), **drawn}
        total = model.compile_logp(vars=[model["z"], model["n"]])(point) if len(ranks) < 3 else log_density
        assert log_density == pytest.approx(float(total))
        z = float(np.exp(drawn["z_log__"]))
        ranks.append(stats.gamma(2.0, scale=np.exp(-x)).cdf(z))
        below, at = stats.poisson(3.0 + z).cdf(drawn["n"] - 1), stats.poisson(3.0 + z).pmf(drawn["n"])
        counts.append(float(below + rng.uniform() * at))
    assert len(set(ranks)) == 400
    for each in (ranks, counts):
        assert stats.kstest(each, "uniform").pvalue > 1e-3


def test_a_seed_gives_the_draws_and_leaves_the_models_own_generators():
    """By the chain's random numbers alone, whatever was drawn of the model before."""
    found = []
    for _ in range(2):
        model, rng = chain(), np.random.default_rng(4)
        predictions = Predictions(model, predicted_variables(model))
        drawn = [predictions.draw({"x": np.array(0.2)}, rng)[0] for _ in range(3)]
        again = predictions.draw({"x": np.array(0.2)}, np.random.default_rng(4))[0]
        assert again == drawn[0]
        found.append([float(each["z_log__"]) for each in drawn])
    assert found[0] == found[1]
    assert len(set(found[0])) == 3


def test_a_copy_in_another_process_draws_the_same():
    model = chain()
    predictions = Predictions(model, predicted_variables(model))
    copy = cloudpickle.loads(cloudpickle.dumps(predictions))
    point = {"x": np.array(0.3)}
    first, second = (each.draw(point, np.random.default_rng(5)) for each in (predictions, copy))
    assert first[0]["n"] == second[0]["n"]
    assert first[0]["z_log__"] == second[0]["z_log__"]
    assert first[1] == second[1]


@pytest.mark.parametrize("build", [chain, lambda: process(rotated=True)], ids=["graph", "latent"])
def test_a_run_has_draws_of_them_and_the_log_density_of_all(build):
    model = build()
    with model:
        step = RMHMC()
        idata = pm.sample(
            50, tune=60, chains=2, cores=1, step=step, progressbar=False, random_seed=3,
            compute_convergence_checks=False,
        )  # fmt: skip
    predicted = predicted_variables(model)
    assert set(step.vars) == set(model.value_vars)
    for variable in predicted:
        drawn = idata.posterior[variable.name].values
        assert np.unique(drawn[0].reshape(50, -1), axis=0).shape[0] > 1
    point = {value.name: None for value in model.value_vars}
    for variable in model.free_RVs:
        value, transform = model.rvs_to_values[variable], model.rvs_to_transforms[variable]
        last = idata.posterior[variable.name].values[1, -1]
        point[value.name] = last if transform is None else np.log(last)
    assert float(idata.sample_stats["lp"][1, -1]) == pytest.approx(float(model.compile_logp()(point)), rel=1e-6)


def test_other_steps_may_sample_what_was_not_named():
    model = process(rotated=False)
    with model:
        step = RMHMC(vars=["f"])
    assert names(step.vars) == ["f", "f_new"]
