"""Where the patches of an image stand, and the patches cut out there."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["PatchGrid", "means_dtype", "means_of", "sizes_per_axis", "without_means"]


@dataclass(frozen=True)
class PatchGrid:
    """The patches of an image, or of any other array, on a regular grid, in C order.

    Parameters
    ----------
    shape, patch, stride : tuple of int
        Sizes of the image and of a patch, and the distance from patch to patch, along every axis.
    border : bool
        Whether an axis where the stride does not lead to the far border gets one more place, at
        which a patch ends there: then every pixel is in a patch.
    remove_means : bool
        Whether each patch loses its mean; see :func:`without_means`.
    """

    shape: tuple[int, ...]
    patch: tuple[int, ...]
    stride: tuple[int, ...]
    border: bool = True
    remove_means: bool = False

    def __post_init__(self) -> None:
        if any(m > size for size, m in zip(self.shape, self.patch, strict=True)):
            raise ValueError(
                f"Patches of shape {self.patch} do not fit in an image of shape {self.shape}."
            )

    @cached_property
    def starts(self) -> tuple[NDArray[np.intp], ...]:
        """The places along each axis: 0, stride, 2·stride, … and perhaps the one at the border."""
        starts = []
        for size, m, step in zip(self.shape, self.patch, self.stride, strict=True):
            last = size - m
            regular = np.arange(0, last + 1, step)
            missing = self.border and last % step
            starts.append(np.append(regular, last) if missing else regular)
        return tuple(starts)

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """The number of places along each axis."""
        return tuple(len(starts) for starts in self.starts)

    def __len__(self) -> int:
        return math.prod(self.grid_shape)

    def corners(self, numbers: Any) -> tuple[NDArray[np.intp], ...]:
        """The first pixels of the patches with these numbers: an array for each axis."""
        places = np.unravel_index(numbers, self.grid_shape)
        return tuple(starts[k] for starts, k in zip(self.starts, places, strict=True))

    def first_pixels(self, numbers: Any) -> NDArray[np.intp]:
        """The same as places in the flattened image."""
        return np.asarray(np.ravel_multi_index(self.corners(numbers), self.shape))

    @cached_property
    def offsets(self) -> NDArray[np.intp]:
        """How far the pixels of a patch are from its first one in the flattened image."""
        return np.asarray(np.ravel_multi_index(np.indices(self.patch), self.shape))

    def cut(self, image: Any, numbers: Any = None, xp: Any = np) -> Any:
        """Patches ``(N, *patch)``, copied from an image of the grid's shape.

        Parameters
        ----------
        image : array
        numbers : integer array, optional
            Which patches ``(N,)``; by default all.
        xp : module
            What the image is an array of: NumPy, or that of a GPU.
        """
        windows = xp.lib.stride_tricks.sliding_window_view(image, self.patch)
        if numbers is not None:
            patches = windows[self.corners(numbers)]
        elif self.border:
            patches = windows[np.ix_(*self.starts)].reshape(-1, *self.patch)
        else:
            regular = tuple(slice(None, None, step) for step in self.stride)
            patches = windows[regular].reshape(-1, *self.patch)
        return without_means(patches) if self.remove_means else patches


def means_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """float32 for patches of float32, float64 for others."""
    return np.dtype(np.float32 if dtype == np.float32 else np.float64)


def means_of(patches: NDArray[Any]) -> NDArray[Any]:
    """The means ``(N,)`` of patches, of their :func:`means_dtype`."""
    rows = patches.reshape(len(patches), math.prod(patches.shape[1:]))
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(rows.mean(axis=1, dtype=np.float64).astype(means_dtype(patches.dtype)))


def without_means(patches: NDArray[Any]) -> NDArray[Any]:
    """Patches ``(N, m_1, …, m_d)``, each minus its mean, of their :func:`means_dtype`."""
    means = means_of(patches).reshape(-1, *[1] * (patches.ndim - 1))
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(patches - means)


def sizes_per_axis(name: str, sizes: Any, shape: Sequence[int]) -> tuple[int, ...]:
    """One positive integer per axis of an image; a single number stands for all."""
    try:
        given = [operator.index(size) for size in sizes] if np.ndim(sizes) else None
        found = [operator.index(sizes)] * len(shape) if given is None else given
    except (TypeError, ValueError):
        raise TypeError(f"{name}={sizes!r} is not an integer or a tuple of integers.") from None
    if len(found) != len(shape):
        raise ValueError(
            f"{name}={sizes!r} has {len(found)} numbers; an image of shape {tuple(shape)} needs "
            f"{len(shape)}, one for each of its axes, or a single one for all."
        )
    if min(found) < 1:
        raise ValueError(f"{name}={sizes!r} must be positive; pass at least 1 for every axis.")
    return tuple(found)
