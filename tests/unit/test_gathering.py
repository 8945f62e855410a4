"""Pieces of work under executors whose workers die, whose pools break, and whose results come in any order."""

from __future__ import annotations

import asyncio
import logging
import pickle
import time
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import pytest

from pymc_rmhmc.errors import ConfigurationError, SamplingError
from pymc_rmhmc.gathering import check_executor, gather, local_pools, run_piece

DEAD = BrokenProcessPool("a worker died")
PIECES = [(number, 100 + number) for number in range(4)]


def result(number, seed):
    return f"{number} by {seed}"


def first_alone(number, seed):
    if number > 0:
        raise ValueError(f"no piece {number}")
    return result(number, seed)


class Scripted(Executor):
    """Runs pieces when they are handed over, or dies as a script says.

    Parameters
    ----------
    deaths : dict
        By number of the piece and attempt, the error of its future.
    breaks : bool
        Whether a death breaks the pool for good.
    holds : int
        How many pieces must have been handed over before any ends; then they end in reverse.
    """

    def __init__(self, deaths=(), *, breaks=False, holds=0):
        self.deaths, self.breaks, self.holds = dict(deaths), breaks, holds
        self.is_broken, self.was_shut_down, self.calls, self.held = False, False, [], []

    def submit(self, run, function, arguments, attempt):
        if self.is_broken:
            raise BrokenProcessPool("no more work")
        self.calls.append(arguments)
        future = Future()
        self.held.append((future, run, function, arguments, attempt))
        if len(self.calls) >= self.holds:
            for call in reversed(self.held):
                self.end(*call)
            self.held = []
        return future

    def end(self, future, run, function, arguments, attempt):
        death = DEAD if self.is_broken else self.deaths.get((arguments[0], attempt))
        if death is None:
            future.set_result(pickle.loads(pickle.dumps(run(function, arguments, attempt))))
        elif death is CancelledError:
            future.cancel()
            future.set_running_or_notify_cancel()
        else:
            future.set_exception(death)
        self.is_broken = self.is_broken or (death is not None and self.breaks)

    def shutdown(self, wait=True, *, cancel_futures=False):
        self.was_shut_down = True


class Factory:
    """Makes the executors that it was given, one after another."""

    def __init__(self, *executors):
        self.executors, self.n_made = executors, 0

    def __call__(self):
        self.n_made += 1
        return self.executors[self.n_made - 1]


WHOLE = [result(*piece) for piece in PIECES]


def test_results_stand_in_the_order_of_the_pieces():
    """Whichever ends first."""
    ended = []
    results = gather(Scripted(holds=4), result, PIECES, on_finished=lambda index, _: ended.append(index))
    assert results == WHOLE
    assert sorted(ended) == [0, 1, 2, 3]

    def slow_first(number, seed):
        time.sleep(0.3 if number == 0 else 0.0)
        return result(number, seed)

    ended.clear()
    with ThreadPoolExecutor(4) as pool:
        assert gather(pool, slow_first, PIECES, on_finished=lambda index, _: ended.append(index)) == WHOLE
    assert ended[-1] == 0


def killed_worker(module="distributed.scheduler"):
    kind = type("KilledWorker", (Exception,), {"__module__": module})
    return kind("piece", "worker", 3)


DEATHS = [DEAD, BrokenExecutor(), CancelledError, asyncio.CancelledError(), killed_worker()]


@pytest.mark.parametrize("death", DEATHS, ids=["pool", "executor", "cancelled", "asyncio", "dask"])
def test_a_piece_whose_worker_died_runs_again_with_the_same_arguments(death, caplog):
    executor = Scripted({(2, 0): death, (2, 1): death})
    with caplog.at_level(logging.WARNING):
        assert gather(executor, result, PIECES, noun="chain") == WHOLE
    assert executor.calls.count(PIECES[2]) == 3
    assert [executor.calls.count(piece) for piece in PIECES if piece[0] != 2] == [1, 1, 1]
    assert "The worker of chain 2 died" in caplog.text
    assert "attempt 3 of 3" in caplog.text


def test_what_finished_is_not_run_again():
    """A pool that breaks for good is replaced, and only what was lost goes to the new one."""
    first, second = Scripted({(2, 0): DEAD}, breaks=True), Scripted()
    factory = Factory(first, second)
    assert gather(factory, result, PIECES) == WHOLE
    assert factory.n_made == 2
    assert first.calls[:2] == PIECES[:2]
    assert sorted(second.calls) == PIECES[2:]
    assert first.was_shut_down
    assert second.was_shut_down


def test_a_given_pool_that_broke_asks_for_a_factory():
    executor = Scripted({(1, 0): DEAD}, breaks=True)
    with pytest.raises(SamplingError, match="executor=lambda: ProcessPoolExecutor") as caught:
        gather(executor, result, PIECES)
    assert caught.value.finished == {0: WHOLE[0]}
    assert "starts no workers in place of dead ones" in str(caught.value)
    assert not executor.was_shut_down


def test_a_factory_must_make_a_new_executor():
    broken = Scripted({(0, 0): DEAD}, breaks=True)
    with pytest.raises(SamplingError, match="a new one at every call"):
        gather(lambda: broken, result, PIECES)
    with pytest.raises(ConfigurationError, match=r"returned 3, which is no concurrent.futures.Executor"):
        gather(lambda: 3, result, PIECES)


def test_an_error_of_the_function_is_raised_at_once_with_its_number():
    executor = Scripted(holds=2)
    with pytest.raises(ValueError, match="no piece 1") as caught:
        gather(executor, first_alone, PIECES, noun="chain")
    assert executor.calls.count(PIECES[1]) == 1
    assert caught.value.finished == {0: WHOLE[0]}
    notes = "\n".join(caught.value.__notes__)
    assert "Raised by chain 1 of 4, counted from 0." in notes
    assert "in first_alone" in notes  # where in the worker


def test_a_typed_error_has_the_number_in_its_message():
    def hardly_moves(number, seed):
        raise SamplingError("The chain would barely move.")

    with ThreadPoolExecutor(1) as pool, pytest.raises(SamplingError, match="^Chain 0: The chain would barely move"):
        gather(pool, hardly_moves, PIECES[:1], noun="chain")


def test_an_error_that_cannot_be_pickled_arrives_in_words():
    class Odd(Exception):
        def __init__(self, one, other):
            super().__init__(f"{one} and {other}")

    def odd(number, seed):
        raise Odd("this", "that")

    error = pickle.loads(pickle.dumps(run_piece(odd, (0, 1), 0))).error
    assert isinstance(error, RuntimeError)
    assert str(error) == "Odd: this and that"


def test_what_the_executor_raises_otherwise_is_not_tried_again():
    executor = Scripted({(1, 0): pickle.PicklingError("a lock")})
    with pytest.raises(pickle.PicklingError, match="a lock"):
        gather(executor, result, PIECES)
    assert executor.calls.count(PIECES[1]) == 1
    other = Scripted({(1, 0): killed_worker("elsewhere")})
    with pytest.raises(Exception, match="piece"):
        gather(other, result, PIECES)


def test_after_the_last_attempt_the_others_still_finish():
    executor = Scripted({(1, attempt): DEAD for attempt in range(3)})
    said = r"worker of chain 1 died 3 times \(BrokenProcessPool: a worker died\)"
    with pytest.raises(SamplingError, match=said) as caught:
        gather(executor, result, PIECES, noun="chain", attempts=3)
    assert caught.value.finished == {0: WHOLE[0], 2: WHOLE[2], 3: WHOLE[3]}
    assert executor.calls.count(PIECES[1]) == 3
    assert "3 chains of 4 finished" in str(caught.value)
    both = Scripted({(1, 0): DEAD, (3, 0): DEAD})
    with pytest.raises(SamplingError, match="workers of chains 1, 3 died once"):
        gather(both, result, PIECES, noun="chain", attempts=1)


class Crowded(Scripted):
    """Two workers with a long queue; the first piece kills its worker, and the whole queue fails with the pool."""

    def submit(self, run, function, arguments, attempt):
        future = Future()
        self.calls.append(arguments)
        self.held.append(future)
        if len(self.held) <= 2:
            future.set_running_or_notify_cancel()
        return future


def test_pieces_that_only_waited_lose_no_attempt(monkeypatch):
    """When a pool breaks, all its futures fail; the queue is not to blame."""
    monkeypatch.setattr("pymc_rmhmc.gathering.TICK", 0.01)

    def crowd():
        pool = Crowded()

        def breaks():
            while len(pool.held) < len(PIECES):
                time.sleep(0.01)
            time.sleep(0.2)
            for future in pool.held:
                future.set_exception(DEAD)

        threads.submit(breaks)
        return pool

    with ThreadPoolExecutor(1) as threads:
        first = crowd()
        with pytest.raises(SamplingError, match="workers of pieces 0, 1 died once") as caught:
            gather(_Then(first, Scripted()), result, PIECES, attempts=1)
    assert caught.value.finished == {2: WHOLE[2], 3: WHOLE[3]}


class _Then(Executor):
    """An executor until its queue is handed over, and another from then on."""

    def __init__(self, first, then):
        self.first, self.then = first, then

    def submit(self, *call):
        chosen = self.first if len(self.first.calls) < len(PIECES) else self.then
        return chosen.submit(*call)


def test_an_interrupt_cancels_what_waits_and_keeps_what_finished():
    def interrupt(index, _):
        if index == 1:
            raise KeyboardInterrupt

    started = []

    def slow(number, seed):
        started.append(number)
        time.sleep(0.1)
        return result(number, seed)

    with ThreadPoolExecutor(1) as pool, pytest.raises(KeyboardInterrupt) as caught:
        gather(pool, slow, [(n, n) for n in range(20)], on_finished=interrupt)
    assert {0, 1} <= set(caught.value.finished)
    assert len(started) < 6


def test_a_given_executor_is_left_open():
    with ThreadPoolExecutor(2) as pool:
        assert gather(pool, result, PIECES) == WHOLE
        assert pool.submit(int).result() == 0
    with pytest.raises(SamplingError, match="cannot schedule new futures after shutdown"):
        gather(pool, result, PIECES)


def test_local_pools_have_no_more_workers_than_pieces(monkeypatch):
    with local_pools(1)() as pool:
        assert pool._max_workers == 1
        assert pool._mp_context.get_start_method() == "spawn"
    monkeypatch.setattr("pymc_rmhmc.gathering.current_process", lambda: type("", (), {"_inheriting": True}))
    with pytest.raises(ConfigurationError, match="__main__"):
        local_pools(1)


def test_what_is_no_executor_is_said():
    assert check_executor(dict) is dict
    for wrong in (3, "threads", None):
        with pytest.raises(ConfigurationError, match="must be a concurrent.futures.Executor"):
            check_executor(wrong)
    client = type("Client", (), {"__module__": "distributed.client", "get_executor": None})
    with pytest.raises(ConfigurationError, match=r"executor=client.get_executor\(pure=False\)"):
        check_executor(client())
    cluster = type("LocalCluster", (), {"__module__": "distributed.deploy.local"})
    with pytest.raises(ConfigurationError, match=r"cluster.get_client\(\).get_executor"):
        check_executor(cluster())
