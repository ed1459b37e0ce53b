"""What a worker that has a graphics card does with its share of the samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from kronlearn.core.engine import Codes, Task
from kronlearn.core.source import Source
from kronlearn.cuda.block_sums import BlockSums
from kronlearn.cuda.coder import ChunkCoder
from kronlearn.cuda.codes import CardCodes
from kronlearn.cuda.device import Card
from kronlearn.engines.shares import Part, Share

__all__ = ["CardShare"]

# Chunks are no longer than this many numbers, and neither are the sums of their blocks.
_MOST_NUMBERS = 1 << 25


class CardShare(Share):
    """Codes samples on a card and adds the sums of their blocks to trees.

    Parameters
    ----------
    card : Card
    block_size : int
    dtype : dtype
        Of the samples.
    """

    def __init__(self, card: Card, block_size: int, dtype: np.dtype[Any]) -> None:
        self.card, self.block_size, self.dtype = card, block_size, dtype
        self.samples: dict[tuple[int, int], _Samples] = {}

    def room(self, n_samples: int, width: int, **parts: bool) -> CardCodes:
        """Room for codes, with all parts."""
        return CardCodes.empty(self.card, n_samples, width, self.dtype)

    def adopted(self, codes: Codes) -> CardCodes:
        """A copy of codes, on the card."""
        return CardCodes.copied(self.card, codes, self.dtype)

    def keep_only(self, parts: list[tuple[int, int]]) -> None:
        """Let go of the samples of all parts but these."""
        self.samples = {key: kept for key, kept in self.samples.items() if key in parts}

    def add(self, part: Part, task: Task, tree: Any, codes: CardCodes | None) -> None:
        """Code the samples of a part, as the task says, and add their sums to a tree."""
        sums = BlockSums(self.card, task, tree, self.block_size)
        if part.rows not in self.samples:
            self.samples[part.rows] = _Samples(self.card, part, self.block_size)
        coder = ChunkCoder(self.card, task, part, part.number)
        chunks = self.samples[part.rows].chunks(max(1, _MOST_NUMBERS // sums.numbers))
        for rows, samples, own, _ in coder.passed(chunks, codes):
            sums.add(samples, own, (part.number + rows.start) // self.block_size)


class _Samples:
    """The samples of a part: on the card if they fit, otherwise sent chunk by chunk."""

    def __init__(self, card: Card, part: Part, block_size: int) -> None:
        self.card, self.part, self.block_size = card, part, block_size
        self.array: Any = None
        if len(part) * part.n_features * part.dtype.itemsize <= card.free_memory() // 2:
            self.array = card.xp.empty((len(part), part.n_features), part.dtype)
            for rows, chunk in card.stream(self._read, self._pieces(len(part))):
                self.array[rows] = chunk

    def chunks(self, most_blocks: int) -> Iterator[tuple[slice, Any]]:
        """Consecutive chunks of so many blocks at most."""
        pieces = self._pieces(most_blocks)
        if self.array is None:
            yield from self.card.stream(self._read, pieces)
            return
        for rows in pieces:
            yield rows, self.array[rows]

    @property
    def _read(self) -> Source:
        """What samples are read from: all of a source's, if the part is all of it, are quicker."""
        return self.part.source if len(self.part) == len(self.part.source) else self.part

    def _pieces(self, most_blocks: int) -> list[slice]:
        numbers = self.part.n_features * self.block_size
        step = max(1, min(most_blocks, _MOST_NUMBERS // numbers)) * self.block_size
        count = len(self.part)
        return [slice(start, min(start + step, count)) for start in range(0, count, step)]
