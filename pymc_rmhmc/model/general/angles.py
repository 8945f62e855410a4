"""Which free variables are angles: those whose transform takes a value and a period further on to the same point."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor
from numpy.typing import NDArray
from pymc.distributions.transforms import ChainedTransform, CircularTransform
from pytensor.compile.mode import Mode
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

__all__ = ["period_of"]

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]

# Where a transform of a user's is tried, from the start; the step of its differences; and, of a period, how far off a
# point may be that counts as the same.
DISTANCES, NEARBY = np.geomspace(0.01, 1e4, 240), np.linspace(0.0, 1.0, 9)
STEP, SAME = 1e-4, 1e-6


def period_of(model: pm.Model, variable: TensorVariable, point: Point) -> float | None:
    """Return after how much of a variable's value its transform comes back to the same point; None if it never does.

    PyMC's transform of angles is known. A user's is tried.
    """
    transform = model.rvs_to_transforms[variable]
    while isinstance(transform, ChainedTransform):
        transform = transform.transform_list[-1]  # the one that the value comes to first
    if isinstance(transform, CircularTransform) and type(transform).backward is CircularTransform.backward:
        return 2.0 * np.pi
    if transform is None or type(transform).__module__.startswith("pymc."):
        return None
    value = model.rvs_to_values[variable]
    placed = [f(value, *variable.owner.inputs) for f in (transform.backward, transform.log_jac_det)]
    if set(ancestors(placed)) & set(model.basic_RVs):
        return None
    function = pytensor.function([value], placed, mode=Mode("py", None), on_unused_input="ignore")
    start = np.asarray(point[str(value.name)], dtype=value.dtype)

    def moved(by: Array) -> tuple[Array, Array]:
        place, jacobian = (np.asarray(each, dtype=float).ravel() for each in function(start + by.reshape(start.shape)))
        return place, jacobian

    with np.errstate(all="ignore"):
        return _period(moved, start.size) if start.size else None


def _period(moved: Callable[[Array], tuple[Array, Array]], size: int) -> float | None:
    """Return the period of a transform's point and log-Jacobian, which are known at any way (size,) from the start.

    On a circle a point goes round at one rate: what it lacks of a longer way is a multiple of the period.
    """
    all_of_it, first = np.ones(size), np.eye(1, size)[0]
    (origin, jacobian), (beside, _) = moved(0.0 * first), moved(0.5 * first)
    if origin.size != size or not np.array_equal(origin[1:], beside[1:]):
        return None
    places, jacobians = zip(*(moved(distance * all_of_it) for distance in DISTANCES), strict=True)
    differences = [moved((near + STEP) * first)[0][0] - moved(near * first)[0][0] for near in NEARBY]
    rate = float(np.median(differences)) / STEP
    is_uniform = all(np.allclose(each, jacobian, rtol=0.0, atol=SAME) for each in jacobians)
    if not (is_uniform and np.isfinite(places).all() and np.isfinite(rate) and rate != 0.0):
        return None
    lacking = np.abs(DISTANCES - (np.array(places)[:, 0] - origin[0]) / rate)
    lacking = lacking[lacking > SAME * DISTANCES[-1]]
    if lacking.size == 0:
        return None
    times = np.round(lacking / lacking.min())
    period = float(lacking.max() / times.max())
    return period if np.allclose(lacking / period, times, rtol=0.0, atol=1e3 * SAME) else None
