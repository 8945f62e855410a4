"""Many models, each in a process of its own; what became of each is a line of a file."""

from __future__ import annotations

import json
import logging
import multiprocessing
import resource
import signal
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pymc_rmhmc.steps import rehearsal
from tests.fuzz.grammar import random_tree
from tests.fuzz.joint import Joint
from tests.fuzz.judging import FIRST, SECONDS, Verdict, judge, warm
from tests.fuzz.models import Tree
from tests.fuzz.shrinking import shrunk

__all__ = ["Limits", "judge_apart", "run", "show", "summary"]

# Forking keeps what was imported and compiled; a model that hangs, crashes or fills the memory takes only itself down.
# A model that begins a process: small, of the chart of the graph.
WARM = 7
# Seconds by the clock for one of the processor's, after which a process is thought to sleep.
WAITING = 20
_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Limits:
    """Of a run.

    Attributes
    ----------
    seconds : int
        Of processor time, after which a model has no end.
    budget : float or None
        Seconds after which no model is begun, once one is judged; compiling what all models share does not count.
    shrink : bool
        Whether failing models are made smaller.
    pairs : int
        Pairs (θ, y) of a first look; a few find errors alone.
    judged : int or None
        How many models are judged, of which those that are left are none.
    share : int or None
        Seconds of processor time after which a model is left, neither passed nor failed: in a short run of few models
        one whose functions take minutes to compile must not be the only one.
    """

    seconds: int = 300
    budget: float | None = None
    shrink: bool = True
    pairs: int = FIRST
    judged: int | None = None
    share: int | None = None

    @property
    def allowed(self) -> int:
        """Seconds of processor time for a model."""
        return self.seconds if self.share is None else min(self.share, self.seconds)


def run(seeds: Iterable[int], results: Path, limits: Limits) -> tuple[int, int, float]:
    """Judge the models that the file has not, append a line for each; how many were judged, failed, and the minutes."""
    results.parent.mkdir(parents=True, exist_ok=True)
    done = {row["seed"]: row for row in _rows(results)}
    _be_quiet()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and take the model's process along
    warm(random_tree(WARM))  # before the first is forked
    started, failed, judged = time.monotonic(), 0, 0
    for seed in seeds:
        is_late = limits.budget is not None and time.monotonic() - started > limits.budget
        # However slow the machine is, a run that leaves models judges one: what is left has tested nothing.
        if judged == limits.judged or (is_late and (judged or limits.share is None)):
            break
        row = done.get(seed)
        if row is None:
            row = _judged(seed, limits)
            with results.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(_told(row), flush=True)
        failed += row["result"] == "failed"
        judged += row["result"] != "left"
    return judged, failed, (time.monotonic() - started) / 60.0


def _judged(seed: int, limits: Limits) -> dict[str, Any]:
    """What is kept of a seed's model; of one that failed its smallest form too."""
    tree = random_tree(seed)
    row = judge_apart(tree, limits).as_row()
    if row["result"] == "failed":
        found = _smallest(tree, row, limits) if limits.shrink else tree
        row["smallest"] = f"# seed {seed}\n{_with_data(found)}"
    return row


def _be_quiet() -> None:
    """What steps say of themselves, and what is compiled ahead and never called."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    rehearsal._rehearse = lambda sampler, point: True


def _told(row: dict[str, Any]) -> str:
    says = row["says"].splitlines()[0][:150] if row["says"] else ""
    said = f"{row['seed']:>6} {row['result']:<8} {row['kind']:<9} {row['seconds']:5.0f} s  {row['engine']:<12} {says}"
    return said + ("\n" + row["smallest"] if row.get("smallest") else "")


def judge_apart(tree: Tree, limits: Limits) -> Verdict:
    """`judge` in a process of its own."""
    here, there = _FORK.Pipe(duplex=False)

    def work() -> None:
        spent = int(time.process_time())
        # Processor time: a busy machine makes no model endless.
        resource.setrlimit(resource.RLIMIT_CPU, (spent + limits.allowed, spent + limits.allowed + 5))
        there.send(judge(tree, limits.pairs, SECONDS * limits.pairs / FIRST))

    worker = _FORK.Process(target=work, daemon=True)
    worker.start()
    there.close()
    try:
        if here.poll(WAITING * limits.seconds):
            return here.recv()
        return Verdict(tree.seed, "failed", "no end", f"it waited for {WAITING * limits.seconds} s")
    except EOFError:
        worker.join()
        if worker.exitcode == -signal.SIGXCPU:
            said = f"no end after {limits.allowed} s of processor time"
            if limits.allowed < limits.seconds:
                return Verdict(tree.seed, "left", says=said, seconds=limits.allowed)
            return Verdict(tree.seed, "failed", "no end", said)
        return Verdict(tree.seed, "failed", "crash", f"the process ended with {worker.exitcode}")
    finally:
        if worker.is_alive():
            worker.kill()
        worker.join()
        here.close()


def _smallest(tree: Tree, row: dict[str, Any], limits: Limits) -> Tree:
    """The smallest model found that fails in the same way."""
    wanted = Verdict(**row).signature()
    return shrunk(tree, lambda candidate: judge_apart(candidate, limits).signature() == wanted)


def _with_data(tree: Tree) -> str:
    """The code with data from the prior, or with placeholders where it gives none."""
    try:
        data = next(Joint(tree, np.random.default_rng((tree.seed, 3))).pairs())[1]
    except Exception:  # noqa: BLE001
        data = tree.placeholders()
    return tree.code({name: np.round(values, 2) for name, values in data.items()})


def show(seed: int) -> str:
    """A model's code."""
    return _with_data(random_tree(seed))


def _rows(results: Path) -> list[dict[str, Any]]:
    if not results.exists():
        return []
    return [json.loads(line) for line in results.read_text().splitlines() if line.strip()]


def summary(results: Path) -> str:
    """Counts, seconds, and the look over all models: sums of what has mean 0, by kind of quantity and by engine."""
    rows = _rows(results)
    counts = Counter(f"{row['result']} {row['kind']}".strip() for row in rows)
    lines = [f"{len(rows)} models: " + ", ".join(f"{n} {what}" for what, n in counts.most_common())]
    seconds = [row["seconds"] for row in rows]
    if seconds:
        lines.append(f"{np.mean(seconds):.0f} CPU s a model, {np.median(seconds):.0f} by the median")
    pooled: dict[str, list[np.ndarray]] = defaultdict(list)
    for row in rows:
        of_model: dict[str, list[np.ndarray]] = defaultdict(list)
        for name, (n, moved, squares, places) in row["scores"].items():
            found = np.array([*moved / np.sqrt(np.maximum(squares, 1e-12)), *np.array(places) / np.sqrt(n)])
            for group in (_kind(name), f"all of {row['engine']}"):
                of_model[group].append(found)
        for group, parts in of_model.items():
            pooled[group].append(np.mean(parts, axis=0))
    lines.append("scores of shift and spread over all models, of stationarity and of the places of truths:")
    for group, models in sorted(pooled.items()):
        # Quantities of one model, such as neighbours of a walk, depend on one another: models do not.
        scores = np.sum(models, axis=0) / np.sqrt(np.maximum(np.sum(np.square(models), axis=0), 1e-12))
        lines.append(f"  {group:<32} {len(models):>5} " + "".join(f"{score:7.1f}" for score in scores))
    return "\n".join(lines)


def _kind(name: str) -> str:
    """Of a quantity: densities, or the first letter of a variable and its transform."""
    if name.startswith("log "):
        return name
    stem, _, transform = name.partition("[")[0].partition("_")
    return f"{stem.rstrip('0123456789')} {transform.strip('_')}".strip()
