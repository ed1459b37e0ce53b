"""Figures 1 and 2 of the paper: RMSE of held-out samples by iteration, and by number of atoms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from kronlearn.experiments.comparison_runs import Result, Setting
from kronlearn.experiments.methods import METHODS
from kronlearn.experiments.store import deviation, grouped, mean

__all__ = ["Comparison", "figure1", "figure2"]

#: The results of a method, one per draw, by method.
Methods = Mapping[str, Sequence[Result]]
#: The same by setting.
Comparison = Mapping[Setting, Methods]


def figure1(comparison: Comparison) -> Figure:
    """Draw means and deviations over the iterations, a panel per setting."""
    return _panels([partial(_draw_curves, *setting) for setting in comparison.items()])


def figure2(comparison: Comparison) -> Figure:
    """Draw means and deviations by n, a panel for every m and s."""
    panels = grouped(comparison, lambda at: (at.m, at.s)).values()
    return _panels([partial(_draw_sizes, {at: comparison[at] for at in panel}) for panel in panels])


def _panels(draw_panels: Sequence[Callable[[Axes], None]]) -> Figure:
    """Draw panels in a row, with one legend below."""
    count = len(draw_panels)
    figure = Figure(figsize=(3.3 * count + 0.8, 4.2), layout="constrained")
    handles: dict[str, Any] = {}
    for ax, draw in zip(figure.subplots(1, count, squeeze=False)[0], draw_panels, strict=True):
        draw(ax)
        ax.set_ylabel("RMSE, held-out samples")
        ax.grid(alpha=0.25, lw=0.6)
        ax.spines[["top", "right"]].set_visible(False)
        handles |= dict(zip(*ax.get_legend_handles_labels()[::-1], strict=True))
    below: dict[str, Any] = {"loc": "outside lower center", "frameon": False}
    figure.legend(handles.values(), handles.keys(), ncols=len(handles), **below)
    return figure


def _draw_curves(at: Setting, methods: Methods, ax: Axes) -> None:
    lowest_ends, peaks = [], []
    for name, draws in methods.items():
        curves = _curves(at, draws)
        middle = curves.mean(axis=0)
        spread = curves.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros_like(middle)
        low, high = middle - spread, middle + spread
        style = METHODS[name].line_style
        ax.fill_between(range(len(middle)), low, high, color=style["color"], alpha=0.15, lw=0)
        ax.plot(middle, **style)
        lowest_ends.append(low[-1])
        peaks.append(np.max(middle[2:]))
    # The first iterations, and all iterations of some methods, are far above the others.
    top = min(max(peaks), 1.4 * float(np.median(lowest_ends)))
    margin = 0.05 * (top - min(lowest_ends))
    ax.set_ylim(min(lowest_ends) - margin, top + margin)
    ax.set(title=str(at), xlabel="iterations")
    ax.locator_params(axis="x", integer=True)


def _curves(at: Setting, draws: Sequence[Result]) -> NDArray[np.float64]:
    """Return the RMSE of held-out samples by draw and iteration.

    The curve of a run that stopped early continues at its last value.
    """
    curves = (row.held_out_by_iteration for row in draws)
    return np.array([[*c, *[c[-1]] * (at.iterations + 1 - len(c))] for c in curves])


def _draw_sizes(panel: Comparison, ax: Axes) -> None:
    names = list(dict.fromkeys(name for methods in panel.values() for name in methods))
    for rank, name in enumerate(names):
        points = [(at.n, methods[name]) for at, methods in panel.items() if name in methods]
        # Shifted a little, so that error bars can be told apart.
        shift = 0.15 * (rank - (len(names) - 1) / 2)
        ax.errorbar(
            [n + shift for n, _ in points],
            [mean(draws, "held_out_rmse") for _, draws in points],
            [deviation(draws, "held_out_rmse") or 0.0 for _, draws in points],
            marker=METHODS[name].marker,
            ms=5,
            capsize=2,
            **METHODS[name].line_style,
        )
    first = next(iter(panel))
    ax.set(title=f"{first.m} × {first.m} patches, s = {first.s}", xlabel="n")
    ax.set_xticks([at.n for at in panel])
