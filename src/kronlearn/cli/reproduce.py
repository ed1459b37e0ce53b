"""``kronlearn reproduce``: the paper's experiments, with its numbers beside ours."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from kronlearn.cli.output import Output
from kronlearn.cli.pictures import read_gray
from kronlearn.reproduce import table3, table3_report
from kronlearn.reproduce.published import IMAGES
from kronlearn.reproduce.results import join

__all__ = ["join_reports", "run_table3"]

_QUICK_SIGMA = 20


def run_table3(
    folder: Path, place: Path, draws: int, quick: bool, n_jobs: int | None, output: Output
) -> None:
    """Run what is missing of Table III, write the csv, the Markdown table and the picture."""
    names = [name for name in IMAGES if (folder / f"{name}.png").is_file()]
    if not names:
        raise ValueError(f"--images {folder} has none of " + ", ".join(f"{n}.png" for n in IMAGES))
    place.mkdir(parents=True, exist_ok=True)
    wanted = table3.cells(names, draws)
    if quick:
        wanted = [cell for cell in wanted if cell.sigma == _QUICK_SIGMA]
    results = []
    with output.progress("Table III", len(wanted)) as advance:
        runs = table3.run(
            wanted, lambda name: read_gray(folder / f"{name}.png"), place / "table3.csv", n_jobs
        )
        for result in runs:
            results.append(result)
            advance(f"{result.image}, σ = {result.sigma}, {result.method}: {result.psnr:.2f} dB")
    found = table3_report.means(results)
    (place / "table3.md").write_text(table3_report.markdown(found, draws), encoding="utf-8")
    table3_report.picture(found).savefig(place / "table3.png", dpi=150)
    verdicts = table3_report.verdicts(found)
    output.say(_table(found, verdicts))
    output.say(table3_report.summary(verdicts))
    output.say(f"Written to {place}: table3.csv, table3.md and table3.png.")
    output.finish({"draws": draws, "cells": [asdict(verdict) for verdict in verdicts]})


def _table(found: table3_report.Means, verdicts: list[table3_report.Verdict]) -> Table:
    table = Table(title="Table III, PSNR in dB", title_justify="left")
    table.add_column("σ", justify="right")
    table.add_column("image")
    for heading in ("paper's best", *table3.METHODS, "default over paper"):
        table.add_column(heading, justify="right")
    table.add_column("paper's settings")
    for verdict in verdicts:
        psnr = [found[verdict.sigma, verdict.image, method][0] for method in table3.METHODS]
        table.add_row(
            str(verdict.sigma),
            verdict.image,
            f"{psnr[-1] - verdict.over_paper:.2f}",
            *(f"{value:.2f}" for value in psnr),
            f"{verdict.over_paper:+.2f}",
            "hold" if verdict.rows_hold else "fall short",
        )
    return table


def join_reports(folder: Path, output: Output) -> None:
    """Write one page with all reports that a folder has."""
    page = folder / "RESULTS.md"
    page.write_text(join(folder), encoding="utf-8")
    output.say(f"Written: {page}.")
    output.finish({"page": page})
