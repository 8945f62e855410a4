"""Both suites as other processors would run them: ``python -m tests.processors``.

Which loops OpenBLAS takes, and which instructions Numba uses, depends on the processor, and with them the last digits
of every sum. A chain is chaotic: what differs in a last digit is another chain after some dozens of draws. So no test's
verdict may hang on which chain it is, and this shows which tests' verdicts do. Under "nudged" nothing is another
processor's, but every momentum differs in its last digits: see `tests.nudged`.

Each setting has caches of its own, for compiled code is of one processor. Nothing stops at a failure.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

__all__ = ["SETTINGS", "main"]

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = {
    "Haswell": {"OPENBLAS_CORETYPE": "Haswell"},
    "SkylakeX": {"OPENBLAS_CORETYPE": "SkylakeX"},
    "Zen": {"OPENBLAS_CORETYPE": "Zen"},
    "Sandybridge": {"OPENBLAS_CORETYPE": "Sandybridge"},
    "generic": {"NUMBA_CPU_NAME": "generic"},
    "nudged": {"NUDGE": "1e-13", "PYTEST_ADDOPTS": "-p tests.nudged"},
}
# What a setting takes of the processor on which it runs.
NEEDS = {"Haswell": "avx2", "SkylakeX": "avx512f", "Zen": "avx2", "Sandybridge": "avx"}
# OpenBLAS 0.3.34 overruns its stack where Haswell's or Zen's loops are asked for on a Zen 4 (its issues 6021 and 6026):
# a product of NumPy's own dies then, and no test could be run.
PRODUCT = "import numpy as np; a = np.ones((400, 28)); a.T @ np.asfortranarray(a)"
SUITES = {"quick": "not slow", "slow": "slow"}
# PyTensor and PyMC have their BLAS from NumPy and SciPy.
WHICH = (
    "import numpy, scipy.linalg, threadpoolctl, llvmlite.binding, numba; "
    "print(*{each['architecture'] for each in threadpoolctl.threadpool_info() if 'architecture' in each}, "
    "'for BLAS,', numba.config.CPU_NAME or llvmlite.binding.get_host_cpu_name(), 'for Numba')"
)
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def main() -> int:
    """Run what the command line asks for; the exit status is 1 if a test failed under some setting."""
    asked = _arguments()
    began = time.monotonic()
    failures: dict[str, set[str] | None] = {}
    print(
        f"{len(asked.suites)} suites under {', '.join(asked.settings)}: each setting compiles everything anew, and "
        "takes about twice as long as `make test test-slow`. Nothing stops at a failure.",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="processors-") as folder:
        for setting in asked.settings:
            failures[setting] = _under(setting, asked, Path(asked.caches or folder) / setting)
    print(f"\nTook {(time.monotonic() - began) / 60.0:.0f} minutes in all.")
    run = {setting: tests for setting, tests in failures.items() if tests is not None}
    for setting, tests in failures.items():
        said = "left out" if tests is None else f"{len(tests)} failed" if tests else "all passed"
        print(f"{setting}: {said}")
    for test in sorted(set().union(*run.values())):
        print(f"  {test} fails under {', '.join(setting for setting, tests in run.items() if test in tests)}")
    return int(any(run.values()) or not run)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.processors", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=SETTINGS, action="append", dest="settings", help="this setting alone")
    parser.add_argument("--suite", choices=SUITES, action="append", dest="suites", help="this suite alone")
    parser.add_argument("--workers", default="2", help="tests at a time; 2 by default")
    parser.add_argument("--caches", metavar="FOLDER", help="where compiled code is kept; by default nowhere")
    parser.add_argument("pytest", nargs="*", help="what else pytest is given, after --: files, -k")
    asked = parser.parse_args()
    asked.settings, asked.suites = asked.settings or list(SETTINGS), asked.suites or list(SUITES)
    return asked


def _under(setting: str, asked: argparse.Namespace, caches: Path) -> set[str] | None:
    """The tests that fail under a setting; None where it cannot be had on this processor."""
    needed = NEEDS.get(setting, "")
    if needed and not _has(needed):
        print(f"\n{setting}: left out, this processor has no {needed}", flush=True)
        return None
    if subprocess.run([sys.executable, "-c", PRODUCT], env=os.environ | SETTINGS[setting], check=False).returncode:
        print(f"\n{setting}: left out, NumPy's own matrix product dies of it on this processor", flush=True)
        return None
    flags = [os.environ.get("PYTENSOR_FLAGS", ""), f"base_compiledir={caches / 'pytensor'}"]
    environment = os.environ | SETTINGS[setting]
    environment |= {"NUMBA_CACHE_DIR": str(caches / "numba"), "PYTENSOR_FLAGS": ",".join(filter(None, flags))}
    said = subprocess.run([sys.executable, "-c", WHICH], env=environment, check=True, capture_output=True, text=True)
    print(f"\n{setting}: {said.stdout.strip()}", flush=True)
    failed: set[str] = set()
    for suite in asked.suites:
        began = time.monotonic()
        command = [
            sys.executable, "-m", "pytest", "-q", "-n", asked.workers, "--dist", "worksteal", "--tb", "short",
            "-m", SUITES[suite], *asked.pytest,
        ]  # fmt: skip
        with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            lines = []
            for line in running.stdout:
                lines.append(line)
                print(line, end="", flush=True)
        found = set(FAILED.findall("".join(lines)))
        # 5: there was no such test.
        failed |= found if found or running.returncode in {0, 5} else {f"pytest ended with {running.returncode}"}
        print(f"{setting}, {suite}: {(time.monotonic() - began) / 60.0:.1f} minutes", flush=True)
    return failed


def _has(flag: str) -> bool:
    """Whether the processor has an instruction set, where that can be told."""
    told = Path("/proc/cpuinfo")
    return not told.exists() or f" {flag} " in told.read_text().replace("\n", " ")


if __name__ == "__main__":
    sys.exit(main())
