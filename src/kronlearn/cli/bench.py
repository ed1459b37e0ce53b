"""``kronlearn bench``: the benchmarks of kronlearn.experiments, measured on this machine."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import rich.table
import typer

from kronlearn.cli.checks import use_device
from kronlearn.cli.options import Json, Quick, Quiet, parse_counts, parse_sizes
from kronlearn.cli.output import Output
from kronlearn.experiments.report import Report, Table

__all__ = ["CubeFile", "ImageFolder", "bench", "print_report", "run_experiment"]

bench = typer.Typer(help="Measure speed on this machine.")

Repetitions = Annotated[
    int, typer.Option(min=1, metavar="N", help="Number of repetitions; the median is reported.")
]
Rows = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the rows to this CSV file.")]
ImageFolder = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="A folder with the images to use.",
        show_default="images from scikit-image",
    ),
]
CubeFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="The cube to use.", show_default="Indian Pines, from tensorly"
    ),
]


def run_experiment(name: str, options: dict[str, Any]) -> None:
    """Call ``run`` of a module of kronlearn.experiments with a command's options."""
    shown = Output(options.pop("as_json"), options.pop("quiet"))
    if options.get("quick"):
        shown.say("Quick run: too little data to draw conclusions from.")
    run = import_module(f"kronlearn.experiments.{name}").run
    print_report(run(**options, progress=shown.progress), shown)


def print_report(report: Report, shown: Output) -> None:
    """Print a report as text or as JSON."""
    for part in report.shown:
        shown.say(part if isinstance(part, str) else _table(part))
    shown.finish(report.record)


def _table(table: Table) -> rich.table.Table:
    """A table for a terminal, with numbers aligned to the right."""
    shown = rich.table.Table(title=table.title, title_justify="left")
    for column, heading in enumerate(table.headings):
        is_text = any(row[column][:1].isalpha() for row in table.rows)
        shown.add_column(heading, justify="left" if is_text else "right")
    for row in table.rows:
        shown.add_row(*row)
    return shown


def _case(text: str) -> tuple[int, ...]:
    """``8,16,6`` as (8, 16, 6)."""
    sizes = parse_sizes(text)
    if not isinstance(sizes, tuple) or len(sizes) != 3:
        raise typer.BadParameter(f"{text!r} is not a case; give three numbers m,n,s as in 8,16,6.")
    return sizes


@bench.command("coding")
def coding(
    images: ImageFolder = None,
    cases: Annotated[
        list[Any] | None,
        typer.Option(
            "--case",
            parser=_case,
            metavar="m,n,s",
            help="A case to measure: m × m patches, n × n atoms, s nonzeros; may be repeated.",
        ),
    ] = None,
    threads: Annotated[
        int, typer.Option(min=1, metavar="N", help="Also measure with this many threads.")
    ] = 1,
    repetitions: Repetitions = 5,
    quick: Quick = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare sparse coding with SPAMS and scikit-learn, if they are installed."""
    run_experiment("coding", locals())


@bench.command("learning")
def learning(quick: Quick = False, as_json: Json = False, quiet: Quiet = False) -> None:
    """Measure the time and memory that learning takes."""
    run_experiment("learning", locals())


@bench.command("convolutional")
def convolutional(
    images: ImageFolder = None,
    size: Annotated[
        int, typer.Option(min=64, metavar="N", help="Number of rows and columns of the images.")
    ] = 256,
    penalty: Annotated[
        float,
        typer.Option(
            metavar="NUMBER",
            help="Weight of the ℓ1 norm, for pixels from 0 to 1; 0.01 leaves about 0.5 % nonzeros, "
            "0.003 about 1 %.",
        ),
    ] = 0.01,
    iterations: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of learning iterations.")
    ] = 30,
    threads: Annotated[int, typer.Option(min=1, metavar="N", help="Number of threads.")] = 2,
    quick: Quick = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare convolutional coding and learning with SPORCO, if it is installed."""
    run_experiment("convolutional", locals())


def _gpu_case(text: str) -> str:
    if text.upper() not in tuple("ABCDEFGHI"):
        raise typer.BadParameter(f"{text!r} is not a case; give one of A to I.")
    return text.upper()


@bench.command("gpu")
def gpu(
    cases: Annotated[
        list[Any] | None,
        typer.Option(
            "--case",
            parser=_gpu_case,
            metavar="A",
            help="A case to measure, A to I; may be repeated.",
            show_default="all",
        ),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Also measure images, whole fits and streaming; takes three minutes."
        ),
    ] = False,
    repetitions: Repetitions = 5,
    csv: Rows = None,
    quick: Quick = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare learning on a GPU with the CPU, and coding on it with batched-omp."""
    options = locals()
    use_device("cuda", Output(as_json, quiet), "bench gpu", "bench learning needs none")
    run_experiment("gpu", options)


@bench.command("images")
def images_(
    images: ImageFolder = None,
    repetitions: Repetitions = 5,
    quick: Quick = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare denoising and inpainting with scikit-image, and with BM3D if it is installed.

    The folder of --images must contain house.png, barbara.png and lena.png.
    """
    run_experiment("images", locals())


@bench.command("cube")
def cube_(
    cube: CubeFile = None,
    repetitions: Repetitions = 5,
    quick: Quick = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare learning with two and with three modes, and denoising with scikit-image."""
    run_experiment("cube", locals())


@bench.command("scaling")
def scaling(
    workers: Annotated[
        Any,
        typer.Option(
            parser=parse_counts,
            metavar="N,…",
            help="Total numbers of threads.",
        ),
    ] = "1,2,4,8,16",
    threads_per_worker: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Threads per Dask worker; Dask itself uses 4 on 16 cores."
        ),
    ] = 4,
    samples: Annotated[
        int,
        typer.Option(
            min=16,
            metavar="N",
            help="Samples for the largest number of threads; others get proportionally fewer.",
        ),
    ] = 4_000_000,
    csv: Rows = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Time passes over samples, with threads alone and with Dask workers."""
    run_experiment("scaling", locals())
