"""The engine that runs passes in threads of this process."""

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
from kronlearn.core.source import Source, raise_not_finite
from kronlearn.engines.feed import Feed

__all__ = [
    "Threads",
    "dask_backend",
    "default_block_size",
    "pass_over",
    "resolve_n_jobs",
]

# The most samples that the native code codes side by side, one per vector lane.
_LANES = 16

_MOST_THREADS = 4096

# With an error target codes have fewer nonzeros than their width, so they are packed in pieces of
# about this many entries.
_ENTRIES_AT_A_TIME = 1 << 21

# A block of samples holds about this many numbers.
_BLOCK_NUMBERS = 1 << 16


class Threads(Engine):
    """Runs passes in threads of this process.

    Parameters
    ----------
    source : Source
    n_threads : int
    block_size : int, optional
        The number of samples in a summed block. Results have the same bits for any number of
        threads.
    """

    def __init__(self, source: Source, n_threads: int = 1, block_size: int | None = None) -> None:
        self.source, self.n_threads = source, n_threads
        self.block_size = block_size or default_block_size(source)

    def run(self, task: Task, codes: Codes | None = None) -> PassSums:
        """Run a pass over all samples; threads take the next block when they are free."""
        source = self.source
        tree = task.tree(-(-len(source) // self.block_size))
        (_, worst), kept = pass_over(
            source, task, tree, self.n_threads, self.block_size, codes=codes
        )
        return PassSums.of_tree(tree, worst, kept)

    def codes(self, dictionary: Dictionary, coder: Coder) -> sparse.csr_array:
        """Code all samples."""
        task, n = Task(dictionary, coder, keeps_codes=True), len(self.source)
        step = n
        if coder.tol is not None:
            step = max(1, _ENTRIES_AT_A_TIME // coder.width // self.block_size) * self.block_size
        parts = []
        for start in range(0, n, step):
            stop = min(start + step, n)
            tree = task.tree(-(-(stop - start) // self.block_size))
            _, codes = pass_over(
                self.source, task, tree, self.n_threads, self.block_size, (start, stop)
            )
            assert codes is not None
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
) -> tuple[tuple[NDArray[np.float64], NDArray[np.int64]], Codes | None]:
    """Add the sums of consecutive samples to a tree.

    Returns the largest squared residuals and the numbers of their samples, and the codes: those
    passed, or new ones if the task keeps them.

    Parameters
    ----------
    tree : SumTree
        A tree over all blocks; these samples may be a part of them.
    rows : (start, stop), optional
        Which samples of the source, by default all. A block begins at ``start``.
    first : int
        The number of the first of these samples among all samples of the tree, a multiple of the
        block size.
    codes : Codes, optional
        Codes of these samples to sum, instead of coding them.
    """
    start, stop = (0, len(source)) if rows is None else rows
    native = native_dictionary(task.factors, source.dtype)
    is_coded = codes is not None
    targets = {}
    if not is_coded:
        targets = task.coder.of_rows(slice(start, stop)).native_targets(source.dtype)
        if task.keeps_codes:
            codes = Codes.empty(stop - start, task.coder.width, source.dtype)
    arrays = {}
    if codes is not None:
        arrays = {"index": codes.index, "value": codes.value, "nonzeros": codes.nonzeros}
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
                given=is_coded,
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
            # The source explains better than the native code what is wrong with its file.
            source.read(stop - 1, stop)
            raise
    if not_finite >= 0:
        sample = start + not_finite
        weights = task.coder.of_rows(slice(sample, sample + 1)).weights
        read = source.read(sample, sample + 1)
        raise_not_finite(read, source.first + sample, source.name, weights)
    return (residuals, samples), codes


def default_block_size(source: Source, moment_numbers: int = 0) -> int:
    """The number of samples in a summed block, which depends on the problem, not on the threads.

    A block holds some tens of thousands of numbers, which take a fraction of a millisecond to code.
    Adding its moments takes about a nanosecond per number, so blocks grow with ``moment_numbers``
    until this time is negligible, as long as at least four blocks are left to share out. The number
    of blocks is a power of two, so that the equal shares of 2, 4, 8 … workers are single nodes of
    the tree of sums.
    """
    smallest = max(64, _BLOCK_NUMBERS // source.n_features // _LANES * _LANES)
    wanted = max(smallest, moment_numbers // 64)
    n_blocks = max(4, 1 << (len(source) // wanted).bit_length() >> 1)
    return max(smallest, -(-len(source) // n_blocks // _LANES) * _LANES)


def resolve_n_jobs(n_jobs: int | None) -> int:
    """The number of threads that ``n_jobs`` stands for.

    None means 1 unless a ``joblib.parallel_config`` context says otherwise; -1 means all processors
    that this process may use, -2 all but one, and so on. The environment variable OMP_NUM_THREADS
    limits what None and negative numbers mean, but not a positive ``n_jobs``.
    """
    if n_jobs is not None and (
        isinstance(n_jobs, bool) or not isinstance(n_jobs, (int, np.integer))
    ):
        raise TypeError(
            f"n_jobs={n_jobs!r} is not an integer; pass a number of threads, -1 or None."
        )
    if n_jobs == 0:
        raise ValueError("n_jobs=0 means no threads; pass a positive number, -1 or None.")
    if n_jobs is not None and n_jobs > 0:
        return min(int(n_jobs), _MOST_THREADS)
    import joblib

    if dask_backend() is None:
        n_threads = joblib.effective_n_jobs(n_jobs)
    else:
        # In this context joblib counts the cores of the cluster, not those of this process.
        n_threads = 1 if n_jobs is None else joblib.cpu_count() + 1 + n_jobs
    limit = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if limit.isdigit() and int(limit) > 0:
        n_threads = min(n_threads, int(limit))
    return max(1, n_threads)


def dask_backend() -> Any:
    """The backend of the active ``joblib.parallel_config("dask")`` context, or None."""
    from joblib.parallel import get_active_backend

    backend, _ = get_active_backend()
    return backend if type(backend).__name__ == "DaskDistributedBackend" else None
