"""The tables, from stored records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from benchmarks.evidence.cases import ASKED, EP, Asked
from benchmarks.evidence.grid import target_of
from benchmarks.evidence.problems import PROBLEMS
from benchmarks.papers.text import markdown

__all__ = ["asked_rows", "grid_rows", "path_rows", "print_tables"]

HEADINGS = (
    "problem", "method", "log p(y)", "reference", "apart, in errors", "error asked", "error", "times as exact",
    "s asked", "s", "times as fast", "reading s", "compiling s", "tuning s", "estimating s", "rungs",
)  # fmt: skip
GRID_HEADINGS = (
    "log ℓ", "log σ", "Laplace", "EP", "EP, second order", "bridge", "error asked", "apart, in errors",
    "test error %: Laplace", "EP", "bits: Laplace", "EP", "s: Laplace", "EP", "second order", "bridge",
)  # fmt: skip
PATH_HEADINGS = ("problem", "sampler", "size", "seed", "log p(y)", "off by", "seconds", "compiling s", "tuning s")
# Runs that are further from the truth than so many errors are wrong; a second order has an error of its own, not known.
FAR, SECOND_ORDER_ERROR = 2.5, 0.04
LABELS = {"ep": "EP", "bridge": "bridge", "annealing": "annealing from q", "auto": "auto"}


def asked_rows(records: Iterable[dict]) -> list[list[str]]:
    """Return a row for each thing asked and each seed that has a record."""
    held = [record for record in records if record["kind"] == "estimate" and "value" in record]
    rows = []
    for asked in ASKED:
        key = {name: asked.run.key[name] for name in ("problem", "method", "target")}
        rows += [_row(asked, record) for record in held if key.items() <= record.items()]
    return rows


def _row(asked: Asked, record: dict) -> list[str]:
    value, error = record[asked.value], record["standard error"]
    truth, known = _truth(asked)
    apart = (value - truth) / math.hypot(error, known) if math.hypot(error, known) > 0.0 else math.nan
    reached = abs(value - truth) if asked.is_distance else error
    spent = record["estimating"] + (0.0 if asked.after_tuning else record["tuning"])
    if asked.value == "second order":
        spent += record["correcting"]
    label = LABELS[asked.method] + (", second order" if asked.value == "second order" else "")
    if asked.method == "auto":
        label += f" ({record['taken']})"
    return [
        PROBLEMS[asked.problem].label, label, f"{value:.4f}", f"{truth:.4f} ± {known:.4f}",
        "" if asked.is_distance or math.isnan(apart) else f"{apart:.1f}" + (" !" if abs(apart) > FAR else ""),
        f"{asked.error:g}", f"{reached:.2g}", _ratio(asked.error, reached),
        "" if asked.seconds is None else f"{asked.seconds:g}" + (" after tuning" if asked.after_tuning else ""),
        f"{spent:.2f}", "" if asked.seconds is None else _ratio(asked.seconds, spent),
        *(f"{record[name]:.2f}" for name in ("reading", "compiling", "tuning", "estimating")),
        str(record["rungs"] or ""),
    ]  # fmt: skip


def _truth(asked: Asked) -> tuple[float, float]:
    """EP's own value where EP is asked for, otherwise the problem's."""
    if asked.method == "ep" and asked.value == "value":
        return EP, 0.0
    return PROBLEMS[asked.problem].truth()


def _ratio(asked: float, measured: float) -> str:
    """Above 1, what was asked is reached."""
    return "" if not measured > 0.0 else f"{asked / measured:.2g}"


def grid_rows(records: Iterable[dict]) -> list[list[str]]:
    """Return a row for each cell of the grid."""
    cells = [cell for record in records if record["kind"] == "grid" for cell in record.get("cells", ())]
    rows = []
    for cell in sorted(cells, key=lambda c: (c["log amplitude"], c["log lengthscale"])):
        laplace, ep, corrected, bridge = (cell[name] for name in ("laplace", "ep", "corrected", "bridge"))
        apart = (corrected["value"] - bridge["value"]) / math.hypot(bridge["standard error"], SECOND_ORDER_ERROR)
        rows.append([
            f"{cell['log lengthscale']:g}", f"{cell['log amplitude']:g}", f"{laplace['value']:.2f}",
            f"{ep['value']:.3f}", f"{corrected['value']:.3f}",
            f"{bridge['value']:.3f} ± {bridge['standard error']:.3f}",
            f"{target_of(cell['log amplitude']):g}", f"{apart:.1f}" + (" !" if abs(apart) > FAR else ""),
            *(f"{method['test error']:.1f}" for method in (laplace, ep)),
            *(f"{method['bits']:.3f}" for method in (laplace, ep)),
            *(f"{method['seconds']:.2g}" for method in (laplace, ep, corrected, bridge)),
        ])  # fmt: skip
    return rows


def path_rows(records: Iterable[dict]) -> list[list[str]]:
    """Return a row for each run beside the peers."""
    rows = []
    for record in records:
        if record["kind"] not in {"path", "peer"} or "value" not in record:
            continue
        truth, _ = PROBLEMS[record["problem"]].truth()
        is_ours = record["kind"] == "path"
        rows.append([
            PROBLEMS[record["problem"]].label, "log_evidence" if is_ours else record["method"],
            "" if is_ours else f"{record['target']:g}", str(record["seed"]), f"{record['value']:.4f}",
            f"{record['value'] - truth:+.4f}", f"{record['estimating']:.3g}", f"{record['compiling']:.2g}",
            f"{record['tuning']:.2g}",
        ])  # fmt: skip
    return sorted(rows)


def print_tables(records: Sequence[dict]) -> None:
    """Print everything that was measured."""
    for title, headings, rows in (
        ("Asked and measured", HEADINGS, asked_rows(records)),
        ("USPS over a grid of hyperparameters", GRID_HEADINGS, grid_rows(records)),
        ("Beside sequential Monte Carlo", PATH_HEADINGS, path_rows(records)),
    ):
        if rows:
            print(f"\n{title}\n\n" + markdown(headings, rows))
    cells = [cell for record in records if record["kind"] == "grid" for cell in record.get("cells", ())]
    if cells:
        spent = [sum(cell[name]["seconds"] for cell in cells) for name in ("laplace", "ep", "corrected", "bridge")]
        reading = sum(cell["reading"] for cell in cells)
        print(f"\nThe grid took {sum(spent):.0f} s, {spent[-1]:.0f} of them its bridges, and reading {reading:.0f} s.")
    for record in records:
        if "error" in record:
            print(f"failed: {record['kind']} / {record['problem']} / {record['method']}: {record['error']}")
