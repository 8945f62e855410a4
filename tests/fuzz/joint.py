"""Exact checks of a random model by the joint law of its parameters θ and data y.

Parameters and data are drawn together, so θ is a draw from the posterior given y. A chain is tuned on y, which knows
nothing else of θ; what tuning has learned is then frozen, and a kernel that depends on y and not on θ starts at θ. If
the density, the chart and the kernel are right, each state of this second chain is a draw from the posterior too. So
any bounded function of it and of y has the mean that it has at θ: over many (θ, y) the mean of the differences is 0.
This asks for stationarity alone; not for reversibility, which cycles of kernels lack, and not for convergence. The
functions are Legendre polynomials of a state's place among draws of the first chain, which y and chance alone made:
they see a shift or a wrong spread in units of the posterior. With a chain that converges, the place of θ itself is
uniform besides: *reach*.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.exceptions import TruncationError
from pytensor.compile.mode import Mode
from scipy.stats import norm

import pymc_rmhmc
from tests.fuzz.models import Seen, Tree

__all__ = ["Joint", "Lengths", "Outcome", "Sums", "TooWild", "check_joint", "log_density_error"]

type Point = dict[str, np.ndarray]

# Evaluated some hundred times a model: a compiler would take seconds for each function.
PYTHON = Mode(linker="py", optimizer="fast_compile")
LARGEST_DATUM = 1e5
# Of a log density: the registered likelihoods are more accurate than PyMC's where these cancel.
RELATIVE, ABSOLUTE = 1e-6, 1e-6
MOST_QUANTITIES = 24
DEGREES = 2
# A score cannot exceed the root of the number of pairs: with fewer, none would be large enough to be suspected.
FEWEST = 16


class TooWild(Exception):
    """The prior gives no data that a computer can hold, or hardly any draw that its restrictions leave."""


@dataclass(frozen=True)
class Lengths:
    """Of a run: tuning draws, reference draws, draws between two of the latter, and draws from θ."""

    tune: int = 80
    references: int = 24
    thin: int = 2
    draws: int = 10

    @property
    def total(self) -> int:
        """All draws."""
        return self.tune + self.references * self.thin + self.draws


class Joint:
    """Draws (θ, y) of a model's prior, θ as values of its value variables."""

    def __init__(self, tree: Tree, rng: np.random.Generator) -> None:
        complete, standardised = tree.complete(), tree.standardised()
        held = complete.run(complete.placeholders(), [f"{name} = {code}" for name, code in standardised.items()])
        model = held["model"]
        outputs = {str(model.rvs_to_values[v].name): _as_value(model, v) for v in model.free_RVs}
        # A variable that is sampled in another form is a value of that form.
        outputs = {name: symbol for name, symbol in outputs.items() if name not in tree.standard}
        outputs |= {name: held[name] for name in standardised}
        self._names, self._seen, self._rng = tuple(outputs), tuple(each.name for each in tree.seen), rng
        symbols = [*outputs.values(), *(model[name] for name in self._seen), *(p.sum() for p in model.potentials)]
        self._function = pm.compile([], symbols, mode=PYTHON, random_seed=int(rng.integers(2**31)))

    def pairs(self) -> Iterator[tuple[Point, dict[str, np.ndarray]]]:
        """θ and y without end; both are thinned by what restricts them, θ by the prior's restrictions alone."""
        refused = 0
        while refused < 3000:
            drawn = self._drawn()
            if drawn is None:
                refused += 1
                continue
            refused = max(0, refused - 100)
            yield drawn
        raise TooWild("3000 draws of the prior without one of use")

    def _drawn(self) -> tuple[Point, dict[str, np.ndarray]] | None:
        with np.errstate(all="ignore"):
            try:
                found = self._function()
            except (ValueError, TruncationError):  # NumPy's generators and PyMC's refuse parameters of the tails
                return None
        values = [np.asarray(each) for each in found]
        n = len(self._names)
        theta, data, potentials = values[:n], values[n : n + len(self._seen)], values[n + len(self._seen) :]
        if not all(np.isfinite(each).all() for each in theta):
            return None
        if self._rng.random() >= np.exp(sum(float(each) for each in potentials)):
            return None
        if not all(np.isfinite(each).all() and np.abs(each).max(initial=0.0) < LARGEST_DATUM for each in data):
            return None
        return dict(zip(self._names, theta, strict=True)), dict(zip(self._seen, data, strict=True))


def _as_value(model: pm.Model, variable: Any) -> Any:
    """A random variable on the scale of its value variable."""
    transform = model.rvs_to_transforms[variable]
    return variable if transform is None else transform.forward(variable, *variable.owner.inputs)


@dataclass
class Sums:
    """Of differences that have mean 0, by quantity and degree.

    Attributes
    ----------
    n : int
        Pairs (θ, y).
    moved, squares : dict
        From a quantity to sums (DEGREES,) of differences between states of the chain from θ and θ, and their squares.
    places : dict
        Sums (DEGREES,) of polynomials of the place of θ among the first chain's draws, of variance 1 each.
    """

    n: int = 0
    moved: dict[str, np.ndarray] = field(default_factory=dict)
    squares: dict[str, np.ndarray] = field(default_factory=dict)
    places: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, name: str, differences: np.ndarray, at_truth: np.ndarray) -> None:
        """Add one pair's."""
        for held, new in ((self.moved, differences), (self.squares, differences**2), (self.places, at_truth)):
            held[name] = held.get(name, np.zeros(DEGREES)) + new

    def scores(self) -> dict[str, np.ndarray]:
        """Standard normal scores (DEGREES,) of stationarity; 0 where nothing moved."""
        return {name: self.moved[name] / np.sqrt(np.maximum(self.squares[name], 1e-12)) for name in self.moved}

    def reach(self) -> dict[str, np.ndarray]:
        """Standard normal scores (DEGREES,) of the place of θ."""
        return {name: self.places[name] / np.sqrt(self.n) for name in self.places}


def p_value(scores: dict[str, np.ndarray]) -> tuple[float, str]:
    """Bonferroni's p-value of normal scores, and the worst in words."""
    if not scores:
        return 1.0, ""
    name = max(scores, key=lambda each: float(np.abs(scores[each]).max()))
    worst = scores[name]
    p = min(1.0, 2.0 * float(norm.sf(np.abs(worst).max())) * len(scores) * DEGREES)
    return p, f"{name}: z of shift {worst[0]:.1f}, of spread {worst[1]:.1f}"


def polynomials(place: np.ndarray) -> np.ndarray:
    """Legendre's of degrees 1 and 2 on [0, 1], of mean 0 and variance 1 under the uniform law; (..., DEGREES)."""
    return np.stack([np.sqrt(12.0) * (place - 0.5), np.sqrt(5.0) * (6.0 * place**2 - 6.0 * place + 1.0)], axis=-1)


class Subject:
    """A model under test: its step, and functions of its points."""

    def __init__(self, tree: Tree, data: dict[str, np.ndarray]) -> None:
        self.tree = tree
        self.model = tree.as_sampled().run(data)["model"]
        with self.model:
            self.step = eval(f"RMHMC({tree.options})", vars(pymc_rmhmc))
        own = {variable.name for variable in self.step.vars}
        rest = [v for v in self.model.free_RVs if self.model.rvs_to_values[v].name not in own]
        self.others = [pm.Metropolis([self.model.rvs_to_values[v]], model=self.model) for v in rest]
        # One function for both: to write a log density down costs PyMC as much as to compile it.
        with pytensor.config.change_flags(mode="FAST_COMPILE"):
            terms = [term.sum() for term in self.model.logp(sum=False)]
            seen = [term for v, term in zip(self.model.basic_RVs, terms, strict=False) if v in self.model.observed_RVs]
            self.log_densities = self.model.compile_fn(
                [sum(terms), sum(seen, pt.zeros(()))], mode=PYTHON, inputs=self.model.value_vars
            )
        self.initial_point = self.model.initial_point()

    def take(self, data: dict[str, np.ndarray]) -> None:
        """Give the model other data."""
        with self.model:
            pm.set_data({each.data: data[each.name] for each in self.tree.seen})

    def move(self, point: Point) -> tuple[Point, float, bool]:
        """One draw, the log density that is told of it, and whether a trajectory failed."""
        point, (statistics,) = self.step.step(point)
        told = float(statistics["model_logp"])
        for other in self.others:
            point, _ = other.step(point)
            told = float("nan")
        return point, told, bool(statistics["failure"])

    def quantities(self, point: Point) -> dict[str, float]:
        """Test quantities: values one by one, and log densities by PyMC."""
        found: dict[str, float] = {}
        for name in self.names:
            values = np.ravel(point[name])
            for i in sorted({0, values.size // 2, values.size - 1}) if values.size else ():
                found[f"{name}[{i}]" if values.size > 1 else name] = float(values[i])
        found = dict(list(found.items())[:MOST_QUANTITIES])
        with np.errstate(all="ignore"):
            total, likelihood = self.log_densities(point)
        found["log density"] = float(total)
        if self.model.observed_RVs:
            found["log likelihood"] = float(likelihood)
        return found

    @property
    def names(self) -> list[str]:
        """The value variables."""
        return [str(value.name) for value in self.model.value_vars]


def log_density_error(told: float, exact: float) -> float:
    """How many tolerances a log density is from PyMC's; 0 where that is not finite."""
    if not np.isfinite(exact) or np.isnan(told):
        return 0.0
    return abs(told - exact) / (ABSOLUTE + RELATIVE * abs(exact))


@dataclass
class Outcome:
    """What one model's pairs gave."""

    sums: Sums = field(default_factory=Sums)
    failures: int = 0
    moves: int = 0
    worst_log_density: float = 0.0
    said_of_log_density: str = ""


def check_joint(
    tree: Tree, pairs: Iterator[tuple[Point, dict[str, np.ndarray]]], n: int, lengths: Lengths, seed: int,
    until: float, outcome: Outcome, subject: Callable[[dict[str, np.ndarray]], Subject],
) -> None:  # fmt: skip
    """Add n pairs to an outcome, or as many as there is time for.

    Parameters
    ----------
    subject : callable
        From data to the model that holds them.
    until : float
        A time of `time.process_time`, after which `FEWEST` pairs are enough.
    """
    rng = np.random.default_rng((seed, 7))
    for _ in range(n):
        if time.process_time() > until and outcome.sums.n >= FEWEST:
            return
        theta, data = next(pairs)
        _add_pair(subject(data), tree, theta, data, lengths, rng, outcome)


def _add_pair(
    subject: Subject, tree: Tree, theta: Point, data: dict[str, np.ndarray], lengths: Lengths,
    rng: np.random.Generator, outcome: Outcome,
) -> None:  # fmt: skip
    """One pair: tune on y, take reference draws, and go from θ."""
    references, point = _reference_draws(subject, lengths, rng)
    exact = {name: theta[name] if name in theta else point[name] for name in point}
    for each in tree.seen:
        if each.missing:
            exact |= _missing_values(subject.model, each, data[each.name])
    start, point = subject.quantities(exact), exact
    states = []
    for _ in range(lengths.draws):
        point, told, failed = subject.move(point)
        outcome.failures += failed
        outcome.moves += 1
        states.append(subject.quantities(point))
    error = log_density_error(told, states[-1]["log density"])
    if error > outcome.worst_log_density:
        outcome.worst_log_density = error
        outcome.said_of_log_density = f"lp {told!r}, PyMC's {states[-1]['log density']!r}"
    outcome.sums.n += 1
    for name, at_truth in start.items():
        held = np.sort([each[name] for each in references])
        one, many = (
            polynomials(_place(held, np.atleast_1d(values), rng)) for values in (at_truth, [s[name] for s in states])
        )
        outcome.sums.add(name, many.mean(axis=0) - one[0], one[0])


def _reference_draws(
    subject: Subject, lengths: Lengths, rng: np.random.Generator
) -> tuple[list[dict[str, float]], Point]:
    """Tune on the data alone, and draw; tuning is over then."""
    steps, n = (subject.step, *subject.others), lengths.references * lengths.thin
    for each in steps:
        each.setup_chain(rng, lengths.tune, n + lengths.draws)
        each.tune = True
    point, references = dict(subject.initial_point), []
    for _ in range(lengths.tune):
        point, _, _ = subject.move(point)
    for each in steps:
        each.stop_tuning()
    for i in range(n):
        point, _, _ = subject.move(point)
        if i % lengths.thin == 0:
            references.append(subject.quantities(point))
    return references, point


def _place(held: np.ndarray, values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Where values lie among sorted draws, in (0, 1); the cells and ties are filled uniformly."""
    below, above = np.searchsorted(held, values, "left"), np.searchsorted(held, values, "right")
    return (below + (above - below + 1) * rng.random(np.shape(values))) / (held.size + 1)


def _missing_values(model: pm.Model, seen: Seen, values: np.ndarray) -> Point:
    """The values that PyMC samples in the place of missing ones."""
    variable = model[f"{seen.name}_unobserved"]
    transform = model.rvs_to_transforms[variable]
    found = np.ravel(values)[list(seen.missing)]
    if transform is not None:
        found = transform.forward(found, *variable.owner.inputs).eval(mode=PYTHON)
    return {str(model.rvs_to_values[variable].name): np.asarray(found)}
