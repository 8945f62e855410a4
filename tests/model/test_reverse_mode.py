"""The joint chart's adjoints against PyTensor's reverse mode through the same formulas, written out plainly.

Differences say that a gradient is right to six digits; reverse mode says so to eight. Whatever form a chart takes, its
map is that of ``η = m + R y`` with ``y ~ N(0, I)``, for a matrix R that the hyperparameters move.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from pymc_rmhmc.approximation.joint_mode import moving_sites
from pymc_rmhmc.latent.charts import GaussianSites, MarginalChart, SiteTilt
from pymc_rmhmc.latent.joint_target import JointTarget
from pymc_rmhmc.model.graph.graphs import PYTHON_MODE
from tests.model.conftest import BINARY, COUNTS, N, X
from tests.model.joint_checks import joint_of
from tests.model.joint_forms import DESIGN, GROUP, WIDE_DESIGN
from tests.thinned import thinned

pytestmark = pytest.mark.usefixtures("without_a_compiler")

JITTER = 1e-3
# With a slope, without which observations of one group would be one site.
GROUPS = np.column_stack((GROUP[:, None] == np.arange(5), DESIGN[:, 0])).astype(float)
AXES = X[:4], X[:2]
COUNTS_ON_GRID = np.arange(8)
# Of the noise, where the sites were fitted.
FITTED_NOISE = 0.3


def kernel(ls, eta, x=X):
    return (eta**2 * pm.gp.cov.ExpQuad(1, ls=ls))(x) + JITTER * pt.eye(len(x))


def counts(eta, theta):
    return (COUNTS * eta - pt.exp(eta)).sum()


def counts_on_a_grid(eta, theta):
    return (COUNTS_ON_GRID * eta - pt.exp(eta)).sum()


def classes(eta, theta):
    return (BINARY * eta - pt.softplus(eta)).sum()


def measurements(eta, theta):
    sigma = pt.exp(theta["sigma_log__"])
    return (-0.5 * ((COUNTS / 3.0 - eta) / sigma) ** 2 - pt.log(sigma)).sum()


def poisson(eta) -> None:
    pm.Poisson("y", mu=pm.math.exp(eta), observed=COUNTS)


def normal(eta) -> None:
    pm.Normal("y", eta, pm.HalfNormal("sigma", 1.0), observed=COUNTS / 3.0)


# The log densities of hyperparameters on the unconstrained scale.
HALF_NORMAL = lambda t: -0.5 * pt.exp(2.0 * t) + t  # noqa: E731
NORMAL = lambda t: -0.5 * t**2  # noqa: E731
LENGTHSCALE = lambda t: -0.5 * ((t + 1.0) / 0.5) ** 2  # noqa: E731


@dataclass(frozen=True)
class Case:
    """A model, and the same written out: priors of θ, the likelihood, m and R."""

    build: Callable[[], None]
    priors: dict[str, Callable]
    log_likelihood: Callable
    prior: Callable
    # Where A and the weights stand still but for a multiple, L: the chart takes its second noise through a root of M.
    standing: Callable | None = None
    # Whether matrices are to be in the size of the latent values.
    by_values: bool = False
    bent: bool = False


def level_and_scales():
    return pm.LogNormal("ls", -1.0, 0.5), pm.HalfNormal("eta", 1.0), pm.Normal("level")


PROCESS = {"ls_log__": LENGTHSCALE, "eta_log__": HALF_NORMAL, "level": NORMAL}
SPREAD = {"spread_log__": HALF_NORMAL}
NOISE = {"sigma_log__": HALF_NORMAL}


def process(observe, *, reparameterize: bool):
    def build():
        ls, eta, level = level_and_scales()
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(level), cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=ls))
        observe(gp.prior("f", X, reparameterize=reparameterize, jitter=JITTER))

    return build


def of_process(theta):
    covariance = kernel(pt.exp(theta["ls_log__"]), pt.exp(theta["eta_log__"]))
    return theta["level"] * pt.ones(N), pt.linalg.cholesky(covariance)


def on_a_grid() -> None:
    ls, eta, level = level_and_scales()
    kernels = [eta**2 * pm.gp.cov.ExpQuad(1, ls=ls), pm.gp.cov.ExpQuad(1, ls=2.0 * ls)]
    gp = pm.gp.LatentKron(mean_func=pm.gp.mean.Constant(level), cov_funcs=kernels)
    f = gp.prior("f", Xs=list(AXES), jitter=JITTER)
    pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS_ON_GRID)


def of_a_grid(theta):
    ls, eta = pt.exp(theta["ls_log__"]), pt.exp(theta["eta_log__"])
    first, second = (pt.linalg.cholesky(k) for k in (kernel(ls, eta, AXES[0]), kernel(2.0 * ls, 1.0, AXES[1])))
    return theta["level"] * pt.ones(8), pt.linalg.kron(first, second)


def coefficients(design: np.ndarray, observe):
    def build():
        effects = pm.Normal("effects", 0.0, pm.HalfNormal("spread", 1.0), shape=design.shape[1])
        observe(design @ effects)

    return build


def of_coefficients(design: np.ndarray):
    return lambda theta: (pt.zeros(N), pt.exp(theta["spread_log__"]) * pt.as_tensor(design))


def scaled_identity(theta, root):
    """L of coefficients."""
    return pt.exp(theta["spread_log__"]) * pt.eye(root.shape[1])


def warped() -> None:
    effects = pm.Normal("effects", 0.0, pm.HalfNormal("spread", 1.0), shape=4)
    poisson(pt.exp(pm.Normal("warp") * DESIGN) @ effects)


def of_warped(theta):
    return pt.zeros(N), pt.exp(theta["spread_log__"]) * pt.exp(theta["warp"] * DESIGN)


def process_and_slopes(observe):
    def build():
        ls, eta, level = level_and_scales()
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=ls))
        f = gp.prior("f", X, reparameterize=False, jitter=JITTER)
        slopes = pm.Normal("slopes", 0.0, pm.HalfNormal("spread", 1.0), shape=4)
        observe(0.5 * level**2 + level + f + DESIGN @ slopes)

    return build


def of_process_and_slopes(theta):
    covariance = kernel(pt.exp(theta["ls_log__"]), pt.exp(theta["eta_log__"]))
    slopes = pt.exp(theta["spread_log__"]) * pt.as_tensor(DESIGN)
    mean = (0.5 * theta["level"] ** 2 + theta["level"]) * pt.ones(N)
    return mean, pt.concatenate([pt.linalg.cholesky(covariance), slopes], axis=1)


def both_factors(theta, root):
    """L of the process and of the slopes: the design has the identity for the first."""
    slopes = pt.exp(theta["spread_log__"]) * pt.eye(4)
    return pt.concatenate([
        pt.concatenate([root[:, :N], pt.zeros((N, 4))], axis=1), pt.concatenate([pt.zeros((4, N)), slopes], axis=1),
    ])  # fmt: skip


BOTH = PROCESS | SPREAD
CASES = {
    "centred process": Case(process(poisson, reparameterize=False), PROCESS, counts, of_process),
    "whitened process": Case(process(poisson, reparameterize=True), PROCESS, counts, of_process),
    "classes": Case(
        process(lambda f: pm.Bernoulli("y", logit_p=f, observed=BINARY), reparameterize=False), PROCESS, classes,
        of_process,
    ),
    "bent chart": Case(process(poisson, reparameterize=False), PROCESS, counts, of_process, bent=True),
    "process under a noise": Case(
        process(normal, reparameterize=False), PROCESS | NOISE, measurements, of_process
    ),
    "grid": Case(on_a_grid, PROCESS, counts_on_a_grid, of_a_grid),
    "coefficients": Case(coefficients(DESIGN, poisson), SPREAD, counts, of_coefficients(DESIGN), scaled_identity),
    "groups": Case(coefficients(GROUPS, poisson), SPREAD, counts, of_coefficients(GROUPS), scaled_identity),
    "groups under a noise": Case(
        coefficients(GROUPS, normal), SPREAD | NOISE, measurements, of_coefficients(GROUPS), scaled_identity
    ),
    "more coefficients than data": Case(
        coefficients(WIDE_DESIGN, poisson), SPREAD, counts, of_coefficients(WIDE_DESIGN)
    ),
    "coefficients of warped inputs": Case(warped, SPREAD | {"warp": NORMAL}, counts, of_warped),
    "sum": Case(process_and_slopes(poisson), BOTH, counts, of_process_and_slopes),
    "sum under a noise": Case(process_and_slopes(normal), BOTH | NOISE, measurements, of_process_and_slopes),
    "sum by values": Case(
        process_and_slopes(poisson), BOTH, counts, of_process_and_slopes, both_factors, by_values=True
    ),
    "sum by values under a noise": Case(
        process_and_slopes(normal), BOTH | NOISE, measurements, of_process_and_slopes, by_values=True
    ),
}  # fmt: skip


def place(chart: MarginalChart, standard):
    """θ, and the logarithm of the volume."""
    y = chart.centre + chart.factor @ standard
    angle = (pt.arcsinh(y) + chart.skewness) / chart.tail
    volume = (pt.log(pt.cosh(angle)) - pt.log(chart.tail * pt.sqrt(1.0 + y**2))).sum()
    return chart.location + chart.spread * pt.sinh(angle), volume


def root_of_weights(target: JointTarget, fitted: GaussianSites) -> np.ndarray:
    """F of ``F Fᵀ = AᵀW̄A``."""
    weights = target.conditional(0, np.zeros(target.n_theta), fitted).weights
    return np.stack([weights.root_adjoint(unit) for unit in np.eye(target.density.blocks[0].size)])


def plain_density(case: Case, target: JointTarget, position, fitted: GaussianSites, tilt: SiteTilt | None):
    """The log density beyond a standard normal as the chart's formulas have it, but for a constant."""
    joint, d = target.density, target.n_theta
    at, volume = place(target.chart, position[:d])
    theta = {name: at[part.start] for name, part in zip(joint.theta.names, joint.theta.slices, strict=True)}
    power = pt.exp(2.0 * (FITTED_NOISE - theta["sigma_log__"])) if "sigma_log__" in theta else 1.0
    b, w = power * fitted.linear, power * fitted.precision
    if tilt is not None:
        b += pt.tanh((at - tilt.centre)[tilt.which]) @ tilt.slopes
    mean, root = case.prior(theta)
    k = root.eval({at: np.zeros(d)}).shape[1]
    first, second = position[d : d + k], position[d + k :]
    linear = root.T @ (b - w * mean)
    if case.standing is None:
        pushed = root.T @ (pt.sqrt(w) * second)
    else:
        pushed = pt.sqrt(power) * case.standing(theta, root).T @ (root_of_weights(target, fitted) @ second)
    inner = pt.eye(k) + root.T @ (w[:, None] * root)
    eta = mean + root @ pt.linalg.solve(inner, linear + pushed + first)
    evidence = (
        (b * mean - 0.5 * w * mean**2).sum() + 0.5 * linear @ pt.linalg.solve(inner, linear)
        - pt.log(pt.diag(pt.linalg.cholesky(inner))).sum()
    )  # fmt: skip
    prior = sum(log_density(theta[name]) for name, log_density in case.priors.items())
    beyond = prior + volume + 0.5 * (position[:d] ** 2).sum()
    return beyond + case.log_likelihood(eta, theta) - (b * eta - 0.5 * w * eta**2).sum() + evidence


@pytest.mark.parametrize("name", thinned(CASES))
def test_the_joint_gradient_is_that_of_reverse_mode(name, monkeypatch):
    case, rng = CASES[name], np.random.default_rng(4)
    if case.by_values:
        monkeypatch.setattr("pymc_rmhmc.model.forms.linear_blocks.MORE_OBSERVATIONS", 0.0)
    with pm.Model() as model:
        case.build()
    joint = joint_of(model)
    joint.bind({})
    (block,), d = joint.blocks, joint.theta.size
    assert set(joint.theta.names) == set(case.priors)
    assert (block.design_shape is not None) == (case.by_values or "effects" in block.value_names)
    n = block.n_sites
    fitted = GaussianSites(rng.standard_normal(n), rng.exponential(1.0, n))
    sites = moving_sites(block, np.full(d, FITTED_NOISE), fitted, rng.standard_normal(n), rng.exponential(0.3, n))
    chart = MarginalChart.linear(np.zeros(d), np.eye(d))
    if case.bent:
        lower = np.eye(d) + 0.2 * np.tri(d, k=-1)
        chart = MarginalChart(*rng.normal(0.0, 0.3, (1, d)), lower, *rng.uniform(0.5, 1.5, (4, d)))
    target = JointTarget(joint, [sites], chart)
    position = pt.dvector("position", shape=(target.size,))
    density = plain_density(case, target, position, fitted, sites.tilt)
    reverse = pytensor.function([position], [density, pytensor.grad(density, position)], mode=PYTHON_MODE)
    values = []
    for _ in range(4):
        at = rng.standard_normal(target.size)
        at[:d] = 0.5 * at[:d] - 0.5
        total, exact = reverse(at)
        point = target.at(at)
        np.testing.assert_allclose(point.gradient, exact, rtol=1e-8, atol=1e-8)
        values.append(point.log_density - total)
    np.testing.assert_allclose(values, values[0], rtol=0.0, atol=1e-9)
