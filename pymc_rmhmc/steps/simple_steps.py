"""Steps whose draws are single moves: Metropolis-adjusted Langevin samplers, and elliptical slice sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import ConfigurationError, listed
from pymc_rmhmc.kernels import single_moves
from pymc_rmhmc.kernels.single_moves import Langevin
from pymc_rmhmc.metrics.flat import EuclideanMetric, PriorMetric
from pymc_rmhmc.model.forms.priors import read_latent
from pymc_rmhmc.model.structure import resolve_variables
from pymc_rmhmc.sampled.choices import choose_metric, policy_of
from pymc_rmhmc.steps.options import Options, settle_move
from pymc_rmhmc.steps.sampler import Sampler
from pymc_rmhmc.usage import switch

__all__ = ["MALA", "MMALA", "EllipticalSlice"]

type Point = dict[str, np.ndarray]

# At which a Langevin proposal in many dimensions makes the most of a gradient: Roberts and Rosenthal (1998).
TARGET_ACCEPT = 0.574


class MALA(Sampler):
    """Metropolis-adjusted Langevin algorithm: ``pm.sample(step=MALA())``.

    Each draw is one step along the gradient of the log density, with noise, accepted or rejected. It samples all
    continuous variables of a model with a density that can be differentiated, as unconstrained values in the model's
    own coordinates, with one step size for all of them. It is here to be compared with: `RMHMC` is faster.

    Parameters
    ----------
    vars : list of variables or names, optional
        The continuous variables to sample; by default all of them.
    step_size : float, optional
        A fixed ε, the standard deviation of a proposal. By default it is adapted in tuning.
    target_accept : float, default 0.574
        The acceptance that the step size is adapted to, from 0.01 to 0.999.
    init : {"auto", "laplace", "keep"}, default "auto"
        Where a chain starts: "keep" is the point that `pm.sample` gives, "laplace" a point near it.
    blas_threads : int or None, default 1
        Number of BLAS threads while a chain runs. None changes nothing.
    model : pymc.Model, optional
        The model; by default the one in context.
    rng, initial_point, compile_kwargs, blocked
        See `RMHMC`.

    Raises
    ------
    ConfigurationError
        An option is unknown, out of range or contradicts another.
    UnsupportedModelError
        The model has no continuous variable or no gradient.
    DataError
        Data or a prior's arguments cannot be used.

    References
    ----------
    Roberts and Tweedie (1996), Exponential convergence of Langevin distributions and their discrete approximations;
    Girolami and Calderhead (2011), section 3.1.

    Examples
    --------
    >>> import pymc as pm
    >>> from pymc_rmhmc import MALA
    >>> with pm.Model():
    ...     x = pm.Normal("x", 0.0, 1.0, shape=2)
    ...     y = pm.Normal("y", x.sum(), 1.0, observed=1.0)
    ...     idata = pm.sample(
    ...         draws=50, tune=100, chains=1, step=MALA(), progressbar=False, random_seed=1
    ...     )
    >>> idata.posterior["x"].shape
    (1, 50, 2)
    """

    name = "mala"

    def __init__(
        self,
        vars: Any = None,  # noqa: A002 - PyMC's name
        *,
        step_size: float | None = None,
        target_accept: float | None = None,
        init: str = "auto",
        blas_threads: int | None = 1,
        model: pm.Model | None = None,
        rng: Any = None,
        initial_point: Point | None = None,
        compile_kwargs: dict[str, Any] | None = None,
        blocked: bool = True,
    ) -> None:
        options = Options(
            metric=EuclideanMetric(), step_size=step_size, target_accept=target_accept, init=init,
            blas_threads=blas_threads,
        )  # fmt: skip
        plan = settle_move(options, Langevin(simplified=True), TARGET_ACCEPT, "MALA")
        self._build(
            vars, plan, blas_threads=blas_threads, model=model, rng=rng, initial_point=initial_point,
            compile_kwargs=compile_kwargs, blocked=blocked,
        )  # fmt: skip


class MMALA(Sampler):
    """Metropolis-adjusted Langevin algorithm on a manifold: ``pm.sample(step=MMALA())``.

    As `MALA`, with proposals of the covariance ``ε² G(q)⁻¹``, G being a position-dependent metric.

    Parameters
    ----------
    vars : list of variables or names, optional
        The variables to sample: latent Gaussian values, or continuous variables, as the metric takes them.
    metric : {"fisher", "softabs", "hessian", "softabs_curvature"} or metric, default "fisher"
        As for `RMHMC`. A flat one is ``FlatMetric(chart="latent")`` or ``FlatMetric(sites="prior_expected")``, and
        moves latent values alone.
    simplified : bool, default True
        If true, the drift is ``ε²/2 G⁻¹∇L``. If false, it is that of the diffusion which has the posterior as its
        stationary distribution, with the divergence of G⁻¹ too. Draws are exact either way. The divergence has a closed
        form for latent Gaussian values. Otherwise it costs d²/2 derivatives of the metric, and is refused above 100
        values.
    step_size : float, optional
        A fixed ε. By default it is adapted in tuning.
    target_accept : float, default 0.574
        The acceptance that the step size is adapted to, from 0.01 to 0.999.
    init : {"auto", "laplace", "keep"}, default "auto"
        Where a chain starts; see `RMHMC`.
    blas_threads : int or None, default 1
        Number of BLAS threads while a chain runs. None changes nothing.
    model : pymc.Model, optional
        The model; by default the one in context.
    rng, initial_point, compile_kwargs, blocked
        See `RMHMC`.

    Raises
    ------
    ConfigurationError
        An option is unknown, out of range or contradicts another, the metric does not fit the model, or the
        full drift is asked for in too many dimensions.
    UnsupportedModelError, UnsupportedLikelihoodError
        As `RMHMC` with this metric.
    DataError
        Data or a prior's arguments cannot be used.

    References
    ----------
    Girolami and Calderhead (2011), section 5; Xifara, Sherlock, Livingstone, Byrne and Girolami (2014), Langevin
    diffusions and the Metropolis-adjusted Langevin algorithm, for the drift.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> from pymc_rmhmc import MMALA
    >>> with pm.Model():
    ...     f = pm.MvNormal("f", np.zeros(3), cov=np.eye(3))
    ...     y = pm.Poisson("y", mu=pm.math.exp(f), observed=[1, 0, 2])
    ...     idata = pm.sample(
    ...         draws=50, tune=100, chains=1, step=MMALA(), progressbar=False, random_seed=1
    ...     )
    >>> idata.posterior["f"].shape
    (1, 50, 3)
    """

    name = "mmala"

    def __init__(
        self,
        vars: Any = None,  # noqa: A002 - PyMC's name
        *,
        metric: Any = "fisher",
        simplified: bool = True,
        step_size: float | None = None,
        target_accept: float | None = None,
        init: str = "auto",
        blas_threads: int | None = 1,
        model: pm.Model | None = None,
        rng: Any = None,
        initial_point: Point | None = None,
        compile_kwargs: dict[str, Any] | None = None,
        blocked: bool = True,
    ) -> None:
        chosen = choose_metric(metric, "fisher")
        if policy_of(chosen) is not None and chosen.chart != "latent":
            raise ConfigurationError(
                "MMALA takes the flat metric of latent values alone. Give MMALA(metric=FlatMetric(chart=\"latent\")), "
                'MMALA(metric="fisher") or MMALA(metric="softabs"), or use MALA() or RMHMC().'
            )
        options = Options(
            metric=chosen, step_size=step_size, target_accept=target_accept, init=init, blas_threads=blas_threads
        )
        move = Langevin(simplified=switch("simplified", simplified))
        self._build(
            vars, settle_move(options, move, TARGET_ACCEPT, "MMALA"), blas_threads=blas_threads, model=model, rng=rng,
            initial_point=initial_point, compile_kwargs=compile_kwargs, blocked=blocked,
        )  # fmt: skip


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
