"""Tables II and IV: medians, speedups, what was aimed at, with the paper's numbers beside ours."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joblib

from kronlearn.experiments import speedup_runs as runs
from kronlearn.experiments.published import TABLE2, TABLE2_SECONDS, TABLE4, TABLE4_SECONDS
from kronlearn.experiments.report import (
    Claim,
    Outcome,
    Report,
    Table,
    figure,
    publish,
)
from kronlearn.experiments.speedup_runs import Result
from kronlearn.experiments.store import Repeats, Store, grouped
from kronlearn.experiments.timing import Progress, machine, no_progress

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["claims", "points", "run", "write"]

#: A method at a size with an engine of p processors.
Point = dict[str, Any]

TITLES = {
    "table2": "Table II: speedup with the number of processors",
    "table4": "Table IV: speedup on a hyperspectral image",
}

_HOW = """
Seconds are those of an iteration: the median of a run's iterations after the first tenth of them,
and the median over the rounds. Every run has a process of its own, in which libraries of linear
algebra are kept to one thread. Dask workers are processes that share the cores as Dask does by
default (16 cores: four workers with four threads each), also with their scheduler and the program
that asks. Independent processes know nothing of each other, and each learns from samples of its own
in its memory on one thread: what these cores can give. Speedup is over one thread, for independent
processes over one of them. The share of the threads is of the speed of as many independent
processes, that of Dask of the threads' speed. Memory is what all processes together hold at most
beyond what they held before the fit (imports, and samples in memory).
"""

_PAPER = {
    "table2": "The paper says how many patches it learned from, not from which images. Its seconds "
    "with one process, for iterations it does not count: "
    + ", ".join(f"{s} ({method}, m = {m})" for (method, m), s in TABLE2_SECONDS.items())
    + ".",
    "table4": "The paper's cube is not available. This one has its size and is made from the one "
    "that is: mirrored copies side by side, spectra interpolated, lightness varied smoothly, noise "
    "added so that no patch repeats another. The paper's seconds per iteration with one process: "
    + ", ".join(f"{s / 100:,.0f} ({method})" for method, s in TABLE4_SECONDS.items())
    + ".",
}

# The paper's largest number of samples. With fewer than its fewest, no speedup is expected.
_MOST_SAMPLES, _FEWEST = 3_913_140, 8000
# What is aimed at with that many samples, by method: Dask's share of the threads' speed, and
# seconds per iteration on two cores.
_DASK_SHARES = {"general": 0.85, "orthonormal": 0.6}
_SECONDS = {"general": 2.5, "orthonormal": 0.6}


_COLUMNS = (
    "method m processors engine seconds_per_iteration:.3g speedup:.2f share:.0% seconds:.3g "
    "rmse:.5g megabytes:.0f paper:g"
)


def run(
    experiment: str,
    settings: Sequence[runs.Setting],
    patches: Callable[[runs.Setting], runs.Patches],
    *,
    output: Path,
    jobs: str | None = None,
    engines: str = ",".join(runs.ENGINES),
    rounds: int = 3,
    quick: bool = False,
    progress: Progress = no_progress,
) -> Report:
    """Measure what the csv file in a folder does not hold of this machine; write the report."""
    here = {key: machine()[key] for key in ("processor", "instruction_set")}
    where: dict[str, Any] = {**here, "cores": joblib.cpu_count()}
    counts, names = runs.processor_counts(jobs, where["cores"]), runs.engines_named(engines)
    # A whole round before the next; what is compared is measured side by side.
    wanted = [
        runs.Run(**asdict(at), engine=engine, processors=p, round=number)
        for number in range(1 if quick else rounds)
        for at in settings
        for p in counts
        for engine in names
    ]
    output.mkdir(parents=True, exist_ok=True)
    checksum = cache(runs.Patches.checksum)

    def at(cell: runs.Run) -> dict[str, Any]:
        given = patches(cell)
        return {"data": given.data, "checksum": checksum(given), **where}

    def measure(cell: runs.Run) -> dict[str, Any]:
        return runs.measured(cell, patches(cell), quick)

    store = Store(output / f"{experiment}.csv", Result)
    for _ in store.run(wanted, at, measure, progress):
        pass
    return write(experiment, output, quick)


def points(experiment: str, results: Sequence[Result]) -> list[Point]:
    """The results on one machine and data, as medians over the rounds.

    ``speedup`` is over one thread, for independent processes over one of them. ``share`` is the
    speed of threads as a share of the independent processes', and of Dask as one of the threads'.
    Ratios are taken within a round. ``paper`` is the paper's speedup.
    """
    order = ("threads", "dask", "processes")
    names = ("method", "m", "samples", "processors", "engine")
    rounds = grouped(results, lambda r: tuple(getattr(r, name) for name in names))
    found = []
    for key in sorted(rounds, key=lambda key: (*key[:4], order.index(key[4]))):
        *at, processors, engine = key
        here = rounds[key]
        base = "processes" if engine == "processes" else "threads"
        beside = {"threads": "processes", "dask": "threads"}.get(engine)
        point: Point = dict(zip(names, key, strict=True))
        for name in ("seconds_per_iteration", "seconds", "rmse"):
            point[name] = here.median(name)
        peak = here.median("peak_bytes")
        point["megabytes"] = None if peak is None else peak / 1e6
        point["speedup"] = _ratio(rounds.get((*at, 1, base)), here)
        point["share"] = _ratio(rounds.get((*at, processors, beside)), here)
        paper = _papers(experiment, key[0], key[1]) if engine == "threads" else {}
        point["paper"] = paper.get(processors)
        found.append(point)
    return found


def _ratio(slow: Repeats[Result] | None, fast: Repeats[Result]) -> float | None:
    """How many times as fast, within the same rounds."""
    seconds = {row.round: row.seconds_per_iteration for row in (slow.rows if slow else ())}
    ratios = [seconds[r.round] / r.seconds_per_iteration for r in fast.rows if r.round in seconds]
    return statistics.median(ratios) if ratios else None


def _papers(experiment: str, method: str, m: int) -> dict[int, float]:
    """The paper's speedups for a method and size, by p; 1 with one process."""
    row = TABLE2.get((method, m), {}) if experiment == "table2" else TABLE4.get(method, {})
    return {1: 1.0, **row}


def claims(experiment: str, found: Sequence[Point]) -> list[Claim]:
    """What was aimed at, for as much of it as these points can tell."""
    threads = [p for p in found if p["engine"] == "threads" and p["samples"] >= _FEWEST]
    faster = [p for p in threads if p["speedup"] and p["processors"] > 1]
    largest = [p for p in found if p["samples"] == _MOST_SAMPLES]
    of_threads = [p for p in largest if p["engine"] == "threads" and experiment == "table4"]
    made = [
        Claim(
            "2 threads are at least 1.9 times as fast as one",
            [_outcome(p, "speedup", ".2f", 1.9) for p in faster if p["processors"] == 2],
        ),
        Claim(
            # A machine may not give 16 full cores.
            "16 threads are at least 14 times as fast as one, or 95 % as fast as 16 processes",
            [
                _outcome(p, "share", ".0%", 0.95)
                if (p["share"] or 0) >= 0.95
                else _outcome(p, "speedup", ".2f", 14)
                for p in faster
                if p["processors"] == 16
            ],
        ),
        Claim(
            "The threads' speedup is at least the paper's",
            [_outcome(p, "speedup", ".2f", p["paper"]) for p in faster if p["paper"]],
        ),
        Claim(
            f"For N = {_MOST_SAMPLES:,} Dask reaches the share of the threads' speed aimed at",
            [
                _outcome(p, "share", ".0%", _DASK_SHARES[p["method"]])
                for p in largest
                if p["engine"] == "dask" and p["share"] and p["method"] in _DASK_SHARES
            ],
        ),
        Claim(
            f"An iteration over {_MOST_SAMPLES:,} patches on two cores is as quick as aimed at",
            [
                _outcome(p, "seconds_per_iteration", ".2f", -_SECONDS[p["method"]])
                for p in of_threads
                if p["processors"] == 2 and p["method"] in _SECONDS
            ],
        ),
        Claim(
            f"Learning from {_MOST_SAMPLES:,} patches takes at most 400 MB",
            [_outcome(p, "megabytes", ".0f", -400) for p in of_threads if p["megabytes"]],
        ),
    ]
    return [claim for claim in made if claim.outcomes]


def _outcome(point: Point, name: str, form: str, limit: float) -> Outcome:
    """Whether a value is at least a limit, or at most the one that is given as a negative."""
    value = point[name]
    at = f"{point['method']}, m = {point['m']}, p = {point['processors']}"
    holds = value >= limit if limit > 0 else value <= -limit
    return Outcome(at, holds, f"{value:{form}} against {abs(limit):{form}}")


def write(experiment: str, folder: Path, quick: bool = False) -> Report:
    """Write the report and the figure of all that the csv file in a folder holds."""
    file = folder / f"{experiment}.csv"
    here = ("processor", "cores", "instruction_set", "data")
    groups = grouped(Store(file, Result).rows, lambda r: tuple(getattr(r, name) for name in here))
    if not groups:
        raise ValueError(f"{file} holds no results; run the experiment first.")
    parts: list[Any] = [_HOW]
    machines = []
    # The machine with the most cores comes first, and is the one that is drawn.
    for key in sorted(groups, key=lambda key: -key[1]):
        processor, cores, instruction_set, data = key
        found = points(experiment, groups[key].rows)
        made = claims(experiment, found)
        name = f"{processor}, {cores} core{'s' if cores > 1 else ''}, {instruction_set}"
        table = Table.of(name, found, _COLUMNS)
        parts += [f"## {name}", _about(groups[key].rows, data), table, made]
        record = dict(zip(here, key, strict=True)) | {"points": found}
        machines.append({**record, "claims": [asdict(claim) for claim in made]})
    first = machines[0]
    panels = grouped(first["points"], lambda point: (point["method"], point["m"]))
    draws = [partial(_draw, experiment, *at, panel.rows) for at, panel in panels.items()]
    title = f"{first['processor']}, {first['cores']} cores"
    drawing = figure(draws, title, across=3, sharex=True, sharey=True)
    parts.append(_PAPER[experiment])
    shown = publish(folder, experiment, TITLES[experiment], parts, drawing)
    if quick:
        shown.append("A quick run has too few samples for conclusions.")
    return Report(shown, {"machines": machines})


def _about(rows: Sequence[Result], data: str) -> str:
    sizes = {(r.m, r.samples): None for r in rows}
    samples = ", ".join(f"{count:,} patches of {m} × {m}" for m, count in sizes)
    rounds = 1 + max(r.round for r in rows)
    iterations = " or ".join(map(str, sorted({r.iterations for r in rows})))
    return f"{samples}, float32; from {data}. {iterations} iterations; rounds: {rounds}."


def _draw(experiment: str, method: str, m: int, found: Sequence[Point], ax: Axes) -> None:
    processors = sorted({point["processors"] for point in found})
    lines = {"p": dict(zip(processors, processors, strict=True))}
    for engine in ("processes", "threads", "dask"):
        here = [point for point in found if point["engine"] == engine]
        lines[engine] = {point["processors"]: point["speedup"] for point in here}
    lines["the paper"] = _papers(experiment, method, m)
    styles = ("-", "_-", "o-", "s--", "x"), ("0.8", "0.4", "#c0392b", "#1f5fa8", "0.1")
    for (name, line), style, color in zip(lines.items(), *styles, strict=True):
        ax.plot([*line], [*line.values()], style, color=color, ms=5, lw=1.2, label=name)
    ax.set(title=f"{method}, {m} × {m}", xlabel="p", ylabel="speedup")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.xaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_major_formatter("{x:g}")
