"""Patches of images for the commands: a bounded number, whatever the number of images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.cli.pictures import READABLE, Picture, luminance, read_gray, read_picture

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
        windows = _windows(picture, shape, steps, colour, path)
        share = (n_samples - count) // (len(paths) - index)
        chosen = _chosen(windows, share, rng)
        patches[count : count + len(chosen)] = chosen if keep_means else without_means(chosen)
        count += len(chosen)
        advance()
    return patches[:count]


def _windows(
    picture: Picture, shape: tuple[int, ...], steps: tuple[int, ...], colour: bool, path: Path
) -> NDArray[np.float32]:
    """The grid's patches as a view: (pages, rows, columns, m_1, m_2[, 3])."""
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
    stack = pixels.reshape(-1, rows, columns, *([3] if colour else []))
    windows = np.lib.stride_tricks.sliding_window_view(stack, shape[:2], axis=(1, 2))
    if colour:
        windows = np.moveaxis(windows, 3, -1)
    return windows[:, :: steps[0], :: steps[1]]


def _chosen(
    windows: NDArray[np.float32], share: int, rng: np.random.Generator
) -> NDArray[np.float32]:
    grid = windows.shape[:3]
    n_windows = int(np.prod(grid))
    if n_windows <= share:
        return windows.reshape(-1, *windows.shape[3:])
    places = np.sort(rng.choice(n_windows, share, replace=False))
    return windows[np.unravel_index(places, grid)]


def grid_patches(
    image: NDArray[np.float32], shape: tuple[int, int], stride: tuple[int, int]
) -> NDArray[np.float32]:
    """The patches that start at every stride-th row and column, shape (N, m_1, m_2)."""
    if shape[0] > image.shape[0] or shape[1] > image.shape[1]:
        raise ValueError(
            f"Patches of {shape[0]} × {shape[1]} do not fit in an image of "
            f"{image.shape[0]} × {image.shape[1]}."
        )
    windows = np.lib.stride_tricks.sliding_window_view(image, shape)
    return windows[:: stride[0], :: stride[1]].reshape(-1, *shape)


def sampled_patches(
    images: Sequence[NDArray[np.float32]], shape: tuple[int, int], n_samples: int, seed: int = 0
) -> NDArray[np.float32]:
    """Patches at random places of the images, each without its mean, shape (n_samples, *shape)."""
    rng = np.random.default_rng(seed)
    shares = np.array_split(np.arange(n_samples), len(images))
    patches = np.empty((n_samples, *shape), np.float32)
    for image, share in zip(images, shares, strict=True):
        windows = np.lib.stride_tricks.sliding_window_view(image, shape)
        rows, columns = (rng.integers(0, size, len(share)) for size in windows.shape[:2])
        patches[share] = windows[rows, columns]
    return without_means(patches)


def without_means(patches: NDArray[Any]) -> NDArray[Any]:
    """The patches (N, m_1, …, m_d), each minus its mean, in their own dtype."""
    modes = tuple(range(1, patches.ndim))
    means = patches.mean(axis=modes, keepdims=True, dtype=np.float64)
    return patches - means.astype(patches.dtype)
