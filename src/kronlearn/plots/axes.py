"""Where displays are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["given_or_new"]


def given_or_new(
    axes: Sequence[Axes] | None, n_panels: int, size: tuple[float, float], **options: Any
) -> list[Axes]:
    """The axes that were given, or as many as there are panels, side by side in a new figure.

    ``size`` is that of the figure, in inches; ``options`` go to ``pyplot.subplots``.
    """
    if axes is None:
        from matplotlib import pyplot

        options |= {"figsize": size, "layout": "constrained", "squeeze": False}
        axes = pyplot.subplots(1, n_panels, **options)[1][0]
    if len(axes) != n_panels:
        raise ValueError(f"axes has {len(axes)} entries; pass {n_panels}.")
    return list(axes)
