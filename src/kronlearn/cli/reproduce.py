"""``kronlearn reproduce``: the paper's experiments, with its numbers beside ours."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kronlearn.cli.bench import print_report, run_experiment
from kronlearn.cli.options import Jobs, Json, Quiet

__all__ = ["reproduce"]

reproduce = typer.Typer(help="Run the paper's experiments again.", no_args_is_help=True)

Place = Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where to write.")]
Quick = Annotated[
    bool, typer.Option("--quick", help="Little data, few iterations and methods, once.")
]
Draws = Annotated[int, typer.Option(min=1, metavar="N", help="Draws of patches or noise.")]
Processors = Annotated[
    str | None,
    typer.Option(
        "--jobs", "-j", metavar="P,…", help="Numbers of processors.", show_default="1,2,4,… and all"
    ),
]
Engines = Annotated[
    str, typer.Option(metavar="NAME,…", help="Who does the work; processes are the ceiling.")
]
Methods = Annotated[
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

_COMPARISONS = {
    "table1": "Measure the times and errors of separable and other methods: Table I.",
    "figure1": "Follow the RMSE of held-out samples over the iterations: Figure 1.",
    "figure2": "Compare the RMSE of held-out samples for 8, 16 and 24 atoms per mode: Figure 2.",
}
_RESUMES = "What the csv file holds is not run again."


class Format(StrEnum):
    """Files that patches are kept in."""

    npy = "npy"
    zarr = "zarr"


@reproduce.callback()
def _group() -> None:
    """Run the paper's experiments again."""


def _comparison(experiment: str) -> Callable[..., None]:
    def command(
        images: Annotated[
            Path | None,
            typer.Option(
                metavar="FOLDER",
                help="Has lena.png, peppers.png and boat.png; without it other images stand in.",
            ),
        ] = None,
        output: Place = Path("comparison"),
        draws: Draws = 5,
        methods: Annotated[
            str | None,
            typer.Option(
                metavar="NAME,…",
                help="Names of methods, or all; an unknown name lists them.",
                show_default="the paper's and this library's",
            ),
        ] = None,
        quick: Quick = False,
        as_json: Json = False,
        quiet: Quiet = False,
    ) -> None:
        run_experiment("comparison", locals() | {"experiment": experiment})

    return command


for _name, _text in _COMPARISONS.items():
    _files = f"Writes {_name}.md and {_name}.png, and comparison.csv, which all three share."
    reproduce.command(_name, help=f"{_text}\n\n{_files} {_RESUMES}")(_comparison(_name))


@reproduce.command("table2")
def table2(
    images: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Images to cut patches from.", show_default="included"),
    ] = None,
    output: Place = Path("table2"),
    jobs: Processors = None,
    engines: Engines = "threads,dask,processes",
    methods: Methods = "general,orthonormal",
    rounds: Rounds = 3,
    iterations: Iterations = None,
    work: Work = None,
    only_report: OnlyReport = False,
    quick: Quick = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the speedup by threads and Dask workers for three sizes of patches: Table II.

    Writes table2.csv, table2.md and table2.png, with the paper's numbers beside. What table2.csv
    holds of this machine is not measured again.
    """
    run_experiment("table2", locals())


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
    draws: Draws = 5,
    quick: Annotated[
        bool, typer.Option("--quick", help="One draw of the noise, at σ = 20 only.")
    ] = False,
    n_jobs: Jobs = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Denoise five images at five noise levels: Table III.

    With the paper's settings and with the defaults. Writes table3.csv, table3.md and table3.png,
    with the paper's numbers beside. What table3.csv holds is not run again.
    """
    run_experiment("table3", locals())


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
    methods: Methods = "general,orthonormal",
    rounds: Rounds = 1,
    iterations: Iterations = None,
    work: Work = None,
    only_report: OnlyReport = False,
    quick: Quick = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the speedup on a hyperspectral image with millions of patches: Table IV.

    A cube of the paper's size is made from Indian Pines, 1 GB on the disk. Writes table4.csv,
    table4.md and table4.png, with the paper's numbers beside. What table4.csv holds of this machine
    is not measured again.
    """
    run_experiment("table4", locals())


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
    from kronlearn.experiments.report import join

    print_report(join(folder), Output(as_json, quiet))
