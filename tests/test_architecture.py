"""The house's plan, read from the code: who imports whom, how long things are, what is public."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import pymc_rmhmc
from pymc_rmhmc.linalg.compiled.compilation import COMPILED_ROOMS
from tools import house

ROOT = Path(pymc_rmhmc.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
NUMERIC = {"numpy", "scipy", "typing", "__future__"}
OURS = "pymc_rmhmc."

# What each room may import beside the standard library, itself and the interfaces.
MAY_IMPORT = {
    "errors": {"numpy"},
    "stopwatch": set(),
    "usage": {"numpy", "errors"},
    "gathering": {"errors"},
    "interfaces": {"numpy"},
    "linalg": {"numpy", "scipy", "numba", "llvmlite", "errors", "stopwatch"},
    "dynamics": {"numpy", "scipy", "errors", "usage", "linalg"},
    "latent": {"numpy", "scipy", "numba", "errors", "usage", "linalg", "dynamics.hamiltonian"},
    "graph_chart": {"numpy", "scipy", "errors", "linalg", "dynamics", "latent.charts"},
    "metrics": {
        "numpy", "scipy", "numba", "errors", "usage", "linalg", "dynamics.hamiltonian", "latent",
    },
    "kernels": {"numpy", "scipy", "errors", "usage", "linalg", "dynamics", "latent"},
    "approximation": {"numpy", "scipy", "errors", "linalg", "dynamics.hamiltonian", "latent"},
    "tuning": {"numpy", "errors", "kernels", "latent", "graph_chart", "approximation"},
    "diagnostics": {"numpy", "scipy", "pandas", "arviz", "xarray", "matplotlib", "errors", "usage"},
    "chains": {"numpy", "arviz", "errors", "latent", "kernels", "tuning", "diagnostics"},
    "model": {"numpy", "scipy", "arviz", "pymc", "pytensor", "rich", "errors", "stopwatch", "usage"},
    "sampled": {
        "numpy", "scipy", "pymc", "pytensor", "errors", "usage", "linalg", "dynamics", "latent",
        "graph_chart", "metrics", "kernels", "approximation", "tuning", "chains", "model",
    },
    "steps": {
        "numpy", "arviz", "pymc", "pytensor", "rich", "xarray", "threadpoolctl", "cloudpickle", "errors", "stopwatch",
        "usage", "gathering", "dynamics", "latent", "metrics", "kernels", "chains", "model",
        "diagnostics", "sampled",
    },
    "evidence": {
        "numpy", "scipy", "arviz", "arviz_stats", "pymc", "pytensor", "rich", "xarray", "matplotlib", "errors",
        "stopwatch", "usage", "gathering", "dynamics", "latent", "graph_chart", "metrics", "kernels",
        "tuning", "chains", "approximation", "model", "diagnostics", "sampled", "steps",
    },
}  # fmt: skip
MAX_FILE, MAX_FUNCTION = 600, 60
# Longer for a reason that is written here.
LONG_FUNCTIONS = {
    ("steps/rmhmc.py", "__init__"): "one argument a line, as the public surface has them",
    ("model/likelihoods/registry.py", "register_likelihood"): "its docstring holds a whole example",
    ("evidence/approximations.py", "ep"): "its docstring, with equations and an example",
    ("evidence/log_evidence.py", "log_evidence"): "its docstring explains every option, with an example",
    ("steps/executors.py", "sample_chains"): "its docstring, with an example",
    ("evidence/parallel_tempering.py", "parallel_tempering"): "its docstring explains its results, with an example",
    ("diagnostics/compare.py", "compare"): "its docstring explains every column",
    ("diagnostics/plots.py", "plot_compare"): "its docstring, with an example",
}


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module)
    return names


def third_party_and_ours(path: Path) -> set[str]:
    import sys

    found = set()
    for name in imports(path):
        top = name.split(".")[0]
        if name.startswith(OURS):
            found.add(name.removeprefix(OURS))
        elif top not in sys.stdlib_module_names:
            found.add(top)
    return found


ROOMS = [path for path in MODULES if path != ROOT / "__init__.py"]


def test_a_room_imports_what_its_row_allows():
    offenders = []
    for path in ROOMS:
        allowed = MAY_IMPORT[room(path)] | {room(path), "interfaces"}
        offenders += [
            f"{path.relative_to(ROOT)} imports {name}"
            for name in third_party_and_ours(path)
            if not any(name == a or name.startswith(f"{a}.") for a in allowed)
        ]
    assert offenders == []


def test_there_are_no_cycles_between_modules():
    graph = {}
    for path in MODULES:
        name = "pymc_rmhmc." + ".".join(path.relative_to(ROOT).with_suffix("").parts)
        graph[name.removesuffix(".__init__")] = {i for i in imports(path) if i.startswith("pymc_rmhmc")}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, f"cycle: {' -> '.join((*trail, name))}"
        if name in done:
            return
        for other in graph.get(name, ()):
            # A package's __init__ gathers its modules; they import one another by name, not through it.
            if other != name and not name.startswith(f"{other}."):
                visit(other, (*trail, name))
        done.add(name)

    for name in graph:
        visit(name, ())


def test_the_public_names_are_those_of_the_design():
    assert set(pymc_rmhmc.__all__) == {
        "RMHMC", "MALA", "MMALA", "EllipticalSlice", "RunningSummary",
        "HessianMetric", "FisherMetric", "FlatMetric", "SoftAbsMetric", "GraphMetric", "DenseField",
        "BlockMetric", "WhitenedFisherMetric",
        "MetricFieldBase", "GeneralizedLeapfrog", "ImplicitMidpoint", "ExplicitTao", "AndersonSolver", "SiteFit",
        "SiteRegression", "GaussianSites", "laplace", "ep", "GaussianApproximation",
        "register_likelihood", "registered_likelihoods", "LikelihoodTerms", "Curvature", "Reading", "register_family",
        "registered_families", "register_residuals",
        "undo_log", "undo_logit", "undo_probit", "undo_cloglog",
        "parallel_tempering",
        "describe", "ModelDescription", "BlockDescription", "MetricDescription", "compare", "plot_compare",
        "log_evidence", "Annealing", "plot_evidence", "plot_rungs",
        "summarize_failures", "FailureSummary", "sample_chains", "errors", "__version__", *pymc_rmhmc.errors.__all__,
    }  # fmt: skip
    for name in pymc_rmhmc.__all__:
        assert getattr(pymc_rmhmc, name).__doc__


def test_files_and_functions_are_short():
    offenders = [file for file, text in house.texts().items() if len(text.splitlines()) > MAX_FILE]
    for file, tree in house.trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and (file, node.name) not in LONG_FUNCTIONS:
                length = node.end_lineno - node.lineno + 1
                offenders += [f"{file}: {node.name} has {length} lines"] * (length > MAX_FUNCTION)
    assert offenders == []


# What may be asked for by its class in one file alone.
CLASSES_OF_ONE_FILE = {
    "sampled/choices.py": {
        "FlatMetric", "CurvatureMetric", "HessianMetric", "FisherMetric", "SoftAbsCurvatureMetric", "RotationSplitting",
        "GeneralizedLeapfrog", "ImplicitMidpoint", "ExplicitTao", "SoftAbsMetric", "GraphMetric",
        "LatentField", "FlatField", "DenseField", "BlockMetric", "BlockField", "WhitenedFisherMetric", "WhitenedField",
        "FixedSteps", "JitteredPath", "UTurn",
    },
}  # fmt: skip


def test_nobody_asks_which_metric_integrator_or_trajectory_it_has():
    """The tables do, and answer for all."""
    offenders = []
    for file, tree in house.trees().items():
        others = set.union(*CLASSES_OF_ONE_FILE.values()) - CLASSES_OF_ONE_FILE.get(file, set())
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") in {"isinstance", "issubclass"}:
                asked = {name.id for name in ast.walk(call.args[1]) if isinstance(name, ast.Name)}
                offenders += [f"{file}:{call.lineno} asks for {name}" for name in asked & others]
    assert offenders == []


def test_functions_are_compiled_in_the_rooms_that_say_so():
    """What Numba has kept is out of date after an edit in any of them."""
    compiling = "linalg.compiled.compilation"
    rooms = {file.split("/")[0] for file in house.texts() if compiling in house.imports(file)}
    assert rooms <= set(COMPILED_ROOMS), rooms


# Counts of `tools/house.py` that may only fall. Who lowers one writes the new number here.
AT_MOST = {"Any": 227, "isinstance": 0, "changed": 0, "names": 0, "short": 0, "words": 147}
# Two files of its name, and a row in two tables.
FILES_OF_A_FORM = {"coefficients": 4, "dense": 4, "kronecker": 4}


@pytest.mark.parametrize("counted", AT_MOST)
def test_what_is_in_the_way_grows_no_more(counted):
    places = house.LISTS[counted]()
    assert len(places) <= AT_MOST[counted], "\n".join(places)


def test_a_form_of_a_prior_touches_no_more_files():
    """Two files of its name, and a row on either side."""
    files = house.files_of_forms()
    assert {form: len(found) for form, found in files.items()} == FILES_OF_A_FORM, files


def test_every_module_says_what_it_is():
    for path in MODULES:
        assert ast.get_docstring(ast.parse(path.read_text())), path
