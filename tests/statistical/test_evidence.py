"""Whether errors of the evidence are what they say, over a hundred seeds of models whose evidence is known."""

from __future__ import annotations

from functools import cache

import numpy as np
import pymc as pm
import pytest
from scipy import integrate, special, stats

from pymc_rmhmc.evidence.evidence_draws import ChainDraws, tuned_chain, values_of_chain, values_of_prior
from pymc_rmhmc.evidence.evidence_models import read_model
from pymc_rmhmc.evidence.evidence_references import start_of_whole, whole_reference
from pymc_rmhmc.evidence.methods.annealing import adaptive_ladder, annealed_evidence, flat_particles
from pymc_rmhmc.evidence.methods.bridge import BRIDGE, HEAVY_BRIDGE, AdaptiveBridge
from pymc_rmhmc.evidence.methods.estimate import Progress
from pymc_rmhmc.evidence.methods.importance import importance_evidence, with_fitting_tails
from pymc_rmhmc.evidence.methods.tempering import Tempering
from tests.steps.test_log_evidence import eight_schools, regression
from tests.unit.evidence_toys import NormalBlock

pytestmark = pytest.mark.slow

SEEDS = 100
# How much of the likelihood the reference has.
SHARES = {"gp": 0.4, "gp, nearly": 0.95}
# Heavy tails take longer; the root mean square of so many z-scores lies between these quantiles.
HEAVY_SEEDS, LEAST_PROBABLE = 25, 1e-3
GRID = (np.arange(1500) + 0.5) / 1500


def vague(prior, law):
    """A prior with heavy tails, and one datum that says little."""
    with pm.Model() as model:
        pm.Normal("y", prior("x"), 100.0, observed=[0.5])

    def joint(x):
        return law.pdf(x) * stats.norm.pdf(0.5, x, 100.0)

    edges = (-4000.0, -100.0, -1.0, 1.0, 100.0, 4000.0)
    pieces = zip(edges[:-1], edges[1:], strict=True)
    return model, float(np.log(sum(integrate.quad(joint, a, b, limit=500, epsabs=1e-14)[0] for a, b in pieces)))


def horseshoe():
    """Of four means, with the exact value by quadrature over the scales."""
    y = np.array([0.3, -1.2, 4.0, 0.1])
    with pm.Model() as model:
        tau, scales = pm.HalfCauchy("tau", 1.0), pm.HalfCauchy("scales", 1.0, shape=4)
        pm.Normal("y", pm.Normal("b", 0.0, tau * scales, shape=4), 1.0, observed=y)
    halves = np.tan(0.5 * np.pi * GRID)
    given = [np.prod([stats.norm.pdf(each, 0.0, np.hypot(1.0, t * halves)).mean() for each in y]) for t in halves]
    return model, float(np.log(np.mean(given)))


def logistic():
    """With Cauchy coefficients."""
    rng = np.random.default_rng(3)
    z = rng.standard_normal(20)
    y = (rng.random(20) < special.expit(0.5 + 1.5 * z)).astype(int)
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=pm.Cauchy("a", 0.0, 10.0) + pm.Cauchy("b", 0.0, 2.5) * z, observed=y)
    a, b = (stats.cauchy.ppf(GRID, 0.0, scale) for scale in (10.0, 2.5))
    logs = sum(special.log_expit((2 * k - 1) * (a[:, None] + b * x)) for k, x in zip(y, z, strict=True))
    return model, float(special.logsumexp(logs) - 2.0 * np.log(GRID.size))


HEAVY = {
    "Cauchy": lambda: vague(lambda name: pm.Cauchy(name, 0.0, 1.0), stats.cauchy),
    "horseshoe": horseshoe, "logistic": logistic,
}  # fmt: skip
MODELS = {"regression": regression, "eight schools": eight_schools, **HEAVY}


@cache
def read_problem(name):
    model, exact = MODELS[name]()
    return read_model(model), exact


@cache
def problem(name):
    """The reference, what is known, and what draws from the posterior if that is a chain."""
    if name in SHARES:
        block = NormalBlock(n=20, share=SHARES[name], sigma=0.5)
        return block.reference, block.log_evidence - block.reference.log_constant, None
    read, exact = read_problem(name)
    rng = np.random.default_rng(0)
    chain = tuned_chain(read, rng)
    if name in HEAVY:
        reference, is_heavy = whole_reference(chain, values_of_prior(read, rng), values_of_chain(chain, read, rng), rng)
        assert is_heavy
        return reference, exact - reference.log_constant, None
    reference = chain.reference()
    return reference, exact - reference.log_constant, lambda rng: ChainDraws(chain, read, rng)


def bridge(name, rng):
    reference, _, source = problem(name)
    draws = None if source is None else source(rng)
    policy = HEAVY_BRIDGE if name in HEAVY else BRIDGE
    return AdaptiveBridge(reference, 64, rng, draws, policy).run(Progress(1.0))


def walked(name, rng):
    """A bridge whose last draws are its own."""
    return AdaptiveBridge(problem(name)[0], 64, rng).run(Progress(1.0))


@cache
def annealed(name):
    """The reference and the ladder of all seeds: both are chosen beforehand."""
    rng, reference = np.random.default_rng(0), problem(name)[0]
    if name not in SHARES:
        reference = with_fitting_tails(reference, rng)
    return reference, adaptive_ladder(reference, 64, rng)


def annealing(name, rng):
    reference, ladder = annealed(name)
    make = flat_particles(reference, ladder, rng)
    # An error is right for many states: of some dozens that carry the weight it is too small.
    count = 256 if name == "eight schools" else 128
    return annealed_evidence(make, ladder.betas, count, rng, Progress(1.0), bounds=False)


def importance(name, rng):
    return importance_evidence(problem(name)[0], 64, rng, Progress(1.0))


@cache
def tempered_start(name):
    """What parallel tempering begins with."""
    return start_of_whole(read_problem(name)[0], np.random.default_rng(0))


def tempering(name, rng):
    n = 400  # an effective draw of the log density of eight schools takes four
    reference, refit = tempered_start(name)
    found = Tempering(reference, 2, rng, refit=refit).run(n, n, Progress(np.inf))
    return found.estimate.shifted(found.reference.log_constant - problem(name)[0].log_constant)


METHODS = {each.__name__: each for each in (bridge, walked, annealing, importance, tempering)}
# Weights of annealing on the process are looked at below, and tempering of a normal in `test_tempering`.
CASES = [
    ("gp", "walked"), ("regression", "bridge"), ("regression", "annealing"), ("gp, nearly", "importance"),
    ("eight schools", "bridge"), ("eight schools", "annealing"), ("eight schools", "tempering"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "method"), CASES)
def test_errors_are_what_they_say(name, method):
    exact = problem(name)[1]
    found = [METHODS[method](name, np.random.default_rng(seed)) for seed in range(SEEDS)]
    z = np.array([(each.log_evidence - exact) / each.standard_error for each in found])
    assert 0.8 < np.sqrt(np.mean(z**2)) < 1.2, np.round(z, 1)
    assert abs(z.mean()) < 5.0 / np.sqrt(SEEDS)


@pytest.mark.parametrize("name", HEAVY)
def test_errors_under_heavy_tails_are_what_they_say(name):
    exact = problem(name)[1]
    found = [bridge(name, np.random.default_rng(seed)) for seed in range(HEAVY_SEEDS)]
    z = np.array([(each.log_evidence - exact) / each.standard_error for each in found])
    low, high = stats.chi2(HEAVY_SEEDS).ppf([LEAST_PROBABLE, 1.0 - LEAST_PROBABLE])
    assert low < (z**2).sum() < high, np.round(z, 1)
    assert abs(z.mean()) < 4.0 / np.sqrt(HEAVY_SEEDS)


@pytest.mark.parametrize("name", ["gp"])
def test_weights_of_annealing_are_unbiased(name):
    """Of Z, and not of its logarithm: the mean of many crude runs."""
    reference, exact, _ = problem(name)
    ratios = []
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        ladder = adaptive_ladder(reference, 16, rng)
        make = flat_particles(reference, ladder, rng)
        found = annealed_evidence(make, ladder.betas, 128, rng, Progress(10.0), bounds=False)
        ratios.append(np.exp(found.log_evidence - exact))
    assert abs(np.mean(ratios) - 1.0) < 4.0 * np.std(ratios) / np.sqrt(SEEDS)
