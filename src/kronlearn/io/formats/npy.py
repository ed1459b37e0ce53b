"""NumPy files (.npy), and the reader for all numbers that lie uncompressed in a file.

Files are read with ``pread`` rather than memory-mapped: truncating a mapped file would kill the
process that reads it, and mapped pages count as memory in use.
"""

from __future__ import annotations

import io
import itertools
import math
import operator
import os
import weakref
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.stored import Key, Opened, StoredArrayError

if TYPE_CHECKING:
    from kronlearn.io.writers import CubeWriter

__all__ = ["FileArray", "checked", "header", "open_file", "save"]

# Strided numbers are read together with the gaps between them, at most this many bytes at a time.
_PIECE_BYTES = 1 << 18


class FileArray:
    """An uncompressed array in a file, which is read part by part.

    It starts at ``offset`` and has positive ``strides`` in bytes, by default those of C order.
    ``dtype`` has the byte order of the file.
    """

    def __init__(
        self,
        path: Path,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        offset: int = 0,
        strides: tuple[int, ...] | None = None,
    ) -> None:
        self.path, self.shape, self.dtype, self.offset = path, shape, dtype, offset
        self.strides = strides or _c_strides(shape, dtype)
        self._descriptor = os.open(path, os.O_RDONLY)
        self.close = weakref.finalize(self, os.close, self._descriptor)

    def location(self, index: int) -> tuple[int, int] | None:
        """Descriptor and offset of an entry of the first axis; None unless in C order."""
        if self.strides != _c_strides(self.shape, self.dtype):
            return None
        return self._descriptor, self.offset + index * self.strides[0]

    def __getitem__(self, key: Key) -> NDArray[Any]:
        # Outermost axis of the file first.
        order = sorted(range(len(key)), key=lambda axis: -self.strides[axis])
        lengths = [key[axis].stop - key[axis].start for axis in order]
        strides = [self.strides[axis] for axis in order]
        start = self.offset + sum(key[axis].start * self.strides[axis] for axis in order)
        # From this axis on, a piece is read in one go, with its gaps.
        axis, itemsize = 0, self.dtype.itemsize
        while self.span(lengths[axis:], strides[axis:]) > max(
            2 * math.prod(lengths[axis:]) * itemsize, _PIECE_BYTES
        ):
            axis += 1
        values = np.empty(lengths, self.dtype)
        for index in itertools.product(*map(range, lengths[:axis])):
            offset = start + sum(i * stride for i, stride in zip(index, strides, strict=False))
            piece = self._read_bytes(self.span(lengths[axis:], strides[axis:]), offset)
            values[index] = np.ndarray(lengths[axis:], values.dtype, piece, 0, strides[axis:])
        return values.transpose(np.argsort(order))

    def span(self, lengths: Sequence[int], strides: Sequence[int]) -> int:
        """Bytes from the first to the last number of a part, both included."""
        steps = zip(lengths, strides, strict=True)
        return self.dtype.itemsize + sum((n - 1) * stride for n, stride in steps)

    def _read_bytes(self, count: int, offset: int) -> NDArray[np.uint8]:
        content = np.empty(count, np.uint8)
        view = content.data
        while view:
            n_read = os.preadv(self._descriptor, [view], offset)
            if n_read == 0:
                raise StoredArrayError(
                    f"{self.path} is truncated: it ends at byte {offset}, before the end of the "
                    "data; the file was changed after it was opened."
                )
            view, offset = view[n_read:], offset + n_read
        return content

    def __reduce__(self) -> tuple[Any, ...]:
        return FileArray, (self.path, self.shape, self.dtype, self.offset, self.strides)


def checked(array: FileArray, files: ExitStack, exact: bool = True) -> FileArray:
    """The array, after a check of the size of its file, which is closed with ``files``.

    ``exact`` says that nothing follows the numbers: a longer file does not match its header.
    """
    files.enter_context(closing(array))
    shape, dtype = array.shape, array.dtype
    # StoredArray refuses empty arrays and pickled objects, whatever the size of their file.
    if min(shape, default=0) > 0 and not dtype.hasobject:
        size = array.path.stat().st_size
        needed = array.offset + array.span(shape, array.strides)
        if size < needed or (exact and size > needed):
            problem = "is truncated" if size < needed else "does not match its header"
            raise StoredArrayError(
                f"{array.path} {problem}: it has {size} bytes, but shape {shape} and dtype "
                f"{dtype.name} need {needed}."
            )
    return array


def open_file(path: Path, dataset: str | None, files: ExitStack) -> Opened:
    """Open the array in an .npy file, in C or Fortran order."""
    with open(path, "rb") as file:
        version = np.lib.format.read_magic(file)
        readers = {1: np.lib.format.read_array_header_1_0}
        reader = readers.get(version[0], np.lib.format.read_array_header_2_0)
        shape, fortran, dtype = reader(file)
        offset = file.tell()
    strides = _c_strides(shape[::-1], dtype)[::-1] if fortran else None
    return checked(FileArray(path, shape, dtype, offset, strides), files), {}


def header(writer: CubeWriter) -> bytes:
    """The bytes of the file in front of its numbers, which are in C order."""
    stream, shape = io.BytesIO(), writer.source.shape
    fields = {"descr": writer.dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, fields)
    return stream.getvalue()


def save(writer: CubeWriter, path: Path) -> None:
    """Turn the file of the collected rows into the result by writing the header into it."""
    with open(writer.rows.path, "r+b") as file:
        file.write(header(writer))
    os.rename(writer.rows.path, path)


def _c_strides(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, ...]:
    return tuple(itertools.accumulate((dtype.itemsize, *shape[:0:-1]), operator.mul))[::-1]
