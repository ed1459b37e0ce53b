"""The average of patches that overlap."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.images.patch_grid import PatchGrid
from kronlearn.io.conversion import converted, in_range

__all__ = ["OverlapAverage"]


class OverlapAverage:
    """The average of patches that come in consecutive blocks.

    A pixel is kept as the value of the first patch that covers it plus the mean of the differences
    of all patches from it. Equal values differ by zero, so nothing is rounded where all agree.

    Parameters
    ----------
    grid : PatchGrid
    """

    def __init__(self, grid: PatchGrid) -> None:
        self.grid = grid
        self.done = 0
        if any(
            np.diff(starts).max(initial=0) > m
            for starts, m in zip(grid.starts, grid.patch, strict=True)
        ):
            raise ValueError(
                f"stride={grid.stride} leaves gaps between patches of shape {grid.patch}; an image "
                "can be made of patches only where they touch or overlap."
            )
        self._needed = (
            f"an image of shape {grid.shape} in patches of shape {grid.patch} with stride "
            f"{grid.stride} has exactly {len(grid)}."
        )
        self._first: NDArray[Any] | None = None
        self._total: NDArray[np.float64] | None = None

    def next_rows(self, block: NDArray[Any]) -> slice:
        """Where the next patches (n, *patch) stand among all."""
        rows = slice(self.done, self.done + len(block))
        if block.shape[1:] != self.grid.patch:
            raise ValueError(
                f"A block of patches has shape {block.shape}; those before had patches of shape "
                f"{self.grid.patch}."
            )
        if rows.stop > len(self.grid):
            raise ValueError(f"There are {rows.stop} patches or more; {self._needed}")
        return rows

    def add(self, block: NDArray[Any], weights: NDArray[Any] | None = None) -> None:
        """Take in the next patches (n, *patch), with a positive weight each or none."""
        if self._first is not None and block.dtype != self._first.dtype:
            raise ValueError(
                f"A block of patches has dtype {block.dtype}; those before had {self._first.dtype}."
            )
        if self._first is None:
            self._first = np.zeros(math.prod(self.grid.shape), block.dtype)
            self._differences = np.zeros(self._first.shape, np.result_type(block.dtype, np.float64))
            if weights is not None:
                self._total = np.zeros(self._first.shape)
        few = len(block) < math.prod(self.grid.patch)
        parts = self._patch_by_patch(block) if few else self._offset_by_offset(block)
        finite = block.dtype.kind != "f" or bool(np.isfinite(block).all())
        with np.errstate(invalid="ignore", over="ignore"):
            for pixels, values, new, members in parts:
                self._first[pixels[new]] = values[new]
                difference = self._difference(values, self._first[pixels], finite)
                if weights is not None:
                    assert self._total is not None
                    self._total[pixels] += weights[members]
                    difference = difference * weights[members]
                self._differences[pixels] += difference
        self.done += len(block)

    def image(self, dtype: np.dtype[Any] | None = None) -> NDArray[Any]:
        """The image of all patches, of their dtype or another; integers are rounded and clipped."""
        if self._first is None or self.done < len(self.grid):
            raise ValueError(f"There are {self.done} patches; {self._needed}")
        dtype = self._first.dtype if dtype is None else dtype
        first, change = (
            self._first.reshape(self.grid.shape),
            self._differences.reshape(self.grid.shape),
        )
        with np.errstate(invalid="ignore", over="ignore"):
            if self._total is None:
                self._divide_by_coverage(change)
            else:
                change /= self._total.reshape(self.grid.shape)
            if first.dtype.kind != "f" and dtype.kind != "f":
                # Not by way of floats, which cannot hold all integers.
                whole = first.astype(np.int64) + np.rint(change).astype(np.int64)
                return converted(whole.astype(first.dtype), dtype, None, "patches")
            image = first + change
        # Adding zero would turn -0.0 into 0.0.
        np.copyto(image, first, where=change == 0)
        if dtype.kind == "f":
            return image.astype(dtype, copy=False)
        if np.isnan(image).any():
            raise ValueError(f"The patches hold NaN, which {dtype} cannot hold.")
        return in_range(image, dtype)

    def _places(self, n: int) -> tuple[NDArray[np.intp], list[NDArray[np.intp]]]:
        """Of the next n patches the first pixels, and from which offset on their pixels are new.

        A patch is the first to cover a pixel if along every axis the one before misses it.
        """
        numbers = np.arange(self.done, self.done + n)
        fresh = []
        for starts, k, size in zip(
            self.grid.starts,
            np.unravel_index(numbers, self.grid.grid_shape),
            self.grid.patch,
            strict=True,
        ):
            ends_before = np.concatenate([[0], starts[:-1] + size])
            fresh.append((ends_before - starts)[k])
        return self.grid.first_pixels(numbers), fresh

    def _offset_by_offset(self, block: NDArray[Any]) -> Iterator[tuple[Any, ...]]:
        """Pixels, values, which are new, and the patches they belong to, all patches at once."""
        corners, fresh = self._places(len(block))
        # From the last offset to the first: that is the order in which patches reach a pixel.
        for offset in reversed(list(np.ndindex(self.grid.patch))):
            new = np.ones(len(block), bool)
            for o, from_here in zip(offset, fresh, strict=True):
                new &= o >= from_here
            pixels = corners + self.grid.offsets[offset]
            yield pixels, block[(slice(None), *offset)], new, slice(None)

    def _patch_by_patch(self, block: NDArray[Any]) -> Iterator[tuple[Any, ...]]:
        """The same for one patch at a time, all its pixels at once."""
        corners, fresh = self._places(len(block))
        inside = np.indices(self.grid.patch, sparse=True)
        for k, patch in enumerate(block):
            new = np.ones(self.grid.patch, bool)
            for o, from_here in zip(inside, fresh, strict=True):
                new &= o >= from_here[k]
            yield corners[k] + self.grid.offsets, patch, new, k

    def _difference(self, values: NDArray[Any], first: NDArray[Any], finite: bool) -> NDArray[Any]:
        if values.dtype.kind != "f":
            # Modulo 2^64, so that differences of large unsigned integers are right too.
            return values.astype(np.int64) - first.astype(np.int64)
        difference = np.subtract(values, first, dtype=self._differences.dtype)
        if not finite:
            difference[values == first] = 0
        return difference

    def _divide_by_coverage(self, change: NDArray[Any]) -> None:
        """Divide by the number of patches that cover each pixel, the product of those per axis."""
        axes = zip(self.grid.starts, self.grid.shape, self.grid.patch, strict=True)
        for axis, (starts, size, patch) in enumerate(axes):
            edges = np.zeros(size + 1, np.int64)
            np.add.at(edges, starts, 1)
            np.add.at(edges, starts + patch, -1)
            cover = edges[:-1].cumsum()
            change /= cover.reshape([-1 if k == axis else 1 for k in range(change.ndim)])
