"""Planting: a copy of the package with one edit, and the test that must fail with it and pass without."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path

__all__ = ["Mutant", "Nursery", "Place", "Sources", "TableError", "Verdict", "problems_of"]

PACKAGE = "pymc_rmhmc"
# A test that pytest stops for something else than what it asserts has found nothing.
RIGHT_REASONS = ("AssertionError", "Failed")  # the second is pytest's, where an error was not raised
SECONDS = 400.0
# What a file with compiled code imports.
COMPILING = re.compile(r"compiled\.compilation import|^import numba|^from numba|^from llvmlite", re.MULTILINE)


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
    where : str
        The function, class or constant that is edited, by as much of its dotted path as names it: `Cycle.step`, or
        `loops._turns` where another file has a function of that name. No folder is named, so that files may move.
    old, new : str
        The edit; the old text stands there exactly once.
    test : str
        A node of pytest in the quick suite, below `tests`.
    fails_with : str, optional
        The class of the error that the test must end with, where that is no failed assertion.
    """

    name: str
    harm: str
    where: str
    old: str
    new: str
    test: str
    fails_with: str = ""

    @property
    def reasons(self) -> tuple[str, ...]:
        """The classes of errors by which the test may find it."""
        return (self.fails_with,) if self.fails_with else RIGHT_REASONS


@dataclass(frozen=True)
class Place:
    """Lines of a file that define something; the first line is 0 and the last is excluded."""

    path: str
    file: str
    first: int
    last: int


class Sources:
    """The text of a package, and where everything in it is defined.

    Parameters
    ----------
    package : Path
        Its folder.
    """

    def __init__(self, package: Path) -> None:
        self._package = package

    @cached_property
    def texts(self) -> dict[str, str]:
        """Text by file, relative to the package."""
        return {str(path.relative_to(self._package)): path.read_text() for path in sorted(self._package.rglob("*.py"))}

    @cached_property
    def _places(self) -> list[Place]:
        found = []
        for file, text in self.texts.items():
            module = file.removesuffix(".py").replace("/", ".")
            found.append(Place(module, file, 0, text.count("\n") + 1))
            found += _defined(ast.parse(text), module, file)
        return found

    def planted(self, mutant: Mutant) -> tuple[str, str]:
        """Return the file that a fault changes and its text with the fault.

        Raises
        ------
        TableError
            If the old text is not found exactly once where the row says.
        """
        places = [place for place in self._places if f".{place.path}".endswith(f".{mutant.where}")]
        counts = [self._text_of(place).count(mutant.old) for place in places]
        if not places:
            raise TableError(f"{mutant.name}: nothing is named {mutant.where}.")
        if sum(counts) != 1:
            raise TableError(f"{mutant.name}: the old text stands {sum(counts)} times in {mutant.where}, not once.")
        place = places[counts.index(1)]
        lines = self.texts[place.file].splitlines(keepends=True)
        edited = self._text_of(place).replace(mutant.old, mutant.new)
        return place.file, "".join([*lines[: place.first], edited, *lines[place.last :]])

    @cached_property
    def compiled_in(self) -> set[str]:
        """The files whose text may be part of compiled code: those that compile, and what these import."""
        modules = {file.removesuffix(".py").removesuffix("/__init__").replace("/", "."): file for file in self.texts}
        compiling = {file for file, text in self.texts.items() if COMPILING.search(text)}
        names = {name for file in compiling for name in _imported(ast.parse(self.texts[file]))}
        # Of `from a.b import c` both a.b and a.b.c may be a file.
        return compiling | {modules[name] for name in names if name in modules}

    def _text_of(self, place: Place) -> str:
        return "".join(self.texts[place.file].splitlines(keepends=True)[place.first : place.last])


def _imported(tree: ast.AST) -> Iterator[str]:
    """The names in the package that a file imports, without the package's own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE}."):
            module = (node.module or "").removeprefix(f"{PACKAGE}.")
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _defined(tree: ast.AST, path: str, file: str) -> Iterator[Place]:
    """Functions, classes and constants under a node, but for what a function has of its own."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            yield Place(f"{path}.{node.name}", file, first - 1, node.end_lineno or first)
            yield from _defined(node, f"{path}.{node.name}", file)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and not isinstance(tree, ast.FunctionDef):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    yield Place(f"{path}.{target.id}", file, node.lineno - 1, node.end_lineno or node.lineno)


def problems_of(mutants: list[Mutant], root: Path) -> list[str]:
    """What is wrong with a table, in words: found without running anything."""
    found, names = [], [mutant.name for mutant in mutants]
    found += [f"{name}: the name stands twice." for name in sorted({n for n in names if names.count(n) > 1})]
    sources = Sources(root / PACKAGE)
    texts: list[tuple[str, str]] = []
    for mutant in mutants:
        try:
            file, planted = sources.planted(mutant)
            compile(planted, file, "exec")
            texts.append((mutant.name, planted))
        except TableError as error:
            found.append(str(error))
        except SyntaxError as error:
            found.append(f"{mutant.name}: the edit leaves no Python: {error}.")
        path, _, rest = mutant.test.partition("::")
        function = rest.partition("[")[0]
        text = (root / "tests" / path).read_text() if (root / "tests" / path).is_file() else ""
        before, is_there, _ = text.partition(f"def {function}(")
        if not is_there:
            found.append(f"{mutant.name}: there is no test {mutant.test}.")
        elif "\n@pytest.mark.slow" in "\n" + before.rpartition("\n\n")[2]:
            found.append(f"{mutant.name}: {mutant.test} is not in the quick suite.")
    return found + _undefined(texts)


def _undefined(texts: list[tuple[str, str]]) -> list[str]:
    """Return the names that texts with a fault, each with its name, use and do not define."""
    with tempfile.TemporaryDirectory() as folder:
        for i, (_, text) in enumerate(texts):
            (Path(folder) / f"{i}.py").write_text(text)
        command = ["ruff", "check", "--isolated", "--no-cache", "--select=F821", "--output-format=json", folder]
        told = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=False)
        found = [(int(Path(each["filename"]).stem), each["message"]) for each in json.loads(told.stdout)]
        return [f"{texts[i][0]}: {message}." for i, message in found]


class Nursery:
    """A folder of its own with a copy of the package and of the tests, where faults are planted one after another.

    Parameters
    ----------
    root : Path
        What is copied, with what Numba has kept there of the package's compiled code.
    python : str, optional
        The interpreter.
    passed : dict, optional
        What is known of tests without an edit, which nurseries may share: "" where one passes, or what is wrong.
    """

    def __init__(self, root: Path, python: str = sys.executable, passed: dict[str, str] | None = None) -> None:
        self._python = python
        self._passed = {} if passed is None else passed
        self._stamp = ""  # of the code without an edit, as its first test tells it
        self._folder = Path(tempfile.mkdtemp(prefix="mutants-")).resolve()
        self._copy = self._folder / "copy"
        unwanted = shutil.ignore_patterns("*.pyc", ".*")
        for name in (PACKAGE, "tests"):
            shutil.copytree(root / name, self._copy / name, ignore=unwanted)
        shutil.copy2(root / "pyproject.toml", self._copy)
        plugins = self._folder / "plugins"
        plugins.mkdir()
        shutil.copy2(Path(__file__).with_name("reported.py"), plugins / "mutants_reported.py")
        self._sources = Sources(self._copy / PACKAGE)

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
        file, text = self._sources.planted(mutant)
        if mutant.test not in self._passed:
            self.pass_without([mutant.test])
        if self._passed[mutant.test]:
            raise TableError(self._passed[mutant.test])
        with self._planted(file, text), self._code_for(file) as settings:
            status, found = self._run([mutant.test], settings, "-x")
        if status == 0:
            return Verdict.SURVIVED, "its test passes"
        failed = [test for test in found if test["outcome"] == "failed"]
        if status != 1 or not failed:
            return Verdict.BROKEN, {None: f"no end after {SECONDS:.0f} s"}.get(status, f"pytest ended with {status}")
        for test in failed:
            if test["when"] != "call" or not set(mutant.reasons) & set(test["errors"]):
                return Verdict.BROKEN, f"in {test['when']}: {test['says']}"
        return Verdict.KILLED, failed[0]["says"]

    def pass_without(self, tests: list[str]) -> None:
        """Look whether tests pass as the code is, in one process: to begin one takes longer than most tests do."""
        status, found = self._run(tests, {})
        if len(tests) > 1 and (status not in (0, 1) or not found):  # a test that is not there, or takes all down
            for test in tests:
                self.pass_without([test])
            return
        for test in tests:
            node = f"tests/{test}"
            own = [each for each in found if node in (each["test"], each["test"].partition("[")[0])]
            others = [each["says"] or each["outcome"] for each in own if each["outcome"] != "passed"]
            if others or not own:
                said = others[0] if others else f"pytest ended with {status}"
                self._passed[test] = f"{test} does not pass without an edit: {said}"
            elif any(each["slow"] for each in own):
                self._passed[test] = f"{test} is not in the quick suite"
            else:
                self._passed[test] = ""

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
    def _code_for(self, file: str) -> Iterator[dict[str, str]]:
        """Settings of where Numba keeps what it compiles, while a file is another.

        After an edit of what may be compiled in, nothing is kept yet. An edit of any other file leaves compiled code as
        it was, though its stamp says otherwise.
        """
        if file not in self._sources.compiled_in:
            yield {"MUTANTS_STAMP": self._stamp}
            return
        with tempfile.TemporaryDirectory(dir=self._folder) as fresh:
            yield {"NUMBA_CACHE_DIR": fresh}

    @staticmethod
    def _forget_bytecode(path: Path) -> None:
        for kept in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            kept.unlink()

    def _run(self, tests: list[str], settings: dict[str, str], *options: str) -> tuple[int | None, list[dict]]:
        """Run tests in the copy: pytest's exit status, None where it did not end, and what it reported."""
        report = self._folder / "report.json"
        report.unlink(missing_ok=True)
        command = [
            self._python, "-m", "pytest", "-q", "-p", "mutants_reported", "-p", "no:cacheprovider", *options,
            *(f"tests/{test}" for test in tests),
        ]  # fmt: skip
        paths = os.pathsep.join(map(str, (self._copy, self._folder / "plugins")))
        environment = os.environ | {
            "PYTHONPATH": paths, "MUTANTS_REPORT": str(report),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # no test needs them, and they take seconds
        }  # fmt: skip
        for name in ("NUMBA_CACHE_DIR", "MUTANTS_STAMP"):  # beside the files, where the copy has what was kept
            environment.pop(name, None)
        with subprocess.Popen(
            command, cwd=self._copy, env=environment | settings, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                status = process.wait(SECONDS * len(tests))
            except BaseException as error:
                os.killpg(process.pid, signal.SIGKILL)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                return None, []
        if not report.exists():
            return status, []
        found = json.loads(report.read_text())
        if found["package"] is not None and not Path(found["package"]).is_relative_to(self._copy):
            raise TableError(f"{tests[0]} has imported {found['package']} in place of the copy.")
        self._stamp = self._stamp or found["stamp"]
        return status, found["tests"]
