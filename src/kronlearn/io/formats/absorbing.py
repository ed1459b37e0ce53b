"""A file that takes whatever is written to it, and tells afterwards what was lost."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from kronlearn.io.formats.outputs import write_at

__all__ = ["AbsorbingFile"]


class AbsorbingFile:
    """A file for the HDF5 library, which does not survive a write that fails.

    The library keeps a file that it cannot close, for want of room on the disk say, and crashes
    later. Here every write succeeds: what the disk refuses is held in memory, where the library
    finds it again, and ``check`` raises the error once the library is done.

    Parameters
    ----------
    path : Path
    is_new : bool
        Whether the file is to be created.
    """

    def __init__(self, path: Path, is_new: bool) -> None:
        flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if is_new else 0)
        self._descriptor: int | None = os.open(path, flags, 0o666)
        self._place = 0
        self._size = os.fstat(self._descriptor).st_size
        self._problem: OSError | None = None
        self._lost: list[tuple[int, bytes]] = []

    def check(self) -> None:
        """Raise the error of the first write that failed, if one has."""
        if self._problem is not None:
            raise self._problem

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place."""
        self._place = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._place}.get(whence, self._size)
        return self._place

    def tell(self) -> int:
        """The present place."""
        return self._place

    def write(self, content: Any) -> int:
        """Write bytes, or hold them if that fails."""
        view, place = memoryview(content).cast("B"), self._place
        if self._problem is None:
            try:
                write_at(self._open_descriptor, view, place)
            except OSError as problem:
                self._problem = problem
        if self._problem is not None:
            self._lost.append((place, bytes(view)))
        self._place += len(view)
        self._size = max(self._size, self._place)
        return len(view)

    def read(self, count: int) -> bytes:
        """Bytes from the present place."""
        buffer = bytearray(count)
        return bytes(buffer[: self.readinto(buffer)])

    def readinto(self, buffer: Any) -> int:
        """Read bytes, with those that are held."""
        view, start = memoryview(buffer).cast("B"), self._place
        count = min(len(view), max(0, self._size - start))
        got = os.pread(self._open_descriptor, count, start)
        view[: len(got)] = got
        view[len(got) : count] = bytes(count - len(got))
        for place, content in self._lost:
            first, last = max(place, start), min(place + len(content), start + count)
            if first < last:
                view[first - start : last - start] = content[first - place : last - place]
        self._place += count
        return count

    def truncate(self, size: int) -> int:
        """Set the size of the file."""
        try:
            os.ftruncate(self._open_descriptor, size)
        except OSError as problem:
            self._problem = self._problem or problem
        self._size = size
        return size

    def flush(self) -> None:
        """Everything has been written already."""

    def close(self) -> None:
        """Close the file. May be called again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    @property
    def _open_descriptor(self) -> int:
        if self._descriptor is None:
            raise ValueError("The file is closed.")
        return self._descriptor
