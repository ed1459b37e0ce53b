"""The filters that learning starts from."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kronlearn.convolutional.filters import ConvolutionalDictionary
from kronlearn.convolutional.padded import PaddedImage
from kronlearn.core.init import dct_factor
from kronlearn.parameters import positive_integers

__all__ = ["starting_filters"]

# The noise added to a column or patch of norm one: without noise, cosines are close to a saddle.
_NOISE = 0.1


def starting_filters(
    n_atoms: int | tuple[int, ...],
    shape: tuple[int, ...],
    structure: str,
    images: Sequence[PaddedImage],
    has_channels: bool,
    rng: np.random.RandomState,
) -> ConvolutionalDictionary:
    """Cosines for "kronecker", otherwise patches of the images; ``shape`` excludes channels."""
    if has_channels:
        shape = (len(images[0].pixels), *shape)
    sizes = positive_integers("n_atoms", n_atoms)
    if structure == "kronecker":
        sizes = sizes * len(shape) if np.ndim(n_atoms) == 0 else sizes
        if len(sizes) != len(shape):
            raise ValueError(
                f"n_atoms={n_atoms} must have a number for each of the {len(shape)} axes of a "
                "filter" + (", channels first." if has_channels else ".")
            )
        factors = [_cosines(length, n, rng) for length, n in zip(shape, sizes, strict=True)]
    else:
        patches = _random_patches(images, shape, math.prod(sizes), rng)
        factors = [patches] if structure == "dense" else _rank_one(patches)
    return ConvolutionalDictionary(factors, structure, has_channels)


def _cosines(length: int, n: int, rng: np.random.RandomState) -> NDArray[np.float64]:
    noise = rng.standard_normal((length, n)) / np.sqrt(length)
    return dct_factor(length, n) + _NOISE * noise


def _random_patches(
    images: Sequence[PaddedImage], shape: tuple[int, ...], count: int, rng: np.random.RandomState
) -> NDArray[np.float64]:
    """Patches (count, *shape) at random positions in the images, with a little noise."""
    patches = rng.standard_normal((count, *shape))
    patches *= _NOISE / np.sqrt(np.prod(shape))
    for patch in patches:
        patch += _random_patch(images[rng.randint(len(images))].pixels, shape, rng)
    return patches


def _random_patch(
    pixels: NDArray[np.float32], shape: tuple[int, ...], rng: np.random.RandomState
) -> NDArray[np.float64]:
    """A patch at a random position in an image, of norm one unless it is zero."""
    starts = [
        rng.randint(size - length + 1) for size, length in zip(pixels.shape, shape, strict=True)
    ]
    position = tuple(slice(s, s + m) for s, m in zip(starts, shape, strict=True))
    patch = pixels[position].astype(np.float64)
    return patch / max(float(np.linalg.norm(patch)), 1e-12)


def _rank_one(patches: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Factors (p_i, M) whose products are close to patches: leading singular vectors per axis."""
    factors = []
    for axis in range(1, patches.ndim):
        unfolded = np.moveaxis(patches, axis, 1).reshape(len(patches), patches.shape[axis], -1)
        factors.append(np.linalg.svd(unfolded, full_matrices=False)[0][:, :, 0].T)
    return factors
