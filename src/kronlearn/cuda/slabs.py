"""Where the patches of an image are, and the slabs of it that are worked on on a GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.cuda.device import Gpu

__all__ = [
    "GRID",
    "Axis",
    "Grid",
    "PlacedArray",
    "grid_struct",
    "places_on",
    "pointers",
    "sums_instead",
]

#: Size, patch, stride and window of an axis.
Axis = tuple[int, int, int, int]

_MOST_AXES = 16
_MOST_NUMBER = 2**31 - 1
_LISTS = ("size", "patch", "stride", "starts", "last", "window", "feature")

#: The struct PatchGrid of the kernels.
GRID = np.dtype(
    [
        ("n_axes", np.int32),
        ("features", np.int32),
        *((name, np.int32, _MOST_AXES) for name in _LISTS),
        ("origin", np.int32),
        ("band", np.int32),
        ("step", np.int64, _MOST_AXES),
    ],
    align=True,
)


def pointers(*names: str) -> list[tuple[str, Any]]:
    """Fields of a struct."""
    return [(name, np.uint64) for name in names]


@dataclass(frozen=True)
class Grid:
    """Where patches are; ``band`` is the axis along which the image is cut.

    Patches are numbered in C order of their places, that axis counting as the first.
    """

    axes: tuple[Axis, ...]
    band: int

    @classmethod
    def of(cls, axes: Sequence[Axis], band: int | None = None) -> Grid:
        """Checks the axes; by default the image is cut along the longest, of equals the first."""
        for size, patch, stride, window in axes:
            if patch < 1 or stride < 1 or stride > patch or window < 0 or size < patch:
                raise ValueError("patches do not fit the image")
        if not axes:
            raise ValueError("image, numerator and denominator do not fit the axes")
        if len(axes) > _MOST_AXES:
            raise ValueError(f"On a GPU images have at most {_MOST_AXES} axes, not {len(axes)}.")
        longest = max(size + window for size, _, _, window in axes)
        if longest > _MOST_NUMBER or math.prod(axis[1] for axis in axes) > _MOST_NUMBER:
            raise ValueError("On a GPU an axis or a patch has at most 2³¹ − 1 pixels.")
        sizes = [axis[0] for axis in axes]
        return cls(tuple(axes), sizes.index(max(sizes)) if band is None else band)

    @property
    def order(self) -> list[int]:
        """The axes as kernels have them."""
        return [self.band, *(a for a in range(len(self.axes)) if a != self.band)]

    @property
    def pixels(self) -> int:
        return math.prod(axis[0] for axis in self.axes)

    @property
    def features(self) -> int:
        return math.prod(axis[1] for axis in self.axes)

    @property
    def starts(self) -> list[int]:
        """How many patches there are along each axis."""
        return [1 + -(-(size - patch) // stride) for size, patch, stride, _ in self.axes]

    @property
    def candidates(self) -> int:
        """The most patches that a window has."""
        within = [min(2 * w + 1, size - patch + 1) for size, patch, _, w in self.axes]
        return math.prod(within)

    @property
    def per_start(self) -> int:
        """Patches that begin at the same place of the band axis."""
        starts = self.starts
        return math.prod(starts) // starts[self.band]

    def rows(self, first: int, last: int, reach: int = 0) -> tuple[int, int]:
        """Pixels of the band axis that patches from one start to another touch, and some around."""
        size, patch, stride, _ = self.axes[self.band]
        low, high = (min(start * stride, size - patch) for start in (first, last))
        return max(0, low - reach), min(size, high + patch + reach)

    def slab(self, rows: tuple[int, int]) -> list[int]:
        """The shape of a slab of the image."""
        return [rows[1] - rows[0] if a == self.band else x[0] for a, x in enumerate(self.axes)]

    def places(self, rows: tuple[int, int]) -> NDArray[np.int64]:
        """Offsets in a slab, from a patch's first pixel, of all its pixels."""
        places = np.zeros(1, np.int64)
        for axis, step in zip(self.axes, _steps(self.slab(rows)), strict=True):
            places = np.add.outer(places, step * np.arange(axis[1], dtype=np.int64)).ravel()
        return places


@lru_cache(64)
def grid_struct(grid: Grid, rows: tuple[int, int]) -> NDArray[Any]:
    """The struct PatchGrid for a slab of the image."""
    shape, starts = grid.slab(rows), grid.starts
    steps, features = _steps(shape), _steps([axis[1] for axis in grid.axes])
    made = np.zeros((), GRID)
    made["n_axes"], made["features"] = len(grid.axes), grid.features
    made["origin"], made["band"] = rows[0], grid.band
    for k, a in enumerate(grid.order):
        size, patch, stride, window = grid.axes[a]
        values = (shape[a], patch, stride, starts[a], size - patch, window, features[a])
        for name, value in zip(_LISTS, values, strict=True):
            made[name][k] = value
        made["step"][k] = steps[a]
    return made


@lru_cache(64)
def places_on(gpu: Gpu, grid: Grid, rows: tuple[int, int]) -> Any:
    """What :meth:`Grid.places` gives, on the GPU; it stays there for the next image."""
    return gpu.upload(grid.places(rows))


def _steps(shape: Sequence[int]) -> list[int]:
    """How far apart neighbours along each axis of a C-contiguous array are."""
    return [math.prod(shape[a + 1 :]) for a in range(len(shape))]


@dataclass(frozen=True)
class PlacedArray:
    """An array (planes, *sizes) of NumPy or ``on_gpu``, of which the GPU works on slabs."""

    gpu: Gpu
    array: Any
    on_gpu: bool

    def view(self, grid: Grid, rows: tuple[int, int]) -> Any:
        """Some rows along the band axis, where they are: (planes, *sizes of the slab)."""
        whole = self.array.reshape(-1, *(axis[0] for axis in grid.axes))
        return whole[(slice(None),) * (1 + grid.band) + (slice(*rows),)]

    def slab(self, grid: Grid, rows: tuple[int, int]) -> Any:
        """Some rows along the band axis, on the GPU: themselves or a copy."""
        if self.on_gpu and self._is_whole(grid, rows):
            return self.array
        view = self.view(grid, rows)
        if self.on_gpu:
            return self.gpu.xp.ascontiguousarray(view)
        return self.gpu.upload(np.ascontiguousarray(view))

    def put(self, grid: Grid, rows: tuple[int, int], slab: Any) -> None:
        """Write back what :meth:`slab` gave."""
        if self.on_gpu and self._is_whole(grid, rows):
            return
        view = self.view(grid, rows)
        if not self.on_gpu:
            view[...] = self.gpu.download(slab)
        elif not view.flags.c_contiguous:
            view[...] = slab

    def _is_whole(self, grid: Grid, rows: tuple[int, int]) -> bool:
        return rows == (0, grid.axes[grid.band][0])


def sums_instead(arrays: dict[str, PlacedArray]) -> Any:
    """Replace the average, which lies on the GPU and is returned, by the two sums for it."""
    average = arrays.pop("average")
    for name in ("numerator", "denominator"):
        zeros = average.gpu.xp.zeros_like(average.array)
        arrays[name] = PlacedArray(average.gpu, zeros, on_gpu=True)
    return average.array
