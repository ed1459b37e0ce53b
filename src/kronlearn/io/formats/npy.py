"""Arrays that lie uncompressed in a file: NumPy's own .npy, and others that are read like them.

They are read and not mapped: a mapped file that someone cuts off ends the whole process, and its
pages count as memory in use.
"""

from __future__ import annotations

import io
import itertools
import math
import operator
import os
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.stored import Key, Opened, StoredArray, StoredArrayError
from kronlearn.io.writers import CubeWriter

__all__ = ["FileArray", "check_size", "header", "open_file", "save"]

# Numbers with gaps between them are read with their gaps up to this many bytes at a time.
_PIECE = 1 << 18


class FileArray:
    """Numbers in a file: behind ``offset``, with positive ``strides`` in bytes, or in C order.

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

    def place_of(self, index: int) -> tuple[int, int] | None:
        """Descriptor and offset of an entry of the first axis, if all is in C order."""
        if self.strides != _c_strides(self.shape, self.dtype):
            return None
        return self._descriptor, self.offset + index * self.strides[0]

    def __getitem__(self, key: Key) -> NDArray[Any]:
        # The axes in the order of the file.
        order = sorted(range(len(key)), key=lambda axis: -self.strides[axis])
        lengths = [key[axis].stop - key[axis].start for axis in order]
        strides = [self.strides[axis] for axis in order]
        start = self.offset + sum(key[a].start * self.strides[a] for a in order)
        # The first axis from which on a part is read in one go, with the gaps in it.
        axis, itemsize = 0, self.dtype.itemsize
        while self.span(lengths[axis:], strides[axis:]) > max(
            2 * math.prod(lengths[axis:]) * itemsize, _PIECE
        ):
            axis += 1
        values = np.empty(lengths, self.dtype)
        for index in itertools.product(*map(range, lengths[:axis])):
            place = start + sum(i * s for i, s in zip(index, strides, strict=False))
            piece = self._bytes(self.span(lengths[axis:], strides[axis:]), place)
            values[index] = np.ndarray(lengths[axis:], values.dtype, piece, 0, strides[axis:])
        return values.transpose(np.argsort(order))

    def span(self, lengths: Sequence[int], strides: Sequence[int]) -> int:
        """Bytes from the first to the last number of a part."""
        steps = zip(lengths, strides, strict=True)
        return self.dtype.itemsize + sum((n - 1) * step for n, step in steps)

    def _bytes(self, count: int, place: int) -> NDArray[np.uint8]:
        content = np.empty(count, np.uint8)
        view = content.data
        while view:
            got = os.preadv(self._descriptor, [view], place)
            if got == 0:
                raise StoredArrayError(
                    f"{self.path} is cut off: it ends at byte {place}, before the end of the "
                    "data; the file was changed after it was opened."
                )
            view, place = view[got:], place + got
        return content

    def __reduce__(self) -> tuple[Any, ...]:
        return FileArray, (self.path, self.shape, self.dtype, self.offset, self.strides)


def check_size(array: StoredArray) -> None:
    """Raise unless the file of a FileArray is long enough."""
    thing: FileArray = array.thing
    size = thing.path.stat().st_size
    needed = thing.offset + thing.span(thing.shape, thing.strides)
    # A header with a wrong shape is found where there is nothing but a header and numbers.
    if size < needed or (size > needed and array.format in ("npy", "envi")):
        problem = "is cut off" if size < needed else "does not match its header"
        raise array.error(
            f"{problem}: {thing.path.name} has {size} bytes, but shape {array.shape} and dtype "
            f"{thing.dtype.name} need {needed}"
        )


def open_file(path: Path, dataset: str | None, files: ExitStack) -> Opened:
    """The array in an .npy file, in C or Fortran order."""
    with open(path, "rb") as file:
        version = np.lib.format.read_magic(file)
        readers = {1: np.lib.format.read_array_header_1_0}
        reader = readers.get(version[0], np.lib.format.read_array_header_2_0)
        shape, fortran, dtype = reader(file)
        offset = file.tell()
    strides = _c_strides(shape[::-1], dtype)[::-1] if fortran else None
    return FileArray(path, shape, dtype, offset, strides), {}


def header(writer: CubeWriter) -> bytes:
    """What stands before the numbers, in C order."""
    stream, shape = io.BytesIO(), writer.source.shape
    described = {"descr": writer.dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, described)
    return stream.getvalue()


def save(writer: CubeWriter, place: Path) -> None:
    """Write the header before the collected rows, which then are the file."""
    with open(writer.rows.path, "r+b") as file:
        file.write(header(writer))
    os.rename(writer.rows.path, place)


def _c_strides(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, ...]:
    return tuple(itertools.accumulate((dtype.itemsize, *shape[:0:-1]), operator.mul))[::-1]
