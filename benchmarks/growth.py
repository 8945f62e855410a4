"""How time and memory grow with n: a step at fixed θ (n²), the joint sampler's gradient (n³), and a chain of it.

Time of a step at fixed θ: the time of a draw with 21 steps less that of a draw with one, over 20. Memory: the resident
set's high-water mark (`VmHWM`, which Linux lets a process reset) less what was resident when the model was built, in
units of n² doubles. It sees LAPACK's and compiled code's arrays, which `tracemalloc` does not. A small model runs
first, at fixed θ one of the same size as well, and of the joint gradient one evaluation, so that libraries, compiled
code and the interpreter's small objects are not counted; large arrays are given back to the system when they are
freed, so that none is served from what an earlier one left. At fixed θ the building of the step method (reading and
compiling the model) is told apart from its chain (the start and the draws), and both count from what was resident
before the building. Of the joint sampler's chain, which is `RMHMC()` as it comes with a short tuning, the peaks of
tuning (the start, refits and the emulator among it) and of the draws in turns are told apart, and the time is that of
a draw. Each n is a process of its own, whose environment says how the allocator gives memory back. At 500 a unit is
2 MB, and the interpreter's own noise may be one. Run with ``python -m benchmarks.growth``, or with kinds and sizes:
``python -m benchmarks.growth chain 500 1000``.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

SIZES = {"fixed": (500, 1000, 2000, 4000), "joint": (250, 500, 1000, 2000), "chain": (500, 1000, 1500)}
ASKED = {"fixed": (2.2, 4.0), "joint": (None, 6.0), "chain": (None, 6.0)}
LONG, DRAWS = 21, 15
# A tuning that ends in an emulator, and draws after it.
TUNE, TURNS = 200, 12
# A process of one size is asked for by this, from the one that gives it its environment.
CHILD = "--one-size"
# Larger arrays than this have pages of their own, which go back to the system with them.
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536", "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}


def _resident(key: str) -> float:
    """Bytes: "VmRSS" now, "VmHWM" at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024.0 * float(next(line for line in lines if line.startswith(key)).split()[1])


def _forget_peak() -> float:
    """Give back what is free, reset the high-water mark, and read what is resident."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _resident("VmRSS")


def _fixed(n: int) -> tuple[float, float, float]:
    """Seconds a step, and bytes beyond the model's own at the peaks of building and of the chain."""
    from benchmarks.problems import logit
    from pymc_rmhmc import RMHMC

    for size in (60, n, n):
        model = logit(size).centred()
        before = _forget_peak()
        with model:
            step = RMHMC(step_size=0.1, n_steps=1)
        building = _resident("VmHWM") - before
        _forget_peak()
        short = _draws(model, step)
        chain = _resident("VmHWM") - before
        del step
    with model:
        step = RMHMC(step_size=0.1, n_steps=LONG)
    return (_draws(model, step) - short) / (LONG - 1), building, chain


def _draws(model, step) -> float:
    """Median seconds of a draw."""
    point, times = model.initial_point(), []
    step.setup_chain(np.random.default_rng(0), 0, DRAWS)
    for _ in range(DRAWS):
        started = time.perf_counter()
        point, _ = step.step(point)
        times.append(time.perf_counter() - started)
    return float(np.median(times[2:]))


def _joint(n: int) -> tuple[float, float]:
    """Seconds a gradient, and bytes beyond the model's own at the peak."""
    from benchmarks.joint_target import build

    built = build(n)
    _gradients(built, 1)
    before = _forget_peak()
    seconds = _gradients(built, 6)
    return seconds, _resident("VmHWM") - before


def _gradients(built, count: int) -> float:
    """Median seconds of a gradient; the last point is kept while the next is evaluated, as a chain does."""
    rng, times, kept = np.random.default_rng(0), [], None
    for _ in range(count):
        started = time.perf_counter()
        point = built.target.at(rng.standard_normal(built.target.size))
        times.append(time.perf_counter() - started)
        kept = point
    assert not kept.failure
    return float(np.median(times))


def _chain(n: int) -> tuple[float, float, float]:
    """Seconds a draw in turns, and bytes beyond the model's own at the peaks of tuning and of the draws."""
    from benchmarks.joint_problems import regression
    from pymc_rmhmc import RMHMC

    for size in (60, n):
        with regression("poisson", size).centred() as model:
            step = RMHMC()
        # One draw, so that what is compiled is not counted: a new chain begins with nothing of it.
        step.setup_chain(np.random.default_rng(0), 1, 1)
        step.step(model.initial_point())
        step.setup_chain(np.random.default_rng(0), TUNE, TURNS)
        before, point, peaks, times = _forget_peak(), model.initial_point(), [], []
        for i in range(TUNE + TURNS):
            if i == TUNE:
                step.stop_tuning()
            if i == TUNE + 1:
                peaks.append(_resident("VmHWM") - before)
                _forget_peak()
            started = time.perf_counter()
            point, _ = step.step(point)
            times.append(time.perf_counter() - started)
        peaks.append(_resident("VmHWM") - before)
        assert step.chains[0].tuned.emulator is not None
    return float(np.median(times[TUNE + 1 :])), peaks[0], peaks[1]


def slope(sizes: np.ndarray, seconds: np.ndarray) -> float:
    """Of log seconds by log n, least squares."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def main(kinds: list[str], given: list[int]) -> None:
    """Print a table and a slope for each; of sizes that are given, or the usual ones."""
    peaks = {
        "fixed": "peak of building | peak of the chain",
        "joint": "peak of gradients",
        "chain": "peak of tuning | peak of draws in turns",
    }
    for what in kinds or SIZES:
        sizes = given or SIZES[what]
        print(f"\n| {what}: n | ms | {peaks[what]} |\n| --- | --- |" + " --- |" * (peaks[what].count("|") + 1))
        seconds = []
        for n in sizes:
            finished = subprocess.run(
                [sys.executable, "-m", "benchmarks.growth", CHILD, what, str(n)], env={**os.environ, **ENVIRONMENT},
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            spent, *bytes_ = json.loads(finished.stdout.splitlines()[-1])
            seconds.append(spent)
            cells = " | ".join(f"{peak / (8.0 * n * n):.2f}" for peak in bytes_)
            print(f"| {n} | {1e3 * spent:.3g} | {cells} |", flush=True)
        asked, memory = ASKED[what]
        bar = f", asked {asked}" if asked else ""
        grown = f"slope {slope(np.array(sizes), np.array(seconds)):.2f}{bar}; " if len(sizes) > 1 else ""
        print(f"{grown}memory asked {memory:g} n² doubles")


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        print(json.dumps({"fixed": _fixed, "joint": _joint, "chain": _chain}[sys.argv[2]](int(sys.argv[3]))))
    else:
        numbers = [int(each) for each in sys.argv[1:] if each.isdigit()]
        main([each for each in sys.argv[1:] if not each.isdigit()], numbers)
