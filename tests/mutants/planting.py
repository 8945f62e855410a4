"""Planting: a copy of the package with one edit, and the test that must fail with it and pass without."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

__all__ = ["Mutant", "Nursery", "TableError", "Verdict", "problems_of"]

PACKAGE = "pymc_rmhmc"
# Numba compiles the files of this room into one another: after an edit of any of them nothing that was kept may serve.
COMPILED_ROOM = f"{PACKAGE}/geometry/"
# A test that pytest stops for something else than what it asserts has found nothing.
RIGHT_REASONS = ("AssertionError", "Failed")  # the second is pytest's, where an error was not raised
SECONDS = 400.0


class TableError(Exception):
    """The table does not fit the code, or a test does not fit the table."""


class Verdict(Enum):
    """What became of a planted fault."""

    KILLED = "killed"
    SURVIVED = "SURVIVED"
    BROKEN = "BROKEN"  # the test ended for another reason than what it asserts


@dataclass(frozen=True)
class Mutant:
    """A fault, and the test that must find it.

    Attributes
    ----------
    name : str
        Unique, for `--only`.
    harm : str
        What the fault would do to a user.
    file : str
        In the package.
    old, new : str
        The edit; the old text stands in the file exactly once.
    test : str
        A node of pytest in the quick suite, below `tests`.
    fails_with : str, optional
        The class of the error that the test must end with, where that is no failed assertion.
    """

    name: str
    harm: str
    file: str
    old: str
    new: str
    test: str
    fails_with: str = ""

    @property
    def reasons(self) -> tuple[str, ...]:
        """The classes of errors by which the test may find it."""
        return (self.fails_with,) if self.fails_with else RIGHT_REASONS

    def planted_in(self, text: str) -> str:
        """The file's text with the edit."""
        count = text.count(self.old)
        if count != 1:
            raise TableError(f"{self.name}: the old text stands {count} times in {self.file}, not once.")
        return text.replace(self.old, self.new)


def problems_of(mutants: list[Mutant], root: Path) -> list[str]:
    """What is wrong with a table, in words: found without running anything."""
    found, names = [], [mutant.name for mutant in mutants]
    found += [f"{name}: the name stands twice." for name in sorted({n for n in names if names.count(n) > 1})]
    for mutant in mutants:
        try:
            planted = mutant.planted_in((root / PACKAGE / mutant.file).read_text())
            compile(planted, mutant.file, "exec")
        except (TableError, OSError) as error:
            found.append(str(error))
        except SyntaxError as error:
            found.append(f"{mutant.name}: the edit leaves no Python: {error}.")
        path, _, rest = mutant.test.partition("::")
        function = rest.partition("[")[0]
        if not (root / "tests" / path).is_file() or f"def {function}(" not in (root / "tests" / path).read_text():
            found.append(f"{mutant.name}: there is no test {mutant.test}.")
    return found


class Nursery:
    """A folder of its own with a copy of the package and of the tests, where faults are planted one after another.

    Parameters
    ----------
    root : Path
        What is copied.
    python : str, optional
        The interpreter.
    """

    def __init__(self, root: Path, python: str = sys.executable) -> None:
        self._python = python
        self._folder = Path(tempfile.mkdtemp(prefix="mutants-")).resolve()
        self._copy = self._folder / "copy"
        unwanted = shutil.ignore_patterns("__pycache__", ".*")
        for name in (PACKAGE, "tests"):
            shutil.copytree(root / name, self._copy / name, ignore=unwanted)
        shutil.copy2(root / "pyproject.toml", self._copy)
        plugins = self._folder / "plugins"
        plugins.mkdir()
        shutil.copy2(Path(__file__).with_name("reported.py"), plugins / "mutants_reported.py")
        self._passed: dict[str, str] = {}

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def judge(self, mutant: Mutant) -> tuple[Verdict, str]:
        """Plant a fault: whether its test finds it, and what the test says.

        Raises
        ------
        TableError
            If the edit does not fit the file, or the test does not pass without it.
        """
        text = mutant.planted_in((self._copy / PACKAGE / mutant.file).read_text())
        self._pass_without(mutant.test)
        with self._planted(mutant.file, text), self._cache_for(mutant.file) as cache:
            status, found = self._run(mutant.test, cache)
        if status == 0:
            return Verdict.SURVIVED, "its test passes"
        failed = [test for test in found if test["outcome"] == "failed"]
        if status != 1 or not failed:
            return Verdict.BROKEN, {None: f"no end after {SECONDS:.0f} s"}.get(status, f"pytest ended with {status}")
        for test in failed:
            if test["when"] != "call" or not set(mutant.reasons) & set(test["errors"]):
                return Verdict.BROKEN, f"in {test['when']}: {test['says']}"
        return Verdict.KILLED, failed[0]["says"]

    def _pass_without(self, test: str) -> None:
        """Look once whether a test passes as the code is."""
        if test not in self._passed:
            status, found = self._run(test, self._folder / "cache")
            others = [each["says"] or each["outcome"] for each in found if each["outcome"] != "passed"]
            if status != 0 or others or not found:
                said = others[0] if others else f"pytest ended with {status}"
                self._passed[test] = f"{test} does not pass without an edit: {said}"
            elif any(each["slow"] for each in found):
                self._passed[test] = f"{test} is not in the quick suite"
            else:
                self._passed[test] = ""
        if self._passed[test]:
            raise TableError(self._passed[test])

    @contextlib.contextmanager
    def _planted(self, file: str, text: str) -> Iterator[None]:
        """The copy with another text of a file."""
        path = self._copy / PACKAGE / file
        kept = path.with_suffix(".kept")
        shutil.copy2(path, kept)
        path.write_text(text)
        self._forget_bytecode(path)
        try:
            yield
        finally:
            kept.replace(path)  # with its time, by which Numba knows it
            self._forget_bytecode(path)

    @contextlib.contextmanager
    def _cache_for(self, file: str) -> Iterator[Path]:
        """Where Numba keeps what it compiles: of an edited file, and of all that it is compiled into, nothing yet."""
        if not f"{PACKAGE}/{file}".startswith(COMPILED_ROOM):
            yield self._folder / "cache"
            return
        with tempfile.TemporaryDirectory(dir=self._folder) as fresh:
            yield Path(fresh)

    @staticmethod
    def _forget_bytecode(path: Path) -> None:
        for kept in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            kept.unlink()

    def _run(self, test: str, cache: Path) -> tuple[int | None, list[dict]]:
        """Run a test in the copy: pytest's exit status, None where it did not end, and what it reported."""
        report = self._folder / "report.json"
        report.unlink(missing_ok=True)
        command = [
            self._python, "-m", "pytest", "-q", "-x", "-p", "mutants_reported", "-p", "no:cacheprovider",
            f"tests/{test}",
        ]  # fmt: skip
        paths = os.pathsep.join(map(str, (self._copy, self._folder / "plugins")))
        environment = os.environ | {
            "PYTHONPATH": paths, "NUMBA_CACHE_DIR": str(cache), "MUTANTS_REPORT": str(report),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # no test needs them, and they take seconds
        }  # fmt: skip
        with subprocess.Popen(
            command, cwd=self._copy, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                status = process.wait(SECONDS)
            except BaseException as error:
                os.killpg(process.pid, signal.SIGKILL)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                return None, []
        if not report.exists():
            return status, []
        found = json.loads(report.read_text())
        if found["package"] is not None and not Path(found["package"]).is_relative_to(self._copy):
            raise TableError(f"{test} has imported {found['package']} in place of the copy.")
        return status, found["tests"]
