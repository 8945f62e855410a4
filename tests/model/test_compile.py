"""The compiled form of a model against the model itself, for every form in the table."""

from __future__ import annotations

import copy
from functools import reduce

import cloudpickle
import mpmath as mp
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from scipy.linalg import solve_triangular
from scipy.stats import multivariate_normal, norm

from pymc_rmhmc import RMHMC
from pymc_rmhmc.errors import DataError, Failure
from pymc_rmhmc.interfaces.stated import StatedKronecker
from pymc_rmhmc.model import compile_model, read_structure
from pymc_rmhmc.model.likelihoods.likelihood_kernel import (
    FallbackKernel,
    compile_outputs,
    differentiate,
    select_outputs,
)
from tests.model.conftest import (
    BINARY,
    COUNTS,
    INDEX,
    INDEX_COUNTS,
    MODELS,
    N,
    X,
    covariance,
    exact_log_density,
    gp_prior,
)
from tests.unit.test_general_chart import by_python

# Scan, in the prior of an LKJ factor, asks PyTensor for a BLAS of its own.
pytestmark = [
    pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS"),
    pytest.mark.usefixtures("pymc_by_python"),
]

FREE_OF_HESSIAN = {
    "heteroscedastic_noise",
    "unregistered",
    "unregistered_two_outputs",
    "unregistered_matrix",
    "unregistered_censored",
    "unregistered_sum",
    "unregistered_coefficients",
    "unregistered_design",
}


def random_point(model: pm.Model, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The initial point, moved; imputed counts keep their integers."""
    point = model.initial_point()
    for name, value in point.items():
        if np.issubdtype(value.dtype, np.floating):
            point[name] = value + 0.7 * rng.standard_normal(value.shape)
    return point


def sites(block, prior, point) -> np.ndarray:
    """η of a block, from its definition."""
    eta = prior.shift.copy()
    for (name, part), vector, design in zip(block.slices, prior.vectors, prior.design, strict=True):
        x = np.ravel(point[name])[part]
        if not vector.is_variable:
            x = factor(vector) @ x
        eta = eta + (x if design is None else design @ x)
    return eta


def factor(vector) -> np.ndarray:
    """The lower factor: the upper triangle of one that is given is not read."""
    if isinstance(vector, StatedKronecker):
        return reduce(np.kron, [np.linalg.cholesky(each) for each in vector.covariances])
    return np.tril(vector.factor) if vector.covariance is None else np.linalg.cholesky(vector.covariance)


def log_prior(block, prior, point) -> float:
    """The log density of the block's variables, dense."""
    total = 0.0
    for (name, part), vector in zip(block.slices, prior.vectors, strict=True):
        x = np.ravel(point[name])[part]
        if vector.is_variable:
            lower = factor(vector)
            total += multivariate_normal(vector.location, lower @ lower.T, allow_singular=True).logpdf(x)
        else:
            total += -0.5 * x @ x - 0.5 * x.size * np.log(2 * np.pi)
    return total


def log_density(compiled, point) -> float:
    """The whole model, from its compiled parts."""
    total = compiled.rest_log_density(point)
    for block in compiled.blocks:
        prior = block.prior(point)
        total += log_prior(block, prior, point) + block.likelihood(point).log_density(sites(block, prior, point))
    return total


# A scan is compiled for it.
FOR_LONG = {"mvnormal_lkj"}
# What nobody has registered is compiled from its graph, which takes seconds for each function: two of them are, and of
# the others the graph is asked.
COMPILED = {"unregistered", "unregistered_coefficients"}


def evaluated_by_python(kernel, output, kind=None):
    """As `FallbackKernel._function`, without a compiler."""
    if output not in kernel._functions:
        eta, inputs, log_density = kernel._graph
        outputs = select_outputs(differentiate(log_density, eta), output, "softabs_curvature")
        kernel._functions[output] = by_python((eta, *inputs), outputs)
    return kernel._functions[output]


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.slow if name in FOR_LONG else ()) for name in MODELS],
)
def case(request, pymc_by_python):
    """A model of the table, compiled once for all tests of this file."""
    model = MODELS[request.param]()
    with pytest.MonkeyPatch.context() as patch:
        if request.param not in COMPILED:
            patch.setattr(FallbackKernel, "_function", evaluated_by_python)
        yield request.param, model, compile_model(read_structure(model))


def test_log_density_is_the_models(case):
    name, model, compiled = case
    reference = exact_log_density(model)
    rng = np.random.default_rng(1)
    # PyMC's invprobit divides by a single-precision square root of 2.
    atol = 1e-6 if name == "whitened" else 1e-8
    for _ in range(3):
        point = random_point(model, rng)
        np.testing.assert_allclose(log_density(compiled, point), reference(point), rtol=1e-9, atol=atol)


def test_every_latent_value_belongs_to_one_component(case):
    _, model, compiled = case
    point = model.initial_point()
    counts = {name: np.zeros(np.size(value), dtype=int) for name, value in point.items()}
    for block in compiled.blocks:
        assert block.n_latent == sum(counts[name][part].size for name, part in block.slices)
        for name, part in block.slices:
            counts[name][part] += 1
    touched = {name for block in compiled.blocks for name, _ in block.slices}
    assert touched
    assert all((counts[name] == 1).all() for name in touched)


def test_slopes_match_finite_differences(case):
    _, model, compiled = case
    point = random_point(model, np.random.default_rng(2))
    for block in compiled.blocks:
        likelihood = block.likelihood(point)
        eta = sites(block, block.prior(point), point)
        value, slope = likelihood.gradient(eta)
        assert value == pytest.approx(likelihood.log_density(eta), abs=1e-10)
        assert slope.shape == (block.n_sites,)
        np.testing.assert_allclose(slope, differences(likelihood.log_density, eta), rtol=1e-5, atol=1e-6)


def test_curvature_matches_finite_differences(case):
    name, model, compiled = case
    point = random_point(model, np.random.default_rng(3))
    for block in compiled.blocks:
        likelihood = block.likelihood(point)
        eta = sites(block, block.prior(point), point)
        assert likelihood.kinds
        assert ("hessian" in likelihood.kinds) == (name not in FREE_OF_HESSIAN)
        for kind in likelihood.kinds:
            value, slope, weight, log_slope = likelihood.curvature(eta, kind)
            assert value == pytest.approx(likelihood.log_density(eta), abs=1e-10)
            np.testing.assert_allclose(slope, likelihood.gradient(eta)[1], rtol=1e-12)
            np.testing.assert_allclose(weight, likelihood.weight(eta, kind), rtol=1e-12)
            step = 1e-6
            ahead, behind = likelihood.weight(eta + step, kind), likelihood.weight(eta - step, kind)
            np.testing.assert_allclose(weight * log_slope, (ahead - behind) / (2 * step), rtol=1e-4, atol=1e-6)
            if kind == "hessian":
                up, down = likelihood.gradient(eta + step)[1], likelihood.gradient(eta - step)[1]
                np.testing.assert_allclose(weight, (down - up) / (2 * step), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda c: cloudpickle.loads(cloudpickle.dumps(c))])
def test_copies_give_the_same(case, copied):
    _, model, compiled = case
    point = random_point(model, np.random.default_rng(4))
    assert log_density(copied(compiled), point) == pytest.approx(log_density(compiled, point), abs=1e-12)


def test_prior_inputs_are_what_the_prior_depends_on(case):
    _, model, compiled = case
    rng = np.random.default_rng(5)
    point = random_point(model, rng)
    for block in compiled.blocks:
        own = {name for name, _ in block.slices}
        assert not own & set(block.prior_inputs)
        for name in set(point) - set(block.prior_inputs) - own:
            if np.issubdtype(point[name].dtype, np.floating):
                moved = point | {name: point[name] + 0.5}
                np.testing.assert_array_equal(
                    sites(block, block.prior(moved), point), sites(block, block.prior(point), point)
                )


def differences(function, at: np.ndarray, step: float = 1e-6) -> np.ndarray:
    return np.array([(function(at + step * e) - function(at - step * e)) / (2 * step) for e in np.eye(at.size)])


def only_block(make):
    model = make() if callable(make) else make
    compiled = compile_model(read_structure(model))
    assert len(compiled.blocks) == 1
    return model, compiled.blocks[0]


def test_a_gp_seen_at_every_input_needs_no_predictor():
    for name in ("centred", "whitened", "dims", "mvnormal_chol", "deterministic_link", "gathered", "repeated_rows"):
        model, block = only_block(MODELS[name])
        prior = block.prior(model.initial_point())
        (vector,) = prior.vectors
        assert prior.design == [None], name
        assert vector.is_variable == (name not in ("whitened", "dims", "gathered"))
        assert block.n_sites == N


def test_a_given_factor_is_passed_on_and_not_multiplied_out():
    model, block = only_block(MODELS["mvnormal_chol"])
    (vector,) = block.prior(model.initial_point()).vectors
    assert vector.covariance is None
    np.testing.assert_array_equal(vector.factor, np.linalg.cholesky(covariance()))


def test_a_precision_gives_its_covariance():
    model, block = only_block(MODELS["mvnormal_tau"])
    (vector,) = block.prior(model.initial_point()).vectors
    lower = factor(vector)
    np.testing.assert_allclose(lower @ lower.T, covariance(), rtol=1e-8)
    np.testing.assert_array_equal(lower, np.tril(lower))


def random_walk_precision(n: int = 30) -> np.ndarray:
    """A second-order random walk with a small ridge: condition number 1e12."""
    differences = np.diff(np.eye(n), 2, axis=0)
    return 1e8 * differences.T @ differences + 1e-3 * np.eye(n)


def test_an_ill_conditioned_precision_keeps_its_digits():
    tau = random_walk_precision()
    with pm.Model() as model:
        f = pm.MvNormal("f", np.zeros(30), tau=tau)
        pm.Poisson("y", mu=pm.math.exp(f), observed=np.arange(30) % 4)
    (block,) = compile_model(read_structure(model)).blocks
    (vector,) = block.prior(model.initial_point()).vectors
    with mp.workdps(50):
        log_det = float(mp.log(mp.det(mp.matrix(tau.tolist()))))
    # PyMC's own inverse of it is not positive definite.
    assert -2.0 * np.log(vector.factor.diagonal()).sum() == pytest.approx(log_det, abs=1e-4)
    x = np.random.default_rng(0).standard_normal(30)
    whitened = solve_triangular(vector.factor, x, lower=True)
    assert whitened @ whitened == pytest.approx(x @ tau @ x, rel=1e-9)


def test_tau_and_cov_state_the_same_prior():
    (by_cov,), (by_tau,) = (
        only_block(MODELS[name])[1].prior(MODELS[name]().initial_point()).vectors
        for name in ("mvnormal_cov", "mvnormal_tau")
    )
    np.testing.assert_allclose(factor(by_tau), factor(by_cov), rtol=1e-10, atol=1e-12)


def indefinite_beyond_one():
    """A precision that is positive definite for a < 1 alone, a being another step's."""
    with pm.Model() as model:
        a = pm.Normal("a", 0.0)
        f = pm.MvNormal("f", np.zeros(N), tau=np.linalg.inv(covariance()) * (1.0 - a))
        pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)
    return model


@pytest.mark.parametrize(
    ("a", "cause"),
    [(2.0, Failure.NOT_POSITIVE_DEFINITE), (1.0, Failure.NOT_POSITIVE_DEFINITE), (np.inf, Failure.NON_FINITE)],
)
def test_a_precision_that_another_step_spoils_is_a_counted_rejection(a, cause):
    model = indefinite_beyond_one()
    with model:
        step = RMHMC(vars=["f"])
    step.setup_chain(np.random.default_rng(0), 0, 10)
    point, (statistics,) = step.step(model.initial_point())
    assert statistics["failure"] == Failure.NONE
    spoilt, (statistics,) = step.step(point | {"a": np.array(a)})
    assert statistics["failure"] == cause
    np.testing.assert_array_equal(spoilt["f"], point["f"])
    _, (statistics,) = step.step(point)
    assert statistics["failure"] == Failure.NONE


def test_unobserved_sites_have_no_likelihood():
    model, block = only_block(MODELS["gathered"])
    likelihood = block.likelihood(model.initial_point())
    unseen = np.setdiff1d(np.arange(N), INDEX)
    assert unseen.size
    for kind in likelihood.kinds:
        _, slope, weight, log_slope = likelihood.curvature(np.linspace(-1, 1, N), kind)
        assert not slope[unseen].any()
        assert not weight[unseen].any()
        assert not log_slope[unseen].any()


def test_rows_that_nothing_connects_are_blocks_of_their_own():
    for name in ("two_outputs_whitened", "two_outputs_centred", "mvnormal_rows", "two_outputs_transposed"):
        compiled = compile_model(read_structure(MODELS[name]()))
        assert [block.n_sites for block in compiled.blocks] == [N, N], name
    coupled = compile_model(read_structure(MODELS["two_outputs_coupled"]()))
    assert [block.n_latent for block in coupled.blocks] == [2 * N]


def test_a_latent_without_likelihood_is_its_prior():
    with pm.Model() as model:
        gp_prior("f", reparameterize=False)
        pm.Poisson("y", mu=2.0, observed=3)
    compiled = compile_model(read_structure(model, ["f"]))
    point = random_point(model, np.random.default_rng(0))
    assert log_density(compiled, point) == pytest.approx(float(exact_log_density(model)(point)), abs=1e-8)
    likelihood = compiled.blocks[0].likelihood(point)
    assert likelihood.gradient(np.ones(N))[0] == 0.0
    assert not likelihood.gradient(np.ones(N))[1].any()


def test_a_vector_that_two_factors_read_is_independent_normals():
    with pm.Model() as model:
        v = pm.Normal("v", shape=N)
        one, other = (pt.linalg.cholesky(pt.as_tensor(s * covariance())) for s in (1.0, 2.0))
        pm.Poisson("y", mu=pm.math.exp(one @ v), observed=COUNTS)
        pm.Bernoulli("z", logit_p=other @ v, observed=BINARY)
    compiled = compile_model(read_structure(model, ["v"]))
    (block,) = compiled.blocks
    assert not block.prior_inputs
    assert not block.likelihood_inputs
    point = random_point(model, np.random.default_rng(1))
    np.testing.assert_allclose(log_density(compiled, point), exact_log_density(model)(point), atol=1e-8)


def test_an_unregistered_parameter_out_of_its_range_is_no_exception():
    with pm.Model() as model:
        f = pm.MvNormal("f", np.full(N, 2.0), np.eye(N))
        pm.Gamma("y", alpha=f, beta=1.0, observed=COUNTS + 1.0)
    (block,) = compile_model(read_structure(model)).blocks
    likelihood = block.likelihood(model.initial_point())
    assert np.isfinite(likelihood.log_density(np.full(N, 2.0)))
    assert likelihood.log_density(np.full(N, -2.0)) == -np.inf


def test_named_normal_coefficients_behind_a_design_matrix():
    design = np.random.default_rng(0).standard_normal((N, 3))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.5, np.array([1.0, 2.0, 0.3]), shape=3)
        pm.Bernoulli("y", logit_p=0.2 + design @ beta, observed=BINARY)
    compiled = compile_model(read_structure(model, ["beta"]))
    (block,) = compiled.blocks
    assert (block.n_sites, block.n_latent) == (N, 3)
    point = random_point(model, np.random.default_rng(1))
    np.testing.assert_allclose(log_density(compiled, point), exact_log_density(model)(point), atol=1e-8)
    np.testing.assert_allclose(block.prior(point).design[0], design, atol=1e-12)


def test_one_gp_of_a_sum_is_conditioned_on_the_other():
    model = MODELS["additive"]()
    compiled = compile_model(read_structure(model, ["g"]))
    assert [name for block in compiled.blocks for name, _ in block.slices] == ["g"]
    point = random_point(model, np.random.default_rng(1))
    np.testing.assert_allclose(log_density(compiled, point), exact_log_density(model)(point), atol=1e-8)


def data_model():
    with pm.Model() as model:
        x, counts = pm.Data("x", X), pm.Data("counts", COUNTS)
        where = pm.Data("where", np.arange(N))
        gp = pm.gp.Latent(cov_func=1.7 * pm.gp.cov.Matern52(1, 0.3))
        f = gp.prior("f", x, reparameterize=False)
        pm.Poisson("y", mu=pm.math.exp(f[where]), observed=counts)
    return model


def test_set_data_is_seen():
    model = data_model()
    compiled = compile_model(read_structure(model))
    point = random_point(model, np.random.default_rng(1))
    before = log_density(compiled, point)
    for change in ({"counts": COUNTS[::-1].copy()}, {"x": X * 2.0}, {"where": np.arange(N)[::-1].copy()}):
        pm.set_data(change, model=model)
        now = log_density(compiled, point)
        assert now != before
        np.testing.assert_allclose(now, exact_log_density(model)(point), atol=1e-8)
        before = now


def test_shapes_follow_the_data():
    model = data_model()
    (block,) = compile_model(read_structure(model)).blocks
    before = block.shapes()
    assert before == {"x": (N, 1), "counts": (N,), "where": (N,)}
    pm.set_data({"counts": INDEX_COUNTS, "where": INDEX}, model=model)
    assert block.shapes() == {"x": (N, 1), "counts": INDEX.shape, "where": INDEX.shape}


def test_data_that_became_useless_is_an_error():
    model = data_model()
    (block,) = compile_model(read_structure(model)).blocks
    pm.set_data({"counts": -COUNTS}, model=model)
    with pytest.raises(DataError, match="y"):
        block.likelihood(model.initial_point())


def test_a_free_index_is_read_from_the_point():
    with pm.Model() as model:
        z = pm.Categorical("z", p=np.ones(N) / N, shape=INDEX.size)
        pm.Poisson("y", mu=pm.math.exp(gp_prior("f", reparameterize=False)[z]), observed=INDEX_COUNTS)
    compiled = compile_model(read_structure(model))
    reference = exact_log_density(model)
    for index in (INDEX, INDEX[::-1]):
        point = random_point(model, np.random.default_rng(1)) | {"z": index}
        np.testing.assert_allclose(log_density(compiled, point), reference(point), atol=1e-8)
    assert "z" in compiled.blocks[0].likelihood_inputs


def test_a_free_variable_that_depends_on_the_latent_is_its_likelihood():
    with pm.Model() as model:
        z = pm.Normal("z", gp_prior("f", reparameterize=False), 0.5)
        pm.Poisson("y", mu=pm.math.exp(z), observed=COUNTS)
    compiled = compile_model(read_structure(model, ["f"]))
    point = random_point(model, np.random.default_rng(1))
    np.testing.assert_allclose(log_density(compiled, point), exact_log_density(model)(point), atol=1e-8)
    assert compiled.blocks[0].likelihood_inputs == ("z",)


def test_registered_and_unregistered_likelihoods_of_one_latent():
    with pm.Model() as model:
        f = gp_prior("f", reparameterize=False)
        pm.Logistic("y", mu=2.0 * f + 1.0, s=1.3, observed=COUNTS / 2.0)
        pm.Poisson("z", mu=pm.math.exp(f), observed=COUNTS)
    (block,) = compile_model(read_structure(model)).blocks
    point = random_point(model, np.random.default_rng(1))
    likelihood = block.likelihood(point)
    assert likelihood.kinds == ("softabs_curvature",)
    assert likelihood.log_density(point["f"]) == pytest.approx(
        float(model.compile_logp(vars=[model["y"], model["z"]])(point)), abs=1e-8
    )
    assert (likelihood.curvature(point["f"], "softabs_curvature")[2] > np.exp(point["f"])).all()


def test_shared_data_of_an_unregistered_likelihood():
    with pm.Model() as model:
        y, where = pm.Data("counts", INDEX_COUNTS / 2.0), pm.Data("where", INDEX)
        s = pm.HalfNormal("s")
        pm.Logistic("y", mu=gp_prior("f", reparameterize=False)[where], s=s, observed=y)
    compiled = compile_model(read_structure(model))
    point = random_point(model, np.random.default_rng(1))
    for counts in (INDEX_COUNTS / 2.0, INDEX_COUNTS * 1.5):
        pm.set_data({"counts": counts}, model=model)
        np.testing.assert_allclose(log_density(compiled, point), exact_log_density(model)(point), atol=1e-8)
    assert compiled.blocks[0].shapes() == {"counts": INDEX.shape, "where": INDEX.shape}


def test_the_basis_coefficients_of_an_hsgp():
    with pm.Model() as model:
        ls = pm.Gamma("ls", 2.0, 4.0)
        hsgp = pm.gp.HSGP(m=[5], c=1.5, cov_func=pm.gp.cov.ExpQuad(1, ls))
        pm.Poisson("y", mu=pm.math.exp(hsgp.prior("f", X)), observed=COUNTS)
    compiled = compile_model(read_structure(model, ["f_hsgp_coeffs"]))
    point = random_point(model, np.random.default_rng(1))
    np.testing.assert_allclose(log_density(compiled, point), exact_log_density(model)(point), atol=1e-8)
    assert compiled.blocks[0].prior_inputs == ("ls_log__",)


def test_a_parameter_of_the_likelihood_alone_does_not_change_the_prior():
    with pm.Model() as model:
        s, alpha = pm.HalfNormal("s"), pm.Exponential("alpha", 1.0)
        pm.NegativeBinomial("y", mu=pm.math.exp(s * gp_prior("f")), alpha=alpha, observed=COUNTS)
    (block,) = compile_model(read_structure(model)).blocks
    assert block.prior_inputs == ("s_log__",)
    assert set(block.likelihood_inputs) == {"s_log__", "alpha_log__"}


def test_what_travels_to_workers_is_small():
    x = np.linspace(0.0, 1.0, 200)[:, None]
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, 0.2))
        pm.Poisson("y", mu=pm.math.exp(gp.prior("f", x)), observed=np.arange(200) // 40)
    compiled = compile_model(read_structure(model))
    # Less than one covariance matrix, which workers compute for themselves.
    assert len(cloudpickle.dumps(compiled)) < 200 * 200 * 8


def test_random_states_are_no_arguments_of_what_is_compiled():
    """The density of a distribution that is made of others holds their draws, which PyMC takes for shapes alone."""
    a, seen = pt.dscalar("a"), np.array([-1.0, 0.3, 1.0])
    inner = pm.Censored.dist(pm.Normal.dist(a, 0.8, shape=3), lower=-1.0, upper=1.0)
    (found,) = compile_outputs([a], [pm.logp(inner, seen).sum()], exact=True)(np.array(0.2))
    normal = norm(0.2, 0.8)  # of whose tails PyMC has eight digits
    assert float(found) == pytest.approx(normal.logcdf(-1.0) + normal.logpdf(0.3) + normal.logsf(1.0), rel=1e-7)


def test_a_graph_is_compiled_once_and_others_are_not_taken_for_it():
    def made(power, *, swapped=False, exact=True):
        a, b = pt.dvector("a"), pt.dvector("b")
        return compile_outputs([b, a] if swapped else [a, b], [(a**power * b).sum()], exact=exact)

    first = made(2)
    assert made(2) is first
    others = [made(3), made(2, swapped=True)]
    assert [float(f(np.array([2.0]), np.array([3.0]))[0]) for f in (first, *others)] == [12.0, 24.0, 18.0]
    with pytensor.config.change_flags(numba__fastmath=True):
        assert made(2, exact=False) is not first
