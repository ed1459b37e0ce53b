"""Samples on the card: all of them if they fit, otherwise a chunk after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kronlearn.cuda.device import Card
from kronlearn.cuda.exchange import adopted
from kronlearn.sources.arrays import check_shape
from kronlearn.sources.source import Source, sample_dtype

__all__ = ["CardSamples", "CardSource", "card_codes"]

# Chunks are no longer than this many numbers: what is made of one besides is as large or larger.
# Those that are only sent are shorter.
_MOST_NUMBERS, _NUMBERS_SENT = 1 << 26, 1 << 22


class CardSource(Source):
    """Samples of an array that lies on the card.

    Parameters
    ----------
    card : Card
    array : array of CuPy, PyTorch or another library, of shape (N, m_1, …, m_d) or (N, m_1·…·m_d)
        Used as it lies there if it is C-contiguous float32 or float64, otherwise copied.
    patch_shape : tuple of int
    """

    def __init__(self, card: Card, array: Any, patch_shape: tuple[int, ...]) -> None:
        self.card, self.patch_shape = card, patch_shape
        array = adopted(card.xp, array)
        check_shape(array.shape, patch_shape)
        if array.dtype.kind not in "fiub":
            raise ValueError(f"Y has dtype {array.dtype}; pass float32 or float64.")
        self.dtype = sample_dtype(array.dtype)
        self.is_rows = array.ndim == 2
        rows = array.reshape(len(array), -1)
        self.array = card.xp.ascontiguousarray(rows, dtype=self.dtype)

    def __len__(self) -> int:
        return int(self.array.shape[0])

    def read(self, start: int, stop: int) -> Any:
        """Consecutive samples, copied to the memory of the processor."""
        return self.card.download(self.array[start:stop])

    def take(self, rows: Any) -> Any:
        """Some samples, copied to the memory of the processor."""
        return self.card.download(self.array[self.card.upload(rows)])


class CardSamples:
    """The samples of a source as arrays on the card.

    Parameters
    ----------
    card : Card
    source : Source
    memory : int
        Bytes that samples may take on the card.
    """

    def __init__(self, card: Card, source: Source, memory: int) -> None:
        self.card, self.source = card, source
        self.array: Any = None
        size = len(source) * source.n_features * source.dtype.itemsize
        if isinstance(source, CardSource):
            self.array = source.array
        elif size <= memory:
            self.array = card.xp.empty((len(source), source.n_features), source.dtype)
            for rows, chunk in card.stream(source, list(self._pieces(_NUMBERS_SENT))):
                self.array[rows] = chunk
        self.chunk_numbers = min(_MOST_NUMBERS, max(1, memory // 4 // source.dtype.itemsize))

    def chunks(self) -> Iterator[tuple[slice, Any]]:
        """Consecutive chunks ``(rows, samples (n, m_1·…·m_d))``."""
        pieces = list(self._pieces(self.chunk_numbers))
        if self.array is None:
            yield from self.card.stream(self.source, pieces)
            return
        for rows in pieces:
            yield rows, self.array[rows]

    def _pieces(self, numbers: int) -> Iterator[slice]:
        step = max(1, numbers // self.source.n_features)
        for start in range(0, len(self.source), step):
            yield slice(start, min(start + step, len(self.source)))


def card_codes(source: CardSource, task: Any, engine: Any) -> Any:
    """The codes of samples on the card as a ``csr_matrix`` of CuPy."""
    from cupyx.scipy import sparse

    xp = source.card.xp
    codes = engine.room(source, task.coder.width)
    engine.summed(source, task, codes)
    used = xp.arange(codes.index.shape[1]) < codes.nonzeros[:, None]
    ends = xp.zeros(len(source) + 1, xp.int32)
    xp.cumsum(codes.nonzeros, out=ends[1:])
    parts = (codes.value[used], codes.index[used], ends)
    return sparse.csr_matrix(parts, shape=(len(source), task.dictionary.n_codes))
