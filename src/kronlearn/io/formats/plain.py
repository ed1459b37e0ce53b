"""Arrays that lie uncompressed in a file: .npy, ENVI, classic NetCDF, mapped files.

They are read and not mapped: a mapped file that someone cuts off ends the whole process, and its
pages count as memory in use.
"""

from __future__ import annotations

import itertools
import math
import operator
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.atomic import write_at
from kronlearn.io.stored import Key, StoredArray
from kronlearn.io.writers import blocks

__all__ = ["FileArray", "Layout", "write_plain"]

# Numbers with gaps between them are read with their gaps up to this many bytes at a time.
_PIECE = 1 << 18


@dataclass(frozen=True)
class Layout:
    """Where the numbers of an array lie in a file."""

    shape: tuple[int, ...]
    #: With its byte order.
    dtype: np.dtype[Any]
    #: Of the first number, in bytes.
    offset: int
    #: Positive, in bytes.
    strides: tuple[int, ...]

    @classmethod
    def in_order(
        cls, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int, order: str = "C"
    ) -> Layout:
        """The layout of numbers without gaps in C or Fortran order."""
        lengths = shape[:0:-1] if order == "C" else shape[:-1]
        strides = tuple(itertools.accumulate((dtype.itemsize, *lengths), operator.mul))
        return cls(shape, dtype, offset, strides[::-1] if order == "C" else strides)

    @property
    def end(self) -> int:
        """The byte behind the last number."""
        return self.offset + self._span(self.shape, self.strides)

    def read(self, descriptor: int, key: Key) -> NDArray[Any]:
        """The numbers of a part; EOFError if the file ends before them."""
        order, lengths, strides, start = self._placed(key)
        # The first axis from which on a part is read in one go, with the gaps in it.
        axis = 0
        while self._span(lengths[axis:], strides[axis:]) > max(
            2 * math.prod(lengths[axis:]) * self.dtype.itemsize, _PIECE
        ):
            axis += 1
        values = np.empty(lengths, self.dtype)
        for index in itertools.product(*map(range, lengths[:axis])):
            place = start + sum(i * s for i, s in zip(index, strides, strict=False))
            piece = _bytes(descriptor, self._span(lengths[axis:], strides[axis:]), place)
            values[index] = np.ndarray(lengths[axis:], self.dtype, piece, 0, strides[axis:])
        return values.transpose(np.argsort(order))

    def write(self, descriptor: int, key: Key, values: NDArray[Any]) -> None:
        """Write the numbers of a part."""
        order, lengths, strides, start = self._placed(key)
        values = np.ascontiguousarray(values.transpose(order), self.dtype)
        # The first axis from which on the numbers are one after the other.
        axis, span = len(lengths), self.dtype.itemsize
        while axis > 0 and strides[axis - 1] == span:
            axis -= 1
            span *= lengths[axis]
        for index in itertools.product(*map(range, lengths[:axis])):
            place = start + sum(i * s for i, s in zip(index, strides, strict=False))
            write_at(descriptor, values[index].reshape(-1).view(np.uint8), place)

    def _placed(self, key: Key) -> tuple[list[int], list[int], list[int], int]:
        """The axes in the order of the file, a part's lengths and strides in it, its first byte."""
        order = sorted(range(len(key)), key=lambda axis: -self.strides[axis])
        lengths = [key[axis].stop - key[axis].start for axis in order]
        strides = [self.strides[axis] for axis in order]
        start = self.offset + sum(key[a].start * self.strides[a] for a in order)
        return order, lengths, strides, start

    def _span(self, lengths: Sequence[int], strides: Sequence[int]) -> int:
        """Bytes from the first to the last number of a part."""
        steps = zip(lengths, strides, strict=True)
        return self.dtype.itemsize + sum((n - 1) * step for n, step in steps)


class FileArray(StoredArray):
    """An array that lies uncompressed in a file.

    Parameters
    ----------
    path : Path
    layout : Layout
    format : str
        The module of ``formats`` that opens it; "memory" where the layout is all that is known.
    file : Path, optional
        The file with the numbers where it is not ``path``.
    """

    def __init__(
        self, path: Path, layout: Layout, format: str, file: Path | None = None, **more: Any
    ) -> None:
        super().__init__(str(path), layout.shape, layout.dtype, path=path, **more)
        self.layout, self.format, self.binary = layout, format, file or path
        self._check_size(os.stat(self.binary).st_size)
        self._descriptor = os.open(self.binary, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        resources = ExitStack()
        resources.callback(os.close, self._descriptor)
        self.keep(resources)

    def place_of(self, index: int) -> tuple[int, int] | None:
        """Descriptor and offset of an entry of the first axis, if all is in C order."""
        layout = self.layout
        if layout != Layout.in_order(layout.shape, layout.dtype, layout.offset):
            return None
        return self._descriptor, layout.offset + index * layout.strides[0]

    def _check_size(self, size: int) -> None:
        """Raise unless the numbers are there, and all that is there where there are only numbers.

        A header with a wrong shape is found so.
        """
        needed, file = self.layout.end, self.binary.name
        announced = f"{needed} that its shape {self.shape} and dtype {self.layout.dtype.name} need"
        if size < needed:
            raise self.error(f"is cut off: {file} has {size} bytes, not the {announced}")
        if self.format in ("npy", "envi") and size > needed:
            raise self.error(
                f"has a header that does not fit: {file} has {size} bytes, more than the "
                f"{announced}; correct the header"
            )

    def _read(self, key: Key) -> NDArray[Any]:
        try:
            return self.layout.read(self._descriptor, key)
        except EOFError as problem:
            raise self.error(
                f"is cut off: {self.binary.name} ends at byte {problem}, before the numbers that "
                "its header announces; it was changed since it was opened"
            ) from None

    def __reduce__(self) -> tuple[Any, ...]:
        if self.format == "memory":
            return FileArray, (self.path, self.layout, self.format)
        return super().__reduce__()


def write_plain(
    place: Path,
    layout: Layout,
    values: NDArray[Any],
    row_axis: int,
    number: Callable[[NDArray[Any]], NDArray[Any]] = np.asarray,
) -> None:
    """Write values, or what ``number`` makes of them, to a file that may be there already."""
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        for key, part in blocks(values, row_axis):
            layout.write(descriptor, key, number(part))
    finally:
        os.close(descriptor)


def _bytes(descriptor: int, count: int, place: int) -> NDArray[np.uint8]:
    """Bytes of a file; EOFError if it ends before them."""
    content = np.empty(count, np.uint8)
    view = content.data
    while view:
        got = os.preadv(descriptor, [view], place)
        if got == 0:
            raise EOFError(place)
        view, place = view[got:], place + got
    return content
