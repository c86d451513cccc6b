"""How Sphinx builds the site (`make docs`): from docs/, and the studies' pages in reports/, which docs link to."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]

import oar_lightning  # noqa: E402

project = "oar_lightning"
author = "the authors of oar_lightning"
copyright = f"{author}. Apache-2.0"
release = oar_lightning.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "generated"]
root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "reports/README.md",
    "reports/VERDICT.md",
    "reports/*/README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
]
exclude_patterns = ["docs/_*", ".venv", ".git", "outputs", "mlartifacts", "build", "dist"]  # not walked through

myst_heading_anchors = 4  # links to headings, as GitHub names them
myst_enable_extensions = ["colon_fence"]
suppress_warnings = [
    "toc.not_included",  # pages of single studies are reached from reports/README.md
]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_class_signature = "mixed"

highlight_language = "bash"

html_theme = "furo"
html_title = "oar_lightning"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
