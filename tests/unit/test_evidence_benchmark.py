"""What the benchmark of the evidence computes and prints, without long runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from benchmarks.evidence import grid, problems
from benchmarks.evidence.cases import ASKED, REFERENCE_RUNS, all_runs
from benchmarks.evidence.figures import draw_figures
from benchmarks.evidence.measures import estimate
from benchmarks.evidence.table import GRID_HEADINGS, HEADINGS, PATH_HEADINGS, asked_rows, grid_rows, path_rows
from benchmarks.papers.paquet.annealing import PANELS
from benchmarks.papers.paquet.experiments import ANNEALING_HEADINGS, annealing_rows
from benchmarks.problems import logit
from pymc_rmhmc.latent.charts.site import GaussianSites


def _estimate(run, **changed) -> dict:
    record = run.key | {
        "value": -100.0, "standard error": 0.004, "taken": "bridge", "reading": 0.1, "compiling": 2.0, "tuning": 1.0,
        "estimating": 4.0, "correcting": 0.1, "second order": -99.9, "history": [[1.0, -100.1, 0.01]], "rungs": 3,
    }  # fmt: skip
    return record | changed


def test_every_run_is_named_once_and_every_question_has_one():
    runs = [*all_runs(2), *(run for each in REFERENCE_RUNS.values() for run in each)]
    keys = [tuple(run.key.values()) for run in runs]
    assert len(set(keys)) == len(keys)
    assert {asked.run for asked in ASKED} <= set(runs)


def test_a_row_for_each_question_with_a_record():
    asked = next(a for a in ASKED if a.problem == "heart")
    failed = asked.run.key | {"seed": 1, "error": "what went wrong"}
    (row,) = asked_rows([_estimate(asked.run), failed])
    assert len(row) == len(HEADINGS)
    shown = dict(zip(HEADINGS, row, strict=True))
    assert shown["times as exact"] == f"{asked.error / 0.004:.2g}"
    assert shown["times as fast"] == f"{asked.seconds / 5.0:.2g}"
    assert shown["apart, in errors"].endswith("!")


def test_both_values_of_one_run_of_ep_are_rows():
    run = next(a for a in ASKED if a.method == "ep").run
    rows = asked_rows([_estimate(run, value=-106.0892)])
    assert [row[1] for row in rows] == ["EP", "EP, second order"]
    assert rows[0][HEADINGS.index("error")] == "0"


def _cell() -> dict:
    approximate = {"value": -100.0, "seconds": 0.1, "test error": 2.5, "bits": 0.8}
    return {
        "log lengthscale": 2.0, "log amplitude": 3.0, "reading": 0.1, "laplace": approximate, "ep": approximate,
        "corrected": approximate, "bridge": {"value": -99.5, "standard error": 0.02, "seconds": 3.0, "rungs": 3},
    }  # fmt: skip


def test_tables_and_figures_of_what_there_is(tmp_path):
    runs = {run.kind: run for run in all_runs(1) if run.kind in {"path", "peer"} and run.problem == "eight"}
    records = [_estimate(run) for run in runs.values()]
    records.append({"kind": "grid", "problem": "usps", "method": "3", "seed": 0, "target": 0.0, "cells": [_cell()]})
    (row,) = grid_rows(records)
    assert len(row) == len(GRID_HEADINGS)
    assert "!" in row[GRID_HEADINGS.index("apart, in errors")]
    assert [len(each) for each in path_rows(records)] == [len(PATH_HEADINGS)] * 2
    assert sorted(path.stem for path in draw_figures(records, tmp_path, "png")) == ["evidence_grid", "evidence_peers"]


def test_exact_values():
    assert problems.exact_eight_schools() == pytest.approx(-31.3113, abs=5e-5)
    # With three data, draws of the hyperparameters are enough.
    x, y = problems.regression_data(3)
    rng = np.random.default_rng(0)
    lengthscale, amplitude, noise = np.exp([[0.0], [0.0], [-1.0]] + 0.7 * rng.standard_normal((3, 4000)))
    square = (x[:, None] - x) ** 2
    densities = [
        multivariate_normal.pdf(y, cov=a**2 * np.exp(-0.5 * square / ls**2) + (s**2 + problems.JITTER) * np.eye(3))
        for ls, a, s in zip(lengthscale, amplitude, noise, strict=True)
    ]
    error = np.std(densities) / np.mean(densities) / math.sqrt(4000)
    assert problems.exact_regression(3) == pytest.approx(math.log(np.mean(densities)), abs=4.0 * error)


def test_predictions_without_data_say_nothing():
    nothing = grid.predictions(2.0, 0.0, GaussianSites(np.zeros(767), np.zeros(767)))
    assert nothing["bits"] == pytest.approx(0.0, abs=0.005)
    assert nothing["test error"] == 100.0


@pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")
def test_an_estimate_has_its_seconds_apart():
    found = estimate(logit(12).centred(), "ep", 0, 0.1, 1.0)
    assert found["converged"]
    assert found["value"] < found["second order"] < 0.0
    assert min(found[name] for name in ("reading", "estimating", "correcting")) >= 0.0


def test_panels_are_options_and_rows():
    for panel in PANELS.values():
        assert len(panel.options().ladder) == panel.n_rungs + 1
    record = {
        "experiment": "annealing", "sampler": "a", "seed": 0, "draws": 1, "values": [-106.5], "seconds": [2.0],
        "acceptance": [0.9], "ep": -106.0892, "second order": -105.8157,
    }  # fmt: skip
    ours = {
        "experiment": "annealing", "sampler": "bridge", "seed": 0, "draws": 1, "values": [-105.83], "seconds": [9.0],
        "standard error": 0.006, "history": [],
    }  # fmt: skip
    rows = annealing_rows([record, ours])
    assert [len(row) for row in rows] == [len(ANNEALING_HEADINGS)] * 2


@pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")
def test_annealing_counts_its_ladder_as_tuning():
    found = estimate(logit(12).centred(), "annealing", 0, 1.0, 1.0)
    assert found["rungs"] >= 2
    assert found["history"][-1][1] == pytest.approx(found["value"])
