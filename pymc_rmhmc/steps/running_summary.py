"""Means, standard deviations, quantiles and their diagnostics of variables whose draws are not stored."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import NDArray

from pymc_rmhmc.diagnostics.result_statistics import LARGEST_RHAT
from pymc_rmhmc.errors import ConfigurationError, DataError, listed, shown, wrapped
from pymc_rmhmc.model.structure import model_in_context
from pymc_rmhmc.usage import called_as, count

__all__ = ["RunningSummary"]

type Array = NDArray[np.float64]
type Values = Callable[[Mapping[str, np.ndarray]], np.ndarray]

# A child of PyMC's logger, so that its messages appear where PyMC's do.
_log = logging.getLogger("pymc.rmhmc")

# A chain keeps from half as many batches to so many: a variance of 64 batches, from four chains, is known to a fifth.
N_BATCHES = 32
# Batches of a chain below which its halves say nothing of one another.
FEWEST_BATCHES = 4
USAGE = 'pm.sample(var_names=["sigma"], callback=RunningSummary(["h"]))'


class _Draw(Protocol):
    """What PyMC tells a callback of a draw."""

    chain: int
    draw_idx: int
    tuning: bool
    point: Mapping[str, np.ndarray]


class _Trace(Protocol):
    """Where PyMC stores a chain."""

    varnames: Sequence[str]


class _Halved:
    """Rows (up to `most`, size) of which each second one is dropped, or joined with the one before, when all are full.

    Attributes
    ----------
    stride : int
        The draws that one row stands for.
    """

    def __init__(self, most: int, size: int, *, joins: bool) -> None:
        self._rows, self._joins = np.empty((most, size)), joins
        self.n_rows, self.stride = 0, 1

    @property
    def rows(self) -> Array:
        """Those that are there."""
        return self._rows[: self.n_rows]

    def add(self, row: Array) -> None:
        """Add a row; afterwards there is room for another one."""
        self._rows[self.n_rows] = row
        self.n_rows += 1
        if self.n_rows == len(self._rows):
            even, odd = self._rows[::2], self._rows[1::2]
            self.n_rows //= 2
            self._rows[: self.n_rows] = 0.5 * (even + odd) if self._joins else even.copy()
            self.stride *= 2


class _ChainMoments:
    """What is remembered of one variable in one chain."""

    def __init__(self, size: int, n_kept: int) -> None:
        self.n_draws, self.mean, self.squares = 0, np.zeros(size), np.zeros(size)
        self.batches, self._batch, self._in_batch = _Halved(N_BATCHES, size, joins=True), np.zeros(size), 0
        self.kept = _Halved(n_kept, size, joins=False)

    def add(self, x: Array) -> None:
        """Take in one draw, by Welford's update."""
        if self.n_draws % self.kept.stride == 0:
            self.kept.add(x)
        self.n_draws += 1
        away = x - self.mean
        self.mean += away / self.n_draws
        self.squares += away * (x - self.mean)
        self._batch += x
        self._in_batch += 1
        if self._in_batch == self.batches.stride:
            self.batches.add(self._batch / self._in_batch)
            self._batch[:], self._in_batch = 0.0, 0


@called_as(USAGE)
class RunningSummary:
    """Means, standard deviations and quantiles of large variables, without storing each draw.

    Give it to `pm.sample` as ``callback``, and leave the variables out of ``var_names``. PyMC calls it with every draw,
    whatever the sampler and the number of processes. It remembers some hundred arrays of a variable's size per chain,
    however long the chain is.

    Parameters
    ----------
    var_names : list of str or str
        Variables of the model that are summarised, `Deterministic` ones among them.
    quantiles : sequence of float, default (0.05, 0.5, 0.95)
        The quantiles, between 0 and 1.
    n_kept : int, default 200
        At most so many draws of each chain are kept, evenly spaced: quantiles are made of them, and `draws` returns
        them. There are at least half as many once the chain is that long.
    model : pymc.Model, optional
        The model; by default the one in context.

    Raises
    ------
    ConfigurationError
        If a name is no variable of the model, or a quantile or `n_kept` is out of range. A draw of another model raises
        it too.

    Notes
    -----
    Draws of tuning are left out. Means and standard deviations are those of all draws (Welford's update). The effective
    sample size is made of the means of 16 to 32 batches per chain, about the mean of all chains: it is uncertain by
    about 15 % with four chains, and too large where an autocorrelation is longer than a batch. R-hat compares the means
    of half chains, and is not rank-normalised. Nothing is said of tails: for that, keep a few of the values as a
    `Deterministic` in ``var_names``.

    When a run begins, the summary of the one before is dropped. nutpie's and JAX's samplers take no callback.

    Examples
    --------
    >>> import numpy as np
    >>> import pymc as pm
    >>> from pymc_rmhmc import RMHMC, RunningSummary
    >>> with pm.Model():
    ...     h = pm.GaussianRandomWalk("h", sigma=0.1, init_dist=pm.Normal.dist(0, 1), shape=50)
    ...     y = pm.Poisson("y", pm.math.exp(h), observed=np.arange(50) % 3)
    ...     level = pm.Deterministic("level", h.mean())
    ...     summary = RunningSummary(["h"])
    ...     idata = pm.sample(
    ...         step=RMHMC(), var_names=["level"], callback=summary, chains=2, cores=1, draws=100, tune=200,
    ...         random_seed=1, progressbar=False, compute_convergence_checks=False,
    ...     )
    >>> list(idata.posterior.data_vars)
    ['level']
    >>> summary.dataset()["h"].sel(statistic="mean").shape
    (50,)
    """

    def __init__(
        self, var_names: Sequence[str] | str, *, quantiles: Sequence[float] = (0.05, 0.5, 0.95), n_kept: int = 200,
        model: pm.Model | None = None,
    ) -> None:  # fmt: skip
        model = model_in_context(model, "RunningSummary")
        names = [var_names] if isinstance(var_names, str) else list(var_names)
        known = [str(variable.name) for variable in model.unobserved_RVs]
        unknown = [shown(name) for name in names if name not in known]
        if unknown or not names:
            wrong = f"{listed(unknown)} is no variable of the model" if unknown else "nothing is named"
            raise ConfigurationError(f"var_names: {wrong}. Name what is to be summarised: {listed(known)}.")
        self.quantiles = _checked_quantiles(quantiles)
        # An even number of rows can be halved.
        self._n_kept = 2 * (count("n_kept", n_kept, 200, least=2) // 2)
        self._values = {name: _values_of(model, name) for name in names}
        self._dims = {name: model.named_vars_to_dims.get(name) for name in names}
        self._coords = {name: list(values) for name, values in model.coords.items() if values is not None}
        self._chains: dict[int, dict[str, _ChainMoments]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}

    def __call__(self, trace: _Trace, draw: _Draw) -> None:
        """Take in a draw; PyMC calls this."""
        if draw.draw_idx == 0:
            self._begin_chain(trace, draw.chain)
        if draw.tuning:
            return
        held = self._chains[draw.chain]
        for name, values in self._values.items():
            try:
                x = np.asarray(values(draw.point), dtype=np.float64)
            except (KeyError, TypeError) as error:
                raise ConfigurationError(
                    f"RunningSummary cannot compute {name} from the draws, because they are of another model or lack a "
                    f"variable ({error}). Build it within the model that is sampled: {USAGE}."
                ) from error
            if name not in held:
                self._shapes[name] = x.shape
                held[name] = _ChainMoments(x.size, self._n_kept)
            held[name].add(x.ravel())

    def _begin_chain(self, trace: _Trace, chain: int) -> None:
        """Make room for a chain; one that begins again is of another run."""
        if chain in self._chains:
            self._chains = {}
        stored = [name for name in self._values if name in trace.varnames]
        if stored and not self._chains:
            _log.warning(wrapped(
                f"RunningSummary: PyMC stores each draw of {listed(stored)} as well. To save the memory, name other "
                "variables in pm.sample(var_names=[...])."
            ))  # fmt: skip
        self._chains[chain] = {}

    def dataset(self) -> xr.Dataset:
        r"""Return the statistics of every variable.

        Returns
        -------
        xarray.Dataset
            A variable of shape S has the shape (statistics, \*S). The coordinate ``statistic`` is ``"mean"``, ``"sd"``,
            ``"mcse_mean"`` (the standard error of the mean), ``"ess_mean"``, ``"r_hat"``, and the quantiles, such as
            ``"5%"``. Standard error, ESS and R-hat are nan for chains of fewer than four draws, and for a constant.

        Raises
        ------
        DataError
            If there is no draw yet.
        """
        chains = self._sampled().values()
        found = {name: _statistics([chain[name] for chain in chains], self.quantiles) for name in self._values}
        labels = list(next(iter(found.values())))
        data = {name: self._array(name, np.stack(list(each.values())), "statistic") for name, each in found.items()}
        differ = [name for name, each in found.items() if np.nanmax(each["r_hat"], initial=0.0) > LARGEST_RHAT]
        if differ:
            _log.warning(wrapped(
                f"RunningSummary: R-hat of {listed(differ)} is above {LARGEST_RHAT} for some values, so the chains "
                "differ. Sample longer before you use their statistics."
            ))  # fmt: skip
        return xr.Dataset(data, coords={"statistic": labels, **self._used_coords()})

    def draws(self) -> xr.Dataset:
        r"""Return the draws that were kept, evenly spaced, for predictions.

        Returns
        -------
        xarray.Dataset
            A variable of shape S has the shape (chains, draws, \*S). The coordinate ``draw`` counts draws after tuning
            as `pm.sample` does: ``idata.posterior.sel(draw=summary.draws().draw)`` are those of other variables.

        Raises
        ------
        DataError
            If there is no draw yet.
        """
        chains = self._sampled()
        first = [next(iter(each.values())).kept for each in chains.values()]
        # A chain that was interrupted has kept others.
        at = np.array(sorted(set.intersection(*({i * kept.stride for i in range(kept.n_rows)} for kept in first))))
        data = {}
        for name in self._values:
            rows = np.stack([each[name].kept.rows[at // each[name].kept.stride] for each in chains.values()])
            data[name] = self._array(name, rows, "chain", "draw")
        return xr.Dataset(data, coords={"chain": list(chains), "draw": at, **self._used_coords()})

    def _sampled(self) -> dict[int, dict[str, _ChainMoments]]:
        """Return the chains that have a draw after tuning."""
        chains = {i: self._chains[i] for i in sorted(self._chains) if self._chains[i]}
        if not chains:
            raise DataError(f"There are no draws to summarise yet. Sample first: {USAGE}.")
        return chains

    def _array(self, name: str, rows: Array, *first: str) -> tuple[tuple[str, ...], Array]:
        """Return rows with the names of their dimensions, in the variable's shape."""
        shape = self._shapes[name]
        own = self._dims[name] or tuple(f"{name}_dim_{i}" for i in range(len(shape)))
        return (*first, *own), rows.reshape(rows.shape[: len(first)] + shape)

    def _used_coords(self) -> dict[str, list[object]]:
        used = {dim for dims in self._dims.values() if dims for dim in dims}
        return {name: values for name, values in self._coords.items() if name in used}


def _checked_quantiles(quantiles: Sequence[float]) -> tuple[float, ...]:
    """Return quantiles as numbers.

    Raises a `ConfigurationError` if they are not numbers between 0 and 1.
    """
    try:
        numbers = tuple(float(q) for q in quantiles)
    except (TypeError, ValueError):
        numbers = (np.nan,)
    if not all(0.0 < q < 1.0 for q in numbers):
        raise ConfigurationError(
            f"quantiles must be numbers between 0 and 1, got {shown(quantiles)}. Give quantiles=(0.05, 0.5, 0.95), "
            "for example; mean and sd are always there."
        )
    return numbers


def _values_of(model: pm.Model, name: str) -> Values:
    """Return the function that gives a variable's values at a point of value variables."""
    variable = model[name]
    if variable in model.free_RVs and model.rvs_to_transforms[variable] is None:
        value_name = str(model.rvs_to_values[variable].name)
        return lambda point: point[value_name]
    compiled: Values = model.compile_fn(
        model.replace_rvs_by_values([variable])[0], inputs=model.value_vars, on_unused_input="ignore"
    )
    return compiled


def _statistics(chains: Sequence[_ChainMoments], quantiles: Sequence[float]) -> dict[str, Array]:
    """Return each statistic of the raveled values."""
    lengths, means = np.array([chain.n_draws for chain in chains]), np.stack([chain.mean for chain in chains])
    n = int(lengths.sum())
    mean = lengths @ means / n
    squares = np.sum([chain.squares for chain in chains], axis=0) + lengths @ (means - mean) ** 2
    with np.errstate(all="ignore"):
        variance = squares / (n - 1)
        error, size, r_hat = _diagnostics(chains, mean, variance, n)
    found = {"mean": mean, "sd": np.sqrt(variance), "mcse_mean": error, "ess_mean": size, "r_hat": r_hat}
    rows = np.quantile(np.concatenate([chain.kept.rows for chain in chains]), quantiles, axis=0)
    return found | {f"{100.0 * q:g}%": row for q, row in zip(quantiles, rows, strict=True)}


def _diagnostics(chains: Sequence[_ChainMoments], mean: Array, variance: Array, n: int) -> tuple[Array, Array, Array]:
    """Return the standard error of the mean, its effective sample size, and R-hat of half chains."""
    rows = [chain.batches.rows for chain in chains]
    if min(len(each) for each in rows) < FEWEST_BATCHES:
        nothing = np.full(mean.shape, np.nan)
        return nothing, nothing, nothing
    spread = sum(c.batches.stride * ((each - mean) ** 2).sum(axis=0) for c, each in zip(chains, rows, strict=True))
    of_one_draw = spread / (sum(len(each) for each in rows) - 1)
    size = np.minimum(n * variance / of_one_draw, n * np.log10(n))
    halves = [(each[: len(each) // 2].mean(axis=0), each[-(len(each) // 2) :].mean(axis=0)) for each in rows]
    within = np.mean([
        (chain.squares - 0.25 * chain.n_draws * (a - b) ** 2) / (chain.n_draws - 2)
        for chain, (a, b) in zip(chains, halves, strict=True)
    ], axis=0)  # fmt: skip
    between = np.var([half for pair in halves for half in pair], axis=0, ddof=1)
    return np.sqrt(variance / size), size, np.sqrt(1.0 - 2.0 * len(chains) / n + between / within)
