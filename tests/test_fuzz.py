"""What writes random models, judges and shrinks them; `statistical/test_fuzz_power.py` tests that faults are found."""

from __future__ import annotations

import ast
import os
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from pymc_rmhmc.errors import ConfigurationError, DataError
from tests.fuzz import judging, running
from tests.fuzz.grammar import random_tree
from tests.fuzz.joint import DEGREES, PYTHON, Joint, Sums, log_density_error, p_value, polynomials
from tests.fuzz.judging import Verdict, judge
from tests.fuzz.models import Array, Free, Line, Penalty, Seen, Sum, Tree, pruned
from tests.fuzz.running import Limits, judge_apart, run, summary
from tests.fuzz.shrinking import shrunk, simpler


def normal(name: str, mu: str, sigma: str, *size: str) -> Free:
    return Free(name, "Normal", (("mu", mu), ("sigma", sigma)), size)


HIERARCHY = Tree(
    1, (("N", 8), ("G", 3)), (Array("group", "index", ("N",), "G"), Array("x", "normal", ("N",))),
    (
        normal("m", "0.0", "1.0"), Free("s", "HalfNormal", (("sigma", "0.8"),)), normal("b", "m", "s", "G"),
        normal("c", "0.0", "1.0"), Line("half", "0.5 * c"), Sum("eta", ("b[group]", "half * x")),
        Penalty("penalty", "-0.5 * m ** 2"), Seen("y", "StudentT", (("nu", "5.0"), ("mu", "eta"), ("sigma", "0.5"))),
    ),
)  # fmt: skip


def test_a_seed_is_a_model_and_its_code_is_python():
    families, lengths = Counter(), []
    for seed in range(300):
        tree = random_tree(seed)
        assert tree == random_tree(seed)
        code = tree.code(tree.placeholders())
        ast.parse(code)
        families.update(each.family for each in tree.statements if isinstance(each, (Free, Seen)))
        lengths.append(len(tree.statements))
    assert len(families) > 35
    assert 4 < np.mean(lengths) < 15


def test_no_model_reads_what_is_not_there():
    for seed in range(300):
        tree = random_tree(seed)
        known = {"np", "pm", "pt", *dict(tree.sizes), *(a.name for a in tree.arrays), *(s.data for s in tree.seen)}
        for each in tree.as_sampled().statements:
            words = {name for name in each.read() if name[-1].isdigit() or name in dict(tree.sizes)}
            assert words - {each.name, "Matern32", "Matern52", "y2"} <= known, (seed, each)
            known.add(each.name)


def test_a_smaller_model_still_builds():
    tree = replace(HIERARCHY, shared=True, dims=True, standard=("b",), options='trajectory="nuts"')
    found = list(simpler(tree))
    assert len(found) > 12
    for each in found:
        model = each.as_sampled().run(each.placeholders())["model"]
        assert model.observed_RVs


def test_shrinking_leaves_what_the_failure_needs():
    def fails(tree: Tree) -> bool:
        return "StudentT" in tree.code(tree.placeholders())

    tree = next(t for t in map(random_tree, range(1000)) if fails(t) and len(t.statements) > 8)
    smallest = shrunk(tree, fails)
    assert fails(smallest)
    assert len(pruned(smallest).statements) <= 3


def test_draws_are_of_the_prior_thinned_by_the_potential_and_in_the_form_that_is_sampled():
    tree = replace(HIERARCHY, standard=("b",))
    pairs = Joint(tree, np.random.default_rng(0)).pairs()
    drawn = [next(pairs) for _ in range(400)]
    m, b = (np.array([theta[name] for theta, _ in drawn]) for name in ("m", "b_standard"))
    assert set(drawn[0][0]) == {"m", "s_log__", "b_standard", "c"}
    # Normal(0, 1) times the Potential is Normal(0, 1/√2); standard errors of a standard deviation are 1/√(2 n) of it.
    assert abs(m.std() - np.sqrt(0.5)) < 4.0 * np.sqrt(0.5) / np.sqrt(800)
    assert abs(b.std() - 1.0) < 4.0 / np.sqrt(2.0 * b.size)
    density = tree.as_sampled().run(drawn[0][1])["model"].compile_logp(mode=PYTHON)
    assert all(np.isfinite(density(theta)) for theta, _ in drawn[:9])


def test_polynomials_of_a_uniform_place_have_mean_0_and_variance_1():
    found = polynomials((np.arange(20_000) + 0.5) / 20_000)
    np.testing.assert_allclose(found.mean(axis=0), np.zeros(DEGREES), atol=1e-6)
    np.testing.assert_allclose((found[:, :, None] * found[:, None]).mean(axis=0), np.eye(DEGREES), atol=1e-4)


@pytest.mark.parametrize(("shift", "seen"), [(0.0, False), (0.6, True)])
def test_a_shift_of_the_chain_is_seen_and_chance_is_not(shift, seen):
    rng, sums = np.random.default_rng(2), Sums()
    for _ in range(120):
        at_truth = polynomials(rng.random(1))[0]
        sums.n += 1
        sums.add("x", polynomials(rng.random(6)).mean(axis=0) + [shift, 0.0] - at_truth, at_truth)
    assert (p_value(sums.scores())[0] < judging.GUILTY) == seen
    assert p_value(sums.reach())[0] > 0.01


def test_a_chain_that_never_moves_has_no_score():
    sums = Sums(n=9)
    sums.add("x", np.zeros(DEGREES), np.zeros(DEGREES))
    assert p_value(sums.scores())[0] == 1.0


def test_a_log_density_is_compared_where_it_is_finite():
    assert log_density_error(-3.0, -3.0) == log_density_error(-3.0, -np.inf) == log_density_error(np.nan, 0.0) == 0.0
    assert log_density_error(-3.1, -3.0) > 1.0


@pytest.mark.parametrize(
    ("error", "result", "kind"),
    [
        (KeyError("s"), "failed", "error"),
        (DataError("b: its data are not finite"), "refused", ""),
        (ConfigurationError("something is wrong"), "failed", "nameless"),
    ],
)
def test_an_error_must_be_ours_and_name_a_variable(monkeypatch, error, result, kind):
    def raising(*_):
        raise error

    monkeypatch.setattr(judging, "Subject", raising)
    verdict = judge(HIERARCHY)
    assert (verdict.result, verdict.kind) == (result, kind)
    assert str(error.args[0]) in verdict.says


def test_two_errors_are_one_failure_whatever_their_numbers():
    first, second = (Verdict(1, "failed", "error", f"ValueError: b{i} has the shape {i}") for i in (3, 4))
    assert first.signature() == second.signature() != Verdict(1, "failed", "error", "KeyError: 3").signature()


def spinning(*_):
    while True:
        pass


@pytest.mark.parametrize(
    ("ends", "kind", "waiting"),
    [(lambda *_: os._exit(3), "crash", 20), (lambda *_: time.sleep(30), "no end", 0.2), (spinning, "no end", 60)],
)
def test_a_model_that_takes_its_process_down_or_never_ends_is_a_failure(monkeypatch, ends, kind, waiting):
    monkeypatch.setattr(running, "judge", ends)
    monkeypatch.setattr(running, "WAITING", waiting)
    verdict = judge_apart(HIERARCHY, Limits(1))
    assert (verdict.result, verdict.kind) == ("failed", kind)
    assert ("processor" in verdict.says) == (ends is spinning)


def test_a_model_that_takes_more_than_its_share_is_left(monkeypatch):
    monkeypatch.setattr(running, "judge", spinning)
    verdict = judge_apart(HIERARCHY, Limits(share=1))
    assert (verdict.result, verdict.seconds) == ("left", 1)


def test_a_run_goes_on_where_it_ended(monkeypatch, tmp_path):
    asked = []

    def judged(tree, limits):
        asked.append(tree.seed)
        return Verdict(tree.seed, scores={"b[0]": [9, [1.0, 0.0], [4.0, 1.0], [0.0, 3.0]]}, engine="Toy")

    monkeypatch.setattr(running, "judge_apart", judged)
    monkeypatch.setattr(running, "warm", lambda tree: None)
    monkeypatch.setattr(running, "_be_quiet", lambda: None)
    results = tmp_path / "results.jsonl"
    assert run(range(2), results, Limits())[:2] == (2, 0)
    run(range(4), results, Limits())
    assert asked == [0, 1, 2, 3]
    said = summary(results)
    assert "4 models: 4 passed" in said
    assert "all of Toy" in said
    run(range(9), results, Limits(budget=-1.0))
    assert asked == [0, 1, 2, 3]
    run(range(9), results, Limits(judged=5))
    assert asked == [0, 1, 2, 3, 4]


def test_models_that_are_left_are_replaced_by_others(monkeypatch, tmp_path):
    results_of = {0: "passed", 1: "left"}
    monkeypatch.setattr(running, "judge_apart", lambda tree, limits: Verdict(tree.seed, results_of[tree.seed % 2]))
    monkeypatch.setattr(running, "warm", lambda tree: None)
    monkeypatch.setattr(running, "_be_quiet", lambda: None)
    results = tmp_path / "results.jsonl"
    assert run(range(9), results, Limits(judged=3))[:2] == (3, 0)
    late = Limits(budget=-1.0, judged=3, share=30)
    results_of[0], results_of[1] = "left", "passed"
    assert run(range(10, 19), tmp_path / "late.jsonl", late)[:2] == (1, 0)
    assert "5 models: 3 passed, 2 left" in summary(results)
