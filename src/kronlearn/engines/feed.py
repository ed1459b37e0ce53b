"""Feeds samples to the native code: threads read ahead while other threads code."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from numpy.typing import NDArray

from kronlearn.core.source import Source

__all__ = ["Feed"]

# At most this many chunks are read at the same time or kept ready.
_MOST_AHEAD = 4


class Feed:
    """The samples ``start … stop − 1`` of a source, handed to the native code chunk by chunk.

    Samples that memory already holds in the form needed are a single chunk.

    Parameters
    ----------
    source : Source
    start, stop : int
    multiple_of : int
        The number of samples in a chunk is a multiple of this.
    n_threads : int
        How many threads use the samples. As many threads, but at most four, read them.

    Attributes
    ----------
    chunk : int
        The number of samples in a chunk; the last one may have fewer.
    file, file_offset : int
        Descriptor of a file from which the native code reads the samples itself, and the offset of
        the first of them in bytes. Without such a file the descriptor is −1.
    error : BaseException or None
        Why ``get`` returned no samples.
    """

    def __init__(
        self, source: Source, start: int, stop: int, multiple_of: int, n_threads: int = 1
    ) -> None:
        self.source, self.start, self.stop = source, start, stop
        self.error: BaseException | None = None
        self.file, self.file_offset = source.file(start) or (-1, 0)
        self.in_memory = source.whole(start, stop)
        # Chunks that the native code uses at present, so that they stay in memory.
        self.in_use: dict[int, NDArray[Any]] = {}
        self.reading: dict[int, Future[NDArray[Any]]] = {}
        self.next = 0
        self.ahead = min(n_threads, _MOST_AHEAD)
        if self.in_memory is not None:
            self.chunk = -(-(stop - start) // multiple_of) * multiple_of
        else:
            self.chunk = source.step(multiple_of)
            # Its threads start when the first chunk is requested, which is never for a file.
            self.readers = ThreadPoolExecutor(self.ahead, thread_name_prefix="kronlearn-reader")

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.in_memory is None:
            self.readers.shutdown(cancel_futures=True)

    def get(self, number: int) -> NDArray[Any] | None:
        """The samples of a chunk; None, with the reason in ``error``, if reading failed."""
        if self.in_memory is not None:
            return self.in_memory
        if self.error is not None:
            # Another thread has run into it; there is nothing more to read.
            return None
        try:
            last = -(-(self.stop - self.start) // self.chunk) - 1
            while self.next <= min(number + self.ahead, last):
                self.reading[self.next] = self.readers.submit(self._read, self.next)
                self.next += 1
            self.in_use[number] = self.reading.pop(number).result()
            return self.in_use[number]
        except BaseException as error:
            self.error = error
            return None

    def done(self, number: int) -> None:
        """Free a chunk that the native code no longer uses."""
        if self.in_memory is None:
            del self.in_use[number]

    def _read(self, number: int) -> NDArray[Any]:
        first = self.start + number * self.chunk
        return self.source.read(first, min(first + self.chunk, self.stop))
