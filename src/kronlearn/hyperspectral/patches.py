"""The patches of a cube as samples to learn from, read a few rows of the cube at a time."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import pairwise
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.source import Source
from kronlearn.hyperspectral.blocks import read_height
from kronlearn.hyperspectral.subspace import working_dtype
from kronlearn.io.cubes import Cube, open_cube

__all__ = ["CubePatches"]

# Slabs of rows that are kept for samples to come: several threads may be reading on.
_SLABS = 5
_NOT_PICKLED = ("_lock", "_slabs")


class CubePatches(Source):
    """The patches of a cube that do not overlap, in one order whatever the cube is stored in.

    Patches of two modes are taken from every band, as the paper does; patches of three modes run
    along some bands, too. Along each axis they follow one another; if the last one would stick out,
    it is moved inwards until it ends at the border. Patches with values that mean no data are left
    out: finding them takes one pass over the cube.

    The order is by strips of rows, in a strip by bands and then by columns. Samples are float32
    where that holds the cube's values exactly, otherwise float64.

    Parameters
    ----------
    cube : Cube, array or path
        See :func:`kronlearn.hyperspectral.open_cube`.
    patch_shape : (int, int) or (int, int, int)
        Rows, columns and, for three modes, bands of a patch.
    remove_means : bool
        Whether each patch loses its mean.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.hyperspectral import CubePatches
    >>> cube = np.arange(20 * 16 * 5.0).reshape(20, 16, 5)
    >>> patches = CubePatches(cube, (8, 8))
    >>> len(patches), patches.read(0, 2).shape
    (30, (2, 64))
    """

    def __init__(
        self, cube: Any, patch_shape: Sequence[int] = (8, 8), *, remove_means: bool = False
    ) -> None:
        self.cube: Cube = open_cube(cube)
        self.patch_shape = _checked_shape(patch_shape, self.cube)
        self.dtype = working_dtype(self.cube.dtype)
        self.name = self.cube.name
        self.remove_means = remove_means
        rows, columns, bands = self.cube.shape
        m, n, *b = self.patch_shape
        self._rows = _Places(rows, m)
        self._columns = _Places(columns, n)
        self._bands = _Places(bands, *b or [1])
        self._in_strip = len(self._bands) * len(self._columns)
        # Strips that are read together.
        self._per_slab = max(1, read_height(self.cube) // m)
        self._forget()
        # Which patches of every strip are valid, as bits, if not all are, and how many there are
        # in the strips before.
        self._valid: dict[int, NDArray[np.uint8]] = {}
        self._before = np.arange(len(self._rows) + 1) * self._in_strip
        if self.cube.nodata is not None:
            self._find_valid()

    def __len__(self) -> int:
        return int(self._before[-1])

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in _NOT_PICKLED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()

    def _forget(self) -> None:
        """Have nothing read."""
        self._lock = Lock()
        self._slabs: dict[int, Future[NDArray[Any]]] = {}

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Consecutive samples ``(stop − start, features)``, C-contiguous and of ``dtype``."""
        samples = np.empty((stop - start, self.n_features), self.dtype)
        if start == stop:
            return samples
        first, last = self._strips_of(start, stop)
        for strip in range(first, last + 1):
            before, after = int(self._before[strip]), int(self._before[strip + 1])
            a, b = max(start, before), min(stop, after)
            per_band = len(self._columns)
            # All columns of some bands, between what the first and the last band have.
            whole = {min(b, a + (before - a) % per_band), max(a, b - (b - before) % per_band)}
            for c, d in pairwise(sorted({a, b} | whole)):
                places = self._places(strip, c - before, d - before)
                self._cut(self._strip(strip), places, samples[c - start : d - start])
        return self._centred(samples)

    def take(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Some samples ``(len(rows), features)``, few and in any order, each read on its own."""
        samples = np.empty((len(rows), self.n_features), self.dtype)
        for place in np.argsort(rows, kind="stable"):
            row = int(rows[place])
            strip, _ = self._strips_of(row, row + 1)
            inside = row - int(self._before[strip])
            found = int(self._places(strip, inside, inside + 1)[0])
            band, column = divmod(found, len(self._columns))
            at = (self._rows.at(strip), self._columns.at(column), self._bands.at(band))
            samples[place] = self.cube.read_checked(*at)[0].reshape(-1)
        return self._centred(samples)

    def _strips_of(self, start: int, stop: int) -> tuple[int, int]:
        """The first and the last strip that some samples are in."""
        ends = self._before[1:]
        first, last = np.searchsorted(ends, [start, stop - 1], side="right")
        return int(first), int(last)

    def _places(self, strip: int, start: int, stop: int) -> NDArray[np.intp]:
        """Where in a strip its samples start to stop are, of those that are valid."""
        if strip not in self._valid:
            return np.arange(start, stop)
        bits = np.unpackbits(self._valid[strip], count=self._in_strip)
        return np.flatnonzero(bits)[start:stop]

    def _cut(self, values: NDArray[Any], places: NDArray[np.intp], out: NDArray[Any]) -> None:
        """Samples (N, features) at increasing places of a strip, values (m, columns, bands)."""
        per_band = len(self._columns)
        first, last = int(places[0]) // per_band, int(places[-1]) // per_band
        cut = self._cut_up(values, first, last + 1).transpose(3, 1, 0, 2, 4)
        if len(places) == cut.shape[0] * per_band:
            np.copyto(out.reshape(cut.shape), cut, casting="unsafe")
        else:
            samples = np.ascontiguousarray(cut, dtype=self.dtype).reshape(-1, self.n_features)
            out[...] = samples[places - first * per_band]

    def _cut_up(self, values: NDArray[Any], first: int, last: int) -> NDArray[Any]:
        """Values (m, columns, bands) as (m, patches, n, patches, b), from some bands only."""
        values = self._bands.cut(values, 2, first, last)
        return self._columns.cut(values, 1, 0, len(self._columns))

    def _strip(self, strip: int) -> NDArray[Any]:
        """Values (m, columns, bands) of a strip; those read with it are kept for others."""
        first = strip // self._per_slab * self._per_slab
        rows, start = self._rows.at(strip), self._rows.at(first).start
        with self._lock:
            slab = self._slabs.get(first)
            is_new = slab is None
            if slab is None:
                slab = self._slabs[first] = Future()
                if len(self._slabs) > _SLABS:
                    del self._slabs[next(iter(self._slabs))]
        if is_new:
            last = min(first + self._per_slab, len(self._rows)) - 1
            try:
                values, _ = self.cube.read_checked(slice(start, self._rows.at(last).stop))
                slab.set_result(values)
            except BaseException as problem:
                slab.set_exception(problem)
                with self._lock:
                    self._slabs.pop(first, None)
        return slab.result()[rows.start - start : rows.stop - start]

    def _centred(self, samples: NDArray[Any]) -> NDArray[Any]:
        if self.remove_means:
            samples -= samples.mean(axis=1, keepdims=True)
        return samples

    def _find_valid(self) -> None:
        """Find the patches in which every value is data."""
        counts = np.full(len(self._rows), self._in_strip)
        for strip in range(len(self._rows)):
            valid = self.cube.valid(self._strip(strip))
            if valid is None or valid.all():
                continue
            cut = self._cut_up(valid, 0, len(self._bands))
            whole = cut.all(axis=(0, 2, 4)).T
            self._valid[strip] = np.packbits(whole)
            counts[strip] = np.count_nonzero(whole)
        self._before = np.concatenate([[0], np.cumsum(counts)])
        if not len(self):
            raise ValueError(
                f"{self.name} has no patch of shape {self.patch_shape} without values that mean "
                f"no data ({self.cube.nodata})."
            )


class _Places:
    """Where patches of a size are along an axis: one after the other, the last at the end."""

    def __init__(self, length: int, size: int) -> None:
        self.length, self.size = length, size

    def __len__(self) -> int:
        return -(-self.length // self.size)

    def at(self, number: int) -> slice:
        """The part of the axis that a patch takes."""
        start = min(number * self.size, self.length - self.size)
        return slice(start, start + self.size)

    def cut(self, values: NDArray[Any], axis: int, first: int, last: int) -> NDArray[Any]:
        """The axis of values cut into two: patches from first to last, and their entries."""
        key: list[Any] = [slice(None)] * values.ndim
        if last * self.size <= self.length:
            key[axis] = slice(first * self.size, last * self.size)
        else:
            whole = np.arange(first * self.size, (last - 1) * self.size)
            final = self.at(last - 1)
            key[axis] = np.concatenate([whole, np.arange(final.start, final.stop)])
        part = values[tuple(key)]
        return part.reshape(*part.shape[:axis], -1, self.size, *part.shape[axis + 1 :])


def _checked_shape(patch_shape: Sequence[int], cube: Cube) -> tuple[int, ...]:
    """The shape of a patch, if there are such patches in the cube."""
    given = tuple(patch_shape) if np.ndim(patch_shape) == 1 else ()
    whole = all(isinstance(m, numbers.Integral) and m > 0 for m in given)
    if len(given) not in (2, 3) or not whole:
        raise ValueError(
            f"patch_shape={patch_shape!r} must be two sizes, rows and columns, or three, with "
            "bands."
        )
    if any(m > size for m, size in zip(given, cube.shape, strict=False)):
        raise ValueError(
            f"Patches of shape {given} do not fit in {cube.name}, which has (rows, columns, bands) "
            f"= {cube.shape}."
        )
    return tuple(int(m) for m in given)
