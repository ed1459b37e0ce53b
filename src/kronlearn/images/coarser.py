"""Coarser images: sums over blocks of two pixels along every axis, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.images.planes import contiguous

__all__ = ["filled", "long_axes", "spread", "sums_over_blocks"]

# So many blocks are left along an axis at least.
_FEWEST_BLOCKS = 16

Planes = NDArray[np.float32]


def long_axes(shape: Sequence[int]) -> list[int]:
    """Axes of planes (C, *spatial) along which enough blocks of pixels are left."""
    return [a for a, size in enumerate(shape) if a > 0 and size >= 2 * _FEWEST_BLOCKS]


def sums_over_blocks(planes: NDArray[Any], axes: Sequence[int]) -> Planes:
    """Sums over two pixels along these axes; the last of an odd number counts twice."""
    sums = planes.astype(np.float32)
    for axis in axes:
        sums = np.moveaxis(sums, axis, 0)
        ends = np.concatenate([sums[1::2], sums[-1:]]) if len(sums) % 2 else sums[1::2]
        sums = np.moveaxis(sums[::2] + ends, 0, axis)
    return contiguous(sums)


def spread(planes: Planes, axes: Sequence[int], shape: Sequence[int]) -> Planes:
    """Numbers of twice as many pixels along these axes, on straight lines between those given."""
    for axis in axes:
        here = np.moveaxis(planes, axis, 0)
        before, after = np.concatenate([here[:1], here[:-1]]), np.concatenate([here[1:], here[-1:]])
        pairs: NDArray[Any] = np.stack([3 * here + before, 3 * here + after], axis=1) / 4
        planes = np.moveaxis(pairs.reshape(-1, *here.shape[1:])[: shape[axis]], 0, axis)
    return contiguous(planes)


def filled(plane: Planes, weights: Planes) -> Planes:
    """The plane with pixels of no weight filled from means over ever larger blocks."""
    if weights.all():
        return plane
    axes = range(plane.ndim)
    sums, totals = sums_over_blocks(plane * weights, axes), sums_over_blocks(weights, axes)
    means = np.divide(sums, totals, out=np.zeros_like(sums), where=totals > 0)
    coarse = spread(filled(means, (totals > 0).astype(np.float32)), axes, plane.shape)
    return np.where(weights > 0, plane, coarse)
