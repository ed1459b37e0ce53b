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
_AROUND, _DEAD_LINE = 21, 0.3
# A pixel that is wrong in more than this share of its bands has a rare spectrum instead; one whose
# bands have the same value as the next in more than this share is dead.
_RARE, _SAME = 0.25, 0.9
# Predictions are learned from tiles of so many rows and columns, so many down and across.
_TILE, _TILES = 16, 6
# Medians and quantiles are those of so many pixels, about.
_PIXELS = 2048
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
    limits: tuple[Values, Values]
    columns: NDArray[np.float32]
    rows: NDArray[np.float32]

    def repaired(self, part: Rows) -> Rows:
        """Rows as floats without offsets, whose wrong values are not valid; dead pixels filled."""
        wrong, _ = self.compared(part)
        values = part.values.astype(working_dtype(part.values.dtype))
        offsets = self.columns + self.rows[part.start : part.start + len(values), None]
        values[..., self.bands] -= np.nan_to_num(offsets) * self.scale.astype(values.dtype)
        valid = np.ones(values.shape, bool) if part.valid is None else part.valid.copy()
        had_data = 2 * valid[..., self.bands].sum(axis=2) >= len(self.bands)
        valid[..., self.bands] &= ~wrong
        n_filled = _fill_pixels(values, valid, had_data & (2 * wrong.sum(axis=2) > len(self.bands)))
        return Rows(part.start, values, None if valid.all() else valid, n_filled)

    def compared(self, part: Rows) -> tuple[Mask, Values]:
        """Which values are wrong or missing, and what others do not predict of all."""
        given = part.values[..., self.bands]
        dtype = working_dtype(given.dtype)
        # What means no data may be very large.
        with np.errstate(over="ignore"):
            relative = (given - self.centre.astype(dtype)) / self.scale.astype(dtype)
            relative = relative.astype(np.float32)
        relative -= self.columns
        relative -= self.rows[part.start : part.start + len(relative), None]
        missing = np.isnan(relative)
        missing |= (given == 0) & self.dead_at_zero
        if part.valid is not None:
            missing |= ~part.valid[..., self.bands]
        # Dead pixels have the same value in all bands.
        missing |= np.mean(given[..., 1:] == given[..., :-1], axis=2, keepdims=True) > _SAME
        relative[missing] = 0
        wrong, _, residual = self.predicted(relative, missing)
        wrong[wrong.sum(axis=2) > _RARE * len(self.bands)] = False
        return wrong | missing, residual

    def predicted(self, relative: Values, missing: Mask) -> tuple[Mask, Values, Values]:
        """Which values are wrong, all with predictions in place of those, and residuals."""
        filled, wrong = relative, missing
        for step in range(4):
            if step < 2:
                found = self.from_neighbours(filled)
            else:
                found = (filled.reshape(-1, len(self.bands)) @ self.weights).reshape(relative.shape)
            residual = relative - found
            new = _isolated(residual, self.limits[step // 2], wrong | missing)
            if step == 2:
                # Where too much was missed, predictions from all bands are all wrong.
                many = new.sum(axis=-1) > _RARE * len(self.bands)
                new[many] = wrong[many]
            wrong = new
            filled = np.where(wrong | missing, found, relative)
        return wrong, filled, residual

    def from_neighbours(self, relative: Values) -> Values:
        """The mean of the two middle ones of four predictions, which one wrong value spares."""
        pairs = zip(self.neighbours, self.slopes, strict=True)
        found = [relative[..., bands] * slopes for bands, slopes in pairs]
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
    # Bands that have no data in any of them are taken for zero.
    pixels[0, np.isnan(_some(pixels)).all(axis=0)] = 0
    centre = np.nanmedian(_some(pixels), axis=0)
    scale = _spread(pixels - centre)
    scale[scale == 0] = 1
    dead_at_zero = _zeros_are_dead(pixels, scale)
    missing = np.isnan(tiles) | ((tiles == 0) & dead_at_zero)
    tiles = np.where(missing, 0, (tiles - centre) / scale).astype(np.float32)
    pixels = tiles.reshape(-1, n)
    first = np.clip(np.arange(n) - _NEIGHBOURS // 2, 0, n - _NEIGHBOURS - 1)
    window = first + np.arange(_NEIGHBOURS + 1)[:, None]
    neighbours = np.sort(np.where(window == np.arange(n), n, window), axis=0)[:-1]
    some = _some(pixels)
    slopes = np.stack([_slope(some, some[:, others]) for others in neighbours])
    none = [np.zeros((size, n), np.float32) for size in (n, *cube.shape[1::-1])]
    found = Artefacts(
        bands, centre, scale, dead_at_zero, neighbours, slopes, none[0], (centre, centre), *none[1:]
    )
    predicted = found.from_neighbours(tiles)
    coarse = _limits(tiles - predicted, _COARSE)
    wrong = _isolated(tiles - predicted, coarse, missing)
    filled = np.where(wrong | missing, predicted, tiles)
    for _ in range(_ROUNDS):
        pixels = filled.reshape(-1, n)
        weights = _regression(pixels)
        limits = _limits(pixels - pixels @ weights, _WRONG)
        found = replace(found, weights=weights, limits=(coarse, limits))
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
        for left in starts(cube.shape[1]):
            columns = slice(left, left + _TILE)
            tiles.append(rows[:, columns].astype(np.float64))
            if valid is not None:
                tiles[-1][~valid[:, columns]] = np.nan
    return np.stack(tiles)


def _zeros_are_dead(pixels: NDArray[np.float64], scale: NDArray[np.float64]) -> Mask:
    """In which bands, of pixels (N, B), some values are exactly zero and hardly any are close.

    Where nothing is negative, zeros may be what was below: many others are close to it then.
    """
    zeros = (pixels == 0).sum(axis=0)
    beside = (np.abs(pixels) == 1).sum(axis=0)
    close = ((pixels > 0) & (pixels < scale)).sum(axis=0)
    some = (zeros > 10 * (1 + beside)) & (zeros < 0.25 * len(pixels))
    return some & ((pixels < 0).any() | (zeros > 2 * close))


def _isolated(residual: Values, limits: Values, wrong: Mask) -> Mask:
    """Which residuals (..., rows, columns, B) exceed limits, alone and less their neighbours'.

    Neighbours that are ``wrong`` do not count.
    """
    found = np.abs(residual) > limits
    place = np.nonzero(found)
    around = np.empty((4, len(place[0])), residual.dtype)
    for k, (axis, step) in enumerate([(-3, -1), (-3, 1), (-2, -1), (-2, 1)]):
        last = residual.shape[axis] - 1
        there = list(place)
        there[axis] = last - np.abs(last - np.abs(place[axis] + step))
        around[k] = residual[tuple(there)] * ~wrong[tuple(there)]
    around.sort(axis=0)
    found[place] = np.abs(residual[place] - around[1:3].mean(axis=0)) > limits[place[-1]]
    return found


def _fill_pixels(values: Values, valid: Mask, dead: Mask) -> int:
    """Give dead pixels a mean of those up to two pixels away; the number of values filled in."""
    rows, columns = np.nonzero(dead)
    sums, totals = np.zeros((2, len(rows), values.shape[2]))
    for down in range(-2, 3):
        for right in range(-2, 3):
            y, x = rows + down, columns + right
            inside = (y >= 0) & (y < dead.shape[0]) & (x >= 0) & (x < dead.shape[1])
            y, x = np.where(inside, y, rows), np.where(inside, x, columns)
            weights = (valid[y, x] & ~dead[y, x, None]) / max(1, down**2 + right**2) ** 2
            sums += np.where(weights > 0, values[y, x], 0) * weights
            totals += weights
    filled = ~valid[rows, columns] & (totals > 0)
    pixel, band = np.nonzero(filled)
    place = rows[pixel], columns[pixel], band
    values[place] = sums[filled] / totals[filled]
    valid[place] = True
    return len(pixel)


def _spread(residual: Values) -> Values:
    """The standard deviation along all axes but the last; a few outliers do not change it."""
    magnitude = np.abs(_some(residual.reshape(-1, residual.shape[-1])))
    found = np.nanquantile(magnitude, _QUANTILE, axis=0) / _DEVIATIONS
    return np.asarray(found, residual.dtype)


def _limits(residual: Values, deviations: float) -> Values:
    """So many standard deviations; none for bands that others predict exactly."""
    spread = _spread(residual)
    return np.where(spread > 0, deviations * spread, np.inf).astype(np.float32)


def _some(pixels: Values) -> Values:
    """About ``_PIXELS`` of all pixels (N, B)."""
    return pixels[:: max(1, len(pixels) // _PIXELS)]


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
        left = self.relative()
        error = error / np.sqrt(np.maximum(self.counts, 1))
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
