"""What the documentation says is so: Python blocks and commands run, links lead somewhere."""

import doctest
import importlib
import pkgutil
import re
import shlex
import warnings
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from matplotlib import pyplot
from typer.testing import CliRunner

import kronlearn
from kronlearn.cli.app import app

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BASH_BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(([^)\s]+)[^)]*\)")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def public_modules() -> list[str]:
    """Names of the package and its modules, leaving out those that start with an underscore."""
    found = pkgutil.walk_packages(kronlearn.__path__, "kronlearn.")
    names = [module.name for module in found]
    return ["kronlearn", *(name for name in names if not re.search(r"\._", name))]


def anchors(page: Path) -> set[str]:
    """The fragments that the headings of a page can be linked by."""
    headings = HEADING.findall(FENCED.sub("", page.read_text("utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def pages_with(block: re.Pattern[str]) -> list[Path]:
    return [page for page in PAGES if block.search(page.read_text("utf-8"))]


def commands(page: Path) -> list[list[str]]:
    """The arguments of the kronlearn commands in a page's bash blocks, one list per command."""
    text = "\n".join(BASH_BLOCK.findall(page.read_text("utf-8")))
    parts = re.split(r"&&|\n", text.replace("\\\n", " "))
    lines = [shlex.split(part, comments=True) for part in parts]
    return [line[1:] for line in lines if line[:1] == ["kronlearn"]]


@pytest.mark.parametrize("page", pages_with(PYTHON_BLOCK), ids=page_name)
def test_the_python_blocks_of_a_page_run_one_after_the_other(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    text = page.read_text("utf-8")
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in PYTHON_BLOCK.finditer(text):
        # Leading newlines make a traceback show the line of the page.
        leading = "\n" * text.count("\n", 0, block.start(1))
        exec(compile(leading + block.group(1), str(page), "exec"), namespace)


@pytest.mark.parametrize("page", pages_with(BASH_BLOCK), ids=page_name)
def test_the_commands_of_a_page_run_one_after_the_other(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    from skimage import io

    monkeypatch.chdir(tmp_path)
    for name in ("photo.png", "other.png"):
        io.imsave(name, rng.integers(0, 256, (96, 80), dtype=np.uint8), check_contrast=False)
    np.save("patches.npy", rng.standard_normal((300, 64)).astype(np.float32))
    np.save("scene.npy", rng.integers(0, 4000, (40, 48, 24), dtype=np.uint16))
    for arguments in commands(page):
        # Tests of their own run the demonstration and the measurements; here their options count.
        slow = arguments[0] in ("demo", "bench", "reproduce")
        result = CliRunner().invoke(app, [*arguments, *(["--help"] if slow else [])])
        assert result.exit_code == 0, f"kronlearn {shlex.join(arguments)}\n{result.output}"


@pytest.mark.parametrize("name", public_modules())
def test_the_docstring_examples_of_a_module_give_what_they_show(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    try:
        # What other packages warn of while they are imported is theirs to change.
        with warnings.catch_warnings(action="ignore"):
            module: ModuleType = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if str(missing.name).startswith("kronlearn"):
            raise
        pytest.skip(f"{missing.name} is not installed")
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for example in doctest.DocTestFinder(exclude_empty=True).find(module):
        runner.run(example, out=report.append)
    pyplot.close("all")
    assert runner.summarize(verbose=False).failed == 0, "".join(report)


def test_the_readme_stays_short() -> None:
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    assert len(lines) <= 130
    assert [line for line in lines if len(line) > 120] == []


def test_no_text_installs_kronlearn_from_an_index_that_does_not_have_it() -> None:
    texts = [*ROOT.glob("docs/*.md"), ROOT / "README.md", *ROOT.glob("src/**/*.py")]
    assert [path for path in texts if "install 'kronlearn" in path.read_text("utf-8")] == []


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_the_relative_links_of_a_page_lead_somewhere(page: Path) -> None:
    prose = INLINE_CODE.sub("", FENCED.sub("", page.read_text("utf-8")))
    for link in LINK.findall(prose):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, fragment = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page_name(page)} links to {link}, which does not exist"
        if fragment and target.suffix == ".md":
            assert fragment in anchors(target), f"{page_name(page)}: no heading for {link}"
