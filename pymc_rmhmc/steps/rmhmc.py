"""Riemannian manifold Hamiltonian Monte Carlo as a PyMC step method."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm

from pymc_rmhmc.steps.options import Options, settle
from pymc_rmhmc.steps.sampler import Sampler

__all__ = ["RMHMC"]

type Point = dict[str, np.ndarray]


class RMHMC(Sampler):
    """Riemannian manifold HMC for any model with a density that can be differentiated: ``pm.sample(step=RMHMC())``.

    Samples Gaussian-process classification, log-Gaussian Cox processes, count and robust regression, mixed models and
    the like. The latent vectors may be GPs (also on a grid), MvNormals, random walks, autoregressions, areal models,
    sums of these, and coefficients of a linear predictor.

    A model without a latent Gaussian vector is sampled too, by a chart that is read from its graph: RMHMC moves every
    continuous variable relative to the location and scale that other variables give it. So a hierarchy needs no
    reparametrization, and a funnel is sampled as it is written.

    By default the continuous hyperparameters are sampled together with the latent values. Where that is not possible,
    the latent values are sampled given everything else, and the log says why. PyMC's other steps sample all that is
    left. `describe` tells beforehand what will be done, and takes the same options.

    Parameters
    ----------
    vars : list of variables or names, optional
        The variables to sample. By default every latent Gaussian vector of the model, and every continuous variable
        that its mean, covariance or likelihood depends on; without such a vector every continuous variable. If you name
        latent vectors alone, RMHMC samples them given everything else. If you also name hyperparameters, it samples
        these too, and no others.
    metric : {"auto", "flat", "softabs", "fisher", "hessian", "softabs_curvature"} or metric, default "auto"
        "auto" is "flat": a constant metric, exact and by far the fastest. The others depend on the position, as in the
        papers below. "softabs" is made of the Hessian of the whole log density and samples all continuous variables.
        "fisher" is the Fisher information: of a latent Gaussian block if the model has one, and of all continuous
        variables otherwise. "hessian" and "softabs_curvature" sample the latent values of a Gaussian block alone.
        `GraphMetric` and `DenseField` are for metrics of your own.
    integrator : {"generalized_leapfrog", "implicit_midpoint"} or integrator, optional
        Integrator for the position-dependent metrics; by default the implicit midpoint for `SoftAbsMetric`, and the
        generalised leapfrog for the others.
    step_size : float, optional
        A fixed step size, no longer than a path. By default it is adapted in tuning. With `path_length`, each path is
        divided into equal steps of at most this size. With `n_steps`, each step has exactly this size.
    target_accept : float, optional
        The acceptance that the step size is adapted to, from 0.01 to 0.999. By default 0.9 for the flat metric and 0.8
        for the others. Raise it for smaller steps and fewer failures: ``RMHMC(target_accept=0.95)``. By default the
        flat metric settles for 0.5 where its steps would otherwise be too short to cover a path. PyMC refuses
        ``pm.sample(target_accept=0.95)`` with "Invalid key found in step_kwargs: {'nuts'}", or gives it to NUTS if
        that samples other variables.
    trajectory : {"auto", "static", "nuts"}, default "auto"
        "static" follows a path of a length that is drawn beforehand, and accepts or rejects its end. "nuts" doubles a
        trajectory until it turns back, and draws a state from it. "auto" is "static". In the chart of the graph a draw
        of a cheap model takes several trajectories.
    path_length : float, optional
        Mean length of a trajectory, in units of the Hamiltonian's time, where a period is about 2π. The default is
        1.7, a little over a quarter of a period; for hierarchies in the chart of the graph 2.0, and for `BlockMetric`
        of a process with its hyperparameters 10.
    n_steps : int, optional
        Take exactly this many steps per trajectory, without jitter. Give this or `path_length`, not both.
    jitter : float, optional
        Path lengths are uniform in ``path_length * (1 ± jitter)``. The default is 0.1, or 0.3 for hierarchies in the
        chart of the graph.
    max_steps : int, optional
        The most steps in a trajectory; longer ones end early. The default is 100, and 1023 with "nuts".
    init : {"auto", "laplace", "keep"}, default "auto"
        Where a chain starts. "laplace" starts it from a draw of a Gaussian approximation of the posterior, "keep" from
        the point that `pm.sample` gives. "auto" is "laplace", unless you chose a start with `initvals` or `initval`.
        To start exactly at the model's default point, use "keep".
    solver_tol : float, optional
        Tolerance of the implicit equations, in prior standard deviations. The default is 1e-9.
    solver_max_iter : int, optional
        The most iterations in each of the solver's two attempts. The default is 100.
    check_reversibility : bool, optional
        Integrate every implicit step back, and reject it if that does not return to its start. On by default. Without
        this check the draws are only approximately right.
    blas_threads : int or None, default 1
        Number of BLAS threads while a chain runs. None changes nothing.
    model : pymc.Model, optional
        The model; by default the one in context.
    rng : int or numpy.random.Generator, optional
        `pm.sample` gives each chain its own; use its ``random_seed`` instead.
    initial_point : dict, optional
        Values by value variable at which the model is first evaluated, to check it. By default the model's initial
        point. It is not where chains start: use ``pm.sample(initvals=...)`` for that. Its key for a whitened process
        f is ``f_rotated_``, since PyMC ignores the values of a Deterministic.
    compile_kwargs : dict, optional
        Options for compiling those terms of the model's log density that other steps move. RMHMC compiles them only
        if it samples latent values alone. Everything else is compiled with Numba, without options.
    blocked : bool, default True
        Must be true, since RMHMC moves all its variables together.

    Raises
    ------
    ConfigurationError
        An option is unknown, out of range, contradicts another or has no effect.
    UnsupportedModelError, UnsupportedLikelihoodError
        The model has no continuous variable or no gradient; or it has no latent Gaussian vector, where the metric needs
        one.
    CovarianceError
        A covariance is not positive definite: a constant one when the step is built, or one that depends on
        hyperparameters at a chain's first point.
    DataError
        Inputs are not finite, a prior's arguments are out of range, indices are out of bounds, or data are outside the
        support of their distribution.
    SamplingError
        In `pm.sample`, at the end of tuning: the chain would barely move.

    Notes
    -----
    At most 1000 hyperparameters are sampled together with the latent values.

    Without ``tune=``, `pm.sample` tunes an RMHMC that samples all variables for 200 draws. With hyperparameters it
    tunes for 300 draws, or for 600 with coefficients that are read through a matrix of many columns, as in an HSGP,
    and no process. In latent form it tunes for at least 3 draws per hyperparameter. In coordinates that are read from
    the graph, as for effects of groups, it tunes for 300.

    References
    ----------
    Girolami and Calderhead (2011), Riemann manifold Langevin and Hamiltonian Monte Carlo methods.
    Paquet and Fraccaro (2016), An efficient implementation of Riemannian manifold Hamiltonian Monte
    Carlo for Gaussian process models.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> from pymc_rmhmc import RMHMC
    >>> x = np.linspace(0, 1, 20)[:, None]
    >>> with pm.Model() as model:
    ...     gp = pm.gp.Latent(cov_func=4.0 * pm.gp.cov.Matern32(1, ls=0.3))
    ...     f = gp.prior("f", X=x, reparameterize=False)
    ...     y = pm.Poisson("y", mu=pm.math.exp(f), observed=np.arange(20) // 4)
    ...     idata = pm.sample(
    ...         draws=50, tune=50, chains=1, step=RMHMC(), progressbar=False, random_seed=1
    ...     )
    >>> idata.posterior["f"].shape
    (1, 50, 20)
    """

    name = "rmhmc"

    def __init__(
        self,
        vars: Any = None,  # noqa: A002 - PyMC's name
        *,
        metric: Any = "auto",
        integrator: Any = None,
        step_size: float | None = None,
        target_accept: float | None = None,
        trajectory: str = "auto",
        path_length: float | None = None,
        n_steps: int | None = None,
        jitter: float | None = None,
        max_steps: int | None = None,
        init: str = "auto",
        solver_tol: float | None = None,
        solver_max_iter: int | None = None,
        check_reversibility: bool | None = None,
        blas_threads: int | None = 1,
        model: pm.Model | None = None,
        rng: Any = None,
        initial_point: Point | None = None,
        compile_kwargs: dict[str, Any] | None = None,
        blocked: bool = True,
    ) -> None:
        options = Options(
            metric=metric, integrator=integrator, step_size=step_size, target_accept=target_accept,
            trajectory=trajectory, path_length=path_length, n_steps=n_steps, jitter=jitter, max_steps=max_steps,
            init=init,
            solver_tol=solver_tol, solver_max_iter=solver_max_iter,
            check_reversibility=check_reversibility, blas_threads=blas_threads,
        )  # fmt: skip
        self._build(
            vars, settle(options, auto_metric="flat"), blas_threads=options.blas_threads, model=model, rng=rng,
            initial_point=initial_point, compile_kwargs=compile_kwargs, blocked=blocked,
        )  # fmt: skip
