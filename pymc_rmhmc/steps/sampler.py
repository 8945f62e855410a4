"""What all step methods of this package share: from a plan to draws, statistics, messages and progress."""

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
from pymc_rmhmc.kernels.kernel import merge_blocks
from pymc_rmhmc.model.predictions import check_improper_priors
from pymc_rmhmc.model.together import flat_priors
from pymc_rmhmc.model.words.bad_inputs import InputChecks
from pymc_rmhmc.sampled.checks import check_block, check_shapes, shapes_of_data
from pymc_rmhmc.steps.options import CheckedStep, ModelContents, Plan, check_compile_kwargs, check_point, generator_of
from pymc_rmhmc.steps.process_settings import ProcessSettings
from pymc_rmhmc.steps.rehearsal import compile_ahead
from pymc_rmhmc.steps.reports import (
    STATISTICS,
    WATCHED,
    FailureCount,
    RunNotices,
    block_statistics,
    followers_of,
    moved_by_others,
    moved_twice,
    too_short_tuning,
)
from pymc_rmhmc.steps.selection import find_with_predictions, predictions_in_words
from pymc_rmhmc.stopwatch import COMPILING
from pymc_rmhmc.usage import switch

__all__ = ["Sampler"]

type Point = dict[str, np.ndarray]

# A child of PyMC's logger, so that its messages appear where PyMC's do.
_log = logging.getLogger("pymc.rmhmc")


@dataclass_state
class SamplerState(StepMethodState):
    """Everything that the rest of a chain depends on."""

    tune: bool
    iteration: int
    n_tune: int
    n_draws: int
    chains: list[ChainState] = field(default_factory=list)
    failures: Any = None


class Sampler(CheckedStep):
    """A step method that samples what a plan says; a subclass has the options, as `RMHMC`.

    Attributes
    ----------
    has_step_size : bool
        Whether its draws have one.
    """

    has_step_size = True
    default_blocked = True
    default_tune_steps = 200
    stats_dtypes_shapes = STATISTICS
    _state_class = SamplerState

    def _build(
        self, vars: Any, plan: Plan, *, blas_threads: int | None, model: pm.Model | None, rng: Any,  # noqa: A002
        initial_point: Point | None, compile_kwargs: dict[str, Any] | None, blocked: bool,
    ) -> None:  # fmt: skip
        """Read the model, compile what a chain calls, and stand ready for `pm.sample`."""
        if not switch("blocked", blocked):
            raise ConfigurationError(
                f"blocked=False is not possible, because {plan.sampler} moves all its variables together. Remove it, "
                "or give one step for each latent vector: "
                f"step=[{plan.sampler}(vars=['f']), {plan.sampler}(vars=['g'])]."
            )
        model = pm.modelcontext(model)
        check_improper_priors(model)
        plan = replace(plan, flat_priors=flat_priors(model))
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
        self._followers = followers_of(model)
        self._followers.update(found.followers(plan))
        self.tune = True
        self._initial_point, self._plan = point, plan
        self._samplers = found.samplers(point, plan, initial)
        _log.info(wrapped(found.announcement(plan) + predictions_in_words(predicted)))
        if found.warning():
            _log.warning(wrapped(found.warning()))
        self._compile_seconds = compile_ahead(self._samplers, point, found.names, predicted, plan.sampler)
        self._compile_seconds_in_chain, self._has_announced = 0.0, False
        self.default_tune_steps = found.tune_steps or self.default_tune_steps
        self._process = ProcessSettings(None if blas_threads is None else int(blas_threads))
        self._shapes, self._reads = shapes_of_data(model), found.data_names
        self._rest_key: Point | None = None
        self._rest = 0.0
        self.iteration = self.n_tune = self.n_draws = 0
        self.failures = FailureCount()
        # A chain that is held to one BLAS thread runs in one thread: its own clock is the one to read. The clock
        # of the whole process costs up to a third of a millisecond under some kernels, more than a draw.
        self._clock = time.thread_time if blas_threads == 1 else time.process_time
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

        Raises a `DataError` if `pm.set_data` has changed a shape since the step was built, or has set values that
        cannot be used, and a `ConfigurationError` if the model has other variables than when the step was built.
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
            self._notices.add("tuning", too_short_tuning(tune, self.default_tune_steps, self._plan.sampler))
        self._process.hold()

    def step(self, point: Point) -> tuple[Point, list[dict[str, Any]]]:
        """Make one draw: read the point, move every block, write the values, report."""
        before, had_announced = COMPILING.seconds, self._has_announced
        announced_before = COMPILING.announce_with(None if had_announced else self._announce)
        try:
            point, statistics = self._draw(point)
        except BaseException:  # the chain is over, and what is sampled in its place shall have all threads
            self._process.release()
            raise
        finally:
            COMPILING.announce_with(announced_before)
        self._compile_seconds_in_chain += COMPILING.seconds - before
        if self._has_announced and not had_announced:
            _log.info(f"{self._plan.sampler}: compiled in {self._compile_seconds_in_chain:.1f} s.")
        statistics["compile_seconds"] = self._compile_seconds + self._compile_seconds_in_chain
        statistics["compile_seconds_in_chain"] = self._compile_seconds_in_chain
        return point, [statistics]

    def _announce(self) -> None:
        """Say, once a chain, that something is compiled after all."""
        if not self._has_announced:
            self._has_announced = True
            _log.info(
                f"{self._plan.sampler}: compiling a function that this chain needs now. The progress bar waits "
                "meanwhile."
            )

    def _draw(self, point: Point) -> tuple[Point, dict[str, Any]]:
        """Draw once, and return everything that PyMC is given of a draw but the seconds of compiling."""
        started = time.perf_counter()
        # In C order: what is drawn is written through flat views.
        point = {name: np.array(value, order="C") for name, value in point.items()}
        if self._inputs.bounds.moving:
            self._inputs.bounds.check_moved(point)
        outcomes = []
        # What overflows inside a trajectory is found by its own checks, and counted: no warnings besides.
        with np.errstate(all="ignore"):
            if 0 < self.iteration < WATCHED:  # at first a chain stands where it is put
                moved = moved_by_others(self._samplers, point, self._followers)
                self._notices.add("moved", moved_twice(moved, self._samplers[0].labels))
            for sampler in self._samplers:
                outcomes.append(sampler.draw(point, self.rng, tuning=self.tune))
                sampler.density.variables.write(sampler.values, point)
            predicted = 0.0
            if self._predictions is not None:
                drawn, predicted = self._predictions.draw(point, self.rng)
                point |= drawn
        outcome = outcomes[0] if len(outcomes) == 1 else merge_blocks(outcomes)
        statistics = block_statistics(outcome)
        rest = self._rest_log_density(point)
        statistics["model_logp"] = sum([s.log_density for s in self._samplers]) + rest + predicted
        statistics["log_weight"] = sum([s.log_weight for s in self._samplers]) + rest
        used = [s.step_size for s in self._samplers] if self.has_step_size else []
        sizes = [math.nan if u is None else u.current if self.tune else u.average for u in used]
        statistics["step_size"] = min(sizes, default=math.nan)
        # A step size that was given has no average, and `summarize_failures` knows it by that.
        averages = [] if self._plan.step_size is not None else [math.nan if u is None else u.average for u in used]
        statistics["step_size_bar"] = min(averages, default=math.nan)
        statistics.update(self._count(outcome.failure))
        statistics["perf_counter_start"] = started
        statistics["perf_counter_diff"] = time.perf_counter() - started
        # Since the last draw ended: one look at the clock per draw, since looks are not free.
        before, self._process_time = self._process_time, self._clock()
        statistics["process_time_diff"] = max(0.0, self._process_time - before)
        return point, statistics

    def _count(self, failure: Failure) -> dict[str, Any]:
        """Count the draw; on the last of the chain, sum up and let BLAS go."""
        self.iteration += 1
        if not self.tune:
            self.failures.add(failure)
        last = self.iteration == self.n_tune + self.n_draws
        if last:
            self._process.release()
        return {
            "diverging": bool(failure) and self.failures.diverging(failure),
            "n_failures": self.failures.total,
            "warning": self._summary(last=last) if last or self._notices.waiting else None,
        }

    def _summary(self, *, last: bool) -> SamplerWarning | None:
        """Say at the end of the chain how it went, and before that what a run says once."""
        notice = self._notices.take()
        if not last:
            return SamplerWarning(WarningType.BAD_PARAMS, notice, "warn")
        refused = next(filter(None, (sampler.where_refused() for sampler in self._samplers)), "")
        remarks = "\n".join(filter(None, (notice, *(sampler.remarks() for sampler in self._samplers))))
        return self.failures.warning(refused, remarks, self._plan.step_size)

    def _rest_log_density(self, point: Point) -> float:
        """Return what the model's log density has beyond the blocks; evaluate it where its inputs have changed."""
        names = self._compiled.rest_inputs
        key = self._rest_key
        if key is None or not all([np.array_equal(key[name], point[name]) for name in names]):  # noqa: C419
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
        shown = columns if self.has_step_size else columns[2:]
        return shown, {name: [0] * n_chains for name in ("rmhmc_step", "rmhmc_accept", "rmhmc_failures")}

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

