"""Tables II and IV as Markdown and as a picture, with the paper's numbers beside ours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kronlearn.reproduce.published import TABLE2_SECONDS, TABLE4_SECONDS
from kronlearn.reproduce.scaling import Result
from kronlearn.reproduce.scaling_points import (
    Claim,
    Outcome,
    Point,
    by_machine,
    claims,
    paper_speedups,
    points,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["HEADINGS", "TITLES", "cells", "markdown", "picture", "summary"]

TITLES = {
    "table2": "Table II: speedup with the number of processors",
    "table4": "Table IV: speedup on a hyperspectral image",
}

_FULL_ITERATIONS = {"table2": 60, "table4": 100}

_HOW = """
Seconds are those of an iteration: the median of a run's iterations after the first tenth of them,
and the median over the rounds. Every run has a process of its own, in which libraries of linear
algebra are kept to one thread. Dask workers are processes that share the cores as Dask does by
default (16 cores: four workers with four threads each), also with their scheduler and the program
that asks. Speedup is over one thread; efficiency is speedup over p. The ceiling is what p processes
that know nothing of each other, each learning from samples of its own in its memory on one thread,
do more than one of them: what these cores can give. The share of it is of the processes' speed.
"""

_DATA = {
    "table2": """
The paper says how many patches it learned from, not from which images.
""",
    "table4": """
The paper's cube is not to be had. This one has its size and is made from the one that is: mirrored
copies side by side, spectra interpolated, lightness varied smoothly, noise added so that no patch
repeats another.
""",
}

# A verdict names at most so many points; the table has them all.
_NAMED = 4

#: The columns of the table, after method, m and p.
HEADINGS = (
    *("threads, s", "speedup", "efficiency"),
    *("Dask, s", "Dask speedup", "Dask / threads"),
    *("ceiling", "of the ceiling", "the paper's speedup"),
)


def markdown(experiment: str, results: Sequence[Result]) -> str:
    """The whole report on "table2" or "table4"."""
    parts = [f"# {TITLES[experiment]}", _HOW.strip()]
    for (machine, data), measured in by_machine(results).items():
        found = points(measured)
        parts += [
            f"## {machine}",
            _about(experiment, data, found),
            _speeds(experiment, found),
            _needs(found),
            "What was aimed at:",
            summary(experiment, found),
        ]
    parts += [_DATA[experiment].strip(), _paper_seconds(experiment)]
    parts.append(f"![{TITLES[experiment]}]({experiment}.png)")
    return "\n\n".join(parts) + "\n"


def summary(experiment: str, found: Sequence[Point]) -> str:
    """What was aimed at and what came out, a line each."""
    return (
        "\n".join(map(_verdict, claims(experiment, found))) or "- These runs are too small to tell."
    )


def _verdict(claim: Claim) -> str:
    missed = [outcome for outcome in claim.outcomes if not outcome.held]
    if not missed:
        return f"- {claim.text}: holds ({_places(claim.outcomes)})."
    return (
        f"- {claim.text}: **missed** in {len(missed)} of {len(claim.outcomes)} ({_places(missed)})."
    )


def _places(outcomes: Sequence[Outcome]) -> str:
    named = [f"{outcome.at}: {outcome.value}" for outcome in outcomes[:_NAMED]]
    more = len(outcomes) - len(named)
    return "; ".join([*named, *([f"and {more} more"] if more else [])])


def _about(experiment: str, data: str, found: Sequence[Point]) -> str:
    sizes = {(p.setting.m, p.setting.samples): None for p in found}
    samples = ", ".join(f"{count:,} patches of {m} × {m}" for m, count in sizes)
    rounds = max(point.rounds for point in found)
    iterations = sorted({point.setting.iterations for point in found})
    text = (
        f"{samples}, float32; from {data}. {' or '.join(map(str, iterations))} iterations, "
        f"{rounds} round(s)."
    )
    if iterations[0] < _FULL_ITERATIONS[experiment] // 4:
        text += " **These were short runs.**"
    return text


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _speeds(experiment: str, found: Sequence[Point]) -> str:
    rows = [
        [
            point.setting.method,
            str(point.setting.m),
            str(point.processors),
            *cells(experiment, point),
        ]
        for point in found
    ]
    return _table(("method", "m", "p", *HEADINGS), rows)


def cells(experiment: str, point: Point) -> list[str]:
    """A point's numbers under the headings; nothing where there is none."""
    seconds = {engine: found.seconds_per_iteration for engine, found in point.found.items()}
    speedup = point.speedup.get("threads")
    return [
        _text(seconds.get("threads"), ".3g"),
        _text(speedup, ".2f"),
        _text(None if speedup is None else speedup / point.processors, ".0%"),
        _text(seconds.get("dask"), ".3g"),
        _text(point.speedup.get("dask"), ".2f"),
        _text(point.dask_share, ".0%"),
        _text(point.speedup.get("processes"), ".2f"),
        _text(point.ceiling_share, ".0%"),
        _text(paper_speedups(experiment, point.setting).get(point.processors), "g"),
    ]


def _text(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _needs(found: Sequence[Point]) -> str:
    """Seconds of the whole fit, RMSE and memory, by engine."""
    rows = []
    for point in found:
        for engine, measured in point.found.items():
            if measured.rmse is None:
                continue
            peak = None if measured.peak_bytes is None else measured.peak_bytes / 1e6
            rows.append(
                [
                    *(point.setting.method, str(point.setting.m), str(point.processors), engine),
                    _text(measured.seconds, ".3g"),
                    _text(measured.rmse, ".5g"),
                    _text(peak, ".0f"),
                ]
            )
    heading = ("method", "m", "p", "engine", "fit, s", "RMSE", "memory, MB")
    return (
        "Memory is what all processes together hold at most beyond what they held before the fit "
        "(imports, and samples that are in memory).\n\n" + _table(heading, rows)
    )


def _paper_seconds(experiment: str) -> str:
    if experiment == "table2":
        times = ", ".join(f"{s} ({method}, m = {m})" for (method, m), s in TABLE2_SECONDS.items())
        return f"The paper's seconds with one process, for iterations it does not count: {times}."
    times = ", ".join(f"{s / 100:,.0f} ({method})" for method, s in TABLE4_SECONDS.items())
    return f"The paper's seconds per iteration with one process: {times}."


def picture(experiment: str, results: Sequence[Result]) -> Figure:
    """Speedup against the number of processors, on the machine with the most cores."""
    from matplotlib.figure import Figure

    (machine, _), measured = next(iter(by_machine(results).items()))
    found = points(measured)
    panels = list(dict.fromkeys((p.setting.method, p.setting.m) for p in found))
    across = min(len(panels), 3)
    down = -(-len(panels) // across)
    figure = Figure(figsize=(3.2 * across + 0.6, 2.9 * down + 0.8), layout="constrained")
    axes = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
    for ax, (method, m) in zip(axes, panels, strict=False):
        here = [p for p in found if (p.setting.method, p.setting.m) == (method, m)]
        _draw(ax, experiment, here)
        ax.set_title(f"{method}, {m} × {m}", fontsize="medium")
        ax.set_xlabel("processors, p")
    for ax in axes[len(panels) :]:
        ax.remove()
    axes[0].set_ylabel("speedup")
    figure.suptitle(str(machine), fontsize="medium")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def _draw(ax: Axes, experiment: str, found: Sequence[Point]) -> None:
    processors = [point.processors for point in found]
    ax.plot(processors, processors, color="0.8", lw=1, label="p")
    for engine, label, style, color in (
        ("processes", "ceiling", "_-", "0.4"),
        ("threads", "threads", "o-", "#c0392b"),
        ("dask", "Dask workers", "s--", "#1f5fa8"),
    ):
        values = [point.speedup.get(engine, math.nan) for point in found]
        ax.plot(processors, values, style, color=color, ms=5, lw=1.2, label=label)
    published = paper_speedups(experiment, found[0].setting)
    ax.plot(*zip(*published.items(), strict=True), "x", color="0.1", label="the paper")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.xaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_major_formatter("{x:g}")
    ax.grid(alpha=0.25, lw=0.6)
    ax.spines[["top", "right"]].set_visible(False)
