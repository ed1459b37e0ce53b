"""The engine of one graphics card."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kronlearn.core.dictionary import Dictionary
from kronlearn.core.engine import (
    MOST_AT_ONCE,
    Coder,
    Codes,
    Course,
    Engine,
    Iterated,
    Task,
)
from kronlearn.core.source import Source
from kronlearn.cuda.ahead import Ahead, ahead_for
from kronlearn.cuda.coder import ChunkCoder
from kronlearn.cuda.codes import CardCodes
from kronlearn.cuda.device import Card
from kronlearn.cuda.samples import CardSamples
from kronlearn.cuda.sums import CardSums

__all__ = ["Cuda"]


class Cuda(Engine):
    """Codes samples and adds up moments on a graphics card.

    Parameters
    ----------
    card : Card
    source : Source
    block_size : int
    memory : int, optional
        Bytes that samples may take on the card; by default half of what is free. Those that do not
        fit are sent chunk by chunk in every pass.
    """

    def __init__(
        self, card: Card, source: Source, block_size: int, memory: int | None = None
    ) -> None:
        self.card, self.source, self.block_size = card, source, block_size
        self._ahead: Ahead | None = None
        self._asked = False
        self.samples = CardSamples(card, source, memory or card.free_memory() // 2)

    def room(self, source: Source, width: int, **parts: bool) -> CardCodes:
        """Room for the codes of a source, on the card."""
        return CardCodes.empty(self.card, len(source), width, source.dtype)

    def adopted(self, codes: Codes) -> CardCodes:
        """A copy of the codes on the card."""
        return CardCodes.copied(self.card, codes, self.source.dtype)

    def ahead(
        self, source: Source, dictionary: Dictionary, coder: Coder, course: Course
    ) -> list[Iterated] | None:
        """Iterations without a look from the processor, where there are kernels for them."""
        if not self._asked:
            self._asked = True
            self._ahead = ahead_for(
                self.card, self.samples, dictionary, coder, course.orthonormal, MOST_AT_ONCE
            )
        if self._ahead is None:
            return None
        return self._ahead.run(dictionary, course)

    def coded(self, source: Source, task: Task) -> Iterator[Codes]:
        """The codes of consecutive samples, chunk after chunk, in the memory of the processor."""
        for _, _, codes, _ in self._passed(source, task, None):
            yield codes.gathered()

    def coded_matrix(self, source: Source, task: Task) -> Any:
        """The codes as a ``csr_matrix`` of CuPy, on the card."""
        from cupyx.scipy import sparse

        codes = self.room(source, task.coder.width)
        for _ in self._passed(source, task, codes):
            pass
        return sparse.csr_matrix(codes.packed(), shape=(len(source), task.dictionary.n_codes))

    def summed(self, source: Source, task: Task, codes: CardCodes | None) -> CardSums:
        """The sums over all samples, chunk after chunk."""
        sums = CardSums(self.card, task)
        for _, samples, own, energy in self._passed(source, task, codes):
            sums.add(samples, own, energy)
        return sums

    def _passed(
        self, source: Source, task: Task, codes: CardCodes | None
    ) -> Iterator[tuple[slice, Any, CardCodes, Any]]:
        """Pass over the samples; yields what :meth:`ChunkCoder.passed` does."""
        assert source is self.source
        coder = ChunkCoder(self.card, task, source, 0)
        return coder.passed(self.samples.chunks(), codes)
