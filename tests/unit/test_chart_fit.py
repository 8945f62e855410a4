"""The constants of a chart, fitted to draws and scores: right, and with little noise from other variables."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_rmhmc.graph_chart.constants import FEWEST_DRAWS, ElementwiseChart

CHART = ElementwiseChart(np.arange(2))


def around_zero(scale: np.ndarray | float, n_draws: int) -> np.ndarray:
    """The moments (t, 4) of two elements with location 0 and a scale that is a number, or one for each draw (t, 1)."""
    return np.hstack([np.zeros((n_draws, 2)), np.broadcast_to(scale, (n_draws, 2))])


def correlated(n_draws: int, seed: int, prior: float = 0.05) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Draws of two effects and a level that data bind together, scores, own scores, and the right w (2,).

    The precision of an effect given the others is two hundred times that of an effect alone.
    """
    rng = np.random.default_rng(seed)
    design = np.column_stack([4.0 + 0.3 * rng.standard_normal((30, 2)), np.ones(30)])
    precision = design.T @ design + np.diag([prior, prior, 0.01])
    covariance = np.linalg.inv(precision)
    draws = rng.multivariate_normal(np.zeros(3), covariance, n_draws)
    own = -prior * draws[:, :2]
    scores = -draws @ precision[:, :2] - own
    return draws[:, :2], scores, own, 1.0 / covariance.diagonal()[:2] - prior


@pytest.mark.parametrize("seed", range(5))
def test_w_is_not_lost_in_what_other_variables_add_to_the_score(seed):
    draws, scores, own, right = correlated(200, seed)
    weight, pull = np.split(CHART.fit(draws, scores, own, around_zero(0.05**-0.5, 200)), 2)
    # The relative error of a variance of 200 draws is 0.1.
    np.testing.assert_allclose(weight, right, rtol=0.4)
    np.testing.assert_allclose(pull, scores.mean(axis=0) + weight * draws.mean(axis=0))


@pytest.mark.parametrize("n_draws", [6, FEWEST_DRAWS, 300])
def test_a_line_is_found_exactly_whatever_the_draws_are(n_draws):
    rng = np.random.default_rng(0)
    draws = 3.0 + rng.standard_normal((n_draws, 2)).cumsum(axis=0)  # far from any posterior
    right, pull = np.array([0.5, 20.0]), np.array([1.0, -3.0])
    scores, own = pull - right * draws, -100.0 * draws
    found = CHART.fit(draws, scores, own, around_zero(0.1, n_draws))
    np.testing.assert_allclose(found, [*right, *pull], rtol=1e-8)


def test_without_data_there_is_no_w():
    """A funnel: its own prior is all that the draws feel, at any scale."""
    rng = np.random.default_rng(1)
    scale = np.exp(1.5 * rng.standard_normal((400, 1)))
    draws = scale * rng.standard_normal((400, 2))
    found = CHART.fit(draws, np.zeros((400, 2)), -draws / scale**2, around_zero(scale, 400))
    np.testing.assert_array_equal(found, 0.0)


def test_weak_data_leave_w_small_next_to_the_prior():
    rng = np.random.default_rng(2)
    scale = np.exp(0.7 * rng.standard_normal((400, 1)))
    weak, others = 0.01, 0.3 * rng.standard_normal((400, 2))
    draws = rng.standard_normal((400, 2)) / np.sqrt(1.0 / scale**2 + weak)
    weight = CHART.fit(draws, others - weak * draws, -draws / scale**2, around_zero(scale, 400))[:2]
    assert (weight * np.median(scale) ** 2 < 0.1).all()


def test_a_heavy_tail_far_out_is_left_where_the_data_have_it():
    """Its prior hardly pulls there: its coordinate must not move with the scale, as a normal one's would."""
    rng = np.random.default_rng(3)
    scale, precision, seen = np.exp(0.4 * rng.standard_normal((400, 1))), 25.0, np.array([30.0, 0.5])
    draws = seen + rng.standard_normal((400, 2)) / np.sqrt(precision)
    moments, own = around_zero(scale, 400), -2.0 * draws / (scale**2 + draws**2)  # of a Cauchy prior
    found = CHART.fit(draws, precision * (seen - draws), own, moments)
    share = np.array([np.median(2.0 / (1.0 + (draws[:, 0] / scale[:, 0]) ** 2)), 1.0])
    np.testing.assert_allclose(found, np.concatenate([precision / share, precision * seen / share]), rtol=1e-6)
    moved = CHART.standardised(draws, moments, found)[:, 0]
    assert abs(np.corrcoef(moved, np.log(scale[:, 0]))[0, 1]) < 4.0 / np.sqrt(400)
