"""The engine of many workers: passes over partitions as Dask tasks, their sums added by tasks.

Everything goes through Dask's public interface. Tasks are pure, so a lost worker is Dask's
business: what it held is computed again elsewhere. Only samples that this process scattered cannot
be computed again; they are scattered anew, and the pass is run again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
from distributed import Client, Future, wait
from numpy.typing import NDArray
from scipy import sparse

from kronlearn.core.coder import Coder
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.engine import Engine, PassSums, Task, worst_first
from kronlearn.core.instruction_sets import (
    instruction_set,
    instruction_sets,
    use_instruction_set,
)
from kronlearn.core.source import Source
from kronlearn.engines.selection import local_engine
from kronlearn.engines.threads import Codes, default_block_size, pass_over, resolve_n_jobs
from kronlearn.io.arrays import ArraySource
from kronlearn.io.samples import dask_array

__all__ = ["Cluster"]

# So many partial sums are added by one task.
_FAN_IN = 8
# Blocks that no chunk of a Dask array holds as a whole are put together, so many at a time.
_GATHERED_BLOCKS = 64
# Without workers to count, the samples are cut into so many partitions.
_PARTITIONS = 16
# How often lost samples are scattered anew before it is taken for more than bad luck.
_MOST_ATTEMPTS = 20


@dataclass(frozen=True)
class Partition:
    """Consecutive blocks of samples, and where a worker finds them.

    ``samples`` is an array that Dask holds, or a source that a worker opens itself; the partition
    is its rows from ``start`` to ``stop``. ``first`` is the number of the first one among all
    samples. Samples that were ``scattered`` are lost with their worker.
    """

    samples: Future | Source
    start: int
    stop: int
    first: int
    scattered: bool = False


@dataclass(frozen=True)
class Part:
    """What a pass over a partition found: nodes of the tree of sums, and the worst samples.

    ``nodes`` are levels (k,), indices (k,) and sums (k, size); ``worst`` residuals and numbers.
    """

    nodes: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]
    worst: tuple[NDArray[np.float64], NDArray[np.int64]]
    codes: Codes | None = None


@dataclass(frozen=True)
class Setting:
    """How all workers work, so that they find the same bits."""

    patch_shape: tuple[int, ...]
    n_blocks: int
    block_size: int
    n_threads: int
    device: str
    instruction_set: str
    name: str


class Cluster(Engine):
    """Runs passes on the workers of a Dask cluster.

    Parameters
    ----------
    client : distributed.Client
    source : Source
        Arrays in memory are scattered; chunks of a Dask array stay where they are; anything else is
        opened by the workers.
    n_jobs : int or None
        Threads of a task; None: one, for Dask runs as many tasks as a worker has threads.
    device : {"cpu", "cuda"}
    block_size : int, optional
    """

    def __init__(
        self,
        client: Client,
        source: Source,
        n_jobs: int | None = None,
        device: str = "cpu",
        block_size: int | None = None,
    ) -> None:
        self.client, self.source = client, source
        self.block_size = block_size or default_block_size(source)
        self.setting = Setting(
            source.patch_shape,
            -(-len(source) // self.block_size),
            self.block_size,
            1 if n_jobs is None else resolve_n_jobs(n_jobs),
            device,
            _common_instruction_set(client),
            source.name,
        )
        lazy = dask_array(source)
        if lazy is not None:
            self.partitions = list(_of_chunks(client, lazy, self.block_size))
        else:
            self.partitions = self._cut()

    def run(self, task: Task, codes: list[Future] | None = None) -> PassSums:
        """One pass over all partitions; a task each, and a tree of tasks that adds their sums."""
        return self._repeated(lambda: self._run(task, codes))

    def codes(self, dictionary: Dictionary, coder: Coder) -> sparse.csr_array:
        """The codes of all samples, made by the workers and put together here."""
        return self._repeated(lambda: self._codes(dictionary, coder))

    def close(self) -> None:
        """Let go of the samples that workers hold for this engine."""
        self.partitions = []

    def _run(self, task: Task, codes: list[Future] | None) -> PassSums:
        parts = self._mapped("kronlearn-pass", _pass, task, codes)
        sums = parts
        if task.keeps_codes:
            # Codes stay with the worker that made them.
            sums = self.client.map(_without_codes, parts, key="kronlearn-sums", pure=False)
        while len(sums) > 1:
            groups = [sums[i : i + _FAN_IN] for i in range(0, len(sums), _FAN_IN)]
            same = [task] * len(groups), [self.setting] * len(groups)
            sums = self.client.map(_added, groups, *same, key="kronlearn-add", pure=False)
        total = sums[0].result()
        tree = task.tree(self.setting.n_blocks)
        _add_nodes(tree, total)
        worst = total.worst[1]
        return PassSums.of_tree(tree, len(self.source), worst, parts if task.keeps_codes else None)

    def _codes(self, dictionary: Dictionary, coder: Coder) -> sparse.csr_array:
        parts = self._mapped("kronlearn-codes", _codes, Task(dictionary, coder), None)
        return sparse.vstack(self.client.gather(parts), format="csr")

    def _mapped(
        self, name: str, function: Any, task: Task, codes: list[Future] | None
    ) -> list[Future]:
        """A task for every partition."""
        ranges = [(p.start, p.stop, p.first) for p in self.partitions]
        tasks = [_of_partition(task, p) for p in self.partitions]
        settings = [self.setting] * len(tasks)
        samples = [p.samples for p in self.partitions]
        given = [None] * len(tasks) if codes is None else codes
        futures: list[Future] = self.client.map(
            function, samples, ranges, tasks, settings, given, key=name, pure=False
        )
        return futures

    def _cut(self) -> list[Partition]:
        """Partitions of equal numbers of blocks.

        Their number is a power of two, so that most are one node of the tree of sums: as many as
        the cluster has threads or, if these are not a power of two, four times as many or more.
        """
        threads = sum(self.client.nthreads().values()) // self.setting.n_threads or _PARTITIONS
        wanted = threads if threads.bit_count() == 1 else 4 * threads
        n_blocks = self.setting.n_blocks
        step = -(-n_blocks // (1 << (wanted - 1).bit_length()))
        bounds = [
            (start * self.block_size, min((start + step) * self.block_size, len(self.source)))
            for start in range(0, n_blocks, step)
        ]
        if not isinstance(self.source, ArraySource):
            return [Partition(self.source, start, stop, start) for start, stop in bounds]
        arrays = self.client.scatter([self.source.array[a:b] for a, b in bounds], hash=False)
        return [
            Partition(array, 0, stop - start, start, scattered=True)
            for array, (start, stop) in zip(arrays, bounds, strict=True)
        ]

    def _repeated(self, work: Any) -> Any:
        """The result of some work, again if samples that it needed went with their worker."""
        for _ in range(_MOST_ATTEMPTS):
            try:
                return work()
            except BaseException:
                if not self._scatter_lost():
                    raise
        raise RuntimeError(
            f"Workers were lost {_MOST_ATTEMPTS} times in a row, and samples with them; see their "
            "logs for the reason."
        )

    def _scatter_lost(self) -> bool:
        """Scatter samples anew that were lost; whether there were any."""
        wait([p.samples for p in self.partitions if isinstance(p.samples, Future)], timeout=0)
        lost = [
            k
            for k, p in enumerate(self.partitions)
            if p.scattered and isinstance(p.samples, Future) and p.samples.status != "finished"
        ]
        if not lost:
            return False
        assert isinstance(self.source, ArraySource)
        for k in lost:
            p = self.partitions[k]
            array = self.source.array[p.first : p.first + p.stop]
            samples = self.client.scatter(array, hash=False)
            self.partitions[k] = replace(p, samples=samples)
        return True


def _of_chunks(client: Client, array: Any, block_size: int) -> Iterator[Partition]:
    """Partitions of a Dask array whose chunks stay where they are.

    A partition is all blocks that lie in one chunk. Blocks that reach over the edge of a chunk are
    put together, by tasks.
    """
    whole = array.rechunk(dict.fromkeys(range(1, array.ndim), -1))
    chunks = client.compute(whole.to_delayed().ravel().tolist())
    ends = np.cumsum(whole.chunks[0])
    n = int(ends[-1])
    firsts = np.arange(0, n, block_size)
    lasts = np.minimum(firsts + block_size, n) - 1
    home = np.searchsorted(ends, firsts, side="right")
    straddles = home != np.searchsorted(ends, lasts, side="right")
    # Runs of blocks with the same key: a chunk, or a number of blocks that lie in none.
    keys = np.where(straddles, -1 - np.arange(len(home)) // _GATHERED_BLOCKS, home)
    for key, run in groupby(range(len(keys)), keys.__getitem__):
        blocks = list(run)
        start, stop = int(firsts[blocks[0]]), int(lasts[blocks[-1]]) + 1
        if key >= 0:
            begin = int(ends[key - 1]) if key else 0
            yield Partition(chunks[key], start - begin, stop - begin, start)
            continue
        pieces, ranges = [], []
        for chunk in range(int(home[blocks[0]]), int(np.searchsorted(ends, stop - 1, "right")) + 1):
            begin = int(ends[chunk - 1]) if chunk else 0
            pieces.append(chunks[chunk])
            ranges.append((max(start - begin, 0), min(stop, int(ends[chunk])) - begin))
        gathered = client.submit(_gathered, pieces, ranges, key=None, pure=False)
        yield Partition(gathered, 0, stop - start, start)


def _gathered(pieces: list[NDArray[Any]], ranges: list[tuple[int, int]]) -> NDArray[Any]:
    """Rows of some chunks, one behind the other."""
    rows = [piece[a:b] for piece, (a, b) in zip(pieces, ranges, strict=True)]
    return np.concatenate(rows)


def _common_instruction_set(client: Client) -> str:
    """The best instruction set that this process and all workers have, up to the one in use."""
    names = instruction_sets()
    wanted = names[: names.index(instruction_set()) + 1]
    found = client.run(instruction_sets)
    return [name for name in wanted if all(name in sets for sets in found.values())][-1]


def _of_partition(task: Task, partition: Partition) -> Task:
    """The task with error targets and weights of the partition's samples alone."""
    rows = slice(partition.first, partition.first + partition.stop - partition.start)
    return replace(task, coder=task.coder.of_rows(rows))


def _source(samples: Any, rows: tuple[int, int, int], setting: Setting) -> Source:
    """A partition's samples as a source of their own."""
    start, stop, _ = rows
    if isinstance(samples, Source):
        return samples.part(start, stop)
    part = samples[start:stop]
    # Arrays may lie misaligned in the message that they came in.
    return ArraySource(part if part.flags.aligned else np.array(part), setting.patch_shape)


def _pass(
    samples: Any, rows: tuple[int, int, int], task: Task, setting: Setting, given: Part | None
) -> Part:
    """A pass over a partition."""
    source = _source(samples, rows, setting)
    source.name = setting.name
    tree = task.tree(setting.n_blocks)
    codes = None if given is None else given.codes
    if task.keeps_codes:
        codes = Codes.empty(len(source), task.coder.width, source.dtype)
    with use_instruction_set(setting.instruction_set):
        worst = pass_over(
            source,
            task,
            tree,
            setting.n_threads,
            setting.block_size,
            first=rows[2],
            codes=codes,
            given=given is not None,
        )
    return Part(tree.nodes(), worst, codes if task.keeps_codes else None)


def _codes(
    samples: Any, rows: tuple[int, int, int], task: Task, setting: Setting, given: None
) -> sparse.csr_array:
    """The codes of a partition."""
    source = _source(samples, rows, setting)
    with use_instruction_set(setting.instruction_set):
        engine = local_engine(source, setting.n_threads, setting.device, setting.block_size)
        return engine.codes(task.dictionary, task.coder)


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
