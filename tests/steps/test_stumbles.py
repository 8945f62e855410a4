"""What a newcomer types or forgets: each is answered by a sentence that says what to type instead."""

from __future__ import annotations

import copy
import logging
import pickle

import numpy as np
import pymc as pm
import pytest

from pymc_rmhmc import RMHMC, ConfigurationError, DataError, compare, describe, plot_compare, summarize_failures
from pymc_rmhmc.errors import SamplingError, wrapped
from pymc_rmhmc.model.observed.unregistered_readers import ArgumentWords
from pymc_rmhmc.model.together import NOTHING_OBSERVED
from pymc_rmhmc.model.words.density_terms import DensityTerms
from pymc_rmhmc.sampled.graph import GraphDensity
from pymc_rmhmc.steps.rehearsal import _Said
from pymc_rmhmc.steps.reports import RunNotices
from tests.steps.conftest import COUNTS, N, draw, poisson_model
from tests.steps.test_diagnostics import made_up
from tests.thinned import thinned


def printed(model):
    return " ".join(str(describe(model)).split())


def announced(caplog, model, **options):
    with caplog.at_level(logging.INFO, "pymc.rmhmc"), model:
        RMHMC(**options)
    return " ".join(caplog.text.split())


@pytest.mark.parametrize("flat", [pm.Flat, pm.HalfFlat])
def test_nothing_observed_without_a_gaussian_process(caplog, flat):
    with pm.Model() as proper:
        pm.HalfNormal("s")
    with pm.Model() as improper:
        flat("x")
    assert NOTHING_OBSERVED in printed(proper)
    assert NOTHING_OBSERVED in announced(caplog, proper)
    says = "so x (Flat or HalfFlat) has no posterior distribution, and RMHMC cannot sample it. Give it a proper prior"
    assert says in printed(improper)
    with pytest.raises(ConfigurationError, match="x: the model's log density does not depend on it"):
        announced(caplog, improper)
    with pm.Model() as informed:
        pm.Normal("y", flat("x"), 1.0, observed=[1.0, 2.0])
    assert "Nothing in this model is observed" not in str(describe(informed))


def test_an_observed_variable_without_data_is_discrete_and_no_hyperparameter(caplog):
    with pm.Model() as model:
        f = pm.MvNormal("f", np.zeros(N), cov=np.eye(N))
        pm.Poisson("y", mu=pm.math.exp(f))
    assert "read by y: poisson (log link), not observed; depends on no hyperparameters." in printed(model)
    assert "- y (Metropolis): discrete (Poisson)." in printed(model)
    assert "left to other steps: y (discrete (Poisson), sampled by Metropolis)" in announced(caplog, model)


def test_missing_counts_are_named_as_such(caplog):
    with pm.Model() as model:
        f = pm.MvNormal("f", np.zeros(N), cov=np.eye(N))
        pm.Poisson("y", mu=pm.math.exp(f), observed=np.ma.masked_array(COUNTS, np.arange(N) < 2))
    assert "- y_unobserved (Metropolis): missing observations of y, discrete (Poisson)." in str(describe(model))
    assert "missing observations of y, discrete (Poisson), sampled by Metropolis" in announced(caplog, model)


def test_a_discrete_variable_beside_a_chart_of_the_graph(caplog):
    with pm.Model() as model:
        pm.Normal("y", pm.Laplace("b", 0, 1) + pm.Bernoulli("k", 0.5), 1.0, observed=np.zeros(3))
    assert "- k (BinaryGibbsMetropolis): discrete (Bernoulli)." in str(describe(model))
    assert "k (discrete (Bernoulli), sampled by BinaryGibbsMetropolis)" in announced(caplog, model)


def of_data(kind):
    """A model of two data containers that belong together."""
    with pm.Model() as model:
        inputs, counts = pm.Data("inputs", np.linspace(0, 1, N)), pm.Data("counts", COUNTS)
        pm.Data("elsewhere", np.zeros(N + 1))
        prior = pm.MvNormal("f", np.zeros(N), cov=np.eye(N)) if kind == "process" else pm.Laplace("b", 0.0, 1.0)
        pm.Poisson("y", mu=pm.math.exp(prior + inputs), observed=counts)
    return model


@pytest.mark.parametrize("kind", ["process", "graph"])
def test_data_of_another_length(kind):
    model = of_data(kind)
    with model:
        step = RMHMC()
        pm.set_data({"elsewhere": np.zeros(3)})  # nothing reads it
        step.setup_chain(np.random.default_rng(0), 10, 10)
        pm.set_data({"counts": COUNTS[:5]})
        says = (
            r"^pm.set_data has changed the shape of counts from \(12,\) to \(5,\) since RMHMC was built. Change other "
            r"data of the old length too, if their rows belong to it: inputs \(12,\). Build RMHMC again"
        )
        with pytest.raises(DataError, match=says):
            step.setup_chain(np.random.default_rng(0), 10, 10)
        says = r"the data have the shape \(5,\).*has \(12,\).*change the others too: .*inputs \(12,\)"
        with pytest.raises(DataError, match=says):
            RMHMC()


@pytest.mark.parametrize("group", ["posterior", "sample_stats"])
@pytest.mark.parametrize("as_dataset", [False, True])
def test_one_group_of_a_result(group, as_dataset):
    part = made_up()[group]
    part = part.dataset if as_dataset else part
    with pytest.raises(DataError, match=r"one group of it. Give the whole idata: summarize_failures\(idata\)"):
        summarize_failures(part)
    for function in (compare, plot_compare):
        with pytest.raises(DataError, match="NUTS has no posterior group. It is one group .*: give the whole idata"):
            function({"RMHMC": made_up(), "NUTS": part})
        with pytest.raises(ConfigurationError, match="Results are given by name"):
            function(part)


@pytest.mark.parametrize(("given", "meant"), [("ls_log__", "ls"), ("LS", "ls"), ("F", "f"), ("f_rotatd_", "f")])
def test_names_that_are_almost_right(given, meant):
    says = f'the model has no variable "{given}". Did you mean "{meant}"\\? The free'
    with poisson_model(sampled=True, reparameterize=True), pytest.raises(ConfigurationError, match=says):
        RMHMC(vars=[given])


UNKNOWN = {
    "max_treedepth": r'no argument max_treedepth. Give RMHMC\(trajectory="nuts", max_steps=1023\)',
    "max_tree_depth": r'RMHMC\(trajectory="nuts", max_steps=1023\)',
    "maxdepth": r'RMHMC\(trajectory="nuts", max_steps=1023\)',
    "early_max_treedepth": r"max_steps=255",
    "delta": r"no argument delta. Give RMHMC\(target_accept=0.95\)",
    "adapt_delta": r"Give RMHMC\(target_accept=0.95\)",
    "epsilon": r"Give RMHMC\(step_size=0.1\)",
    "stepsize": r"Give RMHMC\(step_size=0.1\)",
    "L": r"Give RMHMC\(n_steps=10\)",
    "seed": r"pm.sample\(random_seed=1, step=RMHMC\(\)\)",
    "mass_matrix": "learns its mass matrix in tuning: leave it out",
    "step_scale": r"To fix the step size, give RMHMC\(step_size=0.1\)",
    "adapt_step_size": r"unless you fix it with RMHMC\(step_size=0.1\)",
    "scaling": "learns its mass matrix in tuning: leave it out",
    "potential": "learns its mass matrix",
    "gamma": "leave it out, or fix the step size",
    "Emax": "more than 1000",
    "nuts": r"by name, such as RMHMC\(target_accept=0.95\)",
    "tune": r"Give it to pm.sample: pm.sample\(tune=..., step=RMHMC\(\)\)",
    "target_acept": r"Did you mean target_accept\? Its arguments are vars, metric,",
    "zzz": "no argument zzz. Its arguments are vars",
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_arguments_that_it_does_not_have(name):
    with poisson_model(), pytest.raises(ConfigurationError, match=UNKNOWN[name]):
        RMHMC(**{name: 1})


def test_every_argument_of_pymcs_own_steps_is_answered():
    """Those of RMHMC aside, and those that PyMC's own functions give."""
    import inspect

    from pymc.step_methods.hmc.base_hmc import BaseHMC

    from pymc_rmhmc.steps.options import ARGUMENTS_OF_NUTS

    kinds = [pm.NUTS.__init__, pm.HamiltonianMC.__init__, BaseHMC.__init__]
    names = {name for kind in kinds for name in inspect.signature(kind).parameters}
    own = {*inspect.signature(RMHMC.__init__).parameters, "args", "kwargs", "logp_dlogp_func"}
    assert names - own - set(ARGUMENTS_OF_NUTS) <= {"pytensor_kwargs", "dtype", "pytensor", "initial_point"}


def test_what_vars_does_not_name_is_said(caplog):
    model = poisson_model(sampled=True)
    assert "left to other steps: f (not named in vars)" in announced(caplog, model, vars=["ls"])


@pytest.mark.usefixtures("compiled_ahead")
def test_compiling_is_said_once_without_a_gaussian_process(caplog):
    with pm.Model():
        effects = pm.Laplace("effects", 0.0, pm.HalfNormal("scale"), shape=11)
        pm.Normal("y", effects, 1.3, observed=np.zeros(11))
        with caplog.at_level(logging.INFO, "pymc.rmhmc"):
            pm.sample(20, tune=100, chains=1, cores=1, step=RMHMC(), progressbar=False)
    said = [r.getMessage() for r in caplog.records if r.getMessage().startswith("RMHMC: compil")]
    assert len(said) == 2
    assert "2 functions" in said[0]


@pytest.mark.usefixtures("compiled_ahead")
def test_one_function_is_counted_as_one(caplog):
    with pm.Model() as model:
        pm.Normal("y", pm.Laplace("b", 0, 1.7), 1.9, observed=np.zeros(13))
    assert "compiling 1 function for b" in announced(caplog, model)


def process():
    return pm.MvNormal("f", np.zeros(N), cov=np.eye(N))


WRONG_SCALES = {
    "s: give s a positive prior, such as pm.HalfNormal. If only its start is wrong, give it an initval": (
        lambda: 2.0 * pm.Normal("s")
    ),
    "the data scale: correct these": lambda: pm.Data("scale", -1.0),
    r"the first at position 0 \(-1\). Correct this argument of y": lambda: -1.0,
}


@pytest.mark.parametrize("says", WRONG_SCALES)
def test_a_scale_that_is_not_positive_is_traced_to_its_origin(says):
    with pm.Model():
        pm.Normal("y", process(), WRONG_SCALES[says](), observed=np.zeros(N))
        with pytest.raises(DataError, match=f"sigma .* must be positive, .*{says}") as error:
            RMHMC()
    assert "observations" not in str(error.value)


LINKS = {"Bernoulli": "needs logit_p=f or pm.math.invlogit", "Geometric": "a probability needs pm.math.invlogit"}


@pytest.mark.parametrize("kind", LINKS)
def test_a_probability_out_of_range_needs_an_inverse_logit(kind):
    with pm.Model():
        getattr(pm, kind)("y", p=process() - 300.0, observed=np.ones(N, dtype=int))
        with pytest.raises(DataError, match=rf"out of its range.*{LINKS[kind]}\(f\)"):
            RMHMC()


def test_why_a_model_of_nothing_is_not_sampled():
    description = describe(pm.Model())
    for shown in (str(description), description._repr_html_()):
        assert "The model has no free variables" in " ".join(shown.split())


def test_why_effects_are_in_the_graphs_chart_is_said_plainly(caplog):
    with pm.Model() as model:
        effects = pm.Normal("effects", 0.0, pm.HalfNormal("scale"), shape=5)
        pm.Normal("y", effects, 1.0, observed=np.zeros(5))
    because = "because the values of effects are independent"
    assert because in printed(model)
    assert "all together" in printed(model)
    assert because in announced(caplog, model)


def test_each_notice_has_a_line():
    notices = RunNotices()
    notices.add("a", "One.")
    notices.add("b", "Two.")
    assert notices.take() == "One.\nTwo."


def test_a_copy_names_arguments_and_a_pickle_holds_no_model():
    with pm.Model() as model:
        y = pm.Laplace("y", 2.0, 3.0, observed=np.zeros(N))
    words = ArgumentWords((model, y))
    assert copy.deepcopy(words).values({}) == words.values({}) == "mu = 2, b = 3"
    assert pickle.loads(pickle.dumps(words)).values({}) == ""


GROUPS, COVARIATE = np.arange(N) % 4, np.linspace(-1.0, 1.0, N)
NOISY = np.sin(COVARIATE)


def a_process(name):
    kernel = pm.HalfNormal(f"eta_{name}") ** 2 * pm.gp.cov.Matern52(1, ls=pm.LogNormal(f"ls_{name}"))
    return pm.gp.Latent(cov_func=kernel).prior(name, X=COVARIATE[:, None])


def counts():
    linear = pm.Normal("a") + np.vander(COVARIATE, 3) @ pm.Normal("b", shape=3)
    pm.NegativeBinomial("y", pm.math.exp(linear + a_process("f")), pm.HalfNormal("alpha"), observed=COUNTS)


def varying_slopes():
    def effects(name):
        mean, scale = pm.Normal(f"mu_{name}"), pm.HalfNormal(f"sigma_{name}")
        return pm.Normal(name, mean, scale, shape=4)[GROUPS]

    mean = effects("intercept") + effects("slope") * COVARIATE
    pm.Normal("radon", mean, pm.HalfNormal("sigma"), observed=NOISY)


def predicted():
    gp = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=pm.LogNormal("ls")))
    pm.Poisson("y", pm.math.exp(gp.prior("f", X=COVARIATE[:, None])), observed=COUNTS)
    gp.conditional("f_new", Xnew=np.ones((2, 1)))


def volatility():
    walk = pm.GaussianRandomWalk("v", sigma=pm.Exponential("step", 50), init_dist=pm.Normal.dist(0.0, 1.0), shape=N)
    pm.StudentT("y", nu=pm.Exponential("nu", 0.1), lam=pm.math.exp(-2 * walk), observed=NOISY)


def horseshoe():
    scale = pm.HalfCauchy("tau", 1.0) * pm.HalfCauchy("lam", 1.0, shape=5)
    pm.Normal("y", np.vander(COVARIATE, 5) @ pm.Normal("b", 0.0, scale), pm.HalfNormal("s"), observed=NOISY)


def scalars():
    values = [pm.Normal(f"b{i}") for i in range(8)]
    pm.Normal("y", sum(b * COVARIATE**i for i, b in enumerate(values)), pm.HalfNormal("s"), observed=NOISY)


TYPICAL = {
    "counts": counts,
    "two processes": lambda: pm.Bernoulli("y", logit_p=a_process("f") + a_process("g"), observed=COUNTS > 2),
    "heteroscedastic": lambda: pm.Normal("y", a_process("f"), pm.math.exp(a_process("g")), observed=NOISY),
    "varying slopes": varying_slopes,
    "missing": lambda: pm.Poisson(
        "y", pm.math.exp(a_process("f")), observed=np.ma.masked_array(COUNTS, np.arange(N) < 2)
    ),
    "predicted": predicted,
    "volatility": volatility,
    "horseshoe": horseshoe,
    "scalars": scalars,
    "crowd": lambda: pm.Normal("y", a_process("f"), pm.math.exp(pm.Normal("g", shape=60)[:N]), observed=NOISY),
    "discrete": lambda: pm.Normal("y", pm.Laplace("b", 0, 1) + pm.Bernoulli("k", 0.5), 1.0, observed=NOISY),
    "no data": lambda: pm.HalfNormal("s"),
    "no data of a process": lambda: pm.Poisson("y", pm.math.exp(a_process("f"))),
}


@pytest.mark.usefixtures("without_a_compiler")
@pytest.mark.parametrize("kind", thinned(TYPICAL, 2))
def test_no_line_is_too_long_to_read(caplog, kind):
    with pm.Model() as model:
        TYPICAL[kind]()
    announced(caplog, model)
    logged = [line for record in caplog.records for line in record.getMessage().split("\n")]
    assert logged
    assert [line for line in logged if len(line) > 150] == []
    assert [line for line in str(describe(model)).split("\n") if len(line) > 100] == []


def test_the_line_on_compiling_is_broken(caplog):
    with caplog.at_level(logging.INFO, "pymc.rmhmc"):
        _Said(2, ["mu_intercept", "sigma_intercept", *"abcd", "sigma"], "RMHMC").before()
    first, second = caplog.records[0].getMessage().split("\n")
    assert max(len(first), len(second)) <= 150
    assert second.startswith("  ")


def test_code_stays_whole():
    code = f"    x = pm.Normal({'1, ' * 70})"
    assert wrapped(f"{'Words ' * 40}\n{code}").endswith(code)


SPOILT = np.where(np.arange(N) == 3, np.inf, COVARIATE)


def coefficients(law, covariate):
    return law("a", 0, 1) + law("b", 0, 1) * covariate


WITH_A_COVARIATE = {
    "a chart of the graph": lambda x: pm.Normal("y", coefficients(pm.Laplace, x), pm.HalfNormal("s"), observed=NOISY),
    "latents": lambda x: pm.Poisson("y", pm.math.exp(coefficients(pm.Normal, x)), observed=COUNTS),
    "beside a process": lambda x: pm.Poisson("y", pm.math.exp(process() + pm.Normal("b") * x), observed=COUNTS),
    "an offset": lambda x: pm.Laplace("y", process() + x, 1.0, observed=NOISY),
    "a potential": lambda x: pm.Potential("y", -((coefficients(pm.Laplace, x) - NOISY) ** 2).sum()),
}


@pytest.mark.parametrize("kind", WITH_A_COVARIATE)
def test_a_covariate_that_is_not_finite_is_named(kind):
    build = WITH_A_COVARIATE[kind]
    lost = "are not finite in 1 of 12 values, the first at position 3 .*, so that y has no finite log density"
    for name, value in (("The data xd", lambda: pm.Data("xd", SPOILT)), ("Constants in the formula of y", SPOILT.copy)):
        with pm.Model() as model:
            build(value())
        with pytest.raises(DataError, match=f"{name} {lost}"):
            describe(model)
        with pytest.raises(DataError, match=f"{name} {lost}"), model:
            RMHMC()


def test_a_covariate_that_is_not_finite_any_more_is_named():
    with pm.Model():
        WITH_A_COVARIATE["a chart of the graph"](pm.Data("xd", COVARIATE))
        step = RMHMC()
        pm.set_data({"xd": SPOILT})
        with pytest.raises(DataError, match="The data xd are not finite"):
            step.setup_chain(np.random.default_rng(0), 10, 10)


def test_a_bound_at_infinity_is_no_fault():
    with pm.Model() as model:
        law = pm.Normal.dist(pm.Laplace("b", 0, 1), 1.0)
        pm.Censored("y", law, lower=np.full(N, -np.inf), upper=np.ones(N), observed=np.zeros(N))
        RMHMC()
    assert "Sampled by RMHMC" in str(describe(model))


WITHOUT_A_START = {
    "latents, no link": (
        lambda: pm.Poisson("y", coefficients(pm.Normal, COVARIATE) - 2.0, observed=COUNTS),
        r"y is -inf, since it needs mu >= 0 but has mu = -2. .* needs pm.math.exp",
    ),
    "a process, no link": (
        lambda: pm.Poisson("y", process(), observed=COUNTS),
        r"y is -inf with mu = 0, data from 0 to 6. .* A rate of 0 needs pm.math.exp",
    ),
    "a graph, no link": (
        lambda: pm.Poisson("y", coefficients(pm.Laplace, COVARIATE) - 2.0, observed=COUNTS),
        r"where a = 0.0, b = 0.0, the log density of y is -inf, since it needs mu >= 0 but has mu = -2. .*exp",
    ),
    "a scale": (
        lambda: pm.Normal("y", pm.Normal("m"), coefficients(pm.Laplace, COVARIATE) - 1.0, observed=NOISY),
        "it needs sigma > 0 but has .*sigma = -1. An argument that must be positive",
    ),
    "a scale of a process": (
        lambda: pm.Normal("y", process(), coefficients(pm.Normal, COVARIATE) - 1.0, observed=NOISY),
        r"sigma .* must be positive.*computed from a, b: take pm.math.exp\(...\) of its formula, or give each",
    ),
    "a probability": (
        lambda: pm.Bernoulli("y", p=coefficients(pm.Laplace, COVARIATE) + 2.0, observed=COUNTS > 2),
        r"it needs 0 <= p <= 1 but has p = 2. A probability needs pm.math.invlogit\(...\), or logit_p=",
    ),
    "an overflow": (
        lambda: pm.Poisson("y", pm.math.exp(800.0 + coefficients(pm.Laplace, COVARIATE)), observed=COUNTS),
        "the argument mu of y is infinite at position 0 .* pm.math.exp overflows above 709",
    ),
    "an overflow of a process": (
        lambda: pm.Poisson("y", pm.math.exp(800.0 + process()), observed=COUNTS),
        "the argument mu of y is infinite at position 0 .* pm.math.exp overflows above 709.*offset",
    ),
    "a logarithm": (
        lambda: pm.Normal("y", pm.math.log(pm.Laplace("a", -1, 1) * np.ones(N)), 1.0, observed=NOISY),
        r"the argument mu of y is NaN at position 0 \(12 of 12 values\). log, sqrt and powers of a negative",
    ),
    "a division": (
        lambda: pm.Normal("y", 1.0 / (pm.Laplace("a", 0, 1) * np.zeros(N)), 1.0, observed=NOISY),
        r"the argument mu of y is infinite at position 0 .* A division by 0",
    ),
    "an unnamed parameter": (
        lambda: pm.NegativeBinomial("y", pm.Laplace("a", -1, 1), pm.HalfNormal("s"), observed=COUNTS),
        "a parameter of y is NaN.*, with .*mu = -1",
    ),
    "data": (
        lambda: pm.Gamma("y", 2.0, pm.HalfNormal("s"), observed=NOISY),
        r"y is -inf with alpha = 2, beta = 1, data from -0.841 to 0.841, since 6 of 12 observations cannot occur",
    ),
}


@pytest.mark.usefixtures("without_a_compiler")
@pytest.mark.parametrize("kind", WITHOUT_A_START)
def test_a_start_without_a_density_names_the_argument_and_the_remedy(kind):
    build, says = WITHOUT_A_START[kind]
    with pm.Model() as model:
        build()
        with pytest.raises((ConfigurationError, DataError), match=says):
            begin(RMHMC(init="keep"), model.initial_point())


def begin(step, point):
    """Begin a chain; in a chart of the graph, whose density is compiled for that, only ask why it could not begin."""
    (sampler,) = step._samplers
    if isinstance(sampler.density, GraphDensity):
        raise sampler.density.start_error(point)
    step.setup_chain(np.random.default_rng(0), 10, 10)
    step.step(point)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda model: plot_compare({}, {}), r'too many positional arguments\. Write plot_compare\(\{"RMHMC": idata'),
        (lambda model: compare({}, 1, 2), r'too many positional arguments\. Write compare\(\{"RMHMC": idata, "NUTS"'),
        (lambda model: summarize_failures(1, 2), r"Write summarize_failures\(idata\), one result at a time"),
        (lambda model: describe(model, draws=5), r"describe\(\) does not take draws\. Write describe\(model\)"),
        (lambda model: RMHMC(None, "hessian", model=model), r"2 arguments\. Name the others, such as RMHMC\(metric="),
    ],
)
def test_calls_that_cannot_be_made_are_answered_by_one_that_can(call, says):
    with pytest.raises(ConfigurationError, match=says):
        call(poisson_model())


@pytest.mark.parametrize("lengthscale", [0.0, np.nan])
def test_a_lengthscale_that_is_no_length_is_named_as_a_cause(lengthscale):
    with pm.Model():
        covariance = pm.gp.cov.Matern52(1, ls=lengthscale)
        f = pm.gp.Latent(cov_func=covariance).prior("f", X=np.linspace(0, 1, N)[:, None], reparameterize=False)
        pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)
        with pytest.raises(DataError, match="Look for a lengthscale of 0 and for NaN"):
            RMHMC()


def test_print_says_which_other_metrics_are_allowed():
    assert 'The likelihood also allows metric="hessian" or "fisher".' in str(describe(poisson_model()))


NEIGHBOURS = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])


def neighbours(alpha=0.5, tau=1.0, w=NEIGHBOURS):
    return pm.CAR("a", np.zeros(3), w, alpha=alpha, tau=tau)


def walk(sigma, first=1.0):
    return pm.GaussianRandomWalk("a", sigma=sigma, init_dist=pm.Normal.dist(0.0, first), shape=3)


OUT_OF_RANGE = {
    "normal": (lambda: pm.Normal("a", 0, -1, shape=3), "^sigma of a must be positive, got -1, so a has no density"),
    "zero": (lambda: pm.Normal("a", 0, 0), "^sigma of a must be positive, got 0, "),
    "several": (lambda: pm.Normal("a", 0, [0.0, 1.0, 1.0]), "^sigma of a must be positive, got 0 in 1 of 3 values"),
    "precision": (lambda: pm.Normal("a", tau=-1), "^tau of a must be positive, got -1"),
    "data": (lambda: pm.Normal("a", 0, pm.Data("s", -2.0)), "^sigma of a must be positive, got -2"),
    "above": (lambda: pm.Normal("a", 0, pm.HalfNormal("s", -2.0)), "^sigma of s must be positive, got -2"),
    "walk": (lambda: walk(-1.0), "^sigma of a must be positive, got -1"),
    "constant walk": (lambda: walk(0.0), "^sigma of a must be positive, got 0"),
    "first": (lambda: walk(1.0, -1.0), "^sigma of a must be positive, got -1"),
    "alpha": (lambda: neighbours(alpha=2.0), "^a needs alpha < 1, got 2"),
    "tau": (lambda: neighbours(tau=-1.0), "^tau of a must be positive, got -1"),
    "asymmetric": (lambda: neighbours(w=np.triu(NEIGHBOURS)), "^a needs this: W is a symmetric adjacency matrix"),
    "bounds": (lambda: pm.Uniform("a", 1, 0), "^a needs lower < upper, got lower=1 and upper=0"),
    "equal bounds": (lambda: pm.Uniform("a", 1, 1), "^a needs lower < upper, got lower=1 and upper=1"),
    "truncated": (lambda: pm.TruncatedNormal("a", 0, 1, lower=2, upper=-2), "^a needs lower < upper, got lower=2 and"),
    "half": (lambda: pm.HalfNormal("a", -1), "^sigma of a must be positive, got -1"),
    "gamma": (lambda: pm.Gamma("a", -1, 1), "^alpha of a must be positive, got -1"),
    "beta": (lambda: pm.Beta("a", 0, 1), "^alpha of a must be positive, got 0"),
    "rate": (lambda: pm.Exponential("a", -1), "^lam of a must be positive, got -1"),
    "t": (lambda: pm.StudentT("a", nu=3, sigma=-1), "^sigma of a must be positive, got -1"),
}


@pytest.mark.parametrize("kind", OUT_OF_RANGE)
def test_an_argument_that_is_out_of_its_range_is_named(kind):
    build, says = OUT_OF_RANGE[kind]
    with pm.Model() as model:
        pm.Poisson("y", pm.math.exp(build()), observed=[0, 1, 2])
        with pytest.raises(DataError, match=says):
            RMHMC()
    with pytest.raises(DataError, match=says):
        describe(model)


@pytest.mark.usefixtures("without_a_compiler")
def test_an_argument_that_new_data_put_out_of_its_range():
    with pm.Model():
        pm.Poisson("y", pm.math.exp(pm.Normal("a", 0.0, pm.Data("s", 2.0))), observed=[0, 1, 2])
        step = RMHMC()
        pm.set_data({"s": -2.0})
        with pytest.raises(DataError, match="^sigma of a must be positive, got -2"):
            step.setup_chain(np.random.default_rng(0), 10, 10)


def test_a_metric_in_the_place_of_variables():
    with poisson_model(), pytest.raises(ConfigurationError, match=r'"flat", which is a metric.*RMHMC\(metric="flat"\)'):
        RMHMC("flat")


@pytest.mark.parametrize("reparameterize", [False, True])
def test_a_variable_of_another_model(reparameterize):
    other = poisson_model(reparameterize=reparameterize)
    with poisson_model(reparameterize=True), pytest.raises(ConfigurationError, match="vars holds the f of another"):
        RMHMC(vars=[other["f"]])


def test_a_number_is_not_rounded_into_its_range():
    with poisson_model(), pytest.raises(ConfigurationError, match=r"from 0.01 to 0.999, got 0.9995\."):
        RMHMC(target_accept=0.9995)


@pytest.mark.parametrize("given", ["f", 1.5, True, None])
def test_a_number_of_parameters_that_is_none(given):
    with pytest.raises(ConfigurationError, match='n_parameters must be a whole number, got .*give var_names="f"'):
        plot_compare({"RMHMC": made_up()}, n_parameters=given)


def test_an_improper_prior_is_the_likely_cause_of_a_chain_that_hardly_moves():
    with pm.Model():
        pm.Normal("y", 0.0, pm.HalfFlat("a"), observed=[0.0, 0.0])
        with pytest.raises(SamplingError, match=r"The probable cause is the Flat or HalfFlat prior of a: "):
            draw(pm.modelcontext(None), tune=300)


def test_a_scale_of_data_is_named_as_its_user_has_it():
    with pm.Model() as model:
        pm.StudentT("y", nu=3, mu=pm.Laplace("b", 0.0, 1.0), sigma=-1.0, observed=NOISY)
    said = DensityTerms(model).in_words(model.initial_point())
    assert "since it needs sigma > 0, nu > 0 but has" in said


def impossible_rate():
    pm.Poisson("y", pm.math.exp(pm.Normal("a", 0, pm.HalfNormal("t"))), observed=[2, -1, 3])


def impossible_logarithm():
    pm.LogNormal("y", pm.Normal("a"), pm.HalfNormal("s"), observed=[1.0, 0.0, 3.0])


@pytest.mark.parametrize(("build", "datum"), [(impossible_rate, "-1"), (impossible_logarithm, "0")])
def test_data_that_cannot_occur_are_named_and_no_rate_is_blamed(build, datum):
    with pm.Model():
        build()
        with pytest.raises((ConfigurationError, DataError)) as error:
            pm.sample(5, tune=5, step=RMHMC(), chains=1, progressbar=False)
    said = str(error.value)
    assert f"since 1 of 3 observations cannot occur, the first at position 1 ({datum})" in said
    assert "Correct these data" in said
    assert "A rate of 0" not in said


def test_without_free_variables_there_is_nothing_to_sample():
    assert "Give its parameters priors" in str(describe(pm.Model()))
