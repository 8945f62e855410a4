"""Whether errors of the evidence are what they say, over a hundred seeds of models whose evidence is known."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from pymc_rmhmc.evidence.annealing import adaptive_ladder, annealed_evidence, flat_particles
from pymc_rmhmc.evidence.bridge import AdaptiveBridge
from pymc_rmhmc.evidence.estimate import Budget, Progress
from pymc_rmhmc.evidence.family import FixedFamily
from pymc_rmhmc.evidence.importance import importance_evidence
from pymc_rmhmc.evidence.tails import with_fitting_tails
from pymc_rmhmc.evidence.tempering import temper
from pymc_rmhmc.steps.evidence_draws import ChainDraws, tuned_chain
from pymc_rmhmc.steps.evidence_models import read_model
from pymc_rmhmc.steps.tempering_families import whole_family
from tests.steps.test_log_evidence import eight_schools, regression
from tests.unit.evidence_toys import NormalBlock

pytestmark = pytest.mark.slow

SEEDS = 100
# How much of the likelihood the reference has.
SHARES = {"gp": 0.4, "gp, nearly": 0.95}
MODELS = {"regression": regression, "eight schools": eight_schools}


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
    chain = tuned_chain(read, np.random.default_rng(0))
    reference = chain.reference()
    return reference, exact - reference.log_constant, lambda rng: ChainDraws(chain, read, rng)


def bridge(name, rng):
    reference, _, source = problem(name)
    budget = Budget(1.0)
    draws = None if source is None else source(rng)
    return AdaptiveBridge(reference, 64, rng, draws).run(budget, Progress(budget))


def walked(name, rng):
    """A bridge whose last draws are its own."""
    budget = Budget(1.0)
    return AdaptiveBridge(problem(name)[0], 64, rng).run(budget, Progress(budget))


@cache
def annealed(name):
    """The reference and the ladder of all seeds: both are chosen beforehand."""
    rng, reference = np.random.default_rng(0), problem(name)[0]
    if name not in SHARES:
        reference = with_fitting_tails(reference, rng)
    return reference, adaptive_ladder(reference, 64, rng)


def annealing(name, rng):
    (reference, ladder), budget = annealed(name), Budget(1.0)
    make = flat_particles(reference, ladder, rng)
    # An error is right for many states: of some dozens that carry the weight it is too small.
    count = 256 if name == "eight schools" else 128
    return annealed_evidence(make, ladder, count, rng, budget, Progress(budget), bounds=False)


def importance(name, rng):
    budget = Budget(1.0)
    return importance_evidence(problem(name)[0], 64, rng, budget, Progress(budget))


@cache
def tempered_family(name):
    """What parallel tempering begins with."""
    if name in SHARES:
        return FixedFamily(problem(name)[0])
    return whole_family(read_problem(name)[0], np.random.default_rng(0))


def tempering(name, rng):
    budget = Budget(np.inf)
    n = 400 if name == "eight schools" else 300  # an effective draw of its log density takes four
    found = temper(tempered_family(name), draws=n, tune=n, rng=rng, budget=budget, progress=Progress(budget))
    return found.estimate.shifted(found.reference.log_constant - problem(name)[0].log_constant)


METHODS = {each.__name__: each for each in (bridge, walked, annealing, importance, tempering)}
CASES = [
    ("gp", "walked"), ("gp", "annealing"), ("regression", "bridge"), ("regression", "walked"),
    ("regression", "annealing"), ("gp, nearly", "importance"), ("eight schools", "bridge"),
    ("eight schools", "annealing"), ("gp", "tempering"), ("regression", "tempering"), ("eight schools", "tempering"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "method"), CASES)
def test_errors_are_what_they_say(name, method):
    exact = problem(name)[1]
    found = [METHODS[method](name, np.random.default_rng(seed)) for seed in range(SEEDS)]
    z = np.array([(each.log_evidence - exact) / each.standard_error for each in found])
    assert 0.8 < np.sqrt(np.mean(z**2)) < 1.2, np.round(z, 1)
    assert abs(z.mean()) < 5.0 / np.sqrt(SEEDS)


@pytest.mark.parametrize("name", ["gp"])
def test_weights_of_annealing_are_unbiased(name):
    """Of Z, and not of its logarithm: the mean of many crude runs."""
    reference, exact, _ = problem(name)
    ratios = []
    for seed in range(SEEDS):
        rng, budget = np.random.default_rng(seed), Budget(10.0)
        ladder = adaptive_ladder(reference, 16, rng)
        found = annealed_evidence(
            flat_particles(reference, ladder, rng), ladder, 128, rng, budget, Progress(budget), bounds=False
        )
        ratios.append(np.exp(found.log_evidence - exact))
    assert abs(np.mean(ratios) - 1.0) < 4.0 * np.std(ratios) / np.sqrt(SEEDS)
