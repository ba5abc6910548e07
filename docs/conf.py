"""The documentation site, built by ``make docs``: pages of docs/ and results/, notebooks, and docstrings.

The source folder is the root of the repository, so that links between files are the same in the repository and on the
site. What is derived from code and records (navigation, listings, tables, drawings, the explorer) is made in
``docs/site_parts.py``.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

for variable in ("RUNS", "DATA"):  # of notebooks; nothing is downloaded
    os.environ[f"CAPSULE_LAB_{variable}"] = tempfile.mkdtemp()
os.environ["PYTHONPATH"] = str(ROOT)

import capsule_lab  # noqa: E402
from docs import site_parts  # noqa: E402

project = "capsule-lab"
copyright = "the authors of capsule-lab"  # noqa: A001
version = release = capsule_lab.__version__
root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "docs/**.rst",
    "results/**.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
]
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx-mathjax-offline",
    "sphinx_copybutton",
]
html_theme = "furo"
html_title = "capsule-lab"
html_show_sphinx = False
html_static_path = ["static"]
html_css_files = ["site.css", "claims.css"]
html_js_files = [("claims.js", {"defer": "defer"})]
copybutton_selector = "div.highlight pre"
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True
html_copy_source = False
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
napoleon_use_ivar = True
nb_merge_streams = True
nb_execution_mode = "cache"
nb_execution_timeout = 240
nb_execution_raise_on_error = True
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}


def setup(app: Any) -> None:
    app.connect("source-read", site_parts.add_to_page)
    app.connect("build-finished", site_parts.write_files)
