"""What becomes of one model: it passes, is refused with a typed error, or fails; and in which way."""

from __future__ import annotations

import math
import re
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from pymc_rmhmc.errors import RMHMCError
from tests.fuzz.joint import Joint, Lengths, Outcome, Subject, Sums, TooWild, check_joint, p_value
from tests.fuzz.models import Free, Seen, Tree

__all__ = ["Verdict", "judge", "warm"]

# Pairs of a first look; a model that looks wrong is judged by as many new ones as follow, and by these alone. A first
# look sees a shift of a posterior standard deviation; smaller ones add up in the look over all models.
FIRST, SECOND = 24, 100
# A model that is built again for each pair costs so many times as much; it takes part in the look over all models.
REBUILT = 6
SUSPECT, GUILTY = 0.1, 1e-4
# The second look goes further from θ: a kernel that is wrong takes time to leave a law that is not its own.
FARTHER = Lengths(draws=40)
# A chain that did not converge to everywhere: of longer runs, and of fewer pairs.
LONG = Lengths(tune=400, references=24, thin=10, draws=1)
REACH_PAIRS, SLOW, UNREACHED = 40, 1e-3, 1e-5
# Processor time for the pairs of a first look.
SECONDS = 8.0


@dataclass
class Verdict:
    """What is kept of one model.

    Attributes
    ----------
    seed : int
    result : str
        "passed"; "refused" with a typed error; "failed"; "invalid", which PyMC itself cannot build or draw from;
        "left" after its share of a short run.
    kind : str
        Of a failure: "error", "nameless", "law", "lp" or "reach".
    says : str
        What was found.
    engine : str
        What sampled it.
    seconds : float
        Processor time.
    families : list of str
    scores : dict
        Sums for the look over all models: quantity kind to [n, [sums], [sums of squares], [sums of places]].
    """

    seed: int
    result: str = "passed"
    kind: str = ""
    says: str = ""
    engine: str = ""
    seconds: float = 0.0
    families: list[str] = field(default_factory=list)
    pairs: int = 0
    failure_rate: float = 0.0
    scores: dict[str, Any] = field(default_factory=dict)

    def signature(self) -> str:
        """What two failures share that are one: numbers and names of variables left out."""
        words = re.sub(r"\b[a-zA-Z]+\d+\w*|\d[\d.e+-]*", "_", self.says.split("\n")[0])
        return f"{self.kind}: {words[:60] if self.kind in ('error', 'nameless') else ''}"

    def as_row(self) -> dict[str, Any]:
        return asdict(self)


def warm(tree: Tree) -> None:
    """Compile what all models share, with one pair of a model."""
    pairs = Joint(tree, np.random.default_rng(0)).pairs()
    subject_of = subjects(tree, next(pairs)[1])
    check_joint(tree, pairs, 1, Lengths(tune=30, references=2, thin=1, draws=1), 0, 0.0, Outcome(), subject_of)


def judge(tree: Tree, pairs: int = FIRST, seconds: float = SECONDS) -> Verdict:
    """Judge a model by so many pairs at first, or as many as fit into so much processor time.

    Every exception that is not one of the package's is a failure of the model.
    """
    started = time.process_time()
    verdict = Verdict(tree.seed, families=sorted({s.family for s in tree.statements if isinstance(s, (Free, Seen))}))
    try:
        _judge(tree, verdict, pairs, seconds)
    except RMHMCError as error:
        verdict.result, verdict.says = "refused", f"{type(error).__name__}: {error}"
        if not _names_a_variable(str(error), tree):
            verdict.result, verdict.kind = "failed", "nameless"
    except Exception as error:  # noqa: BLE001
        verdict.result, verdict.kind = "failed", "error"
        verdict.says = f"{type(error).__name__}: {error}\n{traceback.format_exc()[-1500:]}"
    verdict.seconds = round(time.process_time() - started, 1)
    return verdict


def _names_a_variable(message: str, tree: Tree) -> bool:
    """Whether a message says which variable or option it is about."""
    names = [each.name for each in tree.statements] + re.findall(r"(\w+)=", tree.options)
    return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", message) for name in names)


def _judge(tree: Tree, verdict: Verdict, n_pairs: int, seconds: float) -> None:
    rng = np.random.default_rng((tree.seed, 3))
    try:
        pairs = Joint(tree, rng).pairs()
        _, data = next(pairs)
        tree.as_sampled().run(data)
    except Exception as error:  # noqa: BLE001
        verdict.result, verdict.says = "invalid", f"{type(error).__name__}: {error}"
        return
    subject_of, first = subjects(tree, data), Outcome()
    try:
        check_joint(tree, pairs, 1, Lengths(), tree.seed, 0.0, first, subject_of)
        verdict.engine = engine_of(subject_of(data)) if tree.is_refilled else "built again"
        n = n_pairs if tree.is_refilled else max(1, n_pairs // REBUILT)
        until = time.process_time() + seconds
        check_joint(tree, pairs, n - 1, Lengths(), tree.seed + 1, until, first, subject_of)
        _record(verdict, first)
        _conclude(tree, verdict, first, pairs, subject_of)
    except TooWild as error:
        verdict.result, verdict.says = "invalid", str(error)


def _conclude(tree: Tree, verdict: Verdict, first: Outcome, pairs: Any, subject_of: Any) -> None:
    """Judge by a first look, and by a second where that looks wrong."""
    if first.worst_log_density > 1.0:
        verdict.result, verdict.kind, verdict.says = "failed", "lp", first.said_of_log_density
        return
    for kind, scored, (doubt, threshold), n, lengths in (
        ("law", Sums.scores, (SUSPECT, GUILTY), SECOND, FARTHER),
        ("reach", Sums.reach, (SLOW, UNREACHED), REACH_PAIRS, LONG),
    ):
        p, _ = p_value(scored(first.sums))
        if p < doubt:
            again = Outcome()
            check_joint(tree, pairs, n, lengths, tree.seed + 2, math.inf, again, subject_of)
            p, says = p_value(scored(again.sums))
            if p < threshold:
                verdict.result, verdict.kind = "failed", kind
                verdict.says = f"{says}, p {p:.1e} of {again.sums.n} pairs"
                return


def engine_of(subject: Subject) -> str:
    """What samples it, for the look over all models."""
    return " + ".join(type(sampler.density).__name__ for sampler in subject.step._samplers)


def subjects(tree: Tree, data: dict[str, np.ndarray]) -> Callable[[dict[str, np.ndarray]], Subject]:
    """From data to a model that holds them: one model for all where that is possible."""
    if not tree.is_refilled:
        return lambda given: Subject(tree, given)
    subject = Subject(tree, data)

    def taken(given: dict[str, np.ndarray]) -> Subject:
        subject.take(given)
        return subject

    return taken


def _record(verdict: Verdict, outcome: Outcome) -> None:
    """Keep what the look over all models takes."""
    sums = outcome.sums
    verdict.pairs, verdict.failure_rate = sums.n, round(outcome.failures / max(outcome.moves, 1), 3)
    verdict.scores = {
        name: [sums.n, *(np.round(held[name], 4).tolist() for held in (sums.moved, sums.squares, sums.places))]
        for name in sums.moved
    }
