"""Noise that differs from pixel to pixel, and pixels that are missing.

The precision of a pixel is one over the variance of its noise, on average about one; that of a
missing pixel is zero.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.ndimage import uniform_filter

from kronlearn.cuda.arrays import in_memory
from kronlearn.cuda.pixels import Contents
from kronlearn.images.coarser import filled, sums_over_blocks
from kronlearn.images.noise import sigma_of_channel
from kronlearn.io.conversion import in_range

__all__ = [
    "UnevenNoise",
    "coarser",
    "is_map",
    "levelled",
    "missing_pixels",
    "of_planes",
    "to_learn_from",
    "uneven_noise",
]

Planes = NDArray[np.float32]

# The precision of a pixel is compared with the mean over so many pixels along each axis, and with
# this at least.
_AROUND, _LEAST = 9, 1e-3


def is_map(sigma: Any, channel_axis: int | None) -> bool:
    """Whether sigma has a number for every pixel, not one for all or one for every channel."""
    ndim = sigma.ndim if hasattr(sigma, "ndim") else np.ndim(sigma)
    return ndim > (0 if channel_axis is None else 1)


class UnevenNoise(NamedTuple):
    """Channels (C, *spatial) without missing values, and the precision of their noise.

    ``scales`` is the noise where the precision is one: a number, or one for each channel.
    ``sigmas`` has the root of the mean square of every channel of a map; None without one.
    """

    channels: NDArray[Any]
    scales: Any
    precision: NDArray[np.float64]
    sigmas: list[float] | None


def uneven_noise(
    channels: NDArray[Any],
    sigma: Any,
    mask: ArrayLike | None,
    channel_axis: int | None,
    joint: bool,
) -> UnevenNoise:
    """The noise of channels with a map of sigma, or missing pixels, or both.

    ``joint`` asks for one scale for all channels.
    """
    missing = np.zeros(channels.shape, bool)
    if mask is not None:
        missing = missing_pixels(channels, mask, channel_axis)
    whole = channels
    if missing.any():
        whole = np.stack([_without_holes(*pair) for pair in zip(channels, missing, strict=True)])
    one = joint or channel_axis is None
    if not is_map(sigma, channel_axis):
        if sigma is None:
            found = [_estimated(*pair) for pair in zip(channels, missing, strict=True)]
            sigma = math.sqrt(np.mean(np.square(found))) if one else found
        if missing.any() and not np.all(np.asarray(sigma)):
            raise ValueError(
                "sigma is zero: there is no noise; fill in missing pixels with images.inpaint."
            )
        return UnevenNoise(whole, sigma, (~missing).astype(np.float64), None)
    variance = np.square(_map(sigma, channels, channel_axis, missing))
    axes = None if one else tuple(range(1, channels.ndim))
    mean = np.mean(1 / variance, axis=axes, where=~missing, keepdims=True)
    scales = 1 / np.sqrt(mean.reshape(-1))
    return UnevenNoise(
        whole,
        float(scales[0]) if one else scales.tolist(),
        np.where(missing, 0, 1 / (variance * mean)),
        [math.sqrt(np.mean(v, where=~gone)) for v, gone in zip(variance, missing, strict=True)],
    )


def _without_holes(channel: NDArray[Any], missing: NDArray[np.bool_]) -> NDArray[Any]:
    """A channel whose missing pixels are means of those around."""
    known = np.where(missing, 0, channel).astype(np.float32)
    values = filled(known, (~missing).astype(np.float32))
    return np.where(missing, in_range(values, channel.dtype), channel)


def _estimated(channel: NDArray[Any], missing: NDArray[np.bool_]) -> float:
    """The noise of a channel, from patches of which no pixel is missing."""
    known = np.where(missing, np.nan, channel.astype(np.float64))
    ends = float(np.nanmin(known)), float(np.nanmax(known))
    return sigma_of_channel(known, Contents(*ends, None))


def _map(
    sigma: Any, channels: NDArray[Any], channel_axis: int | None, missing: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """A map of standard deviations, of the image's shape, for channels (C, *spatial)."""
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
    given = np.where(missing, 1, given.astype(np.float64))
    if not (np.isfinite(given).all() and (given > 0).all()):
        raise ValueError("sigma, a map, has numbers that are not positive and finite.")
    return given


def missing_pixels(
    channels: NDArray[Any], mask: ArrayLike, channel_axis: int | None
) -> NDArray[np.bool_]:
    """Where pixels of the channels (C, *spatial) are missing; the others are finite."""
    given = np.asarray(in_memory(mask))
    if given.dtype.kind not in "biu":
        raise ValueError(f"mask has dtype {given.dtype}; pass booleans, True where missing.")
    given = given != 0
    if given.ndim == channels.ndim and channel_axis is not None:
        given = np.moveaxis(given, channel_axis, 0)
    if given.shape not in (channels.shape, channels.shape[1:]):
        raise ValueError(
            f"mask has shape {np.shape(mask)}; it must have the image's spatial shape "
            f"{channels.shape[1:]} or the shape of the image."
        )
    missing: NDArray[np.bool_] = np.broadcast_to(given, channels.shape)
    for channel, gone in zip(channels, missing, strict=True):
        if gone.all():
            raise ValueError("Every pixel of the image, or of a channel, is missing.")
        if not np.isfinite(channel).all(where=~gone):
            raise ValueError(
                "image contains NaN or infinity where mask says pixels are known; mark them as "
                "missing."
            )
    return missing


def of_planes(precision: NDArray[np.float64], basis: NDArray[np.float64]) -> Planes:
    """The precision of planes, in a basis (C, C) of channels, from that of the channels."""
    with np.errstate(divide="ignore"):
        variance = 1 / precision
    shares = np.square(basis)
    # A missing pixel is missing in all planes that it is a part of.
    sums = [sum(s * v for s, v in zip(row, variance, strict=True) if s > 0) for row in shares.T]
    return np.stack([1 / total for total in sums]).astype(np.float32)


def coarser(planes: Planes, precision: Planes, axes: list[int]) -> tuple[Planes, Planes]:
    """Weighted means over blocks, in units of what noise equals leave, and their precision."""
    sums, totals = sums_over_blocks(planes * precision, axes), sums_over_blocks(precision, axes)
    n_summed = 2 ** len(axes)
    means = np.divide(sums, totals, out=np.zeros_like(sums), where=totals > 0)
    means = np.stack([filled(*pair) for pair in zip(means, totals, strict=True)])
    means *= np.float32(math.sqrt(n_summed))
    return means.astype(np.float32, copy=False), totals / np.float32(n_summed)


def levelled(planes: Planes, precision: Planes, estimate: Planes) -> tuple[Planes, Planes]:
    """Planes whose noise hardly differs from pixel to pixel, and its variance.

    Pixels with more noise than those around are moved towards the estimate, until they have as
    much; missing ones become the estimate.
    """
    around = _around(precision)
    share = np.sqrt(np.minimum(1, precision / around))
    level: Planes = estimate + share * (planes - estimate)
    variance: Planes = 1 / np.maximum(precision, around)
    return level, variance


def to_learn_from(planes: Planes, precision: Planes) -> Planes:
    """Planes with noise of about one everywhere, whose missing pixels are means of those around."""
    size = (1, *[_AROUND // 2] * (planes.ndim - 1))
    weights = uniform_filter(precision.astype(np.float64), size) + 1e-12
    means = uniform_filter((planes * precision).astype(np.float64), size) / weights
    level, variance = levelled(planes, precision, means.astype(np.float32))
    return (level / np.sqrt(variance)).astype(np.float32, copy=False)


def _around(precision: Planes) -> Planes:
    """The mean precision around every pixel."""
    size = (1, *[_AROUND] * (precision.ndim - 1))
    means = uniform_filter(precision.astype(np.float64), size)
    return np.maximum(means, _LEAST).astype(np.float32)
