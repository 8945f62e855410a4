"""Compile everything that a chain will call before PyMC's clock starts.

Functions are compiled when they are first called with arguments of their types. So each sampler makes one short
trajectory with sites and scales that nobody will use, on a copy that is thrown away.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytensor

from pymc_rmhmc.chains.chain import AnyChain
from pymc_rmhmc.chains.judgement import in_words
from pymc_rmhmc.dynamics.delayed_rejection import accepts_retry
from pymc_rmhmc.errors import PriorFailure, RMHMCError, counted, listed, wrapped
from pymc_rmhmc.model.predictions import Predictions
from pymc_rmhmc.sampled.whole_model import SCATTER
from pymc_rmhmc.stopwatch import COMPILING

__all__ = ["compile_ahead"]

type Point = dict[str, np.ndarray]

# A child of PyMC's logger, so that its messages appear where PyMC's do.
_log = logging.getLogger("pymc.rmhmc")

# Seconds after which a user wonders what comes next: PyMC's own functions, on a first run.
LONG = 5.0
# Points near the model's initial one that are tried where that has no density.
N_NEARBY = 5


def compile_ahead(
    samplers: Sequence[AnyChain], point: Point, names: Sequence[str], predictions: Predictions | None = None,
    sampler_name: str = "RMHMC",
) -> float:  # fmt: skip
    """Compile what the samplers' chains will call, and say so before and after where there is anything to compile.

    `samplers`: their states are left as they are.
    `point`: a point of the model.
    `names`: the variables that are sampled, for the messages.
    `predictions`: what is drawn after the samplers have moved.
    `sampler_name`: which step says it.

    `float`: the seconds of compiling.
    """
    said = _Said(sum(each.density.n_functions for each in samplers) + (predictions is not None), names, sampler_name)
    before = COMPILING.seconds
    with np.errstate(all="ignore"), COMPILING.announced(said.before):
        accepts_retry(0.5, 0.5, 0.0, 0.0)  # no short trajectory errs so much that it is tried again
        for sampler in samplers:
            _rehearse_somewhere(sampler, point, sampler_name)
        if predictions is not None:
            _predict(predictions, point)
    seconds = COMPILING.seconds - before
    said.after(seconds)
    return seconds


class _Said:
    """The two lines about compiling."""

    def __init__(self, n_functions: int, names: Sequence[str], sampler: str) -> None:
        self._n_functions, self._names, self._sampler, self._begun = n_functions, names, sampler, False

    def before(self) -> None:
        """Say what is compiled, before the first function and not before the others."""
        if not self._begun:
            self._begun = True
            functions = counted(self._n_functions, "function")
            _log.info(wrapped(
                f"{self._sampler}: compiling {functions} for {listed(self._names)}, usually 10 to 40 s the first time; "
                f"kept in {_kept_in()} for later runs."
            ))  # fmt: skip

    def after(self, seconds: float) -> None:
        """Say how long it took when all is done; nothing where nothing was compiled."""
        if self._begun:
            then = " PyMC now compiles functions of its own." if seconds > LONG else ""
            _log.info(f"{self._sampler}: compiled in {seconds:.1f} s.{then}")


def _rehearse_somewhere(sampler: AnyChain, point: Point, name: str) -> None:
    """Let a copy make a short trajectory from a point, or from one nearby where that has no density or gradient."""
    if _rehearse(sampler, point) or sampler.plan.init == "keep" or sampler.own_initval:
        return
    rng = np.random.default_rng(0)
    values = np.nan_to_num(sampler.density.variables.read(point), posinf=0.0, neginf=0.0)
    for _ in range(N_NEARBY):
        nearby = {variable: np.array(value) for variable, value in point.items()}
        sampler.density.variables.write(values + rng.uniform(-SCATTER, SCATTER, values.size), nearby)
        if _rehearse(sampler, nearby):
            where = in_words({variable: point[variable] for variable, _ in sampler.slices})
            _log.info(wrapped(
                f"{name}: the log density or its gradient is not finite at the model's initial point, where {where}. "
                "Chains begin near it instead. To choose where, give pm.sample(initvals=...)."
            ))  # fmt: skip
            return


def _rehearse(sampler: AnyChain, point: Point) -> bool:
    """Let a copy make a short trajectory from a point, and return whether there is a density there."""
    twin = copy.copy(sampler)
    twin.density = copy.copy(sampler.density)
    twin.restore(twin.new_state())
    try:
        return twin.rehearse(point, np.random.default_rng(0))
    except (RMHMCError, PriorFailure, np.linalg.LinAlgError):
        # A chain may start at another point. Where it starts at this one, it says what is wrong.
        return False


def _predict(predictions: Predictions, point: Point) -> None:
    """Draw what the model predicts at a point, for nobody."""
    try:
        predictions.draw(point, np.random.default_rng(0))
    except (ValueError, AssertionError, ArithmeticError):
        # A chain may start at another point, as in `_rehearse`; a matrix without a factor is a ValueError.
        return


def _kept_in() -> str:
    """Return the folder of PyTensor's compiled code, with ~ for the user's home."""
    folder, home = Path(pytensor.config.base_compiledir), Path.home()
    return f"~/{folder.relative_to(home)}" if folder.is_relative_to(home) else str(folder)
