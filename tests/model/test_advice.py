"""Models that are not read, or not well: what is advised names their variables, can be followed, and is then read."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_rmhmc import RMHMC, FlatMetric, describe
from pymc_rmhmc.errors import UnsupportedModelError
from pymc_rmhmc.model import read_structure, read_together, together
from pymc_rmhmc.model.graph.graphs import Evaluator
from pymc_rmhmc.model.graph.source_code import code_of
from tests.model.conftest import X, exact_log_density, gp_prior
from tests.model.joint_checks import random_point

pytestmark = [
    pytest.mark.usefixtures("without_a_compiler"),
    # PyMC's own, of shapes that it evaluates and of the start of an EulerMaruyama.
    pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS", "ignore:Support point not defined"),
]

S, T = 3, 6
COUNTS = np.arange(S * T).reshape(S, T) % 5
SERIES = COUNTS[0]
GROUP = np.repeat(np.arange(9), 2)
SLOPE = np.linspace(-1.0, 1.0, GROUP.size)
GROUP_COUNTS = np.arange(GROUP.size) % 4

type Names = dict[str, Any]


def start() -> Any:
    return pm.Normal.dist(0, 1)


def lkj() -> Any:
    return pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0))[0]


@dataclass(frozen=True)
class Form:
    """What is not read, and what it becomes by the advice.

    Attributes
    ----------
    around : callable
        Makes what stays as it is.
    unread : callable
        Makes, of this, what is not read.
    of : str
        The variable that the advice is for.
    says : tuple of str
        What is in the advice.
    latents : set of str
        What is sampled as latent values once it is followed.
    likelihood : str
        Code of the likelihood.
    row : str
        Code of one row's likelihood, where that is written anew.
    same : callable or None
        A point of the advised model for one of the model as it was, where the two have one density.
    """

    around: Callable[[], Names]
    unread: Callable[..., Names]
    of: str
    says: tuple[str, ...]
    latents: set[str]
    likelihood: str
    row: str = ""
    same: Callable[[Names], Names] | None = None

    def as_written(self) -> pm.Model:
        with pm.Model() as model:
            around = self.around()
            exec(self.likelihood, globals() | around | self.unread(**around))
        return model

    def as_advised(self, advice: str) -> pm.Model:
        code = "\n".join(line[4:] for line in advice.splitlines() if line.startswith("    "))
        code = re.sub("# the likelihood of row i, .*", self.row, code)
        with pm.Model() as model:
            names = globals() | self.around()
            exec(code, names)
            if not self.row:
                exec(self.likelihood, names)
        return model


def advice_for(model: pm.Model) -> dict[str, str]:
    """Of a model that is refused, or of one that is read."""
    try:
        structure, _ = read_together(model, None, model.initial_point())
    except UnsupportedModelError as error:
        return error.advice
    return structure.advice


def walks_with_laws_of_their_own(step, begin, **_):
    law = {"mu": 0.1, "sigma": step, "init_dist": pm.Normal.dist(begin, 2.0)}
    return {"trend": pm.GaussianRandomWalk("trend", **law, shape=(S, T))}


def linear_equation(a, **_):
    law = {"dt": 0.1, "sde_fn": lambda x, a: (a * x + 0.2, 0.5), "sde_pars": (a,), "init_dist": start()}
    return {"x": pm.EulerMaruyama("x", **law, shape=T)}


def walk_of_vectors(chol, **_):
    begin = pm.MvNormal.dist(np.zeros(2), np.eye(2))
    return {"w": pm.MvGaussianRandomWalk("w", mu=np.zeros(2), chol=chol, init_dist=begin, shape=(T, 2))}


def walk_in_scalars(s, **_):
    x = [pm.Normal("x_0", 0.5, 1)]
    for t in range(1, T):
        x.append(pm.Normal(f"x_{t}", x[-1], s))
    return {"x": pt.stack(x)}


def drifting_walk_in_scalars(s, m, **_):
    x = [pm.Normal("x[0]", 0, 1)]
    for t in range(1, T):
        x.append(pm.Normal(f"x[{t}]", x[-1] + m, s))
    return {"x": pt.stack(x)}


def autoregression_in_scalars(s, rho, **_):
    x = [pm.Normal("x0", 0, 1)]
    for t in range(1, T):
        x.append(pm.Normal(f"x{t}", rho * x[-1], s))
    return {"x": pt.stack(x)}


def level_about_a_drift(drift, sl, **_):
    law = {"mu": drift[1:], "sigma": sl, "init_dist": start()}
    return {"level": pm.GaussianRandomWalk("level", **law, shape=T)}


def drift() -> Names:
    walk = pm.GaussianRandomWalk("drift", sigma=pm.HalfNormal("sd"), init_dist=start(), shape=T)
    return {"drift": walk, "sl": pm.HalfNormal("sl"), "mu": walk[1:]}


def by_row(name: str) -> Callable[[Names], Names]:
    def same(point: Names) -> Names:
        return point | {f"{name}_{i}": row for i, row in enumerate(point[name])}

    return same


def stacked(names: Callable[[int], str]) -> Callable[[Names], Names]:
    return lambda point: point | {"x": np.array([point[names(t)] for t in range(T)])}


def without_its_drift(point: Names) -> Names:
    return point | {"level_rest": point["level"] - np.concatenate([[0.0], np.cumsum(point["drift"][1:])])}


POISSON = 'pm.Poisson("y", mu=pm.math.exp({0}), observed={1})'
OF_A_ROW = 'pm.Poisson(f"y_{{i}}", pm.math.exp({0}_i), observed=COUNTS[i])'
FORMS = {
    "walks in rows": Form(
        lambda: {"step": pm.HalfNormal("step")},
        lambda step: {"trend": pm.GaussianRandomWalk("trend", sigma=step, init_dist=start(), shape=(S, T))},
        "trend", ("one likelihood for each row", 'pm.GaussianRandomWalk(f"trend_{i}", sigma=step, '),
        {"trend_0", "trend_1", "trend_2"}, POISSON.format("trend", "COUNTS"), OF_A_ROW.format("trend"), by_row("trend"),
    ),
    "walks in rows with laws of their own": Form(
        lambda: {"step": pm.HalfNormal("step", shape=S), "begin": pm.Normal("begin", shape=S)},
        walks_with_laws_of_their_own,
        "trend", ("mu=0.1, sigma=step[i], init_dist=pm.Normal.dist(begin[i], 2), shape=6",),
        {"trend_0", "trend_1", "trend_2"}, POISSON.format("trend", "COUNTS"), OF_A_ROW.format("trend"), by_row("trend"),
    ),
    "autoregressions in rows": Form(
        lambda: {"rho": pm.Uniform("rho", -1, 1), "s": pm.HalfNormal("s", shape=S)},
        lambda rho, s: {"x": pm.AR("x", rho=[rho], sigma=s, init_dist=start(), shape=(S, T))},
        "x", ('pm.AR(f"x_{i}", rho=[rho], sigma=s[i], init_dist=pm.Normal.dist(0, 1), shape=6)',),
        {"x_0", "x_1", "x_2"}, POISSON.format("x", "COUNTS"), OF_A_ROW.format("x"), by_row("x"),
    ),
    "a linear stochastic equation": Form(
        lambda: {"a": pm.Normal("a", -1.0, 0.5), "b": 0.2, "g": 0.5}, linear_equation,
        "x", ("Its drift is linear", "rho=[0.1 * b, 1 + 0.1 * a]"), {"x"}, POISSON.format("x", "SERIES"),
        same=lambda point: point,
    ),
    "a walk of vectors": Form(
        lambda: {"chol": lkj()}, walk_of_vectors,
        "w", ("the sum of its steps", "steps = w_steps @ chol.T", 'w = pm.Deterministic("w"'),
        {"w_start", "w_steps"}, POISSON.format("w", "COUNTS.T[:, :2]"),
    ),
    "Normals that sum to zero": Form(
        lambda: {"s": pm.HalfNormal("s")}, lambda s: {"z": pm.ZeroSumNormal("z", sigma=s, shape=T)},
        "z", ('z_free = pm.Normal("z_free", 0, s, shape=6)', "z_free - z_free.mean("), {"z_free"},
        POISSON.format("z", "SERIES"),
    ),
    "Normals that sum to zero along two axes": Form(
        lambda: {"s": pm.HalfNormal("s")},
        lambda s: {"z": pm.ZeroSumNormal("z", sigma=s, n_zerosum_axes=2, shape=(S, T))},
        "z", ('z_free = pm.Normal("z_free", 0, s, shape=(3, 6))',), {"z_free"}, POISSON.format("z", "COUNTS"),
    ),
    "a matrix of Normals": Form(
        lambda: {"rowchol": pm.HalfNormal("r") * np.eye(S), "colchol": 0.5 * np.eye(T)},
        lambda rowchol, colchol: {
            "x": pm.MatrixNormal("x", mu=np.zeros((S, T)), rowchol=rowchol, colchol=colchol, shape=(S, T))
        },
        "x", ('x_z = pm.Normal("x_z", 0, 1, shape=(3, 6))', "rowchol @ x_z @ colchol.T"), {"x_z"},
        POISSON.format("x", "COUNTS"),
    ),
    "coefficients of groups in rows": Form(
        lambda: {"chol": lkj(), "m": pm.Normal("m", shape=2)},
        lambda chol, m: {"ab": pm.MvNormal("ab", mu=m, chol=chol, shape=(9, 2))},
        "ab", ('ab_z = pm.Normal("ab_z", 0, 1, shape=(9, 2))', 'ab = pm.Deterministic("ab", m + ab_z @ chol.T)'),
        {"m", "ab_z"}, POISSON.format("ab[GROUP, 0] + ab[GROUP, 1] * SLOPE", "GROUP_COUNTS"),
    ),
    "a walk in scalars": Form(
        lambda: {"s": pm.HalfNormal("s")}, walk_in_scalars, "x_3",
        ("with x[0] in the place of x_0", 'x = pm.GaussianRandomWalk("x", sigma=s, init_dist=pm.Normal.dist(0.5, 1)'),
        {"x"}, POISSON.format("x", "SERIES"), same=stacked(lambda t: f"x_{t}"),
    ),
    "a walk with a drift in scalars": Form(
        lambda: {"s": pm.HalfNormal("s"), "m": pm.Normal("m")}, drifting_walk_in_scalars, "x[5]",
        ('x = pm.GaussianRandomWalk("x", mu=m, sigma=s, ',), {"x"}, POISSON.format("x", "SERIES"),
        same=stacked(lambda t: f"x[{t}]"),
    ),
    "an autoregression in scalars": Form(
        lambda: {"s": pm.HalfNormal("s"), "rho": pm.Uniform("rho", -1, 1)}, autoregression_in_scalars, "x0",
        ('x = pm.AR("x", rho=[rho], sigma=s, init_dist=pm.Normal.dist(0, 1), shape=6)',), {"x"},
        POISSON.format("x", "SERIES"), same=stacked(lambda t: f"x{t}"),
    ),
    "scalars of one kind": Form(
        lambda: {"s": pm.HalfNormal("s")},
        lambda s: {"u": pt.stack([pm.Normal(f"u_{t}", 0.1, s) for t in range(20)])},
        "u_7", ("one vector", 'u = pm.Normal("u", 0.1, s, shape=20)'), {"u"}, POISSON.format("u", "np.arange(20) % 4"),
    ),
    "a walk about a walk": Form(
        drift, level_about_a_drift, "drift",
        ("Take drift out of the prior of level", 'level_rest = pm.GaussianRandomWalk("level_rest", sigma=sl, '),
        {"drift", "level_rest"}, POISSON.format("level", "SERIES"), same=without_its_drift,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_what_is_advised_names_the_variables_and_is_read(name):
    form = FORMS[name]
    model = form.as_written()
    advice = advice_for(model)
    for words in form.says:
        assert words in advice[form.of]
    assert len(set(advice.values())) == 1
    advised = form.as_advised(advice[form.of])
    structure, joint = read_together(advised, None, advised.initial_point())
    assert {str(v.name) for v in structure.variables} == form.latents
    assert not isinstance(joint, str)
    assert not structure.advice


@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if form.same])
def test_what_is_advised_has_the_density_that_there_was(name):
    form = FORMS[name]
    model = form.as_written()
    advised = form.as_advised(advice_for(model)[form.of])
    before, after = exact_log_density(model), exact_log_density(advised)
    for seed in range(2):
        point = random_point(model, seed)
        same = form.same(point)
        assert after({n: same[n] for n in advised.initial_point()}) == pytest.approx(float(before(point)), abs=1e-6)


@pytest.mark.parametrize("n_axes", [1, 2])
def test_normals_without_their_mean_have_the_covariance_of_pymcs(n_axes):
    form = FORMS["Normals that sum to zero" + (" along two axes" if n_axes == 2 else "")]
    advised = form.as_advised(advice_for(form.as_written())["z"])
    shape = advised["z"].eval().shape
    free = advised["z_free"]
    read = Evaluator(advised, [advised["z"]], {free: free.type()})
    columns = np.stack([np.ravel(read({}, unit.reshape(shape))[0]) for unit in np.eye(np.prod(shape))])
    expected = np.eye(shape[-1]) - 1.0 / shape[-1]
    if n_axes == 2:
        expected = np.kron(np.eye(shape[0]) - 1.0 / shape[0], expected)
    np.testing.assert_allclose(columns.T @ columns, expected, atol=1e-12)


def announced(
    model: pm.Model, caplog: pytest.LogCaptureFixture, vars: Any = None, chart: str = "auto"  # noqa: A002
) -> tuple[str, list[str]]:
    """What the log says when a step is built, and the warnings of it."""
    with model, caplog.at_level("INFO", logger="pymc.rmhmc"):
        RMHMC(vars, metric=FlatMetric(chart=chart))
    return caplog.text, [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("name", ["an autoregression in scalars", "a walk in scalars"])
def test_the_log_and_describe_give_the_advice_once(name, caplog):
    form = FORMS[name]
    model = form.as_written()
    text, _ = announced(model, caplog)
    description = describe(model)
    advice = advice_for(model)[form.of]
    assert text.count(advice) == 1
    assert description.advice[form.of].endswith(advice)
    assert " ".join(str(description).split()).count(" ".join(advice.split())) == 1


def test_a_map_about_a_map_is_advised_as_a_sum_in_the_chart_of_the_graph_too(caplog):
    # One area has no neighbour, so that no field is read.
    near = np.pad(np.eye(T - 1, k=1) + np.eye(T - 1, k=-1), (0, 1))
    with pm.Model() as model:
        trend = pm.CAR("trend", np.zeros(T), near, 0.9, pm.HalfNormal("s"))
        f = pm.CAR("f", trend, near, 0.9, pm.HalfNormal("t"))
        pm.Poisson("y", mu=pm.math.exp(pm.math.stack([trend, f])), observed=COUNTS[:2])
    text, _ = announced(model, caplog)
    advice = describe(model).advice.get("trend", "")
    assert "Take trend out of the prior of f" in advice
    assert 'f_rest = pm.CAR("f_rest", ...)' in advice
    assert text.count(advice) == 1


@pytest.mark.parametrize("name", ["walks in rows", "Normals that sum to zero", "a linear stochastic equation"])
def test_naming_what_is_not_read_brings_the_advice(name):
    form = FORMS[name]
    model = form.as_written()
    with pytest.raises(UnsupportedModelError) as raised:
        read_structure(model, [form.of])
    assert str(raised.value).startswith(f"{form.of}: ")
    assert raised.value.advice == {form.of: advice_for(model)[form.of]}
    assert str(raised.value).count(raised.value.advice[form.of]) == 1


def test_the_reason_comes_before_the_advice(caplog):
    with pm.Model() as model:
        z = pm.ZeroSumNormal("z", sigma=pm.HalfNormal("s"), shape=T)
        pm.Poisson("y", mu=pm.math.exp(pm.Normal("level") + z), observed=SERIES)
    text, warnings = announced(model, caplog, chart="latent")
    assert "level (1 value) together with s, z" in text
    assert "z: its prior, ZeroSumNormal, is Gaussian, but not in a form that is read. Write it as Normals" in text
    assert not warnings


def walk_of(n: int) -> pm.Model:
    with pm.Model() as model:
        s, x = pm.HalfNormal("s"), [pm.Normal("x_0")]
        for t in range(1, n):
            x.append(pm.Normal(f"x_{t}", x[-1], s))
        pm.Poisson("y", mu=pm.math.exp(pt.stack(x)), observed=np.arange(n) % 4)
    return model


def test_many_gaussian_hyperparameters_are_warned_of(caplog, monkeypatch):
    assert together.MOST_GAUSSIAN == 50
    monkeypatch.setattr(together, "MOST_GAUSSIAN", 8)
    text, (warning,) = announced(walk_of(10), caplog, chart="latent")
    assert "samples 9 Gaussian values as hyperparameters (9 variables x_0, x_1, …, x_8)" in warning
    assert 'x = pm.GaussianRandomWalk("x", sigma=s, init_dist=pm.Normal.dist(0, 1), shape=10)' in warning
    # The names are not listed one by one anywhere, and the advice is given once.
    assert "x_5" not in text
    assert text.count("pm.GaussianRandomWalk(") == 1


def test_as_many_as_may_be_are_not(caplog, monkeypatch):
    monkeypatch.setattr(together, "MOST_GAUSSIAN", 9)
    _, warnings = announced(walk_of(10), caplog, chart="latent")
    assert not warnings


def test_many_that_have_no_other_form_are_for_nuts(caplog):
    with pm.Model() as model:
        u, v = pm.Normal("u", shape=(26, 2)), pm.Normal("v", shape=(30, 2))
        pm.Normal("y", u @ v.T, 1.0, observed=np.zeros((26, 30)))
    text, (warning,) = announced(model, caplog, chart="latent")
    assert "samples 52 Gaussian values as hyperparameters (u)" in warning
    assert "NUTS may be faster for this model: pm.sample() without step=." in warning
    assert "v (60 values) together with u" in text


def test_many_blocks_are_announced_in_short(caplog):
    with pm.Model() as model:
        f = pm.MvNormal("f", np.zeros(2), cov=pm.HalfNormal("s") * np.eye(2), shape=(9, 2))
        pm.Poisson("y", mu=pm.math.exp(f), observed=np.ones((9, 2), dtype=int))
    text, _ = announced(model, caplog, chart="latent")
    assert "flat metric for 9 blocks f[0] (2 values), f[1] (2 values), …, f[8] (2 values) together with s" in text


def test_a_drift_in_scalars_beside_its_level_is_advised_of_vectors():
    with pm.Model() as model:
        level, drift = [pm.Normal("level_0")], [pm.Normal("drift_0")]
        for t in range(1, T):
            drift.append(pm.Normal(f"drift_{t}", drift[-1], 0.1))
            level.append(pm.Normal(f"level_{t}", level[-1] + drift[-1], 0.3))
        pm.Poisson("y", mu=pm.math.exp(pt.stack(level)), observed=SERIES)
    advice = read_structure(model).advice
    assert set(advice) == {str(v.name) for v in model.free_RVs}
    assert all("pm.GaussianRandomWalk and pm.AR are read" in text for text in advice.values())


def levels_of_a_hierarchy() -> None:
    above = pm.Normal("a_0")
    for level in range(1, 4):
        above = pm.Normal(f"a_{level}", above, 1.0)
    pm.Poisson("y", mu=pm.math.exp(above), observed=SERIES)


def effects_with_a_common_mean() -> None:
    mean = pm.Normal("m_0")
    effects = pt.stack([pm.Normal(f"m_{i}", mean, 1.0) for i in range(1, T + 1)])
    pm.Poisson("y", mu=pm.math.exp(effects), observed=SERIES)


@pytest.mark.parametrize("build", [levels_of_a_hierarchy, effects_with_a_common_mean])
def test_what_is_no_series_is_not_taken_for_one(build):
    with pm.Model() as model:
        build()
    assert not read_structure(model).advice


def test_processes_in_two_parameters_are_sampled_by_turns_as_advised():
    with pm.Model() as model:
        f, g = gp_prior("f", ls=pm.HalfNormal("ls_f")), gp_prior("g", ls=pm.HalfNormal("ls_g"))
        pm.Normal("y", f, pm.math.exp(g), observed=np.linspace(-1.0, 1.0, X.size))
    (advice,) = advice_for(model).values()
    code = 'pm.sample(step=[RMHMC(vars=["f", "ls_f"]), RMHMC(vars=["g", "ls_g"])])'
    assert advice.splitlines()[1].strip() == code
    for names in (["f", "ls_f"], ["g", "ls_g"]):
        structure, joint = read_together(model, names, model.initial_point())
        assert [v.name for v in structure.variables] == [f"{names[0]}_rotated_"]
        assert [str(v.name) for v in joint.theta.variables] == names[1:]


def test_a_walk_in_the_noise_of_more_coefficients_is_sampled_by_turns_as_advised():
    with pm.Model() as model:
        b = pm.Normal("b", 0.0, pm.HalfNormal("spread"), shape=T + 2)
        w = pm.GaussianRandomWalk("w", sigma=pm.HalfNormal("step"), init_dist=start(), shape=T)
        pm.Normal("y", np.ones((T, T + 2)) @ b, pm.math.exp(w), observed=SERIES - 1.5)
    advice = advice_for(model)["w"]
    assert 'step=[RMHMC(vars=["b", "spread"]), RMHMC(vars=["w", "step"])]' in advice
    structure, joint = read_together(model, ["w", "step"], model.initial_point())
    assert [v.name for v in structure.variables] == ["w"]
    assert [str(v.name) for v in joint.theta.variables] == ["step"]


@pytest.mark.parametrize(
    ("build", "code"),
    [
        (lambda rho, s, data: pm.AR("y", rho=rho[:2], sigma=s, init_dist=start(), observed=data),
         'pm.Normal("y", mu=rho[0] * data[1:-1] + rho[1] * data[:-2], sigma=s, observed=data[2:])'),
        (lambda rho, s, data: pm.AR("y", rho=rho, sigma=s, init_dist=start(), observed=data),
         "mu=rho[0] * data[2:-1] + rho[1] * data[1:-2] + rho[2] * data[:-3], sigma=s, observed=data[3:])"),
        (lambda rho, s, data: pm.AR("y", rho=rho, sigma=s, constant=True, init_dist=start(), observed=data),
         'pm.Normal("y", mu=rho[0] + rho[1] * data[1:-1] + rho[2] * data[:-2], sigma=s, observed=data[2:])'),
        (lambda rho, s, data: pm.GaussianRandomWalk("y", mu=rho, sigma=s, init_dist=start(), observed=data),
         'pm.Normal("y", mu=rho, sigma=s, observed=np.diff(data))'),
    ],
)  # fmt: skip
def test_an_observed_series_is_a_likelihood_of_each_value(build, code):
    data = np.array([0.3, -0.1, 0.4, 0.8, 0.2, -0.5])
    size = () if "diff" in code else 3

    def around() -> Names:
        return {"rho": pm.Normal("rho", 0.0, 0.5, shape=size), "s": pm.HalfNormal("s")}

    with pm.Model() as model:
        build(**around(), data=data)
    with pytest.raises(UnsupportedModelError) as raised:
        read_structure(model)
    assert code in raised.value.reasons["rho"]
    (written,) = re.findall(r'pm\.Normal\("y".*?\)(?=, or)', raised.value.reasons["rho"])
    with pm.Model() as advised:
        exec(written, globals() | around() | {"data": data})
    assert [v.name for v in read_structure(advised).variables] == ["rho"]
    before, after = exact_log_density(model), exact_log_density(advised)
    gaps = [before(p) - after(p) for p in (random_point(model, seed) for seed in range(3))]
    np.testing.assert_allclose(gaps, gaps[0], atol=1e-6)


@pytest.mark.parametrize(
    ("write", "code"),
    [
        (lambda a, b: 2.0 * a + b, "(2 * a) + b"),
        (lambda a, b: (0.1 / a) ** 0.5, "(0.1 / a)**0.5"),
        (lambda a, b: pm.math.sqrt(a) * pm.math.exp(-b), "pm.math.sqrt(a) * pm.math.exp(-b)"),
        (lambda a, b: pt.stack([a, b, 0.5]), "[a, b, 0.5]"),
        (lambda a, b: pm.Deterministic("c", a**2), "c"),
        (lambda a, b: a[None, None], "a"),
        (lambda a, b: pt.as_tensor(np.full(3, 0.25)), "0.25"),
        (lambda a, b: pt.as_tensor(np.arange(3.0)), "..."),
        (lambda a, b: pt.cumsum(pt.stack([a, b])), "..."),
        (lambda a, b: sum(a * b for _ in range(20)), "..."),
    ],
)
def test_expressions_are_written_as_a_user_would(write, code):
    with pm.Model() as model:
        a, b = pm.HalfNormal("a"), pm.Normal("b")
        expression = pt.as_tensor(write(a, b))
    found = code_of(model, expression)
    assert found == code
    if code != "...":
        value = eval(found, {"pm": pm, "a": a, "b": b, "c": model.named_vars.get("c")})
        point = {"a_log__": 0.3, "b": -0.4}
        as_it_is, written = Evaluator(model, [expression, pt.as_tensor(value)])(point)
        np.testing.assert_allclose(np.broadcast_to(written, as_it_is.shape), as_it_is)
