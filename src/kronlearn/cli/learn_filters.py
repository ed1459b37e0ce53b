"""``kronlearn learn --convolutional``: small filters from images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kronlearn as kl
from kronlearn.cli.output import Output, facts_of, facts_table
from kronlearn.cli.record import thinned_history
from kronlearn.io.images import gray_levels, luminance, read_picture

__all__ = ["learn_filters"]

# Options of learning from patches, and what they are unless given.
_FOR_PATCHES = {
    "sparsity": None,
    "tol": None,
    "stride": None,
    "samples": None,
    "dataset": None,
    "remove_means": None,
    "terms": 1,
    "method": "ols",
    "time_budget": None,
    "device": "cpu",
}


def learn_filters(
    given: Mapping[str, Any], paths: Sequence[Path], origin: Mapping[str, Any], shown: Output
) -> None:
    """Learn filters from images without their smooth part, save them, and tell how it went.

    ``given`` is what the command was given; ``origin`` says where the images come from. On an
    interrupt the filters of the last finished iteration are saved before it is raised again.
    """
    for name, default in _FOR_PATCHES.items():
        if given[name] != default:
            option = name.replace("_", "-")
            raise ValueError(f"--{option} is for patches; leave it out with --convolutional.")
    model = _model(given)
    images = []
    with shown.progress("Reading", len(paths)) as advance:
        for path in paths:
            images += _details(path, given["colour"])
            advance()
    interrupt = None
    with shown.learning("Learning", model.max_iter) as callback:
        model.set_params(callback=callback)
        try:
            model.fit(images)
        except KeyboardInterrupt as problem:
            if not hasattr(model, "dictionary_"):
                raise
            interrupt = problem
    _save_and_tell(model, images, {**origin, "smooth_part": "removed by lowpass"}, given, shown)
    if interrupt is not None:
        raise interrupt


def _model(given: Mapping[str, Any]) -> kl.convolutional.SeparableConvolutionalLearning:
    structure, atoms, sizes = given["structure"] or "kronecker", given["atoms"], given["patch"]
    filter_shape = (sizes, sizes) if isinstance(sizes, int) else sizes or (11, 11)
    if len(filter_shape) != 2:
        raise ValueError(f"--patch has {len(filter_shape)} sizes; filters of images need two.")
    if isinstance(atoms, int) and structure == "kronecker":
        atoms = atoms, atoms
    atoms = atoms or (8, 8)
    if given["colour"] and structure == "kronecker" and len(atoms) == 2:
        atoms = (3, *atoms)
    same = ("penalty", "max_iter", "n_jobs", "checkpoint")
    return kl.convolutional.SeparableConvolutionalLearning(
        atoms,
        filter_shape,
        structure,
        channel_axis=-1 if given["colour"] else None,
        random_state=given["seed"],
        **{name: given[name] for name in same},
    )


def _details(path: Path, colour: bool) -> list[NDArray[np.float32]]:
    """The pages of an image file without their smooth part; integers are scaled to 0 … 1."""
    picture = gray_levels(read_picture(path))
    if colour and picture.n_channels != 3:
        raise ValueError(f"{path} is {picture}; --colour needs RGB.")
    pixels = picture.pixels.astype(np.float32) if colour else luminance(picture)
    dtype = picture.pixels.dtype
    if dtype.kind in "iu":
        pixels = pixels / np.float32(np.iinfo(dtype).max)
    pages = pixels[None] if len(picture.shape) == 2 else pixels
    axis = -1 if colour else None
    return [
        (page - kl.convolutional.lowpass(page, channel_axis=axis)).astype(np.float32)
        for page in pages
    ]


def _save_and_tell(
    model: kl.convolutional.SeparableConvolutionalLearning,
    images: Sequence[NDArray[Any]],
    origin: Mapping[str, Any],
    given: Mapping[str, Any],
    shown: Output,
) -> None:
    dictionary, history, place = model.dictionary_, model.history_, given["output"]
    n_pixels = sum(image.size for image in images)
    curves = {**history, "mean_nonzeros": (np.array(history["nonzeros"]) / n_pixels).tolist()}
    record = {
        "images": len(images),
        "penalty": model.penalty,
        "seed": model.random_state,
        **origin,
        "iterations": model.n_iter_,
        "stop_reason": model.stop_reason_,
        **{name: values[-1] for name, values in history.items()},
        "kronlearn_version": kl.__version__,
    }
    dictionary.save(place, info={**record, "history": thinned_history(curves)})
    facts = {
        "filters": dictionary.n_filters,
        "filter_shape": dictionary.filter_shape,
        "structure": dictionary.structure,
        "numbers": dictionary.n_numbers,
        **record,
    }
    shown.say(facts_table([*facts_of(facts), ("saved as", place)]))
    shown.finish({**facts, "history": history, "output": str(place)})
