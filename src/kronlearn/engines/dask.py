"""The engine of many workers: passes over partitions as Dask tasks, their sums added by tasks.

Everything goes through Dask's public interface. Tasks are pure, so a lost worker is Dask's
business: what it held is computed again elsewhere. Only samples that this process scattered cannot
be computed again; they are scattered anew, and the pass is run again.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import groupby, pairwise
from typing import Any, TypeVar

import numpy as np
from distributed import CancelledError, Client, Future, get_worker, wait
from numpy.typing import NDArray
from scipy import sparse

import kronlearn
from kronlearn.core.coder import Coder
from kronlearn.core.codes import Codes
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.engine import Engine, PassSums, Task, worst_first
from kronlearn.core.instruction_sets import instruction_set, use_instruction_set
from kronlearn.core.source import Source
from kronlearn.engines.selection import local_engine
from kronlearn.engines.threads import Threads, default_block_size, pass_over, resolve_n_jobs
from kronlearn.io.arrays import ArraySource, dask_array

__all__ = ["Cluster", "check_versions"]

# So many partial sums are added by one task.
_FAN_IN = 8
# This process fetches so many bytes of sums, or one sum.
_FETCHED_BYTES = 1 << 20
# A worker runs so many tasks at a time: while one begins or ends, the other's threads are at work.
_TASKS_OF_WORKER = 2
# Without workers to count, or if partitions still have some size then, there are so many of them.
_PARTITIONS = 8
_PARTITION_BYTES = 1 << 25
# How often a pass is run again because samples were lost before it is taken for more than bad luck.
_MOST_ATTEMPTS = 20

_T = TypeVar("_T")


@dataclass(frozen=True)
class Partition:
    """The samples from number ``start`` to ``stop``, whole blocks, and who holds them.

    ``samples`` is an array, a source or a GpuPartition of these alone. ``worker`` is the address of
    the worker that they were scattered to, None if Dask chose.
    """

    samples: Future
    start: int
    stop: int
    worker: str | None = None


@dataclass(frozen=True)
class HeldCodes:
    """The codes of a pass with a task, held by workers: a future of a Part for each partition."""

    task: Task
    parts: list[Future]


@dataclass(frozen=True)
class Part:
    """What a pass over a partition found: nodes of the tree of sums, and the worst samples.

    ``nodes`` are levels (k,), indices (k,) and sums (k, size); ``worst`` residuals and numbers;
    ``codes`` what a task that keeps them leaves where they were made.
    """

    nodes: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]
    worst: tuple[NDArray[np.float64], NDArray[np.int64]]
    codes: Any = None


@dataclass(frozen=True)
class Setting:
    """How all workers work, so that they find the same bits.

    A task has ``n_threads`` or, if that is None, as many as its worker.
    """

    patch_shape: tuple[int, ...]
    n_blocks: int
    block_size: int
    n_threads: int | None
    device: str
    instruction_set: str
    name: str


class GpuPartition:
    """A partition that a worker keeps on its GPU; another worker that it is sent to loads it anew.

    Parameters
    ----------
    source : Source
    block_size : int
    """

    def __init__(self, source: Source, block_size: int) -> None:
        self.source, self.block_size = source, block_size

    @cached_property
    def engine(self) -> Any:
        """The engine of this worker's GPU for these samples."""
        return local_engine(self.source, None, "cuda", self.block_size)

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self.source, "block_size": self.block_size}


class Cluster(Engine):
    """Runs passes on the workers of a Dask cluster.

    Parameters
    ----------
    client : distributed.Client
    source : Source
        Arrays in memory are scattered; chunks of a Dask array stay where they are; anything else is
        opened by the workers.
    n_jobs : int or None
        Threads of a task; None or -1: as many as its worker has, of whose tasks two then run at a
        time.
    device : {"cpu", "cuda"}
    block_size : int, optional
    n_partitions : int, optional
        About how many partitions the samples are cut into; by default two for every worker or, with
        ``n_jobs``, as many as tasks can run at a time.
    """

    def __init__(
        self,
        client: Client,
        source: Source,
        n_jobs: int | None = None,
        device: str = "cpu",
        block_size: int | None = None,
        n_partitions: int | None = None,
    ) -> None:
        check_versions(client)
        self.client, self.source = client, source
        # Dask cannot make them again: they are lost with their worker.
        self.scatters = isinstance(source, ArraySource) and source.in_memory
        self.block_size = block_size or default_block_size(source)
        self.setting = Setting(
            source.patch_shape,
            -(-len(source) // self.block_size),
            self.block_size,
            None if n_jobs is None or n_jobs < 0 else resolve_n_jobs(n_jobs),
            device,
            instruction_set(),
            source.name,
        )
        wanted = n_partitions or self._wanted_partitions()
        self.partitions = self._held_partitions(-(-self.setting.n_blocks // wanted))
        self.done: list[Future] = []

    def run(self, task: Task, codes: HeldCodes | None = None) -> PassSums:
        """One pass over all partitions; a task each, and a tree of tasks that adds their sums."""
        return self._repeated(lambda: self._run(task, codes), codes)

    def codes(self, dictionary: Dictionary, coder: Coder) -> sparse.csr_array:
        """The codes of all samples, made by the workers and put together here."""
        return self._repeated(lambda: self._codes(Task(dictionary, coder)))

    def close(self) -> None:
        """Let go of the samples that workers hold for this engine."""
        _release([*self.done, *(partition.samples for partition in self.partitions)])

    def _run(self, task: Task, codes: HeldCodes | None) -> PassSums:
        parts = self._mapped("kronlearn-pass", _pass, task, codes.parts if codes else None)
        made = list(parts)
        tree = task.tree(self.setting.n_blocks)
        # What is left to add is fetched and added here, which saves waiting for another task.
        fetched = max(1, _FETCHED_BYTES // tree.total().nbytes)
        try:
            sums = parts
            if task.keeps_codes:
                # Codes stay with the worker that made them.
                sums = self._map("kronlearn-sums", _without_codes, parts)
                made += sums
            while len(sums) > fetched:
                groups = [sums[i : i + _FAN_IN] for i in range(0, len(sums), _FAN_IN)]
                sums = self._map("kronlearn-add", _added, groups, task=task, setting=self.setting)
                made += sums
            # A client sends messages every 10 ms at most: released at the end of a pass, futures
            # would hold up the next one.
            _release(self.done)
            total = _added(self._gathered(sums, parts), task, self.setting)
        except BaseException:
            _release(made)
            raise
        _add_nodes(tree, total)
        kept = HeldCodes(task, parts) if task.keeps_codes else None
        self.done = made[len(parts) if kept else 0 :]
        return PassSums.of_tree(tree, len(self.source), total.worst[1], kept)

    def _codes(self, task: Task) -> sparse.csr_array:
        parts = self._mapped("kronlearn-codes", _codes, task, None)
        try:
            return sparse.vstack(self._gathered(parts, parts), format="csr")
        finally:
            _release(parts)

    def _mapped(
        self,
        name: str,
        function: Any,
        task: Task,
        codes: list[Future] | None,
        which: Sequence[int] | None = None,
    ) -> list[Future]:
        """A task for every partition, or for some."""
        partitions = self.partitions if which is None else [self.partitions[k] for k in which]
        samples = [partition.samples for partition in partitions]
        tasks = [_of_partition(task, partition) for partition in partitions]
        firsts = [partition.start for partition in partitions]
        given = [None] * len(tasks) if codes is None else codes
        workers = [partition.worker for partition in partitions]
        arguments = samples, firsts, tasks, given
        return self._map_there(name, function, workers, *arguments, setting=self.setting)

    def _map(self, name: str, function: Any, *arguments: list[Any], **same: Any) -> list[Future]:
        """A task for every set of arguments, under a name that the dashboard shows."""
        futures: list[Future] = self.client.map(function, *arguments, key=name, pure=False, **same)
        return futures

    def _map_there(
        self,
        name: str,
        function: Any,
        workers: list[str | None],
        *arguments: list[Any],
        **same: Any,
    ) -> list[Future]:
        """The same, each task by a worker, which idle ones do not steal it from, while that lives.

        A stolen task would have to fetch its samples, which takes longer than to wait for the turn.
        """
        futures: dict[int, Future] = {}
        for worker in dict.fromkeys(workers):
            own = [k for k, address in enumerate(workers) if address == worker]
            chosen = [[argument[k] for k in own] for argument in arguments]
            where = {} if worker is None else {"workers": [worker], "allow_other_workers": True}
            made = self._map(name, function, *chosen, **where, **same)
            futures |= zip(own, made, strict=True)
        return [futures[k] for k in range(len(workers))]

    def _gathered(self, futures: list[Future], parts: list[Future]) -> list[Any]:
        """Results; or the error of the first of the parts, which threads would meet first."""
        try:
            results: list[Any] = self.client.gather(futures)
            return results
        except CancelledError:
            raise
        except Exception:
            wait(parts)
            for part in parts:
                if part.status == "error":
                    part.result()
            raise

    def _repeated(self, work: Callable[[], _T], codes: HeldCodes | None = None) -> _T:
        """The result of some work, again if samples that it needed went with their worker."""
        for _ in range(_MOST_ATTEMPTS):
            try:
                return work()
            except CancelledError:
                # What is left cannot be computed again: not what was scattered, nor what was made
                # of it.
                self._scatter_lost()
                if codes is not None:
                    self._code_lost(codes)
        raise RuntimeError(
            f"Workers were lost {_MOST_ATTEMPTS} times in a row, and samples with them; see their "
            "logs for the reason."
        )

    def _held_partitions(self, step: int) -> list[Partition]:
        """The samples, held by workers in partitions of about so many blocks."""
        lazy = dask_array(self.source)
        if lazy is not None:
            return self._of_chunks(lazy, step)
        bounds = [*range(0, len(self.source), step * self.block_size), len(self.source)]
        spans = list(pairwise(bounds))
        if self.scatters:
            return self._scattered(spans)
        # As bytes, since the scheduler unpickles tasks, and does not have the files of workers.
        opened = self._map("kronlearn-open", pickle.loads, [pickle.dumps(self.source)]) * len(spans)
        return self._partitions(self._map("kronlearn-samples", _part, opened, spans), spans)

    def _partitions(
        self,
        samples: list[Future],
        spans: list[tuple[int, int]],
        workers: list[str | None] | None = None,
    ) -> list[Partition]:
        there = workers or [None] * len(spans)
        if self.setting.device == "cuda":
            firsts = [start for start, _ in spans]
            samples = self._map_there(
                "kronlearn-gpu", _on_gpu, there, samples, firsts, setting=self.setting
            )
        held = zip(samples, spans, there, strict=True)
        return [Partition(future, *span, worker) for future, span, worker in held]

    def _wanted_partitions(self) -> int:
        """How many partitions there should be.

        A power of two, so that most are one node of the tree of sums: as many as tasks run at a
        time or, if that is none, enough for all workers to end together; more if much is to be
        done, since workers may come.
        """
        threads = self.client.nthreads()
        at_once = _TASKS_OF_WORKER * len(threads)
        if self.setting.n_threads is not None:
            at_once = sum(threads.values()) // self.setting.n_threads
        at_once = at_once or _PARTITIONS
        wanted = at_once if at_once.bit_count() == 1 else 4 * at_once
        size = len(self.source) * self.source.n_features * self.source.dtype.itemsize
        wanted = max(wanted, min(_PARTITIONS, size // _PARTITION_BYTES))
        return 1 << (wanted - 1).bit_length()

    def _scattered(self, spans: list[tuple[int, int]]) -> list[Partition]:
        """Partitions of an array in memory, sent to workers."""
        assert isinstance(self.source, ArraySource)
        if not self.client.nthreads():
            # An adaptive cluster has workers when there are tasks.
            self._map("kronlearn-start", str, ["a worker"])[0].result()
        arrays = self._sent([self.source.array[start:stop] for start, stop in spans])
        holders = self.client.who_has(arrays)
        workers = [next(iter(holders[array.key]), None) for array in arrays]
        samples = self._map_there("kronlearn-samples", _aligned, workers, arrays)
        return self._partitions(samples, spans, workers)

    def _sent(self, arrays: list[NDArray[Any]]) -> list[Future]:
        """Arrays that workers hold."""
        failures = 0
        while True:
            try:
                futures: list[Future] = self.client.scatter(arrays, hash=False)
                return futures
            except OSError:
                # A worker went while it was being sent to; Dask is to notice.
                failures += 1
                if failures == _MOST_ATTEMPTS:
                    raise
                time.sleep(0.5)

    def _scatter_lost(self) -> None:
        """Scatter samples anew that were lost."""
        lost = [k for k, p in enumerate(self.partitions) if self.scatters and p.samples.cancelled()]
        if lost:
            spans = [(self.partitions[k].start, self.partitions[k].stop) for k in lost]
            for k, partition in zip(lost, self._scattered(spans), strict=True):
                self.partitions[k] = partition

    def _code_lost(self, codes: HeldCodes) -> None:
        """Code samples anew whose codes were lost."""
        lost = [k for k, part in enumerate(codes.parts) if part.cancelled()]
        if lost:
            again = self._mapped("kronlearn-pass", _pass, codes.task, None, lost)
            for k, part in zip(lost, again, strict=True):
                codes.parts[k] = part

    def _of_chunks(self, array: Any, step: int) -> list[Partition]:
        """Partitions of a Dask array.

        Blocks that lie in a large chunk stay there. What reaches over the edges of chunks, or lies
        in small ones, is put together.
        """
        spans = list(_spans_in_chunks(np.cumsum(array.chunks[0]), self.block_size, step))
        lengths = dict.fromkeys(range(array.ndim), -1) | {0: tuple(b - a for a, b in spans)}
        # The other method, "p2p", sends all samples from worker to worker.
        cut = array.rechunk(lengths, method="tasks").to_delayed().ravel().tolist()
        return self._partitions(self.client.compute(cut), spans)


def _spans_in_chunks(
    ends: NDArray[np.int64], block_size: int, step: int
) -> Iterator[tuple[int, int]]:
    """Consecutive spans of whole blocks, of about ``step`` blocks where chunks are large.

    Parameters
    ----------
    ends : array of shape (n_chunks,)
        Where the chunks end.
    """
    n = int(ends[-1])
    firsts = np.arange(0, n, block_size)
    home = np.searchsorted(ends, firsts, "right")
    inside = home == np.searchsorted(ends, np.minimum(firsts + block_size, n) - 1, "right")
    is_large = 2 * np.bincount(home[inside], minlength=len(ends)) >= step
    keys = np.where(inside & is_large[home], home, -1)
    for _, run in groupby(range(len(keys)), keys.__getitem__):
        blocks = list(run)
        count = max(1, round(len(blocks) / step))
        for some in np.array_split(blocks, count):
            yield int(firsts[some[0]]), min(int(firsts[some[-1]]) + block_size, n)


def check_versions(client: Client) -> None:
    """Raise unless all workers can import this version of kronlearn.

    One that cannot does not even understand its tasks: it ends, and so does the next.
    """
    version = kronlearn.__version__
    found = client.run(eval, "__import__('kronlearn').__version__", on_error="return")
    for worker, answer in found.items():
        # A worker that has just been lost is none of those that have to answer.
        if answer != version and not isinstance(answer, OSError):
            raise RuntimeError(
                f"The Dask worker {worker} does not have kronlearn {version}, but this: {answer}. "
                "Install the same version for all workers and the scheduler."
            )


def _of_partition(task: Task, partition: Partition) -> Task:
    """The task with error targets and weights of the partition's samples alone."""
    tol, weights = task.coder.tol, task.coder.weights
    if (tol is None or np.ndim(tol) == 0) and weights is None:
        # One object for all partitions is sent once.
        return task
    return replace(task, coder=task.coder.of_rows(slice(partition.start, partition.stop)))


def _release(futures: list[Future]) -> None:
    """Let Dask forget what nobody will ask for, and not run what it has not begun."""
    for future in futures:
        future.release()


# What follows is run by workers.


def _part(source: Source, span: tuple[int, int]) -> Source:
    return source.part(*span)


def _aligned(array: NDArray[Any]) -> NDArray[Any]:
    """An array, moved if it lies misaligned in the message that it came in."""
    return array if array.flags.aligned else np.array(array)


def _source(samples: Source | NDArray[Any], first: int, setting: Setting) -> Source:
    """A partition's samples as a source."""
    if isinstance(samples, Source):
        return samples
    source = ArraySource(_aligned(samples), setting.patch_shape)
    source.name, source.first = setting.name, first
    return source


@contextmanager
def _threads(setting: Setting) -> Iterator[int]:
    """The threads of a task: its own or, while it is the task's turn, as many as its worker has.

    With one thread each, tasks of equal size wait for the slowest core in every pass; threads of
    one task take the next block when they are done.
    """
    if setting.n_threads is not None:
        yield setting.n_threads
        return
    worker = get_worker()
    with _turns(worker.address):
        yield int(worker.state.nthreads)


@cache
def _turns(address: str) -> threading.Semaphore:
    """What the tasks of a worker wait for."""
    return threading.Semaphore(_TASKS_OF_WORKER)


def _on_gpu(samples: Source | NDArray[Any], first: int, setting: Setting) -> GpuPartition:
    return GpuPartition(_source(samples, first, setting), setting.block_size)


def _pass(samples: Any, first: int, task: Task, given: Part | None, setting: Setting) -> Part:
    """A pass over a partition, whose first sample has a number."""
    tree = task.tree(setting.n_blocks)
    codes = None if given is None else given.codes
    if isinstance(samples, GpuPartition):
        worst, codes = samples.engine.add(task, tree, codes, first)
        return Part(tree.nodes(), worst, codes)
    source = _source(samples, first, setting)
    if task.keeps_codes:
        codes = Codes.empty(len(source), task.coder.width, source.dtype)
    with use_instruction_set(setting.instruction_set), _threads(setting) as n_threads:
        worst = pass_over(
            source,
            task,
            tree,
            n_threads,
            setting.block_size,
            first=first,
            codes=codes,
            given=given is not None,
        )
    return Part(tree.nodes(), worst, codes if task.keeps_codes else None)


def _codes(samples: Any, first: int, task: Task, given: None, setting: Setting) -> Any:
    """The codes of a partition, a CSR array."""
    if isinstance(samples, GpuPartition):
        return samples.engine.codes(task.dictionary, task.coder)
    source = _source(samples, first, setting)
    with use_instruction_set(setting.instruction_set), _threads(setting) as n_threads:
        threads = Threads(source, n_threads, setting.block_size)
        return threads.codes(task.dictionary, task.coder)


def _without_codes(part: Part) -> Part:
    return replace(part, codes=None)


def _added(parts: list[Part], task: Task, setting: Setting) -> Part:
    """What passes over several partitions found together.

    A node of the tree has the same bits whatever order its parts come in.
    """
    tree = task.tree(setting.n_blocks)
    for part in parts:
        _add_nodes(tree, part)
    residuals = np.concatenate([part.worst[0] for part in parts])
    samples = np.concatenate([part.worst[1] for part in parts])
    return Part(tree.nodes(), worst_first(residuals, samples, task.n_worst))


def _add_nodes(tree: Any, part: Part) -> None:
    for level, index, sums in zip(*part.nodes, strict=True):
        tree.add(int(level), int(index), sums)
