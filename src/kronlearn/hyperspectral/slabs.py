"""Denoising a cube in slabs of rows, each together with the rows above and below it."""

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

# Patches are compared on this many of the strongest planes, and their groups filtered on all.
_MATCHED = 8
_QUICK = GroupFilter(16, 81, candidates=441, overlap=0.9)
#: How much work each quality does.
EFFORTS = {
    "default": Effort(
        2,
        GroupFilter(16, 121, overlap=0.7),
        GroupFilter(24, 81, overlap=0.7),
        feedback=0.8,
        n_matched=_MATCHED,
        over_pixels=False,
    ),
    "fast": Effort(1, _QUICK, _QUICK, n_matched=_MATCHED, over_pixels=False),
}
# Rows above and below a slab that are denoised with it: as far as the groups of its patches reach,
# and the groups that these belong to in turn. Like the height of a slab, it is a multiple of all
# strides, 8 and 6, so that patches have the same positions as without slabs.
HALO, _STRIDE = 72, 24
# Approximate size of the planes of a slab, in bytes.
_SLAB_BYTES = 12 << 20
# Pixels without data are filled in up to about this distance from valid ones.
_FILL = 8

# A pixel is an outlier if its residual exceeds that of noise by this many standard deviations of
# the latter. The level of the noise is the median over a window of this size around the pixel.
_DEVIATIONS, _WINDOW = 5.0, 9
# A rare spectrum keeps its residual in bands where the square, averaged over this many bands,
# exceeds this value.
_BANDS, _SQUARE = 9, 2.0


class _Rare(NamedTuple):
    """Pixels whose spectra the planes do not represent, and the residuals (N, B) of these."""

    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    residuals: NDArray[np.float32]

    def between(self, start: int, stop: int) -> _Rare:
        """Those in the rows from ``start`` to ``stop``."""
        inside = (self.rows >= start) & (self.rows < stop)
        return _Rare(self.rows[inside], self.columns[inside], self.residuals[inside])


class _Piece(NamedTuple):
    """Planes (n_planes, rows, columns) of consecutive rows, and their valid and rare pixels."""

    start: int
    planes: NDArray[np.float32]
    valid: NDArray[np.bool_] | None
    rare: _Rare

    @property
    def stop(self) -> int:
        """The number of the row after the last one."""
        return self.start + self.planes.shape[1]


def denoised_rows(
    cube: Cube,
    used: NDArray[np.bool_],
    subspace: Subspace,
    artefacts: Artefacts | None,
    effort: Effort,
    workers: Workers,
    dtype: np.dtype[Any],
) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Yield blocks of denoised rows (rows, columns, bands) from first to last.

    Values have the integer type ``dtype`` or, if that is not one, are floats. Slabs depend only on
    the shape of the cube and the number of planes, so the result has the same bits however the cube
    is stored and read.
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
            denoised = refine(planes, None, effort, workers)
            lost = planes - denoised
            kept = _more_than_noise(np.einsum("kij,kij->ij", lost, lost), len(planes))
            kept[rare.rows - first, rare.columns] = True
            denoised[:, kept] = planes[:, kept]
            planes = denoised
            del lost, denoised
        yield from _synthesized(
            cube, subspace, start, planes[:, inside], valid, rare, workers.n_threads, dtype
        )
        # Free this slab before the next one is made.
        del planes


class _Pieces:
    """Planes of the rows of a cube, computed from first to last.

    Rows are held until ``rows`` has been asked for later ones.
    """

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
            planes, residual = subspace.split(block.values, block.valid)
            energy = np.square(residual).sum(axis=2)
            rows, columns = np.nonzero(_more_than_noise(energy, residual.shape[2] - len(planes)))
            residuals = residual[rows, columns]
            residuals *= uniform_filter1d(np.square(residuals), _BANDS, axis=1) > _SQUARE
            rare = _Rare(block.start + rows, columns, residuals)
            return _Piece(block.start, planes, block.valid, rare)

        self._coming = in_order(piece, row_blocks(cube), n_threads)
        self._held: deque[_Piece] = deque()

    def rows(self, start: int, stop: int) -> _Piece:
        """The piece from row ``start`` to row ``stop``."""
        while not self._held or self._held[-1].stop < stop:
            self._held.append(next(self._coming))
        planes, masks = [], []
        for piece in self._held:
            part = slice(max(0, start - piece.start), max(0, stop - piece.start))
            planes.append(piece.planes[:, part])
            mask = np.ones(piece.planes.shape[1:], bool) if piece.valid is None else piece.valid
            masks.append(mask[part])
        parts = zip(*(piece.rare.between(start, stop) for piece in self._held), strict=True)
        rare = _Rare(*map(np.concatenate, parts))
        # The next piece asked for begins 2 * HALO rows before the end of this one.
        while self._held and self._held[0].stop <= stop - 2 * HALO:
            self._held.popleft()
        valid = np.concatenate(masks)
        return _Piece(start, np.concatenate(planes, axis=1), None if valid.all() else valid, rare)


def _more_than_noise(energy: NDArray[np.float32], n: int) -> NDArray[np.bool_]:
    """Where sums of n squares, (rows, columns), are too large for noise of variance one."""
    if n == 0:
        return np.zeros(energy.shape, bool)
    # The cube root of their mean is nearly normal (Wilson–Hilferty).
    variance = 2 / (9 * n)
    limit = (1 - variance + _DEVIATIONS * np.sqrt(variance)) ** 3
    mean = energy / n
    level = np.maximum(1, median_filter(mean, _WINDOW, mode="nearest"))
    return np.asarray(mean > limit * level)


def _fill(planes: NDArray[np.float32], valid: NDArray[np.bool_]) -> None:
    """Give pixels that are not valid the mean of valid ones nearby."""
    size = 2 * _FILL - 1
    weights = uniform_filter(valid.astype(np.float64), size, mode="constant")
    near = ~valid & (weights > 0.5 / size**2)
    for plane in planes:
        # Pixels that are not valid are zero.
        sums = uniform_filter(plane.astype(np.float64), size, mode="constant")
        plane[near] = sums[near] / weights[near]


def _synthesized(
    cube: Cube,
    subspace: Subspace,
    start: int,
    planes: NDArray[np.float32],
    valid: NDArray[np.bool_] | None,
    rare: _Rare,
    n_threads: int,
    dtype: np.dtype[Any],
) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Convert the planes of a slab, which begins at row ``start``, to blocks of values."""
    n_rows = planes.shape[1]
    height = block_height(cube)

    def values(first: int) -> tuple[slice, NDArray[Any]]:
        in_slab = slice(first, min(first + height, n_rows))
        rows = slice(start + in_slab.start, start + in_slab.stop)
        result = subspace.values(planes[:, in_slab], cube.dtype)
        own = rare.between(rows.start, rows.stop)
        result[own.rows - rows.start, own.columns] += own.residuals * subspace.sigma
        if dtype.kind in "iu":
            if cube.nodata is not None:
                _avoid(cube.nodata, result, dtype)
            result = converted(result, dtype, cube.nodata, cube.name)
        if valid is None and len(subspace.bands) == cube.shape[2]:
            return rows, result
        # Pixels without data and bands without noise are left unchanged.
        original = cube.read(rows).astype(result.dtype)
        if valid is not None:
            result = np.where(valid[in_slab, :, None], result, original[..., subspace.bands])
        original[..., subspace.bands] = result
        return rows, original

    return in_order(values, range(0, n_rows, height), n_threads)


def _avoid(nodata: float | int, values: NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Change values that would be rounded to ``nodata`` to an integer next to it."""
    limits = np.iinfo(dtype)
    rounded = np.clip(np.rint(values), limits.min, limits.max)
    values[rounded == nodata] = nodata + 1 if nodata < limits.max else nodata - 1
