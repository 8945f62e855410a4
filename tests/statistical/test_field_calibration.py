"""The chart of a Gaussian field, whatever its frozen sites are: ranks, Geweke's test, and one posterior in three forms.

Data and parameters are simulated without PyMC. Sites and chart know nothing of either.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_rmhmc import RMHMC, FlatMetric
from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian, SpannedHamiltonian
from pymc_rmhmc.dynamics.integrators import RotationSplitting
from pymc_rmhmc.interfaces.stated import FieldMaps
from pymc_rmhmc.kernels.kernel import HMC
from pymc_rmhmc.kernels.trajectories import JitteredPath, transition
from pymc_rmhmc.kernels.turns import LatentDraw, stand
from pymc_rmhmc.latent.charts import GaussianSites
from pymc_rmhmc.latent.field.field_target import FieldTarget
from pymc_rmhmc.latent.joint_target import JointTarget
from pymc_rmhmc.model.field.field_model import FieldPlan, plan_field
from pymc_rmhmc.model.forms.joint_model import JointModel
from tests.statistical.joint_cases import absurd_sites
from tests.statistical.ranks import PLACES, Looks, rank
from tests.statistical.test_joint import WithoutData, WithoutScale, WithoutSites, along_a_trend, following, poor_chart

pytestmark = pytest.mark.slow

INTEGRATOR = RotationSplitting()
T = 6
RING = np.roll(np.eye(70), 1, axis=0) + np.roll(np.eye(70), -1, axis=0)
FIRST, SECOND = np.arange(12) % 3, np.arange(12) // 4
APART = np.abs(np.subtract.outer(np.arange(11), np.arange(11))) / 4.0


class Problem:
    """A model with one field. All of it is a function of standard normal noise a priori.

    Attributes
    ----------
    scales : dict of str to (float, float)
        Hyperparameters: mean and standard deviation of the logarithm.
    n_noise : int
        How many normals the latent values are made of.
    n_data : int
        The number of observations.
    """

    scales: ClassVar[dict[str, tuple[float, float]]]
    n_noise: int
    n_data: int
    continuous = False
    step_size = 0.3

    def build(self, held: dict, data) -> None:
        """Write the latent variables and the likelihood."""
        raise NotImplementedError

    def latents(self, held: dict, noise: np.ndarray) -> dict[str, np.ndarray]:
        """The latent variables of noise."""
        raise NotImplementedError

    def noise(self, held: dict, latents: dict[str, np.ndarray]) -> np.ndarray:
        """The noise of latent variables, where there is as much."""
        raise NotImplementedError

    def observe(self, held: dict, latents: dict[str, np.ndarray], rng: np.random.Generator) -> np.ndarray:
        """Draw the data."""
        raise NotImplementedError

    def sites(self) -> GaussianSites:
        """Return sites that have nothing to do with any data."""
        return absurd_sites(self.joint.blocks[0].n_sites)

    @cached_property
    def model(self) -> pm.Model:
        with pm.Model() as model:
            data = pm.Data("data", np.ones(self.n_data, float if self.continuous else int))
            held = {name: pm.LogNormal(name, *where) for name, where in self.scales.items()}
            self.build(held, data)
        return model

    @cached_property
    def start(self) -> dict[str, np.ndarray]:
        return self.model.initial_point()

    def joint_of(self) -> JointModel:
        plan = plan_field(self.model, self.start)
        assert isinstance(plan, FieldPlan), plan
        assert len(plan.theta.variables) == len(self.scales)
        read = plan.read()
        assert not isinstance(read, str), read
        made = read.build()
        made.bind(self.start)
        return made

    @cached_property
    def joint(self) -> JointModel:
        return self.joint_of()

    def held(self, theta: np.ndarray) -> dict[str, float]:
        point = self.joint.theta.unpack(theta)
        return {name: float(np.exp(point[f"{name}_log__"])) for name in self.scales}

    def simulate(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """θ on the unconstrained scale, x and y."""
        values = {f"{name}_log__": np.asarray(rng.normal(*where)) for name, where in self.scales.items()}
        theta = self.joint.theta.pack(values)
        drawn = self.latents(self.held(theta), rng.standard_normal(self.n_noise))
        return theta, self.packed(drawn), self.observe(self.held(theta), drawn, rng)

    def packed(self, drawn: dict[str, np.ndarray]) -> np.ndarray:
        return np.concatenate([np.ravel(drawn[name]) for name in self.joint.blocks[0].value_names])

    def unpacked(self, x: np.ndarray) -> dict[str, np.ndarray]:
        block = self.joint.blocks[0]
        return dict(zip(block.value_names, np.split(x, np.cumsum(block.sizes)[:-1]), strict=True))

    def set_data(self, y: np.ndarray) -> None:
        data = self.model["data"]
        data.set_value(y.astype(data.dtype))
        self.joint.bind(self.start)


class Series(Problem):
    """An autoregression in the logarithm of a scale."""

    scales: ClassVar = {"s": (-0.7, 0.4), "gap": (-0.7, 0.4)}
    n_noise, n_data, continuous = T + 1, T, True

    def build(self, held, data):
        mu, phi = pm.Normal("mu", 0.2, 0.6), pt.exp(-held["gap"])
        h = pm.AR("h", rho=pt.stack([phi]), sigma=held["s"], init_dist=pm.Normal.dist(0, 0.8), shape=T)
        pm.Normal("y", 0, pt.exp((mu + h) / 2), observed=data)

    def latents(self, held, noise):
        h, phi = [0.8 * noise[0]], np.exp(-held["gap"])
        for each in noise[1:T]:
            h.append(phi * h[-1] + held["s"] * each)
        return {"h": np.array(h), "mu": np.array([0.2 + 0.6 * noise[T]])}

    def noise(self, held, latents):
        h, phi = latents["h"], np.exp(-held["gap"])
        steps = (h[1:] - phi * h[:-1]) / held["s"]
        return np.concatenate(([h[0] / 0.8], steps, (latents["mu"] - 0.2) / 0.6))

    def observe(self, held, latents, rng):
        return rng.normal(size=T) * np.exp((latents["mu"] + latents["h"]) / 2)


class Counts(Series):
    """The same, with a registered likelihood whose sites follow a parameter."""

    scales: ClassVar = {**Series.scales, "alpha": (0.5, 0.4)}
    continuous = False

    def build(self, held, data):
        mu, phi = pm.Normal("mu", 0.2, 0.6), pt.exp(-held["gap"])
        h = pm.AR("h", rho=pt.stack([phi]), sigma=held["s"], init_dist=pm.Normal.dist(0, 0.8), shape=T)
        pm.NegativeBinomial("y", mu=pt.exp(mu + h), alpha=held["alpha"], observed=data)

    def observe(self, held, latents, rng):
        mean, alpha = np.exp(latents["mu"] + latents["h"]), held["alpha"]
        return rng.negative_binomial(alpha, alpha / (alpha + mean))


class Crossed(Problem):
    """Effects of two kinds of groups, one of them whitened, and a level."""

    scales: ClassVar = {"s1": (-0.5, 0.4), "s2": (-0.3, 0.4)}
    n_noise, n_data = 7, 12

    def build(self, held, data):
        mu, a, b = pm.Normal("mu", 0.3, 0.7), pm.Normal("a", 0, held["s1"], shape=3), pm.Normal("b", shape=3)
        pm.Bernoulli("y", logit_p=mu + a[FIRST] + held["s2"] * b[SECOND], observed=data)

    def latents(self, held, noise):
        return {"mu": 0.3 + 0.7 * noise[:1], "a": held["s1"] * noise[1:4], "b": noise[4:]}

    def noise(self, held, latents):
        return np.concatenate(((latents["mu"] - 0.3) / 0.7, latents["a"] / held["s1"], latents["b"]))

    def observe(self, held, latents, rng):
        eta = latents["mu"] + latents["a"][FIRST] + held["s2"] * latents["b"][SECOND]
        return (rng.random(12) < 1.0 / (1.0 + np.exp(-eta))).astype(int)


class TwoPredictors(Crossed):
    """Groups in a mean and in the logarithm of a scale."""

    continuous = True
    step_size = 0.2

    def build(self, held, data):
        mu, a, b = pm.Normal("mu", 0.3, 0.7), pm.Normal("a", 0, held["s1"], shape=3), pm.Normal("b", shape=3)
        pm.Normal("y", mu + a[FIRST], pt.exp(held["s2"] * b[SECOND]), observed=data)

    def observe(self, held, latents, rng):
        scale = np.exp(held["s2"] * latents["b"][SECOND])
        return latents["mu"] + latents["a"][FIRST] + scale * rng.normal(size=12)


class Classes(Problem):
    """Groups in the logits of three classes."""

    scales: ClassVar = {"s": (-0.2, 0.4)}
    n_noise, n_data = 9, 12

    def build(self, held, data):
        u = pm.Normal("u", 0, held["s"], shape=(3, 3))
        pm.Categorical("y", logit_p=u[FIRST], observed=data)

    def latents(self, held, noise):
        return {"u": held["s"] * noise.reshape(3, 3)}

    def observe(self, held, latents, rng):
        return np.argmax(latents["u"][FIRST] + rng.gumbel(size=(12, 3)), axis=1)


class NormalData(Crossed):
    """No site is left: given hyperparameters, the latent values are drawn from their conditional."""

    scales: ClassVar = {**Crossed.scales, "noise": (-0.5, 0.4)}
    continuous = True

    def build(self, held, data):
        mu, a, b = pm.Normal("mu", 0.3, 0.7), pm.Normal("a", 0, held["s1"], shape=3), pm.Normal("b", shape=3)
        pm.Normal("y", mu + a[FIRST] + held["s2"] * b[SECOND], held["noise"], observed=data)

    def observe(self, held, latents, rng):
        eta = latents["mu"] + latents["a"][FIRST] + held["s2"] * latents["b"][SECOND]
        return eta + held["noise"] * rng.normal(size=12)

    @cached_property
    def _of_ones(self) -> FieldMaps:
        """Where all data are 1."""
        return self.joint.blocks[0].maps

    def set_data(self, y):
        # They are the offsets of the last residuals, which a field is read with: it would have to be read anew.
        rows = self._of_ones.residuals
        offset = np.concatenate((rows.offset[:-12], y * rows.offset[-12:]))
        self.joint.blocks[0].maps = replace(self._of_ones, residuals=replace(rows, offset=offset))


class IntrinsicMap(Problem):
    """A map with a soft sum to zero, of which one row of the residuals is dense."""

    scales: ClassVar = {"s": (-1.6, 0.3), "mix": (0.5, 0.4)}
    n_noise, n_data, step_size = 140, 70, 0.15

    def sites(self):
        return GaussianSites(0.3 * np.cos(np.pi * np.arange(70)), np.linspace(0.5, 1.5, 70))

    def build(self, held, data):
        phi, theta = pm.ICAR("phi", W=RING, zero_sum_stdev=0.01), pm.Normal("theta", 0, 1, shape=70)
        pm.Poisson("y", pt.exp(held["s"] * (phi + held["mix"] * theta)), observed=data)

    @cached_property
    def _root(self) -> np.ndarray:
        precision = np.diag(RING.sum(axis=0)) - RING + np.ones((70, 70)) / (0.01 * 70) ** 2
        return np.linalg.inv(np.linalg.cholesky(precision)).T

    def latents(self, held, noise):
        return {"phi": self._root @ noise[:70], "theta": noise[70:]}

    def observe(self, held, latents, rng):
        return rng.poisson(np.exp(held["s"] * (latents["phi"] + held["mix"] * latents["theta"])))


class WalkAndProcess(Problem):
    """A walk, and a process whose covariance moves."""

    scales: ClassVar = {"s": (-1.0, 0.4), "ls": (0.0, 0.4)}
    n_noise, n_data = 12 + 11, 12

    def build(self, held, data):
        walk = pm.GaussianRandomWalk("walk", sigma=held["s"], init_dist=pm.Normal.dist(0, 0.5), shape=12)
        f = pm.MvNormal("f", np.zeros(11), cov=pt.exp(-APART / held["ls"]), shape=11)
        pm.Poisson("y", pt.exp(walk + f[np.arange(12) % 11]), observed=data)

    def latents(self, held, noise):
        walk = np.cumsum(np.concatenate((0.5 * noise[:1], held["s"] * noise[1:12])))
        return {"walk": walk, "f": np.linalg.cholesky(np.exp(-APART / held["ls"])) @ noise[12:]}

    def observe(self, held, latents, rng):
        return rng.poisson(np.exp(latents["walk"] + latents["f"][np.arange(12) % 11]))


class Processes(Problem):
    """A process in a mean and one in the logarithm of a scale, which are parts by themselves."""

    scales: ClassVar = {"ls": (0.0, 0.4), "amp": (-0.5, 0.4)}
    n_noise, n_data, continuous, step_size = 22, 11, True, 0.2

    def build(self, held, data):
        f = pm.MvNormal("f", np.zeros(11), cov=pt.exp(-APART / held["ls"]), shape=11)
        g = pm.MvNormal("g", np.zeros(11), cov=held["amp"] ** 2 * pt.exp(-APART), shape=11)
        pm.Normal("y", f, pt.exp(g), observed=data)

    def latents(self, held, noise):
        f = np.linalg.cholesky(np.exp(-APART / held["ls"])) @ noise[:11]
        return {"f": f, "g": held["amp"] * np.linalg.cholesky(np.exp(-APART)) @ noise[11:]}

    def observe(self, held, latents, rng):
        return latents["f"] + np.exp(latents["g"]) * rng.normal(size=11)


class AlikeProcesses(Problem):
    """Processes of one covariance in the logits of three classes, of which each contrast is a part by itself."""

    scales: ClassVar = {"ls": (0.0, 0.4)}
    n_noise, n_data = 33, 11

    def build(self, held, data):
        f = pm.MvNormal("f", np.zeros(11), cov=2.0 * pt.exp(-APART / held["ls"]), shape=(3, 11))
        pm.Categorical("y", logit_p=f.T, observed=data)

    def latents(self, held, noise):
        factor = np.linalg.cholesky(2.0 * np.exp(-APART / held["ls"]))
        return {"f": (factor @ noise.reshape(3, 11).T).T}

    def observe(self, held, latents, rng):
        return np.argmax(latents["f"].T + rng.gumbel(size=(11, 3)), axis=1)


class ProcessAboutProcess(WalkAndProcess):
    """The same, with a process whose mean is the first one times a number, and a level."""

    n_noise, n_data, step_size = 12 + 11 + 1 + 11, 12, 0.2

    def build(self, held, data):
        walk = pm.GaussianRandomWalk("walk", sigma=held["s"], init_dist=pm.Normal.dist(0, 0.5), shape=12)
        f = pm.MvNormal("f", np.zeros(11), cov=pt.exp(-APART / held["ls"]), shape=11)
        mean = pm.Normal("level", -0.2, 0.5) + 0.5 * held["ls"] * f
        h = pm.MvNormal("h", mean, cov=0.3 * np.exp(-APART), shape=11)
        pm.Poisson("y", pt.exp(walk + h[np.arange(12) % 11]), observed=data)

    def latents(self, held, noise):
        found, level = super().latents(held, noise[:23]), -0.2 + 0.5 * noise[23]
        mean = level + 0.5 * held["ls"] * found["f"]
        h = mean + np.linalg.cholesky(0.3 * np.exp(-APART)) @ noise[24:]
        return found | {"level": np.array([level]), "h": h}

    def observe(self, held, latents, rng):
        return rng.poisson(np.exp(latents["walk"] + latents["h"][np.arange(12) % 11]))


class FixedProcesses(AlikeProcesses):
    """The same, of which nothing but the latent values is sampled."""

    scales: ClassVar = {}

    def held(self, theta):
        return {"ls": 1.0}

    def build(self, held, data):
        super().build({"ls": 1.0}, data)


PROBLEMS = {
    "series": Series(), "counts": Counts(), "crossed effects": Crossed(), "two predictors": TwoPredictors(),
    "classes": Classes(), "normal data": NormalData(), "intrinsic map": IntrinsicMap(),
    "walk and process": WalkAndProcess(), "process about a process": ProcessAboutProcess(),
    "processes": Processes(), "alike processes": AlikeProcesses(),
}  # fmt: skip
# Twenty-three tests of correct samplers by ranks; see test_sbc.
LEVEL = 1e-3 / 23 / 3


@dataclass
class Calibrated:
    p_value: float
    failure_rate: float
    acceptance: float


def watched(target: JointTarget, point) -> np.ndarray:
    """θ, three numbers of x, and what the data say: without the last a kernel that ignored them would pass."""
    (x,) = target.latents(point)
    return np.round(np.array([*point.theta, x[0], x.sum(), x @ x, point.log_given]), 8)


def calibrate(
    name: str, target_class=FieldTarget, seed: int = 1, trend: float = 0.0, simulations: int = 200,
    until: float | None = None,
) -> Calibrated:  # fmt: skip
    """Ranks of the truth in chains through it, as in `tests.statistical.test_joint`."""
    problem = PROBLEMS[name]
    joint, rng, ranks, looks = problem.joint, np.random.default_rng(seed), [], Looks(simulations, until)
    (block,), d = joint.blocks, joint.theta.size
    sites, chart, failures, accepted = problem.sites(), poor_chart(d), 0, 0.0
    while not looks.decided(ranks):
        theta, x, y = problem.simulate(rng)
        problem.set_data(y)
        held = following(block, d, sites)
        target = target_class(joint, [along_a_trend(held, d, trend) if trend else held], chart)
        flow = GaussianHamiltonian(target)
        start, before, others = flow.state(target.enter(theta, [x], rng)), rng.integers(PLACES), []
        for length in (before, PLACES - 1 - before):
            state = start
            for _ in range(length):
                outcome = transition(flow, INTEGRATOR, state, 4, problem.step_size, rng)
                state = outcome.state
                failures += bool(outcome.failure)
                accepted += outcome.acceptance
                others.append(watched(target, state.point))
        ranks.append(rank(watched(target, start.point), np.array(others), rng))
    moves = len(ranks) * (PLACES - 1)
    return Calibrated(looks.p_value(ranks), failures / moves, accepted / moves)


@pytest.mark.parametrize("trend", [0.0, 0.25])
@pytest.mark.parametrize("name", PROBLEMS)
def test_ranks_of_the_truth_are_uniform_whatever_the_sites(name, trend):
    found = calibrate(name, trend=trend)
    assert found.p_value > LEVEL
    assert found.failure_rate < 0.05
    assert 0.4 < found.acceptance < 0.9999


def test_ranks_are_uniform_where_latent_values_alone_move():
    """By the kernel of a field without hyperparameters, whose trajectories are compiled."""
    problem, rng, ranks, looks = FixedProcesses(), np.random.default_rng(1), [], Looks(200)
    accepted = []
    while not looks.decided(ranks):
        theta, x, y = problem.simulate(rng)
        problem.set_data(y)
        target = FieldTarget(problem.joint, [problem.sites()], poor_chart(0))
        start, before, others = stand(target, target.enter(theta, [x], rng)), rng.integers(PLACES), []
        assert start.point.held.advances
        flow = SpannedHamiltonian(start.point.held)
        kernel = LatentDraw(HMC(flow, INTEGRATOR, JitteredPath(1.2, 0.3, 100), problem.step_size))
        for length in (before, PLACES - 1 - before):
            state = start
            for _ in range(length):
                outcome = kernel.step(state, rng)
                state = outcome.state
                accepted.append(outcome.acceptance)
                others.append(watched(target, state.seen))
        ranks.append(rank(watched(target, start.seen), np.array(others), rng))
    assert looks.p_value(ranks) > LEVEL
    assert 0.4 < np.mean(accepted) < 0.9999


@pytest.mark.parametrize("mutant", [WithoutData, WithoutScale, WithoutSites])
def test_every_mutant_is_rejected(mutant):
    found = [calibrate("series", mutant, seed, simulations=800, until=LEVEL).p_value for seed in range(2)]
    assert max(found) < LEVEL, found


@pytest.mark.parametrize("name", ["series", "counts", "normal data"])
def test_successive_conditional_draws_have_the_prior(name):
    """Parameters and data drawn in turn: everything that is standard normal a priori is so."""
    problem, n_draws, rng = PROBLEMS[name], 3000, np.random.default_rng(6)
    joint, d = problem.joint, problem.joint.theta.size
    sites, chart = problem.sites(), poor_chart(d)
    means, deviations = np.array([problem.scales[n[: -len("_log__")]] for n in joint.theta.names]).T
    theta, x, y = problem.simulate(rng)
    trace, failures = [], 0
    for _ in range(n_draws):
        problem.set_data(y)
        target = FieldTarget(joint, [following(joint.blocks[0], d, sites)], chart)
        flow = GaussianHamiltonian(target)
        outcome = transition(flow, INTEGRATOR, flow.state(target.enter(theta, [x], rng)), 4, 0.4, rng)
        failures += bool(outcome.failure)
        point = outcome.state.point
        theta, (x,) = point.theta, target.latents(point)
        held, drawn = problem.held(theta), problem.unpacked(x)
        y = problem.observe(held, drawn, rng)
        trace.append(np.concatenate(((theta - means) / deviations, problem.noise(held, drawn))))
    trace = np.array(trace)
    assert failures < 0.05 * n_draws
    products = trace[:, :d, None] * trace[:, None, d:]
    features = np.column_stack((trace, trace**2, products.reshape(n_draws, -1)))
    expected = np.zeros(features.shape[1])
    expected[trace.shape[1] : 2 * trace.shape[1]] = 1.0
    errors = np.array([float(az.mcse(values[None, :])) for values in features.T])
    # Some hundred and thirty features in all: 5 standard errors is one false alarm in 10,000 suites.
    assert (np.abs(features.mean(axis=0) - expected) / errors).max() < 5.0


# --- one posterior in three forms ---

COUNTS = np.array([1, 0, 2, 3, 2, 4, 6, 5, 3, 2, 1, 2])


def walk(form: str) -> pm.Model:
    """A random walk: as PyMC's variable, as scalars in a loop, or as the sum of its steps."""
    with pm.Model() as model:
        s = pm.LogNormal("s", -1.0, 0.5)
        if form == "variable":
            x = pm.GaussianRandomWalk("w", sigma=s, init_dist=pm.Normal.dist(0, 1), shape=12)
        elif form == "loop":
            each = [pm.Normal("w0", 0, 1)]
            for t in range(1, 12):
                each.append(pm.Normal(f"w{t}", each[-1], s))
            x = pt.stack(each)
        else:
            first, steps = pm.Normal("first"), pm.Normal("steps", shape=11)
            x = pt.concatenate([first[None], first + s * pt.cumsum(steps)])
        pm.Deterministic("x", x)
        pm.Poisson("y", pt.exp(x), observed=COUNTS)
    return model


def features_of(form: str) -> np.ndarray:
    """Chains of log s, x and their squares."""
    with walk(form):
        step = RMHMC(metric=FlatMetric(chart="field"))
        idata = pm.sample(
            1500, tune=600, chains=2, cores=1, step=step, progressbar=False, random_seed=5,
            compute_convergence_checks=False,
        )  # fmt: skip
    log_s, x = np.log(idata.posterior["s"].values)[..., None], idata.posterior["x"].values
    values = np.concatenate((log_s, x), axis=-1)
    return np.concatenate((values, (values - np.array([-1.0, *([1.0] * 12)])) ** 2, log_s * x), axis=-1)


def test_one_posterior_in_three_forms_has_one_law():
    chains = [features_of(form) for form in ("variable", "loop", "sum of steps")]
    means = np.array([each.mean(axis=(0, 1)) for each in chains])
    errors = np.array([[float(az.mcse(each[..., i])) for i in range(each.shape[-1])] for each in chains])
    for one, other in ((0, 1), (0, 2), (1, 2)):
        apart = np.abs(means[one] - means[other]) / np.hypot(errors[one], errors[other])
        # Some hundred and ten comparisons.
        assert apart.max() < 5.0
