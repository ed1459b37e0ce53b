"""Noise that differs from pixel to pixel.

The precision of a pixel is one over the variance of its noise, on average one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter

from kronlearn.cuda.arrays import in_memory
from kronlearn.images.coarser import sums_over_blocks

__all__ = [
    "coarser",
    "is_map",
    "levelled",
    "map_of",
    "of_planes",
    "precision_of",
    "to_learn_from",
]

Planes = NDArray[np.float32]

# The precision of a pixel is compared with the mean over so many pixels along each axis.
_AROUND = 9
# Precision below this share of the largest is lost in single precision, and counts as this share.
_LEAST = 1e-8


def is_map(sigma: Any, channel_axis: int | None) -> bool:
    """Whether sigma has a number for every pixel, not one for all or one for every channel."""
    ndim = sigma.ndim if hasattr(sigma, "ndim") else np.ndim(sigma)
    return ndim > (0 if channel_axis is None else 1)


def precision_of(
    deviations: NDArray[np.float64], joint: bool
) -> tuple[NDArray[np.float64], list[float]]:
    """The precision of channels (C, *spatial), and the noise of each where that is one.

    ``joint`` asks for the same for all channels.
    """
    axes = tuple(range(0 if joint else 1, deviations.ndim))
    least = np.min(deviations, axis=axes, keepdims=True)
    precision = np.maximum(np.square(least / deviations), _LEAST)
    mean = np.mean(precision, axis=axes, keepdims=True)
    return precision / mean, (least / np.sqrt(mean)).reshape(-1).tolist()


def map_of(
    sigma: Any, channels: NDArray[Any], channel_axis: int | None, missing: NDArray[np.bool_] | None
) -> NDArray[np.float64]:
    """A map of standard deviations, of the image's shape, for channels (C, *spatial).

    Those of missing pixels, which have been filled in, become typical ones.
    """
    given = np.asarray(in_memory(sigma))
    if given.dtype.kind not in "fiu":
        raise TypeError(f"sigma has dtype {given.dtype}; pass numbers.")
    shape = list(channels.shape[1:])
    if channel_axis is not None:
        shape.insert(channel_axis % channels.ndim, len(channels))
    if given.shape != tuple(shape):
        several = "" if channel_axis is None else f" or {len(channels)}, one per channel,"
        raise ValueError(
            f"sigma has shape {given.shape}; pass a number{several} or a map of the image's shape, "
            f"{tuple(shape)}."
        )
    given = given[None] if channel_axis is None else np.moveaxis(given, channel_axis, 0)
    given = given.astype(np.float64)
    if missing is not None:
        given[missing] = np.median(given[~missing])
    if not (np.isfinite(given).all() and (given > 0).all()):
        raise ValueError("sigma has values that are not positive and finite.")
    return given


def of_planes(precision: NDArray[np.float64], basis: NDArray[np.float64]) -> Planes:
    """The precision of planes, in a basis (C, C) of channels, from that of the channels."""
    variance = np.einsum("ck,c...->k...", np.square(basis), 1 / precision)
    return (1 / variance).astype(np.float32)


def coarser(planes: Planes, precision: Planes, axes: list[int]) -> tuple[Planes, Planes]:
    """Weighted means over blocks, and their precision.

    Means are scaled so that uniform noise keeps its variance.
    """
    sums, totals = sums_over_blocks(planes * precision, axes), sums_over_blocks(precision, axes)
    n_summed = np.float32(2 ** len(axes))
    return sums / totals * np.sqrt(n_summed), totals / n_summed


def levelled(planes: Planes, precision: Planes, estimate: Planes) -> tuple[Planes, Planes]:
    """Planes whose noise hardly differs from pixel to pixel, and its variance.

    Pixels with more noise than those around are moved towards the estimate, until they have as
    much.
    """
    around = _around(precision)
    share = np.sqrt(np.minimum(1, precision / around))
    level: Planes = estimate + share * (planes - estimate)
    variance = 1 / np.maximum(precision, around)
    return level, variance.astype(np.float32, copy=False)


def to_learn_from(planes: Planes, precision: Planes) -> Planes:
    """Planes with noise of about one everywhere: the noisiest pixels become means of others."""
    size = (1, *[_AROUND // 2] * (planes.ndim - 1))
    weights = uniform_filter(precision.astype(np.float64), size)
    means = uniform_filter((planes * precision).astype(np.float64), size) / weights
    level, variance = levelled(planes, precision, means.astype(np.float32))
    return (level / np.sqrt(variance)).astype(np.float32, copy=False)


def _around(precision: Planes) -> Planes:
    """The mean precision around every pixel."""
    size = (1, *[_AROUND] * (precision.ndim - 1))
    return uniform_filter(precision.astype(np.float64), size).astype(np.float32)
