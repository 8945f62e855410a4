"""Configuration of the documentation."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

project = "pymc_rmhmc"
author = "The pymc_rmhmc developers"
copyright = "2026, the pymc_rmhmc developers"
extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
]
html_theme = "pydata_sphinx_theme"
html_theme_options = {"show_toc_level": 2, "navigation_with_keys": False}
html_static_path = ["_static"]
html_css_files = ["outputs.css"]
html_title = "pymc_rmhmc"
exclude_patterns = ["_build", "generated", "jupyter_execute"]
myst_enable_extensions = ["dollarmath", "deflist"]
nb_execution_mode = "force"
nb_execution_timeout = 180
nb_execution_raise_on_error = True
nb_merge_streams = True
numpydoc_show_class_members = False
# The type aliases of PEP 695 have no page of their own to link to.
autodoc_typehints = "none"
autodoc_member_order = "bysource"
