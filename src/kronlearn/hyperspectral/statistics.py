"""The mean, covariance and differences of the spectra of a cube, in one pass over its rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.hyperspectral.artefacts import Artefacts
from kronlearn.hyperspectral.blocks import (
    Block,
    Rows,
    block_height,
    completed,
    in_order,
    row_blocks,
)
from kronlearn.io.cubes import Cube

__all__ = ["Statistics", "gather"]

# Differences are taken from at most this many blocks of rows.
_BLOCKS_WITH_DIFFERENCES = 16


@dataclass(frozen=True)
class Statistics:
    """Statistics of the spectra of valid pixels, in the bands that are used.

    Attributes
    ----------
    n_pixels : int
        The number of valid pixels.
    n_filled : int
        The number of values filled in in these pixels.
    mean : array of shape (bands,)
    scatter : array of shape (bands, bands)
        The covariance times ``n_pixels``.
    differences : list of arrays of shape (N_i, bands)
        ``(a − b − c + d) / 2`` of disjoint squares ``a b / c d`` of pixels, from blocks of rows all
        over the cube; empty if they were not asked for. White noise has the same covariance in
        these as in pixels; of an image little is left.
    """

    n_pixels: int
    n_filled: int
    mean: NDArray[np.float64]
    scatter: NDArray[np.float64]
    differences: list[NDArray[np.float64]]

    def __add__(self, other: Statistics) -> Statistics:
        n_pixels, n_filled = self.n_pixels + other.n_pixels, self.n_filled + other.n_filled
        differences = self.differences + other.differences
        if not self.n_pixels or not other.n_pixels:
            return replace(self if self.n_pixels else other, differences=differences)
        step = other.mean - self.mean
        moved = np.multiply.outer(step, step * (self.n_pixels * other.n_pixels / n_pixels))
        return Statistics(
            n_pixels,
            n_filled,
            self.mean + step * (other.n_pixels / n_pixels),
            self.scatter + other.scatter + moved,
            differences,
        )

    def checked(self, name: str) -> Statistics:
        """Raise if the cube with this name has no valid pixel, or values too large to square."""
        if not self.n_pixels:
            raise ValueError(f"{name} has no pixel with data in half of its bands.")
        if not np.isfinite(self.scatter).all():
            raise ValueError(f"{name} holds values too large to be squared; scale it down.")
        return self


def gather(
    cube: Cube,
    bands: NDArray[np.bool_],
    *,
    with_differences: bool,
    artefacts: Artefacts | None = None,
    n_threads: int = 1,
    on_share: Callable[[float], None] | None = None,
) -> Statistics:
    """The statistics of the ``bands`` of a cube, with the same bits for any number of threads.

    BLAS must use one thread.
    """
    height = block_height(cube)
    every = height * math.ceil(cube.shape[0] / height / _BLOCKS_WITH_DIFFERENCES)

    def of_rows(rows: Rows) -> tuple[Statistics, int]:
        # Values too large to be squared are refused at the end.
        with np.errstate(over="ignore", invalid="ignore"):
            block = completed(artefacts.repaired(rows) if artefacts else rows, bands)
            has_differences = with_differences and block.start % every == 0
            return _of_block(block, bands, has_differences), block.start + len(block.values)

    total: Statistics | None = None
    with np.errstate(over="ignore", invalid="ignore"):
        for part, done in in_order(of_rows, row_blocks(cube), n_threads):
            total = part if total is None else total + part
            if on_share is not None:
                on_share(done / cube.shape[0])
    assert total is not None
    return total


def _of_block(block: Block, bands: NDArray[np.bool_], with_differences: bool) -> Statistics:
    values = block.values if bands.all() else block.values[..., bands]
    spectra = values.reshape(-1, values.shape[-1])
    if block.valid is not None:
        spectra = spectra[block.valid.reshape(-1)]
    differences = [_differences(values, block.valid)] if with_differences else []
    if not len(spectra):
        n_bands = spectra.shape[1]
        return Statistics(0, 0, np.zeros(n_bands), np.zeros((n_bands, n_bands)), differences)
    mean = spectra.mean(axis=0, dtype=np.float64)
    centred = spectra - mean
    scatter = centred.T @ centred
    return Statistics(len(spectra), block.n_filled, mean, scatter, differences)


def _differences(values: NDArray[Any], valid: NDArray[np.bool_] | None) -> NDArray[np.float64]:
    """Mixed differences (N, bands) of those squares of two by two pixels that are all valid."""
    rows, columns = (size // 2 * 2 for size in values.shape[:2])
    a, b, c, d = (values[i:rows:2, j:columns:2] for i in (0, 1) for j in (0, 1))
    # In float64, so that integers do not wrap around.
    differences = np.subtract(a, b, dtype=np.float64)
    differences -= c
    differences += d
    differences /= 2
    flat = differences.reshape(-1, values.shape[2])
    if valid is None:
        return flat
    corners = [valid[i:rows:2, j:columns:2] for i in (0, 1) for j in (0, 1)]
    return flat[np.logical_and.reduce(corners).reshape(-1)]
