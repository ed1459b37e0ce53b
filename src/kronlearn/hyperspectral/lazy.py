"""Denoising of cubes in Dask arrays, which are not read until the result is computed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import accumulate, product
from operator import add
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kronlearn.blas import single_threaded_blas
from kronlearn.engines.selection import check_name
from kronlearn.engines.workers import Workers
from kronlearn.hyperspectral.denoising import checked_sigma
from kronlearn.hyperspectral.noise import estimate_noise
from kronlearn.hyperspectral.slabs import EFFORTS, HALO, denoised_rows
from kronlearn.hyperspectral.statistics import Statistics, gather
from kronlearn.hyperspectral.subspace import Subspace
from kronlearn.io.cubes import Cube, open_cube

__all__ = ["denoise_lazily", "estimate_noise_lazily"]

# The noise is estimated from tiles in at most this many rows and columns of tiles.
_SURVEYED = 4
# Statistics that one task adds up.
_FAN_IN = 8


class _Survey(NamedTuple):
    """The noise of every band and its number of values with data, both (bands,).

    A bad band counts as one without data.
    """

    sigma: NDArray[np.float64]
    counts: NDArray[np.int64]


class _Window:
    """A part (rows, columns, bands) of a Dask array, which a task computes within itself.

    If tasks of the graph computed the parts, Dask would keep them in memory between the passes.
    """

    def __init__(
        self, array: Any, nodata: float | int | None, bad_bands: NDArray[np.bool_] | None = None
    ) -> None:
        from dask.base import optimize

        (self.array,) = optimize(array)
        self.nodata = nodata
        self.bad_bands = bad_bands

    def cube(self) -> Cube:
        """Compute the values."""
        cube = open_cube(np.asarray(self.array.compute()), band_axis=2, nodata=self.nodata)
        cube.bad_bands = self.bad_bands
        return cube


def denoise_lazily(
    cube: Any,
    sigma: ArrayLike | None,
    nodata: float | int | None,
    bad_bands: NDArray[np.bool_] | None,
    quality: str = "default",
) -> Any:
    """Denoise a Dask array (rows, columns, bands); the result is one, too.

    Tiles contain all bands. Some are read to estimate the noise, all of them for the principal
    components, and all of them again, with the pixels around them, to be denoised. Every task reads
    its own tile. Missing values stay missing, and bad bands as they are.
    """
    from dask.array import block, from_delayed
    from dask.delayed import delayed

    check_name("quality", quality, tuple(EFFORTS))
    sigmas = None if sigma is None else checked_sigma(sigma, cube.shape[2], "the cube")
    survey = _survey(cube, nodata, bad_bands, with_noise=sigmas is None)
    down, across = _tile_slices(cube, 0), _tile_slices(cube, 1)
    tiles = [[(rows, columns) for columns in across] for rows in down]
    terms = [
        delayed(_statistics)(_Window(cube[tile], nodata), survey) for row in tiles for tile in row
    ]
    while len(terms) > 1:
        groups = (terms[i : i + _FAN_IN] for i in range(0, len(terms), _FAN_IN))
        terms = [delayed(reduce)(add, group) for group in groups]
    subspace = delayed(_subspace)(terms[0], survey, sigmas)

    def denoised(tile: tuple[slice, slice]) -> Any:
        wide = tuple(slice(max(0, part.start - HALO), part.stop + HALO) for part in tile)
        inside = tuple(
            slice(part.start - around.start, part.stop - around.start)
            for part, around in zip(tile, wide, strict=True)
        )
        window = _Window(cube[wide], nodata)
        values = delayed(_denoised)(window, inside, survey, subspace, quality)
        return from_delayed(values, cube[tile].shape, cube.dtype)

    return block([[[denoised(tile)] for tile in row] for row in tiles]).rechunk(cube.chunks)


def estimate_noise_lazily(
    cube: Any, nodata: float | int | None, bad_bands: NDArray[np.bool_] | None
) -> Any:
    """Estimate the noise (bands,) of a Dask array (rows, columns, bands); the result is lazy.

    It is NaN for bad bands, and for bands without data in the tiles that are read.
    """
    from dask.array import from_delayed

    sigma = _survey(cube, nodata, bad_bands, with_noise=True).sigma
    return from_delayed(sigma, (cube.shape[2],), np.float64)


def _tile_slices(cube: Any, axis: int) -> list[slice]:
    """The slices of the tiles along an axis, which follow the chunks of the cube if possible."""
    # Smaller tiles would consist mostly of the halo read around them.
    sides = ["auto" if length > 2 * HALO else -1 for length in cube.shape[:2]]
    chunks = cube.rechunk((*sides, -1)).chunks[axis]
    return [slice(stop - n, stop) for n, stop in zip(chunks, accumulate(chunks), strict=True)]


def _survey(
    cube: Any,
    nodata: float | int | None,
    bad_bands: NDArray[np.bool_] | None,
    with_noise: bool,
) -> Any:
    """The delayed survey of tiles all over the cube or, if these hold no data, of another one."""
    from dask.delayed import delayed

    rows, columns = _tile_slices(cube, 0), _tile_slices(cube, 1)
    tiles = list(product(_evenly_chosen(rows), _evenly_chosen(columns)))
    windows = [_Window(cube[tile], nodata, bad_bands) for tile in tiles]
    surveys = [delayed(_survey_of)(window, with_noise) for window in windows]
    others = [tile for tile in product(rows, columns) if tile not in tiles]
    whole = _Window(cube, nodata, bad_bands)
    return delayed(_combined)(surveys, whole, others, with_noise)


def _evenly_chosen(parts: list[slice]) -> list[slice]:
    """At most a few of the parts, evenly spaced from the first to the last."""
    chosen = np.unique(np.linspace(0, len(parts) - 1, _SURVEYED).round().astype(int))
    return [parts[i] for i in chosen]


def _survey_of(window: _Window, with_noise: bool) -> _Survey:
    cube = window.cube()
    _, valid = cube.read_checked(slice(None))
    rows, columns, n_bands = cube.shape
    counts = np.full(n_bands, rows * columns) if valid is None else valid.sum(axis=(0, 1))
    if cube.bad_bands is not None:
        counts[cube.bad_bands] = 0
    if with_noise and counts.any():
        return _Survey(estimate_noise(cube), counts)
    return _Survey(np.full(n_bands, np.nan), counts)


def _combined(
    surveys: Sequence[_Survey],
    whole: _Window,
    others: Sequence[tuple[slice, slice]],
    with_noise: bool,
) -> _Survey:
    """The median noise of the tiles that have data, and the sum of their counts.

    If none of them has data, the survey of the first of the other tiles that does.
    """
    if not any(survey.counts.any() for survey in surveys):
        windows = (_Window(whole.array[tile], whole.nodata, whole.bad_bands) for tile in others)
        rest = (_survey_of(window, with_noise) for window in windows)
        return next((survey for survey in rest if survey.counts.any()), surveys[0])
    sigmas = np.ma.masked_invalid([survey.sigma for survey in surveys])
    median = np.ma.median(sigmas, axis=0).filled(np.nan)
    return _Survey(median, np.sum([survey.counts for survey in surveys], axis=0))


def _used(survey: _Survey) -> NDArray[np.bool_]:
    """A mask of the bands with data in at least half as many pixels as any other."""
    return np.asarray(2 * survey.counts >= survey.counts.max())


def _statistics(window: _Window, survey: _Survey) -> Statistics:
    with single_threaded_blas():
        return gather(window.cube(), _used(survey), with_differences=False)


def _subspace(
    statistics: Statistics, survey: _Survey, sigmas: NDArray[np.float64] | None
) -> Subspace | None:
    """The subspace of the cube; None if it holds no data."""
    if not statistics.n_pixels:
        return None
    with single_threaded_blas():
        return Subspace.of(
            statistics.checked("The cube"),
            _used(survey),
            survey.sigma if sigmas is None else sigmas,
        )


def _denoised(
    window: _Window,
    inside: tuple[slice, slice],
    survey: _Survey,
    subspace: Subspace | None,
    quality: str,
) -> NDArray[Any]:
    """Denoise a tile, which is the part ``inside`` of a window."""
    cube = window.cube()
    values, valid = cube.read_checked(*inside)
    if subspace is None or (valid is not None and not valid.any()):
        return values
    result = np.empty(cube.shape, cube.dtype)
    used, effort = _used(survey), EFFORTS[quality]
    with single_threaded_blas():
        for rows, part in denoised_rows(cube, used, subspace, None, effort, Workers(), cube.dtype):
            result[rows] = part
    tile = result[inside]
    return tile.copy() if valid is None else np.where(valid, tile, values)
