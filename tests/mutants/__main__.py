"""Plant every fault of the table, one at a time, and look whether its test finds it: see `planting`."""

from __future__ import annotations

import argparse
import queue
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
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
    waiting, n_groups = _grouped(chosen)
    results: dict[str, tuple[str, str]] = {}
    stopped = threading.Event()
    workers = [
        threading.Thread(target=_work, args=(waiting, results, stopped))
        for _ in range(max(1, min(n_workers, n_groups)))
    ]
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            worker.join()
    finally:  # after an interrupt what is running ends, and nothing more is begun
        stopped.set()
    for mutant in chosen:  # a worker that died has said why
        results.setdefault(mutant.name, ("NOT RUN", "its worker ended"))
    return results


def _grouped(chosen: list[Mutant]) -> tuple[queue.SimpleQueue[list[Mutant]], int]:
    """Faults by the file of their test, the most first: one worker takes all of them, and compiles once."""
    by_file = defaultdict(list)
    for mutant in chosen:
        by_file[mutant.test.partition("::")[0]].append(mutant)
    waiting: queue.SimpleQueue[list[Mutant]] = queue.SimpleQueue()
    for together in sorted(by_file.values(), key=len, reverse=True):
        waiting.put(together)
    return waiting, len(by_file)


def _work(
    waiting: queue.SimpleQueue[list[Mutant]], results: dict[str, tuple[str, str]], stopped: threading.Event
) -> None:
    """Take groups until there are none."""
    nursery = Nursery(ROOT)
    try:
        while True:
            for mutant in waiting.get_nowait():
                if stopped.is_set():
                    return
                results[mutant.name] = _timed(nursery.judge, mutant)
    except queue.Empty:
        pass
    finally:
        nursery.close()


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
