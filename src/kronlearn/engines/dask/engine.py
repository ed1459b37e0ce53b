"""The engine: passes over partitions as tasks, their sums added by tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from distributed import CancelledError, Client, Future, wait
from scipy import sparse

from kronlearn.core.coder import Coder
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.engine import Engine, PassSums, Task
from kronlearn.core.instruction_sets import instruction_set
from kronlearn.core.source import Source
from kronlearn.engines.dask.client import check_versions, map_tasks, release
from kronlearn.engines.dask.partitions import (
    MOST_ATTEMPTS,
    Partition,
    cut_into_partitions,
    default_count,
    scatter_lost,
)
from kronlearn.engines.dask.tasks import (
    Settings,
    add_sums,
    code_partition,
    run_pass,
    sum_into_tree,
    without_codes,
)
from kronlearn.engines.threads import default_block_size, resolve_n_jobs

__all__ = ["Cluster", "HeldCodes"]

# The number of partial sums that one task adds.
_FAN_IN = 8
# Once a single partial sum is left, or several of at most this many bytes, this process fetches and
# adds them, which saves waiting for another task.
_FETCHED_BYTES = 1 << 20

_T = TypeVar("_T")


@dataclass(frozen=True)
class HeldCodes:
    """The codes of a pass, held by workers: a future of PartialSums for each partition."""

    task: Task
    parts: list[Future]


class Cluster(Engine):
    """Runs passes on the workers of a Dask cluster.

    Parameters
    ----------
    client : distributed.Client
    source : Source
        Arrays in memory are scattered; chunks of a Dask array stay where they are; workers open
        anything else themselves.
    n_jobs : int or None
        Threads of a task; None or -1: as many as its worker has, which then runs two tasks at once.
    device : {"cpu", "cuda"}
    block_size : int, optional
    n_partitions : int, optional
        About how many partitions to cut the samples into; by default two for every worker or, with
        ``n_jobs``, as many as tasks can run at once.
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
        self.block_size = block_size or default_block_size(source)
        self.settings = Settings(
            patch_shape=source.patch_shape,
            n_blocks=-(-len(source) // self.block_size),
            block_size=self.block_size,
            n_threads=None if n_jobs is None or n_jobs < 0 else resolve_n_jobs(n_jobs),
            device=device,
            instruction_set=instruction_set(),
            name=source.name,
        )
        count = n_partitions or default_count(client, source, self.settings.n_threads)
        self.partitions = cut_into_partitions(client, source, self.settings, count)
        # Futures of the last pass, which the next one releases.
        self.last_futures: list[Future] = []

    def run(self, task: Task, codes: HeldCodes | None = None) -> PassSums:
        """Run a pass: one task per partition, and a tree of tasks that adds their sums."""
        return self._repeat_if_lost(lambda: self._run(task, codes), codes)

    def codes(self, dictionary: Dictionary, coder: Coder) -> sparse.csr_array:
        """Have workers code all samples, and gather the codes here."""
        return self._repeat_if_lost(lambda: self._codes(Task(dictionary, coder)))

    def close(self) -> None:
        """Release the samples that workers hold for this engine."""
        release([*self.last_futures, *(partition.samples for partition in self.partitions)])

    def _run(self, task: Task, codes: HeldCodes | None) -> PassSums:
        coded = None if codes is None else codes.parts
        parts = self._map_partitions("kronlearn-pass", run_pass, task, coded)
        futures = list(parts)
        n_fetched = max(1, _FETCHED_BYTES // task.tree(self.settings.n_blocks).total().nbytes)
        try:
            sums = parts
            if task.keeps_codes:
                sums = map_tasks(self.client, "kronlearn-sums", without_codes, parts)
                futures += sums
            while len(sums) > n_fetched:
                groups = [sums[i : i + _FAN_IN] for i in range(0, len(sums), _FAN_IN)]
                sums = map_tasks(
                    self.client,
                    "kronlearn-add",
                    add_sums,
                    groups,
                    task=task,
                    settings=self.settings,
                )
                futures += sums
            # A client sends messages every 10 ms at most: releasing futures at the end of a pass
            # would delay the next one.
            release(self.last_futures)
            partial_sums = self._gather(sums, parts)
        except BaseException:
            release(futures)
            raise
        tree, (_, worst) = sum_into_tree(partial_sums, task, self.settings)
        kept = HeldCodes(task, parts) if task.keeps_codes else None
        self.last_futures = futures if kept is None else futures[len(parts) :]
        return PassSums.of_tree(tree, worst, kept)

    def _codes(self, task: Task) -> sparse.csr_array:
        parts = self._map_partitions("kronlearn-codes", code_partition, task)
        try:
            return sparse.vstack(self._gather(parts, parts), format="csr")
        finally:
            release(parts)

    def _map_partitions(
        self,
        name: str,
        function: Any,
        task: Task,
        coded: list[Future] | None = None,
        numbers: Sequence[int] | None = None,
    ) -> list[Future]:
        """Submit a task for every partition, or for those with the given numbers."""
        partitions = self.partitions
        if numbers is not None:
            partitions = [partitions[k] for k in numbers]
        workers = [partition.worker for partition in partitions]
        arguments: list[list[Any]] = [
            [partition.samples for partition in partitions],
            [partition.start for partition in partitions],
            [_task_of(partition, task) for partition in partitions],
        ]
        if coded is not None:
            arguments.append(coded)
        return map_tasks(
            self.client, name, function, *arguments, workers=workers, settings=self.settings
        )

    def _gather(self, futures: list[Future], parts: list[Future]) -> list[Any]:
        """Fetch results, or raise the error of the first partition, as threads would."""
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

    def _repeat_if_lost(self, work: Callable[[], _T], codes: HeldCodes | None = None) -> _T:
        """Do some work, again if scattered samples that it needs were lost with their worker."""
        for _ in range(MOST_ATTEMPTS):
            try:
                return work()
            except CancelledError:
                # Dask cannot compute scattered samples again, nor anything made from them.
                scatter_lost(self.client, self.source, self.settings, self.partitions)
                if codes is not None:
                    self._code_lost(codes)
        raise RuntimeError(
            f"Workers were lost {MOST_ATTEMPTS} times in a row, and samples with them; see their "
            "logs for the reason."
        )

    def _code_lost(self, codes: HeldCodes) -> None:
        """Code the samples again whose codes were lost."""
        lost = [k for k, part in enumerate(codes.parts) if part.cancelled()]
        if lost:
            parts = self._map_partitions("kronlearn-pass", run_pass, codes.task, numbers=lost)
            for k, part in zip(lost, parts, strict=True):
                codes.parts[k] = part


def _task_of(partition: Partition, task: Task) -> Task:
    """The task with the error targets and weights of a partition's samples."""
    tol, weights = task.coder.tol, task.coder.weights
    if (tol is None or np.ndim(tol) == 0) and weights is None:
        # One object for all partitions is sent only once.
        return task
    return replace(task, coder=task.coder.of_rows(slice(partition.start, partition.stop)))
