"""Patches of images for the commands, and the pictures that they write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "grid_patches",
    "images_in",
    "included_images",
    "read_gray",
    "sampled_patches",
    "save_convergence",
    "save_dictionary_picture",
    "without_means",
]

#: Gray images inside scikit-image's wheel: nothing is downloaded.
INCLUDED = ("camera", "brick", "grass", "gravel", "moon")

# Luminance of linear RGB (ITU-R BT.709), as in scikit-image's rgb2gray.
_LUMINANCE = np.array([0.2125, 0.7154, 0.0721])


def included_images(names: Sequence[str] = INCLUDED) -> list[NDArray[np.float32]]:
    """Gray images of shape (512, 512), in gray levels 0 to 255, from the scikit-image package."""
    from skimage import data

    return [getattr(data, name)().astype(np.float32) for name in names]


def images_in(folder: Path) -> list[NDArray[np.float32]]:
    """The PNG images of a folder, in the order of their names, as gray images."""
    paths = sorted(folder.glob("*.png"))
    if not paths:
        raise ValueError(f"{folder} holds no .png file; give a folder with PNG images.")
    return [read_gray(path) for path in paths]


def read_gray(path: Path) -> NDArray[np.float32]:
    """The image in a file, of shape (rows, columns), in the file's own gray levels.

    Colours become their luminance; an alpha channel is dropped.
    """
    from skimage import io

    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist or is not a file.")
    try:
        image = np.asarray(io.imread(path))
    except Exception as problem:
        # Every format's reader has its own errors for a damaged or foreign file.
        raise ValueError(f"{path} cannot be read as an image: {problem}") from problem
    if image.ndim == 3 and image.shape[2] in (3, 4):
        image = image[..., :3] @ _LUMINANCE
    elif image.ndim == 3 and image.shape[2] in (1, 2):
        image = image[..., 0]
    if image.ndim != 2:
        raise ValueError(
            f"{path} holds an array of shape {image.shape}, not one gray or RGB image."
        )
    return image.astype(np.float32)


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


def save_dictionary_picture(dictionary: Any, path: Path) -> None:
    """Write the mosaic (or the factors) of a dictionary to an image file."""
    from matplotlib.figure import Figure

    from kronlearn.plots import DictionaryDisplay

    two_modes = len(dictionary.factors) == 2
    figure = Figure(figsize=(6.4, 6.7) if two_modes else (8, 3.6), layout="constrained")
    DictionaryDisplay.from_dictionary(dictionary, ax=figure.subplots())
    figure.savefig(path, dpi=200)


def save_convergence(histories: dict[str, Any], path: Path) -> None:
    """Write the RMSE of several runs, by name, to an image file."""
    from matplotlib.figure import Figure

    from kronlearn.plots import ConvergenceDisplay

    figure = Figure(figsize=(8, 3.4), layout="constrained")
    axes = list(figure.subplots(1, 2, sharey=True))
    for name, history in histories.items():
        ConvergenceDisplay.from_history(history, name=name, axes=axes)
    figure.savefig(path, dpi=150)
