"""All models of the catalogue by name: first those with a bar, then public ones, then one of each other kind."""

from __future__ import annotations

from benchmarks.catalogue.entry import Entry
from benchmarks.catalogue.families import FAMILIES
from benchmarks.catalogue.headline import HEADLINE, LARGER
from benchmarks.catalogue.hierarchies import HIERARCHIES
from benchmarks.catalogue.processes import PROCESSES
from benchmarks.catalogue.regressions import REGRESSIONS
from benchmarks.catalogue.series import SERIES

__all__ = ["ALL", "CATALOGUE", "GROUPS"]

GROUPS: dict[str, tuple[str, ...]] = {
    "asked": (
        "funnel 10", "funnel 100", "funnel 1000", "eight schools", "horseshoe", "gamma-poisson", "student t slopes",
        "gp.Marginal 200", "gp.Marginal 500", "logistic australian", "logistic german", "logistic heart",
        "logistic pima", "logistic ripley",
    ),
    "public": (
        "correlated slopes", "correlated slopes centred", "wine judges", "measurement error", "paired experiment",
        "GP student t", "structural series", "local linear trend", "walk smoother", "item response", "ordinal GP",
        "censored GP", "censored GP, free level",
    ),
    "kinds": (
        "beta effects", "gamma effects", "exponential rates", "laplace effects", "softmax choice", "multinomial",
        "observed AR", "VAR", "structural equations", "weibull survival", "zero-sum effects", "custom prior",
        "network", "two exponentials", "mixture",
    ),
    "headline": tuple(HEADLINE),
}  # fmt: skip
ALL = HIERARCHIES | PROCESSES | SERIES | REGRESSIONS | FAMILIES | LARGER
CATALOGUE: dict[str, Entry] = {name: ALL[name] for names in GROUPS.values() for name in names}
