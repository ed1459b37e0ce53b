"""The picture files that the commands write."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kronlearn.io.atomic import atomic_write

__all__ = ["convergence_figure", "save_figure"]


def save_figure(figure: Any, path: Path, overwrite: bool, dpi: float = 200) -> None:
    """Write a figure to an image file, and forget it."""
    from matplotlib import pyplot

    with atomic_write(path, overwrite=overwrite) as (place,):
        figure.savefig(place, dpi=dpi)
    pyplot.close(figure)


def convergence_figure(histories: Mapping[Any, Any]) -> Any:
    """A figure of the RMSE, and the nonzeros where they vary, of several runs."""
    from matplotlib import pyplot

    from kronlearn.plots import ConvergenceDisplay

    nonzeros = [number for h in histories.values() for number in h["mean_nonzeros"]]
    varied = max(nonzeros) > 1.01 * min(nonzeros)
    quantities = ["rmse", "mean_nonzeros"] if varied else ["rmse"]
    figure = pyplot.figure(figsize=(8, 3.4 * len(quantities)), layout="constrained")
    rows = figure.subplots(len(quantities), 2, sharey="row", squeeze=False)
    for quantity, axes in zip(quantities, rows, strict=True):
        for name, history in histories.items():
            ConvergenceDisplay(history, name, quantity).plot(axes=axes)
    return figure
