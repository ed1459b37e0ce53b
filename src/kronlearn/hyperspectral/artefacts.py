"""Stripes, dead pixels and lines, and impulses of a cube: values that other bands contradict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import median_filter

from kronlearn.hyperspectral.blocks import Rows, in_order, row_blocks, working_dtype
from kronlearn.io.cubes import Cube

__all__ = ["Artefacts", "find_artefacts"]

# Bands that predict another one at first, the nearest ones. With fewer nothing is found.
_NEIGHBOURS = 4
# Values this many standard deviations from what the nearest bands predict, and then from what all
# bands predict, are wrong; lines this many standard errors from the lines around are stripes.
_COARSE, _WRONG, _STRIPE = 6.0, 5.0, 5.0
# Lines are compared with so many, and are dead if more than this share of their values is wrong.
_AROUND, _DEAD_LINE = 9, 0.3
# A pixel that is wrong in more than this share of its bands is dead, or has a rare spectrum.
_RARE = 0.25
# Predictions are learned from tiles of so many rows and columns, so many down and across.
_TILE, _TILES = 16, 6
_ROUNDS = 3
# A normal variable exceeds this many standard deviations in magnitude one time in five. Fewer
# values than that are expected to be wrong.
_QUANTILE, _DEVIATIONS = 0.8, 1.2816

Values = NDArray[Any]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Artefacts:
    """What the values of a cube are compared with, and the offsets of its stripes.

    Values are relative here: in units of a ``scale`` of their band, from its ``centre``.

    Attributes
    ----------
    bands : array of int, shape (B,)
        The bands that are used.
    centre, scale : arrays of shape (B,)
    dead_at_zero : bool array of shape (B,)
        Where values of exactly zero are no data.
    neighbours, slopes : arrays of shape (4, B)
        Bands, among those used, that predict each at first, and the slopes.
    weights : array of shape (B, B)
        Predict each band from all others.
    limits : two arrays of shape (B,)
        How far values may be from the first prediction and from the second one.
    columns, rows : arrays of shape (columns, B) and (rows, B)
        Offsets of lines; NaN for dead ones.
    """

    bands: NDArray[np.intp]
    centre: NDArray[np.float64]
    scale: NDArray[np.float64]
    dead_at_zero: Mask
    neighbours: NDArray[np.intp]
    slopes: NDArray[np.float32]
    weights: NDArray[np.float32]
    limits: tuple[NDArray[np.float32], NDArray[np.float32]]
    columns: NDArray[np.float32]
    rows: NDArray[np.float32]

    def repaired(self, part: Rows) -> Rows:
        """Rows as floats without offsets, whose wrong values are not valid; dead pixels filled."""
        wrong, _ = self.compared(part)
        values = part.values.astype(working_dtype(part.values.dtype))
        offsets = self.columns + self.rows[part.start : part.start + len(values), None]
        values[..., self.bands] -= np.nan_to_num(offsets) * self.scale.astype(values.dtype)
        valid = np.ones(values.shape, bool) if part.valid is None else part.valid.copy()
        nothing = ~valid.any(axis=2)
        valid[..., self.bands] &= ~wrong
        dead = ~nothing & (2 * wrong.sum(axis=2) > wrong.shape[2])
        n_filled = _fill_pixels(values, valid, dead) * len(self.bands) if dead.any() else 0
        return Rows(part.start, values, None if valid.all() else valid, n_filled)

    def compared(self, part: Rows) -> tuple[Mask, Values]:
        """Which values are wrong or missing, and what others do not predict of all."""
        given = part.values[..., self.bands]
        dtype = working_dtype(given.dtype)
        relative = (given - self.centre.astype(dtype)) / self.scale.astype(dtype)
        relative = relative.astype(np.float32)
        relative -= self.columns
        relative -= self.rows[part.start : part.start + len(relative), None]
        missing = np.isnan(relative)
        missing |= (given == 0) & self.dead_at_zero
        if part.valid is not None:
            missing |= ~part.valid[..., self.bands]
        relative[missing] = 0
        wrong, _, residual = self.predicted(relative, missing)
        many = wrong.sum(axis=2) > _RARE * len(self.bands)
        # Dead pixels have the same value in most bands; others have a spectrum of their own.
        spectra = given[many]
        wrong[many] = (np.mean(spectra[:, 1:] == spectra[:, :-1], axis=1) > 0.5)[:, None]
        return wrong | missing, residual

    def predicted(self, relative: Values, missing: Mask) -> tuple[Mask, Values, Values]:
        """Which values are wrong, all with predictions in place of those, and residuals."""
        found = self.from_neighbours(relative)
        wrong = _isolated(relative - found, self.limits[0])
        for _ in range(2):
            filled = np.where(wrong | missing, found, relative)
            found = (filled.reshape(-1, len(self.bands)) @ self.weights).reshape(relative.shape)
            residual = relative - found
            wrong = _isolated(residual, self.limits[1])
        return wrong, np.where(wrong | missing, found, relative), residual

    def from_neighbours(self, relative: Values) -> Values:
        """The mean of the two middle ones of four predictions, which one wrong value spares."""
        found = [relative[..., b] * slope for b, slope in zip(self.neighbours, self.slopes)]
        low, high = np.minimum(found[0], found[1]), np.maximum(found[0], found[1])
        np.maximum(low, np.minimum(found[2], found[3]), out=low)
        np.minimum(high, np.maximum(found[2], found[3]), out=high)
        low += high
        low /= 2
        return low


def find_artefacts(cube: Cube, used: Mask, n_threads: int) -> Artefacts | None:
    """Those in the bands that are used, in one pass over the rows; None if bands are few."""
    if np.count_nonzero(used) <= _NEIGHBOURS:
        return None
    found = _without_stripes(cube, np.flatnonzero(used))

    def sums_of(part: Rows) -> list[Values]:
        wrong, residual = found.compared(part)
        residual[wrong] = 0
        return [sums for axis in (0, 1) for sums in (residual.sum(axis), (~wrong).sum(axis))]

    totals = [np.zeros(found.columns.shape), np.zeros(found.columns.shape)]
    of_rows, in_rows = [], []
    for sums, counts, row_sums, row_counts in in_order(sums_of, row_blocks(cube), n_threads):
        totals[0] += sums
        totals[1] += counts
        of_rows.append(row_sums)
        in_rows.append(row_counts)
    columns = _Lines(totals[0], totals[1])
    rows = _Lines(np.concatenate(of_rows), np.concatenate(in_rows))
    # A scene is much the same along both axes; few cubes have stripes along both.
    error = np.maximum(found.limits[1] / _WRONG, np.minimum(columns.scatter(), rows.scatter()))
    return replace(
        found,
        columns=columns.offsets(error, found.weights),
        rows=rows.offsets(error, found.weights),
    )


def _without_stripes(cube: Cube, bands: NDArray[np.intp]) -> Artefacts:
    """What bands predict of each other, from tiles all over the cube."""
    n = len(bands)
    tiles = _tiles(cube)[..., bands]
    pixels = tiles.reshape(-1, n)
    centre = np.nan_to_num(np.nanmedian(pixels, axis=0))
    scale = np.nan_to_num(_spread(pixels - centre))
    scale[scale == 0] = 1
    dead_at_zero = _zeros_are_dead(pixels, scale)
    missing = np.isnan(tiles) | ((tiles == 0) & dead_at_zero)
    tiles = np.where(missing, 0, (tiles - centre) / scale).astype(np.float32)
    pixels = tiles.reshape(-1, n)
    first = np.clip(np.arange(n) - _NEIGHBOURS // 2, 0, n - _NEIGHBOURS - 1)
    window = first + np.arange(_NEIGHBOURS + 1)[:, None]
    neighbours = np.sort(np.where(window == np.arange(n), n, window), axis=0)[:-1]
    slopes = np.stack([_slope(pixels, pixels[:, others]) for others in neighbours])
    none = [np.zeros((size, n), np.float32) for size in (n, *cube.shape[1::-1])]
    limits = (np.ones(n, np.float32),) * 2
    found = Artefacts(
        bands, centre, scale, dead_at_zero, neighbours, slopes, none[0], limits, *none[1:]
    )
    predicted = found.from_neighbours(tiles)
    coarse = _COARSE * _spread(tiles - predicted)
    wrong = _isolated(tiles - predicted, coarse)
    filled = np.where(wrong | missing, predicted, tiles)
    for _ in range(_ROUNDS):
        pixels = filled.reshape(-1, n)
        weights = _regression(pixels)
        limits = (coarse, _WRONG * _spread(pixels - pixels @ weights))
        found = replace(found, weights=weights, limits=limits)
        _, filled, _ = found.predicted(tiles, missing)
    return found


def _tiles(cube: Cube) -> NDArray[np.float64]:
    """Tiles (N, rows, columns, bands) from all over a cube; NaN where there is no data."""

    def starts(size: int) -> NDArray[np.intp]:
        n_tiles = min(_TILES, -(-size // _TILE))
        return np.linspace(0, max(0, size - _TILE), n_tiles).astype(int)

    tiles = []
    for top in starts(cube.shape[0]):
        rows, valid = cube.read_checked(slice(top, min(top + _TILE, cube.shape[0])))
        values = rows.astype(np.float64)
        if valid is not None:
            values[~valid] = np.nan
        tiles += [values[:, left : left + _TILE] for left in starts(cube.shape[1])]
    return np.stack(tiles)


def _zeros_are_dead(pixels: NDArray[np.float64], scale: NDArray[np.float64]) -> Mask:
    """In which bands, of pixels (N, B), far more values are exactly zero than are close to it.

    Where nothing is negative, zeros may be what was below it: many others are close to it then.
    """
    zeros = (pixels == 0).sum(axis=0)
    beside = (np.abs(pixels) == 1).sum(axis=0)
    close = ((pixels > 0) & (pixels < scale)).sum(axis=0)
    return (zeros > 10 * (1 + beside)) & ((pixels < 0).any() | (zeros > 2 * close))


def _isolated(residual: Values, limits: Values) -> Mask:
    """Which residuals (..., rows, columns, B) exceed limits, alone and less their neighbours'."""
    found = np.abs(residual) > limits
    place = np.nonzero(found)
    around = np.empty((4, len(place[0])), residual.dtype)
    for k, (axis, step) in enumerate([(-3, -1), (-3, 1), (-2, -1), (-2, 1)]):
        last = residual.shape[axis] - 1
        there = list(place)
        there[axis] = last - np.abs(last - np.abs(place[axis] + step))
        around[k] = residual[tuple(there)]
    around.sort(axis=0)
    found[place] = np.abs(residual[place] - around[1:3].mean(axis=0)) > limits[place[-1]]
    return found


def _fill_pixels(values: Values, valid: Mask, dead: Mask) -> int:
    """Give dead pixels the mean of others up to two pixels away; how many could be filled."""
    rows, columns = np.nonzero(dead)
    sums, counts = np.zeros((len(rows), values.shape[2])), np.zeros((len(rows), 1))
    for down in range(-2, 3):
        for right in range(-2, 3):
            y, x = rows + down, columns + right
            inside = (y >= 0) & (y < dead.shape[0]) & (x >= 0) & (x < dead.shape[1])
            y, x = np.where(inside, y, rows), np.where(inside, x, columns)
            good = valid[y, x].all(axis=1, keepdims=True)
            sums += np.where(good, values[y, x], 0)
            counts += good
    some = counts[:, 0] > 0
    rows, columns = rows[some], columns[some]
    values[rows, columns] = sums[some] / counts[some]
    valid[rows, columns] = True
    return len(rows)


def _spread(residual: Values) -> Values:
    """The standard deviation along all axes but the last; a few outliers do not change it."""
    magnitude = np.abs(residual.reshape(-1, residual.shape[-1]))
    found = np.nanquantile(magnitude, _QUANTILE, axis=0) / _DEVIATIONS
    return np.asarray(found, residual.dtype)


def _slope(a: Values, b: Values) -> Values:
    """The correlation of columns that are in units of their spread, from medians."""
    plus, minus = (np.square(np.median(np.abs(found), axis=0)) for found in (a + b, a - b))
    return np.asarray((plus - minus) / np.maximum(plus + minus, 1e-12))


def _regression(pixels: Values) -> NDArray[np.float32]:
    """Weights (B, B) that predict each column of pixels (N, B) from all the others."""
    precision = np.linalg.inv(pixels.T @ pixels / len(pixels) + 1e-3 * np.eye(pixels.shape[1]))
    weights = -precision / np.diag(precision)
    np.fill_diagonal(weights, 0)
    return weights.astype(np.float32)


@dataclass(frozen=True)
class _Lines:
    """Sums of residuals along lines (lines, B), of how many values."""

    sums: Values
    counts: Values

    def relative(self) -> Values:
        """Their means, relative to those of the lines around."""
        means = self.sums / np.maximum(self.counts, 1)
        return np.asarray(means - median_filter(means, (_AROUND, 1), mode="nearest"))

    def scatter(self) -> Values:
        """How much they differ from line to line, for each band, as if they had one value each."""
        return _spread(self.relative() * np.sqrt(self.counts))

    def offsets(self, error: Values, weights: Values) -> NDArray[np.float32]:
        """Those of stripes, the most certain first; zero for other lines and NaN for dead ones."""
        left, error = self.relative(), error / np.sqrt(np.maximum(self.counts, 1))
        offsets = np.zeros_like(left)
        lines = np.arange(len(left))
        for _ in range(left.shape[1]):
            bands = np.argmax(np.abs(left[lines]) / error[lines], axis=1)
            certain = np.abs(left[lines, bands]) > _STRIPE * error[lines, bands]
            lines, bands = lines[certain], bands[certain]
            found = left[lines, bands]
            offsets[lines, bands] += found
            # Other bands were predicted from this one.
            left[lines] += found[:, None] * weights[bands]
            left[lines, bands] -= found
        offsets[self.counts < (1 - _DEAD_LINE) * self.counts.max()] = np.nan
        return offsets.astype(np.float32)
