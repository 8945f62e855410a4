"""A plugin of pytest that writes what became of each test to the file that ``MUTANTS_REPORT`` names.

Compiled code is kept under a stamp of the files that it is made of. Where an edit is none of theirs, ``MUTANTS_STAMP``
is the stamp without it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import sys
from pathlib import Path

import pytest

COMPILATION = "pymc_rmhmc.linalg.compiled.compilation"
_seen: list[dict] = []


class _Stamped(importlib.abc.MetaPathFinder):
    """Finds the module that compiles, and gives it a stamp as soon as it is there, before it compiles anything."""

    def find_spec(self, name, path, target=None):
        if name != COMPILATION:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def execute_and_stamp(module):
            execute(module)
            stamp = tuple(json.loads(os.environ["MUTANTS_STAMP"]))
            module._stamp = lambda: stamp

        spec.loader.exec_module = execute_and_stamp
        return spec


if os.environ.get("MUTANTS_STAMP"):
    sys.meta_path.insert(0, _Stamped())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "call" or report.outcome != "passed":
        error = None if call.excinfo is None else call.excinfo.value
        _seen.append({
            "test": item.nodeid,
            "when": report.when,
            "outcome": report.outcome,
            "errors": [] if error is None else [kind.__name__ for kind in type(error).__mro__],
            "says": "" if error is None else f"{type(error).__name__}: {' '.join(str(error).split())}"[:200],
            "slow": item.get_closest_marker("slow") is not None,
        })
    return report


def pytest_sessionfinish(session, exitstatus):
    package, compilation = sys.modules.get("pymc_rmhmc"), sys.modules.get(COMPILATION)
    stamp = json.dumps(compilation._stamp()) if hasattr(compilation, "_stamp") else ""
    found = {"package": getattr(package, "__file__", None), "tests": _seen, "stamp": stamp}
    Path(os.environ["MUTANTS_REPORT"]).write_text(json.dumps(found))
