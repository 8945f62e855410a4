"""Random models are judged rightly: planted faults are found, and the same models pass without them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytensor.tensor as pt
import pytest

from pymc_rmhmc.latent.joint_target import JointTarget
from pymc_rmhmc.model.general.chart import ChartedRows, ChartedVariable
from pymc_rmhmc.model.general.density import GraphReading
from tests.fuzz.joint import FEWEST
from tests.fuzz.judging import FIRST, judge
from tests.fuzz.models import Array, Free, Penalty, Seen, Tree

# PyTensor says once a process that it finds no BLAS.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")]

GROUP = Array("group", "index", ("N",), "G")
TOP = Free("m", "Normal", (("mu", "0.0"), ("sigma", "1.0")))
SCALE = Free("s", "HalfNormal", (("sigma", "1.0"),))
SIZES = (("N", 8), ("G", 4))
GRAPH = 'metric=FlatMetric(chart="graph")'


def seen(eta: str) -> Seen:
    return Seen("y", "StudentT", (("nu", "5.0"), ("mu", eta), ("sigma", "0.5")))


EFFECTS = Free("b", "Normal", (("mu", "m"), ("sigma", "s")), ("G",))
HIERARCHY = Tree(1, SIZES, (GROUP,), (TOP, SCALE, EFFECTS, seen("b[group]")), options=GRAPH)
PENALISED = replace(
    HIERARCHY, statements=(TOP, SCALE, EFFECTS, Penalty("penalty", "-2.0 * (s - 1.5) ** 2"), seen("b[group]"))
)
FACTOR = (
    'L, _, _ = pm.LKJCholeskyCov("L", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0, shape=2), compute_corr=True)'
)
ROWS = Tree(
    1, SIZES, (GROUP, Array("x", "normal", ("N",))),
    (
        Free("L", "LKJCholeskyCov", written=FACTOR),
        Free("u", "MvNormal", size=("G", "2"), written='u = pm.MvNormal("u", mu=np.zeros(2), chol=L, shape=(G, 2))'),
        seen("u[group, 0] + u[group, 1] * x"),
    ), options=GRAPH,
)  # fmt: skip
WALK = 'w = pm.GaussianRandomWalk("w", mu=0.0, sigma=s, init_dist=pm.Normal.dist(0.0, 1.0), shape=(N,))'
SERIES = Tree(1, SIZES, (), (SCALE, Free("w", "AR", size=("N",), written=WALK), seen("w")))
MODELS = {"hierarchy": HIERARCHY, "penalised": PENALISED, "rows": ROWS, "series": SERIES}


@pytest.mark.parametrize("name", MODELS)
def test_a_right_model_passes(name):
    verdict = judge(MODELS[name], seconds=math.inf)
    assert verdict.result == "passed", verdict.says
    assert verdict.pairs >= FEWEST
    assert verdict.failure_rate < 0.1


def without_jacobian(monkeypatch, kind):
    """The chart's density lacks what its weights stretch."""
    place = kind.place
    monkeypatch.setattr(kind, "place", lambda *given: place(*given)._replace(log_jacobian=pt.zeros(())))


def without_potentials(monkeypatch):
    terms = GraphReading.terms.func

    def of_variables(reading):
        return {v: term for v, term in terms(reading).items() if v not in reading.model.potentials}

    monkeypatch.setattr(GraphReading, "terms", property(of_variables))


def with_a_wrong_log_density(monkeypatch):
    told = JointTarget.model_log_density
    monkeypatch.setattr(JointTarget, "model_log_density", staticmethod(lambda point: told(point) + 1e-3))


FAULTS = {
    "Jacobian of a hierarchy": ("hierarchy", lambda patch: without_jacobian(patch, ChartedVariable), "law"),
    "Jacobian of rows": ("rows", lambda patch: without_jacobian(patch, ChartedRows), "law"),
    "Potentials": ("penalised", without_potentials, "lp"),
    "told log density": ("series", with_a_wrong_log_density, "lp"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(monkeypatch, name):
    model, plant, kind = FAULTS[name]
    plant(monkeypatch)
    # A log density is wrong at every draw.
    verdict = judge(MODELS[model], 3 * FIRST if kind == "law" else 2, math.inf)
    assert (verdict.result, verdict.kind) == ("failed", kind), verdict.says
