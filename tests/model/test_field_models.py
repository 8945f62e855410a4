"""Whole models as Gaussian fields: what is read, and that the field's density is the model's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_rmhmc.approximation.joint_mode import sites_from_nothing
from pymc_rmhmc.errors import DataError
from pymc_rmhmc.latent.charts import GaussianSites, MarginalChart
from pymc_rmhmc.latent.field.field_target import FieldTarget
from pymc_rmhmc.latent.latent_blocks import conditional_of
from pymc_rmhmc.model.field.field_model import FieldPlan, plan_field
from pymc_rmhmc.model.forms.joint_model import JointModel
from tests.model.conftest import exact_log_density
from tests.thinned import thinned

pytestmark = [
    pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS"),
    pytest.mark.usefixtures("without_a_compiler"),
]

T = 24
RNG = np.random.default_rng(0)
COUNTS = RNG.poisson(3.0, size=T)
NORMALS = RNG.normal(size=T)
RING = np.roll(np.eye(T), 1, axis=0) + np.roll(np.eye(T), -1, axis=0)
GROUP, OTHER = np.arange(40) % 6, RNG.integers(4, size=40)
BINARY, REAL = RNG.integers(2, size=40), RNG.normal(size=40)


@dataclass(frozen=True)
class Read:
    """A model, its latent variables, how many residuals are dense rows, and how many predictors a likelihood has."""

    build: Callable[[], object]
    latents: set[str]
    predictors: tuple[int, ...]
    dense: int = 0


def volatility():
    phi, s, mu = pm.Uniform("phi", 0.5, 1.0), pm.HalfNormal("s", 1), pm.Normal("mu", 0, 2)
    begins = pm.Normal.dist(0, s / pt.sqrt(1 - phi**2))
    h = pm.AR("h", rho=pt.stack([phi]), sigma=s, init_dist=begins, shape=T)
    pm.Normal("y", 0, pt.exp((mu + h) / 2), observed=NORMALS)


def student_walk():
    step, nu = pm.Exponential("step", 10), pm.Exponential("nu", 0.1)
    walk = pm.GaussianRandomWalk("walk", sigma=step, init_dist=pm.Normal.dist(0, 100), shape=T)
    pm.StudentT("y", nu=nu, lam=pt.exp(-2 * walk), observed=NORMALS)


def linear_trend():
    sd, sl = pm.HalfNormal("sd", 0.1), pm.HalfNormal("sl", 0.5)
    drift = pm.GaussianRandomWalk("drift", sigma=sd, init_dist=pm.Normal.dist(0, 0.5), shape=T)
    level = pm.GaussianRandomWalk("level", mu=drift[:-1], sigma=sl, init_dist=pm.Normal.dist(0, 5), shape=T)
    pm.Poisson("y", pt.exp(level), observed=COUNTS)


def nested():
    mu, s1, s2 = pm.Normal("mu", 0, 2), pm.HalfNormal("s1"), pm.HalfNormal("s2")
    district = pm.Normal("district", mu, s1, shape=3)
    school, beta = pm.Normal("school", district[np.arange(6) % 3], s2, shape=6), pm.Normal("beta", shape=2)
    pm.Bernoulli("y", logit_p=school[GROUP] + RNG.normal(size=(40, 2)) @ beta, observed=BINARY)


def crossed():
    mu, s1, s2 = pm.Normal("mu", 0, 2), pm.HalfNormal("s1"), pm.HalfNormal("s2")
    a, b = pm.Normal("a", 0, s1, shape=6), pm.Normal("b", 0, 1, shape=4)
    pm.Bernoulli("y", logit_p=mu + a[GROUP] + s2 * b[OTHER], observed=BINARY)


def bym2():
    mu, s, rho = pm.Normal("mu", 0, 2), pm.HalfNormal("s"), pm.Beta("rho", 1, 1)
    # So many that the row of their sum is dense.
    ring = np.roll(np.eye(80), 1, axis=0) + np.roll(np.eye(80), -1, axis=0)
    phi, theta = pm.ICAR("phi", W=ring), pm.Normal("theta", 0, 1, shape=80)
    mixed = pt.sqrt(1 - rho) * theta + pt.sqrt(rho / 1.7) * phi
    pm.Poisson("y", pt.exp(mu + s * mixed), observed=np.resize(COUNTS, 80))


def proper_map():
    alpha, tau, mu = pm.Beta("alpha", 2, 2), pm.Gamma("tau", 2, 2), pm.Normal("mu", 0, 2)
    x = pm.CAR("x", mu=mu * np.ones(T), W=RING, alpha=alpha, tau=tau)
    pm.Poisson("y", pt.exp(x), observed=COUNTS)


def measurement_error():
    a, b, s, t = pm.Normal("a"), pm.Normal("b"), pm.Exponential("s", 1), pm.Exponential("t", 1)
    truth = pm.Normal("truth", 0.3, t, shape=T)
    pm.Normal("seen", truth, np.linspace(0.1, 0.4, T), observed=NORMALS)
    outcome = pm.Normal("outcome", a + b * truth, s, shape=T)
    pm.Normal("seen outcome", outcome, 0.3, observed=NORMALS[::-1])


def slopes(form: str) -> Callable[[], None]:
    def build():
        factor, _, _ = pm.LKJCholeskyCov("factor", n=2, eta=2, sd_dist=pm.Exponential.dist(1, shape=2))
        mu, s = pm.Normal("mu", 0, 5, shape=2), pm.Exponential("s", 1)
        if form == "whitened":
            both = mu + pt.dot(factor, pm.Normal("z", 0, 1, shape=(6, 2)).T).T
        else:
            both = pm.MvNormal("both", mu, chol=factor, shape=(6, 2))
        pm.Normal("y", both[GROUP, 0] + both[GROUP, 1] * (OTHER - 1.5), s, observed=REAL)

    return build


def schools():
    mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
    theta = pm.Normal("theta", mu, tau, shape=8)
    pm.Normal("y", theta, np.linspace(9.0, 18.0, 8), observed=np.array([28.0, 8, -3, 7, -1, 1, 18, 12]))


def zero_inflated():
    s, alpha, psi = pm.HalfNormal("s", 0.5), pm.Exponential("alpha", 0.5), pm.Beta("psi", 2, 2)
    day = pm.Normal("day", 0, 1, shape=7)
    walk = pm.GaussianRandomWalk("walk", sigma=s, init_dist=pm.Normal.dist(0, 5), shape=T)
    mu = pt.exp(walk + day[np.arange(T) % 7])
    pm.ZeroInflatedNegativeBinomial("y", psi=psi, mu=mu, alpha=alpha, observed=COUNTS)


def mean_and_scale():
    s1, s2, mu, ls = pm.HalfNormal("s1"), pm.HalfNormal("s2"), pm.Normal("mu", 0, 2), pm.Normal("ls", 0, 2)
    a, b = pm.Normal("a", mu, s1, shape=6), pm.Normal("b", ls, s2, shape=6)
    pm.Normal("y", a[GROUP], pt.exp(b[GROUP]), observed=REAL)


def walk_and_noise():
    """Both are parameters as they are, with nothing done to the mean."""
    walk = pm.GaussianRandomWalk("walk", sigma=pm.HalfNormal("s"), init_dist=pm.Normal.dist(0, 5), shape=T)
    h = pm.AR("h", rho=[0.5], sigma=pm.HalfNormal("t"), init_dist=pm.Normal.dist(0, 1), shape=T)
    pm.Normal("y", walk, pt.exp(h), observed=NORMALS)


def process_and_noise():
    h = pm.AR("h", rho=[0.5], sigma=pm.HalfNormal("t"), init_dist=pm.Normal.dist(0, 1), shape=T)
    pm.Normal("y", process("centred", T), pt.exp(h), observed=NORMALS)


def one_value_in_both(how: str) -> Callable[[], None]:
    """The mean and the logarithm of the scale are one value, found once or twice."""

    def build():
        a = pm.Normal("a", 0.2, pm.HalfNormal("s"), shape=6)
        mean = a[GROUP]
        pm.Normal("y", mean, pt.exp(mean if how == "once" else a[GROUP]), observed=REAL)

    return build


def one_value_in_three():
    """The scale's predictor is the mean's, found again, and the tails' is made of the one found again."""
    a, b = pm.Normal("a", 0.2, pm.HalfNormal("s"), shape=6), pm.Normal("b", 0.0, 0.5, shape=6)
    again = a[GROUP]
    pm.StudentT("y", nu=2.0 + pt.exp(again + b[GROUP]), mu=a[GROUP], sigma=pt.exp(again), observed=REAL)


def degrees_of_another_step():
    a, b = (pm.Normal(name, 0.0, pm.HalfNormal(f"s_{name}"), shape=6) for name in "ab")
    degrees = 2.0 + pm.Geometric("degrees", 0.3)
    pm.StudentT("y", nu=degrees, mu=a[GROUP], sigma=pt.exp(b[GROUP]), observed=REAL)


def classes_by_another_step():
    """Whether what all classes share is seen is what another step chooses."""
    logits = pm.Normal("u", 0.0, pm.HalfNormal("s", 1), shape=(6, 3))[GROUP]
    odds = pt.sigmoid(logits) / pt.sigmoid(logits).sum(axis=1, keepdims=True)
    p = pt.switch(pm.Bernoulli("unshared", 0.5), pm.math.softmax(logits, axis=1), odds)
    pm.Categorical("y", p=p, observed=RNG.integers(3, size=40))


def softmax():
    s, mu = pm.HalfNormal("s", 1, shape=2), pm.Normal("mu", 0, 1, shape=2)
    a = pm.Normal("a", mu, s, shape=(6, 2))
    p = pm.math.softmax(pt.concatenate([a[GROUP], pt.zeros((40, 1))], axis=1), axis=1)
    pm.Categorical("y", p=p, observed=RNG.integers(3, size=40))


def classes():
    s = pm.HalfNormal("s", 1, shape=3)
    u = pm.Normal("u", 0, s, shape=(6, 3))
    pm.Categorical("y", logit_p=u[GROUP], observed=RNG.integers(3, size=40))


def discrimination():
    s = pm.HalfNormal("s")
    ability, b = pm.Normal("ability", 0, 1, shape=6), pm.Normal("b", 0, s, shape=4)
    slope = pm.LogNormal("slope", 0, 0.5, shape=4)
    pm.Bernoulli("y", logit_p=slope[OTHER] * (ability[GROUP] - b[OTHER]), observed=BINARY)


def loop():
    s, x = pm.HalfNormal("s"), [pm.Normal("x0", 0, 2)]
    for t in range(1, 12):
        x.append(pm.Normal(f"x{t}", x[-1], s))
    pm.Poisson("y", pt.exp(pt.stack(x)), observed=COUNTS[:12])


def missing():
    s, tau = pm.HalfNormal("s"), pm.HalfNormal("tau")
    walk = pm.GaussianRandomWalk("walk", sigma=s, init_dist=pm.Normal.dist(0, 5), shape=T)
    pm.Normal("y", walk, tau, observed=np.ma.masked_array(NORMALS, np.arange(T) % 5 == 2))


def vectors():
    scale = pm.HalfNormal("scale")
    walk = pm.MvGaussianRandomWalk(
        "walk", mu=np.zeros(2), chol=scale * np.array([[1.0, 0.0], [0.3, 0.7]]), shape=(T, 2),
        init_dist=pm.MvNormal.dist(np.zeros(2), np.eye(2)),
    )  # fmt: skip
    pm.Poisson("y", pt.exp(walk[:, 0] + 0.2 * walk[:, 1]), observed=COUNTS)


def sum_to_zero():
    mu, s = pm.Normal("mu"), pm.HalfNormal("s")
    effect = pm.ZeroSumNormal("effect", sigma=s, shape=6)
    pm.Bernoulli("y", logit_p=mu + effect[GROUP], observed=BINARY)


def potential():
    """A soft constraint on the latent values, and one on the others."""
    s = pm.HalfNormal("s")
    walk = pm.GaussianRandomWalk("walk", sigma=s, init_dist=pm.Normal.dist(0, 5), shape=T)
    pm.Potential("turned", -0.1 * pt.cos(walk).sum())
    pm.Potential("drawn", -2.0 * s)
    pm.Poisson("y", pt.exp(walk), observed=COUNTS)


def two_series():
    """One is a covariate of the other's mean; there are two kinds of data."""
    s, t, beta = pm.HalfNormal("s"), pm.HalfNormal("t"), pm.Normal("beta")
    first = pm.AR("first", rho=[0.5, 0.2], sigma=s, init_dist=pm.Normal.dist(0, 1, shape=2), shape=T)
    second = pm.GaussianRandomWalk("second", mu=0.3 * first[1:], sigma=t, init_dist=pm.Normal.dist(0, 1), shape=T)
    pm.Poisson("y", pt.exp(first), observed=COUNTS)
    pm.Normal("z", second + beta, 0.5, observed=NORMALS)


def reverting():
    """A linear stochastic equation."""
    k, mu, s = pm.HalfNormal("k"), pm.Normal("mu"), pm.HalfNormal("s")
    law = {"sde_fn": lambda x, k, mu, s: (k * (mu - x), s), "sde_pars": (k, mu, s)}
    x = pm.EulerMaruyama("x", 0.5, **law, init_dist=pm.Normal.dist(0, 1), shape=T, initval=np.zeros(T))
    pm.Poisson("y", pt.exp(x), observed=COUNTS)


def noise_of_all():
    """Its logarithm is Gaussian itself, and no predictor."""
    walk = pm.GaussianRandomWalk("walk", sigma=pm.HalfNormal("s"), init_dist=pm.Normal.dist(0, 5), shape=T)
    pm.Normal("y", walk, pt.exp(pm.Normal("log_noise")), observed=NORMALS)


def of_its_parts(kind: str) -> Callable[[], None]:
    """An observed distribution that is made of another one."""

    def build():
        s, noise = pm.HalfNormal("s"), pm.HalfNormal("noise")
        walk = pm.GaussianRandomWalk("walk", sigma=s, init_dist=pm.Normal.dist(0, 5), shape=T)
        if kind == "censored":
            pm.Censored("y", pm.Normal.dist(walk, noise), lower=-1, upper=None, observed=np.maximum(NORMALS, -1))
        elif kind == "truncated":
            pm.Truncated("y", pm.Normal.dist(walk, noise), lower=-4, observed=NORMALS)
        else:
            pm.HurdlePoisson("y", psi=pm.math.invlogit(noise), mu=pt.exp(walk), observed=COUNTS)

    return build


def process(how: str, size: int = 11) -> pt.TensorVariable:
    """A vector with a dense covariance."""
    amplitude, ls, x = pm.HalfNormal("amplitude"), pm.Gamma("ls", 6, 3), np.linspace(0.0, 5.0, size)[:, None]
    covariance = amplitude**2 * pm.gp.cov.Matern32(1, ls=ls)
    if how == "factor":
        return pm.MvNormal("f", np.zeros(size), chol=pt.linalg.cholesky(covariance(x) + 1e-4 * np.eye(size)))
    return pm.gp.Latent(cov_func=covariance).prior("f", x, reparameterize=how == "whitened", jitter=1e-4)


def beside_a_process(how: str) -> Callable[[], None]:
    def build():
        s = pm.HalfNormal("s")
        walk = pm.GaussianRandomWalk("walk", sigma=s, init_dist=pm.Normal.dist(0, 2), shape=T)
        pm.Poisson("y", pt.exp(walk + process(how)[np.arange(T) % 11]), observed=COUNTS)

    return build


def about_a_process():
    """A process about another and an effect, next to a sum of steps that has a share in its mean too."""
    z, s, level, by = pm.Normal("z", shape=T), pm.HalfNormal("s"), pm.Normal("level"), pm.Normal("by")
    f = process("centred")
    near = pm.HalfNormal("t") ** 2 * np.exp(-np.abs(np.subtract.outer(np.arange(12), np.arange(12))) / 3.0)
    h = pm.MvNormal("h", level + pt.exp(by) * f[np.arange(12) % 11] + z[:12], cov=near)
    pm.Poisson("y", pt.exp(s * pt.cumsum(z) + h[np.arange(T) % 12] + 0.2 * f[np.arange(T) % 11]), observed=COUNTS)


def process_and_sums():
    """A sum of steps, next to the sum of a process."""
    z, s, times = pm.Normal("z", shape=T), pm.HalfNormal("s"), np.arange(T) % 11
    f = process("whitened")
    pm.Poisson("y", pt.exp(s * pt.cumsum(z) + f[times] + 0.1 * pt.cumsum(f)[times]), observed=COUNTS)


def process_in_residuals():
    """Normal data whose scale moves, of a process times a number and of a map with a dense row."""
    mu, s, noise, by = pm.Normal("mu"), pm.HalfNormal("s"), pm.HalfNormal("noise"), pm.HalfNormal("by")
    phi = pm.ICAR("phi", W=np.roll(np.eye(80), 1, 0) + np.roll(np.eye(80), -1, 0))
    f = process("whitened")[np.arange(80) % 11]
    pm.Normal("y", mu + s * phi + by * f, noise, observed=np.resize(NORMALS, 80))


READ = {
    "stochastic equation": Read(reverting, {"x", "mu"}, (1,)),
    "noise of all": Read(noise_of_all, {"walk"}, ()),
    "process, whitened": Read(beside_a_process("whitened"), {"walk", "f_rotated_"}, (1,)),
    "process, centred": Read(beside_a_process("centred"), {"walk", "f"}, (1,)),
    "process, by its factor": Read(beside_a_process("factor"), {"walk", "f"}, (1,)),
    "process about a process": Read(about_a_process, {"z", "level", "h", "f"}, (1,)),
    "process and sums": Read(process_and_sums, {"z", "f_rotated_"}, (1,)),
    "process in residuals": Read(process_in_residuals, {"mu", "phi", "f_rotated_"}, (), dense=1),
    "stochastic volatility": Read(volatility, {"h", "mu"}, (1,)),
    "Student t on a walk": Read(student_walk, {"walk"}, (1,)),
    "linear trend": Read(linear_trend, {"drift", "level"}, (1,)),
    "nested effects": Read(nested, {"mu", "district", "school", "beta"}, (1,)),
    "crossed effects": Read(crossed, {"mu", "a", "b"}, (1,)),
    "BYM2": Read(bym2, {"mu", "phi", "theta"}, (1,), dense=1),
    "CAR": Read(proper_map, {"mu", "x"}, (1,)),
    "measurement error": Read(measurement_error, {"truth", "outcome", "a"}, ()),
    "slopes, whitened": Read(slopes("whitened"), {"mu", "z"}, ()),
    "slopes, centred": Read(slopes("centred"), {"mu", "both"}, ()),
    "eight schools": Read(schools, {"mu", "theta"}, ()),
    "zero-inflated walk": Read(zero_inflated, {"walk", "day"}, (1,)),
    "mean and log scale": Read(mean_and_scale, {"a", "b", "mu", "ls"}, (2,)),
    "walk and its noise": Read(walk_and_noise, {"walk", "h"}, (2,)),
    "process and its noise": Read(process_and_noise, {"f", "h"}, (2,)),
    "one value in both, found once": Read(one_value_in_both("once"), {"a"}, (1,)),
    "one value in both, found twice": Read(one_value_in_both("twice"), {"a"}, (1,)),
    "one value in three, found twice": Read(one_value_in_three, {"a", "b"}, (2,)),
    "degrees of another step": Read(degrees_of_another_step, {"a", "b"}, (2,)),
    "classes by another step": Read(classes_by_another_step, {"u"}, (1,)),
    "softmax": Read(softmax, {"a", "mu"}, (1,)),
    "classes": Read(classes, {"u"}, (1,)),
    "discrimination": Read(discrimination, {"ability", "b"}, (1,)),
    "scalars in a loop": Read(loop, {f"x{t}" for t in range(12)}, (1,)),
    "missing observations": Read(missing, {"walk", "y_unobserved"}, ()),
    "walk of vectors": Read(vectors, {"walk"}, (1,)),
    "sum to zero": Read(sum_to_zero, {"mu", "effect"}, (1,)),
    "censored": Read(of_its_parts("censored"), {"walk"}, (3,)),
    "truncated": Read(of_its_parts("truncated"), {"walk"}, (1,)),
    "hurdle": Read(of_its_parts("hurdle"), {"walk"}, (1,)),
    "potentials": Read(potential, {"walk"}, (1, 1)),
    "two series": Read(two_series, {"first", "second", "beta"}, (1,)),
}


def model_of(build: Callable[[], object]) -> pm.Model:
    with pm.Model() as model:
        build()
    return model


def joint_of(model: pm.Model) -> tuple[FieldPlan, JointModel]:
    point = model.initial_point()
    plan = plan_field(model, point)
    assert isinstance(plan, FieldPlan), plan
    read = plan.read()
    assert not isinstance(read, str), read
    joint = read.build()
    joint.bind(point)
    return plan, joint


@dataclass
class Placed:
    """A target with sites that know nothing of the data, and a place."""

    model: pm.Model
    joint: JointModel
    seed: int = 3

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        (self.block,), d = self.joint.blocks, self.joint.theta.size
        n = self.block.n_sites
        sites = GaussianSites(0.3 * self.rng.standard_normal(n), self.rng.uniform(0.5, 1.5, n))
        self.target = FieldTarget(self.joint, [sites], MarginalChart.linear(np.zeros(d), np.eye(d)))
        start = self.joint.theta.pack(self.model.initial_point()) + 0.2 * self.rng.standard_normal(d)
        self.position = np.concatenate((start, self.rng.standard_normal(self.target.size - d)))

    def values_at(self, position: np.ndarray) -> dict[str, np.ndarray]:
        """The model's value variables there."""
        placed, point = self.target.at(position), self.model.initial_point()
        assert not placed.failure
        values = dict(point)
        values.update(self.joint.theta.unpack(position[: self.joint.theta.size]))
        parts = np.split(self.target.latents(placed)[0], np.cumsum(self.block.sizes)[:-1])
        for name, part in zip(self.block.value_names, parts, strict=True):
            values[name] = part.reshape(np.shape(point[name]))
        return values

    def log_density_at(self, position: np.ndarray) -> float:
        return self.target.model_log_density(self.target.at(position))


# A fault is planted for each of these.
FAULTY = [
    "process about a process", "BYM2", "mean and log scale", "censored", "zero-inflated walk", "process and its noise",
    "noise of all", "softmax", "one value in three, found twice", "degrees of another step", "classes by another step",
]  # fmt: skip


@pytest.mark.parametrize("name", thinned(READ, with_also=FAULTY))
def test_the_density_of_a_field_is_the_models(name):
    row, model = READ[name], model_of(READ[name].build)
    plan, joint = joint_of(model)
    assert {v.name for v in plan.choice.latents} == row.latents
    assert tuple(len(each.predictors) for each in plan.choice.observations) == row.predictors
    assert len(joint.blocks[0].maps.dense) == row.dense
    check_density(Placed(model, joint))


@pytest.mark.parametrize("build", [softmax, classes])
def test_what_all_classes_share_has_no_site(build):
    """With a class of reference or without, three classes are two contrasts, whose mean information is nearly diagonal.

    Of two classes and a third its off-diagonal is half as large as its diagonal.
    """
    plan, joint = joint_of(model_of(build))
    (observed,), (block,) = plan.choice.observations, joint.blocks
    assert observed.shapes == ((40, 2),)
    theta, eta = np.zeros(joint.theta.size), RNG.standard_normal((200, block.n_sites))
    slopes = np.concatenate([block.likelihood(theta, each)[1].reshape(40, 2) for each in eta])
    square = slopes.T @ slopes / len(slopes)
    assert abs(square[0, 1]) < 0.1 * min(square[0, 0], square[1, 1])


def check_density(placed: Placed) -> None:
    """It is the model's, its gradient is that of differences, and the model's own values are where they were."""
    exact = exact_log_density(placed.model)
    for spread in (0.0, 0.3):
        position = placed.position + spread * placed.rng.standard_normal(placed.position.size)
        expected = float(exact(placed.values_at(position)))
        assert placed.log_density_at(position) == pytest.approx(expected, rel=1e-9, abs=1e-8)
    check_gradient(placed)
    check_entering(placed)


def check_gradient(placed: Placed) -> None:
    """By θ, and by a few of the noise."""
    position, d = placed.position, placed.joint.theta.size
    gradient = placed.target.at(position).gradient
    for i in [*range(d), *(d + placed.rng.integers(position.size - d, size=4))]:
        step = 1e-5 * np.eye(position.size)[i]
        above, below = (placed.target.at(position + sign * step).log_density for sign in (1.0, -1.0))
        assert gradient[i] == pytest.approx((above - below) / 2e-5, rel=2e-6, abs=2e-6)


def check_entering(placed: Placed) -> None:
    """The model's own values are where they were."""
    d = placed.joint.theta.size
    (x,) = placed.target.latents(placed.target.at(placed.position))
    entered = placed.target.enter(placed.position[:d], [x], placed.rng)
    np.testing.assert_allclose(placed.target.latents(placed.target.at(entered))[0], x, rtol=1e-8, atol=1e-8)


def test_what_a_discrete_variable_hides_has_a_site():
    plan, _ = joint_of(model_of(classes_by_another_step))
    assert plan.choice.observations[0].shapes == ((40, 3),)


def test_hyperparameters_of_likelihoods_alone_are_told():
    model = model_of(zero_inflated)
    _, joint = joint_of(model)
    names = [joint.theta.names[i] for i in joint.of_likelihoods]
    assert names == ["alpha_log__", "psi_logodds__"]


def test_normal_data_are_residuals_whose_draws_are_exact():
    """Without a predictor there are no sites: the latent values given θ are a draw of their conditional."""
    model = model_of(schools)
    _, joint = joint_of(model)
    (block,) = joint.blocks
    assert block.n_sites == 0
    assert block.n_residuals == 1 + 8 + 8


def switched(threshold: float):
    """An entry that is 0 on one side of a threshold of a value that is Gaussian, and of one that is not."""

    def build():
        t, u, s = pm.Normal("t"), pm.Uniform("u", -4.0, 4.0), pm.HalfNormal("s")
        x = pm.GaussianRandomWalk("x", sigma=s, init_dist=pm.Normal.dist(0, 1), shape=T)
        late = pt.concatenate([x[2:], x[:2]])
        for which, far in (("y", t), ("z", u)):
            read = x + pt.switch(far > threshold, far - threshold, 0.0) * late
            pm.Poisson(which, pt.exp(read), observed=COUNTS)

    return build


def only_in_a_mean(threshold: float):
    """The same in the prior of a Gaussian variable, where no expression of it can be a predictor."""

    def build():
        u, s = pm.Uniform("u", -4.0, 4.0), pm.HalfNormal("s")
        x = pm.GaussianRandomWalk("x", sigma=s, init_dist=pm.Normal.dist(0, 1), shape=T)
        w = pm.Normal("w", pt.switch(u > threshold, u - threshold, 0.0) * x, 0.5, shape=T)
        pm.Poisson("y", pt.exp(w), observed=COUNTS)

    return build


@pytest.mark.parametrize("threshold", [-1.5, 1.7, 3.5])
@pytest.mark.parametrize("form", [switched, only_in_a_mean])
def test_a_pattern_that_changes_is_found_or_refused(form, threshold):
    """An entry that is 0 where maps were read is never left out in silence."""
    model = model_of(form(threshold))
    plan = plan_field(model, model.initial_point())
    if isinstance(plan, str) or isinstance(plan.read(), str):
        return
    _, joint = joint_of(model)
    placed, exact = Placed(model, joint), exact_log_density(model)
    d = joint.theta.size
    for sign in (-1.0, 1.0):
        position = placed.position.copy()
        position[:d] += 1.5 * sign
        position[d:] *= 3.0 * sign
        values = placed.values_at(position)
        assert placed.log_density_at(position) == pytest.approx(float(exact(values)), rel=1e-9, abs=1e-8)


def test_new_data_of_the_likelihood_are_seen_and_new_data_of_the_maps_refused():
    with pm.Model() as model:
        s, data = pm.HalfNormal("s"), pm.Data("data", COUNTS)
        x = pm.Data("x", NORMALS)
        a, b = pm.Normal("a", 0, s, shape=6), pm.Normal("b")
        pm.Poisson("y", pt.exp(a[np.arange(T) % 6] + b * x), observed=data)
    _, joint = joint_of(model)
    placed = Placed(model, joint)
    with model:
        pm.set_data({"data": COUNTS[::-1]})
    joint.bind(model.initial_point())
    values = placed.values_at(placed.position)
    assert placed.log_density_at(placed.position) == pytest.approx(float(exact_log_density(model)(values)), rel=1e-9)
    with model:
        pm.set_data({"x": 2.0 * NORMALS})
    with pytest.raises(DataError, match=r"x has other values .* Build RMHMC\(\) again"):
        joint.bind(model.initial_point())


def test_new_data_that_are_residuals_are_seen_or_refused():
    """Normal data are in the offsets of J."""
    with pm.Model() as model:
        data = pm.Data("data", NORMALS)
        a = pm.Normal("a", 0, pm.HalfNormal("s"), shape=6)
        pm.Normal("y", a[np.arange(T) % 6], pm.HalfNormal("t"), observed=data)
    _, joint = joint_of(model)
    placed = Placed(model, joint)
    with model:
        pm.set_data({"data": 1.0 + NORMALS})
    try:
        joint.bind(model.initial_point())
    except DataError as error:
        assert "data has other values" in str(error)  # noqa: PT017 - either will do, and nothing else
        return
    values = placed.values_at(placed.position)
    assert placed.log_density_at(placed.position) == pytest.approx(float(exact_log_density(model)(values)), rel=1e-9)


@pytest.mark.parametrize("alpha", [1.0, 1.4, -1.2])
def test_a_map_outside_its_range_is_a_failure_where_pymc_has_no_density(alpha):
    """Nothing is drawn there."""
    with pm.Model() as model:
        al, mu = pm.Normal("al", 0.0, 0.5), pm.Normal("mu")
        x = pm.CAR("x", mu=mu * np.ones(T), W=RING, alpha=al, tau=pm.Gamma("tau", 2, 2))
        pm.Poisson("y", pt.exp(x), observed=COUNTS)
    _, joint = joint_of(model)
    placed = Placed(model, joint)
    position = placed.position.copy()
    position[joint.theta.names.index("al")] = alpha
    assert placed.target.at(position).failure


def test_a_series_outside_its_stationary_region_has_the_models_density():
    """Given where it begins it may explode: PyMC's density is one."""
    with pm.Model() as model:
        phi, s = pm.Normal("phi", 0.5, 0.5), pm.HalfNormal("s")
        x = pm.AR("x", rho=pt.stack([phi]), sigma=s, init_dist=pm.Normal.dist(0, 1), shape=T)
        pm.Normal("y", x, pm.HalfNormal("t"), observed=NORMALS)
    _, joint = joint_of(model)
    placed = Placed(model, joint)
    position = placed.position.copy()
    position[joint.theta.names.index("phi")] = 1.3
    expected = float(exact_log_density(model)(placed.values_at(position)))
    assert placed.log_density_at(position) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("size", [1.0, 1e3, 1e6])
def test_first_sites_of_counts_lie_near_them_however_large_they_are(size):
    """The slope where the chain begins is the count: a step by it leads to no number."""
    counts = np.random.default_rng(1).poisson(size * np.exp(np.sin(np.arange(T))))
    with pm.Model() as model:
        walk = pm.GaussianRandomWalk("walk", sigma=pm.HalfNormal("s"), init_dist=pm.Normal.dist(0, 5), shape=T)
        pm.Poisson("y", pt.exp(walk), observed=counts)
    _, joint = joint_of(model)
    (block,), theta = joint.blocks, joint.theta.pack(model.initial_point())
    sites = sites_from_nothing(block, theta)
    centre, variance = conditional_of(block, theta, sites).marginals()
    assert np.abs(centre - np.log(counts + 0.5)).max() < 1.5
    assert variance.max() < 1.0
    if size > 1.0:
        np.testing.assert_allclose(sites.precision, counts, rtol=0.02)
