"""Average overlapping patches into an image."""

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
    """Averages patches that arrive in consecutive blocks.

    A pixel is the value of the first patch that covers it plus the mean of the differences of all
    patches from that value. Equal values differ by zero, so nothing is rounded where all agree.

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
                f"stride={grid.stride} leaves gaps between patches of shape {grid.patch}; patches "
                "must touch or overlap to make an image."
            )
        self._expected = (
            f"an image of shape {grid.shape} in patches of shape {grid.patch} with stride "
            f"{grid.stride} has exactly {len(grid)}."
        )
        self._first: NDArray[Any] | None = None
        self._total: NDArray[np.float64] | None = None

    def next_rows(self, block: NDArray[Any]) -> slice:
        """Return the rows of the next patches (n, *patch) among all patches."""
        rows = slice(self.done, self.done + len(block))
        if block.shape[1:] != self.grid.patch:
            raise ValueError(
                f"A block of patches has shape {block.shape}; earlier blocks had patches of shape "
                f"{self.grid.patch}."
            )
        if rows.stop > len(self.grid):
            raise ValueError(f"There are {rows.stop} patches or more; {self._expected}")
        return rows

    def add(self, block: NDArray[Any], weights: NDArray[Any] | None = None) -> None:
        """Add the next patches (n, *patch), each with a positive weight if there are weights."""
        if self._first is not None and block.dtype != self._first.dtype:
            raise ValueError(
                f"A block of patches has dtype {block.dtype}; earlier blocks had "
                f"{self._first.dtype}."
            )
        if self._first is None:
            self._first = np.zeros(math.prod(self.grid.shape), block.dtype)
            self._differences = np.zeros(self._first.shape, np.result_type(block.dtype, np.float64))
            if weights is not None:
                self._total = np.zeros(self._first.shape)
        is_small = len(block) < math.prod(self.grid.patch)
        parts = self._patch_by_patch(block) if is_small else self._offset_by_offset(block)
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
        """Return the image, in the patches' dtype by default; integers are rounded and clipped."""
        if self._first is None or self.done < len(self.grid):
            raise ValueError(f"There are {self.done} patches; {self._expected}")
        dtype = self._first.dtype if dtype is None else dtype
        first = self._first.reshape(self.grid.shape)
        change = self._differences.reshape(self.grid.shape)
        with np.errstate(invalid="ignore", over="ignore"):
            if self._total is None:
                self._divide_by_coverage(change)
            else:
                change /= self._total.reshape(self.grid.shape)
            if first.dtype.kind != "f" and dtype.kind != "f":
                # In integers: floats cannot hold all of them.
                total = first.astype(np.int64) + np.rint(change).astype(np.int64)
                return converted(total.astype(first.dtype), dtype, None, "patches")
            image = first + change
        # Adding zero has turned -0.0 into 0.0.
        np.copyto(image, first, where=change == 0)
        if dtype.kind == "f":
            return image.astype(dtype, copy=False)
        if np.isnan(image).any():
            raise ValueError(f"The patches contain NaN, which {dtype} cannot hold.")
        return in_range(image, dtype)

    def _first_pixels_and_new_offsets(
        self, n: int
    ) -> tuple[NDArray[np.intp], list[NDArray[np.intp]]]:
        """Return the first pixel of each of the next n patches, and where its new pixels begin.

        A patch is the first to cover a pixel if, along every axis, the patch before misses it: its
        new pixels are those whose offsets along every axis reach the number returned for that axis.
        """
        indices = np.unravel_index(np.arange(self.done, self.done + n), self.grid.grid_shape)
        new_from = []
        for starts, k, size in zip(self.grid.starts, indices, self.grid.patch, strict=True):
            previous_ends = np.concatenate([[0], starts[:-1] + size])
            new_from.append((previous_ends - starts)[k])
        return self.grid.first_pixels(np.arange(self.done, self.done + n)), new_from

    def _offset_by_offset(self, block: NDArray[Any]) -> Iterator[tuple[Any, ...]]:
        """Iterate over the offsets in a patch, for all patches of a block at once.

        Yields pixels of the image, values, which pixels are new, and which patches they are from.
        """
        first_pixels, new_from = self._first_pixels_and_new_offsets(len(block))
        # Backwards, which is the order in which patches reach a pixel.
        for offset in reversed(list(np.ndindex(self.grid.patch))):
            new = np.ones(len(block), bool)
            for o, start in zip(offset, new_from, strict=True):
                new &= o >= start
            pixels = first_pixels + self.grid.offsets[offset]
            yield pixels, block[(slice(None), *offset)], new, slice(None)

    def _patch_by_patch(self, block: NDArray[Any]) -> Iterator[tuple[Any, ...]]:
        """Iterate over the patches of a block; yields the same, for all pixels of a patch."""
        first_pixels, new_from = self._first_pixels_and_new_offsets(len(block))
        offsets = np.indices(self.grid.patch, sparse=True)
        for k, patch in enumerate(block):
            new = np.ones(self.grid.patch, bool)
            for o, start in zip(offsets, new_from, strict=True):
                new &= o >= start[k]
            yield first_pixels[k] + self.grid.offsets, patch, new, k

    def _difference(self, values: NDArray[Any], first: NDArray[Any], finite: bool) -> NDArray[Any]:
        if values.dtype.kind != "f":
            # Modulo 2^64, which makes differences of large unsigned integers right, too.
            return values.astype(np.int64) - first.astype(np.int64)
        difference = np.subtract(values, first, dtype=self._differences.dtype)
        if not finite:
            difference[values == first] = 0
        return difference

    def _divide_by_coverage(self, change: NDArray[Any]) -> None:
        """Divide by the number of patches that cover each pixel, a product over the axes."""
        axes = zip(self.grid.starts, self.grid.shape, self.grid.patch, strict=True)
        for axis, (starts, size, patch) in enumerate(axes):
            edges = np.zeros(size + 1, np.int64)
            np.add.at(edges, starts, 1)
            np.add.at(edges, starts + patch, -1)
            coverage = edges[:-1].cumsum()
            change /= coverage.reshape([-1 if k == axis else 1 for k in range(change.ndim)])
