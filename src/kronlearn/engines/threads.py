"""The engine of one machine: native code in threads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn import _native
from kronlearn.core.engine import Coder, Codes, Engine, Task
from kronlearn.core.instruction_sets import instruction_set  # noqa: F401  (applies the environment variable)
from kronlearn.core.source import Source, check_finite
from kronlearn.io.feed import Feed

__all__ = [
    "Threads",
    "default_block_size",
    "native_dictionary",
    "resolve_n_jobs",
]

# The most samples that are coded side by side.
_LANES = 16

_MOST_THREADS = 4096

# Fixed-width codes of about this many entries are held before they are packed.
_ENTRIES_AT_A_TIME = 1 << 21

# A block of samples has about so many numbers.
_BLOCK_NUMBERS = 1 << 16


@dataclass(frozen=True)
class Threads(Engine):
    """Codes samples and adds up moments in threads of this process.

    The samples are cut into blocks of ``block_size``; each block is summed on its own and the sums
    are added pairwise as a tree over the blocks, so results have the same bits for any number of
    threads, and wherever else parts of the blocks are summed.
    """

    n_threads: int = 1
    block_size: int = 4096

    def room(self, source: Source, width: int, **parts: bool) -> Codes:
        """Room for the codes of a source, as :meth:`Codes.empty` makes it."""
        return Codes.empty(len(source), width, source.dtype, **parts)

    def adopted(self, codes: Codes) -> Codes:
        """The codes themselves."""
        return codes

    def summed(self, source: Source, task: Task, codes: Codes | None) -> Any:
        """The sums over all blocks, each block by the thread that comes to it."""
        tree = task.tree(-(-len(source) // self.block_size))
        self.add(source, task, tree, codes)
        return tree

    def coded(self, source: Source, task: Task) -> Iterator[Codes]:
        """The codes of consecutive samples, some millions of entries at a time."""
        width = task.coder.width
        step = max(1, _ENTRIES_AT_A_TIME // width // self.block_size) * self.block_size
        n_blocks = -(-len(source) // self.block_size)
        for start in range(0, len(source), step):
            stop = min(start + step, len(source))
            codes = Codes.empty(stop - start, width, source.dtype)
            self.add(source, task, task.tree(n_blocks), codes, start, stop)
            yield codes

    def add(
        self,
        source: Source,
        task: Task,
        tree: Any,
        codes: Codes | None = None,
        start: int = 0,
        stop: int | None = None,
        first: int = 0,
    ) -> None:
        """Add the sums of consecutive samples to a tree.

        ``start`` is a multiple of the block size, as is ``first``, the number among all samples of
        the first one of this source; ``codes`` are those of these samples alone.
        """
        native = native_dictionary(task.factors, source.dtype)
        stop = len(source) if stop is None else stop
        with Feed(source, start, stop, self.block_size, self.n_threads) as feed:
            try:
                not_finite = native.run(
                    feed,
                    stop - start,
                    feed.chunk,
                    task.coding,
                    task.coder.method,
                    task.coder.width,
                    tree,
                    sums=task.sums,
                    mode=task.mode,
                    keep_better=task.keep_better,
                    half=-1 if task.half is None else task.half,
                    first=first + start,
                    **_targets(task.coder, slice(start, stop), source),
                    **_arrays(codes),
                    threads=self.n_threads,
                    block=self.block_size,
                    file=feed.file,
                    file_offset=feed.file_offset,
                )
            except RuntimeError:
                if feed.error is not None:
                    raise feed.error from None
                # The source says better than the native code what is wrong with its file.
                source.read(stop - 1, stop)
                raise
        if not_finite >= 0:
            sample = start + not_finite
            check_finite(source.read(sample, sample + 1), first + sample, source.name)


def native_dictionary(factors: Sequence[NDArray[Any]], dtype: Any) -> Any:
    """The factors as the native code wants them, for samples of a dtype."""
    kind = _native.DictionaryFloat32 if dtype == np.float32 else _native.DictionaryFloat64
    return kind([np.ascontiguousarray(factor, dtype=np.float64) for factor in factors])


def _targets(coder: Coder, rows: slice, source: Source) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    if coder.tol is not None:
        if np.ndim(coder.tol) == 0:
            arguments["tol"] = float(coder.tol)
        else:
            arguments["tols"] = np.ascontiguousarray(np.asarray(coder.tol)[rows], source.dtype)
    if coder.weights is not None:
        arguments["weights"] = np.ascontiguousarray(coder.weights[rows], source.dtype)
    return arguments


def _arrays(codes: Codes | None) -> dict[str, Any]:
    if codes is None:
        return {}
    return {
        "index": codes.index,
        "nonzeros": codes.nonzeros,
        "value": codes.value,
        "residual2": codes.residual2,
    }


def default_block_size(source: Source, moment_numbers: int = 0) -> int:
    """Samples per summed block: a function of the problem alone, never of the threads.

    A block is some tens of thousands of numbers, which takes a fraction of a millisecond. Adding
    its sums costs about a nanosecond per number, so blocks grow with the moments until that cost
    vanishes, but leave at least four blocks to share out. Their number is a power of two: then the
    equal shares of 2, 4, 8 … workers are one node each of the tree of sums.
    """
    few = max(64, _BLOCK_NUMBERS // source.n_features // _LANES * _LANES)
    smallest = max(few, moment_numbers // 64)
    n_blocks = max(4, 1 << (len(source) // smallest).bit_length() >> 1)
    return max(few, -(-len(source) // n_blocks // _LANES) * _LANES)


def resolve_n_jobs(n_jobs: int | None) -> int:
    """The number of threads that ``n_jobs`` means.

    None means 1 unless a ``joblib.parallel_config`` context says otherwise; -1 all processors this
    process may use, -2 all but one, and so on. The environment variable OMP_NUM_THREADS caps
    negative numbers and contexts, not a positive number given here.
    """
    if n_jobs is not None and (
        isinstance(n_jobs, bool) or not isinstance(n_jobs, (int, np.integer))
    ):
        raise TypeError(
            f"n_jobs={n_jobs!r} is not an integer; pass a number of threads, -1 or None."
        )
    if n_jobs == 0:
        raise ValueError("n_jobs=0 means no threads at all; pass 1, another number, -1 or None.")
    if n_jobs is not None and n_jobs > 0:
        return min(int(n_jobs), _MOST_THREADS)
    import joblib

    wanted = joblib.effective_n_jobs(n_jobs)
    limit = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if limit.isdigit() and int(limit) > 0:
        wanted = min(wanted, int(limit))
    return max(1, wanted)
