"""``python -m benchmarks.catalogue``: run what has not been run yet, one process at a time, and print the table.

``--only NAME`` runs a model or a group (asked, public, kinds, headline); ``--sampler rmhmc`` one sampler, repeatable;
``--quick`` makes 200 draws; ``--cold`` gives each run an empty cache of compiled code; ``--table`` runs nothing;
``--page FILE`` writes the table of the documentation.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.catalogue.figure import draw_figure
from benchmarks.catalogue.models import CATALOGUE, GROUPS
from benchmarks.catalogue.page import write_page
from benchmarks.catalogue.table import print_table
from benchmarks.harness import RESULTS, keep_run, load

CATALOGUE_RESULTS = RESULTS.with_name("catalogue.jsonl")
SAMPLERS = ("rmhmc", "nutpie", "nutpie-other", "rmhmc-latent", "rmhmc-graph")
# Run only if they are asked for.
CURVED = ("rmhmc-fisher", "rmhmc-softabs")
DRAWS, QUICK = 1000, 200
# What compiling and measuring may take beside the sampler's own seconds.
GRACE = 300.0


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", default=[], help="a model or a group; may be repeated")
    choices = [s for s in (*SAMPLERS, *CURVED) if s != "nutpie-other"]
    parser.add_argument("--sampler", action="append", default=[], choices=choices)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds after which a sampler is stopped")
    parser.add_argument("--quick", action="store_true", help="200 draws a chain")
    parser.add_argument("--cold", action="store_true", help="compile everything anew")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--figure", type=Path, help="where to draw the ratios")
    parser.add_argument("--page", type=Path, help="where to write the documentation's table")
    parser.add_argument("--fresh", action="store_true", help="forget what was measured")
    arguments = parser.parse_args()
    if arguments.fresh:
        CATALOGUE_RESULTS.unlink(missing_ok=True)
    draws = QUICK if arguments.quick else DRAWS
    names = _chosen(arguments.only)
    if not arguments.table:
        _run_all(names, arguments, draws)
    records = [r for r in load(CATALOGUE_RESULTS) if r["problem"] in names]
    print_table(records)
    if arguments.page:
        write_page(records, arguments.page)
    if arguments.figure:
        draw_figure(records, arguments.figure)


def _chosen(only: list[str]) -> list[str]:
    """The models that are meant, in the catalogue's order."""
    wanted = {name for each in only for name in GROUPS.get(each, (each,))} or set(CATALOGUE)
    if unknown := wanted - set(CATALOGUE):
        raise SystemExit(f"no model is called {', '.join(sorted(unknown))}; there are {', '.join(CATALOGUE)}")
    return [name for name in CATALOGUE if name in wanted]


def _run_all(names: list[str], arguments: argparse.Namespace, draws: int) -> None:
    done = {_key(record) for record in load(CATALOGUE_RESULTS)}
    asked = arguments.sampler or SAMPLERS
    samplers = [s for s in (*SAMPLERS, *CURVED) if s in asked or s.removesuffix("-other") in asked]
    for seed in range(arguments.seeds):
        for name in names:
            for sampler in samplers:
                record = {
                    "problem": name, "sampler": sampler, "seed": seed, "asked": draws, "cold": arguments.cold,
                    "limit": arguments.limit,
                }  # fmt: skip
                missing = sampler == "nutpie-other" and CATALOGUE[name].other is None
                if not missing and _key(record) not in done and not _is_same(record):
                    _run_one(record)


def _key(record: dict) -> tuple:
    return tuple(record[key] for key in ("problem", "sampler", "seed", "asked", "cold"))


def _is_same(record: dict) -> bool:
    """Whether the chart that is asked for is the one that RMHMC() has taken: the same draws."""
    automatic = _key(record | {"sampler": "rmhmc"})
    chart = "chart: " + record["sampler"].removeprefix("rmhmc-")
    return any(chart in r.get("said", ()) and _key(r) == automatic for r in load(CATALOGUE_RESULTS))


def _run_one(record: dict) -> None:
    print(f"{record['problem']} / {record['sampler']} / seed {record['seed']} ...", end=" ", flush=True)
    parts = (record["problem"], record["sampler"], record["seed"], record["limit"], record["asked"])
    command = [sys.executable, "-m", "benchmarks.catalogue.worker", *map(str, parts)]
    with tempfile.TemporaryDirectory() as cache:
        if record["cold"]:
            settings = [f"PYTENSOR_FLAGS=base_compiledir={cache}", f"NUMBA_CACHE_DIR={os.path.join(cache, 'numba')}"]
            command = ["env", *settings, *command]
        started = time.perf_counter()
        kept = keep_run(record, command, record["limit"] + GRACE, CATALOGUE_RESULTS)
    said = kept.get("error") or f"{kept['stopped']} {kept['ess_per_second']:.3g} ESS/s, R-hat {kept['rhat']}"
    print(f"{said} ({time.perf_counter() - started:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
