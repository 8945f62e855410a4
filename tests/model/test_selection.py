"""Which models are sampled in the chart of their graph, and why: read from the model, nothing is compiled."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_rmhmc import describe

N = 12
# One has none, so that no field is read.
NEIGHBOURS = np.pad(np.eye(N - 1, k=1) + np.eye(N - 1, k=-1), (0, 1))
MIXED, FAR = "y mixes distributions", "x lies over 1e+05 prior standard deviations from 0"


def two_parts(rng):
    level, slopes = pm.Normal("level"), pm.Normal("slopes", shape=2)
    share, spread = pm.Beta("share", 1.0, 1.0), pm.HalfNormal("spread")
    predictor = level + pt.dot(rng.normal(size=(N, 2)), slopes)
    parts = [pm.Normal.dist(0.0, 0.3), pm.Normal.dist(predictor, spread)]
    pm.Mixture("y", pt.stack([share, 1.0 - share]), parts, observed=rng.normal(size=N))


def ordered_means(rng):
    first, gap = pm.Normal("first"), pm.HalfNormal("gap")
    pm.NormalMixture("y", [0.4, 0.6], pt.stack([first, first + gap]), 1.0, observed=rng.normal(size=N))


def excess_of_zeros(rng):
    slopes, share, alpha = pm.Normal("slopes", shape=8), pm.Beta("share", 1.0, 1.0), pm.Exponential("alpha", 1.0)
    rates = pt.exp(pt.dot(rng.normal(size=(N, 8)), slopes))
    pm.ZeroInflatedNegativeBinomial("y", share, rates, alpha, observed=np.arange(N) % 3)


def hurdle(rng):
    effects = pm.Normal("effects", pm.Normal("level"), pm.HalfNormal("scale"), shape=4)
    share, k = pm.Beta("share", 1.0, 1.0), pm.Exponential("k", 1.0)
    pm.HurdleGamma("y", share, k, k / pt.exp(effects[np.arange(N) % 4]), observed=np.arange(N) % 3 * 1.0)


def part_of_few_values(rng):
    """What is not a mixture itself, but reads a distribution within another."""
    effects = pm.Normal("effects", pm.Normal("level"), pm.HalfNormal("scale"), shape=4)
    pm.Censored("y", pm.Normal.dist(effects[np.arange(N) % 4], 1.0), None, 1.0, observed=np.zeros(N))


def maps_in_time(rng):
    alpha, tau = pm.Beta("alpha", 2.0, 1.0), pm.Gamma("tau", 2.0, 1.0)
    first = pm.CAR("first", np.zeros(N), NEIGHBOURS, alpha, tau)
    second = pm.CAR("second", first, NEIGHBOURS, alpha, tau)
    pm.Poisson("y", pt.exp(pt.stack([first, second])), observed=rng.poisson(2.0, size=(2, N)))


def map_about_regions(rng):
    regions = pm.Normal("regions", pm.Normal("mean"), pm.HalfNormal("between"), shape=3)
    areas = pm.CAR("areas", regions[np.arange(N) % 3], NEIGHBOURS, 0.9, pm.Gamma("tau", 2.0, 2.0))
    pm.Poisson("y", pt.exp(areas), observed=rng.poisson(2.0, size=N))


def a_number_far_from_zero(rng):
    pm.Normal("y", pm.Normal("x", 1e9, 10.0), 5.0, observed=1e9 + rng.normal(size=N))


def a_walk_far_from_zero(rng):
    start = pm.Normal.dist(-1e9, 10.0)
    x = pm.GaussianRandomWalk("x", 0.0, pm.HalfNormal("s"), init_dist=start, steps=N - 1)
    pm.Normal("y", x, 1.0, observed=rng.normal(size=N) - 1e9)


def rows_far_from_zero(rng):
    x = pm.MvNormal("x", [0.0, 1e-3, 0.0], cov=pm.HalfNormal("s") * 1e-18 * np.eye(3), shape=(2, 3))
    pm.Normal("y", x, 1e-9, observed=np.zeros((2, 3)))


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (two_parts, MIXED), (ordered_means, MIXED), (excess_of_zeros, MIXED), (hurdle, MIXED),
        (part_of_few_values, "the values of effects are independent"),
        (maps_in_time, "first is in the prior mean of second"),
        (map_about_regions, "regions is in the prior mean"),
        (a_number_far_from_zero, FAR), (a_walk_far_from_zero, FAR), (rows_far_from_zero, FAR),
    ],
)  # fmt: skip
def test_the_graphs_chart_is_taken(build, why):
    with pm.Model() as model:
        build(np.random.default_rng(1))
    description = describe(model)
    assert description.why.startswith(why)
    assert description.left_over == {}


def a_few_coefficients(rng, n=N, columns=8, scale=1.0):
    predictor = pt.dot(rng.normal(size=(n, columns)), pm.Normal("slopes", 0.0, scale, shape=columns))
    pm.Normal("y", predictor, pm.HalfNormal("noise"), observed=np.zeros(n))


def many_coefficients(rng):
    a_few_coefficients(rng, 80, 60)


def coefficients_of_many_rows(rng):
    a_few_coefficients(rng, 30_000, 8)


def basis(rng):
    a_few_coefficients(rng, scale=pm.math.exp(-pm.HalfNormal("lengthscale") * np.arange(8)))


@pytest.mark.parametrize(
    ("build", "in_blocks"),
    [(a_few_coefficients, False), (many_coefficients, True), (coefficients_of_many_rows, True), (basis, True)],
)
def test_coefficients_of_a_basis_or_of_many_rows_keep_their_block(build, in_blocks):
    """Few of few rows are faster in the graph's chart, where each gradient costs less and there are more of them."""
    with pm.Model() as model:
        build(np.random.default_rng(1))
    description = describe(model)
    assert [block.name for block in description.blocks] == ["slopes"] * in_blocks
    assert in_blocks or description.why == "the values of slopes are independent given the other variables"


def test_vectors_under_a_mixture_keep_their_covariance():
    """Their blocks hold a matrix that a chart of single values has not."""
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, pm.Gamma("lengthscale", 3.0, 1.0))).prior(
            "f", np.arange(N)[:, None]
        )
        parts = [pm.Normal.dist(f, 0.3), pm.Normal.dist(f, 3.0)]
        pm.Mixture("y", [0.8, 0.2], parts, observed=np.zeros(N))
    assert [block.name for block in describe(model).blocks] == ["f"]
