"""A self-contained HTML page about a denoised or inpainted image or cube."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import kronlearn as kl
from kronlearn.cli.output import facts_of
from kronlearn.core.dictionary import Dictionary
from kronlearn.io.atomic import atomic_write
from kronlearn.plots import DictionaryDisplay
from kronlearn.plots.comparison import difference_limit, scaled, shown_range
from kronlearn.plots.convergence import convergence_figure

__all__ = ["Page", "render", "save_report"]

# Larger images are reduced to this side, narrower ones enlarged by a whole number.
_MAX_SIDE = 1600
_MIN_WIDTH = 320

# A rare colour, so that missing pixels stand out.
_MISSING = (214, 51, 132)


@dataclass(frozen=True)
class Page:
    """The content of a page."""

    title: str
    #: Images (rows, columns) or (rows, columns, 3).
    before: NDArray[Any]
    after: NDArray[Any]
    #: Names and values, shown at the top.
    facts: list[tuple[str, str]]
    #: Seconds of each stage.
    seconds: Mapping[str, float]
    settings: Mapping[str, Any] = field(default_factory=dict)
    dictionary: Dictionary | None = None
    history: Mapping[str, Any] | None = None
    #: Where pixels were missing, (rows, columns).
    missing: NDArray[np.bool_] | None = None
    reference: NDArray[Any] | None = None
    notes: list[str] = field(default_factory=list)


def save_report(page: Page, path: Path, overwrite: bool) -> None:
    """Write the page to a file, completely or not at all."""
    text = render(page)
    with atomic_write(path, overwrite=overwrite) as (temporary,):
        # A file name may contain bytes that are not valid text.
        temporary.write_text(text, "utf-8", errors="replace")


def render(page: Page) -> str:
    """The page as HTML that loads no other file, with all texts escaped."""
    low, high = shown_range(page.after)
    before, after = (_pixels(image, low, high) for image in (page.before, page.after))
    if page.missing is not None:
        before = before if before.ndim == 3 else np.repeat(before[..., None], 3, axis=-1)
        before[page.missing] = _MISSING
    template = Template(files("kronlearn.cli").joinpath("report.html").read_text("utf-8"))
    return template.substitute(
        title=escape(page.title),
        facts="\n".join(f"<dt>{escape(n)}</dt><dd>{escape(v)}</dd>" for n, v in page.facts),
        before=_picture(before, "The image before", "before"),
        after=_picture(after, "The image after", "after"),
        notes="\n".join(f"<p>{escape(note)}</p>" for note in _notes(page, low, high)),
        sections="\n".join(_sections(page)),
        version=escape(kl.__version__),
    )


def _notes(page: Page, low: float, high: float) -> list[str]:
    notes = list(page.notes)
    rows, columns = page.after.shape[:2]
    if max(rows, columns) > _MAX_SIDE:
        percent = 100 * _MAX_SIDE / max(rows, columns)
        notes.append(
            f"The image has {rows} × {columns} pixels and is shown at {percent:.0f} % of its size, "
            "which hides fine noise; the file itself has full size."
        )
    if page.after.dtype != np.uint8:
        notes.append(f"Black is {low:.5g}, white is {high:.5g}.")
    if page.missing is not None:
        notes.append("Missing pixels are pink.")
    return notes


def _sections(page: Page) -> Iterable[str]:
    """Rows of one or two sections."""
    pictures = []
    subtracted, meaning = page.reference, "After minus reference: the error that remains."
    if page.missing is None:
        subtracted, meaning = page.before, "After minus before: what was changed."
    if subtracted is not None:
        difference = _difference(page.after, subtracted, meaning)
        pictures.append(_section("Difference", difference))
    if page.dictionary is not None:
        pictures.append(_section("Dictionary", _dictionary_figure(page.dictionary)))
    yield _row(pictures)
    if page.history is not None and len(page.history["rmse"]):
        yield _section("Learning", _convergence(page.history))
    seconds = {**page.seconds, "together": sum(page.seconds.values())}
    tables = [_section("Time", _table([(n, f"{s:.3f} s") for n, s in seconds.items()], "number"))]
    if page.settings:
        tables.insert(0, _section("Settings", _table(facts_of(page.settings), "text")))
    yield _row(tables)


def _row(contents: Iterable[str]) -> str:
    return "\n".join(['<div class="pair">', *contents, "</div>"])


def _section(title: str, content: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n{content}\n</section>"


def _table(facts: Iterable[tuple[str, str | None]], kind: str) -> str:
    rows = "\n".join(
        f'<tr><th scope="row">{escape(name)}</th><td class="{kind}">{escape(text)}</td></tr>'
        for name, text in facts
        if text is not None
    )
    return f"<table>\n{rows}\n</table>"


def _difference(after: NDArray[Any], subtracted: NDArray[Any], meaning: str) -> str:
    change = after.astype(np.float64) - subtracted.astype(np.float64)
    limit = difference_limit(change)
    scale = f"Mid-grey means no change, black −{limit:.3g} or less, white {limit:.3g} or more."
    picture = _picture(_pixels(change, -limit, limit), "The difference, scaled")
    return _figure(picture, f"{meaning} {scale}")


def _dictionary_figure(dictionary: Dictionary) -> str:
    caption = "The factors, with their atoms as columns and a row for each Kronecker product."
    if len(dictionary.n_atoms) == 2:
        caption = "Each tile is an atom."
        if dictionary.n_terms == 1:
            caption += (
                " It is a column of the first factor, shown at the left edge, times a column of "
                "the second, shown at the top."
            )
    display = DictionaryDisplay(dictionary).plot()
    display.ax_.images[0].set_interpolation("none")
    return _figure(_svg(display.figure_, "The atoms of the dictionary"), caption)


def _convergence(history: Mapping[str, Any]) -> str:
    caption = (
        "Root mean square error of the training patches and, where it varies, the number of atoms "
        "per patch. Where noise limits the error, learning lowers that number."
    )
    return _figure(_svg(convergence_figure({None: history}), "Learning"), caption)


def _figure(content: str, caption: str) -> str:
    return f"<figure>\n{content}\n<figcaption>{escape(caption)}</figcaption>\n</figure>"


def _picture(image: NDArray[np.uint8], label: str, kind: str = "") -> str:
    """An image element with a PNG of at most 1600 pixels per side."""
    rows, columns = image.shape[:2]
    scale = min(1.0, _MAX_SIDE / max(rows, columns))
    size = max(1, round(scale * columns)), max(1, round(scale * rows))
    picture = Image.fromarray(image)
    if picture.size != size:
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    picture.save(stream, "PNG")
    data = base64.b64encode(stream.getvalue()).decode("ascii")
    zoom = -(-_MIN_WIDTH // size[0])
    return (
        f'<img class="{kind}{" enlarged" * (zoom > 1)}" src="data:image/png;base64,{data}" '
        f'width="{zoom * size[0]}" height="{zoom * size[1]}" alt="{escape(label)}">'
    )


def _svg(figure: Any, label: str) -> str:
    """The figure as an SVG element; closes the figure."""
    import matplotlib
    from matplotlib import pyplot

    stream = io.StringIO()
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    # Ids in a drawing depend on the salt, so that no two drawings of a page share one.
    with matplotlib.rc_context({"svg.hashsalt": label, "svg.fonttype": "none"}):
        options = {"transparent": True, "bbox_inches": "tight", "pad_inches": 0.02}
        figure.savefig(stream, format="svg", metadata=metadata, **options)
    pyplot.close(figure)
    drawing = stream.getvalue()
    drawing = re.sub(r'<g id="[^"]*"', "<g", drawing[drawing.index("<svg") :])
    # Lines and text take the colours of the page, light or dark.
    drawing = drawing.replace("#000000", "currentColor").replace("#1f77b4", "var(--accent)")
    return drawing.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)


def _pixels(image: NDArray[Any], low: float, high: float) -> NDArray[np.uint8]:
    """The image as 8-bit grey levels, with low … high as 0 … 255."""
    return np.rint(255 * scaled(image, low, high)).astype(np.uint8)
