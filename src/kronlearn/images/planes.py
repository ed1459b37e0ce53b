"""Images of any kind as planes of floats, and back."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Planes", "as_image", "check_finite", "image_array", "in_range"]

# Pixels that are converted at a time.
_BLOCK = 1 << 16


def image_array(image: ArrayLike, channel_axis: int | None) -> NDArray[Any]:
    """The image as an array of real numbers (C, *spatial); a grey image has one channel."""
    if isinstance(image, np.ma.MaskedArray) and np.ma.is_masked(image):
        raise ValueError(
            "image is a masked array; pass image.filled(0), to inpaint with mask=image.mask."
        )
    array = np.asarray(image)
    if array.dtype.kind not in "fiu":
        hint = " (a boolean one as image.astype(float))" if array.dtype.kind == "b" else ""
        raise ValueError(f"image has dtype {array.dtype}; pass integers or floats{hint}.")
    axis_exists = channel_axis is None or (
        isinstance(channel_axis, numbers.Integral) and -array.ndim <= channel_axis < array.ndim
    )
    if not axis_exists:
        raise ValueError(
            f"channel_axis={channel_axis!r} does not exist in an image of shape {array.shape}."
        )
    if array.ndim < (1 if channel_axis is None else 2) or array.size == 0:
        raise ValueError(
            f"image has shape {array.shape}; there are no pixels in it, or no spatial axis."
        )
    return array[None] if channel_axis is None else np.moveaxis(array, channel_axis, 0)


def check_finite(channels: NDArray[Any]) -> None:
    """Raise unless all pixels of the channels (C, *spatial) are finite."""
    for channel in channels:
        if not np.isfinite(channel).all():
            hint = "; images.inpaint fills in missing pixels" if np.isnan(channel).any() else ""
            raise ValueError(f"image contains NaN or infinity; pass finite numbers{hint}.")


def as_image(channels: NDArray[Any], channel_axis: int | None) -> NDArray[Any]:
    """Channels (C, *spatial) as an image with its channels where they belong."""
    if channel_axis is None:
        return channels[0]
    return np.ascontiguousarray(np.moveaxis(channels, 0, channel_axis))


def in_range(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Floats, used up, in a dtype: for integers rounded and kept in its range."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        # The largest float that does not exceed the largest integer.
        highest = values.dtype.type(limits.max)
        if int(highest) > limits.max:
            highest = np.nextafter(highest, values.dtype.type(0))
        np.clip(np.rint(values, out=values), limits.min, highest, out=values)
    return values.astype(dtype, copy=False)


@dataclass
class Planes:
    """Channels, each in units of its noise, turned into planes that share hardly any signal.

    ``pixels`` is float32 (C, *spatial): ``(channel − mean) / scale`` of the channels ``which``, in
    the basis of their principal components, strongest first. Noise whose standard deviation is
    ``scale`` in each channel has standard deviation one in every plane.
    """

    pixels: NDArray[np.float32]
    which: Sequence[int]
    means: list[float]
    scales: Sequence[float]
    basis: NDArray[np.float64]

    @classmethod
    def from_channels(
        cls,
        channels: NDArray[Any],
        scales: Sequence[float],
        which: Sequence[int],
        known: NDArray[np.bool_] | None = None,
    ) -> Planes:
        """Planes of ``which`` channels of (C, *spatial), with one positive scale for each of those.

        Pixels that are not ``known`` (spatial) become zero; the others must be finite.
        """
        pixels = np.empty((len(which), *channels.shape[1:]), np.float32)
        means = []
        for plane, k, scale in zip(pixels, which, scales, strict=True):
            counted = True if known is None else known
            means.append(float(np.mean(channels[k], dtype=np.float64, where=counted)))
            with np.errstate(over="ignore", invalid="ignore"):
                for values, out in _blocks([channels[k], plane], [np.float64, np.float32]):
                    out[...] = (values - means[-1]) / scale
            if known is not None:
                plane[~known] = 0
        basis = np.eye(len(pixels))
        if len(pixels) > 1:
            basis = _principal_components(pixels)
            _rotate(pixels, basis.T)
        return cls(pixels, which, means, scales, basis)

    def restore(
        self,
        pixels: NDArray[np.float32],
        channels: NDArray[Any],
        where: NDArray[np.bool_] | None = None,
    ) -> None:
        """Write planes, which are used up, into the channels (C, *spatial) they came from.

        Integers are rounded and kept in range. Only pixels ``where`` (spatial) are written.
        """
        if len(pixels) > 1:
            _rotate(pixels, self.basis)
        for plane, k, mean, scale in zip(pixels, self.which, self.means, self.scales, strict=True):
            chosen = np.broadcast_to(np.True_, plane.shape) if where is None else where
            arrays = [plane, chosen, channels[k]]
            for values, written, out in _blocks(arrays, [np.float64, np.bool_, channels.dtype]):
                out[written] = in_range(values * scale + mean, channels.dtype)[written]


def _blocks(arrays: list[NDArray[Any]], dtypes: list[Any]) -> Iterator[tuple[NDArray[Any], ...]]:
    """Blocks of arrays of one shape, converted to dtypes; the last array is written to."""
    access: list[Any] = [["readonly"]] * (len(arrays) - 1) + [["readwrite"]]
    with np.nditer(
        arrays,
        ["external_loop", "buffered", "zerosize_ok"],
        access,
        dtypes,
        order="C",
        casting="unsafe",
        buffersize=_BLOCK,
    ) as blocks:
        yield from blocks


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
