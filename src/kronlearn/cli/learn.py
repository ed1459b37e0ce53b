"""``kronlearn learn``: a dictionary from an array of patches or from images."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

import kronlearn as kl
from kronlearn.cli import options as opt
from kronlearn.cli import patches
from kronlearn.cli.devices import use_device
from kronlearn.cli.fitting import default_sparsity, learn_and_save
from kronlearn.cli.output import Output, counted, times
from kronlearn.cli.places import check_places
from kronlearn.core.source import Source
from kronlearn.engines.samples import open_samples, source_of
from kronlearn.io.stored import StoredArray, format_by_ending, open_array

__all__ = ["SAMPLES", "learn"]

#: Patches of images at most: 51 MB of 8 × 8 pixels.
SAMPLES = 200_000

# Files that hold patches; the others are images.
_ARRAYS = ("npy", "zarr", "hdf5", "netcdf", "mat")

# Inputs that a model file names.
_MAX_NAMES = 20


def learn(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="IN",
            help="One array of patches (.npy, .zarr, .h5, .nc, .mat), or images and folders of "
            "images.",
        ),
    ],
    output: opt.Model = Path("model.safetensors"),
    patch: Annotated[
        str | None,
        typer.Option(
            metavar="8x8",
            help="Shape of a patch; a single number makes it square.",
            show_default="8x8 for images, the array's own",
        ),
    ] = None,
    atoms: Annotated[
        str | None,
        typer.Option(
            metavar="16x16",
            help="Atoms per mode.",
            show_default="twice the patch; as the patch if orthonormal",
        ),
    ] = None,
    sparsity: opt.Sparsity = None,
    tol: opt.Tol = None,
    stride: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Pixels from one patch of an image to the next.",
            show_default="no overlap",
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Maximum number of patches, taken evenly from all images.",
            show_default=str(SAMPLES),
        ),
    ] = None,
    colour: Annotated[
        bool,
        typer.Option(
            "--colour",
            help="Learn from RGB patches instead of gray ones. denoise and inpaint need a gray "
            "dictionary.",
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
    structure: opt.StructureName = opt.Structure.general,
    terms: Annotated[
        int,
        typer.Option(
            "--terms",
            min=1,
            metavar="R",
            help="Number of Kronecker products to sum (general factors); more are slower and "
            "more accurate.",
        ),
    ] = 1,
    method: opt.MethodName = opt.Method.ols,
    max_iter: opt.MaxIter = 100,
    time_budget: opt.TimeBudget = None,
    checkpoint: opt.Checkpoint = None,
    n_jobs: opt.Jobs = None,
    device: opt.DeviceName = opt.Device.cpu,
    seed: opt.Seed = None,
    overwrite: opt.Overwrite = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Learn a dictionary from patches and save it.

    Ctrl-C or SIGTERM ends learning and saves the dictionary of the last finished iteration.
    """
    shown = Output(as_json, quiet)
    use_device(device.value, shown)
    paths = _paths(inputs, shown)
    check_places(
        [("--output", output), ("--checkpoint", checkpoint)],
        paths,
        overwrite,
        resumed=["--checkpoint"],
    )
    sizes = opt.parse_sizes("--patch", patch)
    arrays = [path for path in paths if format_by_ending(path) in _ARRAYS]
    if arrays:
        if len(paths) > 1:
            raise ValueError(
                f"{arrays[0]} is an array of patches; give one array, or one or more images."
            )
        for_images = {"--stride": stride, "--samples": samples, "--colour": colour or None}
        for option, value in for_images.items():
            if value is not None:
                raise ValueError(f"{option} is for images; an array already holds its patches.")
        data = _array_patches(arrays[0], dataset, sizes)
        if remove_means:
            data = _without_means(data)
    else:
        if dataset is not None:
            raise ValueError("--dataset is for files that hold arrays, not for images.")
        shape = _image_patch(sizes, colour)
        n_samples = samples or SAMPLES
        with shown.progress("Reading", len(paths)) as advance:
            data = patches.drawn_patches(
                paths,
                shape,
                stride,
                n_samples,
                seed=seed or 0,
                colour=colour,
                keep_means=remove_means is False,
                advance=advance,
            )
    model = kl.KroneckerDictionaryLearning(
        n_atoms=_atoms(opt.parse_sizes("--atoms", atoms), data.patch_shape, structure, colour),
        n_nonzero_coefs=default_sparsity(sparsity, tol),
        tol=tol,
        structure=structure.value,
        n_terms=terms,
        method=method.value,
        max_iter=max_iter,
        n_jobs=n_jobs,
        device=device.value,
        random_state=seed,
        time_budget=time_budget,
        checkpoint=checkpoint,
    )
    origin = {"inputs": [path.name for path in inputs[:_MAX_NAMES]]}
    learn_and_save(model, data, output, origin, shown)


def _paths(inputs: list[Path], output: Output) -> list[Path]:
    """The files to learn from: those that were named, and the images in folders."""
    paths = []
    for path in inputs:
        is_folder = path.is_dir() and format_by_ending(path) not in _ARRAYS
        found = patches.find_images(path) if is_folder else [path]
        if is_folder:
            output.say(f"Found {counted(len(found), 'image')} in {path}")
        paths += found
    return paths


def _image_patch(sizes: int | tuple[int, ...] | None, colour: bool) -> tuple[int, int]:
    """Rows and columns of the patches of images."""
    shape = sizes or 8
    if isinstance(shape, int):
        return shape, shape
    if colour and len(shape) == 3 and shape[2] == 3:
        shape = shape[:2]
    if len(shape) != 2:
        raise ValueError(f"--patch {times(shape)} has {len(shape)} sizes; images need two.")
    return shape[0], shape[1]


def _array_patches(path: Path, dataset: str | None, sizes: int | tuple[int, ...] | None) -> Source:
    """The samples of a file; rows become patches of the shape that was given."""
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist.")
    stored = open_samples(open_array(path, dataset))
    assert isinstance(stored, StoredArray)
    found = tuple(stored.shape[1:])
    shape = sizes or found
    if sizes is None and len(found) == 1:
        raise ValueError(
            f"{path} holds flat samples of {counted(found[0], 'number')}; say what shape they "
            "have, --patch 8x8 for instance."
        )
    if isinstance(shape, int):
        # A square patch, or a mode of its own if that fits.
        square = (shape,) * max(2, len(found))
        shape = (shape,) if found == (shape,) else square
    if found != shape and found != (math.prod(shape),):
        raise ValueError(
            f"--patch {times(shape)} does not fit the array of shape {stored.shape} in {path}."
        )
    return source_of(stored, shape)


def _without_means(source: Source) -> Source:
    whole = source.read(0, len(source)).reshape(-1, *source.patch_shape)
    return source_of(patches.without_means(whole), source.patch_shape)


def _atoms(
    atoms: int | tuple[int, ...] | None,
    patch_shape: tuple[int, ...],
    structure: opt.Structure,
    colour: bool,
) -> tuple[int, ...]:
    """Atoms per mode: what was given, or by the patch; three for the colours."""
    if atoms is None:
        factor = 1 if structure is opt.Structure.orthonormal else 2
        atoms = tuple(factor * size for size in patch_shape)
        return (*atoms[:2], 3) if colour else atoms
    if isinstance(atoms, int):
        atoms = (atoms,) * (len(patch_shape) - colour)
    return (*atoms, 3) if colour and len(atoms) == 2 else atoms
