"""The picture files that the commands write."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from kronlearn.core.dictionary import Dictionary
from kronlearn.io.atomic import atomic_write

__all__ = [
    "check_drawable",
    "save_comparison",
    "save_convergence",
    "save_dictionary_picture",
]


def check_drawable(option: str, path: Path | None) -> None:
    """Raise ValueError for a file whose ending matplotlib has no format for."""
    if path is None:
        return
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    known = FigureCanvasAgg.get_supported_filetypes()
    if path.suffix.lower().removeprefix(".") not in known:
        raise ValueError(
            f"{option} {path} does not have an ending for drawings: "
            f"{', '.join('.' + ending for ending in sorted(known))}."
        )


def save_dictionary_picture(dictionary: Dictionary, path: Path, overwrite: bool) -> None:
    """Write the mosaic (or the factors) of a dictionary to an image file."""
    from matplotlib.figure import Figure

    from kronlearn.plots import DictionaryDisplay

    display = DictionaryDisplay(dictionary)
    figure = Figure(figsize=display.figure_size, layout="constrained")
    display.plot(ax=figure.subplots())
    with atomic_write(path, overwrite=overwrite) as (place,):
        figure.savefig(place, dpi=200)


def save_convergence(histories: Mapping[Any, Any], path: Path, overwrite: bool) -> None:
    """Write the RMSE, and the nonzeros where they vary, of several runs to an image file."""
    from matplotlib.figure import Figure

    from kronlearn.plots import ConvergenceDisplay

    nonzeros = [number for h in histories.values() for number in h["mean_nonzeros"]]
    varied = max(nonzeros) > 1.01 * min(nonzeros)
    quantities = ["rmse", "mean_nonzeros"] if varied else ["rmse"]
    figure = Figure(figsize=(8, 3.4 * len(quantities)), layout="constrained")
    rows = figure.subplots(len(quantities), 2, sharey="row", squeeze=False)
    for quantity, axes in zip(quantities, rows, strict=True):
        for name, history in histories.items():
            ConvergenceDisplay.from_history(history, name=name, quantity=quantity, axes=list(axes))
    with atomic_write(path, overwrite=overwrite) as (place,):
        figure.savefig(place, dpi=150)


def save_comparison(
    before: NDArray[Any],
    after: NDArray[Any],
    reference: NDArray[Any] | None,
    names: tuple[str, str],
    against: str,
    path: Path,
    overwrite: bool,
) -> None:
    """Write two images (rows, columns[, 3]), their difference and a reference to an image file."""
    from matplotlib.figure import Figure

    from kronlearn.plots import ComparisonDisplay

    n_panels = 3 if reference is None else 4
    display = ComparisonDisplay(before, after, reference, names, against)
    figure = Figure(figsize=display.figure_size(n_panels), layout="constrained")
    display.plot(axes=list(figure.subplots(1, n_panels)))
    # As many pixels as the images have, within reason.
    dpi = min(max(after.shape[1] / 4, 150), 500)
    with atomic_write(path, overwrite=overwrite) as (place,):
        figure.savefig(place, dpi=dpi)
