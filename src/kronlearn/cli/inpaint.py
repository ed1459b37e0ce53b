"""``kronlearn inpaint``: an image file in, an image file without holes out."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

import kronlearn as kl
from kronlearn import options as opt
from kronlearn.cli.restoring import Restored, numeric_pixels, read_mask, restore_files
from kronlearn.io.images import Picture

__all__ = ["inpaint"]


def inpaint(
    inputs: opt.InputImages,
    output: opt.OutputImage,
    mask: opt.Mask = None,
    missing: Annotated[
        float | None, typer.Option(metavar="VALUE", help="Value that marks missing pixels.")
    ] = None,
    drop: Annotated[
        float | None,
        typer.Option(
            metavar="FRACTION",
            help="Remove this fraction of the pixels first, to try the command on a whole image.",
        ),
    ] = None,
    dictionary: opt.Dictionary = None,
    patch: opt.Patch = None,
    atoms: opt.Atoms = None,
    stages: Annotated[
        int, typer.Option(min=1, max=2, metavar="1|2", help="1 is faster, 2 is more accurate.")
    ] = 2,
    clean: opt.Clean = None,
    report: opt.Report = None,
    comparison: opt.Comparison = None,
    save_dictionary: opt.SaveDictionary = None,
    seed: opt.Seed = 0,
    n_jobs: opt.Jobs = None,
    device: opt.Device = "cpu",
    overwrite: opt.Overwrite = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Fill in the missing pixels of an image.

    Missing pixels are marked by a mask, by a value or, in floating-point images, by NaN. All other
    pixels are kept.
    """
    options = locals()
    named = [f"--{name}" for name in ("mask", "missing", "drop") if options[name] is not None]
    if len(named) > 1:
        raise ValueError(
            f"{' and '.join(named)} each say which pixels are missing; give only one of them."
        )
    if drop is not None and not 0 < drop < 1:
        raise ValueError(f"--drop {drop:g} is not between 0 and 1.")

    def restore(picture: Picture, reference: Picture | None, arguments: dict[str, Any]) -> Restored:
        if drop is not None:
            holes = np.random.default_rng(seed).random(picture.shape) < drop
        elif mask is not None:
            holes = read_mask(mask, picture)
        else:
            holes = _marked(picture, missing)
        if not holes.any():
            raise ValueError("No pixel is missing; there is nothing to fill in.")
        if holes.all():
            raise ValueError("Every pixel is missing; there is nothing to learn from.")
        before = numeric_pixels(picture).copy()
        if drop is not None:
            before[holes] = 0
            reference = reference or picture
        result = kl.images.inpaint(before, holes, stages=stages, **arguments)
        return Restored(picture, result, before, reference, holes)

    restore_files("Inpainted", restore, options)


def _marked(picture: Picture, missing: float | None) -> NDArray[np.bool_]:
    """Where all channels have the value ``missing`` or, without one, any channel is not finite."""
    pixels = picture.pixels if picture.has_channels else picture.pixels[..., None]
    if missing is not None and not np.isnan(missing):
        return (pixels == missing).all(axis=-1)
    if pixels.dtype.kind == "f":
        return ~np.isfinite(pixels).all(axis=-1)
    raise ValueError(
        "Say which pixels are missing: --mask FILE, --missing VALUE or, to try it out, "
        "--drop FRACTION."
    )
