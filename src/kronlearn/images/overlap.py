"""Average overlapping patches into an image."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.images.patch_grid import PatchGrid
from kronlearn.io.conversion import converted, in_range

__all__ = ["OverlapAverage"]


# Pixels of patches that are added at a time.
_NUMBERS = 1 << 17


class OverlapAverage:
    """Averages patches that arrive in consecutive blocks.

    A pixel is the value of the first patch that covers it plus the mean of the differences of all
    patches from that value. Equal values differ by zero, so nothing is rounded where all agree.

    Parameters
    ----------
    grid : PatchGrid
    means : array of shape (N,) or None
        Means to add to the patches.
    weights : array of shape (N,) or None
        A positive weight of each patch.
    """

    def __init__(
        self, grid: PatchGrid, means: NDArray[Any] | None, weights: NDArray[Any] | None
    ) -> None:
        self.grid, self.means, self.weights = grid, means, weights
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

    def add(self, block: NDArray[Any]) -> None:
        """Add the next patches (n, *patch)."""
        if block.shape[1:] != self.grid.patch:
            raise ValueError(
                f"A block of patches has shape {block.shape}; earlier blocks had patches of shape "
                f"{self.grid.patch}."
            )
        if self.done + len(block) > len(self.grid):
            raise ValueError(
                f"There are {self.done + len(block)} patches or more; {self._expected}"
            )
        if self.means is not None:
            means = self.means[self.done : self.done + len(block)]
            block = block + means.reshape(-1, *[1] * len(self.grid.patch))
        if self._first is not None and block.dtype != self._first.dtype:
            raise ValueError(
                f"A block of patches has dtype {block.dtype}; earlier blocks had "
                f"{self._first.dtype}."
            )
        if self._first is None:
            self._first = np.zeros(math.prod(self.grid.shape), block.dtype)
            self._differences = np.zeros(self._first.shape, np.result_type(block.dtype, np.float64))
            if self.weights is not None:
                self._total = np.zeros(self._first.shape)
        step = max(1, _NUMBERS // math.prod(self.grid.patch))
        for start in range(0, len(block), step):
            self._add_part(block[start : start + step])

    def _add_part(self, block: NDArray[Any]) -> None:
        """Add patches that have few enough pixels."""
        assert self._first is not None
        numbers = np.arange(self.done, self.done + len(block))
        # An index that makes numbers per patch numbers per pixel.
        per_pixel = (slice(None), *[None] * len(self.grid.patch))
        pixels = self.grid.first_pixels(numbers)[per_pixel] + self.grid.offsets
        new = self._are_new(numbers)
        self._first[pixels[new]] = block[new]
        difference = self._difference(block, self._first[pixels])
        if self.weights is not None:
            assert self._total is not None
            shares = np.broadcast_to(self.weights[numbers][per_pixel], block.shape)
            np.add.at(self._total, pixels.ravel(), shares.ravel())
            difference = difference * shares
        np.add.at(self._differences, pixels.ravel(), difference.ravel())
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

    def _are_new(self, numbers: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return which pixels (n, *patch) of the patches ``numbers`` no earlier patch covers.

        Those are the pixels that the patch before misses along every axis.
        """
        new = np.ones((len(numbers), *self.grid.patch), bool)
        indices = np.unravel_index(numbers, self.grid.grid_shape)
        offsets = np.indices(self.grid.patch, sparse=True)
        axes = zip(self.grid.starts, indices, self.grid.patch, offsets, strict=True)
        for starts, k, size, offset in axes:
            previous_ends = np.concatenate([[0], starts[:-1] + size])
            new_from = (previous_ends - starts)[k]
            new &= offset >= new_from.reshape(-1, *[1] * len(self.grid.patch))
        return new

    def _difference(self, values: NDArray[Any], first: NDArray[Any]) -> NDArray[Any]:
        if values.dtype.kind != "f":
            # Modulo 2^64, which makes differences of large unsigned integers right, too.
            difference = values.astype(np.int64) - first.astype(np.int64)
            return difference.astype(self._differences.dtype)
        with np.errstate(invalid="ignore", over="ignore"):
            difference = np.subtract(values, first, dtype=self._differences.dtype)
        # Infinity minus infinity.
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
