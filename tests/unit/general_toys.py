"""Densities for the compiled loops, and trajectories over them written out in plain NumPy.

The loops are compared with these step for step and choice for choice. `RandomState` and the random numbers of Numba
give one stream for one seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numba
import numpy as np

from pymc_rmhmc.graph_chart.graph_target import GeneralTarget
from pymc_rmhmc.graph_chart.path_loops import FlatMap

MAX_ENERGY_ERROR = 1000.0
D = 4
CORRELATED = np.array([[1.0, 0.6, 0.0, 0.2], [0.6, 1.5, -0.3, 0.0], [0.0, -0.3, 0.7, 0.1], [0.2, 0.0, 0.1, 2.0]])


@numba.njit
def funnel(z, chart):
    """``v ~ N(0, 1.5²)``, and the others normal with the standard deviation exp(v/2)."""
    found = np.zeros(2 * z.size + 1)
    precision, square = math.exp(-z[0]), 0.0
    for i in range(1, z.size):
        square += z[i] * z[i]
        found[i] = -precision * z[i]
    found[0] = -z[0] / 2.25 + 0.5 * precision * square - 0.5 * (z.size - 1)
    found[z.size : 2 * z.size] = z
    return np.array(-0.5 * z[0] ** 2 / 2.25 - 0.5 * precision * square - 0.5 * (z.size - 1) * z[0]), found


@numba.njit
def normal(z, chart, precision):
    """A normal density of mean 0."""
    found = np.zeros(2 * z.size + 1)
    found[: z.size] = -(precision @ z)
    found[z.size : 2 * z.size] = z
    return np.array(0.5 * (z @ found[: z.size])), found


@numba.njit
def bounded(z, chart):
    """A standard normal density that ends at z = 1."""
    found = np.zeros(2 * z.size + 1)
    found[: z.size] = -z
    found[z.size : 2 * z.size] = z
    return np.array(-0.5 * (z @ z) if z.max() < 1.0 else np.nan), found


def flat_map(seed: int = 0) -> FlatMap:
    """A map with a dense block of the first and the last coordinate, and a wide and a narrow direction."""
    rng = np.random.default_rng(seed)
    factor, spread = np.array([[0.9, 0.0], [0.3, 0.6]]), np.array([1.0, 0.7, 0.5, 1.0])
    return FlatMap(0.2 * rng.standard_normal(D), spread, np.array([0, D - 1]), factor, *directions(D))


def directions(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Two orthonormal directions (2, size), and how much longer each is made, less 1."""
    made = np.linalg.qr(np.random.default_rng(7).standard_normal((size, 2)))[0].T
    return np.ascontiguousarray(made), np.array([0.4, -0.3])


def matrix_of(flat: FlatMap) -> np.ndarray:
    """S (d, d)."""
    dense = np.diag(flat.spread)
    dense[np.ix_(flat.dense, flat.dense)] = flat.factor
    v = flat.directions
    return dense @ (np.eye(flat.spread.size) + v.T @ np.diag(flat.stretches) @ v)


@dataclass
class Problem:
    """One density, as the loops take it and as the reference does."""

    function: object
    rest: tuple = ()
    flat: FlatMap = None

    def __post_init__(self):
        self.flat = flat_map() if self.flat is None else self.flat
        self.target = GeneralTarget(self.function, self.rest, np.zeros(0), self.flat)
        self.matrix = matrix_of(self.flat)

    def phi(self, u):
        """φ and its gradient, with dense algebra."""
        value, found = self.function(self.flat.centre + self.matrix @ u, np.zeros(0), *self.rest)
        return float(value) + 0.5 * u @ u, self.matrix.T @ found[: u.size] + u

    def energy(self, u, p):
        return 0.5 * (u @ u + p @ p) - self.phi(u)[0]

    def path(self, u, p, n_steps, size):
        """The end of so many steps, and its energy error."""
        at = (u, p)
        for _ in range(n_steps):
            at = self.step(*at, size)
        return at, self.energy(*at) - self.energy(u, p)

    def step(self, u, p, size):
        """Half a kick, a rotation, half a kick."""
        p = p + 0.5 * size * self.phi(u)[1]
        u, p = math.cos(size) * u + math.sin(size) * p, math.cos(size) * p - math.sin(size) * u
        return u, p + 0.5 * size * self.phi(u)[1]


FUNNEL, NORMAL = Problem(funnel), Problem(normal, (np.ascontiguousarray(np.linalg.inv(CORRELATED)),))
BOUNDED = Problem(bounded)


def turns(part) -> bool:
    """Whether states (u, p) in the order in which they were made turn back: by the way between its ends.

    The way is the integral of the momentum by the trapezoidal rule.
    """
    momenta = np.array([p for _, p in part])
    way = 0.5 * (momenta[1:] + momenta[:-1]).sum(axis=0)
    return bool(momenta[0] @ way <= 0.0 or momenta[-1] @ way <= 0.0)


def whole_trees(n_leaves: int):
    """Which parts of a half are trees of their own, by where they begin and end, the first to end first."""
    sizes = [2**k for k in range(1, n_leaves.bit_length())]
    return sorted(((start, start + s) for s in sizes for start in range(0, n_leaves, s)), key=lambda part: part[1])


@dataclass
class Grown:
    """What a trajectory that doubles has led to."""

    u: np.ndarray
    p: np.ndarray
    acceptance: float
    n_steps: int
    moved: bool
    failed: bool = False


def grow(problem: Problem, u, p, size: float, max_depth: int, random: np.random.RandomState) -> Grown:
    """A multinomial trajectory; Betancourt (2017), appendix A, with the weights as they stand there."""
    initial = problem.energy(u, p)
    trajectory, chosen, weight, accepted, n_steps, moved = [(u, p)], (u, p), 1.0, 0.0, 0, False
    for depth in range(max_depth):
        forward = random.random_sample() < 0.5
        half, at, of_half, candidate, stops = [], trajectory[-1 if forward else 0], 0.0, None, False
        ends = {}
        for start, end in whole_trees(2**depth):
            ends.setdefault(end, []).append(start)
        for leaf in range(2**depth):
            at = problem.step(*at, size if forward else -size)
            n_steps += 1
            error = problem.energy(*at) - initial
            if not error <= MAX_ENERGY_ERROR:
                return Grown(*chosen, accepted / n_steps, n_steps, moved, failed=True)
            half.append(at)
            accepted += min(1.0, math.exp(-error))
            of_half += math.exp(-error)
            if random.random_sample() < math.exp(-error) / of_half:
                candidate = at
            if any(turns(half[start:]) for start in ends.get(leaf + 1, ())):
                stops = True
                break
        if stops:
            break
        trajectory = trajectory + half if forward else half[::-1] + trajectory
        if random.random_sample() < of_half / weight:
            chosen, moved = candidate, True
        weight += of_half
        if turns(trajectory):
            break
    return Grown(*chosen, accepted / max(n_steps, 1), n_steps, moved)


@dataclass
class Walked:
    """What paths have led to."""

    u: np.ndarray
    p: np.ndarray
    acceptance: float
    n_steps: int
    moved: bool


def walk(
    problem: Problem, u, p, size: float, path: tuple[float, float, int], rounds: int, random: np.random.RandomState
) -> Walked:
    """Paths of a length drawn for each, the first with a given momentum."""
    length, jitter, most = path
    accepted, total, moved = [], 0, False
    for one in range(rounds):
        p = random.standard_normal(u.size) if one else p
        drawn, uniform = length * (1.0 + jitter * random.uniform(-1.0, 1.0)), random.random_sample()
        steps = math.ceil(drawn / size)
        steps, each = (most, size) if steps > most else (steps, drawn / steps)
        at, error = problem.path(u, p, steps, each)
        total += steps
        accepted.append(min(1.0, math.exp(-error)))
        keeps = 1.0 - uniform < accepted[-1]
        if not keeps and error > 2.0:
            finer = min(4 * steps, most)
            at, again = problem.path(u, p, finer, each / 4.0)
            back = problem.path(*at, steps, -each)[1]
            total += finer + steps
            left = math.exp(-again) * (1.0 - min(1.0, math.exp(-back)) if back > 2.0 else 0.0)
            keeps = (1.0 - uniform - accepted[-1]) / (1.0 - accepted[-1]) < min(1.0, left / (1.0 - accepted[-1]))
        if keeps:
            (u, p), moved = at, True
    return Walked(u, p, float(np.mean(accepted)), total, moved)
