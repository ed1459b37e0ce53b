"""``kronlearn code`` and ``kronlearn decode``: an image as a small file, and back."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kronlearn.cli import drawing
from kronlearn.cli.devices import use_device
from kronlearn.cli.extras import Extras, Story, write_extras
from kronlearn.cli.output import Output, facts_table, times
from kronlearn.cli.pictures import (
    IMAGE_ENDINGS,
    Picture,
    check_writable,
    read_picture,
    write_picture,
)
from kronlearn.cli.places import check_places
from kronlearn.cli.quality import decibels
from kronlearn.images.compression import CodedImage
from kronlearn.images.compression import code as code_image
from kronlearn.images.compression import decode as decode_image
from kronlearn.io.model_files import load_dictionary

__all__ = ["Coding", "code", "coded_facts", "coded_record", "decode"]


@dataclass(frozen=True)
class Coding:
    """What was asked for on the command line."""

    input: Path
    output: Path
    psnr: float
    dictionary: Path | None
    patch: tuple[int, ...] | None
    atoms: tuple[int, ...] | None
    extras: Extras
    seed: int
    n_jobs: int | None
    #: "cpu" or "cuda".
    device: str
    overwrite: bool


def code(request: Coding, output: Output) -> None:
    """Code an image, write the file and say how small it is."""
    use_device(request.device, output)
    read = [path for path in (request.input, request.dictionary) if path is not None]
    check_places([("OUT", request.output), *request.extras.places()], read, request.overwrite)
    drawing.check_drawable("--comparison", request.extras.comparison)
    if request.output.suffix.lower() in IMAGE_ENDINGS:
        raise ValueError(
            f"OUT {request.output} is named like an image, which a coded one is not; name it .kron."
        )
    if request.dictionary is not None and request.patch is not None:
        raise ValueError("--patch is the dictionary's own; leave it out with --dictionary.")
    picture = _codable(read_picture(request.input))
    for note in picture.notes:
        output.say(note)
    dictionary = None if request.dictionary is None else load_dictionary(request.dictionary)
    start = time.perf_counter()
    with output.stages(request.input.name) as progress:
        try:
            coded = code_image(
                picture.pixels,
                request.psnr,
                channel_axis=picture.channel_axis,
                dictionary=dictionary,
                patch_size=request.patch or 8,
                n_atoms=request.atoms,
                random_state=request.seed,
                n_jobs=request.n_jobs,
                device=request.device,
                progress=progress,
            )
        except ValueError as problem:
            raise ValueError(f"{request.input}: {problem}") from problem
    seconds = {"coding": time.perf_counter() - start}
    coded.save(request.output, overwrite=request.overwrite)
    source_size = request.input.stat().st_size
    facts = [
        *coded_facts(coded),
        ("input file", f"{source_size:,} bytes, {source_size / coded.n_bytes:.3g} times as many"),
        ("time", f"{seconds['coding']:.3g} s"),
    ]
    files = [request.output, *_about(request, picture, coded, seconds, facts)]
    output.say(request.input)
    output.say(facts_table([*facts, ("saved as", ", ".join(map(str, files)))]))
    record = {"input": str(request.input), "output": str(request.output), **coded_record(coded)}
    output.finish({**record, "seconds": seconds, "files": [str(file) for file in files]})


def decode(
    source: Path, target: Path, max_values: int | None, overwrite: bool, output: Output
) -> None:
    """Write the image of a coded file as an image file."""
    check_places([("OUT", target)], [source], overwrite)
    if not source.is_file():
        raise FileNotFoundError(f"{source} does not exist or is not a file.")
    coded = CodedImage.load(source)
    # Only sizes and type are looked at: nothing is decoded in vain.
    announced = Picture(np.broadcast_to(coded.dtype.type(0), _channels_last(coded)))
    check_writable(target, replace(announced, has_channels=coded.channel_axis is not None))
    limit = {} if max_values is None else {"max_values": max_values}
    start = time.perf_counter()
    try:
        pixels = decode_image(source, **limit)
    except ValueError as problem:
        text = str(problem).replace("pass a larger number", "give a larger --max-values")
        raise ValueError(text) from problem
    seconds = time.perf_counter() - start
    if coded.channel_axis is not None:
        pixels = np.moveaxis(pixels, coded.channel_axis, -1)
    write_picture(target, Picture(pixels, coded.channel_axis is not None), overwrite)
    output.say(source)
    output.say(
        facts_table([*coded_facts(coded), ("time", f"{seconds:.3g} s"), ("saved as", target)])
    )
    record = {"input": str(source), "output": str(target), **coded_record(coded)}
    output.finish({**record, "seconds": {"decoding": seconds}})


def coded_facts(coded: CodedImage) -> list[tuple[str, str]]:
    """What there is to say to people about a coded image."""
    stored = {
        "cosine": "cosines",
        "orthonormal": "orthonormal, learned from the image",
        "general": "general",
    }
    atoms = f"{times(coded.n_atoms)} atoms"
    return [
        ("image", f"{times(coded.shape)} {coded.dtype.name}"),
        ("size", f"{coded.n_bytes:,} bytes, {_ratio(coded):.3g} times smaller than the pixels"),
        ("bits per pixel", f"{coded.bits_per_pixel:.4g}"),
        ("PSNR", decibels(coded.psnr)),
        ("patch shape", times(coded.patch_shape)),
        ("dictionary", f"{stored.get(coded.dictionary_kind, coded.dictionary_kind)}, {atoms}"),
        ("nonzeros per patch", f"{coded.nonzeros_per_patch:.4g}"),
    ]


def coded_record(coded: CodedImage) -> dict[str, Any]:
    """And to programs."""
    return {
        "shape": coded.shape,
        "dtype": coded.dtype.name,
        "channel_axis": coded.channel_axis,
        "n_bytes": coded.n_bytes,
        "ratio": _ratio(coded),
        "bits_per_pixel": coded.bits_per_pixel,
        "psnr": coded.psnr if math.isfinite(coded.psnr) else None,
        "patch_shape": coded.patch_shape,
        "n_atoms": coded.n_atoms,
        "dictionary_kind": coded.dictionary_kind,
        "nonzeros_per_patch": coded.nonzeros_per_patch,
    }


def _ratio(coded: CodedImage) -> float:
    return math.prod(coded.shape) * coded.dtype.itemsize / coded.n_bytes


def _channels_last(coded: CodedImage) -> tuple[int, ...]:
    shape = list(coded.shape)
    if coded.channel_axis is not None:
        shape.append(shape.pop(coded.channel_axis))
    return tuple(shape)


def _codable(picture: Picture) -> Picture:
    """The picture as a coded image can hold it, with notes on what it cannot."""
    notes = list(picture.notes)
    if picture.alpha is not None:
        notes.append("A coded image has no alpha channel: it is left out.")
    pixels = picture.pixels
    if pixels.dtype == np.bool_:
        notes.append("Black and white are coded as 0 and 255.")
        pixels = np.where(pixels, np.uint8(255), np.uint8(0))
    return replace(picture, pixels=pixels, alpha=None, notes=tuple(notes))


def _about(
    request: Coding,
    picture: Picture,
    coded: CodedImage,
    seconds: dict[str, float],
    facts: list[tuple[str, str]],
) -> list[Path]:
    """Write the report and the comparison, if they were asked for."""
    if request.extras.report is None and request.extras.comparison is None:
        return []
    start = time.perf_counter()
    decoded = coded.decode(max_values=picture.pixels.size)
    seconds["decoding"] = time.perf_counter() - start
    story = Story(
        done="Coded",
        source=request.input,
        after=replace(picture, pixels=decoded),
        before=picture.pixels,
        reference=picture,
        dictionary=None,
        history=None,
        settings={"psnr": request.psnr, "patch_size": coded.patch_shape, "seed": request.seed},
        seconds=seconds,
    )
    # The page has a table of scores.
    others = [fact for fact in facts if fact[0] != "PSNR"]
    return write_extras(story, request.extras, others, request.overwrite)
