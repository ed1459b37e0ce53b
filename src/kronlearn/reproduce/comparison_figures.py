"""Figures 1 and 2 in the paper's layout, and Table I as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kronlearn.reproduce.comparison import FIGURE2_PANELS, Setting
from kronlearn.reproduce.comparison_claims import Means
from kronlearn.reproduce.methods import METHODS, Method
from kronlearn.reproduce.published import TABLE1, TABLE1_SETTINGS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["picture"]


def picture(experiment: str, found: Means) -> Figure:
    """Four panels in a row with one legend below: of "table1", "figure1" or "figure2"."""
    from matplotlib.figure import Figure

    draw = {"table1": _draw_times, "figure1": _draw_curves, "figure2": _draw_sizes}[experiment]
    figure = Figure(figsize=(14, 4.2), layout="constrained")
    axes = list(figure.subplots(1, 4, sharex=experiment == "table1"))
    draw(axes, found)
    for ax in axes:
        ax.grid(alpha=0.25, lw=0.6)
        ax.spines[["top", "right"]].set_visible(False)
    handles: dict[str, Any] = {}
    for ax in axes:
        handles |= dict(zip(*ax.get_legend_handles_labels()[::-1], strict=True))
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=min(len(handles), 10),
        frameon=False,
    )
    return figure


def _at(found: Means, m: int, s: int, n: int | None = None) -> list[tuple[Setting, Method]]:
    """The settings of a panel with their methods, in the methods' order."""
    pairs = [
        (setting, METHODS[method])
        for setting, method in found
        if (setting.m, setting.s) == (m, s) and n in (None, setting.n)
    ]
    order = list(METHODS)
    return sorted(pairs, key=lambda pair: (order.index(pair[1].name), pair[0].n))


def _line(method: Method) -> dict[str, Any]:
    """How a method is drawn: ours thicker, unstructured ones dashed."""
    return {
        "color": method.color,
        "label": method.name,
        "lw": 2.0 if method.name == "default" else 1.4,
        "ls": "--" if method.kind == "unstructured" else "-",
        "zorder": 3 if method.ours else 2,
    }


def _draw_curves(axes: list[Axes], found: Means) -> None:
    for ax, (n, s) in zip(axes, TABLE1_SETTINGS, strict=True):
        last, early = [], []
        for setting, method in _at(found, 8, s, n):
            entry = found[setting, method.name]
            iterations = np.arange(len(entry.curve))
            low, high = entry.curve - entry.curve_sd, entry.curve + entry.curve_sd
            ax.fill_between(iterations, low, high, color=method.color, alpha=0.15, lw=0)
            ax.plot(iterations, entry.curve, **_line(method))
            last.append(low[-1])
            early.append(np.max(entry.curve[min(2, len(entry.curve) - 1) :]))
        ax.set_title(f"8 × 8 patches, n = {n}, s = {s}", fontsize="medium")
        ax.set_xlabel("iterations")
        ax.locator_params(axis="x", integer=True)
        if last:
            # The first iterations, and some methods for long, are far above all the others.
            highest = min(max(early), 1.4 * float(np.median(last)))
            margin = 0.05 * (highest - min(last))
            ax.set_ylim(min(last) - margin, highest + margin)
    axes[0].set_ylabel("RMSE, held-out samples")


def _draw_sizes(axes: list[Axes], found: Means) -> None:
    for ax, (m, s) in zip(axes, FIGURE2_PANELS, strict=True):
        pairs = _at(found, m, s)
        methods = list(dict.fromkeys(method.name for _, method in pairs))
        for place, name in enumerate(methods):
            method = METHODS[name]
            entries = [(at.n, found[at, name]) for at, other in pairs if other is method]
            # A little to the side of each other, so that error bars can be told apart.
            shift = 0.15 * (place - (len(methods) - 1) / 2)
            ax.errorbar(
                [n + shift for n, _ in entries],
                [entry.held_out_rmse for _, entry in entries],
                [entry.held_out_rmse_sd for _, entry in entries],
                marker=method.marker,
                ms=5,
                capsize=2,
                **_line(method),
            )
        ax.set_title(f"{m} × {m} patches, s = {s}", fontsize="medium")
        ax.set_xlabel("n")
        ax.set_xticks(sorted({at.n for at, _ in pairs}))
    axes[0].set_ylabel("RMSE, held-out samples")


def _draw_times(axes: list[Axes], found: Means) -> None:
    names = [name for name in METHODS if any(method == name for _, method in found)]
    for column, (ax, (n, s)) in enumerate(zip(axes, TABLE1_SETTINGS, strict=True)):
        for setting, method in _at(found, 8, s, n):
            entry = found[setting, method.name]
            row = names.index(method.name)
            ax.barh(row, entry.seconds, xerr=entry.seconds_sd, color=method.color, height=0.65)
        paper = [name for name in names if name in TABLE1]
        seconds = [TABLE1[name][column] for name in paper]
        rows = [names.index(name) for name in paper]
        ax.plot(seconds, rows, "|", color="0.2", ms=14, mew=2, label="the paper")
        ax.set_xscale("log")
        ax.set_title(f"8 × 8 patches, n = {n}, s = {s}", fontsize="medium")
        ax.set_xlabel("seconds")
        ax.set_yticks(range(len(names)), names if ax is axes[0] else [""] * len(names))
        ax.invert_yaxis()
