"""The documentation site: it builds, has every public name, and its links lead somewhere."""

import ast
import inspect
import pkgutil
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from test_docs import PAGES, PYTHON_BLOCK, ROOT

EXAMPLES = sorted(ROOT.glob("examples/**/*.py"))
GENERATED = ("_build", "gallery", "reference", "repository")
BUILT_WITH = ("myst_parser", "pydata_sphinx_theme", "sphinx_copybutton", "sphinx_design")
BUILT_WITH += ("distributed", "hyperspy", "sphinx_gallery", "tensorly", "xarray", "zarr")


def names_of(name: str) -> set[str]:
    """Full names of what a module lists as public, its modules opened; any other name as it is."""
    public = pkgutil.resolve_name(name)
    if not inspect.ismodule(public):
        return {name}
    return set().union(*(names_of(f"{name}.{part}") for part in public.__all__))


def imported_names() -> set[str]:
    """Full names of what pages and examples import from kronlearn."""
    texts = [block for page in PAGES for block in PYTHON_BLOCK.findall(page.read_text("utf-8"))]
    texts += [example.read_text("utf-8") for example in EXAMPLES]
    names = set()
    for node in (node for text in texts for node in ast.walk(ast.parse(text))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] == "kronlearn"}


def public_names() -> set[str]:
    return set().union(*map(names_of, {"kronlearn"} | imported_names()))


def listed_names() -> set[str]:
    """Full names in the tables of the reference."""
    text = (ROOT / "docs" / "reference.rst").read_text("utf-8")
    names, module = set(), ""
    for line in text.splitlines():
        if found := re.match(r"\.\. (?:current)?module:: (\S+)$", line):
            module = found[1]
        elif found := re.match(r"   (\w+)$", line):
            names.add(f"{module}.{found[1]}")
    return names


def test_the_reference_lists_every_public_name() -> None:
    assert public_names() - listed_names() == set()


class Page(HTMLParser):
    """The links and anchors of a page, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors = {""}
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag in ("img", "link", "script"):
            self.loaded += [values[name] for name in ("href", "src") if name in values]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Page]:
    """The pages of the site, built from a copy of what it is made of."""
    for package in BUILT_WITH:
        pytest.importorskip(package, reason="needs pip install '.[docs]'")
    root = tmp_path_factory.mktemp("site")
    for folder in ("docs", "examples", "experiments"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns(*GENERATED))
    for page in ROOT.glob("*.md"):
        shutil.copy(page, root)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "docs", "html"]
    built = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    pages = [path for path in (root / "html").rglob("*.html") if "_static" not in path.parts]
    return {path: Page(path) for path in pages}


def broken(site: dict[Path, Page]) -> Iterator[str]:
    """Links between pages, pictures and scripts that lead nowhere."""
    for path, page in site.items():
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            fragment = unquote(parts.fragment)
            if not target.exists() or (target in site and fragment not in site[target].anchors):
                yield f"{path.name}: {link}"


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_its_links_lead_somewhere(
    site: dict[Path, Page],
) -> None:
    assert sorted(set(broken(site))) == []


@pytest.mark.slow
def test_no_page_loads_anything_from_elsewhere(site: dict[Path, Page]) -> None:
    loaded = {link for page in site.values() for link in page.loaded}
    assert [link for link in loaded if re.match(r"https?:|//", link)] == []


@pytest.mark.slow
def test_every_public_name_is_two_clicks_from_the_front_page(site: dict[Path, Page]) -> None:
    home = next(path for path in site if path.parts[-2:] == ("html", "index.html"))
    assert "reference.html" in site[home].links
    pages = {urlsplit(link).path for link in site[home.with_name("reference.html")].links}
    assert {f"reference/{name}.html" for name in public_names()} <= pages
