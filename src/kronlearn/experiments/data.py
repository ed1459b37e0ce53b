"""The data of the experiments: images, their patches, and the cube that comes with tensorly.

The cube of the paper's Table IV, 614 × 1848 pixels and 220 bands of Indian Pines, is not available.
A cube of that size is made from the small one: tiled by mirrored copies, also along its bands, with
noise so that no patch repeats another.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kronlearn as kl
from kronlearn.core.init import dct_factor
from kronlearn.experiments.timing import Progress, no_progress
from kronlearn.images.patch_grid import PatchGrid
from kronlearn.io.cubes import open_cube
from kronlearn.io.images import READABLE, luminance, read_picture

__all__ = [
    "INCLUDED",
    "cube_shape",
    "find_images",
    "gray_image",
    "images_in",
    "included_images",
    "large_patches",
    "named_images",
    "noisy",
    "perturbed_dct",
    "psnr",
    "read_cube",
    "sampled_patches",
]

Image = NDArray[np.float32]
Shape = tuple[int, int, int]

# Rows, columns and bands of the paper's cube; the side of its patches; the noise added to each
# band, as a fraction of the band's standard deviation.
_PAPER_CUBE, _M, _NOISE = (614, 1848, 220), 8, 0.02

#: Grey images inside scikit-image's wheel, so that nothing is downloaded.
INCLUDED = ("camera", "brick", "grass", "gravel", "moon")


def included_images(names: Sequence[str] = INCLUDED) -> list[Image]:
    """Return images of scikit-image, grey ones of shape (512, 512), with values from 0 to 255."""
    from skimage import data

    return [getattr(data, name)().astype(np.float32) for name in names]


def gray_image(path: Path) -> Image:
    """Read an image file as an array (rows, columns) in the file's own grey levels."""
    return luminance(read_picture(path))


def named_images(
    folder: Path | None, names: Sequence[str], stand_ins: Sequence[str]
) -> dict[str, Image]:
    """Read the PNG files with these names from a folder; without one, return the stand-ins."""
    if folder is None:
        return dict(zip(stand_ins, included_images(stand_ins), strict=True))
    return {name: gray_image(folder / f"{name}.png") for name in names}


def find_images(folder: Path) -> list[Path]:
    """List the image files in a folder and its subfolders, sorted by name."""
    files = [
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in READABLE
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    ]
    if not files:
        raise ValueError(f"{folder} contains no images of these kinds: {', '.join(READABLE)}.")
    return sorted(files)


def images_in(folder: Path | None) -> list[Image]:
    """Read all images in a folder as grey images; without a folder, return INCLUDED."""
    return included_images() if folder is None else [gray_image(f) for f in find_images(folder)]


def sampled_patches(images: Sequence[Image], shape: tuple[int, int], n_samples: int) -> Image:
    """Cut patches at random places of the images, without their means, shape (N, m_1, m_2)."""
    rng = np.random.default_rng(0)
    patches = []
    for image, share in zip(images, np.array_split(range(n_samples), len(images)), strict=True):
        grid = PatchGrid(image.shape, shape, (1, 1))
        corners = tuple(rng.integers(0, size, len(share)) for size in grid.grid_shape)
        patches.append(grid.cut(image, np.ravel_multi_index(corners, grid.grid_shape)))
    samples = np.concatenate(patches)
    return samples - samples.mean(axis=(1, 2), keepdims=True)


def perturbed_dct(patch_shape: Sequence[int], n_atoms: Sequence[int]) -> kl.KroneckerDictionary:
    """Make a dictionary of DCT factors plus 20 % noise: suited to images, no special structure."""
    rng = np.random.default_rng(0)
    factors = []
    for m, n in zip(patch_shape, n_atoms, strict=True):
        noise = rng.standard_normal((m, n)) / np.sqrt(m)
        factors.append((dct_factor(m, n) + 0.2 * noise).astype(np.float32))
    return kl.KroneckerDictionary.normalized(factors)


def read_cube(file: Path | None = None) -> Image:
    """Read a cube (rows, columns, bands); by default Indian Pines, 145 × 145 × 200, of tensorly."""
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


def cube_shape(scale: float) -> Shape:
    """Return the shape of a cube with about this fraction of the paper's patches."""
    if not 0 < scale <= 1:
        raise ValueError(f"--scale {scale:g} is not above 0 and at most 1.")
    rows, columns, bands = (round(size * scale ** (1 / 3)) for size in _PAPER_CUBE)
    return max(_M, rows), max(_M, columns), max(1, bands)


def large_patches(small: Image, shape: Shape, progress: Progress = no_progress) -> Image:
    """Cut the patches (N, 8, 8) of the large cube: strips of 8 rows, each by band and column.

    Patches do not overlap, except the last ones, which end at the border.
    """
    # The index in the small cube for every index in the large one, with mirrored copies.
    rows, columns, bands = (
        np.pad(np.arange(min(n, size)), (0, max(0, size - n)), "symmetric")
        for n, size in zip(small.shape, shape, strict=True)
    )
    deviations = _NOISE * small.std(axis=(0, 1))[bands]
    down, across = PatchGrid(shape[:2], (_M, _M), (_M, _M)).starts
    patches = np.empty((len(down), shape[2], len(across), _M, _M), np.float32)
    with progress("making the cube", len(down)) as advance:
        for first, patches_of_strip in zip(down.tolist(), patches, strict=True):
            strip = small[np.ix_(rows[first : first + _M], columns, bands)]
            noise = np.random.default_rng(first).standard_normal(strip.shape, np.float32)
            strip = (strip + deviations * noise)[:, np.add.outer(across, np.arange(_M))]
            # (rows, across, columns, bands) becomes (bands, across, rows, columns).
            patches_of_strip[...] = strip.transpose(3, 1, 0, 2)
            advance()
    return patches.reshape(-1, _M, _M)


def noisy(image: Image, sigma: float, seed: int | None = 0) -> Image:
    """Add white noise of this standard deviation to an image."""
    noise = np.random.default_rng(seed).standard_normal(image.shape, np.float32)
    return image + np.float32(sigma) * noise


def psnr(clean: NDArray[Any], image: NDArray[Any]) -> float:
    """Return the PSNR in dB, for grey levels from 0 to 255."""
    from skimage.metrics import peak_signal_noise_ratio

    return float(peak_signal_noise_ratio(clean, np.asarray(image, clean.dtype), data_range=255))
