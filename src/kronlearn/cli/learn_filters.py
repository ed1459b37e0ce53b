"""``kronlearn learn --convolutional``: small filters from images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kronlearn as kl
from kronlearn.cli.fitting import fit_and_save
from kronlearn.cli.output import Output, facts_of, facts_table
from kronlearn.cli.record import thinned_history
from kronlearn.io.images import gray_levels, luminance, read_picture

__all__ = ["learn_filters"]


def learn_filters(
    options: Mapping[str, Any], paths: Sequence[Path], origin: Mapping[str, Any], shown: Output
) -> None:
    """Learn filters with a command's options, save them, and print how they were learned.

    ``origin`` says where the images come from.
    """
    model, output = _new_model(options), options["output"]
    images: list[NDArray[np.float32]] = []
    with shown.progress("Reading", len(paths)) as advance:
        for path in paths:
            images += _details(path, model.channel_axis)
            advance()

    def save() -> None:
        dictionary, history = model.dictionary_, model.history_
        n_pixels = sum(image.size for image in images)
        curves = {**history, "mean_nonzeros": (np.array(history["nonzeros"]) / n_pixels).tolist()}
        record = {
            "images": len(images),
            "penalty": model.penalty,
            "seed": model.random_state,
            **origin,
            "smooth_part": "removed by lowpass",
            "iterations": model.n_iter_,
            "stop_reason": model.stop_reason_,
            **{name: values[-1] for name, values in history.items()},
            "kronlearn_version": kl.__version__,
        }
        dictionary.save(output, info={**record, "history": thinned_history(curves)})
        facts = {
            "filters": dictionary.n_filters,
            "filter_shape": dictionary.filter_shape,
            "structure": dictionary.structure,
            "parameters": dictionary.n_numbers,
            **record,
        }
        shown.say(facts_table([*facts_of(facts), ("saved as", output)]))
        shown.finish({**facts, "history": history, "output": str(output)})

    fit_and_save(model, images, save, shown)


def _new_model(options: Mapping[str, Any]) -> kl.convolutional.SeparableConvolutionalLearning:
    atoms, sizes = options["atoms"], options["patch"]
    structure = options["structure"] or "kronecker"
    filter_shape = (sizes, sizes) if isinstance(sizes, int) else sizes or (11, 11)
    if len(filter_shape) != 2:
        raise ValueError(f"--patch has {len(filter_shape)} sizes; filters of images need two.")
    if isinstance(atoms, int) and structure == "kronecker":
        atoms = atoms, atoms
    atoms = atoms or (8, 8)
    if options["colour"] and structure == "kronecker" and len(atoms) == 2:
        atoms = (3, *atoms)
    return kl.convolutional.SeparableConvolutionalLearning(
        atoms,
        filter_shape,
        structure,
        channel_axis=-1 if options["colour"] else None,
        random_state=options["seed"],
        **{name: options[name] for name in ("penalty", "max_iter", "n_jobs", "checkpoint")},
    )


def _details(path: Path, channel_axis: int | None) -> list[NDArray[np.float32]]:
    """The pages of an image file without their smooth part; integers are scaled to 0 … 1."""
    picture = gray_levels(read_picture(path))
    if channel_axis is not None and picture.n_channels != 3:
        raise ValueError(f"{path} is {picture}; --colour needs RGB.")
    pixels = luminance(picture) if channel_axis is None else picture.pixels.astype(np.float32)
    dtype = picture.pixels.dtype
    if dtype.kind in "iu":
        pixels = pixels / np.float32(np.iinfo(dtype).max)
    pages = pixels[None] if len(picture.shape) == 2 else pixels
    return [
        (page - kl.convolutional.lowpass(page, channel_axis=channel_axis)).astype(np.float32)
        for page in pages
    ]
