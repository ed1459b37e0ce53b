"""What the commands that run the paper's experiments accept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kronlearn.cli.options import Jobs, Json, Quiet

__all__ = ["reproduce"]

reproduce = typer.Typer(help="Run the paper's experiments again.", no_args_is_help=True)


@reproduce.callback()
def _group() -> None:
    """Run the paper's experiments again."""


@reproduce.command("table3")
def table3(
    images: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="Has lena.png, barbara.png, boat.png, peppers.png, house.png or some of them.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where to write.")
    ] = Path("table3"),
    draws: Annotated[int, typer.Option(min=1, metavar="N", help="Draws of the noise.")] = 5,
    quick: Annotated[
        bool, typer.Option("--quick", help="One draw of the noise, at σ = 20 only.")
    ] = False,
    n_jobs: Jobs = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Denoise five images at five noise levels: Table III.

    With the paper's settings and with the defaults. Writes table3.csv, table3.md and table3.png,
    with the paper's numbers beside. Goes on where it was interrupted: what table3.csv holds is not
    run again.
    """
    from kronlearn.cli.output import Output
    from kronlearn.cli.reproduce import run_table3

    run_table3(images, output, 1 if quick else draws, quick, n_jobs, Output(as_json, quiet))
