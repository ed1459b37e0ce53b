"""Patches of image files, in a number that does not grow with the number of images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.source import Source
from kronlearn.engines.samples import source_of
from kronlearn.images.patch_grid import PatchGrid, without_means
from kronlearn.io.images import Picture, gray_levels, luminance, read_picture

__all__ = ["sample_patches"]


def sample_patches(
    paths: Sequence[Path],
    shape: tuple[int, int],
    stride: int | None,
    n_samples: int,
    seed: int,
    colour: bool = False,
    keep_means: bool = False,
    advance: Callable[[], None] = lambda: None,
) -> Source:
    """At most ``n_samples`` patches, spread evenly over images: (m_1, m_2) or (m_1, m_2, 3).

    One image is in memory at a time. Each image contributes all patches of its grid, or an equal
    share of ``n_samples``, drawn at random; what a small image lacks, later ones make up for.
    ``advance`` is called after each image.
    """
    if len(paths) > n_samples:
        raise ValueError(f"--samples {n_samples} is less than one for each of {len(paths)} images.")
    modes = (*shape, 3) if colour else shape
    rng = np.random.default_rng(seed)
    patches: list[NDArray[np.float32]] = []
    first: tuple[Path, np.dtype[Any]] | None = None
    for index, path in enumerate(paths):
        picture = gray_levels(read_picture(path))
        dtype = picture.pixels.dtype
        first = first or (path, dtype)
        if dtype != first[1]:
            raise ValueError(
                f"{first[0]} holds {first[1]} and {path} {dtype}; learn from images of one type."
            )
        pixels, grid = _pixels_and_grid(picture, shape, stride, colour, path)
        share = (n_samples - sum(map(len, patches))) // (len(paths) - index)
        numbers = np.arange(len(grid))
        if len(grid) > share:
            numbers = np.sort(rng.choice(len(grid), share, replace=False))
        chosen = grid.cut(pixels, numbers).reshape(-1, *modes)
        patches.append(chosen if keep_means else without_means(chosen))
        advance()
    return source_of(np.concatenate(patches), modes)


def _pixels_and_grid(
    picture: Picture, shape: tuple[int, int], stride: int | None, colour: bool, path: Path
) -> tuple[NDArray[np.float32], PatchGrid]:
    """Pixels (pages, rows, columns[, 3]), and the grid of their patches."""
    pixels = luminance(picture)
    if colour:
        pixels = picture.pixels.astype(np.float32)
        if picture.n_channels == 1:
            pixels = np.repeat(pixels[..., None], 3, axis=-1)
        elif picture.n_channels != 3:
            raise ValueError(f"{path} has {picture.n_channels} channels; --colour needs RGB.")
    rows, columns = picture.shape[-2:]
    if shape[0] > rows or shape[1] > columns:
        raise ValueError(
            f"Patches of {shape[0]} × {shape[1]} do not fit in {path}, an image of {rows} × "
            f"{columns}."
        )
    channels = (3,) if colour else ()
    stack = pixels.reshape(-1, rows, columns, *channels)
    steps = shape if stride is None else (stride, stride)
    sizes, strides = (1, *shape, *channels), (1, *steps, *channels)
    return stack, PatchGrid(stack.shape, sizes, strides, border=False)
