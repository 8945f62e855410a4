"""The second try of a path that large energy errors refused: the same path in finer steps.

A path in steps that suit most of a posterior cannot enter a part of it that is much thinner, nor leave it. Where the
error of such a path exceeds `RETRIED_ABOVE`, its length is walked again in `FINER` times as many steps. The end z' of
the second path is kept so often that the chain stays exact: the coarse path back from z' must be one that would be
tried again as well, and

    probability = min(1, exp(-error) (1 - a(z' back)) / (1 - a(z)))

with a the acceptance of the coarse path. Where errors are small nothing is tried again, and nothing is spent.

References
----------
Tierney and Mira (1999), Some adaptive Monte Carlo methods for Bayesian inference; Modi, Barnett and Carpenter (2024),
Delayed rejection Hamiltonian Monte Carlo for sampling multiscale distributions, section 3.
"""

from __future__ import annotations

import math

from pymc_rmhmc.linalg.compiled.compilation import compiled

__all__ = ["FINER", "RETRIED_ABOVE", "accepts_retry", "chance"]

# On ridges like those of benchmarks/ridges.py, thin tails mix best with a second try above 0.5 to 2, in steps 2.5 to 4
# times as fine. Above 2 it costs next to nothing where steps suit the whole posterior: 1 path in 200 errs by so much.
RETRIED_ABOVE, FINER = 2.0, 4


@compiled
def chance(error: float) -> float:
    """Return the acceptance of an energy error; 0 where it is no number."""
    return math.exp(min(0.0, -error)) if error < math.inf else 0.0


@compiled
def accepts_retry(uniform: float, first: float, error: float, back: float) -> bool:
    """Return whether the end of the second path is kept.

    `uniform`: the number that refused the first path: it was not below `first`, and above that it is uniform still.
    `first`: acceptance of the first path.
    `error`, `back`: energy errors of the second path, and of the coarse path back from its end; infinite where one
      failed.
    """
    return back > RETRIED_ABOVE and uniform < first + math.exp(-error) * (1.0 - chance(back))
