"""Who does the work on a worker's share of the samples: its threads, or its graphics card."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.engine import Codes, Task
from kronlearn.core.source import Source
from kronlearn.engines.threads import Threads

__all__ = ["Part", "Share", "ThreadShare"]


class Part(Source):
    """Consecutive samples of a source.

    Parameters
    ----------
    source : Source
    start, stop : int
        Among the samples of the source.
    number : int
        Of the first one among all samples of the run.
    """

    def __init__(self, source: Source, start: int, stop: int, number: int) -> None:
        self.source, self.start, self.stop, self.number = source, start, stop, number
        self.patch_shape, self.dtype, self.name = source.patch_shape, source.dtype, source.name

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def rows(self) -> tuple[int, int]:
        """Which ones of all samples of the run they are."""
        return self.number, self.number + len(self)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Consecutive samples of the part."""
        return self.source.read(self.start + start, self.start + stop)


class Share(ABC):
    """Passes over parts of the samples, whose codes it keeps where it works."""

    @abstractmethod
    def room(self, n_samples: int, width: int, **parts: bool) -> Any:
        """Room for codes, for those parts that :meth:`Codes.empty` is told."""

    @abstractmethod
    def adopted(self, codes: Codes) -> Any:
        """A copy of codes, which may be written to."""

    @abstractmethod
    def add(self, part: Part, task: Task, tree: Any, codes: Any) -> None:
        """Pass over a part, which begins with a block, and add its sums to a tree."""

    @abstractmethod
    def keep_only(self, parts: list[tuple[int, int]]) -> None:
        """Let go of what is kept of the samples of other parts."""


class ThreadShare(Share):
    """The work of threads.

    Parameters
    ----------
    n_threads : int
    block_size : int
    dtype : dtype
        Of the samples.
    """

    def __init__(self, n_threads: int, block_size: int, dtype: np.dtype[Any]) -> None:
        self.engine, self.dtype = Threads(n_threads, block_size), dtype

    def room(self, n_samples: int, width: int, **parts: bool) -> Codes:
        """Room for codes."""
        return Codes.empty(n_samples, width, self.dtype, **parts)

    def adopted(self, codes: Codes) -> Codes:
        """A copy of codes."""
        arrays = (codes.index, codes.nonzeros, codes.value, codes.residual2)
        return Codes(*(None if array is None else np.array(array) for array in arrays))

    def add(self, part: Part, task: Task, tree: Any, codes: Codes | None) -> None:
        """Pass over a part."""
        first = part.number - part.start
        self.engine.add(part.source, task, tree, codes, part.start, part.stop, first)

    def keep_only(self, parts: list[tuple[int, int]]) -> None:
        """Threads use samples where they are."""
