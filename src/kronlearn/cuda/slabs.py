"""The grid of an image's patches, and the slabs of the image that the GPU processes one by one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.cuda.arrays import is_on_gpu
from kronlearn.cuda.device import Gpu
from kronlearn.cuda.structs import MOST_AXES, PATCH_GRID

__all__ = ["Axis", "Grid", "SlabArray", "grid_struct", "pixel_offsets_on"]

#: Size, patch, stride and window of an axis.
Axis = tuple[int, int, int, int]

_MOST_NUMBER = 2**31 - 1


@dataclass(frozen=True)
class Grid:
    """Where the patches of an image are; ``band`` is the axis along which it is cut into slabs.

    Patches are numbered in C order of their positions, with the band axis as the first.
    """

    axes: tuple[Axis, ...]
    band: int

    @classmethod
    def of(cls, axes: Sequence[Axis], band: int | None = None) -> Grid:
        """Check the axes; by default the image is cut along the first of its longest axes."""
        for size, patch, stride, window in axes:
            if patch < 1 or stride < 1 or stride > patch or window < 0 or size < patch:
                raise ValueError("patches do not fit the image")
        if not axes:
            raise ValueError("image, numerator and denominator do not fit the axes")
        if len(axes) > MOST_AXES:
            raise ValueError(f"On a GPU images have at most {MOST_AXES} axes, not {len(axes)}.")
        longest = max(size + window for size, _, _, window in axes)
        if longest > _MOST_NUMBER or math.prod(axis[1] for axis in axes) > _MOST_NUMBER:
            raise ValueError("On a GPU an axis or a patch has at most 2³¹ − 1 pixels.")
        sizes = [axis[0] for axis in axes]
        return cls(tuple(axes), sizes.index(max(sizes)) if band is None else band)

    @property
    def order(self) -> list[int]:
        """The axes in the order of the kernels: the band axis first."""
        return [self.band, *(a for a in range(len(self.axes)) if a != self.band)]

    @property
    def pixels(self) -> int:
        """The number of pixels of the image."""
        return math.prod(axis[0] for axis in self.axes)

    @property
    def features(self) -> int:
        """The number of pixels of a patch."""
        return math.prod(axis[1] for axis in self.axes)

    @property
    def starts(self) -> list[int]:
        """The number of patches along each axis."""
        return [1 + -(-(size - patch) // stride) for size, patch, stride, _ in self.axes]

    @property
    def candidates(self) -> int:
        """The largest number of patches in a window."""
        within = [min(2 * w + 1, size - patch + 1) for size, patch, _, w in self.axes]
        return math.prod(within)

    @property
    def per_start(self) -> int:
        """The number of patches that begin at the same position of the band axis."""
        starts = self.starts
        return math.prod(starts) // starts[self.band]

    def rows(self, first: int, last: int) -> tuple[int, int]:
        """The range of pixels along the band axis that is covered by patches ``first`` to ``last``.

        Both count positions along the band axis.
        """
        size, patch, stride, _ = self.axes[self.band]
        low, high = (min(start * stride, size - patch) for start in (first, last))
        return low, high + patch

    def slab_shape(self, rows: tuple[int, int]) -> list[int]:
        """The shape of a slab of the image."""
        return [rows[1] - rows[0] if a == self.band else x[0] for a, x in enumerate(self.axes)]

    def pixel_offsets(self, rows: tuple[int, int]) -> NDArray[np.int64]:
        """The offsets in a slab from a patch's first pixel to each of its pixels."""
        offsets = np.zeros(1, np.int64)
        for axis, step in zip(self.axes, _steps(self.slab_shape(rows)), strict=True):
            offsets = np.add.outer(offsets, step * np.arange(axis[1], dtype=np.int64)).ravel()
        return offsets


@lru_cache(64)
def grid_struct(grid: Grid, rows: tuple[int, int]) -> NDArray[Any]:
    """The struct PatchGrid for a slab of the image."""
    shape, starts = grid.slab_shape(rows), grid.starts
    steps, features = _steps(shape), _steps([axis[1] for axis in grid.axes])
    struct = np.zeros((), PATCH_GRID)
    struct["n_axes"], struct["features"] = len(grid.axes), grid.features
    struct["origin"], struct["band"] = rows[0], grid.band
    for k, a in enumerate(grid.order):
        size, patch, stride, window = grid.axes[a]
        struct["size"][k], struct["patch"][k], struct["stride"][k] = shape[a], patch, stride
        struct["starts"][k], struct["last"][k] = starts[a], size - patch
        struct["window"][k], struct["feature"][k], struct["step"][k] = window, features[a], steps[a]
    return struct


@lru_cache(64)
def pixel_offsets_on(gpu: Gpu, grid: Grid, rows: tuple[int, int]) -> Any:
    """:meth:`Grid.pixel_offsets` on the GPU, cached for the next image."""
    return gpu.upload(grid.pixel_offsets(rows))


def _steps(shape: Sequence[int]) -> list[int]:
    """The distances between neighbours along each axis of a C-contiguous array."""
    return [math.prod(shape[a + 1 :]) for a in range(len(shape))]


@dataclass(frozen=True)
class SlabArray:
    """An array (planes, *sizes) of NumPy or on the GPU, which processes it slab by slab."""

    gpu: Gpu
    array: Any

    @property
    def on_gpu(self) -> bool:
        """Whether the array is on the GPU."""
        return is_on_gpu(self.array)

    def slab(self, grid: Grid, rows: tuple[int, int]) -> Any:
        """Some rows along the band axis, on the GPU; not a copy if these are all of an array there.

        Changes are written back by :meth:`put`.
        """
        if self._shares(grid, rows):
            return self.array
        view = self._view(grid, rows)
        if self.on_gpu:
            return self.gpu.xp.ascontiguousarray(view)
        return self.gpu.upload(np.ascontiguousarray(view))

    def put(self, grid: Grid, rows: tuple[int, int], slab: Any) -> None:
        """Write a slab back to the rows from which it was taken."""
        if self._shares(grid, rows):
            return
        view = self._view(grid, rows)
        if not self.on_gpu:
            view[...] = self.gpu.download(slab)
        elif not view.flags.c_contiguous:
            view[...] = slab

    def _shares(self, grid: Grid, rows: tuple[int, int]) -> bool:
        return self.on_gpu and rows == (0, grid.axes[grid.band][0])

    def _view(self, grid: Grid, rows: tuple[int, int]) -> Any:
        """Some rows along the band axis: (planes, *sizes of the slab)."""
        whole = self.array.reshape(-1, *(axis[0] for axis in grid.axes))
        return whole[(slice(None),) * (1 + grid.band) + (slice(*rows),)]
