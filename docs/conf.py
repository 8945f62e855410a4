"""Configuration of the documentation."""

import hashlib
import inspect
import os
import subprocess
import zlib
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

from jupyter_cache import get_cache

import pymc_rmhmc

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

HERE = Path(__file__).parent

project = "pymc_rmhmc"
author = "The pymc_rmhmc developers"
copyright = "2026, the pymc_rmhmc developers"
version = release = pymc_rmhmc.__version__
extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
    "sphinx_design",
]
html_theme = "pydata_sphinx_theme"
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
# DOCS_ADDRESS: where pages of all versions are served, as tools/publish_docs.py puts them there. Pages that are read
# from a folder have no others to switch to.
if address := os.environ.get("DOCS_ADDRESS"):
    html_theme_options |= {
        "switcher": {"json_url": f"{address.rstrip('/')}/versions.json", "version_match": version},
        "navbar_start": ["navbar-logo", "version-switcher"],
        "logo": {"text": project},  # the switcher says the version
        "show_version_warning_banner": True,
        "check_switcher": False,  # the list is written after the pages
    }
# The home page has doors in the place of a list.
html_sidebars = {"index": []}
# MathJax comes from a package, so that formulas need no network. As an extension that package would forbid Sphinx to
# read pages in parallel.
(mathjax_package,) = find_spec("sphinx-mathjax-offline").submodule_search_locations
html_static_path = ["_static", str(Path(mathjax_package) / "static")]
mathjax_path = "mathjax/tex-chtml.js"
html_css_files = ["outputs.css"]
html_title = f"pymc_rmhmc {version}"
html_show_sourcelink = False
# The button copies code without what a shell prints before it.
copybutton_prompt_text = "$ "
exclude_patterns = ["_build", "generated", "jupyter_execute", "measured_table.md"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
# Links to headings are those of plain Markdown, which a viewer of a repository follows too.
myst_heading_anchors = 4
nb_merge_streams = True
numpydoc_show_class_members = False
# The type aliases of PEP 695 have no page of their own to link to.
autodoc_typehints = "none"
autodoc_member_order = "bysource"

# DOCS_EXECUTION: "cache" runs the pages whose code has changed, "force" runs all, "off" runs none. "turns" runs a
# fifth by turns of the commit: for CI, which looks whether pages run.
asked = os.environ.get("DOCS_EXECUTION", "cache")
nb_execution_mode = "force" if asked == "turns" else asked


def left_for_other_turns():
    """List four fifths of all pages, by the hash of the commit."""
    told = subprocess.run(["git", "rev-parse", "HEAD"], cwd=HERE, check=True, capture_output=True, text=True)
    pages = [page.relative_to(HERE).as_posix() for page in HERE.glob("**/*.md")]
    return [page for page in pages if (zlib.crc32(page.encode()) + int(told.stdout[:8], 16)) % 5 > 0]


nb_execution_excludepatterns = left_for_other_turns() if asked == "turns" else []
# Pages that begin with their picture have none where no code is run.
suppress_warnings = ["mystnb.glue"] if asked in ("off", "turns") else []
# Seconds for a single cell. The longest takes about a minute on an idle machine; a slow and busy one may need twenty.
nb_execution_timeout = 1800
# A page that fails becomes a warning with the cell and its traceback, and the other pages are still built.
# `make docs` turns warnings into errors.
nb_execution_raise_on_error = False
nb_execution_show_tb = True


def results_depend_on() -> str:
    """Return a digest of what the pages' results depend on besides their own code: the package, data and versions."""
    digest = hashlib.sha256()
    root = HERE.parent
    files = [*root.glob("pymc_rmhmc/**/*.py"), *root.glob("data/*"), *HERE.glob("_static/*.mplstyle")]
    for path in sorted(files):
        digest.update(path.read_bytes())
    digest.update(repr(sorted({f"{each.name} {each.version}" for each in distributions()})).encode())
    return digest.hexdigest()[:16]


# A cache of its own for each state of the package: after a change of the code no page shows what the old code did.
nb_execution_cache_path = str(HERE / "_build" / "executed" / results_depend_on())


def make_cache(app):
    """Make the cache before several processes read pages: each would make it, and they would collide."""
    if app.config.nb_execution_mode == "cache":
        _ = get_cache(app.config.nb_execution_cache_path).db


def constructor_signature(app, what, name, obj, options, signature, return_annotation):
    """Show a class with the arguments that Python reports.

    Sphinx takes those of an inherited ``__new__`` before those of the class's own ``__init__``, and PyMC's steps
    inherit ``__new__(*args, **kwargs)``.
    """
    if what != "class" or "__init__" not in vars(obj):
        return None
    arguments = inspect.signature(obj)
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in arguments.parameters.values()]
    return str(arguments.replace(parameters=plain, return_annotation=inspect.Signature.empty)), return_annotation


def setup(app):
    """Register what Sphinx does not do by itself."""
    app.connect("builder-inited", make_cache)
    app.connect("autodoc-process-signature", constructor_signature)
