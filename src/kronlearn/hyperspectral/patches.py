"""The patches of a cube as samples to learn from, read a few rows of the cube at a time."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from concurrent.futures import Future
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.source import Source
from kronlearn.hyperspectral.blocks import Checked, read_height
from kronlearn.hyperspectral.subspace import working_dtype
from kronlearn.images.patch_grid import PatchGrid, without_means
from kronlearn.io.cubes import Cube, open_cube

__all__ = ["CubePatches"]

# Slabs of rows that are kept for samples to come: several threads may be reading on.
_SLABS = 5
_NOT_PICKLED = ("_lock", "_slabs")


class CubePatches(Source):
    """The patches of a cube, which do not overlap, as samples in one order for all file formats.

    Patches of two modes are taken from every band, as the paper does; patches of three modes run
    along some bands, too. Along each axis they follow one another; if the last one would stick out,
    it is moved inwards until it ends at the border. Patches with values that mean no data are left
    out: finding them takes one pass over the cube.

    The order is by strips of rows, in a strip by bands and then by columns. Samples are float32
    where that holds the cube's values exactly, otherwise float64.

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
        sizes = (m, b, n)
        # In the order of the patches: rows, bands, columns.
        self._grid = PatchGrid((rows, bands, columns), sizes, sizes)
        self._strip_grid = PatchGrid((m, bands, columns), sizes, sizes)
        # Strips that are read together.
        self._per_slab = max(1, read_height(self.cube) // m)
        self._forget()
        # Which patches of every strip are valid, as bits, if not all are, and how many there are
        # in the strips before.
        self._valid: dict[int, NDArray[np.uint8]] = {}
        self._before = np.arange(self._n_strips + 1) * len(self._strip_grid)
        if self.cube.nodata is not None:
            self._find_valid()

    @property
    def _n_strips(self) -> int:
        return self._grid.grid_shape[0]

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
        self._slabs: dict[int, Future[Checked]] = {}

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
        first, last = self._strips_of(start, stop)
        for strip in range(first, last + 1):
            before, after = int(self._before[strip]), int(self._before[strip + 1])
            a, b = max(start, before), min(stop, after)
            places = self._places(strip, a - before, b - before)
            values, _ = self._strip(strip)
            patches = self._strip_grid.cut(values.transpose(0, 2, 1), places)
            samples[a - start : b - start] = self._samples(patches.swapaxes(2, 3))
        return samples

    def take(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Read a few samples, each on its own.

        Parameters
        ----------
        rows : array of int
            Their numbers, in any order.

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
            strip, _ = self._strips_of(row, row + 1)
            inside = row - int(self._before[strip])
            found = strip * len(self._strip_grid) + self._places(strip, inside, inside + 1)
            corner = (int(start[0]) for start in self._grid.corners(found))
            above, bands, columns = (
                slice(start, start + m) for start, m in zip(corner, self._grid.patch, strict=True)
            )
            values, _ = self.cube.read_checked(above, columns, bands)
            samples[place] = self._samples(values[None])[0]
        return samples

    def _strips_of(self, start: int, stop: int) -> tuple[int, int]:
        """The first and the last strip that some samples are in."""
        ends = self._before[1:]
        first, last = np.searchsorted(ends, [start, stop - 1], side="right")
        return int(first), int(last)

    def _places(self, strip: int, start: int, stop: int) -> NDArray[np.intp]:
        """Where in a strip its samples start to stop are, of those that are valid."""
        if strip not in self._valid:
            return np.arange(start, stop)
        bits = np.unpackbits(self._valid[strip], count=len(self._strip_grid))
        return np.flatnonzero(bits)[start:stop]

    def _samples(self, patches: NDArray[Any]) -> NDArray[Any]:
        """Patches (N, m, n, b) as samples (N, features)."""
        patches = without_means(patches) if self.remove_means else patches
        return patches.astype(self.dtype).reshape(-1, self.n_features)

    def _strip(self, strip: int) -> Checked:
        """Values (m, columns, bands) of a strip; those read with it are kept for others."""
        first = strip // self._per_slab * self._per_slab
        starts, height = self._grid.starts[0], self.patch_shape[0]
        start = int(starts[first])
        with self._lock:
            slab = self._slabs.get(first)
            is_new = slab is None
            if slab is None:
                slab = self._slabs[first] = Future()
                if len(self._slabs) > _SLABS:
                    del self._slabs[next(iter(self._slabs))]
        if is_new:
            last = int(starts[min(first + self._per_slab, self._n_strips) - 1])
            try:
                slab.set_result(self.cube.read_checked(slice(start, last + height)))
            except BaseException as problem:
                slab.set_exception(problem)
                with self._lock:
                    self._slabs.pop(first, None)
        inside = int(starts[strip]) - start
        values, valid = slab.result()
        part = slice(inside, inside + height)
        return values[part], None if valid is None else valid[part]

    def _find_valid(self) -> None:
        """Find the patches in which every value is data."""
        counts = np.full(self._n_strips, len(self._strip_grid))
        for strip in range(self._n_strips):
            _, valid = self._strip(strip)
            if valid is None or valid.all():
                continue
            whole = self._strip_grid.cut(valid.transpose(0, 2, 1)).all(axis=(1, 2, 3))
            self._valid[strip] = np.packbits(whole)
            counts[strip] = np.count_nonzero(whole)
        self._before = np.concatenate([[0], np.cumsum(counts)])
        if not len(self):
            raise ValueError(
                f"{self.name} has no patch of shape {self.patch_shape} without values that mean "
                f"no data ({self.cube.nodata})."
            )


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
