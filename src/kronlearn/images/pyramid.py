"""Image pyramids: sum planes over pairs of pixels along their axes, and interpolate back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.images.planes import Float32, Mask, contiguous

__all__ = ["axes_to_halve", "fill_smoothly", "interpolate", "sum_pairs"]

# An axis is halved if at least this many pairs of pixels are left along it.
_MIN_PAIRS = 16
# Steps towards the solution of the biharmonic equation: on the finest scale, and on any. Their
# size is stable below 1/2.
_STEPS, _MAX_STEPS = 8, 100
_RATE = 0.45


def axes_to_halve(shape: Sequence[int]) -> list[int]:
    """Return the axes of planes (C, *spatial) that are long enough to halve."""
    return [a for a, size in enumerate(shape) if a > 0 and size >= 2 * _MIN_PAIRS]


def sum_pairs(planes: NDArray[Any], axes: Sequence[int]) -> Float32:
    """Sum pairs of pixels along each of the axes; the last of an odd number counts twice."""
    sums = planes.astype(np.float32, copy=False)
    for axis in axes:
        sums = np.moveaxis(sums, axis, 0)
        second = np.concatenate([sums[1::2], sums[-1:]]) if len(sums) % 2 else sums[1::2]
        sums = np.moveaxis(sums[::2] + second, 0, axis)
    return contiguous(sums)


def interpolate(planes: Float32, axes: Sequence[int], shape: Sequence[int]) -> Float32:
    """Double the pixels along each of the axes by linear interpolation, cropped to a shape."""
    for axis in axes:
        here = np.moveaxis(planes, axis, 0)
        before, after = np.concatenate([here[:1], here[:-1]]), np.concatenate([here[1:], here[-1:]])
        pairs: NDArray[Any] = np.stack([3 * here + before, 3 * here + after], axis=1)
        pairs /= 4
        planes = np.moveaxis(pairs.reshape(-1, *here.shape[1:])[: shape[axis]], 0, axis)
    return contiguous(planes)


def fill_smoothly(plane: Float32, known: Mask, steps: int = _STEPS) -> Float32:
    """Fill the pixels of a finite plane that are not known with a smooth surface.

    Means over ever larger blocks are interpolated; on every scale, they move in ``steps`` or more
    steps towards the solution of the biharmonic equation.
    """
    if known.all():
        return plane
    surface = np.where(known, plane, _coarse_surface(plane, known, steps))
    missing = ~known
    for _ in range(steps):
        _relax(surface, missing)
    return surface


def _coarse_surface(plane: Float32, known: Mask, steps: int) -> Float32:
    """Fill the means of known pixels over blocks, and interpolate them."""
    means, any_known = _block_means(plane, known)
    # On coarse scales steps cost little and reach far.
    coarse = fill_smoothly(means, any_known, min(3 * steps, _MAX_STEPS))
    return interpolate(coarse, range(plane.ndim), plane.shape)


def _block_means(plane: Float32, known: Mask) -> tuple[Float32, Mask]:
    """Return the means of known pixels over blocks, and which blocks have any."""
    axes = range(plane.ndim)
    sums, counts = sum_pairs(plane * known, axes), sum_pairs(known, axes)
    any_known = counts > 0
    return np.divide(sums, counts, out=np.zeros_like(sums), where=any_known), any_known


def _relax(surface: Float32, missing: Mask) -> None:
    """Move missing pixels one step towards the solution of the biharmonic equation, in place."""
    change = _excess(_excess(surface))
    change *= np.float32(_RATE / (2 * surface.ndim) ** 2)
    change *= missing
    surface -= change


def _excess(surface: Float32) -> Float32:
    """Return how much each pixel exceeds its neighbours in total: the negative Laplacian."""
    result = np.zeros_like(surface)
    for axis in range(surface.ndim):
        differences = np.diff(np.moveaxis(surface, axis, 0), axis=0)
        along = np.moveaxis(result, axis, 0)
        along[1:] += differences
        along[:-1] -= differences
        del differences  # before those of the next axis take as much memory
    return result
