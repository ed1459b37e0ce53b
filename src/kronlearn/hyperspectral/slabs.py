"""The denoising of a cube in slabs of rows, each with the rows around it that it depends on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter

from kronlearn.engines.workers import Workers
from kronlearn.hyperspectral.artefacts import Artefacts
from kronlearn.hyperspectral.blocks import Rows, block_height, completed, in_order, row_blocks
from kronlearn.hyperspectral.subspace import Subspace
from kronlearn.images.groups import Effort, GroupFilter, refine
from kronlearn.io.conversion import converted
from kronlearn.io.cubes import Cube

__all__ = ["denoised_rows"]

# Groups of similar patches are found on so many of the strongest planes, and filtered on all.
_MATCHED = 8
_EFFORT = Effort(3, GroupFilter(16, 121, overlap=0.7), GroupFilter(24, 81, overlap=0.7))
# Rows above and below a slab that are denoised with it: groups reach that far, and their patches
# to others.
_HALO = 56
# Bytes of the planes of a slab, about.
_SLAB_BYTES = 32 << 20
# Pixels without data are filled in as far as this from others.
_FILL = 8

Piece = tuple[int, NDArray[np.float32], NDArray[np.bool_] | None]


def denoised_rows(
    cube: Cube,
    used: NDArray[np.bool_],
    subspace: Subspace,
    artefacts: Artefacts | None,
    workers: Workers,
) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Blocks of denoised rows, values (rows, columns, bands) as floats, from first to last.

    Slabs depend on the cube's shape and the number of planes alone, so the result has the same
    bits however the cube is stored and read.
    """
    n_rows, columns, _ = cube.shape
    height = max(2 * _HALO, _SLAB_BYTES // (4 * max(1, subspace.n_planes) * columns))
    pieces = _Pieces(cube, used, subspace, artefacts, workers.n_threads)
    for start in range(0, n_rows, height):
        stop = min(start + height, n_rows)
        first = max(0, start - _HALO)
        planes, valid = pieces.rows(first, min(stop + _HALO, n_rows))
        inside = slice(start - first, stop - first)
        if valid is not None:
            _fill(planes, valid)
            valid = valid[inside]
        if len(planes):
            planes = refine(planes, None, _EFFORT, workers, n_matched=_MATCHED)
        yield from _written(cube, subspace, start, planes[:, inside], valid, workers.n_threads)
        # Before the next slab is there.
        del planes


class _Pieces:
    """Planes of the rows of a cube; what lies before the rows last asked for is forgotten."""

    def __init__(
        self,
        cube: Cube,
        used: NDArray[np.bool_],
        subspace: Subspace,
        artefacts: Artefacts | None,
        n_threads: int,
    ) -> None:
        def planes_of(part: Rows) -> Piece:
            block = completed(artefacts.repaired(part) if artefacts else part, used)
            return block.start, subspace.planes(block.values, block.valid), block.valid

        self._coming = in_order(planes_of, row_blocks(cube), n_threads)
        self._held: deque[Piece] = deque()
        self._end = 0

    def rows(self, start: int, stop: int) -> tuple[NDArray[np.float32], NDArray[np.bool_] | None]:
        """Planes (n_planes, rows, columns) and which pixels are valid, None if all."""
        while self._end < stop:
            self._held.append(next(self._coming))
            self._end = self._held[-1][0] + self._held[-1][1].shape[1]
        planes, masks = [], []
        for first, piece, valid in self._held:
            part = slice(max(0, start - first), max(0, stop - first))
            planes.append(piece[:, part])
            masks.append(np.ones(piece.shape[1:], bool)[part] if valid is None else valid[part])
        # The next slab begins with the rows around the end of this one.
        while self._held and self._held[0][0] + self._held[0][1].shape[1] <= stop - 2 * _HALO:
            self._held.popleft()
        valid = np.concatenate(masks)
        return np.concatenate(planes, axis=1), None if valid.all() else valid


def _fill(planes: NDArray[np.float32], valid: NDArray[np.bool_]) -> None:
    """Give pixels that are not valid the mean of valid ones around, as far as _FILL."""
    size = 2 * _FILL - 1
    weights = uniform_filter(valid.astype(np.float64), size, mode="constant")
    near = ~valid & (weights > 0.5 / size**2)
    for plane in planes:
        # Pixels that are not valid are zero here.
        sums = uniform_filter(plane.astype(np.float64), size, mode="constant")
        plane[near] = sums[near] / weights[near]


def _written(
    cube: Cube,
    subspace: Subspace,
    start: int,
    planes: NDArray[np.float32],
    valid: NDArray[np.bool_] | None,
    n_threads: int,
) -> Iterator[tuple[slice, NDArray[Any]]]:
    """The rows of a slab from ``start`` on as values, in blocks."""
    n_rows = planes.shape[1]
    height = block_height(cube)

    def values(first: int) -> tuple[slice, NDArray[Any]]:
        rows = slice(first, min(first + height, n_rows))
        there = slice(start + rows.start, start + rows.stop)
        found = subspace.values(planes[:, rows], cube.dtype)
        if cube.dtype.kind in "iu":
            if cube.nodata is not None:
                _avoid(cube.nodata, found, cube.dtype)
            found = converted(found, cube.dtype, cube.nodata, cube.name)
        if valid is None and len(subspace.bands) == cube.shape[2]:
            return there, found
        # Where there is no data, or no noise, the cube stays as it is.
        kept = cube.read(there).astype(found.dtype)
        if valid is not None:
            found = np.where(valid[rows, :, None], found, kept[..., subspace.bands])
        kept[..., subspace.bands] = found
        return there, kept

    return in_order(values, range(0, n_rows, height), n_threads)


def _avoid(nodata: float | int, values: NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Move values that would be rounded to the one that means no data to the integer beside it."""
    limits = np.iinfo(dtype)
    rounded = np.clip(np.rint(values), limits.min, limits.max)
    values[rounded == nodata] = nodata + 1 if nodata < limits.max else nodata - 1
