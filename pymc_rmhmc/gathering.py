"""Independent pieces of work under any executor of `concurrent.futures`, run again if a worker dies.

A piece is a call of a function that pickle finds by its name. What the function raises is the piece's own error: it
comes back as a value, and is raised here at once. What a future itself raises is the executor's: a worker has died,
or a task was lost on its way, and the piece runs again with the same arguments.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import textwrap
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from functools import partial
from multiprocessing import current_process, get_context
from typing import NamedTuple, Self

from pymc_rmhmc.errors import ConfigurationError, RMHMCError, SamplingError, counted, listed, shown, wrapped

__all__ = ["ExecutorOrFactory", "check_executor", "gather", "local_pools"]

type ExecutorOrFactory = Executor | Callable[[], Executor]

# A child of PyMC's logger, so that its messages appear where PyMC's do.
_log = logging.getLogger("pymc.rmhmc")

# Seconds between two looks at which pieces are running.
TICK = 0.2
# How Dask says that a worker died or that its connection was lost; it need not be installed.
DEATHS_IN_DASK = {"KilledWorker", "CommClosedError"}
# Characters of an executor's error in a message.
LONGEST_REASON = 100
FACTORY = "executor=lambda: ProcessPoolExecutor(2)"


class Finished[R](NamedTuple):
    """What a piece returned."""

    result: R


class Failed(NamedTuple):
    """What a piece raised, and where."""

    error: Exception
    raised_at: str


type Outcome[R] = Finished[R] | Failed


def gather[R](
    executor: ExecutorOrFactory, function: Callable[..., R], arguments: Sequence[tuple[object, ...]], *,
    attempts: int = 3, on_finished: Callable[[int, R], None] | None = None, noun: str = "piece",
) -> list[R]:  # fmt: skip
    """Call a function once for each tuple of arguments, under an executor, and return the results in this order.

    Results are taken as they come. No piece that finished runs again. A piece whose worker died runs again with the
    same arguments, and the other pieces go on meanwhile.

    `executor`: an executor, which is left open; or a function without arguments that makes one. The latter is called
      again when an executor takes no more work, and what it made is shut down at the end.
    `function`, `arguments`: a function that pickle finds by its name, as do workers; and the arguments of each piece. A
      random seed belongs here: a piece that runs again then gives the same result.
    `attempts`: how often a piece may run. Only deaths of workers count.
    `on_finished`: called with a piece's number and result when it has finished, in this thread.
    `noun`: what a piece is, for messages.

    Raises
    ------
    Exception
        What the function raised, with the piece's number. It is not tried again.
    SamplingError
        The workers of a piece died in all its attempts, or the executor takes no more work and there is no factory.
    ConfigurationError
        The factory makes something else than an executor.

    Notes
    -----
    Each of these exceptions, and a `KeyboardInterrupt`, has an attribute ``finished``: a dict of the results by number.
    Pieces that wait are cancelled then. Those that run are ended too if a factory made their process pool.
    """
    with _Pool(check_executor(executor), function) as pool:
        return _Gathering(pool, arguments, attempts, on_finished, noun).run()


def local_pools(n_pieces: int) -> Callable[[], ProcessPoolExecutor]:
    """Return a function that makes pools of processes on this computer, with no more of them than pieces or processors.

    They are spawned, so that they inherit neither threads nor locks. A spawned process that gets here while it is still
    reading the main script tells that the script lacks its guard.
    """
    if getattr(current_process(), "_inheriting", False):
        raise ConfigurationError(
            "This script starts processes, each of which reads the script again and gets here before it can work. Put "
            'the call below `if __name__ == "__main__":`.'
        )
    n_processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return partial(ProcessPoolExecutor, max(1, min(n_pieces, n_processors)), get_context("spawn"))


def check_executor(given: object) -> ExecutorOrFactory:
    """Return an executor or a factory of executors, or raise; of Dask's objects the error says how they give one."""
    if isinstance(given, Executor):
        return given
    if type(given).__module__.split(".")[0] in ("distributed", "dask_jobqueue", "dask_kubernetes"):
        client = "client" if hasattr(given, "get_executor") else "cluster.get_client()"
        raise ConfigurationError(
            f"executor is Dask's {type(given).__name__}, which has other futures than concurrent.futures. Give "
            f"executor={client}.get_executor(pure=False)."
        )
    if not callable(given):
        raise ConfigurationError(
            f"executor must be a concurrent.futures.Executor, or a function that makes one, got {shown(given)}. Give "
            f"{FACTORY}, or leave it out for processes on this computer."
        )
    return given


def run_piece[R](function: Callable[..., R], arguments: tuple[object, ...], attempt: int) -> Outcome[R]:
    """Call a function in a worker, and return what became of it.

    The number of the attempt makes each call another one, for an executor that remembers the results of calls.
    """
    try:
        return Finished(function(*arguments))
    except Exception as error:  # noqa: BLE001 - it is raised where the results are gathered
        return Failed(_portable(error), traceback.format_exc())


def _portable(error: Exception) -> Exception:
    """Return an error that survives pickling: many with arguments of their own do not."""
    try:
        return error if str(pickle.loads(pickle.dumps(error))) == str(error) else _plain(error)  # noqa: S301 - our own
    except Exception:  # noqa: BLE001 - pickling calls code of any kind
        return _plain(error)


def _plain(error: Exception) -> RuntimeError:
    return RuntimeError(f"{type(error).__name__}: {error}")


class _Pool[R]:
    """The executor that pieces are given to: one that was handed over, or those that a factory makes."""

    def __init__(self, given: ExecutorOrFactory, function: Callable[..., R]) -> None:
        self._function = function
        self._factory = None if isinstance(given, Executor) else given
        self._executor = given if isinstance(given, Executor) else self._made()

    def _made(self) -> Executor:
        assert self._factory is not None
        made = self._factory()
        if not isinstance(made, Executor):
            raise ConfigurationError(
                f"executor is a function that returned {shown(made)}, which is no concurrent.futures.Executor. Give a "
                f"function that makes one: {FACTORY}."
            )
        return made

    def submit(self, arguments: tuple[object, ...], attempt: int) -> Future[Outcome[R]]:
        """Hand over a piece, to a new executor if this one takes no more and there is a factory."""
        try:
            return self._executor.submit(run_piece, self._function, arguments, attempt)
        except RuntimeError as error:  # of a broken executor, and of one that was shut down
            if self._factory is None:
                raise SamplingError(
                    f"The executor takes no more work ({_said(error)}): {type(self._executor).__name__} starts no "
                    f"workers in place of dead ones. Give a function that makes an executor: {FACTORY}."
                ) from error
        self._executor.shutdown(wait=False)
        self._executor = self._made()
        try:
            return self._executor.submit(run_piece, self._function, arguments, attempt)
        except RuntimeError as error:
            raise SamplingError(
                f"The function given as executor returned an executor that takes no work ({_said(error)}). Let it make "
                f"a new one at every call: {FACTORY}."
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._factory is None:
            return
        # A worker that still runs would keep the interpreter from ending.
        workers = getattr(self._executor, "_processes", None) if kind is not None else None
        for worker in list((workers or {}).values()):
            worker.terminate()
        self._executor.shutdown(wait=kind is None)


class _Gathering[R]:
    """The pieces of a call of `gather`, by their futures."""

    def __init__(
        self, pool: _Pool[R], arguments: Sequence[tuple[object, ...]], attempts: int,
        on_finished: Callable[[int, R], None] | None, noun: str,
    ) -> None:  # fmt: skip
        self._pool, self._arguments = pool, arguments
        self._attempts, self._on_finished, self._noun = attempts, on_finished, noun
        self._waiting: dict[Future[Outcome[R]], int] = {}
        self._running: set[Future[Outcome[R]]] = set()
        self._deaths: Counter[int] = Counter()
        self._given_up: dict[int, BaseException] = {}
        self._results: dict[int, R] = {}

    def run(self) -> list[R]:
        """Gather everything."""
        try:
            for index in range(len(self._arguments)):
                self._submit(index)
            while self._waiting:
                self._take(self._next_done())
            if self._given_up:
                raise SamplingError(self._why_given_up())
        except BaseException as error:
            self._leave()
            error.finished = dict(self._results)  # type: ignore[attr-defined]
            raise
        return [self._results[index] for index in range(len(self._arguments))]

    def _leave(self) -> None:
        """Cancel what waits, and keep what has finished since the last look."""
        for future, index in self._waiting.items():
            if not future.cancel() and future.done() and _error_of(future) is None:
                outcome = future.result()
                if isinstance(outcome, Finished):
                    self._results[index] = outcome.result

    def _submit(self, index: int) -> None:
        future = self._pool.submit(self._arguments[index], self._deaths[index])
        self._waiting[future] = index

    def _next_done(self) -> list[Future[Outcome[R]]]:
        """Wait for one or more futures, and note which run meanwhile."""
        done: list[Future[Outcome[R]]] = []
        while not done:
            self._running.update(future for future in self._waiting if future.running())
            wait(self._waiting, timeout=TICK, return_when=FIRST_COMPLETED)
            done = [future for future in self._waiting if future.done()]
        return done

    def _take(self, done: Sequence[Future[Outcome[R]]]) -> None:
        """Keep results, then raise what a piece raised, then hand over again what was lost."""
        errors = {future: _error_of(future) for future in done}
        outcomes = {self._waiting[f]: f.result() for f, error in errors.items() if error is None}
        for index, outcome in outcomes.items():
            if isinstance(outcome, Finished):
                self._results[index] = outcome.result
                if self._on_finished is not None:
                    self._on_finished(index, outcome.result)
        for index, outcome in outcomes.items():
            if isinstance(outcome, Failed):
                raise self._numbered(outcome.error, index, outcome.raised_at)
        lost = {future: error for future, error in errors.items() if error is not None}
        for future, error in lost.items():
            if not _is_death(error):
                raise self._numbered(error, self._waiting[future])
        # All futures of a broken pool fail at once. Only a piece that ran can be the cause.
        charged = self._running.intersection(lost) or lost
        indices = {future: self._waiting.pop(future) for future in done}
        again = [indices[f] for f, error in lost.items() if self._may_run_again(indices[f], error, charge=f in charged)]
        for index in again:
            self._submit(index)

    def _may_run_again(self, index: int, error: BaseException, *, charge: bool) -> bool:
        """Count a death, and say whether there is an attempt left."""
        self._deaths[index] += charge
        if self._deaths[index] >= self._attempts:
            self._given_up[index] = error
            return False
        if charge:
            _log.warning(wrapped(
                f"The worker of {self._noun} {index} died ({type(error).__name__}). It runs again with the same seed, "
                f"attempt {self._deaths[index] + 1} of {self._attempts}."
            ))  # fmt: skip
        return True

    def _numbered(self, error: BaseException, index: int, raised_at: str = "") -> BaseException:
        """Return an error that says which piece raised it."""
        if isinstance(error, RMHMCError) and error.args:
            error.args = (f"{self._noun.capitalize()} {index}: {error.args[0]}", *error.args[1:])
        error.add_note(f"Raised by {self._noun} {index} of {len(self._arguments)}, counted from 0.")
        if raised_at:
            error.add_note(f"In the worker:\n{raised_at}")
        return error

    def _why_given_up(self) -> str:
        numbers = [str(index) for index in sorted(self._given_up)]
        plural = "" if len(numbers) == 1 else "s"
        reason = _said(self._given_up[int(numbers[0])])
        times = "once" if self._attempts == 1 else f"{self._attempts} times"
        kept = f" {counted(len(self._results), self._noun)} of {len(self._arguments)} finished: see error.finished."
        return (
            f"The worker{plural} of {self._noun}{plural} {listed(numbers, '')} died {times} ({reason}). Look at what "
            "the workers printed. Often memory runs out: give the executor fewer workers, or more memory for each."
            f"{kept if self._results else ''}"
        )


def _error_of[R](future: Future[Outcome[R]]) -> BaseException | None:
    """Return what a future that is done raises, if anything."""
    try:
        return future.exception()
    except CancelledError as error:
        return error


def _is_death(error: BaseException) -> bool:
    """Return whether a future's error says that its worker died, or that the task was lost with one."""
    if isinstance(error, BrokenExecutor | CancelledError | asyncio.CancelledError):
        return True
    return any(
        each.__name__ in DEATHS_IN_DASK and each.__module__.startswith("distributed.") for each in type(error).__mro__
    )


def _said(error: BaseException) -> str:
    """Return an error in a few words."""
    text = textwrap.shorten(str(error), LONGEST_REASON, placeholder=" …")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
