"""The chart that is read from a model's graph: its density, its Jacobian, and where each family is placed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.distributions.transforms import logodds

from pymc_rmhmc.errors import ConfigurationError
from pymc_rmhmc.graph_chart.affine_map import identity_map
from pymc_rmhmc.graph_chart.constants import charts_of
from pymc_rmhmc.model.general import families
from pymc_rmhmc.model.general.density import GeneralModel
from pymc_rmhmc.model.general.families import family_of, register_family, registered_families
from pymc_rmhmc.tuning.graph_chart import ChartTuning, GraphChartAdapter
from tests.general_checks import constants, scored
from tests.thinned import thinned

N = 3
LOG, ODDS = "LogTransform", "LogOddsTransform"


@dataclass(frozen=True)
class Row:
    """One family as a child of a location a and a scale s.

    Attributes
    ----------
    make : callable
        From a, s and the shape to the variable "x".
    off, wider : float
        By how many scales the median may be off, and by which factor the width, for all of `PARENTS`. The width is
        half of what two thirds of the draws are in.
    """

    make: Callable
    off: float = 0.15
    wider: float = 1.1


ROWS = {
    ("Normal", ""): Row(lambda a, s, n: pm.Normal("x", a, s, shape=n)),
    ("StudentT", ""): Row(lambda a, s, n: pm.StudentT("x", nu=4.0, mu=a, sigma=s, shape=n), wider=1.2),
    ("Laplace", ""): Row(lambda a, s, n: pm.Laplace("x", a, s, shape=n), wider=1.3),
    ("Logistic", ""): Row(lambda a, s, n: pm.Logistic("x", a, s, shape=n), wider=1.8),
    ("Cauchy", ""): Row(lambda a, s, n: pm.Cauchy("x", a, s, shape=n), wider=1.9),
    ("Gumbel", ""): Row(lambda a, s, n: pm.Gumbel("x", a, s, shape=n), off=0.5, wider=1.4),
    ("LogNormal", LOG): Row(lambda a, s, n: pm.LogNormal("x", a, s, shape=n)),
    ("LogitNormal", ODDS): Row(lambda a, s, n: pm.LogitNormal("x", a, s, shape=n, default_transform=logodds)),
    ("SkewNormal", ""): Row(lambda a, s, n: pm.SkewNormal("x", mu=a, sigma=s, alpha=1.5, shape=n), off=0.8, wider=1.6),
    ("Moyal", ""): Row(lambda a, s, n: pm.Moyal("x", a, s, shape=n), off=1.0, wider=2.0),
    ("AsymmetricLaplace", ""): Row(
        lambda a, s, n: pm.AsymmetricLaplace("x", kappa=1.3, mu=a, b=1.0 / s, shape=n), off=0.5, wider=1.5
    ),
    ("SkewStudentT", ""): Row(
        lambda a, s, n: pm.SkewStudentT("x", a=3.0, b=4.0, mu=a, sigma=s, shape=n), off=0.6, wider=1.6
    ),
    ("ExGaussian", ""): Row(
        lambda a, s, n: pm.ExGaussian("x", mu=a, sigma=s, nu=1.5 * s, shape=n), off=0.4, wider=1.3
    ),
    ("ZeroSumNormal", "ZeroSumTransform"): Row(lambda a, s, n: pm.ZeroSumNormal("x", sigma=s, shape=n)),
    ("HalfNormal", LOG): Row(lambda a, s, n: pm.HalfNormal("x", s, shape=n), off=0.3, wider=1.3),
    ("HalfCauchy", LOG): Row(lambda a, s, n: pm.HalfCauchy("x", s, shape=n), wider=1.3),
    ("HalfStudentT", LOG): Row(lambda a, s, n: pm.HalfStudentT("x", nu=4.0, sigma=s, shape=n), off=0.4, wider=1.6),
    ("Exponential", LOG): Row(lambda a, s, n: pm.Exponential("x", scale=s, shape=n), off=0.3, wider=1.3),
    ("Gamma", LOG): Row(lambda a, s, n: pm.Gamma("x", alpha=2.0 * s, beta=pt.exp(a), shape=n), off=0.3, wider=1.3),
    ("InverseGamma", LOG): Row(
        lambda a, s, n: pm.InverseGamma("x", alpha=2.0 * s, beta=pt.exp(a), shape=n), off=0.3, wider=1.3
    ),
    ("Weibull", LOG): Row(
        lambda a, s, n: pm.Weibull("x", alpha=2.0 * s, beta=pt.exp(a), shape=n), off=0.3, wider=1.3
    ),
    ("Wald", LOG): Row(lambda a, s, n: pm.Wald("x", mu=pt.exp(a), lam=2.0 * s, shape=n), off=0.3, wider=1.3),
    ("Rice", LOG): Row(lambda a, s, n: pm.Rice("x", nu=pt.exp(a), sigma=s, shape=n), off=0.8, wider=1.8),
    ("Beta", ODDS): Row(
        lambda a, s, n: pm.Beta("x", alpha=2.0 * s, beta=s * pt.exp(a), shape=n), off=0.3, wider=1.3
    ),
    ("Kumaraswamy", ODDS): Row(
        lambda a, s, n: pm.Kumaraswamy("x", a=2.0 * s, b=s * pt.exp(a), shape=n), off=1.0, wider=1.6
    ),
}  # fmt: skip
IDS = [name for name, _ in ROWS]
# Values of a and log s at which families are looked at.
PARENTS = np.array([(0.0, 0.0), (1.0, -1.0), (-1.5, 1.2)])


def test_every_registered_family_has_a_row():
    assert set(registered_families()) == set(ROWS)


def hierarchy(row: Row) -> pm.Model:
    with pm.Model() as model:
        a, t = pm.Normal("a", 0.3, 1.0), pm.Normal("t", -0.2, 0.7)
        x = row.make(a, pt.exp(t), N)
        pm.Normal("y", x, 0.8, observed=np.array([0.4, 0.9, 0.7]))
        pm.Potential("known", -0.2 * (x * t).sum())
    return model


def read(model: pm.Model, variables=None) -> GeneralModel:
    point = model.initial_point()
    general = GeneralModel(model, model.free_RVs if variables is None else variables, point)
    general.bind(point)
    return general


class Charted:
    """A model's chart with some constants, and what its density returns, taken apart.

    Roots stay as they are where the chart says nothing of them.
    """

    def __init__(self, model: pm.Model, chart=None, seed: int = 0, variables=None):
        self.model, self.general = model, read(model, variables)
        rng, m = np.random.default_rng(seed), self.general.places.size
        if chart is None and m:
            chart = constants(self.general, rng.exponential(1.0, m), rng.standard_normal(m))
        self.chart = np.empty(0) if chart is None else chart
        self.d = self.general.size

    def at(self, z):
        """Log density, gradient, values, log-Jacobian."""
        value, found = self.general.density(np.ascontiguousarray(z, float), self.filled)
        return float(value), found[: self.d], found[self.d : 2 * self.d], float(found[-1])

    @property
    def filled(self) -> np.ndarray:
        """All constants."""
        return np.append(self.chart, np.zeros(self.general.n_constants - len(self.chart)))

    def entered(self, x):
        """Z of values x, as a chain finds it."""
        charts = charts_of(self.general)
        adapter = GraphChartAdapter(self.general, charts, str, may_repeat=False, most_dense=0)
        return adapter.charted_point(ChartTuning(self.filled, identity_map(np.zeros(self.d))), x)

    def point(self, seed: int):
        """Some z."""
        return 0.6 * np.random.default_rng(seed).standard_normal(self.d)


def derivative(function, z, h: float = 1e-5):
    """By central differences, along the last axis."""
    return np.stack([(function(z + h * e) - function(z - h * e)) / (2.0 * h) for e in np.eye(z.size)], axis=-1)


def by_python(inputs, outputs, *, exact=False):
    """As `compile_outputs`: what a graph says does not depend on by whom it is evaluated."""
    mode = pytensor.compile.mode.Mode("py", "fast_compile").including("local_check_parameter_to_ninf_switch")
    return pytensor.function(inputs, outputs, mode=mode, trust_input=True, on_unused_input="ignore")


@pytest.fixture(scope="module", autouse=True)
def without_compiling():
    with pytest.MonkeyPatch.context() as patch, pytensor.config.change_flags(mode="FAST_COMPILE", cxx=""):
        patch.setattr("pymc_rmhmc.model.hyperparameters.compile_outputs", by_python)
        yield


@pytest.fixture(scope="module", params=thinned(((each,) for each in ROWS), 2, with_also=[(("StudentT", ""),)]), ids=IDS)
def charted(request, without_compiling):
    """The hierarchy of a family."""
    made = Charted(hierarchy(ROWS[request.param]))
    made.key = request.param
    return made


def test_a_family_is_found_and_moved_by_its_parents(charted):
    x = charted.model["x"]
    assert family_of(charted.model, x) is registered_families()[charted.key]
    (only,) = charted.general.charted
    assert only.variable is x
    assert set(only.parents) <= {"a", "t"}
    assert "t" in only.parents
    assert charted.general.places.size == charted.d - 2


def test_gradient_and_log_jacobian_are_those_of_the_density_and_the_map(charted):
    z = charted.point(1)

    def both(at):
        value, _, x, _ = charted.at(at)
        return np.append(x, value)

    *jacobian, gradient = derivative(both, z)
    np.testing.assert_allclose(charted.at(z)[1], gradient, rtol=2e-5, atol=2e-5)
    sign, log_determinant = np.linalg.slogdet(np.array(jacobian))
    assert sign > 0
    assert charted.at(z)[3] == pytest.approx(log_determinant, abs=1e-5)


def test_the_density_is_the_models_and_the_jacobian(charted):
    logp = charted.model.compile_logp()
    for seed in range(5):
        value, _, x, log_jacobian = charted.at(charted.point(seed))
        expected = float(logp(charted.general.variables.unpack(x)))
        assert np.isfinite(expected)
        assert value - log_jacobian == pytest.approx(expected, rel=1e-9, abs=1e-8)


def test_the_way_in_leads_to_where_the_map_began(charted):
    """Else a chain goes on from other coordinates than those of its values, once another step has moved any."""
    z = charted.point(2)
    np.testing.assert_allclose(charted.entered(charted.at(z)[2]), z, rtol=1e-8, atol=1e-8)


def test_scores_are_of_all_but_the_own_prior(charted):
    """And location and scale are those that the map has at w = b = 0."""
    logp, place = charted.model.compile_logp(), charted.general.places
    own = charted.model.compile_logp(vars=[charted.model["x"]])
    z, chart = charted.point(1), charted.chart
    x = charted.at(z)[2]
    rest, location, scale = scored(charted.general, x)
    unpack = charted.general.variables.unpack
    expected = derivative(lambda at: np.array(float(logp(unpack(at))) - float(own(unpack(at)))), x)
    np.testing.assert_allclose(rest, expected[place], rtol=1e-4, atol=1e-5)
    of_own = derivative(lambda at: np.array(float(own(unpack(at)))), x)
    np.testing.assert_allclose(charted.general.scores(x)[2], of_own[place], rtol=1e-4, atol=1e-5)
    charted.chart = np.zeros_like(chart)
    try:
        for at in (0.0, 1.0):
            z[place] = at
            np.testing.assert_allclose(charted.at(z)[2][place], location + at * scale, rtol=1e-9, atol=1e-9)
    finally:
        charted.chart = chart


def test_draws_of_the_prior_are_about_the_location_as_wide_as_the_scale(charted):
    row, names = ROWS[charted.key], charted.general.variables.names
    with pm.Model() as model:
        a, s = (pt.constant(column[:, None]) for column in (PARENTS[:, 0], np.exp(PARENTS[:, 1])))
        x = row.make(a, s, (len(PARENTS), 4000))
    transform = model.rvs_to_transforms[x]
    draws = pm.draw(x if transform is None else transform.forward(x, *x.owner.inputs), random_seed=1)
    for parents, drawn in zip(PARENTS, draws, strict=True):
        z = np.zeros(charted.d)
        z[[names.index("a"), names.index("t")]] = parents
        location, scale = (part[0] for part in scored(charted.general, z)[1:])
        low, median, high = np.quantile(drawn, [1 / 6, 0.5, 5 / 6])
        off, ratio = (median - location) / scale, (high - low) / (2 * 0.9674 * scale)
        assert abs(off) < row.off
        assert 1 / row.wider < ratio < row.wider


def two_levels() -> pm.Model:
    with pm.Model() as model:
        top, spread, noise = pm.Normal("top", 1.0, 1.0), pm.HalfNormal("spread", 0.8), pm.HalfNormal("noise", 0.5)
        middle = pm.Normal("middle", top, spread, shape=2)
        log_rate = pm.StudentT("log_rate", nu=4.0, mu=middle[:, None], sigma=noise, shape=(2, 2))
        rate = pm.Gamma("rate", alpha=3.0 + noise, beta=pt.exp(log_rate).sum(axis=0), shape=2)
        pm.Normal("y", log_rate + rate, 1.0, observed=np.arange(4.0).reshape(2, 2))
    return model


ORDERS = [(0, 1, 2, 3, 4, 5), (5, 0, 4, 2, 3, 1)]


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_parents_are_placed_before_children_in_any_order(order):
    """Without w and b a variable lies where the values of its parents, not their coordinates, say."""
    model = two_levels()
    logp = model.compile_logp()
    charted = Charted(model, variables=[model.free_RVs[i] for i in order])
    for chart in (charted.chart, np.zeros_like(charted.chart)):
        charted.chart, z = chart, charted.point(3)
        value, _, x, log_jacobian = charted.at(z)
        at = {str(name): part for name, part in charted.general.variables.unpack(x).items()}
        assert value - log_jacobian == pytest.approx(float(logp(at)), rel=1e-10)
        np.testing.assert_allclose(charted.entered(x), z, rtol=1e-8, atol=1e-8)
        jacobian = derivative(lambda at: charted.at(at)[2], z)
        assert log_jacobian == pytest.approx(np.linalg.slogdet(jacobian)[1], abs=1e-5)
    given, noise = charted.general.variables.unpack(z), np.exp(at["noise_log__"])
    np.testing.assert_allclose(at["top"], given["top"])
    np.testing.assert_allclose(at["middle"], at["top"] + np.exp(at["spread_log__"]) * given["middle"])
    np.testing.assert_allclose(at["log_rate"], at["middle"][:, None] + noise * given["log_rate"])
    location, scale = families._log_gamma_of_scale(3.0 + noise, 1.0 / np.exp(at["log_rate"]).sum(axis=0))
    np.testing.assert_allclose(at["rate_log__"], location.eval() + scale.eval() * given["rate_log__"])


def test_another_steps_value_moves_the_density_the_map_and_the_way_in():
    model = hierarchy(ROWS["Normal", ""])
    charted = Charted(model, variables=[model["a"], model["x"]])
    logp, z = model.compile_logp(), charted.point(4)
    assert charted.general.inputs == ("t",)
    seen = []
    for t in (0.4, -1.3):
        given = model.initial_point() | {"t": np.array(t)}
        charted.general.bind(given)
        value, _, x, log_jacobian = charted.at(z)
        alone, found = charted.general.value(z, charted.filled)
        assert value - log_jacobian == pytest.approx(float(logp(given | charted.general.variables.unpack(x))), rel=1e-9)
        np.testing.assert_allclose(np.append(found, alone), [*x, log_jacobian, value], rtol=1e-12)
        np.testing.assert_allclose(charted.entered(x), z, rtol=1e-8, atol=1e-8)
        seen.append(x)
    assert np.abs(seen[0] - seen[1]).max() > 0.1
    # However long a gradient takes, an emulator would be of the density before.
    charted.general.gradient_seconds = 1e3
    assert not charted.general.is_expensive


def test_a_variable_of_constant_parents_is_left_alone():
    with pm.Model() as model:
        x = pm.Normal("x", np.arange(N), 2.0)
        pm.Normal("y", x, 1.0, observed=np.ones(N))
    charted = Charted(model)
    assert (charted.general.places.size, charted.general.scores) == (0, None)
    z = charted.point(0)
    value, _, x, log_jacobian = charted.at(z)
    np.testing.assert_array_equal(x, z)
    assert (log_jacobian, value) == (0.0, pytest.approx(float(model.compile_logp()({"x": z}))))


def test_a_large_w_is_the_centred_form():
    """Wherever the parents are, x is where the line of the score says, and as wide as that."""
    charted = Charted(hierarchy(ROWS["Normal", ""]))
    places, weight, centre = charted.general.places, 1e10, np.array([0.3, -2.0, 5.0])
    charted.chart = np.concatenate((np.full(N, weight), weight * centre))
    for seed in range(4):
        z = charted.point(seed)
        np.testing.assert_allclose((charted.at(z)[2][places] - centre) * np.sqrt(weight), z[places], atol=1e-3)
        assert charted.at(z)[3] == pytest.approx(-0.5 * N * np.log(weight), abs=1e-6)


EXTREME = [("Normal", ""), ("StudentT", ""), ("AsymmetricLaplace", ""), ("HalfNormal", LOG)]
ABSURD = [(0.0, 0.0), (1.0, 0.7), (1e-8, 1e4), (1e8, -1e8)]


@pytest.mark.parametrize("key", EXTREME, ids=[name for name, _ in EXTREME])
def test_at_tiny_and_huge_scales_values_are_finite_and_no_wrong_density_passes(key):
    """A density is right, or it is none: a trajectory ends where it or its gradient is not finite."""
    charted = Charted(hierarchy(ROWS[key]))
    logp, names = charted.model.compile_logp(), charted.general.variables.names
    for chart in ABSURD:
        charted.chart, n_finite = np.repeat(chart, N), 0
        for scale in (1e-300, 1e-200, 1e-100, 1e-20, 1e-8, 1e-4, 1e4, 1e8, 1e20, 1e100, 1e200, 1e300):
            z = charted.point(5)
            z[names.index("t")] = np.log(scale)
            with np.errstate(all="ignore"):
                value, gradient, x, log_jacobian = charted.at(z)
            # The priors of t and of y leave no more.
            assert not value > 20.0
            if not (np.isfinite(value) and np.isfinite(gradient).all()):
                continue
            n_finite += 1
            assert np.isfinite(x).all()
            # Where the difference to the location has digits left, it is that of the model.
            if scale > 1e-6:
                expected = float(logp(charted.general.variables.unpack(x)))
                assert value - log_jacobian == pytest.approx(expected, rel=1e-6, abs=1e-4)
        assert n_finite > 3 or abs(chart[1]) > 1.0


def test_a_density_near_a_scale_of_zero_keeps_its_digits():
    """The funnel's neck: x and its location are equal there, and the density is that of z all the same."""
    with pm.Model() as model:
        t = pm.Normal("t", 0.0, 200.0)
        pm.Normal("x", 1.0, pt.exp(t), shape=2)
    charted = Charted(model, chart=np.zeros(4))
    z = np.array([-460.0, 0.6, -1.1])
    value, gradient, x, log_jacobian = charted.at(z)
    np.testing.assert_array_equal(x, [-460.0, 1.0, 1.0])
    normal = -0.5 * (z[1:] ** 2).sum() - np.log(2.0 * np.pi)
    assert value == pytest.approx(-0.5 * 2.3**2 - np.log(200.0) - 0.5 * np.log(2.0 * np.pi) + normal, rel=1e-7)
    np.testing.assert_allclose(gradient, [2.3 / 200.0, -0.6, 1.1], rtol=1e-12)
    assert log_jacobian == pytest.approx(-920.0)


SIGNED = {
    "Normal": lambda s: pm.Normal("x", 0.5, s, shape=2),
    "StudentT": lambda s: pm.StudentT("x", nu=4.0, mu=0.5, sigma=s, shape=2),
    "Gumbel": lambda s: pm.Gumbel("x", 0.5, s, shape=2),
    "HalfNormal": lambda s: pm.HalfNormal("x", s, shape=2),
    "Gamma": lambda s: pm.Gamma("x", 2.0, s, shape=2),
}


@pytest.mark.parametrize("name", SIGNED)
def test_a_scale_that_is_not_positive_has_no_density(name):
    with pm.Model() as model:
        SIGNED[name](pm.Normal("s"))
    charted = Charted(model)
    exact = charted.general.charted[0].family.standard is not None
    for scale in (-0.7, 0.0):
        with np.errstate(all="ignore"):
            value = charted.at(np.array([scale, 0.3, -0.2]))[0]
        assert value == -np.inf if exact else not np.isfinite(value)
    assert np.isfinite(charted.at(np.array([0.7, 0.3, -0.2]))[0])


@pytest.fixture
def rows(monkeypatch):
    """The families, of which a test may register more: they are gone afterwards."""
    monkeypatch.setattr(families, "_families", dict(families._families))


def moyal() -> pm.Model:
    with pm.Model() as model:
        s = pm.HalfNormal("s")
        pm.Moyal("x", 0.0, s, shape=3)
    return model


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((3, lambda mu, s: (mu, s)), "name must be the name of a class.*got 3"),
        (("", lambda mu, s: (mu, s)), "name must be the name of a class"),
        ((pm.Moyal, lambda mu, s: (mu, s)), "name must be the name of a class"),
        (("Moyal", (0.0, 1.0)), r"moments must be a function.*Give register_family\("),
        (("Moyal", None), "moments must be a function"),
        ((3,), "register_family.. cannot be called like this"),
    ],
)
def test_what_cannot_be_registered_is_an_error(rows, arguments, says):
    before = dict(registered_families())
    with pytest.raises(ConfigurationError, match=says):
        register_family(*arguments)
    assert dict(registered_families()) == before


def test_a_transform_is_named(rows):
    with pytest.raises(ConfigurationError, match="transform must be the name of a class"):
        register_family("Gamma", lambda alpha, scale: (alpha, scale), transform=None)


@pytest.mark.parametrize(
    ("moments", "says"),
    [
        (lambda mu, s: mu, r"must return a pair \(location, scale\), and returned .*Mend it in register_family"),
        (lambda mu, s: (mu, s, s), "must return a pair"),
        (lambda mu, s: None, "must return a pair.*NoneType"),
        (
            lambda mu: (mu, 1.0),
            r'2 parameters \(mu, sigma\), and .* takes \(mu\)\..*Give .*"Moyal", lambda mu, sigma: \(location, scale\)',
        ),
        (lambda mu, s, tail: (mu, s), r"Moyal has 2 parameters .* takes \(mu, s, tail\)"),
        (lambda mu, s: (pt.zeros(2), s), r"the location .* Moyal has the shape \(2,\), and .* has \(3,\)"),
        (lambda mu, s: (mu, pt.zeros((3, 3)) + s), r"the scale .* has the shape \(3, 3\).*Mend the function"),
    ],
)
def test_moments_of_another_form_are_an_error_when_a_model_is_read(rows, moments, says):
    register_family("Moyal", moments)
    with pytest.raises(ConfigurationError, match=f"x: .*{says}"):
        read(moyal())


@pytest.mark.parametrize(
    "moments", [lambda mu, s: (mu + 2.0, 3.0 * s), lambda mu, s: [2.0, pt.full(3, 3.0) * s]], ids=["scalars", "vectors"]
)
def test_a_registered_family_is_placed_where_it_says_and_its_density_is_exact(rows, moments):
    register_family("Moyal", moments)
    charted = Charted(moyal(), chart=np.zeros(6))
    z = np.array([0.1, 0.3, -1.0, 0.5])
    value, _, x, log_jacobian = charted.at(z)
    np.testing.assert_allclose(x[1:], 2.0 + 3.0 * np.exp(0.1) * z[1:])
    expected = float(charted.model.compile_logp()(charted.general.variables.unpack(x)))
    assert value - log_jacobian == pytest.approx(expected, rel=1e-12)
