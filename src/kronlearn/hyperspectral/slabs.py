"""The denoising of a cube in slabs of rows, each with the rows around it that it depends on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import median_filter, uniform_filter, uniform_filter1d

from kronlearn.engines.workers import Workers
from kronlearn.hyperspectral.artefacts import Artefacts
from kronlearn.hyperspectral.blocks import Rows, block_height, completed, in_order, row_blocks
from kronlearn.hyperspectral.subspace import Subspace
from kronlearn.images.groups import Effort, GroupFilter, refine
from kronlearn.io.conversion import converted
from kronlearn.io.cubes import Cube

__all__ = ["EFFORTS", "HALO", "denoised_rows"]

# Groups of similar patches are found on so many of the strongest planes, and filtered on all.
_MATCHED = 8
_QUICK = GroupFilter(16, 81, candidates=441, overlap=0.9)
#: By the name of a quality.
EFFORTS = {
    "default": Effort(
        2, GroupFilter(16, 121, overlap=0.7), GroupFilter(24, 81, overlap=0.7), feedback=0.3
    ),
    "fast": Effort(1, _QUICK, _QUICK),
}
# Rows above and below a slab that are denoised with it: groups reach that far, and their patches
# to others. As the height of a slab it is a multiple of all strides, 8 and 6, so that patches lie
# where they would without slabs.
HALO, _STRIDE = 72, 24
# Bytes of the planes of a slab, about.
_SLAB_BYTES = 12 << 20
# Pixels without data are filled in as far as this from others.
_FILL = 8

# A pixel keeps what the estimate lacks of its spectrum if that is more than noise by so many
# standard deviations. Where pixels have more noise than others, those around, in a window of this
# size, are the measure. Of what planes do not represent, it keeps the bands where squares, averaged
# over so many bands, exceed so much.
_DEVIATIONS, _WINDOW = 5.0, 9
_BANDS, _SQUARE = 9, 2.0


class _Rare(NamedTuple):
    """Pixels of spectra that planes do not represent: where they are, and what is left (N, B)."""

    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    spectra: NDArray[np.float32]

    def of(self, start: int, stop: int) -> _Rare:
        """Those in some of the rows."""
        some = (self.rows >= start) & (self.rows < stop)
        return _Rare(self.rows[some], self.columns[some], self.spectra[some])


class _Piece(NamedTuple):
    """Planes (n_planes, rows, columns) of some rows, which pixels are valid, and which are rare."""

    start: int
    planes: NDArray[np.float32]
    valid: NDArray[np.bool_] | None
    rare: _Rare

    @property
    def stop(self) -> int:
        """The row after the last one."""
        return self.start + self.planes.shape[1]


def denoised_rows(
    cube: Cube,
    used: NDArray[np.bool_],
    subspace: Subspace,
    artefacts: Artefacts | None,
    effort: Effort,
    workers: Workers,
    dtype: np.dtype[Any] | None = None,
) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Blocks of denoised rows, values (rows, columns, bands) as floats, from first to last.

    They are for a cube of ``dtype``, by default that of the cube. Slabs depend on the cube's shape
    and the number of planes alone, so the result has the same bits however the cube is stored and
    read.
    """
    n_rows, columns, _ = cube.shape
    height = max(2 * HALO, _SLAB_BYTES // (4 * max(1, subspace.n_planes) * columns))
    height = height // _STRIDE * _STRIDE
    pieces = _Pieces(cube, used, subspace, artefacts, workers.n_threads)
    for start in range(0, n_rows, height):
        stop = min(start + height, n_rows)
        first = max(0, start - HALO)
        _, planes, valid, rare = pieces.rows(first, min(stop + HALO, n_rows))
        inside = slice(start - first, stop - first)
        if valid is not None:
            _fill(planes, valid)
            valid = valid[inside]
        if len(planes):
            found = refine(planes, None, effort, workers, n_matched=_MATCHED)
            lost = planes - found
            own = _more_than_noise(np.einsum("kij,kij->ij", lost, lost), len(planes))
            own[rare.rows - first, rare.columns] = True
            found[:, own] = planes[:, own]
            planes = found
            del lost, found
        yield from _written(
            cube,
            subspace,
            start,
            planes[:, inside],
            valid,
            rare,
            workers.n_threads,
            cube.dtype if dtype is None else dtype,
        )
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
        def piece(part: Rows) -> _Piece:
            block = completed(artefacts.repaired(part) if artefacts else part, used)
            planes, left = subspace.split(block.values, block.valid)
            energy = np.square(left).sum(axis=2)
            rows, columns = np.nonzero(_more_than_noise(energy, left.shape[2] - len(planes)))
            spectra = left[rows, columns]
            spectra *= uniform_filter1d(np.square(spectra), _BANDS, axis=1) > _SQUARE
            rare = _Rare(block.start + rows, columns, spectra)
            return _Piece(block.start, planes, block.valid, rare)

        self._coming = in_order(piece, row_blocks(cube), n_threads)
        self._held: deque[_Piece] = deque()

    def rows(self, start: int, stop: int) -> _Piece:
        """Those from ``start`` to ``stop``."""
        while not self._held or self._held[-1].stop < stop:
            self._held.append(next(self._coming))
        planes, masks = [], []
        for piece in self._held:
            part = slice(max(0, start - piece.start), max(0, stop - piece.start))
            planes.append(piece.planes[:, part])
            mask = np.ones(piece.planes.shape[1:], bool) if piece.valid is None else piece.valid
            masks.append(mask[part])
        parts = zip(*(piece.rare.of(start, stop) for piece in self._held), strict=True)
        rare = _Rare(*map(np.concatenate, parts))
        # The next slab begins with the rows around the end of this one.
        while self._held and self._held[0].stop <= stop - 2 * HALO:
            self._held.popleft()
        valid = np.concatenate(masks)
        return _Piece(start, np.concatenate(planes, axis=1), None if valid.all() else valid, rare)


def _more_than_noise(energy: NDArray[np.float32], n: int) -> NDArray[np.bool_]:
    """Where sums of n squares, (rows, columns), are too large to be those of noise of one."""
    if n == 0:
        return np.zeros(energy.shape, bool)
    # The cube root of their mean is nearly normal (Wilson and Hilferty).
    variance = 2 / (9 * n)
    limit = (1 - variance + _DEVIATIONS * np.sqrt(variance)) ** 3
    mean = energy / n
    level = np.maximum(1, median_filter(mean, _WINDOW, mode="nearest"))
    return np.asarray(mean > limit * level)


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
    rare: _Rare,
    n_threads: int,
    dtype: np.dtype[Any],
) -> Iterator[tuple[slice, NDArray[Any]]]:
    """The rows of a slab from ``start`` on as values, in blocks."""
    n_rows = planes.shape[1]
    height = block_height(cube)

    def values(first: int) -> tuple[slice, NDArray[Any]]:
        rows = slice(first, min(first + height, n_rows))
        there = slice(start + rows.start, start + rows.stop)
        found = subspace.values(planes[:, rows], cube.dtype)
        kept = rare.of(there.start, there.stop)
        found[kept.rows - there.start, kept.columns] += kept.spectra * subspace.sigma
        if dtype.kind in "iu":
            if cube.nodata is not None:
                _avoid(cube.nodata, found, dtype)
            found = converted(found, dtype, cube.nodata, cube.name)
        if valid is None and len(subspace.bands) == cube.shape[2]:
            return there, found
        # Where there is no data, or no noise, the cube stays as it is.
        given = cube.read(there).astype(found.dtype)
        if valid is not None:
            found = np.where(valid[rows, :, None], found, given[..., subspace.bands])
        given[..., subspace.bands] = found
        return there, given

    return in_order(values, range(0, n_rows, height), n_threads)


def _avoid(nodata: float | int, values: NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Move values that would be rounded to the one that means no data to the integer beside it."""
    limits = np.iinfo(dtype)
    rounded = np.clip(np.rint(values), limits.min, limits.max)
    values[rounded == nodata] = nodata + 1 if nodata < limits.max else nodata - 1
