"""What the command line accepts; each command's own module does the work.

Those modules are imported when their command runs, so that ``kronlearn --help`` stays quick.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kronlearn.cli import app_cube, app_images
from kronlearn.cli.bench import bench
from kronlearn.cli.group import Commands
from kronlearn.cli.options import (
    Device,
    DeviceName,
    Jobs,
    Json,
    Method,
    MethodName,
    Overwrite,
    Quick,
    Quiet,
    Structure,
    StructureName,
    parse_sizes,
)
from kronlearn.cli.reproduce import reproduce

__all__ = ["app", "main"]

app = typer.Typer(cls=Commands, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(bench, name="bench")


def main() -> None:
    """Run the command line (the ``kronlearn`` entry point)."""
    app()


def _print_version(wanted: bool) -> None:
    if wanted:
        import kronlearn

        print(f"kronlearn {kronlearn.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def kronlearn(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    show_traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where in the program an error came up.")
    ] = False,
) -> None:
    """Learn separable (Kronecker) dictionaries; denoise and inpaint images with them."""
    if isinstance(context.command, Commands):
        context.command.show_traceback = show_traceback
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where to write.")
    ] = Path("kronlearn-demo"),
    quick: Quick = False,
    n_jobs: Jobs = None,
    seed: Annotated[int, typer.Option(metavar="N", help="For everything random.")] = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Learn from an image that comes with scikit-image and denoise it, in seconds.

    Prints how well learned and fixed dictionaries do, and writes dictionary.png,
    convergence.png, dictionary.safetensors and denoised.png.
    """
    from kronlearn.cli.demo import run
    from kronlearn.cli.output import Output

    run(output, quick, n_jobs, seed, Output(as_json, quiet))


Inputs = Annotated[
    list[Path],
    typer.Argument(help="One .npy array of patches, or images and folders with images."),
]
Model = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="The model file to write.")
]
Patch = Annotated[
    str | None,
    typer.Option(
        metavar="8x8", help="Shape of a patch.", show_default="8x8 for images, the array's own"
    ),
]
Atoms = Annotated[
    str | None,
    typer.Option(
        metavar="16x16",
        help="Atoms per mode.",
        show_default="twice the patch; as the patch if orthonormal",
    ),
]
Sparsity = Annotated[
    int | None,
    typer.Option(
        "--sparsity",
        "-s",
        metavar="N",
        help="Atoms per patch at most.",
        show_default="6; no limit with --tol",
    ),
]
Tol = Annotated[float | None, typer.Option(metavar="NORM", help="Residual that a patch may have.")]
Stride = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Pixels from one patch of an image to the next.",
        show_default="no overlap",
    ),
]
Samples = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Patches of images at most, evenly over the images.",
        show_default="200000",
    ),
]
Colour = Annotated[
    bool, typer.Option("--colour", help="Patches of three colours; images are gray otherwise.")
]
RemoveMeans = Annotated[
    bool | None,
    typer.Option(
        "--remove-means/--keep-means",
        help="Whether each patch loses its mean.",
        show_default="removed for images, kept for arrays",
    ),
]
Terms = Annotated[
    int,
    typer.Option(
        "--terms",
        min=1,
        metavar="R",
        help="Kronecker products to sum, for general factors; more are slower and closer.",
    ),
]
MaxIter = Annotated[int, typer.Option(metavar="N", help="Iterations at most.")]
TimeBudget = Annotated[float | None, typer.Option(metavar="SECONDS", help="Stop after this long.")]
Checkpoint = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Keep the state here; resume from it if it exists."),
]
Seed = Annotated[int | None, typer.Option(metavar="N", help="Makes the result repeatable.")]


@app.command()
def learn(
    inputs: Inputs,
    output: Model = Path("model.safetensors"),
    patch: Patch = None,
    atoms: Atoms = None,
    sparsity: Sparsity = None,
    tol: Tol = None,
    stride: Stride = None,
    samples: Samples = None,
    colour: Colour = False,
    remove_means: RemoveMeans = None,
    structure: StructureName = Structure.general,
    terms: Terms = 1,
    method: MethodName = Method.ols,
    max_iter: MaxIter = 100,
    time_budget: TimeBudget = None,
    checkpoint: Checkpoint = None,
    n_jobs: Jobs = None,
    device: DeviceName = Device.cpu,
    seed: Seed = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Learn a dictionary from patches and save it.

    An interrupt (Ctrl-C) ends learning; the model of the last finished iteration is saved.
    """
    from kronlearn.cli.learn import Request, run
    from kronlearn.cli.output import Output

    request = Request(
        inputs=inputs,
        output=output,
        patch=parse_sizes("--patch", patch),
        atoms=parse_sizes("--atoms", atoms),
        sparsity=sparsity,
        tol=tol,
        stride=stride,
        samples=samples,
        colour=colour,
        remove_means=remove_means,
        structure=structure.value,
        terms=terms,
        method=method.value,
        max_iter=max_iter,
        n_jobs=n_jobs,
        device=device.value,
        seed=seed,
        time_budget=time_budget,
        checkpoint=checkpoint,
        overwrite=overwrite,
    )
    if not run(request, Output(as_json, quiet)):
        raise typer.Exit(130)


@app.command()
def show(
    model: Annotated[Path, typer.Argument(help="A model file.")],
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the atoms into this image file.")
    ] = None,
    convergence: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw how learning went into this one.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Tell what is in a model file, and draw it."""
    from kronlearn.cli.output import Output
    from kronlearn.cli.show import run

    run(model, picture, convergence, overwrite, Output(as_json, quiet))


app_images.add_to(app)
app_cube.add_to(app)
app.add_typer(reproduce, name="reproduce")
