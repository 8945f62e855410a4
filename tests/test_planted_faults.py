"""The table of planted faults fits the code, and a fault is told from a test that breaks for another reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.planting import Mutant, Nursery, Sources, TableError, Verdict, problems_of
from tests.mutants.table import MUTANTS

ROOT = Path(__file__).resolve().parents[1]
ROOMS = {
    "chains", "dynamics", "kernels", "linalg", "latent", "graph_chart", "metrics", "tuning", "approximation",
    "evidence", "model", "sampled", "steps", "diagnostics", "gathering.py",
}  # fmt: skip


def test_the_table_fits_the_code():
    """Each edit finds its place, once, and leaves Python; each test is there. `make mutants` runs them."""
    assert problems_of(MUTANTS, ROOT) == []
    assert len(MUTANTS) >= 60
    sources = Sources(ROOT / "pymc_rmhmc")
    assert {sources.planted(mutant)[0].partition("/")[0] for mutant in MUTANTS} == ROOMS
    assert all(mutant.harm for mutant in MUTANTS)


# A package of two functions, and tests of it.
TWICE = "import os\n\n\ndef twice(x):\n    return 2 * x\n\n\ndef refuse(x):\n    raise ValueError(x)\n"
TESTS = """
import pytest
import pymc_rmhmc.numbers_of

def test_twice():
    assert pymc_rmhmc.numbers_of.twice(3) == 6

def test_refusal():
    with pytest.raises(ValueError, match="7"):
        pymc_rmhmc.numbers_of.refuse(7)

def test_that_is_wrong():
    assert pymc_rmhmc.numbers_of.twice(3) == 7

@pytest.mark.slow
def test_slowly():
    assert pymc_rmhmc.numbers_of.twice(4) == 8

def test_nothing():
    pymc_rmhmc.numbers_of.twice(5)
"""
MARKED = '[tool.pytest.ini_options]\nmarkers = ["slow: of the other suite"]\n'


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("planted")
    for folder, files in {
        "pymc_rmhmc": {"__init__.py": "", "numbers_of.py": TWICE}, "tests": {"__init__.py": "", "test_it.py": TESTS},
    }.items():  # fmt: skip
        (made / folder).mkdir()
        for name, text in files.items():
            (made / folder / name).write_text(text)
    (made / "pyproject.toml").write_text(MARKED)
    return made


@pytest.fixture(scope="module")
def nursery(root):
    made = Nursery(root)
    yield made
    made.close()


def fault(old: str, new: str, test: str = "test_twice", where: str = "numbers_of", **options) -> Mutant:
    return Mutant("a fault", "it would do harm", where, old, new, f"test_it.py::{test}", **options)


@pytest.mark.parametrize(
    ("planted", "verdict", "says"),
    [
        (fault("2 * x", "3 * x"), Verdict.KILLED, "AssertionError: assert 9 == 6"),
        (fault("2 * x", "x + x"), Verdict.SURVIVED, "its test passes"),
        (fault("2 * x", "2 * y"), Verdict.BROKEN, "in call: NameError"),
        (fault("2 * x", "2 * y", fails_with="NameError"), Verdict.KILLED, "NameError"),
        (fault("import os", "import nothing_of_the_name"), Verdict.BROKEN, "pytest ended with"),
        (fault("raise ValueError(x)", "pass", "test_refusal"), Verdict.KILLED, "DID NOT RAISE"),
        (fault("raise ValueError(x)", "raise KeyError(x)", "test_refusal"), Verdict.BROKEN, "in call: KeyError"),
        (fault("2 * x", "3 * x", "test_nothing"), Verdict.SURVIVED, "its test passes"),
    ],
)
def test_a_fault_is_killed_by_what_its_test_asserts_alone(root, nursery, planted, verdict, says):
    found, said = nursery.judge(planted)
    assert (found, says in said) == (verdict, True), said
    assert (root / "pymc_rmhmc" / "numbers_of.py").read_text() == TWICE  # it was planted in a copy


@pytest.mark.parametrize(
    ("planted", "says"),
    [
        (fault("2 * x", "3 * x", "test_that_is_wrong"), "does not pass without an edit: AssertionError"),
        (fault("2 * x", "3 * x", "test_of_no_name"), "does not pass without an edit: pytest ended with 4"),
        (fault("2 * x", "3 * x", "test_slowly"), "is not in the quick suite"),
        (fault("5 * x", "3 * x"), "the old text stands 0 times in numbers_of, not once"),
        (fault("2 * x", "3 * x", where="thrice"), "nothing is named thrice"),
        (fault("2 * x", "3 * x", where="refuse"), "the old text stands 0 times in refuse, not once"),
        (fault("x", "y"), "the old text stands 4 times in numbers_of, not once"),
    ],
)
def test_a_row_that_does_not_fit_is_an_error(nursery, planted, says):
    with pytest.raises(TableError, match=says):
        nursery.judge(planted)


def test_tests_are_looked_at_in_one_process_and_each_has_its_own_verdict(root):
    names = ("test_twice", "test_that_is_wrong", "test_slowly")
    for more in ((), ("test_of_no_name",)):  # with one that pytest does not find it would run none
        passed: dict[str, str] = {}
        made = Nursery(root, passed=passed)
        made.pass_without([f"test_it.py::{name}" for name in (*names, *more)])
        made.close()
        said = [passed[f"test_it.py::{name}"] for name in names]
        assert said[0] == ""
        assert "AssertionError" in said[1]
        assert "is not in the quick suite" in said[2]


def test_compiled_code_is_made_of_what_compiles_and_of_what_that_imports(tmp_path):
    for name, text in {
        "loops": "from pymc_rmhmc.linalg.compiled.compilation import compiled\nfrom pymc_rmhmc.room import numbers\n",
        "room/numbers": "HALF = 0.5\n", "room/__init__": "", "others": "from pymc_rmhmc.loops import turn\n",
    }.items():  # fmt: skip
        file = tmp_path / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert Sources(tmp_path).compiled_in == {"loops.py", "room/numbers.py", "room/__init__.py"}


def test_problems_are_told_without_running_anything(root):
    rows = [
        fault("5 * x", "1"), fault("2 * x", "2 *"), fault("2 * x", "3 * x", "test_of_no_name"),
        fault("2 * x", "2 * gone"), fault("2 * x", "4 * x", "test_slowly"),
    ]  # fmt: skip
    said = problems_of(rows, root)
    assert len(said) == 6
    parts = ("name stands twice", "stands 0 times", "leaves no Python", "there is no test", "`gone`", "quick suite")
    for part in parts:
        assert any(part in each for each in said)
