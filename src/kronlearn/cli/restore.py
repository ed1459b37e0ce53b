"""``kronlearn denoise`` and ``kronlearn inpaint``: an image file in, an image file out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kronlearn as kl
from kronlearn.cli import drawing
from kronlearn.cli.devices import use_device
from kronlearn.cli.extras import Extras, Story, score_facts, write_extras
from kronlearn.cli.output import Output, facts_table
from kronlearn.cli.pictures import Picture, as_type, check_writable, read_picture, write_picture
from kronlearn.cli.places import check_places
from kronlearn.cli.quality import plain_quality
from kronlearn.io.model_files import load_dictionary

__all__ = ["Denoising", "Inpainting", "Request", "denoise", "inpaint"]


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line, whatever is done to the image."""

    inputs: list[Path]
    #: A file, or for several inputs a folder.
    output: Path
    dictionary: Path | None
    patch: tuple[int, ...] | None
    atoms: tuple[int, ...] | None
    #: 1 or 2.
    stages: int
    #: A reference to compare with.
    clean: Path | None
    extras: Extras
    seed: int
    n_jobs: int | None
    #: "cpu" or "cuda".
    device: str
    overwrite: bool


@dataclass(frozen=True)
class Denoising:
    """What is asked of ``denoise`` alone."""

    #: One number, or one per channel; None: estimated.
    sigma: tuple[float, ...] | None
    gain: float | None
    #: The standard deviation of noise to be added first.
    add_noise: float | None


@dataclass(frozen=True)
class Inpainting:
    """What is asked of ``inpaint`` alone: which pixels are missing."""

    mask: Path | None
    #: The value of missing pixels.
    missing: float | None
    #: A fraction of the pixels, to be removed first.
    drop: float | None


@dataclass(frozen=True)
class Restored:
    """What came out, and what went in."""

    #: ``Denoised`` or ``Inpainted``.
    result: Any
    before: NDArray[Any]
    reference: Picture | None
    #: Where pixels were missing, of the picture's shape.
    mask: NDArray[np.bool_] | None
    #: For people.
    fact: tuple[str, str]
    #: For programs.
    record: dict[str, Any]


Restore = Callable[[Picture, Picture | None, dict[str, Any]], Restored]


def denoise(request: Request, wanted: Denoising, output: Output) -> None:
    """Denoise images, write them and say how it went."""
    if wanted.add_noise is not None:
        if not 0 <= wanted.add_noise < math.inf:
            raise ValueError(f"--add-noise {wanted.add_noise:g} is not a number of at least 0.")
        if request.clean is not None:
            raise ValueError("--add-noise compares with the image itself; leave --clean out.")

    def restore(picture: Picture, reference: Picture | None, options: dict[str, Any]) -> Restored:
        _check_sigma(wanted.sigma, picture)
        before = _numbers(picture)
        if wanted.add_noise is not None:
            noise = np.random.default_rng(request.seed).normal(size=before.shape)
            before = (before + wanted.add_noise * noise).astype(np.float32)
            reference = picture
        sigma = wanted.sigma[0] if wanted.sigma and len(wanted.sigma) == 1 else wanted.sigma
        result = kl.images.denoise(before, sigma, gain=wanted.gain, full=True, **options)
        level = ", ".join(f"{value:.4g}" for value in np.atleast_1d(result.sigma))
        how = "estimated from the image" if wanted.sigma is None else "as given"
        if wanted.add_noise is not None:
            how += f"; {wanted.add_noise:g} was added"
        if result.dictionary is None:
            how += "; nothing was changed" + (", give --sigma" * (wanted.sigma is None))
        record = {
            "sigma": result.sigma,
            "sigma_estimated": wanted.sigma is None,
            "added_noise": wanted.add_noise,
        }
        fact = ("noise level", f"σ = {level}, {how}")
        return Restored(result, before, reference, None, fact, record)

    _run("Denoised", request, restore, [], output)


def inpaint(request: Request, wanted: Inpainting, output: Output) -> None:
    """Fill the missing pixels of an image, write it and say how it went."""
    ways = {"--mask": wanted.mask, "--missing": wanted.missing, "--drop": wanted.drop}
    given = [option for option, value in ways.items() if value is not None]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} both say which pixels are missing; give one.")
    if wanted.drop is not None and not 0 < wanted.drop < 1:
        raise ValueError(f"--drop {wanted.drop:g} is not a fraction between 0 and 1.")

    def restore(picture: Picture, reference: Picture | None, options: dict[str, Any]) -> Restored:
        mask = _missing(picture, wanted, request.seed)
        before = _numbers(picture).copy()
        if wanted.drop is not None:
            before[mask] = 0
            reference = reference or picture
        result = kl.images.inpaint(before, mask, full=True, **options)
        share = float(mask.mean())
        fact = ("missing", f"{100 * share:.3g} % of the pixels")
        return Restored(result, before, reference, mask, fact, {"missing": share})

    _run("Inpainted", request, restore, [wanted.mask], output)


def _run(
    done: str, request: Request, restore: Restore, read_too: list[Path | None], output: Output
) -> None:
    use_device(request.device, output)
    pairs = _pairs(request)
    extras = request.extras.places()
    if len(pairs) > 1:
        for option, path in [*extras, ("--clean", request.clean)]:
            if path is not None:
                raise ValueError(f"{option} is for one image; {len(pairs)} were given.")
    read = [request.clean, request.dictionary, *read_too, *request.inputs]
    outputs = [("OUT", place) for _, place in pairs]
    check_places([*outputs, *extras], [path for path in read if path], request.overwrite)
    drawing.check_drawable("--comparison", request.extras.comparison)
    dictionary = _dictionary(request)
    if len(pairs) == 1:
        output.finish(_one(done, pairs[0], request, dictionary, restore, output))
        return
    records, failed = [], 0
    for pair in pairs:
        try:
            records.append(_one(done, pair, request, dictionary, restore, output))
        except (ValueError, OSError) as problem:
            # The others can be done all the same.
            output.complain(str(problem))
            failed += 1
    output.finish({"images": records})
    if failed:
        raise ValueError(f"{failed} of {len(pairs)} images could not be done.")


def _pairs(request: Request) -> list[tuple[Path, Path]]:
    """What to read, and where to write it to."""
    several = len(request.inputs) > 1
    if several and not request.output.exists() and not request.output.suffix:
        request.output.mkdir()
    if request.output.is_dir():
        pairs = [(path, request.output / path.name) for path in request.inputs]
        names = [path.name for path in request.inputs]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"Two inputs are named {twice}; {request.output} has room for one.")
        return pairs
    if several:
        raise ValueError(
            f"{len(request.inputs)} images need a folder to go to; {request.output} is none."
        )
    return [(request.inputs[0], request.output)]


def _dictionary(request: Request) -> Any:
    if request.dictionary is None:
        return None
    for option, value in {"--patch": request.patch, "--atoms": request.atoms}.items():
        if value is not None:
            raise ValueError(f"{option} is the dictionary's own; leave it out with --dictionary.")
    return load_dictionary(request.dictionary)


def _one(
    done: str,
    pair: tuple[Path, Path],
    request: Request,
    dictionary: Any,
    restore: Restore,
    output: Output,
) -> dict[str, Any]:
    """Restore one image; what there is to say about it to programs."""
    path, place = pair
    picture = read_picture(path)
    reference = _reference(request.clean, picture)
    for note in (*picture.notes, *check_writable(place, picture)):
        output.say(note)
    options = {
        "channel_axis": picture.channel_axis,
        "dictionary": dictionary,
        "patch_size": _one_or_all(request.patch),
        "n_atoms": _one_or_all(request.atoms),
        "stages": request.stages,
        "random_state": request.seed,
        "n_jobs": request.n_jobs,
        "device": request.device,
    }
    with output.stages(path.name) as progress:
        try:
            restored = restore(picture, reference, {**options, "progress": progress})
        except ValueError as problem:
            raise ValueError(f"{path}: {problem}") from problem
    result = restored.result
    after = replace(picture, pixels=as_type(result.image, picture.pixels.dtype))
    if restored.mask is not None and picture.alpha is not None:
        # What was filled in is to be seen.
        after = replace(after, alpha=np.where(restored.mask, picture.alpha.max(), picture.alpha))
    write_picture(place, after, request.overwrite)
    story = Story(
        done,
        path,
        after,
        restored.before,
        restored.reference,
        result.dictionary,
        result.history,
        result.settings,
        result.seconds,
        restored.mask,
    )
    facts = [
        ("image", str(picture)),
        restored.fact,
        ("time", f"{sum(result.seconds.values()):.3g} s"),
    ]
    files = [place, *write_extras(story, request.extras, facts, request.overwrite)]
    names = ", ".join(map(str, files))
    output.say(path)
    output.say(facts_table([*facts, *score_facts(story.scores), ("saved as", names)]))
    return {
        "input": str(path),
        "output": str(place),
        "shape": picture.pixels.shape,
        "dtype": picture.pixels.dtype.name,
        **restored.record,
        "quality": {name: plain_quality(values) for name, values in story.scores.items()},
        "settings": result.settings,
        "seconds": result.seconds,
        "files": [str(file) for file in files],
    }


def _one_or_all(sizes: tuple[int, ...] | None) -> int | tuple[int, ...] | None:
    """A single number stands for all axes."""
    return sizes[0] if sizes is not None and len(sizes) == 1 else sizes


def _numbers(picture: Picture) -> NDArray[Any]:
    """The pixels, with black and white as numbers."""
    is_bool = picture.pixels.dtype == np.bool_
    return picture.pixels.astype(np.float32) if is_bool else picture.pixels


def _reference(path: Path | None, picture: Picture) -> Picture | None:
    if path is None:
        return None
    reference = read_picture(path)
    if (reference.pixels.shape, reference.pixels.dtype) != (
        picture.pixels.shape,
        picture.pixels.dtype,
    ):
        raise ValueError(f"--clean {path} is {reference}; it must be like the image, {picture}.")
    return reference


def _check_sigma(sigma: tuple[float, ...] | None, picture: Picture) -> None:
    if sigma is not None and len(sigma) not in (1, picture.n_channels):
        raise ValueError(
            f"--sigma has {len(sigma)} numbers for {picture.n_channels} channels; give one, or one "
            "per channel."
        )


def _missing(picture: Picture, wanted: Inpainting, seed: int) -> NDArray[np.bool_]:
    """Where pixels are missing, of the picture's shape."""
    pixels = picture.pixels if picture.has_channels else picture.pixels[..., None]
    if wanted.mask is not None:
        mask = _mask_in(wanted.mask, picture)
    elif wanted.drop is not None:
        mask = np.random.default_rng(seed).random(picture.shape) < wanted.drop
    elif wanted.missing is not None and not np.isnan(wanted.missing):
        mask = (pixels == wanted.missing).all(axis=-1)
    elif pixels.dtype.kind == "f":
        mask = ~np.isfinite(pixels).all(axis=-1)
    else:
        raise ValueError(
            "Say which pixels are missing: --mask FILE, --missing VALUE or, to try it out, "
            "--drop FRACTION."
        )
    if not mask.any():
        raise ValueError("No pixel is missing; there is nothing to fill.")
    if mask.all():
        raise ValueError("Every pixel is missing; there is nothing to learn from.")
    return mask


def _mask_in(path: Path, picture: Picture) -> NDArray[np.bool_]:
    mask = read_picture(path)
    marked = mask.pixels != 0
    if mask.has_channels:
        marked = marked.any(axis=-1)
    if marked.shape not in (picture.shape, picture.shape[-2:]):
        raise ValueError(f"--mask {path} is {mask}; it must be as large as the image, {picture}.")
    return np.broadcast_to(marked, picture.shape).copy()
