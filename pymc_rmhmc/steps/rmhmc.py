"""Riemannian manifold Hamiltonian Monte Carlo as a PyMC step method."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import field, replace
from typing import Any

import numpy as np
import pymc as pm
from pymc.stats.convergence import SamplerWarning, WarningType
from pymc.step_methods.compound import Competence, StepMethodState
from pymc.step_methods.state import dataclass_state
from rich.progress import TextColumn
from rich.table import Column

from pymc_rmhmc.chains.chain import ChainState
from pymc_rmhmc.errors import ConfigurationError, Failure, wrapped
from pymc_rmhmc.model.bad_inputs import InputChecks
from pymc_rmhmc.model.together import flat_priors
from pymc_rmhmc.option_numbers import switch
from pymc_rmhmc.steps.arguments import CheckedStep, ModelContents, check_compile_kwargs, check_point, generator_of
from pymc_rmhmc.steps.checks import check_block, check_shapes, shapes_of_data
from pymc_rmhmc.steps.notices import WATCHED, RunNotices, moved_by_others, moved_twice, too_short_tuning
from pymc_rmhmc.steps.options import Options, settle
from pymc_rmhmc.steps.rehearsal import compile_ahead
from pymc_rmhmc.steps.selection import find_with_predictions, predictions_in_words
from pymc_rmhmc.steps.statistics import STATISTICS, FailureCount, block_statistics
from pymc_rmhmc.steps.threads import BlasThreads
from pymc_rmhmc.stopwatch import COMPILING

__all__ = ["RMHMC"]

type Point = dict[str, np.ndarray]

# A child of PyMC's logger, so that its messages appear where PyMC's do.
_log = logging.getLogger("pymc.rmhmc")


@dataclass_state
class RMHMCState(StepMethodState):
    """Everything that the rest of a chain depends on."""

    tune: bool
    iteration: int
    n_tune: int
    n_draws: int
    chains: list[ChainState] = field(default_factory=list)
    failures: Any = None


class RMHMC(CheckedStep):
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
        1.7, a little over a quarter of a period; for hierarchies in the chart of the graph 2.0.
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
    default_blocked = True
    default_tune_steps = 200
    stats_dtypes_shapes = STATISTICS
    _state_class = RMHMCState

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
        if not switch("blocked", blocked):
            raise ConfigurationError(
                "blocked=False is not possible, because RMHMC moves all its variables together. Remove it, or give one "
                "step for each latent vector: step=[RMHMC(vars=[\"f\"]), RMHMC(vars=[\"g\"])]."
            )
        options = Options(
            metric=metric, integrator=integrator, step_size=step_size, target_accept=target_accept,
            trajectory=trajectory, path_length=path_length, n_steps=n_steps, jitter=jitter, max_steps=max_steps,
            init=init,
            solver_tol=solver_tol, solver_max_iter=solver_max_iter,
            check_reversibility=check_reversibility, blas_threads=blas_threads,
        )  # fmt: skip
        model = pm.modelcontext(model)
        plan = replace(settle(options, auto_metric="flat"), flat_priors=flat_priors(model))
        self._inputs = InputChecks(model)
        initial = model.initial_point()
        point = initial | check_point({} if initial_point is None else initial_point, initial, model)
        check_compile_kwargs(compile_kwargs)
        self._inputs.check(point)
        random = generator_of(rng)
        found, self._predictions = find_with_predictions(model, vars, point, plan, compile_kwargs)
        predicted = self._predictions
        self._compiled = found.compiled
        self.vars = [*found.value_vars, *(predicted.value_vars if predicted else ())]
        self.blocked = True
        self.rng = random
        self._model, self._contents, self._notices = model, ModelContents(model), RunNotices()
        self.tune = True
        self._initial_point, self._plan = point, plan
        self._samplers = found.samplers(point, plan, initial)
        _log.info(wrapped(found.announcement(plan) + predictions_in_words(predicted)))
        if found.warning():
            _log.warning(wrapped(found.warning()))
        self._compile_seconds = compile_ahead(self._samplers, point, found.names, predicted)
        self._compile_seconds_in_chain, self._has_announced = 0.0, False
        self.default_tune_steps = found.tune_steps or self.default_tune_steps
        self._threads = BlasThreads(None if options.blas_threads is None else int(options.blas_threads))
        self._shapes, self._reads = shapes_of_data(model), found.data_names
        self._rest_key: Point | None = None
        self._rest = 0.0
        self.iteration = self.n_tune = self.n_draws = 0
        self.failures = FailureCount()
        # A chain that is held to one BLAS thread runs in one thread: its own clock is the one to read. The clock
        # of the whole process costs up to a third of a millisecond under some kernels, more than a draw.
        self._clock = time.thread_time if options.blas_threads == 1 else time.process_time
        self._process_time = self._clock()

    @staticmethod
    def competence(var: Any, has_grad: bool) -> Competence:
        """Return INCOMPATIBLE: PyMC never chooses this step by itself."""
        return Competence.INCOMPATIBLE

    @property
    def chains(self) -> list[ChainState]:
        """State of each block's chain, which `sampling_state` saves."""
        return [sampler.state for sampler in self._samplers]

    @chains.setter
    def chains(self, states: list[ChainState]) -> None:
        for sampler, state in zip(self._samplers, states, strict=True):
            sampler.restore(state)

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        """Begin a chain: take its random numbers and length, and check data that may have changed.

        Raises
        ------
        DataError
            If `pm.set_data` has changed a shape since the step was built, or has set values that cannot be used.
        ConfigurationError
            If the model has other variables than when the step was built.
        """
        super().setup_chain(rng, tune, draws)
        self._contents.check(self._model)
        check_shapes(self._shapes, shapes_of_data(self._model), self._reads)
        self._inputs.check(self._initial_point)
        for block in self._compiled.blocks:
            check_block(block, self._initial_point, self._plan)
        self._rest_key = None
        self.iteration, self.n_tune, self.n_draws = 0, tune, draws
        self.failures = FailureCount()
        self.tune = tune > 0
        self._process_time = self._clock()
        self._compile_seconds_in_chain, self._has_announced = 0.0, False
        for sampler in self._samplers:
            sampler.setup(tune)
        if self._plan.step_size is None and not any(sampler.state.started for sampler in self._samplers):
            self._notices.add("tuning", too_short_tuning(tune, self.default_tune_steps))
        self._threads.hold()

    def step(self, point: Point) -> tuple[Point, list[dict[str, Any]]]:
        """Make one draw: read the point, move every block, write the values, report."""
        before, had_announced = COMPILING.seconds, self._has_announced
        try:
            with COMPILING.announced(None if self._has_announced else self._announce):
                point, (statistics,) = self._draw(point)
        except BaseException:  # the chain is over, and what is sampled in its place shall have all threads
            self._threads.release()
            raise
        self._compile_seconds_in_chain += COMPILING.seconds - before
        if self._has_announced and not had_announced:
            _log.info(f"RMHMC: compiled in {self._compile_seconds_in_chain:.1f} s.")
        statistics["compile_seconds"] = self._compile_seconds + self._compile_seconds_in_chain
        statistics["compile_seconds_in_chain"] = self._compile_seconds_in_chain
        return point, [statistics]

    def _announce(self) -> None:
        """Say, once a chain, that something is compiled after all."""
        if not self._has_announced:
            self._has_announced = True
            _log.info("RMHMC: compiling a function that this chain needs now. The progress bar waits meanwhile.")

    def _draw(self, point: Point) -> tuple[Point, list[dict[str, Any]]]:
        """Everything that PyMC is given of a draw but the seconds of compiling."""
        started = time.perf_counter()
        # In C order: what is drawn is written through flat views.
        point = {name: np.array(value, order="C") for name, value in point.items()}
        self._inputs.check_moved(point)
        outcomes = []
        # What overflows inside a trajectory is found by its own checks, and counted: no warnings besides.
        with np.errstate(all="ignore"):
            if 0 < self.iteration < WATCHED:  # at first a chain stands where it is put
                moved = moved_by_others(self._samplers, point)
                self._notices.add("moved", moved_twice(moved, self._samplers[0].labels))
            for sampler in self._samplers:
                outcomes.append(sampler.draw(point, self.rng, tuning=self.tune))
                sampler.write(point)
            point, predicted = self._predicted(point)
        statistics = block_statistics(outcomes)
        rest = self._rest_log_density(point) + predicted
        statistics["model_logp"] = sum(s.log_density for s in self._samplers) + rest
        statistics["step_size"] = min(s.current_step_size(tuning=self.tune) for s in self._samplers)
        # A step size that was given has no average, and `summarize_failures` knows it by that.
        is_given = self._plan.step_size is not None
        statistics["step_size_bar"] = math.nan if is_given else min(s.average_step_size() for s in self._samplers)
        statistics.update(self._count(Failure(statistics["failure"])))
        statistics["perf_counter_start"] = started
        statistics["perf_counter_diff"] = time.perf_counter() - started
        statistics["process_time_diff"] = self._processor_seconds()
        return point, [statistics]

    def _processor_seconds(self) -> float:
        """Processor time since the last draw ended: one look at the clock a draw, since looks are not free."""
        before, self._process_time = self._process_time, self._clock()
        return max(0.0, self._process_time - before)

    def _count(self, failure: Failure) -> dict[str, Any]:
        """Count the draw; on the last of the chain, sum up and let BLAS go."""
        self.iteration += 1
        if not self.tune:
            self.failures.add(failure)
        last = self.iteration == self.n_tune + self.n_draws
        if last:
            self._threads.release()
        return {
            "diverging": self.failures.diverging(failure),
            "n_failures": self.failures.total,
            "warning": self._summary(last=last),
        }

    def _summary(self, *, last: bool) -> SamplerWarning | None:
        """What to say: at the end of the chain how it went, and before that what a run says once."""
        notice = self._notices.take()
        if not last:
            return SamplerWarning(WarningType.BAD_PARAMS, notice, "warn") if notice else None
        refused = next(filter(None, (sampler.where_refused() for sampler in self._samplers)), "")
        remarks = "\n".join(filter(None, (notice, *(sampler.remarks() for sampler in self._samplers))))
        return self.failures.warning(refused, remarks, self._plan.step_size)

    def _predicted(self, point: Point) -> tuple[Point, float]:
        """The point with what the model predicts at it, and the log density of that."""
        if self._predictions is None:
            return point, 0.0
        drawn, log_density = self._predictions.draw(point, self.rng)
        return point | drawn, log_density

    def _rest_log_density(self, point: Point) -> float:
        """What the model's log density has beyond the blocks; evaluated where its inputs have changed."""
        names = self._compiled.rest_inputs
        key = self._rest_key
        if key is None or any(not np.array_equal(key[name], point[name]) for name in names):
            self._rest_key = {name: point[name] for name in names}
            self._rest = float(self._compiled.rest_log_density(point))
        return self._rest

    def _progressbar_config(self, n_chains: int = 1) -> tuple[list[TextColumn], dict[str, list[float]]]:
        self._notices.begin_run()  # PyMC asks for this once a run
        columns = [
            TextColumn("{task.fields[rmhmc_step]:0.3f}", table_column=Column("Step size", ratio=1)),
            TextColumn("{task.fields[rmhmc_accept]:0.2f}", table_column=Column("Acceptance", ratio=1)),
            TextColumn("{task.fields[rmhmc_failures]}", table_column=Column("Failures", ratio=1)),
        ]
        return columns, {name: [0] * n_chains for name in ("rmhmc_step", "rmhmc_accept", "rmhmc_failures")}

    @staticmethod
    def _make_progressbar_update_functions() -> tuple[Any, ...]:
        def update(statistics: dict[str, Any]) -> dict[str, Any]:
            return {
                "rmhmc_step": statistics["step_size"],
                "rmhmc_accept": statistics["mean_tree_accept"],
                "rmhmc_failures": statistics["n_failures"],
                "failing": statistics["n_failures"] > 0,
            }

        return (update,)

