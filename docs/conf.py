"""Settings of Sphinx; ``make docs`` builds the site into ``docs/_build/html``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extension"))

from lmscaling import __version__

project = "lmscaling"
release = version = __version__
copyright = "the authors of lmscaling"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "pages",
]
exclude_patterns = ["_build", "extension"]
nitpicky = False

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
highlight_language = "text"  # indented blocks are commands with comments

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"

html_theme = "furo"
html_title = "lmscaling"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = False
copybutton_exclude = ".linenos, .gp, .go, .c1"
