"""Regular grids of patches, and the patches cut out there."""

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
        Sizes of the image and of a patch, and the distance between patches, along every axis.
    border : bool
        Add a last position that touches the far border along axes where the stride misses it, so
        that every pixel is in a patch.
    remove_means : bool
        Subtract its mean from each patch; see :func:`without_means`.
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
        """The positions along each axis: 0, stride, 2·stride, …, with ``border`` the last, too."""
        starts = []
        for size, m, step in zip(self.shape, self.patch, self.stride, strict=True):
            last = size - m
            regular = np.arange(0, last + 1, step)
            misses_border = self.border and last % step
            starts.append(np.append(regular, last) if misses_border else regular)
        return tuple(starts)

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """The number of positions along each axis."""
        return tuple(len(starts) for starts in self.starts)

    def __len__(self) -> int:
        return math.prod(self.grid_shape)

    def corners(self, numbers: Any) -> tuple[NDArray[np.intp], ...]:
        """Return the first pixels of the patches ``numbers``: an array for each axis."""
        indices = np.unravel_index(numbers, self.grid_shape)
        return tuple(starts[k] for starts, k in zip(self.starts, indices, strict=True))

    def first_pixels(self, numbers: Any) -> NDArray[np.intp]:
        """Return the first pixels of the patches ``numbers`` as indices of the flattened image."""
        return np.asarray(np.ravel_multi_index(self.corners(numbers), self.shape))

    @cached_property
    def offsets(self) -> NDArray[np.intp]:
        """The offsets of the pixels of a patch from its first one in the flattened image."""
        return np.asarray(np.ravel_multi_index(np.indices(self.patch), self.shape))

    def cut(self, image: Any, numbers: Any = None, xp: Any = np) -> Any:
        """Copy patches ``(N, *patch)`` out of an image of the grid's shape.

        Parameters
        ----------
        image : array
        numbers : integer array, optional
            The indices ``(N,)`` of the patches; by default all.
        xp : module
            The module of the image's array: NumPy, or that of a GPU.
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
    """Return the dtype of patches without means: float32 for float32, float64 for others."""
    return np.dtype(np.float32 if dtype == np.float32 else np.float64)


def means_of(patches: NDArray[Any]) -> NDArray[Any]:
    """Return the means ``(N,)`` of patches, in their :func:`means_dtype`."""
    rows = patches.reshape(len(patches), math.prod(patches.shape[1:]))
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(rows.mean(axis=1, dtype=np.float64).astype(means_dtype(patches.dtype)))


def without_means(patches: NDArray[Any]) -> NDArray[Any]:
    """Subtract its mean from each patch of ``(N, m_1, …, m_d)``, in their :func:`means_dtype`."""
    means = means_of(patches).reshape(-1, *[1] * (patches.ndim - 1))
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(patches - means)


def sizes_per_axis(name: str, sizes: Any, shape: Sequence[int]) -> tuple[int, ...]:
    """Return one positive integer per axis of an image; a single number stands for all."""
    try:
        each = list(sizes) if np.ndim(sizes) else [sizes] * len(shape)
        integers = tuple(operator.index(size) for size in each)
    except (TypeError, ValueError):
        raise TypeError(f"{name}={sizes!r} is not an integer or a tuple of integers.") from None
    if len(integers) != len(shape):
        raise ValueError(
            f"{name}={sizes!r} has {len(integers)} numbers; an image of shape {tuple(shape)} needs "
            f"{len(shape)}, one for each of its axes, or a single one for all."
        )
    if min(integers) < 1:
        raise ValueError(f"{name}={sizes!r} must be positive; pass at least 1 for every axis.")
    return integers
