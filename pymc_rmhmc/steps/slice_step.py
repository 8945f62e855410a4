"""Elliptical slice sampling as a PyMC step method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import ConfigurationError, listed
from pymc_rmhmc.kernels import single_moves
from pymc_rmhmc.metrics.flat import PriorMetric
from pymc_rmhmc.model.forms.priors import read_latent
from pymc_rmhmc.model.structure import resolve_variables
from pymc_rmhmc.steps.options import Options, settle_move
from pymc_rmhmc.steps.sampler import Sampler

__all__ = ["EllipticalSlice"]

type Point = dict[str, np.ndarray]

# Angles have no step size; what is passed in its place is not used.
ANY_STEP = 1.0


class EllipticalSlice(Sampler):
    """Elliptical slice sampling of latent Gaussian values: ``pm.sample(step=[EllipticalSlice(), ...])``.

    Its draws use no gradient, have no step size, and are never rejected. Each moves the latent values of a Gaussian
    prior along an ellipse, given everything else; PyMC's other steps sample what is left. It is slow where data say
    much, and is here to be compared with.

    Parameters
    ----------
    vars : list of variables or names, optional
        Latent Gaussian vectors, as for `RMHMC`; by default all of the model.
    init : {"auto", "laplace", "keep"}, default "auto"
        Where a chain starts: from a draw of a Gaussian approximation, or from the point that `pm.sample` gives.
    blas_threads : int or None, default 1
        Number of BLAS threads while a chain runs. None changes nothing.
    model : pymc.Model, optional
        The model; by default the one in context.
    rng, initial_point, compile_kwargs, blocked
        See `RMHMC`.

    Raises
    ------
    ConfigurationError
        An option is unknown or out of range.
    UnsupportedModelError, UnsupportedLikelihoodError, CovarianceError, DataError
        As `RMHMC`, for a model without a latent Gaussian vector among others.

    Notes
    -----
    In the statistics of a draw ``n_steps`` counts the points of the ellipse that were tried, and the step size is nan.

    References
    ----------
    Murray, Adams and MacKay (2010), Elliptical slice sampling.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> from pymc_rmhmc import EllipticalSlice
    >>> with pm.Model():
    ...     f = pm.MvNormal("f", np.zeros(3), cov=np.eye(3))
    ...     y = pm.Poisson("y", mu=pm.math.exp(f), observed=[1, 0, 2])
    ...     idata = pm.sample(
    ...         draws=50, tune=10, chains=1, step=EllipticalSlice(), progressbar=False, random_seed=1
    ...     )
    >>> idata.posterior["f"].shape
    (1, 50, 3)
    """

    name = "elliptical_slice"
    has_step_size = False

    def __init__(
        self,
        vars: Any = None,  # noqa: A002 - PyMC's name
        *,
        init: str = "auto",
        blas_threads: int | None = 1,
        model: pm.Model | None = None,
        rng: Any = None,
        initial_point: Point | None = None,
        compile_kwargs: dict[str, Any] | None = None,
        blocked: bool = True,
    ) -> None:
        model = pm.modelcontext(model)
        _check_latent([] if vars is None else resolve_variables(model, vars), model)
        options = Options(metric=PriorMetric(), step_size=ANY_STEP, init=init, blas_threads=blas_threads)
        self._build(
            vars, settle_move(options, single_moves.EllipticalSlice(), 1.0, "EllipticalSlice"),
            blas_threads=blas_threads, model=model, rng=rng, initial_point=initial_point,
            compile_kwargs=compile_kwargs, blocked=blocked,
        )  # fmt: skip


def _check_latent(named: Sequence[TensorVariable], model: pm.Model) -> None:
    """Raise a `ConfigurationError` for named variables that are no latent Gaussian values."""
    found = {str(v.name): read_latent(model, v) for v in named if v in model.free_RVs}
    others = {name: why for name, why in found.items() if isinstance(why, str)}
    if others:
        name, why = next(iter(others.items()))
        raise ConfigurationError(
            f"{name}: {why}. EllipticalSlice moves latent Gaussian values alone. Leave {listed(list(others))} out of "
            "vars, or leave vars out: PyMC finds another step for what EllipticalSlice leaves."
        )
