"""The cube of Table IV: as large as the paper's, made from the small one that is available.

The paper's, 614 × 1848 pixels and 220 bands of Indian Pines, is not. The small one is tiled by
mirrored copies, also along its bands, and noise is added so that no patch repeats another.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kronlearn.experiments.timing import Progress, no_progress
from kronlearn.io.atomic import atomic_write

__all__ = ["SHAPE", "cube_shape", "n_patches", "strips", "write_patches"]

Shape = tuple[int, int, int]

#: Rows, columns and bands of the paper's cube.
SHAPE: Shape = (614, 1848, 220)

# Patches are of 8 × 8 pixels; noise is a share of each band's standard deviation.
_M, _NOISE = 8, 0.02


def cube_shape(scale: float) -> Shape:
    """The shape of a cube with about this share of the paper's patches."""
    if not 0 < scale <= 1:
        raise ValueError(f"--scale {scale:g} is not above 0 and at most 1.")
    rows, columns, bands = (round(size * scale ** (1 / 3)) for size in SHAPE)
    return max(_M, rows), max(_M, columns), max(1, bands)


def n_patches(shape: Shape) -> int:
    """How many patches a cube has; 3,913,140 for the paper's shape."""
    rows, columns, bands = shape
    return len(_starts(rows)) * len(_starts(columns)) * bands


def _starts(size: int) -> list[int]:
    """Where patches begin: they do not overlap, but the last one ends at the border."""
    return [min(first, size - _M) for first in range(0, size, _M)]


def strips(small: NDArray[np.float32], shape: Shape) -> Iterator[NDArray[np.float32]]:
    """The patches of 8 rows after 8 rows, shape (bands · across, 8, 8), by band and column."""
    # From an index of the large cube to one of the small, with mirrored copies.
    rows, columns, bands = (
        np.pad(np.arange(min(n, size)), (0, max(0, size - n)), "symmetric")
        for n, size in zip(small.shape, shape, strict=True)
    )
    deviations = _NOISE * small.std(axis=(0, 1))[bands]
    across = np.add.outer(_starts(shape[1]), np.arange(_M))
    for first in _starts(shape[0]):
        strip = small[np.ix_(rows[first : first + _M], columns, bands)]
        noise = np.random.default_rng(first).standard_normal(strip.shape, np.float32)
        strip = (strip + deviations * noise)[:, across]
        # (rows, across, columns, bands) becomes (bands, across, rows, columns).
        yield np.ascontiguousarray(strip.transpose(3, 1, 0, 2), "<f4").reshape(-1, _M, _M)


def write_patches(
    small: NDArray[np.float32], shape: Shape, file: Path, progress: Progress = no_progress
) -> None:
    """Write the patches (N, 8, 8) to a .npy file, float32, strip by strip; whole or not at all."""
    header = {"descr": "<f4", "fortran_order": False, "shape": (n_patches(shape), _M, _M)}
    with (
        progress("making the cube", len(_starts(shape[0]))) as advance,
        atomic_write(file) as (place,),
        place.open("xb") as stream,
    ):
        np.lib.format.write_array_header_1_0(stream, header)
        for strip in strips(small, shape):
            stream.write(strip.data)
            advance()
