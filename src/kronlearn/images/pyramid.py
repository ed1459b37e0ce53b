"""Image pyramids: sum planes over pairs of pixels along their axes, and interpolate back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.images.planes import contiguous

__all__ = ["axes_to_halve", "fill_smoothly", "interpolate", "sum_pairs"]

# An axis is halved if at least this many pairs of pixels are left along it.
_MIN_PAIRS = 16
# Steps towards the solution of the biharmonic equation: on the finest scale, and on any. Their
# size is stable below 1/2.
_STEPS, _MAX_STEPS = 8, 100
_RATE = 0.45

Planes = NDArray[np.float32]


def axes_to_halve(shape: Sequence[int]) -> list[int]:
    """Return the axes of planes (C, *spatial) that are long enough to halve."""
    return [a for a, size in enumerate(shape) if a > 0 and size >= 2 * _MIN_PAIRS]


def sum_pairs(planes: NDArray[Any], axes: Sequence[int]) -> Planes:
    """Sum pairs of pixels along each of the axes; the last of an odd number counts twice."""
    sums = planes.astype(np.float32)
    for axis in axes:
        sums = np.moveaxis(sums, axis, 0)
        second = np.concatenate([sums[1::2], sums[-1:]]) if len(sums) % 2 else sums[1::2]
        sums = np.moveaxis(sums[::2] + second, 0, axis)
    return contiguous(sums)


def interpolate(planes: Planes, axes: Sequence[int], shape: Sequence[int]) -> Planes:
    """Double the pixels along each of the axes by linear interpolation, cropped to a shape."""
    for axis in axes:
        here = np.moveaxis(planes, axis, 0)
        before, after = np.concatenate([here[:1], here[:-1]]), np.concatenate([here[1:], here[-1:]])
        pairs: NDArray[Any] = np.stack([3 * here + before, 3 * here + after], axis=1) / 4
        planes = np.moveaxis(pairs.reshape(-1, *here.shape[1:])[: shape[axis]], 0, axis)
    return contiguous(planes)


def fill_smoothly(plane: Planes, weights: Planes, steps: int = _STEPS) -> Planes:
    """Fill the pixels of a plane that have no weight with a smooth surface.

    Means over ever larger blocks are interpolated; on every scale, they move in ``steps`` or more
    steps towards the solution of the biharmonic equation.
    """
    if weights.all():
        return plane
    axes = range(plane.ndim)
    sums, totals = sum_pairs(plane * weights, axes), sum_pairs(weights, axes)
    means = np.divide(sums, totals, out=np.zeros_like(sums), where=totals > 0)
    # On coarse scales steps cost little and reach far.
    coarse_steps = min(3 * steps, _MAX_STEPS)
    coarse = fill_smoothly(means, (totals > 0).astype(np.float32), coarse_steps)
    surface = np.where(weights > 0, plane, interpolate(coarse, axes, plane.shape))
    rate = np.where(weights > 0, np.float32(0), np.float32(_RATE / (2 * plane.ndim) ** 2))
    for _ in range(steps):
        surface -= rate * _excess(_excess(surface))
    return surface


def _excess(surface: Planes) -> Planes:
    """Return how much each pixel exceeds its neighbours in total: the negative Laplacian."""
    result = np.zeros_like(surface)
    for axis in range(surface.ndim):
        differences = np.diff(np.moveaxis(surface, axis, 0), axis=0)
        along = np.moveaxis(result, axis, 0)
        along[1:] += differences
        along[:-1] -= differences
    return result
