"""What a user gets: one version, types, public names from the top, a page for the package index, saved results."""

import ast
import importlib.util
import inspect
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import pymc_rmhmc

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("docs/*/*.md"), *ROOT.glob("examples/*.py")])


def loaded(name):
    """A script of the folder of tools, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tool():
    """`tools/check_wheel.py`, which `make wheel` runs."""
    return loaded("check_wheel")


def test_the_version_stands_in_one_place():
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|rc\d+)?", pymc_rmhmc.__version__)
    assert "version" not in PROJECT["project"]
    assert "version" in PROJECT["project"]["dynamic"]
    source = ROOT / PROJECT["tool"]["hatch"]["version"]["path"]
    assert f'__version__ = "{pymc_rmhmc.__version__}"' in source.read_text()


def test_type_checkers_are_told_that_the_package_is_typed():
    assert Path(pymc_rmhmc.__file__).with_name("py.typed").exists()


def test_urls_are_public_addresses():
    assert PROJECT["project"]["urls"]
    for label, url in PROJECT["project"]["urls"].items():
        assert url.startswith("https://")
        assert len(label) <= 32  # the most that a package index takes


# A dotted name below the package, in an import or in a sentence.
DOTTED = re.compile(r"(?:from|import)\s+(pymc_rmhmc\.\w[\w.]*)|`~?(pymc_rmhmc\.\w[\w.]*)")


def inner_paths(text):
    """The names in a text that a user would have to import from within the package."""
    found = {first or second for first, second in DOTTED.findall(text)}
    return sorted(name for name in found if name.split(".")[1] not in pymc_rmhmc.__all__)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_page_or_example_imports_from_an_inner_path(path):
    assert inner_paths(path.read_text()) == []


@pytest.mark.parametrize("name", pymc_rmhmc.__all__)
def test_no_public_docstring_imports_from_an_inner_path(name):
    thing = getattr(pymc_rmhmc, name)
    members = vars(thing).items() if inspect.isclass(thing) else ()
    public = [thing, *(member for key, member in members if not key.startswith("_"))]
    for each in public:
        assert inner_paths(inspect.getdoc(each) or "") == []


def test_what_a_page_imports_is_public():
    """`from pymc_rmhmc import X` names only what `__all__` has."""
    for path in PAGES:
        for names in re.findall(r"^\s*from pymc_rmhmc import ([^\n(]+)", path.read_text(), flags=re.MULTILINE):
            assert {name.split(" as ")[0].strip() for name in names.split(",")} <= set(pymc_rmhmc.__all__), path


def test_the_api_page_has_every_public_name():
    text = (ROOT / "docs" / "api.md").read_text()
    listed = re.findall(r"^\.\. auto\w+:: (\w+)$", text, flags=re.MULTILINE)
    assert sorted(listed) == sorted(set(listed))
    mentioned = set(re.findall(r"`pymc_rmhmc\.(\w+)`", text))
    assert set(listed) | mentioned == set(pymc_rmhmc.__all__)
    assert set(re.findall(r"currentmodule:: (\S+)", text)) == {"pymc_rmhmc"}


def indexed_page():
    """README as the build gives it to a package index."""
    hook = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    text = "".join((ROOT / fragment["path"]).read_text() for fragment in hook["fragments"])
    for each in hook["substitutions"]:
        text = re.sub(each["pattern"], each["replacement"], text)
    return text


def test_the_page_of_a_package_index_has_no_links_that_lead_nowhere(tool):
    assert tool.relative_targets((ROOT / "README.md").read_text()), "nothing is tested"
    assert tool.relative_targets(indexed_page()) == []
    assert tool.readme_example(indexed_page()) == tool.readme_example((ROOT / "README.md").read_text())


@pytest.mark.parametrize(
    ("markdown", "targets"),
    [
        ("see [the page](docs/a.md) and [home](https://www.pymc.io)", ["docs/a.md"]),
        ("![a figure](docs/a.png)", ["docs/a.png"]),
        ("[page]: docs/a.md", ["docs/a.md"]),
        ('<img src="docs/a.png">', ["docs/a.png"]),
        ("```python\nrun[0](x)\n```", []),
    ],
)
def test_links_that_lead_nowhere_are_found(tool, markdown, targets):
    assert tool.relative_targets(markdown) == targets


def test_what_the_wheel_runs_is_what_the_pages_show(tool):
    for code in (
        tool.readme_example((ROOT / "README.md").read_text()),
        tool.page_code((ROOT / "docs" / "quickstart.md").read_text()),
    ):
        calls = {ast.unparse(node.func) for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)}
        assert {"pm.sample", "RMHMC"} <= calls


# As in an environment without the `save` extra.
WITHOUT_NETCDF = """
import sys
for name in ("h5netcdf", "h5py", "netCDF4"):
    sys.modules[name] = None
import numpy as np
import xarray as xr
import pymc_rmhmc
idata = xr.DataTree.from_dict({"posterior": xr.Dataset({"f": (("chain", "draw"), np.zeros((1, 3)))})})
idata.to_netcdf(sys.argv[1])
"""


def test_saving_without_its_extra_says_what_is_missing(tmp_path):
    """The package needs no NetCDF library; xarray's own error names those that it looked for."""
    target = tmp_path / "run.nc"
    command = [sys.executable, "-c", WITHOUT_NETCDF, str(target)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1
    assert "ValueError: cannot write NetCDF files" in done.stderr
    assert "h5netcdf" in done.stderr
    assert not target.exists()
    quoted = re.search(r"`ValueError: (cannot write [^\n]*are installed)`", (ROOT / "docs/installation.md").read_text())
    assert quoted[1] in done.stderr
    assert any(each.startswith("h5netcdf") for each in PROJECT["project"]["optional-dependencies"]["save"])


def test_pages_of_all_versions_stand_beside_each_other(tmp_path):
    """As the release workflow publishes them: the newest release is where a site leads, whatever is published last."""
    tool, pages, site = loaded("publish_docs"), tmp_path / "html", tmp_path / "site"
    pages.mkdir()
    for version in ("0.9.0", "0.10.0", "0.11.0rc1", "0.9.1", "0.9.0"):
        (pages / "index.html").write_text(f"pages of {version}")
        tool.publish(pages, site, version, "https://docs.example/")
    listed = json.loads((site / "versions.json").read_text())
    assert [each["version"] for each in listed] == ["0.11.0rc1", "0.10.0", "0.9.1", "0.9.0"]
    assert [each["version"] for each in listed if each["preferred"]] == ["0.10.0"]
    assert [each["url"] for each in listed] == [f"https://docs.example/{each['version']}/" for each in listed]
    assert all((site / each["version"] / "index.html").read_text() == f"pages of {each['version']}" for each in listed)
    assert 'url=0.10.0/"' in (site / "index.html").read_text()
    assert (site / ".nojekyll").exists()
