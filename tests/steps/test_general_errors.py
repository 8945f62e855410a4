"""Models that are sampled in the chart of their graph: what is said of bad input, and what is left to other steps."""

import logging
from functools import partial

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

from pymc_rmhmc import RMHMC, ConfigurationError, FlatMetric, UnsupportedModelError, describe
from pymc_rmhmc.sampled.graph import GraphDensity


class Opaque(Op):
    """An operation without a derivative."""

    def make_node(self, x):
        return Apply(self, [pt.as_tensor(x)], [pt.dscalar()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.asarray(float((inputs[0] ** 2).sum()))


def nan_potential():
    s = pm.HalfNormal("s", 1.0)
    pm.Potential("penalty", s * np.nan)


def impossible_data():
    pm.Gamma("g", 2.0, pm.HalfNormal("s", 1.0), observed=[-1.0, 2.0])


def scale_of_nothing():
    s = pm.Normal("s", 0.0, 1.0, initval=0.0)
    pm.Normal("x", 0.0, s, shape=4)


def improper():
    pm.CustomDist("x", logp=lambda x: 0.0 * x, shape=2)
    pm.Exponential("s", 1.0)


STARTS = {
    nan_potential: "log density of penalty is nan",
    impossible_data: "log density of g is -inf",
    scale_of_nothing: "x is -inf, since it needs sigma > 0",
    improper: r"x\[0\]: the model's log density does not depend on it",
}


@pytest.mark.parametrize("build", STARTS, ids=lambda build: build.__name__)
def test_a_chain_that_cannot_begin_names_the_term(build):
    with pm.Model():
        build()
        with pytest.raises(ConfigurationError, match=STARTS[build]):
            pm.sample(draws=2, tune=2, chains=1, step=RMHMC(), progressbar=False, random_seed=1)


@pytest.mark.parametrize("law", [pm.Flat, pm.HalfFlat])
@pytest.mark.parametrize("read_by", ["nothing", "prior"])
def test_an_improper_variable_without_data_is_refused_at_once(law, read_by):
    with pm.Model():
        f = pm.Normal("f", shape=4)
        pm.Poisson("y", pm.math.exp(f), observed=[1, 2, 3, 4])
        x = law("x")
        if read_by == "prior":
            pm.Normal("z", f[0] + x)
        with pytest.raises(ConfigurationError, match="x: the model's log density does not depend on it"):
            RMHMC()


def test_an_operation_without_a_derivative_is_named():
    with pm.Model() as model:
        x = pm.Laplace("x", 0.0, 1.0)
        pm.Potential("p", -Opaque()(x))
        with pytest.raises(UnsupportedModelError, match="cannot differentiate the model's log density.*Opaque"):
            RMHMC()
    assert "RMHMC() cannot sample this model and will raise an error" in str(describe(model))


def test_what_remains_without_an_unread_predictor_is_sampled_as_described():
    group, counts = np.arange(12) % 3, np.arange(12)
    with pm.Model() as model:
        pm.Poisson("y", pm.math.exp(pm.Normal("b", 0.0, pm.HalfNormal("s"), shape=3)[group]), observed=counts)
        p = pm.math.softmax(pt.concatenate([pm.Normal("g", 0.0, 0.5, shape=3)[group], [0.0]]))
        pm.Categorical("z", p=p * np.ones((12, 1)), observed=counts % 3)
        step = RMHMC()
    assert {model.values_to_rvs[value].name for value in step.vars} == set(describe(model).charted) == {"b", "s", "g"}


def test_a_model_of_discrete_variables_alone_is_refused():
    with pm.Model():
        pm.Poisson("k", 3.0)
        with pytest.raises(UnsupportedModelError, match="only discrete free variables"):
            RMHMC()


def test_discrete_variables_are_left_to_other_steps(caplog):
    with pm.Model() as model:
        k = pm.Poisson("k", 3.0)
        rate = pm.Beta("rate", 1.0 + k, 2.0, shape=2)
        pm.Binomial("y", 10, rate, observed=[3, 4])
        with caplog.at_level(logging.INFO, logger="pymc.rmhmc"):
            step = RMHMC()
        idata = pm.sample(draws=200, tune=200, chains=1, step=step, progressbar=False, random_seed=1)
    assert "left to other steps: k" in caplog.text
    assert "k (Metropolis)" in str(describe(model))
    assert np.unique(idata.posterior["k"]).size > 3
    assert np.unique(idata.posterior["rate"]).size > 150


def test_describe_says_what_each_variable_is_relative_to():
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 1.0)
        pm.Laplace("effects", 0.0, scale, shape=3)
    text = str(describe(model))
    assert "effects: Laplace, relative to the location and scale that scale gives." in text
    assert "scale: HalfNormal, as PyMC has it on the unconstrained scale." in text
    assert "effects" in describe(model)._repr_html_()


def test_many_hyperparameters_beside_effects_choose_the_chart_of_the_graph(caplog):
    with pm.Model():
        scales = pm.HalfCauchy("scales", 1.0, shape=20)
        effects = pm.Normal("effects", 0.0, scales, shape=20)
        pm.Normal("y", effects, 1.0, observed=np.zeros(20))
        with caplog.at_level(logging.INFO, logger="pymc.rmhmc"):
            RMHMC()
            assert "effects relative to scales" in caplog.text
            RMHMC(metric=FlatMetric(chart="latent"))
    assert "effects (20 values) together with scales" in caplog.text


def correlated_in_other_form(transposed: bool) -> pm.Model:
    with pm.Model() as model:
        factor, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0))
        z = pm.Normal("z", shape=(2, 30) if transposed else (30, 2))
        effects = (factor @ z).T if transposed else z @ factor.T
        eta = effects[np.arange(90) % 30, 0] + effects[np.arange(90) % 30, 1] * np.linspace(0.0, 1.0, 90)
        pm.Normal("y", eta, pm.HalfNormal("s"), observed=np.zeros(90))
    return model


def scaled_in_other_form() -> pm.Model:
    with pm.Model() as model:
        z = pm.Normal("z", shape=60)
        pm.Poisson("y", pm.math.exp(pm.HalfNormal("s") * z[np.arange(300) % 60]), observed=np.zeros(300, dtype=int))
    return model


@pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")
@pytest.mark.parametrize(
    "build",
    [partial(correlated_in_other_form, False), partial(correlated_in_other_form, True), scaled_in_other_form],
)  # fmt: skip
def test_effects_in_their_other_form_take_the_graphs_chart_as_the_centred_ones_do(build):
    model = build()
    assert "relative to the" in describe(model).charted["z"]
    (sampler,) = RMHMC(model=model)._samplers
    assert isinstance(sampler.density, GraphDensity)


def test_compile_kwargs_have_no_effect():
    with pm.Model():
        pm.Laplace("x", 0.0, 1.0)
        with pytest.raises(ConfigurationError, match=r"compile_kwargs=.*has no effect here"):
            RMHMC(compile_kwargs={"mode": "FAST_RUN"})


@pytest.mark.parametrize("chart", ["graphs", 3, None])
def test_an_unknown_chart(chart):
    with pytest.raises(ConfigurationError, match="chart must be one of auto, latent, graph"):
        FlatMetric(chart=chart)
