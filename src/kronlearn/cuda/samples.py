"""The samples of a source on the GPU: all at once if they fit, otherwise chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any

from kronlearn.core.source import Source
from kronlearn.cuda.arrays import DeviceSource
from kronlearn.cuda.device import Gpu
from kronlearn.cuda.memory import current_limit
from kronlearn.cuda.streaming import SLOTS

__all__ = ["GpuSamples"]

# The largest chunks, in numbers: on the GPU, because codes and sums take as much memory again; and
# streamed ones, which are shorter because nothing can be done before the first has arrived.
_MOST_NUMBERS, _MOST_NUMBERS_STREAMED = 1 << 26, 1 << 23
# Up to this many bytes, samples on the GPU are one chunk.
_SMALL = 1 << 26


class GpuSamples:
    """The samples of a source as arrays on the GPU, in chunks of whole blocks.

    If the samples do not fit, some chunks stay on the GPU and the others are streamed in every
    pass.

    Parameters
    ----------
    gpu : Gpu
    source : Source
    memory : int, optional
        Bytes that samples may take on the GPU, by default half of the free memory. A few blocks
        are taken even if they need more.
    block_size : int

    Attributes
    ----------
    array : array of shape (N, m_1·…·m_d), or None
        All samples, if they are on the GPU.
    pieces : list of slice
        The rows of the chunks.
    """

    def __init__(self, gpu: Gpu, source: Source, memory: int | None, block_size: int) -> None:
        self.gpu, self.source, self.block_size = gpu, source, block_size
        self.array: Any = None
        size = len(source) * source.n_features * source.dtype.itemsize
        if memory is None:
            is_small = isinstance(source, DeviceSource) and size <= _SMALL
            # Asking the driver for its free memory takes as long as coding a few samples.
            known_to_fit = is_small and current_limit() is None
            memory = 8 * _SMALL if known_to_fit else gpu.free_memory() // 2
        numbers = memory // source.dtype.itemsize
        if isinstance(source, DeviceSource):
            self.array = source.array
        elif size <= memory:
            self.array = gpu.xp.empty((len(source), source.n_features), source.dtype)
            for rows, chunk in gpu.stream(source, self._pieces(_MOST_NUMBERS_STREAMED)):
                self.array[rows] = chunk
        most = _MOST_NUMBERS_STREAMED if self.array is None else _MOST_NUMBERS
        self.pieces = self._pieces(min(most, numbers // 4))
        self._resident = self._resident_pieces(numbers) if self.array is None else set()
        self._resident_chunks: dict[int, Any] = {}
        # The endless stream of the other chunks, from the second pass on.
        self._stream: Iterator[tuple[slice, Any]] | None = None

    @property
    def longest(self) -> int:
        """The number of samples in the longest chunk."""
        return max((rows.stop - rows.start for rows in self.pieces), default=0)

    def chunks(self) -> Iterator[tuple[slice, Any]]:
        """Yield consecutive chunks ``(rows, samples (n, m_1·…·m_d))``."""
        if self.array is not None:
            for rows in self.pieces:
                yield rows, self.array[rows]
        elif self._stream is None:
            yield from self._first_pass()
        else:
            yield from self._later_pass()

    def largest(self) -> float:
        """The largest magnitude of all numbers; NaN if one of them is NaN."""
        xp = self.gpu.xp
        largest = xp.zeros(1, self.source.dtype)
        for _, chunk in self.chunks():
            for extreme in (chunk.min(), chunk.max()):
                xp.maximum(largest, abs(extreme), out=largest)
        return float(self.gpu.download(largest)[0])

    def _first_pass(self) -> Iterator[tuple[slice, Any]]:
        """Stream all chunks and copy the resident ones."""
        for number, (rows, chunk) in enumerate(self.gpu.stream(self.source, self.pieces)):
            if number in self._resident:
                self._resident_chunks[number] = chunk.copy()
            yield rows, chunk
        others = [rows for number, rows in enumerate(self.pieces) if number not in self._resident]
        # Endless, so that the first chunks of a pass are copied while the previous pass ends.
        self._stream = self.gpu.stream(self.source, cycle(others))

    def _later_pass(self) -> Iterator[tuple[slice, Any]]:
        # If a pass is broken off, the stream is no longer at the first chunk: the next pass must
        # not continue it.
        stream, self._stream = self._stream, None
        assert stream is not None
        for number, rows in enumerate(self.pieces):
            if number in self._resident:
                yield rows, self._resident_chunks[number]
            else:
                yield next(stream)
        self._stream = stream

    def _resident_pieces(self, numbers: int) -> set[int]:
        """The indices of the chunks that stay on the GPU, spread evenly among the others."""
        most = numbers // (self.longest * self.source.n_features) - SLOTS
        count, staying = len(self.pieces), min(max(most, 0), len(self.pieces) - 1)
        return {number for number in range(count) if number * staying % count < staying}

    def _pieces(self, numbers: int) -> list[slice]:
        """Divide the samples into pieces of whole blocks and at most so many numbers."""
        blocks = max(1, numbers // (self.source.n_features * self.block_size))
        step = blocks * self.block_size
        count = len(self.source)
        return [slice(start, min(start + step, count)) for start in range(0, count, step)]
