"""What all tests share."""

import gc
import os
import subprocess
import zlib
from functools import lru_cache
from pathlib import Path

# Two threads that wait for each other take a thousand times as long over a small matrix as one.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytensor
import pytest

from pymc_rmhmc.model.graph.graphs import PYTHON_MODE, WITHOUT_TRACES
from pymc_rmhmc.model.likelihoods import likelihood_kernel

# In models that tests write too: a quarter of their time.
for flag, value in WITHOUT_TRACES.items():
    setattr(pytensor.config, flag, value)

# Tests build the same small models again and again, more of them than a user does.
likelihood_kernel.compiled_graph = lru_cache(maxsize=500)(likelihood_kernel.compiled_graph.__wrapped__)


def pytest_addoption(parser):
    """A machine that is too slow for all of the statistical suite runs a fifth of it."""
    parser.addoption("--fifth", action="store_true", help="one test in five, by turns: by the hash of the commit")


def pytest_collection_modifyitems(config, items):
    """Leave four tests of five out, where that is asked for."""
    if not config.getoption("fifth"):
        return
    command = ["git", "rev-parse", "HEAD"]
    told = subprocess.run(command, cwd=Path(__file__).parent, check=True, capture_output=True, text=True)
    turn = int(told.stdout[:8], 16)
    is_left_out = [(zlib.crc32(item.nodeid.encode()) + turn) % 5 > 0 for item in items]
    config.hook.pytest_deselected(items=[item for item, out in zip(items, is_left_out, strict=True) if out])
    items[:] = [item for item, out in zip(items, is_left_out, strict=True) if not out]


def pytest_collection_finish() -> None:
    """Look for garbage seldom: among PyTensor's graphs that takes a quarter of the tests' time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 10, 20)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """PyMC's own functions are evaluated by Python in quick tests: a compiler takes up to seconds for each.

    What this package compiles asks for its compiler. The statistical suite, the examples and the documentation leave
    PyMC as users have it, but for what would be quick if there were less of it.
    """
    slow = item.get_closest_marker("slow")
    if (slow and not slow.kwargs.get("by_python")) or "compiled_ahead" in item.fixturenames:
        return (yield)
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        return (yield)


@pytest.fixture(scope="module")
def pymc_by_python():
    """In all tests of a file PyMC's own functions are evaluated by Python, in slow ones too."""
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        yield


@pytest.fixture
def without_a_compiler(monkeypatch):
    """Graphs of hyperparameters are evaluated by Python too: what a graph says does not depend on by whom.

    What is compiled is compared with these graphs in tests of its own.
    """

    def compile_outputs(inputs, outputs, *, exact=False):
        return pytensor.function(inputs, outputs, mode=PYTHON_MODE, trust_input=True, on_unused_input="ignore")

    monkeypatch.setattr("pymc_rmhmc.model.hyperparameters.compile_outputs", compile_outputs)
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        yield


@pytest.fixture
def compiled_ahead():
    """`RMHMC()` compiles everything that a chain may call, as it does for users."""
    likelihood_kernel.compiled_graph.cache_clear()  # other tests build the same small models


@pytest.fixture(autouse=True)
def compiled_when_called(request, monkeypatch):
    """Elsewhere it compiles nothing: most tests make few draws, which call a part of it, and none depends on it."""
    if "compiled_ahead" not in request.fixturenames:
        monkeypatch.setattr("pymc_rmhmc.steps.rehearsal._rehearse", lambda sampler, point: True)
