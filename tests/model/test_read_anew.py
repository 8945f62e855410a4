"""Predictors and constants whose values mislead: what is 0 at the start, what is huge, what is no double."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.sparse
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.printing import Print
from pytensor.raise_op import CheckAndRaise
from scipy import sparse

from pymc_rmhmc.errors import UnsupportedLikelihoodError, UnsupportedModelError
from pymc_rmhmc.model import JointModel, read_structure, read_together
from pymc_rmhmc.model.compile import compile_model
from pymc_rmhmc.model.likelihoods import read_likelihood
from pymc_rmhmc.model.observed import observations
from tests.model.conftest import BINARY, COUNTS, INDEX, INDEX_COUNTS, N, covariance, gp_prior
from tests.model.joint_checks import assert_is_the_model, joint_of, parts_of, random_point
from tests.model.joint_forms import DESIGN, GROUP, poisson

pytestmark = pytest.mark.usefixtures("without_a_compiler")

HUGE = np.column_stack([np.ones(N), np.linspace(1.0e9, 3.0e9, N), np.linspace(-1.0, 1.0, N)])


def centred(name: str = "f") -> pt.TensorVariable:
    return gp_prior(name, reparameterize=False)


CURVED = {
    "a square below zero": lambda f, a: f + pt.maximum(-a, 0.0) * f**2,
    "a square above one": lambda f, a: f + pt.maximum(a - 1.0, 0.0) * f**2,
    "a square": lambda f, a: f + a * f**2,
    "an exponential": lambda f, a: f + a * pt.exp(f),
    "alone": lambda f, a: a * pt.tanh(f),
    "above ten": lambda f, a: f + pt.maximum(a - 10.0, 0.0) * f**2,
    "a bound far below": lambda f, a: pt.maximum(f, -300.0) + a,
    "an absolute value far away": lambda f, a: abs(300.0 + f) - a,
    "large units": lambda f, a: 1e3 * pt.tanh(f / 1e3) + a,
}


@pytest.mark.parametrize("curve", CURVED.values(), ids=CURVED)
def test_a_predictor_that_may_curve_is_not_read_as_affine(curve):
    """Whatever it is where the model begins and near there: what curves it may be multiplied by 0, or be far away."""
    with pm.Model() as model:
        a = pm.Normal("a", 0.0, 20.0)
        pm.Normal("y", curve(centred(), a), 0.2, observed=COUNTS / 3.0)
    point = model.initial_point()
    assert point["a"] == 0.0
    joint = joint_of(model)
    assert_is_the_model(joint, model)
    for value in (-30.0, 30.0):
        assert_log_density(joint, model, {"a": np.array(value), "f": 400.0 * np.sin(np.arange(N))})


HARMLESS = {
    "a guard": lambda f: pt.switch(pt.isnan(f), 0.0, f),
    "a print": lambda f: Print("eta", global_fn=lambda *_: None)(f),
    "a check of its values": lambda f: CheckAndRaise(ValueError, "large")(f, (abs(f) < 1e9).all()),
    "a smoothing": lambda f: pt.signal.convolve1d(f, np.array([0.2, 0.6, 0.2]), mode="same"),
    "a smoothing of a plane": lambda f: pt.signal.convolve2d(f[:, None], np.ones((3, 1)), mode="same")[:, 0],
    "repeats": lambda f: pt.repeat(f, np.ones(N, dtype=int)),
    "padding": lambda f: pt.pad(f, 1, mode="edge")[1:-1],
    "a constant choice": lambda f: pt.where(np.arange(N) < 3, f, -f),
    "single precision": lambda f: 2.0 * f.astype("float32").astype("float64"),
}


@pytest.mark.parametrize("read", HARMLESS.values(), ids=HARMLESS)
def test_what_does_not_curve_stays_a_registered_predictor(read):
    with pm.Model() as model:
        poisson(read(centred()))
    (block,) = read_structure(model).blocks
    (observation,) = block.observations
    assert observation.likelihood is not None
    assert observation.likelihood.name == "poisson_log"


def test_values_that_are_mixed_elsewhere_do_not_factorise():
    with pm.Model() as model:
        f, a = centred(), pm.Normal("a")
        pm.Normal("y", f + a * f[::-1] * f, 0.2, observed=COUNTS / 3.0)
    with pytest.raises(UnsupportedLikelihoodError, match="does not factorise over the latent values"):
        compile_model(read_structure(model, ["f"]), model.initial_point())


@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_rounded_numbers_are_no_link(kind):
    """A cast to another floating type changes no more than the last digits."""
    with pm.Model():
        rate = pm.math.exp(pm.Normal("f", shape=N))
        assert read_likelihood(pm.Poisson("y", rate.astype(kind), observed=COUNTS)) is None
        found = read_likelihood(pm.Poisson("z", rate.astype("float32"), observed=COUNTS))
    assert found is not None
    assert found[0].link == "log"


def test_what_is_not_finite_elsewhere_is_no_curve():
    """A root of a hyperparameter, which a random value may make negative."""
    with pm.Model() as model:
        poisson(pt.sqrt(pm.Normal("a", initval=2.0)) * DESIGN @ pm.Normal("b", shape=4))
    assert isinstance(read_together(model, None, model.initial_point())[1], JointModel)


def test_what_fails_elsewhere_is_no_curve():
    """An index that another value would put out of range."""
    with pm.Model() as model:
        t, u = pm.HalfNormal("t", initval=5.5), pm.Normal("u", shape=7)
        pm.Poisson("y", mu=pm.math.exp(u[pt.cast(pt.floor(t), "int64")]), observed=COUNTS)
    compile_model(read_structure(model, ["u"]), model.initial_point())


class FailsAbove(Op):
    """Add a number that it cannot take where it is large."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def make_node(self, f, a):
        return Apply(self, [f, a], [f.type()])

    def perform(self, node, inputs, outputs):
        f, a = inputs
        if abs(a) > 0.1:
            raise self.error("it is large")
        outputs[0][0] = f + a

    def pullback(self, inputs, outputs, bars):
        return [bars[0], bars[0].sum()]


def fails(error: type[Exception], likelihood) -> pm.Model:
    """A model whose predictor fails away from where it begins, in a way that does not say where it is affine."""
    with pm.Model() as model:
        likelihood(FailsAbove(error)(gp_prior("f", reparameterize=False), pm.Normal("a", initval=0.0)))
    return model


def curved_logistic(eta: pt.TensorVariable) -> None:
    pm.Logistic("y", pt.exp(eta), 1.0, observed=COUNTS / 3.0)


EVALUATED = {"a predictor": poisson, "a density": curved_logistic}


@pytest.mark.parametrize("likelihood", EVALUATED.values(), ids=EVALUATED)
@pytest.mark.parametrize("error", [TypeError, RuntimeError, MemoryError])
def test_an_error_that_no_value_explains_comes_through(error, likelihood):
    model = fails(error, likelihood)
    with pytest.raises(error, match="it is large"):
        compile_model(read_structure(model, ["f"]), model.initial_point())


@pytest.mark.parametrize("likelihood", EVALUATED.values(), ids=EVALUATED)
@pytest.mark.parametrize("error", [IndexError, ValueError, np.linalg.LinAlgError, AssertionError, OverflowError])
def test_a_value_that_an_operation_cannot_take_says_nothing_of_others(error, likelihood):
    model = fails(error, likelihood)
    compile_model(read_structure(model, ["f"]), model.initial_point())


def test_a_predictor_with_large_intermediate_results_is_read_once(monkeypatch):
    """Of a QR decomposition: ``Q R R⁻¹ u``, where only the level moves."""
    design = np.vander(np.linspace(0.0, 30.0, N), 5)
    _, r = np.linalg.qr(design)
    with pm.Model() as model:
        u = pm.Normal("u", shape=5)
        poisson(pm.Normal("a") + design @ pt.linalg.solve_triangular(r, u, lower=False))
    found = compile_model(read_structure(model, ["u"]), model.initial_point())
    reads = []
    monkeypatch.setattr(observations, "read_linear_form", lambda *args: reads.append(args))
    for seed in range(3):
        found.blocks[0].likelihood(random_point(model, seed))
    assert not reads


@pytest.mark.parametrize("columns", [[0, 1], [0, 1, 2], [1, 2]])
def test_a_covariate_of_a_billion_hides_no_other(columns):
    with pm.Model() as model:
        scales = np.array([2.0, 1e-9, 2.0])[columns]
        b = pm.Normal("b", 0.0, scales, shape=len(columns))
        pm.Normal("y", HUGE[:, columns] @ b, pm.HalfNormal("noise"), observed=COUNTS / 3.0)
    joint, point = joint_of(model), model.initial_point()
    (block,) = joint.blocks
    joint.bind(point)
    np.testing.assert_array_equal(block.prior(joint.theta.pack(point)).design, HUGE[:, columns])
    rng = np.random.default_rng(3)
    for seed in range(3):
        point = random_point(model, seed)
        point["b"] = scales * rng.standard_normal(len(columns))
        assert_log_density(joint, model, point)


def assert_log_density(joint: JointModel, model: pm.Model, point: dict[str, np.ndarray]) -> None:
    from tests.model.conftest import exact_log_density
    from tests.model.joint_checks import log_density

    joint.bind(point)
    assert log_density(joint, point) == pytest.approx(float(exact_log_density(model)(point)), rel=1e-9, abs=1e-7)


def test_a_curve_beside_a_covariate_of_a_billion_is_seen():
    with pm.Model() as model:
        f, b = centred(), pm.Normal("b", 0.0, [2.0, 1e-9, 2.0], shape=3)
        pm.Normal("y", pt.tanh(f) + HUGE @ b, pm.HalfNormal("noise"), observed=COUNTS / 3.0)
    with pytest.raises(UnsupportedModelError, match="non-linear map `tanh`"):
        compile_model(read_structure(model, ["f", "b"]), model.initial_point())


def test_a_small_column_that_data_move_is_read_anew_beside_a_large_one():
    with pm.Model() as model:
        data = pm.Data("data", HUGE.copy())
        b = pm.Normal("b", 0.0, [2.0, 1e-9, 2.0], shape=3)
        pm.Normal("y", data @ b, pm.HalfNormal("noise"), observed=COUNTS / 3.0)
    joint, point = joint_of(model), model.initial_point()
    moved = HUGE.copy()
    moved[:, 2] += 0.7
    model.set_data("data", moved)
    joint.bind(point)
    np.testing.assert_array_equal(joint.blocks[0].prior(joint.theta.pack(point)).design, moved)


def matrix(dtype: str) -> np.ndarray:
    return (np.eye(N) * 30 + (np.arange(N)[:, None] == np.arange(N) - 1) * 3).astype(dtype)


def whole_covariance(dtype: str) -> pt.TensorVariable:
    return pm.MvNormal("f", np.zeros(N), cov=matrix(dtype) + matrix(dtype).T)


def whole_factor(dtype: str) -> pt.TensorVariable:
    return pm.MvNormal("f", np.zeros(N), chol=matrix(dtype).T)


def whole_precision(dtype: str) -> pt.TensorVariable:
    return pm.MvNormal("f", np.arange(N), tau=matrix(dtype) + matrix(dtype).T)


def rotated(dtype: str) -> pt.TensorVariable:
    z = pm.Normal("z", shape=N)
    return pm.HalfNormal("scale") * (pt.linalg.cholesky(pt.as_tensor(matrix(dtype) + matrix(dtype).T)) @ z)


def rows(dtype: str) -> pt.TensorVariable:
    return pm.MvNormal("f", np.zeros(2), cov=np.array([[2, 1], [1, 3]], dtype=dtype), shape=(N, 2))[:, 1]


@pytest.mark.parametrize("dtype", ["int8", "int64", "float32"])
@pytest.mark.parametrize("prior", [whole_covariance, whole_factor, whole_precision, rotated, rows])
def test_matrices_of_whole_numbers_or_single_precision_are_covariances(prior, dtype):
    models = []
    for each in (dtype, "float64"):
        with pm.Model() as model:
            pm.Poisson("y", mu=pm.math.exp(0.1 * (prior(each) + pm.Normal("level"))), observed=COUNTS)
        models.append(model)
    joint = joint_of(models[0])
    for block in joint.blocks:
        joint.bind(models[0].initial_point())
        stated = block.prior(joint.theta.pack(models[0].initial_point()))
        arrays = [stated.mean, stated.shift, *(array for each in parts_of(stated)[2] for array in each)]
        assert {part.dtype for part in arrays if isinstance(part, np.ndarray)} == {np.dtype("float64")}
    assert_is_the_model(joint, models[1])


@pytest.mark.parametrize("sigma", [20, 30])
def test_whole_numbers_of_a_likelihood_do_not_overflow(sigma):
    """PyMC's own density takes their logarithms in single precision: it is asked with doubles."""
    models = []
    for kind in (int, np.float64):
        with pm.Model() as model:
            f = gp_prior("f", ls=pm.HalfNormal("ls"))
            pm.StudentT("y", nu=kind(4), mu=f + pm.Normal("level"), sigma=kind(sigma), observed=30.0 * COUNTS)
            pm.NegativeBinomial("z", mu=pm.math.exp(f), alpha=kind(100), observed=COUNTS)
            pm.Gamma("w", alpha=kind(20), beta=kind(20) / pm.math.exp(f), observed=COUNTS + 0.5)
        models.append(model)
    assert_is_the_model(joint_of(models[0]), models[1])


TWICE = np.vstack([BINARY, BINARY[::-1]])
MASKED = np.ma.masked_array(COUNTS, mask=[0, 1, 0, 0, 1, 0, 0])

BEHIND = {
    "probit of looked up values": ("bernoulli_probit", lambda f: pm.Bernoulli(
        "y", p=pm.math.invprobit(f)[INDEX], observed=(INDEX_COUNTS > 1).astype(int))),
    "probit of two observations each": ("bernoulli_probit", lambda f: pm.Bernoulli(
        "y", p=pm.math.invprobit(f), observed=TWICE)),
    "probit with trials by row": ("binomial_probit", lambda f: pm.Binomial(
        "y", n=np.array([[1], [2]]), p=pm.math.invprobit(f), observed=TWICE)),
    "number times exponential, missing": ("poisson_log", lambda f: pm.Poisson(
        "y", mu=2 * pm.math.exp(f), observed=MASKED)),
    "exposures by row, missing": ("poisson_log", lambda f: pm.Poisson(
        "y", mu=np.array([[1.0], [2.0]]) * np.linspace(1.0, 2.0, N) * pm.math.exp(f),
        observed=np.ma.masked_array(TWICE, mask=np.eye(2, N)))),
    "exposure by a variable, looked up": ("poisson_log", lambda f: pm.Poisson(
        "y", mu=(pm.HalfNormal("e") * pm.math.exp(f))[INDEX], observed=INDEX_COUNTS)),
    "counts with dispersion, missing": ("negativebinomial_log", lambda f: pm.NegativeBinomial(
        "y", mu=3 * pm.math.exp(f), alpha=2.0, observed=MASKED)),
    "one gather after another": ("bernoulli_logit", lambda f: pm.Bernoulli(
        "y", p=pm.math.sigmoid(f)[None, :].T.reshape((1, N)), observed=BINARY[None, :])),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*missing values")
@pytest.mark.parametrize(("name", "likelihood"), BEHIND.values(), ids=BEHIND)
def test_links_are_found_behind_gathers_and_broadcasts(name, likelihood):
    with pm.Model() as model:
        likelihood(gp_prior("f", ls=pm.HalfNormal("ls")))
    (block,) = read_structure(model).blocks
    assert {o.likelihood.name for o in block.observations if o.likelihood is not None} == {name}
    assert all(o.likelihood is not None for o in block.observations)
    assert_is_the_model(joint_of(model), model)


def test_one_value_that_is_spread_is_no_vector():
    """Looked up, a vector of one value is as long as its observations."""
    with pm.Model():
        p = pm.math.sigmoid(pm.Normal("b", shape=1))[np.zeros(N, dtype=int)]
        found = read_likelihood(pm.Bernoulli("y", p=p, observed=BINARY))
    assert found is not None
    assert found[1].eta.shape.eval()[0] == N


@pytest.mark.parametrize(
    "read", [lambda f: np.tri(N) @ f, lambda f: f[1:] - f[:-1], pt.cumsum], ids=["matrix", "differences", "sums"]
)
def test_a_process_that_is_read_by_a_matrix_under_any_likelihood(read):
    with pm.Model() as model:
        mean = read(gp_prior("f", ls=pm.HalfNormal("ls")))
        observed = np.resize(COUNTS / 3.0, mean.shape.eval()[0])
        pm.Logistic("y", mu=mean, s=pm.HalfNormal("s"), observed=observed)
    assert_is_the_model(joint_of(model), model)
    point = model.initial_point()
    (block,) = compile_model(read_structure(model), point, with_rest=False).blocks
    assert block.likelihood(point).n_sites == observed.size


def test_what_has_the_shape_of_latent_values_does_not_depend_on_them():
    with pm.Model() as model:
        f = gp_prior("f", reparameterize=False)
        pm.Normal("y", f, pm.HalfNormal("s", shape=f.shape), observed=COUNTS / 3.0)
    joint = joint_of(model)
    assert joint.theta.names == ("s_log__",)
    assert_is_the_model(joint, model)
    with pm.Model() as regression:
        b = pm.Normal("b", shape=4)
        poisson(DESIGN @ (pm.HalfNormal("local", shape=b.shape) * b))
    assert [v.name for v in read_structure(regression).variables] == ["b"]


def test_the_error_for_a_curve_names_the_function_and_what_curves_it():
    with pm.Model() as model:
        pm.Normal("y", 2.0 * gp_prior("f") ** 2 + pm.math.exp(gp_prior("g")), 1.0, observed=COUNTS / 3.0)
    says = r"y: its predictor .* f, g .* non-linear map `(sqr|pow|exp)`.*NUTS"
    with pytest.raises(UnsupportedModelError, match=says):
        read_structure(model, ["f", "g"])


def structured(b: pt.TensorVariable) -> pt.TensorVariable:
    indicators = sparse.csr_array((np.ones(N), (np.arange(N), GROUP)), shape=(N, 5))
    return pytensor.sparse.structured_dot(pytensor.sparse.as_sparse_variable(sparse.csr_matrix(indicators)), b)


def chosen(b: pt.TensorVariable) -> pt.TensorVariable:
    return pt.switch(np.arange(N) < 3, b[GROUP], -0.5 * b[GROUP])


@pytest.mark.parametrize("read", [structured, chosen])
def test_sparse_products_and_constant_choices_are_linear(read):
    with pm.Model() as model:
        b = pm.Normal("b", 0.0, pm.HalfNormal("spread"), shape=5)
        b = b if read is chosen else b[:, None]
        eta = read(b)
        poisson(eta if read is chosen else eta.ravel())
    assert [v.name for v in read_structure(model).variables] == ["b"]
    assert_is_the_model(joint_of(model), model)


def test_pymc_dims_is_named_where_it_is_in_the_way():
    import pymc.dims as pmd

    with pm.Model(coords={"site": range(N)}) as model:
        f = pm.MvNormal("f", np.zeros(N), covariance())
        values = pmd.as_xtensor(COUNTS / 3.0, dims=("site",))
        pmd.Normal("y", pmd.as_xtensor(f, dims=("site",)), 1.0, observed=values)
    with pytest.raises(UnsupportedLikelihoodError, match=r"y is of pymc\.dims, .* or sample with NUTS"):
        read_structure(model, ["f"])
    with pm.Model(coords={"site": range(N)}) as model:
        pmd.Normal("y", pmd.Normal("b", dims="site"), 1.0, observed=values)
    with pytest.raises(UnsupportedModelError, match=r"b: it is of pymc\.dims"):
        read_structure(model)




@pytest.mark.parametrize(("likelihood", "free"), [("truncated", True), ("of its own", False)])
def test_truncation_at_one_side_has_a_slope(likelihood, free):
    """PyMC knows a bound at infinity by its being a constant."""
    with pm.Model() as model:
        f = gp_prior("f", ls=pm.HalfNormal("ls"), reparameterize=False)
        sigma = pm.HalfNormal("sigma") if free else 0.5
        if likelihood == "truncated":
            pm.Truncated("y", pm.Normal.dist(f, sigma), lower=0.0, observed=COUNTS + 0.5)
        else:
            pm.TruncatedNormal("y", mu=f, sigma=sigma, lower=0.0, observed=COUNTS + 0.5)
    assert_is_the_model(joint_of(model), model)
    (block,) = compile_model(read_structure(model), model.initial_point(), with_rest=False).blocks
    slope = block.likelihood(model.initial_point()).gradient(np.linspace(-3.0, 3.0, N))[1]
    assert np.isfinite(slope).all()
