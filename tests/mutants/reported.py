"""A plugin of pytest that writes what became of each test to the file that ``MUTANTS_REPORT`` names."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

_seen: list[dict] = []


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
    package = sys.modules.get("pymc_rmhmc")
    found = {"package": getattr(package, "__file__", None), "tests": _seen}
    Path(os.environ["MUTANTS_REPORT"]).write_text(json.dumps(found))
