"""Log densities with a sparse Hessian: sums of exponentials, whose derivatives of any order are in closed form."""

from __future__ import annotations

import numpy as np
from scipy import sparse


class ExponentialSum:
    """``log p(x) = Σₖ cₖ exp(aₖ · x)``, with sparse rows aₖ.

    Its products touch only the entries that are there, as compiled code of a model would: nan times 0 is nan.
    The terms of `branch` count only where the first parameter is positive.
    """

    def __init__(self, d, terms, branch=()):
        every = [*terms, *branch]
        self.d = d
        self._weights = np.array([weight for weight, _ in every])
        self._branched = np.arange(len(every)) >= len(terms)
        places = [(row, i, slope) for row, (_, slopes) in enumerate(every) for i, slope in slopes.items()]
        row, column, slope = zip(*places, strict=True)
        self._rows = sparse.csr_array((slope, (row, column)), shape=(len(every), d))

    def _terms(self, x):
        """The sparse rows that count at x, and the terms there."""
        taken = np.flatnonzero(~self._branched | (x[0] > 0.0))
        rows = self._rows[taken]
        return rows, self._weights[taken] * np.exp(rows @ x)

    def hessian(self, x):
        rows, terms = self._terms(x)
        return (rows.T @ sparse.diags_array(terms) @ rows).toarray()

    def products(self, x, vectors):
        rows, terms = self._terms(x)
        return (rows.T @ (terms[:, None] * (rows @ vectors.T))).T

    def pullback(self, x, vectors, weights):
        rows, terms = self._terms(x)
        return rows.T @ (terms * ((rows @ vectors.T) * (rows @ weights.T)).sum(axis=1))


def groups(n=100):
    """A scale, and groups of one parameter: concave in some, convex in others."""
    terms = [(0.3, {0: -0.5}), *((0.5 - (i % 4), {0: 0.7, i: 1.0}) for i in range(1, n + 1))]
    return ExponentialSum(n + 1, [*terms, *((-0.2, {i: -1.0}) for i in range(1, n + 1))])


def slopes(n=60):
    """Two means, last, and groups of an intercept and a slope."""
    a, b, last = 2 * np.arange(n), 2 * np.arange(n) + 1, 2 * n
    terms = [(-1.0, {i: 1.0, last: -1.0}) for i in a] + [(-0.7, {i: -0.5, last + 1: 1.0}) for i in b]
    return ExponentialSum(2 * n + 2, [*terms, *((0.4, {i: 0.6, j: 0.8}) for i, j in zip(a, b, strict=True))])


def crossed(n=80, m=4):
    """Two factors; of the second every level meets every level of the first."""
    terms = [(-1.0, {i: 1.0, n + j: 0.5 + 0.1 * j}) for i in range(n) for j in range(m)]
    return ExponentialSum(n + m, terms)


def uneven():
    """Two parameters that all others are coupled to, and blocks of 1 to 8 parameters."""
    terms, first = [(-1.0, {0: 0.3, 1: -0.2})], 2
    for size in [1, 2, 3, 5, 8] * 6:
        block = range(first, first + size)
        terms += [(-0.3 + 0.1 * (i % 5), {0: 0.2, 1: 0.1 * (1 + i % 3), i: 1.0}) for i in block]
        terms.append((0.5, {i: 0.2 + 0.1 * (i % 4) for i in block}))
        first += size
    return ExponentialSum(first, terms)


def branched(n=60):
    """`slopes`-like pairs that are coupled only where the first parameter is positive."""
    terms = [(-1.0, {0: 0.5, i: 1.0}) for i in range(1, 2 * n + 1)]
    return ExponentialSum(2 * n + 1, terms, [(0.8, {i: 1.0, i + n: -1.0}) for i in range(1, n + 1)])


TOYS = {"groups": groups, "slopes": slopes, "crossed": crossed, "uneven": uneven}
