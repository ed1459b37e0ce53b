"""The patches of a cube as samples to learn from, read in slabs of rows."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from concurrent.futures import Future
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.source import Source
from kronlearn.hyperspectral.blocks import Checked, read_height, working_dtype
from kronlearn.images.patch_grid import PatchGrid, without_means
from kronlearn.io.cubes import Cube, open_cube

__all__ = ["CubePatches"]

# Slabs whose samples are kept: several threads may be reading ahead, and a cube of at most this
# many slabs is cut into patches once for all passes.
_SLABS = 5
_NOT_PICKLED = ("_lock", "_slabs")


class CubePatches(Source):
    """The patches of a cube as samples, in the same order for all file formats.

    Patches of two modes are taken from every band, as in the paper; patches of three modes also
    extend over bands. They are adjacent along each axis; if the last one would extend beyond the
    border, it is moved inwards and overlaps the one before. Patches with missing values are left
    out, which takes one pass over the cube, and so are those in which the file marks all bands as
    bad.

    Patches are ordered by strips of rows, within a strip by bands, then by columns. Samples are
    float32 if that holds the values of the cube exactly, otherwise float64. Samples may be cached,
    so do not change an array while its patches are in use.

    Parameters
    ----------
    cube : Cube, array or path
        See :func:`open_cube`.
    patch_shape : (int, int) or (int, int, int)
        Rows, columns and, for three modes, bands of a patch.
    remove_means : bool, default False
        Whether to subtract the mean of each patch.

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
        m, n, b = (*self.patch_shape, 1)[:3]
        # In the order of the patches: rows, bands, columns.
        self._grid = PatchGrid((rows, bands, columns), (m, b, n), (m, b, n))
        n_strips, *in_strip = self._grid.grid_shape
        # A slab is a few strips that are read together. These are the first strip, the first patch
        # and the first sample of every slab, followed by the numbers of all strips, patches and
        # samples.
        per_slab = max(1, read_height(self.cube, self.dtype) // m)
        self._strips = np.append(np.arange(0, n_strips, per_slab), n_strips)
        self._patches = self._strips * math.prod(in_strip)
        self._first_samples = self._patches
        # Bits that tell which patches of a slab are samples, for slabs where not all are.
        self._complete: dict[int, NDArray[np.uint8]] = {}
        self._clear_cache()
        if self.cube.may_miss_values or self.cube.bad_bands is not None:
            self._find_complete()

    def __len__(self) -> int:
        return int(self._first_samples[-1])

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in _NOT_PICKLED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._clear_cache()

    def _clear_cache(self) -> None:
        self._lock = Lock()
        self._slabs: dict[int, Future[NDArray[Any]]] = {}

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Read consecutive samples.

        Parameters
        ----------
        start, stop : int
            The first sample, and the one after the last.

        Returns
        -------
        array of shape (stop - start, features)
            The samples, C-contiguous and of ``dtype``.

        Examples
        --------
        >>> import numpy as np
        >>> from kronlearn.hyperspectral import CubePatches
        >>> CubePatches(np.zeros((16, 16, 4))).read(2, 5).shape
        (3, 64)
        """
        samples = np.empty((stop - start, self.n_features), self.dtype)
        if start == stop:
            return samples
        for slab in range(self._slab_of(start), self._slab_of(stop - 1) + 1):
            first, end = int(self._first_samples[slab]), int(self._first_samples[slab + 1])
            a, b = max(start, first), min(stop, end)
            samples[a - start : b - start] = self._samples_of(slab)[a - first : b - first]
        return samples

    def take(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Read individual samples.

        Parameters
        ----------
        rows : array of int
            The numbers of the samples, in any order.

        Returns
        -------
        array of shape (len(rows), features)
            The samples.

        Examples
        --------
        >>> import numpy as np
        >>> from kronlearn.hyperspectral import CubePatches
        >>> CubePatches(np.zeros((16, 16, 4))).take(np.array([9, 0])).shape
        (2, 64)
        """
        samples = np.empty((len(rows), self.n_features), self.dtype)
        for place in np.argsort(rows, kind="stable"):
            row = int(rows[place])
            slab = self._slab_of(row)
            patch = self._numbers(slab)[row - self._first_samples[slab]]
            corner = (int(start) for start in self._grid.corners(patch))
            lines, bands, columns = (
                slice(start, start + m) for start, m in zip(corner, self._grid.patch, strict=True)
            )
            values, _ = self.cube.read_checked(lines, columns, bands)
            samples[place] = self._as_samples(values[None])[0]
        return samples

    def _slab_of(self, sample: int) -> int:
        """The slab that contains a sample."""
        return int(np.searchsorted(self._first_samples[1:], sample, side="right"))

    def _numbers(self, slab: int) -> NDArray[np.intp]:
        """The numbers of the patches that are the samples of a slab."""
        numbers = np.arange(self._patches[slab], self._patches[slab + 1])
        if slab not in self._complete:
            return numbers
        return numbers[np.unpackbits(self._complete[slab], count=len(numbers)).astype(bool)]

    def _as_samples(self, patches: NDArray[Any]) -> NDArray[Any]:
        """Convert patches (N, m, n, b) to samples (N, features)."""
        patches = without_means(patches) if self.remove_means else patches
        return patches.astype(self.dtype, copy=False).reshape(-1, self.n_features)

    def _samples_of(self, slab: int) -> NDArray[Any]:
        """The samples of a slab: one thread reads them, the others that need them wait."""
        with self._lock:
            cached = self._slabs.get(slab)
            is_new = cached is None
            if cached is None:
                cached = self._slabs[slab] = Future()
                if len(self._slabs) > _SLABS:
                    del self._slabs[next(iter(self._slabs))]
        if is_new:
            try:
                values, _ = self._read(slab)
                cached.set_result(self._as_samples(self._cut(values, slab, self._numbers(slab))))
            except BaseException as problem:
                cached.set_exception(problem)
                with self._lock:
                    self._slabs.pop(slab, None)
        return cached.result()

    def _read(self, slab: int) -> Checked:
        """Read the values (rows, columns, bands) of a slab, and which of them are data."""
        starts = self._grid.starts[0]
        first, last = starts[self._strips[slab]], starts[self._strips[slab + 1] - 1]
        return self.cube.read_checked(slice(int(first), int(last) + self.patch_shape[0]))

    def _cut(self, values: NDArray[Any], slab: int, numbers: NDArray[np.intp]) -> NDArray[Any]:
        """Cut the patches (N, m, n, b) with these numbers from the values of their slab."""
        m, b, n = self._grid.patch
        windows = np.lib.stride_tricks.sliding_window_view(values, (m, n, b))
        rows, bands, columns = self._grid.corners(numbers)
        first = self._grid.starts[0][self._strips[slab]]
        return np.asarray(windows[rows - first, columns, bands])

    def _find_complete(self) -> None:
        """Find the patches without missing values whose bands are not all bad."""
        counts = np.diff(self._patches)
        bad = self.cube.bad_bands
        good = np.ones(self.cube.shape[2], bool) if bad is None else ~bad
        # Whether any of the bands of a patch is good, by its first band.
        runs = np.lib.stride_tricks.sliding_window_view(good, self._grid.patch[1])
        has_good = np.asarray(runs.any(axis=1))
        for slab in range(len(counts)):
            numbers = self._numbers(slab)
            complete = has_good[self._grid.corners(numbers)[1]]
            _, valid = self._read(slab) if self.cube.may_miss_values else (None, None)
            if valid is not None:
                complete = complete & self._cut(valid, slab, numbers).all(axis=(1, 2, 3))
            if complete.all():
                continue
            self._complete[slab] = np.packbits(complete)
            counts[slab] = np.count_nonzero(complete)
        self._first_samples = np.concatenate([[0], np.cumsum(counts)])
        if not len(self):
            raise ValueError(
                f"{self.name} has no patch of shape {self.patch_shape} without missing values in a "
                "band that is not marked as bad."
            )


def _checked_shape(patch_shape: Sequence[int], cube: Cube) -> tuple[int, ...]:
    """Check the shape of patches of a cube."""
    sizes = tuple(patch_shape) if np.ndim(patch_shape) == 1 else ()
    are_sizes = all(isinstance(m, numbers.Integral) and m > 0 for m in sizes)
    if len(sizes) not in (2, 3) or not are_sizes:
        raise ValueError(
            f"patch_shape={patch_shape!r} must be two positive integers, the numbers of rows and "
            "columns, or three, with that of bands."
        )
    if any(m > size for m, size in zip(sizes, cube.shape, strict=False)):
        raise ValueError(
            f"Patches of shape {sizes} do not fit in {cube.name}, which has (rows, columns, bands) "
            f"= {cube.shape}."
        )
    return tuple(int(m) for m in sizes)
