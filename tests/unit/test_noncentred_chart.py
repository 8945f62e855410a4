"""Effects in non-centred form are read as the centred ones, however they are written: one chart for one prior."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_rmhmc.graph_chart.affine_map import identity_map
from pymc_rmhmc.graph_chart.constants import charts_of
from pymc_rmhmc.model.general.chart import ChartedNoise, ChartedRowsNoise
from pymc_rmhmc.model.general.noncentred import NonCentredReader
from pymc_rmhmc.tuning.graph_chart import ChartTuning, GraphChartAdapter
from tests.thinned import thinned
from tests.unit.test_general_chart import Charted, without_compiling  # noqa: F401

G, N = 4, 9
GROUP, X = np.arange(N) % G, np.linspace(-1.0, 1.0, N)
SPREADS = np.linspace(0.5, 1.5, G)
LOWER = np.array([[1.0, 0.0], [0.6, 0.8]])


@dataclass(frozen=True)
class Written:
    """One prior in two ways.

    Attributes
    ----------
    noncentred, centred : callable
        From a level m, a scale s and a slope b to the predictor, of noise "z" and of effects "x".
    effects : callable
        From the values of m, s, b and z to the effects, row by row.
    shape : tuple of int
        Of the noise.
    """

    noncentred: Callable
    centred: Callable
    effects: Callable = lambda m, s, b, z: m + s * z
    shape: tuple[int, ...] = (G,)


def noise(*shape: int) -> pt.TensorVariable:
    return pm.Normal("z", shape=shape or (G,))


def about(m, s):
    return pm.Normal("x", m, s, shape=G)


def rows_of(factor: Callable) -> Callable:
    """A predictor of intercepts and slopes whose effects have rows ``m + s·LOWER·z``."""

    def eta(m, s, b):
        effects = factor(m, s * pt.constant(LOWER))
        return effects[GROUP, 0] + effects[GROUP, 1] * X

    return eta


def turned(m, s, b, z):
    return m + (s * LOWER @ z).T


def straight(m, s, b, z):
    return m + z @ (s * LOWER).T


CENTRED = lambda m, s, b: about(m, s)[GROUP]  # noqa: E731
CENTRED_ROWS = rows_of(lambda m, L: pm.MvNormal("x", m, chol=L, shape=(G, 2)))
WRITTEN = {
    "a level and looked up noise": Written(lambda m, s, b: m + s * noise()[GROUP], CENTRED),
    "effects looked up": Written(lambda m, s, b: pm.Deterministic("a", m + s * noise())[GROUP], CENTRED),
    "scaled noise looked up": Written(lambda m, s, b: m + (noise() * s)[GROUP], CENTRED),
    "among other terms": Written(
        lambda m, s, b: m - b * X + (s * noise())[GROUP] + 1.0, lambda m, s, b: 1.0 - b * X + about(m, s)[GROUP]
    ),
    "taken away": Written(
        lambda m, s, b: b * X - m - s * noise()[GROUP], lambda m, s, b: b * X - about(m, s)[GROUP]
    ),
    "taken away from a level": Written(
        lambda m, s, b: m - s * noise()[GROUP], lambda m, s, b: -about(-m, s)[GROUP],
        effects=lambda m, s, b, z: -m + s * z,
    ),
    "a precision": Written(lambda m, s, b: m + (noise() / s)[GROUP], lambda m, s, b: about(m, 1.0 / s)[GROUP],
                           effects=lambda m, s, b, z: m + z / s),
    "two scales": Written(
        lambda m, s, b: m + (noise() * s * pt.exp(b))[GROUP], lambda m, s, b: about(m, s * pt.exp(b))[GROUP],
        effects=lambda m, s, b, z: m + s * np.exp(b) * z,
    ),
    "scales of each": Written(
        lambda m, s, b: (m + s * pt.constant(SPREADS) * noise())[GROUP],
        lambda m, s, b: about(m, s * pt.constant(SPREADS))[GROUP],
        effects=lambda m, s, b, z: m + s * SPREADS * z,
    ),
    "a mean of each": Written(
        lambda m, s, b: (m + b * X[:G] + s * noise())[GROUP], lambda m, s, b: about(m + b * X[:G], s)[GROUP],
        effects=lambda m, s, b, z: m + b * X[:G] + s * z,
    ),
    "noise of another location and scale": Written(
        lambda m, s, b: m + s * pm.Normal("z", 1.5, 2.0, shape=G)[GROUP],
        lambda m, s, b: about(m + 1.5 * s, 2.0 * s)[GROUP],
    ),
    "noise with tails": Written(
        lambda m, s, b: m + s * pm.StudentT("z", nu=4.0, mu=0.0, sigma=1.0, shape=G)[GROUP],
        lambda m, s, b: pm.StudentT("x", nu=4.0, mu=m, sigma=s, shape=G)[GROUP],
    ),
    "a factor and columns": Written(
        rows_of(lambda m, L: m + pt.dot(L, noise(2, G)).T), CENTRED_ROWS, turned, (2, G)
    ),
    "a factor and columns about a mean": Written(
        rows_of(lambda m, L: (pt.stack([m, m])[:, None] + pt.dot(L, noise(2, G))).T), CENTRED_ROWS, turned, (2, G)
    ),
    "a factor and rows": Written(
        rows_of(lambda m, L: m + (L @ noise(G, 2).T).T), CENTRED_ROWS, straight, (G, 2)
    ),
    "rows and a factor": Written(
        rows_of(lambda m, L: pt.stack([m, m]) + pm.math.dot(noise(G, 2), L.T)), CENTRED_ROWS, straight, (G, 2)
    ),
}  # fmt: skip


def model_of(eta: Callable) -> pm.Model:
    with pm.Model() as model:
        m, t, b = pm.Normal("m", 0.3, 1.0), pm.Normal("t", -0.2, 0.7), pm.Normal("b", 0.0, 1.0)
        pm.Poisson("y", pt.exp(0.4 * eta(m, pt.exp(t), b)), observed=np.arange(N) % 5)
    return model


class Pair:
    """The same prior written in both ways, in one chart with the same constants."""

    def __init__(self, written: Written):
        self.written = written
        self.noncentred, self.centred = (Charted(model_of(way)) for way in (written.noncentred, written.centred))
        if len(written.shape) == 2:
            rng, k = np.random.default_rng(5), 2
            halves = rng.standard_normal((G, k, k))
            weights = (halves @ halves.transpose(0, 2, 1)).ravel()
            self.noncentred.chart = self.centred.chart = np.concatenate([weights, rng.standard_normal(G * k)])
        else:
            self.noncentred.chart = self.centred.chart

    def coordinates(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """One point as both charts have it."""
        z = self.noncentred.point(seed)
        other = z.copy()
        other[self.centred.general.places] = z[self.noncentred.general.places]
        return z, other

    def adapter(self, charted: Charted) -> GraphChartAdapter:
        charts = charts_of(charted.general)
        return GraphChartAdapter(charted.general, charts, str, may_repeat=False, most_dense=0)


FAULTY = [WRITTEN[name] for name in ("effects looked up", "rows and a factor", "taken away from a level")]
PAIRS = thinned(WRITTEN.values(), 2, with_also=FAULTY)


@pytest.fixture(scope="module", params=PAIRS, ids=WRITTEN)
def pair(request, without_compiling) -> Pair:  # noqa: F811
    return Pair(request.param)


def test_noise_is_charted_as_the_effects(pair):
    (one,), (other,) = pair.noncentred.general.charted, pair.centred.general.charted
    assert isinstance(one, ChartedNoise | ChartedRowsNoise)
    assert set(one.parents) == set(other.parents)
    assert one.n_constants == other.n_constants


def test_both_ways_have_one_density_in_the_chart(pair):
    """And each is its model's: the one that the noise has, without the Jacobian."""
    logp = pair.noncentred.model.compile_logp()
    for seed in range(3):
        z, other = pair.coordinates(seed)
        (value, slope, x, jacobian), (expected, by_centred, effects, _) = pair.noncentred.at(z), pair.centred.at(other)
        assert value == pytest.approx(expected, rel=1e-10)
        by_pymc = float(logp(pair.noncentred.general.variables.unpack(x)))
        assert value - jacobian == pytest.approx(by_pymc, rel=1e-9, abs=1e-8)
        ours, theirs = pair.noncentred.general, pair.centred.general
        np.testing.assert_allclose(slope[ours.places], by_centred[theirs.places], rtol=1e-8, atol=1e-9)
        at = ours.variables.unpack(x)
        made = pair.written.effects(at["m"], np.exp(at["t"]), at["b"], at["z"])
        np.testing.assert_allclose(np.ravel(made), effects[theirs.places], rtol=1e-9, atol=1e-9)


def test_the_way_in_leads_to_where_the_map_began(pair):
    charted = pair.noncentred
    z = charted.point(2)
    x = charted.at(z)[2]
    entered = pair.adapter(charted).charted_point(ChartTuning(charted.filled, identity_map(np.zeros(charted.d))), x)
    np.testing.assert_allclose(entered, z, rtol=1e-9, atol=1e-9)


def test_the_same_draws_fit_the_same_chart(pair):
    """Lines are of the effects, whichever values the draws are of."""
    found = []
    for charted, which in ((pair.noncentred, 0), (pair.centred, 1)):
        draws = np.array([charted.at(pair.coordinates(seed)[which])[2] for seed in range(40)])
        adapter = pair.adapter(charted)
        tuned = adapter.initial()
        adapter.fit(tuned, draws)
        found.append(tuned.chart)
    assert np.abs(found[0]).max() > 0.1
    np.testing.assert_allclose(found[0], found[1], rtol=1e-7, atol=1e-9)


def parents_of(model: pm.Model) -> dict[str, set[str]]:
    return {each.variable.name: set(each.parents) for each in Charted(model).general.charted}


def test_a_level_of_several_effects_is_the_location_of_one():
    """It cannot move all of them at once: a predictor would move by it several times."""

    def eta(m, s, b):
        return m + s * noise()[GROUP] + pt.exp(b) * pm.Normal("w", shape=3)[np.arange(N) % 3]

    assert parents_of(model_of(eta)) == {"z": {"m", "t"}, "w": {"b"}}


def test_of_two_that_scale_each_other_one_is_charted():
    def eta(m, s, b):
        return m + (noise() * pm.Normal("w", shape=G))[GROUP]

    assert parents_of(model_of(eta)) == {"z": {"m", "w"}}


def read_twice(m, s, b):
    z = noise()
    return m + s * (z[GROUP] + z[0])


def multiplied_by_itself(m, s, b):
    z = noise()
    return (z * (z + s))[GROUP]


NOT_EFFECTS = {
    "no scale that moves": lambda m, s, b: m + 2.0 * noise()[GROUP],
    "read twice": read_twice,
    "of a basis": lambda m, s, b: m + pt.dot(np.eye(N)[:, :G], noise()) * s,
    "scaled by each observation": lambda m, s, b: m + noise()[GROUP] * pt.exp(b * X),
    "multiplied by itself": multiplied_by_itself,
    "one number": lambda m, s, b: m + s * pm.Normal("z") + 0.0 * X,
}  # fmt: skip


@pytest.mark.parametrize("eta", NOT_EFFECTS.values(), ids=NOT_EFFECTS)
def test_other_noise_is_left_as_it_is(eta):
    assert parents_of(model_of(eta)) == {}


def test_shapes_alone_are_no_reading():
    with pm.Model() as model:
        s, z = pm.HalfNormal("s"), pm.Normal("z", shape=G)
        pm.Normal("y", (s * z)[GROUP] + 0.0 * pt.zeros(z.shape[0]).sum(), observed=np.ones(N))
    found = NonCentredReader(model, model.free_RVs).effects(model["z"], (G,))
    assert found is not None
