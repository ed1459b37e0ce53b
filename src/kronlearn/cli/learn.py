"""``kronlearn learn``: a dictionary from an array of patches or from images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kronlearn as kl
from kronlearn.cli import patches
from kronlearn.cli.devices import use_device
from kronlearn.cli.output import Output, facts_table, times
from kronlearn.cli.places import check_places
from kronlearn.cli.record import atom_usage, fitted_entry, thinned_history
from kronlearn.io.model_files import save_dictionary

__all__ = ["SAMPLES", "Request", "run"]

#: Patches of images at most: 51 MB of 8 × 8 pixels.
SAMPLES = 200_000

# Inputs that a model file names.
_MAX_NAMES = 20


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line."""

    inputs: list[Path]
    output: Path
    #: Shape of a sample; None: the array's own, or 8 × 8 for images.
    patch: tuple[int, ...] | None
    #: Atoms per mode; None: twice the patch's, or the patch's if orthonormal.
    atoms: tuple[int, ...] | None
    sparsity: int | None
    tol: float | None
    #: Pixels between patches of an image; None: as many as the patch has.
    stride: int | None
    #: Patches of images at most; None: SAMPLES.
    samples: int | None
    #: Patches of three colours, not of gray levels.
    colour: bool
    #: None: removed from the patches of images, kept in arrays.
    remove_means: bool | None
    structure: str
    #: Kronecker products that are summed.
    terms: int
    method: str
    max_iter: int
    n_jobs: int | None
    #: "cpu" or "cuda".
    device: str
    seed: int | None
    time_budget: float | None
    checkpoint: Path | None
    overwrite: bool


def run(request: Request, output: Output) -> bool:
    """Learn, save and report; whether it came to an end by itself, not by an interrupt."""
    use_device(request.device, output)
    paths = _paths(request, output)
    check_places(
        [("--output", request.output), ("--checkpoint", request.checkpoint)],
        paths,
        request.overwrite,
        resumed=["--checkpoint"],
    )
    samples = _samples(request, paths, output)
    model = _estimator(request, samples.shape[1:])
    with output.learning("Learning", request.max_iter) as callback:
        model.set_params(callback=callback)
        interrupted = not _fit(model, samples)
    record = _record(request, model, len(samples))
    if interrupted:
        record["stop_reason"] = "interrupted"
    usage = atom_usage(
        model.dictionary_,
        samples,
        n_nonzero_coefs=model.n_nonzero_coefs,
        tol=request.tol,
        method=record["method"],
        n_jobs=request.n_jobs,
        device=request.device,
    )
    info = {**record, "usage": usage, "history": thinned_history(model.history_)}
    save_dictionary(model.dictionary_, request.output, info=info)
    facts = [
        ("patch shape", times(model.dictionary_.patch_shape)),
        ("atoms", times(model.dictionary_.n_atoms)),
        *((name.replace("_", " "), _readable(value)) for name, value in record.items()),
        ("saved as", request.output),
    ]
    output.say(facts_table(facts))
    output.finish(
        {
            "patch_shape": model.dictionary_.patch_shape,
            "n_atoms": model.dictionary_.n_atoms,
            **record,
            "usage": usage,
            "history": model.history_,
            "output": str(request.output),
        }
    )
    return not interrupted


def _fit(model: Any, samples: NDArray[Any]) -> bool:
    """Whether learning came to its end; if interrupted, the model is that of the last iteration."""
    try:
        model.fit(samples)
    except KeyboardInterrupt:
        if not hasattr(model, "dictionary_"):
            raise
        return False
    return True


def _paths(request: Request, output: Output) -> list[Path]:
    """The files to learn from: those that were named, and the images in folders."""
    paths = []
    for path in request.inputs:
        found = patches.find_images(path) if path.is_dir() else [path]
        if path.is_dir():
            output.say(f"Found {len(found)} image{'s' * (len(found) > 1)} in {path}")
        paths += found
    return paths


def _samples(request: Request, paths: list[Path], output: Output) -> NDArray[Any]:
    arrays = [path for path in paths if path.suffix == ".npy"]
    if not arrays:
        return _image_patches(request, paths, output)
    if len(paths) > 1:
        raise ValueError(
            f"{arrays[0]} is an array of patches; give that one file, or one or more images."
        )
    for option, value in _for_images(request).items():
        if value:
            raise ValueError(f"{option} applies to images; an array holds its patches already.")
    samples = _array_patches(arrays[0], request.patch)
    return patches.without_means(samples) if request.remove_means else samples


def _for_images(request: Request) -> dict[str, Any]:
    return {
        "--stride": request.stride,
        "--samples": request.samples,
        "--colour": request.colour,
    }


def _image_patches(request: Request, paths: list[Path], output: Output) -> NDArray[np.float32]:
    shape = request.patch or (8, 8)
    if request.colour and len(shape) == 3 and shape[2] == 3:
        shape = shape[:2]
    if len(shape) != 2:
        raise ValueError(f"--patch {times(shape)} has {len(shape)} sizes; images need two.")
    samples = SAMPLES if request.samples is None else request.samples
    for option, number in {"--stride": request.stride, "--samples": samples}.items():
        if number is not None and number < 1:
            raise ValueError(f"{option} {number} is less than 1; give at least 1.")
    if len(paths) > samples:
        raise ValueError(f"--samples {samples} is less than one for each of {len(paths)} images.")
    with output.progress("Reading", len(paths)) as advance:
        return patches.drawn_patches(
            paths,
            (shape[0], shape[1]),
            request.stride,
            samples,
            seed=request.seed or 0,
            colour=request.colour,
            keep_means=request.remove_means is False,
            advance=advance,
        )


def _array_patches(path: Path, shape: tuple[int, ...] | None) -> NDArray[Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist or is not a file.")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as problem:
        raise ValueError(f"{path} cannot be read as a NumPy array: {problem}") from problem
    if array.ndim < 2:
        raise ValueError(f"{path} has shape {array.shape}; give (N, m_1, …, m_d) or (N, features).")
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{path} has dtype {array.dtype}; give real numbers.")
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float32 if array.dtype.itemsize <= 2 else np.float64)
    if shape is None or array.shape[1:] == shape:
        return array
    if array.ndim != 2 or array.shape[1] != math.prod(shape):
        raise ValueError(
            f"--patch {times(shape)} does not fit the array of shape {array.shape} in {path}."
        )
    return array.reshape(-1, *shape)


def _estimator(request: Request, patch_shape: tuple[int, ...]) -> Any:
    atoms = request.atoms
    if atoms is None and request.patch is None and len(patch_shape) == 1:
        raise ValueError(
            f"The array holds flat samples of {patch_shape[0]} numbers; say what they are, "
            "--patch 8x8 for instance."
        )
    if atoms is None:
        factor = 1 if request.structure == "orthonormal" else 2
        atoms = tuple(factor * size for size in patch_shape)
        if request.colour:
            atoms = (*atoms[:2], 3)
    elif request.colour and len(atoms) == 2:
        atoms = (*atoms, 3)
    sparsity = request.sparsity
    if sparsity is None and request.tol is None:
        sparsity = 6
    return kl.KroneckerDictionaryLearning(
        n_atoms=atoms,
        n_nonzero_coefs=sparsity,
        tol=request.tol,
        structure=request.structure,
        n_terms=request.terms,
        method=request.method,
        max_iter=request.max_iter,
        n_jobs=request.n_jobs,
        device=request.device,
        random_state=request.seed,
        time_budget=request.time_budget,
        checkpoint=request.checkpoint,
    )


def _record(request: Request, model: Any, n_samples: int) -> dict[str, Any]:
    """What the model file says about how it was made."""
    history = model.history_
    return {
        "samples": n_samples,
        "structure": request.structure,
        "n_terms": model.dictionary_.n_terms,
        "method": "threshold" if request.structure == "orthonormal" else request.method,
        "n_nonzero_coefs": model.n_nonzero_coefs,
        "tol": request.tol,
        "seed": request.seed,
        "inputs": [path.name for path in request.inputs[:_MAX_NAMES]],
        "iterations": model.n_iter_,
        "stop_reason": model.stop_reason_,
        **fitted_entry(model),
        "atoms_replaced": int(sum(history["atoms_replaced"])),
        "seconds": float(history["seconds"][-1]),
        "kronlearn_version": kl.__version__,
    }


def _readable(value: Any) -> str | None:
    if isinstance(value, float):
        return f"{value:.5g}"
    return None if value is None else str(value)
