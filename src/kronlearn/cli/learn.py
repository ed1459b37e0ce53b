"""``kronlearn learn``: a dictionary from an array of patches or from images, or filters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import kronlearn as kl
from kronlearn.cli import options as opt
from kronlearn.cli import patches
from kronlearn.cli.checks import check_places, use_device
from kronlearn.cli.learn_filters import learn_filters
from kronlearn.cli.output import Output, counted, facts_of, facts_table, times
from kronlearn.cli.record import atom_usage, learned_record, thinned_history
from kronlearn.core.source import Source
from kronlearn.engines.samples import open_samples, source_of
from kronlearn.experiments.data import find_images
from kronlearn.images.patch_grid import without_means
from kronlearn.io.formats import format_by_ending
from kronlearn.io.model_files import save_dictionary
from kronlearn.io.stored import StoredArray, open_array

__all__ = ["learn", "learn_and_save"]

# Patches of images at most: 51 MB of 8 × 8 pixels.
_SAMPLES = 200_000

# Files that hold patches; the others are images.
_ARRAYS = ("npy", "zarr", "hdf5", "netcdf", "mat")

# Inputs that a model file names.
_MAX_NAMES = 20

# Of dictionaries of patches.
_STRUCTURES = ("general", "orthonormal")


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
    convolutional: Annotated[
        bool,
        typer.Option(
            "--convolutional",
            help="Learn small filters of whole images; --patch and --atoms are their shape and "
            "number (11x11 and 8x8).",
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
            show_default=str(_SAMPLES),
        ),
    ] = None,
    colour: Annotated[
        bool,
        typer.Option(
            "--colour",
            help="Learn from RGB patches instead of grey ones; the dictionary then fits RGB images "
            "only.",
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
            help="Kind of factors: general or orthonormal; with --convolutional, kronecker, "
            "separable or dense filters.",
            show_default="general; kronecker",
        ),
    ] = None,
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
    method: opt.Method = "ols",
    penalty: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER",
            help="Weight of the ℓ1 norm with --convolutional, for pixels from 0 to 1.",
            show_default="0.05",
        ),
    ] = None,
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
    given = locals()
    shown = Output(as_json, quiet)
    use_device(device, shown)
    paths = _paths(inputs, shown)
    check_places([("--output", output), ("--checkpoint", checkpoint)], paths, overwrite)
    arrays = [path for path in paths if format_by_ending(path) in _ARRAYS]
    origin = {"inputs": [path.name for path in inputs[:_MAX_NAMES]]}
    if convolutional:
        given["penalty"] = 0.05 if penalty is None else penalty
        learn_filters(given, paths, origin, shown)
        return
    if penalty is not None or structure not in (None, *_STRUCTURES):
        option = "--penalty" if penalty is not None else f"--structure {structure}"
        raise ValueError(f"{option} is for filters; it needs --convolutional.")
    given["structure"] = structure = structure or "general"
    if arrays:
        if len(paths) > 1:
            raise ValueError(
                f"{arrays[0]} is an array of patches; give one array, or one or more images."
            )
        for_images = {"--stride": stride, "--samples": samples, "--colour": colour or None}
        for option, value in for_images.items():
            if value is not None:
                raise ValueError(f"{option} is for images; an array already contains patches.")
        data = _array_patches(arrays[0], dataset, patch)
        if remove_means:
            whole = data.read(0, len(data)).reshape(-1, *data.patch_shape)
            data = source_of(without_means(whole), data.patch_shape)
    else:
        if dataset is not None:
            raise ValueError("--dataset is for files that hold arrays, not for images.")
        shape = _image_patch(patch, colour)
        n_samples = samples or _SAMPLES
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
    n_atoms = _atoms(atoms, data.patch_shape, structure, colour)
    learn_and_save(given, n_atoms, data, origin, shown)


def learn_and_save(
    given: Mapping[str, Any],
    n_atoms: int | tuple[int, ...],
    samples: Source,
    origin: Mapping[str, Any],
    shown: Output,
) -> None:
    """Learn a dictionary from samples, save it, and tell how it went.

    On an interrupt the best dictionary so far is saved before the interrupt is raised again.
    ``given`` is what the command was given; ``origin`` says where the samples come from.
    """
    place, sparsity, tol = given["output"], given["sparsity"], given["tol"]
    same = ("structure", "method", "max_iter", "n_jobs", "device", "time_budget", "checkpoint")
    model = kl.KroneckerDictionaryLearning(
        n_atoms,
        n_nonzero_coefs=6 if sparsity is None and tol is None else sparsity,
        tol=tol,
        n_terms=given.get("terms", 1),
        random_state=given["seed"],
        **{name: given[name] for name in same},
    )
    interrupt = None
    with shown.learning("Learning", model.max_iter) as callback:
        model.set_params(callback=callback)
        try:
            model.fit(samples)
        except KeyboardInterrupt as problem:
            if not hasattr(model, "dictionary_"):
                raise
            interrupt = problem
    dictionary = model.dictionary_
    record = learned_record(model, len(samples), origin)
    if interrupt is not None:
        record["stop_reason"] = "interrupted"
    usage = atom_usage(model, samples)
    info = {**record, "usage": usage, "history": thinned_history(model.history_)}
    save_dictionary(dictionary, place, info=info)
    record = {"patch_shape": dictionary.patch_shape, "n_atoms": dictionary.n_atoms, **record}
    shown.say(facts_table([*facts_of(record), ("saved as", place)]))
    shown.finish({**record, "usage": usage, "history": model.history_, "output": str(place)})
    if interrupt is not None:
        raise interrupt


def _paths(inputs: list[Path], output: Output) -> list[Path]:
    """The files to learn from: those that were named, and the images in folders."""
    paths = []
    for path in inputs:
        is_folder = path.is_dir() and format_by_ending(path) not in _ARRAYS
        found = find_images(path) if is_folder else [path]
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
    stored = open_samples(open_array(path, dataset))
    assert isinstance(stored, StoredArray)
    found = tuple(stored.shape[1:])
    shape = sizes or found
    if sizes is None and len(found) == 1:
        raise ValueError(
            f"{path} holds flat samples of {counted(found[0], 'number')}; give their shape, for "
            "example --patch 8x8."
        )
    if isinstance(shape, int):
        # A square patch, or a mode of its own if that fits.
        square = (shape,) * max(2, len(found))
        shape = (shape,) if found == (shape,) else square
    return source_of(stored, shape, str(path))


def _atoms(
    atoms: int | tuple[int, ...] | None, patch_shape: tuple[int, ...], structure: str, colour: bool
) -> tuple[int, ...]:
    """Atoms per mode: what was given, or by the patch; three for the colours."""
    if atoms is None:
        factor = 1 if structure == "orthonormal" else 2
        atoms = tuple(factor * size for size in patch_shape)
        return (*atoms[:2], 3) if colour else atoms
    if isinstance(atoms, int):
        atoms = (atoms,) * (len(patch_shape) - colour)
    return (*atoms, 3) if colour and len(atoms) == 2 else atoms
