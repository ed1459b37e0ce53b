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

__all__ = ["Found", "Methods", "figure1", "figure2"]

#: The draws of every method that was run at a setting.
Methods = Mapping[str, Sequence[Result]]
Found = Mapping[Setting, Methods]


def figure1(found: Found) -> Figure:
    """A panel per setting: means and deviations over the iterations."""
    return _panels([partial(_draw_curves, at, methods) for at, methods in found.items()])


def figure2(found: Found) -> Figure:
    """A panel for every m and s: means and deviations by n."""
    panels = grouped(found, lambda at: (at.m, at.s)).values()
    return _panels([partial(_draw_sizes, {at: found[at] for at in panel}) for panel in panels])


def _panels(draws: Sequence[Callable[[Axes], None]]) -> Figure:
    """Panels in a row, with one legend below."""
    drawn = Figure(figsize=(3.3 * len(draws) + 0.8, 4.2), layout="constrained")
    handles: dict[str, Any] = {}
    for ax, draw in zip(drawn.subplots(1, len(draws), squeeze=False)[0], draws, strict=True):
        draw(ax)
        ax.set_ylabel("RMSE, held-out samples")
        ax.grid(alpha=0.25, lw=0.6)
        ax.spines[["top", "right"]].set_visible(False)
        handles |= dict(zip(*ax.get_legend_handles_labels()[::-1], strict=True))
    below: dict[str, Any] = {"loc": "outside lower center", "frameon": False}
    drawn.legend(handles.values(), handles.keys(), ncols=len(handles), **below)
    return drawn


def _draw_curves(at: Setting, methods: Methods, ax: Axes) -> None:
    last, early = [], []
    for name, draws in methods.items():
        curves = _curves(at, draws)
        middle = curves.mean(axis=0)
        spread = curves.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros_like(middle)
        bounds = (middle - spread, middle + spread)
        style = METHODS[name].line_style
        ax.fill_between(range(len(middle)), *bounds, color=style["color"], alpha=0.15, lw=0)
        ax.plot(middle, **style)
        last.append(bounds[0][-1])
        early.append(np.max(middle[2:]))
    # The first iterations, and some methods throughout, are far above the others.
    highest = min(max(early), 1.4 * float(np.median(last)))
    margin = 0.05 * (highest - min(last))
    ax.set_ylim(min(last) - margin, highest + margin)
    ax.set(title=str(at), xlabel="iterations")
    ax.locator_params(axis="x", integer=True)


def _curves(at: Setting, draws: Sequence[Result]) -> NDArray[np.float64]:
    """The RMSE of held-out samples by draw and iteration; a run that stopped early stays there."""
    curves = (row.held_out_by_iteration for row in draws)
    return np.array([[*c, *[c[-1]] * (at.iterations + 1 - len(c))] for c in curves])


def _draw_sizes(panel: Found, ax: Axes) -> None:
    names = list(dict.fromkeys(name for methods in panel.values() for name in methods))
    for place, name in enumerate(names):
        points = [(at.n, methods[name]) for at, methods in panel.items() if name in methods]
        # Shifted a little, so that error bars can be told apart.
        shift = 0.15 * (place - (len(names) - 1) / 2)
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
