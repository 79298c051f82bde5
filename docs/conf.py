"""Settings of Sphinx, which makes a site of the pages in this folder (``make docs``); the pages are plain Markdown."""

from importlib import metadata

project = "trust-curation"
release = metadata.version("trust-curation")
extensions = ["myst_parser"]
exclude_patterns = ["_*"]
highlight_language = "text"
myst_heading_anchors = 4  # anchors as GitHub makes them
nitpicky = True

html_theme = "furo"  # fonts and scripts are its own: pages and search work from a folder, without a network
html_static_path = ["site"]
html_css_files = ["pages.css"]
html_js_files = ["copy.js"]
html_title = "trust-curation"
html_copy_source = False
html_show_copyright = False
