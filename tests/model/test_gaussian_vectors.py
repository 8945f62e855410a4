"""Random walks, autoregressions and areal models as Gaussian vectors: their density is PyMC's own."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
from scipy import sparse
from scipy.stats import multivariate_normal

from pymc_rmhmc import RMHMC, FlatMetric, describe
from pymc_rmhmc.errors import PriorFailure, UnsupportedModelError
from pymc_rmhmc.latent.charts import GaussianSites
from pymc_rmhmc.latent.latent_blocks import conditional_of
from pymc_rmhmc.model import read_structure
from pymc_rmhmc.model.forms.priors import read_latent
from pymc_rmhmc.model.graph.graphs import Evaluator
from tests.model.conftest import exact_log_density
from tests.model.joint_checks import differences, joint_of, log_density, random_point

pytestmark = pytest.mark.usefixtures("without_a_compiler")

N = 6
COUNTS = np.array([2, 0, 3, 1, 1, 4])
NEIGHBOURS = np.eye(N, k=1) + np.eye(N, k=-1) + np.eye(N, k=3) + np.eye(N, k=-3)


def random_walk():
    sigma = pm.HalfNormal("sigma")
    return pm.GaussianRandomWalk("x", mu=0.1, sigma=sigma, init_dist=pm.Normal.dist(pm.Normal("level"), 2.0), shape=N)


def autoregression():
    rho, sigma = pm.Uniform("rho", -1.0, 1.0), pm.HalfNormal("sigma")
    return pm.AR("x", rho=[rho], sigma=sigma, init_dist=pm.Normal.dist(0.2, 2.0), shape=N)


def autoregression_of_order_two_about_a_level():
    rho = pm.Normal("rho", 0.0, 0.4, shape=3)
    start = pm.Normal.dist(np.array([0.2, -0.1]), np.array([1.0, 2.0]))
    return pm.AR("x", rho=rho, sigma=0.5, init_dist=start, constant=True, steps=N - 2)


def areal():
    tau = pm.Gamma("tau", 2.0, 2.0)
    return pm.CAR("x", mu=np.arange(N) / N, W=NEIGHBOURS, alpha=pm.Uniform("alpha", -1.0, 1.0), tau=tau)


def areal_of_a_sparse_matrix():
    mean = pm.Normal("level") * np.ones(N)
    return pm.CAR("x", mu=mean, W=sparse.csr_matrix(NEIGHBOURS), alpha=0.8, tau=pm.Gamma("tau", 2.0, 2.0))


def areal_intrinsic():
    return pm.ICAR("x", W=NEIGHBOURS.astype(int), sigma=0.7, zero_sum_stdev=0.05)


def areal_intrinsic_of_a_loose_sum():
    return pm.ICAR("x", W=np.eye(N, k=1, dtype=int) + np.eye(N, k=-1, dtype=int), zero_sum_stdev=1)


PRIORS = [
    random_walk, autoregression, autoregression_of_order_two_about_a_level, areal,
    areal_of_a_sparse_matrix,
]  # fmt: skip


def build(make) -> pm.Model:
    with pm.Model() as model:
        pm.Poisson("y", mu=pm.math.exp(make()), observed=COUNTS)
    return model


@pytest.mark.parametrize("make", [*PRIORS, areal_intrinsic, areal_intrinsic_of_a_loose_sum])
def test_the_density_is_pymcs(make):
    """PyMC leaves a constant out of an areal model's: what is compared is the difference between two points."""
    model = build(make)
    latent = read_latent(model, model["x"])
    assert not isinstance(latent, str)
    stated = Evaluator(model, latent.expressions)
    exact = exact_log_density(model, vars=[model["x"]])

    def density(point):
        matrix, mean = stated(point)
        covariance = {"covariance": lambda k: k, "cholesky": lambda k: k @ k.T, "precision": np.linalg.inv}[latent.root]
        return multivariate_normal.logpdf(point["x"], mean, covariance(matrix))

    gaps = [density(point) - float(exact(point)) for point in (random_point(model, seed) for seed in range(4))]
    np.testing.assert_allclose(gaps, gaps[0], atol=1e-7)
    if not make.__name__.startswith("areal"):
        assert gaps[0] == pytest.approx(0.0, abs=1e-7)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (random_walk, "random walk"), (autoregression, "autoregression"), (areal, "areal model (CAR)"),
        (areal_intrinsic, "areal model (ICAR)"),
    ],
)
def test_it_is_called_what_it_is(make, name):
    assert describe(build(make)).blocks[0].prior == name


@pytest.mark.parametrize("make", PRIORS)
def test_hyperparameters_are_taken_in_with_their_derivatives(make):
    model, rng = build(make), np.random.default_rng(2)
    joint = joint_of(model)
    joint.bind(model.initial_point())
    (block,) = joint.blocks
    theta = joint.theta.pack(random_point(model, 3))
    mean_bar, bar = rng.standard_normal(N), rng.standard_normal((N, N))

    def along(at):
        stated = block.prior(at)
        return stated.mean @ mean_bar + (stated.vectors[0].covariance * bar).sum()

    found = block.prior_pullback(theta, mean_bar, [bar], None)
    np.testing.assert_allclose(found, differences(along, theta), rtol=1e-5, atol=1e-6)


def bounded_areal(weights=NEIGHBOURS):
    return pm.CAR("x", mu=np.zeros(N), W=weights, alpha=pm.Normal("alpha"), tau=pm.Normal("tau"))


@pytest.mark.parametrize(
    ("make", "outside"),
    [
        (bounded_areal, {"alpha": -1.1, "tau": 1.0}),
        (bounded_areal, {"alpha": 0.5, "tau": -1.0}),
        (lambda: bounded_areal(np.triu(NEIGHBOURS)), {"alpha": 0.5, "tau": 1.0}),
        (lambda: pm.GaussianRandomWalk("x", sigma=pm.Normal("s"), init_dist=pm.Normal.dist(), shape=N), {"s": -0.5}),
        (lambda: pm.AR("x", rho=[0.5], sigma=pm.Normal("s"), init_dist=pm.Normal.dist(), shape=N), {"s": -0.5}),
    ],
)
def test_there_is_no_prior_where_pymc_has_no_density(make, outside):
    model = build(make)
    point = model.initial_point() | {name: np.array(value) for name, value in outside.items()}
    joint = joint_of(model)
    joint.bind(point)
    (block,) = joint.blocks
    with pytest.raises(PriorFailure):
        conditional_of(block, joint.theta.pack(point), GaussianSites(np.zeros(N), np.ones(N)))


def coefficients_of_a_mean(scale, size: int) -> None:
    coefficients = pm.Normal("z", 0.0, pm.HalfNormal("s"), shape=size)
    pm.Normal("y", coefficients[np.arange(N) % size], pm.math.exp(scale), observed=COUNTS / 2.0)


def test_a_walk_that_is_no_latent_leaves_the_coefficients_their_chart():
    with pm.Model() as model:
        coefficients_of_a_mean(pm.GaussianRandomWalk("w", init_dist=pm.Normal.dist(), shape=N), N)
    assert set(joint_of(model).theta.names) == {"s_log__", "w"}
    assert joint_of(model, ["z", "s"]).theta.names == ("s_log__",)
    with pm.Model() as model:
        coefficients_of_a_mean(pm.GaussianRandomWalk("w", init_dist=pm.Normal.dist(), shape=(2, N))[0], 3)
    assert set(joint_of(model).theta.names) == {"s_log__", "w"}


def test_of_a_walk_and_of_fewer_coefficients_in_another_parameter_the_walk_is_latent():
    with pm.Model() as model:
        coefficients_of_a_mean(pm.GaussianRandomWalk("w", init_dist=pm.Normal.dist(), shape=N), 3)
    assert set(joint_of(model).theta.names) == {"s_log__", "z"}


def test_a_walk_is_sampled_beside_a_step_of_its_own():
    model = build(random_walk)
    with model:
        idata = pm.sample(50, tune=50, chains=1, step=RMHMC(vars=["x"]), progressbar=False, random_seed=1)
    assert idata.posterior["x"].shape == (1, 50, N)
    assert not idata.sample_stats["diverging"].any()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: pm.GaussianRandomWalk("x", init_dist=pm.Normal.dist(), shape=(2, N)), "several rows"),
        (lambda: pm.GaussianRandomWalk("x", init_dist=pm.StudentT.dist(3.0), shape=N), "are not independent Normals"),
        (lambda: pm.RandomWalk("x", init_dist=pm.Normal.dist(), innovation_dist=pm.Laplace.dist(0.0, 1.0), steps=5),
         "are not independent Normals"),
        (lambda: pm.AR("x", rho=[0.5], init_dist=pm.Laplace.dist(0.0, 1.0), shape=N), "start is not made of"),
    ],
)  # fmt: skip
def test_what_is_not_one_gaussian_vector_says_why(make, reason):
    with pm.Model():
        x = make()
        pm.Poisson("y", mu=pm.math.exp(x), observed=np.broadcast_to(COUNTS, x.shape.eval()))
        with pytest.raises(UnsupportedModelError, match=reason):
            RMHMC(metric=FlatMetric(chart="latent"))


def test_a_map_and_effects_of_its_own_for_every_area_are_one_block():
    """The model of Besag, York and Mollié, as Riebler and others write it, but for a constant."""
    with pm.Model() as model:
        s, rho = pm.HalfNormal("s"), pm.Beta("rho", 0.5, 0.5)
        theta, phi = pm.Normal("theta", shape=N), pm.ICAR("phi", W=NEIGHBOURS.astype(int), zero_sum_stdev=0.05)
        mixed = pm.math.sqrt(1.0 - rho) * theta + pm.math.sqrt(rho / 0.4) * phi
        pm.Poisson("y", np.linspace(1.0, 2.0, N) * pm.math.exp(pm.Normal("level") + s * mixed), observed=COUNTS)
    joint = joint_of(model)
    assert set(joint.theta.names) == {"s_log__", "rho_logodds__"}
    exact, gaps = exact_log_density(model), []
    for seed in range(4):
        point = random_point(model, seed)
        joint.bind(point)
        gaps.append(log_density(joint, point) - float(exact(point)))
    np.testing.assert_allclose(gaps, gaps[0], atol=1e-6)


def scaled_within():
    return pm.ICAR("x", W=NEIGHBOURS.astype(int), sigma=pm.HalfNormal("sigma"))


def scaled_within_by_a_distribution_made_of_others():
    return pm.ICAR("x", W=NEIGHBOURS.astype(int), sigma=2.0 * pm.HalfCauchy("sigma", 1.0))


def parted():
    return pm.ICAR("x", W=np.kron(np.eye(N // 2, dtype=int), np.eye(2, dtype=int)[::-1]))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (scaled_within, "its sigma has a prior.*multiply it instead"),
        (scaled_within_by_a_distribution_made_of_others, "its sigma has a prior.*multiply it instead"),
        (parted, "its map has several parts that are not connected"),
    ],
)
def test_intrinsic_maps_that_are_left_to_other_steps(make, reason):
    with pytest.raises(UnsupportedModelError, match=f"x: {reason}"):
        read_structure(build(make))
