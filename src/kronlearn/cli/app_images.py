"""What the commands for images accept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kronlearn.cli.options import (
    Device,
    DeviceName,
    Jobs,
    Json,
    Overwrite,
    Quiet,
    parse_numbers,
    parse_sizes,
)

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Give the command line the commands of this module."""
    for command in (denoise, inpaint):
        app.command()(command)


Images = Annotated[
    list[Path], typer.Argument(metavar="IN", help="An image; or several, and OUT a folder.")
]
Restored = Annotated[
    Path, typer.Argument(metavar="OUT", help="The image to write, in the type of the input.")
]
Dictionary = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A model file to use.",
        show_default="a dictionary is learned from the image",
    ),
]
Patch = Annotated[
    str | None,
    typer.Option(metavar="8x8", help="Shape of a patch.", show_default="chosen by the image"),
]
Atoms = Annotated[
    str | None,
    typer.Option(metavar="16x16", help="Atoms per axis.", show_default="about twice the patch"),
]
Sigma = Annotated[
    list[str] | None,
    typer.Option(
        metavar="S",
        help="The noise's standard deviation, in the image's own numbers; one per channel "
        "as in 9,8,12.",
        show_default="estimated",
    ),
]
_REPORTING = "Compare and report"
_TRYING = "Try it out on a good image"

Clean = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="What the image should look like: PSNR and SSIM are told.",
        rich_help_panel=_REPORTING,
    ),
]
Report = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write a page (HTML) with a before/after slider, pictures and numbers.",
        rich_help_panel=_REPORTING,
    ),
]
Comparison = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Draw before, after and difference side by side.",
        rich_help_panel=_REPORTING,
    ),
]
SaveDictionary = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Save the dictionary as a model file.",
        rich_help_panel=_REPORTING,
    ),
]
Seed = Annotated[int, typer.Option(metavar="N", help="For everything random.")]


def denoise(
    inputs: Images,
    output: Restored,
    sigma: Sigma = None,
    dictionary: Dictionary = None,
    patch: Patch = None,
    atoms: Atoms = None,
    gain: Annotated[
        float | None,
        typer.Option(
            metavar="G",
            help="Norm of the residual that a patch may have, in units of the noise's; more is "
            "smoother.",
            show_default="about 1.1",
        ),
    ] = None,
    stages: Annotated[
        int, typer.Option(min=1, max=2, metavar="1|2", help="1 is faster, 0.3 to 1 dB worse.")
    ] = 2,
    clean: Clean = None,
    add_noise: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            help="Add noise of this standard deviation first.",
            rich_help_panel=_TRYING,
        ),
    ] = None,
    report: Report = None,
    comparison: Comparison = None,
    save_dictionary: SaveDictionary = None,
    seed: Seed = 0,
    n_jobs: Jobs = None,
    device: DeviceName = Device.cpu,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Take the noise out of an image.

    Images are PNG, JPEG, TIFF (stacks and floats, too), BMP, WebP, GIF and PNM files, or .npy
    arrays. What is written has the type of what was read.
    """
    from kronlearn.cli.extras import Extras
    from kronlearn.cli.output import Output
    from kronlearn.cli.restore import Denoising, Request
    from kronlearn.cli.restore import denoise as run

    request = Request(
        inputs=inputs,
        output=output,
        dictionary=dictionary,
        patch=parse_sizes("--patch", patch),
        atoms=parse_sizes("--atoms", atoms),
        stages=stages,
        clean=clean,
        extras=Extras(report, comparison, save_dictionary),
        seed=seed,
        n_jobs=n_jobs,
        device=device.value,
        overwrite=overwrite,
    )
    wanted = Denoising(parse_numbers("--sigma", sigma), gain, add_noise)
    run(request, wanted, Output(as_json, quiet))


def inpaint(
    inputs: Images,
    output: Restored,
    mask: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="An image that is not 0 where pixels are missing."),
    ] = None,
    missing: Annotated[
        float | None, typer.Option(metavar="VALUE", help="The value of missing pixels.")
    ] = None,
    drop: Annotated[
        float | None,
        typer.Option(
            metavar="FRACTION",
            help="Remove this fraction of the pixels first.",
            rich_help_panel=_TRYING,
        ),
    ] = None,
    dictionary: Dictionary = None,
    patch: Patch = None,
    atoms: Atoms = None,
    stages: Annotated[
        int, typer.Option(min=1, max=2, metavar="1|2", help="1 is much faster, 3 to 4 dB worse.")
    ] = 2,
    clean: Clean = None,
    report: Report = None,
    comparison: Comparison = None,
    save_dictionary: SaveDictionary = None,
    seed: Seed = 0,
    n_jobs: Jobs = None,
    device: DeviceName = Device.cpu,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fill the missing pixels of an image.

    Which ones are missing is said by a mask, by a value, or, in images of floats, by NaN. The
    other pixels stay as they are.
    """
    from kronlearn.cli.extras import Extras
    from kronlearn.cli.output import Output
    from kronlearn.cli.restore import Inpainting, Request
    from kronlearn.cli.restore import inpaint as run

    request = Request(
        inputs=inputs,
        output=output,
        dictionary=dictionary,
        patch=parse_sizes("--patch", patch),
        atoms=parse_sizes("--atoms", atoms),
        stages=stages,
        clean=clean,
        extras=Extras(report, comparison, save_dictionary),
        seed=seed,
        n_jobs=n_jobs,
        device=device.value,
        overwrite=overwrite,
    )
    run(request, Inpainting(mask, missing, drop), Output(as_json, quiet))
