"""``kronlearn learn``: a dictionary from an array of patches or from images, or filters."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import typer

from kronlearn import options as opt
from kronlearn.cli.checks import check_outputs, use_device
from kronlearn.cli.fitting import learn_and_save
from kronlearn.cli.learn_filters import learn_filters
from kronlearn.cli.output import Output, counted, times
from kronlearn.cli.patches import sample_patches
from kronlearn.core.source import Source
from kronlearn.engines.samples import open_samples, source_of
from kronlearn.experiments.data import find_images
from kronlearn.images.patch_grid import without_means
from kronlearn.io.formats import format_by_ending
from kronlearn.io.stored import StoredArray, open_array

__all__ = ["learn"]

# Formats of arrays of patches; files in other formats are images.
_ARRAYS = ("npy", "zarr", "hdf5", "netcdf", "mat")

# At most this many inputs are named in a model file.
_MAX_NAMES = 20

# Options that learning filters does not have.
_FOR_PATCHES = (
    *("sparsity", "tol", "stride", "samples", "dataset", "remove_means", "terms", "method"),
    *("time_budget", "device"),
)


def learn(
    context: typer.Context,
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="IN",
            help="One array of patches (.npy, .zarr, .h5, .nc, .mat), or images and folders of "
            "images.",
        ),
    ],
    output: opt.Model = Path("model.safetensors"),
    convolutional: Annotated[
        bool,
        typer.Option(
            "--convolutional",
            help="Learn small filters from whole images instead; --patch and --atoms are then the "
            "shape and number of filters (11x11 and 8x8).",
        ),
    ] = False,
    patch: opt.Patch = None,
    atoms: opt.Atoms = None,
    sparsity: opt.Sparsity = None,
    tol: opt.Tol = None,
    stride: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Distance in pixels between neighbouring patches of an image.",
            show_default="the patch size: no overlap",
        ),
    ] = None,
    samples: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Maximum number of patches, taken evenly from all images."
        ),
        # 51 MB of 8 × 8 pixels.
    ] = 200_000,
    colour: Annotated[
        bool,
        typer.Option(
            "--colour",
            help="Learn from RGB patches instead of grey ones; the dictionary is then for RGB "
            "images only.",
        ),
    ] = False,
    remove_means: Annotated[
        bool | None,
        typer.Option(
            "--remove-means/--keep-means",
            help="Whether to subtract the mean of each patch.",
            show_default="removed for images, kept for arrays",
        ),
    ] = None,
    dataset: opt.Dataset = None,
    structure: Annotated[
        Literal["general", "orthonormal", "kronecker", "separable", "dense"] | None,
        typer.Option(
            metavar="NAME",
            help="Kind of factors: general or orthonormal; with --convolutional, kind of filters: "
            "kronecker, separable or dense.",
            show_default="general; kronecker",
        ),
    ] = None,
    terms: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="R",
            help="Number of Kronecker products to sum, for general factors; more are slower and "
            "more accurate.",
        ),
    ] = 1,
    method: opt.Method = "ols",
    penalty: Annotated[
        float,
        typer.Option(
            metavar="NUMBER",
            help="Weight of the ℓ1 norm with --convolutional, for pixels from 0 to 1.",
        ),
    ] = 0.05,
    max_iter: opt.MaxIter = 100,
    time_budget: opt.TimeBudget = None,
    checkpoint: opt.Checkpoint = None,
    n_jobs: opt.Jobs = None,
    device: opt.Device = "cpu",
    seed: opt.Seed = None,
    overwrite: opt.Overwrite = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Learn a dictionary of patches, or convolutional filters.

    Ctrl-C or SIGTERM ends learning and saves the best dictionary so far.
    """
    options = locals()
    shown = Output(as_json, quiet)
    use_device(device, shown)
    paths = _paths(inputs, shown)
    check_outputs([("--output", output), ("--checkpoint", checkpoint)], paths, overwrite)
    origin = {"inputs": [path.name for path in inputs[:_MAX_NAMES]]}
    if convolutional:
        _refuse(context, _FOR_PATCHES, "is for patches; leave it out with --convolutional.")
        learn_filters(options, paths, origin, shown)
        return
    _refuse(context, ["penalty"], "is for filters; it needs --convolutional.")
    options["structure"] = structure = structure or "general"
    if structure not in ("general", "orthonormal"):
        raise ValueError(f"--structure {structure} is for filters; it needs --convolutional.")
    arrays = [path for path in paths if format_by_ending(path) in _ARRAYS]
    if arrays:
        if len(paths) > 1:
            raise ValueError(
                f"{arrays[0]} is an array of patches; give one array, or one or more images."
            )
        reason = "is for images; an array already contains patches."
        _refuse(context, ["stride", "samples", "colour"], reason)
        data = _array_patches(arrays[0], dataset, patch)
        if remove_means:
            patches = data.read(0, len(data)).reshape(-1, *data.patch_shape)
            data = source_of(without_means(patches), data.patch_shape)
    else:
        _refuse(context, ["dataset"], "is for files that contain arrays, not for images.")
        shape = _image_patch(patch, colour)
        keep_means = remove_means is False
        with shown.progress("Reading", len(paths)) as advance:
            data = sample_patches(
                paths, shape, stride, samples, seed or 0, colour, keep_means, advance
            )
    n_atoms = _atoms(atoms, data.patch_shape, structure, colour)
    learn_and_save(options, n_atoms, data, origin, shown)


def _refuse(context: typer.Context, names: Iterable[str], reason: str) -> None:
    """Raise ValueError if one of these options differs from its default."""
    defaults = {option.name: option.default for option in context.command.params}
    for name in names:
        if context.params[name] != defaults[name]:
            raise ValueError(f"--{name.replace('_', '-')} {reason}")


def _paths(inputs: list[Path], output: Output) -> list[Path]:
    """The files to learn from: named ones, and the images in folders."""
    paths = []
    for path in inputs:
        if path.is_dir() and format_by_ending(path) not in _ARRAYS:
            found = find_images(path)
            output.say(f"Found {counted(len(found), 'image')} in {path}")
            paths += found
        else:
            paths.append(path)
    return paths


def _image_patch(sizes: int | tuple[int, ...] | None, colour: bool) -> tuple[int, int]:
    """Rows and columns of the patches of images."""
    shape = sizes or 8
    if isinstance(shape, int):
        return shape, shape
    if colour and len(shape) == 3 and shape[2] == 3:
        shape = shape[:2]
    if len(shape) != 2:
        raise ValueError(
            f"--patch {times(shape)} has {len(shape)} sizes; images need two, and --colour adds "
            "the channels."
        )
    return shape[0], shape[1]


def _array_patches(path: Path, dataset: str | None, sizes: int | tuple[int, ...] | None) -> Source:
    """The samples in a file, as patches of the shape of ``--patch`` or of the array."""
    stored = open_samples(open_array(path, dataset))
    assert isinstance(stored, StoredArray)
    sample = tuple(stored.shape[1:])
    shape = sizes or sample
    if sizes is None and len(sample) == 1:
        raise ValueError(
            f"{path} contains flat samples of {counted(sample[0], 'number')}; give their shape, "
            "for example --patch 8x8."
        )
    if isinstance(shape, int):
        # One size means square patches, unless the samples are vectors of this length.
        square = (shape,) * max(2, len(sample))
        shape = (shape,) if sample == (shape,) else square
    return source_of(stored, shape, str(path))


def _atoms(
    atoms: int | tuple[int, ...] | None, patch_shape: tuple[int, ...], structure: str, colour: bool
) -> tuple[int, ...]:
    """Atoms per mode; by default a multiple of the patch size, and three for colours."""
    if atoms is None:
        factor = 1 if structure == "orthonormal" else 2
        atoms = tuple(factor * size for size in patch_shape)
        return (*atoms[:2], 3) if colour else atoms
    if isinstance(atoms, int):
        atoms = (atoms,) * (len(patch_shape) - colour)
    return (*atoms, 3) if colour and len(atoms) == 2 else atoms
