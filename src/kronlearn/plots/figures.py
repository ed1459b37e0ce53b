"""What the displays share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["figure_of"]


def figure_of(ax: Axes) -> Figure:
    """The figure that axes belong to."""
    figure = ax.get_figure(root=True)
    if figure is None:
        raise ValueError("ax belongs to no figure; make it with pyplot.subplots().")
    return figure
