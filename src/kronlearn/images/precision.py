"""Gaussian noise whose standard deviation varies from pixel to pixel.

The precision of a pixel is the inverse of the variance of its noise, scaled to a mean of one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter

from kronlearn.cuda.arrays import in_memory
from kronlearn.images.planes import Float32, Mask
from kronlearn.images.pyramid import sum_pairs

__all__ = [
    "checked_map",
    "equalised",
    "halved",
    "is_map",
    "precision_of",
    "precision_of_planes",
    "raised",
    "training_planes",
]

# The precision of a pixel is compared with the mean over this many pixels along each axis.
_WINDOW = 9
# Precision below this fraction of the largest is lost in single precision, and raised to it.
_MIN_PRECISION = 1e-8
# Standard deviations below this fraction of the median are raised to it: pixels that are known much
# more precisely would leave the others without any precision.
_LEAST_DEVIATION = 0.01


def is_map(sigma: Any, channel_axis: int | None) -> bool:
    """Whether sigma is a map of pixels rather than one number per image or channel."""
    ndim = sigma.ndim if hasattr(sigma, "ndim") else np.ndim(sigma)
    return ndim > (0 if channel_axis is None else 1)


def checked_map(
    sigma: Any, channels: NDArray[Any], channel_axis: int | None, missing: Mask | None
) -> NDArray[np.float64]:
    """Return a map of standard deviations, of the image's shape, like its channels (C, *spatial).

    ``missing`` pixels, which have been filled in, get the median of the others.
    """
    deviations = np.asarray(in_memory(sigma))
    if deviations.dtype.kind not in "fiu":
        raise TypeError(f"sigma has dtype {deviations.dtype}; pass numbers.")
    shape = list(channels.shape[1:])
    if channel_axis is not None:
        shape.insert(channel_axis % channels.ndim, len(channels))
    if deviations.shape != tuple(shape):
        or_several = "" if channel_axis is None else f" or {len(channels)}, one per channel,"
        raise ValueError(
            f"sigma has shape {deviations.shape}; pass a number{or_several} or a map of the "
            f"image's shape, {tuple(shape)}."
        )
    if channel_axis is None:
        deviations = deviations[None]
    else:
        deviations = np.moveaxis(deviations, channel_axis, 0)
    deviations = deviations.astype(np.float64)
    if missing is not None:
        deviations[missing] = np.median(deviations[~missing])
    if not (np.isfinite(deviations).all() and (deviations > 0).all()):
        raise ValueError("sigma has values that are not positive and finite.")
    return deviations


def raised(deviations: NDArray[np.float64], channels: NDArray[Any]) -> NDArray[np.float64]:
    """Return the standard deviations of channels (C, *spatial), the smallest of each one raised.

    Pixels whose noise exceeds the range of the channel, which say nothing, do not count for the
    median.
    """
    result = deviations.copy()
    for channel, values in zip(channels, result, strict=True):
        informative = values[values < float(channel.max()) - float(channel.min())]
        if informative.size:
            np.maximum(values, _LEAST_DEVIATION * np.median(informative), out=values)
    return result


def precision_of(
    deviations: NDArray[np.float64], joint: bool
) -> tuple[NDArray[np.float64], list[float]]:
    """Return the precision of channels (C, *spatial), and each one's noise where precision is one.

    With ``joint`` the channels share one scale, and there is one such noise level.
    """
    axes = tuple(range(0 if joint else 1, deviations.ndim))
    least = np.min(deviations, axis=axes, keepdims=True)
    precision = np.maximum(np.square(least / deviations), _MIN_PRECISION)
    mean = np.mean(precision, axis=axes, keepdims=True)
    return precision / mean, (least / np.sqrt(mean)).reshape(-1).tolist()


def precision_of_planes(precision: NDArray[np.float64], basis: NDArray[np.float64]) -> Float32:
    """Return the precision of planes, whose basis (C, C) rotates the channels, from theirs."""
    variance = np.einsum("ck,c...->k...", np.square(basis), 1 / precision)
    return (1 / variance).astype(np.float32)


def halved(planes: Float32, precision: Float32, axes: list[int]) -> tuple[Float32, Float32]:
    """Halve planes along axes: weighted means over blocks, and the precision of these.

    Means are scaled so that uniform noise keeps its variance.
    """
    sums, totals = sum_pairs(planes * precision, axes), sum_pairs(precision, axes)
    n_summed = np.float32(2 ** len(axes))
    return sums / totals * np.sqrt(n_summed), totals / n_summed


def equalised(planes: Float32, precision: Float32, estimate: Float32) -> tuple[Float32, Float32]:
    """Even out the noise of planes locally; return them and the variance of their noise.

    Pixels with more noise than their surroundings are moved towards the estimate until they have
    as much.
    """
    size = (1, *[_WINDOW] * (precision.ndim - 1))
    local = uniform_filter(precision.astype(np.float64), size).astype(np.float32)
    share = np.sqrt(np.minimum(1, precision / local))
    result: Float32 = estimate + share * (planes - estimate)
    variance = 1 / np.maximum(precision, local)
    return result, variance.astype(np.float32, copy=False)


def training_planes(planes: Float32, precision: Float32) -> Float32:
    """Return planes to learn from, with noise of about one everywhere.

    The noisiest pixels are replaced by weighted means of their surroundings.
    """
    size = (1, *[_WINDOW // 2] * (planes.ndim - 1))
    weights = uniform_filter(precision.astype(np.float64), size)
    means = uniform_filter((planes * precision).astype(np.float64), size) / weights
    result, variance = equalised(planes, precision, means.astype(np.float32))
    return (result / np.sqrt(variance)).astype(np.float32, copy=False)
