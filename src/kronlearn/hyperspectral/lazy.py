"""Denoising of cubes in Dask arrays: nothing is read until the result is computed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import accumulate, product
from operator import add
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kronlearn.blas import single_threaded_blas
from kronlearn.engines.workers import Workers
from kronlearn.hyperspectral.denoising import given_sigma
from kronlearn.hyperspectral.noise import estimate_noise
from kronlearn.hyperspectral.slabs import EFFORTS, HALO, denoised_rows
from kronlearn.hyperspectral.statistics import Statistics, sums_over
from kronlearn.hyperspectral.subspace import Subspace
from kronlearn.io.cubes import Cube, open_cube

__all__ = ["denoise_lazily", "estimate_noise_lazily"]

# Rows, and columns, of tiles from which the noise is estimated, at most; and sums that one task
# adds up.
_SURVEYED = 4
_SUMMANDS = 8


class _Survey(NamedTuple):
    """The noise of every band of a tile, (bands,), and its number of values with data."""

    sigma: NDArray[np.float64]
    counts: NDArray[np.int64]


class _Window:
    """A part of a Dask array, (rows, columns, bands), that a task reads by itself.

    Parts that are tasks of their own would stay in memory from the first pass to the last.
    """

    def __init__(self, array: Any) -> None:
        from dask.base import optimize

        (self.array,) = optimize(array)

    def cube(self, nodata: float | int | None) -> Cube:
        """Its values."""
        return open_cube(np.asarray(self.array.compute()), band_axis=2, nodata=nodata)


def denoise_lazily(
    cube: Any, sigma: ArrayLike | None, nodata: float | int | None, quality: str = "default"
) -> Any:
    """The denoised cube as a Dask array, from one of (rows, columns, bands).

    Some tiles, which have all bands, are read for the noise, all of them for the principal
    components, and all of them again, with the pixels around them, to be denoised. Every task reads
    the tile that it works on. Missing values stay missing.
    """
    from dask.array import block, from_delayed
    from dask.delayed import delayed

    if quality not in EFFORTS:
        raise ValueError(f"quality={quality!r} does not exist; choose one of {', '.join(EFFORTS)}.")
    given = None if sigma is None else given_sigma(sigma, cube.shape[2], "the cube")
    survey = _survey(cube, nodata, with_noise=given is None)
    tiles = [[(above, beside) for beside in _parts(cube, 1)] for above in _parts(cube, 0)]
    sums = [delayed(_sums)(_Window(cube[tile]), survey, nodata) for row in tiles for tile in row]
    while len(sums) > 1:
        groups = (sums[i : i + _SUMMANDS] for i in range(0, len(sums), _SUMMANDS))
        sums = [delayed(reduce)(add, group) for group in groups]
    subspace = delayed(_subspace)(sums[0], survey, given)

    def denoised(tile: tuple[slice, slice]) -> Any:
        around = [slice(max(0, part.start - HALO), part.stop + HALO) for part in tile]
        inside = tuple(
            slice(part.start - wide.start, part.stop - wide.start)
            for part, wide in zip(tile, around, strict=True)
        )
        window = _Window(cube[tuple(around)])
        values = delayed(_denoised)(window, inside, survey, subspace, nodata, quality)
        return from_delayed(values, cube[tile].shape, cube.dtype)

    return block([[[denoised(tile)] for tile in row] for row in tiles]).rechunk(cube.chunks)


def estimate_noise_lazily(cube: Any, nodata: float | int | None) -> Any:
    """The noise of every band, (bands,), of a Dask array of (rows, columns, bands).

    NaN for bands without data in the tiles that are read.
    """
    from dask.array import from_delayed

    found = _survey(cube, nodata, with_noise=True).sigma
    return from_delayed(found, (cube.shape[2],), np.float64)


def _parts(cube: Any, axis: int) -> list[slice]:
    """The slices of tiles along an axis, which follow the chunks of the cube where they can."""
    # Smaller ones would mostly be what is around them.
    sides = ["auto" if length > 2 * HALO else -1 for length in cube.shape[:2]]
    chunks = cube.rechunk((*sides, -1)).chunks[axis]
    return [slice(stop - n, stop) for n, stop in zip(chunks, accumulate(chunks), strict=True)]


def _survey(cube: Any, nodata: float | int | None, with_noise: bool) -> Any:
    """The delayed survey of tiles all over the cube, or of one with data if these have none."""
    from dask.delayed import delayed

    rows, columns = _parts(cube, 0), _parts(cube, 1)
    tiles = list(product(_spread(rows), _spread(columns)))
    survey = delayed(_survey_of)
    surveys = [survey(_Window(cube[tile]), nodata, with_noise) for tile in tiles]
    others = [tile for tile in product(rows, columns) if tile not in tiles]
    return delayed(_middle)(surveys, _Window(cube), others, nodata, with_noise)


def _spread(parts: list[slice]) -> list[slice]:
    """A few of them, evenly spaced from the first to the last."""
    chosen = np.unique(np.linspace(0, len(parts) - 1, _SURVEYED).round().astype(int))
    return [parts[i] for i in chosen]


def _survey_of(window: _Window, nodata: float | int | None, with_noise: bool) -> _Survey:
    cube = window.cube(nodata)
    _, valid = cube.read_checked(slice(None))
    rows, columns, n_bands = cube.shape
    counts = np.full(n_bands, rows * columns) if valid is None else valid.sum(axis=(0, 1))
    if with_noise and counts.any():
        return _Survey(estimate_noise(cube), counts)
    return _Survey(np.full(n_bands, np.nan), counts)


def _middle(
    surveys: Sequence[_Survey],
    whole: _Window,
    others: Sequence[tuple[slice, slice]],
    nodata: float | int | None,
    with_noise: bool,
) -> _Survey:
    """The median noise of tiles that have data, and the sum of their counts.

    If there are none, the first of the other tiles that has data is surveyed.
    """
    if not any(survey.counts.any() for survey in surveys):
        windows = (_Window(whole.array[tile]) for tile in others)
        rest = (_survey_of(window, nodata, with_noise) for window in windows)
        return next((survey for survey in rest if survey.counts.any()), surveys[0])
    sigmas = np.ma.masked_invalid([survey.sigma for survey in surveys])
    middle = np.ma.median(sigmas, axis=0).filled(np.nan)
    return _Survey(middle, np.sum([survey.counts for survey in surveys], axis=0))


def _used(survey: _Survey) -> NDArray[np.bool_]:
    """The bands with data in at least half as many pixels as the best ones."""
    return np.asarray(2 * survey.counts >= survey.counts.max())


def _sums(window: _Window, survey: _Survey, nodata: float | int | None) -> Statistics:
    with single_threaded_blas():
        return sums_over(window.cube(nodata), _used(survey), with_differences=False)


def _subspace(
    sums: Statistics, survey: _Survey, given: NDArray[np.float64] | None
) -> Subspace | None:
    """None if there are no data."""
    if not sums.n_pixels:
        return None
    sigma = survey.sigma if given is None else given
    with single_threaded_blas():
        return Subspace.of(sums.checked("The cube"), _used(survey), sigma)


def _denoised(
    window: _Window,
    inside: tuple[slice, slice],
    survey: _Survey,
    subspace: Subspace | None,
    nodata: float | int | None,
    quality: str,
) -> NDArray[Any]:
    """A tile, which lies ``inside`` of what is around it, without its noise."""
    cube = window.cube(nodata)
    values, valid = cube.read_checked(*inside)
    if subspace is None or (valid is not None and not valid.any()):
        return values
    result = np.empty(cube.shape, cube.dtype)
    with single_threaded_blas():
        for rows, part in denoised_rows(
            cube, _used(survey), subspace, None, EFFORTS[quality], Workers()
        ):
            result[rows] = part
    tile = result[inside]
    return tile.copy() if valid is None else np.where(valid, tile, values)
