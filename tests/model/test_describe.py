"""What a user is told of a model."""

from __future__ import annotations

import code
import re

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.c.op import COp
from pytensor.link.numba import NumbaLinker

from pymc_rmhmc import (
    RMHMC,
    ConfigurationError,
    DenseField,
    ExplicitTao,
    FisherMetric,
    FlatMetric,
    GraphMetric,
    SoftAbsMetric,
    UnsupportedModelError,
    describe,
)
from pymc_rmhmc.model import read_joint, read_structure
from pymc_rmhmc.model.forms import joint_model
from pymc_rmhmc.model.graph import linear_form
from pymc_rmhmc.model.graph.graphs import Evaluator

N = 8
X = np.linspace(0.0, 1.0, N)[:, None]


def test_blocks_priors_likelihoods_and_what_is_left(capsys):
    with pm.Model() as model:
        lengthscale = pm.LogNormal("ls", -1.0, 0.3)
        count = pm.Poisson("k", 3.0)
        f = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=lengthscale)).prior("f", X=X)
        g = pm.MvNormal("g", np.zeros(N), cov=np.eye(N))
        pm.Poisson("y", mu=pm.math.exp(f), observed=np.arange(N))
        pm.StudentT("z", nu=4, mu=g + count, sigma=1.0, observed=np.zeros(N))
        description = describe(model)
    assert capsys.readouterr().out == ""
    printed = str(description)
    by_name = {block.name: block for block in description.blocks}
    assert by_name["f"].n_latent == by_name["f"].n_sites == N
    assert "whitened" in by_name["f"].prior
    assert by_name["f"].likelihoods == ("y: poisson (log link)",)
    assert by_name["f"].kinds == ("hessian", "fisher")
    assert by_name["f"].depends_on == ("ls",)
    assert "centred" in by_name["g"].prior
    assert by_name["g"].kinds == ("fisher",)
    assert description.metric == "flat"
    assert description.hyperparameters == ("ls",)
    assert description.alone == ""
    assert description.left_over == {"k": "Metropolis"}
    assert set(description.reasons) == {"k"}
    for line in (
        "- f: 8 values, whitened Gaussian process, read by y: poisson (log link); depends on ls.",
        "together with the latent values: ls.",
        "- k (Metropolis): discrete (Poisson).",
    ):
        assert line in printed


def test_it_is_shown_once_wherever_it_is_shown(capsys):
    """By `print` in a script, by its repr in an interpreter, by a table in a notebook; and never by itself."""
    with pm.Model() as model:
        _nothing_free()
    print(describe(model))  # noqa: T201 - as a script does
    printed = capsys.readouterr().out
    assert printed.count("Sampled by RMHMC") == 1
    code.InteractiveInterpreter({"describe": describe, "model": model}).runsource("describe(model)")
    assert capsys.readouterr().out == printed
    code.InteractiveInterpreter({"describe": describe, "model": model}).runsource("found = describe(model)")
    assert capsys.readouterr().out == ""


def test_a_notebook_gets_a_table_with_its_names_escaped():
    with pm.Model() as model:
        f = pm.MvNormal("f<1>", np.zeros(N), cov=np.eye(N))
        pm.Poisson("y", mu=pm.math.exp(f * pm.Bernoulli("on", 0.5)), observed=np.arange(N))
    shown = describe(model)._repr_html_()
    assert shown.count("<table>") == shown.count("</table>") == 2
    assert "f&lt;1&gt;" in shown
    assert "<1>" not in shown
    for word in ("poisson (log link)", "hessian, fisher", "BinaryGibbsMetropolis", "sampled alone"):
        assert word in shown


def _pairs(together):
    """Ten pairs of latent vectors: summed in a predictor, or one as the mean and the other as the log noise."""
    for i in range(10):
        scales = [pm.HalfNormal(f"{name}_scale_{i}") for name in "fg"]
        f, g = (pm.MvNormal(f"{n}_{i}", np.zeros(3), cov=s * np.eye(3)) for n, s in zip("fg", scales, strict=True))
        if together:
            pm.Poisson(f"y_{i}", mu=pm.math.exp(f + g), observed=[0, 1, 2])
        else:
            pm.Normal(f"y_{i}", f, pm.math.exp(g), observed=[0.0, 1.0, 2.0])


@pytest.mark.slow
@pytest.mark.parametrize("together", [True, False])
def test_what_differs_in_names_alone_is_one_line(together):
    with pm.Model() as model:
        _pairs(together)
    description = describe(model)
    text = str(description)
    assert len(description.blocks) == 10
    assert len(text.splitlines()) <= 30
    assert "(10 blocks)" in text
    assert description._repr_html_().count("<tr>") <= 6
    if not together:  # each is left for a reason that names another observed variable
        assert "g_0, g_1, …, g_9 (10 variables, NUTS): it enters y_0" in _one_line(description)


def test_rows_of_one_variable_are_one_line():
    with pm.Model() as model:
        pm.Poisson("y", mu=pm.math.exp(_gp("f", n_outputs=40)), observed=np.ones((40, N), dtype=int))
    description = describe(model)
    assert len(description.blocks) == 40
    assert "- f[0], f[1], …, f[39] (40 blocks): 8 values each," in str(description)
    assert len(str(description).splitlines()) <= 6


def test_what_differs_in_more_than_names_is_not_one_line():
    with pm.Model() as model:
        for i, size in enumerate((3, 3, 4)):
            f = pm.MvNormal(f"f_{i}", np.zeros(size), cov=np.eye(size))
            pm.Poisson(f"y_{i}", mu=pm.math.exp(f), observed=np.arange(size))
    lines = [line for line in str(describe(model)).splitlines() if line.startswith("- ")]
    assert len(lines) == 2
    assert lines[0].startswith("- f_0, f_1 (2 blocks): 3 values each,")


def _ordinal():
    cuts = pm.Normal("cuts", [-1.0, 1.0], 1.0, transform=pm.distributions.transforms.ordered, initval=[-1.0, 1.0])
    pm.OrderedLogistic("y", eta=pm.HalfNormal("eta") * _gp("f"), cutpoints=cuts, observed=np.arange(N) % 3)


def _truncated():
    pm.Truncated("y", pm.Normal.dist(_gp("f"), pm.HalfNormal("sd")), lower=0.0, observed=np.linspace(0.1, 2.0, N))


def _softmax():
    pm.Categorical("y", p=pm.math.softmax(_gp("f", n_outputs=3), axis=0).T, observed=np.arange(N) % 3)


def _basis():
    gp = pm.gp.HSGP(m=[17, 17], c=1.5, cov_func=pm.gp.cov.Matern52(2, ls=pm.LogNormal("ls", -1.0, 0.3)))
    f = gp.prior("f", X=np.column_stack([X[:, 0], X[::-1, 0] ** 2]))
    pm.Poisson("y", mu=pm.math.exp(f), observed=np.arange(N))


def _factorised():
    u, v = pm.Normal("u", shape=(20, 2)), pm.Normal("v", shape=(15, 2))
    pm.Normal("y", u @ v.T, pm.HalfNormal("sd"), observed=np.ones((20, 15)))


@pytest.mark.parametrize("build", [_ordinal, _truncated, _softmax, _basis, _factorised])
def test_nothing_is_compiled_and_no_matrix_is_evaluated(build, monkeypatch):
    with pm.Model() as model:
        build()

    compiled = []

    def refuse(*args, **kwargs):
        compiled.append(args)
        raise RuntimeError("compiled")

    largest, calls = [0], [0]

    def counted(self, *args, call=Evaluator.__call__):
        found = call(self, *args)
        largest[0], calls[0] = max(largest[0], *(np.size(value) for value in found)), calls[0] + 1
        return found

    monkeypatch.setattr(COp, "make_c_thunk", refuse)
    monkeypatch.setattr(NumbaLinker, "make_all", refuse)
    monkeypatch.setattr(Evaluator, "many", refuse)
    monkeypatch.setattr(joint_model, "MovingDesign", refuse)
    monkeypatch.setattr(Evaluator, "__call__", counted)
    describe(model)
    assert not compiled
    # A prior's matrix or a predictor's would be of the square of what there is most of, the latent values.
    sizes = [np.size(value) for value in model.initial_point().values()]
    n_observed = sum(np.size(model.rvs_to_values[y].data) for y in model.observed_RVs)
    assert largest[0] <= max(*sizes, n_observed) + 1
    assert calls[0] < 50


class _NoDerivative(Op):
    """The identity, which PyTensor cannot differentiate."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0].copy()


def test_a_missing_derivative_is_told_as_the_step_finds_it():
    with pm.Model() as model:
        scale = _NoDerivative()(pt.as_tensor(pm.HalfNormal("scale")))
        f = pm.MvNormal("f", np.zeros(N), cov=scale * np.eye(N))
        pm.Poisson("y", mu=pm.math.exp(f), observed=np.arange(N))
    description = describe(model)
    assert description.hyperparameters == ()
    assert "PyTensor cannot differentiate the model by its hyperparameters" in description.alone
    assert description.alone == read_joint(read_structure(model), model.initial_point())


def test_columns_that_are_read_together_are_those_that_are_read_one_by_one(monkeypatch):
    design = np.random.default_rng(0).standard_normal((5, 6))

    def read():
        with pm.Model() as model:
            a, b = pm.Normal("a", shape=6), pm.Normal("b", shape=(2, 3))
            eta = 0.3 + design @ a + pt.dot(design[:, :2], b).sum(axis=1) + b[1, 2]
            pm.Poisson("y", mu=pm.math.exp(eta), observed=np.arange(5))
        return model

    def matrix():
        model = read()
        block = joint_model.read_joint(read_structure(model, ["a", "b"]), model.initial_point())
        assert block == joint_model.NO_HYPERPARAMETERS
        from pymc_rmhmc.model import compile_model

        (found,) = compile_model(read_structure(model, ["a", "b"])).blocks
        return np.hstack(found.prior(model.initial_point()).design)

    alone = matrix()
    monkeypatch.setattr(linear_form, "MANY", 1)
    monkeypatch.setattr(linear_form, "BATCH", 40)
    np.testing.assert_allclose(matrix(), alone, rtol=1e-14, atol=1e-14)
    assert alone.shape == (5, 12)


def _gp(name, **options):
    return pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=0.3)).prior(name, X=X, **options)


def _gathered():
    """Hyperparameters of mean, covariance and likelihood, and one above them; values read twice and not at all."""
    above = pm.HalfNormal("above")
    level, ls = pm.Normal("level", 0, above), pm.LogNormal("ls", -1.0, 0.3)
    f = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=ls)).prior("f", X=X, reparameterize=False)
    places = np.array([0, 0, 3, 5])
    pm.NegativeBinomial("y", mu=pm.math.exp(level + f[places]), alpha=pm.HalfNormal("alpha"), observed=[1, 0, 2, 4])


def _nothing_free():
    pm.Poisson("y", mu=pm.math.exp(_gp("f")), observed=np.arange(N))


def _additive():
    pm.Poisson("y", mu=pm.math.exp(pm.Normal("level") + _gp("f") + _gp("g")), observed=np.arange(N))


def _rows():
    pm.Poisson("y", mu=pm.math.exp(pm.Normal("level") + _gp("f", n_outputs=2)), observed=np.ones((2, N), dtype=int))


def _unregistered():
    pm.Laplace("y", mu=_gp("f"), b=pm.HalfNormal("b"), observed=np.zeros(N))


def _unregistered_rows():
    pm.Laplace("y", mu=_gp("f", n_outputs=2), b=pm.HalfNormal("b"), observed=np.zeros((2, N)))


def _combined():
    averages = np.full((3, N), 1.0 / N) @ _gp("f")
    pm.Poisson("y", mu=pm.math.exp(pm.Normal("level") + averages), observed=[1, 2, 3])


@pytest.mark.parametrize(
    ("build", "taken", "reason"),
    [
        (_gathered, ("above", "level", "ls", "alpha"), ""),
        (_nothing_free, (), "no block depends on continuous hyperparameters"),
        (_additive, ("level",), ""),
        (_rows, ("level",), ""),
        (_unregistered, ("b",), ""),
        (_unregistered_rows, (), "the likelihood of f has no closed form here, and f has rows"),
        (_combined, ("level",), ""),
    ],
)
def test_hyperparameters_that_are_taken_in_are_those_that_the_step_samples(build, taken, reason, caplog):
    with pm.Model() as model:
        build()
        description = describe()
        with caplog.at_level("INFO", logger="pymc.rmhmc"):
            step = RMHMC()
    assert description.hyperparameters == taken
    assert description.alone == reason
    names = {str(rv.name) for rv in model.free_RVs}
    sampled = {str(model.values_to_rvs[value].name) for value in step.vars}
    assert set(description.left_over) == names - sampled
    assert set(taken) <= sampled
    words = f"together with {', '.join(taken)}" if taken else reason
    assert not description.left_over or words in caplog.text
    assert (f"latent values: {', '.join(taken)}." if taken else f"sampled alone: {reason}.") in _one_line(description)


def _one_line(description):
    return " ".join(str(description).split())


def test_rows_of_one_variable_are_described_one_by_one():
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=0.3)).prior("f", X=X, n_outputs=2)
        pm.Bernoulli("y", logit_p=f, observed=np.zeros((2, N), dtype=int))
        description = describe()
    assert [block.name for block in description.blocks] == ["f[0]", "f[1]"]
    assert describe(model).blocks[0].likelihoods == ("y: bernoulli (logit link)",)


def test_a_model_without_latent_gaussian_blocks_says_why():
    with pm.Model():
        mu = pm.Normal("mu")
        pm.Normal("y", mu**2, 1.0, observed=[1.0, 2.0])
        description = describe()
    assert description.blocks == ()
    assert description.hyperparameters == ()
    assert description.why == "the model has no latent Gaussian block"
    assert description.charted == {"mu": "Normal, as PyMC has it on the unconstrained scale"}
    assert description.left_over == {}


def test_a_latent_variable_that_cannot_be_sampled_is_named_with_its_reason():
    with pm.Model():
        f = pm.MvNormal("f", np.zeros(N), cov=np.eye(N))
        g = pm.MvNormal("g", np.zeros(N), cov=np.eye(N))
        pm.Poisson("y", mu=pm.math.exp(f), observed=np.arange(N))
        pm.MvNormal("z", mu=g, cov=np.eye(N), observed=np.zeros(N))
        description = describe()
    assert [block.name for block in description.blocks] == ["f"]
    assert "does not factorise" in description.reasons["g"]
    assert description.left_over["g"] == "NUTS"


@pytest.mark.parametrize("psi", [0.3, "free"])
def test_a_zero_inflated_poisson_is_read_as_registered(psi):
    with pm.Model():
        f = pm.MvNormal("f", np.zeros(N), cov=np.eye(N))
        chance = pm.Beta("psi", 2, 2) if psi == "free" else psi
        pm.ZeroInflatedPoisson("y", psi=chance, mu=pm.math.exp(f), observed=np.arange(N))
        description = describe()
    assert description.blocks[0].likelihoods == ("y: zeroinflatedpoisson (log link)",)
    assert description.blocks[0].kinds == ("fisher",)


def _gp_with(y, *, others=False):
    with pm.Model() as model:
        y(pm.math.exp(_gp("f")))
        if others:
            pm.Normal("z", pm.Normal("level"), 1.0, observed=1.0)
    return model


FORGOTTEN = {
    "the only data": (lambda: _gp_with(lambda mu: pm.Poisson("y", mu)), "Nothing in this model is observed"),
    "some data": (
        lambda: _gp_with(lambda mu: pm.Poisson("y", mu), others=True),
        "No observed variable depends on f.* If you have data for y, give them with observed=",
    ),
    "none": (lambda: _gp_with(lambda mu: pm.Poisson("y", mu, observed=np.arange(N))), ""),
    "data behind": (
        lambda: _gp_with(lambda mu: pm.Poisson("z", pm.math.exp(pm.Normal("y", mu)), observed=np.arange(N))), ""
    ),
    "data in part": (
        lambda: _gp_with(lambda mu: pm.Normal("y", mu, observed=np.ma.masked_less(np.arange(N, dtype=float), 2))), ""
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FORGOTTEN)
@pytest.mark.filterwarnings("ignore:Data in .* contains missing values")
def test_a_forgotten_observed_is_said(case, caplog):
    """A prior may be sampled on purpose, so this is no error."""
    build, says = FORGOTTEN[case]
    model = build()
    warning = describe(model).warning
    assert re.search(says, warning) if says else not warning
    with model, caplog.at_level("WARNING", logger="pymc"):
        RMHMC()
    assert [r.message for r in caplog.records] == ([warning] if says else [])


def _of_classes(likelihood, n_classes, *, free=True):
    with pm.Model() as model:
        if free:
            likelihood(pm.Normal("u", 0, pm.HalfNormal("s"), shape=(4, n_classes))[np.arange(12) % 4])
        else:
            likelihood(pm.Dirichlet("u", np.ones(n_classes)))
    return model


def _classes(seen, n_classes, *, free=True):
    data = np.resize(seen, 12)
    if not free:
        return _of_classes(lambda p: pm.Categorical("y", p=p, observed=data), n_classes, free=False)
    return _of_classes(lambda eta: pm.Categorical("y", logit_p=eta, observed=data), n_classes)


def _counts(row):
    def multinomial(eta):
        pm.Multinomial("y", n=sum(row), p=pm.math.softmax(eta, axis=1), observed=np.resize(row, (12, len(row))))

    return _of_classes(multinomial, len(row))


def _ordered(seen):
    def ordered(eta):
        pm.OrderedLogistic("y", eta=eta[:, 0], cutpoints=[-1.0, 0.0, 1.0], observed=np.resize(seen, 12))

    return _of_classes(ordered, 1)


CLASSES = {
    "all": (lambda: _classes([0, 1, 2], 3), ""),
    "all, counted": (lambda: _counts([2, 1, 2]), ""),
    "one": (lambda: _classes([0], 1), 'y has a single class, .* is 1 for any u, .*write pm.Bernoulli."y", logit_p=...'),
    "one, counted": (lambda: _counts([3]), "y has a single class"),
    "the last unseen": (lambda: _classes([0, 1], 3), "No observation of y is in class 2, of 0 to 2: .* its proba"),
    "two unseen": (lambda: _classes([2], 3), "is in classes 0, 1, of 0 to 2: .* their probabilities"),
    "unseen, counted": (lambda: _counts([2, 0, 1]), "is in class 1, of 0 to 2"),
    "unseen, ordered": (lambda: _ordered([0, 2, 3]), "is in class 1, of 0 to 3"),
    "unseen, bounded": (lambda: _classes([0, 1], 3, free=False), ""),
}  # fmt: skip


@pytest.mark.parametrize("case", CLASSES)
def test_classes_that_data_say_nothing_of_are_said(case):
    build, says = CLASSES[case]
    warning = describe(build()).warning
    assert re.search(says, warning) if says else not warning


@pytest.mark.parametrize("chart", ["field", "graph", "latent"])
def test_a_class_that_nobody_observed_is_said_when_a_step_is_built(chart, caplog):
    with _classes([0, 1], 3) if chart != "latent" else _ordered([0, 2, 3]), caplog.at_level("WARNING", logger="pymc"):
        RMHMC(metric=FlatMetric(chart=chart))
    said = [record.message for record in caplog.records]
    assert [each[:31] for each in said] == ["No observation of y is in class"]


def test_observations_of_several_predictors_are_counted_once():
    """Not each predictor of them, as where two likelihoods have one and two."""
    metric = {"metric": FlatMetric(chart="field")}
    assert "12 values behind 12 observations of 2 predictors each, Gaussian" in _one_line(
        describe(_classes([0, 1, 2], 3), **metric)
    )
    assert "12 values behind 12 observations of 2 predictors each, Gaussian" in _one_line(
        describe(_counts([2, 1, 2]), **metric)
    )
    with pm.Model() as model:
        f, g = (pm.Normal(name, 0, pm.HalfNormal(f"s_{name}"), shape=10) for name in "fg")
        pm.Normal("y", f, pm.math.exp(g), observed=np.arange(10.0))
    (block,) = describe(model, **metric).blocks
    assert (block.n_latent, block.n_sites, block.n_predictors) == (20, 20, 2)
    assert "20 values behind 10 observations of 2 predictors each, " in _one_line(describe(model, **metric))
    with model:
        pm.Poisson("z", pm.math.exp(f[:4]), observed=np.arange(4))
    assert "20 values behind 24 predictors, " in _one_line(describe(model, **metric))


def test_two_processes_of_one_likelihood_go_by_the_users_names():
    with pm.Model() as model:
        f, g = _gp("f"), _gp("g")
        pm.Normal("y", f, pm.math.exp(g), observed=np.zeros(N))
    description = describe(model)
    text = str(description)
    assert "rotated" not in text
    assert text.count("it enters y by another parameter") == 1
    assert "Sample f and g by turns:" in text
    assert set(description.left_over) == set(description.reasons) == {"g"}
    assert description.blocks[0].depends_on == ("g",)


def test_one_value_is_singular():
    with pm.Model() as model:
        pm.Poisson("y", pm.math.exp(pm.MvNormal("f", [0.0], cov=[[1.0]])), observed=[2])
    assert "f: 1 value, " in str(describe(model))


def test_a_marginal_process_is_sampled_in_the_chart_of_its_graph():
    with pm.Model() as model:
        gp = pm.gp.Marginal(cov_func=pm.gp.cov.ExpQuad(1, pm.HalfNormal("ls")))
        gp.marginal_likelihood("y", X, np.zeros(N), sigma=1.0)
    text = _one_line(describe(model))
    assert "- ls: HalfNormal, as PyMC has it on the unconstrained scale." in text


def _funnel() -> pm.Model:
    """Five values, one of which is the others' scale, next to a discrete one and a prediction."""
    with pm.Model() as model:
        v = pm.Normal("v")
        x = pm.Normal("x", 0.0, pm.math.exp(0.5 * v), shape=4)
        pm.Normal("y", x + pm.Bernoulli("k", 0.5), 1.0, observed=np.zeros(4))
        pm.Normal("later", x[0])
    return model


def _scales(model):
    return pt.eye(5) * (1.0 + pt.exp(model.rvs_to_values[model["v"]]))


class _OwnField(DenseField):
    def matrix(self, point):
        return np.eye(point.position.size)

    def pullback(self, point, bar):
        return np.zeros(point.position.size)


class _Own:
    """A metric whose field is written with NumPy."""

    name, chart = "own", "graph"

    def bind(self, density):
        return _OwnField(density)


DENSE = "The Hessian is factorised as a dense matrix of 200 bytes."
PATH = 'Each trajectory is a path of length 1.7 ± 10 %, of at most 100 steps, by "implicit_midpoint"; its step size'
WHOLE = {
    "softabs by its name": (
        {"metric": "softabs"},
        ['The metric is "softabs": SoftAbsMetric(alpha=1000000.0, structure=\'auto\'), made of the Hessian of the',
         DENSE, f"{PATH} is tuned to an acceptance of 0.8."],
    ),
    "blocks": (
        {"metric": SoftAbsMetric(structure="blocks"), "trajectory": "nuts", "target_accept": 0.95},
        ["The Hessian has 1 border value and 4 blocks of 1 value. A dense matrix would take 200 bytes.",
         'doubled until it turns back, with fewer than 1024 steps, by "implicit_midpoint"; its step size is tuned',
         "to an acceptance of 0.95."],
    ),
    "fisher": (
        {"metric": FisherMetric(chart="graph"), "integrator": "implicit_midpoint", "check_reversibility": False},
        ['The metric is "fisher": the Fisher information of all values, with the curvature of the priors.',
         'by "implicit_midpoint" without a check that its steps can be reversed'],
    ),
    "graph": (
        {"metric": GraphMetric(_scales, name="scales"), "n_steps": 3, "step_size": 0.1},
        ['The metric is "scales": the matrix that your function _scales writes.',
         'Each trajectory is 3 steps long, by "generalized_leapfrog"; its steps have the size 0.1.'],
    ),
    "field": (
        {"metric": _Own(), "integrator": ExplicitTao(omega=10.0), "step_size": 0.1, "jitter": 0.0},
        ['The metric is "own": your _Own computes its matrix.',
         "Each trajectory is a path of length 1.7, of at most 100 steps, by ExplicitTao(omega=10); its steps"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WHOLE)
@pytest.mark.usefixtures("without_a_compiler")
def test_a_metric_of_the_whole_model_is_described_as_the_step_takes_it(case):
    options, says = WHOLE[case]
    model = _funnel()
    description = describe(model, **options)
    assert max(map(len, str(description).splitlines())) <= 100
    for line in (
        "Sampled by RMHMC, all together, in a metric that depends on the position: - v, x: 5 values.",
        "Left to other steps: - k (BinaryGibbsMetropolis): discrete (Bernoulli).",
        "Drawn from their priors given these, since nothing observed depends on them: later.",
        *says,
    ):
        assert line in _one_line(description)
    assert description.blocks == ()
    assert ("Hessian" in str(description)) == (description.in_metric.structure != "")
    with model:
        step = RMHMC(**options)
    sampled = {str(model.values_to_rvs[value].name) for value in step.vars}
    assert sampled == {*description.in_metric.variables, *description.predicted}
    assert description.metric == step._plan.metric.name


@pytest.mark.usefixtures("without_a_compiler")
def test_a_notebook_gets_the_metric_of_the_whole_model():
    shown = describe(_funnel(), metric="softabs")._repr_html_()
    assert shown.count("<table>") == shown.count("</table>") == 2
    for word in ("v, x</td>", "The metric is &quot;softabs&quot;", f"<br>{DENSE}<br>Each trajectory"):
        assert word in shown


@pytest.mark.usefixtures("without_a_compiler")
def test_a_hessian_without_a_border():
    with pm.Model() as model:
        x, _ = pm.Normal("x", shape=(2, 20)), pm.Normal("single", shape=2)
        pm.Potential("data", -pt.sum(x[0] ** 2 * x[1] ** 2))
    metric = SoftAbsMetric(structure="blocks")
    says = "The Hessian has no border and 22 blocks of at most 2 values. A dense matrix would take 13.8 KiB."
    assert describe(model, metric=metric).in_metric.structure == says


@pytest.mark.parametrize("metric", ["hessian", "fisher"])
def test_a_metric_of_latent_values_leaves_their_hyperparameters(metric):
    with pm.Model() as model:
        _gathered()
    description = describe(model, metric=metric)
    with model:
        step = RMHMC(metric=metric)
    assert description.metric == metric
    assert description.hyperparameters == ()
    assert set(description.left_over) == {"above", "level", "ls", "alpha"}
    assert [block.name for block in description.blocks] == [v.name for v in step.vars]
    text = _one_line(description)
    assert f'The metric is "{metric}": it depends on the position of the latent values.' in text
    assert f"The latent values are sampled alone: the {metric} metric takes latent values alone." in text
    assert "default" not in text
    assert "also allows" not in text


def test_the_flat_metric_takes_the_chart_that_it_is_given():
    model = _gp_with(lambda mu: pm.Poisson("y", mu, observed=np.arange(N)))
    description = describe(model, metric=FlatMetric(chart="graph"))
    assert description.why == "the metric asks for it"
    assert set(description.charted) == {"f"}
    assert describe(model, metric=FlatMetric(chart="latent")).blocks == describe(model).blocks != ()
    with pytest.raises(UnsupportedModelError):
        describe(_funnel_without_blocks(), metric=FlatMetric(chart="latent"))


def _funnel_without_blocks() -> pm.Model:
    with pm.Model() as model:
        pm.Gamma("y", pm.Exponential("a", 1.0), 1.0, observed=[1.0, 2.0])
    return model


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"vars": ["v"]}, ConfigurationError, r"describe\(\) does not take vars. Write describe\(model\)"),
        ({"metric": "soft"}, ConfigurationError, "Unknown metric 'soft'"),
        ({"metric": "softabs", "n_steps": 3, "jitter": 0.1}, ConfigurationError, "n_steps fixes the number of steps"),
        ({"metric": "softabs_curvature"}, ConfigurationError, 'x: its likelihood gives no "softabs_curvature"'),
        ({"metric": GraphMetric(lambda model: pt.eye(2))}, ConfigurationError, r"has shape \(2, 2\)"),
    ],
)
def test_options_that_do_not_fit_are_the_errors_of_the_step(options, error, says):
    with pytest.raises(error, match=says):
        describe(_funnel(), **options)


@pytest.mark.usefixtures("without_a_compiler")
def test_a_dense_hessian_that_is_too_large_is_the_error_of_the_step():
    with pm.Model() as model:
        pm.Normal("x", shape=6000)
    with pytest.raises(ConfigurationError, match=r"6000 values needs dense matrices of 1\.1 GiB"):
        describe(model, metric=SoftAbsMetric(structure="dense"))
