"""``kronlearn reproduce``: the paper's experiments, with its numbers beside kronlearn's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from kronlearn.cli.bench import CubeFile, ImageFolder, print_report, run_experiment
from kronlearn.cli.options import Folder, Jobs, Json, Quick, Quiet, parse_counts
from kronlearn.cli.output import Output
from kronlearn.experiments.report import join

__all__ = ["reproduce"]

reproduce = typer.Typer(help="Reproduce the paper's experiments.")

Draws = Annotated[
    int, typer.Option(min=1, metavar="N", help="Number of random draws of patches or noise.")
]
Threads = Annotated[
    Any,
    typer.Option(
        "--jobs",
        "-j",
        parser=parse_counts,
        metavar="P,…",
        help="Numbers of threads to measure, as in 1,2,4.",
        show_default="1, 2, 4, … and all cores",
    ),
]
Iterations = Annotated[
    int | None,
    typer.Option(
        min=2,
        metavar="N",
        help="Number of iterations per fit.",
        show_default="60, or 100 for table4",
    ),
]
OnlyReport = Annotated[
    bool,
    typer.Option("--only-report", help="Only write the report, from the CSV file."),
]

_COMPARISONS = {
    "table1": "Compare times and errors of separable and other methods: Table I.",
    "figure1": "Plot the RMSE of held-out samples over the iterations: Figure 1.",
    "figure2": "Compare the RMSE of held-out samples for 8, 16 and 24 atoms per mode: Figure 2.",
}
_FILES = (
    "The folder of --images must contain lena.png, peppers.png and boat.png. Writes {}.md, and "
    "comparison.csv, which table1, figure1 and figure2 share. Results that are already in "
    "comparison.csv are not computed again."
)


def _comparison(experiment: str) -> Callable[..., None]:
    def command(
        images: ImageFolder = None,
        output: Folder = Path("comparison"),
        draws: Draws = 5,
        methods: Annotated[
            str | None,
            typer.Option(
                metavar="NAME,…",
                help="Names of methods, or all; an unknown name lists the known ones.",
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
    reproduce.command(_name, help=f"{_text}\n\n{_FILES.format(_name)}")(_comparison(_name))


@reproduce.command("table2")
def table2(
    images: ImageFolder = None,
    output: Folder = Path("table2"),
    jobs: Threads = None,
    iterations: Iterations = None,
    only_report: OnlyReport = False,
    quick: Quick = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure how learning from patches of three sizes scales with threads: Table II.

    Writes table2.csv, and table2.md, which also has the paper's numbers. Results for this machine
    that are already in table2.csv are not measured again.
    """
    run_experiment("speedup", locals() | {"experiment": "table2"})


@reproduce.command("table3")
def table3(
    images: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="A folder with lena.png, barbara.png, boat.png, peppers.png and house.png, or "
            "some of them.",
        ),
    ],
    output: Folder = Path("table3"),
    draws: Draws = 5,
    quick: Quick = False,
    n_jobs: Jobs = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Denoise five images at five noise levels: Table III.

    Runs with the paper's settings and with the defaults. Writes table3.csv, and table3.md, which
    also has the paper's numbers. Results that are already in table3.csv are not computed again.
    """
    run_experiment("table3", locals())


@reproduce.command("table4")
def table4(
    cube: CubeFile = None,
    scale: Annotated[
        float, typer.Option(metavar="X", help="Fraction of the paper's 3,913,140 patches.")
    ] = 1.0,
    output: Folder = Path("table4"),
    jobs: Threads = None,
    iterations: Iterations = None,
    only_report: OnlyReport = False,
    quick: Quick = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure how learning from millions of patches of a cube scales with threads: Table IV.

    Builds a cube of the paper's size (1 GB in memory) from a small one. Writes table4.csv, and
    table4.md, which also has the paper's numbers. Results for this machine that are already in
    table4.csv are not measured again.
    """
    run_experiment("speedup", locals() | {"experiment": "table4"})


@reproduce.command("results")
def results(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder with the reports.")],
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Join the reports in a folder into one page, RESULTS.md.

    Uses the reports of table1, figure1, figure2, table2, table3 and table4 that are there.
    """
    print_report(join(folder), Output(as_json, quiet))
