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
# Steps towards the solution of the biharmonic equation: on the finest scale, and at most; and their
# size, of which 1/2 would be too much.
_STEPS, _MOST_STEPS = 8, 100
_RATE = 0.45

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


def filled(plane: Planes, weights: Planes, steps: int = _STEPS) -> Planes:
    """The plane with a smooth surface where pixels have no weight.

    Means over ever larger blocks are interpolated and, at every scale, move in some ``steps``
    towards the solution of the biharmonic equation.
    """
    if weights.all():
        return plane
    axes = range(plane.ndim)
    sums, totals = sums_over_blocks(plane * weights, axes), sums_over_blocks(weights, axes)
    means = np.divide(sums, totals, out=np.zeros_like(sums), where=totals > 0)
    # Steps cost little on coarse scales, where they reach far.
    more = min(3 * steps, _MOST_STEPS)
    coarse = filled(means, (totals > 0).astype(np.float32), more)
    surface = np.where(weights > 0, plane, spread(coarse, axes, plane.shape))
    rate = np.where(weights > 0, np.float32(0), np.float32(_RATE / (2 * plane.ndim) ** 2))
    for _ in range(steps):
        surface -= rate * _curvature(_curvature(surface))
    return surface


def _curvature(surface: Planes) -> Planes:
    """The sum of the differences of each pixel from its neighbours."""
    result = np.zeros_like(surface)
    for axis in range(surface.ndim):
        differences = np.diff(np.moveaxis(surface, axis, 0), axis=0)
        along = np.moveaxis(result, axis, 0)
        along[1:] += differences
        along[:-1] -= differences
    return result
