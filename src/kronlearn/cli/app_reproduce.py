"""What the commands that run the paper's experiments accept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kronlearn.cli.options import Jobs, Json, Quiet

__all__ = ["reproduce"]

reproduce = typer.Typer(help="Run the paper's experiments again.", no_args_is_help=True)

Images = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Has lena.png, peppers.png and boat.png; without it other images stand in.",
    ),
]
Place = Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where to write.")]
Draws = Annotated[int, typer.Option(min=1, metavar="N", help="Draws of the patches.")]
Methods = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,…",
        help="Names of methods, or all; an unknown name lists them.",
        show_default="the paper's and this library's",
    ),
]
Quick = Annotated[
    bool, typer.Option("--quick", help="One draw, little data, few iterations and methods.")
]

_PLACE = Path("comparison")


@reproduce.callback()
def _group() -> None:
    """Run the paper's experiments again."""


@reproduce.command("table1")
def table1(
    images: Images = None,
    output: Place = _PLACE,
    draws: Draws = 5,
    methods: Methods = None,
    quick: Quick = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the times of separable and other methods: Table I.

    Writes table1.md and table1.png, with the paper's seconds beside, and comparison.csv. Goes on
    where it was interrupted: what comparison.csv holds is not run again. These are also the runs of
    figure1.
    """
    _compare("table1", images, output, draws, methods, quick, as_json, quiet)


@reproduce.command("figure1")
def figure1(
    images: Images = None,
    output: Place = _PLACE,
    draws: Draws = 5,
    methods: Methods = None,
    quick: Quick = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Follow the RMSE of separable and other methods over the iterations: Figure 1.

    Writes figure1.md and figure1.png, and comparison.csv. Goes on where it was interrupted: what
    comparison.csv holds is not run again. These are also the runs of table1.
    """
    _compare("figure1", images, output, draws, methods, quick, as_json, quiet)


@reproduce.command("figure2")
def figure2(
    images: Images = None,
    output: Place = _PLACE,
    draws: Draws = 5,
    methods: Methods = None,
    quick: Quick = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare the RMSE of separable and other methods for 8, 16 and 24 atoms per mode: Figure 2.

    Writes figure2.md and figure2.png, and comparison.csv. Goes on where it was interrupted: what
    comparison.csv holds is not run again.
    """
    _compare("figure2", images, output, draws, methods, quick, as_json, quiet)


def _compare(
    experiment: str,
    images: Path | None,
    place: Path,
    draws: int,
    methods: str | None,
    quick: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    from kronlearn.cli.output import Output
    from kronlearn.cli.reproduce_comparison import run_comparison

    output = Output(as_json, quiet)
    run_comparison(experiment, images, place, 1 if quick else draws, methods, quick, output)


@reproduce.command("table3")
def table3(
    images: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="Has lena.png, barbara.png, boat.png, peppers.png, house.png or some of them.",
        ),
    ],
    output: Place = Path("table3"),
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


@reproduce.command("results")
def results(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the reports are.")],
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Join the reports in a folder to one page, RESULTS.md.

    Those of table1, figure1, figure2 and table3 that it has.
    """
    from kronlearn.cli.output import Output
    from kronlearn.cli.reproduce import join_reports

    join_reports(folder, Output(as_json, quiet))
