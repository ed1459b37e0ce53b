"""Where the patches of an image stand, and the average of patches that overlap."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.conversion import in_range

__all__ = ["OverlapAverage", "patch_starts"]


def patch_starts(
    shape: tuple[int, ...], patch_shape: tuple[int, ...], stride: tuple[int, ...]
) -> tuple[NDArray[np.intp], ...]:
    """Positions along each axis: 0, stride, 2·stride, … and the one where a patch ends last."""
    for size, patch in zip(shape, patch_shape, strict=True):
        if patch > size:
            raise ValueError(
                f"Patches of shape {patch_shape} do not fit in an image of shape {shape}."
            )
    starts = []
    for size, patch, step in zip(shape, patch_shape, stride, strict=True):
        last = size - patch
        regular = np.arange(0, last + 1, step)
        starts.append(regular if last % step == 0 else np.append(regular, last))
    return tuple(starts)


class OverlapAverage:
    """The average of patches that come in consecutive blocks.

    A pixel is kept as the value of the first patch that covers it plus the mean of the differences
    of all patches from it. Equal values differ by zero, so nothing is rounded where all agree.

    Parameters
    ----------
    shape, patch_shape, stride : tuple of int
    """

    def __init__(
        self, shape: tuple[int, ...], patch_shape: tuple[int, ...], stride: tuple[int, ...]
    ) -> None:
        self.shape = shape
        self.patch_shape = patch_shape
        self.starts = patch_starts(shape, patch_shape, stride)
        self.grid_shape = tuple(len(starts) for starts in self.starts)
        self.done = 0
        if any(
            np.diff(starts).max(initial=0) > m
            for starts, m in zip(self.starts, patch_shape, strict=True)
        ):
            raise ValueError(
                f"stride={stride} leaves gaps between patches of shape {patch_shape}; an image can "
                "be made of patches only where they touch or overlap."
            )
        self._needed = (
            f"an image of shape {shape} in patches of shape {patch_shape} with stride {stride} has "
            f"exactly {self.count}."
        )
        self._steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        self._first: NDArray[Any] | None = None
        self._total: NDArray[np.float64] | None = None

    @property
    def count(self) -> int:
        """How many patches there are."""
        return math.prod(self.grid_shape)

    def next_rows(self, block: NDArray[Any]) -> slice:
        """Where the next patches (n, *patch_shape) stand among all."""
        rows = slice(self.done, self.done + len(block))
        if block.shape[1:] != self.patch_shape:
            raise ValueError(
                f"A block of patches has shape {block.shape}; those before had patches of shape "
                f"{self.patch_shape}."
            )
        if rows.stop > self.count:
            raise ValueError(f"There are {rows.stop} patches or more; {self._needed}")
        return rows

    def add(self, block: NDArray[Any], weights: NDArray[Any] | None = None) -> None:
        """Take in the next patches (n, *patch_shape), with a positive weight each or none."""
        if self._first is not None and block.dtype != self._first.dtype:
            raise ValueError(
                f"A block of patches has dtype {block.dtype}; those before had {self._first.dtype}."
            )
        if self._first is None:
            self._first = np.zeros(math.prod(self.shape), block.dtype)
            self._differences = np.zeros(self._first.shape, np.result_type(block.dtype, np.float64))
            if weights is not None:
                self._total = np.zeros(self._first.shape)
        few = len(block) < math.prod(self.patch_shape)
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
        if self._first is None or self.done < self.count:
            raise ValueError(f"There are {self.done} patches; {self._needed}")
        dtype = self._first.dtype if dtype is None else dtype
        first, change = self._first.reshape(self.shape), self._differences.reshape(self.shape)
        with np.errstate(invalid="ignore", over="ignore"):
            if self._total is None:
                self._divide_by_coverage(change)
            else:
                change /= self._total.reshape(self.shape)
            if first.dtype.kind != "f" and dtype.kind != "f":
                return _rounded(first, change, dtype)
            image = first + change
        # Adding zero would turn -0.0 into 0.0.
        np.copyto(image, first, where=change == 0)
        if dtype.kind == "f":
            return image.astype(dtype, copy=False)
        if np.isnan(image).any():
            raise ValueError(f"The patches hold NaN, which {dtype} cannot hold.")
        return in_range(image, dtype)

    def _corners(self, n: int) -> tuple[NDArray[np.intp], list[NDArray[np.intp]]]:
        """Of the next n patches the first pixels, and from which offset on their pixels are new.

        A patch is the first to cover a pixel if along every axis the one before misses it.
        """
        place = np.unravel_index(np.arange(self.done, self.done + n), self.grid_shape)
        corners = np.zeros(n, np.intp)
        fresh = []
        for starts, k, size, step in zip(
            self.starts, place, self.patch_shape, self._steps, strict=True
        ):
            corners += starts[k] * step
            ends_before = np.concatenate([[0], starts[:-1] + size])
            fresh.append((ends_before - starts)[k])
        return corners, fresh

    def _offset_by_offset(self, block: NDArray[Any]) -> Iterator[tuple[Any, ...]]:
        """Pixels, values, which are new, and the patches they belong to, all patches at once."""
        corners, fresh = self._corners(len(block))
        # From the last offset to the first: that is the order in which patches reach a pixel.
        for offset in reversed(list(np.ndindex(self.patch_shape))):
            pixels = corners + sum(o * step for o, step in zip(offset, self._steps, strict=True))
            new = np.ones(len(block), bool)
            for o, from_here in zip(offset, fresh, strict=True):
                new &= o >= from_here
            yield pixels, block[(slice(None), *offset)], new, slice(None)

    def _patch_by_patch(self, block: NDArray[Any]) -> Iterator[tuple[Any, ...]]:
        """The same for one patch at a time, all its pixels at once."""
        corners, fresh = self._corners(len(block))
        offsets = np.indices(self.patch_shape, sparse=True)
        inside = sum(o * step for o, step in zip(offsets, self._steps, strict=True))
        for k, patch in enumerate(block):
            new = np.ones(self.patch_shape, bool)
            for o, from_here in zip(offsets, fresh, strict=True):
                new &= o >= from_here[k]
            yield corners[k] + inside, patch, new, k

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
        axes = zip(self.starts, self.shape, self.patch_shape, strict=True)
        for axis, (starts, size, patch) in enumerate(axes):
            edges = np.zeros(size + 1, np.int64)
            np.add.at(edges, starts, 1)
            np.add.at(edges, starts + patch, -1)
            cover = edges[:-1].cumsum()
            change /= cover.reshape([-1 if k == axis else 1 for k in range(change.ndim)])


def _rounded(first: NDArray[Any], change: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """``first + change`` rounded, without a step through floats, which cannot hold all integers."""
    whole = first.astype(np.int64) + np.rint(change).astype(np.int64)
    image = whole.astype(first.dtype)
    if dtype == first.dtype or dtype.kind == "b" or first.dtype.kind == "b":
        return image.astype(dtype)
    own, wanted = np.iinfo(first.dtype), np.iinfo(dtype)
    return image.clip(max(own.min, wanted.min), min(own.max, wanted.max)).astype(dtype)
