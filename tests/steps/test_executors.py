"""Chains as tasks under executors: their seeds, their order, what becomes of them, and what is refused."""

from __future__ import annotations

import logging
import os
import sys
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
import pymc as pm
import pytest

from pymc_rmhmc import RMHMC, ConfigurationError, SamplingError, sample_chains
from pymc_rmhmc.steps.executors import ChainResult, Message, log_messages, pack, run_chain, seeds_of
from tests.steps.conftest import draw, logistic, poisson_model

SHORT = {"draws": 20, "tune": 40, "chains": 3, "random_seed": 5, "progressbar": False}


class AtOnce(Executor):
    """Runs chains where they are handed over; those named die in their first attempt.

    With `backwards`, the three chains run in reverse.
    """

    def __init__(self, *dying, always=False, backwards=False):
        self.dying, self.always, self.backwards, self.ran, self.held = dying, always, backwards, [], []

    def submit(self, run, function, arguments, attempt):
        future = Future()
        self.held.append((future, run, function, arguments, attempt))
        if not self.backwards or len(self.held) == SHORT["chains"]:
            for call in reversed(self.held):
                self.end(*call)
            self.held = []
        return future

    def end(self, future, run, function, arguments, attempt):
        chain = arguments[1]
        self.ran.append(chain)
        if chain in self.dying and (self.always or attempt == 0):
            future.set_exception(BrokenProcessPool("a worker died"))
        else:
            future.set_result(run(function, arguments, attempt))


def short(executor=None, step=RMHMC, model=None, **options):
    return sample_chains(model or logistic(), step, executor=executor or AtOnce(), **{**SHORT, **options})


@pytest.fixture(scope="module")
def whole():
    return short()


def test_the_result_is_built_as_by_pymc(whole):
    reference = draw(logistic(), draws=20, tune=40, chains=3)
    assert list(whole.children) == list(reference.children)
    for name, group in reference.children.items():
        ours, theirs = whole[name].to_dataset(), group.to_dataset()
        assert dict(ours.sizes) == dict(theirs.sizes)
        assert list(ours.variables) == list(theirs.variables)
        assert list(ours.coords) == list(theirs.coords)
        assert list(ours.attrs) == list(theirs.attrs)
        for variable in theirs.variables:
            assert ours[variable].dims == theirs[variable].dims
            assert ours[variable].dtype == theirs[variable].dtype
    assert whole.posterior.chain.values.tolist() == [0, 1, 2]
    assert whole.observed_data.equals(reference.observed_data)


def test_each_chain_is_that_of_its_seed(whole):
    """Seeds depend neither on each other nor on how many chains there are."""
    with logistic() as model:
        blob = pack(model, RMHMC(), {"draws": 20, "tune": 40})
    seeds = seeds_of(5, 3)
    assert len(set(seeds)) == 3
    assert seeds_of(5, 8)[:3] == seeds
    for chain, seed in enumerate(seeds):
        alone = run_chain(blob, 0, seed).tree
        np.testing.assert_array_equal(alone.posterior["b"].values[0], whole.posterior["b"].values[chain])
    unseeded = [seeds_of(None, 2) for _ in range(2)]
    assert unseeded[0] != unseeded[1]


def test_chains_stand_in_the_order_of_their_numbers(whole):
    executor = AtOnce(backwards=True)
    result = short(executor)
    assert executor.ran == [2, 1, 0]
    assert result.posterior.equals(whole.posterior)


def test_a_chain_whose_worker_died_is_repeated_with_its_draws(whole):
    executor = AtOnce(1)
    result = short(executor)
    assert sorted(executor.ran) == [0, 1, 1, 2]
    assert result.posterior.equals(whole.posterior)
    assert result.sample_stats["lp"].equals(whole.sample_stats["lp"])


def test_after_the_last_attempt_the_finished_chains_are_kept(whole):
    executor = AtOnce(1, always=True)
    with pytest.raises(SamplingError, match="The worker of chain 1 died 2 times") as caught:
        short(executor, attempts=2)
    assert executor.ran.count(1) == 2
    finished = caught.value.finished
    assert finished.posterior.chain.values.tolist() == [0, 2]
    assert finished.posterior.to_dataset().equals(whole.posterior.to_dataset().sel(chain=[0, 2]))
    with pytest.raises(SamplingError) as caught:
        short(AtOnce(0, 1, 2, always=True), attempts=1)
    assert caught.value.finished is None


def test_an_error_of_a_chain_is_raised_with_its_number_and_not_tried_again():
    good, bad = {"b": np.zeros(2)}, {"b": np.full(2, np.nan)}
    executor = AtOnce()
    with pytest.raises(ConfigurationError, match="^Chain 1: .*finite") as caught:
        short(executor, lambda: RMHMC(init="keep"), initvals=[good, bad, good])
    assert executor.ran.count(1) == 1
    assert "Raised by chain 1 of 3, counted from 0." in caught.value.__notes__
    assert caught.value.finished.posterior.chain.values.tolist() == [0, 2]


@pytest.mark.parametrize("form", ["class", "callable", "instance", "list", "callable of a list"])
def test_steps_are_given_in_many_forms(form, whole):
    model = logistic()
    with model:
        step = {
            "class": RMHMC,
            "callable": lambda: RMHMC(max_steps=100),
            "instance": RMHMC(),
            "list": [RMHMC],
            "callable of a list": lambda: [RMHMC()],
        }[form]
    assert short(step=step).posterior.equals(whole.posterior)


def test_the_model_may_be_the_one_in_context(whole):
    with logistic():
        assert sample_chains(executor=AtOnce(), **SHORT).posterior.equals(whole.posterior)


def test_variables_without_a_step_get_one_and_other_options_reach_every_chain():
    model = poisson_model(sampled=True)
    result = short(
        step=[lambda: RMHMC(vars=["f"]), lambda: pm.Slice([model["ls"]])], model=model, draws=5, tune=10, chains=2,
        discard_tuned_samples=False, var_names=["ls"],
    )  # fmt: skip
    assert set(result.children) >= {"posterior", "warmup_posterior", "warmup_sample_stats"}
    assert list(result.posterior.data_vars) == ["ls"]
    assert result.warmup_posterior["ls"].shape == (2, 10)
    assert result.warmup_posterior.chain.values.tolist() == [0, 1]


def test_what_chains_have_to_say_is_logged_once(caplog, monkeypatch):
    """Workers' screens are seldom looked at: their warnings come back."""
    checked = []
    check = "pymc_rmhmc.steps.executors.run_convergence_checks"
    monkeypatch.setattr(check, lambda tree, model: checked.append(tree) or [])
    with caplog.at_level(logging.INFO, logger="pymc"):
        result = short()
        short(compute_convergence_checks=False)
    assert checked == [result]
    texts = [record.message for record in caplog.records]
    assert sum("Only 20 samples per chain" in text for text in texts) == 2
    assert any(text.startswith("Chains 0, 1, 2: Only 20 samples per chain") for text in texts)
    assert not any("Sequential sampling" in text for text in texts)
    caplog.clear()
    said = Message(logging.WARNING, "pymc.rmhmc", "It hardly moves.")
    log_messages({0: ChainResult(result, []), 1: ChainResult(result, [said, said])})
    assert [record.message for record in caplog.records] == ["Chain 1: It hardly moves."]


def test_the_progress_bar_counts_finished_chains(capsys):
    short(progressbar=True)
    assert "3/3" in capsys.readouterr().out
    short()
    assert capsys.readouterr().out == ""


def test_other_threads_are_still_heard(caplog):
    """Only the thread of a chain is silenced."""
    from pymc_rmhmc.steps.executors import kept_messages

    log = logging.getLogger("pymc.rmhmc")
    with caplog.at_level(logging.INFO, logger="pymc"), kept_messages() as kept, ThreadPoolExecutor(1) as pool:
        log.warning("mine")
        pool.submit(log.warning, "another's").result()
    assert [message.text for message in kept] == ["mine"]
    assert [record.message for record in caplog.records] == ["another's"]


BAD = [
    ({"draws": 0}, "draws must be a whole number from 1 up, got 0"),
    ({"draws": 10.0}, "draws must be a whole number"),
    ({"tune": -1}, "tune must be a whole number from 0 up"),
    ({"chains": True}, "chains must be a whole number from 1 up, got True"),
    ({"attempts": 0}, "attempts must be a whole number"),
    ({"random_seed": -1}, "random_seed must be a whole number from 0 up"),
    ({"random_seed": "one"}, "random_seed must be"),
    ({"progressbar": "no"}, "progressbar must be True or False"),
    ({"compute_convergence_checks": 2}, "compute_convergence_checks must be True or False"),
    ({"executor": 3}, "executor must be a concurrent.futures.Executor"),
    ({"executor": ThreadPoolExecutor(1).submit(int)}, "executor must be"),
    ({"model": 3}, "model must be a pymc.Model"),
    ({"step": 3}, "step is 3, which is no step"),
    ({"step": dict}, "which is no step"),
    ({"step": []}, "which is no step"),
    ({"step": dict.fromkeys}, "which is no step"),
    ({"step": lambda: 3}, "step is a callable that returned 3"),
    ({"step": lambda wrong: RMHMC()}, "which is no step"),
    ({"cores": 2}, r"no argument cores. The executor has so many workers"),
    ({"metric": "hessian"}, r"step=lambda: RMHMC\(metric=...\)"),
    ({"blobs": 2}, "no argument blobs. It passes on initvals"),
    ({"initvals": [{}]}, "a list with one for each of 3 chains, got 1"),
]


@pytest.mark.parametrize(("wrong", "says"), BAD, ids=lambda case: next(iter(case)) if isinstance(case, dict) else "")
def test_what_cannot_be_done_is_said_before_a_chain_runs(wrong, says, monkeypatch):
    executor = AtOnce()
    monkeypatch.setattr("pymc_rmhmc.steps.executors.warm_up", lambda *_: pytest.fail("something ran"))
    with pytest.raises(ConfigurationError, match=says):
        sample_chains(**{"model": logistic(), "executor": executor, **SHORT, **wrong})
    assert executor.ran == []


def test_a_step_of_another_model_is_refused():
    with pm.Model():
        pm.Normal("other")
        step = pm.Slice()
    for given in (step, [step], lambda: step, lambda: [step]):
        with pytest.raises(ConfigurationError, match="step was built for another model: other of Slice"):
            short(step=given)


def test_without_a_model_or_cloudpickle_it_says_what_to_do(monkeypatch):
    with pytest.raises(ConfigurationError, match="there is none in context"):
        sample_chains(executor=AtOnce(), **SHORT)
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(ConfigurationError, match=r'pip install "pymc_rmhmc\[cluster\]"'):
        short()


def test_a_model_that_cannot_be_sent_says_what_it_holds(tmp_path):
    with (tmp_path / "open").open("w") as file, logistic() as model:
        step = RMHMC()
        step.file = file
        with pytest.raises(ConfigurationError, match="cannot be sent to other processes: .*pickle"):
            short(step=step, model=model)


def deadly(marker: Path):
    """A step whose process dies in the middle of a chain, once: a class without a module, which travels by value."""
    parent = os.getpid()

    class Deadly(RMHMC):
        def step(self, point):
            if self.iteration == 30 and os.getpid() != parent and not marker.exists():
                marker.touch()
                os._exit(1)
            return super().step(point)

    return Deadly


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """By the default pool of this computer."""
    marker = tmp_path_factory.mktemp("undisturbed") / "marker"
    marker.touch()
    return sample_chains(poisson_model(sampled=True), deadly(marker), **SHORT)


@pytest.mark.slow
def test_a_process_that_dies_costs_nothing_but_time(tmp_path, undisturbed, caplog):
    marker = tmp_path / "marker"
    result = sample_chains(
        poisson_model(sampled=True), deadly(marker), executor=lambda: ProcessPoolExecutor(2), **SHORT
    )
    assert marker.exists()
    assert "died (BrokenProcessPool" in caplog.text
    assert result.posterior.equals(undisturbed.posterior)
    assert result.sample_stats["lp"].equals(undisturbed.sample_stats["lp"])


@pytest.mark.slow
def test_a_given_pool_whose_process_dies_keeps_what_finished(tmp_path):
    with ProcessPoolExecutor(1) as pool, pytest.raises(SamplingError, match="Give a function"):
        sample_chains(poisson_model(sampled=True), deadly(tmp_path / "marker"), executor=pool, **SHORT)


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [0, 3], ids=["by us", "by Dask"])
def test_a_worker_of_dask_that_dies_costs_nothing_but_time(tmp_path, undisturbed, caplog, restarts):
    """Dask starts a chain again by itself, unless it is told not to: then its KilledWorker is seen here."""
    distributed = pytest.importorskip("distributed")
    import dask

    marker = tmp_path / "marker"
    with dask.config.set({"distributed.scheduler.allowed-failures": restarts}):
        cluster = distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, local_directory=str(tmp_path)
        )
        with cluster, distributed.Client(cluster) as client:
            executor = client.get_executor(pure=False)
            result = sample_chains(poisson_model(sampled=True), deadly(marker), executor=executor, **SHORT)
    assert marker.exists()
    assert ("died (KilledWorker" in caplog.text) == (restarts == 0)
    assert result.posterior.equals(undisturbed.posterior)
    assert result.sample_stats["lp"].equals(undisturbed.sample_stats["lp"])
