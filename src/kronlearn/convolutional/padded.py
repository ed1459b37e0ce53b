"""Images padded with unknown pixels, in single precision: the input of convolutional coding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kronlearn import _native
from kronlearn.convolutional.filters import ConvolutionalDictionary
from kronlearn.core.instruction_sets import instruction_set
from kronlearn.core.numbers import real_array

__all__ = ["Codes", "Images", "PaddedImage", "number_of_axes", "number_of_channels"]
__all__ += ["padded_images", "scale_of", "synthesize"]

#: One image or several.
Images = ArrayLike | Sequence[ArrayLike]

#: The nonzero coefficients of an image: their positions, filters and values.
Codes = tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]


@dataclass(frozen=True)
class PaddedImage:
    """An image with a border of unknown pixels, so that filters may extend beyond its edges.

    Parameters
    ----------
    pixels : array
        The padded image, channels first if there are any; zero where a pixel is unknown.
    weights : array of the same shape
        One where a pixel is known, zero elsewhere.
    """

    pixels: NDArray[np.float32]
    weights: NDArray[np.float32]

    @property
    def n_known(self) -> int:
        """The number of known pixels."""
        return int(np.count_nonzero(self.weights))

    def in_units(self, scale: float) -> PaddedImage:
        """The same image in units of ``scale``, a power of two."""
        return PaddedImage(self.pixels / np.float32(scale), self.weights)

    def map_shape(self, filter_shape: Sequence[int]) -> tuple[int, ...]:
        """The number of positions of a filter along each axis."""
        sizes = zip(self.pixels.shape, filter_shape, strict=True)
        return tuple(size - length + 1 for size, length in sizes)


def synthesize(
    shape: tuple[int, ...],
    codes: Codes,
    dictionary: ConvolutionalDictionary,
    n_threads: int,
    filters: NDArray[Any] | None = None,
) -> NDArray[np.float32]:
    """``Σ d ∗ x``: the image that codes represent, by ``filters`` instead of the dictionary's."""
    image = np.zeros(shape, np.float32)
    filters = dictionary.filters if filters is None else filters
    settings = dictionary.stages, codes, n_threads, instruction_set()
    _native.synthesize_convolutional(image, filters.astype(np.float32), *settings)
    return image


def padded_images(
    images: Images,
    mask: Images | None,
    filter_shape: tuple[int, ...],
    channel_axis: int | None,
    has_channels: bool,
) -> list[PaddedImage]:
    """Check one image or a list of images, and pad each for filters of a shape."""
    if has_channels != (channel_axis is not None):
        raise ValueError(
            "These filters have channels; pass channel_axis, the axis of the channels."
            if has_channels
            else f"channel_axis={channel_axis}, but these filters have no channels; leave it out."
        )
    is_list, arrays = isinstance(images, (list, tuple)), _as_list(images)
    masks: Any = mask if is_list else [mask]
    if mask is None:
        masks = [None] * len(arrays)
    if not isinstance(masks, (list, tuple)) or len(masks) != len(arrays):
        raise ValueError(f"Pass a list of {len(arrays)} masks, one for each image.")
    names = [f"Image {k}" for k in range(len(arrays))] if is_list else ["The image"]
    return [
        _padded(array, hidden, name, filter_shape, channel_axis)
        for array, hidden, name in zip(arrays, masks, names, strict=True)
    ]


def number_of_axes(images: Images) -> int:
    """The number of axes of the first image, channels included."""
    first = _as_list(images)[0]
    return first.ndim if isinstance(first, np.ndarray) else real_array(first, "The image").ndim


def number_of_channels(images: Any, channel_axis: int, filter_shape: tuple[int, ...]) -> int:
    """The number of channels of the first image, for filters of a shape without channels."""
    shape, n_axes = real_array(_as_list(images)[0], "The image").shape, len(filter_shape) + 1
    if len(shape) != n_axes or channel_axis not in range(-n_axes, n_axes):
        raise ValueError(
            f"Filters of shape {filter_shape} and channels need images with {n_axes} axes, one of "
            f"which is channel_axis={channel_axis}; the image has shape {shape}."
        )
    return int(shape[channel_axis])


def _as_list(images: Any) -> Sequence[Any]:
    """One image or several as a list, which must not be empty."""
    arrays = images if isinstance(images, (list, tuple)) else [images]
    if len(arrays) == 0:
        raise ValueError("There are no images; pass an image, or a list of at least one.")
    return arrays


def scale_of(images: Sequence[PaddedImage]) -> float:
    """A power of two near the largest magnitude of any pixel.

    In units of it, sums of squares neither overflow nor underflow in single precision.
    """
    largest = max(max(float(image.pixels.max()), -float(image.pixels.min())) for image in images)
    return float(2.0 ** np.floor(np.log2(largest))) if largest > 0 else 1.0


def _padded(
    image: ArrayLike,
    mask: ArrayLike | None,
    name: str,
    filter_shape: tuple[int, ...],
    channel_axis: int | None,
) -> PaddedImage:
    if np.ma.is_masked(image):
        raise ValueError(
            f"{name} is a masked array; pass image.filled(0) and mask=np.ma.getmaskarray(image)."
        )
    array = real_array(image, name)
    n_axes = len(filter_shape)
    if array.ndim != n_axes:
        hint = ", channels included" if channel_axis is not None else ""
        if array.ndim > n_axes:
            hint += "; pass several images as a list"
        else:
            hint += "; pass a single image as an array, not as a list"
        raise ValueError(
            f"{name} has shape {array.shape}; filters of shape {filter_shape} need {n_axes} "
            f"axes{hint}."
        )
    if channel_axis is not None and channel_axis not in range(-n_axes, n_axes):
        raise ValueError(
            f"channel_axis={channel_axis} is not an axis of an image with {n_axes} axes."
        )
    known = np.ones(array.shape, bool)
    if mask is not None:
        known = ~_checked_mask(mask, array.shape, channel_axis)
    if channel_axis is not None:
        array, known = (np.moveaxis(a, channel_axis, 0) for a in (array, known))
        if len(array) != filter_shape[0]:
            raise ValueError(f"{name} has {len(array)} channels, the filters {filter_shape[0]}.")
    if any(size < length for size, length in zip(array.shape, filter_shape, strict=True)):
        raise ValueError(
            f"{name}, of shape {array.shape}, is smaller than a filter of shape {filter_shape}."
        )
    if not np.isfinite(array[known]).all():
        raise ValueError(
            f"{name} contains NaN or infinity; to treat these pixels as missing, pass a mask that "
            "is True there."
        )
    if not known.any():
        raise ValueError(f"{name} has no known pixel: its mask covers all of them.")
    border = [(length - 1, length - 1) for length in filter_shape]
    if channel_axis is not None:
        border[0] = 0, 0
    pixels = np.pad(np.where(known, array, 0), border)
    if np.abs(pixels).max() > np.finfo(np.float32).max:
        raise ValueError(f"{name} has values too large for single precision.")
    return PaddedImage(pixels.astype(np.float32), np.pad(known.astype(np.float32), border))


def _checked_mask(
    mask: ArrayLike, shape: tuple[int, ...], channel_axis: int | None
) -> NDArray[np.bool_]:
    """The mask of an image with this shape; a mask without channels applies to each of them."""
    array = np.asarray(mask)
    if array.dtype != bool:
        raise TypeError(
            f"mask has dtype {array.dtype}; pass booleans, True where pixels are missing."
        )
    if channel_axis is not None and array.ndim == len(shape) - 1:
        array = np.repeat(np.expand_dims(array, channel_axis), shape[channel_axis], channel_axis)
    if array.shape != shape:
        raise ValueError(f"mask has shape {np.shape(mask)}, the image {shape}.")
    return array
