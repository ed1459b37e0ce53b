"""``kronlearn reproduce table2`` and ``table4``: how learning scales with the processors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from kronlearn.cli.output import Output
from kronlearn.cli.patches import INCLUDED, images_in, included_images
from kronlearn.reproduce import scaling, scaling_report, table2, table4
from kronlearn.reproduce.scaling_points import Point, by_machine, claims, points
from kronlearn.reproduce.speedup import Choice, work_folder

__all__ = ["run_table2", "run_table4", "write_report"]


def run_table2(
    folder: Path | None, place: Path, work: Path | None, choice: Choice, output: Output
) -> None:
    """Measure what is missing of Table II; write its csv, its report and its picture."""
    settings = table2.settings(choice.method_names, choice.iterations, choice.quick)
    images, name = _images(folder)
    with work_folder(work) as files:
        prepared = table2.prepared(images, name, files)
        _measure("table2", settings, prepared, place, choice, output)


def _images(folder: Path | None) -> tuple[list[NDArray[np.float32]], str]:
    if folder is None:
        return included_images(), f"{', '.join(INCLUDED)} of scikit-image"
    if not folder.is_dir():
        raise ValueError(f"--images {folder}: there is no such folder.")
    return images_in(folder), f"the images in {folder.resolve().name}"


def run_table4(
    cube: table4.Cube, place: Path, work: Path | None, choice: Choice, output: Output
) -> None:
    """Measure what is missing of Table IV; write its csv, its report and its picture."""
    methods = choice.method_names
    with work_folder(work) as files:
        with output.stages("Table IV") as stage:
            patches, samples = cube.prepared(files, lambda share: stage("making the cube", share))
        settings = table4.settings(methods, samples, choice.iterations, choice.quick)
        _measure("table4", settings, lambda _: patches, place, choice, output)


def _measure(
    experiment: str,
    settings: Sequence[scaling.Setting],
    patches: Callable[[scaling.Run], scaling.Patches],
    place: Path,
    choice: Choice,
    output: Output,
) -> None:
    place.mkdir(parents=True, exist_ok=True)
    machine = scaling.this_machine()
    title = scaling_report.TITLES[experiment].partition(":")[0]
    measured = choice.measure(settings, patches, place / f"{experiment}.csv", machine)
    with output.progress(title, len(choice.runs(settings, machine))) as advance:
        for result in measured:
            at, seconds = result.run, result.found.seconds_per_iteration
            advance(f"{at.method}, m = {at.m}, {at.engine}, p = {at.processors}: {seconds:.3g} s")
    if choice.quick:
        output.say("A quick run has too few samples for conclusions.")
    write_report(experiment, place, output)


def write_report(experiment: str, place: Path, output: Output) -> None:
    """Write the report and the picture of all that the csv file in a folder holds."""
    file = place / f"{experiment}.csv"
    results = scaling.read_results(file)
    if not results:
        raise ValueError(f"{file} holds no results; run the experiment first.")
    report = scaling_report.markdown(experiment, results)
    (place / f"{experiment}.md").write_text(report, encoding="utf-8")
    scaling_report.picture(experiment, results).savefig(place / f"{experiment}.png", dpi=150)
    record = []
    for (machine, data), measured in by_machine(results).items():
        found = points(measured)
        output.say(_table(f"{scaling_report.TITLES[experiment]}; {machine}", experiment, found))
        output.say(scaling_report.summary(experiment, found))
        record.append({**asdict(machine), "data": data, **_record(experiment, found)})
    output.say(f"Written to {place}: {experiment}.csv, {experiment}.md and {experiment}.png.")
    output.finish({"machines": record})


def _table(title: str, experiment: str, found: Sequence[Point]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("method")
    for heading in ("m", "p", *scaling_report.HEADINGS):
        table.add_column(heading, justify="right")
    for point in found:
        numbers = scaling_report.cells(experiment, point)
        table.add_row(point.setting.method, str(point.setting.m), str(point.processors), *numbers)
    return table


def _record(experiment: str, found: Sequence[Point]) -> dict[str, Any]:
    return {
        "points": [
            {
                **asdict(point.setting),
                "p": point.processors,
                "speedup": dict(point.speedup),
                "dask_share": point.dask_share,
                "ceiling_share": point.ceiling_share,
                "found": {engine: asdict(value) for engine, value in point.found.items()},
            }
            for point in found
        ],
        "claims": [
            {"claim": claim.text, **asdict(outcome)}
            for claim in claims(experiment, found)
            for outcome in claim.outcomes
        ],
    }
