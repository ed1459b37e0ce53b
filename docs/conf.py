"""Sphinx builds the site from these pages, the docstrings and the scripts in examples/."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from numpydoc.xref import DEFAULT_LINKS
from sphinx.application import Sphinx

import kronlearn as kl

os.environ.setdefault("MPLBACKEND", "agg")

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
# Pages and pictures outside docs/ that pages link to; the site has them in a folder of this name.
REPOSITORY = "repository"
COPIED = ("CHANGELOG.md", "CONTRIBUTING.md", "experiments/*.md", "experiments/*.png")

project = "kronlearn"
author = "the kronlearn developers"
copyright = author
version = release = kl.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build", "_templates", "**/GALLERY_HEADER.rst"]
templates_path = ["_templates"]
nitpicky = True
# What docstrings refer to in packages whose pages are elsewhere.
nitpick_ignore_regex = [("py:.*", r"(sklearn|xarray)\..*")]

myst_heading_anchors = 3
# A block without a language is text; Pygments would guess Python.
highlight_language = "text"

autodoc_typehints = "none"
numpydoc_show_class_members = False
# Types of parameters link to the library's own classes; others would need the network.
DEFAULT_LINKS.clear()
numpydoc_xref_param_type = True
numpydoc_xref_ignore = "all"
numpydoc_xref_aliases = {
    name: f"{module.__name__}.{name}"
    for module in (kl, kl.comparators, kl.convolutional, kl.hyperspectral, kl.images, kl.plots)
    for name in module.__all__
    if isinstance(getattr(module, name), type)
}
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries_show_parents = "hide"

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": "",
    "subsection_order": [
        "../examples/images",
        "../examples/cubes",
        "../examples/dictionaries",
        "../examples/large_data",
        "*",
    ],
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "capture_repr": ("_repr_html_",),
    "backreferences_dir": "gallery/backreferences",
    "doc_module": ("kronlearn",),
    "download_all_examples": False,
    "show_signature": False,
    "min_reported_time": 3600,
    "write_computation_times": False,
}

html_theme = "pydata_sphinx_theme"
html_title = "kronlearn"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_sidebars = {
    "index": [],
    "reference": [],
    f"{REPOSITORY}/CHANGELOG": [],
    f"{REPOSITORY}/CONTRIBUTING": [],
}
html_theme_options = {
    "navbar_align": "left",
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "header_links_before_dropdown": 6,
}


def copy_pages(app: Sphinx) -> None:
    """Copy the pages outside docs/ that the site shows."""
    shutil.rmtree(DOCS / REPOSITORY, ignore_errors=True)
    for path in (path for pattern in COPIED for path in ROOT.glob(pattern)):
        target = DOCS / REPOSITORY / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def place_in_site(path: Path) -> Path:
    """Where in docs/ the site has a file or folder of the repository."""
    if path.is_relative_to(ROOT / "examples"):
        place = DOCS / "gallery" / path.relative_to(ROOT / "examples")
        return place.with_suffix(".rst") if path.suffix else place / "index.rst"
    return path if path.is_relative_to(DOCS) else DOCS / REPOSITORY / path.relative_to(ROOT)


def adapt_page(app: Sphinx, name: str, source: list[str]) -> None:
    """Make a page's relative links, which suit the repository, suit the site."""
    page = DOCS / f"{name}.md"
    if not page.exists():
        return
    home = page.parent
    if home.is_relative_to(DOCS / REPOSITORY):
        home = ROOT / home.relative_to(DOCS / REPOSITORY)

    def link(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(home / match[1]))
        return f"]({os.path.relpath(place_in_site(target), page.parent)}{match[2] or ''})"

    source[0] = re.sub(r"\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)", link, source[0])
    pages = re.findall(r"^- \[.*\]\(([\w-]+)\.md\)", source[0], re.MULTILINE)
    below = {"user-guide": pages, "measured": [f"{REPOSITORY}/experiments/*"]}.get(name)
    if below:
        source[0] += "\n".join(["\n```{toctree}", ":hidden:", ":glob:", "", *below, "```\n"])


def setup(app: Sphinx) -> None:
    """Connect what is above."""
    app.connect("builder-inited", copy_pages, priority=100)
    app.connect("source-read", adapt_page)
