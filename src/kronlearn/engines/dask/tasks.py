"""The tasks that Dask workers run: passes over partitions, and additions of their sums."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
from distributed import get_worker
from numpy.typing import NDArray

from kronlearn.core.engine import Task, worst_first
from kronlearn.core.instruction_sets import use_instruction_set
from kronlearn.core.source import Source
from kronlearn.engines.selection import local_engine
from kronlearn.engines.threads import Threads, pass_over
from kronlearn.io.arrays import ArraySource

__all__ = [
    "TASKS_PER_WORKER",
    "GpuPartition",
    "PartialSums",
    "Settings",
    "add_sums",
    "aligned",
    "code_partition",
    "load_on_gpu",
    "part_of",
    "run_pass",
    "sum_into_tree",
    "without_codes",
]

# A worker runs two tasks at once: while one begins or ends, the threads of the other keep working.
TASKS_PER_WORKER = 2


@dataclass(frozen=True)
class Settings:
    """Settings that all tasks share, so that they find the same bits on all workers."""

    patch_shape: tuple[int, ...]
    #: The number of blocks of all samples.
    n_blocks: int
    block_size: int
    #: The number of threads of a task; None: as many as its worker has.
    n_threads: int | None
    device: str
    instruction_set: str
    #: The name of the samples in error messages.
    name: str


@dataclass(frozen=True)
class PartialSums:
    """The result of a pass over one or more partitions."""

    #: Nodes of the tree of sums: levels (k,), indices (k,) and sums (k, size).
    nodes: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]
    #: The largest squared residuals and the numbers of their samples.
    worst: tuple[NDArray[np.float64], NDArray[np.int64]]
    #: The codes of the partition, if the task keeps them.
    codes: Any = None


class GpuPartition:
    """A partition that a worker holds on its GPU; any worker that it is sent to loads it anew."""

    def __init__(self, source: Source, block_size: int) -> None:
        self.source, self.block_size = source, block_size

    @cached_property
    def engine(self) -> Any:
        """The engine of this worker's GPU for these samples."""
        return local_engine(self.source, None, "cuda", self.block_size)

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self.source, "block_size": self.block_size}


def part_of(source: Source, span: tuple[int, int]) -> Source:
    """The samples ``start … stop − 1`` of a source."""
    return source.part(*span)


def aligned(array: NDArray[Any]) -> NDArray[Any]:
    """Copy an array if it is misaligned in the message that brought it."""
    return array if array.flags.aligned else np.array(array)


def load_on_gpu(samples: Source | NDArray[Any], first: int, settings: Settings) -> GpuPartition:
    """A partition to be held on the worker's GPU."""
    return GpuPartition(_as_source(samples, first, settings), settings.block_size)


def run_pass(
    samples: Any, first: int, task: Task, coded: PartialSums | None = None, *, settings: Settings
) -> PartialSums:
    """Run a pass over a partition, whose first sample has the number ``first``.

    If ``coded`` is the result of an earlier pass, sum its codes instead of coding the samples.
    """
    tree = task.tree(settings.n_blocks)
    codes = None if coded is None else coded.codes
    if isinstance(samples, GpuPartition):
        worst, codes = samples.engine.add(task, tree, codes, first)
        return PartialSums(tree.nodes(), worst, codes)
    source = _as_source(samples, first, settings)
    with use_instruction_set(settings.instruction_set), _threads_of_task(settings) as n_threads:
        worst, codes = pass_over(
            source, task, tree, n_threads, settings.block_size, first=first, codes=codes
        )
    return PartialSums(tree.nodes(), worst, codes if task.keeps_codes else None)


def code_partition(samples: Any, first: int, task: Task, settings: Settings) -> Any:
    """The codes of a partition as a CSR array."""
    if isinstance(samples, GpuPartition):
        return samples.engine.codes(task.dictionary, task.coder)
    source = _as_source(samples, first, settings)
    with use_instruction_set(settings.instruction_set), _threads_of_task(settings) as n_threads:
        threads = Threads(source, n_threads, settings.block_size)
        return threads.codes(task.dictionary, task.coder)


def without_codes(sums: PartialSums) -> PartialSums:
    """The sums alone, so that the codes stay with the worker that made them."""
    return replace(sums, codes=None)


def add_sums(parts: list[PartialSums], task: Task, settings: Settings) -> PartialSums:
    """Add the results of a pass over several partitions."""
    tree, worst = sum_into_tree(parts, task, settings)
    return PartialSums(tree.nodes(), worst)


def sum_into_tree(
    parts: list[PartialSums], task: Task, settings: Settings
) -> tuple[Any, tuple[NDArray[np.float64], NDArray[np.int64]]]:
    """Add partial sums to a tree; return it and the worst residuals with their samples.

    The nodes of the tree have the same bits in whatever order they are added.
    """
    tree = task.tree(settings.n_blocks)
    for part in parts:
        for level, index, sums in zip(*part.nodes, strict=True):
            tree.add(int(level), int(index), sums)
    residuals = np.concatenate([part.worst[0] for part in parts])
    samples = np.concatenate([part.worst[1] for part in parts])
    return tree, worst_first(residuals, samples, task.n_worst)


def _as_source(samples: Source | NDArray[Any], first: int, settings: Settings) -> Source:
    """A partition's samples as a source; workers hold either sources or arrays."""
    if isinstance(samples, Source):
        return samples
    source = ArraySource(aligned(samples), settings.patch_shape)
    source.name, source.first = settings.name, first
    return source


@contextmanager
def _threads_of_task(settings: Settings) -> Iterator[int]:
    """The number of threads of a task: its own, or all of its worker's when it is the task's turn.

    If every task had one thread, each pass would wait for the slowest core; the threads of one task
    share its blocks instead.
    """
    if settings.n_threads is not None:
        yield settings.n_threads
        return
    worker = get_worker()
    with _slots(worker.address):
        yield int(worker.state.nthreads)


@cache
def _slots(address: str) -> threading.Semaphore:
    """The semaphore that limits how many tasks of a worker run at once."""
    return threading.Semaphore(TASKS_PER_WORKER)
