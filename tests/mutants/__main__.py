"""Plant every fault of the table, one at a time, and look whether its test finds it: see `planting`."""

from __future__ import annotations

import argparse
import contextlib
import queue
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.mutants.planting import Mutant, Nursery, TableError, Verdict, problems_of
from tests.mutants.table import MUTANTS

ROOT = Path(__file__).resolve().parents[2]
TENTHS = 10


def main() -> int:
    """Run what the command line asks for; the exit status is 0 if every fault was killed."""
    asked = _arguments()
    problems = problems_of(MUTANTS, ROOT)
    print(*problems, sep="\n", end="\n" if problems else "")
    if problems or asked.check:
        print(f"{len(MUTANTS)} faults in the table, {len(problems)} problems")
        return int(bool(problems))
    chosen = _chosen(asked)
    started = time.monotonic()
    results = _judged(chosen, asked.workers)
    minutes = (time.monotonic() - started) / 60.0
    counts = Counter(result for result, _ in results.values())
    said = ", ".join(f"{count} {result}" for result, count in counts.items())
    print(f"{len(chosen)} planted faults in {minutes:.1f} minutes: {said}")
    for mutant in chosen:
        result, says = results[mutant.name]
        if result != Verdict.KILLED.value:
            print(f"{result}: {mutant.name} ({mutant.where}): {says}\n    What it would do: {mutant.harm}")
    return int(counts[Verdict.KILLED.value] < len(chosen))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", help="this fault alone; may be given several times")
    parser.add_argument("--tenth", metavar="K", help='rows K, K + 10, ... for K in 0 to 9; "commit" takes it from HEAD')
    parser.add_argument("--check", action="store_true", help="look at the table alone, and run nothing")
    parser.add_argument("--workers", metavar="N", type=int, default=2, help="tests at a time; 2 by default")
    return parser.parse_args()


def _chosen(asked: argparse.Namespace) -> list[Mutant]:
    """The rows that are asked for."""
    if asked.only:
        names = [mutant.name for mutant in MUTANTS]
        unknown = sorted(set(asked.only) - set(names))
        if unknown:
            sys.exit(f"No fault is named {', '.join(unknown)}; there are: {', '.join(names)}.")
        return [mutant for mutant in MUTANTS if mutant.name in asked.only]
    if asked.tenth is None:
        return list(MUTANTS)
    tenth, of = _tenth(asked.tenth)
    chosen = MUTANTS[tenth::TENTHS]
    print(f"Tenth {tenth} of the table{of}: {', '.join(mutant.name for mutant in chosen)}", flush=True)
    return chosen


def _tenth(asked: str) -> tuple[int, str]:
    """Which tenth, and why: from run to run another one, but always the same of one commit."""
    if asked == "commit":
        told = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True)
        commit = told.stdout.strip()
        return int(commit[:8], 16) % TENTHS, f" (of commit {commit[:8]})"
    if asked not in [str(k) for k in range(TENTHS)]:
        sys.exit(f'--tenth must be 0 to 9 or "commit", got {asked!r}.')
    return int(asked), ""


def _judged(chosen: list[Mutant], n_workers: int) -> dict[str, tuple[str, str]]:
    """What became of every fault, by name."""
    groups = _grouped(chosen)
    results: dict[str, tuple[str, str]] = {}
    passed: dict[str, str] = {}
    stopped = threading.Event()
    nurseries = [Nursery(ROOT, passed=passed) for _ in range(max(1, min(n_workers, len(groups))))]
    try:
        shares = [groups[i :: len(nurseries)] for i in range(len(nurseries))]
        _together([partial(_pass_without, *each) for each in zip(nurseries, shares, strict=True)], stopped)
        waiting: queue.SimpleQueue[list[Mutant]] = queue.SimpleQueue()
        for group in groups:
            waiting.put(group)
        _together([partial(_work, nursery, waiting, results, stopped) for nursery in nurseries], stopped)
    finally:
        for nursery in nurseries:
            nursery.close()
    for mutant in chosen:  # a worker that died has said why
        results.setdefault(mutant.name, ("NOT RUN", "its worker ended"))
    return results


def _pass_without(nursery: Nursery, groups: list[list[Mutant]]) -> None:
    """Look whether the tests of groups pass as the code is."""
    nursery.pass_without(list(dict.fromkeys(mutant.test for group in groups for mutant in group)))


def _together(calls: list[Callable[[], None]], stopped: threading.Event) -> None:
    """Make calls at once, each in a thread; after an interrupt what is running ends, and nothing more is begun."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:
        stopped.set()
        for thread in threads:
            thread.join()
        raise


def _grouped(chosen: list[Mutant]) -> list[list[Mutant]]:
    """Faults by the file of their test, the most first: one worker takes all of them, and compiles once."""
    by_file = defaultdict(list)
    for mutant in chosen:
        by_file[mutant.test.partition("::")[0]].append(mutant)
    return sorted(by_file.values(), key=len, reverse=True)


def _work(
    nursery: Nursery, waiting: queue.SimpleQueue[list[Mutant]], results: dict[str, tuple[str, str]],
    stopped: threading.Event,
) -> None:  # fmt: skip
    """Take groups until there are none."""
    with contextlib.suppress(queue.Empty):
        while True:
            for mutant in waiting.get_nowait():
                if stopped.is_set():
                    return
                results[mutant.name] = _timed(nursery.judge, mutant)


def _timed(judge: Callable[[Mutant], tuple[Verdict, str]], mutant: Mutant) -> tuple[str, str]:
    """A fault's verdict, which is printed with its seconds."""
    started = time.monotonic()
    try:
        verdict, says = judge(mutant)
        result = verdict.value
    except TableError as error:
        result, says = "ERROR", str(error)
    print(f"{result:<8} {time.monotonic() - started:5.0f} s  {mutant.name}: {says}", flush=True)
    return result, says


if __name__ == "__main__":
    sys.exit(main())
