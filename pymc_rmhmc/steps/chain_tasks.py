"""A chain as a task: packed for a worker, run there, and put together with the others."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import xarray as xr

from pymc_rmhmc.errors import ConfigurationError, SamplingError, listed

__all__ = ["ChainResult", "combined", "log_messages", "pack", "run_chain", "seeds_of", "warm_up"]

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

    Raises
    ------
    ConfigurationError
        If cloudpickle is missing, or something in the model cannot be pickled.
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

    Parameters
    ----------
    blob : bytes
        From `pack`.
    chain : int
        The chain's number, from 0.
    seed : int
        Its seed.

    Returns
    -------
    ChainResult
        The draws, as a run of a single chain, and the warnings that were logged.
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
