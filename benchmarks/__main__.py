"""``python -m benchmarks``: run what has not been run yet, and print the tables.

``python -m benchmarks --only probit/flat`` runs a part; ``--fresh`` forgets what was measured.
"""

from __future__ import annotations

import argparse
import time

from benchmarks.harness import RESULTS, run_all
from benchmarks.report import print_report


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="problem, or problem/sampler")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=1200.0, help="seconds after which a sampler is stopped")
    parser.add_argument("--fresh", action="store_true", help="measure everything again")
    arguments = parser.parse_args()
    if arguments.fresh:
        RESULTS.unlink(missing_ok=True)
    started = time.perf_counter()
    run_all(arguments.only, arguments.seeds, arguments.limit)
    print_report()
    print(f"This call took {(time.perf_counter() - started) / 60.0:.1f} min.")


if __name__ == "__main__":
    main()
