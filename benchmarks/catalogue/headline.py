"""The models of the documentation's one table: a few of each kind, each under what a reader would call it."""

from __future__ import annotations

from functools import partial

from benchmarks import field_problems, predictor_problems
from benchmarks.catalogue.entry import Entry
from benchmarks.joint_problems import JointProblem, regression
from benchmarks.linear_problems import hsgp, mixed

__all__ = ["HEADLINE", "LARGER"]

FIELDS, SEVERAL = field_problems.PROBLEMS, predictor_problems.PROBLEMS


def _both(problem: JointProblem) -> Entry:
    """The centred form, and the whitened one, which is PyMC's own for a process."""
    return Entry(problem.centred, problem.whitened, names=problem.parameters)


# Models of the other benchmarks.
LARGER: dict[str, Entry] = {
    "logit 100": _both(regression("logit")),
    "poisson 100": _both(regression("poisson")),
    "poisson 300": _both(regression("poisson", 300)),
    "student t 100": _both(regression("student t")),
    "three classes": Entry(SEVERAL["three_classes"]),
    "mean and noise": Entry(SEVERAL["mean_and_noise"]),
    "effects on both": Entry(SEVERAL["effects_on_both"]),
    "hsgp 100": _both(hsgp()),
    "mixed poisson 400": _both(mixed("poisson", 400)),
    "crossed effects": Entry(FIELDS["crossed_effects"]),
    "volatility 2000": Entry(FIELDS["stochastic_volatility"]),
    "trend and season": Entry(FIELDS["trend_and_season"]),
    "bym2 484": Entry(partial(FIELDS["bym2"], 22)),
}
HEADLINE: dict[str, str] = {
    "poisson 100": "Gaussian process, 100 counts",
    "poisson 300": "Gaussian process, 300 counts",
    "logit 100": "Gaussian process, 100 times yes or no",
    "student t 100": "Gaussian process, 100 values with outliers",
    "three classes": "Gaussian processes of three classes, 100 points",
    "mean and noise": "Gaussian processes for mean and noise, 133 points",
    "volatility 2000": "volatility of 2000 days",
    "trend and season": "trend and season, 200 weeks",
    "bym2 484": "disease map (BYM2), 484 areas",
    "crossed effects": "crossed effects, 3000 and 200",
    "hsgp 100": "HSGP of 100 functions, 500 counts",
    "mixed poisson 400": "effects of 400 groups, 2000 counts",
    "effects on both": "effects of 200 groups on mean and spread",
    "correlated slopes": "correlated slopes, 85 counties",
    "item response": "item response",
    "horseshoe": "horseshoe, 50 coefficients",
    "funnel 10": "funnel of 10 groups, as written",
    "eight schools": "eight schools",
    "walk smoother": "walk with plain noise, 100 values",
}
