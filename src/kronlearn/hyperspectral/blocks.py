"""The rows of a cube, a block at a time, read ahead; and work on blocks by several threads."""

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

# Bytes that are read at a time, about; and pixels that are worked on at a time.
_READ_BYTES = 16 << 20
_BLOCK_PIXELS = 4096

#: Values, and where they are data; None where all are.
Checked = tuple[NDArray[Any], NDArray[np.bool_] | None]

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Block:
    """Some rows of a cube.

    ``values`` is (rows, columns, bands); ``valid`` (rows, columns) tells where there are data in
    the bands that are used, None if everywhere. Where a few of them were missing, ``n_filled`` in
    all, they are filled in.
    """

    start: int
    values: NDArray[Any]
    valid: NDArray[np.bool_] | None
    n_filled: int = 0

    @property
    def rows(self) -> slice:
        """Where the rows are in the cube."""
        return slice(self.start, self.start + len(self.values))


@dataclass(frozen=True)
class Rows:
    """Some rows of a cube: values (rows, columns, bands), which are data, and how many were not."""

    start: int
    values: NDArray[Any]
    valid: NDArray[np.bool_] | None
    n_filled: int = 0


def row_blocks(cube: Cube) -> Iterator[Rows]:
    """All rows in blocks of an even height that depends on the number of columns alone.

    They do not depend on how the file is read, which is done ahead by another thread.
    """
    height = block_height(cube)
    start = 0
    kept: list[Checked] = []
    for rows, read in _read_ahead(cube):
        values, valid = _joined(*kept, read)
        last = rows.stop == cube.shape[0]
        while len(values) >= height or (last and len(values)):
            mask = None if valid is None else valid[:height]
            yield Rows(start, values[:height], mask)
            start += min(height, len(values))
            values, valid = values[height:], None if valid is None else valid[height:]
        kept = [(values, valid)] if len(values) else []


def completed(part: Rows, bands: NDArray[np.bool_]) -> Block:
    """The block of some rows, with what is missing of valid pixels.

    A pixel is valid if it has data in at least half of the ``bands``; the others are filled in.
    """
    start, values, valid = part.start, part.values, part.valid
    if valid is None or valid[..., bands].all():
        return Block(start, values, None, part.n_filled)
    shape = values.shape[:2]
    known = valid[..., bands].reshape(-1, int(bands.sum()))
    pixels = 2 * known.sum(axis=1) >= known.shape[1]
    some = np.flatnonzero(pixels & ~known.all(axis=1))
    if len(some):
        values = values.copy()
        spectra = values.reshape(-1, len(bands))[:, bands].astype(np.float64)
        where = np.ix_(some, np.flatnonzero(bands))
        filled = in_range(_filled(spectra, known, some), values.dtype)
        values.reshape(-1, len(bands))[where] = filled
    n_filled = part.n_filled + int(np.count_nonzero(~known[some]))
    return Block(start, values, None if pixels.all() else pixels.reshape(shape), n_filled)


def _filled(
    spectra: NDArray[np.float64], known: NDArray[np.bool_], which: NDArray[np.intp]
) -> NDArray[np.float64]:
    """Some spectra, of (N, bands), with missing entries by their neighbours in the spectrum.

    How far a spectrum is from the mean one, in standard deviations of the bands, is interpolated.
    """
    n_bands = spectra.shape[1]
    count = np.maximum(known.sum(axis=0), 1)
    spectra = np.where(known, spectra, 0)
    mean = spectra.sum(axis=0) / count
    scale = np.sqrt(np.square(spectra - mean).sum(axis=0, where=known) / count)
    scale[scale == 0] = 1
    relative, known = (spectra[which] - mean) / scale, known[which]
    bands = np.arange(n_bands)
    before = np.maximum.accumulate(np.where(known, bands, -1), axis=1)
    after = np.minimum.accumulate(np.where(known, bands, n_bands)[:, ::-1], axis=1)[:, ::-1]
    row, band = np.nonzero(~known)
    a, b = before[row, band], after[row, band]
    a, b = np.where(a < 0, b, a), np.where(b == n_bands, a, b)
    share = (band - a) / np.maximum(b - a, 1)
    relative[row, band] = (1 - share) * relative[row, a] + share * relative[row, b]
    return np.asarray(np.where(known, spectra[which], mean + scale * relative))


def block_height(cube: Cube) -> int:
    """Rows that are worked on at a time."""
    return max(2, _BLOCK_PIXELS // cube.shape[1] // 2 * 2)


def usable_bands(cube: Cube) -> NDArray[np.bool_]:
    """Which bands are not marked as bad, and have data in at least half as many pixels as the best.

    An array of shape (bands,).
    """
    counts = np.zeros(cube.shape[2], np.int64)
    good = counts == 0 if cube.bad_bands is None else ~np.asarray(cube.bad_bands, bool)
    if not good.any():
        raise ValueError(f"{cube.name} marks all of its bands as bad; set bad_bands to None.")
    if not cube.may_miss_values:
        return good
    for rows, (_, valid) in _read_ahead(cube):
        pixels = (rows.stop - rows.start) * cube.shape[1]
        counts += pixels if valid is None else valid.sum(axis=(0, 1))
    if not counts.any():
        what = "masked" if cube.nodata is None else cube.nodata
        raise ValueError(f"{cube.name} holds no data: all values are {what}.")
    return good & (2 * counts >= counts.max())


def in_order(work: Callable[[T], R], items: Iterable[T], n_threads: int) -> Iterator[R]:
    """What some work makes of items, in their order, while threads work on the next ones."""
    if n_threads == 1:
        yield from map(work, items)
        return
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(n_threads) as pool:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > n_threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def read_height(cube: Cube, dtype: np.dtype[Any] | None = None) -> int:
    """Rows that are read at a time: whole chunks of the file where they are not too large.

    How large they are is a matter of the type that they are kept as, by default the file's.
    """
    n_rows, columns, bands = cube.shape
    height = max(1, _READ_BYTES // (columns * bands * (dtype or cube.dtype).itemsize))
    if cube.chunks is not None:
        chunk = cube.chunks[0]
        height = height // chunk * chunk or (chunk if chunk <= 2 * height else height)
    return min(height, n_rows)


def _read_ahead(cube: Cube) -> Iterator[tuple[slice, Checked]]:
    """All rows as they are read, the next ones while others work on these."""
    height, n_rows = read_height(cube), cube.shape[0]
    slices = [slice(a, min(a + height, n_rows)) for a in range(0, n_rows, height)]
    if len(slices) == 1:
        yield slices[0], cube.read_checked(slices[0])
        return
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(cube.read_checked, slices[0])
        for rows, following in zip(slices, [*slices[1:], None], strict=True):
            read = coming.result()
            if following is not None:
                coming = pool.submit(cube.read_checked, following)
            yield rows, read


def _joined(*parts: Checked) -> Checked:
    """Rows that follow one another as one array; None as mask if nothing is missing."""
    if len(parts) == 1:
        return parts[0]
    values = np.concatenate([values for values, _ in parts])
    if all(valid is None for _, valid in parts):
        return values, None
    masks = [np.ones(values.shape, bool) if valid is None else valid for values, valid in parts]
    return values, np.concatenate(masks)


def working_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """float32 for values that it holds exactly, float64 for others."""
    exact = np.result_type(dtype, np.float32) == np.float32
    return np.dtype(np.float32 if exact else np.float64)
