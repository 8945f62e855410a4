"""Means and standard deviations with their errors, and whether two runs agree on them."""

from __future__ import annotations

import arviz as az
import numpy as np
from scipy.stats import norm

from benchmarks.catalogue.entry import Entry

__all__ = ["agreement", "allowed", "moments", "truths"]

# Of runs that agree, one in a thousand has a larger z somewhere.
CHANCE = 1e-3


def moments(draws: np.ndarray, labels: list[str], entry: Entry) -> dict[str, list[float]]:
    """``[mean, its error, standard deviation, its error]`` of each compared value of (chain, draw, n) draws."""
    found: dict[str, list[float]] = {}
    if draws.shape[1] < 4:
        return found
    variables = [label.split("[")[0] for label in labels]
    keep = [i for i, variable in enumerate(variables) if not entry.compared or variable in entry.compared]
    values = draws[..., keep].copy()
    for j, i in enumerate(keep):
        if variables[i] in entry.logged:
            values[..., j] = np.log(values[..., j])
    data = az.from_dict({"posterior": {"f": values}})
    errors = {kind: az.mcse(data, method=kind)["f"].values for kind in ("mean", "sd")}
    mean, sd = values.mean(axis=(0, 1)), values.std(axis=(0, 1), ddof=1)
    for j, i in enumerate(keep):
        label = f"log {labels[i]}" if variables[i] in entry.logged else labels[i]
        row = (mean[j], errors["mean"][j], sd[j], errors["sd"][j])
        found[label] = [float(f"{value:.6g}") for value in row]
    return found


def agreement(ours: dict[str, list[float]], theirs: dict[str, list[float]]) -> tuple[float, str]:
    """The largest absolute z of means and standard deviations, with both errors, and of which value it is."""
    largest, where = 0.0, ""
    for label in ours.keys() & theirs.keys():
        for kind, at in (("mean", 0), ("sd", 2)):
            mine, other = ours[label], theirs[label]
            error = np.hypot(mine[at + 1], other[at + 1])
            z = abs(mine[at] - other[at]) / error if error > 0.0 else 0.0
            if z > largest:
                largest, where = float(z), f"{kind} of {label}"
    return largest, where


def truths(ours: dict[str, list[float]], entry: Entry) -> tuple[float, str]:
    """As `agreement`, with what is known exactly."""
    known = {name: [mean, 0.0, sd, 0.0] for name, (mean, sd) in entry.truth.items()}
    return agreement(ours, known)


def allowed(ours: dict[str, list[float]], theirs: dict[str, list[float]]) -> float:
    """The largest absolute z that chance gives among so many means and standard deviations."""
    shared = len(ours.keys() & theirs.keys())
    return float(norm.isf(CHANCE / (4.0 * max(1, shared))))
