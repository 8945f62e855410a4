"""The joint chart of hyperparameters and latent values: calibration, mutants, and a long run of NUTS."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import nutpie
import pymc as pm
import pytest

from benchmarks.joint_problems import regression
from pymc_rmhmc import RMHMC, compare
from pymc_rmhmc.approximation.joint_mode import moving_sites
from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian
from pymc_rmhmc.dynamics.integrators import RotationSplitting
from pymc_rmhmc.kernels.trajectories import transition
from pymc_rmhmc.latent.charts import GaussianSites, MarginalChart, MovingSites, SiteTrend
from pymc_rmhmc.latent.joint_target import JointTarget
from pymc_rmhmc.model import read_joint, read_structure
from pymc_rmhmc.sampled.blocks import BlockDensity
from tests.statistical.ranks import PLACES, Looks, p_value, rank
from tests.steps.conftest import draw

pytestmark = pytest.mark.slow

N = 6
X = np.linspace(0.0, 1.0, N)[:, None]
# Eight tests of correct samplers; see test_sbc.
LEVEL = 1e-3 / 8 / 3


def poisson(f, data, rng=None):
    if rng is not None:
        return rng.poisson(np.exp(f))
    return pm.Poisson("y", mu=pm.math.exp(f), observed=data)


def logit(f, data, rng=None):
    if rng is not None:
        return (rng.random(N) < 1.0 / (1.0 + np.exp(-f))).astype(int)
    return pm.Bernoulli("y", logit_p=f, observed=data)


def negative_binomial(f, data, alpha, rng=None):
    if rng is not None:
        return rng.negative_binomial(alpha, alpha / (alpha + np.exp(f)))
    return pm.NegativeBinomial("y", mu=pm.math.exp(f), alpha=alpha, observed=data)


@dataclass(frozen=True)
class Case:
    """A GP with random lengthscale, amplitude and mean, under one likelihood."""

    likelihood: object
    whitened: bool = False
    simulations: int = 300

    @cached_property
    def model(self) -> pm.Model:
        with pm.Model() as model:
            data = pm.Data("data", np.ones(N, dtype=int))
            lengthscale = pm.LogNormal("lengthscale", -1.0, 0.5)
            amplitude = pm.Gamma("amplitude", 3.0, 3.0)
            mean = pm.Normal("mean", 0.3, 0.5)
            covariance = amplitude**2 * pm.gp.cov.Matern52(1, ls=lengthscale)
            gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(mean), cov_func=covariance)
            f = gp.prior("f", X=X, reparameterize=self.whitened, jitter=1e-4)
            extra = [pm.Gamma("alpha", 4.0, 2.0)] if self.likelihood is negative_binomial else []
            self.likelihood(f, data, *extra)
        return model

    @cached_property
    def joint(self):
        return read_joint(read_structure(self.model), self.start)

    def simulate(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """θ on the unconstrained scale, the model's latent variable and y."""
        lengthscale, amplitude = np.exp(rng.normal(-1.0, 0.5)), rng.gamma(3.0, 1.0 / 3.0)
        mean, extra = rng.normal(0.3, 0.5), []
        theta = [np.log(lengthscale), np.log(amplitude), mean]
        if self.likelihood is negative_binomial:
            extra = [rng.gamma(4.0, 0.5)]
            theta.append(np.log(extra[0]))
        distance = np.sqrt(5.0) * np.abs(X - X.T) / lengthscale
        covariance = amplitude**2 * (1.0 + distance + distance**2 / 3.0) * np.exp(-distance) + 1e-4 * np.eye(N)
        whitened = rng.standard_normal(N)
        f = mean + np.linalg.cholesky(covariance) @ whitened
        return np.array(theta), whitened if self.whitened else f, self.likelihood(f, None, *extra, rng=rng)

    @cached_property
    def start(self) -> dict[str, np.ndarray]:
        """PyMC's initial point, which takes longer to make than a trajectory."""
        return self.model.initial_point()

    def observe(self, y: np.ndarray) -> None:
        with self.model:
            pm.set_data({"data": y})
        self.joint.bind(self.start)


def quantities(theta, f):
    return np.array([*theta, f[0], f.sum(), f @ f])


def poor_chart(d: int, most: float = 0.4) -> MarginalChart:
    """For θ: it knows nothing of the truth, and fits it poorly."""
    bend = np.linspace(-most, most, d)
    return MarginalChart(np.full(d, 0.2), 0.4 * np.eye(d), np.zeros(d), np.ones(d), bend, 1.0 + bend[::-1])


def watched(target: JointTarget, point) -> np.ndarray:
    """θ, the sites, and what the data say of them; of coefficients, which sites need not determine, also themselves.

    Without the data a kernel that ignored them would have ranks that are uniform.
    """
    # The last digits must not decide between values that are one.
    held = np.array([*quantities(point.theta, point.eta[0]), np.round(point.log_given, 8)])
    if target.density.blocks[0].design_shape is None and not target.density.blocks[0].is_sum:
        return held
    (latents,) = target.latents(point)
    return np.array([*held, latents[0], latents @ latents])


def following(block, d: int, sites: GaussianSites):
    """Sites that follow a likelihood's parameters, where it has some, from a place that is as poor.

    They are weaker there: at a noise of a tenth they are a hundred times as strong, and still at the wrong place.
    """
    weaker = sites.scaled(0.05) if block.has_moving_sites else sites
    return moving_sites(block, np.zeros(d), weaker, np.linspace(-1.0, 1.0, block.n_sites), np.full(block.n_sites, 0.2))


def along_a_trend(sites: GaussianSites | MovingSites, d: int, size: float) -> MovingSites:
    """Sites whose b and w̄ grow with each hyperparameter by powers that have nothing to do with it."""
    ramp = np.linspace(-1.0, 1.0, d) if d > 1 else np.ones(1)
    trend = SiteTrend(np.full(d, -0.3), size * np.stack((ramp, -1.5 * ramp)), np.array([2.0, 1.0]))
    if isinstance(sites, MovingSites):
        return replace(sites, trend=trend)
    return MovingSites(sites, np.zeros((2, 0)), np.ones(1), trend)


def calibrate(
    case, target_class=JointTarget, seed: int = 1, sites=None, n_steps: int = 4, step_size: float = 0.35,
    chart: MarginalChart | None = None, until: float | None = None, trend: float = 0.0,
):  # fmt: skip
    """As `test_sbc.calibrate`: p-value, failure rate and acceptance; with sites that follow a trend of this size."""
    rng, joint, ranks, looks = np.random.default_rng(seed), case.joint, [], Looks(case.simulations, until)
    failures, accepted, integrator = 0, 0.0, RotationSplitting()
    if sites is None:  # as little to do with the data as the chart
        n = joint.blocks[0].n_sites
        sites = GaussianSites(np.full(n, 0.3), np.full(n, 0.6))
    chart, block, d = chart or poor_chart(joint.theta.size), joint.blocks[0], joint.theta.size
    while not looks.decided(ranks):
        theta, values, y = case.simulate(rng)
        case.observe(y)
        held = following(block, d, sites)
        target = target_class(joint, [along_a_trend(held, d, trend) if trend else held], chart)
        flow = GaussianHamiltonian(target)
        start, before, others = flow.state(target.enter(theta, [values], rng)), rng.integers(PLACES), []
        for length in (before, PLACES - 1 - before):
            state = start
            for _ in range(length):
                outcome = transition(flow, integrator, state, n_steps, step_size, rng)
                state = outcome.state
                failures += bool(outcome.failure)
                accepted += outcome.acceptance
                others.append(watched(target, state.point))
        ranks.append(rank(watched(target, start.point), np.array(others), rng))
    moves = len(ranks) * (PLACES - 1)
    return looks.p_value(ranks), failures / moves, accepted / moves


# One with a parameter has the step's own draws below, and its ranks in `test_joint_calibration`.
CASES = {"poisson": Case(poisson), "whitened logit": Case(logit, whitened=True)}


@pytest.mark.parametrize("name", CASES)
def test_ranks_of_the_truth_in_chains_through_it_are_uniform(name):
    p, failure_rate, acceptance = calibrate(CASES[name])
    assert p > LEVEL
    assert failure_rate < 0.05
    assert 0.5 < acceptance < 0.9999


class WithoutEvidence(JointTarget):
    """The evidence of the Gaussian-site model left out: θ then sees the residual alone."""

    def conditional(self, which, theta, sites, **options):
        made = copy.copy(super().conditional(which, theta, sites, **options))
        made.log_evidence = 0.0
        return made


class WithoutSites(JointTarget):
    """The likelihood not relieved of the sites."""

    def _evaluate(self, point):
        total, theta_bar, noise_bars = super()._evaluate(point)
        counted = sum(s.log_density(eta) for s, eta in zip(self.sites, point.eta, strict=True))
        return total + counted, theta_bar, noise_bars


class WithoutScale(JointTarget):
    """θ's own standard normal not taken off."""

    def at(self, position):
        point = super().at(position)
        standard = position[: self.n_theta]
        point.log_density -= 0.5 * float(standard @ standard)
        return point


class WithoutVolume(JointTarget):
    """The volume of θ's normalising map left out, and its slope."""

    def at(self, position):
        point = super().at(position)
        if point.failure:  # nothing holds such a chain near the truth
            return point
        placed = self.chart.place(position[: self.n_theta])
        point.log_density -= placed.log_volume
        point.gradient[: self.n_theta] -= placed.log_volume_slope @ self.chart.factor
        return point


class WithoutData(JointTarget):
    """A density that is the prior's."""

    def _evaluate(self, point):
        total, theta_bar, noise_bars = super()._evaluate(point)
        return total - (point.log_given - self.density.rest(point.theta)[0]), theta_bar, noise_bars


@pytest.mark.parametrize("mutant", [WithoutEvidence, WithoutSites, WithoutScale, WithoutData])
def test_every_mutant_is_rejected(mutant):
    p_values = [calibrate(CASES["poisson"], mutant, seed, until=LEVEL)[0] for seed in range(2)]
    assert max(p_values) < LEVEL, p_values


# A tenth as wide as the prior and a standard deviation below it, with tails that reach over it: only where the volume
# changes much over the posterior is its loss seen.
BENT = MarginalChart(
    np.zeros(3), 1.5 * np.eye(3), np.array([-1.4, -0.6, -0.1]), np.full(3, 0.1), np.zeros(3), np.full(3, 0.6)
)


def test_the_volume_of_a_bent_chart_is_needed():
    case = replace(CASES["poisson"], simulations=900)
    p, failure_rate, acceptance = calibrate(case, chart=BENT)
    assert p > LEVEL
    assert failure_rate < 0.05
    assert 0.5 < acceptance < 0.9999
    p_values = [calibrate(case, WithoutVolume, seed, chart=BENT, until=LEVEL)[0] for seed in range(2)]
    assert max(p_values) < LEVEL, p_values


def walk(model: pm.Model):
    """A random walk of the hyperparameters given f: what another step in a compound does."""
    log_density = model.compile_logp()

    def move(point, rng):
        for name in [name for name in point if name != "f"]:
            moved = point | {name: point[name] + 0.7 * rng.standard_normal()}
            if np.log(rng.random()) < log_density(moved) - log_density(point):
                point = moved
        return point

    return move


# Short moves: one that draws f nearly independently would hide where it began.
APART = {"flat": {"step_size": 0.25, "n_steps": 1}, "hessian": {"metric": "hessian", "step_size": 0.25, "n_steps": 1}}


@pytest.mark.parametrize("options", APART.values(), ids=APART)
def test_ranks_of_the_truth_beside_another_step_are_uniform(options):
    """f by RMHMC and θ by a random walk, in turn: the two in the other order are the kernel's reversal."""
    case, rng, ranks, failures = Case(poisson), np.random.default_rng(5), [], 0
    with case.model:
        step = RMHMC(vars=["f"], init="keep", **options)
    other = walk(case.model)
    for _ in range(case.simulations):
        theta, f, y = case.simulate(rng)
        case.observe(y)
        step.setup_chain(rng, 0, 10**6)
        step.step(case.model.initial_point())  # the sites are fitted here, and know nothing of the truth
        truth, before, others = case.joint.theta.unpack(theta) | {"f": f}, rng.integers(PLACES), []
        for forwards, length in ((True, PLACES - 1 - before), (False, before)):
            point = truth
            for _ in range(length):
                point = other(point, rng) if forwards else point
                point, (statistics,) = step.step(point)
                point = point if forwards else other(point, rng)
                failures += statistics["failure"] != 0
                others.append(quantities(case.joint.theta.pack(point), point["f"]))
        ranks.append(rank(quantities(theta, f), np.array(others), rng))
    assert failures < 0.05 * case.simulations * (PLACES - 1)
    assert p_value(np.array(ranks)) > LEVEL


def test_ranks_of_the_truth_among_the_steps_own_draws_are_uniform():
    """As they are by default: tuned, and in turns."""
    case, rng, tune, thin, simulations = Case(negative_binomial), np.random.default_rng(5), 160, 3, 150
    with case.model:
        step = RMHMC()
    ranks, of_shifted, failures, in_turns = [], [], 0, 0
    for _ in range(simulations):
        theta, f, y = case.simulate(rng)
        case.observe(y)
        step.setup_chain(rng, tune, thin * (PLACES - 1))
        point, draws = case.model.initial_point(), []
        for i in range(tune + thin * (PLACES - 1)):
            if i == tune:
                step.stop_tuning()
            point, (statistics,) = step.step(point)
            failures += statistics["failure"] != 0
            if i >= tune and (i - tune) % thin == thin - 1:
                draws.append(quantities(case.joint.theta.pack(point), point["f"]))
        in_turns += step.chains[0].tuned.emulator is not None
        draws, exact = np.array(draws), quantities(theta, f)
        ranks.append(rank(exact, draws, rng))
        of_shifted.append(rank(exact + 0.5 * draws.std(axis=0), draws, rng))
    assert failures < 0.01 * simulations * (tune + thin * (PLACES - 1))
    assert in_turns > 0.9 * simulations
    assert p_value(np.array(ranks)) > LEVEL
    assert p_value(np.array(of_shifted)) < LEVEL


def mixed(rng, reparameterize):
    """Groups with a free spread beside slopes."""
    group, design = np.arange(48) % 12, rng.standard_normal((48, 2))
    spread, slopes, level = pm.HalfNormal("spread"), pm.Normal("slopes", shape=2), pm.Normal("level")
    if reparameterize:
        effects = pm.Deterministic("effects", spread * pm.Normal("raw", shape=12))
    else:
        effects = pm.Normal("effects", 0.0, spread, shape=12)
    eta = design @ np.array([0.5, -0.5]) + rng.standard_normal(12)[group]
    logit = level + pm.math.dot(design, slopes) + effects[group]
    pm.Bernoulli("y", logit_p=logit, observed=(rng.random(48) < 1.0 / (1.0 + np.exp(-eta))).astype(int))
    return ["spread", "slopes", "level", "effects"]


def classes(rng, reparameterize):
    """Binary data over the plane, with a lengthscale for each axis."""
    x = rng.uniform(-2.0, 2.0, (28, 2))
    lengthscales, amplitude = pm.InverseGamma("lengthscales", 5.0, 5.0, shape=2), pm.HalfNormal("amplitude", 2.0)
    gp = pm.gp.Latent(cov_func=amplitude**2 * pm.gp.cov.Matern52(2, ls=lengthscales))
    f = gp.prior("f", X=x, reparameterize=reparameterize)
    y = rng.random(28) < 1.0 / (1.0 + np.exp(-3.0 * np.sin(2.0 * x[:, 0])))
    pm.Bernoulli("y", logit_p=f, observed=y.astype(int))
    return ["lengthscales", "amplitude", "f"]


def width(values):
    """Of the middle four fifths: where tails are heavy a standard deviation is made of the few furthest draws."""
    low, high = values.quantile([0.1, 0.9], ("chain", "draw"))
    return high - low


@pytest.mark.parametrize("family", [mixed, classes])
def test_a_long_run_of_nuts_agrees(family):
    def build(reparameterize):
        with pm.Model() as model:
            return model, family(np.random.default_rng(2), reparameterize)

    (centred, names), (whitened, _) = build(False), build(True)
    with centred:
        step = RMHMC()
    assert not isinstance(step._samplers[0].density, BlockDensity)
    ours = draw(centred, step, draws=2000, tune=300, chains=2)
    # Longer steps diverge in the tails of a scale, and stay there or leave them out.
    nuts = nutpie.sample(
        nutpie.compile_pymc_model(whitened), draws=2000, tune=1000, chains=2, cores=1, seed=7, target_accept=0.98,
        progress_bar=False,
    )  # fmt: skip
    frame = compare({"ours": ours, "NUTS": nuts}, var_names=names)
    assert frame.loc["ours", "mean difference"] < 4.0
    assert (frame["R-hat max"] < 1.02).all()
    for name in names:  # widths as well as means
        ratio = width(ours.posterior[name]) / width(nuts.posterior[name])
        assert (abs(np.log(ratio)) < 0.15).all()


def test_every_chain_leaves_a_narrow_mode_in_tuning():
    """Degrees of freedom and noise hold each other: the Laplace approximation's mode is far from most of the mass."""
    with regression("student t", 100).centred() as model:
        step = RMHMC()
    for seed in range(4):
        step.setup_chain(np.random.default_rng(seed), step.default_tune_steps, 100)
        point, noise = model.initial_point(), []
        for i in range(step.default_tune_steps + 100):
            if i == step.default_tune_steps:
                step.stop_tuning()
            point, _ = step.step(point)
            noise.append(float(point["noise_log__"]))
        # A long run: -0.97, and a standard deviation of 0.14.
        assert -1.5 < np.mean(noise[-100:]) < -0.5, seed
