"""Trajectories in compiled code: of a model's density at an address, in coordinates u with ``z = c + S u``.

The Hamiltonian is ``½ uᵀu + ½ pᵀp - φ(u)`` with ``φ(u) = log density(c + S u) + ½ uᵀu``. A step is half a kick by ∇φ,
the exact rotation of every pair (u, p), and half a kick. One loop, kept on disk, serves every model.

An angle's u is *free*: it has no Gaussian part. The gradient of the log density alone kicks it, and it drifts on
straight. So a step commutes with a move by a period, and is one on the circle.

``S = B (1 + Vᵀ diag(stretches) V)``. B is diagonal but for one dense block: `dense` says which coordinates are in it,
and `factor` is its lower triangle. The rows of V are a few directions that are wider or narrower than B has them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.dynamics.delayed_rejection import FINER, RETRIED_ABOVE, accepts_retry, chance
from pymc_rmhmc.dynamics.hamiltonian import turned
from pymc_rmhmc.errors import MAX_ENERGY_ERROR
from pymc_rmhmc.graph_chart.constants import NO_ANGLES
from pymc_rmhmc.linalg.compiled.compilation import compiled
from pymc_rmhmc.linalg.compiled.native import call_for_value_and_slope

__all__ = ["FlatMap", "State", "evaluate", "follow_path", "grow_trees", "walk_paths"]

type Array = NDArray[np.float64]
# U, φ, its gradient, and what the model's function returns besides its value.
type State = tuple[Array, float, Array, Array]


class FlatMap(NamedTuple):
    """``z = c + S u``."""

    # `centre`, `spread`: (d,), C, and B's diagonal where it is diagonal.
    centre: Array
    spread: Array
    dense: NDArray[np.int64]  # (k,): the coordinates of the dense block
    factor: Array  # (k, k): its lower triangle
    directions: Array  # (r, d): V, with orthonormal rows
    stretches: Array  # (r,): how much longer each of them is made, less 1
    # (m,): the coordinates without a Gaussian part. No other coordinate of z depends on them.
    free: NDArray[np.int64] = NO_ANGLES.places


@compiled
def _stretched(directions: Array, stretches: Array, vector: Array) -> Array:  # pragma: no cover - compiled
    """Return ``(1 + Vᵀ diag(stretches) V) v``."""
    made = vector.copy()
    for row in range(stretches.size):
        along = 0.0
        for i in range(vector.size):
            along += directions[row, i] * vector[i]
        along *= stretches[row]
        for i in range(vector.size):
            made[i] += along * directions[row, i]
    return made


@compiled
def evaluate(  # pragma: no cover - compiled
    address: int, rest: tuple[np.ndarray, ...], chart: Array, flat: FlatMap, u: Array
) -> tuple[float, Array, Array]:
    """Return φ, its gradient (d,), and what else the model's function returns."""
    d, k = u.size, flat.dense.size
    w = _stretched(flat.directions, flat.stretches, u)
    z = flat.centre + flat.spread * w
    for i in range(k):
        total = 0.0
        for j in range(i + 1):
            total += flat.factor[i, j] * w[flat.dense[j]]
        z[flat.dense[i]] = flat.centre[flat.dense[i]] + total
    value, found = call_for_value_and_slope(address, (z, chart), rest)
    pulled = np.empty(d)
    for i in range(d):
        pulled[i] = flat.spread[i] * found[i]
    for j in range(k):
        total = 0.0
        for i in range(j, k):
            total += flat.factor[i, j] * found[flat.dense[i]]
        pulled[flat.dense[j]] = total
    slope = _stretched(flat.directions, flat.stretches, pulled)
    square = 0.0
    for i in range(d):
        square += u[i] * u[i]
        slope[i] += u[i]
    return value[()] + 0.5 * square, slope, found


@compiled
def _step(  # pragma: no cover - compiled
    address: int, rest: tuple[np.ndarray, ...], chart: Array, flat: FlatMap, u: Array, p: Array, slope: Array,
    step_size: float,
) -> tuple[Array, Array, float, Array, Array]:  # fmt: skip
    """Make half a kick, the rotation and half a kick.

    Return u, p, φ, its gradient, and what the model's function returns besides its value.
    """
    cosine, sine, half = math.cos(step_size), math.sin(step_size), 0.5 * step_size
    to, momentum = np.empty(u.size), np.empty(u.size)
    for i in range(u.size):
        to[i], momentum[i] = turned(u[i], p[i] + half * slope[i], cosine, sine)
    for i in flat.free:
        momentum[i] = p[i] + half * (slope[i] - u[i])
        to[i] = u[i] + step_size * momentum[i]
    phi, new_slope, found = evaluate(address, rest, chart, flat, to)
    for i in range(u.size):
        momentum[i] += half * new_slope[i]
    for i in flat.free:
        momentum[i] -= half * to[i]
    return to, momentum, phi, new_slope, found


@compiled
def _half_square(vector: Array) -> float:  # pragma: no cover - compiled
    total = 0.0
    for i in range(vector.size):
        total += vector[i] * vector[i]
    return 0.5 * total


@compiled
def follow_path(  # pragma: no cover - compiled
    address: int, rest: tuple[np.ndarray, ...], chart: Array, flat: FlatMap, u: Array, p: Array, slope: Array,
    n_steps: int, step_size: float,
) -> tuple[int, bool, Array, Array, float, Array, Array]:  # fmt: skip
    """Make so many steps; stop after one where φ or its gradient is no number."""
    phi, found = 0.0, slope
    for step in range(n_steps):
        u, p, phi, slope, found = _step(address, rest, chart, flat, u, p, slope, step_size)
        if not (math.isfinite(phi) and math.isfinite(_half_square(slope))):
            return step + 1, False, u, p, phi, slope, found
    return n_steps, True, u, p, phi, slope, found


@compiled
def _log_sum(first: float, second: float) -> float:  # pragma: no cover - compiled
    """Return ``log(exp first + exp second)``."""
    high, low = max(first, second), min(first, second)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


@compiled
def _turns(total: Array, first: Array, last: Array) -> bool:  # pragma: no cover - compiled
    """Return whether a stretch of a trajectory turns back, by its summed momenta, and those at its two ends.

    The ends count half, so that the sum is the trapezoidal rule for the way between them.
    """
    behind, ahead = 0.0, 0.0
    for i in range(total.size):
        way = total[i] - 0.5 * (first[i] + last[i])
        behind += first[i] * way
        ahead += last[i] * way
    return behind <= 0.0 or ahead <= 0.0


@compiled
def _popcount(number: int) -> int:  # pragma: no cover - compiled
    count = 0
    while number > 0:
        count += number & 1
        number >>= 1
    return count


@compiled
def _part_turns(  # pragma: no cover - compiled
    leaf: int, total: Array, p: Array, firsts: Array, sums: Array
) -> bool:
    """Return whether a part of a new half that ends with this leaf, and is itself a tree, turns back.

    The first leaf of each part that is not yet whole is kept in `firsts`, with what was summed before it in `sums`.
    """
    level = _popcount(leaf >> 1)
    if leaf % 2 == 0:
        firsts[level] = p
        sums[level] = total - p
        return False
    lowest, bits = level, leaf
    while bits & 1:
        lowest -= 1
        bits >>= 1
    for each in range(level, lowest, -1):
        if _turns(total - sums[each], firsts[each], p):
            return True
    return False


@compiled
def _grow_half(  # pragma: no cover - compiled
    address: int, rest: tuple[np.ndarray, ...], chart: Array, flat: FlatMap, end: State, momentum: Array,
    step_size: float, n_leaves: int, initial: float, firsts: Array, sums: Array,
) -> tuple[State, Array, State, Array, float, Array, float, int, int, bool]:  # fmt: skip
    """Make a new half of a trajectory, beyond one of its ends.

    Returns
    -------
    end, momentum
        The last state.
    chosen, its momentum
        One of the states, drawn by its weight.
    log weight, summed momenta, summed acceptances, steps, failure
        Of the half. The failure is 0, 1 if the density is no number, 2 if the energy error is too large.
    stops
        Whether nothing of it may be chosen: a step failed, or a part of it turns back.
    """
    chosen, chosen_momentum = end, momentum
    weight, total, accepted = -math.inf, np.zeros(momentum.size), 0.0
    for leaf in range(n_leaves):
        u, momentum, phi, slope, found = _step(address, rest, chart, flat, end[0], momentum, end[2], step_size)
        end = (u, phi, slope, found)
        gain = initial - (_half_square(u) + _half_square(momentum) - phi)
        if not (math.isfinite(gain) and math.isfinite(_half_square(slope))):
            return end, momentum, chosen, chosen_momentum, weight, total, accepted, leaf + 1, 1, True
        if gain < -MAX_ENERGY_ERROR:
            return end, momentum, chosen, chosen_momentum, weight, total, accepted, leaf + 1, 2, True
        accepted += math.exp(min(0.0, gain))
        weight = _log_sum(weight, gain)
        if np.random.random() < math.exp(gain - weight):
            chosen, chosen_momentum = end, momentum
        total += momentum
        if _part_turns(leaf, total, momentum, firsts, sums):
            return end, momentum, chosen, chosen_momentum, weight, total, accepted, leaf + 1, 0, True
    return end, momentum, chosen, chosen_momentum, weight, total, accepted, n_leaves, 0, False


@compiled
def grow_tree(  # pragma: no cover - compiled
    address: int, rest: tuple[np.ndarray, ...], chart: Array, flat: FlatMap, start: State, p: Array,
    step_size: float, max_depth: int,
) -> tuple[State, Array, float, int, int, bool]:  # fmt: skip
    """Make a multinomial trajectory that doubles until it turns back; Numba's random numbers are seeded already.

    Returns
    -------
    chosen, its momentum
        The state.
    mean acceptance, steps, failure, moved
        As in `_grow_half`; whether the state is another than the first.
    """
    initial = _half_square(start[0]) + _half_square(p) - start[1]
    chosen, chosen_p, left, left_p, right, right_p = start, p, start, p, start, p
    total, log_weight, accepted, n_steps, failure, moved = p.copy(), 0.0, 0.0, 0, 0, False
    firsts, sums = np.empty((max_depth + 1, p.size)), np.empty((max_depth + 1, p.size))
    for depth in range(max_depth):
        forward = np.random.random() < 0.5
        size = step_size if forward else -step_size
        end, end_p = (right, right_p) if forward else (left, left_p)
        end, end_p, new, new_p, weight, gained, some, made, failure, stops = _grow_half(
            address, rest, chart, flat, end, end_p, size, 2**depth, initial, firsts, sums
        )
        accepted += some
        n_steps += made
        if stops:
            break
        if forward:
            right, right_p = end, end_p
        else:
            left, left_p = end, end_p
        if np.random.random() < math.exp(min(0.0, weight - log_weight)):
            chosen, chosen_p, moved = new, new_p, True
        log_weight = _log_sum(log_weight, weight)
        total += gained
        if _turns(total, left_p, right_p):
            break
    return chosen, chosen_p, accepted / max(n_steps, 1), n_steps, failure, moved


@compiled
def grow_trees(  # pragma: no cover - compiled
    address: int, rest: tuple[np.ndarray, ...], chart: Array, flat: FlatMap, start: State, p: Array,
    step_size: float, max_depth: int, rounds: int, seed: int,
) -> tuple[State, Array, float, float, int, int, bool]:  # fmt: skip
    """Make so many trajectories one after another, the first with a given momentum.

    Returns
    -------
    state, momentum
        After the last.
    energy before the last, mean acceptance, steps, failure, moved
        The failure is the first that there was; moved, whether any led elsewhere.
    """
    np.random.seed(seed)
    state, accepted, n_steps, failure, moved, initial = start, 0.0, 0, 0, False, 0.0
    for one in range(rounds):
        if one > 0:
            p = np.random.standard_normal(p.size)
        initial = _half_square(state[0]) + _half_square(p) - state[1]
        state, p, mean, made, failed, has_moved = grow_tree(
            address, rest, chart, flat, state, p, step_size, max_depth
        )
        accepted += mean
        n_steps += made
        failure = failure if failure > 0 else failed
        moved = moved or has_moved
    return state, p, initial, accepted / rounds, n_steps, failure, moved


@compiled
def _path(  # pragma: no cover - compiled
    address: int, rest: tuple[np.ndarray, ...], chart: Array, flat: FlatMap, start: State, p: Array, n_steps: int,
    step_size: float,
) -> tuple[int, float, State, Array]:  # fmt: skip
    """Follow a path of so many steps: return how many were made, its energy error (inf if no number), and its end."""
    made, finite, u, momentum, phi, slope, found = follow_path(
        address, rest, chart, flat, start[0], p, start[2], n_steps, step_size
    )
    before = _half_square(start[0]) + _half_square(p) - start[1]
    error = _half_square(u) + _half_square(momentum) - phi - before
    return made, error if finite and math.isfinite(error) else math.inf, (u, phi, slope, found), momentum


@compiled
def _retried_path(  # pragma: no cover - compiled
    address: int, rest: tuple[np.ndarray, ...], chart: Array, flat: FlatMap, start: State, p: Array, n_steps: int,
    step_size: float, most: int, first: float, uniform: float,
) -> tuple[int, float, State, Array, bool]:  # fmt: skip
    """Try a second time, in finer steps but at most so many: return what `_path` does, and whether the end is kept."""
    made, error, end, momentum = _path(
        address, rest, chart, flat, start, p, min(FINER * n_steps, most), step_size / FINER
    )
    if error > MAX_ENERGY_ERROR:
        return made, error, end, momentum, False
    more, back, _, _ = _path(address, rest, chart, flat, end, momentum, n_steps, -step_size)
    return made + more, error, end, momentum, accepts_retry(uniform, first, error, back)


@compiled
def walk_paths(  # pragma: no cover - compiled
    address: int, rest: tuple[np.ndarray, ...], chart: Array, flat: FlatMap, start: State, p: Array,
    step_size: float, path_length: float, jitter: float, max_steps: int, rounds: int, seed: int,
) -> tuple[State, Array, float, float, float, int, int, bool]:  # fmt: skip
    """Walk so many paths of drawn lengths one after another, each accepted or not, the first with a given momentum.

    Returns
    -------
    state, momentum
        Kept after the last.
    energy before the last, mean acceptance, energy error of the last, steps, failure, moved
        As of `grow_trees`; the error is nan if the last path failed. The acceptance is that of first tries.
    """
    np.random.seed(seed)
    state, accepted, n_steps, failure, moved, initial, error = start, 0.0, 0, 0, False, 0.0, math.nan
    for one in range(rounds):
        if one > 0:
            p = np.random.standard_normal(p.size)
        initial = _half_square(state[0]) + _half_square(p) - state[1]
        length = path_length * (1.0 + jitter * (2.0 * np.random.random() - 1.0))
        uniform = 1.0 - np.random.random()
        steps = max(1, math.ceil(length / step_size))
        size = length / steps
        if steps > max_steps:
            steps, size = max_steps, step_size
        made, error, end, momentum = _path(address, rest, chart, flat, state, p, steps, size)
        n_steps, first = n_steps + made, chance(error)
        accepted += first
        keeps = uniform < first
        if not keeps and error > RETRIED_ABOVE:
            made, error, end, momentum, keeps = _retried_path(
                address, rest, chart, flat, state, p, steps, size, max_steps, first, uniform
            )
            n_steps += made
        if error > MAX_ENERGY_ERROR and failure == 0:
            failure = 2 if error < math.inf else 1
        if keeps:
            state, p, moved = end, momentum, True
    error = error if error <= MAX_ENERGY_ERROR else math.nan
    return state, p, initial, accepted / rounds, error, n_steps, failure, moved
