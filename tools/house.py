"""Count what the house's rules ask for, and say where: run `python tools/house.py`, or `--where Any` for the places.

`tests/test_architecture.py` holds the counts that may only fall.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "pymc_rmhmc"
SHORT_FILE = 40
# The rooms whose classes are forms, sites, metrics and densities: a table answers for them, not `isinstance`.
ROOMS_OF_FORMS = ("linalg", "latent", "graph_chart", "metrics")
# The files that are such tables.
REGISTRIES = {"sampled/choices.py"}
# Where what a user has given is checked, and the answer to another is an error.
CHECKS = {
    ("evidence/evidence_references.py", "GaussianSites"), ("evidence/log_evidence.py", "GaussianSites"),
    ("tuning/joint_adapter.py", "GaussianSites"), ("latent/target.py", "LatentDensity"),
    ("metrics/graph_metric.py", "MatrixDensity"),
}  # fmt: skip
# Forms of a prior: a file of this name in each of two folders, and a row in the `__init__` of each.
FORMS = ("coefficients", "dense", "kronecker")
FOLDERS_OF_FORMS = ("latent.forms", "model.forms")
# First words of docstrings that are verbs.
VERBS = frozenset(Path(__file__).with_name("verbs.txt").read_text().split())


@cache
def texts() -> dict[str, str]:
    """Return the text of each file of the package, by its path in it."""
    return {str(path.relative_to(PACKAGE)): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of each file."""
    return {file: ast.parse(text) for file, text in texts().items()}


def module(file: str) -> str:
    """Return the dotted name of a file in the package."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def lines_by_room() -> dict[str, tuple[int, int]]:
    """Count lines, and lines of code without docstrings, comments and blanks, for each room."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for file, text in texts().items():
        room = file.split("/")[0] if "/" in file else "."
        counts[room][0] += len(text.splitlines())
        counts[room][1] += len(_lines_of_code(file))
    return {room: (all_lines, code) for room, (all_lines, code) in sorted(counts.items())}


def _lines_of_code(file: str) -> set[int]:
    prose = set()
    for node in ast.walk(trees()[file]):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(texts()[file].splitlines(), 1)
    return {i for i, line in lines if line.strip() and not line.strip().startswith("#") and i not in prose}


def short_files() -> list[str]:
    """List files under forty lines, but for those that only gather a room."""
    return [
        file for file, text in texts().items() if text.count("\n") < SHORT_FILE and not file.endswith("__init__.py")
    ]


def files_by_folder() -> Counter[str]:
    """Count the files of each folder."""
    return Counter(str(Path(file).parent) for file in texts() if not file.endswith("__init__.py"))


def repeated_base_names() -> list[str]:
    """List files whose base name another file has too, but for those of one form."""
    by_name = defaultdict(list)
    for file in texts():
        by_name[Path(file).stem].append(file)
    twice = {name: files for name, files in by_name.items() if len(files) > 1 and name not in {"__init__", *FORMS}}
    return sorted(f"{name}: {', '.join(files)}" for name, files in twice.items())


def uses_of_any() -> list[str]:
    """List each `Any` in the code."""
    return [
        f"{file}:{node.lineno}"
        for file, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id == "Any"
    ]


def questions_of_class() -> list[str]:
    """List each `isinstance` of a form, site, metric or density outside the tables that answer for them."""
    ours = {
        node.name
        for file, tree in trees().items()
        if file.split("/")[0] in ROOMS_OF_FORMS
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    found = []
    for file, tree in trees().items():
        if file in REGISTRIES:
            continue
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") in {"isinstance", "issubclass"}:
                asked = {name.id for name in ast.walk(call.args[1]) if isinstance(name, ast.Name)} & ours
                found += [f"{file}:{call.lineno} {name}" for name in sorted(asked) if (file, name) not in CHECKS]
    return found


def objects_changed_from_outside() -> list[str]:
    """List each `del self.x`, each write into a `__dict__`, and each `cached_property` filled from outside in its file.

    Writes that copying and pickling need do not count.
    """
    found = []
    for file, tree in trees().items():
        restoring = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "__setstate__"]
        excused = {id(node) for function in restoring for node in ast.walk(function)}
        functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
        cached = {f.name for f in functions if any("cached_property" in ast.unparse(d) for d in f.decorator_list)}
        for node in ast.walk(tree):
            if id(node) in excused:
                continue
            found += [f"{file}:{target.lineno} {ast.unparse(target)}" for target in _changed(node, cached)]
    return found


def _changed(node: ast.AST, cached: set[str]) -> Iterator[ast.expr]:
    if isinstance(node, ast.Delete):
        yield from (each for each in node.targets if isinstance(each, ast.Attribute))
    elif isinstance(node, ast.Assign):
        yield from (each for each in node.targets if isinstance(each, ast.Subscript) and _is_dict(each.value))
        of_others = (e for e in node.targets if isinstance(e, ast.Attribute) and ast.unparse(e.value) != "self")
        yield from (each for each in of_others if each.attr in cached)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_dict(node.func.value):
        yield from [node.func] * (node.func.attr in {"update", "pop", "setdefault", "clear"})


def _is_dict(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "__dict__"


def files_of_forms() -> dict[str, list[str]]:
    """List the files that know of each form of a prior: its own, and those that import them."""
    found = {}
    for form in FORMS:
        own = {f"{folder}.{form}" for folder in FOLDERS_OF_FORMS}
        found[form] = sorted(file for file in texts() if module(file) in own or own & imports(file))
    return found


def imports(file: str) -> set[str]:
    """Return what a file imports of the package, by dotted names in it."""
    prefix = f"{PACKAGE.name}."
    found: set[str] = set()
    for node in ast.walk(trees()[file]):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(prefix):
            at = (node.module or "").removeprefix(prefix)
            found |= {at, *(f"{at}.{each.name}" for each in node.names)}
    return found


def docstrings_without_a_verb() -> list[str]:
    """List docstrings of functions whose first line does not begin with a verb; a property names what it is."""
    return [place for place, begins in _docstrings() if not begins]


def _docstrings() -> Iterator[tuple[str, bool]]:
    for file, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and not any("property" in ast.unparse(d) for d in node.decorator_list):
                text = ast.get_docstring(node)
                if text:
                    first = text.split()[0].strip(".,;:`").lower()
                    yield f"{file}:{node.lineno} {text.splitlines()[0]}", first in VERBS


LISTS = {
    "Any": uses_of_any,
    "isinstance": questions_of_class,
    "changed": objects_changed_from_outside,
    "names": repeated_base_names,
    "short": short_files,
    "words": docstrings_without_a_verb,
}


def main() -> None:
    """Print the counts, or the places of one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--where", choices=sorted(LISTS), help="print the places of this count")
    asked = parser.parse_args().where
    if asked:
        print(*LISTS[asked](), sep="\n")
        return
    rooms = lines_by_room()
    for room, (lines, code) in rooms.items():
        print(f"{room:<16}{lines:>8}{code:>8}")
    print(f"{'lines, of code':<16}{sum(a for a, _ in rooms.values()):>8}{sum(c for _, c in rooms.values()):>8}")
    print(f"{len(texts())} files; the fullest folders: {files_by_folder().most_common(4)}")
    for form, files in files_of_forms().items():
        print(f"form {form}: {len(files)} files")
    total = sum(1 for _ in _docstrings())
    for name, listed in LISTS.items():
        print(f"{name}: {len(listed())}" + (f" of {total}" if name == "words" else ""))


if __name__ == "__main__":
    main()
