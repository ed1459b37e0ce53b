"""``kronlearn reproduce table1``, ``figure1`` and ``figure2``: methods compared on patches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from kronlearn.cli.output import Output
from kronlearn.cli.patches import included_images
from kronlearn.cli.pictures import read_gray
from kronlearn.cli.timing import machine
from kronlearn.reproduce import comparison, comparison_report
from kronlearn.reproduce.comparison_claims import Claim, Means, means
from kronlearn.reproduce.comparison_figures import picture
from kronlearn.reproduce.comparison_report import Data
from kronlearn.reproduce.methods import DEFAULT_METHODS, METHODS, QUICK_METHODS, methods_named

__all__ = ["run_comparison"]

_STAND_INS = ("camera", "brick", "moon")


def run_comparison(
    experiment: str,
    folder: Path | None,
    place: Path,
    draws: int,
    methods: str | None,
    quick: bool,
    output: Output,
) -> None:
    """Run what is missing of an experiment; write its csv, its report and its picture."""
    names = QUICK_METHODS if quick else DEFAULT_METHODS
    if methods is not None:
        names = methods_named(methods.split(","))
    data, images = _images(folder)
    place.mkdir(parents=True, exist_ok=True)
    if not data.of_the_paper:
        output.say(
            f"No --images: {', '.join(data.images)} of scikit-image stand in for the paper's "
            f"{', '.join(comparison.IMAGES)}; no RMSE is compared with a published one."
        )
    wanted = comparison.runs(comparison.settings(experiment, quick), names, draws)
    results: list[comparison.Result] = []
    title = comparison_report.TITLES[experiment].partition(":")[0]
    with output.progress(title, len(wanted)) as advance:
        for result in comparison.run(wanted, images, place / "comparison.csv"):
            results.append(result)
            advance(f"{result.run.setting}, {result.run.method}; {_left(results, wanted)} left")
    found = means(results)
    report = comparison_report.markdown(experiment, found, data)
    (place / f"{experiment}.md").write_text(report, encoding="utf-8")
    picture(experiment, found).savefig(place / f"{experiment}.png", dpi=150)
    output.say(_table(title, found))
    output.say(comparison_report.summary(experiment, found))
    if quick:
        output.say("A quick run is too short, and has too few samples, for conclusions.")
    output.say(f"Written to {place}: comparison.csv, {experiment}.md and {experiment}.png.")
    output.finish(_record(data, draws, found, comparison_report.claims(found)))


def _images(folder: Path | None) -> tuple[Data, list[NDArray[np.float32]]]:
    """The paper's images from a folder, or those that stand in for them."""
    facts = machine()
    processor = f"{facts['processor']}, {facts['instruction_set']}"
    if folder is None:
        return Data(_STAND_INS, processor), included_images(_STAND_INS)
    if not folder.is_dir():
        raise ValueError(f"--images {folder}: there is no such folder.")
    missing = [name for name in comparison.IMAGES if not (folder / f"{name}.png").is_file()]
    if missing:
        raise ValueError(f"--images {folder} has no {missing[0]}.png.")
    images = [read_gray(folder / f"{name}.png") for name in comparison.IMAGES]
    for name, image in zip(comparison.IMAGES, images, strict=True):
        if image.shape != comparison.IMAGE_SHAPE:
            rows, columns = image.shape
            raise ValueError(
                f"{folder / name}.png has {rows} × {columns} pixels; the paper's has 512 × 512."
            )
    return Data(comparison.IMAGES, processor), images


def _left(results: list[comparison.Result], wanted: list[comparison.Run]) -> str:
    """How long the rest takes, from what the same method took at the same setting or on average."""
    known = {(result.run.setting, result.run.method): result.seconds for result in results}
    average = float(np.mean(list(known.values())))
    seconds = sum(known.get((r.setting, r.method), average) for r in wanted[len(results) :])
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _table(title: str, found: Means) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in ("setting", "method"):
        table.add_column(heading)
    for heading in ("atoms", "RMSE, held out", "learned from", "own coder", "seconds"):
        table.add_column(heading, justify="right")
    previous = None
    for setting, method in _in_order(found):
        entry = found[setting, method]
        table.add_row(
            "" if setting == previous else str(setting),
            method,
            entry.atoms,
            f"{entry.held_out_rmse:.3f}"
            + (f" ± {entry.held_out_rmse_sd:.3f}" if entry.draws > 1 else ""),
            f"{entry.train_rmse:.3f}",
            f"{entry.own_held_out_rmse:.3f}",
            comparison_report.seconds(entry),
        )
        previous = setting
    return table


def _in_order(found: Means) -> Iterable[tuple[comparison.Setting, str]]:
    order = list(METHODS)
    chosen = list(dict.fromkeys(setting for setting, _ in found))
    return sorted(found, key=lambda key: (chosen.index(key[0]), order.index(key[1])))


def _record(data: Data, draws: int, found: Means, claims: list[Claim]) -> dict[str, Any]:
    rows = []
    for setting, method in _in_order(found):
        entry = asdict(found[setting, method])
        del entry["curve"], entry["curve_sd"]
        rows.append({**asdict(setting), "method": method, **entry})
    outcomes = [
        {"claim": claim.text, "setting": str(setting), **asdict(outcome)}
        for claim in claims
        for setting, outcome in claim.outcomes.items()
    ]
    return {
        "images": list(data.images),
        "images_of_the_paper": data.of_the_paper,
        "draws": draws,
        "rows": rows,
        "claims": outcomes,
    }
