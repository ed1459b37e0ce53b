"""Images as convolutional coding takes them: with unknown pixels around, in single precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kronlearn import _native
from kronlearn.convolutional.filters import ConvolutionalDictionary
from kronlearn.core.instruction_sets import instruction_set

__all__ = ["Canvas", "Codes", "canvases_of", "no_codes", "scale_of", "synthesised"]

#: Coefficients that are not zero: positions, filters and values.
Codes = tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]


@dataclass(frozen=True)
class Canvas:
    """An image with a border of unknown pixels, so that filters may reach over its edges.

    Parameters
    ----------
    pixels : array
        The image; channels, if there are any, come first. Zero where a pixel is unknown.
    weights : array of the same shape
        One where a pixel is known, zero elsewhere.
    """

    pixels: NDArray[np.float32]
    weights: NDArray[np.float32]

    @property
    def n_known(self) -> int:
        """How many pixels are known."""
        return int(np.count_nonzero(self.weights))

    def in_units(self, scale: float) -> Canvas:
        """The same image in units of a power of two."""
        return Canvas(self.pixels / np.float32(scale), self.weights)

    def map_shape(self, filter_shape: Sequence[int]) -> tuple[int, ...]:
        """How many positions a filter has along each axis."""
        sizes = zip(self.pixels.shape, filter_shape, strict=True)
        return tuple(size - length + 1 for size, length in sizes)

    def residual(
        self, codes: Codes, dictionary: ConvolutionalDictionary, n_threads: int
    ) -> NDArray[np.float32]:
        """What codes leave of the known pixels."""
        left = self.pixels - synthesised(self.pixels.shape, codes, dictionary, n_threads)
        left *= self.weights
        return left


def synthesised(
    shape: tuple[int, ...],
    codes: Codes,
    dictionary: ConvolutionalDictionary,
    n_threads: int,
    filters: NDArray[Any] | None = None,
) -> NDArray[np.float32]:
    """The image that codes stand for; ``filters`` replaces those of the dictionary."""
    image = np.zeros(shape, np.float32)
    taken = dictionary.filters if filters is None else filters
    settings = dictionary.stages, codes, n_threads, instruction_set()
    _native.synthesize_convolutional(image, taken.astype(np.float32), *settings)
    return image


def no_codes() -> Codes:
    """Codes of an image of zeros."""
    return np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.float32)


def canvases_of(
    images: ArrayLike | Sequence[ArrayLike],
    mask: ArrayLike | Sequence[ArrayLike] | None,
    filter_shape: tuple[int, ...],
    channel_axis: int | None,
    has_channels: bool,
) -> list[Canvas]:
    """One image or several as canvases, in the units of the images."""
    if has_channels != (channel_axis is not None):
        raise ValueError(
            "These filters have channels; pass channel_axis, the axis of the channels."
            if has_channels
            else f"channel_axis={channel_axis}, but these filters have no channels; leave it out."
        )
    several = images if isinstance(images, (list, tuple)) else [images]
    if len(several) == 0:
        raise ValueError("There are no images; give one, or a list of at least one.")
    masks: Any = mask if isinstance(images, (list, tuple)) else [mask]
    if mask is None:
        masks = [None] * len(several)
    if not isinstance(masks, (list, tuple)) or len(masks) != len(several):
        raise ValueError(f"Pass a list of {len(several)} masks, one for each image.")
    names = ["The image"] if several is not images else [f"Image {k}" for k in range(len(several))]
    return [
        _canvas(*given, filter_shape, channel_axis)
        for given in zip(several, masks, names, strict=True)
    ]


def scale_of(canvases: Sequence[Canvas]) -> float:
    """A power of two near the largest magnitude: in its units single precision has room."""
    largest = max(
        max(float(canvas.pixels.max()), -float(canvas.pixels.min())) for canvas in canvases
    )
    return float(2.0 ** np.floor(np.log2(largest))) if largest > 0 else 1.0


def _canvas(
    image: ArrayLike,
    mask: ArrayLike | None,
    name: str,
    filter_shape: tuple[int, ...],
    channel_axis: int | None,
) -> Canvas:
    array = _real(image, name)
    n_axes = len(filter_shape)
    if array.ndim != n_axes:
        cure = ", channels included" if channel_axis is not None else ""
        cure += "; pass several images as a list" if array.ndim > n_axes else ""
        cure += "; pass a single image as an array, not as a list" if array.ndim < n_axes else ""
        raise ValueError(
            f"{name} has shape {array.shape}; filters of {filter_shape} need {n_axes} axes{cure}."
        )
    if channel_axis is not None and channel_axis not in range(-n_axes, n_axes):
        raise ValueError(f"channel_axis={channel_axis} is not an axis of an image with {n_axes}.")
    known = np.ones(array.shape, bool) if mask is None else ~_mask(mask, array.shape, channel_axis)
    if channel_axis is not None:
        array, known = (np.moveaxis(a, channel_axis, 0) for a in (array, known))
        if len(array) != filter_shape[0]:
            raise ValueError(f"{name} has {len(array)} channels, the filters {filter_shape[0]}.")
    if any(size < length for size, length in zip(array.shape, filter_shape, strict=True)):
        raise ValueError(
            f"{name}, of shape {array.shape}, is smaller than a filter of {filter_shape}."
        )
    if not np.isfinite(array[known]).all():
        raise ValueError(
            f"{name} holds NaN or infinity; pass a mask that is True at these pixels, which "
            "are then unknown."
        )
    if not known.any():
        raise ValueError(f"{name} has no known pixel: its mask hides all.")
    around = [(length - 1, length - 1) for length in filter_shape]
    if channel_axis is not None:
        around[0] = 0, 0
    pixels = np.pad(np.where(known, array, 0), around)
    if np.abs(pixels).max() > np.finfo(np.float32).max:
        raise ValueError(f"{name} has values too large for single precision.")
    return Canvas(pixels.astype(np.float32), np.pad(known.astype(np.float32), around))


def _real(image: ArrayLike, name: str) -> NDArray[Any]:
    """An image as an array of real numbers."""
    if isinstance(image, np.ma.MaskedArray) and np.ma.is_masked(image):
        raise ValueError(f"{name} is a masked array; pass image.filled(0) and mask=image.mask.")
    try:
        array = np.asarray(image)
    except ValueError:
        raise ValueError(f"{name} has rows of different lengths.") from None
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} has dtype {array.dtype}; pass real numbers.")
    return array


def _mask(mask: ArrayLike, shape: tuple[int, ...], channel_axis: int | None) -> NDArray[np.bool_]:
    """Where pixels are missing, for an image of a shape; channels may share a mask."""
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
