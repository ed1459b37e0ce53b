"""``kronlearn denoise``: an image file in, an image file without the noise out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
import typer
from numpy.typing import NDArray

import kronlearn as kl
from kronlearn import options as opt
from kronlearn.cli.checks import one_or_each
from kronlearn.cli.output import counted
from kronlearn.cli.restoring import Restored, numeric_pixels, read_mask, restore_files
from kronlearn.io.images import Picture

__all__ = ["denoise"]


def denoise(
    inputs: opt.InputImages,
    output: opt.OutputImage,
    sigma: Annotated[
        Any,
        typer.Option(
            parser=opt.parse_levels,
            metavar="S",
            help="Standard deviation of the noise, in the image's own units: one number, or one "
            "per channel as in 9,8,12.",
            show_default="estimated",
        ),
    ] = None,
    noise: Annotated[
        Literal["gaussian", "poisson", "poisson-gaussian", "rician"],
        typer.Option(
            metavar="KIND", help="Kind of noise: gaussian, poisson, poisson-gaussian or rician."
        ),
    ] = "gaussian",
    noise_gain: Annotated[
        float | None,
        typer.Option(
            metavar="G",
            help="Pixel value per count (photon), for Poisson noise.",
            show_default="estimated",
        ),
    ] = None,
    mask: opt.Mask = None,
    dictionary: opt.Dictionary = None,
    patch: opt.Patch = None,
    atoms: opt.Atoms = None,
    gain: Annotated[
        float | None,
        typer.Option(
            metavar="G",
            help="Allowed residual norm of a patch, relative to the norm of the noise; larger "
            "values smooth more.",
            show_default="about 1.1",
        ),
    ] = None,
    quality: Annotated[
        Literal["default", "fast", "best", "dictionary"],
        typer.Option(
            metavar="NAME",
            help="fast, default, best (slower and more accurate) or dictionary (only the paper's "
            "method).",
        ),
    ] = "default",
    clean: opt.Clean = None,
    add_noise: Annotated[
        Any,
        typer.Option(
            parser=opt.parse_level,
            metavar="S",
            help="Add noise of this standard deviation first, to try the command on a clean image.",
        ),
    ] = None,
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
    """Remove the noise from an image.

    Reads PNG, JPEG, TIFF (including stacks and floating point), BMP, WebP, GIF and PNM files and
    .npy arrays. The output has the data type of the input. With --mask, missing pixels are filled
    in first. For hyperspectral cubes, see kronlearn cube denoise.
    """
    options = locals()
    if add_noise is not None and clean is not None:
        raise ValueError("--add-noise compares with the image itself; leave --clean out.")

    def restore(picture: Picture, reference: Picture | None, arguments: dict[str, Any]) -> Restored:
        holes = None if mask is None else read_mask(mask, picture)
        _check_nodata(picture, holes)
        level = one_or_each(sigma, picture.n_channels, "channel")
        before = numeric_pixels(picture)
        if add_noise is not None:
            added = np.random.default_rng(seed).normal(size=before.shape)
            before = (before + add_noise * added).astype(np.float32)
            reference = picture
        kind: dict[str, Any] = {"noise": noise, "noise_gain": noise_gain}
        arguments |= {"mask": holes, "gain": gain, "quality": quality, **kind}
        result = kl.images.denoise(before, level, **arguments)
        record = {
            **{name: result.settings.get(name, value) for name, value in kind.items()},
            "sigma": result.sigma,
            "sigma_estimated": sigma is None,
            "added_noise": add_noise,
        }
        facts = [("noise level", _described(result, sigma is None, add_noise))]
        return Restored(picture, result, before, reference, holes, facts, record)

    restore_files("Denoised", restore, options)


def _check_nodata(picture: Picture, holes: NDArray[np.bool_] | None) -> None:
    """Raise ValueError if pixels without data would be denoised like any others."""
    if picture.nodata is None:
        return
    without = picture.pixels == picture.nodata
    if holes is not None:
        without[holes] = False
    if without.any():
        raise ValueError(
            f"the image has {counted(int(without.sum()), 'pixel')} without data (nodata "
            f"{picture.nodata:g}); kronlearn inpaint --missing {picture.nodata:g} fills them in, "
            "and kronlearn cube denoise skips them."
        )


def _described(result: kl.images.Denoised, estimated: bool, added: float | None) -> str:
    """The noise level, and where it comes from."""
    numbers = ", ".join(f"{value:.4g}" for value in np.atleast_1d(result.sigma))
    gains = np.atleast_1d(result.settings.get("noise_gain", ()))
    if gains.size:
        numbers += ", gain = " + ", ".join(f"{value:.4g}" for value in gains)
    source = "estimated from the image" if estimated else "as given"
    if added is not None:
        source += f"; {added:g} was added"
    if result.dictionary is None:
        source += "; too weak to need a dictionary"
        source += " (if that is wrong, give --sigma)" * estimated
    return f"σ = {numbers}, {source}"
