"""Reading a cube in blocks of rows, ahead of their use, and working on blocks in threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.conversion import in_range
from kronlearn.io.cubes import Cube

__all__ = [
    "Block",
    "Checked",
    "Rows",
    "block_height",
    "completed",
    "in_order",
    "read_height",
    "row_blocks",
    "usable_bands",
    "working_dtype",
]

# Approximate number of bytes read at a time, and of pixels processed at a time.
_READ_BYTES = 16 << 20
_BLOCK_PIXELS = 4096

#: Values, and which of them are data; None if all are.
Checked = tuple[NDArray[Any], NDArray[np.bool_] | None]

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Rows:
    """Consecutive rows of a cube, as they are stored or repaired.

    ``values`` and ``valid``, which tells data from missing values, are (rows, columns, bands);
    ``valid`` is None if all values are data. ``n_filled`` values have been filled in.
    """

    start: int
    values: NDArray[Any]
    valid: NDArray[np.bool_] | None
    n_filled: int = 0


@dataclass(frozen=True)
class Block:
    """Consecutive rows of a cube whose valid pixels are complete.

    ``values`` is (rows, columns, bands); ``valid`` (rows, columns) tells which pixels have data in
    the bands that are used, None if all do. ``n_filled`` values have been filled in.
    """

    start: int
    values: NDArray[Any]
    valid: NDArray[np.bool_] | None
    n_filled: int


def row_blocks(cube: Cube) -> Iterator[Rows]:
    """Yield all rows, in blocks whose even height depends only on the number of columns.

    Another thread reads ahead; how much it reads at a time does not change the blocks.
    """
    height = block_height(cube)
    start = 0
    rest: list[Checked] = []
    for rows, read in _read_ahead(cube):
        values, valid = _joined(*rest, read)
        is_last = rows.stop == cube.shape[0]
        while len(values) >= height or (is_last and len(values)):
            # In one order: the rounding errors of sums and products depend on it.
            mask = None if valid is None else np.ascontiguousarray(valid[:height])
            yield Rows(start, np.ascontiguousarray(values[:height]), mask)
            start += min(height, len(values))
            values, valid = values[height:], None if valid is None else valid[height:]
        rest = [(values, valid)] if len(values) else []


def completed(rows: Rows, bands: NDArray[np.bool_]) -> Block:
    """Fill in the missing values of valid pixels.

    A pixel is valid if it has data in at least half of the ``bands``.
    """
    values, valid = rows.values, rows.valid
    if valid is None or valid[..., bands].all():
        return Block(rows.start, values, None, rows.n_filled)
    known = valid[..., bands].reshape(-1, int(bands.sum()))
    pixels = 2 * known.sum(axis=1) >= known.shape[1]
    incomplete = np.flatnonzero(pixels & ~known.all(axis=1))
    if len(incomplete):
        values = values.copy()
        spectra = values.reshape(-1, len(bands))[:, bands].astype(np.float64)
        filled = in_range(_filled(spectra, known, incomplete), values.dtype)
        values.reshape(-1, len(bands))[np.ix_(incomplete, np.flatnonzero(bands))] = filled
    n_filled = rows.n_filled + int(np.count_nonzero(~known[incomplete]))
    mask = None if pixels.all() else pixels.reshape(values.shape[:2])
    return Block(rows.start, values, mask, n_filled)


def _filled(
    spectra: NDArray[np.float64], known: NDArray[np.bool_], numbers: NDArray[np.intp]
) -> NDArray[np.float64]:
    """The spectra with these numbers, of (N, bands), with missing values filled in.

    The difference from the mean spectrum, in standard deviations of each band, is interpolated
    linearly between the nearest bands that are known.
    """
    n_bands = spectra.shape[1]
    count = np.maximum(known.sum(axis=0), 1)
    spectra = np.where(known, spectra, 0)
    mean = spectra.sum(axis=0) / count
    scale = np.sqrt(np.square(spectra - mean).sum(axis=0, where=known) / count)
    scale[scale == 0] = 1
    relative, known = (spectra[numbers] - mean) / scale, known[numbers]
    bands = np.arange(n_bands)
    before = np.maximum.accumulate(np.where(known, bands, -1), axis=1)
    after = np.minimum.accumulate(np.where(known, bands, n_bands)[:, ::-1], axis=1)[:, ::-1]
    row, band = np.nonzero(~known)
    a, b = before[row, band], after[row, band]
    a, b = np.where(a < 0, b, a), np.where(b == n_bands, a, b)
    weight = (band - a) / np.maximum(b - a, 1)
    relative[row, band] = (1 - weight) * relative[row, a] + weight * relative[row, b]
    return np.asarray(np.where(known, spectra[numbers], mean + scale * relative))


def block_height(cube: Cube) -> int:
    """The number of rows processed at a time."""
    return max(2, _BLOCK_PIXELS // cube.shape[1] // 2 * 2)


def usable_bands(cube: Cube) -> NDArray[np.bool_]:
    """A mask (bands,) of the bands to use.

    They are not marked as bad, and have data in at least half as many pixels as any other band.
    """
    counts = np.zeros(cube.shape[2], np.int64)
    good = counts == 0 if cube.bad_bands is None else ~cube.bad_bands
    if not good.any():
        raise ValueError(
            f"{cube.name} marks all of its bands as bad; set bad_bands to None to use them."
        )
    if not cube.may_miss_values:
        return good
    for rows, (_, valid) in _read_ahead(cube):
        pixels = (rows.stop - rows.start) * cube.shape[1]
        counts += pixels if valid is None else valid.sum(axis=(0, 1))
    if not counts.any():
        missing = "masked" if cube.nodata is None else cube.nodata
        raise ValueError(f"{cube.name} holds no data: all values are {missing}.")
    return good & (2 * counts >= counts.max())


def in_order(work: Callable[[T], R], items: Iterable[T], n_threads: int) -> Iterator[R]:
    """Yield ``work(item)`` for all items in order, while threads work on the next ones."""
    return map(work, items) if n_threads == 1 else _ahead(work, items, n_threads)


def _ahead(work: Callable[[T], R], items: Iterable[T], n_threads: int) -> Iterator[R]:
    """Yield ``work(item)`` for all items in order; threads work on as many of the next ones."""
    futures: deque[Future[R]] = deque()
    with ThreadPoolExecutor(n_threads) as pool:
        for item in items:
            futures.append(pool.submit(work, item))
            if len(futures) > n_threads:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()


def read_height(cube: Cube, dtype: np.dtype[Any] | None = None) -> int:
    """The number of rows read at a time: whole chunks of the file unless these are too large.

    ``dtype`` is the one that the values are kept in, by default that of the file.
    """
    n_rows, columns, bands = cube.shape
    height = max(1, _READ_BYTES // (columns * bands * (dtype or cube.dtype).itemsize))
    if cube.chunks is not None:
        chunk = cube.chunks[0]
        height = height // chunk * chunk or (chunk if chunk <= 2 * height else height)
    return min(height, n_rows)


def _read_ahead(cube: Cube) -> Iterator[tuple[slice, Checked]]:
    """Yield all rows as they are read, while a thread reads the next ones."""
    height, n_rows = read_height(cube), cube.shape[0]
    slices = [slice(a, min(a + height, n_rows)) for a in range(0, n_rows, height)]
    yield from zip(slices, _ahead(cube.read_checked, slices, 1), strict=True)


def _joined(*parts: Checked) -> Checked:
    """Join consecutive rows; the mask is None if all values are data."""
    if len(parts) == 1:
        return parts[0]
    values = np.concatenate([values for values, _ in parts])
    if all(valid is None for _, valid in parts):
        return values, None
    masks = [np.ones(values.shape, bool) if valid is None else valid for values, valid in parts]
    return values, np.concatenate(masks)


def working_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """float32 if it holds all values of a dtype exactly, otherwise float64."""
    exact = np.result_type(dtype, np.float32) == np.float32
    return np.dtype(np.float32 if exact else np.float64)
