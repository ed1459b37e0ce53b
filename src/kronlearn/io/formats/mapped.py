"""Numbers that lie in a file at regular distances: .npy, ENVI, classic NetCDF."""

from __future__ import annotations

import errno
import itertools
import math
import operator
import os
import shutil
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.formats.outputs import ArrayWriter, Plan, write_at
from kronlearn.io.stored import Key, StoredArray

__all__ = ["FileArray", "RawWriter"]

# Numbers with gaps between them are read with their gaps up to this many bytes at a time.
_PIECE = 1 << 18


class FileArray(StoredArray):
    """An array that lies uncompressed in a file.

    It is read and not mapped: a mapped file that someone cuts off ends the whole process, and
    its pages count as memory in use.

    Parameters
    ----------
    path : Path
    shape : tuple of int
    stored : dtype
        With its byte order.
    offset : int
        Of the first number, in bytes.
    strides : tuple of int, optional
        Positive, in bytes; C order by default.
    file : Path, optional
        The file with the numbers where it is not ``path``.
    exact : bool
        Whether the file must end behind the last number. A header with a wrong shape is found so.
    """

    def __init__(
        self,
        path: Path,
        shape: tuple[int, ...],
        stored: np.dtype[Any],
        offset: int,
        strides: tuple[int, ...] | None = None,
        file: Path | None = None,
        exact: bool = True,
        **more: Any,
    ) -> None:
        super().__init__(str(path), shape, stored, path=path, **more)
        if strides is None:
            steps = itertools.accumulate((stored.itemsize, *shape[:0:-1]), operator.mul)
            strides = tuple(steps)[::-1]
        self._stored, self._offset, self._strides = stored, offset, strides
        # The axes in the order in which they lie in the file.
        self._order = sorted(range(self.ndim), key=lambda axis: -strides[axis])
        self._file = file or path
        self._exact = exact
        self._check_size(os.stat(self._file).st_size)
        self._descriptor = os.open(self._file, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        weakref.finalize(self, os.close, self._descriptor)

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """The dtype in the file, with its byte order."""
        return self._stored

    def place_of(self, index: int) -> tuple[int, int] | None:
        """Descriptor and offset of an entry of the first axis, if all is in C order."""
        lengths = (self._stored.itemsize, *self.shape[:0:-1])
        if self._strides != tuple(itertools.accumulate(lengths, operator.mul))[::-1]:
            return None
        return self._descriptor, self._offset + index * self._strides[0]

    def _check_size(self, size: int) -> None:
        lasts = ((n - 1) * step for n, step in zip(self.shape, self._strides, strict=True))
        needed = self._offset + sum(lasts) + self._stored.itemsize
        announced = f"{needed} that its shape {self.shape} and dtype {self._stored.name} need"
        if size < needed:
            raise self.error(f"is cut off: {self._file.name} has {size} bytes, not the {announced}")
        if self._exact and size > needed:
            raise self.error(
                f"has a header that does not fit: {self._file.name} has {size} bytes, more than "
                f"the {announced}; correct the header"
            )

    def _read(self, key: Key) -> NDArray[Any]:
        lengths, strides, start = self._placed(key)
        values = np.empty(lengths, self._stored)
        axis, run = self._run(lengths, strides)
        for index in itertools.product(*map(range, lengths[:axis])):
            for first in range(0, lengths[axis], run):
                part = values[index][first : first + run]
                steps = zip((*index, first), strides, strict=False)
                self._read_run(part, start + sum(i * s for i, s in steps), strides[axis:])
        return values.transpose(np.argsort(self._order))

    def write_part(self, descriptor: int, key: Key, values: NDArray[Any]) -> None:
        """Write numbers at their place in a copy of the file."""
        lengths, strides, start = self._placed(key)
        values = np.ascontiguousarray(values.transpose(self._order), self._stored)
        # The axes from here on have their numbers one after the other.
        axis, span = len(lengths), self._stored.itemsize
        while axis > 0 and strides[axis - 1] == span:
            axis -= 1
            span *= lengths[axis]
        for index in itertools.product(*map(range, lengths[:axis])):
            place = start + sum(i * s for i, s in zip(index, strides, strict=False))
            write_at(descriptor, values[index].reshape(-1).view(np.uint8), place)

    def _placed(self, key: Key) -> tuple[list[int], list[int], int]:
        """Lengths and strides of a part in the order of the file, and its first byte."""
        parts = [key[axis] for axis in self._order]
        strides = [self._strides[axis] for axis in self._order]
        start = self._offset + sum(p.start * s for p, s in zip(parts, strides, strict=True))
        return [part.stop - part.start for part in parts], strides, start

    def _run(self, lengths: list[int], strides: list[int]) -> tuple[int, int]:
        """An axis, and how many of its entries, with all behind them, are read in one go."""
        span = used = self._stored.itemsize
        for axis in reversed(range(len(lengths))):
            wider = span + (lengths[axis] - 1) * strides[axis]
            used *= lengths[axis]
            if wider > max(used, _PIECE):
                return axis, max(1, 1 + (_PIECE - span) // strides[axis])
            span = wider
        return 0, lengths[0]

    def _read_run(self, part: NDArray[Any], place: int, strides: list[int]) -> None:
        lasts = ((n - 1) * step for n, step in zip(part.shape, strides, strict=True))
        span = sum(lasts) + self._stored.itemsize
        if span == part.nbytes:
            self._fill(part.reshape(-1).view(np.uint8), place)
            return
        piece = np.empty(span, np.uint8)
        self._fill(piece, place)
        part[...] = np.ndarray(part.shape, self._stored, piece, strides=strides)

    def _fill(self, buffer: NDArray[np.uint8], place: int) -> None:
        view = buffer.data
        while view:
            got = os.preadv(self._descriptor, [view], place)
            if got == 0:
                raise self.error(
                    f"is cut off: {self._file.name} ends at byte {place}, before the numbers that "
                    "its header announces; it was changed since it was opened"
                )
            view, place = view[got:], place + got


class RawWriter(ArrayWriter):
    """Writes numbers one after the other into a file, behind a header.

    Written, not mapped: a mapped file ends the whole process when the disk is full.
    """

    def __init__(
        self,
        target: Path,
        plan: Plan,
        order: tuple[str, ...],
        dtype: np.dtype[Any],
        header: bytes = b"",
    ) -> None:
        super().__init__(target, order)
        # The byte order is that of the file; values come in the native one.
        self.dtype, self._stored = dtype.newbyteorder("="), dtype
        if target.is_dir():
            raise IsADirectoryError(f"{target} is a folder; give the name of a file.")
        self._offset = len(header)
        self._lengths = [plan.length(axis) for axis in order]
        needed = len(header) + math.prod(self._lengths) * dtype.itemsize
        if shutil.disk_usage(target.parent).free < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        self._descriptor: int | None = os.open(self.temporary, flags, 0o666)
        try:
            write_at(self._descriptor, header, 0)
        except BaseException:
            self.remove()
            raise

    def write(self, key: Key, values: NDArray[Any]) -> None:
        """Write rows: one stretch of bytes for every band in front of them."""
        assert self._descriptor is not None
        values = np.ascontiguousarray(values, self._stored)
        axis = self.order.index("row")
        inner = math.prod(self._lengths[axis + 1 :]) * self._stored.itemsize
        for index in itertools.product(*map(range, self._lengths[:axis])):
            outer = 0
            for i, length in zip(index, self._lengths, strict=False):
                outer = outer * length + i
            row = outer * self._lengths[axis] + key[axis].start
            part = values[index].reshape(-1).view(np.uint8)
            write_at(self._descriptor, part, self._offset + row * inner)

    def release(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
