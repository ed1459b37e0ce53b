"""Partitions: how samples are cut into parts, and how workers come to hold them."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from distributed import Client, Future
from numpy.typing import NDArray

from kronlearn.core.source import Source
from kronlearn.engines.dask.client import map_tasks
from kronlearn.engines.dask.tasks import (
    TASKS_PER_WORKER,
    Settings,
    aligned,
    load_on_gpu,
    part_of,
)
from kronlearn.io.arrays import ArraySource, dask_array

__all__ = ["MOST_ATTEMPTS", "Partition", "cut_into_partitions", "default_count", "scatter_lost"]

# Give up after losing a worker this many times in a row.
MOST_ATTEMPTS = 20
# The number of partitions if there are no workers yet, or for large data; and the size from which
# on a partition counts as large.
_COUNT = 8
_LARGE_BYTES = 1 << 25


@dataclass(frozen=True)
class Partition:
    """Consecutive samples, whole blocks of them, that a worker holds.

    ``samples`` is a future of an array, a source or a GpuPartition of the samples
    ``start … stop − 1``. ``worker`` is the address of the worker to which they were scattered, None
    if Dask chooses who holds them.
    """

    samples: Future
    start: int
    stop: int
    worker: str | None = None


def default_count(client: Client, source: Source, n_threads: int | None) -> int:
    """The number of partitions to cut samples into if the user does not say.

    A power of two, so that the sums of most partitions are a single node of the tree of sums. There
    are as many partitions as tasks can run at once or, if that is not a power of two, at least four
    times as many, so that all workers finish at about the same time. Large data have at least eight
    partitions, since workers may join later.
    """
    threads = client.nthreads()
    at_once = TASKS_PER_WORKER * len(threads)
    if n_threads is not None:
        at_once = sum(threads.values()) // n_threads
    at_once = at_once or _COUNT
    count = at_once if at_once.bit_count() == 1 else 4 * at_once
    size = len(source) * source.n_features * source.dtype.itemsize
    count = max(count, min(_COUNT, size // _LARGE_BYTES))
    return 1 << (count - 1).bit_length()


def cut_into_partitions(
    client: Client, source: Source, settings: Settings, count: int
) -> list[Partition]:
    """Cut the samples into about ``count`` partitions, and have workers hold them.

    Arrays in memory are scattered; chunks of a Dask array stay where they are; workers open
    anything else themselves.
    """
    step = -(-settings.n_blocks // count)
    array = dask_array(source)
    if array is not None:
        return _from_chunks(client, array, settings, step)
    bounds = [*range(0, len(source), step * settings.block_size), len(source)]
    spans = list(pairwise(bounds))
    if isinstance(source, ArraySource) and source.in_memory:
        return _scattered(client, source, settings, spans)
    # Pickled here because the scheduler unpickles arguments, and may lack the files of the workers.
    pickled = [pickle.dumps(source)]
    opened = map_tasks(client, "kronlearn-open", pickle.loads, pickled) * len(spans)
    samples = map_tasks(client, "kronlearn-samples", part_of, opened, spans)
    return _partitions(client, settings, samples, spans, [None] * len(spans))


def scatter_lost(
    client: Client, source: Source, settings: Settings, partitions: list[Partition]
) -> None:
    """Scatter the samples of lost partitions again, and replace these in the list.

    Dask can compute all partitions again but those that were scattered.
    """
    lost = [k for k, partition in enumerate(partitions) if partition.samples.cancelled()]
    if lost and isinstance(source, ArraySource) and source.in_memory:
        spans = [(partitions[k].start, partitions[k].stop) for k in lost]
        for k, partition in zip(lost, _scattered(client, source, settings, spans), strict=True):
            partitions[k] = partition


def _scattered(
    client: Client, source: ArraySource, settings: Settings, spans: list[tuple[int, int]]
) -> list[Partition]:
    """Partitions of an array in memory, sent to workers."""
    if not client.nthreads():
        # An adaptive cluster starts workers once there are tasks.
        map_tasks(client, "kronlearn-start", str, ["a worker"])[0].result()
    arrays = _sent(client, [source.array[start:stop] for start, stop in spans])
    holders = client.who_has(arrays)
    workers = [next(iter(holders[array.key]), None) for array in arrays]
    samples = map_tasks(client, "kronlearn-samples", aligned, arrays, workers=workers)
    return _partitions(client, settings, samples, spans, workers)


def _sent(client: Client, arrays: list[NDArray[Any]]) -> list[Future]:
    """Scatter arrays, again if a worker is lost meanwhile."""
    failures = 0
    while True:
        try:
            futures: list[Future] = client.scatter(arrays, hash=False)
            return futures
        except OSError:
            failures += 1
            if failures == MOST_ATTEMPTS:
                raise
            # Dask needs a moment to notice that the worker is gone.
            time.sleep(0.5)


def _from_chunks(client: Client, array: Any, settings: Settings, step: int) -> list[Partition]:
    """Partitions of a Dask array.

    Blocks that lie within a large chunk stay there; blocks across the edges of chunks, or in small
    chunks, are put together.
    """
    spans = list(spans_in_chunks(np.cumsum(array.chunks[0]), settings.block_size, step))
    lengths = dict.fromkeys(range(array.ndim), -1) | {0: tuple(b - a for a, b in spans)}
    # The other method, "p2p", sends all samples from worker to worker.
    rechunked = array.rechunk(lengths, method="tasks").to_delayed().ravel().tolist()
    return _partitions(client, settings, client.compute(rechunked), spans, [None] * len(spans))


def spans_in_chunks(
    ends: NDArray[np.int64], block_size: int, step: int
) -> Iterator[tuple[int, int]]:
    """Cut samples into spans of whole blocks that stay within large chunks.

    Parameters
    ----------
    ends : array of shape (n_chunks,)
        The end of each chunk.
    block_size : int
    step : int
        About how many blocks a span has. A chunk is large if it holds half as many.
    """
    n = int(ends[-1])
    firsts = np.arange(0, n, block_size)
    chunk = np.searchsorted(ends, firsts, "right")
    inside = chunk == np.searchsorted(ends, np.minimum(firsts + block_size, n) - 1, "right")
    is_large = 2 * np.bincount(chunk[inside], minlength=len(ends)) >= step
    keys = np.where(inside & is_large[chunk], chunk, -1)
    for _, run in groupby(range(len(keys)), keys.__getitem__):
        blocks = list(run)
        n_spans = max(1, round(len(blocks) / step))
        for span in np.array_split(blocks, n_spans):
            yield int(firsts[span[0]]), min(int(firsts[span[-1]]) + block_size, n)


def _partitions(
    client: Client,
    settings: Settings,
    samples: list[Future],
    spans: list[tuple[int, int]],
    workers: list[str | None],
) -> list[Partition]:
    """Partitions of futures of their samples, loaded on GPUs if these are to be used."""
    if settings.device == "cuda":
        firsts = [start for start, _ in spans]
        samples = map_tasks(
            client,
            "kronlearn-gpu",
            load_on_gpu,
            samples,
            firsts,
            workers=workers,
            settings=settings,
        )
    parts = zip(samples, spans, workers, strict=True)
    return [Partition(future, *span, worker) for future, span, worker in parts]
