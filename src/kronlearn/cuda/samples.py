"""Samples on the GPU: all of them if they fit, otherwise a chunk after the other."""

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

# Chunks are no longer than this many numbers: what is made of one besides is as large or larger.
# Those that are sent are shorter, for the first one is waited for.
_MOST_NUMBERS, _NUMBERS_SENT = 1 << 26, 1 << 23
# Samples on the GPU of so many bytes are one chunk.
_SMALL = 1 << 26


class GpuSamples:
    """The samples of a source as arrays on the GPU, in chunks of whole blocks.

    Of those that do not fit, some chunks stay there and the others are sent in every pass.

    Parameters
    ----------
    gpu : Gpu
    source : Source
    memory : int, optional
        Bytes that samples may take on the GPU, by default half of what is free; a few blocks are
        taken whatever they need.
    block_size : int
    """

    def __init__(self, gpu: Gpu, source: Source, memory: int | None, block_size: int) -> None:
        self.gpu, self.source, self.block_size = gpu, source, block_size
        self.array: Any = None
        size = len(source) * source.n_features * source.dtype.itemsize
        if memory is None:
            is_small = isinstance(source, DeviceSource) and size <= _SMALL
            # To ask how much is free takes as long as to code a few samples.
            unasked = is_small and current_limit() is None
            memory = 8 * _SMALL if unasked else gpu.free_memory() // 2
        numbers = memory // source.dtype.itemsize
        if isinstance(source, DeviceSource):
            self.array = source.array
        elif size <= memory:
            self.array = gpu.xp.empty((len(source), source.n_features), source.dtype)
            for rows, chunk in gpu.stream(source, self._pieces(_NUMBERS_SENT)):
                self.array[rows] = chunk
        most = _NUMBERS_SENT if self.array is None else _MOST_NUMBERS
        self.pieces = self._pieces(min(most, numbers // 4))
        self._kept: dict[int, Any] = {}
        self._coming: Iterator[tuple[slice, Any]] | None = None
        self._staying = self._chosen(numbers) if self.array is None else set()

    @property
    def longest(self) -> int:
        """How many samples the longest chunk has."""
        return max((rows.stop - rows.start for rows in self.pieces), default=0)

    def chunks(self) -> Iterator[tuple[slice, Any]]:
        """Consecutive chunks ``(rows, samples (n, m_1·…·m_d))``."""
        if self.array is not None:
            for rows in self.pieces:
                yield rows, self.array[rows]
        elif self._coming is None:
            yield from self._first_chunks()
        else:
            yield from self._further_chunks()

    def largest(self) -> float:
        """The largest magnitude of all numbers, NaN if one of them is."""
        xp = self.gpu.xp
        found = xp.zeros(1, self.source.dtype)
        for _, chunk in self.chunks():
            for extreme in (chunk.min(), chunk.max()):
                xp.maximum(found, abs(extreme), out=found)
        return float(self.gpu.download(found)[0])

    def _first_chunks(self) -> Iterator[tuple[slice, Any]]:
        """All of them from the source; some are copied, to stay."""
        for number, (rows, chunk) in enumerate(self.gpu.stream(self.source, self.pieces)):
            if number in self._staying:
                self._kept[number] = chunk.copy()
            yield rows, chunk
        sent = [rows for number, rows in enumerate(self.pieces) if number not in self._staying]
        # From one pass to the next the first ones are on their way already.
        self._coming = self.gpu.stream(self.source, cycle(sent))

    def _further_chunks(self) -> Iterator[tuple[slice, Any]]:
        # A pass that is broken off leaves nothing to go on with.
        coming, self._coming = self._coming, None
        assert coming is not None
        for number, rows in enumerate(self.pieces):
            yield (rows, self._kept[number]) if number in self._staying else next(coming)
        self._coming = coming

    def _chosen(self, numbers: int) -> set[int]:
        """The numbers of chunks that stay on the GPU, spread evenly among the others."""
        most = numbers // (self.longest * self.source.n_features) - SLOTS
        count, staying = len(self.pieces), min(max(most, 0), len(self.pieces) - 1)
        return {number for number in range(count) if number * staying % count < staying}

    def _pieces(self, numbers: int) -> list[slice]:
        blocks = max(1, numbers // (self.source.n_features * self.block_size))
        step = blocks * self.block_size
        count = len(self.source)
        return [slice(start, min(start + step, count)) for start in range(0, count, step)]
