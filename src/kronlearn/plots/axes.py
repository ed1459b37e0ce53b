"""The axes that displays draw in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["prepare_axes"]


def prepare_axes(
    axes: Sequence[Axes] | None, n_panels: int, size: tuple[float, float], **options: Any
) -> list[Axes]:
    """The axes passed by the user or, without any, those of a new figure, side by side.

    ``size`` is the size of the figure in inches; ``options`` are passed to ``pyplot.subplots``.
    """
    if axes is None:
        from matplotlib import pyplot

        options |= {"figsize": size, "layout": "constrained", "squeeze": False}
        axes = pyplot.subplots(1, n_panels, **options)[1][0]
    if len(axes) != n_panels:
        raise ValueError(f"axes has {len(axes)} entries; pass {n_panels}.")
    return list(axes)
