"""The documentation's configuration, on a small site: what a reader sees, and what a failing cell says."""

import os
import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

NOTEBOOK = """\
---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

"""

INDEX = """\
# Home

A formula, $x^2$.

```{toctree}
runs
fails
```

```{eval-rst}
.. autoclass:: pymc_rmhmc.RMHMC
```
"""

# Each run of this page adds a line to a file.
RUNS = NOTEBOOK + """\
# A page that runs

```{{code-cell}}
with open({log!r}, "a") as log:
    print("ran", file=log)
```
"""

FAILS = NOTEBOOK + """\
# A page that fails

```{code-cell}
numerator = 1
```

```{code-cell}
ratio = numerator / 0
```
"""


class Site:
    """Three pages, built with the project's own configuration."""

    def __init__(self, folder: Path):
        self.pages, self.html, self.log = folder / "pages", folder / "html", folder / "log"
        self.pages.mkdir()
        for name, text in {"index": INDEX, "runs": RUNS.format(log=str(self.log)), "fails": FAILS}.items():
            (self.pages / f"{name}.md").write_text(text)
        self.cache = folder / "cache"

    def build(self):
        command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-c", str(ROOT / "docs"),
                   "-D", f"nb_execution_cache_path={self.cache}", str(self.pages), str(self.html)]  # fmt: skip
        how = {"capture_output": True, "text": True, "cwd": ROOT, "env": {**os.environ, "DOCS_EXECUTION": "cache"}}
        return subprocess.run(command, check=False, **how)

    def page(self, name):
        return (self.html / f"{name}.html").read_text()

    @property
    def n_runs(self):
        return len(self.log.read_text().splitlines())


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return Site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def built(site):
    return site.build()


def test_a_cell_that_fails_is_named_with_its_cause(site, built):
    assert built.returncode == 1
    assert "fails.md" in built.stderr
    assert "ratio = numerator / 0" in built.stderr
    assert "ZeroDivisionError" in built.stderr
    assert (site.html / "runs.html").exists()  # the other pages are still built


@pytest.mark.slow(by_python=True)
def test_a_page_is_run_again_only_when_its_code_has_changed(site, built):
    page = site.pages / "runs.md"
    page.write_text(page.read_text() + "\nAnother sentence.\n")
    site.build()
    assert "Another sentence." in site.page("runs")
    assert site.n_runs == 1


def test_pages_need_no_network(site, built):
    home = site.page("index")
    loaded = re.findall(r"<(?:script|img|iframe)[^>]*\bsrc=\"([^\"]+)\"|<link[^>]*\bhref=\"([^\"]+)\"", home)
    files = [first or second for first, second in loaded]
    assert [each for each in files if "//" in each] == []
    (mathjax,) = (each for each in files if "mathjax" in each)
    assert (site.html / mathjax.split("?")[0]).exists()


def test_the_header_lists_the_sections(site, built):
    for name in ("index", "runs", "fails"):
        header = site.page(name).split('class="bd-header ')[1].split("</header>")[0]
        for title in ("A page that runs", "A page that fails"):
            assert title in header


def test_every_page_has_its_turn():
    """CI runs a fifth of them, by the hash of the commit."""
    held = [page for page in (ROOT / "docs").glob("**/*.md") if BUILT.isdisjoint(page.parts)]
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in held}
    chosen = [{page for page in pages if zlib.crc32(page.encode()) % 5 == turn} for turn in range(5)]
    assert set.union(*chosen) == pages
    assert min(map(len, chosen)) >= len(pages) // 10
    environment = {**os.environ, "DOCS_EXECUTION": "turns", "PYTHONPATH": str(ROOT / "docs")}
    code = "import conf; print(*conf.nb_execution_excludepatterns)"
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    )
    assert pages - set(told.stdout.split()) in chosen


def test_the_step_is_shown_with_its_arguments(site, built):
    signature = site.page("index").split('id="pymc_rmhmc.RMHMC"')[1].split("</dt>")[0]
    for argument in ("vars", "metric", "step_size", "target_accept", "blocked"):
        assert f">{argument}<" in signature
    assert "kwargs<" not in signature.replace("compile_kwargs", "")


BUILT = {"_build", "generated", "jupyter_execute"}
PAGES = sorted(
    [ROOT / "README.md", *(page for page in ROOT.glob("docs/**/*.md") if BUILT.isdisjoint(page.parts))],
)


def anchors(page):
    """The anchors that a viewer of plain Markdown, such as GitHub, makes of the headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text), flags=re.MULTILINE)
    slugs = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    return {f"{slug}-{before}" if (before := slugs[:i].count(slug)) else slug for i, slug in enumerate(slugs)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_headings_lead_somewhere_in_plain_markdown(page):
    links = re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", page.read_text())
    dead = [link for link in links if link[1] not in anchors(page.parent / link[0] if link[0] else page)]
    assert not dead
