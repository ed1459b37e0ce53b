"""``kronlearn reproduce``: the paper's experiments, with its numbers beside ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from kronlearn.cli.bench import Cube, Images, print_report, run_experiment
from kronlearn.cli.options import Jobs, Json, Quiet

__all__ = ["reproduce"]

reproduce = typer.Typer(help="Run the paper's experiments again.", no_args_is_help=True)

Place = Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where to write.")]
Quick = Annotated[
    bool, typer.Option("--quick", help="Little data, few iterations and methods, once.")
]
Draws = Annotated[int, typer.Option(min=1, metavar="N", help="Draws of patches or noise.")]
Threads = Annotated[
    str | None, typer.Option("--jobs", "-j", metavar="P,…", help="Numbers of threads, as 1,2,4.")
]
Iterations = Annotated[
    int | None, typer.Option(min=2, metavar="N", help="Of every fit; 60, with table4 100.")
]
OnlyReport = Annotated[
    bool, typer.Option("--only-report", help="Measure nothing; write the report of the csv file.")
]

_COMPARISONS = {
    "table1": "Measure the times and errors of separable and other methods: Table I.",
    "figure1": "Follow the RMSE of held-out samples over the iterations: Figure 1.",
    "figure2": "Compare the RMSE of held-out samples for 8, 16 and 24 atoms per mode: Figure 2.",
}
_FILES = "Writes {}.md and comparison.csv, which all three share. What it holds is not run again."


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
    reproduce.command(_name, help=f"{_text}\n\n{_FILES.format(_name)}")(_comparison(_name))


@reproduce.command("table2")
def table2(
    images: Images = None,
    output: Place = Path("table2"),
    jobs: Threads = None,
    iterations: Iterations = None,
    only_report: OnlyReport = False,
    quick: Quick = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the speedup by threads for three sizes of patches: Table II.

    Writes table2.csv and table2.md, with the paper's numbers beside. What table2.csv holds of this
    machine is not measured again.
    """
    run_experiment("speedup", locals() | {"experiment": "table2"})


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

    With the paper's settings and with the defaults. Writes table3.csv and table3.md, with the
    paper's numbers beside. What table3.csv holds is not run again.
    """
    run_experiment("table3", locals())


@reproduce.command("table4")
def table4(
    cube: Cube = None,
    scale: Annotated[
        float, typer.Option(metavar="X", help="Share of the paper's 3,913,140 patches.")
    ] = 1.0,
    output: Place = Path("table4"),
    jobs: Threads = None,
    iterations: Iterations = None,
    only_report: OnlyReport = False,
    quick: Quick = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the speedup on a hyperspectral image with millions of patches: Table IV.

    A cube of the paper's size, 1 GB in memory, is made from a small one. Writes table4.csv and
    table4.md, with the paper's numbers beside. What table4.csv holds of this machine is not
    measured again.
    """
    run_experiment("speedup", locals() | {"experiment": "table4"})


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
