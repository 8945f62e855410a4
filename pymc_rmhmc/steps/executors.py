"""Chains as tasks: packed for workers, run by an executor, and put together."""

from __future__ import annotations

import contextlib
import inspect
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import xarray as xr
from pymc.stats.convergence import log_warnings, run_convergence_checks
from pymc.step_methods.compound import BlockedStep, CompoundStep
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pymc_rmhmc.errors import ConfigurationError, SamplingError, counted, listed, shown
from pymc_rmhmc.gathering import ExecutorOrFactory, check_executor, gather, local_pools
from pymc_rmhmc.model import model_in_context
from pymc_rmhmc.steps.rmhmc import RMHMC
from pymc_rmhmc.usage import count, switch

__all__ = ["ChainResult", "combined", "log_messages", "pack", "run_chain", "sample_chains", "seeds_of", "warm_up"]

type Step = BlockedStep | CompoundStep

# Those whose handlers show what PyMC says.
LOGGERS = ("", "pymc")


class Message(NamedTuple):
    """A line that a chain has logged."""

    level: int
    logger: str
    text: str


class ChainResult(NamedTuple):
    """What a worker sends back."""

    tree: xr.DataTree
    messages: list[Message]


def pack(model: pm.Model, step: Any, options: Mapping[str, Any]) -> bytes:
    """Return a model, a step that was built for it and the options of `pm.sample`, pickled.

    Pickle itself can write neither models nor steps, because both hold functions without a name.

    Raises a `ConfigurationError` if cloudpickle is missing, or something in the model cannot be pickled.
    """
    try:
        import cloudpickle
    except ImportError:
        raise ConfigurationError(
            "The model is sent to other processes with cloudpickle, which is not installed. Type "
            'pip install "pymc_rmhmc[cluster]".'
        ) from None
    try:
        return cloudpickle.dumps((model, step, dict(options)))
    except Exception as error:
        raise ConfigurationError(
            f"The model cannot be sent to other processes: {type(error).__name__}: {error}. It holds an object that "
            "cannot be pickled, such as an open file or a lock. Remove that, or sample with pm.sample(cores=1)."
        ) from error


def seeds_of(random_seed: int | None, chains: int) -> list[int]:
    """Return a seed for each chain: independent of each other, and of how many chains there are."""
    return [int(each.generate_state(1, np.uint64)[0]) for each in np.random.SeedSequence(random_seed).spawn(chains)]


def run_chain(blob: bytes, chain: int, seed: int) -> ChainResult:
    """Sample a chain in a worker.

    `blob`: from `pack`.
    `chain`: the chain's number, from 0.
    `seed`: its seed.

    `ChainResult`: the draws, as a run of a single chain, and the warnings that were logged.
    """
    import cloudpickle

    model, step, options = cloudpickle.loads(blob)
    initvals = options.pop("initvals", None)
    if initvals is not None and not isinstance(initvals, Mapping):
        initvals = initvals[chain]
    with kept_messages() as messages, model:
        tree = pm.sample(
            step=step, chains=1, cores=1, random_seed=seed, initvals=initvals, progressbar=False,
            compute_convergence_checks=False, **options,
        )  # fmt: skip
    return ChainResult(tree, [each for each in messages if each.level >= logging.WARNING])


def warm_up(model: pm.Model, step: Any, options: Mapping[str, Any], seed: int) -> None:
    """Make two draws in this process, so that all workers read their compiled code from disk.

    A process that compiles a function rounds otherwise than one that reads it.
    """
    short = {**options, "draws": 1, "tune": 1}
    with contextlib.suppress(SamplingError):  # so short a chain says nothing about a long one
        run_chain(pack(model, step, short), 0, seed)


def combined(trees: Mapping[int, xr.DataTree], seconds: float) -> xr.DataTree:
    """Return chains by number as a single result, as `pm.sample` gives it."""
    numbers = sorted(trees)
    joined: dict[str, xr.Dataset] = {}
    for name, group in trees[numbers[0]].children.items():
        first = group.to_dataset()
        joined[name] = first
        if "chain" not in first.dims:
            continue
        parts = [trees[chain][name].to_dataset() for chain in numbers]
        whole = xr.concat(
            parts, "chain", data_vars="minimal", coords="minimal", compat="override", join="override",
            combine_attrs="override",
        )  # fmt: skip
        # In PyMC's order: `concat` puts the coordinate of chains last.
        coords = {coord: ("chain", numbers) if coord == "chain" else whole.variables[coord] for coord in first.coords}
        variables = {variable: whole.variables[variable] for variable in whole.data_vars}
        timed = {"sampling_time": seconds} if "sampling_time" in whole.attrs else {}
        joined[name] = xr.Dataset(variables, coords, {**whole.attrs, **timed})
    return xr.DataTree.from_dict(joined)


def log_messages(results: Mapping[int, ChainResult]) -> None:
    """Write to the log what the chains had to say, each message once, with the chains that said it."""
    by_message: dict[Message, list[str]] = {}
    for chain in sorted(results):
        for message in dict.fromkeys(results[chain].messages):
            by_message.setdefault(message, []).append(str(chain))
    for message, chains in by_message.items():
        who = f"{'Chain' if len(chains) == 1 else 'Chains'} {listed(chains, '')}"
        logging.getLogger(message.logger).log(message.level, "%s: %s", who, message.text)


@contextlib.contextmanager
def kept_messages() -> Iterator[list[Message]]:
    """Keep what PyMC's loggers say in this thread, and show it nowhere: a worker's screen is seldom looked at."""
    messages: list[Message] = []
    keeper = _Keeper(messages)
    loggers = [logging.getLogger(name) for name in LOGGERS]
    shown_by = [handler for logger in loggers for handler in logger.handlers]
    silencer = _Silencer(keeper.thread)
    for handler in shown_by:
        handler.addFilter(silencer)
    loggers[-1].addHandler(keeper)
    try:
        yield messages
    finally:
        loggers[-1].removeHandler(keeper)
        for handler in shown_by:
            handler.removeFilter(silencer)


class _Keeper(logging.Handler):
    """Keeps the messages of a thread."""

    def __init__(self, messages: list[Message]) -> None:
        super().__init__()
        self.messages, self.thread = messages, threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message, if it comes from this thread."""
        if record.thread == self.thread:
            self.messages.append(Message(record.levelno, record.name, record.getMessage()))


class _Silencer(logging.Filter):
    """Keeps the messages of PyMC in a thread from a handler."""

    def __init__(self, thread: int) -> None:
        super().__init__()
        self.thread = thread

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a handler shows a message."""
        return record.thread != self.thread or not record.name.startswith("pymc")


# A child of PyMC's logger, so that its messages appear where PyMC's do.
_log = logging.getLogger("pymc.rmhmc")


# Arguments of `pm.sample` that go to every chain.
PASSED_ON = ("initvals", "var_names", "discard_tuned_samples", "idata_kwargs", "compile_kwargs")
INSTEAD = {
    **dict.fromkeys(("cores", "mp_ctx"), "The executor has so many workers: executor=lambda: ProcessPoolExecutor(2)."),
    **dict.fromkeys(("target_accept", "metric", "trajectory"), "Give it to the step: step=lambda: RMHMC({name}=...)."),
    **dict.fromkeys(("trace", "callback"), "It would run in another process. Use pm.sample."),
    "client": "Give executor=client.get_executor(pure=False).",
    "seed": "Give random_seed=1.",
}
STEPS = "Give step=RMHMC, step=lambda: RMHMC(metric='hessian'), a step built for this model, or a list of these."


def sample_chains(
    model: pm.Model | None = None, step: Any = RMHMC, *, draws: int = 1000, tune: int | None = None, chains: int = 4,
    executor: ExecutorOrFactory | None = None, random_seed: int | None = None, attempts: int = 3,
    progressbar: bool = True, compute_convergence_checks: bool = True, **options: Any,
) -> xr.DataTree:  # fmt: skip
    r"""Sample each chain as a separate task, on this computer or on a cluster, and repeat those whose worker died.

    The result is that of `pm.sample`. A chain that is repeated has the same seed, and so the same draws.

    Parameters
    ----------
    model : pymc.Model, optional
        The model; by default the one in context.
    step : step, class, callable, or list of these, default RMHMC
        A class of steps; a callable without arguments that makes a step within the model's context, such as
        ``lambda: RMHMC(metric="hessian")``; or a step that was built for this model. Variables without a step get one
        of PyMC's.
    draws : int, default 1000
        The draws of each chain after tuning.
    tune : int, optional
        The draws of tuning; by default as many as the steps ask for.
    chains : int, default 4
        The number of chains.
    executor : concurrent.futures.Executor or callable, optional
        Where chains run: an executor, which is left open, or a function without arguments that makes one, such as
        ``lambda: ProcessPoolExecutor(2)``. Give a function if workers may die: a process pool with a dead worker takes
        no more work, and a new one is made. What the function made is shut down at the end. By default processes on
        this computer, one for each chain or processor. For Dask give ``client.get_executor(pure=False)``.
    random_seed : int, optional
        The seed that the seeds of all chains are spawned from.
    attempts : int, default 3
        How often a chain may run if its worker dies.
    progressbar : bool, default True
        Show how many chains have finished.
    compute_convergence_checks : bool, default True
        Check all chains together at the end, as `pm.sample` does, and log what is found.
    **options
        ``initvals``, ``var_names``, ``discard_tuned_samples``, ``idata_kwargs`` and ``compile_kwargs`` of `pm.sample`.
        If ``initvals`` is a list, it has an entry for each chain.

    Returns
    -------
    xarray.DataTree
        The groups of `pm.sample`: ``posterior``, ``sample_stats``, ``observed_data`` and so on, and those of tuning
        with ``discard_tuned_samples=False``. A variable of shape S has the shape (chains, draws, \*S). The coordinate
        ``chain`` is 0, 1, … in the order of the seeds, whichever chain finishes first.

    Raises
    ------
    ConfigurationError
        An argument is out of range or no executor, no step, or a step of another model; there is no model; or the model
        cannot be pickled. Raised before any chain runs.
    SamplingError
        The worker of a chain died in every attempt, or an executor that was given takes no more work. Its attribute
        ``finished`` is a DataTree of the chains that finished, or None.
    Exception
        What a chain raises, with its number. It is not tried again: the same seed would lead to the same error. It has
        the attribute ``finished`` too.

    Notes
    -----
    The step is built and two draws are made in this process first. So workers on the same disk read compiled code, and
    all round alike. A chain in a process that has to compile may differ by about 1e-11, from the first draw on.

    Processes are spawned by default: in a script, call this below ``if __name__ == "__main__":``.

    Examples
    --------
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> import pymc as pm
    >>> from pymc_rmhmc import RMHMC, sample_chains
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x", 0, 1)
    ...     y = pm.Normal("y", x, 1, observed=0.5)
    >>> idata = sample_chains(
    ...     model, lambda: RMHMC(max_steps=50), draws=100, tune=200, chains=2, random_seed=1,
    ...     executor=lambda: ThreadPoolExecutor(1), progressbar=False,
    ... )
    >>> idata.posterior["x"].shape
    (2, 100)
    """
    _check_options(options)
    draws, chains, attempts = count("draws", draws, 1000), count("chains", chains, 4), count("attempts", attempts, 3)
    tune = None if tune is None else count("tune", tune, 500, least=0)
    random_seed = None if random_seed is None else count("random_seed", random_seed, 1, least=0)
    shows, checks = switch("progressbar", progressbar), switch("compute_convergence_checks", compute_convergence_checks)
    _check_initvals(options.get("initvals"), chains)
    pools = local_pools(chains) if executor is None else check_executor(executor)
    model = model_in_context(model, "sample_chains")
    built, options = _built(step, model), {**options, "draws": draws, "tune": tune}
    blob, seeds = pack(model, built, options), seeds_of(random_seed, chains)
    warm_up(model, built, options, seeds[0])
    started = time.perf_counter()
    results = _gathered(pools, [(blob, chain, seeds[chain]) for chain in range(chains)], attempts, shows)
    log_messages(results)
    tree = combined({chain: each.tree for chain, each in results.items()}, time.perf_counter() - started)
    if checks:
        log_warnings(run_convergence_checks(tree, model))
    return tree


def _gathered(
    pools: ExecutorOrFactory, tasks: Sequence[tuple[bytes, int, int]], attempts: int, shows: bool
) -> dict[int, ChainResult]:
    """Return what every chain sent back; an error goes on with the chains that finished before."""
    started = time.perf_counter()
    columns = (TextColumn("Chains finished"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, disable=not shows) as progress:
            bar = progress.add_task("", total=len(tasks))
            results = gather(
                pools, run_chain, tasks, attempts=attempts, noun="chain",
                on_finished=lambda chain, result: progress.advance(bar),
            )  # fmt: skip
    except BaseException as error:
        trees = {chain: each.tree for chain, each in getattr(error, "finished", {}).items()}
        error.finished = combined(trees, time.perf_counter() - started) if trees else None  # type: ignore[attr-defined]
        raise
    return dict(enumerate(results))


def _built(step: Any, model: pm.Model) -> Any:
    """Return steps for a model, built within its context where they are not yet.

    Raises a `ConfigurationError` if it is no step, or one of another model.
    """
    if isinstance(step, list | tuple) and step:
        return [_built(each, model) for each in step]
    if isinstance(step, BlockedStep | CompoundStep):
        return _of_model(step, model)
    if not _can_be_called(step) or (inspect.isclass(step) and not issubclass(step, BlockedStep | CompoundStep)):
        raise ConfigurationError(f"step is {shown(step)}, which is no step. {STEPS}")
    with model:
        made = step()
    if isinstance(made, list | tuple) and made and all(isinstance(each, BlockedStep | CompoundStep) for each in made):
        return [_of_model(each, model) for each in made]
    if not isinstance(made, BlockedStep | CompoundStep):
        raise ConfigurationError(f"step is a callable that returned {shown(made)}, which is no step. {STEPS}")
    return _of_model(made, model)


def _can_be_called(step: Any) -> bool:
    """Return whether something can be called without arguments."""
    if not callable(step):
        return False
    try:
        inspect.signature(step).bind()
    except TypeError:
        return False
    except ValueError:  # of what is not written in Python
        return True
    return True


def _of_model(step: Step, model: pm.Model) -> Step:
    """Return a step, if its variables are a model's."""
    own = {id(variable) for variable in model.value_vars}
    strange = [str(variable.name) for variable in step.vars if id(variable) not in own]
    if strange:
        raise ConfigurationError(
            f"step was built for another model: {listed(strange)} of {type(step).__name__} is no variable of this one. "
            f"Build it within `with model:`, or give step={type(step).__name__}."
        )
    return step


def _check_options(options: Mapping[str, Any]) -> None:
    """Raise for an argument that is not passed on to `pm.sample`."""
    for name in options:
        if name not in PASSED_ON:
            instead = INSTEAD.get(name, f"It passes on {', '.join(PASSED_ON)} to pm.sample.").format(name=name)
            raise ConfigurationError(f"sample_chains has no argument {name}. {instead}")


def _check_initvals(initvals: Any, chains: int) -> None:
    """Raise for a list of starts that is not one for each chain."""
    if initvals is not None and not isinstance(initvals, Mapping) and len(initvals) != chains:
        raise ConfigurationError(
            f"initvals must be a dict for all chains, or a list with one for each of {counted(chains, 'chain')}, got "
            f"{len(initvals)}. Give initvals=model.initial_point(), for example."
        )
