"""The implicit integrators in a metric of a whole model, in compiled code.

One loop, kept on disk, serves every model: its functions are called by their addresses. The steps of the leapfrog are
those of `GeneralizedLeapfrog` with the equations of `pymc_rmhmc.metrics.field`, solved as `AndersonSolver`
does. The implicit midpoint is solved for the middle (q̄, p̄) itself, in units of the scale at the trajectory's start:

    q̄ = q + ε/2 G(q̄)⁻¹p̄,        p̄ = p - ε/2 ∂H/∂q(q̄, p̄),        q' = 2 q̄ - q,   p' = 2 p̄ - p

Each evaluation factorises the metric at another q̄, and takes one derivative for its trace and quadratic terms together.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from pymc_rmhmc.linalg.compiled.compilation import compiled
from pymc_rmhmc.linalg.compiled.native import (
    call_apart,
    call_for_two_vectors,
    call_for_value_slope_matrix,
    call_for_vector,
    resolved,
)
from pymc_rmhmc.metrics import bordered_loops as arrow
from pymc_rmhmc.metrics.bordered_loops import Differences, Factor, Layout

__all__ = [
    "INDEFINITE", "NON_FINITE", "NON_REVERSIBLE", "SOLVER", "Curved", "Rules", "follow", "follow_midpoints",
    "with_addresses",
]  # fmt: skip

type Array = NDArray[np.float64]
type Index = NDArray[np.int64]

# Why a step failed; 0 if it did not.
NON_FINITE, SOLVER, NON_REVERSIBLE, INDEFINITE = 1, 2, 3, 4
# The equations: two of the leapfrog, and that of the midpoint.
KICK, DRIFT, MIDDLE = 0, 1, 2
# As of `AndersonSolver`.
SECOND_DEPTH, RIDGE, TINY = 3, 1e-13, 1e-300


class Curved(NamedTuple):
    """A model's density with its Hessian or a metric, and what is to be made of it."""

    # Addresses of ``(x, V, *rest) -> (log density, gradient, V H)`` and ``(x, V, bar, *rest) -> (pulled back,)``.
    evaluate: int
    pull: int
    # If the matrix is the metric G, the address of ``(x, u, *rest) -> (G u, -½ uᵀ(∂G/∂xᵢ)u)``. Otherwise of nothing
    # that is called.
    along: int
    evaluate_rest: tuple[np.ndarray, ...]  # what they take besides
    pull_rest: tuple[np.ndarray, ...]
    along_rest: tuple[np.ndarray, ...]
    vectors: Array  # (r, d), V, the probes
    layout: Layout  # of border and blocks
    found_at: Index  # (e,), where the blocks' entries are among the products, as `Probes` has them
    alpha: float  # of SoftAbs
    # Whether the function's matrix is the metric, and not V H. Then all parameters are in the border, and α is so large
    # that SoftAbs leaves the matrix as it is.
    is_metric: bool
    # Addresses of `_attempt` and `_quadratic`, as `with_addresses` finds them. What is called so is compiled once, and
    # not again within each of its callers.
    attempt: int
    quadratic: int


class Rules(NamedTuple):
    """How the equations are solved; see `AndersonSolver`."""

    tolerance: float  # of the residual
    max_iter: int  # evaluations of an attempt
    depth: int  # remembered residuals
    # How far a step that is integrated back may end from its start; below 0 it is not integrated back.
    reversal_tolerance: float


class _Point(NamedTuple):
    """Density and metric at one position."""

    x: Array
    gradient: Array
    factor: Factor
    differences: Differences
    trace: Array
    scale: Array
    failure: int


class _Equation(NamedTuple):
    """A fixed point ``y = f(y)`` for a velocity in units of its scale; see `FieldKick` and `FieldDrift`.

    Of the midpoint y is ``((q̄ - q)/scale, (p̄ - p) scale)``, (2 d,), and what is given is p.
    """

    kind: int
    start: Array
    given: Array
    time: float


@compiled
def _is_finite(vector: Array) -> bool:  # pragma: no cover - compiled
    total = 0.0
    for i in range(vector.size):
        total += vector[i] * vector[i]
    return math.isfinite(total)


@compiled
def _softened(curved: Curved, x: Array) -> tuple[int, Array, Factor]:  # pragma: no cover - compiled
    """Return why there is no metric (0 if there is), the gradient, and the factor of the metric."""
    layout, d = curved.layout, x.size
    m, n = layout.border.size, layout.inner.size
    sign = 1.0 if curved.is_metric else -1.0
    value, gradient, matrix = call_for_value_slope_matrix(curved.evaluate, (x, curved.vectors), curved.evaluate_rest)
    border, coupling, blocks = np.empty((m, m)), np.empty((m, n)), np.empty(curved.found_at.size)
    for i in range(m):
        for j in range(m):
            border[i, j] = sign * matrix[i, layout.border[j]]
        for j in range(n):
            coupling[i, j] = sign * matrix[i, layout.inner[j]]
    for k in range(blocks.size):
        at = curved.found_at[k]
        blocks[k] = sign * matrix[at // d, at % d]
    finite, factor = arrow.soften(layout, border, coupling, blocks, curved.alpha)
    slope = np.empty(d)
    for i in range(d):
        slope[i] = gradient[i]
    if not (finite and math.isfinite(value[()]) and _is_finite(slope)):
        return NON_FINITE, slope, factor
    if curved.is_metric and not factor.edge.values.min() > 0.0:
        return INDEFINITE, slope, factor
    return 0, slope, factor


@compiled
def _along(curved: Curved, x: Array, vector: Array) -> tuple[Array, Array]:  # pragma: no cover - compiled
    """Return ``G vector`` and the quadratic term of a metric."""
    product, quadratic = call_for_two_vectors(curved.along, (x, vector), curved.along_rest)
    first, second = np.empty(x.size), np.empty(x.size)
    for i in range(x.size):
        first[i], second[i] = product[i], quadratic[i]
    return first, second


@compiled
def _product(curved: Curved, x: Array, vector: Array) -> Array:  # pragma: no cover - compiled
    """Return ``G vector`` at another position; nan where there is no G. A matrix that is the metric needs no factor."""
    if curved.is_metric:
        return _along(curved, x, vector)[0]
    failure, _, factor = _softened(curved, x)
    return arrow.times(curved.layout, factor, vector) if failure == 0 else np.full(x.size, np.nan)


@compiled
def _pulled(curved: Curved, x: Array, bar: tuple[Array, Array, Array]) -> Array:  # pragma: no cover - compiled
    """Turn a bar into the derivative by the position, (d,)."""
    layout, d = curved.layout, x.size
    m, n = layout.border.size, layout.inner.size
    weights = np.zeros(curved.vectors.shape)
    for i in range(m):
        for j in range(m):
            weights[i, layout.border[j]] = bar[0][i, j]
        for j in range(n):
            weights[i, layout.inner[j]] = bar[1][i, j]
    for k in range(curved.found_at.size):
        at = curved.found_at[k]
        weights[at // d, at % d] = bar[2][k]
    (pulled,) = call_for_vector(curved.pull, (x, curved.vectors, weights), curved.pull_rest)
    sign, made = 1.0 if curved.is_metric else -1.0, np.empty(d)
    for i in range(d):
        made[i] = sign * pulled[i]
    return made


@compiled
def _point(curved: Curved, x: Array) -> _Point:  # pragma: no cover - compiled
    """Evaluate density and metric."""
    failure, gradient, factor = _softened(curved, x)
    found = arrow.differences(factor)
    if failure != 0:
        return _Point(x, gradient, factor, found, gradient, gradient, failure)
    trace = _pulled(curved, x, arrow.log_det_bar(curved.layout, factor, found))
    scale = arrow.scale(curved.layout, factor)
    finite = math.isfinite(factor.half_log_det) and _is_finite(trace)
    return _Point(x, gradient, factor, found, trace, scale, 0 if finite else NON_FINITE)


@compiled
def _quadratic(curved: Curved, point: _Point, velocity: Array) -> Array:  # pragma: no cover - compiled
    """Return ``-½ uᵀ(∂G/∂xᵢ)u`` for every i."""
    if curved.is_metric:
        return _along(curved, point.x, velocity)[1]
    bar = arrow.quadratic_bar(curved.layout, point.factor, point.differences, velocity)
    return _pulled(curved, point.x, bar)


@compiled
def _middle(curved: Curved, point: _Point, equation: _Equation, y: Array) -> Array:  # pragma: no cover - compiled
    """Evaluate the map of the midpoint's equation; nan where there is no metric."""
    d, layout = point.x.size, curved.layout
    x, p = point.x + point.scale * y[:d], equation.given + y[d:] / point.scale
    failure, gradient, factor = _softened(curved, x)
    if failure != 0:
        return np.full(y.size, np.nan)
    found, velocity = arrow.differences(factor), arrow.solve(layout, factor, p)
    trace, quadratic = arrow.log_det_bar(layout, factor, found), arrow.quadratic_bar(layout, factor, found, velocity)
    bar = (trace[0] + quadratic[0], trace[1] + quadratic[1], trace[2] + quadratic[2])
    force = _pulled(curved, x, bar) - gradient
    made = np.empty(2 * d)
    for i in range(d):
        made[i] = equation.time * velocity[i] / point.scale[i]
        made[d + i] = -equation.time * force[i] * point.scale[i]
    return made


@compiled
def _mapped(curved: Curved, point: _Point, equation: _Equation, y: Array) -> Array:  # pragma: no cover - compiled
    """Evaluate the map of an equation."""
    if equation.kind == MIDDLE:
        return _middle(curved, point, equation, y)
    velocity = point.scale * y
    if equation.kind == KICK:
        gained = equation.time * call_apart(curved.quadratic, _quadratic, (curved, point, velocity))
    else:
        x = point.x + equation.time * (equation.given + velocity)
        gained = _product(curved, x, velocity) - arrow.times(curved.layout, point.factor, velocity)
    return equation.start - arrow.solve(curved.layout, point.factor, gained) / point.scale


@compiled
def _factorised(gram: Array) -> bool:  # pragma: no cover - compiled
    """Overwrite the lower triangle of a matrix by Cholesky's factor; False if there is none."""
    for a in range(len(gram)):
        for b in range(a + 1):
            total = gram[a, b]
            for k in range(b):
                total -= gram[a, k] * gram[b, k]
            if a > b:
                gram[a, b] = total / gram[b, b]
            elif total > 0.0:
                gram[a, a] = math.sqrt(total)
            else:
                return False
    return True


@compiled
def _substitute(factor: Array, right: Array) -> None:  # pragma: no cover - compiled
    """Solve ``L Lᵀ x = right`` in place."""
    size = right.size
    for a in range(size):
        for k in range(a):
            right[a] -= factor[a, k] * right[k]
        right[a] /= factor[a, a]
    for a in range(size - 1, -1, -1):
        for k in range(a + 1, size):
            right[a] -= factor[k, a] * right[k]
        right[a] /= factor[a, a]


@compiled
def _mixing(  # pragma: no cover - compiled
    residual_changes: Array, value_changes: Array, held: int, residual: Array, x: Array
) -> Array:
    """Take from x the correction ``ΔF γ`` with ``γ = argmin |residual - ΔR γ|``, over the first rows."""
    gram, gamma, scale = np.empty((held, held)), np.empty(held), np.empty(held)
    for a in range(held):
        for b in range(a + 1):
            gram[a, b] = np.dot(residual_changes[a], residual_changes[b])
        scale[a] = 1.0 / math.sqrt(gram[a, a] + TINY)
        gamma[a] = np.dot(residual_changes[a], residual) * scale[a]
    for a in range(held):
        for b in range(a + 1):
            gram[a, b] *= scale[a] * scale[b]
        gram[a, a] += RIDGE
    if not _factorised(gram):
        return x
    _substitute(gram, gamma)
    for a in range(held):
        for i in range(x.size):
            x[i] -= gamma[a] * scale[a] * value_changes[a, i]
    return x


@compiled
def _largest(vector: Array) -> float:  # pragma: no cover - compiled
    """Return ``max |v|``, inf if any element is not finite."""
    largest = 0.0
    for i in range(vector.size):
        size = abs(vector[i])
        if not math.isfinite(size):
            return math.inf
        largest = max(largest, size)
    return largest


@compiled
def _attempt(  # pragma: no cover - compiled
    curved: Curved, point: _Point, equation: _Equation, rules: Rules, depth: int
) -> tuple[Array, int, bool]:
    """Iterate with a memory of so many residuals: the last argument, the evaluations, and whether it converged."""
    x, size = equation.start.copy(), equation.start.size
    value = _mapped(curved, point, equation, x)
    residual = value - x
    error = _largest(residual)
    residual_changes, value_changes = np.empty((depth, size)), np.empty((depth, size))
    for n_iter in range(1, rules.max_iter + 1):
        if error <= rules.tolerance:
            return x, n_iter, True
        if not math.isfinite(error) or n_iter == rules.max_iter:
            return x, n_iter, False
        x = _mixing(residual_changes, value_changes, min(n_iter - 1, depth), residual, value.copy())
        new_value = _mapped(curved, point, equation, x)
        new_residual = new_value - x
        if depth > 0:
            row = (n_iter - 1) % depth
            residual_changes[row] = new_residual - residual
            value_changes[row] = new_value - value
        value, residual, error = new_value, new_residual, _largest(new_residual)
    return x, rules.max_iter, False


@compiled
def _solved(  # pragma: no cover - compiled
    curved: Curved, point: _Point, equation: _Equation, rules: Rules
) -> tuple[Array, int, bool]:
    """Attempt it once, and once more with a shorter memory."""
    x, n_iter, converged = call_apart(curved.attempt, _attempt, (curved, point, equation, rules, rules.depth))
    if converged or n_iter == 1 or rules.depth <= SECOND_DEPTH:
        return x, n_iter, converged
    x, more, converged = call_apart(curved.attempt, _attempt, (curved, point, equation, rules, SECOND_DEPTH))
    return x, n_iter + more, converged


@compiled
def _kicked(  # pragma: no cover - compiled
    curved: Curved, point: _Point, p: Array, step_size: float, rules: Rules
) -> tuple[Array, Array, int, bool]:
    """Apply map (a): return the momentum, its velocity, evaluations, and whether it was solved."""
    half = 0.5 * step_size
    explicit = p - half * (point.trace - point.gradient)
    start = arrow.solve(curved.layout, point.factor, explicit) / point.scale
    y, n_iter, converged = _solved(curved, point, _Equation(KICK, start, explicit, half), rules)
    momentum = explicit - half * call_apart(curved.quadratic, _quadratic, (curved, point, point.scale * y))
    return momentum, arrow.solve(curved.layout, point.factor, momentum), n_iter, converged


@compiled
def _drifted(  # pragma: no cover - compiled
    curved: Curved, point: _Point, velocity: Array, step_size: float, rules: Rules
) -> tuple[Array, Array, int, bool]:
    """Apply map (b): return the position, the velocity there, evaluations, and whether it was solved."""
    half = 0.5 * step_size
    equation = _Equation(DRIFT, velocity / point.scale, velocity, half)
    y, n_iter, converged = _solved(curved, point, equation, rules)
    end = point.scale * y
    return point.x + half * (velocity + end), end, n_iter, converged


@compiled
def _reversal_error(  # pragma: no cover - compiled
    curved: Curved, end: _Point, p: Array, x: Array, velocity: Array, step_size: float, rules: Rules
) -> tuple[float, int]:
    """Return how far (a) and (b) of the reversed step, solved from the end, miss the beginning; and evaluations."""
    _, back, n_kick, converged = _kicked(curved, end, -p, step_size, rules)
    if not converged:
        return math.inf, n_kick
    position, final, n_drift, converged = _drifted(curved, end, back, step_size, rules)
    if not converged:
        return math.inf, n_kick + n_drift
    miss = max(_largest((position - x) / end.scale), _largest((final + velocity) / end.scale))
    return miss, n_kick + n_drift


@compiled
def _step(  # pragma: no cover - compiled
    curved: Curved, point: _Point, p: Array, step_size: float, rules: Rules
) -> tuple[int, _Point, Array, float, int, int]:
    """Make a step: return the failure, the end, its momentum, the reversal error, evaluations of maps, and metrics."""
    momentum, velocity, n_iter, converged = _kicked(curved, point, p, step_size, rules)
    if not converged:
        return SOLVER, point, p, math.nan, n_iter, 0
    x, _, more, converged = _drifted(curved, point, velocity, step_size, rules)
    n_iter += more
    if not converged:
        return SOLVER, point, p, math.nan, n_iter, 0
    end = _point(curved, x)
    if end.failure != 0:
        return end.failure, point, p, math.nan, n_iter, 1
    final = arrow.solve(curved.layout, end.factor, momentum)
    turned = call_apart(curved.quadratic, _quadratic, (curved, end, final))
    momentum = momentum - 0.5 * step_size * (end.trace - end.gradient + turned)
    if not _is_finite(momentum):
        return NON_FINITE, point, p, math.nan, n_iter, 1
    if rules.reversal_tolerance < 0.0:
        return 0, end, momentum, math.nan, n_iter, 1
    error, more = _reversal_error(curved, end, momentum, point.x, velocity, step_size, rules)
    failure = 0 if error <= rules.reversal_tolerance else NON_REVERSIBLE
    return failure, end, momentum, error, n_iter + more, 1


@compiled
def _crossed(  # pragma: no cover - compiled
    curved: Curved, start: _Point, p: Array, step_size: float, rules: Rules
) -> tuple[Array, Array, int, bool]:
    """Solve a step of the midpoint: the position and momentum at its end, evaluations, and whether it was solved."""
    d = p.size
    y, n_iter, converged = _solved(curved, start, _Equation(MIDDLE, np.zeros(2 * d), p, 0.5 * step_size), rules)
    return start.x + 2.0 * start.scale * y[:d], p + 2.0 * y[d:] / start.scale, n_iter, converged


@compiled
def _at(point: _Point, x: Array) -> _Point:  # pragma: no cover - compiled
    """Make a point of which only the position and the units are known."""
    return _Point(x, point.gradient, point.factor, point.differences, point.trace, point.scale, 0)


@compiled
def follow_midpoints(  # pragma: no cover - compiled
    curved: Curved, x: Array, p: Array, n_steps: int, step_size: float, rules: Rules
) -> tuple[int, Array, Array, float, int, int, int]:
    """Make so many steps of the implicit midpoint; as `advance`."""
    point = _point(curved, x)
    worst, n_iter = math.nan, 0
    for step in range(n_steps):
        to, momentum, some, converged = _crossed(curved, point, p, step_size, rules)
        n_iter += some
        if not converged:
            return SOLVER, point.x, p, worst, n_iter, n_iter, step + 1
        if rules.reversal_tolerance >= 0.0:
            back, reversed_p, some, converged = _crossed(curved, _at(point, to), -momentum, step_size, rules)
            n_iter += some
            error = math.inf
            if converged:
                missed = _largest((reversed_p + p) * point.scale)
                error = max(_largest((back - point.x) / point.scale), missed)
            if not error <= worst:
                worst = error
            if not error <= rules.reversal_tolerance:
                return NON_REVERSIBLE, point.x, p, worst, n_iter, n_iter, step + 1
        point, p = _at(point, to), momentum
    return 0, point.x, p, worst, n_iter, n_iter, n_steps


@compiled
def follow(  # pragma: no cover - compiled
    curved: Curved, x: Array, p: Array, n_steps: int, step_size: float, rules: Rules
) -> tuple[int, Array, Array, float, int, int, int]:
    """Make so many steps; one that fails is the last.

    Returns
    -------
    failure, position, momentum
        The failure is 0 if there was none.
    reversal error, evaluations of maps, metrics, steps
        The largest error, and what was counted.
    """
    point = _point(curved, x)
    worst, n_iter, n_metrics = math.nan, 0, 0
    for step in range(n_steps):
        failure, point, p, error, some, made = _step(curved, point, p, step_size, rules)
        n_iter += some
        n_metrics += made
        if not error <= worst and not math.isnan(error):
            worst = error
        if failure != 0:
            return failure, point.x, p, worst, n_iter, n_metrics, step + 1
    return 0, point.x, p, worst, n_iter, n_metrics, n_steps


def with_addresses(curved: Curved) -> Curved:
    """Compile what is called by its address, and note where it is."""
    of: Any = numba.typeof
    vector, known = types.Array(types.float64, 1, "C"), of(curved)
    _, point = resolved(_point, (known, vector))
    quadratic, _ = resolved(_quadratic, (known, point, vector))
    curved = curved._replace(quadratic=quadratic)
    equation = of(_Equation(0, np.empty(0), np.empty(0), 0.0))
    attempt, _ = resolved(_attempt, (known, point, equation, of(Rules(0.0, 0, 0, 0.0)), types.int64))
    return curved._replace(attempt=attempt)
