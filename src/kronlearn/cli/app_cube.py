"""What the commands for hyperspectral cubes accept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kronlearn.cli.options import (
    Device,
    DeviceName,
    Jobs,
    Json,
    Method,
    MethodName,
    Overwrite,
    Quiet,
    Structure,
    StructureName,
    parse_sizes,
)

__all__ = ["add_to"]

cube = typer.Typer(help="Hyperspectral cubes: look, learn, denoise.", no_args_is_help=True)


def add_to(app: typer.Typer) -> None:
    """Give the command line the commands of this module."""
    app.add_typer(cube, name="cube")


File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="A cube: ENVI (.hdr), GeoTIFF, NetCDF, HDF5, Zarr, .mat, .npy, or a folder of images.",
    ),
]
BandAxis = Annotated[
    int | None,
    typer.Option(
        metavar="AXIS",
        help="The axis of the bands in the file, 0, 1 or 2.",
        show_default="what the file says, or a guess",
    ),
]
Dataset = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The array in a file that holds several.",
        show_default="the only one, or the only cube",
    ),
]
NoData = Annotated[
    float | None,
    typer.Option(
        "--nodata",
        metavar="VALUE",
        help="The value that means no data; nan is one.",
        show_default="what the file says",
    ),
]


@cube.callback()
def _group() -> None:
    """Look into hyperspectral cubes, learn from them and denoise them."""


@cube.command("info")
def info(
    path: File,
    noise: Annotated[
        bool, typer.Option("--noise", help="Estimate the noise of every band, too.")
    ] = False,
    band_axis: BandAxis = None,
    dataset: Dataset = None,
    nodata: NoData = None,
    n_jobs: Jobs = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Tell what is in a cube's file."""
    from kronlearn.cli.cube import Opening, show
    from kronlearn.cli.output import Output

    show(Opening(path, band_axis, dataset, nodata), noise, n_jobs, Output(as_json, quiet))


@cube.command("learn")
def learn(
    path: File,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The model file to write.")],
    patch: Annotated[
        str,
        typer.Option(
            metavar="8x8", help="Shape of a patch of every band; with three sizes, of some bands."
        ),
    ] = "8x8",
    atoms: Annotated[
        str | None,
        typer.Option(
            metavar="16x16",
            help="Atoms per mode.",
            show_default="twice the patch; as the patch if orthonormal or of three modes",
        ),
    ] = None,
    sparsity: Annotated[
        int | None,
        typer.Option(
            "--sparsity",
            "-s",
            min=1,
            metavar="N",
            help="Nonzeros of a patch at most.",
            show_default="6, unless --tol is given",
        ),
    ] = None,
    tol: Annotated[
        float | None,
        typer.Option(metavar="E", help="Norm of the residual that a patch may have."),
    ] = None,
    remove_means: Annotated[
        bool, typer.Option("--remove-means", help="Each patch loses its mean first.")
    ] = False,
    structure: StructureName = Structure.general,
    method: MethodName = Method.ols,
    max_iter: Annotated[int, typer.Option(min=1, metavar="N", help="Iterations at most.")] = 30,
    time_budget: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Stop after this long.")
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep the state here; resume from it if it exists."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Makes the result repeatable.")
    ] = None,
    band_axis: BandAxis = None,
    dataset: Dataset = None,
    nodata: NoData = None,
    n_jobs: Jobs = None,
    device: DeviceName = Device.cpu,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Learn a dictionary from all patches of a cube and save it.

    The cube is read in blocks of rows and need not fit into memory. An interrupt (Ctrl-C) ends
    learning; the model of the last finished iteration is saved.
    """
    from kronlearn.cli.cube import Learning, Opening
    from kronlearn.cli.cube import learn as run
    from kronlearn.cli.output import Output

    request = Learning(
        opening=Opening(path, band_axis, dataset, nodata),
        output=model,
        patch=parse_sizes("--patch", patch) or (8, 8),
        atoms=parse_sizes("--atoms", atoms),
        sparsity=sparsity,
        tol=tol,
        remove_means=remove_means,
        structure=structure.value,
        method=method.value,
        max_iter=max_iter,
        time_budget=time_budget,
        checkpoint=checkpoint,
        seed=seed,
        n_jobs=n_jobs,
        device=device.value,
        overwrite=overwrite,
    )
    if not run(request, Output(as_json, quiet)):
        raise typer.Exit(130)


@cube.command("denoise")
def denoise(
    path: Annotated[Path, typer.Argument(metavar="IN", help="A cube, as for cube info.")],
    output: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="The file to write; its ending says the format."),
    ],
    sigma: Annotated[
        str | None,
        typer.Option(
            metavar="S",
            help="The noise's standard deviation, in the cube's own numbers: one, one per band as "
            "in 9,8,12, or a file with one per band.",
            show_default="estimated for every band",
        ),
    ] = None,
    clean: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What the cube should look like: PSNR, SSIM and spectral angle are told.",
        ),
    ] = None,
    band_axis: BandAxis = None,
    dataset: Dataset = None,
    nodata: NoData = None,
    n_jobs: Jobs = None,
    device: DeviceName = Device.cpu,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Take the noise out of a cube.

    The result has the type, the axes and the metadata of the input. The cube is read in blocks of
    rows and need not fit into memory.
    """
    from kronlearn.cli.cube import Denoising, Opening
    from kronlearn.cli.cube import denoise as run
    from kronlearn.cli.output import Output

    request = Denoising(
        opening=Opening(path, band_axis, dataset, nodata),
        output=output,
        sigma=sigma,
        clean=clean,
        n_jobs=n_jobs,
        device=device.value,
        overwrite=overwrite,
    )
    run(request, Output(as_json, quiet))
