"""One self-contained HTML page about what was done to an image."""

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
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import kronlearn as kl
from kronlearn.cli.quality import decibels
from kronlearn.core.dictionary import Dictionary
from kronlearn.io.atomic import atomic_write
from kronlearn.plots.comparison import difference_limit, scaled, shown_range

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Page", "render", "save_report"]

# Longer sides are shown smaller, and small images larger, by a whole number.
_MAX_SIDE = 1600
_MIN_WIDTH = 320

# A colour that few images have, so that missing pixels stand out.
_MISSING = (214, 51, 132)

# Between the atoms: apart from every gray.
_GAP = (91, 141, 184)

# Drawn in these colours, which the page replaces by its own, light or dark.
_INK, _ACCENT = "#123456", "#123457"


@dataclass(frozen=True)
class Page:
    """What is told on a page."""

    title: str
    #: Images (rows, columns) or (rows, columns, 3).
    before: NDArray[Any]
    after: NDArray[Any]
    #: Names and values.
    facts: list[tuple[str, str]]
    #: PSNR and SSIM of "before" and "after", where there is a reference.
    scores: Mapping[str, Mapping[str, float]]
    dictionary: Dictionary | None
    history: Mapping[str, Any] | None
    settings: Mapping[str, Any]
    seconds: Mapping[str, float]
    #: Where pixels were missing, (rows, columns).
    missing: NDArray[np.bool_] | None = None
    reference: NDArray[Any] | None = None
    notes: list[str] = field(default_factory=list)


def save_report(page: Page, path: Path, overwrite: bool) -> None:
    """Write the page to a file, whole or not at all."""
    text = render(page)
    with atomic_write(path, overwrite=overwrite) as (place,):
        # A file name may hold bytes that are no text; a page shows them as such.
        place.write_text(text, "utf-8", errors="replace")


def render(page: Page) -> str:
    """The page as HTML that needs nothing from elsewhere; texts are escaped."""
    low, high = shown_range(page.after)
    before, after = (_pixels(image, low, high) for image in (page.before, page.after))
    if page.missing is not None:
        before = before if before.ndim == 3 else np.repeat(before[..., None], 3, axis=-1)
        before[page.missing] = _MISSING
    template = Template(files("kronlearn.cli").joinpath("report.html").read_text("utf-8"))
    return template.substitute(
        title=escape(page.title),
        facts="\n".join(f"<dt>{escape(n)}</dt><dd>{escape(v)}</dd>" for n, v in page.facts),
        scores=_scores_table(page.scores) if page.scores else "",
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
        share = 100 * _MAX_SIDE / max(rows, columns)
        notes.append(
            f"The image has {rows} × {columns} pixels and is shown at {share:.0f} % of its size, "
            "which hides fine noise; the written file is of full size."
        )
    if page.after.dtype != np.uint8:
        notes.append(f"Black is {low:.5g}, white is {high:.5g}.")
    if page.missing is not None:
        notes.append("Missing pixels are pink.")
    return notes


def _sections(page: Page) -> Iterable[str]:
    """Rows of one or two sections."""
    pictures = []
    if page.missing is None:
        what = "After minus before: what was changed. "
        pictures.append(_section("Difference", _difference(page.before, page.after, what)))
    elif page.reference is not None:
        what = "After minus reference: what is not as it should be. "
        pictures.append(_section("Difference", _difference(page.reference, page.after, what)))
    if page.dictionary is not None:
        pictures.append(_section("Dictionary", _dictionary_figure(page.dictionary)))
    yield _row(pictures)
    if page.history is not None and len(page.history["rmse"]):
        yield _section("Learning", _convergence(page.history))
    settings = {name.replace("_", " "): _readable(v) for name, v in page.settings.items()}
    seconds = {name: f"{value:.3f} s" for name, value in page.seconds.items()}
    total = {"together": f"{sum(page.seconds.values()):.3f} s"}
    yield _row(
        [
            _section("Settings", _table(settings, "text")),
            _section("Time", _table({**seconds, **total}, "number")),
        ]
    )


def _row(contents: list[str]) -> str:
    return "\n".join(['<div class="pair">', *contents, "</div>"])


def _section(title: str, content: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n{content}\n</section>"


def _table(facts: Mapping[str, str | None], kind: str) -> str:
    rows = "\n".join(
        f'<tr><th scope="row">{escape(name)}</th><td class="{kind}">{escape(text)}</td></tr>'
        for name, text in facts.items()
        if text is not None
    )
    return f"<table>\n{rows}\n</table>"


def _scores_table(scores: Mapping[str, Mapping[str, float]]) -> str:
    head = "".join(f'<th scope="col" class="number">{name}</th>' for name in ("PSNR", "SSIM"))
    rows = [f"<tr><td></td>{head}</tr>"]
    for name, values in scores.items():
        cells = [decibels(values["psnr"]), f"{values['ssim']:.4f}" if "ssim" in values else "–"]
        numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{numbers}</tr>')
    return "\n".join(["<table>", *rows, "</table>"])


def _difference(before: NDArray[Any], after: NDArray[Any], what: str) -> str:
    change = after.astype(np.float64) - before.astype(np.float64)
    limit = difference_limit(change)
    caption = f"{what}Mid-gray is no change, black −{limit:g} or less, white {limit:g} or more."
    return _figure(_picture(_pixels(change, -limit, limit), "The difference, scaled"), caption)


def _dictionary_figure(dictionary: Dictionary) -> str:
    from matplotlib.figure import Figure

    from kronlearn.plots import DictionaryDisplay

    display = DictionaryDisplay(dictionary)
    sizes = (" × ".join(map(str, s)) for s in (dictionary.patch_shape, dictionary.n_atoms))
    heading = "{} patches, {} atoms. ".format(*sizes)
    is_sum = dictionary.n_terms > 1
    if is_sum:
        heading += f"The sum of {dictionary.n_terms} Kronecker products. "
    label = "The atoms of the dictionary"
    if display.is_mosaic:
        mosaic = display.mosaic()
        gaps = np.isnan(mosaic)
        tiles = np.repeat(_pixels(mosaic, -1, 1)[..., None], 3, axis=-1)
        tiles[gaps] = _GAP
        factors = (
            ": a column of the first factor, shown at the left edge, times a column of the second, "
            "shown at the top"
        )
        caption = f"{heading}Each tile is an atom{'' if is_sum else factors}."
        return _figure(_picture(tiles, label), caption)
    figure = Figure(figsize=display.figure_size, layout="constrained")
    with _page_colours():
        display.plot(ax=figure.subplots()).ax_.set_title("")
        svg = _svg(figure, label)
    return _figure(svg, heading + "Each factor with its atoms as columns.")


def _convergence(history: Mapping[str, Any]) -> str:
    """Two drawings, side by side where there is room."""
    from matplotlib.figure import Figure

    from kronlearn.plots import ConvergenceDisplay

    drawings = []
    labels = {"rmse": "The error by iteration", "mean_nonzeros": "Nonzeros by iteration"}
    # Where the error has a target, it stays there and atoms become fewer.
    if history["rmse"][-1] > history["rmse"][0]:
        del labels["rmse"]
    for quantity, label in labels.items():
        by_iteration, by_second = Figure(figsize=(5, 3), layout="constrained"), Figure()
        with _page_colours():
            axes = [by_iteration.subplots(), by_second.subplots()]
            ConvergenceDisplay.from_history(history, quantity=quantity, axes=axes)
            drawings.append(_svg(by_iteration, label))
    caption = "Atoms that a patch needs on average to come as close to it as the noise allows."
    if "rmse" in labels:
        caption = (
            "Root mean square error of the patches that were learned from, and atoms per patch."
        )
    return _figure(_row(drawings), caption)


def _figure(content: str, caption: str) -> str:
    return f"<figure>\n{content}\n<figcaption>{escape(caption)}</figcaption>\n</figure>"


def _picture(image: NDArray[np.uint8], label: str, kind: str = "") -> str:
    """An image element; what is small is enlarged by a whole number."""
    rows, columns = _shown_shape(image)
    zoom = -(-_MIN_WIDTH // columns)
    classes = " ".join([kind, "enlarged"] if zoom > 1 else [kind])
    size = f'width="{zoom * columns}" height="{zoom * rows}"'
    return f'<img class="{classes}" src="{_data_uri(image)}" {size} alt="{escape(label)}">'


def _page_colours() -> Any:
    """Settings under which text, axes and lines have colours that ``_svg`` replaces."""
    import matplotlib
    from cycler import cycler

    names = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    settings: Any = {
        **dict.fromkeys((*names, "grid.color"), _INK),
        "axes.prop_cycle": cycler(color=[_ACCENT]),
        "axes.facecolor": "none",
        "svg.fonttype": "none",
    }
    return matplotlib.rc_context(settings)


def _svg(figure: Figure, label: str) -> str:
    """The figure as an element of a page, in the page's colours."""
    import matplotlib

    stream = io.StringIO()
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    # Names inside the drawing depend on the salt: no two drawings of a page share one.
    with matplotlib.rc_context({"svg.hashsalt": label}):
        figure.savefig(stream, format="svg", transparent=True, dpi=144, metadata=metadata)
    drawing = stream.getvalue()
    drawing = drawing[drawing.index("<svg") :].replace(
        "<svg", f'<svg role="img" aria-label="{escape(label)}"', 1
    )
    drawing = re.sub(r'<g id="[^"]*"', "<g", drawing)
    return drawing.replace(_INK, "currentColor").replace(_ACCENT, "var(--accent)")


def _pixels(image: NDArray[Any], low: float, high: float) -> NDArray[np.uint8]:
    """The image in 8 bits, with low … high as black … white."""
    return np.rint(255 * scaled(image, low, high)).astype(np.uint8)


def _shown_shape(image: NDArray[Any]) -> tuple[int, int]:
    rows, columns = image.shape[:2]
    share = min(1.0, _MAX_SIDE / max(rows, columns))
    return max(1, round(share * rows)), max(1, round(share * columns))


def _data_uri(image: NDArray[np.uint8]) -> str:
    """A PNG of the image, of at most 1600 pixels per side, to be written into a page."""
    rows, columns = _shown_shape(image)
    picture = Image.fromarray(image)
    if picture.size != (columns, rows):
        picture = picture.resize((columns, rows), Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    picture.save(stream, "PNG")
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode("ascii")


def _readable(value: Any) -> str | None:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, (list, tuple)):
        return " × ".join(str(_readable(item)) for item in value)
    return None if value is None else str(value)
