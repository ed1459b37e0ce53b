"""Patches of images for the commands: a bounded number, whatever the number of images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.cli.pictures import READABLE, Picture, luminance, read_gray, read_picture
from kronlearn.images.patch_grid import PatchGrid, without_means

__all__ = [
    "drawn_patches",
    "find_images",
    "grid_patches",
    "images_in",
    "included_images",
    "sampled_patches",
    "without_means",
]

#: Gray images inside scikit-image's wheel: nothing is downloaded.
INCLUDED = ("camera", "brick", "grass", "gravel", "moon")


def included_images(names: Sequence[str] = INCLUDED) -> list[NDArray[np.float32]]:
    """Gray images of shape (512, 512), in gray levels 0 to 255, from the scikit-image package."""
    from skimage import data

    return [getattr(data, name)().astype(np.float32) for name in names]


def find_images(path: Path) -> list[Path]:
    """The image files in a folder and the folders in it, in the order of their names."""
    found = [
        file
        for file in path.rglob("*")
        if file.suffix.lower() in READABLE
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    ]
    if not found:
        raise ValueError(f"{path} holds no image; give a folder with {', '.join(READABLE)} files.")
    return sorted(found)


def images_in(folder: Path) -> list[NDArray[np.float32]]:
    """The images of a folder, in the order of their names, as gray images."""
    return [read_gray(path) for path in find_images(folder)]


def drawn_patches(
    paths: Sequence[Path],
    shape: tuple[int, ...],
    stride: int | None,
    n_samples: int,
    seed: int,
    colour: bool = False,
    keep_means: bool = False,
    advance: Callable[[], None] = lambda: None,
) -> NDArray[np.float32]:
    """Patches of images, evenly over them, shape (N, m_1, m_2) or (N, m_1, m_2, 3).

    One image is in memory at a time. An image gives all patches of its grid, or its share of
    ``n_samples`` at random places of the grid; what a small image cannot give, later ones may.
    ``advance`` is called after each.
    """
    modes = (*shape, 3) if colour else shape
    steps = shape if stride is None else (stride, stride)
    patches = np.empty((n_samples, *modes), np.float32)
    rng = np.random.default_rng(seed)
    count = 0
    dtypes: dict[np.dtype[Any], Path] = {}
    for index, path in enumerate(paths):
        picture = read_picture(path)
        dtypes.setdefault(picture.pixels.dtype, path)
        if len(dtypes) > 1:
            (first, before), (second, _) = list(dtypes.items())[:2]
            raise ValueError(
                f"{before} holds {first} and {path} {second}; learn from images of one type."
            )
        pixels, grid = _pixels_and_grid(picture, shape, steps, colour, path)
        share = (n_samples - count) // (len(paths) - index)
        places = np.arange(len(grid))
        if len(grid) > share:
            places = np.sort(rng.choice(len(grid), share, replace=False))
        chosen = grid.cut(pixels, places).reshape(-1, *modes)
        patches[count : count + len(chosen)] = chosen if keep_means else without_means(chosen)
        count += len(chosen)
        advance()
    return patches[:count]


def _pixels_and_grid(
    picture: Picture, shape: tuple[int, ...], steps: tuple[int, ...], colour: bool, path: Path
) -> tuple[NDArray[np.float32], PatchGrid]:
    """Pixels (pages, rows, columns[, 3]), and where their patches stand."""
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
            f"Patches of {shape[0]} × {shape[1]} do not fit in an image of {rows} × {columns}: "
            f"{path}."
        )
    channels = (3,) if colour else ()
    stack = pixels.reshape(-1, rows, columns, *channels)
    sizes, strides = (1, *shape, *channels), (1, *steps, *channels)
    return stack, PatchGrid(stack.shape, sizes, strides, border=False)


def grid_patches(
    image: NDArray[np.float32], shape: tuple[int, int], stride: tuple[int, int]
) -> NDArray[np.float32]:
    """The patches that start at every stride-th row and column, shape (N, m_1, m_2)."""
    if shape[0] > image.shape[0] or shape[1] > image.shape[1]:
        raise ValueError(
            f"Patches of {shape[0]} × {shape[1]} do not fit in an image of "
            f"{image.shape[0]} × {image.shape[1]}."
        )
    return np.asarray(PatchGrid(image.shape, shape, stride, border=False).cut(image))


def sampled_patches(
    images: Sequence[NDArray[np.float32]], shape: tuple[int, int], n_samples: int, seed: int = 0
) -> NDArray[np.float32]:
    """Patches at random places of the images, each without its mean, shape (n_samples, *shape)."""
    rng = np.random.default_rng(seed)
    shares = np.array_split(np.arange(n_samples), len(images))
    patches = np.empty((n_samples, *shape), np.float32)
    for image, share in zip(images, shares, strict=True):
        grid = PatchGrid(image.shape, shape, (1, 1))
        rows, columns = (rng.integers(0, size, len(share)) for size in grid.grid_shape)
        patches[share] = grid.cut(image, np.ravel_multi_index((rows, columns), grid.grid_shape))
    return without_means(patches)
