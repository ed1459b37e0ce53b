"""Images of any kind as planes of floats, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Planes", "as_image", "check_finite", "image_array", "work_dtype"]

# Pixels that are converted at a time.
_BLOCK = 1 << 16


def image_array(image: ArrayLike, channel_axis: int | None) -> NDArray[Any]:
    """The image as an array of real numbers (C, *spatial); a grey image has one channel."""
    array = np.asarray(image)
    if array.dtype.kind not in "fiu":
        hint = " (a boolean one as image.astype(float))" if array.dtype.kind == "b" else ""
        raise ValueError(f"image has dtype {array.dtype}; pass integers or floats{hint}.")
    if channel_axis is not None and not -array.ndim <= channel_axis < array.ndim:
        raise ValueError(
            f"channel_axis={channel_axis} does not exist in an image of shape {array.shape}."
        )
    if array.ndim < (1 if channel_axis is None else 2) or array.size == 0:
        raise ValueError(f"image has shape {array.shape}; there are no pixels in it.")
    return array[None] if channel_axis is None else np.moveaxis(array, channel_axis, 0)


def check_finite(channels: NDArray[Any]) -> None:
    """Raise unless all pixels of the channels (C, *spatial) are finite."""
    for channel in channels:
        if not np.isfinite(channel).all():
            hint = "; images.inpaint fills in missing pixels" if np.isnan(channel).any() else ""
            raise ValueError(f"image contains NaN or infinity; pass finite numbers{hint}.")


def work_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The floats in which the values of an image are put together again."""
    exact_in_single = dtype.itemsize <= (2 if dtype.kind in "iu" else 4)
    return np.dtype(np.float32 if exact_in_single else np.float64)


def as_image(
    channels: NDArray[Any], dtype: np.dtype[Any], channel_axis: int | None
) -> NDArray[Any]:
    """Float channels (C, *spatial), used up, as an image of a dtype; integers rounded, in range."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        # The largest float that does not exceed the largest integer.
        highest = channels.dtype.type(limits.max)
        if int(highest) > limits.max:
            highest = np.nextafter(highest, channels.dtype.type(0))
        np.clip(np.rint(channels, out=channels), limits.min, highest, out=channels)
    image = channels.astype(dtype, copy=False)
    if channel_axis is None:
        return image[0]
    return np.ascontiguousarray(np.moveaxis(image, 0, channel_axis))


@dataclass
class Planes:
    """Channels, each in units of its noise, turned into planes that share hardly any signal.

    ``pixels`` is float32 (C, *spatial): ``(channel − mean) / scale`` in the basis of the channels'
    principal components, strongest first. Noise whose standard deviation is ``scale`` in each
    channel has standard deviation one in every plane.
    """

    pixels: NDArray[np.float32]
    means: NDArray[np.float64]
    scales: NDArray[np.float64]
    basis: NDArray[np.float64]

    @classmethod
    def from_channels(
        cls,
        channels: NDArray[Any],
        scales: NDArray[np.float64],
        known: NDArray[np.bool_] | None = None,
    ) -> Planes:
        """Planes of channels (C, *spatial) with one positive scale each.

        Pixels that are not ``known`` (spatial) become zero; the others must be finite.
        """
        pixels = np.empty(channels.shape, np.float32)
        counted = True if known is None else known
        means = np.array([np.mean(c, dtype=np.float64, where=counted) for c in channels])
        for plane, channel, mean, scale in zip(pixels, channels, means, scales, strict=True):
            step = max(1, _BLOCK * len(plane) // plane.size)
            for start in range(0, len(plane), step):
                rows = slice(start, start + step)
                plane[rows] = (channel[rows] - mean) / scale
                if known is not None:
                    plane[rows][~known[rows]] = 0
        basis = np.eye(len(pixels))
        if len(pixels) > 1:
            basis = _principal_components(pixels)
            _rotate(pixels, basis.T)
        return cls(pixels, means, scales, basis)

    def channels(self, pixels: NDArray[np.float32], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Channels (C, *spatial) of a floating dtype from planes, which are used up."""
        if len(pixels) > 1:
            _rotate(pixels, self.basis)
        channels = pixels.astype(dtype, copy=False)
        for channel, mean, scale in zip(channels, self.means, self.scales, strict=True):
            channel *= scale
            channel += mean
        return channels


def _principal_components(pixels: NDArray[np.float32]) -> NDArray[np.float64]:
    """An orthonormal basis (C, C) in which the planes are uncorrelated, strongest first."""
    flat = pixels.reshape(len(pixels), -1)
    covariance = np.zeros((len(flat), len(flat)))
    for start in range(0, flat.shape[1], _BLOCK):
        block = flat[:, start : start + _BLOCK].astype(np.float64)
        # Not a BLAS product: its rounding depends on the number of threads.
        covariance += np.einsum("ip,jp->ij", block, block)
    vectors = np.linalg.eigh(covariance)[1][:, ::-1]
    signs = np.sign(vectors[np.abs(vectors).argmax(axis=0), range(len(flat))])
    return np.asarray(vectors * signs)


def _rotate(pixels: NDArray[np.float32], matrix: NDArray[np.float64]) -> None:
    """pixels (C, …) becomes matrix · pixels, a block at a time."""
    flat = pixels.reshape(len(pixels), -1)
    rotation = matrix.astype(np.float32)
    for start in range(0, flat.shape[1], _BLOCK):
        block = flat[:, start : start + _BLOCK]
        flat[:, start : start + _BLOCK] = np.einsum("ij,jp->ip", rotation, block)
