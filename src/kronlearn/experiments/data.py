"""What experiments learn from: images, their patches, and a cube that comes with tensorly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kronlearn as kl
from kronlearn.core.init import dct_factor
from kronlearn.images.patch_grid import PatchGrid
from kronlearn.io.cubes import open_cube
from kronlearn.io.images import READABLE, luminance, read_picture

__all__ = [
    "INCLUDED",
    "gray_image",
    "images_in",
    "included_images",
    "perturbed_dct",
    "psnr",
    "read_cube",
    "sampled_patches",
]

Image = NDArray[np.float32]

#: Gray images inside scikit-image's wheel: nothing is downloaded.
INCLUDED = ("camera", "brick", "grass", "gravel", "moon")


def included_images(names: Sequence[str] = INCLUDED) -> list[Image]:
    """Gray images of shape (512, 512), in gray levels 0 to 255, from the scikit-image package."""
    from skimage import data

    return [getattr(data, name)().astype(np.float32) for name in names]


def gray_image(path: Path) -> Image:
    """The image in a file, of shape (rows, columns), in its own gray levels."""
    return luminance(read_picture(path))


def images_in(folder: Path) -> list[Image]:
    """The images of a folder and the folders in it, in the order of their names, as gray images."""
    if not folder.is_dir():
        raise ValueError(f"--images {folder}: there is no such folder.")
    files = [file for file in sorted(folder.rglob("*")) if file.suffix.lower() in READABLE]
    if not files:
        raise ValueError(f"{folder} holds no image; give a folder with {', '.join(READABLE)}.")
    return [gray_image(file) for file in files]


def sampled_patches(images: Sequence[Image], shape: tuple[int, int], n_samples: int) -> Image:
    """Patches at random places of the images, each without its mean, shape (N, m_1, m_2)."""
    rng = np.random.default_rng(0)
    patches = []
    for image, share in zip(images, np.array_split(range(n_samples), len(images)), strict=True):
        grid = PatchGrid(image.shape, shape, (1, 1))
        places = tuple(rng.integers(0, size, len(share)) for size in grid.grid_shape)
        patches.append(grid.cut(image, np.ravel_multi_index(places, grid.grid_shape)))
    samples = np.concatenate(patches)
    return samples - samples.mean(axis=(1, 2), keepdims=True)


def perturbed_dct(patch_shape: Sequence[int], n_atoms: Sequence[int]) -> kl.KroneckerDictionary:
    """Separable DCT factors plus 20 % noise, float32: unstructured, but fit for images."""
    rng = np.random.default_rng(0)
    factors = []
    for m, n in zip(patch_shape, n_atoms, strict=True):
        noise = rng.standard_normal((m, n)) / np.sqrt(m)
        factors.append((dct_factor(m, n) + 0.2 * noise).astype(np.float32))
    return kl.KroneckerDictionary.normalized(factors)


def read_cube(file: Path | None = None) -> Image:
    """The cube (rows, columns, bands) in a file; or Indian Pines, 145 × 145 × 200, of tensorly."""
    if file is not None:
        with open_cube(file) as cube:
            values = cube.read_checked(slice(0, cube.shape[0]))[0]
        return np.ascontiguousarray(values, np.float32)
    try:
        from tensorly.datasets import load_indian_pines
    except ImportError:
        raise ValueError(
            "Indian Pines comes with tensorly, which is not installed: "
            "pip install '.[bench]' in the checkout, or give --cube FILE."
        ) from None
    return np.ascontiguousarray(load_indian_pines().tensor, np.float32)


def psnr(clean: NDArray[Any], image: NDArray[Any]) -> float:
    """The PSNR in dB, for gray levels 0 to 255."""
    from skimage.metrics import peak_signal_noise_ratio

    return float(peak_signal_noise_ratio(clean, np.asarray(image, clean.dtype), data_range=255))
