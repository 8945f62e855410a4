"""Small models, one for each form that a latent Gaussian block can take."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from tests.unwritten import Unwritten

N = 7
X = np.linspace(0.0, 1.0, N)[:, None]
COUNTS = np.array([0, 2, 1, 4, 3, 0, 1])
BINARY = np.array([0, 1, 1, 0, 1, 0, 1])
INDEX = np.array([2, 0, 2, 5, 5, 5, 3, 1])
INDEX_COUNTS = np.array([1, 0, 2, 3, 1, 2, 0, 4])

MODELS: dict[str, Callable[[], pm.Model]] = {}


def exact_log_density(model: pm.Model, **options):
    """PyMC's own log density, evaluated without a compiler: a few evaluations take less than it would.

    Compound operations are compiled all the same, without a BLAS, of which PyTensor warns.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PyTensor could not link to a BLAS")
        return Unwritten(model.compile_logp, **options)


@pytest.fixture
def without_a_compiler(without_a_compiler, monkeypatch):
    """Nor are they rewritten here, where they are evaluated a few times, and no chain goes on by their last digits."""

    def compile_outputs(inputs, outputs, *, exact=False):
        return Unwritten(pytensor.function, inputs, outputs, trust_input=True, on_unused_input="ignore")

    monkeypatch.setattr("pymc_rmhmc.model.hyperparameters.compile_outputs", compile_outputs)


def form(build: Callable[[], None]) -> Callable[[], pm.Model]:
    """Add a model form to the table; the function is called within a model."""

    def make() -> pm.Model:
        with pm.Model() as model:
            build()
        return model

    MODELS[build.__name__] = make
    return make


def gp_prior(name: str, ls: object = 0.3, mean: float = 0.0, **kwargs: object) -> pt.TensorVariable:
    """A latent GP with a Matérn kernel and a constant mean."""
    gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(mean), cov_func=1.7 * pm.gp.cov.Matern52(1, ls))
    return gp.prior(name, X, **kwargs)


def covariance() -> np.ndarray:
    """A fixed, well-conditioned covariance (N, N)."""
    return 1.3 * np.exp(-((X - X.T) ** 2) / 0.1) + 0.2 * np.eye(N)


@form
def centred() -> None:
    pm.Bernoulli("y", logit_p=gp_prior("f", mean=0.4, reparameterize=False), observed=BINARY)


@form
def whitened() -> None:
    pm.Bernoulli("y", p=pm.math.invprobit(gp_prior("f", mean=0.4)), observed=BINARY)


@form
def whitened_free_lengthscale() -> None:
    ls = pm.Gamma("ls", 2.0, 4.0)
    pm.Poisson("y", mu=pm.math.exp(gp_prior("f", ls=ls, mean=0.4)), observed=COUNTS)


@form
def centred_free_lengthscale() -> None:
    ls = pm.Gamma("ls", 2.0, 4.0)
    pm.Poisson("y", mu=pm.math.exp(gp_prior("f", ls=ls, reparameterize=False)), observed=COUNTS)


@form
def mvnormal_cov() -> None:
    f = pm.MvNormal("f", mu=np.linspace(-1, 1, N), cov=covariance())
    pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)


@form
def mvnormal_chol() -> None:
    f = pm.MvNormal("f", mu=0.2, chol=np.linalg.cholesky(covariance()), shape=N)
    pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)


@form
def mvnormal_upper_chol() -> None:
    f = pm.MvNormal("f", mu=0.2, chol=np.linalg.cholesky(covariance()).T, lower=False, shape=N)
    pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)


@form
def mvnormal_tau() -> None:
    f = pm.MvNormal("f", mu=np.zeros(N), tau=np.linalg.inv(covariance()))
    pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)


@form
def mvnormal_rows() -> None:
    f = pm.MvNormal("f", mu=np.zeros((2, N)), cov=covariance())
    pm.Poisson("y", mu=pm.math.exp(f), observed=np.stack([COUNTS, COUNTS[::-1]]))


@form
def mvnormal_tau_rows() -> None:
    scale = pm.HalfNormal("scale")
    f = pm.MvNormal("f", mu=np.zeros((2, N)), tau=scale * np.linalg.inv(covariance()))
    pm.Poisson("y", mu=pm.math.exp(f), observed=np.stack([COUNTS, COUNTS[::-1]]))


@form
def mvnormal_matrix_a_row() -> None:
    f = pm.MvNormal("f", mu=np.zeros((2, N)), cov=np.stack([covariance(), 2.0 * covariance()]))
    g = pm.MvNormal("g", mu=np.zeros((2, 1, N)), tau=np.linalg.inv([[covariance()], [3.0 * covariance()]]))
    pm.Poisson("y", mu=pm.math.exp(f), observed=np.stack([COUNTS, COUNTS[::-1]]))
    pm.Bernoulli("z", logit_p=g[:, 0, :], observed=np.stack([BINARY, BINARY[::-1]]))


@form
def mvnormal_square_root() -> None:
    root = pt.as_tensor(np.linalg.cholesky(covariance())[:, ::-1] + 0.0)
    f = pm.MvNormal("f", mu=np.zeros(N), cov=root @ root.T)
    pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)


@form
def mvnormal_negative_chol() -> None:
    signs = np.where(np.arange(N) % 2, -1.0, 1.0)
    f = pm.MvNormal("f", mu=np.zeros(N), chol=signs * np.linalg.cholesky(covariance()))
    pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)


@form
def mvnormal_lkj() -> None:
    chol, _, _ = pm.LKJCholeskyCov("L", n=3, eta=2.0, sd_dist=pm.Exponential.dist(1.0))
    f = pm.MvNormal("f", mu=np.zeros(3), chol=chol)
    pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS[:3])


@form
def dims() -> None:
    pm.modelcontext(None).add_coord("place", np.arange(N))
    f = gp_prior("f", mean=-0.2, dims="place")
    pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS, dims="place")


@form
def on_a_grid() -> None:
    gp = pm.gp.LatentKron(mean_func=pm.gp.mean.Constant(0.3), cov_funcs=[2.0 * pm.gp.cov.ExpQuad(1, 0.4)] * 2)
    f = gp.prior("f", Xs=[X[:3], X[:2]], jitter=1e-3)
    pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS[:6])


@form
def averages_over_a_grid() -> None:
    kernels = [pm.gp.cov.Matern52(1, pm.Gamma("ls", 2.0, 4.0)), pm.gp.cov.Matern32(1, 0.5), pm.gp.cov.ExpQuad(1, 0.3)]
    f = pm.gp.LatentKron(cov_funcs=kernels).prior("f", Xs=[X[:2], X[:3], X[2:4]])
    pm.Poisson("y", mu=pm.math.exp(np.random.default_rng(0).dirichlet(np.ones(12), N) @ f), observed=COUNTS)


@form
def two_outputs_whitened() -> None:
    f = gp_prior("f", mean=0.3, n_outputs=2)
    pm.Poisson("y", mu=pm.math.exp(f), observed=np.stack([COUNTS, COUNTS[::-1]]))


@form
def two_outputs_centred() -> None:
    f = gp_prior("f", mean=0.3, n_outputs=2, reparameterize=False)
    pm.Poisson("y", mu=pm.math.exp(f), observed=np.stack([COUNTS, COUNTS[::-1]]))


@form
def two_outputs_two_likelihoods() -> None:
    f = gp_prior("f", n_outputs=2)
    pm.Poisson("y", mu=pm.math.exp(f[0]), observed=COUNTS)
    pm.Bernoulli("z", logit_p=f[1], observed=BINARY)


@form
def two_outputs_coupled() -> None:
    f = gp_prior("f", n_outputs=2)
    pm.Poisson("y", mu=pm.math.exp(f[0] + 0.5 * f[1]), observed=COUNTS)


@form
def two_outputs_transposed() -> None:
    f = gp_prior("f", n_outputs=2, reparameterize=False)
    pm.Poisson("y", mu=pm.math.exp(f.T.flatten()), observed=np.stack([COUNTS, COUNTS[::-1]]).T.ravel())


@form
def two_gps() -> None:
    pm.Poisson("y", mu=pm.math.exp(gp_prior("f")), observed=COUNTS)
    pm.Bernoulli("z", logit_p=gp_prior("g", ls=0.1, reparameterize=False), observed=BINARY)


@form
def shared_latent() -> None:
    f = gp_prior("f", reparameterize=False)
    pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)
    pm.Bernoulli("z", logit_p=f[INDEX], observed=INDEX_COUNTS > 1)


@form
def gathered() -> None:
    pm.Poisson("y", mu=pm.math.exp(0.3 + gp_prior("f", mean=0.1)[INDEX]), observed=INDEX_COUNTS)


@form
def gathered_first() -> None:
    pm.Poisson("y", mu=pm.math.exp(gp_prior("f", reparameterize=False)[0]), observed=3)


@form
def gathered_slice() -> None:
    f = gp_prior("f", reparameterize=False)
    pm.Poisson("y", mu=pm.math.exp(f[1:7:2]), observed=COUNTS[:3])


@form
def reshaped() -> None:
    f = pm.MvNormal("f", mu=np.zeros(6), cov=covariance()[:6, :6])
    pm.Poisson("y", mu=pm.math.exp(f.reshape((2, 3)).T), observed=COUNTS[:6].reshape(3, 2))


@form
def repeated_rows() -> None:
    f = gp_prior("f", reparameterize=False)
    pm.Poisson("y", mu=pm.math.exp(f), observed=np.stack([COUNTS, COUNTS[::-1], COUNTS]))


@form
def additive() -> None:
    f, g = gp_prior("f", mean=0.2), gp_prior("g", ls=0.1, reparameterize=False)
    pm.Poisson("y", mu=pm.math.exp(f + g), observed=COUNTS)


@form
def additive_gathered() -> None:
    f, g = gp_prior("f"), gp_prior("g", ls=0.1, reparameterize=False)
    pm.Poisson("y", mu=pm.math.exp(f[INDEX] + g[INDEX[::-1]]), observed=INDEX_COUNTS)


@form
def additive_and_alone() -> None:
    f, g = gp_prior("f"), gp_prior("g", ls=0.1)
    pm.Poisson("y", mu=pm.math.exp(f + g), observed=COUNTS)
    pm.Bernoulli("z", logit_p=g, observed=BINARY)


@form
def intercept_and_scale() -> None:
    a, s = pm.Normal("a", 0.0, 1.0), pm.HalfNormal("s", 1.0)
    pm.Poisson("y", mu=pm.math.exp(a + s * gp_prior("f")), observed=COUNTS)


@form
def exposure() -> None:
    exposures = pm.Data("exposures", np.linspace(0.5, 3.0, N))
    pm.Poisson("y", mu=exposures * pm.math.exp(gp_prior("f", reparameterize=False)), observed=COUNTS)


@form
def deterministic_link() -> None:
    f = gp_prior("f", reparameterize=False)
    p = pm.Deterministic("p", pm.math.sigmoid(f))
    pm.Bernoulli("y", p=p, observed=BINARY)


@form
def other_parameter() -> None:
    alpha = pm.Exponential("alpha", 1.0)
    pm.NegativeBinomial("y", mu=pm.math.exp(gp_prior("f")), alpha=alpha, observed=COUNTS)


@form
def heteroscedastic_noise() -> None:
    sigma = pm.HalfNormal("sigma", 1.0, shape=N)
    pm.StudentT("y", nu=4.0, mu=gp_prior("f", reparameterize=False), sigma=sigma, observed=COUNTS / 2.0)


@form
def missing_observations() -> None:
    observed = np.ma.masked_array(COUNTS.astype(float), mask=[0, 1, 0, 0, 1, 0, 0])
    with pytest.warns(Warning, match="missing values"):
        pm.Poisson("y", mu=pm.math.exp(gp_prior("f", mean=0.3, reparameterize=False)), observed=observed)


@form
def unregistered_two_outputs() -> None:
    f = gp_prior("f", n_outputs=2)
    pm.Logistic("y", mu=f[0], s=1.0, observed=COUNTS / 2.0)
    pm.Poisson("z", mu=pm.math.exp(f[1]), observed=COUNTS)


@form
def unregistered_matrix() -> None:
    f = gp_prior("f", n_outputs=2, reparameterize=False)
    pm.Logistic("y", mu=f.T, s=1.0, observed=np.stack([COUNTS, COUNTS[::-1]]).T / 2.0)


@form
def unregistered_censored() -> None:
    noise = pm.Normal.dist(gp_prior("f"), 1.0)
    pm.Censored("y", noise, lower=None, upper=2.0, observed=np.minimum(COUNTS, 2.0))


@form
def unregistered() -> None:
    f = gp_prior("f", reparameterize=False)
    pm.Logistic("y", mu=f[INDEX], s=0.7, observed=INDEX_COUNTS / 2.0)


@form
def unregistered_sum() -> None:
    f, g = gp_prior("f", mean=0.2), gp_prior("g", ls=0.1, reparameterize=False)
    pm.Logistic("y", mu=0.3 + f + g, s=0.7, observed=COUNTS / 2.0)


@form
def unregistered_coefficients() -> None:
    f = pm.Normal("f", 0.1, 0.8, shape=3)
    pm.Beta("y", mu=pm.math.invlogit(0.2 + f[np.arange(N) % 3]), nu=pm.HalfNormal("nu"), observed=X[:, 0] / 2.0 + 0.2)


@form
def unregistered_design() -> None:
    f = pm.Normal("f", 0.1, 0.8, shape=3)
    pm.Gumbel("y", mu=X ** np.arange(3) @ f, beta=1.5, observed=COUNTS / 2.0)
