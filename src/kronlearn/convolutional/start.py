"""The filters that learning starts from."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kronlearn.convolutional.canvas import Canvas
from kronlearn.convolutional.filters import ConvolutionalDictionary
from kronlearn.core.init import dct_factor
from kronlearn.parameters import positive_integers

__all__ = ["starting_filters"]

# Noise relative to the norm of a column: without it cosines are close to a saddle.
_NOISE = 0.1


def starting_filters(
    n_atoms: int | tuple[int, ...],
    shape: tuple[int, ...],
    structure: str,
    canvases: Sequence[Canvas],
    has_channels: bool,
    rng: np.random.RandomState,
) -> ConvolutionalDictionary:
    """Cosines for "kronecker", else patches of the images; ``shape`` is without channels."""
    if has_channels:
        shape = (len(canvases[0].pixels), *shape)
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
        patches = _patches(canvases, shape, math.prod(sizes), rng)
        factors = [patches] if structure == "dense" else _rank_one(patches)
    return ConvolutionalDictionary(factors, structure, has_channels)


def _cosines(length: int, n: int, rng: np.random.RandomState) -> NDArray[np.float64]:
    noise = rng.standard_normal((length, n)) / np.sqrt(length)
    return dct_factor(length, n) + _NOISE * noise


def _patches(
    canvases: Sequence[Canvas], shape: tuple[int, ...], count: int, rng: np.random.RandomState
) -> NDArray[np.float64]:
    """Patches (count, *shape) at random places of images, with a little noise."""
    found = rng.standard_normal((count, *shape))
    found *= _NOISE / np.sqrt(np.prod(shape))
    for patch in found:
        patch += _patch(canvases[rng.randint(len(canvases))].pixels, shape, rng)
    return found


def _patch(
    pixels: NDArray[np.float32], shape: tuple[int, ...], rng: np.random.RandomState
) -> NDArray[np.float64]:
    """A patch at a random place of an image, of norm one unless it is zero."""
    starts = [
        rng.randint(size - length + 1) for size, length in zip(pixels.shape, shape, strict=True)
    ]
    place = tuple(slice(s, s + m) for s, m in zip(starts, shape, strict=True))
    taken = pixels[place].astype(np.float64)
    return taken / max(float(np.linalg.norm(taken)), 1e-12)


def _rank_one(patches: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Factors (p_i, M) whose products are close to patches: leading vectors along each axis."""
    factors = []
    for axis in range(1, patches.ndim):
        unfolded = np.moveaxis(patches, axis, 1).reshape(len(patches), patches.shape[axis], -1)
        factors.append(np.linalg.svd(unfolded, full_matrices=False)[0][:, :, 0].T)
    return factors
