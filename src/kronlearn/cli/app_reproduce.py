"""What the commands that run the paper's experiments accept."""

from __future__ import annotations

from enum import StrEnum
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
Processors = Annotated[
    str | None,
    typer.Option(
        "--jobs", "-j", metavar="P,…", help="Numbers of processors.", show_default="1,2,4,… and all"
    ),
]
Engines = Annotated[
    str, typer.Option(metavar="NAME,…", help="Who does the work; processes are the ceiling.")
]
ScalingMethods = Annotated[
    str, typer.Option(metavar="NAME,…", help="Some of general, orthonormal and default.")
]
Rounds = Annotated[int, typer.Option(min=1, metavar="N", help="How often everything is measured.")]
Iterations = Annotated[
    int | None,
    typer.Option(min=2, metavar="N", help="Of every fit.", show_default="60, table4: 100"),
]
Work = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="For the samples, kept there.", show_default="a temporary one"
    ),
]
OnlyReport = Annotated[
    bool, typer.Option("--only-report", help="Measure nothing; write the report of the csv file.")
]
QuickScaling = Annotated[
    bool, typer.Option("--quick", help="Little data, few iterations, one round.")
]

_PLACE = Path("comparison")


class Format(StrEnum):
    """Files that patches are kept in."""

    npy = "npy"
    zarr = "zarr"


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
    """Measure the times and errors of separable and other methods: Table I.

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
    """Follow the RMSE of held-out samples over the iterations, for all methods: Figure 1.

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
    """Compare the RMSE of held-out samples for 8, 16 and 24 atoms per mode: Figure 2.

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


@reproduce.command("table2")
def table2(
    images: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Images to cut patches from.", show_default="included"),
    ] = None,
    output: Place = Path("table2"),
    jobs: Processors = None,
    engines: Engines = "threads,dask,processes",
    methods: ScalingMethods = "general,orthonormal",
    rounds: Rounds = 3,
    iterations: Iterations = None,
    work: Work = None,
    only_report: OnlyReport = False,
    quick: QuickScaling = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the speedup by threads and Dask workers for three sizes of patches: Table II.

    Writes table2.csv, table2.md and table2.png, with the paper's numbers beside. Goes on where it
    was interrupted: what table2.csv holds of this machine is not measured again.
    """
    from kronlearn.cli.output import Output
    from kronlearn.cli.reproduce_scaling import run_table2, write_report
    from kronlearn.reproduce.speedup import Choice

    if only_report:
        write_report("table2", output, Output(as_json, quiet))
        return
    choice = Choice(jobs, engines, methods, rounds, iterations, quick)
    run_table2(images, output, work, choice, Output(as_json, quiet))


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


@reproduce.command("table4")
def table4(
    cube: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A small cube, .npy or .npz (rows, columns, bands), to be enlarged.",
            show_default="Indian Pines, from tensorly",
        ),
    ] = None,
    patches: Annotated[
        Path | None,
        typer.Option(metavar="FILE.npy", help="Patches (N, 8, 8), float32, to be used instead."),
    ] = None,
    scale: Annotated[
        float, typer.Option(metavar="X", help="Share of the paper's 3,913,140 patches.")
    ] = 1.0,
    form: Annotated[
        Format, typer.Option("--format", help="Of the file that the patches are read from.")
    ] = Format.npy,
    output: Place = Path("table4"),
    jobs: Processors = None,
    engines: Engines = "threads,dask,processes",
    methods: ScalingMethods = "general,orthonormal",
    rounds: Rounds = 1,
    iterations: Iterations = None,
    work: Work = None,
    only_report: OnlyReport = False,
    quick: QuickScaling = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the speedup on a hyperspectral image with millions of patches: Table IV.

    A cube of the paper's size is made from Indian Pines, 1 GB on the disk. Writes table4.csv,
    table4.md and table4.png, with the paper's numbers beside. Goes on where it was interrupted:
    what table4.csv holds of this machine is not measured again.
    """
    from kronlearn.cli.output import Output
    from kronlearn.cli.reproduce_scaling import run_table4, write_report
    from kronlearn.reproduce.speedup import Choice
    from kronlearn.reproduce.table4 import QUICK_SCALE, Cube

    if only_report:
        write_report("table4", output, Output(as_json, quiet))
        return
    choice = Choice(jobs, engines, methods, rounds, iterations, quick)
    source = Cube(cube, patches, QUICK_SCALE if quick else scale, form.value)
    run_table4(source, output, work, choice, Output(as_json, quiet))


@reproduce.command("results")
def results(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the reports are.")],
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Join the reports in a folder to one page, RESULTS.md.

    Those of table1, figure1, figure2, table2, table3 and table4 that it has.
    """
    from kronlearn.cli.output import Output
    from kronlearn.cli.reproduce import join_reports

    join_reports(folder, Output(as_json, quiet))
