"""Which hyperparameters are likelihoods' own: read by no latent's prior and no predictor, so that latents may stay."""

from __future__ import annotations

from collections.abc import Callable

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import sparse

from pymc_rmhmc.approximation.joint_mode import moving_sites
from pymc_rmhmc.latent.charts import GaussianSites, MarginalChart
from pymc_rmhmc.latent.joint_target import JointTarget
from pymc_rmhmc.latent.latents_given_theta import LatentsGivenTheta
from pymc_rmhmc.latent.theta_densities import ParametersGivenLatents
from pymc_rmhmc.model import JointModel
from pymc_rmhmc.model.hyperparameters import Hyperparameters
from tests.model import joint_forms
from tests.model.conftest import BINARY, COUNTS, INDEX, INDEX_COUNTS, N, X, exact_log_density, gp_prior
from tests.model.joint_checks import differences, joint_of, parts_of, random_point
from tests.model.joint_forms import GROUP, dispersed, grid, normal
from tests.thinned import thinned

pytestmark = pytest.mark.usefixtures("without_a_compiler")

CASES: dict[str, tuple[Callable[[], None], dict[str, int]]] = {}


def own(**sizes: int):
    """Add a model to the table, with the value variables that are its likelihoods' own, and how long each is."""

    def add(build: Callable[[], None]) -> Callable[[], None]:
        CASES[build.__name__] = build, sizes
        return build

    return add


def process(name: str = "f", **options) -> pt.TensorVariable:
    return gp_prior(name, ls=pm.Gamma(f"ls_of_{name}", 2.0, 4.0), **options)


def student(f: pt.TensorVariable, **shape) -> None:
    nu, sigma = pm.Gamma("nu", 4.0, 1.0), pm.HalfNormal("sigma", 1.0, **shape)
    pm.StudentT("y", nu=nu, mu=f, sigma=sigma, observed=COUNTS / 2.0)


@own(nu_log__=1, sigma_log__=1)
def student_t() -> None:
    student(process(reparameterize=False))


@own(nu_log__=1, sigma_log__=1)
def student_t_whitened() -> None:
    student(process())


@own(nu_log__=1, sigma_log__=N)
def a_noise_for_every_observation() -> None:
    student(process(reparameterize=False), shape=N)


@own(alpha_log__=1)
def negative_binomial() -> None:
    dispersed(process())


@own(alpha_log__=1)
def negative_binomial_of_centred_values() -> None:
    dispersed(process(reparameterize=False))


@own()
def poisson() -> None:
    pm.Poisson("y", mu=pm.math.exp(process()), observed=COUNTS)


@own(psi=1)
def zero_inflation() -> None:
    psi = pm.math.invlogit(pm.Normal("psi"))
    pm.ZeroInflatedPoisson("y", psi=psi, mu=pm.math.exp(process()), observed=COUNTS)


@own(alpha_log__=1)
def a_shape_that_is_in_the_rate_as_well() -> None:
    alpha = pm.HalfNormal("alpha", 2.0)
    pm.Gamma("y", alpha=alpha, beta=alpha / pm.math.exp(process()), observed=COUNTS + 0.5)


@own()
def a_noise_that_is_the_amplitude_as_well() -> None:
    sigma = pm.HalfNormal("sigma")
    f = pm.gp.Latent(cov_func=sigma**2 * pm.gp.cov.Matern32(1, ls=0.3)).prior("f", X)
    pm.Normal("y", f, sigma, observed=COUNTS / 3.0)


@own()
def a_noise_that_is_the_level_as_well() -> None:
    sigma = pm.HalfNormal("sigma")
    pm.Normal("y", process() + sigma, sigma, observed=COUNTS / 3.0)


@own()
def a_noise_that_a_mean_function_reads() -> None:
    sigma = pm.HalfNormal("sigma")
    mean = pm.gp.mean.Constant(0.3 * sigma)
    f = pm.gp.Latent(mean_func=mean, cov_func=pm.gp.cov.Matern32(1, ls=0.3)).prior("f", X, reparameterize=False)
    pm.Normal("y", f, sigma, observed=COUNTS / 3.0)


@own(sigma_log__=1)
def a_noise_beside_a_level_and_a_mean_function() -> None:
    mean = pm.gp.mean.Constant(pm.Normal("level"))
    gp = pm.gp.Latent(mean_func=mean, cov_func=pm.gp.cov.Matern32(1, ls=pm.HalfNormal("ls")))
    normal(gp.prior("f", X, reparameterize=False) + pm.Normal("intercept"))


@own(sigma_log__=1)
def a_noise_with_a_prior_of_its_own() -> None:
    pm.Normal("y", process(), pm.HalfNormal("sigma", pm.HalfNormal("above")), observed=COUNTS / 3.0)


@own(sigma_log__=1)
def a_noise_on_which_an_amplitude_depends_by_its_prior() -> None:
    """Given the amplitude the latents know nothing of it; that it has a say in the amplitude is in the rest."""
    sigma = pm.HalfNormal("sigma")
    kernel = pm.HalfNormal("eta", sigma) ** 2 * pm.gp.cov.Matern32(1, ls=0.3)
    pm.Normal("y", pm.gp.Latent(cov_func=kernel).prior("f", X), sigma, observed=COUNTS / 3.0)


@own()
def a_noise_that_bounds_an_amplitude() -> None:
    """On the unconstrained scale the amplitude moves with it."""
    sigma = pm.HalfNormal("sigma")
    kernel = pm.Uniform("eta", sigma, 10.0) ** 2 * pm.gp.cov.Matern32(1, ls=0.3)
    pm.Normal("y", pm.gp.Latent(cov_func=kernel).prior("f", X), sigma, observed=COUNTS / 3.0)


@own()
def a_noise_that_bounds_a_level() -> None:
    sigma = pm.HalfNormal("sigma")
    pm.Normal("y", process() + pm.TruncatedNormal("level", lower=sigma), sigma, observed=COUNTS / 3.0)


@own(sigma_interval__=1)
def a_noise_that_an_amplitude_bounds() -> None:
    eta = pm.HalfNormal("eta")
    kernel = eta**2 * pm.gp.cov.Matern32(1, ls=0.3)
    sigma = pm.Uniform("sigma", 0.0, eta)
    pm.Normal("y", pm.gp.Latent(cov_func=kernel).prior("f", X), sigma, observed=COUNTS / 3.0)


@own(first_log__=1, second_log__=1)
def a_noise_of_two_factors() -> None:
    noise = pm.Deterministic("noise", pm.HalfNormal("first") * pm.HalfNormal("second"))
    pm.Normal("y", process(), noise, observed=COUNTS / 3.0)


@own(tau_log__=1)
def two_processes_of_which_one_has_a_noise() -> None:
    pm.Poisson("y", mu=pm.math.exp(process("f")), observed=COUNTS)
    g = process("g", reparameterize=False)
    pm.Bernoulli("z", logit_p=g, observed=BINARY)
    pm.Normal("w", g, pm.HalfNormal("tau"), observed=COUNTS / 3.0)


@own(tau_log__=1)
def a_noise_of_one_that_is_the_amplitude_of_another() -> None:
    shared = pm.HalfNormal("shared")
    pm.Normal("y", process("f"), shared, observed=COUNTS / 3.0)
    g = pm.gp.Latent(cov_func=shared**2 * pm.gp.cov.Matern32(1, ls=0.3)).prior("g", X, reparameterize=False)
    pm.Normal("w", g, pm.HalfNormal("tau"), observed=COUNTS / 3.0)


@own()
def an_exposure_is_no_parameter_of_its_likelihood() -> None:
    pm.Poisson("y", mu=pm.HalfNormal("exposure") * pm.math.exp(process()), observed=COUNTS)


@own(sigma_log__=1)
def rows() -> None:
    f = process(n_outputs=2, reparameterize=False)
    counts = np.stack([COUNTS, COUNTS[::-1]])
    pm.Normal("y", f + pm.Normal("level"), pm.HalfNormal("sigma"), observed=counts)


@own(alpha_log__=1)
def on_a_grid() -> None:
    f = grid(ls=pm.LogNormal("ls", -0.5, 0.4)).reshape((6, 2))
    y = np.arange(12).reshape(6, 2)
    pm.NegativeBinomial("y", mu=pm.math.exp(f), alpha=pm.Exponential("alpha", 1.0), observed=y)


@own(sigma_log__=1)
def a_sum() -> None:
    normal(process("f") + gp_prior("g", ls=0.1, reparameterize=False) + pm.Normal("level"))


@own(nu_log__=1, sigma_log__=1)
def a_covariance_that_stands_still() -> None:
    student(pm.MvNormal("f", np.zeros(N), cov=np.eye(N) + 0.4) + pm.Normal("level"))


@own(alpha_log__=1)
def a_grouped_dispersion_of_values_read_again() -> None:
    f = process()
    pm.NegativeBinomial("y", mu=pm.math.exp(f[INDEX]), alpha=pm.Exponential("alpha", 1.0), observed=INDEX_COUNTS)


@own(alpha_log__=5)
def a_dispersion_for_every_group() -> None:
    alpha = pm.Exponential("alpha", 1.0, shape=5)
    pm.NegativeBinomial("y", mu=pm.math.exp(process()), alpha=alpha[GROUP], observed=COUNTS)


@own(sigma_log__=1)
def groups_and_slopes() -> None:
    joint_forms.noise_of_a_mixed_model()


@own(sigma_log__=1)
def slopes() -> None:
    joint_forms.noise_of_a_regression()


@own(alpha_log__=1)
def coefficients_whose_scale_multiplies_them() -> None:
    dispersed(0.2 + pm.HalfNormal("spread") * pm.Normal("raw", shape=5)[GROUP])


@own()
def a_noise_that_scales_coefficients() -> None:
    sigma = pm.HalfNormal("sigma")
    pm.Normal("y", sigma * pm.Normal("raw", shape=5)[GROUP], sigma, observed=COUNTS / 3.0)


@own()
def a_noise_that_is_the_spread_of_coefficients() -> None:
    sigma = pm.HalfNormal("sigma")
    pm.Normal("y", pm.Normal("raw", 0.0, sigma, shape=5)[GROUP], sigma, observed=COUNTS / 3.0)


def build(name: str) -> pm.Model:
    with pm.Model() as model:
        CASES[name][0]()
    return model


def owned(joint: JointModel) -> dict[str, int]:
    """The value variables of which coordinates are likelihoods' own, with how many."""
    held = {
        name: int(np.isin(joint.of_likelihoods, np.arange(part.start, part.stop)).sum())
        for name, part in zip(joint.theta.names, joint.theta.slices, strict=True)
    }
    return {name: size for name, size in held.items() if size}


def poor_target(joint: JointModel, theta: np.ndarray) -> JointTarget:
    """Sites that follow the likelihoods, of no good fit."""
    rng, sites = np.random.default_rng(3), []
    for block in joint.blocks:
        n = block.n_sites
        fitted = GaussianSites(rng.standard_normal(n), np.full(n, 0.7))
        sites.append(moving_sites(block, theta, fitted, np.zeros(n), np.ones(n)))
    return JointTarget(joint, sites, MarginalChart.linear(theta, np.eye(theta.size)))


def flattened(parts) -> np.ndarray:
    """All that a prior states, in one array."""
    if isinstance(parts, np.ndarray | float | bool):
        return np.ravel(parts)
    if parts is None or sparse.issparse(parts):  # an identity, or another matrix
        return np.empty(0) if parts is None else np.ravel(parts.toarray())
    return np.concatenate([flattened(part) for part in parts] or [np.empty(0)])


@pytest.mark.parametrize("name", CASES)
def test_what_is_likelihoods_own_is_named(name):
    joint = joint_of(build(name))
    assert owned(joint) == CASES[name][1]
    assert joint.of_likelihoods.dtype.kind == "i"
    assert (np.diff(joint.of_likelihoods) > 0).all()


# Every form of a conditional, and what is subtle about the density.
PROMISES = [
    "student_t", "negative_binomial", "rows", "on_a_grid", "a_sum", "a_covariance_that_stands_still",
    "groups_and_slopes", "slopes", "two_processes_of_which_one_has_a_noise", "a_shape_that_is_in_the_rate_as_well",
    "a_noise_on_which_an_amplitude_depends_by_its_prior", "a_dispersion_for_every_group",
    "a_noise_that_an_amplitude_bounds",
]  # fmt: skip


@pytest.mark.parametrize("name", thinned(PROMISES))
def test_wherever_they_are_priors_stay_and_the_score_and_borrowed_factors_are_right(name):
    model = build(name)
    joint = joint_of(model)
    which, point = joint.of_likelihoods, random_point(model, 1)
    joint.bind(point)
    theta = joint.theta.pack(point)
    other = theta.copy()
    other[which] += 0.6 * np.random.default_rng(2).choice([-1.0, 1.0], which.size)
    for block in joint.blocks:
        here = flattened(parts_of(block.prior(theta))).copy()
        np.testing.assert_array_equal(flattened(parts_of(block.prior(other))), here)
    target, rng = poor_target(joint, theta), np.random.default_rng(4)
    there, noise = LatentsGivenTheta(target, np.zeros(theta.size)), rng.standard_normal(target.size - theta.size)
    eta = [values.copy() for values in there.at_noise(noise).eta]
    held = ParametersGivenLatents(joint, theta, eta)
    np.testing.assert_allclose(
        held.score(theta)[1], differences(lambda at: held.score(at)[0], theta)[which], rtol=1e-5, atol=1e-5
    )
    latents = [each.latents for each in there.place(noise)]
    assert_is_the_model(held, model, joint, (theta, other), latents)
    assert_borrows_well(target, target.chart.recover(other), there, eta, latents)


def assert_is_the_model(held: ParametersGivenLatents, model: pm.Model, joint: JointModel, thetas, latents) -> None:
    """Between two places the density is that of the model with every latent variable held, where sites say so."""
    exact, logp = exact_log_density(model), []
    for theta in thetas:
        point = joint.theta.unpack(theta)
        for block, packed in zip(joint.blocks, latents, strict=True):
            parts = np.split(packed, np.cumsum(block.sizes)[:-1])
            shapes = [model.initial_point()[name].shape for name in block.value_names]
            point |= {n: p.reshape(s) for n, p, s in zip(block.value_names, parts, shapes, strict=True)}
        logp.append(float(exact(model.initial_point() | point)))
    change = held.score(thetas[1])[0] - held.score(thetas[0])[0]
    assert change == pytest.approx(logp[1] - logp[0], rel=1e-7, abs=1e-7)
    assert abs(change) > 1e-3


def assert_borrows_well(target: JointTarget, standard: np.ndarray, there: LatentsGivenTheta, eta, latents) -> None:
    """At other parameters factors of the same priors are one's own, and lead back to the same latents and sites."""
    borrowed, fresh = LatentsGivenTheta(target, standard, there), LatentsGivenTheta(target, standard)
    near, residual = {"rtol": 1e-7, "atol": 1e-7}, np.random.default_rng(5).standard_normal(fresh.centre.size)
    assert borrowed.log_marginal == pytest.approx(fresh.log_marginal, rel=1e-9, abs=1e-8)
    np.testing.assert_allclose(borrowed.centre, fresh.centre, **near)
    np.testing.assert_allclose(borrowed.gram(residual), fresh.gram(residual), **near)
    np.testing.assert_allclose(borrowed.adjoint(residual), fresh.adjoint(residual), **near)
    noise = borrowed.enter(latents, np.random.default_rng(6))
    mine, other = borrowed.at_noise(noise), fresh.at_noise(noise)
    assert mine.log_density == pytest.approx(other.log_density, rel=1e-9, abs=1e-7)
    for point in (mine, other):
        np.testing.assert_allclose(np.concatenate(point.eta), np.concatenate(eta), **near)
    for placed, exact in zip(other.placed, latents, strict=True):
        np.testing.assert_allclose(placed.latents, exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("vars", [None, ["f", "sigma"], ["f", "ls_of_f"]], ids=["all", "noise", "lengthscale"])
def test_what_is_not_sampled_together_is_none_of_them(vars):  # noqa: A002
    with pm.Model() as model:
        normal(process())
    joint = joint_of(model, vars)
    assert owned(joint) == ({} if vars == ["f", "ls_of_f"] else {"sigma_log__": 1})


def test_a_pickled_model_keeps_them():
    joint = joint_of(build("student_t"))
    np.testing.assert_array_equal(cloudpickle.loads(cloudpickle.dumps(joint)).of_likelihoods, joint.of_likelihoods)


def test_coordinates_that_expressions_read_stop_at_variables_and_at_what_is_held():
    with pm.Model() as model:
        above, wide = pm.HalfNormal("above"), pm.Normal("wide", shape=3)
        below = pm.HalfNormal("below", above)
        held = pm.Deterministic("held", below * 2.0)
    theta = Hyperparameters(model, [above, wide, below], model.initial_point())

    def read(*expressions, held=()):
        return theta.read_by(list(expressions), model, held).tolist()

    assert read() == [False] * 5
    assert read(above) == [True, False, False, False, False]
    assert read(below + 1.0) == [False, False, False, False, True]  # not what is above
    assert read(wide[1] * 2.0) == [False, True, True, True, False]  # a variable is read whole
    assert read(above * wide.sum(), pt.exp(below)) == [True] * 5
    assert read(held) == [False, False, False, False, True]
    assert read(held, held=[held]) == [False] * 5
    assert read(held + above, held=[held]) == [True, False, False, False, False]


def nested_effects() -> None:
    spread, inner = pm.HalfNormal("spread"), pm.HalfNormal("inner")
    outer = pm.Normal("outer", pm.Normal("mean"), spread, shape=2)
    joint_forms.poisson(pm.Normal("f", outer[GROUP % 2], inner, shape=N) + pm.Normal("level"))


def shifted_effects() -> None:
    ls = pm.Gamma("ls", 2.0, pm.HalfNormal("rate"))
    level = pm.StudentT("level", nu=4.0, mu=pm.Normal("mean", 0.0, 5.0), sigma=1.0)
    joint_forms.poisson(gp_prior("f", ls=ls) + level + pm.Uniform("up", level, level + 1.0))


def effects_beside_a_process() -> None:
    scale = pm.HalfNormal("scale")
    effects = pm.ZeroSumNormal("e", scale, shape=5)
    joint_forms.poisson(gp_prior("f", ls=pm.HalfCauchy("ls", pm.HalfNormal("of_ls"))) + effects[GROUP])


@pytest.mark.parametrize(
    ("make", "held"),
    [
        (nested_effects, {"mean", "outer", "spread_log__"}),
        (effects_beside_a_process, {"e_zerosum__", "scale_log__"}),
        (lambda: joint_forms.poisson(gp_prior("f", ls=pm.HalfNormal("ls")) * pm.HalfNormal("eta")), set()),
        (shifted_effects, set()),
    ],
)
def test_hyperparameters_that_others_spread_are_known(make, held):
    """On a logarithmic scale a parameter shifts a scale that it spreads; what others only shift is not held."""
    with pm.Model() as model:
        make()
    joint = joint_of(model)
    which = joint.of_hierarchies
    parts = dict(zip(joint.theta.names, joint.theta.slices, strict=True))
    assert {name for name, part in parts.items() if part.start in which} == held
    assert which.size == sum(parts[name].stop - parts[name].start for name in held)
