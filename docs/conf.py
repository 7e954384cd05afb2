"""Settings of the documentation site, which `make docs` builds with Sphinx."""

import sys
from pathlib import Path

import tta_panda

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "tta-panda"
author = "The tta-panda authors"
version = release = tta_panda.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
extensions += ["docstrings", "mathml", "method_pages", "public_names", "repository_links"]
exclude_patterns = ["_build"]

myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # a test executes the notebook; the page shows the outputs that are stored in it

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
# Types of other packages, and those that are no part of the public surface, have no page here.
nitpick_ignore_regex = [(r"py:.*", r"(?!tta_panda\.\w+$).*")]

html_theme = "furo"
html_title = f"tta-panda {release}"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
