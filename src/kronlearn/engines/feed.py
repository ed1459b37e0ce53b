"""Samples on their way to the native code: read ahead, in threads, while others are coded."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from numpy.typing import NDArray

from kronlearn.core.source import Source

__all__ = ["Feed"]

# Chunks that are read at the same time, or lie ready, at most.
_AHEAD = 4


class Feed:
    """The samples ``start … stop − 1`` of a source in chunks, for one pass over them.

    Parameters
    ----------
    source : Source
    start, stop : int
    multiple_of : int
        Chunks hold a multiple of so many samples.
    n_threads : int
        How many threads use the samples: as many, up to four, read them.

    Attributes
    ----------
    chunk : int
        Samples in a chunk; the last may have fewer.
    file : int
        Descriptor of a file that the native code reads the samples from itself, or −1.
    file_offset : int
        Where the first of them lies.
    error : BaseException or None
        Why ``get`` gave no samples.
    """

    def __init__(
        self, source: Source, start: int, stop: int, multiple_of: int, n_threads: int = 1
    ) -> None:
        self.source, self.start, self.stop = source, start, stop
        self.error: BaseException | None = None
        self.file, self.file_offset = source.file(start) or (-1, 0)
        whole = source.whole(start, stop)
        self.in_use: dict[int, NDArray[Any]] = {}
        self.coming: dict[int, Future[NDArray[Any]]] = {}
        self.next = 0
        self.ahead = min(n_threads, _AHEAD)
        self.is_whole = whole is not None
        if whole is not None:
            self.chunk = -(-(stop - start) // multiple_of) * multiple_of
            self.in_use[0] = whole
        else:
            self.chunk = source.step(multiple_of)
            # No thread is started before the first chunk is asked for, and none is of a file.
            self.readers = ThreadPoolExecutor(self.ahead, thread_name_prefix="kronlearn-reader")

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *exception: object) -> None:
        if not self.is_whole:
            self.readers.shutdown(cancel_futures=True)

    def get(self, number: int) -> NDArray[Any] | None:
        """The samples of a chunk; None, with the reason in ``error``, if they cannot be had."""
        if self.is_whole:
            return self.in_use[0]
        if self.error is not None:
            # Another thread has met it; what it was asking for is gone.
            return None
        try:
            last = -(-(self.stop - self.start) // self.chunk) - 1
            while self.next <= min(number + self.ahead, last):
                self.coming[self.next] = self.readers.submit(self._read, self.next)
                self.next += 1
            self.in_use[number] = self.coming.pop(number).result()
            return self.in_use[number]
        except BaseException as error:
            self.error = error
            return None

    def done(self, number: int) -> None:
        """Take a chunk back."""
        if not self.is_whole:
            del self.in_use[number]

    def _read(self, number: int) -> NDArray[Any]:
        first = self.start + number * self.chunk
        return self.source.read(first, min(first + self.chunk, self.stop))
