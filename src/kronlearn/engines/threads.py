"""The engine of one machine: native code in threads."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from kronlearn.core.coder import Coder, native_dictionary
from kronlearn.core.codes import Codes, csr_codes
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.engine import Engine, PassSums, Task
from kronlearn.core.instruction_sets import instruction_set
from kronlearn.core.source import Source, check_finite
from kronlearn.engines.feed import Feed

__all__ = [
    "Threads",
    "dask_backend",
    "default_block_size",
    "pass_over",
    "resolve_n_jobs",
]

# The most samples that are coded side by side.
_LANES = 16

_MOST_THREADS = 4096

# Where the number of nonzeros is open, codes of this many entries are held before they are packed.
_ENTRIES_AT_A_TIME = 1 << 21

# A block of samples has about so many numbers.
_BLOCK_NUMBERS = 1 << 16


class Threads(Engine):
    """Codes samples and adds up their sums in threads of this process.

    Parameters
    ----------
    source : Source
    n_threads : int
    block_size : int, optional
        The samples are cut into blocks of this size. Each block is summed on its own and the sums
        are added pairwise as a tree over the blocks, so results have the same bits for any number
        of threads, and wherever else parts of the blocks are summed.
    """

    def __init__(self, source: Source, n_threads: int = 1, block_size: int | None = None) -> None:
        self.source, self.n_threads = source, n_threads
        self.block_size = block_size or default_block_size(source)

    def run(self, task: Task, codes: Codes | None = None) -> PassSums:
        """One pass over all samples, each block by the thread that comes to it."""
        source = self.source
        tree = task.tree(-(-len(source) // self.block_size))
        kept = codes
        if task.keeps_codes:
            kept = Codes.empty(len(source), task.coder.width, source.dtype)
        worst = pass_over(
            source, task, tree, self.n_threads, self.block_size, codes=kept, given=codes is not None
        )
        return PassSums.of_tree(tree, len(source), worst[1], kept)

    def codes(self, dictionary: Dictionary, coder: Coder) -> sparse.csr_array:
        """The codes of all samples, packed by the threads that coded them."""
        source, task, n = self.source, Task(dictionary, coder), len(self.source)
        step = n
        if coder.tol is not None:
            step = max(1, _ENTRIES_AT_A_TIME // coder.width // self.block_size) * self.block_size
        parts = []
        for start in range(0, n, step):
            stop = min(start + step, n)
            tree = task.tree(-(-(stop - start) // self.block_size))
            codes = Codes.empty(stop - start, coder.width, source.dtype)
            pass_over(
                source, task, tree, self.n_threads, self.block_size, (start, stop), codes=codes
            )
            parts.append(codes.packed(self.n_threads))
        return csr_codes(parts, dictionary.n_codes)


def pass_over(
    source: Source,
    task: Task,
    tree: Any,
    n_threads: int,
    block_size: int,
    rows: tuple[int, int] | None = None,
    first: int = 0,
    codes: Codes | None = None,
    given: bool = False,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Add the sums of consecutive samples to a tree; their largest residuals, and whose they are.

    Parameters
    ----------
    rows : (start, stop), optional
        Which samples of the source; by default all. A block begins at ``start``.
    first : int
        The number, a multiple of the block size, that the first of these samples has among all
        samples of the tree.
    codes : Codes, optional
        Of these samples alone: where they are written, or ``given`` to be summed.
    """
    start, stop = (0, len(source)) if rows is None else rows
    native = native_dictionary(task.factors, source.dtype)
    arrays = {}
    if codes is not None:
        arrays = {"index": codes.index, "value": codes.value, "nonzeros": codes.nonzeros}
    targets = {}
    if not given:
        targets = task.coder.of_rows(slice(start, stop)).native_targets(source.dtype)
    with Feed(source, start, stop, block_size, n_threads) as feed:
        try:
            not_finite, residuals, samples = native.run(
                feed,
                stop - start,
                feed.chunk,
                task.coder.method,
                task.coder.width,
                tree,
                sums=task.sums,
                mode=task.mode,
                given=given,
                first=first,
                n_worst=task.n_worst,
                **targets,
                **arrays,
                threads=n_threads,
                block=block_size,
                file=feed.file,
                file_offset=feed.file_offset,
                instruction_set=instruction_set(),
            )
        except RuntimeError:
            if feed.error is not None:
                raise feed.error from None
            # The source says better than the native code what is wrong with its file.
            source.read(stop - 1, stop)
            raise
    if not_finite >= 0:
        sample = start + not_finite
        check_finite(source.read(sample, sample + 1), source.first + sample, source.name)
    return residuals, samples


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

    if dask_backend() is None:
        wanted = joblib.effective_n_jobs(n_jobs)
    else:
        # The context speaks of the cores of a cluster, not of threads of this process.
        wanted = 1 if n_jobs is None else joblib.cpu_count() + 1 + n_jobs
    limit = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if limit.isdigit() and int(limit) > 0:
        wanted = min(wanted, int(limit))
    return max(1, wanted)


def dask_backend() -> Any:
    """The backend of a ``joblib.parallel_config("dask")`` context, or None outside of one."""
    from joblib.parallel import get_active_backend

    backend, _ = get_active_backend()
    return backend if type(backend).__name__ == "DaskDistributedBackend" else None
