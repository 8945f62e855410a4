"""Bad input is a typed error, raised when the step is built, that says what was found and what to do."""

from __future__ import annotations

import cloudpickle
import numpy as np
import pymc as pm
import pytest

from pymc_rmhmc import (
    RMHMC,
    ExplicitTao,
    FlatMetric,
    GeneralizedLeapfrog,
    ImplicitMidpoint,
    describe,
    register_likelihood,
    summarize_failures,
    undo_log,
)
from pymc_rmhmc.dynamics.solvers import AndersonSolver
from pymc_rmhmc.errors import (
    ConfigurationError,
    CovarianceError,
    DataError,
    Failure,
    UnsupportedLikelihoodError,
    UnsupportedModelError,
    listed,
)
from pymc_rmhmc.model.graph.graphs import PYTHON_MODE
from tests.steps.conftest import COUNTS, N, X, poisson_model

BAD_OPTIONS = [
    ({"metric": "riemann"}, "Unknown metric 'riemann'.*\"flat\""),
    ({"metric": 3}, "metric must be"),
    ({"metric": "hessian", "integrator": "euler"}, "Unknown integrator.*generalized_leapfrog"),
    ({"step_size": 0.0}, "step_size must be a number from 1e-12 to 1e.03, got 0. A shorter.*Leave step_size out"),
    ({"step_size": np.nan}, "step_size must be a number from 1e-12 to 1e.03, got nan"),
    ({"step_size": 0.1, "target_accept": 0.9}, "leave one of them out"),
    ({"target_accept": 1.0}, "target_accept"),
    ({"path_length": -1.0}, "path_length must be a number from 1e-06 to 1e.04, got -1"),
    ({"jitter": 1.0}, "jitter"),
    ({"n_steps": 0}, "n_steps must be a whole number from 1 .*got 0. A trajectory needs at least one step"),
    ({"n_steps": 5, "path_length": 1.0}, "path_length would change it"),
    ({"n_steps": 5, "jitter": 0.1}, "jitter would change it"),
    ({"n_steps": 5, "max_steps": 10}, "max_steps would change it"),
    ({"max_steps": 0}, "max_steps"),
    ({"metric": "hessian", "solver_tol": 0.5}, "solver_tol"),
    ({"metric": "hessian", "solver_max_iter": 0}, "solver_max_iter"),
    ({"solver_tol": 1e-9}, "solver_tol has no effect here.*explicitly.*Leave it out"),
    ({"integrator": "leapfrog"}, "Unknown integrator 'leapfrog'.*\"generalized_leapfrog\", \"implicit_midpoint\""),
    ({"integrator": "implicit_midpoint", "solver_tol": 1e-9}, "integrator and solver_tol have no effect.*Leave them"),
    ({"integrator": GeneralizedLeapfrog()}, "integrator.*explicitly"),
    ({"check_reversibility": False}, "check_reversibility.*explicitly"),
    ({"metric": "hessian", "integrator": GeneralizedLeapfrog(), "solver_tol": 1e-8}, "on the integrator itself"),
    ({"metric": "softabs_curvature"}, 'no "softabs_curvature" curvature.*hessian'),
    ({"init": "random"}, "init must be one of"),
    ({"blas_threads": 0}, "blas_threads"),
    ({"blas_threads": 1.5}, "blas_threads must be a whole number from 1 to 1024, got 1.5"),
    ({"max_steps": np.inf}, "max_steps must be a whole number from 1 to 1e.06, got inf"),
    ({"n_steps": np.nan}, "n_steps must be a whole number from 1 to 1e.06, got nan"),
    ({"metric": "hessian", "solver_max_iter": np.inf}, "solver_max_iter must be a whole number.*got inf"),
    (
        {"step_size": 0.01},
        r"=0.01 needs 187 steps for a path of up to 1\.87 \(path_length=1.7 and jitter=0.1\), and max_steps is 100",
    ),
    ({"blocked": False}, "blocked=False"),
    ({"step_size": 3.0}, r"step_size=3 is longer than a path, which is at most 1\.87 \(path_length=1.7 and"),
    ({"step_size": 3.0, "trajectory": "nuts"}, r"step_size=3 is too long: a longer step than 1\.7 turns back"),
    ({"step_size": 0.6, "path_length": 0.5, "jitter": 0.0}, r"longer than a path, which is at most 0\.5"),
    ({"step_size": "a"}, "step_size must be a number, got 'a'"),
    ({"target_accept": True}, "target_accept must be a number, got True"),
    ({"path_length": [1.0]}, r"path_length must be a number, got \[1.0\]"),
    ({"max_steps": True}, "max_steps must be a whole number.*got True"),
    ({"init": None}, "init must be one of auto, laplace, keep, got None"),
    ({"initial_point": [1]}, r"initial_point must be a dict of value variables.*got \[1\]"),
    ({"initial_point": {"ls": 0.0}}, "initial_point: ls is no value variable of the model. These are f"),
    ({"initial_point": {"f": np.zeros(3)}}, r"initial_point: f has the shape \(3,\), and in the model \(12,\)"),
    ({"compile_kwargs": {"mode": PYTHON_MODE}}, "compile_kwargs=.*no effect here: no other step.*Remove it"),
    ({"n_steps": 10**20}, r"n_steps must be a whole number from 1 to 1e\+06, got 1e\+20.*Leave n_steps out"),
    ({"n_steps": 10**400}, r"n_steps must be a whole number.*got about 1e400"),
    ({"n_steps": "5"}, "n_steps must be a whole number.*got '5'"),
    ({"max_steps": 10**20}, r"max_steps must be a whole number from 1 to 1e\+06, got 1e\+20.*default is max_steps=100"),
    ({"step_size": 1e-300}, "step_size must be a number from 1e-12.*got 1e-300"),
    ({"step_size": 1e-300, "n_steps": 3}, "step_size must be a number from 1e-12.*got 1e-300"),
    ({"step_size": 1e300, "n_steps": 3}, r"step_size must be.*got 1e\+300"),
    ({"step_size": 1e-9}, r"step_size=1e-09 needs 1\.87e\+09 steps for a path of up to 1\.87"),
    ({"path_length": 1e300}, r"path_length must be.*got 1e\+300.*default is path_length=1\.7"),
    ({"path_length": 10**400}, "path_length must be.*got about 1e400"),
    ({"path_length": 1e-300}, "path_length must be.*got 1e-300"),
    ({"jitter": -1}, "jitter must be a number from 0 to below 1, got -1.*default is jitter=0.1"),
    ({"jitter": np.nan}, "jitter must be a number from 0 to below 1, got nan"),
    ({"target_accept": 1e-300}, "target_accept must be a number from 0.01 to 0.999, got 1e-300.*target_accept=0.95"),
    ({"target_accept": 1 - 1e-16}, "target_accept must be a number from 0.01 to 0.999, got 1"),
    ({"metric": "hessian", "solver_tol": 1e-300}, "solver_tol must be a number from 1e-13.*got 1e-300"),
    ({"metric": "hessian", "solver_max_iter": 10**20}, r"solver_max_iter must be a whole number.*got 1e\+20"),
    ({"metric": "hessian", "check_reversibility": "no"}, "check_reversibility must be True or False, got 'no'"),
    ({"blas_threads": 10**6}, r"blas_threads must be a whole number from 1 to 1024, got 1e\+06"),
    ({"blocked": "no"}, "blocked must be True or False, got 'no'"),
    ({"metric": list}, r'metric must be a string or a metric such as .*got <class .list.>.*metric="flat"'),
    ({"model": "model"}, r"model must be a pymc.Model, got 'model'. Give RMHMC\(model=model\)"),
    ({"rng": "x"}, "rng must be an integer from 0 up or a numpy.random.Generator, got 'x'"),
    ({"rng": -1}, "rng must be an integer from 0 up.*got -1"),
    ({"rng": 1.5}, "rng must be an integer from 0 up.*got 1.5"),
    ({"rng": object()}, "rng must be an integer from 0 up.*got <object object"),
    ({"initial_point": {"f": "abc"}}, r"f is 'abc', which holds no numbers.*shape \(12,\), such as model.init"),
    ({"initial_point": {"f": None}}, "f is None, which holds no numbers"),
    ({"initial_point": {"f": [[1, 2], [3]]}}, r"f is \[\[1, 2\], \[3\]\], which holds no numbers"),
    ({"initial_point": {"f": np.full(N, "1.5")}}, "f is array.*which holds no numbers"),
    ({"initial_point": {"f": np.full(N, np.nan)}}, "f has 12 non-finite values"),
    ({"initial_point": {3: 1.0}}, "3 is no value variable of the model. These are f"),
    ({"initial_point": "abc"}, "initial_point must be a dict .*got 'abc'. This model's are f"),
    ({"compile_kwargs": "x"}, "compile_kwargs must be a dict.*got 'x'"),
    ({"compile_kwargs": {3: 1}}, "compile_kwargs must be a dict.*got {3: 1}"),
]


@pytest.mark.parametrize(("options", "says"), BAD_OPTIONS, ids=lambda v: "-".join(v) if isinstance(v, dict) else "")
def test_options(options, says):
    with poisson_model(), pytest.raises(ConfigurationError, match=says) as error:
        RMHMC(**options)
    assert len(str(error.value)) < 500


BAD_OBJECTS = [
    (lambda: AndersonSolver(memory=3), r"AndersonSolver\(\) cannot be called.* Write AndersonSolver\(tolerance=1e-9"),
    (lambda: ExplicitTao(), r"missing a required argument: 'omega'. Write ExplicitTao\(omega=10\.0\)"),
    (lambda: register_likelihood(3, 3), r"register_likelihood\(\) cannot be called.* Write @register_likelihood\("),
    (lambda: undo_log(3), r"undo_log takes a symbolic expression.* got 3"),
    (lambda: AndersonSolver(1e-9, 10**20), r"solver_max_iter must be a whole number.*got 1e\+20"),
    (lambda: AndersonSolver(1e-300, 10), "solver_tol must be a number.*got 1e-300"),
    (lambda: AndersonSolver(1e-9, 10, depth="x"), "depth must be a whole number from 0 to 100, got 'x'"),
    (lambda: AndersonSolver(1e-9, 10, depth=2.5), "depth must be a whole number from 0 to 100, got 2.5"),
    (lambda: GeneralizedLeapfrog(1e-9), r"GeneralizedLeapfrog needs an AndersonSolver.*got 1e-09.*AndersonSolver\("),
    (lambda: ImplicitMidpoint(AndersonSolver), "ImplicitMidpoint needs an AndersonSolver.*got <class"),
    (lambda: ImplicitMidpoint(check_reversibility="no"), "check_reversibility must be True or False, got 'no'"),
    (lambda: FlatMetric(refit="no"), r"refit must be True or False, got 'no'. Give FlatMetric\(refit=False\)"),
    (lambda: FlatMetric(emulate=3), "emulate must be True or False, got 3"),
    (lambda: describe("model"), r"model must be a pymc.Model, got 'model'. Give describe\(model=model\)"),
    (describe, "describe reads a model, and there is none in context"),
    (RMHMC, r"RMHMC reads a model, and there is none in context. .*RMHMC\(model=model\)"),
    (lambda: register_likelihood(3, link="log", read=len), "distribution must be .* such as pm.Poisson, .*got 3"),
    (lambda: register_likelihood(int, link="log", read=len), "distribution must be .*got <class 'int'>"),
    (lambda: register_likelihood(pm.Laplace, link=3, read=len), 'link must be a string, such as link="log", got 3'),
    (lambda: register_likelihood(pm.Laplace, link="x", read=3), "read must be a function, got 3"),
    (lambda: register_likelihood(pm.Laplace, link="x", read=len, check=3), "check must be a function, got 3"),
    (lambda: register_likelihood(pm.Laplace, link="x", read=len, name=3), "name must be a string.*got 3"),
    (
        lambda: register_likelihood(pm.Laplace, link="x", read=len, parameters="b"),
        r"parameters must be a list of names, such as parameters=\[.sigma.\], got 'b'",
    ),
    (
        lambda: register_likelihood(pm.Laplace, link="x", read=len, kinds="fisher"),
        r"kinds must be a list of names, such as kinds=\[.fisher.\], got 'fisher'",
    ),
    (lambda: register_likelihood(pm.Laplace, link="x", read=len, kinds=["x"]), "must name one or both of hessian"),
    (lambda: register_likelihood(pm.Laplace, link="x", read=len)(3), "the registered likelihood must be a function"),
]


@pytest.mark.parametrize(("make", "says"), BAD_OBJECTS, ids=range(len(BAD_OBJECTS)))
def test_public_functions_and_objects(make, says):
    with pytest.raises(ConfigurationError, match=says):
        make()


def test_long_lists_of_names_are_cut_short():
    names = [f"x_{i}" for i in range(8)]
    assert listed(names[:6]) == "x_0, x_1, x_2, x_3, x_4, x_5"
    assert listed(names) == "8 variables x_0, x_1, …, x_7"
    assert listed(iter(names), "") == "x_0, x_1, …, x_7"
    assert listed(names, between=" + ", most=8) == " + ".join(names)


@pytest.mark.parametrize("result", ["x", None, {}, 3])
def test_what_is_no_result(result):
    says = f"takes the result of pm.sample, an xarray.DataTree, got {result!r}. .*idata = pm.sample"
    with pytest.raises(DataError, match=says):
        summarize_failures(result)


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (["g"], 'no variable "g". The free variables of the model are ls, f'),
        ("y", "vars holds y, which is not a free random variable.*The free variables of the model are ls, f"),
        (["f", "y"], "vars holds y, which is not a free random variable"),
        ([3], "vars holds 3, which is neither a variable nor the name of one.*The free variables of.* are ls, f"),
        ({"f"}, "vars holds {'f'}, which is neither.*Give one, or a list"),
        ([], r"vars is empty.*vars=\['f'\]"),
    ],
)
def test_variables_that_are_none(wanted, says):
    with poisson_model(sampled=True), pytest.raises(ConfigurationError, match=says):
        RMHMC(vars=wanted)


def test_a_model_in_the_place_of_variables():
    model, other = poisson_model(), poisson_model()
    with pytest.raises(ConfigurationError, match=r"vars is a model.*Give RMHMC\(model=model\)"):
        RMHMC(model)
    with model, pytest.raises(ConfigurationError, match="vars holds the f of another model"):
        RMHMC(vars=[other["f"]])


def test_an_initial_point_by_the_names_of_the_model():
    with poisson_model(sampled=True, reparameterize=True):
        with pytest.raises(ConfigurationError, match="These are ls_log__, f_rotated_. Give f_rotated_ in place of f,"):
            RMHMC(initial_point={"f": np.zeros(N)})
        with pytest.raises(ConfigurationError, match="Give ls_log__ in place of ls, transformed"):
            RMHMC(initial_point={"ls": 1.0})


CHANGES = {
    "new: variable z": lambda model: pm.Normal("z"),
    "new: observed variable z": lambda model: pm.Poisson("z", pm.math.exp(model["f"]), observed=COUNTS),
    "new: Potential z": lambda model: pm.Potential("z", -(model["f"] ** 2).sum()),
}


@pytest.mark.parametrize("words", CHANGES)
def test_a_model_that_has_changed(words):
    """PyMC would sample what is new with a step of its own, and RMHMC the model as it was."""
    with poisson_model() as model:
        step = RMHMC()
        pm.Deterministic("rate", pm.math.exp(model["f"]))  # has no log density
        step.setup_chain(np.random.default_rng(0), 10, 10)
        CHANGES[words](model)
        says = rf"The model has changed since RMHMC was built \({words}\).*Build it again.*step=RMHMC\(\)"
        with pytest.raises(ConfigurationError, match=says):
            pm.sample(2, tune=60, chains=1, cores=1, step=step, progressbar=False)
        with pytest.raises(ConfigurationError, match=says):  # in a worker, which has a copy
            cloudpickle.loads(cloudpickle.dumps(step)).setup_chain(np.random.default_rng(0), 10, 10)


def test_arguments_of_nuts_are_refused_by_pymc_itself():
    """RMHMC cannot see them; its docstring quotes this message."""
    with poisson_model(), pytest.raises(ValueError, match="Invalid key found in step_kwargs: {'nuts'}"):
        pm.sample(2, tune=2, chains=1, step=RMHMC(), target_accept=0.95, progressbar=False)
    assert "Invalid key found in step_kwargs: {'nuts'}" in RMHMC.__doc__


def test_keywords_for_a_function_that_is_not_compiled():
    with poisson_model(sampled=True):
        with pytest.raises(ConfigurationError, match=r"compile_kwargs=.*no effect here: RMHMC samples hyperparameters"):
            RMHMC(compile_kwargs={"mode": PYTHON_MODE})
        step = RMHMC(vars=["f"], compile_kwargs={"mode": PYTHON_MODE})
    assert step._compiled.rest_log_density.function.maker.mode.provided_linker == PYTHON_MODE.provided_linker


def test_a_curvature_that_the_likelihood_does_not_give():
    with pm.Model():
        f = pm.MvNormal("f", np.zeros(N), cov=np.eye(N))
        pm.StudentT("y", nu=4, mu=f, sigma=1.0, observed=np.zeros(N))
        with pytest.raises(ConfigurationError, match='no "hessian" curvature, only fisher'):
            RMHMC(metric="hessian")
        RMHMC(metric="fisher")


def test_discrete_and_non_gaussian_variables():
    with pm.Model():
        k = pm.Poisson("k", 3.0, shape=N)
        g = pm.Gamma("g", 2.0, 1.0, shape=N)
        f = pm.MvNormal("f", np.zeros(N), cov=np.eye(N))
        pm.Poisson("y", mu=pm.math.exp(f) * g, observed=COUNTS)
        with pytest.raises(UnsupportedModelError, match="k is discrete"):
            RMHMC(vars=[k])
        assert [v.name for v in RMHMC(vars=["g"]).vars] == ["g_log__"]
        with pytest.raises(ConfigurationError, match='no variable "nothing"'):
            RMHMC(vars="nothing")


def test_a_likelihood_that_does_not_factorise():
    with pm.Model():
        f = pm.MvNormal("f", np.zeros(3), cov=np.eye(3))
        pm.MvNormal("y", mu=f, cov=np.eye(3), observed=np.zeros(3))
        with pytest.raises(UnsupportedLikelihoodError, match="does not factorise"):
            RMHMC(vars=[f], metric=FlatMetric(chart="latent"))
        assert [v.name for v in RMHMC(vars=[f]).vars] == ["f"]


def test_a_fixed_covariance_that_is_not_positive_definite():
    covariance = np.eye(N)
    covariance[0, 1] = covariance[1, 0] = 1.2
    with pm.Model():
        f = pm.MvNormal("f", np.zeros(N), cov=covariance)
        pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)
        with pytest.raises(CovarianceError, match=r"smallest eigenvalue is -0\.2.*jitter"):
            RMHMC()


def test_a_covariance_lost_on_the_way_is_a_counted_rejection():
    """With θ from another step it cannot be known beforehand: the draw is kept, and the cause reported."""
    with pm.Model() as model:
        lengthscale = pm.LogNormal("ls", -1.0, 0.3)
        covariance = pm.gp.cov.Matern52(1, ls=lengthscale)(X)  # with no jitter
        f = pm.MvNormal("f", np.zeros(N), cov=covariance)
        pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)
        step = RMHMC(vars=["f"])
    step.setup_chain(np.random.default_rng(0), 0, 10)
    point = model.initial_point()
    point, _ = step.step(point)
    lost = {**point, "ls_log__": np.array(40.0)}  # a lengthscale of e⁴⁰: all rows are equal
    kept, (stats,) = step.step(lost)
    assert stats["failure"] == Failure.NOT_POSITIVE_DEFINITE
    assert stats["mean_tree_accept"] == 0.0
    np.testing.assert_array_equal(kept["f"], point["f"])
    assert stats["warning"] is None
    for _ in range(8):
        _, (stats,) = step.step({**kept, "ls_log__": point["ls_log__"]})
        assert stats["failure"] == Failure.NONE
    assert stats["warning"].message.endswith("The covariance was last not positive definite at ls_log__ = 40.0.")


@pytest.mark.parametrize("where", ["mean", "exposure", "covariance"])
def test_inputs_that_are_not_finite(where):
    bad = np.ones(N)
    bad[3] = np.nan
    with pm.Model():
        covariance = np.diag(bad) if where == "covariance" else np.eye(N)
        f = pm.MvNormal("f", bad if where == "mean" else np.zeros(N), cov=covariance)
        pm.Poisson("y", mu=(bad if where == "exposure" else 1.0) * pm.math.exp(f), observed=COUNTS)
        with pytest.raises(DataError, match="finite"):
            RMHMC()


def test_data_whose_shape_changed():
    with pm.Model():
        counts = pm.Data("counts", COUNTS)
        f = pm.MvNormal("f", np.zeros(N), cov=np.eye(N))
        pm.Poisson("y", mu=pm.math.exp(f), observed=counts)
        step = RMHMC()
        pm.set_data({"counts": COUNTS[:5]})
        with pytest.raises(DataError, match=r"shape of counts from \(12,\) to \(5,\) since RMHMC was built. Build"):
            step.setup_chain(np.random.default_rng(0), 10, 10)


def test_data_that_became_impossible():
    with pm.Model():
        counts = pm.Data("counts", COUNTS)
        f = pm.MvNormal("f", np.zeros(N), cov=np.eye(N))
        pm.Poisson("y", mu=pm.math.exp(f), observed=counts)
        step = RMHMC()
        pm.set_data({"counts": -COUNTS - 1})
        with pytest.raises(DataError, match="counts 0, 1, 2"):
            step.setup_chain(np.random.default_rng(0), 10, 10)


def test_single_precision():
    import pytensor

    with pytensor.config.change_flags(floatX="float32"), pm.Model():
        f = pm.MvNormal("f", np.zeros(3), cov=np.eye(3))
        pm.Poisson("y", mu=pm.math.exp(f), observed=[1, 2, 3])
        with pytest.raises(ConfigurationError, match="float64"):
            RMHMC()


def test_a_start_with_no_density_says_so():
    with poisson_model() as model:
        step = RMHMC(init="keep")
        step.setup_chain(np.random.default_rng(0), 10, 10)
        with pytest.raises(ConfigurationError, match="starting point"):
            step.step({**model.initial_point(), "f": np.full(N, 2000.0)})


@pytest.mark.slow
def test_a_scale_that_is_no_number_where_the_chain_starts_is_named():
    """In a field PyMC's own checks raised when the model was read."""
    with pm.Model() as model:
        f, h = (pm.Normal(name, 0, pm.HalfNormal(f"s_{name}"), shape=80) for name in "fh")
        pm.Normal("y", f, pm.math.sqrt(h - 1.0), observed=np.sin(np.arange(80.0)))
    with model:
        step = RMHMC()
    says = "f . h: .*the log density of y is nan, since the argument sigma of y is NaN at position 0"
    with pytest.raises(ConfigurationError, match=says):
        pm.sample(5, tune=5, chains=1, cores=1, step=step, progressbar=False, model=model)


def test_pymc_never_takes_it_by_itself():
    from pymc.step_methods.compound import Competence

    assert RMHMC.competence(None, True) == Competence.INCOMPATIBLE


@pytest.mark.parametrize("metric", ["flat", "hessian"])
@pytest.mark.parametrize(("start", "name"), [({"level": np.nan}, "level"), ({"ls": -1.0}, "ls_log__")])
def test_a_start_that_is_no_number_is_named(metric, start, name):
    """Of a value outside of its variable's bounds the logarithm is none."""
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=pm.HalfNormal("ls"))).prior("f", X=X)
        pm.Poisson("y", mu=pm.math.exp(pm.Normal("level") + f), observed=COUNTS)
        step = RMHMC(metric=metric)
    says = rf"f: the chain's starting point has values of {name} that are not finite. Give other `initvals`"
    with pytest.raises(ConfigurationError, match=says), np.errstate(invalid="ignore"):
        pm.sample(5, tune=5, chains=1, cores=1, step=step, initvals=start, progressbar=False, model=model)


def test_a_random_subset_of_the_data_is_refused():
    with pm.Model() as model:
        x, y = pm.Minibatch(np.arange(20.0), np.arange(20.0), batch_size=5)
        pm.Normal("y", pm.Normal("slope") * x, 1.0, observed=y, total_size=20)
        with pytest.raises(UnsupportedModelError, match=r"y reads a pm\.Minibatch: .*random subset.*total_size"):
            RMHMC()
    with pytest.raises(UnsupportedModelError, match="y reads"):
        describe(model)


@pytest.mark.filterwarnings("ignore:RandomVariables")
def test_a_potential_that_holds_random_draws_is_refused():
    """PyMC's density of such a model is another one at each evaluation."""
    with pm.Model():
        level, spread = pm.Normal("level"), pm.HalfNormal("spread")
        censored = pm.Censored.dist(pm.Normal.dist(2.0 * level, 1.0 / spread), None, 1.0)
        pm.Potential("y", pm.logp(censored, np.array([0.5, 1.0])).sum())
        with pytest.raises(UnsupportedModelError, match=r"y holds random draws of level, spread .*replace_rvs"):
            RMHMC()


def test_a_potential_of_a_distributions_density_is_sampled():
    with pm.Model():
        level, spread = pm.Normal("level"), pm.HalfNormal("spread")
        pm.Potential("y", pm.logp(pm.Normal.dist(level, spread), np.array([0.5, 1.0])).sum())
        assert len(RMHMC().vars) == 2


def test_a_simulator_is_refused_with_the_sampler_that_takes_it():
    with pm.Model():
        a = pm.Normal("a")
        pm.Simulator("s", lambda rng, a, size=None: rng.normal(a, 1.0, size=3), a, observed=np.zeros(3))
        with pytest.raises(UnsupportedModelError, match=r"s is a pm\.Simulator.*pm\.sample_smc\(\)"):
            RMHMC()
