"""Stripes, dead pixels, dead lines and impulses of a cube: values that other bands contradict."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import median_filter

from kronlearn.hyperspectral.blocks import Rows, in_order, row_blocks, working_dtype
from kronlearn.io.cubes import Cube

__all__ = ["Artefacts", "find_artefacts"]

# The number of nearest bands that predict a band at first. Without as many others, nothing is
# found.
_NEIGHBOURS = 4
# A value is wrong if it is this many standard deviations from the prediction by the nearest bands,
# and then by all bands. A line is a stripe if it is this many standard errors from those around it.
_COARSE, _WRONG, _STRIPE = 6.0, 5.0, 5.0
# The number of lines that a line is compared with, and the fraction of wrong values above which a
# line is dead.
_AROUND, _DEAD_LINE = 21, 0.3
# The fraction of wrong bands above which a pixel has a rare spectrum instead, and the fraction of
# bands equal to the next one above which a pixel is dead.
_RARE, _SAME = 0.25, 0.9
# Predictions are learned from tiles of this side, this many down and across.
_TILE, _TILES = 16, 6
# The rounds of learning them, each without the values found wrong in the one before.
_ROUNDS = 3
# Approximate number of pixels that medians and quantiles are taken of.
_PIXELS = 2048
# The magnitude of a normal variable is below this many standard deviations with probability 0.8.
# Fewer than the other fifth of all values are expected to be wrong.
_QUANTILE, _DEVIATIONS = 0.8, 1.2816

Values = NDArray[Any]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Artefacts:
    """How the bands of a cube predict each other, and the offsets of its stripes.

    Predictions and limits are of relative values: the difference from the ``centre`` of a band, in
    units of its ``scale``.

    Attributes
    ----------
    bands : array of int, shape (B,)
        The bands that are used.
    centre, scale : arrays of shape (B,)
    dead_at_zero : bool array of shape (B,)
        The bands where values of exactly zero are missing.
    neighbours, slopes : arrays of shape (4, B)
        The bands, among those used, that predict each band at first, and the slopes.
    weights : array of shape (B, B)
        Weights that predict each band from all others.
    limits : two arrays of shape (B,)
        How far values may be from the first prediction, and from the second one.
    columns, rows : arrays of shape (columns, B) and (rows, B)
        The offsets of lines; NaN for dead ones.
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
        """Subtract offsets, fill in dead pixels, and mark other wrong values as not valid.

        The result is floats.
        """
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
        """Find wrong and missing values; return which they are, and the residuals of all."""
        values = part.values[..., self.bands]
        dtype = working_dtype(values.dtype)
        # The value that marks missing data may be very large.
        with np.errstate(over="ignore"):
            relative = (values - self.centre.astype(dtype)) / self.scale.astype(dtype)
            relative = relative.astype(np.float32)
        relative -= self.columns
        relative -= self.rows[part.start : part.start + len(relative), None]
        missing = np.isnan(relative)
        missing |= (values == 0) & self.dead_at_zero
        missing |= ~self.has_data(part)
        relative[missing] = 0
        wrong, _, residual = self.predicted(relative, missing)
        wrong[wrong.sum(axis=2) > _RARE * len(self.bands)] = False
        return wrong | missing, residual

    def has_data(self, part: Rows) -> Mask:
        """Which values (rows, columns, B) are neither declared missing nor those of dead pixels."""
        values = part.values[..., self.bands]
        # Dead pixels have the same value in all bands.
        alive = np.mean(values[..., 1:] == values[..., :-1], axis=2, keepdims=True) <= _SAME
        if part.valid is None:
            return np.broadcast_to(alive, values.shape)
        return alive & part.valid[..., self.bands]

    def predicted(self, relative: Values, missing: Mask) -> tuple[Mask, Values, Values]:
        """Find wrong values; return which they are, all values with these replaced, and residuals.

        The nearest bands predict twice, then all bands twice, with the values replaced so far.
        """
        filled, wrong = relative, missing
        for step in range(4):
            if step < 2:
                prediction = _from_neighbours(filled, self.neighbours, self.slopes)
            else:
                flat = filled.reshape(-1, len(self.bands))
                prediction = (flat @ self.weights).reshape(relative.shape)
            residual = relative - prediction
            now_wrong = _isolated(residual, self.limits[step // 2], wrong | missing)
            if step == 2:
                # A pixel with many wrong values that were missed so far spoils all its predictions.
                many = now_wrong.sum(axis=-1) > _RARE * len(self.bands)
                now_wrong[many] = wrong[many]
            wrong = now_wrong
            filled = np.where(wrong | missing, prediction, relative)
        return wrong, filled, residual


def find_artefacts(cube: Cube, used: Mask, n_threads: int) -> Artefacts | None:
    """Find the artefacts of the bands used, in one pass over the rows; None if bands are few."""
    if np.count_nonzero(used) <= _NEIGHBOURS:
        return None
    predictions = _predictions(cube, np.flatnonzero(used))

    def sums_of(part: Rows) -> list[Values]:
        wrong, residual = predictions.compared(part)
        residual[wrong] = 0
        arrays = residual, ~wrong, predictions.has_data(part)
        return [np.stack([array.sum(axis) for array in arrays]) for axis in (0, 1)]

    along_columns = np.zeros((3, *predictions.columns.shape))
    along_rows = []
    for in_columns, in_rows in in_order(sums_of, row_blocks(cube), n_threads):
        along_columns += in_columns
        along_rows.append(in_rows)
    columns, rows = _Lines(*along_columns), _Lines(*np.concatenate(along_rows, axis=1))
    # The scene scatters about equally along both axes, and few cubes have stripes along both: the
    # smaller scatter is that without stripes.
    scatter = np.minimum(columns.scatter(), rows.scatter())
    error = np.maximum(predictions.limits[1] / _WRONG, scatter)
    return replace(
        predictions,
        columns=columns.offsets(error, predictions.weights),
        rows=rows.offsets(error, predictions.weights),
    )


def _predictions(cube: Cube, bands: NDArray[np.intp]) -> Artefacts:
    """Learn how bands predict each other, from tiles all over the cube; offsets are zero."""
    n = len(bands)
    tiles = np.ascontiguousarray(_tiles(cube)[..., bands])
    pixels = tiles.reshape(-1, n)
    # A band without data in these pixels gets a zero, so that it has a median.
    pixels[0, np.isnan(_subset(pixels)).all(axis=0)] = 0
    centre = np.nanmedian(_subset(pixels), axis=0)
    scale = _spread(pixels - centre)
    scale[scale == 0] = 1
    dead_at_zero = _zeros_are_dead(pixels, scale)
    missing = np.isnan(tiles) | ((tiles == 0) & dead_at_zero)
    tiles = np.where(missing, 0, (tiles - centre) / scale).astype(np.float32)
    pixels = tiles.reshape(-1, n)
    with_data = ~missing.reshape(-1, n).all(axis=1)
    first = np.clip(np.arange(n) - _NEIGHBOURS // 2, 0, n - _NEIGHBOURS - 1)
    window = first + np.arange(_NEIGHBOURS + 1)[:, None]
    neighbours = np.sort(np.where(window == np.arange(n), n, window), axis=0)[:-1]
    subset = _known_subset(tiles, missing)
    slopes = np.stack([_slope(subset, subset[:, others]) for others in neighbours])
    prediction = _from_neighbours(tiles, neighbours, slopes)
    coarse = _limits(tiles - prediction, missing, _COARSE)
    wrong = _isolated(tiles - prediction, coarse, missing)
    filled = np.where(wrong | missing, prediction, tiles)
    for _ in range(_ROUNDS):
        pixels = filled.reshape(-1, n)
        weights = _regression(pixels[with_data])
        residual = (pixels - pixels @ weights).reshape(tiles.shape)
        predictions = Artefacts(
            bands,
            centre,
            scale,
            dead_at_zero,
            neighbours,
            slopes,
            weights,
            limits=(coarse, _limits(residual, missing, _WRONG)),
            columns=np.zeros((cube.shape[1], n), np.float32),
            rows=np.zeros((cube.shape[0], n), np.float32),
        )
        _, filled, _ = predictions.predicted(tiles, missing)
    return predictions


def _tiles(cube: Cube) -> NDArray[np.float64]:
    """Tiles (N, rows, columns, bands) from all over a cube; missing values are NaN."""

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
    """The bands, of pixels (N, B), where values of exactly zero are dead.

    There they are much more frequent than ±1. If no value is negative, zeros may instead be clipped
    negative values, but then many other values are close to zero.
    """
    zeros = (pixels == 0).sum(axis=0)
    ones = (np.abs(pixels) == 1).sum(axis=0)
    close = ((pixels > 0) & (pixels < scale)).sum(axis=0)
    frequent = (zeros > 10 * (1 + ones)) & (zeros < 0.25 * len(pixels))
    return frequent & ((pixels < 0).any() | (zeros > 2 * close))


def _from_neighbours(relative: Values, neighbours: NDArray[np.intp], slopes: Values) -> Values:
    """The median of four predictions, to which a single wrong value does little harm."""
    a, b, c, d = (relative[..., bands] * s for bands, s in zip(neighbours, slopes, strict=True))
    low, high = np.minimum(a, b), np.maximum(a, b)
    np.maximum(low, np.minimum(c, d), out=low)
    np.minimum(high, np.maximum(c, d), out=high)
    low += high
    low /= 2
    return low


def _isolated(residual: Values, limits: Values, wrong: Mask) -> Mask:
    """Which residuals (..., rows, columns, B) exceed the limits, also relative to their neighbours.

    That is, minus the median of the four neighbours, of which ``wrong`` ones count as zero.
    """
    isolated = np.abs(residual) > limits
    place = np.nonzero(isolated)
    around = np.empty((4, len(place[0])), residual.dtype)
    for k, (axis, step) in enumerate([(-3, -1), (-3, 1), (-2, -1), (-2, 1)]):
        last = residual.shape[axis] - 1
        neighbour = list(place)
        # Mirrored at the borders.
        neighbour[axis] = last - np.abs(last - np.abs(place[axis] + step))
        around[k] = residual[tuple(neighbour)] * ~wrong[tuple(neighbour)]
    around.sort(axis=0)
    isolated[place] = np.abs(residual[place] - around[1:3].mean(axis=0)) > limits[place[-1]]
    return isolated


def _fill_pixels(values: Values, valid: Mask, dead: Mask) -> int:
    """Fill in dead pixels with means of those up to two pixels away; return the count of values."""
    rows, columns = np.nonzero(dead)
    sums, totals = np.zeros((2, len(rows), values.shape[2]))
    for down in range(-2, 3):
        for right in range(-2, 3):
            y, x = rows + down, columns + right
            inside = (y >= 0) & (y < dead.shape[0]) & (x >= 0) & (x < dead.shape[1])
            y, x = np.where(inside, y, rows), np.where(inside, x, columns)
            # The inverse fourth power of the distance.
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
    """A robust standard deviation along all axes but the last."""
    magnitude = np.abs(_subset(residual.reshape(-1, residual.shape[-1])))
    spread = np.nanquantile(magnitude, _QUANTILE, axis=0) / _DEVIATIONS
    return np.asarray(spread, residual.dtype)


def _limits(residual: Values, missing: Mask, deviations: float) -> Values:
    """A multiple of the standard deviation; infinite for bands that others predict exactly."""
    spread = _spread(_known_subset(residual, missing))
    return np.where(spread > 0, deviations * spread, np.inf).astype(np.float32)


def _subset(pixels: Values) -> Values:
    """About ``_PIXELS`` of all pixels (N, B), evenly spaced."""
    return pixels[:: max(1, len(pixels) // _PIXELS)]


def _known_subset(values: Values, missing: Mask) -> Values:
    """A subset (N, B) of the pixels with data, in which missing values are NaN.

    Bands of which all are missing keep the values that were put in their place.
    """
    values, missing = (array.reshape(-1, array.shape[-1]) for array in (values, missing))
    with_data = ~missing.all(axis=1)
    values, missing = _subset(values[with_data]), _subset(missing[with_data])
    return np.where(missing & ~missing.all(axis=0), np.float32(np.nan), values)


def _slope(a: Values, b: Values) -> Values:
    """The robust correlation of columns in units of their spread: from medians, not means.

    It is zero for columns that are never known together.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        medians = [np.nanmedian(np.abs(c), axis=0) for c in (a + b, a - b)]
    plus, minus = np.square(np.nan_to_num(medians))
    return np.asarray((plus - minus) / np.maximum(plus + minus, 1e-12))


def _regression(pixels: Values) -> NDArray[np.float32]:
    """Weights (B, B) that predict each column of pixels (N, B) from all others."""
    precision = np.linalg.inv(pixels.T @ pixels / len(pixels) + 1e-3 * np.eye(pixels.shape[1]))
    weights = -precision / np.diag(precision)
    np.fill_diagonal(weights, 0)
    return weights.astype(np.float32)


@dataclass(frozen=True)
class _Lines:
    """The sums of residuals along lines, and the numbers of values in these; all (lines, B).

    ``available`` values have data, right or wrong.
    """

    sums: Values
    counts: Values
    available: Values

    def relative(self) -> Values:
        """The mean residual of each line, minus the median of those of the lines around it."""
        means = self.sums / np.maximum(self.counts, 1)
        return np.asarray(means - median_filter(means, (_AROUND, 1), mode="nearest"))

    def scatter(self) -> Values:
        """The standard deviation between lines (B,), scaled to that of a single value."""
        return _spread(self.relative() * np.sqrt(self.counts))

    def offsets(self, error: Values, weights: Values) -> NDArray[np.float32]:
        """The offsets of stripes, zero for other lines and NaN for dead ones.

        In each line, bands become stripes one by one, the most certain first.
        """
        left = self.relative()
        error = error / np.sqrt(np.maximum(self.counts, 1))
        offsets = np.zeros_like(left)
        lines = np.arange(len(left))
        for _ in range(left.shape[1]):
            bands = np.argmax(np.abs(left[lines]) / error[lines], axis=1)
            certain = np.abs(left[lines, bands]) > _STRIPE * error[lines, bands]
            lines, bands = lines[certain], bands[certain]
            stripes = left[lines, bands]
            offsets[lines, bands] += stripes
            # The predictions of other bands contained a part of this offset.
            left[lines] += stripes[:, None] * weights[bands]
            left[lines, bands] -= stripes
        offsets[self.counts < (1 - _DEAD_LINE) * self.available] = np.nan
        return offsets.astype(np.float32)
